"""Still frames: frames that differ from an encoded one by less than an encoder can tell.

Most of a talk, a screen recording or a fixed camera is still. A still frame shares the embedding of
the last encoded frame. It is compared with that one, not with its predecessor, so that slow changes
cannot add up. Both are compared as the encoder sees them, block by block: a mean over the frame
would lose a small object that moves, or a line of text that appears.

docs/benchmark.md has the measured cosines of frames within the bound, and the shares of still
frames.
"""

import numpy as np
from jaxtyping import UInt8

BLOCK_PIXELS = 8
"""Height and width of the blocks in which two frames are compared, in pixels of the encoder."""

MAX_STILL_DIFFERENCE = 2.0
"""Largest mean difference of a block of a still frame, in levels of 0 to 255.

Embeddings of frames within it had cosines of at least 0.998, on real footage.
"""


def is_still(
    encoded: UInt8[np.ndarray, "height width 3"], image: UInt8[np.ndarray, "height width 3"]
) -> bool:
    """Return whether a frame may share the embedding of an encoded one."""
    return largest_difference(encoded, image) <= MAX_STILL_DIFFERENCE


def largest_difference(
    first: UInt8[np.ndarray, "height width 3"], second: UInt8[np.ndarray, "height width 3"]
) -> float:
    """Return the largest mean absolute difference of a block, in levels of 0 to 255."""
    height, width, channels = first.shape
    rows = np.arange(0, height, BLOCK_PIXELS)
    columns = channels * np.arange(0, width, BLOCK_PIXELS)
    differences = np.maximum(first, second) - np.minimum(first, second)
    flat = differences.reshape(height, width * channels)
    sums = np.add.reduceat(np.add.reduceat(flat, rows, dtype=np.int32), columns, axis=1)
    heights, widths = np.diff(rows, append=height), np.diff(columns, append=width * channels)
    return float((sums / np.multiply.outer(heights, widths)).max())
