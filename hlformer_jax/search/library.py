"""An archive that is searched: an index, an encoder and a ranker.

Opening reads the manifest. The encoder and the rows are loaded at the first question, and the
vectors of a video when it is among the hits. A library that stays open sees what another process
indexes, at its next question.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, Float

from hlformer_jax.errors import command_line
from hlformer_jax.retrieval.localisation import Moment, moments
from hlformer_jax.search import filters, rankers, storage, store
from hlformer_jax.search.errors import DamagedError, SearchError, legible
from hlformer_jax.search.filters import When
from hlformer_jax.search.index import Entry, Index, absent, reload_encoder
from hlformer_jax.search.rankers import Ranker, RowRanker
from hlformer_jax.search.storage import Record
from hlformer_jax.search.store import Store, Stored, Uploaded

T = TypeVar("T")


class Hit(NamedTuple):
    """A video that answers a query.

    Attributes:
      id: its id in the index.
      video: its path relative to the indexed folder.
      folder: the folder of `video`.
      path: its absolute path.
      score: its score; a probability where the encoder has them (SigLIP) and the ranker's score is
        the cosine of a frame (best_frame), else as the ranker has it.
      moments: its best moments, best first, with scores of the same kind.
      times: seconds of its frames.
      scores: scores of its frames.
      duration: its length in seconds.
      date: when it was recorded or else last modified, seconds since the epoch.
      date_of: what `date` is, "recording" or "file".
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
    date: float
    date_of: str


class Hits(list[Hit]):
    """Hits, best first; `warnings` has a line on what is left out: offline or damaged videos."""

    def __init__(self, hits: Iterable[Hit] = (), warnings: Sequence[str] = ()) -> None:
        super().__init__(hits)
        self.warnings = list(warnings)


@dataclasses.dataclass
class _Snapshot:
    """The videos of an index at a time, and their ranker."""

    stamp: tuple[int, int, int]  # of the manifest's file
    source: Index
    entries: list[Entry]  # the indexed videos
    contents: list[Record]  # a record of each content
    own: np.ndarray  # index of each entry's content
    ranker: Ranker  # of the contents
    damaged: dict[str, str]  # contents whose vectors are damaged, with a line for each
    away: set[int]  # places of the entries whose files were not there when last looked for

    def look(self, everything: bool = False) -> None:
        """Looks again for the files of videos that were away, or of all."""
        places = range(len(self.entries)) if everything else sorted(self.away)
        names = {self.entries[place].video: place for place in places}
        self.away = {names[name] for name in absent(self.source.root, names)}

    def searched(self) -> Bool[np.ndarray, " V"]:
        """Which entries are there, their vectors whole."""
        among = np.ones(len(self.entries), bool)
        among[list(self.away)] = False
        wrong = [i for i, one in enumerate(self.contents) if one.content in self.damaged]
        return among & ~np.isin(self.own, wrong)


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
        entries = list(self._listed().values())
        away = absent(self._index.root, [entry.video for entry in entries])
        return [
            entry if entry.state == "failed" else
            entry._replace(state="offline" if entry.video in away else "indexed")
            for entry in entries
        ]  # fmt: skip

    def entry(self, id: str) -> Entry:
        """The video of an id."""
        entry = self._listed().get(id)
        if entry is None:
            raise SearchError(f"{self._directory} holds no video of the id {id!r}")
        return entry

    def status(self) -> dict[str, Any]:
        """What the index holds (see `Index.summary`), and the name of the ranker."""
        return Index.open(self._directory).summary() | {"ranker": self.ranker_name}

    def upload(self, progress: Callable[[int, int], None] = lambda done, total: None) -> Uploaded:
        """Brings the store up to date; `progress` takes how many videos are done, and of how many.

        Raises:
          SearchError: when there is no store, it does not answer, or its schema is another's.
          DamagedError: when the manifest is damaged.
        """
        if self._store is None:
            raise SearchError("there is no store to upload to: name one by --store=URL")
        to, index = self._store, Index.open(self._directory)
        of_content = {one.content: one for one in index.manifest.videos.values()}

        def whole(damaged: dict[str, str]) -> Uploaded:
            contents = [one for one in index.contents() if one not in damaged]
            records = [of_content[content] for content in contents]
            ranker = self._ranker(index, records if self._checkpoint else None)
            return store.upload(to, index, ranker, progress, damaged)

        return _without_damaged(whole)

    @property
    def encoder(self) -> Any:
        """The encoder, loaded at its first use."""
        with self._lock:
            return self._loaded()

    def ranked(self) -> list[Entry]:
        """The videos that a query ranks: all that are indexed, in the order of their paths."""
        return self._ready()[0].entries

    def examine(
        self, sentence: str, position: int, moments: int = 1
    ) -> tuple[Float[np.ndarray, " V"], Hit]:
        """The scores of a sentence by which `ranked` is ranked, and a video of that as a hit.

        The scores are not yet probabilities; `position` is the video's place in `ranked`.
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
    ) -> Hits:
        """Finds the videos that hold what a sentence says, and when.

        Of videos that are offline, or whose vectors are damaged, there is a line in `warnings`.

        Args:
          sentence: what is looked for.
          k: how many videos at most.
          folder: a path relative to the indexed folder: only videos in it and below.
          since: only videos of that date or later; the year, month, day or time that a text such as
            2026-11 or 2026-11-22 names, or a date of Python. A video's date is that of its
            recording, or else of its file.
          until: only videos of that date or before.
          moments: how many moments of each video at most.

        Returns:
          Hits, best first; of equally good ones in the order of their paths.

        Raises:
          SearchError: for an empty sentence, a k below 1, a text that is no date, a folder
            without videos, or an encoder that is not the one of the index.
          DamagedError: when the manifest is damaged, or all vectors are.
        """
        sentence = legible(sentence)
        if not sentence.strip():
            raise SearchError("the sentence is empty: say what is to be found")
        if k < 1 or moments < 1:
            raise SearchError(f"k is {k} and moments {moments}: both are at least 1")
        now, encoder = self._ready()
        now.look()
        passing = filters.mask(now.entries, folder, since, until)
        if not (passing & now.searched()).any():
            return Hits((), self._warnings(now, passing))
        query = now.ranker.encode(encoder, sentence)
        while True:
            try:
                best = self._best(now, query, k, passing & now.searched())
                if gone := {i for i, _ in best if not now.entries[i].path.is_file()}:
                    now.look(everything=True)
                    now.away |= gone
                    continue
                hits = [
                    self._hit(now, encoder, place, score, query, moments) for place, score in best
                ]
            except DamagedError as error:
                if not error.contents.keys() - now.damaged.keys():
                    raise
                # What was removed from the index since it was opened is no damage.
                if now.stamp != _stamp(self._directory):
                    return self.query(sentence, k, folder, since, until, moments)
                now.damaged |= error.contents
                continue
            return Hits(hits, self._warnings(now, passing))

    def _best(
        self,
        now: _Snapshot,
        query: np.ndarray,
        k: int,
        allowed: np.ndarray,
    ) -> list[tuple[int, float]]:
        """Places and scores of the best entries that are allowed, best first."""
        places = np.flatnonzero(allowed)
        if not len(places):
            return []
        among = np.zeros(len(now.contents), bool)
        among[now.own[places]] = True
        scores = now.ranker.best(query, k, among)[now.own[places]]
        best = np.argsort(-scores, kind="stable")[:k]
        # A store has not those that were not uploaded yet.
        return [(int(places[i]), float(scores[i])) for i in best if scores[i] > -np.inf]

    def _warnings(self, now: _Snapshot, passing: np.ndarray) -> list[str]:
        lines = list(now.source.notes)
        if away := sorted(place for place in now.away if passing[place]):
            first = now.entries[away[0]].video
            lines.append(
                f"{len(away)} of {len(now.entries)} videos are offline and left out"
                f" ({first!r}{' and others' if len(away) > 1 else ''}): is a disk unplugged?"
                if now.source.root.is_dir()
                else f"{now.source.root} is not there, and its videos are left out: is its disk"
                " mounted? (index NEW --move-root, where it has another path now)"
            )
        lines += now.damaged.values()
        return lines

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
        best = moments(arrays.times, raw, now.source.period, count)
        # The last frame's period may end after the video does.
        end = max(duration, float(arrays.times[-1]))
        best = [moment._replace(end=min(moment.end, end)) for moment in best]
        if now.ranker.calibrated:
            best = [m._replace(score=_readable(encoder, m.score)) for m in best]
            score, raw = _readable(encoder, score), _readable(encoder, raw)
        return Hit(
            entry.id, entry.video, entry.folder, entry.path, score, best, arrays.times,
            np.asarray(raw, np.float32), duration, entry.date, entry.date_of,
        )  # fmt: skip

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
                index = self._index = Index.open(self._directory)
                self._snapshot = _without_damaged(lambda wrong: self._whole(stamp, index, wrong))
            return self._snapshot, encoder

    def _whole(
        self, stamp: tuple[int, int, int], index: Index, damaged: dict[str, str]
    ) -> _Snapshot:
        """The videos of an index but for those whose vectors are known to be damaged."""
        records = index.manifest.videos
        entries = [
            entry
            for entry in index.entries()
            if entry.state != "failed" and records[entry.video].content not in damaged
        ]
        contents = {records[entry.video].content: records[entry.video] for entry in entries}
        order = {content: i for i, content in enumerate(sorted(contents))}
        own = np.asarray([order[records[entry.video].content] for entry in entries], np.int64)
        known = [contents[content] for content in order]
        if not known and damaged:
            raise DamagedError.of(damaged)
        if not known:
            raise SearchError(
                f"{self._directory} holds no video that could be indexed: see"
                f" {command_line('search', 'status', f'--index={self._directory}')}"
            )
        away = {i for i, entry in enumerate(entries) if entry.state == "offline"}
        if self._store is None:
            ranker: Ranker = self._ranker(index, known)
        else:
            ranker = Stored(self._store, self._ranker(index, None), index, list(order))
        return _Snapshot(stamp, index, entries, known, own, ranker, damaged, away)

    def _ranker(self, index: Index, records: Sequence[Record] | None) -> RowRanker:
        if self._checkpoint is None:
            return rankers.Untrained(self._name, index, records)
        from hlformer_jax.search import trained

        return trained.Trained(self._checkpoint, index, records)

    def _loaded(self) -> Any:
        if self._encoder is not None:
            return self._encoder
        encoder = self._given
        if encoder is None or isinstance(encoder, str | Path):
            encoder = reload_encoder(self._index.manifest.encoder, encoder)
        self._index.check_encoder(encoder)
        self._encoder = encoder
        return encoder


def _without_damaged(make: Callable[[dict[str, str]], T]) -> T:
    """What is made without the contents, each with its line, that prove damaged meanwhile."""
    damaged: dict[str, str] = {}
    while True:
        try:
            return make(damaged)
        except DamagedError as error:
            if not error.contents.keys() - damaged.keys():
                raise
            damaged |= error.contents


def _stamp(directory: Path) -> tuple[int, int, int]:
    try:
        status = (directory / storage.MANIFEST).stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


def _readable(encoder: Any, cosines: Any) -> Any:
    """Probabilities of cosines, where the encoder has learned them; a number of a number."""
    probabilities = encoder.probability(np.asarray(cosines, np.float32))
    if probabilities is None:
        return cosines
    return float(probabilities) if np.ndim(cosines) == 0 else np.asarray(probabilities)
