"""A collection of a Qdrant server: its making, its points, and the search for the best."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from jaxtyping import Float

from hlformer_jax.errors import command_line
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.store import points
from hlformer_jax.search.store.maxsim import MaxSim

MEMORY = ":memory:"
"""The store of one process and its lifetime, to try and to test."""

NAME = "hlformer"
"""The collection of an address that names none."""

OTHER = "name another in --store=http://HOST:6333/COLLECTION"
"""What to do where a collection is not the right one."""

NAMES = {"encoder": "encoder", "fps": "number of frames a second", "key": "form of the encoder"}
"""What a person calls the facts that make vectors."""

POINTS_AT_ONCE = 1000
"""Payloads of an answer."""

SECONDS = 120
"""Until an answer, at most."""


class Store:
    """A collection of a Qdrant server.

    Attributes:
      address: what it was connected by.
    """

    def __init__(self, address: str) -> None:
        """Connects; asks nothing yet.

        Args:
          address: http://HOST:6333/COLLECTION, or `MEMORY`.

        Raises:
          SearchError: when it is no such address, or the client is not installed.
        """
        self.address = address
        self._local = address == MEMORY
        try:
            parts = urlsplit(address)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            known = False
        if not self._local and not known:
            raise SearchError(
                f"--store={address} is no address of a Qdrant server: give"
                " http://HOST:6333/COLLECTION (a folder of files is not searched)"
            )
        client = _client()
        if self._local:
            self._name, self._qdrant = NAME, client.QdrantClient(MEMORY)
            return
        folder, _, name = parts.path.strip("/").rpartition("/")
        self._name = name or NAME
        self._qdrant = client.QdrantClient(
            url=f"{parts.scheme}://{parts.netloc}",
            prefix=folder or None,
            api_key=os.environ.get("QDRANT_API_KEY"),
            timeout=SECONDS,
            check_compatibility=False,
        )

    def check(self, index: Index, form: MaxSim) -> None:
        """Refuses a collection that is not of an index's encoder and a ranker.

        Raises:
          SearchError: saying what differs, or that there is none, or no server.
        """
        places = f"--index={index.directory}", f"--store={self.address}"
        with self._asking():
            if not self._qdrant.collection_exists(self._name):
                raise SearchError(
                    f"{self.address} has no collection {self._name!r}: make it by"
                    f" {command_line('search', 'upload', *places)}"
                )
            theirs = self._qdrant.get_collection(self._name).config.metadata or {}
        if "ranker" not in theirs:
            raise SearchError(
                f"the collection {self._name!r} was not made by this program, or on a Qdrant before"
                f" 1.16: {OTHER}"
            )
        ours = _facts(index, form)
        if theirs["key"] != ours["key"]:
            differ, *_ = [key for key in ("encoder", "fps", "key") if theirs[key] != ours[key]]
            raise SearchError(
                f"the collection {self._name!r} holds vectors of another {NAMES[differ]}"
                f" ({theirs[differ]}, the index {ours[differ]}): {OTHER}"
            )
        if theirs["ranker"] != form.identity:
            raise SearchError(
                f"the collection {self._name!r} is for the ranker {theirs['ranker']!r}, and"
                f" {form.identity!r} is asked for: {OTHER}"
            )

    def best(
        self,
        rows: Float[np.ndarray, "N w"],
        k: int,
        known: Mapping[str, Any],
        field: str = "id",
        conditions: Sequence[dict[str, Any]] = (),
    ) -> list[tuple[Any, float]]:
        """The points with the largest MaxSim, those of one video together.

        Args:
          rows: the queries.
          k: how many at most.
          known: what a value of the field stands for; points of other values are left out.
          field: field of the payload.
          conditions: what a point must meet.

        Returns:
          What they stand for and their score, best first; of equal scores the least first.
        """
        models = _client().models
        limit = k + 1
        while True:
            with self._asking():
                found = self._qdrant.query_points(
                    self._name,
                    query=rows.tolist(),
                    query_filter=models.Filter(must=list(conditions)),
                    # The store of a process is always exact, and complains of parameters.
                    search_params=None if self._local else models.SearchParams(exact=True),
                    limit=limit,
                    with_payload=[field],
                ).points
            scores: dict[Any, float] = {}
            for point in found:
                value = point.payload[field]
                if value in known:
                    scores.setdefault(known[value], point.score)  # the best part comes first
            ranked = sorted(scores.items(), key=lambda one: (-one[1], one[0]))[:k]
            # Where the last point is as good as the k-th video, others as good may follow.
            if len(found) < limit or (len(ranked) == k and found[-1].score < ranked[-1][1]):
                return ranked
            limit *= 4

    def rows(self, ids: Sequence[str]) -> Float[np.ndarray, "R w"]:
        """The rows of a video, which its copies share.

        Args:
          ids: ids of the index's entries with its content, of which one at least was uploaded.

        Raises:
          SearchError: when none is there.
        """
        wanted = [points.identity(id, 0) for id in ids]
        with self._asking():
            found = self._qdrant.retrieve(self._name, wanted, with_vectors=True)
        if not found:
            raise SearchError(f"{self.address} lacks a video of the index: upload it again")
        return np.asarray(found[0].vector, np.float32)

    def prepare(self, index: Index, form: MaxSim) -> None:
        """Makes the collection, or checks the one that is there, before an upload.

        Raises:
          SearchError: as `check`, and where it holds another archive.
        """
        facts, models = _facts(index, form), _client().models
        with self._asking():
            if not self._qdrant.collection_exists(self._name):
                largest = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
                self._qdrant.create_collection(
                    self._name,
                    models.VectorParams(
                        size=form.width, distance=models.Distance.DOT, multivector_config=largest
                    ),
                    hnsw_config=models.HnswConfigDiff(m=0),  # no graph: every search is exact
                    metadata=facts,
                )
                if not self._local:
                    kinds = models.PayloadSchemaType
                    self._qdrant.create_payload_index(self._name, "folders", kinds.KEYWORD)
                    self._qdrant.create_payload_index(self._name, "date", kinds.FLOAT)
        self.check(index, form)
        with self._asking():
            theirs = self._qdrant.get_collection(self._name).config.metadata["folder"]
        if theirs != facts["folder"]:
            raise SearchError(
                f"the collection {self._name!r} holds the videos of {theirs}, which an upload of"
                f" {facts['folder']} would delete: {OTHER}"
            )

    def payloads(self) -> dict[str, dict[str, Any]]:
        """The payloads of all points, without the times, by the points' ids."""
        found: dict[str, dict[str, Any]] = {}
        offset, chosen = None, _client().models.PayloadSelectorExclude(exclude=["times"])
        while True:
            with self._asking():
                some, offset = self._qdrant.scroll(
                    self._name, limit=POINTS_AT_ONCE, offset=offset, with_payload=chosen
                )
            found |= {str(point.id): point.payload for point in some}
            if offset is None:
                return found

    def put(self, made: Sequence[dict[str, Any]]) -> None:
        """Writes points of `points.make`, each whole; returns when they are kept."""
        structs = [_client().models.PointStruct(**point) for point in made]
        with self._asking():
            if structs:
                self._qdrant.upsert(self._name, structs, wait=True)

    def tell(self, ids: Sequence[str], payload: Mapping[str, Any]) -> None:
        """Changes fields of points."""
        with self._asking():
            self._qdrant.set_payload(self._name, payload, list(ids), wait=True)

    def delete(self, ids: Sequence[str]) -> None:
        """Deletes points."""
        with self._asking():
            for start in range(0, len(ids), POINTS_AT_ONCE):
                some = list(ids[start : start + POINTS_AT_ONCE])
                self._qdrant.delete(self._name, some, wait=True)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """What a server answers, or does not, in one line."""
        from qdrant_client.http.exceptions import ApiException

        try:
            yield
        except ApiException as error:
            why = " ".join(str(error).split())[:300]
            raise SearchError(f"--store={self.address}: Qdrant does not answer ({why})") from None


def _facts(index: Index, form: MaxSim) -> dict[str, Any]:
    """What a collection keeps of its making."""
    known = index.manifest
    return {
        "key": known.key,
        "encoder": known.encoder.name,
        "fps": known.fps,
        "folder": known.root,
        "ranker": form.identity,
    }


def _client() -> Any:
    """The client's package.

    Raises:
      SearchError: when it is not installed.
    """
    try:
        import qdrant_client
    except ModuleNotFoundError as error:
        raise SearchError(
            f'--store needs Qdrant\'s client: pip install "hlformer-jax[qdrant]" (there is no'
            f" {error.name})"
        ) from None
    return qdrant_client
