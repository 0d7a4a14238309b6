"""The files of the released layout, each read strictly: names, frames, and HDF5 features.

    id.txt            the names of the rows of feature.bin, separated by white space
    video2frames.txt  one Python dict literal, {'video': ['frame', …], …}, in time order
    shape.txt         ROWS WIDTH
    feature.bin       rows of little-endian float32, one a frame, in no particular order
    *.hdf5            a dataset [rows, width] of floating point for each id

Every error names the file, the line or the id, and what to do. `released` puts them together.
"""

import ast
import dataclasses
import math
import os
import re
import warnings
from collections.abc import Container, Iterator
from pathlib import Path

import h5py
import numpy as np

from hlformer_jax.data.source import MAX_MAGNITUDE, DataError

Rows = np.ndarray  # int32 [F_i]

MAX_WORDS = 10_000
"""Words that a caption may have: far beyond any sentence, far below what memory holds."""

MAX_FRAMES = 1_000_000
"""Frames that a teacher may have seen of a video: 11 hours at 25 a second."""

_MIN_MAGNITUDE = 1e-20  # wrongly decoded bytes are mostly smaller
_SAMPLED_ROWS = 64
_MAX_DIGITS = 18  # of a number in shape.txt; more would not fit into 64 bits

_TEXT = re.compile(rb"\S")
# Possessive (++, *+): without a closing quote it must not go back over every byte it has read.
_STRING = re.compile(rb"""u?(?:'(?:[^'\\\r\n]++|\\.)*+'|"(?:[^"\\\r\n]++|\\.)*+")""", re.DOTALL)
_CLOSING = {b"[": b"]", b"(": b")"}


# id.txt and video2frames.txt


def read_row_names(path: Path, rows: int) -> dict[bytes, int]:
    """Reads id.txt.

    Args:
      path: names separated by white space; UTF-8 or ISO-8859-1.
      rows: how many there must be.

    Returns:
      The row of every name (UTF-8).

    Raises:
      DataError: if names are missing, too many or given twice.
    """
    names = _row_names(path)
    if len(names) != rows:
        raise DataError(
            f"{path}: names {len(names)} rows, shape.txt beside it says {rows}; one of the two "
            f"belongs to another download"
        )
    row_of = {name: row for row, name in enumerate(names)}
    if len(row_of) != rows:
        first: dict[bytes, int] = {}
        for row, name in enumerate(names):
            if first.setdefault(name, row) != row:
                raise DataError(
                    f"{path}: name {name.decode()!r} stands there twice, in rows "
                    f"{first[name]} and {row}; a row has one name, remove or rename one"
                )
    return row_of


def row_name(path: Path, row: int) -> str:
    """Returns the name of a row: for messages, it reads the file anew."""
    return _row_names(path)[row].decode()


def _row_names(path: Path) -> list[bytes]:
    data = path.read_bytes()
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        data = data.decode("iso-8859-1").encode("utf-8")
    # bytes.split knows ASCII's white space only: str.split would break names at U+0085 and U+00A0.
    return data.split()


def read_frame_lists(
    path: Path, row_of: dict[bytes, int], wanted: Container[str] | None = None
) -> dict[str, Rows]:
    """Reads video2frames.txt.

    Args:
      path: the dict literal, UTF-8.
      row_of: the row of every frame name.
      wanted: videos whose frames are looked up; None for all.

    Returns:
      Rows of every video in time order, int32 [F_i]; empty for a video that is not wanted.

    Raises:
      DataError: where the text is not such a literal, at a video that stands there twice
        and at a frame that id.txt does not name.
    """
    return _FrameLists(path, row_of, wanted).read()


class _FrameLists:
    """The text of video2frames.txt, and a position in it; it is never evaluated.

    Almost all lists are split at their quotes at once; a list with an escape, a double quote or
    anything unusual is read token by token, which also tells where a fault stands. Names become row
    indices list by list, so that millions of frame names never exist side by side twice.
    """

    def __init__(self, path: Path, row_of: dict[bytes, int], wanted: Container[str] | None) -> None:
        self.path, self.row_of, self.wanted = path, row_of, wanted
        self.text = path.read_bytes()
        self.at = 0

    def read(self) -> dict[str, Rows]:
        lists: dict[str, Rows] = {}
        self.expect(b"{")
        while not self.take(b"}"):
            start = self.at
            video = self.decode(self.string("a video's id in quotes"))
            if video in lists:
                raise self.error(
                    f"video {video!r} stands there twice; remove one of the two", start
                )
            self.expect(b":")
            lists[video] = self.frames(video)
            if not self.take(b","):
                self.expect(b"}", "',' or '}'")
                break
        self.skip()
        if self.at != len(self.text):
            raise self.error("text after the end of the dict")
        return lists

    def frames(self, video: str) -> Rows:
        self.skip()
        opening = self.text[self.at : self.at + 1]
        closing = _CLOSING.get(opening)
        if closing is None:
            raise self.error(f"expected the list of frames of video {video!r}")
        start = self.at + 1
        end = self.text.find(closing, start)
        names = self.split_at_quotes(start, end)
        if names is None or (opening == b"(" and len(names) < 2):
            names = self.tokens(start, opening, closing)
        else:
            self.at = end + 1
        if self.wanted is not None and video not in self.wanted:
            return np.empty(0, np.int32)
        try:
            return np.fromiter(map(self.row_of.__getitem__, names), np.int32, len(names))
        except KeyError as error:
            name = self.decode(error.args[0])
            raise self.error(
                f"frame {name!r} of video {video!r} is not in id.txt; the two files belong to "
                f"different downloads",
                start,
            ) from None

    def split_at_quotes(self, start: int, end: int) -> list[bytes] | None:
        """Reads a list of plainly quoted names; None if it may be anything else."""
        # Without backslash and double quote, quotes pair up in order: an even number of them up to
        # `end` means that the closing bracket there is not inside a name.
        body = self.text[start:end]
        if end < 0 or b"\\" in body or b'"' in body:
            return None
        parts = body.split(b"'")
        between = parts[0::2]
        if len(parts) % 2 == 0 or between[0].strip() or between[-1].strip() not in (b"", b","):
            return None
        if len(parts) == 1:
            return [] if not body.strip() else None
        if any(gap.strip() != b"," for gap in set(between[1:-1])):
            return None
        return parts[1::2]

    def tokens(self, start: int, opening: bytes, closing: bytes) -> list[bytes]:
        names: list[bytes] = []
        self.at, comma = start, False
        while not self.take(closing):
            if names and not comma:
                raise self.error(f"expected ',' or {closing.decode()!r}")
            names.append(self.string("a frame's name in quotes"))
            comma = self.take(b",")
        if opening == b"(" and len(names) == 1 and not comma:
            raise self.error("a name in parentheses is not a list; write ['name']", start)
        return names

    def string(self, what: str) -> bytes:
        self.skip()
        match = _STRING.match(self.text, self.at)
        if match is None:
            raise self.error(f"expected {what}")
        token = match.group()
        if b"\\" not in token:
            self.at = match.end()
            return token[token.index(token[-1:]) + 1 : -1]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an unknown escape is only a warning to Python
                value = ast.literal_eval(token.decode("utf-8"))
            name = value.encode("utf-8")
        except (SyntaxError, ValueError):
            raise self.error("a string with an invalid escape or encoding") from None
        self.at = match.end()
        return name

    def decode(self, name: bytes) -> str:
        try:
            return name.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"name {name!r} is not UTF-8; convert the file to UTF-8") from None

    def skip(self) -> None:
        match = _TEXT.search(self.text, self.at)
        self.at = match.start() if match else len(self.text)

    def take(self, token: bytes) -> bool:
        self.skip()
        taken = self.text.startswith(token, self.at)
        self.at += len(token) if taken else 0
        return taken

    def expect(self, token: bytes, what: str | None = None) -> None:
        if not self.take(token):
            raise self.error(f"expected {what or repr(token.decode())}")

    def error(self, what: str, at: int | None = None) -> DataError:
        at = self.at if at is None else at
        line = self.text.count(b"\n", 0, at) + 1
        column = at - self.text.rfind(b"\n", 0, at)
        near = self.text[at : at + 30].decode("utf-8", "replace") or "the end of the file"
        return DataError(
            f"{self.path}:{line}:{column}: {what}, near {near!r} (the file is one dict literal, "
            f"video to list of frames, and is never run as code)"
        )


# shape.txt and feature.bin


class FrameFeatures:
    """feature.bin, open; its size is that of its shape, and a sample of its values makes sense.

    Attributes:
      path: feature.bin.
      num_rows: its number of rows.
      width: D, the width of a row.
    """

    def __init__(self, directory: Path, width: int) -> None:
        self.path, self.width = directory / "feature.bin", width
        self.num_rows = _read_num_rows(directory / "shape.txt", width)
        self._check_size()
        self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115, closed by close()
        try:
            self._check_sample()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def read(self, rows: Rows) -> np.ndarray:
        """Reads rows with as few reads as runs of neighbouring rows allow, float32 [rows, D]."""
        # Plain reads, not a memory map: the resident set stays flat however large the file is, and
        # a disk error or a file cut short is an exception, not a signal.
        order = np.argsort(rows, kind="stable")
        in_order = rows[order]
        starts = np.flatnonzero(np.diff(in_order, prepend=-2) != 1)
        ends = np.append(starts[1:], len(rows))
        frames = np.empty((len(rows), self.width), "<f4")
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            target = frames[start:end].data.cast("B")
            offset = int(in_order[start]) * self.width * 4
            while len(target):
                count = os.preadv(self._file.fileno(), [target], offset)
                if count == 0:
                    raise self._fault("became shorter while it was read")
                target, offset = target[count:], offset + count
        if not np.array_equal(order, np.arange(len(rows))):
            unordered, frames = frames, np.empty_like(frames)
            frames[order] = unordered
        return frames.astype(np.float32, copy=False)

    def _fault(self, what: str) -> DataError:
        return DataError(f"{self.path}: {what}; download it again")

    def _check_size(self) -> None:
        size, expected = self.path.stat().st_size, self.num_rows * self.width * 4
        if size == expected:
            return
        guess = {expected * 2: "float64", expected // 2: "float16"}.get(size)
        guess = f" (as many as for {guess}, which is not read)" if guess else ""
        raise self._fault(
            f"is {abs(size - expected)} bytes too {'long' if size > expected else 'short'}: "
            f"shape.txt says {self.num_rows} x {self.width} float32, {expected} bytes, and the "
            f"file has {size}{guess}"
        )

    def _check_sample(self) -> None:
        """Looks at a sample of rows for numbers stored in another format than float32."""
        sample = np.linspace(0, self.num_rows - 1, min(self.num_rows, _SAMPLED_ROWS))
        values = self.read(np.unique(sample.astype(np.int32)))
        with np.errstate(invalid="ignore"):  # NumPy warns of some NaNs
            zero, plausible = not values.any(), _plausible(values)
            swapped = _plausible(values.view(">f4").astype(np.float32))
        if zero:
            raise self._fault("is zero in every row of a sample, as after a broken download")
        if not plausible:
            guess = "big-endian float32" if swapped else "float64, integers or damaged"
            raise self._fault(
                f"its numbers make no sense as little-endian float32 (magnitudes beyond "
                f"{MAX_MAGNITUDE:g} or mostly below {_MIN_MAGNITUDE:g}); they look {guess}"
            )


def _read_num_rows(path: Path, width: int) -> int:
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(200)  # of more than it can need: it may be any file
    fields = text.split()
    numbers = [int(f) for f in fields if f.isascii() and f.isdigit() and len(f) <= _MAX_DIGITS]
    if len(fields) != 2 or len(numbers) != 2 or not all(numbers):
        raise DataError(
            f"{path}:1: {text.strip()[:60]!r} is not 'ROWS WIDTH', two positive numbers; "
            f"correct it or download it again"
        )
    num_rows, stored_width = numbers
    if stored_width != width:
        raise DataError(
            f"{path}:1: the features are {stored_width} wide, the configuration says {width}; set "
            f"data.visual_dim to {stored_width}, or choose another data.feature"
        )
    return num_rows


def _plausible(values: np.ndarray) -> bool:
    # A NaN or an infinity alone is a damaged value, refused and named when its row is read.
    size = np.abs(values[np.isfinite(values) & (values != 0)]).astype(np.float64)
    if size.size == 0:  # so there are such, beside zeros
        return True
    return bool(size.max() <= MAX_MAGNITUDE and np.median(size) >= _MIN_MAGNITUDE)


# HDF5


@dataclasses.dataclass(frozen=True)
class FeatureKind:
    """The content of an HDF5 file of features, as messages call it.

    Attributes:
      item: the things that have an id, such as caption.
      rows: their rows, such as words.
      features: the kind of features, such as text.
      field: the field of the configuration that has their width.
      max_rows: rows that an item may have.
      single: whether an item with one row may be a vector, without an axis of rows.
    """

    item: str = "caption"
    rows: str = "words"
    features: str = "text"
    field: str = "data.text_dim"
    max_rows: int = MAX_WORDS
    single: bool = False


WORDS = FeatureKind()
TEACHER_FRAMES = FeatureKind("video", "frames", "teacher's", "data.teacher_dim", MAX_FRAMES)
TEACHER_CAPTIONS = FeatureKind(
    "caption", "vectors", "teacher's", "data.teacher_dim", 1, single=True
)


class FeatureFile:
    """An HDF5 file of features, open.

    A file can declare what it does not hold: datasets of any size, or that lie in other files, some
    of which never end. So sizes and storage are known, and bounded, before anything is read.

    Attributes:
      path: the file.
      width: E, the width of its features.
      kind: its content.
    """

    def __init__(self, path: Path, width: int, kind: FeatureKind = WORDS) -> None:
        self.path, self.width, self.kind = path, width, kind
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read as HDF5 ({error}); download it again"
            ) from None

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __contains__(self, name: str) -> bool:
        """Returns whether the file has something of that name."""
        return bool(self._file.id.links.exists(name.encode()))

    def count(self, item: str, listed: str) -> int:
        """Counts the rows of an item, and checks that they can be read.

        Args:
          item: its id, of a caption or a video.
          listed: the line that lists it, for messages.

        Returns:
          The number of its rows.

        Raises:
          DataError: if the file has no such features, or they are not as they should be.
        """
        try:
            return self._count(item, listed)
        except (RuntimeError, OSError, TypeError) as error:  # HDF5's, and h5py's of odd types
            raise self._fault(item, f"are damaged ({error})") from None

    def read(self, item: str, rows: int) -> np.ndarray:
        """Reads the features of an item whose rows were counted, float32 [rows, E]."""
        features = np.empty((rows, self.width), np.float32)
        try:
            dataset = h5py.h5d.open(self._file.id, item.encode())
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, features)
        except (RuntimeError, OSError, KeyError) as error:
            raise self._fault(item, f"cannot be read ({error})") from None
        return features

    def _fault(self, item: str, what: str, remedy: str = "download the file again") -> DataError:
        return DataError(f"{self.path}: the features of {self.kind.item} {item!r} {what}; {remedy}")

    def _count(self, item: str, listed: str) -> int:
        name, kind, links = item.encode(), self.kind, self._file.id.links
        if not links.exists(name):
            raise self._absent(item, listed)
        if links.get_info(name).type != h5py.h5l.TYPE_HARD:
            # It may lead to another file, which opening it would open, whatever that is.
            raise self._fault(item, "are a link, and must lie in the file itself")
        try:
            # The low-level call is several times faster than File.__getitem__.
            dataset = h5py.h5d.open(self._file.id, name)
        except KeyError:
            what = "are a group or a type, and must be a dataset at the top level"
            raise self._fault(item, what) from None
        shape, dtype = dataset.shape, dataset.dtype
        if dtype.kind != "f":
            raise self._fault(item, f"are {dtype}, not floating point")
        if kind.single and shape is not None and len(shape) == 1:
            shape = (1, *shape)
        if shape is None or len(shape) != 2:
            raise self._fault(item, f"have shape {shape}, not ({kind.rows}, width)")
        rows, width = shape
        if width != self.width:
            remedy = f"set {kind.field} to {width}, or use the {kind.features} features that fit"
            what = f"are {width} wide, the configuration says {self.width}"
            raise self._fault(item, what, remedy)
        if rows == 0:
            raise self._fault(item, f"have no {kind.rows}", f"remove the {kind.item}")
        if rows > kind.max_rows:
            raise self._fault(item, f"are said to be {rows} {kind.rows}, more than {kind.max_rows}")
        if dataset.get_offset() is None:  # None but for plain values inside of this file
            self._check_storage(item, dataset)
        return int(rows)

    def _check_storage(self, item: str, dataset: h5py.h5d.DatasetID) -> None:
        properties = dataset.get_create_plist()
        layout = properties.get_layout()
        if layout == h5py.h5d.VIRTUAL or properties.get_external_count():
            raise self._fault(item, "lie in another file, and must lie in the file itself")
        if dataset.get_space_status() != h5py.h5d.SPACE_STATUS_ALLOCATED:
            what = "were never written, or in part, and would be read as zeros"
            raise self._fault(item, what)
        if layout == h5py.h5d.CHUNKED:
            chunk = properties.get_chunk()  # a whole one is read, however few of its values are
            if math.prod(chunk) > self.kind.max_rows * self.width:
                raise self._fault(item, f"are stored in chunks of {chunk} values")

    def _absent(self, item: str, listed: str) -> DataError:
        """The error for a name that the file does not have."""
        group = next(self._groups(), None)
        hint = f"; {self.path} nests them in groups such as {group!r}" if group else ""
        return DataError(
            f"{listed}: {self.kind.item} {item!r} has no features in {self.path}{hint}; they must "
            f"be a dataset of that name at the top level, correct the id or download both again"
        )

    def _groups(self) -> Iterator[str]:
        """Groups among the first hundred names of the file."""
        for name, _ in zip(self._file, range(100), strict=False):
            if self._file.id.links.get_info(name.encode()).type == h5py.h5l.TYPE_HARD:
                if self._file.get(name, getclass=True) is h5py.Group:
                    yield name
