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

Intervals come of wavelets and a graph (TF-PRVR, NeurIPS 2026). Frames x_1 … x_T are unit vectors;
Δ_t = unit(x_{t+1} − x_t). The signal

    s_t = 1 − ⟨Δ_t, Δ_{t+1}⟩      (0 where both differences vanish)

says how much successive differences differ in direction. Its wavelet db4 with symmetric borders
gives a level for each scale, as many as the length allows and one at least: below 16 frames the
length allows none, and TF-PRVR says nothing of such videos. The details of a level alone,
reconstructed, absolute, have peaks, and a peak at p (from 0) above their mean and one deviation is
a cut before frame p + 2. Segments of a level lie between its cuts; a segment's vector is the unit
mean of its frames. In the graph A of all segments

    of one level         max(cos, 0) + exp(−|distance of centres| / mean length of the level)
    of adjacent levels   intersection over union · max(cos, 0)
    the diagonal         1

and with W = D^{−1/2} A D^{−1/2} their vectors are propagated by (1 − β)(I − β W)^{−1}, β = 0.7. The
cuts of all levels together make intervals. An interval's vector is the mean over the levels of the
propagated vector of the segment that holds it, of a norm below 1: products with it are no cosines.
No query takes part, so an index keeps the intervals. Lengths and centres are counted in frames. The
graph grows with the square of the length: a video of more than `LONGEST` frames is cut into equal
parts first, each with a graph of its own. In every measurement made here best_frame found more
videos, and random cuts did as well as these: docs/search.md.
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from hlformer_jax.data.transforms import unit
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


class RowRanker(Ranker, Protocol):
    """A ranker whose score a store can compute: of each branch, the mean of its largest products.

    Attributes:
      identity: of equal ones the rows of equal videos are equal.
      branches: the weight of each branch; None: the score is another one.
      top: how many of a branch's largest products are averaged.
      width: how many numbers a row has.
      dtype: "float16" where every row is exact in it, else "float32".
    """

    identity: str
    top: int
    dtype: str

    @property
    def branches(self) -> dict[str, float] | None:
        """See the class."""

    @property
    def width(self) -> int:
        """See the class."""

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
        self._rows, self.identity = ROWS[name], name
        self.calibrated, self.top, self.dtype = (
            self._rows.calibrated,
            self._rows.top,
            self._rows.dtype,
        )
        summed = self._rows.windows == (1,) and not self._rows.normalised
        self.branches = {name: 1.0} if summed else None
        self.width, self.normalised = index.manifest.encoder.width, self._rows.normalised
        if records is None:
            return
        counts = [self._rows.count(record) for record in records]
        contents = [record.content for record in records]
        self._starts = np.concatenate([[0], np.cumsum(counts[:-1], dtype=np.int64)])
        self._matrix, path = packed.rows(
            index, self._rows.packed, contents, counts, self._rows.dtype, self._rows.take
        )
        self._ends, self.count = np.append(self._starts[1:], len(self._matrix)), len(self._matrix)
        large = len(self._matrix) >= packed.LARGE and self._rows.largest
        self._rounded = packed.kept(path, self._matrix) if large else None
        self._bias = np.zeros(len(records), np.float32)
        if self.normalised:
            bank = hashlib.sha256("\n".join(BANK).encode()).hexdigest()[:8]
            beside = path.with_suffix(f".{name.replace('_', '-')}-{bank}.npy")
            self._bias = packed.numbers(beside, len(records), lambda: self._biases(encoder))

    def _biases(self, encoder: Any) -> Float[np.ndarray, " V"]:
        """The bias b of every content; see the module."""
        bank = np.asarray(encoder.sentences(list(BANK)), np.float32)
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
            scores, error = packed.products(self._matrix, queries), queries.shape[-1] * 2.0**-23
            return np.maximum.reduceat(scores, self._starts).T + np.float32(error)
        scores = packed.products(self._rounded.values, queries)
        scores *= self._rounded.scale[:, None]
        scores += self._rounded.error[:, None]
        return np.maximum.reduceat(scores, self._starts).T

    def products(self, content: int, queries: Float[np.ndarray, "Q d"]) -> Float[np.ndarray, "Q R"]:
        """Products of queries and the rows of the content of that index."""
        rows = slice(self._starts[content], self._ends[content])
        return packed.products(self._matrix[rows], queries).T

    def sample(self, queries: Float[np.ndarray, "Q d"]) -> Float[np.ndarray, "Q n"]:
        """Products of queries and rows at equal distances, `SAMPLE` at most."""
        return packed.products(self._sampled, queries).T

    @functools.cached_property
    def _sampled(self) -> np.ndarray:
        """Rows from all over the disk, which are read once."""
        count = min(SAMPLE, len(self._matrix))
        return self._matrix[np.arange(count) * len(self._matrix) // count]

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


BETA = 0.7  # share of the propagation that goes through the graph
ROUNDING = 1e-6  # of float32 unit vectors: lengths of differences and heights of peaks that are 0
LONGEST = 4096  # frames whose segments stand in one graph: 68 minutes at a frame a second

WAVELET, BORDER = "db4", "symmetric"


class Segments(NamedTuple):
    """Segments of all levels, one level after the other, finest first; each covers the video."""

    starts: Int[np.ndarray, " S"]  # first frames
    ends: Int[np.ndarray, " S"]  # one beyond the last frames
    levels: Int[np.ndarray, " S"]  # from 0


def segments(
    vectors: Float[np.ndarray, "F d"], times: Float[np.ndarray, " F"], period: float = 1.0
) -> tuple[Float[np.ndarray, "I 2"], Float[np.ndarray, "I d"]]:
    """Cuts a video into intervals.

    Args:
      vectors: finite unit vectors of F >= 1 frames, of any floating dtype. Each part is brought to
        float64 and to unit length again, as those of float16 are not to its rounding.
      times: seconds of the frames, rising.
      period: seconds between two frames; the last interval ends so long after the last frame.

    Returns:
      Start and end of the intervals in seconds, in order and without gaps, float64; their vectors,
      float32, not normalised.

    Raises:
      ValueError: for numbers that are not finite, which the graph would carry into every interval.
    """
    if not np.isfinite(vectors).all():
        raise ValueError("segments wants frames of finite numbers")
    count = len(vectors)
    parts = -(-count // LONGEST)
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
    """First frames of the intervals, and their vectors."""
    cuts = [peak_cuts(details) for details in level_details(signal(frames))]
    parts = make_segments(cuts or [np.zeros(0, np.int64)], len(frames))
    spread = propagate(segment_means(frames, parts), parts)
    starts = np.unique(parts.starts)
    held = []
    for level in range(parts.levels[-1] + 1):
        rows = np.flatnonzero(parts.levels == level)
        held.append(spread[rows[np.searchsorted(parts.starts[rows], starts, side="right") - 1]])
    return starts, np.mean(held, axis=0)


def segment_means(frames: Float[np.ndarray, "T d"], parts: Segments) -> Float[np.ndarray, "S d"]:
    """The unit mean of the frames of each segment."""
    levels = range(parts.levels[-1] + 1)
    starts = [parts.starts[parts.levels == level] for level in levels]
    return unit(np.concatenate([np.add.reduceat(frames, level, axis=0) for level in starts]))


def signal(frames: Float[np.ndarray, "T d"]) -> Float[np.ndarray, " _"]:
    """1 minus the cosine of successive differences, from 0 to 2, [T - 2]; empty for T < 3."""
    differences = np.diff(frames, axis=0)
    still = np.linalg.norm(differences, axis=-1) <= ROUNDING
    directions = np.where(still[:, None], 0.0, unit(differences))
    turned = 1 - np.einsum("td,td->t", directions[:-1], directions[1:])
    return np.where(still[:-1] & still[1:], 0.0, turned)


def level_details(values: Float[np.ndarray, " n"]) -> list[Float[np.ndarray, " n"]]:
    """The details of a signal at each scale, reconstructed alone, absolute, finest first."""
    if not len(values):
        return []
    # Imported here: the rest of a search does without it.
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
    """Cuts of a level: the frame that begins a segment, for each peak of its details.

    A peak is higher than both its neighbours; of a row of equal values, its middle, rounded down.
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
    """Segments between the cuts of each level, rising, each from 1 to `count` - 1, of T frames."""
    starts = [np.concatenate([[0], level]).astype(np.int64) for level in cuts]
    ends = [np.append(level[1:], count) for level in starts]
    levels = np.repeat(np.arange(len(starts)), [len(level) for level in starts])
    return Segments(np.concatenate(starts), np.concatenate(ends), levels)


def propagate(vectors: Float[np.ndarray, "S d"], parts: Segments) -> Float[np.ndarray, "S d"]:
    """The vectors of segments after the propagation through their graph."""
    graph = adjacency(vectors, parts)
    scale = 1 / np.sqrt(graph.sum(axis=-1))
    # In place, to I − β W: the graph is by far the largest array.
    graph *= -BETA * scale[:, None]
    graph *= scale[None]
    graph[np.diag_indices_from(graph)] += 1
    spread: np.ndarray = (1 - BETA) * np.linalg.solve(graph, vectors)
    return spread


def adjacency(vectors: Float[np.ndarray, "S d"], parts: Segments) -> Float[np.ndarray, "S S"]:
    """The graph A of segments; made level by level, as most levels are not adjacent."""
    graph = np.zeros((len(vectors), len(vectors)))
    levels = [np.flatnonzero(parts.levels == level) for level in range(parts.levels[-1] + 1)]
    blocks = [slice(rows[0], rows[-1] + 1) for rows in levels]
    for level, own in enumerate(blocks):
        starts, ends = parts.starts[own], parts.ends[own]
        centres = (starts + ends) / 2
        block = np.abs(centres[:, None] - centres[None])
        block /= -np.mean(ends - starts)
        np.exp(block, out=block)
        block += np.maximum(vectors[own] @ vectors[own].T, 0)
        graph[own, own] = block
        if level + 1 < len(blocks):
            coarser = blocks[level + 1]
            shared = np.minimum(ends[:, None], parts.ends[coarser][None]) - np.maximum(
                starts[:, None], parts.starts[coarser][None]
            )
            shared = np.maximum(shared, 0)
            lengths = (parts.ends - parts.starts)[coarser]
            overlap = shared / ((ends - starts)[:, None] + lengths[None] - shared)
            overlap *= np.maximum(vectors[own] @ vectors[coarser].T, 0)
            graph[own, coarser], graph[coarser, own] = overlap, overlap.T
    np.fill_diagonal(graph, 1.0)
    return graph
