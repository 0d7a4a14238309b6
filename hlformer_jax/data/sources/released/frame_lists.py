"""Frame features of the released layout: id.txt, video2frames.txt, shape.txt and feature.bin.

feature.bin holds rows of float32. shape.txt has their number and width, id.txt a name for each, and
video2frames.txt the names of each video's frames in time order.
"""

import ast
import os
import re
import warnings
from collections.abc import Container, Mapping
from pathlib import Path

import numpy as np

from hlformer_jax.data import annotations
from hlformer_jax.data.sources.protocol import MAX_MAGNITUDE, DataError

Rows = np.ndarray  # int32 [F_i]

_MIN_MAGNITUDE = 1e-20  # wrongly decoded bytes are mostly smaller
_SAMPLED_ROWS = 64
_MAX_DIGITS = 18  # of a number in shape.txt; more would not fit into 64 bits

# Of video2frames.txt; what matches is a literal. Possessive (++, *+): without a closing quote it
# must not go back over every character it has read.
_STRING = r"""u?(?:'(?:[^'\\\r\n]++|\\.)*+'|"(?:[^"\\\r\n]++|\\.)*+")"""
_STRINGS = rf"\s*+(?:{_STRING}\s*+(?:,\s*+|(?=[\])])))*+"
_ENTRY = re.compile(
    rf"({_STRING})\s*+:\s*+(\[{_STRINGS}\]|\({_STRINGS}\))\s*+(?:,\s*+|(?=\}}))",
    re.DOTALL | re.ASCII,
)


# id.txt and video2frames.txt


def read_row_names(path: Path, rows: int) -> dict[str, int]:
    """Reads id.txt, names separated by white space: the row of every name.

    A DataError if they are not as many as there are rows, or one is given twice.
    """
    names = row_names(path)
    if len(names) != rows:
        raise DataError(
            f"{path}: names {len(names)} rows, but shape.txt beside it says {rows}; the two"
            " files belong to different downloads"
        )
    row_of: dict[str, int] = {}
    for row, name in enumerate(names):
        if row_of.setdefault(name, row) != row:
            raise DataError(
                f"{path}: name {name!r} appears twice, in rows {row_of[name]} and {row};"
                " remove or rename one of them"
            )
    return row_of


def row_names(path: Path) -> list[str]:
    """Return the names of id.txt, in the order of the rows."""
    data = path.read_bytes()
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        data = data.decode("iso-8859-1").encode("utf-8")
    # bytes.split knows ASCII's white space only: str.split would break names at U+0085 and U+00A0.
    return [name.decode() for name in data.split()]


def read_frame_lists(
    path: Path, row_of: Mapping[str, int], videos: Container[str] | None = None
) -> dict[str, Rows]:
    """Reads video2frames.txt, one Python dict literal {'video': ['frame', …], …} that is never run.

    It is read list by list, so that millions of frame names do not exist at once.

    Args:
      path: the file, UTF-8.
      row_of: the row of every frame name.
      videos: videos whose frames are looked up; None for all.

    Returns:
      Rows of every video in time order, int32 [F_i]; empty for a video that is not asked for.

    Raises:
      DataError: where the text is not such a literal, at a video that stands there twice
        and at a frame that id.txt does not name.
    """
    text = annotations.read_text(path)
    lists: dict[str, Rows] = {}
    start = re.compile(r"\s*+\{\s*+", re.ASCII).match(text)
    at = start.end() if start else 0

    def error(what: str) -> DataError:
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        return DataError(f"{path}:{line}:{column}: {what}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an unknown escape is only a warning to Python
        while start and (entry := _ENTRY.match(text, at)):
            try:
                video, names = map(ast.literal_eval, entry.groups())
            except (SyntaxError, ValueError):
                raise error("a string with an invalid escape") from None
            if isinstance(names, str):
                raise error(f"({names!r}) is not a list; write [{names!r}]")
            if video in lists:
                raise error(f"video {video!r} appears twice; remove one of them")
            unlisted = videos is not None and video not in videos
            try:
                rows = [] if unlisted else [row_of[name] for name in names]
            except KeyError as absent:
                raise error(
                    f"frame {absent.args[0]!r} of video {video!r} is not in id.txt; the two files "
                    f"belong to different downloads"
                ) from None
            lists[video] = np.asarray(rows, np.int32)
            at = entry.end()
    if not start or text[at:].strip(" \t\n\r\f") != "}":
        raise error(
            f"expected 'VIDEO': ['FRAME', …], or one }} at the end, not {text[at : at + 30]!r} "
            "(the file is one dict literal, and is never run as code)"
        )
    return lists


# shape.txt and feature.bin


class FrameFeatures:
    """An open feature.bin whose size fits its shape and whose sampled values are plausible."""

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
            f"{path}:1: the features are {stored_width} wide, but the configuration says"
            f" {width}; set data.visual_dim to {stored_width}, or choose another"
            " data.feature"
        )
    return num_rows


def _plausible(values: np.ndarray) -> bool:
    # A NaN or an infinity alone is a damaged value, refused and named when its row is read.
    size = np.abs(values[np.isfinite(values) & (values != 0)]).astype(np.float64)
    if size.size == 0:  # so there are such, beside zeros
        return True
    return bool(size.max() <= MAX_MAGNITUDE and np.median(size) >= _MIN_MAGNITUDE)
