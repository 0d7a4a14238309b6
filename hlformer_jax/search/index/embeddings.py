"""Frame embeddings of an index: rows of one file, to which new rows are appended.

    embeddings-N.f16      rows of float16, the original
    embeddings-N.times    the second of the first frame of each row, float64
    embeddings-N.i8       quantised rows of int8 (`packed.quantise`), derived from the first file
    embeddings-N.bounds   scale and error of each quantised row, float32, derived

Consecutive frames with equal embeddings share a row; the database then has the number of frames of
each row and the times of all frames (`Repeats`). The database also has the current generation N,
the rows of each content, their checksums, and the end of the used rows, after which rows are
overwritten. Rows that belong to no content are dead: compaction copies all other rows to the files
of the next generation.

1,000 hours of video have 5.5 GB of rows and 2.8 GB of quantised rows.
"""

import contextlib
import errno
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float16, Float64, Int

from hlformer_jax import files
from hlformer_jax.errors import DamagedError, SearchError, UnreadableError
from hlformer_jax.search.index import packed
from hlformer_jax.search.index.disk import translate_errors
from hlformer_jax.search.index.packed import Quantised

_COPIED_BYTES = 2**24
"""Number of bytes that compaction copies at a time."""

_CHECKSUM_DIGITS = 32

_SECTOR_BYTES = 4096
"""Number of bytes that are left out if one of them cannot be read: a page of the system's cache."""

FRAMES, TIMES, ROUNDED, BOUNDS = "f16", "times", "i8", "bounds"
"""Suffixes of the files of a generation."""

NAME = re.compile(rf"embeddings-([0-9]+)\.({FRAMES}|{TIMES}|{ROUNDED}|{BOUNDS})")


class Repeats(NamedTuple):
    """The frames of each row of a content, if some rows have several frames."""

    counts: Int[np.ndarray, " rows"]  # number of consecutive frames of each row
    times: Float64[np.ndarray, " F"]  # seconds of all frames

    @classmethod
    def find(
        cls, times: Float64[np.ndarray, " F"], vectors: Float16[np.ndarray, "F d"]
    ) -> "Repeats":
        """Group consecutive frames whose embeddings have the same bits."""
        bits = vectors.view(np.uint16)
        firsts = np.flatnonzero(np.append(True, (bits[1:] != bits[:-1]).any(axis=1)))
        return cls(np.diff(firsts, append=len(times)), times)

    @property
    def firsts(self) -> Int[np.ndarray, " rows"]:
        """The first frame of each row."""
        return np.cumsum(self.counts) - self.counts

    def pack(self) -> tuple[bytes, bytes]:
        """Return both arrays, compressed."""
        # Times rise evenly, so bytes at the same place of each number are similar: group them.
        planes = np.ascontiguousarray(self.times, "<f8").view(np.uint8).reshape(-1, 8).T
        return zlib.compress(self.counts.astype("<u4").tobytes()), zlib.compress(planes.tobytes())

    @classmethod
    def unpack(cls, counts: bytes, times: bytes) -> "Repeats":
        """Return the arrays that `pack` has compressed."""
        planes = np.frombuffer(zlib.decompress(times), np.uint8).reshape(8, -1)
        seconds = np.ascontiguousarray(planes.T).view("<f8").reshape(-1).astype(np.float64)
        return cls(unpack_counts(counts), seconds)


def unpack_counts(packed_counts: bytes) -> Int[np.ndarray, " rows"]:
    """Return the counts that `Repeats.pack` has compressed."""
    return np.frombuffer(zlib.decompress(packed_counts), "<u4").astype(np.int64)


class RowSpan(NamedTuple):
    """The rows of one content."""

    first: int
    rows: int
    checksum: str  # of the embeddings and times
    rounded_checksum: str  # of the quantised rows and their bounds


class Embeddings:
    """The files of embeddings in the directory of an index."""

    def __init__(self, directory: Path, width: int) -> None:
        """Set the directory of the index and the width of an embedding; no file is opened."""
        self._directory, self._width = directory, width
        self._item_bytes = {FRAMES: 2 * width, TIMES: 8, ROUNDED: width, BOUNDS: 8}
        self._checked: set[tuple[int, str, RowSpan]] = set()  # rows that were found intact

    def path(self, generation: int, suffix: str) -> Path:
        """Return the path of a file of a generation, by one of the suffixes."""
        return self._directory / f"embeddings-{generation}.{suffix}"

    def append(
        self,
        generation: int,
        first: int,
        times: Float64[np.ndarray, " rows"],
        vectors: Float16[np.ndarray, "rows d"],
    ) -> RowSpan:
        """Write the rows of a content, and flush them to the disk.

        Args:
          generation: the generation of the files.
          first: the row at which to begin.
          times: the second of the first frame of each row.
          vectors: the rows.

        Returns:
          The rows that were written, with their checksums.

        Raises:
          SearchError: if a path is not a regular file, for example a link.
          OSError: if they cannot be written.
        """
        rounded = packed.quantise(vectors)
        bounds = np.stack([rounded.scale, rounded.error], -1)
        for suffix, array in (
            (FRAMES, vectors), (TIMES, times), (ROUNDED, rounded.values), (BOUNDS, bounds),
        ):  # fmt: skip
            with self._writing(generation, suffix) as file:
                _write(file, first * self._item_bytes[suffix], array)
                if suffix in (FRAMES, TIMES):  # the other files can be computed again
                    os.fsync(file)
        checksums = checksum(vectors, times), checksum(rounded.values, bounds)
        return RowSpan(first, len(times), *checksums)

    def check_writable(self, generation: int) -> None:
        """Check that rows can be written to the files of a generation.

        Raises:
          SearchError: if one of them cannot be opened for writing.
        """
        for suffix in (FRAMES, TIMES):
            path = self.path(generation, suffix)
            try:
                with translate_errors(path), self._writing(generation, suffix):
                    pass
            except OSError as error:
                raise UnreadableError.from_error(path, error) from None

    def read(
        self, generation: int, span: RowSpan
    ) -> tuple[Float64[np.ndarray, " rows"], Float16[np.ndarray, "rows d"]]:
        """Return the times and embeddings of the rows of a content; no other rows are read.

        Raises:
          FileNotFoundError: if the files of the generation are missing.
          DamagedError: if the rows are damaged.
          UnreadableError: if the files cannot be read at the moment.
        """
        vectors = np.empty((span.rows, self._width), np.float16)
        times = np.empty(span.rows, np.float64)
        for suffix, array in ((FRAMES, vectors), (TIMES, times)):
            path = self.path(generation, suffix)
            try:
                is_complete = self._read_rows(generation, suffix, span.first, array)
            except FileNotFoundError:
                raise
            except OSError as error:
                reason = error.strerror or error
                kind = DamagedError if error.errno in _NO_FILE else UnreadableError
                raise kind(f"cannot be read from {path} ({reason})") from None
            if not is_complete:
                raise DamagedError(f"are damaged: {path} is too short")
        if checksum(vectors, times) != span.checksum:
            raise DamagedError(f"in {self.path(generation, FRAMES)} are damaged")
        return times, vectors

    def rows(
        self, generation: int, spans: Sequence[RowSpan]
    ) -> tuple[Float16[np.ndarray, "R d"], list[int]]:
        """Map the embeddings of contents into memory.

        Args:
          generation: the generation of the files.
          spans: the rows of each content, in rising order.

        Returns:
          All rows up to the end of the last content, and the indices in `spans` of the damaged
          contents.

        Raises:
          FileNotFoundError: if the files of the generation are missing.
          UnreadableError: if the files cannot be read at the moment.
        """
        end = spans[-1].first + spans[-1].rows if spans else 0
        matrix = self._map_file(generation, FRAMES, np.float16, self._width, end)
        self._map_file(generation, TIMES, np.float64, 1, end)
        checksums = [span.checksum for span in spans]
        try:
            damaged, error = self._find_damaged(generation, (FRAMES, TIMES), spans, checksums)
            if error is not None and len(damaged) == len(spans):  # the disk, not a few sectors
                raise error
        except FileNotFoundError:
            raise
        except OSError as failure:
            raise UnreadableError.from_error(self.path(generation, FRAMES), failure) from None
        if error is not None:
            matrix = _read_around_errors(self.path(generation, FRAMES), matrix)
        return matrix, damaged

    def rounded(
        self, generation: int, spans: Sequence[RowSpan], matrix: Float16[np.ndarray, "R d"]
    ) -> Quantised:
        """Map the quantised rows of contents; compute and write missing or damaged rows.

        Args:
          generation: the generation of the files.
          spans: the rows of each content.
          matrix: the embeddings from which rows are quantised.
        """
        values = self._map_file(generation, ROUNDED, np.int8, self._width, len(matrix))
        bounds = self._map_file(generation, BOUNDS, np.float32, 2, len(matrix))
        checksums, failure = [span.rounded_checksum for span in spans], None
        damaged = list(range(len(spans)))
        with contextlib.suppress(OSError):  # they can be computed again
            damaged, failure = self._find_damaged(generation, (ROUNDED, BOUNDS), spans, checksums)
        if failure is not None:
            values = _read_around_errors(self.path(generation, ROUNDED), values)
            bounds = _read_around_errors(self.path(generation, BOUNDS), bounds)
        if len(values) < len(matrix) or len(bounds) < len(matrix):
            values, bounds = _longer(values, len(matrix)), _longer(bounds, len(matrix))
        for span in (spans[place] for place in damaged):
            part = slice(span.first, span.first + span.rows)
            rounded = packed.quantise(matrix[part])
            rounded_bounds = np.stack([rounded.scale, rounded.error], -1)
            with contextlib.suppress(OSError, SearchError):  # computed again by the next process
                for suffix, array in ((ROUNDED, rounded.values), (BOUNDS, rounded_bounds)):
                    with self._writing(generation, suffix) as file:
                        _write(file, span.first * self._item_bytes[suffix], array)
                self._checked.add((generation, ROUNDED, span))
            if not values.flags.writeable:
                values, bounds = np.array(values), np.array(bounds)
            values[part], bounds[part] = rounded.values, rounded_bounds
        scale, error = np.ascontiguousarray(bounds.T)
        return Quantised(values, scale, error)

    def damaged_rounded(self, generation: int, spans: Iterable[RowSpan]) -> bool:
        """Read the quantised rows of contents; return whether any is missing or damaged."""
        for span in spans:
            values = np.empty((span.rows, self._width), np.int8)
            bounds = np.empty((span.rows, 2), np.float32)
            try:
                is_complete = all(
                    self._read_rows(generation, suffix, span.first, array)
                    for suffix, array in ((ROUNDED, values), (BOUNDS, bounds))
                )
            except OSError:
                return True
            if not is_complete or checksum(values, bounds) != span.rounded_checksum:
                return True
        return False

    def compact(self, generation: int, spans: Sequence[RowSpan]) -> list[int]:
        """Copy the rows of spans, without gaps, to the files of the next generation.

        Returns:
          The first row of each span in the new files.

        Raises:
          OSError: if they cannot be written.
        """
        firsts = np.cumsum([0, *(span.rows for span in spans)]).tolist()
        for suffix, size in self._item_bytes.items():
            with (
                open(files.open_regular(self.path(generation, suffix)), "rb") as source,
                self._writing(generation + 1, suffix) as file,
            ):
                os.ftruncate(file, 0)
                for span, first in zip(spans, firsts, strict=False):
                    for start in range(0, span.rows * size, _COPIED_BYTES):
                        count = min(_COPIED_BYTES, span.rows * size - start)
                        part = np.zeros(count, np.uint8)
                        packed.read_at(source.fileno(), span.first * size + start, part)
                        _write(file, first * size + start, part)
                os.fsync(file)
        return firsts[:-1]

    def discard(self, is_unused: Callable[[int], bool]) -> None:
        """Delete the files of the generations for which a function returns True."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._directory):
                match = NAME.fullmatch(name)
                if match and is_unused(int(match[1])):
                    files.discard(self._directory / name)

    def size(self, rows: int) -> int:
        """Return the number of bytes that a number of rows takes in all files."""
        return rows * sum(self._item_bytes.values())

    def _map_file(
        self, generation: int, suffix: str, dtype: type, width: int, end: int
    ) -> np.ndarray:
        """Map a file into memory, up to row `end` or to its last complete row before that.

        Of quantised rows, which can be computed again, an unreadable file counts as an empty one.
        """
        path, needed = self.path(generation, suffix), suffix in (FRAMES, TIMES) and end > 0
        mapped: np.ndarray = np.empty((0, width), dtype)
        try:
            status = path.stat()
            rows = min(end, status.st_size // self._item_bytes[suffix])
            if rows and stat.S_ISREG(status.st_mode):
                mapped = np.memmap(path, dtype, "r", shape=(rows, width))
        except FileNotFoundError:
            if needed:
                raise
        except OSError as error:
            if needed:
                line = f"{UnreadableError.from_error(path, error)}: check the disk and the rights"
                raise UnreadableError(line) from None
        return mapped

    def _find_damaged(
        self,
        generation: int,
        suffixes: tuple[str, str],
        spans: Sequence[RowSpan],
        checksums: Sequence[str],
    ) -> tuple[list[int], OSError | None]:
        """Read contents and compare their checksums, once in a process, before a map is used.

        A sector of a mapped file that cannot be read kills the process. So unused rows between the
        contents are read too.

        Returns:
          The indices in `spans` of the damaged contents, and the first error of the disk.

        Raises:
          OSError: if a file cannot be opened.
        """
        damaged, error, end, part = [], None, 0, np.empty(packed.HASHED_BYTES, np.uint8)
        with contextlib.ExitStack() as stack:
            opened: list[tuple[int, int]] = []  # descriptors, and bytes of a row
            for suffix in suffixes:
                path = self.path(generation, suffix)
                file = stack.enter_context(open(files.open_regular(path), "rb"))
                opened.append((file.fileno(), self._item_bytes[suffix]))

            def add(digest: "hashlib._Hash", first: int, rows: int) -> bool:
                """Add rows of both files to a hash; return whether the files were long enough."""
                return all(
                    packed.hash_file(digest, file, first * item, rows * item, part)
                    for file, item in opened
                )

            for place, span in enumerate(spans):
                start, end = end, span.first + span.rows
                key = generation, suffixes[0], span
                if key in self._checked:
                    continue
                digest, is_complete = hashlib.sha256(), False
                try:
                    if start < span.first:
                        add(hashlib.sha256(), start, span.first - start)
                except OSError as failure:
                    error = error or failure
                try:
                    is_complete = add(digest, span.first, span.rows)
                except OSError as failure:
                    error = error or failure
                if is_complete and digest.hexdigest()[:_CHECKSUM_DIGITS] == checksums[place]:
                    self._checked.add(key)
                else:
                    damaged.append(place)
        return damaged, error

    def _read_rows(self, generation: int, suffix: str, first: int, array: np.ndarray) -> bool:
        """Fill an array with the rows of a file; return whether the file was long enough."""
        with open(files.open_regular(self.path(generation, suffix)), "rb") as file:
            return packed.read_at(file.fileno(), first * self._item_bytes[suffix], array)

    @contextlib.contextmanager
    def _writing(self, generation: int, suffix: str) -> Iterator[int]:
        """Open a file for writing in place; create it if it is missing."""
        path = self.path(generation, suffix)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = os.open(path, flags, 0o666)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            raise SearchError(f"{path} is not a regular file: move it away") from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise SearchError(f"{path} is not a regular file: move it away")
            yield file
        finally:
            os.close(file)


_NO_FILE = errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EINVAL, errno.ENOTDIR


def _longer(rows: np.ndarray, count: int) -> np.ndarray:
    """Return a copy of rows in memory, extended with zeros to `count` rows."""
    longer = np.zeros((count, rows.shape[1]), rows.dtype)
    longer[: len(rows)] = rows
    return longer


def checksum(*arrays: np.ndarray) -> str:
    """Return the first hexadecimal digits of the SHA-256 of arrays (`packed.hash_blocks`)."""
    digest = hashlib.sha256()
    for array in arrays:
        packed.hash_blocks(digest, array)
    return digest.hexdigest()[:_CHECKSUM_DIGITS]


def _write(file: int, offset: int, array: np.ndarray) -> None:
    rest = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    while rest:
        written = os.pwrite(file, rest, offset)
        rest, offset = rest[written:], offset + written


def _read_around_errors(path: Path, rows: np.ndarray) -> np.ndarray:
    """Return a copy of a mapped file in memory, with zeros where sectors cannot be read."""
    copy = np.zeros(rows.shape, rows.dtype)
    content = copy.reshape(-1).view(np.uint8)
    with contextlib.suppress(OSError), open(files.open_regular(path), "rb") as file:
        for start in range(0, len(content), _SECTOR_BYTES):
            with contextlib.suppress(OSError):
                packed.read_at(file.fileno(), start, content[start : start + _SECTOR_BYTES])
    return copy
