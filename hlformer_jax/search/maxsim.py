"""A ranker's score as one MaxSim, which a vector store computes: Σ over queries of the best row.

    score(video) = Σ_i max_r ⟨query_i, row_r⟩ − offset

A ranker without training is that already, where it is a maximum: one query, the sentence, and the
rows of `rankers.ROWS`.
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
from typing import Any

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


class Plain:
    """The form of a ranker of `rankers.ROWS`.

    Of equal `identity` the rows of equal vectors are equal. `divisible`: the score of a video is
    the largest of those of its parts.
    """

    offset = 0.0
    divisible = True

    def __init__(self, name: str, index: Index) -> None:
        rankers.check(name)
        self._rows, self.identity = rankers.ROWS[name], name
        if self._rows.top > 1:
            raise SearchError(
                f"the score of {name} is no maximum, which is what a store computes: search without"
                " --store"
            )
        self.width = index.manifest.encoder.width

    def rows(self, content: int, arrays: VideoArrays) -> Float[np.ndarray, "R w"]:
        """The rows of a content of the ranker, of that number and of these arrays; float32."""
        return self._rows.take(arrays).astype(np.float32)

    def queries(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, "N w"]:
        """The queries that a ranker's query becomes, float32."""
        return query[None].astype(np.float32)

    def times(self, arrays: VideoArrays) -> Float[np.ndarray, "..."]:
        """Seconds of the rows: of frames [F], or from and until when of intervals [I, 2]."""
        return arrays.spans if self._rows.take(arrays) is arrays.segments else arrays.times


class Branches:
    """The form of a trained model (`trained.Trained`), with the methods of `Plain`."""

    divisible = False

    def __init__(self, ranker: Any, identity: str) -> None:
        self._ranker, self.identity = ranker, f"trained {identity}"
        self._weights = ranker.branches
        if self._weights is None:
            raise SearchError(
                "the score of ms_sl is no sum of maxima, which is what a store computes: search"
                " without --store"
            )
        self.width = ranker.width + len(self._weights)
        self.offset = MARK * float(sum(self._weights.values()))
        marks = np.eye(self.width, dtype=np.float32)[ranker.width :]
        self._marks = dict(zip(self._weights, marks, strict=True))

    def rows(self, content: int, arrays: VideoArrays) -> Float[np.ndarray, "R w"]:
        """The marked vectors of the branches."""
        own, marks = self._ranker.vectors(content), self._marks.items()
        wide = ((0, 0), (0, len(marks)))
        return np.concatenate([np.pad(own[name], wide) + MARK * mark for name, mark in marks])

    def queries(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, "N w"]:
        """A query for each branch."""
        parts, wide = self._ranker.rounded(query), (0, len(self._marks))
        rows = [
            weight * (np.pad(parts[name], wide) + self._marks[name])
            for name, weight in self._weights.items()
        ]
        return np.stack(rows).astype(np.float32)

    def times(self, arrays: VideoArrays) -> Float[np.ndarray, "..."]:
        """Of the frames, which both branches were made of."""
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


MaxSim = Plain | Branches


def of(
    index: Index, name: str, checkpoint: Path | None, records: Sequence[Record] | None
) -> tuple[Ranker, MaxSim]:
    """The ranker of a name, or of a trained model's directory, and how its score is one MaxSim.

    `records` has a record of each content whose rows are to be made; None to ask alone.

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
