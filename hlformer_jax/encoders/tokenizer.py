"""Sentences as tokens, by the files of a Hugging Face folder.

What `tokenizer.json` says is done by the library `tokenizers`. What transformers does outside of
it, by the class that `tokenizer_config.json` names, is done here: SigLIP's sentences lose capitals
and punctuation, SigLIP2's capitals (it was trained so), and a Gemma tokenizer marks the ends that
the configuration asks for.
"""

import re
import string
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Bool, Int
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from hlformer_jax.encoders.config import Config, EncoderError, read_json

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
OLD_FILES = {"clip": ("vocab.json", "merges.txt"), "siglip": ("spiece.model",)}
"""What old folders have in place of `tokenizer.json`, by family."""

START, END = "<|startoftext|>", "<|endoftext|>"
_T5_END = "</s>"
_CLIP_PIECES = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
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


def read(folder: Path, config: Config) -> Tokenizer:
    """The tokenizer of a folder, by `tokenizer.json` or, where there is none, the old files.

    Raises:
      EncoderError: when a file is missing or damaged, or its ids do not fit the encoder's.
    """
    settings = _settings(folder)
    if (folder / FILE).exists():
        content = (folder / FILE).read_bytes()
        try:
            backend = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
        except Exception as error:  # the library raises bare exceptions
            raise EncoderError(
                f"{folder / FILE}: no tokenizer ({str(error).splitlines()[0]}); fetch it again"
            ) from error
    elif config.family == "clip" and all((folder / name).exists() for name in OLD_FILES["clip"]):
        content = b"\0".join((folder / name).read_bytes() for name in OLD_FILES["clip"])
        backend = _from_pairs(folder)
    elif config.family == "siglip" and (path := folder / OLD_FILES["siglip"][0]).exists():
        content = path.read_bytes()
        backend = _from_sentence_piece(path)
        # Such a folder is an old one of SigLIP, even where no file says so.
        settings = {"tokenizer_class": "SiglipTokenizer", **settings}
    else:
        raise EncoderError(
            f"{folder}: lacks {FILE}; in an environment with transformers,"
            f" AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
            " writes one from the tokenizer's other files"
        )
    return build(backend, content, settings, config, str(folder))


def build(
    backend: tokenizers.Tokenizer,
    content: bytes,
    settings: Mapping[str, Any],
    config: Config,
    where: str,
) -> Tokenizer:
    """A tokenizer whose backend is set to truncate and pad to an encoder's number of tokens.

    Raises:
      EncoderError: naming the folder (`where`), when its ids do not fit the encoder's.
    """
    length = config.text.positions
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


def _pad(tokenizer: Tokenizer, config: Config) -> int:
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


def _from_pairs(folder: Path) -> tokenizers.Tokenizer:
    """CLIP's tokenizer from its vocabulary and its list of merged pairs."""
    vocabulary, merges = (folder / name for name in OLD_FILES["clip"])
    try:
        ids, pairs = models.BPE.read_file(str(vocabulary), str(merges))
        ends = [(token, ids[token]) for token in (END, START)]
    except Exception as error:  # the library raises bare exceptions
        raise EncoderError(f"{vocabulary}, {merges}: no CLIP vocabulary ({error})") from error
    backend = tokenizers.Tokenizer(
        models.BPE(ids, pairs, end_of_word_suffix="</w>", unk_token=END, fuse_unk=False)
    )
    spaces = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
    pieces = tokenizers.Regex(rf"{re.escape(START)}|{re.escape(END)}|{_CLIP_PIECES}")
    split = pre_tokenizers.Split(pieces, behavior="removed", invert=True)
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, in_bytes])
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.RobertaProcessing(
        ends[0], ends[1], trim_offsets=False, add_prefix_space=False
    )
    backend.add_special_tokens([START, END])
    backend.enable_padding(pad_id=ids[END], pad_token=END)
    return backend


# Numbers of the fields of a SentencePiece model, of a piece, and of its trainer and normaliser.
_PIECE, _TRAINER, _NORMALISER = 1, 2, 3  # fields of the file
_TEXT, _SCORE, _TYPE = 1, 2, 3  # fields of a piece
_MODEL_TYPE, _UNIGRAM = 3, 1
_CHARACTERS = 2  # of the normaliser: its table of characters
_UNKNOWN = 2  # type of the piece that stands for all others


def _from_sentence_piece(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a unigram SentencePiece model, with T5's end mark.

    The file is a protocol buffer, of which the few fields that matter are read here.
    """
    pieces: list[tuple[str, float]] = []
    unknown: list[int] = []
    table, kind = b"", _UNIGRAM
    try:
        for field, value in _fields(path.read_bytes()):
            if field == _PIECE:
                piece = dict(_fields(value))
                if piece.get(_TYPE) == _UNKNOWN:
                    unknown.append(len(pieces))
                score = struct.unpack("<f", piece[_SCORE])[0] if _SCORE in piece else 0.0
                pieces.append((piece[_TEXT].decode("utf-8"), score))
            elif field == _TRAINER:
                kind = dict(_fields(value)).get(_MODEL_TYPE, _UNIGRAM)
            elif field == _NORMALISER:
                table = dict(_fields(value)).get(_CHARACTERS, b"")
        end = [text for text, _ in pieces].index(_T5_END)
        if kind != _UNIGRAM:
            raise ValueError("the pieces are merged, not chosen")
        backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=unknown[0]))
    except (IndexError, KeyError, ValueError, struct.error) as error:
        raise EncoderError(
            f"{path}: no unigram SentencePiece model with the end mark {_T5_END}; fetch it again"
        ) from error
    steps: list[Any] = [normalizers.Precompiled(table)] if table else []
    # What the table makes of a character may be a space.
    backend.normalizer = normalizers.Sequence(
        [*steps, normalizers.Replace(tokenizers.Regex(" {2,}"), " "), normalizers.Strip()]
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {_T5_END}", special_tokens=[(_T5_END, end)]
    )
    backend.enable_padding(pad_id=end, pad_token=_T5_END)
    return backend


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and values of a message's fields: whole numbers, or bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = content[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(content):
        field, wire = divmod(varint(), 8)
        if wire == 0:
            yield field, varint()
            continue
        length = {1: 8, 5: 4}[wire] if wire != 2 else varint()
        if at + length > len(content):
            raise ValueError("a field is cut off")
        yield field, content[at : at + length]
        at += length
