"""A ranker's score as one MaxSim, which a vector store computes: Σ over queries of the best row.

    score(video) = Σ_i max_r ⟨query_i, row_r⟩ − offset

A ranker without training is that already: one query, the sentence, and the rows of `rankers.ROWS`.
A trained model adds the best cosines of its branches b, of weight w_b; what marks the branch of a
row keeps each query to its own,

    rows     [v, 3 e_b]          v a unit vector of branch b, e_b a one at the place of b
    queries  w_b [q_b, e_b]      offset 3 Σ_b w_b

as a row of branch b has w_b (cos + 3) with its query and any other row at most w_b. Vectors and
query are rounded to the dtype of the model's corpus (`config.eval.corpus`) as there.

MS-SL's score is none: it adds what the frames say of the proposal that is best by the clips, and no
maximum of its own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from hlformer_jax.search import rankers
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.rankers import Ranker
from hlformer_jax.search.storage import Record, VideoArrays

MARK = 3.0
"""What marks a row's branch: with it the least cosine, −1, is above the largest without it, 1, also
after vectors were rounded to 8 bits."""


@runtime_checkable
class MaxSim(Protocol):
    """A ranker's score as one MaxSim."""

    @property
    def identity(self) -> str:
        """What makes the rows of an index's vectors: equal ones make equal rows."""

    @property
    def width(self) -> int:
        """Width w of rows and queries."""

    @property
    def offset(self) -> float:
        """What is taken from the sum."""

    @property
    def divisible(self) -> bool:
        """Whether the score of a video is the largest of those of its parts."""

    def rows(self, content: int, arrays: VideoArrays) -> Float[np.ndarray, "R w"]:
        """The rows of the ranker's content of that index, whose arrays are given, float32."""

    def queries(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, "N w"]:
        """The queries that a ranker's query becomes, float32."""

    def times(self, arrays: VideoArrays) -> Float[np.ndarray, "..."]:
        """Seconds of the rows: of frames [F], or from and until when of intervals [I, 2]."""


class Plain:
    """A ranker of `rankers.ROWS`; see `MaxSim`."""

    offset = 0.0
    divisible = True

    def __init__(self, name: str, index: Index) -> None:
        """A ranker by its name.

        Raises:
          SearchError: when none has it.
        """
        rankers.check(name)
        self._rows, self.identity = rankers.ROWS[name], name
        self.width = index.manifest.encoder.width

    def rows(self, content: int, arrays: VideoArrays) -> Float[np.ndarray, "R w"]:
        """The ranker's rows; see `MaxSim`."""
        return self._rows.take(arrays).astype(np.float32)

    def queries(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, "N w"]:
        """The sentence; see `MaxSim`."""
        return query[None].astype(np.float32)

    def times(self, arrays: VideoArrays) -> Float[np.ndarray, "..."]:
        """Of its rows; see `MaxSim`."""
        return arrays.spans if self._rows.take(arrays) is arrays.segments else arrays.times


class Branches:
    """A trained model's branches; see `MaxSim`."""

    divisible = False

    def __init__(self, ranker: Any, identity: str) -> None:
        """The form of a trained ranker.

        Args:
          ranker: a `trained.Trained`.
          identity: that of its model.

        Raises:
          SearchError: when its score is no MaxSim.
        """
        self._ranker, self.identity = ranker, f"trained {identity}"
        self._weights = ranker.branches
        if self._weights is None:
            raise SearchError(
                "the score of ms_sl is no sum of maxima, which is what a store computes: search"
                " without --store"
            )
        self.width = ranker.width + len(self._weights)
        self.offset = MARK * float(sum(self._weights.values()))

    def rows(self, content: int, arrays: VideoArrays) -> Float[np.ndarray, "R w"]:
        """The marked vectors of the branches; see `MaxSim`."""
        own = self._ranker.vectors(content)
        return np.concatenate(
            [np.pad(own[name], ((0, 0), (0, len(self._weights)))) + MARK * self._mark(name)
             for name in self._weights]
        )  # fmt: skip

    def queries(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, "N w"]:
        """A query for each branch; see `MaxSim`."""
        marks = 0, len(self._weights)
        parts = {name: np.pad(part, marks) for name, part in self._ranker.rounded(query).items()}
        rows = [w * (parts[name] + self._mark(name)) for name, w in self._weights.items()]
        return np.stack(rows).astype(np.float32)

    def times(self, arrays: VideoArrays) -> Float[np.ndarray, "..."]:
        """Of the frames, which both branches were made of; see `MaxSim`."""
        return arrays.times

    def vectors(self, rows: Float[np.ndarray, "R w"]) -> dict[str, Float[np.ndarray, "L H"]]:
        """The vectors of each branch, of such rows in their order."""
        marks, width = rows[:, self._ranker.width :] > 0, self._ranker.width
        return {name: rows[marks[:, i], :width] for i, name in enumerate(self._weights)}

    def over_time(
        self, own: dict[str, Float[np.ndarray, "L H"]], arrays: VideoArrays, query: np.ndarray
    ) -> Float[np.ndarray, " F"]:
        """Scores of the frames of the video of such vectors."""
        scores: np.ndarray = self._ranker.of_positions(own, len(arrays.times), query)
        return scores

    def _mark(self, name: str) -> Float[np.ndarray, " w"]:
        mark = np.zeros(self.width, np.float32)
        mark[self._ranker.width + list(self._weights).index(name)] = 1
        return mark


def of(
    index: Index, name: str, checkpoint: Path | None, records: Sequence[Record] | None
) -> tuple[Ranker, MaxSim]:
    """A ranker, and how its score is one MaxSim.

    Args:
      index: the index.
      name: name of a ranker without training.
      checkpoint: the directory of a trained model, which ranks instead; or None.
      records: a record of each content, whose rows are to be made; None to ask alone.

    Raises:
      SearchError: when there is no such ranker, or its score is no MaxSim.
    """
    if checkpoint is None:
        return rankers.Untrained(name, index, None), Plain(name, index)
    from hlformer_jax.search import trained

    ranker = trained.Trained(checkpoint, index, records)
    return ranker, Branches(ranker, trained.identity(checkpoint))


def parts(rows: int, width: int, most: int) -> list[slice]:
    """Equal parts of a video's rows, each of fewer than `most` numbers."""
    count = -(-rows // max((most - 1) // width, 1))
    bounds = [rows * i // count for i in range(count + 1)]
    return [slice(*pair) for pair in zip(bounds[:-1], bounds[1:], strict=True)]
