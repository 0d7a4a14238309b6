"""Rankers without training, which score videos and their frames.

    best_frame      the largest cosine of the text and a frame; the default
    top_3_frames    the mean of the three largest cosines, or of all in a shorter video
    segments        the largest inner product of the text and an interval (`intervals`)

All are exact: the text is multiplied with the rows of all videos. In a large archive, the rankers
that take one maximum first use rows quantised to 8 bits, to skip rows that cannot matter
(`packed`).

Some videos score high for every query. Nearest-neighbour normalisation (`normalise`; NNN, Chowdhury
et al., EMNLP 2024) subtracts from each video's score the bias α · (the mean of the k largest scores
of the video for the texts of `BANK`), with α = 0.75 and k = 64.
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from hlformer_jax.encoders.protocol import Encoder, single_embedding
from hlformer_jax.errors import QueryError
from hlformer_jax.search.index import Index, packed
from hlformer_jax.search.index.records import Record, VideoArrays
from hlformer_jax.search.signals import intervals
from hlformer_jax.text import suggestion

ScoreKind = Literal["probability", "cosine", "rank_fusion", "model"]
"""Meaning of a score. A score without a kind only orders videos."""


@runtime_checkable
class Ranker(Protocol):
    """A ranking of the contents of an index, which have a fixed order."""

    @property
    def calibrated(self) -> bool:
        """True if scores are cosines that an encoder with learned probabilities can convert."""

    @property
    def score_kind(self) -> ScoreKind | None:
        """Kind of the scores; None if they only order videos."""

    @property
    def is_trained(self) -> bool:
        """True if a trained model encodes the token features that the index's encoder computes."""

    @property
    def max_tokens(self) -> int | None:
        """Number of tokens that a trained model reads of a text; None without such a limit."""

    def encode(self, encoder: Encoder, sentence: str) -> Float[np.ndarray, " H"]:
        """Return the query vector of a text.

        Args:
          encoder: the encoder of the index.
          sentence: the text.
        """

    def scores(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, " V"]:
        """Return scores of all contents; higher is better."""

    def best(
        self, query: Float[np.ndarray, " H"], count: int, allowed: Bool[np.ndarray, " V"]
    ) -> Float[np.ndarray, " V"]:
        """Return scores of the best `count` allowed contents, and of all equal to the last one.

        Args:
          query: the query vector.
          count: number of contents to find.
          allowed: the contents that may be found.

        Returns:
          A value for each content. For the other contents it is at most their score, and may be
          -inf.
        """

    def over_time(
        self, content: int, arrays: VideoArrays, query: Float[np.ndarray, " H"]
    ) -> Float[np.ndarray, " F"]:
        """Return scores of the frames of a content.

        Args:
          content: the position of the content.
          arrays: its frame embeddings.
          query: the query vector.
        """


VectorsLoader = Callable[[], dict[str, np.ndarray]]
"""Function that returns the rows [L, w] of each branch of a content, float32."""


@runtime_checkable  # needed again: Ranker's does not register `branches`, which may be None
class RowRanker(Ranker, Protocol):
    """A ranker whose score a store can compute from rows.

    The score is a weighted sum over branches of the mean of the branch's largest products.

    Attributes:
      identity: a text; rankers of equal identity have equal rows for equal videos.
      top: number of a branch's largest products that are averaged.
      dtype: "float16" if every row is exact in it, else "float32".
    """

    identity: str
    top: int
    dtype: str

    @property
    def branches(self) -> dict[str, float] | None:
        """The weight of each branch; None if the score is not such a sum."""

    @property
    def width(self) -> int:
        """Number of coordinates of a row."""

    def vectors(self, content: int, arrays: VideoArrays) -> dict[str, Float[np.ndarray, "L w"]]:
        """Return the rows of each branch of a content, from its frame embeddings."""

    def rounded(self, query: Float[np.ndarray, " H"]) -> dict[str, Float[np.ndarray, " w"]]:
        """Return the vector by which the rows of each branch are multiplied, float32."""

    def over_time(
        self,
        content: int,
        arrays: VideoArrays,
        query: Float[np.ndarray, " H"],
        vectors: VectorsLoader | None = None,
    ) -> Float[np.ndarray, " F"]:
        """Return scores of the frames of a content; see `Ranker`.

        Args:
          content: the position of the content.
          arrays: its frame embeddings.
          query: the query vector.
          vectors: returns the content's rows; needed for a ranker that was made without contents.
        """


class Pooling(NamedTuple):
    """Rule that computes the score of a video from the products of its rows and a query."""

    top: int = 1
    """Number of largest products whose mean is the score."""
    of_frames: bool = True
    """Whether the rows embed frames; otherwise they embed intervals (`intervals`)."""

    def pool(self, products: Float[np.ndarray, "R *Q"]) -> Float[np.ndarray, "*Q"]:
        """Return the score of one video, without its bias."""
        return np.asarray(np.sort(products, axis=0)[-self.top :].mean(0))


RANKERS = {
    "best_frame": Pooling(),
    "top_3_frames": Pooling(top=3),
    "segments": Pooling(of_frames=False),
}
"""The rankers without training, by name."""

DEFAULT = "best_frame"

ALPHA, NEAREST = 0.75, 64
"""Constants of NNN: the factor of the mean that is subtracted, and the number of scores in it."""

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
"""Texts on everyday things, by which NNN normalises; each part occurs equally often."""

SAMPLED_ROWS = 4096
"""Number of rows from which the distribution of an archive's products is estimated."""


def embed_bank(index: Index, encoder: Encoder | None) -> Float[np.ndarray, "Q d"]:
    """Return the embeddings of `BANK`, float32; compute and store them if necessary.

    Args:
      index: the index, in whose directory they are stored.
      encoder: the encoder of the index; may be None if they are stored already.
    """
    key = hashlib.sha256("\n".join([index.key, *BANK]).encode()).hexdigest()[:32]
    path = index.directory / "packed" / f"bank-{key}.npy"

    def encode() -> np.ndarray:
        assert encoder is not None
        return np.asarray(encoder.encode_texts(list(BANK)), np.float32)

    return packed.load_or_compute(path, (len(BANK), index.encoder.width), encode)


def sample_rows(matrix: Float[np.ndarray, "R d"]) -> Float[np.ndarray, "n d"]:
    """Return a copy of at most `SAMPLED_ROWS` rows of a matrix, at equal distances."""
    count = min(SAMPLED_ROWS, len(matrix))
    return matrix[np.arange(count) * len(matrix) // count]


def check(name: str) -> None:
    """Check that a ranker without training has this name.

    Raises:
      QueryError: if none has.
    """
    if name not in RANKERS:
        raise QueryError(
            f"{{ranker}} is {{value!r}}{suggestion(name, RANKERS)}: use {', '.join(RANKERS)}",
            field="ranker",
            allowed=tuple(RANKERS),
            value=name,
        )


def label(name: str, normalise: bool) -> str:
    """Return the label of a ranker, which is shown and under which its threshold is stored."""
    return f"{name}, normalised" if normalise else name


LABELS = tuple(label(name, normalise) for normalise in (False, True) for name in RANKERS)
"""The labels of all rankers without training."""


class UntrainedRanker:
    """A ranker without training over the contents of an index."""

    def __init__(
        self,
        name: str,
        index: Index,
        records: Sequence[Record] | None,
        encoder: Encoder | None = None,
        normalise: bool = False,
    ) -> None:
        """Map the rows of all contents.

        Args:
          name: one of `RANKERS`.
          index: the index.
          records: a record of each content; None if a store ranks them, so that neither `scores`
            nor `best` is called.
          encoder: the encoder of `BANK`, needed if the biases of `normalise` are not stored yet.
          normalise: whether to subtract each video's bias from its score.

        Raises:
          QueryError: if no ranker has the name.
          DamagedError: if embeddings of a content are missing or damaged.
        """
        check(name)
        self._pooling, self.normalised = RANKERS[name], normalise
        self.identity, self.width = label(name, normalise), index.encoder.width
        self.calibrated, self.is_trained = name == DEFAULT and not normalise, False
        self.max_tokens: int | None = None
        is_cosine = self._pooling.of_frames and not normalise
        self.score_kind: ScoreKind | None = "cosine" if is_cosine else None
        self.top, self.of_frames = self._pooling.top, self._pooling.of_frames
        self.dtype = "float16" if self.of_frames else "float32"
        self.branches = None if normalise else {self.identity: 1.0}
        if records is None:
            return
        contents = [record.content for record in records]
        self._rounded: packed.Quantised | None = None
        if self.of_frames:
            self._rows = index.frames(contents)
        else:
            matrix, counts, path = intervals.rows(index, contents)
            self._rows = packed.ContentRows.of_counts(matrix, counts)
        self.count = self._rows.total
        if self.count >= packed.MIN_QUANTISED_ROWS and self.top == 1 and not normalise:
            self._rounded = (
                index.rounded_frames(contents) if self.of_frames
                else packed.load_quantised(path, self._rows.matrix)
            )  # fmt: skip
        self._bias = np.zeros(len(records), np.float32)
        if normalise:
            source = "\0".join([index.key, self.identity, *BANK, *contents])
            digest = hashlib.sha256(source.encode()).hexdigest()[:32]
            bias_path = index.directory / "packed" / f"bias-{digest}.{name.replace('_', '-')}.npy"
            suffix = "".join(bias_path.suffixes)  # names the ranker: keep files of other rankers
            packed.discard_outdated(index.directory, "bias-", bias_path, suffix)
            self._bias = packed.load_or_compute(
                bias_path, (1, len(records)), lambda: self._biases(embed_bank(index, encoder))[None]
            )[0]

    def _biases(self, bank: Float[np.ndarray, "Q d"]) -> Float[np.ndarray, " V"]:
        """Return the bias of every content; see the formula in the module's docstring."""
        parts = (self.products(content, bank).T for content in range(len(self._rows.starts)))
        scores = np.stack([self._pooling.pool(part) for part in parts])
        nearest: np.ndarray = ALPHA * np.sort(scores, axis=-1)[:, -NEAREST:].mean(-1)
        return nearest.astype(np.float32)

    def encode(self, encoder: Encoder, sentence: str) -> Float[np.ndarray, " H"]:
        """Return the embedding of a text; see `Ranker`."""
        return single_embedding(encoder, encoder.encode_texts([sentence]))

    def vectors(self, content: int, arrays: VideoArrays) -> dict[str, Float[np.ndarray, "L w"]]:
        """Return the rows of a content, as one branch; see `RowRanker`."""
        rows = arrays.vectors if self.of_frames else intervals.compute(arrays).embeddings
        return {self.identity: rows}

    def rounded(self, query: Float[np.ndarray, " H"]) -> dict[str, Float[np.ndarray, " w"]]:
        """Return the query; see `RowRanker`."""
        return {self.identity: query}

    def scores(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, " V"]:
        """Return the score of each content; see `Ranker`."""
        products = packed.multiply(self._rows.matrix, query)
        if self.top == 1:
            return self._rows.maxima(products) - self._bias
        bounds = enumerate(zip(self._rows.starts, self._rows.ends, strict=True))
        scores = [
            self._pooling.pool(self._rows.expand(content, products[start:end]))
            for content, (start, end) in bounds
        ]
        return np.asarray(scores, np.float32) - self._bias

    def best(
        self, query: Float[np.ndarray, " H"], count: int, allowed: Bool[np.ndarray, " V"]
    ) -> Float[np.ndarray, " V"]:
        """Return the scores of the best contents; see `Ranker`."""
        scores = None
        if self._rounded is not None:
            scores = self._rows.find_best(self._rounded, query, count, allowed)
        return self.scores(query) if scores is None else scores

    def bounds(self, queries: Float[np.ndarray, "Q d"]) -> Float[np.ndarray, "Q V"]:
        """Return upper bounds of the products of unit queries and the rows of each content."""
        if self._rounded is None:
            products = packed.multiply(self._rows.matrix, queries).T
            return self._rows.maxima(products) + np.float32(queries.shape[-1] * 2.0**-23)
        products, reach = packed.multiply_quantised(self._rounded, queries)
        return self._rows.maxima((products + reach).T)

    def products(self, content: int, queries: Float[np.ndarray, "Q d"]) -> Float[np.ndarray, "Q R"]:
        """Return the products of queries and a content's frames, or its intervals (`segments`)."""
        rows = slice(self._rows.starts[content], self._rows.ends[content])
        return self._rows.expand(content, packed.multiply(self._rows.matrix[rows], queries).T)

    def sample(self, queries: Float[np.ndarray, "Q d"]) -> Float[np.ndarray, "Q n"]:
        """Return the products of queries and at most `SAMPLED_ROWS` rows at equal distances."""
        return packed.multiply(self._sampled, queries).T

    @functools.cached_property
    def _sampled(self) -> np.ndarray:
        return self._rows.sample(SAMPLED_ROWS)

    def over_time(
        self,
        content: int,
        arrays: VideoArrays,
        query: Float[np.ndarray, " H"],
        vectors: VectorsLoader | None = None,
    ) -> Float[np.ndarray, " F"]:
        """Return the scores of the frames; see `Ranker`.

        The score of a frame is its cosine, minus the video's bias. For `segments` it is the mean of
        its cosine and of its interval's product: intervals alone would blur the borders of moments.
        """
        scores = packed.multiply(arrays.vectors, query)
        if not self.of_frames:
            scores = (
                intervals.compute(arrays).over_time(arrays.times, query) + scores
            ) / np.float32(2)
        return scores - (self._bias[content] if self.normalised else np.float32(0))
