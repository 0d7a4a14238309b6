"""Intervals of a video by wavelets and a graph, without a query (TF-PRVR, NeurIPS 2026).

`segments` cuts a video where the difference between frames turns sharply in direction. It searches
for such cuts at several scales, the levels of a wavelet transform; all cuts together separate the
intervals. The vector of an interval combines the frames of its segments, one at each level, and of
similar segments near them. Its norm is below 1, so its products with other vectors are not cosines.

The intervals do not depend on a query, so those of a video can be computed once. The other
functions are the steps of `segments`: `signal`, `level_details`, `peak_cuts`, `make_segments`,
`segment_means` and `propagate`.
"""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from hlformer_jax.data.transforms import unit

BETA = 0.7  # weight of the graph in the propagation
ROUNDING = 1e-6  # shorter differences and lower peaks are rounding errors and count as 0
MAX_GRAPH_FRAMES = 4096
"""Largest number of frames in one graph: 68 minutes at a frame per second.

The size of the graph grows with the square of the length, so a longer video is first cut into parts
of equal length, each with its own graph.
"""

WAVELET, BORDER = "db4", "symmetric"


class Segments(NamedTuple):
    """Segments of all levels, level by level, finest first; each level covers the whole video."""

    starts: Int[np.ndarray, " S"]  # first frames
    ends: Int[np.ndarray, " S"]  # last frames plus 1
    levels: Int[np.ndarray, " S"]  # level of each segment, from 0

    @property
    def rows_by_level(self) -> list[slice]:
        """The rows of the segments of each level."""
        bounds = np.searchsorted(self.levels, np.arange(self.levels[-1] + 2))
        return [slice(first, last) for first, last in itertools.pairwise(bounds)]


def segments(
    vectors: Float[np.ndarray, "F d"], times: Float[np.ndarray, " F"], period: float = 1.0
) -> tuple[Float[np.ndarray, "I 2"], Float[np.ndarray, "I d"]]:
    """Cut a video into intervals.

    The cuts of all levels together separate the intervals. The vector of an interval is the mean
    over levels of the vector, after `propagate`, of the segment that contains the interval.

    Args:
      vectors: finite unit vectors of F >= 1 frames, of any floating dtype. They are converted to
        float64 and normalised again, because float16 vectors have unit length only up to rounding.
      times: times of the frames in seconds, rising.
      period: seconds between two frames; the last interval ends a period after the last frame.

    Returns:
      Start and end of the intervals in seconds, in order and without gaps, float64; and the vectors
      of the intervals, float32, not normalised.

    Raises:
      ValueError: if a number is not finite; the graph would spread it to all intervals.
    """
    if not np.isfinite(vectors).all():
        raise ValueError("vectors has NaN or infinite numbers: pass finite unit vectors")
    count = len(vectors)
    parts = -(-count // MAX_GRAPH_FRAMES)
    bounds = np.arange(parts + 1) * count // parts
    starts, propagated = [], []
    for first, last in zip(bounds[:-1], bounds[1:], strict=True):
        cuts, rows = _part(unit(vectors[first:last].astype(np.float64)))
        starts.append(first + cuts)
        propagated.append(rows)
    edges = np.append(times, times[-1] + period).astype(np.float64)
    start = np.concatenate(starts)
    spans = np.stack([edges[start], edges[np.append(start[1:], count)]], axis=-1)
    return spans, np.concatenate(propagated).astype(np.float32)


def _part(
    frames: Float[np.ndarray, "T d"],
) -> tuple[Int[np.ndarray, " I"], Float[np.ndarray, "I d"]]:
    """Return the first frames of the intervals of a part of a video, and the intervals' vectors."""
    cuts = [peak_cuts(details) for details in level_details(signal(frames))]
    parts = make_segments(cuts or [np.zeros(0, np.int64)], len(frames))
    spread = propagate(segment_means(frames, parts), parts)
    starts = np.unique(parts.starts)
    per_level = [
        spread[rows][np.searchsorted(parts.starts[rows], starts, side="right") - 1]
        for rows in parts.rows_by_level
    ]
    return starts, np.mean(per_level, axis=0)


def segment_means(frames: Float[np.ndarray, "T d"], parts: Segments) -> Float[np.ndarray, "S d"]:
    """Return the unit mean of the frames of each segment.

    Args:
      frames: unit vectors of the frames.
      parts: the segments.
    """
    starts = [parts.starts[rows] for rows in parts.rows_by_level]
    return unit(np.concatenate([np.add.reduceat(frames, level, axis=0) for level in starts]))


def signal(frames: Float[np.ndarray, "T d"]) -> Float[np.ndarray, " _"]:
    """Return the change of direction between successive differences of frames.

    It is s_t = 1 − ⟨Δ_t, Δ_{t+1}⟩ for the directions Δ_t = unit(x_{t+1} − x_t), or 0 if both
    differences vanish.

    Args:
      frames: unit vectors x_1 … x_T of the frames.

    Returns:
      Numbers from 0 to 2, [T - 2]; empty for T < 3.
    """
    differences = np.diff(frames, axis=0)
    still = np.linalg.norm(differences, axis=-1) <= ROUNDING
    directions = np.where(still[:, None], 0.0, unit(differences))
    turned = 1 - np.einsum("td,td->t", directions[:-1], directions[1:])
    return np.where(still[:-1] & still[1:], 0.0, turned)


def level_details(values: Float[np.ndarray, " n"]) -> list[Float[np.ndarray, " n"]]:
    """Return the absolute details of a signal at each level of a wavelet transform, finest first.

    The details of a level are reconstructed from its wavelet coefficients alone. There are as many
    levels as the length allows. Below 16 frames it allows none; TF-PRVR does not define this case,
    and one level is used here.

    Args:
      values: the signal; for an empty signal the list is empty.
    """
    if not len(values):
        return []
    # Imported here, because all other functions of the search work without PyWavelets.
    import pywt

    coarse, details = values, []
    for _ in range(max(pywt.dwt_max_level(len(values), WAVELET), 1)):
        coarse, fine = pywt.dwt(coarse, WAVELET, BORDER)
        details.append(fine)
    levels = []
    for level in range(len(details)):
        alone: list[np.ndarray] = [np.zeros_like(coarse)]
        alone += [np.where(i == level, fine, 0.0) for i, fine in reversed([*enumerate(details)])]
        levels.append(np.abs(pywt.waverec(alone, WAVELET, BORDER)[: len(values)]))
    return levels


def peak_cuts(details: Float[np.ndarray, " n"]) -> Int[np.ndarray, " cuts"]:
    """Return the cuts of a level: for each peak of its details, the first frame of a segment.

    A peak is higher than its two neighbours, and higher than the mean of the level plus one
    standard deviation. A run of equal values is one peak, at its middle index, rounded down. A peak
    at index p is a cut before frame p + 2; both count from 0.

    Args:
      details: the details of the level, from `level_details`.
    """
    changes = np.flatnonzero(np.diff(details)) + 1
    starts = np.concatenate([[0], changes])
    ends = np.concatenate([changes, [len(details)]])
    heights = details[starts]
    inner = np.arange(1, len(starts) - 1)
    peak = (heights[inner] > heights[inner - 1]) & (heights[inner] > heights[inner + 1])
    peak &= heights[inner] > max(details.mean() + details.std(), ROUNDING)
    inner = inner[peak]
    return (starts[inner] + ends[inner] - 1) // 2 + 2


def make_segments(cuts: list[Int[np.ndarray, " _"]], count: int) -> Segments:
    """Return the segments between the cuts of each level.

    Args:
      cuts: for each level the first frames of its segments except the first segment, rising, from
        1 to ``count`` - 1.
      count: number T of frames.
    """
    starts = [np.concatenate([[0], level]).astype(np.int64) for level in cuts]
    ends = [np.append(level[1:], count) for level in starts]
    levels = np.repeat(np.arange(len(starts)), [len(level) for level in starts])
    return Segments(np.concatenate(starts), np.concatenate(ends), levels)


def propagate(vectors: Float[np.ndarray, "S d"], parts: Segments) -> Float[np.ndarray, "S d"]:
    """Return the vectors of segments after propagation through their graph.

    The vectors are multiplied by (1 − β)(I − β W)^{−1}, with β = 0.7 and W = D^{−1/2} A D^{−1/2},
    where A is the graph (`adjacency`) and D its row sums.

    Args:
      vectors: unit vectors of the segments.
      parts: the segments.
    """
    graph = adjacency(vectors, parts)
    scale = 1 / np.sqrt(graph.sum(axis=-1))
    # `graph` is changed in place to I − β W, because it is by far the largest array.
    graph *= -BETA * scale[:, None]
    graph *= scale[None]
    graph[np.diag_indices_from(graph)] += 1
    spread: np.ndarray = (1 - BETA) * np.linalg.solve(graph, vectors)
    return spread


def adjacency(vectors: Float[np.ndarray, "S d"], parts: Segments) -> Float[np.ndarray, "S S"]:
    """Return the graph A of segments: the weight of each pair of segments.

        same level        max(cos, 0) + exp(−|distance of centres| / mean length of the level)
        adjacent levels   intersection over union · max(cos, 0)
        same segment      1

    Other pairs have weight 0. Lengths and centres are counted in frames.

    Args:
      vectors: unit vectors of the segments.
      parts: the segments.
    """
    graph = np.zeros((len(vectors), len(vectors)))
    blocks = parts.rows_by_level
    for level, rows in enumerate(blocks):
        starts, ends = parts.starts[rows], parts.ends[rows]
        centres = (starts + ends) / 2
        block = np.abs(centres[:, None] - centres[None])
        block /= -np.mean(ends - starts)
        np.exp(block, out=block)
        block += np.maximum(vectors[rows] @ vectors[rows].T, 0)
        graph[rows, rows] = block
        if level + 1 < len(blocks):
            coarser = blocks[level + 1]
            shared = np.minimum(ends[:, None], parts.ends[coarser][None]) - np.maximum(
                starts[:, None], parts.starts[coarser][None]
            )
            shared = np.maximum(shared, 0)
            lengths = (parts.ends - parts.starts)[coarser]
            overlap = shared / ((ends - starts)[:, None] + lengths[None] - shared)
            overlap *= np.maximum(vectors[rows] @ vectors[coarser].T, 0)
            graph[rows, coarser], graph[coarser, rows] = overlap, overlap.T
    np.fill_diagonal(graph, 1.0)
    return graph
