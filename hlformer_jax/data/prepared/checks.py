"""What a preparation refuses of any source: splits and values that no training could mean."""

from collections.abc import Callable

import numpy as np
from absl import logging

from hlformer_jax.data.source import LARGEST_MAGNITUDE, SPLITS, DataError, Reader

MOST_ZERO_ROWS = 0.25
"""Share of frames, or of words, that may be zero: in some features such rows are padding."""

MOST_ZERO_ITEMS = 0.01
"""Share of videos, or of captions, that may have nothing but zero rows: no feature is like that."""


def check_splits(reader: Reader, name: str) -> None:
    """Checks that an open source has all splits, and that something is in each.

    Args:
      reader: the source.
      name: its name, for messages.

    Raises:
      DataError: if a split is missing or empty, a video has no caption or no frame, a caption has
        no word, or an id stands for two captions of a split.
    """
    splits = reader.splits
    if sorted(splits) != sorted(SPLITS):
        raise DataError(f"{name}: has the splits {sorted(splits)}; they must be {SPLITS}")
    for split in SPLITS:
        if not splits[split]:
            raise DataError(f"{name}: split {split!r} has no video; each split needs one")
        seen: set[str] = set()
        for video, captions in splits[split].items():
            if not captions or reader.num_frames(video) < 1:
                lacking = "frame" if captions else "caption"
                raise DataError(
                    f"{name}: video {video!r} of {split} has no {lacking}; leave it out"
                )
            for caption in captions:
                if reader.num_words(caption.caption_id) < 1:
                    raise DataError(
                        f"{name}: caption {caption.caption_id!r} of {split} has no word; "
                        f"leave it out"
                    )
                if caption.caption_id in seen:
                    raise DataError(
                        f"{name}: caption id {caption.caption_id!r} stands twice in {split}; ids "
                        f"are unique in a split, rename one"
                    )
                seen.add(caption.caption_id)


def check_values(
    values: np.ndarray, shape: tuple[int, int], describe: Callable[[int], str]
) -> None:
    """Checks the features that a source gave.

    Args:
      values: the features, [rows, width].
      shape: their shape by what the source said before.
      describe: what messages call a row.

    Raises:
      DataError: if they are not float32 of that shape, or hold what no feature can be.
    """
    if values.dtype != np.float32 or values.shape != shape:
        raise DataError(
            f"{describe(0)}: the source gave {values.dtype} of shape {values.shape}; it must be "
            f"float32 of shape {shape}"
        )
    with np.errstate(invalid="ignore"):  # NumPy warns of some NaNs, which are found here anyway
        # min and max hand a NaN on, so two passes without a temporary array see everything.
        if values.max() <= LARGEST_MAGNITUDE and values.min() >= -LARGEST_MAGNITUDE:
            return
        wrong = ~(np.abs(values) <= LARGEST_MAGNITUDE)
    row = int(np.flatnonzero(wrong.any(axis=1))[0])
    raise DataError(
        f"{describe(row)} holds {values[row][wrong[row]][0]}, which no feature can be; the file is "
        f"damaged or not little-endian float32, get it again"
    )


class ZeroRows:
    """Counts rows of zeros while features are read; they are what a broken download leaves.

    Attributes:
      first: what messages call the first of them; empty where there is none.
    """

    def __init__(self, rows: str, items: str, num_items: int, num_rows: int) -> None:
        """Counts nothing yet.

        Args:
          rows: what a row is, in the plural, such as frames.
          items: what has the rows, in the plural, such as videos.
          num_items: how many of them will be read.
          num_rows: how many rows they have in all.
        """
        self._names = rows, items
        self._most = MOST_ZERO_ROWS * num_rows, MOST_ZERO_ITEMS * num_items
        self._read = [0, 0]  # rows and items
        self._zero = [0, 0]
        self.first = ""

    def add(self, values: np.ndarray, describe: Callable[[int], str]) -> None:
        """Counts the zero rows of one item.

        Args:
          values: its features, [rows, width].
          describe: what messages call a row.

        Raises:
          DataError: if they have become too many.
        """
        nonzero = values.any(axis=1)
        zero = len(values) - int(np.count_nonzero(nonzero))
        self._read = [self._read[0] + len(values), self._read[1] + 1]
        if not zero:
            return
        self.first = self.first or describe(int(np.argmin(nonzero)))
        self._zero = [self._zero[0] + zero, self._zero[1] + (zero == len(values))]
        if any(count > most for count, most in zip(self._zero, self._most, strict=True)):
            raise DataError(
                f"{self._summary()} so far; so a download that was broken off or data that were "
                f"never written are read, get the file again"
            )

    def warn(self) -> None:
        """Warns of what was counted, if anything was."""
        if self.first:
            logging.warning("%s; they are used as they are", self._summary())

    def _summary(self) -> str:
        (rows, items), (zero_rows, zero_items) = self._names, self._zero
        return (
            f"{self.first}: is zero, like {zero_rows} ({zero_rows / self._read[0]:.1%}) of the "
            f"{self._read[0]} {rows} and all {rows} of {zero_items} "
            f"({zero_items / self._read[1]:.1%}) of the {self._read[1]} {items} read"
        )
