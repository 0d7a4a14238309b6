"""Scores of queries that have several parts.

For required parts q_1 … q_N and unwanted parts n_1 … n_M, the score of a frame f with the
embedding x_f at the time t_f is

    s_i(f) = ⟨q_i, x_f⟩ − Σ_j max(⟨n_j, x_f⟩ − l_j, 0)

where l_j is the match threshold of n_j. The score of a video, with W the longest gap, is

    several texts   mean_i max_f s_i(f)
    a sequence      the largest mean_i s_i(f_i) over frames with 0 < t(f_{i+1}) − t(f_i) ≤ W

Both are at most mean_i max_f ⟨q_i, x_f⟩. Videos are scored in the order of this bound until no
other video can be among the best, so the result is exact. The mean ranks better than the minimum,
which the text with generally low cosines would dominate.
"""

import heapq
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from hlformer_jax.retrieval.moments import Moment, find_moments
from hlformer_jax.search.index.records import VideoArrays
from hlformer_jax.search.signals.rankers import Ranker, UntrainedRanker

Located = tuple[Float[np.ndarray, " F"], list[Moment]]
"""Scores of a video's frames, and its best moments."""

VIDEOS_PER_BATCH = 16
"""Number of videos that are scored before the bound is checked again."""


class SingleQuery(NamedTuple):
    """A query of one vector: an embedding, or the query of a trained model."""

    ranker: Ranker
    vector: Float[np.ndarray, " H"]

    def best(self, count: int, allowed: Bool[np.ndarray, " V"]) -> Float[np.ndarray, " V"]:
        """Return scores of contents; see `Ranker.best`."""
        return self.ranker.best(self.vector, count, allowed)

    def locate(self, content: int, arrays: VideoArrays, period: float, count: int) -> Located:
        """Return the scores of the frames of a content, and its best moments."""
        scores = self.ranker.over_time(content, arrays, self.vector)
        return scores, find_moments(arrays.times, scores, period, count)


class ComposedQuery(NamedTuple):
    """A query of several parts; see the formulas in the module's docstring."""

    ranker: UntrainedRanker
    times: Callable[[int], np.ndarray]
    """Function that takes the position of a content and returns the seconds of its frames."""
    required: Float[np.ndarray, "N d"]
    unwanted: Float[np.ndarray, "M d"]
    thresholds: Float[np.ndarray, " M"]
    """Match thresholds of the unwanted parts."""
    within: float | None
    """Longest gap between parts of a sequence, in seconds; None for parts in any order."""

    def best(self, count: int, allowed: Bool[np.ndarray, " V"]) -> Float[np.ndarray, " V"]:
        """Return scores of contents; see `Ranker.best`."""
        bounds = self.ranker.bounds(self.required).mean(0)
        scores = np.full(len(allowed), -np.inf, np.float32)
        largest: list[float] = []
        order = [i for i in np.argsort(-bounds, kind="stable").tolist() if allowed[i]]
        with ThreadPoolExecutor() as threads:  # the threads read the times of frames
            for start in range(0, len(order), VIDEOS_PER_BATCH):
                batch = order[start : start + VIDEOS_PER_BATCH]
                if len(largest) == count and bounds[batch[0]] < largest[0]:
                    break
                scores[batch] = list(threads.map(self._score, batch))
                largest = heapq.nlargest(count, [*largest, *scores[batch].tolist()])[::-1]
        return scores

    def _score(self, content: int) -> float:
        parts = self._parts(content)
        if self.within is None:
            return float(parts.max(-1).mean())
        return float(chain(parts, self.times(content), self.within)[0].max())

    def locate(self, content: int, arrays: VideoArrays, period: float, count: int) -> Located:
        """Return the scores of the frames of a content, and its best moments.

        For a sequence, the score of a frame is the best score of a sequence that begins there, and
        a moment lasts until the end of that sequence. For several texts, the score of a frame is
        the mean of its scores for all texts, and each text has moments of its own.

        Args:
          content: the position of the content.
          arrays: its frame embeddings.
          period: seconds between two frames.
          count: the largest number of moments, for several texts of each text.
        """
        parts = self._parts(content)
        if self.within is None:
            by_part = [find_moments(arrays.times, part, period, count) for part in parts]
            ranked = [best[i] for i in range(count) for best in by_part if i < len(best)]
            return parts.mean(0), ranked
        scores, ends = chain(parts, arrays.times, self.within)
        # A frame at which no sequence begins gets the lowest score, so that no moment has it.
        scores = np.where(np.isfinite(scores), scores, parts.min())
        best = []
        for moment in find_moments(arrays.times, scores, period, count):
            last = arrays.times[ends[np.searchsorted(arrays.times, moment.peak)]]
            best.append(moment._replace(end=max(moment.end, float(last) + period)))
        return scores, best

    def _parts(self, content: int) -> Float[np.ndarray, "N F"]:
        """Return the scores s_i of the frames of a content."""
        count = len(self.required)
        products = self.ranker.products(content, np.concatenate([self.required, self.unwanted]))
        excess = np.maximum(products[count:] - self.thresholds[:, None], 0).sum(0)
        parts: np.ndarray = products[:count] - excess[None].astype(np.float32)
        return parts


def chain(
    parts: Float[np.ndarray, "N F"], times: Float[np.ndarray, " F"], within: float
) -> tuple[Float[np.ndarray, " F"], Int[np.ndarray, " F"]]:
    """Find the best sequence of the parts that begins at each frame.

    Each part is at a later frame than the part before, by at most `within` seconds.

    Args:
      parts: the score of each frame for each part, in the order of the sequence.
      times: seconds of the frames, rising.
      within: longest gap between two parts, in seconds.

    Returns:
      For each frame, the mean score of the best sequence that begins there, float32, or -inf if
      there is none; and the position of that sequence's last frame, or -1.
    """
    first = np.searchsorted(times, times, side="right")
    end = np.searchsorted(times, times + within + 1e-6, side="right")  # 0.7 + 0.1 is below 0.8
    total, ends = parts[-1].astype(np.float64), np.arange(len(times))
    for part in parts[-2::-1]:
        best = _argmax_between(total, first, end)
        exists = best >= 0
        total = np.where(exists, part + total[best], -np.inf)
        ends = np.where(exists, ends[best], -1)
    return (total / len(parts)).astype(np.float32), ends


def _argmax_between(
    values: Float[np.ndarray, " F"], first: Int[np.ndarray, " F"], end: Int[np.ndarray, " F"]
) -> Int[np.ndarray, " F"]:
    """Return the position of the first largest value in each range.

    A table holds the position of the largest value of every run of 1, 2, 4 … values. Two runs,
    which may overlap, cover a range.

    Args:
      values: the values; -inf for a frame without one.
      first: the first position of each range.
      end: the position behind the last of each range.

    Returns:
      A position for each range; -1 if the range is empty or has no finite value.
    """
    count = len(values)
    runs = [np.arange(count)]
    while (length := 2 ** len(runs)) <= count:
        first_half, second_half = runs[-1], runs[-1][length // 2 :]
        is_larger = values[second_half] > values[first_half[: len(second_half)]]
        runs.append(np.where(is_larger, second_half, first_half[: len(second_half)]))
    table = np.stack([np.pad(run, (0, count - len(run))) for run in runs])
    lengths = np.maximum(end - first, 1)
    power = np.frexp(lengths)[1] - 1
    first_half = table[power, np.minimum(first, count - 1)]
    second_half = table[power, np.maximum(end - 2**power, 0)]
    best = np.where(values[second_half] > values[first_half], second_half, first_half)
    return np.where((end > first) & np.isfinite(values[best]), best, -1)
