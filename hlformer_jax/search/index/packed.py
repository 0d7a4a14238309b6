"""Products of queries and many rows, exact, for large archives by way of rows rounded to int8.

A row is kept as scale · values + rest, and beside it the length of the rest. So for every row, by
Cauchy and Schwarz,

    |⟨row, query⟩ − scale ⟨values, query⟩| ≤ error = |rest| · |query|

and a row can be among the best k videos only where its product and its error together reach the
k-th largest of the videos' products without theirs. Those rows, a few hundred of millions, are
multiplied again as they were: the result is exact, and only the time depends on the rounding. The
query is rounded as well, so finely that its part of the error is small (`rounded_products`), and
products of int8 are NumKong's, which converts nothing to float32 on the way.

Further matrices that are derived, such as those of intervals, are kept in files that end with a
digest of their numbers, and are made anew when damaged.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from hlformer_jax import files
from hlformer_jax.lazy import optional

ROWS_AT_ONCE = 1024
"""Rows that are converted to float32 and multiplied together: they stay in a core's cache."""

_BLOCK, _DIGEST = 4096, 64
"""Bytes of a block whose sum is part of a digest, and of the digest."""

PACKED = re.compile(r"(segments|bias|trained|said|bank)-[0-9a-f]{32}(\.[0-9a-z-]+)?\.(npy|npz|db)")
"""Names of the files of derived matrices."""

LARGE = 2**16
"""Rows from which on a matrix is large: of float32 and of width 768, 0.2 GB."""


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
    """Read the derived matrices of an index, and return a line for each damaged one, by its name.

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


class ContentRows(NamedTuple):
    """Rows of a matrix that belong to contents, one content after the other.

    Rows between two contents, and in front of the first, belong to none.
    """

    matrix: Float[np.ndarray, "R d"]
    starts: Int[np.ndarray, " V"]  # first row of each content, rising
    ends: Int[np.ndarray, " V"]

    @classmethod
    def of_counts(cls, matrix: Float[np.ndarray, "R d"], counts: Sequence[int]) -> "ContentRows":
        """Return rows of contents without any between them, by the number of each content's."""
        ends = np.cumsum(np.asarray(counts, np.int64))
        return cls(matrix, ends - np.asarray(counts, np.int64), ends)

    @property
    def total(self) -> int:
        """The number of rows that belong to contents."""
        return int((self.ends - self.starts).sum())

    def maxima(self, products: Float[np.ndarray, "*Q R"]) -> Float[np.ndarray, "*Q V"]:
        """Return the largest of each content's products."""
        edges, is_content = self._edges()
        return np.maximum.reduceat(products, edges, axis=-1)[..., is_content]

    def sample(self, count: int) -> Float[np.ndarray, "n d"]:
        """Return at most so many rows at equal distances, read once from all over the disk."""
        ends = np.cumsum(self.ends - self.starts)
        total = int(ends[-1])
        count = min(count, total)
        wanted = np.arange(count) * total // count
        content = np.searchsorted(ends, wanted, side="right")
        return self.matrix[self.ends[content] - (ends[content] - wanted)]

    def best(
        self,
        rounded: "Quantised",
        query: Float[np.ndarray, " d"],
        count: int,
        among: Bool[np.ndarray, " V"],
    ) -> Float[np.ndarray, " V"] | None:
        """Return the scores of the best contents; see `best`."""
        edges, is_content = self._edges()
        wanted = np.zeros(len(edges), bool)
        wanted[is_content] = among
        scores = best(rounded, self.matrix, edges, query, count, wanted)
        return None if scores is None else scores[is_content]

    def _edges(self) -> tuple[Int[np.ndarray, " E"], Bool[np.ndarray, " E"]]:
        """Return the first rows of all contents and gaps, and which are those of contents."""
        before = np.concatenate([[0], self.ends[:-1]])
        edges = np.stack([before, self.starts], -1).reshape(-1)
        keep = np.stack([before < self.starts, np.ones(len(before), bool)], -1).reshape(-1)
        is_content = np.tile([False, True], len(before))
        return edges[keep], is_content[keep]


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
