"""An archive that is searched: an index, an encoder and a ranker.

Opening reads the manifest. The encoder and the rows are loaded at the first question, and the
vectors of a video when it is among the hits. A library that stays open sees what another process
indexes, at its next question.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hlformer_jax.errors import command_line
from hlformer_jax.retrieval.moments import Moment, moments
from hlformer_jax.search import encoding, filters, manifest, rankers
from hlformer_jax.search.errors import DamagedError, SearchError
from hlformer_jax.search.filters import When
from hlformer_jax.search.index import Entry, Index
from hlformer_jax.search.manifest import Record
from hlformer_jax.search.rankers import Ranker
from hlformer_jax.search.store import Store, Stored, Uploaded, maxsim
from hlformer_jax.search.store import upload as uploading


class Hit(NamedTuple):
    """A video that was found.

    Attributes:
      id: its id in the index.
      video: its path relative to the indexed folder.
      folder: the folder of `video`.
      path: its absolute path.
      score: its score; a probability where the encoder has them (SigLIP), else a cosine.
      moments: its best moments, best first, with scores of the same kind.
      times: seconds of its frames.
      scores: scores of its frames.
      duration: its length in seconds.
    """

    id: str
    video: str
    folder: str
    path: Path
    score: float
    moments: list[Moment]
    times: Float[np.ndarray, " F"]
    scores: Float[np.ndarray, " F"]
    duration: float


class _Snapshot(NamedTuple):
    """The videos of an index at a time, and their ranker.

    Attributes:
      stamp: what the manifest's file was.
      source: the index.
      entries: the indexed videos.
      contents: a record of each content.
      own: index of each entry's content.
      ranker: the ranker of the contents.
    """

    stamp: tuple[int, int, int]
    source: Index
    entries: list[Entry]
    contents: list[Record]
    own: np.ndarray
    ranker: Ranker


class Library:
    """An archive that is searched; several threads may ask it."""

    def __init__(
        self,
        directory: str | Path,
        checkpoint: str | Path | None = None,
        ranker: str | None = None,
        encoder: Any = None,
        store: str | Store | None = None,
    ) -> None:
        """Reads the manifest; see `hlformer_jax.search.open`."""
        self._directory = Path(directory)
        self._index = Index.open(self._directory)
        if checkpoint is None and ranker is None:
            checkpoint = self._index.manifest.checkpoint or None
        elif checkpoint is not None and ranker is not None:
            raise SearchError("--checkpoint and --ranker are two rankers: give one of them")
        name = ranker or rankers.DEFAULT
        rankers.check(name)
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._name = name
        self._given = encoder
        self._store = Store(store) if isinstance(store, str) else store
        self._encoder: Any = None
        self._snapshot: _Snapshot | None = None
        self._listing: tuple[tuple[int, int, int], dict[str, Entry]] = ((0, 0, 0), {})
        self._lock, self._listing_lock = threading.Lock(), threading.Lock()

    @property
    def encoder_name(self) -> str:
        """The name of the encoder of the index."""
        return self._index.manifest.encoder.name

    @property
    def ranker_name(self) -> str:
        """The name of the ranker: one of `rankers.ROWS`, or the trained model's directory."""
        return self._name if self._checkpoint is None else str(self._checkpoint)

    def videos(self) -> list[Entry]:
        """All videos that the index knows, failed ones too, in the order of their paths."""
        return list(self._listed().values())

    def entry(self, id: str) -> Entry:
        """The video of an id.

        Raises:
          SearchError: when there is none.
        """
        entry = self._listed().get(id)
        if entry is None:
            raise SearchError(f"{self._directory} holds no video of the id {id!r}")
        return entry

    def status(self) -> dict[str, Any]:
        """What the index holds (see `Index.summary`), and the name of the ranker."""
        return Index.open(self._directory).summary() | {"ranker": self.ranker_name}

    def upload(self, progress: Callable[[int, int], None] = lambda done, total: None) -> Uploaded:
        """Brings the store up to date with the index; see `store`.

        Args:
          progress: is called with the numbers of videos that are done, and of all.

        Raises:
          SearchError: when there is no store, it does not answer, or its collection is another's.
          DamagedError: when a file of the index is damaged; names it.
        """
        if self._store is None:
            raise SearchError("there is no store to upload to: name one by --store=URL")
        index = Index.open(self._directory)
        of_content = {one.content: one for one in index.manifest.videos.values()}
        records = [of_content[content] for content in uploading.contents(index)]
        _, form = maxsim.of(index, self._name, self._checkpoint, records)
        return uploading.upload(self._store, index, form, progress)

    @property
    def encoder(self) -> Any:
        """The encoder, loaded at its first use.

        Raises:
          SearchError: when it is not the one of the index.
        """
        with self._lock:
            return self._loaded()

    def ranked(self) -> list[Entry]:
        """The videos that a query ranks: all that are indexed, in the order of their paths."""
        return self._ready()[0].entries

    def examine(
        self, sentence: str, position: int, moments: int = 1
    ) -> tuple[Float[np.ndarray, " V"], Hit]:
        """What a sentence says of all videos, and of one.

        Args:
          sentence: the sentence.
          position: the video's place in `ranked`.
          moments: how many of its moments.

        Returns:
          The scores by which `ranked` is ranked, not yet probabilities, and that video as a hit.
        """
        now, encoder = self._ready()
        query = now.ranker.encode(encoder, sentence)
        scores = now.ranker.scores(query)[now.own]
        hit = self._hit(now, encoder, position, float(scores[position]), query, moments)
        return scores, hit

    def query(
        self,
        sentence: str,
        k: int = 10,
        folder: str | None = None,
        since: When = None,
        until: When = None,
        moments: int = 3,
    ) -> list[Hit]:
        """Finds the videos that hold what a sentence says, and when.

        Args:
          sentence: what is looked for.
          k: how many videos at most.
          folder: a path relative to the indexed folder: only videos in it and below.
          since: only videos that were modified then or later (seconds since the epoch, a date, or a
            text such as 2026-11-22).
          until: only videos that were modified then or before.
          moments: how many moments of each video at most.

        Returns:
          Hits, best first; of equally good ones in the order of their paths.

        Raises:
          SearchError: for an empty sentence, a k below 1, a text that is no date, a folder
            without videos, or an encoder
            that is not the one of the index.
          DamagedError: when a file of the index is damaged; names it.
        """
        if not sentence.strip():
            raise SearchError("the sentence is empty: say what is to be found")
        if k < 1 or moments < 1:
            raise SearchError(f"k is {k} and moments {moments}: both are at least 1")
        try:
            return self._query(sentence, k, (folder, since, until), moments)
        except DamagedError:
            # What was removed from the index since it was opened is no damage.
            if self._snapshot is None or self._snapshot.stamp == _stamp(self._directory):
                raise
            return self._query(sentence, k, (folder, since, until), moments)

    def _query(
        self, sentence: str, k: int, chosen: tuple[str | None, When, When], moments: int
    ) -> list[Hit]:
        now, encoder = self._ready()
        if isinstance(now.ranker, Stored):
            filters.mask(now.entries, *chosen)  # the store itself knows no wrong folder
            query = now.ranker.encode(encoder, sentence)
            found = now.ranker.search(query, k, now.entries, *chosen)
            return [self._hit(now, encoder, i, score, query, moments) for i, score in found]
        allowed = np.flatnonzero(filters.mask(now.entries, *chosen))
        if not len(allowed):
            return []
        query = now.ranker.encode(encoder, sentence)
        among = np.zeros(len(now.contents), bool)
        among[now.own[allowed]] = True
        scores = now.ranker.best(query, k, among)[now.own[allowed]]
        best = np.argsort(-scores, kind="stable")[:k]
        return [
            self._hit(now, encoder, int(allowed[i]), float(scores[i]), query, moments) for i in best
        ]

    def _hit(
        self,
        now: _Snapshot,
        encoder: Any,
        position: int,
        score: float,
        query: np.ndarray,
        count: int,
    ) -> Hit:
        entry, content = now.entries[position], int(now.own[position])
        arrays = now.source.read(now.contents[content].content)
        raw = now.ranker.over_time(content, arrays, query)
        duration = entry.duration
        found = moments(arrays.times, raw, now.source.period, count)
        # The last frame's period may end after the video does.
        end = max(duration, float(arrays.times[-1]))
        found = [moment._replace(end=min(moment.end, end)) for moment in found]
        if now.ranker.calibrated:
            found = [m._replace(score=_readable(encoder, m.score)) for m in found]
            score, raw = _readable(encoder, score), _readable(encoder, raw)
        return Hit(
            entry.id,
            entry.video,
            entry.folder,
            entry.path,
            score,
            found,
            arrays.times,
            np.asarray(raw, np.float32),
            duration,
        )

    def _listed(self) -> dict[str, Entry]:
        """All entries by their ids, read again when the manifest has changed."""
        with self._listing_lock:  # not the other: loading an encoder takes long
            stamp = _stamp(self._directory)
            if stamp != self._listing[0]:
                entries = Index.open(self._directory).entries()
                self._listing = stamp, {entry.id: entry for entry in entries}
            return self._listing[1]

    def _ready(self) -> tuple[_Snapshot, Any]:
        """The videos as the index has them now, and the encoder."""
        with self._lock:
            encoder = self._loaded()
            stamp = _stamp(self._directory)
            if self._snapshot is None or self._snapshot.stamp != stamp:
                self._snapshot = self._take(stamp)
            return self._snapshot, encoder

    def _take(self, stamp: tuple[int, int, int]) -> _Snapshot:
        index = self._index = Index.open(self._directory)
        entries = [entry for entry in index.entries() if entry.state == "indexed"]
        records = index.manifest.videos
        contents = {records[entry.video].content: records[entry.video] for entry in entries}
        order = {content: i for i, content in enumerate(sorted(contents))}
        own = np.asarray([order[records[entry.video].content] for entry in entries], np.int64)
        known = [contents[content] for content in order]
        if not known:
            raise SearchError(
                f"{self._directory} holds no video that could be indexed: see"
                f" {command_line('search', 'status', f'--index={self._directory}')}"
            )
        return _Snapshot(stamp, index, entries, known, own, self._ranker(index, known))

    def _ranker(self, index: Index, records: Sequence[Record]) -> Ranker:
        if self._store is not None:
            ranker, form = maxsim.of(index, self._name, self._checkpoint, None)
            return Stored(self._store, ranker, form, index)
        if self._checkpoint is None:
            return rankers.Untrained(self._name, index, records)
        from hlformer_jax.search import trained

        return trained.Trained(self._checkpoint, index, records)

    def _loaded(self) -> Any:
        if self._encoder is not None:
            return self._encoder
        encoder = self._given
        if encoder is None or isinstance(encoder, str | Path):
            encoder = encoding.reload(self._index.manifest.encoder, encoder)
        self._index.check_encoder(encoder)
        self._encoder = encoder
        return encoder


def _stamp(directory: Path) -> tuple[int, int, int]:
    try:
        status = (directory / manifest.NAME).stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


def _readable(encoder: Any, cosines: Any) -> Any:
    """Probabilities of cosines, where the encoder has learned them; a number of a number."""
    found = encoder.probability(np.asarray(cosines, np.float32))
    if found is None:
        return cosines
    return float(found) if np.ndim(cosines) == 0 else np.asarray(found)
