"""What is said in videos: timed text of subtitles, searched by its words and by vectors.

Subtitles are read that are text, in a video's file and in files beside it: beside `a.mp4` these are
`a.srt` and `a.en.srt`, say, SubRip, WebVTT or ASS. What no subtitles hold can be recognised
(`recognition`). Speech counts where there are no subtitles.

    DIR/texts/DIGEST.json     the cues of one content under a digest, and of what they are
    DIR/texts/DIGEST.vectors  those of its passages, by the text half of the index's encoder
    DIR/packed/said-….db      the passages of all contents in a table of SQLite's FTS5
    DIR/packed/said-….npy     their vectors

A passage is a cue and the next, where that begins within `PAUSE` seconds of its end. Passages rank
by BM25 of their words, which are folded and stemmed (English). One says a sentence when the words
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
import hashlib
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
from hlformer_jax.errors import UserError, printable
from hlformer_jax.search import packed, rankers, storage
from hlformer_jax.search.index import Index

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

AT_ONCE = 128
"""Passages whose vectors are computed together, about."""

RARE = 0.05, 1000
"""Share and number of passages above both of which a word is too common to search by."""

_DIGEST = 64
_TABLES = """
CREATE VIRTUAL TABLE said USING fts5(text, content UNINDEXED, start UNINDEXED, stop UNINDEXED,
    tokenize='porter unicode61 remove_diacritics 2');
CREATE TABLE vectors (row INTEGER PRIMARY KEY, passage INTEGER);
"""
_OF_VECTORS = "vectors CROSS JOIN said ON said.rowid = passage"  # in this order; else all pairs


Cue = tuple[float, float, str]
"""A cue as a transcript keeps it: start, end and text, as in `video.subtitles.Cue`."""


class Passage(NamedTuple):
    """What is said from one second of a video to another.

    Its score is its BM25 or its cosine, of one that `joined` gives that of its content. `share` is
    what it has of the weight of a sentence's words, of 1; 0 of one that its vector alone has found.
    """

    start: float
    end: float
    text: str
    score: float
    share: float = 0.0


class Reader(NamedTuple):
    """Functions that read subtitles: those of `video.subtitles`, or a test's."""

    suffixes: Iterable[str]
    inside: Callable[[Path], Iterable[Cue]]
    beside: Callable[[Path], Iterable[Cue]]


def read(path: Path) -> dict[str, Any] | None:
    """What a file of cues holds; None where it is not there, or not what was written."""
    try:
        kept = storage.unseal(files.read_bytes(path))
        cues = lambda own: [(float(start), float(end), str(text)) for start, end, text in own]
        recognised = {
            str(what): {"by": str(own["by"]), "cues": cues(own["cues"])}
            for what, own in kept.get("recognised", {}).items()
        }
        whole = {"inside": cues(kept["inside"]), "cues": cues(kept["cues"])}
        return {"sources": kept["sources"], "recognised": recognised, **whole}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def told(path: Path) -> list[tuple[float, float, str]]:
    """All cues of a content that count, in order: (start, end, text)."""
    kept = read(path)
    return [] if kept is None else _counting(kept)


def _counting(kept: dict[str, Any]) -> list[tuple[float, float, str]]:
    subtitles = kept["cues"]
    others = [
        cue
        for what, own in kept["recognised"].items()
        if not (what == "speech" and subtitles)
        for cue in own["cues"]
    ]
    return sorted([*subtitles, *others])


def update(index: Index, reader: Reader, report: Callable[[str], None]) -> None:
    """Brings the texts of all videos that are there up to date; under the index's lock."""
    listed: dict[Path, list[str]] = {}
    for content, own in available_paths(index).items():
        found = [other for path in own for other in _beside(path, reader.suffixes, listed)]
        sources = [[os.fsencode(other).hex(), *_stamp(other)] for other in found]
        kept = read(index.text(content))
        if kept is not None and kept["sources"] == sources:
            continue
        inside = kept["inside"] if kept else _cues(reader.inside, own[0], report)
        cues = sorted(
            {*inside, *(cue for other in found for cue in _cues(reader.beside, other, report))}
        )
        recognised = kept["recognised"] if kept else {}
        write(index, content, sources=sources, inside=inside, cues=cues, recognised=recognised)


def available_paths(index: Index) -> dict[str, list[Path]]:
    """List the files of each content that is available."""
    paths: dict[str, list[Path]] = {}
    for name, record in sorted(index.manifest.videos.items()):
        if record.indexed and (path := index.path(name)).is_file():
            paths.setdefault(record.content, []).append(path)
    return paths


def write(index: Index, content: str, **kept: Any) -> None:
    """Keeps what `read` gives for a content; under the index's lock."""
    files.write_bytes(index.text(content), storage.seal({"content": content, **kept}))


def _cues(read: Callable[[Path], Any], path: Path, report: Callable[[str], None]) -> list[Any]:
    """The cues of a file; none, and a line, where it cannot be read."""
    try:
        return [tuple(cue) for cue in read(path)]
    except UserError as error:
        report(printable(str(error)))
        return []


def _beside(path: Path, suffixes: Iterable[str], listed: dict[Path, list[str]]) -> list[Path]:
    """The files of subtitles beside a video: of its name, and a language's where wanted."""
    if path.parent not in listed:
        with contextlib.suppress(OSError):
            listed[path.parent] = sorted(os.listdir(path.parent))
    known = [path.parent / name for name in listed.get(path.parent, ())]
    same = lambda other: (
        other.stem == path.stem
        or re.fullmatch(re.escape(path.stem) + r"\.[A-Za-z]{2,3}([-_.]\w+)*", other.stem)
    )
    return [one for one in known if one.suffix.lower() in suffixes and same(one) and one.is_file()]


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


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


def _alone(kept: dict[str, Any] | None) -> list[str]:
    """The texts of a content's passages that have vectors."""
    cues = [] if kept is None else _counting(kept)
    return [text for text, _, _, alone in _passages(cues) if alone]


def _sealed(index: Index, texts: Sequence[str], raw: bytes) -> bytes:
    """Vectors and the digest of them, their texts and the encoder."""
    made_of = "\0".join([index.manifest.key, *texts]).encode()
    return raw + hashlib.sha256(made_of + raw).hexdigest().encode()


def _vectors(index: Index, content: str, texts: Sequence[str]) -> Float[np.ndarray, "P d"] | None:
    """The vectors of passages; None where they are missing, damaged, or those of other texts."""
    try:
        kept = files.read_bytes(index.text_vectors(content))
    except OSError:
        return None
    raw = kept[:-_DIGEST]
    whole = _sealed(index, texts, raw) == kept
    return np.frombuffer(raw, np.float16).reshape(len(texts), -1) if whole else None


def embed(
    index: Index,
    encoder: Any,
    report: Callable[[str], None],
    pulse: Callable[[], None] = lambda: None,
) -> None:
    """Keeps the vectors of all passages that have none, or another's; under the index's lock.

    `pulse` is called now and then; when it raises, what is whole is kept.
    """
    waiting: list[tuple[str, list[str]]] = []
    for content in index.contents():
        texts = _alone(read(index.text(content)))
        if not texts:
            files.discard(index.text_vectors(content))
        elif _vectors(index, content, texts) is None:
            waiting.append((content, texts))
    if (count := sum(len(texts) for _, texts in waiting)) > 10 * AT_ONCE:
        report(f"encoding {count} passages of what is said")
    while waiting:
        pulse()
        some = [waiting.pop()]
        while waiting and sum(len(texts) for _, texts in some) < AT_ONCE:
            some.append(waiting.pop())
        encoded = encoder.sentences([text for _, texts in some for text in texts])
        vectors = np.asarray(encoded).astype(np.float16)
        for content, texts in some:
            own, vectors = vectors[: len(texts)], vectors[len(texts) :]
            files.write_bytes(index.text_vectors(content), _sealed(index, texts, own.tobytes()))


# Searched


def _listing(directory: Path) -> list[tuple[str, int, int]]:
    """Names and stamps of the files of what is said."""
    found = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for one in entries:
            if storage.TEXTS.fullmatch(one.name):
                with contextlib.suppress(OSError):  # it has gone meanwhile
                    found.append((one.name, *_stamp(Path(one.path))))
    return sorted(found)


class Said:
    """The passages of an index."""

    def __init__(self, index: Index, encoder: Any) -> None:
        """Maps the table of all passages and their vectors, or makes them anew."""
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self.count = 0
        self._matrix: np.ndarray | None = None
        if not (listing := _listing(index.directory / "texts")):
            return
        known = json.dumps([_TABLES, PAUSE, UNSAID, rankers.BANK, listing])
        key = hashlib.sha256(known.encode()).hexdigest()[:32]
        path = index.directory / "packed" / f"said-{key}.db"
        rows, width = path.with_suffix(".npy"), index.manifest.encoder.width
        self._db, matrix = self._database(), None
        if self._loaded(path):
            count = self._one("SELECT count(*) FROM vectors")
            matrix = packed.mapped(rows, (count, width), "float16")
        if matrix is None:
            self._db = self._database()  # damaged content spoils the other
            self._db.executescript(_TABLES)
            contents = [name[:-5] for name, *_ in listing if name.endswith(".json")]
            none = np.empty((0, width), np.float16)
            made = np.concatenate([none, *self._fill(index, contents)])
            matrix = packed.written(rows, made.shape, "float16", lambda own: np.copyto(own, made))
            with contextlib.suppress(OSError):
                content = self._db.serialize()
                files.write_bytes(path, content + hashlib.sha256(content).hexdigest().encode())
                for other in packed.own_files(index.directory, "said-"):
                    if not other.name.startswith(path.stem):
                        files.discard(other)
        self.count = self._one("SELECT count(*) FROM said")
        if len(matrix) >= FEW:
            self._map(index, encoder, rows, matrix)

    def _fill(self, index: Index, contents: Iterable[str]) -> Iterator[np.ndarray]:
        """Enters all passages; gives the vectors of those that have some, which are numbered."""
        for content in contents:
            if (kept := read(index.text(content))) is None:
                continue
            vectors = _vectors(index, content, _alone(kept))
            for text, start, end, alone in _passages(_counting(kept)):
                insert = "INSERT INTO said VALUES (?, ?, ?, ?)"
                passage = self._db.execute(insert, (text, content, start, end)).lastrowid
                if vectors is not None and alone:
                    self._db.execute("INSERT INTO vectors (passage) VALUES (?)", (passage,))
            if vectors is not None:
                yield vectors
        self._db.commit()

    def _map(self, index: Index, encoder: Any, path: Path, matrix: np.ndarray) -> None:
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
                f"SELECT row, content, start, stop, text FROM {_OF_VECTORS}"
                " WHERE row IN (SELECT value FROM json_each(?))",
                [json.dumps(list(scores))],
            ).fetchall()
        near: dict[str, list[Passage]] = {}
        for row, content, start, end, text in sorted(found, key=lambda x: (-scores[x[0]], x[0])):
            near.setdefault(content, []).append(Passage(start, end, text, scores[row]))
        return near

    def search(self, sentence: str) -> dict[str, list[Passage]]:
        """The passages that say a sentence, by contents, the best contents and passages first."""
        words = sorted(set(re.findall(r"\w+", sentence.casefold())))
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
            "SELECT rowid, content, start, stop, text, -bm25(said) FROM said WHERE said MATCH ?"
            " AND +rowid IN (SELECT value FROM json_each(?)) ORDER BY bm25(said), rowid LIMIT ?",
            [" OR ".join(f'"{word}"' for word in rare), json.dumps(saying), MAX_PASSAGES],
        )
        for row, content, start, end, text, score in ranked:
            own = found.setdefault(content, [])
            own += _apart(own, Passage(start, end, text, score, shared[row] / total))
        return found

    def _weight(self, word: str) -> float:
        if word not in self._counts:
            count = "SELECT count(*) FROM said WHERE said MATCH ?"
            self._counts[word] = self._one(count, [f'"{word}"'])
        there = max(self._counts[word], 1)
        return math.log(1 + (self.count - there + 0.5) / (there + 0.5))


def _apart(own: Sequence[Passage], new: Passage) -> list[Passage]:
    """A passage, where it has no time in common with those of the same content; else none."""
    return [new] if all(new.end <= x.start or x.end <= new.start for x in own) else []


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
    """What is damaged of the texts of an index, by the name of the file."""
    wrong = []
    for content in index.contents():
        text, vectors = index.text(content), index.text_vectors(content)
        if (kept := read(text)) is None:
            wrong += [text] if text.exists() else []
        elif vectors.exists() and _vectors(index, content, _alone(kept)) is None:
            wrong.append(vectors)
    line = "is damaged: index the folder again to make it anew"
    return {path.name: f"{path} {line}" for path in wrong}
