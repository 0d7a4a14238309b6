"""Statements that read the database of an index, and functions that decode their rows.

`Database.decode` reports an error of such a function as a damaged database.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from hlformer_jax.search.index.embeddings import Repeats, RowSpan, unpack_counts
from hlformer_jax.search.index.records import EncoderFacts, Record, check_rate, join_name

RECORDS = """
SELECT root, path, id, content, size, modified_ns, changed_ns, state,
    CASE state WHEN 'indexed' THEN warning ELSE reason END, ifnull(duration, 0.0),
    ifnull(frames, 0), ifnull(recorded, 0.0)
FROM paths LEFT JOIN contents ON hash = embedded
"""
"""The fields of `Record` of each path."""

SPANS = """
SELECT value, hash, first_row, ifnull(rows, frames), checksum, rounded_checksum, counts
FROM contents JOIN settings ON name = 'generation' LEFT JOIN repeats ON content = hash
"""
"""Generation, hash, fields of `RowSpan`, and packed counts of each content."""

ARRAYS = """
SELECT value, first_row, ifnull(rows, frames), checksum, rounded_checksum, counts, times, duration,
    warning, recorded
FROM contents JOIN settings ON name = 'generation' LEFT JOIN repeats ON content = hash
WHERE hash = ?
"""
"""Generation, fields of `RowSpan`, repeats, and facts of one content."""


def decode_name(row: Any) -> str:
    """Return the name of the video with a root and a path."""
    root, path = map(os.fsdecode, row)
    return join_name(root, path)


def decode_names(rows: list[Any]) -> list[str]:
    """Return the names of the videos with these roots and paths."""
    return list(map(decode_name, rows))


def decode_records(rows: list[Any]) -> dict[str, Record]:
    """Return the records of paths, by the names of the videos."""
    records = {decode_name(row[:2]): Record(*row[2:]) for row in rows}
    for name, record in records.items():
        if record.indexed and not record.frames:
            raise ValueError(f"the content of {name!r} is missing")
    return records


def decode_roots(rows: list[Any]) -> dict[str, Path]:
    """Return the paths of the roots, by name."""
    roots = {os.fsdecode(name): Path(os.fsdecode(path)) for name, path in rows}
    if "" not in roots:
        raise ValueError("the first root is missing")
    return roots


def decode_settings(rows: list[Any]) -> dict[str, Any]:
    """Return the settings that stay as they are, and check that the others can be decoded."""
    values = dict(rows)
    facts, fps = json.loads(values["encoder"]), float(values["fps"])
    check_rate(fps)
    os.fsdecode(values["checkpoint"])
    for name in ("precisions", "unlisted"):
        tuple(json.loads(values.get(name, "[]")))
    if not isinstance(values["transcripts"], str):
        raise TypeError("the version of the transcripts is not a text")
    for name in ("version", "generation", "rows_end"):
        if not isinstance(values[name], int):
            raise TypeError(f"the setting {name} is not a number")
    return {
        "encoder": EncoderFacts(**facts | {"places": tuple(facts["places"])}),
        "fps": fps,
        # An index without the setting has an embedding of every frame.
        "every_frame": bool(values.get("every_frame", True)),
    }


def decode_arrays(rows: list[Any]) -> list[Any]:
    """Decode rows of `ARRAYS`: generation, span, repeats or None, and the facts."""
    decoded = []
    for generation, first, count, checksum, rounded_checksum, counts, times, *columns in rows:
        repeats = None if counts is None else Repeats.unpack(counts, times)
        if repeats is not None:
            _check_counts(repeats.counts, count)
            if len(repeats.times) != repeats.counts.sum():
                raise ValueError(f"{len(repeats.times)} times of {repeats.counts.sum()} frames")
        decoded.append(
            (generation, RowSpan(first, count, checksum, rounded_checksum), repeats, *columns)
        )
    return decoded


def decode_spans(rows: list[Any]) -> list[Any]:
    """Unpack the counts in the last column of rows of `SPANS`; None: a frame for each row."""
    decoded = []
    for *columns, packed_counts in rows:
        counts = None if packed_counts is None else unpack_counts(packed_counts)
        if counts is not None:
            _check_counts(counts, columns[3])
        decoded.append((*columns, counts))
    return decoded


def _check_counts(counts: np.ndarray, rows: int) -> None:
    if len(counts) != rows:
        raise ValueError(f"{len(counts)} counts of {rows} rows")
