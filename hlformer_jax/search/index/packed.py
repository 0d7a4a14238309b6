"""Exact inner products of queries with many rows; large matrices are filtered in int8 first.

A quantised row is scale * values + rest, and the length of the rest is stored with it. By Cauchy
and Schwarz, every row satisfies

    |<row, query> - scale <values, query>| <= error = |rest| * |query|

A row can belong to the best k videos only if its product plus its error reaches the k-th largest
lower bound of the videos. Only these rows, a few hundred out of millions, are multiplied again in
float32. So the result is exact, and quantisation only affects the time.

Matrices that are derived from the embeddings are stored in files that end with a checksum; a
damaged matrix is computed again.
"""

import contextlib
import hashlib
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from hlformer_jax import files
from hlformer_jax.errors import UnreadableError
from hlformer_jax.lazy import optional

ROWS_AT_ONCE = 1024
"""Number of rows that are converted to float32 and multiplied at once, to stay in the cache."""

_BLOCK_BYTES = 4096
"""Size of a block whose sum is hashed."""

_DIGEST_BYTES = 64
"""Size of the checksum at the end of a file."""

PACKED = re.compile(r"(segments|bias|trained|said|bank)-[0-9a-f]{32}(\.[0-9a-z-]+)?\.(npy|npz|db)")
"""Names of the files of derived matrices."""

MIN_QUANTISED_ROWS = 2**16
"""Smallest number of rows of a quantised matrix: 0.2 GB of float32 with width 768."""


def list_files(directory: Path, prefix: str = "") -> list[Path]:
    """Return the files of derived matrices of an index whose names begin with a prefix.

    Raises:
      OSError: if their folder cannot be listed.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = sorted(os.listdir(directory / "packed"))
        matching = [name for name in names if PACKED.fullmatch(name) and name.startswith(prefix)]
        paths = [directory / "packed" / name for name in matching]
        return [path for path in paths if path.is_file() and not path.is_symlink()]
    return []


def discard_outdated(directory: Path, prefix: str, current: Path, suffix: str = "") -> None:
    """Delete derived matrices of older states of an index, if their folder can be listed.

    Args:
      directory: the directory of the index.
      prefix: the beginning of the names to delete, such as "said-".
      current: a file of the current state. It is kept, with all files whose names begin with its
        stem.
      suffix: the end of the names to delete.
    """
    with contextlib.suppress(OSError):
        for path in list_files(directory, prefix):
            if path.name.endswith(suffix) and not path.name.startswith(current.stem):
                files.discard(path)


def find_damaged(directory: Path) -> dict[str, str]:
    """Read the files of derived matrices; return a line for each damaged or unreadable one."""
    try:
        paths = list_files(directory)
    except OSError as error:
        return {"packed": _unreadable(directory / "packed", error)}
    repair = "the next search that needs it computes it anew"
    return {path.name: describe_damage(path, repair) for path in paths if not _is_intact(path)}


def describe_damage(path: Path, repair: str) -> str:
    """Return a line about a file that could not be used: it is damaged, missing, or unreadable.

    Args:
      path: the file.
      repair: what computes a damaged or missing file anew.
    """
    try:
        files.digest(path)
    except FileNotFoundError:
        return f"{path} is missing: {repair}"
    except OSError as error:
        return _unreadable(path, error)
    return f"{path} is damaged: {repair}"


def _unreadable(path: Path, error: OSError) -> str:
    return f"{UnreadableError.from_error(path, error)}: check the disk and the rights"


def _is_intact(path: Path) -> bool:
    """Read a file of derived matrices, and verify its checksums."""
    if path.suffix == ".npz":
        try:
            with zipfile.ZipFile(path) as members:
                return members.testzip() is None
        except Exception:  # zipfile raises many types for files that are not archives
            return False
    return (load_table(path) if path.suffix == ".db" else _load(path)) is not None


def write_table(path: Path, content: bytes) -> None:
    """Write a serialised table and its checksum to a file.

    Raises:
      OSError: if it cannot be written.
    """
    files.write_bytes(path, content + hashlib.sha256(content).hexdigest().encode())


def load_table(path: Path) -> bytes | None:
    """Load a table that `write_table` wrote; return None if it is missing or damaged."""
    try:
        stored = files.read_bytes(path)
    except OSError:
        return None
    content, digest = stored[:-_DIGEST_BYTES], stored[-_DIGEST_BYTES:]
    return content if hashlib.sha256(content).hexdigest().encode() == digest else None


def write_matrix(
    path: Path, shape: tuple[int, int], dtype: str, fill: Callable[[np.ndarray], None]
) -> np.ndarray:
    """Write a matrix to a file, and map it into memory.

    Args:
      path: the path of the file.
      shape: the shape of the matrix.
      dtype: its dtype.
      fill: writes all values of the matrix into an array.

    Returns:
      The mapped matrix; if the file cannot be written, the matrix in memory.
    """
    try:
        with files.atomic_write(path) as draft:
            matrix = np.lib.format.open_memmap(draft, "w+", np.dtype(dtype), shape)
            # This fails on a full disk, where writing to the mapped file would kill the process.
            with draft.open("r+b") as file:
                _allocate(file.fileno(), draft.stat().st_size)
            fill(matrix)
            matrix.flush()
            with open(os.open(draft, os.O_WRONLY | os.O_APPEND), "ab") as file:  # it exists
                file.write(_digest(matrix).encode())
    except OSError:
        unmapped = np.empty(shape, dtype)
        fill(unmapped)
        return unmapped
    return matrix  # its checksum is not verified: the pages are still in memory


def _allocate(file: int, size: int) -> None:
    """Allocate the bytes of a file on the disk."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    for start in range(0, size, 2**20):  # macOS lacks posix_fallocate
        os.pwrite(file, bytes(1), min(start + 2**20, size) - 1)


def load_matrix(path: Path, shape: tuple[int, int], dtype: str) -> np.ndarray | None:
    """Map a stored matrix; return None if it is missing, damaged, or has another shape or dtype."""
    array = _load(path)
    fits = array is not None and array.shape == shape and array.dtype == np.dtype(dtype)
    return array if fits else None


def _load(path: Path) -> np.ndarray | None:
    """Map a stored matrix; return None if it is missing or damaged."""
    try:
        if not path.is_file():  # opening a pipe would wait for its writer
            return None
        array = np.lib.format.open_memmap(path, mode="r")
        digest = hashlib.sha256(_kind(array))
        with path.open("rb") as file:
            # Not from the map, where a sector that cannot be read would kill the process.
            part = np.empty(HASHED_BYTES, np.uint8)
            hash_file(digest, file.fileno(), array.offset, array.nbytes, part)
            file.seek(-_DIGEST_BYTES, os.SEEK_END)
            return array if file.read() == digest.hexdigest().encode() else None
    except Exception:  # NumPy raises many types for files that are not arrays
        return None


def _digest(matrix: np.ndarray) -> str:
    """Return the SHA-256 of the shape, the dtype and the blocks of a matrix."""
    digest = hashlib.sha256(_kind(matrix))
    hash_blocks(digest, matrix)
    return digest.hexdigest()


def _kind(matrix: np.ndarray) -> bytes:
    return f"{matrix.shape} {matrix.dtype}".encode()


def hash_blocks(digest: "hashlib._Hash", array: np.ndarray) -> None:
    """Add the bytes of an array to a hash, at 12 GB a second.

    The hash takes the sum of the 64-bit words of each block, and the bytes after the last block.
    """
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    blocks_end = len(flat) // _BLOCK_BYTES * _BLOCK_BYTES
    words = flat[:blocks_end].view(np.uint64).reshape(-1, _BLOCK_BYTES // 8)
    digest.update(words.sum(axis=1, dtype=np.uint64).tobytes())
    digest.update(flat[blocks_end:].tobytes())


HASHED_BYTES = 2**19
"""Number of bytes that `hash_file` reads at a time, which stay in a core's cache."""


def hash_file(digest: "hashlib._Hash", file: int, offset: int, size: int, part: np.ndarray) -> bool:
    """Add bytes of a file to a hash as `hash_blocks` does; return whether there are so many.

    Args:
      digest: the hash.
      file: descriptor of the file.
      offset: where the bytes begin.
      size: their number.
      part: `HASHED_BYTES` bytes, which are overwritten.
    """
    for start in range(0, size, len(part)):
        content = part[: size - start]
        if not read_at(file, offset + start, content):
            return False
        hash_blocks(digest, content)
    return True


def read_at(file: int, offset: int, array: np.ndarray) -> bool:
    """Fill an array from a file; return whether the file was long enough."""
    rest = array.reshape(-1).view(np.uint8).data
    while rest:
        count = os.preadv(file, [rest], offset)
        if not count:
            return False
        rest, offset = rest[count:], offset + count
    return True


MAX_THREADED_QUERIES = 4
"""Largest number of queries that are multiplied separately, in a thread for each core."""


def multiply(matrix: np.ndarray, query: Float[np.ndarray, "*Q d"]) -> Float[np.ndarray, "R *Q"]:
    """Return the inner products in float32 of all rows and one query or several.

    Args:
      matrix: rows of float32, float16 or int8.
      query: one query, or a matrix of queries, float32.
    """
    queries = query.reshape(-1, query.shape[-1])
    scores = np.empty((len(queries), len(matrix)), np.float32)

    def multiply_rows(first: int, last: int) -> None:
        # One buffer for all blocks: allocating memory takes longer than the products.
        buffer = np.empty((min(ROWS_AT_ONCE, len(matrix)), query.shape[-1]), np.float32)
        for start in range(first, last, ROWS_AT_ONCE):
            part = slice(start, min(start + ROWS_AT_ONCE, last))
            block = to_float32(matrix[part], buffer[: part.stop - start])
            if len(queries) > MAX_THREADED_QUERIES:
                np.matmul(queries, block.T, out=scores[:, part])
            else:  # matmul would start threads inside these threads
                for single_query, query_scores in zip(queries, scores, strict=True):
                    np.vecdot(block, single_query, out=query_scores[part])

    if len(matrix) < MIN_QUANTISED_ROWS or len(queries) > MAX_THREADED_QUERIES:
        multiply_rows(0, len(matrix))
    else:
        _in_threads(multiply_rows, len(matrix))
    return scores[0] if query.ndim == 1 else scores.T


def _in_threads(multiply_rows: Callable[[int, int], None], rows: int) -> None:
    """Call a function with the bounds of a range of rows, in a thread for each core."""
    count = os.cpu_count() or 1
    bounds = np.linspace(0, rows, count + 1).astype(int).tolist()
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(multiply_rows, bounds[:-1], bounds[1:]))


def to_float32(rows: np.ndarray, target: Float[np.ndarray, "R d"]) -> Float[np.ndarray, "R d"]:
    """Convert rows of float16 or int8 to float32 in the target's memory, and return the target.

    Rows of float32 are returned as they are.
    """
    if rows.dtype == np.float32:
        return np.asarray(rows)
    if rows.dtype == np.float16:
        # Many times faster than NumPy's conversion: shift sign, exponent and fraction to their
        # bits of float32, and multiply by 2^(127 - 15), the difference of the exponents' biases.
        bits = target.view(np.int32)
        np.copyto(bits, np.asarray(rows).view(np.int16), casting="safe")
        bits <<= 13
        bits &= ~0x7000_0000
        target *= np.float32(2.0**112)
    else:
        np.copyto(target, rows, casting="safe")
    return target


class ContentRows(NamedTuple):
    """Rows of a matrix, grouped by content.

    There may be unused rows between two contents and before the first content.
    """

    matrix: Float[np.ndarray, "R d"]
    starts: Int[np.ndarray, " V"]  # first row of each content, rising
    ends: Int[np.ndarray, " V"]
    counts: Int[np.ndarray, " R"]  # number of frames of each row, 0 for an unused row

    @classmethod
    def of_counts(cls, matrix: Float[np.ndarray, "R d"], counts: Sequence[int]) -> "ContentRows":
        """Return rows of one frame without gaps, from the number of rows of each content."""
        ends = np.cumsum(np.asarray(counts, np.int64))
        return cls(matrix, ends - counts, ends, np.ones(len(matrix), np.int64))

    @property
    def total(self) -> int:
        """Number of frames of all contents."""
        return int(self.counts.sum())

    def expand(self, content: int, products: Float[np.ndarray, "*Q L"]) -> np.ndarray:
        """Return the products of a content's frames, from the products of its rows."""
        return np.repeat(products, self.counts[self.starts[content] : self.ends[content]], axis=-1)

    def maxima(self, products: Float[np.ndarray, "*Q R"]) -> Float[np.ndarray, "*Q V"]:
        """Return the largest of each content's products."""
        edges, is_content = self._edges()
        return np.maximum.reduceat(products, edges, axis=-1)[..., is_content]

    def sample(self, count: int) -> Float[np.ndarray, "n d"]:
        """Return the rows of at most `count` frames, at equal distances."""
        frame_ends = np.cumsum(self.counts)
        total = int(frame_ends[-1])
        sampled = np.arange(min(count, total)) * total // min(count, total)
        return self.matrix[np.searchsorted(frame_ends, sampled, side="right")]

    def find_best(
        self,
        quantised: "Quantised",
        query: Float[np.ndarray, " d"],
        count: int,
        allowed: Bool[np.ndarray, " V"],
    ) -> Float[np.ndarray, " V"] | None:
        """Return the scores of the best contents; see the function `find_best`."""
        edges, is_content = self._edges()
        allowed_edges = np.zeros(len(edges), bool)
        allowed_edges[is_content] = allowed
        scores = find_best(quantised, self.matrix, edges, query, count, allowed_edges)
        return None if scores is None else scores[is_content]

    def _edges(self) -> tuple[Int[np.ndarray, " E"], Bool[np.ndarray, " E"]]:
        """Return the first rows of all contents and gaps, and a mask that is True for contents."""
        before = np.concatenate([[0], self.ends[:-1]])
        edges = np.stack([before, self.starts], -1).reshape(-1)
        keep = np.stack([before < self.starts, np.ones(len(before), bool)], -1).reshape(-1)
        is_content = np.tile([False, True], len(before))
        return edges[keep], is_content[keep]


MAX_EXACT_ROWS = 2**14
"""Largest number of rows that are copied at once to be multiplied in float32."""


class Quantised(NamedTuple):
    """Rows that are rounded to int8, each with a float32 scale."""

    values: np.ndarray
    scale: Float[np.ndarray, " R"]
    error: Float[np.ndarray, " R"]
    """Bound on the error of a product with a unit vector, including rounding errors."""


def quantise(rows: Float[np.ndarray, "R d"]) -> Quantised:
    """Quantise finite rows of float16 or float32 to int8."""
    wide = to_float32(rows, np.empty(rows.shape, np.float32))
    largest = np.maximum(wide.max(-1), -wide.min(-1))
    scale = np.where(largest > 0, largest, np.float32(1)) / np.float32(127)
    values = np.rint(wide / scale[:, None]).astype(np.int8)
    rest = to_float32(values, np.empty(wide.shape, np.float32))
    rest *= -scale[:, None]
    rest += wide
    lengths, rests = (np.sqrt(np.vecdot(x, x)) for x in (wide, rest))
    # The error of a float32 product of d terms is at most d/2 ulps of the product of the lengths.
    # There are two such products: with the values and with the original row.
    rounding = np.float32(wide.shape[-1] * 2.0**-23)
    return Quantised(values, scale, rests + rounding * (lengths + rests))


def load_quantised(path: Path, matrix: Float[np.ndarray, "R d"]) -> Quantised:
    """Load the quantised rows of a matrix, or compute and store them.

    Args:
      path: the path of the matrix; the files of the quantised rows are next to it.
      matrix: the rows.
    """
    count = len(matrix)
    values_path, bounds_path = path.with_suffix(".int8.npy"), path.with_suffix(".int8-bounds.npy")
    values = load_matrix(values_path, matrix.shape, "int8")
    stored = load_matrix(bounds_path, (2, count), "float32")
    if values is not None and stored is not None:
        return Quantised(values, *np.array(stored))
    bounds = np.empty((2, count), np.float32)

    def fill(values: np.ndarray) -> None:
        for start in range(0, count, ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            values[part], bounds[0, part], bounds[1, part] = quantise(matrix[part])

    values = write_matrix(values_path, matrix.shape, "int8", fill)
    write_matrix(bounds_path, bounds.shape, "float32", lambda target: np.copyto(target, bounds))
    return Quantised(values, *bounds)


def load_or_compute(
    path: Path, shape: tuple[int, int], compute: Callable[[], np.ndarray]
) -> Float[np.ndarray, "R d"]:
    """Load a float32 matrix, or compute and store it.

    Args:
      path: the path of its file.
      shape: its shape; a stored matrix of another shape is computed again.
      compute: returns the matrix.
    """
    matrix = load_matrix(path, shape, "float32")
    if matrix is None:
        computed = compute()  # before the file is opened, because it may fail
        matrix = write_matrix(path, shape, "float32", lambda target: np.copyto(target, computed))
    return np.asarray(matrix)


def multiply_quantised(
    rows: Quantised, query: Float[np.ndarray, "*Q d"]
) -> tuple[Float[np.ndarray, "R *Q"], Float[np.ndarray, "R *Q"]]:
    """Return approximate products of quantised rows and one query or several, and error bounds.

    The query is rounded to s (a + b / 254), where a and b are int8, so that products with a and b
    are exact.
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

    def multiply_rows(first: int, last: int) -> None:
        for start in range(first, last, ROWS_AT_ONCE):
            part = slice(start, min(start + ROWS_AT_ONCE, last))
            products = np.asarray(cdist(rows.values[part], both, "dot"))
            sums = products[:, : len(queries)] + products[:, len(queries) :] / 254
            scores[part] = sums * step[:, 0] * rows.scale[part, None]

    _in_threads(multiply_rows, len(scores))
    length = np.linalg.norm(queries, axis=-1) * (1 + 1e-6)
    # No value of a quantised row exceeds 127 times its scale.
    reach = rows.error[:, None] * length.astype(np.float32)
    reach += rows.scale[:, None] * (127 * rest).astype(np.float32)
    return scores.reshape(-1, *query.shape[:-1]), reach.reshape(-1, *query.shape[:-1])


def find_best(
    rows: Quantised,
    matrix: Float[np.ndarray, "R d"],
    starts: Int[np.ndarray, " V"],
    query: Float[np.ndarray, " d"],
    count: int,
    allowed: Bool[np.ndarray, " V"],
) -> Float[np.ndarray, " V"] | None:
    """Return the largest product of each video that may be among the best.

    Args:
      rows: the quantised rows.
      matrix: the original rows.
      starts: the first row of each video, rising.
      query: the query.
      count: number of videos to find.
      allowed: the videos that may be found.

    Returns:
      Exact scores of the best `count` allowed videos and of all that equal the last one; for other
      videos, a value that is at most their score, or -inf. None if too many rows remain to save
      time.
    """
    if count <= 0:
        return None
    if count < np.count_nonzero(allowed):
        scores, reach = multiply_quantised(rows, query)
        lower = np.maximum.reduceat(scores - reach, starts)[allowed]
        threshold = np.partition(lower, -count)[-count]
        scores += reach
        candidates = np.flatnonzero(scores >= threshold)
    else:  # all rows of the allowed videos
        candidates = np.flatnonzero(np.repeat(allowed, np.diff(starts, append=len(matrix))))
    videos = np.searchsorted(starts, candidates, side="right") - 1
    is_allowed = allowed[videos]
    candidates, videos = candidates[is_allowed], videos[is_allowed]
    if len(candidates) > len(matrix) // 8:
        return None
    maxima = np.full(len(starts), -np.inf, np.float32)
    for start in range(0, len(candidates), MAX_EXACT_ROWS):
        part = slice(start, start + MAX_EXACT_ROWS)
        np.maximum.at(maxima, videos[part], _exact(matrix[candidates[part]], query))
    return maxima


def find_above(
    rows: Quantised | None,
    matrix: Float[np.ndarray, "R d"],
    query: Float[np.ndarray, " d"],
    threshold: float,
) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return the numbers of the rows whose products with a query exceed a threshold.

    Args:
      rows: the quantised rows; None to multiply all original rows.
      matrix: the original rows.
      query: the query, float32.
      threshold: the threshold.

    Returns:
      The numbers of the rows, and their exact products.
    """
    if rows is None:
        scores = multiply(matrix, query)
        candidates = np.flatnonzero(scores > threshold)
        return candidates, scores[candidates]
    estimates, reach = multiply_quantised(rows, query)
    candidates = np.flatnonzero(estimates + reach > threshold)
    bounds = range(0, len(candidates), MAX_EXACT_ROWS)
    parts = [_exact(matrix[candidates[start : start + MAX_EXACT_ROWS]], query) for start in bounds]
    exact = np.concatenate([np.empty(0, np.float32), *parts])
    return candidates[exact > threshold], exact[exact > threshold]


def _exact(rows: Float[np.ndarray, "n d"], query: Float[np.ndarray, " d"]) -> np.ndarray:
    """Return the products, computed row by row, so that equal rows have equal products."""
    exact: np.ndarray = np.vecdot(to_float32(rows, np.empty(rows.shape, np.float32)), query)
    return exact
