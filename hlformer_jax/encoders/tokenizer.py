"""Tokens of texts, with the tokenizer of a Hugging Face folder.

The library `tokenizers` executes `tokenizer.json`. This module adds the steps of the transformers
class that `tokenizer_config.json` names. As in their training, texts of SigLIP are in lower case
and without punctuation, and texts of SigLIP2 in lower case. A Gemma tokenizer adds the tokens for
the beginning and the end of a text that the configuration asks for.
"""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Bool, Int
from tokenizers import processors

from hlformer_jax.encoders.config import EncoderError, TextConfig, read_json

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Tokenizer:
    """A function from texts to a fixed number of ids, with padding."""

    backend: tokenizers.Tokenizer  # truncates and pads
    length: int  # number of tokens of a padded text
    content: bytes  # the content of `tokenizer.json`, for the fingerprint and for saving
    settings: Mapping[str, Any]  # the content of `tokenizer_config.json`

    @property
    def name(self) -> str:
        """The class of transformers that the folder names, without "Fast"; "" if it names none."""
        return str(self.settings.get("tokenizer_class") or "").removesuffix("Fast")

    @property
    def is_gemma(self) -> bool:
        """True for the tokenizer of a SigLIP2."""
        return self.name in ("GemmaTokenizer", "Siglip2Tokenizer")

    def __call__(
        self, texts: Sequence[str]
    ) -> tuple[Int[np.ndarray, "Q W"], Bool[np.ndarray, "Q W"]]:
        """Return the ids of texts, and a mask that is False for padding.

        A text that is too long is cut, but keeps its end token.

        Raises:
          EncoderError: if a text is not a string.
        """
        for text in texts:
            if not isinstance(text, str):
                raise EncoderError(f"a text is a string, not {text!r}")
        encodings = self.backend.encode_batch([self._normalise(text) for text in texts])
        shape = (len(texts), self.length)
        ids = np.array([encoding.ids for encoding in encodings], np.int32)
        real = np.array([encoding.attention_mask for encoding in encodings], bool)
        return ids.reshape(shape), real.reshape(shape)

    def rest(self, text: str) -> str:
        """Return the part of a text, as it is normalised, that is cut off; "" if nothing is."""
        text = self._normalise(text)
        encoding = self.backend.encode(text)
        if not encoding.overflowing:
            return ""
        spans = [span for span in encoding.offsets if span[0] < span[1]]  # special tokens have none
        start, end = spans[0][0], spans[-1][1]
        return (text[:start] + text[end:]).strip()

    def _normalise(self, text: str) -> str:
        # Unpaired surrogates, which file names may contain, cannot be encoded.
        text = text.encode("utf-8", "replace").decode("utf-8")
        if self.name == "SiglipTokenizer":
            if self.settings.get("do_lower_case", True):
                text = text.lower()
            return re.sub(r"\s+", " ", text.translate(_PUNCTUATION)).strip()
        return text.lower() if self.is_gemma else text


def read(folder: Path, config: TextConfig) -> Tokenizer:
    """Read the tokenizer of a folder.

    Raises:
      EncoderError: if a file is damaged, or its ids exceed the encoder's vocabulary.
    """
    content = (folder / FILE).read_bytes()
    try:
        backend = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # the library raises bare exceptions
        raise EncoderError(
            f"{folder / FILE}: not a tokenizer ({str(error).splitlines()[0]}); fetch it again"
        ) from error
    return build(backend, content, _read_settings(folder), config, str(folder))


def missing_error(where: str) -> EncoderError:
    """Return the error for a folder or a model of the hub (`where`) without `tokenizer.json`."""
    return EncoderError(
        f"{where}: lacks {FILE}; copy it from the model that it was trained from; except for a"
        f" SigLIP, AutoTokenizer.from_pretrained({where!r}).save_pretrained(FOLDER) of transformers"
        " writes one from vocab.json and merges.txt"
    )


def build(
    backend: tokenizers.Tokenizer,
    content: bytes,
    settings: Mapping[str, Any],
    config: TextConfig,
    where: str,
) -> Tokenizer:
    """Set a backend to truncate and pad to an encoder's number of tokens.

    Args:
      backend: the tokenizer, which is changed.
      content: the content of its `tokenizer.json`.
      settings: the content of `tokenizer_config.json`.
      config: the encoder's configuration.
      where: the folder, for errors.

    Raises:
      EncoderError: if its ids exceed the encoder's vocabulary, or it lacks a special token.
    """
    tokenizer = Tokenizer(backend, config.max_tokens, content, settings)
    if tokenizer.is_gemma and ("add_bos_token" in settings or "add_eos_token" in settings):
        _mark_ends(backend, settings, where)
    largest = max(backend.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= config.text.vocabulary:
        raise EncoderError(
            f"{where}: the tokenizer has the id {largest}, but config.json says that there are"
            f" {config.text.vocabulary} tokens; it belongs to another model"
        )
    pad = _padding_id(tokenizer, config)
    backend.enable_truncation(
        config.max_tokens, direction=str(settings.get("truncation_side", "right"))
    )
    backend.enable_padding(
        direction=str(settings.get("padding_side", "right")),
        pad_id=pad,
        pad_token=backend.id_to_token(pad) or "",
        length=config.max_tokens,
    )
    return tokenizer


def _read_settings(folder: Path) -> Mapping[str, Any]:
    """Return the content of `tokenizer_config.json` merged over `special_tokens_map.json`."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", SETTINGS):
        path = folder / name
        if path.exists():
            settings |= read_json(path)
    return settings


def _token_text(value: Any) -> str | None:
    """Return the text of a special token, which files give as a string or as an object."""
    return value.get("content") if isinstance(value, Mapping) else value


def _padding_id(tokenizer: Tokenizer, config: TextConfig) -> int:
    """Return the id of padding: from the settings, else `tokenizer.json`, else `config.json`.

    SigLIP attends to padding, so a wrong id would change every embedding.
    """
    token = _token_text(tokenizer.settings.get("pad_token"))
    number = tokenizer.backend.token_to_id(token) if token else None
    if number is not None:
        return int(number)
    padding = tokenizer.backend.padding
    return int(padding["pad_id"]) if padding else config.text.pad


def _mark_ends(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], where: str) -> None:
    """Let a tokenizer add the special tokens of `add_bos_token` and `add_eos_token`."""
    template, marks = ["$A"], []
    for side, default, flag in (("bos", True, "add_bos_token"), ("eos", False, "add_eos_token")):
        if settings.get(flag, default):
            token = _token_text(settings.get(f"{side}_token")) or f"<{side}>"
            number = backend.token_to_id(token)
            if number is None:
                raise EncoderError(f"{where}: the tokenizer lacks the token {token}")
            marks.append((token, number))
            template = [token, *template] if side == "bos" else [*template, token]
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(template), special_tokens=marks
    )
