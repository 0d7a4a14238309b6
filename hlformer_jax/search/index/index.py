"""Index of videos: reading and checking; `writer` makes the changes.

    DIR/index.db         the record of every path and content (`database`)
    DIR/embeddings-N.*   the embeddings of all frames (`embeddings`)
    DIR/texts/           embeddings of the passages of transcripts (`passages`)
    DIR/packed/          matrices that searches derive; they are computed again if damaged

A directory that has other files and no mark of an index is not touched. Only files with these
names, and drafts of them, are written or deleted.

Each path has a record; paths of equal content share the embeddings. The id of a record is the start
of its content hash; for further paths of a content it is derived from content and path. An id is
kept while the path or the content stays the same. The record and embeddings of an offline video are
kept until `prune`.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hlformer_jax import files
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import DamagedError, SearchError, UnreadableError
from hlformer_jax.search.index import packed
from hlformer_jax.search.index.database import WAIT_SECONDS, Database
from hlformer_jax.search.index.embeddings import (
    FRAMES,
    ROUNDED,
    Embeddings,
    RowSpan,
)
from hlformer_jax.search.index.packed import PACKED, ContentRows, Quantised
from hlformer_jax.search.index.records import (
    EncoderFacts,
    Entry,
    Exclusion,
    Record,
    Stamp,
    Threshold,
    VideoArrays,
    check_rate,
    split_name,
)
from hlformer_jax.search.index.roots import Roots, find_missing
from hlformer_jax.search.index.statements import (
    ARRAYS,
    RECORDS,
    SPANS,
    decode_arrays,
    decode_name,
    decode_names,
    decode_records,
    decode_roots,
    decode_settings,
    decode_spans,
)
from hlformer_jax.search.index.writer import Writer
from hlformer_jax.text import legible, suggestion

_T = TypeVar("_T")

_COMPUTE_ANEW = "index the folder again to compute them anew"

TEXTS = re.compile(r"[0-9a-f]{64}\.vectors")
"""Names of the files of embeddings of passages."""

COPY_SECONDS = 10.0, 300.0
"""Shortest and longest time after which a run copies the database again, in seconds."""

COPY_SHARE = 0.01
"""Share of a run's time that these copies take, unless the longest time has passed."""

COPY_SPEED = 1e8
"""Bytes a second of the first copy, if the disk is not slower."""

FILES_BY_FOLDER = {"texts": TEXTS, "packed": PACKED}
"""Patterns of the file names in each folder of an index; only their drafts are deleted."""


class _MappedRows(NamedTuple):
    """Embeddings of contents, mapped into memory.

    Attributes:
      matrix: all rows of the files up to the end of the last of the contents.
      generation: number of the files that the rows are in.
      spans: the rows of each of the contents.
      counts: for each of the contents, how many frames share each of its rows; None if none do.
    """

    matrix: np.ndarray
    generation: int
    spans: list[RowSpan]
    counts: list[Any]


class Index:
    """An index: its database and its embeddings."""

    def __init__(self, directory: Path, database: Database) -> None:
        """Set the directory and the database of an index; use `open` or `create` instead."""
        self.directory = directory
        self._database = database
        self._runs = 0
        self._copied, self._copy_seconds = time.monotonic(), 0.0
        self._videos: tuple[Any, dict[str, Record]] = (None, {})
        settings = database.settings(decode_settings)
        self.encoder, self.fps = settings["encoder"], settings["fps"]
        self.every_frame = settings["every_frame"]
        self.embeddings = Embeddings(directory, self.encoder.width)

    @classmethod
    def create(
        cls,
        directory: str | os.PathLike[str],
        root: str | os.PathLike[str],
        encoder: Encoder,
        fps: float = 1.0,
        places: tuple[str, ...] = (),
        every_frame: bool = False,
    ) -> "Index":
        """Create an index without videos.

        Args:
          directory: a new or empty directory, or an index whose database and copy are damaged.
          root: the folder of the videos.
          encoder: the encoder (`hlformer_jax.encoders`).
          fps: frames a second.
          places: the hub id or the folders that the encoder can be loaded from.
          every_frame: whether each frame has an embedding of its own. False: still frames share
            the embedding of the last encoded frame (`ingest.stills`).

        Raises:
          SearchError: if the directory is an index or has other files, or the rate is not above 0
            and at most 1000.
          OSError: if the directory cannot be written.
        """
        check_rate(fps)
        directory = Path(directory)
        facts = vars(EncoderFacts.from_encoder(encoder, places))
        settings = {
            "encoder": json.dumps(facts), "fps": float(fps), "checkpoint": b"",
            "every_frame": int(every_frame),
        }  # fmt: skip
        return cls(directory, Database.create(directory, settings, Path(root).resolve()))

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> "Index":
        """Open an index.

        If the database is damaged, its copy is read instead, and `notes` has a line about it. The
        next change replaces the damaged file by the copy.

        Raises:
          SearchError: if there is no index, or it has another format.
          DamagedError: if the database and its copy are damaged or missing.
          UnreadableError: if they cannot be read at the moment.
        """
        directory = Path(directory)
        return cls(directory, Database(directory))

    @property
    def notes(self) -> list[str]:
        """Lines about damaged or unreadable files of the database."""
        return self._database.notes

    @property
    def state(self) -> tuple[int, int]:
        """A value that differs after every change of the index, by any process."""
        return self._database.state

    # Roots

    @property
    def root(self) -> Path:
        """The first folder of the videos."""
        return self.roots[""]

    @property
    def roots(self) -> Roots:
        """All roots, as the database has them now."""
        statement = "SELECT name, path FROM roots ORDER BY name"
        return Roots(self._database.decode(decode_roots, statement), self.directory)

    def unchanged_path(self, name: str) -> Path:
        """Return the path of a video whose file has the content that was indexed.

        A file whose stamp differs is read, and its content compared. A missing file is left to the
        caller, which will open it.

        Raises:
          SearchError: if the content has changed.
          OSError: if the file cannot be read.
        """
        path, record = self.roots.path(name), self.record(name)
        if record is None or not record.content or files.is_gone(path, follow=True):
            return path
        if Stamp.from_status(path.stat()) != record.stamp and files.digest(path) != record.content:
            raise SearchError(
                f"{path} has changed since it was indexed: index its folder again, and search again"
            )
        return path

    # Settings

    @property
    def key(self) -> str:
        """A digest of everything that determines embeddings; see `EncoderFacts.key`."""
        return self.encoder.key(self.fps, self.every_frame)

    @property
    def period(self) -> float:
        """Seconds between two frames."""
        return 1 / self.fps

    @property
    def checkpoint(self) -> str:
        """The directory of the trained model that ranks by default; "" for none."""
        return os.fsdecode(self._database.setting("checkpoint"))

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions in which images were encoded, the latest last; () if not recorded."""
        return self._texts("precisions")

    @property
    def unlisted(self) -> tuple[str, ...]:
        """Lines about the folders and groups of files that the last run could not list."""
        return self._texts("unlisted")

    def _texts(self, setting: str) -> tuple[str, ...]:
        """Return the texts of a setting; () if it is not recorded."""
        return self._database.decode(
            lambda rows: tuple(json.loads(rows[0][0])) if rows else (),
            "SELECT value FROM settings WHERE name = ?",
            [setting],
        )

    @property
    def thresholds(self) -> dict[str, Threshold]:
        """The calibrated match thresholds, by ranker."""
        rows = self._database.select("SELECT * FROM thresholds ORDER BY ranker")
        return {ranker: Threshold(*fields) for ranker, *fields in rows}

    def check_encoder(self, encoder: Encoder) -> None:
        """Check that an encoder is the encoder of the index.

        Raises:
          QueryError: if its fingerprint, preprocessing or width differs.
        """
        self.encoder.check(encoder, self.directory)

    # Videos

    @property
    def videos(self) -> dict[str, Record]:
        """The record of each path, by the name of the video; cached until the index changes."""
        state = None if self._database.in_transaction else self._database.state
        cached_state, records = self._videos
        if state is None or state != cached_state:
            records = self._database.decode(decode_records, f"{RECORDS} ORDER BY root, path")
            self._videos = state, records
        return dict(records)

    def record(self, name: str) -> Record | None:
        """Return the record of a video by its name; None if the index has no such video."""
        key = tuple(map(os.fsencode, split_name(name)))
        records = self._database.decode(
            decode_records, f"{RECORDS} WHERE root = ? AND path = ?", key
        )
        return next(iter(records.values()), None)

    def paths(self, content: str) -> set[str]:
        """Return the names of all videos with a content; empty for the content ""."""
        if not content:
            return set()
        statement = "SELECT root, path FROM paths WHERE content = ?"
        return set(self._database.decode(decode_names, statement, [content]))

    @property
    def excluded(self) -> dict[str, str]:
        """The content hash of each removed path, by name; "" if the content is unknown."""
        return {name: exclusion.content for name, exclusion in self.exclusions().items()}

    def exclusions(self) -> dict[str, Exclusion]:
        """Return the exclusion of each removed path, by name."""
        return self._database.decode(
            lambda rows: {decode_name(row[:2]): Exclusion(row[2], Stamp(*row[3:])) for row in rows},
            "SELECT root, path, content, size, modified_ns, changed_ns FROM exclusions",
        )

    def excluded_paths(self, content: str) -> list[str]:
        """Return the names of the removed paths of a content."""
        return self._database.decode(
            decode_names,
            "SELECT root, path FROM exclusions WHERE content = ? AND content != ''",
            [content],
        )

    @property
    def tags(self) -> dict[str, list[str]]:
        """The sorted tags of each content that has tags."""
        tags: dict[str, list[str]] = {}
        for content, tag in self._database.select("SELECT content, tag FROM tags"):
            tags.setdefault(content, []).append(tag)
        return {content: sorted(texts) for content, texts in tags.items()}

    def tags_of_video(self, name: str) -> tuple[str, ...]:
        """Return the tags of a video, sorted."""
        record = self.record(name)
        rows = self._database.select(
            "SELECT tag FROM tags WHERE content = ?", [record.content if record else ""]
        )
        return tuple(sorted(tag for [tag] in rows))

    def entries(self) -> list[Entry]:
        """Return all videos in the order of their paths, with their current availability."""
        videos, roots, tags = self.videos, self.roots, self.tags
        paths = {name: roots.path(name) for name in sorted(videos)}
        entries, offline = [], find_missing(paths)
        for name, path in paths.items():
            record = videos[name]
            entries.append(Entry(
                record.id, name, name.rpartition("/")[0].rstrip("/"), path, record.size,
                record.modified_ns / 1e9, record.duration, record.frames,
                "offline" if name in offline and record.indexed else record.state, record.reason,
                record.recorded, tuple(tags.get(record.content, ())), record.content,
            ))  # fmt: skip
        return entries

    def name_of(self, video: str) -> str:
        """Return the name of a video.

        Args:
          video: the name, the path, absolute or from the current folder, or the id of a video.

        Raises:
          SearchError: if the index has no such video.
        """
        for name in (video, self.roots.name_below(Path(os.path.abspath(video))) or ""):
            if name and self.record(name) is not None:
                return name
        statement = "SELECT root, path FROM paths WHERE id = ?"
        for name in self._database.decode(decode_names, statement, [video]):
            return name
        videos = self.videos
        raise SearchError(f"{self.directory} holds no video {video!r}{suggestion(video, videos)}")

    def offline(self) -> list[str]:
        """Return the names of videos that have embeddings and cannot be reached, sorted."""
        return [entry.video for entry in self.entries() if entry.state == "offline"]

    def unreadable(self, videos: Iterable[str]) -> list[str]:
        """Return the offline videos whose files may exist, in a folder that cannot be read."""
        roots = self.roots
        return [video for video in videos if not files.is_gone(roots.path(video), follow=True)]

    def summary(self) -> dict[str, Any]:
        """Return counts, seconds and bytes of the index, and its encoder and settings."""
        records = self.videos.values()
        indexed = [record for record in records if record.indexed]
        roots = {name: str(path) for name, path in self.roots.items()}
        offline = self.offline()
        unreadable = len(self.unreadable(offline))
        rows = dict(self.select(
            "SELECT hash, ifnull(rows, frames) FROM contents LEFT JOIN repeats ON content = hash"
        ))  # fmt: skip
        return {
            "index": str(self.directory),
            "folder": roots.pop(""),
            "folders": roots,
            "encoder": self.encoder.name,
            "precisions": list(self.precisions),
            "fps": self.fps,
            "every_frame": self.every_frame,
            "checkpoint": self.checkpoint,
            "videos": len(indexed),
            "offline": len(offline) - unreadable,
            "unreadable": unreadable,
            "failed": len(records) - len(indexed),
            "removed": len(self.excluded),
            "frames": sum(record.frames for record in indexed),
            "still": sum(
                record.frames - rows.get(record.content, record.frames) for record in indexed
            ),
            "seconds": sum(record.duration for record in indexed),
            "bytes": self.embeddings.size(sum(rows.values())),
        }

    def records(self) -> dict[str, Record]:
        """Return a record of each indexed content, in the order of their rows."""
        indexed = {record.content: record for record in self.videos.values() if record.indexed}
        rows = self._database.select("SELECT hash FROM contents ORDER BY first_row")
        return {content: indexed[content] for [content] in rows if content in indexed}

    def contents(self) -> list[str]:
        """Return the hashes of the indexed contents, sorted."""
        rows = self._database.select("SELECT DISTINCT embedded FROM paths WHERE state = 'indexed'")
        return sorted(content for [content] in rows)

    # Files

    def text_vectors(self, content: str) -> Path:
        """Return the path of the passage embeddings of a content."""
        return self.directory / "texts" / f"{content}.vectors"

    def select(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query of the database (`database` has its tables)."""
        return self._database.select(statement, values)

    def decode(
        self, decoder: Callable[[list[Any]], _T], statement: str, values: Sequence[Any] = ()
    ) -> _T:
        """Return the result of a function of all rows of a query; see `Database.decode`."""
        return self._database.decode(decoder, statement, values)

    # Embeddings

    def read(self, content: str) -> VideoArrays:
        """Return the embeddings of a content.

        Raises:
          DamagedError: if they are missing or damaged.
        """
        for is_last in (False, True):
            rows = self._database.decode(decode_arrays, ARRAYS, [content])
            if not rows:
                raise self._damage_error([content], "are missing")
            [(generation, span, repeats, duration, warning, recorded)] = rows
            try:
                times, vectors = self.embeddings.read(generation, span)
                if repeats is not None:
                    times, vectors = repeats.times, np.repeat(vectors, repeats.counts, axis=0)
                return VideoArrays(times, vectors, duration, warning, recorded)
            except FileNotFoundError as error:  # compacted by another process? then try again
                if is_last:
                    problem = f"are missing: {error.filename}: {_COMPUTE_ANEW}"
                    raise self._damage_error([content], problem) from None
            except DamagedError as error:
                advice = _COMPUTE_ANEW
                if isinstance(error, UnreadableError):
                    advice = f"check the disk and the rights, or {advice}"
                raise self._damage_error([content], f"{error}: {advice}", type(error)) from None
        raise AssertionError

    def has_embeddings(self, content: str) -> bool:
        """Return whether a content has embeddings, damaged ones too."""
        return bool(self._database.select("SELECT 1 FROM contents WHERE hash = ?", [content]))

    def check_embeddings_writable(self) -> None:
        """Check that embeddings can be added; see `Embeddings.check_writable`."""
        self.embeddings.check_writable(self._database.setting("generation"))

    def frames(self, contents: Sequence[str]) -> ContentRows:
        """Map the embeddings of contents into memory.

        Args:
          contents: hashes of contents, in the order of `records`.

        Raises:
          DamagedError: if some are missing or damaged; the error names all such contents.
        """
        mapped = self._map_rows(contents, decode_spans)
        starts = np.asarray([span.first for span in mapped.spans], np.int64)
        ends = starts + np.asarray([span.rows for span in mapped.spans], np.int64)
        all_counts = np.zeros(len(mapped.matrix), np.int64)
        for start, end, counts in zip(starts, ends, mapped.counts, strict=True):
            all_counts[start:end] = 1 if counts is None else counts
        return ContentRows(mapped.matrix, starts, ends, all_counts)

    def rounded_frames(self, contents: Sequence[str]) -> Quantised:
        """Map the quantised embeddings of contents; see `frames`."""
        mapped = self._map_rows(contents)
        return self.embeddings.rounded(mapped.generation, mapped.spans, mapped.matrix)

    def mend_rounded(self, contents: Sequence[str]) -> None:
        """Compute damaged quantised embeddings anew, if they can be read and written.

        In a large index, searches read them and do this.

        Args:
          contents: hashes of contents with intact embeddings.
        """
        intact = set(contents)
        indexed = [content for content in self.records() if content in intact]
        if indexed and not self._is_large():
            with contextlib.suppress(OSError, DamagedError):  # `verify` names the file
                self.rounded_frames(indexed)

    def _is_large(self) -> bool:
        """Return whether searches read the quantised embeddings."""
        return sum(record.frames for record in self.records().values()) >= packed.MIN_QUANTISED_ROWS

    def _map_rows(
        self, contents: Sequence[str], decoder: Callable[[list[Any]], list[Any]] = list
    ) -> _MappedRows:
        """Map the embeddings of contents into memory; `decoder` unpacks the rows of `SPANS`."""
        for is_last in (False, True):
            rows = self._database.decode(decoder, SPANS)
            spans = {content: RowSpan(*span) for _, content, *span, _ in rows}
            counts = {row[1]: row[-1] for row in rows}
            missing = [content for content in contents if content not in spans]
            if missing:
                raise self._damage_error(missing, "are missing")
            generation, selected_spans = rows[0][0], [spans[content] for content in contents]
            if moved := [
                content
                for content, before, after in zip(
                    contents[1:], selected_spans, selected_spans[1:], strict=False
                )
                if after.first < before.first
            ]:  # another process has just written them again: the next query sees the result
                raise self._damage_error(moved, "are being computed anew")
            try:
                matrix, damaged = self.embeddings.rows(generation, selected_spans)
            except FileNotFoundError as error:  # compacted by another process? then try again
                if is_last:
                    problem = f"are missing: {error.filename}: {_COMPUTE_ANEW}"
                    raise self._damage_error(contents, problem) from None
                continue
            if damaged:
                path = self.embeddings.path(generation, FRAMES)
                problem = f"in {path} are damaged: {_COMPUTE_ANEW}"
                raise self._damage_error([contents[i] for i in damaged], problem)
            selected_counts = [counts[content] for content in contents]
            return _MappedRows(matrix, generation, selected_spans, selected_counts)
        raise AssertionError

    def _damage_error(
        self, contents: Iterable[str], problem: str, kind: type[DamagedError] = DamagedError
    ) -> DamagedError:
        """Return the error for contents whose embeddings have a problem."""
        lines = {}
        for content in contents:
            names = sorted(self.paths(content))
            video = repr(legible(names[0])) if names else "a video"
            lines[content] = f"the embeddings of {video} {problem}"
        return kind.from_contents(lines)

    def check(self, contents: Iterable[str]) -> None:
        """Read the embeddings of contents.

        Raises:
          DamagedError: if some are missing or damaged; the error names all such contents.
        """
        if damaged_lines := self._find_damaged(contents):
            raise DamagedError.from_contents(damaged_lines)

    def _find_damaged(
        self, contents: Iterable[str], progress: Callable[[], object] = lambda: None
    ) -> dict[str, str]:
        """Read the embeddings of contents; return a line for each content with damaged ones."""
        damaged_lines: dict[str, str] = {}
        for content in contents:
            try:
                self.read(content)
            except DamagedError as error:
                damaged_lines |= error.contents
            progress()
        return damaged_lines

    def verify(self, progress: Callable[[], object] = lambda: None) -> dict[str, str]:
        """Read the database and all embeddings; return a line for each damaged content or file.

        Args:
          progress: called after each content.
        """
        damaged_lines = self._find_damaged(self.contents(), progress)
        rows = self._database.select(f"{SPANS} ORDER BY first_row")
        spans = [RowSpan(*span) for _, _, *span, _ in rows]
        if spans and self.embeddings.damaged_rounded(rows[0][0], spans):
            path = self.embeddings.path(rows[0][0], ROUNDED)
            repair = "index the folder again to compute it anew"
            if self._is_large():
                repair = "the next search computes it anew"
            damaged_lines[path.name] = packed.describe_damage(path, repair)
        return self._database.find_damaged() | damaged_lines  # also rows that were damaged above

    # Changes

    @contextlib.contextmanager
    def writing(self, wait: float = WAIT_SECONDS) -> Iterator[Writer]:
        """Run the block as one transaction, which is rolled back if it raises an error.

        Args:
          wait: seconds to wait for another process.

        Raises:
          LockedError: if another process is still writing after that time.
          SearchError: if the disk is full or read-only.
          UnreadableError: if the index cannot be read at the moment.
        """
        with self._database.transaction(wait) as connection:
            writer = Writer(self, connection)
            yield writer
            if not self._runs and writer.unused:
                writer.compact()
        for content in writer.unused:
            self._discard_files(content)
        if not self._runs:
            self._finish()
        elif time.monotonic() - self._copied > self._copy_interval():
            with contextlib.suppress(SearchError):  # the end of the run tries again
                self._finish()

    @contextlib.contextmanager
    def running(self, wait: float = 0.0) -> Iterator[None]:
        """Lock the index against other indexing processes; short changes remain possible.

        Args:
          wait: seconds to wait for another indexing process.

        Raises:
          LockedError: if another process is still indexing after that time.
        """
        with self._database.running(wait):
            for folder, pattern in FILES_BY_FOLDER.items():
                files.discard_drafts(self.directory / folder, pattern.fullmatch)
            self._runs += 1
            self._copied = time.monotonic()
            try:
                yield
                with self.writing() as writer:
                    writer.compact()
            finally:
                self._runs -= 1
        self._discard_older()

    def remove(self, videos: Collection[str]) -> int:
        """Remove videos and further roots until they are added again; see `Writer.remove`."""
        with self.writing() as writer:
            return writer.remove(videos)

    def _copy_interval(self) -> float:
        """Return the seconds between two copies of the database during a run."""
        [[pages], [page_bytes]] = self.select(
            "SELECT * FROM pragma_page_count UNION ALL SELECT * FROM pragma_page_size"
        )
        copy_seconds = max(self._copy_seconds, pages * page_bytes / COPY_SPEED)
        shortest, longest = COPY_SECONDS
        return min(max(copy_seconds / COPY_SHARE, shortest), longest)

    def _finish(self) -> None:
        """Copy the database after a change, and delete files of older generations."""
        start = time.monotonic()
        try:
            self._database.finish()
        finally:
            self._copied = time.monotonic()
            self._copy_seconds = self._copied - start
        self._discard_older()

    def _discard_older(self) -> None:
        generation = self._database.setting("generation")
        self.embeddings.discard(lambda number: number < generation)

    def _discard_files(self, content: str) -> None:
        """Delete the files of a content."""
        files.discard(self.text_vectors(content))
