"""What is said in videos: timed text of subtitles, searched by its words and by vectors.

Subtitles are read that are text, in a video's file and in files beside it: beside `a.mp4` these are
`a.srt` and `a.en.srt`, say, SubRip, WebVTT or ASS. What no subtitles hold can be recognised
(`recognition`). Speech counts where there are no subtitles.

    DIR/texts/DIGEST.vectors  the embeddings of its passages, by the text half of the encoder
    DIR/packed/said-….db      the passages of all contents in a table of SQLite's FTS5
    DIR/packed/said-….npy     their vectors

A passage is a cue and the next, where that begins within `PAUSE` seconds of its end. Passages rank
by BM25 of their words, which are folded and stemmed (English);
Chinese and Japanese are searched by pairs of characters. One says a sentence when the words
that it shares with it have half of their weight at least, ln(1 + (P − p + ½) / (p + ½)) for a word
in p of P passages, where one in none counts as in one: so a video is not found for its articles.

Passages of which no two share a cue have vectors, and rank by their cosine c(p) with the sentence
too, which finds other words of the same meaning. How near is near depends on the encoder and on how
much is said. With m the median of the archive's cosines with a sentence, what a sentence that is
not said finds is max c − m of the sentences of `rankers.BANK`, on everyday things to be seen. The
level above m lies where nine in ten of them stay below.

A content ranks by its best passage, and by the sum of 1 / (60 + rank) of both rankings (`joined`).
"""

import contextlib
import functools
import hashlib
import itertools
import json
import math
import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hlformer_jax import files
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import DamagedError
from hlformer_jax.search.index import Index, packed
from hlformer_jax.search.signals import rankers
from hlformer_jax.search.signals.transcript import transcripts
from hlformer_jax.search.signals.transcript.transcripts import Copies, Transcript

PAUSE = 5.0
"""Seconds between two cues of one passage."""

MAX_PASSAGES = 2000
"""Passages of a sentence that are read, the best by BM25 and by cosine."""

RRF = 60
"""The constant of reciprocal rank fusion."""

UNSAID = 0.9
"""Share of the sentences of the bank for which no passage is near enough."""

FEW = 32
"""Passages with vectors below which their median says little, and words alone are searched."""

AT_ONCE = 32
"""Passages whose embeddings are computed together: a second of work at most."""

RARE = 0.05, 1000
"""Share and number of passages above both of which a word is too common to search by."""

_DIGEST = 64
_LISTED = re.compile(r"[0-9a-f]{64}\.vectors")
_TABLES = """
CREATE VIRTUAL TABLE said USING fts5(words, text UNINDEXED, content UNINDEXED, start UNINDEXED,
    stop UNINDEXED, copies UNINDEXED, tokenize='porter unicode61 remove_diacritics 2');
CREATE TABLE copies (number INTEGER PRIMARY KEY, names TEXT, are_others INTEGER);
CREATE TABLE vectors (row INTEGER PRIMARY KEY, passage INTEGER);
"""
_OF_VECTORS = "vectors CROSS JOIN said ON said.rowid = passage"  # in this order; else all pairs


class Passage(NamedTuple):
    """What is said from one second of a video to another.

    Its score is its BM25 or its cosine, of one that `joined` gives that of its content. `share` is
    what it has of the weight of a sentence's words, of 1; 0 of one that its vector alone has found.
    `copies` are those of the content's videos in which it is said.
    """

    start: float
    end: float
    text: str
    score: float
    share: float = 0.0
    copies: Copies = Copies()


# Vectors of passages


def _passages(cues: Sequence[tuple[float, float, str]]) -> Iterator[tuple[str, float, float, bool]]:
    """Text, start and end of each passage, and whether it has a vector."""
    held = False  # whether the passage before has this cue and a vector
    for (start, end, text), (begins, ends, more) in zip(
        cues, [*cues[1:], (math.inf, 0.0, "")], strict=False
    ):
        further = begins - end <= PAUSE
        if further:
            text, end = f"{text} {more}", max(end, ends)
        yield text, start, end, not held
        held = further and not held


def _alone(transcript: Transcript | None) -> list[str]:
    """Return the texts of a content's passages that have vectors."""
    every = [] if transcript is None else transcript.by_copies()
    return [text for _, cues in every for text, _, _, alone in _passages(cues) if alone]


def _sealed(index: Index, texts: Sequence[str], raw: bytes) -> bytes:
    """Vectors and the digest of them, their texts and the encoder."""
    made_of = "\0".join([index.key, *texts]).encode()
    return raw + hashlib.sha256(made_of + raw).hexdigest().encode()


def _vectors(index: Index, content: str, texts: Sequence[str]) -> Float[np.ndarray, "P d"] | None:
    """Return the embeddings of passages; None if they are missing, damaged or of other texts.

    They can be computed again, so that one which cannot be read is as good as none.
    """
    try:
        kept = files.read_bytes(index.text_vectors(content))
    except OSError:
        return None
    raw = kept[:-_DIGEST]
    whole = _sealed(index, texts, raw) == kept
    return np.frombuffer(raw, np.float16).reshape(len(texts), -1) if whole else None


def embed(
    index: Index,
    encoder: Encoder,
    report: Callable[[str], None],
    pulse: Callable[[], None] = lambda: None,
) -> None:
    """Compute the embeddings of all passages that have none; under the index's lock.

    `pulse` is called between batches of `AT_ONCE` passages; when it raises, the embeddings of
    complete transcripts are kept.
    """
    waiting: list[tuple[str, list[str]]] = []
    for content in index.contents():
        pulse()
        texts = _alone(transcripts.load(index, content))
        if not texts:
            files.discard(index.text_vectors(content))
        elif _vectors(index, content, texts) is None:
            waiting.append((content, texts))
    if (count := sum(len(texts) for _, texts in waiting)) > 40 * AT_ONCE:
        report(f"encoding {count} passages of what is said")
    passages = ((content, texts, text) for content, texts in waiting for text in texts)
    made: list[np.ndarray] = []  # embeddings of the content that is under way
    while batch := list(itertools.islice(passages, AT_ONCE)):
        pulse()
        encoded = np.asarray(encoder.encode_texts([text for *_, text in batch])).astype(np.float16)
        for (content, texts, _), embedding in zip(batch, encoded, strict=True):
            made.append(embedding)
            if len(made) == len(texts):
                raw = np.stack(made).tobytes()
                files.write_bytes(index.text_vectors(content), _sealed(index, texts, raw))
                made = []


# Searched


def _listing(directory: Path) -> list[tuple[str, int, int, int, int]]:
    """Return the names and stamps of the files of embeddings, sorted.

    Raises:
      DamagedError: when the folder cannot be listed.
    """
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if _LISTED.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):  # it has gone meanwhile
                        own = entry.stat(follow_symlinks=False)
                        times = own.st_mtime_ns, own.st_ctime_ns
                        found.append((entry.name, own.st_size, *times, own.st_ino))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DamagedError(f"{directory} cannot be read ({error.strerror or error})") from None
    return sorted(found)


class Said:
    """The passages of an index."""

    def __init__(self, index: Index, encoder: Encoder | None) -> None:
        """Maps the table of all passages and their vectors, or makes them anew."""
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self.count = 0
        self._matrix: np.ndarray | None = None
        self.notes: list[str] = []  # lines on the transcripts that are left out
        try:
            listing = _listing(index.directory / "texts")
        except DamagedError as error:
            self.notes.append(f"{error}: what is said is left out")
            return
        contents = transcripts.contents(index)
        if not contents:
            return
        path = self._path(index, [transcripts.version(index), *listing])
        rows, width = path.with_suffix(".npy"), index.encoder.width
        self._db, matrix = self._database(), None
        if self._loaded(path):
            count = self._one("SELECT count(*) FROM vectors")
            matrix = packed.mapped(rows, (count, width), "float16")
        if matrix is None:
            self._db = self._database()  # damaged content spoils the other
            self._db.executescript(_TABLES)
            none = np.empty((0, width), np.float16)
            made = np.concatenate([none, *self._fill(index, contents)])
            if self.notes:  # not written: what cannot be read now may be readable later
                made_of = [transcripts.version(index), *listing, *self.notes]
                rows = self._path(index, made_of).with_suffix(".npy")
                matrix = made
            else:
                matrix = self._written(path, made)
        self.count = self._one("SELECT count(*) FROM said")
        rows_of_copies = self._db.execute("SELECT number, names, are_others FROM copies")
        self._copies = {0: Copies()} | {
            number: Copies(frozenset(json.loads(names)), bool(are_others))
            for number, names, are_others in rows_of_copies
        }
        if len(matrix) >= FEW:
            self._map(index, encoder, rows, matrix)

    def _path(self, index: Index, listing: Sequence[Any]) -> Path:
        """Return the place of the table that is made of the listed files."""
        made_of = json.dumps([_TABLES, PAUSE, UNSAID, rankers.BANK, listing])
        key = hashlib.sha256(made_of.encode()).hexdigest()[:32]
        return index.directory / "packed" / f"said-{key}.db"

    def _written(self, path: Path, made: np.ndarray) -> np.ndarray:
        """Write the table and the embeddings, and remove those before; return the embeddings."""
        fill = functools.partial(np.copyto, src=made)
        matrix = packed.written(path.with_suffix(".npy"), made.shape, "float16", fill)
        with contextlib.suppress(OSError):
            content = self._db.serialize()
            files.write_bytes(path, content + hashlib.sha256(content).hexdigest().encode())
            for other in packed.own_files(path.parent.parent, "said-"):
                if not other.name.startswith(path.stem):
                    files.discard(other)
        return matrix

    def _fill(self, index: Index, contents: Iterable[str]) -> Iterator[np.ndarray]:
        """Enters all passages; gives the vectors of those that have some, which are numbered."""
        for content in contents:
            kept = transcripts.load(index, content)
            if kept is None:
                continue
            alone_texts = _alone(kept)
            vectors = _vectors(index, content, alone_texts)
            place = index.text_vectors(content)
            if vectors is None and alone_texts and os.path.lexists(place):
                self.notes.append(
                    f"{place} is damaged or cannot be read: what is said in its video is found by"
                    " its own words alone, until the folder is indexed again"
                )
            for copies, cues in kept.by_copies():
                number = self._number(copies) if cues else 0
                for text, start, end, alone in _passages(cues):
                    insert = "INSERT INTO said VALUES (?, ?, ?, ?, ?, ?)"
                    values = _spaced(text), text, content, start, end, number
                    passage = self._db.execute(insert, values).lastrowid
                    if vectors is not None and alone:
                        self._db.execute("INSERT INTO vectors (passage) VALUES (?)", (passage,))
            if vectors is not None:
                yield vectors
        self._db.commit()

    def _number(self, copies: Copies) -> int:
        """Enter copies of a content, and return their number; 0 is that of all copies."""
        if copies == Copies():
            return 0
        values = json.dumps(sorted(copies.names)), copies.are_others
        insert = "INSERT INTO copies (names, are_others) VALUES (?, ?)"
        return int(self._db.execute(insert, values).lastrowid or 0)

    def _map(self, index: Index, encoder: Encoder | None, path: Path, matrix: np.ndarray) -> None:
        """Takes the vectors, and finds the level from which on a passage is near."""
        self._rounded = packed.kept(path, matrix) if len(matrix) >= packed.LARGE else None
        self._matrix, self._sampled = matrix, rankers.sampled(matrix)

        def level() -> np.ndarray:
            bank = rankers.bank(index, encoder)
            parts = range(0, len(matrix), packed.MAX_ROWS)
            cosines = (packed.products(matrix[i : i + packed.MAX_ROWS], bank) for i in parts)
            best = np.max([part.max(0) for part in cosines], axis=0)
            above = best - np.median(packed.products(self._sampled, bank), axis=0)
            return np.quantile(above, UNSAID).reshape(1, 1)

        self._above = float(packed.made(path.with_suffix(".level.npy"), (1, 1), level)[0, 0])

    @property
    def embedded(self) -> bool:
        """Whether there are vectors, and enough of them."""
        return self._matrix is not None

    def _database(self) -> sqlite3.Connection:
        """An empty database in memory, closed with this object."""
        database = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, database.close)
        return database

    def _loaded(self, path: Path) -> bool:
        try:
            raw = files.read_bytes(path)
            if hashlib.sha256(raw[:-_DIGEST]).hexdigest().encode() != raw[-_DIGEST:]:
                return False
            self._db.deserialize(raw[:-_DIGEST])
            return True
        except (OSError, sqlite3.Error):
            return False

    def _one(self, query: str, values: Sequence[Any] = ()) -> int:
        return int(self._db.execute(query, values).fetchone()[0])

    def near(self, vector: Float[np.ndarray, " d"]) -> dict[str, list[Passage]]:
        """The passages whose vectors are near to a sentence's, as `search` gives others."""
        assert self._matrix is not None
        level = float(np.median(packed.products(self._sampled, vector))) + self._above
        rows, cosines = packed.above(self._rounded, self._matrix, vector, level)
        best = np.argsort(-cosines, kind="stable")[:MAX_PASSAGES]
        scores = dict(zip((rows[best] + 1).tolist(), cosines[best].tolist(), strict=True))
        with self._lock:
            found = self._db.execute(
                f"SELECT row, content, start, stop, text, copies FROM {_OF_VECTORS}"
                " WHERE row IN (SELECT value FROM json_each(?))",
                [json.dumps(list(scores))],
            ).fetchall()
        near: dict[str, list[Passage]] = {}
        for row, content, start, end, text, number in sorted(
            found, key=lambda x: (-scores[x[0]], x[0])
        ):
            passage = Passage(start, end, text, scores[row], copies=self._copies[number])
            near.setdefault(content, []).append(passage)
        return near

    def search(self, sentence: str) -> dict[str, list[Passage]]:
        """The passages that say a sentence, by contents, the best contents and passages first."""
        words = sorted(set(_words(sentence.casefold())))
        with self._lock:
            return self._search(words) if words and self.count else {}

    def _search(self, words: list[str]) -> dict[str, list[Passage]]:
        weights = {word: self._weight(word) for word in words}
        rare = [
            word for word in words if 0 < self._counts[word] <= max(RARE[0] * self.count, RARE[1])
        ]
        shared: dict[int, float] = {}
        for word in rare:
            for (row,) in self._db.execute(
                "SELECT rowid FROM said WHERE said MATCH ?", [f'"{word}"']
            ):
                shared[row] = shared.get(row, 0.0) + weights[word]
        total = sum(weights.values())
        found: dict[str, list[Passage]] = {}
        saying = [row for row, weight in shared.items() if weight >= total / 2]
        if not saying:
            return found
        # The plus keeps SQLite from asking for each of the rows; BM25 is computed of them alone.
        ranked = self._db.execute(
            "SELECT rowid, content, start, stop, text, copies, -bm25(said) FROM said"
            " WHERE said MATCH ?"
            " AND +rowid IN (SELECT value FROM json_each(?)) ORDER BY bm25(said), rowid LIMIT ?",
            [" OR ".join(f'"{word}"' for word in rare), json.dumps(saying), MAX_PASSAGES],
        )
        for row, content, start, end, text, number, score in ranked:
            own, copies = found.setdefault(content, []), self._copies[number]
            own += _apart(own, Passage(start, end, text, score, shared[row] / total, copies))
        return found

    def _weight(self, word: str) -> float:
        if word not in self._counts:
            count = "SELECT count(*) FROM said WHERE said MATCH ?"
            self._counts[word] = self._one(count, [f'"{word}"'])
        there = max(self._counts[word], 1)
        return math.log(1 + (self.count - there + 0.5) / (there + 0.5))


_UNSPACED = re.compile("[\u2e80-\u2fdf\u3005-\u3007\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Characters of Chinese and Japanese, which have no spaces between words."""

_UNSPACED_RUN = re.compile(f"({_UNSPACED.pattern}+)")


def _spaced(text: str) -> str:
    """Return a text with spaces around the characters of scripts that have none."""
    return _UNSPACED.sub(lambda character: f" {character[0]} ", text)


def _words(text: str) -> list[str]:
    """Return the words of a text; of scripts without spaces each pair of characters."""
    words: list[str] = []
    for word in re.findall(r"\w+", text):
        for part in _UNSPACED_RUN.split(word):
            if _UNSPACED.match(part):
                pairs = [f"{first} {second}" for first, second in itertools.pairwise(part)]
                words += pairs or [part]
            elif part:
                words.append(part)
    return words


def _apart(own: Sequence[Passage], new: Passage) -> list[Passage]:
    """A passage, where it has no time in common with those of the same copies; else none."""
    same = (passage for passage in own if passage.copies == new.copies)
    return [new] if all(new.end <= x.start or x.end <= new.start for x in same) else []


def joined(
    words: Mapping[str, list[Passage]], near: Mapping[str, list[Passage]]
) -> dict[str, list[Passage]]:
    """Two rankings of contents by their passages as one, by reciprocal rank fusion.

    At a tie what says every word comes first, then what is near, then what says some words.
    """
    sums: dict[str, float] = {}
    for ranking in (words, near):
        for rank, content in enumerate(ranking, 1):
            sums[content] = sums.get(content, 0.0) + 1 / (RRF + rank)
    found = {}
    # 1e-6: a share of all words is 1 up to rounding.
    every = {one for one, own in words.items() if own[0].share > 1 - 1e-6}
    for content in sorted(sums, key=lambda x: (-sums[x], x not in every, x not in near)):
        own = [*words.get(content, ())]
        for one in near.get(content, ()):
            own += _apart(own, one)
        found[content] = [one._replace(score=sums[content]) for one in own]
    return found


def damaged(index: Index) -> dict[str, str]:
    """Return a line for each damaged file of embeddings of passages, by its name."""
    found = {}
    for content in transcripts.contents(index):
        vectors = index.text_vectors(content)
        texts = _alone(transcripts.load(index, content))
        if os.path.lexists(vectors) and _vectors(index, content, texts) is None:
            found[vectors.name] = f"{vectors} is damaged: index the folder again to make it anew"
    return found
