"""A SentencePiece model file as a tokenizer, for SigLIP folders without `tokenizer.json`.

The file is a protocol buffer; the few fields that matter are read here, so that neither the library
sentencepiece nor protobuf is needed.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from hlformer_jax.encoders.errors import EncoderError

FILE = "spiece.model"
END = "</s>"

_PIECE, _TRAINER, _NORMALISER = 1, 2, 3  # fields of the file
_TEXT, _SCORE, _TYPE = 1, 2, 3  # fields of a piece
_MODEL_TYPE, _UNIGRAM = 3, 1
_CHARACTERS = 2  # of the normaliser: its table of characters
_UNKNOWN = 2  # type of the piece that stands for all others


def read(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a unigram SentencePiece model, with T5's end mark.

    Args:
      path: the file.

    Raises:
      EncoderError: when it is no such model.
    """
    try:
        backend = _build(path.read_bytes())
    except (IndexError, KeyError, ValueError, struct.error, StopIteration) as error:
        raise EncoderError(
            f"{path}: no unigram SentencePiece model with the end mark {END}; fetch it again"
        ) from error
    return backend


def _build(content: bytes) -> tokenizers.Tokenizer:
    pieces: list[tuple[str, float]] = []
    unknown: list[int] = []
    table, kind = b"", _UNIGRAM
    for field, value in _fields(content):
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
    end = [text for text, _ in pieces].index(END)
    if kind != _UNIGRAM:
        raise ValueError("the pieces are merged, not chosen")
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=unknown[0]))
    steps: list[Any] = [normalizers.Precompiled(table)] if table else []
    # What the table makes of a character may be a space.
    backend.normalizer = normalizers.Sequence(
        [*steps, normalizers.Replace(tokenizers.Regex(" {2,}"), " "), normalizers.Strip()]
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, end)]
    )
    backend.enable_padding(pad_id=end, pad_token=END)
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
