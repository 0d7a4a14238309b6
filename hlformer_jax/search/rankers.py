"""Rankers without training: what a video's score is, and its scores over time, by name.

    best_frame        the largest cosine of the sentence and a frame; the default
    top_3_frames      the mean of the three largest, or of all where a video has fewer
    windows           the mean, over w = 1, 3 and 5, of the largest mean cosine of w successive
                      frames, or of all where a video has fewer
    segments          the largest inner product of the sentence and an interval's vector
    best_frame_nnn, top_3_frames_nnn    the score without _nnn, minus the video's bias

All are exact: one product of the sentence with the rows of all videos. In a large archive, for the
two that are maxima, rows of 8 bits say first which rows can matter (`packed`); the best videos and
their scores are the same. Over time, a frame has its own cosine, minus the bias; with `segments`
the mean of its cosine and of its interval's product, as what surrounds a moment blurs the
interval's borders.

Some videos score high whatever is asked. Nearest-neighbour normalisation (NNN, Chowdhury et al.,
EMNLP 2024) takes from a video's score the bias

    b(v) = α · (the mean of the k largest s(q, v) over the sentences q of a bank), α = 0.75, k = 64

The bank, `BANK`, is fixed: b is a number for each video, which is kept beside its packed rows.

A trained model is a further ranker (`trained`): an object with the methods of `Ranker`.

Intervals are made by `retrieval.segments.segments`. In every measurement made here best_frame
found more videos, and random cuts did as well as these: docs/search.md.
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from hlformer_jax.errors import SearchError, suggestion
from hlformer_jax.search import packed
from hlformer_jax.search.index import Index
from hlformer_jax.search.storage import Record, VideoArrays


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


Vectors = Callable[[], dict[str, np.ndarray]]
"""Gives the rows [L, w] of each branch of a content, float32."""


@runtime_checkable  # Ranker's own knows nothing of `branches`, which may be None
class RowRanker(Ranker, Protocol):
    """A ranker whose score a store can compute: of each branch, the mean of its largest products.

    Attributes:
      identity: of equal ones the rows of equal videos are equal.
      top: how many of a branch's largest products are averaged.
      dtype: "float16" where every row is exact in it, else "float32".
    """

    identity: str
    top: int
    dtype: str

    @property
    def branches(self) -> dict[str, float] | None:
        """The weight of each branch; None: the score is another one."""

    @property
    def width(self) -> int:
        """How many numbers a row has."""

    def vectors(self, content: int, arrays: VideoArrays) -> dict[str, Float[np.ndarray, "L w"]]:
        """The rows of each branch of the content of that index, whose arrays are given."""

    def rounded(self, query: Float[np.ndarray, " H"]) -> dict[str, Float[np.ndarray, " w"]]:
        """What the rows of each branch are multiplied with."""

    def over_time(
        self,
        content: int,
        arrays: VideoArrays,
        query: Float[np.ndarray, " H"],
        vectors: Vectors | None = None,
    ) -> Float[np.ndarray, " F"]:
        """As `Ranker`; `vectors` gives the content's rows to a ranker that has no contents."""


class Rows(NamedTuple):
    """What a ranker without training multiplies the sentence with, and what it makes of that."""

    packed: str  # name of the files of packed rows
    dtype: str  # of the rows on the disk
    take: Callable[[VideoArrays], np.ndarray]  # rows of a video
    count: Callable[[Record], int]  # number of rows of a record
    top: int  # the score is the mean of so many largest products
    over_time: Callable[[VideoArrays, np.ndarray], np.ndarray]  # scores of frames, of a query
    calibrated: bool  # the score is the cosine of a frame
    windows: tuple[int, ...] = (1,)  # or the mean of the largest means of so many successive ones
    normalised: bool = False  # the score is that minus the video's bias

    @property
    def largest(self) -> bool:
        """Whether the score is the largest product."""
        return self.top == 1 and self.windows == (1,) and not self.normalised

    def pool(self, products: Float[np.ndarray, "R *Q"]) -> Float[np.ndarray, "*Q"]:
        """The score of the products of one video, without its bias."""
        if self.windows == (1,):
            return np.asarray(np.sort(products, axis=0)[-self.top :].mean(0))
        views = np.lib.stride_tricks.sliding_window_view
        lengths = [min(window, len(products)) for window in self.windows]
        best = [views(products, length, axis=0).mean(-1).max(0) for length in lengths]
        return np.asarray(np.stack(best).mean(0))


def _of_frames(arrays: VideoArrays, query: np.ndarray) -> np.ndarray:
    return packed.products(arrays.vectors, query)


def _of_frames_and_intervals(arrays: VideoArrays, query: np.ndarray) -> np.ndarray:
    holder = np.searchsorted(arrays.spans[:, 0], arrays.times, side="right") - 1
    held = packed.products(arrays.segments, query)[np.maximum(holder, 0)]
    scores: np.ndarray = (held + _of_frames(arrays, query)) / np.float32(2)
    return scores


_FRAMES = Rows(
    "best_frame", "float16", lambda arrays: arrays.vectors, lambda record: record.frames, 1,
    _of_frames, calibrated=True,
)  # fmt: skip

ROWS = {
    "best_frame": _FRAMES,
    "top_3_frames": _FRAMES._replace(top=3, calibrated=False),
    "windows": _FRAMES._replace(windows=(1, 3, 5), calibrated=False),
    "segments": Rows(
        "segments", "float32", lambda arrays: arrays.segments, lambda record: record.intervals, 1,
        _of_frames_and_intervals, calibrated=False,
    ),
    "best_frame_nnn": _FRAMES._replace(calibrated=False, normalised=True),
    "top_3_frames_nnn": _FRAMES._replace(top=3, calibrated=False, normalised=True),
}  # fmt: skip
"""The rankers without training."""

DEFAULT = "best_frame"

ALPHA, NEAREST = 0.75, 64
"""Of NNN: the share of the mean that is taken away, and the mean of how many scores it is."""

_WHO = (
    "a man", "a woman", "a child", "two people", "a crowd", "a dog", "a cat", "a horse", "a bird",
    "a car", "a bicycle", "a boat", "a baby", "an old person", "a musician", "a team",
)  # fmt: skip
_DOES = (
    "moves slowly", "moves fast", "stands still", "comes closer", "goes away", "turns around",
    "is seen from above", "is seen close up", "falls down", "jumps", "eats", "plays", "waits",
    "makes a noise", "meets another", "appears",
)  # fmt: skip
_WHERE = (
    "in a kitchen", "in a living room", "in an office", "on a street", "in a park", "on a beach",
    "in the snow", "in a forest", "on a stage", "in a shop", "at night", "in the rain",
    "by a window", "on a field", "near water", "in a garden",
)  # fmt: skip

BANK = tuple(
    f"{who} {does} {_WHERE[(i + 5 * k) % len(_WHERE)]}"
    for i, who in enumerate(_WHO)
    for k, does in enumerate(_DOES)
)
"""The sentences of NNN: of everyday things, each part as often as the others."""

SAMPLE = 4096
"""Rows of an archive that tell how its products with a query are distributed."""


def bank(index: Index, encoder: Any) -> Float[np.ndarray, "Q d"]:
    """The vectors of `BANK`, which are kept in the index."""
    key = hashlib.sha256("\n".join([index.manifest.key, *BANK]).encode()).hexdigest()[:32]
    path = index.directory / "packed" / f"bank-{key}.npy"
    make = lambda: np.asarray(encoder.sentences(list(BANK)), np.float32)
    return packed.made(path, (len(BANK), index.manifest.encoder.width), make)


def sampled(matrix: Float[np.ndarray, "R d"]) -> Float[np.ndarray, "n d"]:
    """Rows at equal distances, from all over the disk, which are read once; `SAMPLE` at most."""
    count = min(SAMPLE, len(matrix))
    return matrix[np.arange(count) * len(matrix) // count]


def check(name: str) -> None:
    """Refuses a name that no ranker without training has, naming those that there are."""
    if name not in ROWS:
        known = ", ".join(ROWS)
        raise SearchError(f"--ranker={name} is unknown{suggestion(name, ROWS)}: use {known}")


class Untrained:
    """A ranker of `ROWS` over the contents of an index."""

    def __init__(
        self, name: str, index: Index, records: Sequence[Record] | None, encoder: Any = None
    ) -> None:
        """Maps the rows of all contents; None: a store ranks them, and `scores` is not asked.

        The encoder is asked for the sentences of `BANK` where biases have to be computed.

        Raises:
          SearchError: for another name.
          DamagedError: when the vectors of a content are missing or damaged.
        """
        check(name)
        own = self._rows = ROWS[name]
        self.identity, self.width = name, index.manifest.encoder.width
        self.calibrated, self.top, self.dtype = own.calibrated, own.top, own.dtype
        self.normalised = own.normalised
        self.branches = {name: 1.0} if own.windows == (1,) and not own.normalised else None
        if records is None:
            return
        counts = [own.count(record) for record in records]
        contents = [record.content for record in records]
        self._starts = np.concatenate([[0], np.cumsum(counts[:-1], dtype=np.int64)])
        self._matrix, path = packed.rows(index, own.packed, contents, counts, own.dtype, own.take)
        self._ends, self.count = np.append(self._starts[1:], len(self._matrix)), len(self._matrix)
        large = len(self._matrix) >= packed.LARGE and own.largest
        self._rounded = packed.kept(path, self._matrix) if large else None
        self._bias = np.zeros(len(records), np.float32)
        if self.normalised:
            of_bank = hashlib.sha256("\n".join(BANK).encode()).hexdigest()[:8]
            beside = path.with_suffix(f".{name.replace('_', '-')}-{of_bank}.npy")
            make = lambda: self._biases(bank(index, encoder))[None]
            self._bias = packed.made(beside, (1, len(records)), make)[0]

    def _biases(self, bank: Float[np.ndarray, "Q d"]) -> Float[np.ndarray, " V"]:
        """The bias b of every content; see the module."""
        parts = (self.products(content, bank).T for content in range(len(self._starts)))
        scores = np.stack([self._rows.pool(part) for part in parts])
        nearest: np.ndarray = ALPHA * np.sort(scores, axis=-1)[:, -NEAREST:].mean(-1)
        return nearest.astype(np.float32)

    def encode(self, encoder: Any, sentence: str) -> Float[np.ndarray, " H"]:
        """The unit vector of a sentence; see `Ranker`."""
        vector: np.ndarray = np.asarray(encoder.sentences([sentence])[0], np.float32)
        return vector

    def vectors(self, content: int, arrays: VideoArrays) -> dict[str, Float[np.ndarray, "L w"]]:
        """The rows, as one branch; see `RowRanker`."""
        return {self.identity: self._rows.take(arrays)}

    def rounded(self, query: Float[np.ndarray, " H"]) -> dict[str, Float[np.ndarray, " w"]]:
        """The query; see `RowRanker`."""
        return {self.identity: query}

    def scores(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, " V"]:
        """The score of each content; see `Ranker`."""
        products = packed.products(self._matrix, query)
        if self._rows.top == 1 and self._rows.windows == (1,):
            return np.maximum.reduceat(products, self._starts) - self._bias
        best = [self._rows.pool(own) for own in np.split(products, self._starts[1:])]
        return np.asarray(best, np.float32) - self._bias

    def best(
        self, query: Float[np.ndarray, " H"], count: int, among: Bool[np.ndarray, " V"]
    ) -> Float[np.ndarray, " V"]:
        """The scores of the best contents; see `Ranker`."""
        scores = None
        if self._rounded is not None:
            scores = packed.best(self._rounded, self._matrix, self._starts, query, count, among)
        return self.scores(query) if scores is None else scores

    def bounds(self, queries: Float[np.ndarray, "Q d"]) -> Float[np.ndarray, "Q V"]:
        """What no product of a unit query and a row of a content exceeds."""
        if self._rounded is None:
            scores, error = packed.products(self._matrix, queries).T, queries.shape[-1] * 2.0**-23
            return np.maximum.reduceat(scores, self._starts, axis=1) + np.float32(error)
        scores, reach = packed.rounded_products(self._rounded, queries)
        return np.maximum.reduceat((scores + reach).T, self._starts, axis=1)

    def products(self, content: int, queries: Float[np.ndarray, "Q d"]) -> Float[np.ndarray, "Q R"]:
        """Products of queries and the rows of the content of that index."""
        rows = slice(self._starts[content], self._ends[content])
        return packed.products(self._matrix[rows], queries).T

    def sample(self, queries: Float[np.ndarray, "Q d"]) -> Float[np.ndarray, "Q n"]:
        """Products of queries and rows at equal distances, `SAMPLE` at most."""
        return packed.products(self._sampled, queries).T

    @functools.cached_property
    def _sampled(self) -> np.ndarray:
        return sampled(self._matrix)

    def over_time(
        self,
        content: int,
        arrays: VideoArrays,
        query: Float[np.ndarray, " H"],
        vectors: Vectors | None = None,
    ) -> Float[np.ndarray, " F"]:
        """Scores of the frames by the rule of the ranker; see `Ranker`."""
        bias = self._bias[content] if self.normalised else np.float32(0)
        return self._rows.over_time(arrays, query) - bias
