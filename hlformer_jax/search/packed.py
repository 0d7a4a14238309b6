"""Rows of all videos in one matrix that is mapped into memory: what a search multiplies.

The matrix is made of the videos' own files at the first search, under a name that says of which, so
that it is made anew after the index has changed; the one before is removed. A process maps it and
reads what it needs. Where none can be written it is made in memory.

A large matrix has a list of its videos beside it: the next one takes from it the rows of all videos
that are still there, and reads the files of the new ones alone.

A file ends with a digest of its numbers, which a process checks once, when it maps the file; one
that is damaged is made anew. It is SHA-256 of the sums of all blocks of 4 KiB, as words of 64 bits:
what a disk, a memory or a program damages changes a sum. That reads 12 GB a second from memory; for
1,000 hours, whose frames are 5.5 GB and 2.8 GB of rounded ones, 0.7 s, and as long as the disk
takes where they are not in memory.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from hlformer_jax import files
from hlformer_jax.search import sealed
from hlformer_jax.search.arrays import VideoArrays
from hlformer_jax.search.errors import DamagedError
from hlformer_jax.search.index import Index
from hlformer_jax.search.manifest import PACKED

ROWS_AT_ONCE = 512
"""Rows that are converted to float32 and multiplied together: they stay in a core's cache."""

_BLOCK, _DIGEST = 4096, 64
"""Bytes of a block whose sum is part of a digest, and of the digest."""

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
      DamagedError: when files of contents are missing, damaged, or of other counts; names them all.
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
        wrong: dict[str, str] = {}
        for content, count in zip(contents, counts, strict=True):
            own = before.get(content)
            if own is None or len(own) != count:
                try:
                    own = take(index.read(content))
                except DamagedError as error:
                    wrong |= error.contents
                    continue
            if own.shape != (count, shape[1]):
                wrong[content] = f"{index.file(content)} is not what the manifest says: index again"
            elif not wrong:
                matrix[start : start + count] = own
                start += count
        if wrong:
            raise DamagedError("; ".join(wrong.values()), wrong.items())

    matrix = written(path, shape, np.dtype(dtype), fill)
    with contextlib.suppress(OSError):
        if shape[0] >= LARGE:
            listing = {"key": key, "contents": list(contents), "counts": list(counts)}
            files.write_bytes(path.with_suffix(".json"), sealed.seal(listing))
        for other in own_files(index.directory, f"{name}-"):
            if not other.name.startswith(path.stem):
                other.unlink(missing_ok=True)
    return matrix, path


def _before(index: Index, name: str, dtype: np.dtype) -> dict[str, np.ndarray]:
    """Rows by content of the matrix of the index as it was; none where there is none."""
    for listing in (index.directory / "packed").glob(f"{name}-*.json"):
        try:
            known = sealed.unseal(listing.read_bytes())
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


def own_files(directory: Path, prefix: str = "") -> list[Path]:
    """The files of packed rows of an index whose names begin so; no others."""
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(directory / "packed"))
        own = [name for name in names if PACKED.fullmatch(name) and name.startswith(prefix)]
        return [directory / "packed" / name for name in own]
    return []


def forget(index: Index) -> None:
    """Removes the matrices; processes that have them mapped keep them."""
    with contextlib.suppress(OSError):
        for path in own_files(index.directory):
            path.unlink(missing_ok=True)


def damaged(directory: Path) -> dict[str, str]:
    """What is damaged of the matrices of an index, by the name of the file; reads them through."""
    wrong = {}
    for path in own_files(directory):
        if path.suffix == ".npy" and _whole(path) is None:
            wrong[path.name] = f"{path} is damaged: the next search makes it anew"
    return wrong


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
                _allocate(file.fileno(), draft.stat().st_size)
            fill(made)
            made.flush()
            with draft.open("ab") as file:
                file.write(_digest(made).encode())
    except OSError:
        held = np.empty(shape, dtype)
        fill(held)
        return held
    # Not read again: what was written is in memory.
    return made


def _allocate(file: int, size: int) -> None:
    """Makes room for a file on the disk."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    for start in range(0, size, 2**20):  # macOS has no such call
        os.pwrite(file, bytes(1), min(start + 2**20, size) - 1)


def mapped(path: Path, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray | None:
    """The matrix of a file; None where it is not there, damaged, or not of that form."""
    found = _whole(path)
    return found if found is not None and (found.shape, found.dtype) == (shape, dtype) else None


def _whole(path: Path) -> np.ndarray | None:
    """The matrix of a file that is what was written; else None."""
    try:
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        with path.open("rb") as file:
            file.seek(-_DIGEST, os.SEEK_END)
            digest = file.read()
    except (OSError, ValueError, TypeError, OverflowError, MemoryError, EOFError):
        return None
    return found if digest == _digest(found).encode() else None


def _digest(matrix: np.ndarray) -> str:
    """The digest of a matrix's form and numbers; see the module."""
    digest = hashlib.sha256(f"{matrix.shape} {matrix.dtype}".encode())
    flat = matrix.reshape(-1).view(np.uint8)
    whole = len(flat) // _BLOCK * _BLOCK
    for start in range(0, whole, 2**12 * _BLOCK):
        words = flat[start : min(start + 2**12 * _BLOCK, whole)].view(np.uint64)
        digest.update(words.reshape(-1, _BLOCK // 8).sum(axis=1, dtype=np.uint64).tobytes())
    digest.update(flat[whole:].tobytes())
    return digest.hexdigest()


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
