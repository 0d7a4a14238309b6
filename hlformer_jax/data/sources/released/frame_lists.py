"""Frame features of the released layout: id.txt, video2frames.txt, shape.txt and feature.bin.

feature.bin holds rows of little-endian float32. shape.txt has their number and width, id.txt the
name of each row, and video2frames.txt the names of each video's frames in time order.
"""

import ast
import os
import re
import warnings
from collections.abc import Container, Mapping
from pathlib import Path

import numpy as np

from hlformer_jax.data.annotations.parsing import read_text
from hlformer_jax.data.sources.protocol import MAX_MAGNITUDE, DataError

Rows = np.ndarray  # int32 [F_i]

_MIN_MAGNITUDE = 1e-20  # wrongly decoded bytes are mostly smaller
_SAMPLED_ROWS = 64
_MAX_DIGITS = 18  # of a number in shape.txt; more would not fit into 64 bits

# A string literal in video2frames.txt. The quantifiers are possessive (++, *+): if the closing
# quote is missing, the match fails at once, without backtracking over every character.
_STRING = r"""u?(?:'(?:[^'\\\r\n]++|\\.)*+'|"(?:[^"\\\r\n]++|\\.)*+")"""
_STRINGS = rf"\s*+(?:{_STRING}\s*+(?:,\s*+|(?=[\])])))*+"
_ENTRY = re.compile(
    rf"({_STRING})\s*+:\s*+(\[{_STRINGS}\]|\({_STRINGS}\))\s*+(?:,\s*+|(?=\}}))",
    re.DOTALL | re.ASCII,
)


# id.txt and video2frames.txt


def read_row_names(path: Path, rows: int) -> dict[str, int]:
    """Read id.txt, names separated by white space; return the row of every name.

    Raises:
      DataError: if the number of names is not `rows`, or a name appears twice.
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
    # bytes.split splits at ASCII white space only; str.split would also split at U+0085 and U+00A0.
    return [name.decode() for name in data.split()]


def read_frame_lists(
    path: Path, row_of: Mapping[str, int], videos: Container[str] | None = None
) -> dict[str, Rows]:
    """Read video2frames.txt, a Python dict literal {'video': ['frame', …], …}; nothing is executed.

    It is parsed list by list, so that millions of frame names are never in memory at once.

    Args:
      path: the file, UTF-8.
      row_of: the row of every frame name.
      videos: videos whose frames are looked up; None for all.

    Returns:
      Rows of every video in time order, int32 [F_i]; empty for a video that is not in `videos`.

    Raises:
      DataError: if the text is not such a literal, a video appears twice, or id.txt does not have
        the name of a frame.
    """
    text = read_text(path)
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
    """An open feature.bin, whose size and a sample of whose values were checked.

    Args:
      directory: the folder with feature.bin and shape.txt.
      width: width of the features in the configuration.

    Raises:
      DataError: if a check fails.
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
        """Close the file."""
        self._file.close()

    def read(self, rows: Rows) -> np.ndarray:
        """Read rows, float32 [rows, D], with one read for each run of consecutive rows."""
        # Plain reads instead of a memory map: the memory of the process does not grow with the
        # file, and a disk error or a truncated file is an exception instead of a signal.
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
        """Check by a sample of rows that the numbers are little-endian float32."""
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
        text = file.read(200)  # more than two numbers need; the file may be a large other one
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
    # NaN and infinities are ignored here; the preparation refuses and names each of them.
    size = np.abs(values[np.isfinite(values) & (values != 0)]).astype(np.float64)
    if size.size == 0:  # only zeros, NaN and infinities
        return True
    return bool(size.max() <= MAX_MAGNITUDE and np.median(size) >= _MIN_MAGNITUDE)
