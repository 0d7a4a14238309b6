"""Rows of all videos in one matrix that is mapped into memory: what a search multiplies.

The matrix is made of the videos' own files at the first search, under a name that says of which, so
that it is made anew after the index has changed; the one before is removed. A process maps it and
reads what it needs. Where none can be written it is made in memory.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from hlformer_jax.search.arrays import VideoArrays
from hlformer_jax.search.index import Index

ROWS_AT_ONCE = 8192
"""Rows that are converted to float32 and multiplied together."""


def rows(
    index: Index,
    name: str,
    contents: Sequence[str],
    counts: Sequence[int],
    dtype: str,
    take: Callable[[VideoArrays], np.ndarray],
) -> Float[np.ndarray, "R d"]:
    """The rows of all contents, one content after the other.

    Args:
      index: the index.
      name: name of this kind of rows.
      contents: the contents.
      counts: the number of rows of each.
      dtype: dtype of the rows.
      take: takes the rows of a video.

    Returns:
      The matrix, mapped from the disk where it can be written there.

    Raises:
      DamagedError: when the file of a content is missing or damaged.
    """
    shape = sum(counts), index.manifest.encoder.width
    known = "\0".join([index.manifest.key, *contents, *map(str, counts)])
    digest = hashlib.sha256(known.encode()).hexdigest()[:32]
    path = index.directory / "packed" / f"{name}-{digest}.npy"
    if (found := _mapped(path, shape, dtype)) is not None:
        return found

    def fill(matrix: np.ndarray) -> np.ndarray:
        start = 0
        for content, count in zip(contents, counts, strict=True):
            matrix[start : start + count] = take(index.read(content))
            start += count
        return matrix

    draft = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True)
        mapped = np.lib.format.open_memmap(draft, "w+", dtype, shape)
        # On a full disk this fails; writing to the mapped file would end the process.
        with draft.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, draft.stat().st_size)
        fill(mapped)
        mapped.flush()
        draft.replace(path)
    except OSError:
        return fill(np.empty(shape, dtype))
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    for other in path.parent.glob(f"{name}-*.npy"):
        if other != path:
            other.unlink(missing_ok=True)
    found = _mapped(path, shape, dtype)
    return mapped if found is None else found


def forget(index: Index) -> None:
    """Removes the matrices; processes that have them mapped keep them."""
    with contextlib.suppress(OSError):
        for path in (index.directory / "packed").glob("*.np[yz]"):
            path.unlink(missing_ok=True)


def _mapped(path: Path, shape: tuple[int, int], dtype: str) -> np.ndarray | None:
    """The matrix of a file; None where it is not there, or is not of that form."""
    try:
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found if found.shape == shape and found.dtype == np.dtype(dtype) else None


def products(
    matrix: Float[np.ndarray, "R d"], query: Float[np.ndarray, " d"]
) -> Float[np.ndarray, " R"]:
    """Inner products of all rows and a query, in float32, a block of rows at a time."""
    found = np.empty(len(matrix), np.float32)
    for start in range(0, len(matrix), ROWS_AT_ONCE):
        block = np.asarray(matrix[start : start + ROWS_AT_ONCE]).astype(np.float32, copy=False)
        found[start : start + len(block)] = block @ query
    return found
