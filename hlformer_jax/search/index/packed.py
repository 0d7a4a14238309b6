"""Rows of all videos in one matrix that is mapped into memory: what a search multiplies.

The first search makes the matrix of the videos' own files, under a name that says of which: it is
made anew after the index has changed, and the one before is removed. A large one has a list of its
videos beside it, and the next takes from it the rows of all videos that are still there.

A file ends with a digest of its numbers, checked once, when it is mapped; a damaged one is made
anew. It is SHA-256 of the sums of all blocks of 4 KiB, as words of 64 bits: what a disk, a memory
or a program damages changes a sum. That reads 12 GB a second from memory; 1,000 hours have 5.5 GB
of frames and 2.8 GB of rounded ones, 0.7 s.

Of a large archive, rows are rounded to int8 with the error of each, which tells the best of
millions without reading them all. A row is kept as scale · values + rest, and beside it the length
of the rest. So for every row, by Cauchy and Schwarz,

    |⟨row, query⟩ − scale ⟨values, query⟩| ≤ error = |rest| · |query|

and a row can be among the best k videos only where its product and its error together reach the
k-th largest of the videos' products without theirs. Those rows, a few hundred of millions, are
multiplied again as they were: the result is exact, and only the time depends on the rounding. The
query is rounded as well, so finely that its part of the error is small (`rounded_products`), and
products of int8 are NumKong's, which converts nothing to float32 on the way.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from hlformer_jax import files
from hlformer_jax.errors import DamagedError
from hlformer_jax.lazy import optional
from hlformer_jax.search.index import storage
from hlformer_jax.search.index.database import Index
from hlformer_jax.search.index.storage import PACKED, VideoArrays

ROWS_AT_ONCE = 1024
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
    """The rows of all contents, one content after the other, and their file.

    `counts` has the number of rows of each content, `take` takes those of a video. The matrix is
    mapped from its file, or in memory where none can be written.

    Raises:
      DamagedError: when files of contents are missing, damaged, or of other counts; names them all.
    """
    shape, key = (sum(counts), index.manifest.encoder.width), index.manifest.key
    known = "\0".join([key, *contents, *map(str, counts)])
    digest = hashlib.sha256(known.encode()).hexdigest()[:32]
    path = index.directory / "packed" / f"{name}-{digest}.npy"
    if (kept := mapped(path, shape, dtype)) is not None:
        return kept, path
    before = _before(index, name, dtype) if shape[0] >= LARGE else {}

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
            raise DamagedError.of(wrong)

    matrix = written(path, shape, dtype, fill)
    with contextlib.suppress(OSError):
        if shape[0] >= LARGE:
            listing = {"key": key, "contents": list(contents), "counts": list(counts)}
            files.write_bytes(path.with_suffix(".json"), storage.seal(listing))
        for other in own_files(index.directory, f"{name}-"):
            if not other.name.startswith(path.stem):
                other.unlink(missing_ok=True)
    return matrix, path


def _before(index: Index, name: str, dtype: str) -> dict[str, np.ndarray]:
    """Rows by content of the matrix of the index as it was; none where there is none."""
    for listing in (index.directory / "packed").glob(f"{name}-*.json"):
        try:
            known = storage.unseal(files.read_bytes(listing))
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
    """Return the files of packed rows of an index whose names begin with a prefix; no others.

    Raises:
      OSError: when their folder cannot be listed.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = sorted(os.listdir(directory / "packed"))
        own = [name for name in names if PACKED.fullmatch(name) and name.startswith(prefix)]
        paths = [directory / "packed" / name for name in own]
        return [path for path in paths if path.is_file() and not path.is_symlink()]
    return []


def damaged(directory: Path) -> dict[str, str]:
    """What is damaged of the matrices of an index, by the name of the file; reads them through.

    But for the bank's: most searches need it not, and the one that does makes it anew.
    """
    try:
        paths = own_files(directory)
    except OSError as error:
        folder = directory / "packed"
        line = f"{folder} cannot be read ({error.strerror or error}): check the disk and the rights"
        return {folder.name: line}
    return {
        path.name: f"{path} is damaged: the next search makes it anew"
        for path in paths
        if path.suffix == ".npy" and not path.name.startswith("bank-") and _whole(path) is None
    }


def written(
    path: Path, shape: tuple[int, int], dtype: str, fill: Callable[[np.ndarray], None]
) -> np.ndarray:
    """A matrix that `fill` fills, mapped from its file, or in memory where none can be written."""
    try:
        with files.atomic_write(path) as draft:
            made = np.lib.format.open_memmap(draft, "w+", np.dtype(dtype), shape)
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


def mapped(path: Path, shape: tuple[int, int], dtype: str) -> np.ndarray | None:
    """The matrix of a file; None where it is not there, damaged, or not of that form."""
    array = _whole(path)
    same = array is not None and array.shape == shape and array.dtype == np.dtype(dtype)
    return array if same else None


def _whole(path: Path) -> np.ndarray | None:
    """The matrix of a file that is what was written; else None."""
    try:
        if not path.is_file():  # to open a pipe is to wait for its writer
            return None
        array: np.ndarray = np.lib.format.open_memmap(path, mode="r")
        with path.open("rb") as file:
            file.seek(-_DIGEST, os.SEEK_END)
            digest = file.read()
        return array if digest == _digest(array).encode() else None
    except Exception:  # whatever NumPy raises of what is no matrix
        return None


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


FEW = 4
"""Queries up to which rows are multiplied one by one, in a thread for each core."""


def products(matrix: np.ndarray, query: Float[np.ndarray, "*Q d"]) -> Float[np.ndarray, "R *Q"]:
    """Inner products in float32 of a query, or several, and all rows, which `widened` reads."""
    queries = query.reshape(-1, query.shape[-1])
    scores = np.empty((len(queries), len(matrix)), np.float32)

    def multiply(first: int, last: int) -> None:
        # One block for all: new memory takes longer than the products.
        wide = np.empty((min(ROWS_AT_ONCE, len(matrix)), query.shape[-1]), np.float32)
        for start in range(first, last, ROWS_AT_ONCE):
            part = slice(start, min(start + ROWS_AT_ONCE, last))
            block = widened(matrix[part], wide[: part.stop - start])
            if len(queries) > FEW:
                np.matmul(queries, block.T, out=scores[:, part])
            else:  # a library of matrix products would have threads of its own, which wait
                for one, own in zip(queries, scores, strict=True):
                    np.vecdot(block, one, out=own[part])

    if len(matrix) < LARGE or len(queries) > FEW:
        multiply(0, len(matrix))
    else:
        _in_threads(multiply, len(matrix))
    return scores[0] if query.ndim == 1 else scores.T


def _in_threads(multiply: Callable[[int, int], None], rows: int) -> None:
    """Calls a function with the first and last row of a part, in a thread for each core."""
    count = os.cpu_count() or 1
    bounds = np.linspace(0, rows, count + 1).astype(int).tolist()
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(multiply, bounds[:-1], bounds[1:]))


def widened(rows: np.ndarray, target: Float[np.ndarray, "R d"]) -> Float[np.ndarray, "R d"]:
    """Rows of float16 or int8 in float32, in the target's memory; of float32 as they are."""
    if rows.dtype == np.float32:
        return np.asarray(rows)
    if rows.dtype == np.float16:
        # Many times as fast as NumPy's own conversion: sign and number are moved to where they
        # stand in float32, and the difference of the exponents' offsets, 127 - 15, is made good.
        bits = target.view(np.int32)
        np.copyto(bits, np.asarray(rows).view(np.int16), casting="safe")
        bits <<= 13
        bits &= ~0x7000_0000
        target *= np.float32(2.0**112)
    else:
        np.copyto(target, rows, casting="safe")
    return target


MAX_ROWS = 2**14
"""Rows that are multiplied again together; so many are copied."""


class Quantised(NamedTuple):
    """Rows that are rounded to int8, mapped from the disk, times a scale in float32."""

    values: np.ndarray
    scale: Float[np.ndarray, " R"]
    error: Float[np.ndarray, " R"]
    """The largest error of a product with a unit vector, that of computing it included."""


def quantise(rows: Float[np.ndarray, "R d"]) -> Quantised:
    """Rounds finite rows of float16 or float32 to the nearest."""
    wide = widened(rows, np.empty(rows.shape, np.float32))
    largest = np.maximum(wide.max(-1), -wide.min(-1))
    scale = np.where(largest > 0, largest, np.float32(1)) / np.float32(127)
    values = np.rint(wide / scale[:, None]).astype(np.int8)
    rest = widened(values, np.empty(wide.shape, np.float32))
    rest *= -scale[:, None]
    rest += wide
    lengths, rests = (np.sqrt(np.vecdot(x, x)) for x in (wide, rest))
    # A product of d terms in float32 is off by d/2 ulps of the lengths' product at most, and there
    # are two, one of the values and one of the row as it was.
    rounding = np.float32(wide.shape[-1] * 2.0**-23)
    return Quantised(values, scale, rests + rounding * (lengths + rests))


def kept(path: Path, matrix: Float[np.ndarray, "R d"]) -> Quantised:
    """The rounded rows of a matrix, from files beside its own, or else made and written there."""
    count = len(matrix)
    rounded, beside = path.with_suffix(".int8.npy"), path.with_suffix(".int8-bounds.npy")
    values, stored = mapped(rounded, matrix.shape, "int8"), mapped(beside, (2, count), "float32")
    if values is not None and stored is not None:
        return Quantised(values, *np.array(stored))
    bounds = np.empty((2, count), np.float32)

    def fill(values: np.ndarray) -> None:
        for start in range(0, count, ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            values[part], bounds[0, part], bounds[1, part] = quantise(matrix[part])

    values = written(rounded, matrix.shape, "int8", fill)
    written(beside, bounds.shape, "float32", lambda target: np.copyto(target, bounds))
    return Quantised(values, *bounds)


def made(
    path: Path, shape: tuple[int, int], make: Callable[[], np.ndarray]
) -> Float[np.ndarray, "R d"]:
    """A float32 matrix from a file, or made and kept there."""
    kept = mapped(path, shape, "float32")
    if kept is None:
        own = make()  # before a file is begun: it may fail
        kept = written(path, shape, "float32", lambda target: np.copyto(target, own))
    return np.asarray(kept)


def rounded_products(
    rows: Quantised, query: Float[np.ndarray, "*Q d"]
) -> tuple[Float[np.ndarray, "R *Q"], Float[np.ndarray, "R *Q"]]:
    """Products of rounded rows and a query, or several, and how far off each is at most; float32.

    The query is rounded to s (a + b / 254), a and b of int8: products of these are exact.
    """
    cdist = optional("numkong", "search").cdist
    queries = query.reshape(-1, query.shape[-1]).astype(np.float64)
    largest = np.abs(queries).max(-1, keepdims=True)
    step = np.where(largest > 0, largest, 1) / 127
    coarse = np.rint(queries / step)
    fine = np.rint((queries / step - coarse) * 254)
    rest = np.abs(queries - step * (coarse + fine / 254)).sum(-1)
    both = np.concatenate([coarse, fine]).astype(np.int8)
    scores = np.empty((len(rows.values), len(queries)), np.float32)

    def multiply(first: int, last: int) -> None:
        for start in range(first, last, ROWS_AT_ONCE):
            part = slice(start, min(start + ROWS_AT_ONCE, last))
            found = np.asarray(cdist(rows.values[part], both, "dot"))
            whole = found[:, : len(queries)] + found[:, len(queries) :] / 254
            scores[part] = whole * step[:, 0] * rows.scale[part, None]

    _in_threads(multiply, len(scores))
    length = np.linalg.norm(queries, axis=-1) * (1 + 1e-6)
    # No number of a row that was rounded is above 127 times its scale.
    reach = rows.error[:, None] * length.astype(np.float32)
    reach += rows.scale[:, None] * (127 * rest).astype(np.float32)
    return scores.reshape(-1, *query.shape[:-1]), reach.reshape(-1, *query.shape[:-1])


def best(
    rows: Quantised,
    matrix: Float[np.ndarray, "R d"],
    starts: Int[np.ndarray, " V"],
    query: Float[np.ndarray, " d"],
    count: int,
    among: Bool[np.ndarray, " V"],
) -> Float[np.ndarray, " V"] | None:
    """Scores of the best videos: the largest product of each that may be among the best `count`.

    Exact for those that are, all that are as good as the last of them included; -inf for the others
    and those that are not asked for (`among`). `starts` has the first row of each video, rising.
    None where so many rows would have to be multiplied again that all can be.
    """
    if not 0 < count < np.count_nonzero(among):
        return None
    scores, reach = rounded_products(rows, query)
    least = np.maximum.reduceat(scores - reach, starts)[among]
    threshold = np.partition(least, -count)[-count]
    scores += reach
    chosen = np.flatnonzero(scores >= threshold)
    videos = np.searchsorted(starts, chosen, side="right") - 1
    asked = among[videos]
    chosen, videos = chosen[asked], videos[asked]
    if len(chosen) > len(matrix) // 8:
        return None
    maxima = np.full(len(starts), -np.inf, np.float32)
    for start in range(0, len(chosen), MAX_ROWS):
        part = slice(start, start + MAX_ROWS)
        np.maximum.at(maxima, videos[part], _exact(matrix[chosen[part]], query))
    return maxima


def above(
    rows: Quantised | None,
    matrix: Float[np.ndarray, "R d"],
    query: Float[np.ndarray, " d"],
    level: float,
) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """The rows whose products with a query are above a level, exactly those, and the products."""
    if rows is None:
        scores = products(matrix, query)
        chosen = np.flatnonzero(scores > level)
        return chosen, scores[chosen]
    about, reach = rounded_products(rows, query)
    chosen = np.flatnonzero(about + reach > level)
    bounds = range(0, len(chosen), MAX_ROWS)
    parts = [_exact(matrix[chosen[start : start + MAX_ROWS]], query) for start in bounds]
    exact = np.concatenate([np.empty(0, np.float32), *parts])
    return chosen[exact > level], exact[exact > level]


def _exact(rows: Float[np.ndarray, "n d"], query: Float[np.ndarray, " d"]) -> np.ndarray:
    """Products row by row: equal rows have equal ones, wherever they stand."""
    exact: np.ndarray = np.vecdot(widened(rows, np.empty(rows.shape, np.float32)), query)
    return exact
