"""Passages of transcripts, searched by their words and by their embeddings.

    DIR/texts/DIGEST.vectors  the embeddings of a content's passages
    DIR/packed/said-….db      the passages of all contents in a table of SQLite's FTS5
    DIR/packed/said-….npy     their embeddings

A passage is a cue, joined with the next cue if that begins at most `MAX_PAUSE_SECONDS` after its
end. Words (`words`) rank passages by BM25. Embeddings rank passages by their cosine with the query.
Both rankings are fused (`fuse`).
"""

import bisect
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hlformer_jax import files
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.search.index import Index, packed
from hlformer_jax.search.signals import rankers
from hlformer_jax.search.signals.transcript import transcripts, words
from hlformer_jax.search.signals.transcript.transcripts import Copies, Transcript

MAX_PAUSE_SECONDS = 5.0
"""Longest pause between two cues of one passage, in seconds."""

RRF_CONSTANT = 60
"""The constant of reciprocal rank fusion."""

NULL_QUANTILE = 0.9
"""Share of the bank's sentences that match no passage at the threshold.

The threshold on cosines depends on the encoder and on the amount of speech. Let m be the median of
a sentence's cosines with all passages. The bank's sentences describe visible things, which are not
spoken about, so their values of max - m show how far the best cosine exceeds m without a match. The
threshold of a query exceeds its m by the 0.9 quantile of these values.
"""

MIN_EMBEDDED_PASSAGES = 32
"""Passages below which the median cosine is meaningless and only words are searched."""

PASSAGES_PER_BATCH = 32
"""Number of passages that are encoded together, which takes at most a second."""

MAX_COMMON_SHARE, MAX_COMMON_PASSAGES = 0.05, 1000
"""Share of all passages, and number of passages. A word in more than both is too common to rank."""

_DIGEST_CHARACTERS = 64
_EMBEDDINGS_FILE = re.compile(r"[0-9a-f]{64}\.vectors")
_TABLES = """
CREATE VIRTUAL TABLE said USING fts5(words, text UNINDEXED, start UNINDEXED, stop UNINDEXED,
    copies UNINDEXED, tokenize='porter ascii');
CREATE TABLE contents (first INTEGER PRIMARY KEY, content TEXT, is_varied INTEGER);
CREATE TABLE copies (number INTEGER PRIMARY KEY, names TEXT, are_others INTEGER);
CREATE TABLE vectors (row INTEGER PRIMARY KEY, passage INTEGER);
"""


class Passage(NamedTuple):
    """Consecutive cues that are searched together.

    Attributes:
      start: the second at which it starts.
      end: the second at which it ends.
      text: the text of its cues.
      score: BM25 or cosine; after `fuse`, the fused score of its content.
      share: weight of the query's words that the passage contains, as a share of the weight of all
        words of the query, 0 to 1; 0 if only its embedding matched.
      copies: the copies of the content that have the passage.
    """

    start: float
    end: float
    text: str
    score: float
    share: float = 0.0
    copies: Copies = Copies()


class RankedContents(NamedTuple):
    """Contents with passages that match a query, and a function that loads these passages.

    A common word is in a large part of all passages, so only the passages of results are loaded.

    Attributes:
      scores: the score of each content, which is that of its best passage; best first.
      shares: the share (`Passage`) of the best passage of each content.
      load: returns the passages of one of the contents, best first.
    """

    scores: Mapping[str, float]
    shares: Mapping[str, float]
    load: Callable[[str], list[Passage]]


NO_CONTENTS = RankedContents({}, {}, lambda content: [])

# Embeddings of passages


class _JoinedCues(NamedTuple):
    """Cues that make a passage."""

    text: str
    start: float
    end: float
    is_embedded: bool


def _split(cues: Sequence[tuple[float, float, str]]) -> Iterator[_JoinedCues]:
    """Yield the passages of cues.

    A passage begins at every cue, so passages overlap. Passages with embeddings share no cue.
    """
    is_covered = False  # whether an embedded passage contains this cue already
    for (start, end, text), (next_start, next_end, next_text) in zip(
        cues, [*cues[1:], (math.inf, 0.0, "")], strict=False
    ):
        is_continued = next_start - end <= MAX_PAUSE_SECONDS
        if is_continued:
            text, end = f"{text} {next_text}", max(end, next_end)
        yield _JoinedCues(text, start, end, not is_covered)
        is_covered = is_continued and not is_covered


def _texts_to_embed(transcript: Transcript | None) -> list[str]:
    """Return the texts of a content's passages that have embeddings."""
    groups = [] if transcript is None else transcript.by_copies()
    return [part.text for _, cues in groups for part in _split(cues) if part.is_embedded]


def _add_checksum(index: Index, texts: Sequence[str], raw: bytes) -> bytes:
    """Append the checksum of embeddings, their texts and the encoder to the embeddings."""
    key = "\0".join([index.key, *texts]).encode()
    return raw + hashlib.sha256(key + raw).hexdigest().encode()


def _load_embeddings(
    index: Index, content: str, texts: Sequence[str]
) -> Float[np.ndarray, "P d"] | None:
    """Return the embeddings of passages, float16; None if they are missing, damaged or outdated.

    An unreadable file counts as missing, because the embeddings can be computed again.
    """
    try:
        stored = files.read_bytes(index.text_vectors(content))
    except OSError:
        return None
    raw = stored[:-_DIGEST_CHARACTERS]
    is_intact = _add_checksum(index, texts, raw) == stored
    return np.frombuffer(raw, np.float16).reshape(len(texts), -1) if is_intact else None


def embed_passages(
    index: Index,
    encoder: Encoder,
    report: Callable[[str], None],
    pulse: Callable[[], None] = lambda: None,
) -> None:
    """Compute the missing embeddings of passages. The caller holds the index's lock.

    Args:
      index: the index.
      encoder: the index's encoder.
      report: takes lines about the progress.
      pulse: called between batches of `PASSAGES_PER_BATCH` passages. It may raise to stop; the
        embeddings of complete transcripts are then stored already.
    """
    waiting: list[tuple[str, list[str]]] = []
    with_cues = transcripts.contents_with_cues(index)
    for content in index.contents():
        pulse()
        transcript = transcripts.load(index, content) if content in with_cues else None
        texts = _texts_to_embed(transcript)
        if not texts:
            files.discard(index.text_vectors(content))
        elif _load_embeddings(index, content, texts) is None:
            waiting.append((content, texts))
    if (count := sum(len(texts) for _, texts in waiting)) > 40 * PASSAGES_PER_BATCH:
        report(f"encoding {count} passages of transcripts")
    embeddings = _encode(encoder, (text for _, texts in waiting for text in texts), pulse)
    try:
        for content, texts in waiting:
            raw = np.stack(list(itertools.islice(embeddings, len(texts)))).tobytes()
            files.write_bytes(index.text_vectors(content), _add_checksum(index, texts, raw))
    finally:
        if waiting:  # libraries that have read the transcripts without these embeddings
            with index.writing() as writer:
                transcripts.mark_changed(writer)


def _encode(
    encoder: Encoder, texts: Iterator[str], pulse: Callable[[], None]
) -> Iterator[Float[np.ndarray, " d"]]:
    """Yield the embedding of each text, float16; encode `PASSAGES_PER_BATCH` texts at once."""
    while batch := list(itertools.islice(texts, PASSAGES_PER_BATCH)):
        pulse()
        yield from np.asarray(encoder.encode_texts(batch)).astype(np.float16)


# Search


def _list_files(directory: Path) -> list[tuple[str, int, int, int, int]]:
    """Return the names, sizes, times and inodes of the files of embeddings, sorted.

    Raises:
      OSError: if the folder cannot be listed.
    """
    listing = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if _EMBEDDINGS_FILE.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        status = entry.stat(follow_symlinks=False)
                        times = status.st_mtime_ns, status.st_ctime_ns
                        listing.append((entry.name, status.st_size, *times, status.st_ino))
    except FileNotFoundError:
        return []
    return sorted(listing)


def _open_database() -> sqlite3.Connection:
    """Open an empty database in memory."""
    return sqlite3.connect(":memory:", check_same_thread=False)


class PassageIndex:
    """Full-text and embedding index of all passages.

    Attributes:
      count: number of passages.
      varied: contents whose copies have different passages.
      notes: lines on transcripts that are not searched.
    """

    def __init__(self, index: Index, encoder: Encoder | None) -> None:
        """Load the table of passages and their embeddings, or make and store them.

        Args:
          index: the index.
          encoder: the encoder of the index; may be None if the embeddings of the bank are stored.
        """
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self.count = 0
        self.varied: frozenset[str] = frozenset()
        self._first_rows, self._contents = np.zeros(0, np.int64), list[str]()
        self._matrix: np.ndarray | None = None
        self.notes: list[str] = []
        directory = index.directory / "texts"
        try:
            listing = _list_files(directory)
        except OSError as error:
            reason = f"{directory} cannot be read ({error.strerror or error})"
            self.notes.append(f"{reason}: transcripts are not searched")
            return
        contents = transcripts.contents(index)
        if not contents:
            return
        sources = [transcripts.version(index), *listing]
        path = self._path(index, sources)
        matrix_path = path.with_suffix(".npy")
        matrix = self._load(path, index.encoder.width)
        if matrix is None:
            matrix, damaged = self._fill(index, contents)
            if damaged:  # not written: an unreadable file may be readable later
                files_of = f"{len(damaged)} files, for example " if len(damaged) > 1 else ""
                self.notes.append(
                    f"damaged or not readable: {files_of}{damaged[0]}: these transcripts are"
                    " searched by words only, until the folder is indexed again"
                )
                matrix_path = self._path(index, [*sources, *map(str, damaged)]).with_suffix(".npy")
            else:
                matrix = self._write(path, matrix)
        self._read_table()
        if len(matrix) >= MIN_EMBEDDED_PASSAGES:
            self._use_embeddings(index, encoder, matrix_path, matrix)

    def _load(self, path: Path, width: int) -> np.ndarray | None:
        """Load the stored table; return the embeddings, None if either is missing or damaged."""
        table = packed.load_table(path)
        if table is None:
            return None
        self._db = _open_database()
        self._db.deserialize(table)
        count = self._select_number("SELECT count(*) FROM vectors")
        return packed.load_matrix(path.with_suffix(".npy"), (count, width), "float16")

    def _read_table(self) -> None:
        """Read the contents and copies of the table into memory."""
        self.count = self._select_number("SELECT count(*) FROM said")
        selected = self._db.execute("SELECT first, content, is_varied FROM contents ORDER BY first")
        rows = selected.fetchall()
        self._first_rows = np.asarray([first for first, _, _ in rows], np.int64)
        self._contents = [content for _, content, _ in rows]
        self.varied = frozenset(content for _, content, is_varied in rows if is_varied)
        self._copies = {0: Copies()} | {
            number: Copies(frozenset(json.loads(names)), bool(are_others))
            for number, names, are_others in self._db.execute(
                "SELECT number, names, are_others FROM copies"
            )
        }

    def _path(self, index: Index, listing: Sequence[Any]) -> Path:
        """Return the path of the table that is made from the listed files."""
        sources = json.dumps(
            [_TABLES, words.VERSION, MAX_PAUSE_SECONDS, NULL_QUANTILE, rankers.BANK, listing]
        )
        key = hashlib.sha256(sources.encode()).hexdigest()[:32]
        return index.directory / "packed" / f"said-{key}.db"

    def _write(self, path: Path, embeddings: np.ndarray) -> np.ndarray:
        """Write the table and the embeddings, remove older ones, and return the embeddings."""
        fill = functools.partial(np.copyto, src=embeddings)
        matrix = packed.write_matrix(path.with_suffix(".npy"), embeddings.shape, "float16", fill)
        with contextlib.suppress(OSError):
            packed.write_table(path, self._db.serialize())
            packed.discard_outdated(path.parent.parent, "said-", path)
        return matrix

    def _fill(self, index: Index, contents: Iterable[str]) -> tuple[np.ndarray, list[Path]]:
        """Make the table of all passages.

        Args:
          index: the index.
          contents: hashes of contents.

        Returns:
          The embeddings [P, d] in the order of the table `vectors`, and the paths of damaged or
          unreadable files of embeddings.
        """
        self._db = _open_database()
        self._db.executescript(_TABLES)
        parts = [np.empty((0, index.encoder.width), np.float16)]
        damaged: list[Path] = []
        for content in contents:
            transcript = transcripts.load(index, content)
            if transcript is None:
                continue
            texts = _texts_to_embed(transcript)
            embeddings = _load_embeddings(index, content, texts)
            if embeddings is not None:
                parts.append(embeddings)
            elif texts and os.path.lexists(path := index.text_vectors(content)):
                damaged.append(path)
            self._insert(content, transcript, has_embeddings=embeddings is not None)
        self._db.commit()
        return np.concatenate(parts), damaged

    def _insert(self, content: str, transcript: Transcript, has_embeddings: bool) -> None:
        """Insert the passages of a content, with rows of `vectors` if it has embeddings."""
        groups = [(copies, cues) for copies, cues in transcript.by_copies() if cues]
        rows = []
        for copies, cues in groups:
            number = self._insert_copies(copies)
            for text, start, end, is_embedded in _split(cues):
                insert = "INSERT INTO said VALUES (?, ?, ?, ?, ?)"
                values = words.spaced(text), text, start, end, number
                rows.append(self._db.execute(insert, values).lastrowid)
                if has_embeddings and is_embedded:
                    self._db.execute("INSERT INTO vectors (passage) VALUES (?)", rows[-1:])
        if rows:
            is_varied = any(copies != Copies() for copies, _ in groups)
            insert = "INSERT INTO contents VALUES (?, ?, ?)"
            self._db.execute(insert, (rows[0], content, is_varied))

    def _insert_copies(self, copies: Copies) -> int:
        """Insert copies of a content, and return their number; 0 stands for all copies."""
        if copies == Copies():
            return 0
        values = json.dumps(sorted(copies.names)), copies.are_others
        insert = "INSERT INTO copies (names, are_others) VALUES (?, ?)"
        return int(self._db.execute(insert, values).lastrowid or 0)

    def _use_embeddings(
        self, index: Index, encoder: Encoder | None, path: Path, matrix: np.ndarray
    ) -> None:
        """Set the embeddings, and compute or load the margin of the threshold on their cosines."""
        is_large = len(matrix) >= packed.MIN_QUANTISED_ROWS
        self._rounded = packed.load_quantised(path, matrix) if is_large else None
        self._matrix, self._sampled = matrix, rankers.sample_rows(matrix)
        embedded = self._db.execute("SELECT passage FROM vectors ORDER BY row")
        self._embedded = np.fromiter((passage for (passage,) in embedded), np.int64)

        def compute_margin() -> np.ndarray:
            bank = rankers.embed_bank(index, encoder)
            blocks = range(0, len(matrix), packed.MAX_EXACT_ROWS)
            cosines = (packed.multiply(matrix[i : i + packed.MAX_EXACT_ROWS], bank) for i in blocks)
            best = np.max([block.max(0) for block in cosines], axis=0)
            margins = best - np.median(packed.multiply(self._sampled, bank), axis=0)
            return np.quantile(margins, NULL_QUANTILE).reshape(1, 1)

        level_path = path.with_suffix(".level.npy")
        self._margin = float(packed.load_or_compute(level_path, (1, 1), compute_margin)[0, 0])

    @property
    def has_embeddings(self) -> bool:
        """True if there are enough embeddings to search by."""
        return self._matrix is not None

    def _select_number(self, query: str, values: Sequence[Any] = ()) -> int:
        return int(self._db.execute(query, values).fetchone()[0])

    def search_embeddings(self, embedding: Float[np.ndarray, " d"]) -> RankedContents:
        """Return the passages whose cosines with a text embedding exceed the threshold.

        Args:
          embedding: the embedding of the query's text.

        Returns:
          The contents of these passages, the best first.
        """
        assert self._matrix is not None
        threshold = float(np.median(packed.multiply(self._sampled, embedding))) + self._margin
        rows, cosines = packed.find_above(self._rounded, self._matrix, embedding, threshold)
        best = np.argsort(-cosines, kind="stable")
        return self._rank(self._embedded[rows[best]], cosines[best], np.zeros(len(best)))

    def search_words(self, text: str) -> RankedContents:
        """Return the passages that contain the words of a text.

        A passage matches if its words have at least half of the weight of the text's words, so
        articles among other words match nothing. The weight of a word that is in p of P passages
        is ln(1 + (P - p + 1/2) / (p + 1/2)), with p at least 1. BM25 of the words ranks the
        passages. It leaves out words that are too common (`MAX_COMMON_SHARE`) if a passage needs
        none of them to match.

        Args:
          text: the text of the query.

        Returns:
          The contents of these passages, the best first.
        """
        searched = sorted(set(words.phrases(text))) if self.count else []
        with self._lock:
            weights = {word: self._weight(word) for word in searched}
            rows, scores, shares = self._search(weights)
        return self._rank(rows, scores, shares)

    def _search(self, weights: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the passages that contain words of at least half of a weight, best first.

        Args:
          weights: the weight of each word.

        Returns:
          The rows, BM25, and shares of the weight, of the passages.
        """
        total = rest = sum(weights.values())
        # The factor allows for rounding, because weights are added in several orders.
        min_weight = total / 2 * (1 - 1e-9)
        needed: list[str] = []  # without these words, less than half of the weight is left
        for word in sorted(weights, key=lambda word: (-weights[word], word)):
            if rest >= min_weight:
                needed.append(word)
                rest -= weights[word]
        has_needed = " OR ".join(f'"{word}"' for word in needed)
        max_count = max(MAX_COMMON_SHARE * self.count, MAX_COMMON_PASSAGES)
        ranking = [word for word in weights if word in needed or self._counts[word] <= max_count]
        sums = np.zeros(self.count + 1)  # weight of the words in each row
        for word, weight in weights.items():
            matching = f'"{word}"' if word in ranking else f'"{word}" AND ({has_needed})'
            selected = self._db.execute("SELECT rowid FROM said WHERE said MATCH ?", [matching])
            sums[np.fromiter((row for (row,) in selected), np.int64)] += weight
        rows = np.flatnonzero(sums >= min_weight) if weights else np.zeros(0, np.int64)
        if not len(rows):
            return rows, np.zeros(0), np.zeros(0)
        # The plus keeps SQLite from looking up each row; BM25 is computed for these rows only.
        selected = self._db.execute(
            "SELECT -bm25(said) FROM said WHERE said MATCH ?"
            " AND +rowid IN (SELECT value FROM json_each(?)) ORDER BY rowid",
            [" OR ".join(f'"{word}"' for word in ranking), json.dumps(rows.tolist())],
        )
        scores = np.fromiter((score for (score,) in selected), np.float64, len(rows))
        shares = sums[rows] / total
        order = np.lexsort((-shares, -scores))
        return rows[order], scores[order], shares[order]

    def _weight(self, word: str) -> float:
        if word not in self._counts:
            count = "SELECT count(*) FROM said WHERE said MATCH ?"
            self._counts[word] = self._select_number(count, [f'"{word}"'])
        count_or_one = max(self._counts[word], 1)
        return math.log(1 + (self.count - count_or_one + 0.5) / (count_or_one + 0.5))

    def _rank(self, rows: np.ndarray, scores: np.ndarray, shares: np.ndarray) -> RankedContents:
        """Return the contents of rows of the table.

        Args:
          rows: the rows, best first.
          scores: the score of each row.
          shares: the share of the query's weight of each row.
        """
        numbers = np.searchsorted(self._first_rows, rows, "right") - 1
        order = np.argsort(numbers, kind="stable")
        listed, starts = np.unique(numbers[order], return_index=True)
        groups = np.split(order, starts[1:])  # the rows of each content, best first
        best = order[starts]
        ranking = np.argsort(best).tolist()
        places = {self._contents[listed[i]]: groups[i] for i in ranking}

        def load(content: str) -> list[Passage]:
            place = places[content]
            passages = self._load_passages(rows[place].tolist())
            return [
                passage._replace(score=score, share=share)
                for passage, score, share in zip(
                    passages, scores[place].tolist(), shares[place].tolist(), strict=True
                )
            ]

        return RankedContents(
            dict(zip(places, scores[best[ranking]].tolist(), strict=True)),
            dict(zip(places, shares[best[ranking]].tolist(), strict=True)),
            load,
        )

    def _load_passages(self, rows: list[int]) -> list[Passage]:
        """Load the passages of rows of the table, in their order."""
        with self._lock:
            selected = self._db.execute(
                "SELECT rowid, start, stop, text, copies FROM said"
                " WHERE rowid IN (SELECT value FROM json_each(?))",
                [json.dumps(rows)],
            ).fetchall()
        passages = {
            row: Passage(start, end, text, 0.0, copies=self._copies[number])
            for row, start, end, text, number in selected
        }
        return [passages[row] for row in rows]


def _disjoint(passages: Iterable[Passage]) -> list[Passage]:
    """Return the passages without those that overlap an earlier one of the same copies."""
    listed: list[Passage] = []
    intervals_of: dict[Copies, list[tuple[float, float]]] = {}  # sorted
    for passage in passages:
        intervals = intervals_of.setdefault(passage.copies, [])
        place = bisect.bisect(intervals, (passage.start, passage.end))
        if not any(
            passage.start < end and start < passage.end
            for start, end in intervals[max(place - 1, 0) : place + 1]
        ):
            intervals.insert(place, (passage.start, passage.end))
            listed.append(passage)
    return listed


def fuse(
    by_words: RankedContents,
    by_meaning: RankedContents = NO_CONTENTS,
) -> RankedContents:
    """Fuse two rankings of contents by reciprocal rank fusion.

    A content's score is the sum of 1 / (`RRF_CONSTANT` + rank) over the rankings that contain it.
    Ties are broken in this order: contents with a passage that has every word, contents of
    `by_meaning`, and the others.

    Args:
      by_words: the contents ranked by words.
      by_meaning: the contents ranked by embeddings.

    Returns:
      The contents, the best first. Each of their passages has the score of its content, and none
      overlaps another of the same copies.
    """
    sums: dict[str, float] = {}
    for ranking in (by_words, by_meaning):
        for rank, content in enumerate(ranking.scores, 1):
            sums[content] = sums.get(content, 0.0) + 1 / (RRF_CONSTANT + rank)
    # The share of all words is 1 up to rounding errors, which 1e-6 allows for.
    complete = {content for content, share in by_words.shares.items() if share > 1 - 1e-6}
    order = sorted(sums, key=lambda x: (-sums[x], x not in complete, x not in by_meaning.scores))

    def load(content: str) -> list[Passage]:
        passages = [
            passage._replace(score=sums[content])
            for ranking in (by_words, by_meaning)
            if content in ranking.scores
            for passage in ranking.load(content)
        ]
        return _disjoint(passages)

    scores = {content: sums[content] for content in order}
    shares = {content: by_words.shares.get(content, 0.0) for content in order}
    return RankedContents(scores, shares, load)


def find_damaged(index: Index) -> dict[str, str]:
    """Return a line for each damaged or unreadable file of passage embeddings, by file name."""
    lines = {}
    for content in transcripts.contents(index):
        path = index.text_vectors(content)
        texts = _texts_to_embed(transcripts.load(index, content))
        if os.path.lexists(path) and _load_embeddings(index, content, texts) is None:
            repair = "index the folder again to recompute it"
            lines[path.name] = packed.describe_damage(path, repair)
    return lines
