"""A searchable archive: an index, an encoder and the signals that search it.

Opening a library only reads the index. The first query loads the encoder and the embeddings. The
frame embeddings of a video are read when the video is a result. A library that stays open sees the
changes of another process at its next query.
"""

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, Float

from hlformer_jax.data.transforms import unit
from hlformer_jax.encoders.protocol import Encoder, LimitsTexts, TokenEncoder
from hlformer_jax.errors import DamagedError, QueryError, SearchError, UnreadableError
from hlformer_jax.search.encoder import is_demo_encoder, reload_encoder
from hlformer_jax.search.index import (
    EncoderFacts,
    Entry,
    Index,
    Record,
    ReplacedIndexError,
    find_missing,
)
from hlformer_jax.search.index.directory import check_exists
from hlformer_jax.search.query import filters, pictures
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.query.results import Result, Results
from hlformer_jax.search.query.search import Candidate, Search
from hlformer_jax.search.query.snapshot import Snapshot, empty_error
from hlformer_jax.search.signals import SIGNALS, postgres, rankers
from hlformer_jax.search.signals.composition import SingleQuery
from hlformer_jax.search.signals.postgres import Store, StoreRanker, UploadCounts
from hlformer_jax.search.signals.protocol import (
    DEFAULT_WITHIN,
    Archive,
    Group,
    Matches,
    Scope,
    SignalQuery,
)
from hlformer_jax.search.signals.rankers import Ranker, RowRanker
from hlformer_jax.search.signals.transcript import transcripts
from hlformer_jax.search.signals.transcript.signal import TranscriptSignal
from hlformer_jax.search.signals.visual import (
    VisualMatches,
    VisualSignal,
    baseline,
    learned_probability,
)
from hlformer_jax.text import legible

T = TypeVar("T")

MAX_UNREADABLE = 100
"""Number of contents that cannot be read after which a query fails."""


class Library:
    """A searchable archive; several threads may query it at the same time.

    A process that is forked after a query may hang at its own: start processes by "spawn", and open
    the index in each.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        checkpoint: str | os.PathLike[str] | None = None,
        ranker: str | None = None,
        encoder: Encoder | str | os.PathLike[str] | None = None,
        store: str | Store | None = None,
        normalise: bool = False,
    ) -> None:
        """Read the index; see `hlformer_jax.search.open`."""
        self._opened = Index.open(Path(directory))
        if checkpoint is not None and ranker is not None:
            raise QueryError(
                "{checkpoint} and {ranker} exclude each other: give one of them", field="ranker"
            )
        default = self._opened.checkpoint if checkpoint is None and ranker is None else ""
        if normalise and (checkpoint is not None or default):
            raise QueryError(
                "{normalise} needs a ranker without training: leave out {checkpoint}, or"
                " pass {ranker}",
                field="normalise",
            )
        self._given_checkpoint = None if checkpoint is None else Path(checkpoint)
        self._may_use_default = checkpoint is None and ranker is None and not normalise
        name = ranker or rankers.DEFAULT
        rankers.check(name)
        self._name, self._normalise = name, normalise
        self._label = rankers.label(name, normalise)
        self._given_encoder = encoder
        self._store = Store(store) if isinstance(store, str) else store
        self._encoder: Encoder | None = None
        self._facts: EncoderFacts | None = None  # of the index for which the encoder was loaded
        self._snapshot: Snapshot | None = None
        self._listing: tuple[Any, dict[str, Entry]] = (None, {})
        self._lock, self._listing_lock = threading.Lock(), threading.Lock()

    @property
    def directory(self) -> Path:
        """The directory of the index."""
        return self._opened.directory

    def open_index(self) -> Index:
        """Open the index again, for example to change it.

        Raises:
          MissingIndexError: if it was deleted or moved.
        """
        check_exists(self.directory)
        return Index.open(self.directory)

    @property
    def _index(self) -> Index:
        """The index; it is opened again if its database was replaced."""
        try:
            is_replaced = self._opened.state[0] != 1
        except ReplacedIndexError:
            is_replaced = True
        except SearchError:  # such as a missing index; whatever reads it reports that
            is_replaced = False
        if is_replaced:
            self._opened = self.open_index()
        return self._opened

    @property
    def _checkpoint(self) -> Path | None:
        """The directory of the trained model that ranks; None for a ranker without training."""
        default = self._index.checkpoint if self._may_use_default else ""
        return Path(default) if default else self._given_checkpoint

    @property
    def encoder_name(self) -> str:
        """The name of the encoder of the index."""
        return self._index.encoder.name

    @property
    def has_demo_encoder(self) -> bool:
        """True if the encoder of the index belongs to a demo."""
        return is_demo_encoder(self._index.encoder)

    @property
    def ranker_name(self) -> str:
        """The label of the ranker (`rankers.label`), or the trained model's directory."""
        return str(self._checkpoint or self._label)

    def videos(self) -> list[Entry]:
        """Return all videos of the index, failed ones too, in the order of their paths."""
        entries = list(self._entries_by_id().values())
        missing = find_missing({entry.video: entry.path for entry in entries})
        return [
            entry if entry.state == "failed" else
            entry._replace(state="offline" if entry.video in missing else "indexed")
            for entry in entries
        ]  # fmt: skip

    def entry(self, id: str) -> Entry:
        """Return the video of an id.

        Raises:
          SearchError: if the index has no such video.
        """
        entry = self._entries_by_id().get(id)
        if entry is None:
            raise SearchError(f"{self.directory} has no video with the id {id!r}")
        return entry

    def transcript(self, id: str) -> list[tuple[float, float, str]]:
        """Return the cues of a video: start and end in seconds, and text, in order.

        Raises:
          SearchError: if the index has no video with the id.
        """
        entry = self.entry(id)
        transcript = transcripts.load(self._index, entry.content)
        return [] if transcript is None else [*transcript.cues(entry.video)]

    def subtitle_problems(self) -> list[transcripts.Problem]:
        """Return the problems that the last indexing run had with subtitle files."""
        try:
            return transcripts.problems(self._index)
        except DamagedError as error:
            return [transcripts.Problem("the list of subtitle files", str(error))]

    def tag(
        self, id: str, add: str | Sequence[str] = (), drop: str | Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Add tags to a video, and remove others.

        Args:
          id: the id or the path of the video.
          add: one tag or several tags to add.
          drop: one tag or several tags to remove.

        Returns:
          All tags that the video then has, sorted.

        Raises:
          SearchError: if the video is unknown, a text is not a tag, or another process writes.
        """
        index = self.open_index()
        with index.writing() as writer:
            name = index.name_of(id)
            added = [add] if isinstance(add, str) else add
            dropped = [drop] if isinstance(drop, str) else drop
            writer.tag([name], added, dropped)
            return index.tags_of_video(name)

    def status(self) -> dict[str, Any]:
        """Return the summary of the index (`Index.summary`) and the name of the ranker."""
        return self.open_index().summary() | {"ranker": self.ranker_name}

    def upload(
        self, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> UploadCounts:
        """Bring the store up to date with the index.

        Args:
          progress: takes the number of contents that are done, and the number of all.

        Returns:
          The numbers of contents that were sent, were stored already, were removed, or are damaged.

        Raises:
          QueryError: if the library has no store, or PostgreSQL cannot compute the ranker's score.
          SearchError: if the store does not answer, another upload is running, or the schema
            belongs to another program, encoder, ranker or folder.
          DamagedError: if the database is damaged.
        """
        if self._store is None:
            raise QueryError("the library has no store to upload to: pass {store}", field="store")
        to, index = self._store, self.open_index()

        def upload_whole(damaged: dict[str, str]) -> UploadCounts:
            records = index.records()
            readable = [record for content, record in records.items() if content not in damaged]
            ranker = self._ranker(index, readable if self._checkpoint else None)
            contents = [record.content for record in readable]
            return postgres.upload(
                to, index, ranker, contents, records.keys() & damaged.keys(), progress
            )

        return _without_damaged(upload_whole)

    @property
    def encoder(self) -> Encoder:
        """The encoder, loaded at its first use."""
        with self._lock:
            return self._load_encoder(self._index)

    @property
    def passage_count(self) -> int:
        """Number of passages of transcripts that can be searched."""
        transcript = self._ready()[0].signals[TranscriptSignal.name]
        assert isinstance(transcript, TranscriptSignal)
        return transcript.passages.count

    def ranked(self) -> list[Entry]:
        """Return the videos that a query ranks: all indexed videos, in the order of their paths."""
        return self._ready()[0].videos

    def examiner(
        self,
    ) -> tuple[list[Entry], Callable[[str, int], tuple[Float[np.ndarray, " V"], float, Result]]]:
        """Return the ranked videos and a function that queries this snapshot of them.

        The function takes a text and the position of a video. It returns the scores of all videos
        before conversion to probabilities, the baseline of the text (`signals.visual.baseline`),
        and the video as a result. It does not see later changes of the index.
        """
        snapshot, encoder = self._ready()
        ranker = snapshot.visual.ranker
        scope = snapshot.scope(np.ones(len(snapshot.videos), bool))

        def examine(text: str, position: int) -> tuple[np.ndarray, float, Result]:
            vector = ranker.encode(encoder, text)
            scores = ranker.scores(vector)[snapshot.content_of]
            probability = learned_probability(ranker, encoder)
            matches = VisualMatches(snapshot.visual, SingleQuery(ranker, vector), probability)
            group = Group(position, float(scores[position]))
            search = Search((VisualSignal.name,), matches, {VisualSignal.name: matches})
            result = search.result(Candidate(group, {VisualSignal.name: group}), scope, 1)
            return scores, baseline(ranker, vector, encoder), result

        return snapshot.videos, examine

    def query(self, query: Query | str | Sequence[str] = (), **fields: Any) -> Results:
        """Find the videos that match a query, and their moments.

        Args:
          query: the query, or its `text`.
          **fields: fields of `Query`. If `query` is a `Query`, they replace its fields.

        Returns:
          Results, best first; results of equal rank are in the order of their paths. Videos of the
          same content that match equally are one result.

        Raises:
          QueryError: if a field is invalid, the ranker or the store cannot answer such a query, the
            picture is not an image, the encoder is not the index's, or no video of the index is in
            the folder or has a tag.
          EncoderError: if the encoder cannot be loaded, or returns anything but unit vectors.
          SearchError: if the video of `like` is not in the index, or none of the query's signals
            has anything to search.
          OSError: if the file of the picture cannot be read.
          DamagedError: if the database or all embeddings are damaged, or very many embeddings
            cannot be read.
        """
        if not isinstance(query, Query):
            query = Query(query, **fields)
        elif fields:
            query = dataclasses.replace(query, **fields)
        self._check(query)
        snapshot, encoder = self._ready()
        snapshot.check_missing()
        filtered = filters.passing(snapshot.videos, query)
        picture, content = self._picture(snapshot, encoder, query)
        passing = filtered & (snapshot.content_of != content)
        scope = snapshot.scope(passing)
        if not scope.allowed.any():
            reason = _reason(query, filtered, scope)
            return Results((), snapshot.warnings(passing), reason=reason)
        signal_query = SignalQuery(
            encoder, query.text, query.then, query.without, query.within or DEFAULT_WITHIN, picture
        )
        search = self._search_signals(snapshot, query, signal_query)
        unreadable: dict[str, str] = {}  # for this query; the next one reads them again
        found = self._find(query, snapshot, search, passing, unreadable)
        if found is None:  # the index has changed: query the new one
            return self.query(query)
        scope, candidates, results = found
        reaching = [result for result in results if search.reaches(result, query.min_score)]
        reason = ""
        if not reaching:
            reason = _reason(query, filtered, scope, search.names, len(candidates))
        shown_positions = [x.group.position for x in candidates[query.offset :]]
        warnings = snapshot.warnings(passing, unreadable)
        warnings += _cut_texts(encoder, query, snapshot.visual.ranker.max_tokens)
        warnings += snapshot.describe_changed(shown_positions)
        return Results(reaching, warnings, search.match_threshold, reason)

    search = query

    def _check(self, query: Query) -> None:
        """Check that the ranker and the store can answer a query.

        Raises:
          QueryError: if one of them cannot.
        """
        if (query.has_picture or query.has_parts) and self._checkpoint is not None:
            raise QueryError(
                "the trained model {value} reads one text: use {ranker} best_frame",
                field="checkpoint", value=self._checkpoint,
            )  # fmt: skip
        if query.has_picture and self._normalise:
            raise QueryError(
                "{normalise} compares texts with other texts: leave it out when searching by"
                " a picture",
                field="normalise",
            )
        if query.has_parts and (self._store is not None or self._label != rankers.DEFAULT):
            raise QueryError(
                "several texts, {then} and {without} need the scores of frames: use {ranker}"
                " best_frame, without {normalise} and {store}",
                field="ranker",
                allowed=[rankers.DEFAULT],
            )

    def _search_signals(
        self, snapshot: Snapshot, query: Query, signal_query: SignalQuery
    ) -> Search:
        """Search by all signals that take part in a query."""
        accepting = [
            name for name, signal in snapshot.signals.items() if signal.accepts(signal_query)
        ]
        names = tuple(name for name in accepting if not query.signals or name in query.signals)
        if not names:
            raise QueryError(
                "{signals} is {value}, which accepts one {text} and nothing else: leave out"
                " the other parts of the query",
                field="signals", value=",".join(query.signals or ()), allowed=accepting,
            )  # fmt: skip
        reasons = [snapshot.signals[name].explain_empty() for name in names]
        if query.signals and all(reasons):
            raise SearchError("; ".join(reasons))
        # The visual signal always searches, because results show the scores of their frames.
        ranking_names = [name for name in names if name != VisualSignal.name]
        with ThreadPoolExecutor(max(len(ranking_names), 1)) as threads:
            waiting = {
                name: threads.submit(snapshot.signals[name].search, signal_query)
                for name in ranking_names
            }
            visual = snapshot.visual.search(signal_query)
            matches: dict[str, Matches] = {
                name: future.result() for name, future in waiting.items()
            }
        matches[VisualSignal.name] = visual
        return Search(names, visual, matches)

    def _find(
        self,
        query: Query,
        snapshot: Snapshot,
        search: Search,
        passing: Bool[np.ndarray, " V"],
        unreadable: dict[str, str],
    ) -> tuple[Scope, list[Candidate], list[Result]] | None:
        """Find the results of a query; repeat without videos that turn out to be unusable.

        Args:
          query: the query.
          snapshot: the videos; receives those that are missing or damaged.
          search: the signals that search.
          passing: the videos that pass the filters of the query.
          unreadable: receives a line for each content that cannot be read at the moment.

        Returns:
          The videos that the query may return, all candidates, and the results of those after the
          offset. None if the index has changed since the snapshot.

        Raises:
          DamagedError: if further reading finds nothing new, or `MAX_UNREADABLE` is reached.
        """
        while True:
            left_out = snapshot.damaged.keys() | unreadable  # other threads add damaged contents
            scope = snapshot.scope(passing, unreadable)
            try:
                candidates = search.rank(query, scope)
                positions = [candidate.group.position for candidate in candidates]
                vanished = {i for i in positions if not os.path.isfile(snapshot.videos[i].path)}
                if vanished:
                    snapshot.check_missing(all_videos=True)
                    snapshot.missing |= vanished
                    continue
                shown = search.add_scores(candidates[query.offset :], scope)
                return scope, candidates, search.results(shown, scope, query.moments)
            except ReplacedIndexError:
                return None
            except DamagedError as error:
                if not error.contents.keys() - left_out or len(unreadable) >= MAX_UNREADABLE:
                    raise
                # The contents may be missing because another process has just removed them.
                index = self._index
                if (snapshot.index, snapshot.state) != (index, index.state):
                    return None
                lines = unreadable if isinstance(error, UnreadableError) else snapshot.damaged
                lines.update(error.contents)

    def _picture(
        self, snapshot: Snapshot, encoder: Encoder, query: Query
    ) -> tuple[np.ndarray | None, int]:
        """Return the embedding of a query's picture, and the position of its content.

        The embedding is None without a picture. The position is -1 unless the picture is a frame of
        an indexed video.
        """
        if query.image is not None:
            assert isinstance(query.image, Path | bytes)
            return pictures.embedding(encoder, query.image), -1
        if query.like is None:
            return None, -1
        name, second = snapshot.index.name_of(query.like[0]), query.like[1]
        position = next((i for i, entry in enumerate(snapshot.videos) if entry.video == name), None)
        if position is None:
            raise QueryError(
                "{like}: {value} has no embeddings: index it first",
                field="like", value=legible(name),
            )  # fmt: skip
        video = snapshot.videos[position]
        arrays = snapshot.index.read(video.content)
        if not 0 <= second <= max(video.duration, arrays.times[-1]):
            raise QueryError(
                "{like}: {value} has no second {second:g}: it is {duration:g} s long",
                field="like", value=legible(name), second=second, duration=video.duration,
            )  # fmt: skip
        nearest = np.argmin(np.abs(arrays.times - second))
        embedding = unit(arrays.vectors[nearest].astype(np.float32))
        return embedding, int(snapshot.content_of[position])

    def _entries_by_id(self) -> dict[str, Entry]:
        """Return all entries by id; read them again if the index has changed."""
        with self._listing_lock:  # not `_lock`, which is held while an encoder loads
            index = self._index
            version = index, index.state
            if version != self._listing[0]:
                self._listing = version, {entry.id: entry for entry in index.entries()}
            return self._listing[1]

    def _ready(self) -> tuple[Snapshot, Encoder]:
        """Return a snapshot of the current index, and the encoder."""
        with self._lock:
            while True:
                index = self._index
                with contextlib.suppress(ReplacedIndexError):  # meanwhile: then load the new one
                    if self._encoder is None and not index.contents():
                        raise empty_error(index)
                    encoder, state = self._load_encoder(index), index.state
                    snapshot = self._snapshot
                    if snapshot is None or (snapshot.index, snapshot.state) != (index, state):
                        take = functools.partial(self._take_snapshot, state, index, encoder)
                        snapshot = self._snapshot = _without_damaged(take)
                    return snapshot, encoder

    def _take_snapshot(
        self, state: tuple[int, int], index: Index, encoder: Encoder, damaged: dict[str, str]
    ) -> Snapshot:
        """Take a snapshot of an index, without its damaged contents.

        Args:
          state: the state of the index.
          index: the index.
          encoder: its encoder.
          damaged: a line for each content that is known to be damaged.

        Raises:
          DamagedError: if further contents are damaged, or all are.
          SearchError: if the index has no indexed video.
        """
        records = [record for content, record in index.records().items() if content not in damaged]
        numbers = {record.content: i for i, record in enumerate(records)}
        # Another process may have added videos since the records were read.
        entries = [x for x in index.entries() if x.state != "failed" and x.content in numbers]
        content_of = np.asarray([numbers[entry.content] for entry in entries], np.int64)
        if not records and damaged:
            raise DamagedError.from_contents(damaged)
        if not records:
            raise empty_error(index)
        offline = {i for i, entry in enumerate(entries) if entry.state == "offline"}
        if self._store is None:
            ranker: Ranker = self._ranker(index, records, encoder)
        else:
            ranker = StoreRanker(self._store, self._ranker(index, None), index, list(numbers))
        archive = Archive(index, records, encoder, ranker, self._label)
        signals = {name: signal(archive) for name, signal in SIGNALS.items()}
        return Snapshot(state, index, entries, records, content_of, signals, damaged, offline)

    def _ranker(
        self, index: Index, records: Sequence[Record] | None, encoder: Encoder | None = None
    ) -> RowRanker:
        checkpoint = self._checkpoint
        if checkpoint is None:
            return rankers.UntrainedRanker(self._name, index, records, encoder, self._normalise)
        from hlformer_jax.search.signals import trained

        return trained.TrainedRanker(checkpoint, index, records)

    def _load_encoder(self, index: Index) -> Encoder:
        """Return the encoder of the index; load it if another one is loaded, or none."""
        if self._encoder is None or self._facts != index.encoder:
            self._encoder = None
            encoder = self._given_encoder
            if encoder is None or isinstance(encoder, str | os.PathLike):
                encoder = reload_encoder(index.encoder, encoder)
            index.check_encoder(encoder)
            self._encoder, self._facts = encoder, index.encoder
        return self._encoder


def _reason(
    query: Query, filtered: np.ndarray, scope: Scope, signals: Sequence[str] = (), count: int = 0
) -> str:
    """Return why a query has no results.

    Args:
      query: the query.
      filtered: the videos that pass its filters.
      scope: the videos that it may return.
      signals: the names of the signals that searched.
      count: number of its best videos, including those that its offset skips.
    """
    if not filtered.any():
        return filters.explain(scope.videos, query)
    if not scope.allowed.any():
        return f"no {'other ' if query.like else ''}video that can be read is left"
    if count > query.offset:
        return f"no {'further ' if query.offset else ''}video reaches the score {query.min_score:g}"
    if count:
        return f"there are only {count}"
    videos = "no video" if filtered.all() else "no video that passes the filters"
    return f"{videos} matches by {' or '.join(signals)}"


def _cut_texts(encoder: Encoder, query: Query, max_tokens: int | None) -> list[str]:
    """Return a line for each text of a query that is longer than encoder or trained model read."""
    texts, lines = (*query.text, *query.then, *query.without), []
    if isinstance(encoder, LimitsTexts):
        lines = [
            f"the encoder reads only the beginning of {text[:40]!r}…: frames are not compared with"
            f" its end, {rest[-60:]!r}; shorten the text"
            for text in texts
            if (rest := encoder.rest(text))
        ]
    if max_tokens is not None and isinstance(encoder, TokenEncoder):
        lines += [
            f"the trained model reads only the first {max_tokens} of the {count} tokens of"
            f" {text[:40]!r}…: frames are not compared with its end; shorten the text"
            for text in texts
            if (count := len(encoder.encode_tokens([text])[0])) > max_tokens
        ]
    return lines


def _without_damaged(make: Callable[[dict[str, str]], T]) -> T:
    """Call `make` with the damaged contents found so far, until it finds no further ones.

    Raises:
      DamagedError: if `make` raises it for contents that were among the damaged ones already.
    """
    damaged: dict[str, str] = {}
    while True:
        try:
            return make(damaged)
        except DamagedError as error:
            if not error.contents.keys() - damaged.keys():
                raise
            damaged |= error.contents
