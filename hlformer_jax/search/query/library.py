"""An archive that is searched: an index, an encoder and a ranker.

Opening reads the manifest. The encoder and the rows are loaded at the first question, and the
vectors of a video when it is among the hits. A library that stays open sees what another process
indexes, at its next question.
"""

import dataclasses
import functools
import itertools
import math
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, Float

from hlformer_jax.cli import command_line
from hlformer_jax.data.transforms import unit
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import DamagedError, QueryError, SearchError
from hlformer_jax.retrieval.moments import Moment
from hlformer_jax.search import times
from hlformer_jax.search.encoder import reload_encoder
from hlformer_jax.search.index import storage
from hlformer_jax.search.index.database import WAIT_SECONDS, Entry, Index, absent
from hlformer_jax.search.index.storage import Record
from hlformer_jax.search.query import queries
from hlformer_jax.search.query.queries import Composed, Single
from hlformer_jax.search.signals import rankers, store
from hlformer_jax.search.signals.rankers import Ranker, RowRanker, Untrained
from hlformer_jax.search.signals.store import Store, Stored, Uploaded
from hlformer_jax.search.signals.transcript import said, transcripts
from hlformer_jax.search.signals.transcript.said import RRF, Passage, Said
from hlformer_jax.search.signals.transcript.transcripts import Copies
from hlformer_jax.search.times import When
from hlformer_jax.text import legible

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
      seen: whether its best frame may show what was asked for (`queries.level`); None where the
        ranker has no level, in a store or by a trained model.
      copies: the paths of further videos of the same content, which are no hits of their own. Those
        with subtitle files of their own, which say other words, are.
      said: the passages of its subtitles that say the sentence (`said`), best first.
      tags: those that it was given (`Library.tag`).

    A hit that is said and not among the best by sight has NaN for its score. Of one that is said
    and not seen, the moments are its passages.
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
    seen: bool | None = None
    copies: tuple[str, ...] = ()
    said: tuple[Passage, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def signals(self) -> tuple[str, ...]:
        """How it answers: "seen", "said", both, or neither."""
        return ("seen",) * (self.seen is True) + ("said",) * bool(self.said)

    def as_json(self) -> dict[str, Any]:
        """What `query --json` prints of it: all but `path`, `times` and `scores`."""
        instants = lambda one, *names: {x: round(getattr(one, x), 3) for x in names}
        return {
            "id": self.id,
            "video": legible(self.video),
            "date": times.format_date(self.date),
            "date_of": self.date_of,
            "score": None if math.isnan(self.score) else float(self.score),
            "seen": self.seen,
            "said": [instants(one, "start", "end") | {"text": one.text} for one in self.said],
            "copies": [legible(copy) for copy in self.copies],
            "tags": list(self.tags),
            "moments": [
                instants(one, "start", "end", "peak") | {"score": float(one.score)}
                for one in self.moments
            ],
        }


class Hits(list[Hit]):
    """Hits, best first; `warnings` has a line on what is left out: offline or damaged videos.

    `level` is the calibrated level of a good match; None where it is a chosen one, or none.
    """

    @property
    def good(self) -> bool:
        """Whether one of them may be what was asked for."""
        return any(hit.seen is not False or hit.said for hit in self)

    @property
    def verdict(self) -> str:
        """A line where there are some and none is good, and how that is known; else ""."""
        if self.good or not self:
            return ""
        if (level := self.level) is None:
            return "no good match: these are the nearest, and none stands out"
        return (
            "no good match: these are the nearest, and none reaches the level that"
            f" {level.false_alarms:g} % of what is absent do (calibrated with {level.captions}"
            " captions)"
        )

    def __init__(
        self,
        hits: Iterable[Hit] = (),
        warnings: Sequence[str] = (),
        level: storage.Level | None = None,
    ) -> None:
        super().__init__(hits)
        self.warnings, self.level = list(warnings), level


@dataclasses.dataclass
class _Snapshot:
    """The videos of an index at a time, and their ranker."""

    stamp: tuple[int, int, int]  # of the manifest's file
    source: Index
    entries: list[Entry]  # the indexed videos
    contents: list[Record]  # a record of each content
    own: np.ndarray  # index of each entry's content
    ranker: Ranker  # of the contents
    said: Said
    damaged: dict[str, str]  # contents whose vectors are damaged, with a line for each
    away: set[int]  # places of the entries whose files were not there when last looked for

    def look(self, everything: bool = False) -> None:
        """Looks again for the files of videos that were away, or of all."""
        places = range(len(self.entries)) if everything else sorted(self.away)
        names = {self.entries[place].video: place for place in places}
        paths = {name: self.entries[place].path for name, place in names.items()}
        self.away = {names[name] for name in absent(paths)}

    def searched(self) -> Bool[np.ndarray, " V"]:
        """Which entries are there, their vectors whole."""
        among = np.ones(len(self.entries), bool)
        among[list(self.away)] = False
        wrong = [i for i, one in enumerate(self.contents) if one.content in self.damaged]
        return among & ~np.isin(self.own, wrong)


WINDOW = 100
"""How many videos of each ranking count at most."""

_Place = tuple[int, float, tuple[str, ...]]
"""The place of an entry, its score, and the paths of its copies."""


def fused(seen: Sequence[_Place], said: Sequence[_Place], window: int) -> list[_Place]:
    """Two rankings as one, by reciprocal rank fusion (Cormack, Clarke, Büttcher, SIGIR 2009).

    A video scores 1 / (60 + rank) in each. One in both has the sum if it is among the first
    `window` of those seen, else the larger. At a tie what says every word of the sentence comes
    first, then what is only seen. The scores of those said are their shares of the words
    (`Passage`); in the result what is not among those seen has NaN.
    """
    sums = {place: 1 / (RRF + rank) for rank, (place, *_) in enumerate(seen, 1)}
    among, shares = {place for place, *_ in seen[:window]}, {place: of for place, of, _ in said}
    for rank, place in enumerate(shares, 1):
        scores = sums.get(place, 0.0), 1 / (RRF + rank)
        sums[place] = sum(scores) if place in among else max(scores)
    known = {place: (place, math.nan, copies) for place, _, copies in said}
    known |= {one[0]: one for one in seen}
    # 1e-6: a share of all words is 1 up to rounding.
    order = lambda place: (-sums[place], -shares.get(place, 1 - 1e-6))
    return sorted(known.values(), key=lambda one: order(one[0]))


def _place(now: _Snapshot, allowed: Bool[np.ndarray, " V"], content: int, score: float) -> _Place:
    """The first of the allowed entries of a content, and the paths of the others."""
    place, *others = np.flatnonzero(allowed & (now.own == content)).tolist()
    return place, score, tuple(now.entries[other].video for other in others)


def _spoken(
    now: _Snapshot,
    allowed: Bool[np.ndarray, " V"],
    content: int,
    passages: Sequence[Passage],
) -> Iterator[_Place]:
    """The allowed entries of a content that say passages: one place of all that say the same."""
    if all(passage.copies == Copies() for passage in passages):
        yield _place(now, allowed, content, passages[0].share)
        return
    places = {now.entries[i].video: i for i in np.flatnonzero(allowed & (now.own == content))}
    numbers: dict[str, list[int]] = {video: [] for video in places}  # of each one's passages
    for copies in dict.fromkeys(passage.copies for passage in passages):
        said = [i for i, passage in enumerate(passages) if passage.copies == copies]
        for video in places if copies.are_others else copies.names & places.keys():
            if video in copies:
                numbers[video] += said
    groups: dict[tuple[Any, ...], list[str]] = {}
    best: dict[tuple[Any, ...], int] = {}
    for video, own in numbers.items():
        if own:
            key = tuple((passages[i].start, passages[i].end, passages[i].text) for i in sorted(own))
            groups.setdefault(key, []).append(video)
            best[key] = min(own)
    for key in sorted(groups, key=lambda key: best[key]):
        video, *others = groups[key]
        yield int(places[video]), passages[best[key]].share, tuple(others)


def _parted(now: _Snapshot, seen: Sequence[_Place], said: Sequence[_Place]) -> list[_Place]:
    """What is seen, with those copies of a content apart that are hits of their own by words."""
    names: dict[int, dict[str, int]] = {}  # those said, and their places, of each content
    for place, _, copies in said:
        own = names.setdefault(int(now.own[place]), {})
        own |= dict.fromkeys((now.entries[place].video, *copies), place)
    known = {place: copies for place, _, copies in said}
    parts: list[_Place] = []
    for place, score, copies in seen:
        spoken = names.get(int(now.own[place]), {})
        parts += [(own, score, known[own]) for own in dict.fromkeys(spoken.values())]
        silent = [video for video in (now.entries[place].video, *copies) if video not in spoken]
        if silent:
            first, *others = silent
            if first != now.entries[place].video:
                same = np.flatnonzero(now.own == now.own[place]).tolist()
                place = next(i for i in same if now.entries[i].video == first)
            parts.append((place, score, tuple(others)))
    return parts


def _with_passages(
    hit: Hit, copies: tuple[str, ...], passages: Sequence[Passage], count: int, only: str | None
) -> Hit:
    """A hit with its copies and passages, which are its moments where it is not seen."""
    hit = hit._replace(copies=copies, said=tuple(passages[:count]))
    if hit.said and (only == "said" or math.isnan(hit.score) or hit.seen is False):
        moments = [Moment(one.start, one.end, one.start, one.score) for one in hit.said]
        hit = hit._replace(moments=moments)
    return hit._replace(score=hit.said[0].score, seen=None) if only == "said" else hit


class _Asked(NamedTuple):
    """A query."""

    query: Single | Composed
    readable: bool  # whether its scores become probabilities, where the encoder has them
    level: float | None = None  # from which on a video may show it
    calibrated: storage.Level | None = None  # what that is made of; None where it is chosen


class Library:
    """An archive that is searched; several threads may ask it."""

    def __init__(
        self,
        directory: str | Path,
        checkpoint: str | Path | None = None,
        ranker: str | None = None,
        encoder: Encoder | str | Path | None = None,
        store: str | Store | None = None,
        normalise: bool = False,
    ) -> None:
        """Reads the manifest; see `hlformer_jax.search.open`."""
        self._directory = Path(directory)
        self._index = Index.open(self._directory)
        if checkpoint is None and ranker is None:
            checkpoint = self._index.manifest.checkpoint or None
        elif checkpoint is not None and ranker is not None:
            raise QueryError(
                "{checkpoint} and {ranker} are two rankers: give one of them", field="ranker"
            )
        if normalise and checkpoint is not None:
            raise QueryError(
                "{normalise} applies to rankers without training: leave out {checkpoint}, or pass"
                " {ranker}",
                field="normalise",
            )
        name = ranker or rankers.DEFAULT
        rankers.check(name)
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._name, self._normalise = name, normalise
        self._label = rankers.label(name, normalise)
        self._given = encoder
        self._store = Store(store) if isinstance(store, str) else store
        self._encoder: Encoder | None = None
        self._snapshot: _Snapshot | None = None
        self._listing: tuple[tuple[int, int, int], dict[str, Entry]] = ((0, 0, 0), {})
        self._lock, self._listing_lock = threading.Lock(), threading.Lock()
        self._tagging = threading.Lock()

    @classmethod
    def open(cls, directory: str | Path, **options: Any) -> "Library":
        """Opens an index, as `hlformer_jax.search.open` does."""
        return cls(directory, **options)

    @property
    def directory(self) -> Path:
        """The directory of the index."""
        return self._directory

    @property
    def encoder_name(self) -> str:
        """The name of the encoder of the index."""
        return self._index.manifest.encoder.name

    @property
    def ranker_name(self) -> str:
        """The label of the ranker (`rankers.label`), or the trained model's directory."""
        return self._label if self._checkpoint is None else str(self._checkpoint)

    def videos(self) -> list[Entry]:
        """All videos that the index knows, failed ones too, in the order of their paths."""
        entries = list(self._listed().values())
        away = absent({entry.video: entry.path for entry in entries})
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

    def transcript(self, id: str) -> list[tuple[float, float, str]]:
        """What is said in the video of an id, in order: its cues, (start, end, text)."""
        entry = self.entry(id)
        transcript = transcripts.load(self._index, entry.content)
        return [] if transcript is None else [*transcript.cues(entry.video)]

    def subtitle_problems(self) -> list[transcripts.Problem]:
        """Return the subtitle files of which nothing, or not all, is searched."""
        try:
            return transcripts.problems(self._index)
        except DamagedError as error:
            return [transcripts.Problem("the list of subtitle files", str(error))]

    def tag(self, id: str, add: Sequence[str] = (), drop: Sequence[str] = ()) -> tuple[str, ...]:
        """Gives tags to a video of an id or path, and takes others from it; returns all it has.

        Raises:
          SearchError: when there is no such video, a text is no tag, or another process writes.
        """
        # One after the other: threads of this process would find the lock of the index held.
        with self._tagging:
            return self._tag(id, add, drop)

    def _tag(self, id: str, add: Sequence[str], drop: Sequence[str]) -> tuple[str, ...]:
        index = Index.open(self._directory)
        with index.writing(wait=WAIT_SECONDS):
            name = index.name_of(id)
            index.tag([name], add, drop)
            return tuple(index.manifest.tags.get(index.manifest.videos[name].content, ()))

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

        def whole(damaged: dict[str, str]) -> Uploaded:
            records = [one for name, one in index.records().items() if name not in damaged]
            ranker = self._ranker(index, records if self._checkpoint else None)
            return store.upload(to, index, ranker, progress, damaged)

        return _without_damaged(whole)

    @property
    def encoder(self) -> Any:
        """The encoder, loaded at its first use."""
        with self._lock:
            return self._loaded()

    @property
    def subtitles(self) -> int:
        """How many passages of subtitles there are."""
        return self._ready()[0].said.count

    def ranked(self) -> list[Entry]:
        """The videos that a query ranks: all that are indexed, in the order of their paths."""
        return self._ready()[0].entries

    def examiner(
        self,
    ) -> tuple[list[Entry], Callable[[str, int], tuple[Float[np.ndarray, " V"], float, Hit]]]:
        """`ranked`, and what asks these videos, whatever becomes of the index meanwhile.

        It takes a sentence and the place of one of the videos, and gives the scores of all, not yet
        probabilities, their centre (`queries.centre`), and that video as a hit.
        """
        now, encoder = self._ready()

        def examine(sentence: str, position: int) -> tuple[np.ndarray, float, Hit]:
            query = now.ranker.encode(encoder, sentence)
            scores = now.ranker.scores(query)[now.own]
            asked = _Asked(Single(now.ranker, query), now.ranker.calibrated)
            hit = self._hit(now, encoder, position, float(scores[position]), asked, 1)
            return scores, queries.centre(now.ranker, query, encoder), hit

        return now.entries, examine

    def query(
        self,
        sentence: str | Sequence[str] = "",
        k: int = 10,
        folder: str | None = None,
        since: When = None,
        until: When = None,
        moments: int = 3,
        *,
        image: str | Path | bytes | None = None,
        like: tuple[str, float] | None = None,
        then: str | Sequence[str] = (),
        within: float = 60.0,
        without: str | Sequence[str] = (),
        min_score: float | None = None,
        offset: int = 0,
        only: str | None = None,
        longer: float | None = None,
        shorter: float | None = None,
        tags: str | Sequence[str] = (),
    ) -> Hits:
        """Finds the videos that hold what a sentence says or a picture shows, and when.

        A single sentence is looked for in subtitles too, and both rankings are fused (`fused`). Of
        videos that are offline, or whose vectors are damaged, there is a line in `warnings`.

        Args:
          sentence: what is looked for; may be empty beside a picture. Of several a video should
            have all, in any order (see `queries` for the scores of this and the next).
          k: how many videos at most.
          folder: a path relative to the indexed folder: only videos in it and below; no letter's
            case counts.
          since: only videos of that date or later; the year, month, day or time that a text such as
            2026-11 or 2026-11-22 names, or a date of Python. A video's date is that of its
            recording, or else of its file.
          until: only videos of that date or before.
          moments: how many moments of each video at most.
          image: the file of a picture, or such a file's content; what resembles it is looked for.
          like: a video of the index, its path or id, and a second of it, whose picture is looked
            for elsewhere: that video and copies of it are left out.
          then: what is to be seen after it, one after the other.
          within: seconds at most from each of them to the next.
          without: what is not to be seen in the same frames.
          min_score: hits that are not said and of a smaller score are left out.
          offset: how many of the best are left out, to go on where a query before ended.
          only: "seen" or "said", to leave the other out; scores of the latter are sums of
            reciprocal ranks (`said.joined`).
          longer: only videos of so many seconds or more.
          shorter: only videos of so many seconds or less.
          tags: only videos that have all of these tags (`tag`), in any case of letters.

        Returns:
          Hits, best first; of equally good ones in the order of their paths. Videos of the same
          content are one hit.

        Raises:
          SearchError: for an empty sentence, a number out of its range, a text that is no date, a
            folder or tag without videos, an encoder that is not the one of the index, a file that
            is no image, a video that is not in the index, or a query that the ranker or the store
            cannot answer.
          DamagedError: when the manifest is damaged, or all vectors are.
        """
        sentences, then, without = map(_texts, (sentence, then, without))
        pictures = (image is not None) + (like is not None)
        parts = len(sentences) > 1 or bool(then or without)
        if not (sentences or pictures):
            raise SearchError("the sentence is empty: say what is to be found")
        if pictures > 1:
            raise SearchError("--image and --like are two pictures: give one of them")
        if len(sentences) > 1 and (pictures or then):
            raise SearchError("beside a picture or --then there is one sentence: leave out others")
        if (pictures or parts) and self._checkpoint is not None:
            raise SearchError(
                f"the trained model {self._checkpoint} reads one sentence: add --ranker=best_frame"
            )
        if pictures and self._normalise:
            raise QueryError(
                "{normalise} compares texts with other texts: leave it out beside a picture",
                field="normalise",
            )
        if parts and (self._store is not None or self._label != rankers.DEFAULT):
            raise SearchError(
                "several sentences, --then and --not are asked of frames: search by"
                " --ranker=best_frame, without --store"
            )
        single = len(sentences) == 1 and not (pictures or parts)
        if only not in (None, "seen", "said"):
            raise SearchError(f"only is {only!r}: give seen or said")
        if only == "said" and not single:
            raise SearchError("subtitles are searched by one sentence alone: leave the rest out")
        for name, number, least in (("k", k, 1), ("moments", moments, 1), ("offset", offset, 0)):
            if number < least:
                raise SearchError(f"{name} is {number}: give {least} or more")
        if not within > 0:
            raise SearchError(f"within is {within:g} s: give seconds above 0")
        if min_score is not None and math.isnan(min_score):
            raise SearchError("the least score is no number")
        now, encoder = self._ready()
        now.look()
        chosen = folder, since, until
        tags = [tags] if isinstance(tags, str) else tags
        passing = queries.mask(now.entries, *chosen, longer, shorter, tags)
        with ThreadPoolExecutor(1) as thread:  # subtitles are searched while the encoder works
            asks_said = single and only != "seen"
            said_of = lambda: now.said.search(sentences[0]) if asks_said else {}
            saying = thread.submit(said_of)
            vectors = [now.ranker.encode(encoder, one) for one in (*sentences, *then, *without)]
            texts = saying.result()
        near: dict[str, list[Passage]] = {}
        if asks_said and now.said.embedded:
            own = self._checkpoint is None  # else the query is the trained model's
            near = now.said.near(vectors[0] if own else encoder.encode_texts(sentences)[0])
        texts = said.joined(texts, near)
        if image is not None:
            picture = queries.picture(encoder, Path(image) if isinstance(image, str) else image)
        if like is not None:
            content, picture = self._frame(now, *like)
            passing &= now.own != content
        if pictures and sentences:
            vectors[0] = unit(vectors[0] + picture).astype(np.float32)
        elif pictures:
            vectors.insert(0, picture)
        if not (passing & now.searched()).any():
            return Hits((), self._warnings(now, passing))
        if only == "said" and not now.said.count:
            lines = now.said.notes or [
                f"{self._directory} holds no subtitles: put .srt, .vtt or .ass files beside the"
                " videos, and index the folder again"
            ]
            raise SearchError("; ".join(lines))
        asked = self._asked(
            now, encoder, vectors, len(without), within if then else None, bool(pictures), parts
        )
        while True:
            try:
                count = max(offset + k, WINDOW if texts else 0)
                allowed = passing & now.searched()
                best = [] if only == "said" else self._best(now, asked.query, count, allowed)
                if texts:
                    spoken = self._saying(now, texts, allowed)
                    # To be among the first hundred of thirty says nothing, of a thousand it does.
                    tenth = math.ceil(len(np.unique(now.own[allowed])) / 10)
                    window = min(WINDOW, tenth)
                    best = (
                        spoken if only == "said"
                        else fused(_parted(now, best, spoken), spoken, window)
                    )  # fmt: skip
                best = best[: offset + k]
                if gone := {i for i, *_ in best if not now.entries[i].path.is_file()}:
                    now.look(everything=True)
                    now.away |= gone
                    continue

                def found(one: _Place) -> Hit:
                    place, score, copies = one
                    entry = now.entries[place]
                    passages = [x for x in texts.get(entry.content, ()) if entry.video in x.copies]
                    hit = self._hit(now, encoder, place, score, asked, moments)
                    return _with_passages(hit, copies, passages, moments, only)

                with ThreadPoolExecutor() as threads:  # which read and check files
                    hits = list(threads.map(found, best[offset:]))
            except DamagedError as error:
                if not error.contents.keys() - now.damaged.keys():
                    raise
                # What was removed from the index since it was opened is no damage.
                if now.stamp != _stamp(self._directory):
                    return self.query(
                        sentence, k, *chosen, moments, image=image, like=like, then=then,
                        within=within, without=without, min_score=min_score, offset=offset,
                        only=only, longer=longer, shorter=shorter, tags=tags,
                    )  # fmt: skip
                now.damaged |= error.contents
                continue
            bound = -math.inf if min_score is None else min_score
            kept = (hit for hit in hits if hit.score >= bound or hit.said and only is None)
            return Hits(kept, self._warnings(now, passing), asked.calibrated)

    search = query

    def _asked(
        self,
        now: _Snapshot,
        encoder: Encoder,
        vectors: Sequence[Float[np.ndarray, " H"]],
        unwanted: int,
        within: float | None,
        of_picture: bool,
        parts: bool,
    ) -> _Asked:
        """The query of vectors, of which the last `unwanted` are those of what is not wanted."""
        ranker = now.ranker
        # Probabilities are learned of images beside sentences.
        readable = ranker.calibrated and not of_picture
        if not isinstance(ranker, Untrained):
            return _Asked(Single(ranker, vectors[0]), readable)
        wanted = len(vectors) - unwanted
        learned = encoder.probability if ranker.calibrated else lambda cosines: None
        # Few frames do not tell how an archive's cosines are distributed.
        known = ranker.count >= queries.FEW or not of_picture and learned(0.0) is not None
        known = known and not ranker.normalised  # a difference of cosines has no level
        calibrated = None if of_picture else now.source.manifest.levels.get(self._label)
        levels = [
            queries.level(ranker, one, (lambda cosines: None) if i == 0 and of_picture else learned)
            for i, one in enumerate(vectors)
        ]
        if calibrated is not None:  # by single sentences; a mean of several has another level
            for i in range(wanted if parts else 0, len(vectors)):
                levels[i] = queries.centre(ranker, vectors[i], encoder) + calibrated.above
        level = float(np.mean(levels[:wanted])) if known or calibrated and not parts else None
        if not parts:
            return _Asked(Single(ranker, vectors[0]), readable, level, calibrated)
        times = lambda content: now.source.read(now.contents[content].content).times
        rows, unwanted_levels = np.stack(vectors), np.asarray(levels[wanted:], np.float32)
        composed = Composed(
            ranker, functools.cache(times), rows[:wanted], rows[wanted:], unwanted_levels, within
        )
        return _Asked(composed, readable, level)

    def _best(
        self, now: _Snapshot, query: Single | Composed, k: int, allowed: Bool[np.ndarray, " V"]
    ) -> list[_Place]:
        """Places, scores and paths of copies of the best contents that are allowed, best first."""
        places = np.flatnonzero(allowed)
        if not len(places):
            return []
        contents, first = np.unique(now.own[places], return_index=True)
        among = np.zeros(len(now.contents), bool)
        among[contents] = True
        scores = query.best(k, among)[contents]
        # A store has not those that were not uploaded yet.
        order = [i for i in np.lexsort((first, -scores))[:k] if scores[i] > -np.inf]
        return [_place(now, allowed, int(contents[i]), float(scores[i])) for i in order]

    def _saying(
        self,
        now: _Snapshot,
        texts: Mapping[str, Sequence[Passage]],
        allowed: Bool[np.ndarray, " V"],
    ) -> list[_Place]:
        """Those allowed that say passages, in their contents' order, and the best one's share.

        They are `WINDOW` at most.
        """
        there = np.zeros(len(now.contents), bool)
        there[now.own[allowed]] = True
        number = {record.content: i for i, record in enumerate(now.contents) if there[i]}
        saying = (one for one in texts if one in number)
        places = (_spoken(now, allowed, number[one], texts[one]) for one in saying)
        return list(itertools.islice(itertools.chain.from_iterable(places), WINDOW))

    def _frame(
        self, now: _Snapshot, video: str, second: float
    ) -> tuple[int, Float[np.ndarray, " d"]]:
        """The place of a video's content, and the vector of its frame nearest to a second."""
        name = now.source.name_of(video)
        place = next((i for i, one in enumerate(now.entries) if one.video == name), None)
        if place is None:
            raise SearchError(f"{legible(name)} has no vectors: index it first")
        content, arrays = int(now.own[place]), now.source.read(now.entries[place].content)
        if not 0 <= second <= max(now.entries[place].duration, arrays.times[-1]):
            length = f"{now.entries[place].duration:g} s long"
            raise SearchError(f"{legible(name)} has no second {second:g}: it is {length}")
        nearest = np.argmin(np.abs(arrays.times - second))
        return content, unit(arrays.vectors[nearest].astype(np.float32))

    def _warnings(self, now: _Snapshot, passing: np.ndarray) -> list[str]:
        lines = list(now.source.notes)
        away = [now.entries[place].video for place in sorted(now.away) if passing[place]]
        for name, root in now.source.roots.items():
            if any(storage.split_name(one)[0] == name for one in away) and not root.is_dir():
                away = [one for one in away if storage.split_name(one)[0] != name]
                lines.append(
                    f"{root} is not there, and its videos are left out: is its disk mounted?"
                    " (index NEW --move-root, where it has another path now)"
                )
        if away:
            lines.append(
                f"{len(away)} of {len(now.entries)} videos are offline and left out"
                f" ({away[0]!r}{' and others' if len(away) > 1 else ''}): is a disk unplugged?"
            )
        level = now.source.manifest.levels.get(self._label)
        frames = sum(one.frames for one in now.contents)
        if level is not None and frames > 2 * level.frames:
            lines.append(
                f"the level of a good match is that of {level.frames} frames, and there are"
                f" {frames} now, so that more of what is absent passes: evaluate --calibrate again"
            )
        lines += now.damaged.values()
        return lines + now.said.notes

    def _hit(
        self,
        now: _Snapshot,
        encoder: Encoder,
        position: int,
        score: float,
        asked: _Asked,
        count: int,
    ) -> Hit:
        entry, content = now.entries[position], int(now.own[position])
        arrays = now.source.read(entry.content)
        raw, best = asked.query.found(content, arrays, now.source.period, count)
        seen = None if asked.level is None else score >= asked.level
        duration = entry.duration
        # The last frame's period may end after the video does.
        end = max(duration, float(arrays.times[-1]))
        best = [moment._replace(end=min(moment.end, end)) for moment in best]
        if asked.readable:
            best = [m._replace(score=_readable(encoder, m.score)) for m in best]
            score, raw = _readable(encoder, score), _readable(encoder, raw)
        return Hit(
            entry.id, entry.video, entry.folder, entry.path, score, best, arrays.times,
            np.asarray(raw, np.float32), duration, entry.date, entry.date_of, seen, tags=entry.tags,
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
        entries = [entry for entry in index.entries() if entry.state != "failed"]
        entries = [entry for entry in entries if entry.content not in damaged]
        known = [one for content, one in index.records().items() if content not in damaged]
        order = {record.content: i for i, record in enumerate(known)}
        own = np.asarray([order[entry.content] for entry in entries], np.int64)
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
        return _Snapshot(
            stamp, index, entries, known, own, ranker, Said(index, self._encoder), damaged, away
        )

    def _ranker(self, index: Index, records: Sequence[Record] | None) -> RowRanker:
        if self._checkpoint is None:
            return rankers.Untrained(self._name, index, records, self._encoder, self._normalise)
        from hlformer_jax.search.signals import trained

        return trained.Trained(self._checkpoint, index, records)

    def _loaded(self) -> Encoder:
        if self._encoder is not None:
            return self._encoder
        encoder = self._given
        if encoder is None or isinstance(encoder, str | Path):
            encoder = reload_encoder(self._index.manifest.encoder, encoder)
        self._index.check_encoder(encoder)
        self._encoder = encoder
        return encoder


def _without_damaged(make: Callable[[dict[str, str]], T]) -> T:
    """Calls `make` with the contents known to be damaged, and again when it finds further ones."""
    damaged: dict[str, str] = {}
    while True:
        try:
            return make(damaged)
        except DamagedError as error:
            if not error.contents.keys() - damaged.keys():
                raise
            damaged |= error.contents


def _texts(given: str | Sequence[str]) -> tuple[str, ...]:
    """The sentences of a query, legible; of one empty text none.

    A letter and its accent are one, which text from macOS may have apart: encoders were trained so.
    """
    if isinstance(given, str):
        given = (given,) if given.strip() else ()
    if not all(one.strip() for one in given):
        raise SearchError("the sentence is empty: say what is to be found")
    return tuple(unicodedata.normalize("NFC", legible(one)) for one in given)


def _stamp(directory: Path) -> tuple[int, int, int]:
    try:
        status = (directory / storage.MANIFEST).stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


def _readable(encoder: Encoder, cosines: Any) -> Any:
    """Probabilities of cosines, where the encoder has learned them; a number of a number."""
    probabilities = encoder.probability(np.asarray(cosines, np.float32))
    if probabilities is None:
        return cosines
    return float(probabilities) if np.ndim(cosines) == 0 else np.asarray(probabilities)
