"""The index of an archive: records of its videos, and their embeddings."""

from hlformer_jax.search.index.database import LockedError
from hlformer_jax.search.index.index import Index, absent
from hlformer_jax.search.index.records import (
    EncoderFacts,
    Entry,
    Record,
    Stamp,
    Threshold,
    VideoArrays,
    split_name,
)
from hlformer_jax.search.index.writer import FAVOURITE, Writer, tag_key

__all__ = [
    "FAVOURITE",
    "EncoderFacts",
    "Entry",
    "Index",
    "LockedError",
    "Record",
    "Stamp",
    "Threshold",
    "VideoArrays",
    "Writer",
    "absent",
    "split_name",
    "tag_key",
]
