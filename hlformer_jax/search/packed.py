"""Rows of all videos in one matrix that is mapped into memory: what a search multiplies.

The matrix is made of the videos' own files at the first search, under a name that says of which, so
that it is made anew after the index has changed; the one before is removed. A process maps it and
reads what it needs. Where none can be written it is made in memory.

A large matrix has a list of its videos beside it: the next one takes from it the rows of all videos
that are still there, and reads the files of the new ones alone.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from hlformer_jax import files
from hlformer_jax.search.arrays import VideoArrays
from hlformer_jax.search.index import Index

ROWS_AT_ONCE = 512
"""Rows that are converted to float32 and multiplied together: they stay in a core's cache."""

LARGE = 2**16
"""Rows from which on a matrix is large: of float32 and of width 768, 0.2 GB."""


def rows(
    index: Index,
    name: str,
    contents: Sequence[str],
    counts: Sequence[int],
    dtype: str,
    take: Callable[[VideoArrays], np.ndarray],
) -> tuple[Float[np.ndarray, "R d"], Path]:
    """The rows of all contents, one content after the other.

    Args:
      index: the index.
      name: name of this kind of rows.
      contents: the contents.
      counts: the number of rows of each.
      dtype: dtype of the rows.
      take: takes the rows of a video.

    Returns:
      The matrix, mapped from the disk where it can be written there, and its file.

    Raises:
      DamagedError: when the file of a content is missing or damaged.
    """
    shape, key = (sum(counts), index.manifest.encoder.width), index.manifest.key
    known = "\0".join([key, *contents, *map(str, counts)])
    digest = hashlib.sha256(known.encode()).hexdigest()[:32]
    path = index.directory / "packed" / f"{name}-{digest}.npy"
    if (found := mapped(path, shape, np.dtype(dtype))) is not None:
        return found, path
    before = _before(index, name, np.dtype(dtype)) if shape[0] >= LARGE else {}

    def fill(matrix: np.ndarray) -> None:
        start = 0
        for content, count in zip(contents, counts, strict=True):
            old = before.get(content)
            known = old is not None and len(old) == count
            matrix[start : start + count] = old if known else take(index.read(content))
            start += count

    matrix = written(path, shape, np.dtype(dtype), fill)
    with contextlib.suppress(OSError):
        if shape[0] >= LARGE:
            listing = {"key": key, "contents": list(contents), "counts": list(counts)}
            files.write_json(path.with_suffix(".json"), listing)
        for other in path.parent.glob(f"{name}-*.*"):
            if not other.name.startswith(path.stem):
                other.unlink(missing_ok=True)
    return matrix, path


def _before(index: Index, name: str, dtype: np.dtype) -> dict[str, np.ndarray]:
    """Rows by content of the matrix of the index as it was; none where there is none."""
    for listing in (index.directory / "packed").glob(f"{name}-*.json"):
        try:
            known = files.parse_json(listing.read_text(encoding="utf-8"))
            contents, bounds = known["contents"], np.cumsum([0, *known["counts"]])
            if known["key"] != index.manifest.key:
                continue
        except (OSError, ValueError, KeyError, TypeError):
            continue
        shape = int(bounds[-1]), index.manifest.encoder.width
        if (matrix := mapped(listing.with_suffix(".npy"), shape, dtype)) is not None:
            parts = zip(contents, bounds[:-1], bounds[1:], strict=True)
            return {content: matrix[start:end] for content, start, end in parts}
    return {}


def forget(index: Index) -> None:
    """Removes the matrices; processes that have them mapped keep them."""
    with contextlib.suppress(OSError):
        for path in (index.directory / "packed").iterdir():
            if path.suffix in (".npy", ".npz", ".json"):
                path.unlink(missing_ok=True)


def written(
    path: Path, shape: tuple[int, int], dtype: np.dtype, fill: Callable[[np.ndarray], None]
) -> np.ndarray:
    """A matrix that is made, written beside its place and renamed.

    Args:
      path: its file; the folder is made where there is none.
      shape: its shape.
      dtype: its dtype.
      fill: fills it; its errors are raised on, but for OSError from writing.

    Returns:
      The matrix, mapped from its file, or in memory where none can be written.
    """
    try:
        with files.whole(path) as draft:
            made = np.lib.format.open_memmap(draft, "w+", dtype, shape)
            # On a full disk this fails; writing to the mapped file would end the process.
            with draft.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, draft.stat().st_size)
            fill(made)
            made.flush()
    except OSError:
        held = np.empty(shape, dtype)
        fill(held)
        return held
    found = mapped(path, shape, dtype)
    return made if found is None else found


def mapped(path: Path, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray | None:
    """The matrix of a file; None where it is not there, or is not of that form."""
    try:
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found if found.shape == shape and found.dtype == dtype else None


def products(matrix: np.ndarray, query: Float[np.ndarray, " d"]) -> Float[np.ndarray, " R"]:
    """Inner products of all rows and a query, in float32, a block of rows at a time.

    Args:
      matrix: rows, [R, d], of a dtype that `widened` reads.
      query: the query.
    """
    found = np.empty(len(matrix), np.float32)
    # One block for all: new memory takes longer than the products.
    wide = np.empty((min(ROWS_AT_ONCE, len(matrix)), len(query)), np.float32)
    for start in range(0, len(matrix), ROWS_AT_ONCE):
        block = matrix[start : start + ROWS_AT_ONCE]
        np.dot(widened(block, wide[: len(block)]), query, out=found[start : start + len(block)])
    return found


def widened(rows: np.ndarray, target: Float[np.ndarray, "R d"]) -> Float[np.ndarray, "R d"]:
    """Rows in float32, without any rounding.

    Args:
      rows: [R, d] of float32, float16 or int8; or uint16, the bits of bfloat16.
      target: memory for the result.

    Returns:
      The target; rows of float32 as they are.
    """
    if rows.dtype == np.float32:
        return np.asarray(rows)
    bits = target.view(np.int32)
    if rows.dtype == np.uint16:
        np.copyto(bits, rows, casting="safe")
        bits <<= 16
    elif rows.dtype == np.float16:
        # Many times as fast as NumPy's own conversion: sign and number are moved to where they
        # stand in float32, and the difference of the exponents' offsets, 127 - 15, is made good.
        np.copyto(bits, np.asarray(rows).view(np.int16), casting="safe")
        bits <<= 13
        bits &= ~0x7000_0000
        target *= np.float32(2.0**112)
    else:
        np.copyto(target, rows, casting="safe")
    return target
