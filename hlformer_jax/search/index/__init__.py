"""The index of an archive: records of its videos, and their embeddings."""

from hlformer_jax.search.index.disk import LockedError, MissingIndexError, ReplacedIndexError
from hlformer_jax.search.index.index import Index
from hlformer_jax.search.index.records import (
    EncoderFacts,
    Entry,
    Exclusion,
    Record,
    Stamp,
    Threshold,
    VideoArrays,
    split_name,
)
from hlformer_jax.search.index.roots import find_missing
from hlformer_jax.search.index.writer import FAVOURITE, Writer, tag_key

__all__ = [
    "FAVOURITE", "EncoderFacts", "Entry", "Exclusion", "Index", "LockedError", "MissingIndexError",
    "Record", "ReplacedIndexError", "Stamp", "Threshold", "VideoArrays", "Writer", "find_missing",
    "split_name", "tag_key",
]  # fmt: skip
