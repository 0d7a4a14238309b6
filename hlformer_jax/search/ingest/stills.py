"""Still frames: frames that hardly differ from the last encoded frame.

Most frames of a talk, a screen recording or a fixed camera are still. A still frame shares the
embedding of the last encoded frame. It is compared with that frame and not with the frame before,
so that slow changes cannot add up. The frames are compared after preprocessing, block by block: a
mean over the whole frame would hide a small moving object or a new line of text.

docs/benchmark.md has the measured cosines of frames within the bound, and the shares of still
frames in videos.
"""

import numpy as np
from jaxtyping import UInt8

BLOCK_PIXELS = 8
"""Height and width of the blocks in which two preprocessed frames are compared, in pixels."""

MAX_STILL_DIFFERENCE = 2.0
"""Largest mean absolute difference in any block of a still frame, for values of 0 to 255.

In real footage, embeddings of frames within this bound had cosines of at least 0.998.
"""


def is_still(
    encoded: UInt8[np.ndarray, "height width 3"], image: UInt8[np.ndarray, "height width 3"]
) -> bool:
    """Return whether a frame may share the embedding of an encoded frame."""
    return largest_difference(encoded, image) <= MAX_STILL_DIFFERENCE


def largest_difference(
    first: UInt8[np.ndarray, "height width 3"], second: UInt8[np.ndarray, "height width 3"]
) -> float:
    """Return the largest mean absolute difference of a block, for values of 0 to 255."""
    height, width, channels = first.shape
    rows = np.arange(0, height, BLOCK_PIXELS)
    columns = channels * np.arange(0, width, BLOCK_PIXELS)
    differences = np.maximum(first, second) - np.minimum(first, second)
    flat = differences.reshape(height, width * channels)
    sums = np.add.reduceat(np.add.reduceat(flat, rows, dtype=np.int32), columns, axis=1)
    heights, widths = np.diff(rows, append=height), np.diff(columns, append=width * channels)
    return float((sums / np.multiply.outer(heights, widths)).max())
