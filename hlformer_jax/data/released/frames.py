"""feature.bin and shape.txt: rows of little-endian float32, one a frame, in no particular order."""

import os
from pathlib import Path

import numpy as np

from hlformer_jax.data.released.frame_lists import Rows
from hlformer_jax.data.source import LARGEST_MAGNITUDE, DataError

_SMALLEST_MAGNITUDE = 1e-20  # wrongly decoded bytes are mostly smaller
_SAMPLED_ROWS = 64
_MOST_DIGITS = 18  # of a number in shape.txt; more would not fit into 64 bits


class FrameFeatures:
    """The file, open; its size is that of its shape, and a sample of its values makes sense.

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
                    raise DataError(
                        f"{self.path}: became shorter while it was read; download it again"
                    )
                target, offset = target[count:], offset + count
        if not np.array_equal(order, np.arange(len(rows))):
            unordered, frames = frames, np.empty_like(frames)
            frames[order] = unordered
        return frames.astype(np.float32, copy=False)

    def _check_size(self) -> None:
        size, expected = self.path.stat().st_size, self.num_rows * self.width * 4
        if size != expected:
            guess = {expected * 2: "float64", expected // 2: "float16"}.get(size)
            guess = f" (as many as for {guess}, which is not read)" if guess else ""
            raise DataError(
                f"{self.path}: is {abs(size - expected)} bytes too "
                f"{'long' if size > expected else 'short'}: shape.txt says {self.num_rows} x "
                f"{self.width} float32, {expected} bytes, and the file has {size}{guess}; download "
                f"it again"
            )

    def _check_sample(self) -> None:
        """Looks at a sample of rows for numbers stored in another format than float32."""
        sample = np.linspace(0, self.num_rows - 1, min(self.num_rows, _SAMPLED_ROWS))
        values = self.read(np.unique(sample.astype(np.int32)))
        with np.errstate(invalid="ignore"):  # NumPy warns of some NaNs
            zero = not values.any()
            plausible = _plausible(values)
            swapped = _plausible(values.view(">f4").astype(np.float32))
        if zero:
            raise DataError(
                f"{self.path}: is zero in every row that was looked at, as after a download that"
                " was broken off; download it again"
            )
        if plausible:
            return
        guess = "big-endian float32" if swapped else "float64, integers or damaged"
        raise DataError(
            f"{self.path}: its numbers make no sense as little-endian float32 (magnitudes beyond "
            f"{LARGEST_MAGNITUDE:g} or mostly below {_SMALLEST_MAGNITUDE:g}); they look {guess}; "
            f"convert the file or download it again"
        )


def _read_num_rows(path: Path, width: int) -> int:
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(200)  # of more than it can need: it may be any file
    fields = text.split()
    numbers = [int(f) for f in fields if f.isascii() and f.isdigit() and len(f) <= _MOST_DIGITS]
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
    return bool(size.max() <= LARGEST_MAGNITUDE and np.median(size) >= _SMALLEST_MAGNITUDE)
