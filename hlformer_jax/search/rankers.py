"""Rankers: what a video's score is, and its scores over time, by name.

    best_frame   the largest cosine of the sentence and a frame
    segments     the largest inner product of the sentence and an interval (`segments`)

Neither is trained; both give exact maxima: one product of the sentence with the rows of all videos,
and a maximum over the rows of each. Of a large archive, rows of 8 bits tell first which rows can
matter (`quantised`); the best videos and their scores are the same. Over time, `segments` gives a
frame the mean of its own cosine and of its interval's product: an interval's vector knows its
surroundings, and its borders are blurred by them; on simulated scenes the mean finds moments better
than either.

A trained model is a further ranker (`trained`): an object with the methods of `Ranker`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from hlformer_jax.errors import suggestion
from hlformer_jax.search import packed, quantised
from hlformer_jax.search.arrays import VideoArrays
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.manifest import Record


@runtime_checkable
class Ranker(Protocol):
    """Ranks the contents of an index, in the order in which it was given them."""

    @property
    def calibrated(self) -> bool:
        """Whether scores are cosines of the encoder, which its probabilities are made of."""

    def encode(self, encoder: Any, sentence: str) -> Float[np.ndarray, " H"]:
        """The query of a sentence."""

    def scores(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, " V"]:
        """Scores of all contents; higher is better."""

    def best(
        self, query: Float[np.ndarray, " H"], count: int, among: Bool[np.ndarray, " V"]
    ) -> Float[np.ndarray, " V"]:
        """Scores of the best `count` of some contents, and of all as good as the last of them.

        What the other contents have is no larger than their scores, and may be -inf.
        """

    def over_time(
        self, content: int, arrays: VideoArrays, query: Float[np.ndarray, " H"]
    ) -> Float[np.ndarray, " F"]:
        """Scores of the frames of the content of that index, whose arrays are given."""


class Rows(NamedTuple):
    """What a ranker without training multiplies the sentence with.

    Attributes:
      dtype: dtype of the rows on the disk.
      take: the rows of a video.
      count: the number of rows of a record.
      over_time: scores of the frames of a video, from its arrays and the query.
    """

    dtype: str
    take: Callable[[VideoArrays], np.ndarray]
    count: Callable[[Record], int]
    over_time: Callable[[VideoArrays, np.ndarray], np.ndarray]


def _of_frames(arrays: VideoArrays, query: np.ndarray) -> np.ndarray:
    return packed.products(arrays.vectors, query)


def _of_frames_and_intervals(arrays: VideoArrays, query: np.ndarray) -> np.ndarray:
    holder = np.searchsorted(arrays.spans[:, 0], arrays.times, side="right") - 1
    held = packed.products(arrays.segments, query)[np.maximum(holder, 0)]
    found: np.ndarray = (held + _of_frames(arrays, query)) / np.float32(2)
    return found


ROWS = {
    "best_frame": Rows(
        "float16",
        lambda arrays: arrays.vectors,
        lambda record: record.frames,
        _of_frames,
    ),
    "segments": Rows(
        "float32",
        lambda arrays: arrays.segments,
        lambda record: record.intervals,
        _of_frames_and_intervals,
    ),
}
"""The rankers without training."""

DEFAULT = "segments"


def check(name: str) -> None:
    """Refuses a name that no ranker without training has.

    Raises:
      SearchError: saying which there are.
    """
    if name not in ROWS:
        known = ", ".join(ROWS)
        raise SearchError(f"--ranker={name} is unknown{suggestion(name, ROWS)}: use {known}")


class Untrained:
    """A ranker of `ROWS` over the contents of an index."""

    calibrated = True

    def __init__(self, name: str, index: Index, records: Sequence[Record] | None) -> None:
        """Maps the rows of all contents.

        Args:
          name: a name of `ROWS`.
          index: the index.
          records: a record of each content, indexed; None where a store ranks (`store`): nothing is
            mapped, and `scores` not to be asked.

        Raises:
          SearchError: for another name.
          DamagedError: when the vectors of a content are missing or damaged.
        """
        check(name)
        self._rows = ROWS[name]
        if records is None:
            return
        counts = [self._rows.count(record) for record in records]
        contents = [record.content for record in records]
        self._starts = np.concatenate([[0], np.cumsum(counts[:-1], dtype=np.int64)])
        self._matrix, path = packed.rows(
            index, name, contents, counts, self._rows.dtype, self._rows.take
        )
        large = len(self._matrix) >= packed.LARGE
        self._rounded = quantised.kept(path, self._matrix) if large else None

    def encode(self, encoder: Any, sentence: str) -> Float[np.ndarray, " H"]:
        """The unit vector of a sentence; see `Ranker`."""
        vector: np.ndarray = np.asarray(encoder.sentences([sentence])[0], np.float32)
        return vector

    def scores(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, " V"]:
        """The largest product of each content; see `Ranker`."""
        return np.maximum.reduceat(packed.products(self._matrix, query), self._starts)

    def best(
        self, query: Float[np.ndarray, " H"], count: int, among: Bool[np.ndarray, " V"]
    ) -> Float[np.ndarray, " V"]:
        """The largest products of the best contents; see `Ranker`."""
        found = None
        if self._rounded is not None:
            found = quantised.best(self._rounded, self._matrix, self._starts, query, count, among)
        return self.scores(query) if found is None else found

    def over_time(
        self, content: int, arrays: VideoArrays, query: Float[np.ndarray, " H"]
    ) -> Float[np.ndarray, " F"]:
        """Scores of the frames by the rule of the ranker; see `Ranker`."""
        return self._rows.over_time(arrays, query)
