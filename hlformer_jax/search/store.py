"""Search in Qdrant: the vectors of an index in a server that may be many, sharded and replicated.

A collection holds one archive for one ranker: a point a video (a few for a video of hours, as a
point holds less than 2²⁰ numbers), its rows one multivector, and the score one MaxSim (`maxsim`),
computed exactly. So the ranking is that without a store but for rounding of float32. Filters run in
the store. The moments of the best videos are computed here, from their files in the index, and with
a trained model from their vectors in the store; this machine holds no vectors of the others.

An upload brings the collection up to date: what is there is left alone, as its id is made of its
content. An interrupted upload resumes where it stopped; until it is complete, a search has the
videos that were uploaded and are still in the index.

The payload of a point:

    id, video, folder, folders   the entry's id and path; its folder, and all that hold it
    date, date_of                seconds since the epoch; of the "recording" or of the "file"
    duration                     of the video in seconds
    times                        seconds of each row of `best_frame`, of both ends of each of
                                 `segments`, of each frame with a trained model
    content, part, parts         fingerprint of the content; the part's number, from 0, of how many

QDRANT_API_KEY in the environment is sent as the key. Tested with the client's own store in memory
(`MEMORY`), and not with a server. Qdrant's client can also keep vectors in a folder by itself, as
pickles: anyone who can write there could run code here, so a path is refused.
"""

import contextlib
import hashlib
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from jaxtyping import Float

from hlformer_jax.errors import command_line, optional
from hlformer_jax.search import filters, maxsim
from hlformer_jax.search.errors import SearchError, legible
from hlformer_jax.search.filters import When
from hlformer_jax.search.index import Entry, Index
from hlformer_jax.search.maxsim import Branches, MaxSim
from hlformer_jax.search.rankers import Ranker
from hlformer_jax.search.storage import VideoArrays

MEMORY = ":memory:"
"""The store of one process and its lifetime, to try and to test."""

NAME = "hlformer"
"""The collection of an address that names none."""

OTHER = "name another in --store=http://HOST:6333/COLLECTION"
"""What to do where a collection is not the right one."""

NAMES = {
    "encoder": "encoder", "fps": "number of frames a second", "key": "form of the encoder",
    "ranker": "ranker", "folder": "folder, whose videos an upload would delete",
}  # fmt: skip
"""What a person calls the facts of a collection."""

POINTS_AT_ONCE = 1000
"""Payloads of an answer."""

SECONDS = 120
"""Until an answer, at most."""

MAX_NUMBERS = 2**20
"""Numbers of a point, which Qdrant bounds, and of a request."""


# ---- points: videos as the store has them


def point_id(id: str, part: int) -> str:
    """The id of the point of an entry's part; the entry's is made of its content."""
    return str(uuid.UUID(hashlib.sha256(f"{id} {part}".encode()).hexdigest()[:32]))


def payload_of(entry: Entry, content: str) -> dict[str, Any]:
    """The payload that all rows of a video share."""
    above = PurePosixPath(entry.folder).parts
    return {
        "id": entry.id,
        "content": content,
        "video": legible(entry.video),
        "folder": legible(entry.folder),
        "folders": [legible("/".join(above[: i + 1])) for i in range(len(above))],
        "date": entry.date,
        "date_of": entry.date_of,
        "duration": entry.duration,
    }


def points_of(
    id: str, facts: Mapping[str, Any], form: MaxSim, number: int, arrays: VideoArrays
) -> Iterator[dict[str, Any]]:
    """The points of the video of an entry's id, its `payload_of` and its content's number."""
    rows, times = form.rows(number, arrays), form.times(arrays)
    cuts = maxsim.parts(len(rows), form.width, MAX_NUMBERS) if form.divisible else [slice(None)]
    for part, cut in enumerate(cuts):
        own = {"part": part, "parts": len(cuts), "times": times[cut].tolist()}
        yield {"id": point_id(id, part), "vector": rows[cut].tolist(), "payload": {**facts, **own}}


def complete_points(there: Mapping[str, dict[str, Any]], id: str, content: str) -> list[str]:
    """The points of a video, where all of them are there; or none."""
    count = there.get(point_id(id, 0), {}).get("parts", 0)
    own = [point_id(id, part) for part in range(count)]
    return own if all(there.get(one, {}).get("content") == content for one in own) else []


def conditions(folder: str | None, since: When, until: When) -> list[dict[str, Any]]:
    """The filters of `filters.mask`, as the store has them."""
    asked: list[dict[str, Any]] = []
    if folder and (parts := PurePosixPath(folder.strip("/")).parts):
        asked.append({"key": "folders", "match": {"value": legible("/".join(parts))}})
    if since is not None:
        asked.append({"key": "date", "range": {"gte": filters.span(since)[0]}})
    if until is not None:
        asked.append({"key": "date", "range": {"lt": filters.span(until)[1]}})
    return asked


# ---- the collection


class Store:
    """A collection of a Qdrant server."""

    def __init__(self, address: str) -> None:
        """Connects to http://HOST:6333/COLLECTION, or `MEMORY`; asks nothing yet.

        Raises:
          SearchError: when it is no such address.
          MissingExtra: when the client is not installed.
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

    def check(self, index: Index, form: MaxSim, upload: bool = False) -> None:
        """Refuses a collection of another encoder or ranker, to upload of another folder too."""
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
        made = ["ranker"] if theirs["key"] == ours["key"] else ["encoder", "fps", "key"]
        for fact in made + ["folder"] * upload:
            if theirs[fact] != ours[fact]:
                raise SearchError(
                    f"the collection {self._name!r} is of another {NAMES[fact]}"
                    f" ({theirs[fact]}, and here {ours[fact]}): {OTHER}"
                )

    def best(
        self,
        rows: Float[np.ndarray, "N w"],
        k: int,
        known: Mapping[str, Any],
        field: str = "id",
        conditions: Sequence[dict[str, Any]] = (),
    ) -> list[tuple[Any, float]]:
        """The k points with the largest MaxSim, those of one video together.

        `known` has what a value of the payload's field stands for; points of other values are left
        out. Returned is what they stand for and their score, best first; of equal scores the least
        first.
        """
        models = _client().models
        limit = k + 1
        while True:
            with self._asking():
                nearest = self._qdrant.query_points(
                    self._name,
                    query=rows.tolist(),
                    query_filter=models.Filter(must=list(conditions)),
                    # The store of a process is always exact, and complains of parameters.
                    search_params=None if self._local else models.SearchParams(exact=True),
                    limit=limit,
                    with_payload=[field],
                ).points
            scores: dict[Any, float] = {}
            for point in nearest:
                value = point.payload[field]
                if value in known:
                    scores.setdefault(known[value], point.score)  # the best part comes first
            ranked = sorted(scores.items(), key=lambda one: (-one[1], one[0]))[:k]
            # Where the last point is as good as the k-th video, others as good may follow.
            if len(nearest) < limit or (len(ranked) == k and nearest[-1].score < ranked[-1][1]):
                return ranked
            limit *= 4

    def rows(self, ids: Sequence[str]) -> Float[np.ndarray, "R w"]:
        """The rows of a video, of whose copies, of these ids, one at least was uploaded."""
        wanted = [point_id(id, 0) for id in ids]
        with self._asking():
            stored = self._qdrant.retrieve(self._name, wanted, with_vectors=True)
        if not stored:
            raise SearchError(f"{self.address} lacks a video of the index: upload it again")
        return np.asarray(stored[0].vector, np.float32)

    def prepare(self, index: Index, form: MaxSim) -> None:
        """Makes the collection, or checks the one that is there, before an upload."""
        models = _client().models
        with self._asking():
            if not self._qdrant.collection_exists(self._name):
                largest = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
                self._qdrant.create_collection(
                    self._name,
                    models.VectorParams(
                        size=form.width, distance=models.Distance.DOT, multivector_config=largest
                    ),
                    hnsw_config=models.HnswConfigDiff(m=0),  # no graph: every search is exact
                    metadata=_facts(index, form),
                )
                if not self._local:
                    kinds = models.PayloadSchemaType
                    self._qdrant.create_payload_index(self._name, "folders", kinds.KEYWORD)
                    self._qdrant.create_payload_index(self._name, "date", kinds.FLOAT)
        self.check(index, form, upload=True)

    def payloads(self) -> dict[str, dict[str, Any]]:
        """The payloads of all points, without the times, by the points' ids."""
        payloads: dict[str, dict[str, Any]] = {}
        offset, chosen = None, _client().models.PayloadSelectorExclude(exclude=["times"])
        while True:
            with self._asking():
                some, offset = self._qdrant.scroll(
                    self._name, limit=POINTS_AT_ONCE, offset=offset, with_payload=chosen
                )
            payloads |= {str(point.id): point.payload for point in some}
            if offset is None:
                return payloads

    def put(self, made: Sequence[dict[str, Any]]) -> None:
        """Writes points of `points_of`, each whole; returns when they are kept."""
        structs = [_client().models.PointStruct(**point) for point in made]
        with self._asking():
            if structs:
                self._qdrant.upsert(self._name, structs, wait=True)

    def set_payload(self, ids: Sequence[str], payload: Mapping[str, Any]) -> None:
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
    made = {"key": known.key, "encoder": known.encoder.name, "fps": known.fps}
    return made | {"folder": known.root, "ranker": form.identity}


def _client() -> Any:
    return optional("qdrant_client", "qdrant")


# ---- the ranker


class Stored:
    """A ranker, made without contents, whose rows a store has."""

    def __init__(self, store: Store, ranker: Ranker, form: MaxSim, index: Index) -> None:
        store.check(index, form)
        self._store, self._ranker, self._form = store, ranker, form
        self._contents = {one: i for i, one in enumerate(index.contents())}
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
        """Places and scores of the best k entries that pass the filters, best first."""
        position = {entry.id: i for i, entry in enumerate(entries)}
        rows = self._form.queries(query)
        best = self._store.best(rows, k, position, "id", conditions(folder, since, until))
        return [(place, score - self._form.offset) for place, score in best]

    def scores(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, " V"]:
        """Scores of all contents; -inf of those that were not uploaded; see `Ranker`."""
        rows, count = self._form.queries(query), len(self._contents)
        scores = np.full(count, -np.inf, np.float32)
        for i, score in self._store.best(rows, count, self._contents, "content"):
            scores[i] = score - self._form.offset
        return scores

    def over_time(
        self, content: int, arrays: VideoArrays, query: Float[np.ndarray, " H"]
    ) -> Float[np.ndarray, " F"]:
        """Scores of the frames, of a trained model from the rows in the store; see `Ranker`."""
        if not isinstance(self._form, Branches):
            return self._ranker.over_time(content, arrays, query)
        own = self._form.vectors(self._store.rows(self._ids[content]))
        return self._form.over_time(own, arrays, query)


# ---- uploads


class Uploaded(NamedTuple):
    """What an upload did, in numbers of videos."""

    sent: int = 0  # their vectors
    renamed: int = 0  # path or date have changed
    kept: int = 0  # there as they are
    removed: int = 0  # no longer in the index
    damaged: int = 0  # not sent


def upload(
    store: Store,
    index: Index,
    form: MaxSim,
    progress: Callable[[int, int], None] = lambda done, total: None,
    damaged: Collection[str] = (),
) -> Uploaded:
    """Brings a store up to date with an index; makes the collection where there is none.

    What is there of `damaged` contents stays. Raises as `Library.upload`, and DamagedError when a
    file of the index was damaged meanwhile.
    """
    records = index.manifest.videos
    entries = [entry for entry in index.entries() if entry.state != "failed"]
    whole = [one for one in index.contents() if one not in damaged]
    number = {one: i for i, one in enumerate(whole)}
    count = dict.fromkeys(Uploaded._fields, 0)
    store.prepare(index, form)
    there = store.payloads()
    gone = set(there)
    waiting: list[dict[str, Any]] = []
    rows = 0  # of those that wait
    for done, entry in enumerate(entries, 1):
        content = records[entry.video].content
        payload = payload_of(entry, content)
        own = complete_points(there, entry.id, content)
        if content in damaged:
            count["damaged"] += 1
        elif not own:
            made = points_of(entry.id, payload, form, number[content], index.read(content))
            for point in made:
                rows += len(point["vector"])
                if waiting and rows * form.width > MAX_NUMBERS:
                    store.put(waiting)
                    waiting, rows = [], len(point["vector"])
                waiting.append(point)
                own.append(point["id"])
            count["sent"] += 1
        elif any(there[one].get(key) != payload[key] for one in own for key in payload):
            store.set_payload(own, payload)
            count["renamed"] += 1
        else:
            count["kept"] += 1
        gone -= set(own)
        progress(done, len(entries))
    store.put(waiting)
    store.delete(sorted(gone))
    count["removed"] = len({there[one].get("id") for one in gone})
    return Uploaded(**count)
