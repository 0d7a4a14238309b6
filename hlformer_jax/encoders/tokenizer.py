"""Sentences as tokens, by the files of a Hugging Face folder.

What `tokenizer.json` says is done by the library `tokenizers`. What transformers does outside of
it, by the class that `tokenizer_config.json` names, is done here: SigLIP's sentences lose capitals
and punctuation, SigLIP2's capitals (it was trained so), and a Gemma tokenizer marks the ends that
the configuration asks for.
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
    """Sentences → ids of a fixed number, padded."""

    backend: tokenizers.Tokenizer  # set to truncate and pad
    length: int  # tokens of a padded sentence
    content: bytes  # what defines it, for a fingerprint and to save it
    settings: Mapping[str, Any]  # of `tokenizer_config.json`

    @property
    def name(self) -> str:
        """The class of transformers that the folder names, without "Fast"; "" where none."""
        return str(self.settings.get("tokenizer_class") or "").removesuffix("Fast")

    @property
    def gemma(self) -> bool:
        """Whether it is the tokenizer of a SigLIP2."""
        return self.name in ("GemmaTokenizer", "Siglip2Tokenizer")

    def __call__(
        self, texts: Sequence[str]
    ) -> tuple[Int[np.ndarray, "Q W"], Bool[np.ndarray, "Q W"]]:
        """Ids of sentences and which of them are no padding; long ones keep their end mark."""
        for text in texts:
            if not isinstance(text, str):
                raise EncoderError(f"a sentence is a string, not {text!r}")
        encodings = self.backend.encode_batch([self._prepared(text) for text in texts])
        shape = (len(texts), self.length)
        ids = np.array([one.ids for one in encodings], np.int32).reshape(shape)
        return ids, np.array([one.attention_mask for one in encodings], bool).reshape(shape)

    def _prepared(self, text: str) -> str:
        # Lone surrogates, as file names may hold, are no text.
        text = text.encode("utf-8", "replace").decode("utf-8")
        if self.name == "SiglipTokenizer":
            if self.settings.get("do_lower_case", True):
                text = text.lower()
            return re.sub(r"\s+", " ", text.translate(_PUNCTUATION)).strip()
        return text.lower() if self.gemma else text


def read(folder: Path, config: TextConfig) -> Tokenizer:
    """The tokenizer of a folder.

    Raises:
      EncoderError: when a file is missing or damaged, or its ids do not fit the encoder's.
    """
    if not (folder / FILE).exists():
        raise absent(str(folder))
    content = (folder / FILE).read_bytes()
    try:
        backend = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # the library raises bare exceptions
        raise EncoderError(
            f"{folder / FILE}: no tokenizer ({str(error).splitlines()[0]}); fetch it again"
        ) from error
    return build(backend, content, _settings(folder), config, str(folder))


def absent(where: str) -> EncoderError:
    """The error of a folder, or a model of the hub, without `tokenizer.json`."""
    return EncoderError(
        f"{where}: lacks {FILE}; in an environment with transformers,"
        f" AutoTokenizer.from_pretrained({where!r}).save_pretrained(FOLDER) writes one from a"
        " tokenizer's other files (vocab.json and merges.txt, spiece.model); put it into the folder"
        " that holds the model's other files"
    )


def build(
    backend: tokenizers.Tokenizer,
    content: bytes,
    settings: Mapping[str, Any],
    config: TextConfig,
    where: str,
) -> Tokenizer:
    """A tokenizer whose backend is set to truncate and pad to an encoder's number of tokens.

    Raises:
      EncoderError: naming the folder (`where`), when its ids do not fit the encoder's.
    """
    length = config.max_tokens
    tokenizer = Tokenizer(backend, length, content, settings)
    if tokenizer.gemma and ("add_bos_token" in settings or "add_eos_token" in settings):
        _mark_ends(backend, settings, where)
    largest = max(backend.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= config.text.vocabulary:
        raise EncoderError(
            f"{where}: the tokenizer has the id {largest}, but config.json says that there are"
            f" {config.text.vocabulary} tokens; it belongs to another model"
        )
    pad = _pad(tokenizer, config)
    backend.enable_truncation(length, direction=str(settings.get("truncation_side", "right")))
    backend.enable_padding(
        direction=str(settings.get("padding_side", "right")),
        pad_id=pad,
        pad_token=backend.id_to_token(pad) or "",
        length=length,
    )
    return tokenizer


def _settings(folder: Path) -> Mapping[str, Any]:
    """The content of `tokenizer_config.json`, with what `special_tokens_map.json` adds."""
    merged: dict[str, Any] = {}
    for name in ("special_tokens_map.json", SETTINGS):
        path = folder / name
        if path.exists():
            merged |= read_json(path)
    return merged


def _token(value: Any) -> str | None:
    """A special token, which files give as a string or as an object."""
    return value.get("content") if isinstance(value, Mapping) else value


def _pad(tokenizer: Tokenizer, config: TextConfig) -> int:
    """The id that pads: of the named token, of `tokenizer.json`, of `config.json`, in this order.

    SigLIP reads its padding, so that a wrong one changes every embedding.
    """
    token = _token(tokenizer.settings.get("pad_token"))
    by_name = tokenizer.backend.token_to_id(token) if token else None
    if by_name is not None:
        return int(by_name)
    padding = tokenizer.backend.padding
    return int(padding["pad_id"]) if padding else config.text.pad


def _mark_ends(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], where: str) -> None:
    """Marks the ends of a sentence as `add_bos_token` and `add_eos_token` say."""
    template, marks = ["$A"], []
    for side, default, flag in (("bos", True, "add_bos_token"), ("eos", False, "add_eos_token")):
        if settings.get(flag, default):
            token = _token(settings.get(f"{side}_token")) or f"<{side}>"
            number = backend.token_to_id(token)
            if number is None:
                raise EncoderError(f"{where}: the tokenizer lacks the token {token}")
            marks.append((token, number))
            template = [token, *template] if side == "bos" else [*template, token]
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(template), special_tokens=marks
    )
