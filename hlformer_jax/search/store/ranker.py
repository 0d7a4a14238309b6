"""A ranker whose rows a store has."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from hlformer_jax.search.arrays import VideoArrays
from hlformer_jax.search.filters import When
from hlformer_jax.search.index import Entry, Index
from hlformer_jax.search.rankers import Ranker
from hlformer_jax.search.store import points
from hlformer_jax.search.store.client import Store
from hlformer_jax.search.store.maxsim import Branches, MaxSim
from hlformer_jax.search.store.upload import contents


class Stored:
    """A ranker whose rows a store has; see `rankers.Ranker`."""

    def __init__(self, store: Store, ranker: Ranker, form: MaxSim, index: Index) -> None:
        """A ranker on the collection of a store.

        Args:
          store: the store.
          ranker: the ranker, made without contents.
          form: how its score is one MaxSim.
          index: the index.

        Raises:
          SearchError: when the collection is another encoder's or ranker's, or there is none.
        """
        store.check(index, form)
        self._store, self._ranker, self._form = store, ranker, form
        self._contents = {one: i for i, one in enumerate(contents(index))}
        self._ids: dict[int, list[str]] = {}
        for one in index.manifest.videos.values():
            if one.indexed:
                self._ids.setdefault(self._contents[one.content], []).append(one.id)
        self.calibrated = ranker.calibrated

    def encode(self, encoder: Any, sentence: str) -> Float[np.ndarray, " H"]:
        """The ranker's query; see `Ranker`."""
        return self._ranker.encode(encoder, sentence)

    def search(
        self,
        query: Float[np.ndarray, " H"],
        k: int,
        entries: Sequence[Entry],
        folder: str | None,
        since: When,
        until: When,
    ) -> list[tuple[int, float]]:
        """Positions of the best entries that pass the filters, and their scores, best first.

        Args:
          query: the query.
          k: how many at most.
          entries: the videos that may be found; of equal scores, the first come first.
          folder: as for `filters.mask`, also the next two.
          since: the earliest date.
          until: the latest.

        Raises:
          SearchError: when a text is no date, or the server does not answer.
        """
        position = {entry.id: i for i, entry in enumerate(entries)}
        rows = self._form.queries(query)
        found = self._store.best(rows, k, position, "id", points.conditions(folder, since, until))
        return [(place, score - self._form.offset) for place, score in found]

    def scores(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, " V"]:
        """Scores of all contents; -inf of those that were not uploaded; see `Ranker`."""
        rows, count = self._form.queries(query), len(self._contents)
        scores = np.full(count, -np.inf, np.float32)
        for i, score in self._store.best(rows, count, self._contents, "content"):
            scores[i] = score - self._form.offset
        return scores

    def best(
        self, query: Float[np.ndarray, " H"], count: int, among: Bool[np.ndarray, " V"]
    ) -> Float[np.ndarray, " V"]:
        """Scores of all contents; `search` has the store find the best; see `Ranker`."""
        return self.scores(query)

    def over_time(
        self, content: int, arrays: VideoArrays, query: Float[np.ndarray, " H"]
    ) -> Float[np.ndarray, " F"]:
        """Scores of the frames, of a trained model from the rows in the store; see `Ranker`."""
        if not isinstance(self._form, Branches):
            return self._ranker.over_time(content, arrays, query)
        own = self._form.vectors(self._store.rows(self._ids[content]))
        return self._form.over_time(own, arrays, query)
