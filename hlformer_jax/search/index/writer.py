"""Changes of an index, in one transaction: `Index.writing` yields a `Writer`."""

import dataclasses
import hashlib
import itertools
import json
import os
import sqlite3
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hlformer_jax.errors import SearchError
from hlformer_jax.search.index.embeddings import Repeats, Span
from hlformer_jax.search.index.records import (
    CONTENT_HASH,
    FAILED,
    INDEXED,
    UNKNOWN_STAMP,
    Record,
    Stamp,
    Threshold,
    VideoArrays,
    check_arrays,
    check_record,
    split_name,
)
from hlformer_jax.text import caseless, legible

if TYPE_CHECKING:
    from hlformer_jax.search.index.index import Index

DEAD_SHARE = 0.25
"""Share of unused embedding rows above which compaction copies the other rows to new files."""

FAVOURITE = "favourite"
"""Tag of videos that have a star on the page."""


class Writer:
    """One transaction on an index; other processes see its changes after it has ended.

    Names of videos are as in `split_name`.
    """

    def __init__(self, index: "Index", connection: sqlite3.Connection) -> None:
        """Create a writer.

        Args:
          index: the index.
          connection: its connection to the database, which is in a transaction.
        """
        self._index, self._connection = index, connection
        self.unused: set[str] = set()  # contents whose files can be deleted after the commit

    def execute(self, statement: str, *values: Any) -> list[Any]:
        """Execute an SQL statement, and return its rows.

        Args:
          statement: the statement.
          *values: the values of its placeholders.
        """
        return self._connection.execute(statement, values).fetchall()

    # Videos

    def keep(self, content: str, arrays: VideoArrays, paths: Mapping[str, Stamp]) -> None:
        """Write the embeddings of a content, and record its paths.

        Args:
          content: the content hash.
          arrays: the embeddings of all frames.
          paths: the stamps of the files that have this content, by the names of the videos.

        Raises:
          ArraysError: if the embeddings cannot be stored.
          ValueError: if the hash or a name is invalid.
          OSError: if the embeddings cannot be written.
        """
        if not CONTENT_HASH.fullmatch(content):
            raise ValueError(f"content is {content[:80]!r}: give 64 hexadecimal digits")
        check_arrays(arrays, self._index.encoder.width)
        [[generation], [end]] = self.execute(
            "SELECT value FROM settings WHERE name IN ('generation', 'rows_end') ORDER BY name"
        )
        repeats = Repeats.find(arrays.times, arrays.vectors)
        span = self._index.embeddings.append(
            generation, end, arrays.times[repeats.firsts], arrays.vectors[repeats.firsts]
        )
        self.execute(
            "INSERT INTO contents (hash, duration, recorded, warning, first_row, frames, checksum,"
            " rounded_checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (hash) DO UPDATE SET"
            " duration = excluded.duration, recorded = excluded.recorded,"
            " warning = excluded.warning, first_row = excluded.first_row,"
            " frames = excluded.frames, checksum = excluded.checksum,"
            " rounded_checksum = excluded.rounded_checksum",
            content, float(arrays.duration), float(arrays.recorded), legible(arrays.warning),
            span.first, len(arrays.times), span.checksum, span.rounded_checksum,
        )  # fmt: skip
        self.execute("DELETE FROM repeats WHERE content = ?", content)
        if span.rows < len(arrays.times):
            self.execute(
                "INSERT INTO repeats VALUES (?, ?, ?, ?)", content, span.rows, *repeats.pack()
            )
        self.execute(
            "UPDATE settings SET value = ? WHERE name = 'rows_end'", span.first + span.rows
        )
        for name, stamp in paths.items():
            self.record(name, content, stamp)

    def record(self, name: str, content: str, stamp: Stamp) -> None:
        """Record a path of a content that has embeddings.

        Args:
          name: the name of the video.
          content: the content hash.
          stamp: the stamp of the file.
        """
        self._put(name, Record(self._id(name, content), content, *stamp, INDEXED))

    def record_failure(self, name: str, content: str, stamp: Stamp, reason: str) -> None:
        """Record that a path could not be indexed.

        Args:
          name: the name of the video.
          content: the content hash; "" if the file could not be read.
          stamp: the stamp of the file; `UNKNOWN_STAMP` lets the next run try it again.
          reason: why it could not be indexed.
        """
        self._put(name, Record(self._id(name, content), content, *stamp, FAILED, legible(reason)))

    def move(self, name: str, to: str) -> None:
        """Record that a video has been moved to another path; its id stays the same.

        Args:
          name: the old name of the video.
          to: its new name.
        """
        record = self._index.record(name)
        assert record is not None
        check_record(to, record)
        self.drop(name)
        self._put(to, record)

    def drop(self, name: str) -> None:
        """Delete the record of a path; its embeddings are kept until `discard_unused`."""
        self.execute("DELETE FROM paths WHERE root = ? AND path = ?", *_key(name))

    def forget(self, names: Collection[str]) -> None:
        """Delete the records of paths, and the embeddings of contents that have no other path.

        Args:
          names: the names of the videos.
        """
        contents = {record.content for name in names if (record := self._index.record(name))}
        for name in names:
            self.drop(name)
        self.discard_unused(contents)

    def discard_unused(self, contents: Collection[str] | None = None) -> None:
        """Delete the embeddings of contents that no path has.

        Args:
          contents: the contents to check; None for all contents.
        """
        unused = {
            content
            for [content] in self.execute(
                "SELECT hash FROM contents WHERE hash NOT IN"
                " (SELECT embedded FROM paths WHERE embedded IS NOT NULL)"
            )
        }
        if contents is not None:
            unused &= set(contents)
        self._connection.executemany(
            "DELETE FROM contents WHERE hash = ?", [[content] for content in unused]
        )
        self.unused |= unused

    def remove(self, videos: Collection[str]) -> int:
        """Remove videos and further roots until they are added again; their files are kept.

        A removed video also stays removed after its file has been moved.

        Args:
          videos: paths or ids of videos, or the paths of further roots.

        Returns:
          The number of removed videos.

        Raises:
          SearchError: if the index does not contain one of them.
        """
        places = {video: os.path.abspath(video) for video in videos}
        further = {str(path): name for name, path in self._index.roots.items() if name}
        removed_roots = {further[place] for place in places.values() if place in further}
        names = {
            self._index.name_of(video) for video, place in places.items() if place not in further
        }
        for name in names:
            record = self._index.record(name)
            assert record is not None
            self.exclude(name, record.content, record.stamp)
        if removed_roots:
            names |= {name for name in self._index.videos if split_name(name)[0] in removed_roots}
        self.forget(names)
        for root in removed_roots:
            self.execute("DELETE FROM exclusions WHERE root = ?", os.fsencode(root))
            self.execute("DELETE FROM roots WHERE name = ?", os.fsencode(root))
        return len(names)

    def exclude(self, name: str, content: str, stamp: Stamp = UNKNOWN_STAMP) -> None:
        """Record that a user has removed a path.

        Args:
          name: the name of the video.
          content: its content hash; "" if the content is unknown: then any file at the path is
            removed.
          stamp: the stamp of the file.
        """
        root, path = _key(name)
        self.execute(
            "INSERT OR REPLACE INTO exclusions (root, path, content, size, modified_ns, changed_ns)"
            " SELECT name, ?, ?, ?, ?, ? FROM roots WHERE name = ?",
            path, content, *stamp, root,
        )  # fmt: skip

    def include(self, name: str, content: str = "") -> None:
        """Delete the exclusion of a path, and of missing paths with the same content.

        Args:
          name: the name of the video.
          content: its content hash; "" for the content that its exclusion has recorded.
        """
        for [removed] in self.execute(
            "SELECT content FROM exclusions WHERE root = ? AND path = ?", *_key(name)
        ):
            content = content or removed
        names = self._index.excluded_paths(content)
        self._delete_exclusions({name, *filter(self._index.roots.is_deleted, names)})

    def keeps_out(self, name: str, content: str, stamp: Stamp, kept: int = 0) -> bool:
        """Exclude a path whose content a user has removed, there or under another path.

        A copy of a removed video is not excluded if another path of that content is in the index,
        unless a removed path of that content is missing: then the file counts as moved. If a path
        that was not removed is missing, too, the file counts as moved from there.

        Args:
          name: the name of the video.
          content: its content hash.
          stamp: the stamp of its file.
          kept: number of paths of the content in the index before the run.

        Returns:
          Whether the path is excluded.
        """
        removed = self._index.excluded_paths(content)
        record = self._index.record(name)
        if not removed or record is not None and record.content == content:
            return False
        moved = [path for path in removed if path != name and self._has_left(path, content)]
        paths = self._index.paths(content)
        is_kept = len(paths) < kept or any(map(self._index.roots.is_deleted, paths))
        if name not in removed and (is_kept or paths and not moved):
            return False
        if record is not None:
            self.forget([name])
        self.exclude(name, content, stamp)
        self._delete_exclusions(moved)
        return True

    def _has_left(self, name: str, content: str) -> bool:
        """Return whether a content is no longer at a path: it was moved, deleted or replaced."""
        record = self._index.record(name)
        is_replaced = record is not None and record.content != content
        return is_replaced or self._index.roots.is_deleted(name)

    def compact(self) -> None:
        """Copy the used rows to new files if more than `DEAD_SHARE` of all rows are unused.

        If that fails, such as on a full disk, the rows stay where they are until a later change.
        """
        rows = self.execute(
            "SELECT hash, first_row, ifnull(rows, frames), checksum, rounded_checksum FROM contents"
            " LEFT JOIN repeats ON content = hash ORDER BY first_row"
        )
        spans = [Span(*row[1:]) for row in rows]
        [[generation], [end]] = self.execute(
            "SELECT value FROM settings WHERE name IN ('generation', 'rows_end') ORDER BY name"
        )
        embeddings, used = self._index.embeddings, sum(span.rows for span in spans)

        def discard_copies() -> None:
            embeddings.discard(lambda number: number > generation)

        discard_copies()  # of a process that was killed
        if end - used <= DEAD_SHARE * end:
            return
        try:
            firsts = embeddings.compact(generation, spans)
        except OSError:
            discard_copies()
            return
        # No row moves to a larger position, so the positions stay unique after every update.
        for (content, *_), first in zip(rows, firsts, strict=True):
            self.execute("UPDATE contents SET first_row = ? WHERE hash = ?", first, content)
        self._connection.executemany(
            "UPDATE settings SET value = ? WHERE name = ?",
            [(generation + 1, "generation"), (used, "rows_end")],
        )

    def _delete_exclusions(self, names: Iterable[str]) -> None:
        for name in names:
            self.execute("DELETE FROM exclusions WHERE root = ? AND path = ?", *_key(name))

    def _put(self, name: str, record: Record) -> None:
        """Record a path; if its content is new and has no tags, copy the old content's tags."""
        check_record(name, record)
        before = self._index.record(name)
        if before is not None and record.content and before.content != record.content:
            self.execute(
                "INSERT INTO tags SELECT ?, key, tag FROM tags WHERE content = ?"
                " AND NOT EXISTS (SELECT 1 FROM tags WHERE content = ?)",
                record.content, before.content, record.content,
            )  # fmt: skip
        # Without its root, another process has just removed the path.
        reason, (root, path) = "" if record.indexed else record.reason, _key(name)
        self.execute(
            "INSERT INTO paths (root, path, id, content, size, modified_ns, changed_ns, state,"
            " reason) SELECT name, ?, ?, ?, ?, ?, ?, ?, ? FROM roots WHERE name = ?"
            " ON CONFLICT (root, path) DO UPDATE SET"
            " id = excluded.id, content = excluded.content, size = excluded.size,"
            " modified_ns = excluded.modified_ns, changed_ns = excluded.changed_ns,"
            " state = excluded.state, reason = excluded.reason",
            path, record.id, record.content, *record.stamp, record.state, reason, root,
        )  # fmt: skip

    def _id(self, name: str, content: str) -> str:
        """Return the id of a path: the start of its content hash, or if it is taken, another hash.

        The id of a recorded path stays the same as long as its content does.
        """
        before = self._index.record(name)
        if before is not None and content and before.content == content:
            return before.id
        identity = content[:16]
        text = f"{content}\0".encode() + os.fsencode(name)
        while not identity or self._is_taken(identity, name):
            text = hashlib.sha256(text).hexdigest().encode()
            identity = text[:16].decode()
        return identity

    def _is_taken(self, identity: str, name: str) -> bool:
        rows = self.execute("SELECT root, path FROM paths WHERE id = ?", identity)
        return any(row != _key(name) for row in rows)

    # Tags, roots and settings

    def tag(self, names: Iterable[str], add: Iterable[str] = (), drop: Iterable[str] = ()) -> None:
        """Add tags to videos, and remove tags.

        Tags belong to contents and ignore case. They are kept when a video is moved, replaced at
        its path, or removed and added again.

        Args:
          names: names of the videos.
          add: tags to add.
          drop: tags to remove.

        Raises:
          SearchError: if a text cannot be a tag, or a video could not be read.
        """
        new = {tag_key(text): _tag(text) for text in add}
        dropped = {tag_key(_tag(text)) for text in drop}
        for name in names:
            record = self._index.record(name)
            if record is None or not record.content:
                raise SearchError(f"{name} could not be read and cannot be tagged")
            for key, tag in new.items():
                self.execute(
                    "INSERT OR REPLACE INTO tags VALUES (?, ?, ?)", record.content, key, tag
                )
            for key in dropped:
                self.execute("DELETE FROM tags WHERE content = ? AND key = ?", record.content, key)

    def add_root(self, folder: Path) -> str:
        """Record a further root.

        Args:
          folder: its absolute path.

        Returns:
          The name of the root.

        Raises:
          SearchError: if the folder contains a root, or is inside one.
        """
        roots = self._index.roots
        roots.check_apart(folder)
        name = base = folder.name or "root"
        for number in itertools.count(2):
            if name not in roots and not os.path.lexists(self._index.root / name):
                break
            name = f"{base}-{number}"
        self.execute("INSERT INTO roots VALUES (?, ?)", os.fsencode(name), os.fsencode(folder))
        return name

    def move_root(self, name: str, folder: Path) -> None:
        """Record that a root has been moved to another path.

        Args:
          name: the name of the root; "" for the first root.
          folder: its new absolute path.
        """
        self.execute(
            "UPDATE roots SET path = ? WHERE name = ?", os.fsencode(folder), os.fsencode(name)
        )

    def set_checkpoint(self, run: Path) -> None:
        """Record the directory of the trained model that ranks by default."""
        self.execute("UPDATE settings SET value = ? WHERE name = 'checkpoint'", os.fsencode(run))

    def set_precisions(self, precisions: Iterable[str]) -> None:
        """Record the precisions in which images were encoded.

        Args:
          precisions: the precisions; the last one is the precision of the next images.
        """
        value = json.dumps(list(precisions))
        self.execute("INSERT OR REPLACE INTO settings VALUES ('precisions', ?)", value)

    def set_unlisted(self, lines: Iterable[str]) -> None:
        """Record lines about the folders and files that the last run could not list."""
        value = json.dumps(list(lines))
        self.execute("INSERT OR REPLACE INTO settings VALUES ('unlisted', ?)", value)

    def set_thresholds(self, thresholds: Mapping[str, Threshold]) -> None:
        """Replace the calibrated match thresholds of all rankers.

        Args:
          thresholds: the threshold of each ranker, by its label.

        Raises:
          ValueError: if a threshold has an impossible value.
        """
        self.execute("DELETE FROM thresholds")
        for ranker, threshold in thresholds.items():
            if not (
                abs(threshold.margin) < 2**40
                and 0 < threshold.false_alarms < 100
                and min(threshold.captions, threshold.frames) > 0
            ):
                raise ValueError(f"the match threshold of {ranker} cannot be stored: {threshold}")
            self.execute(
                "INSERT INTO thresholds VALUES (?, ?, ?, ?, ?)",
                ranker, *dataclasses.astuple(threshold),
            )  # fmt: skip


def _key(name: str) -> tuple[bytes, bytes]:
    root, path = split_name(name)
    return os.fsencode(root), os.fsencode(path)


def _tag(text: str) -> str:
    """Return a tag in the form in which it is stored: one line, single spaces, composed Unicode."""
    tag = unicodedata.normalize("NFC", " ".join(text.split()))
    if not (tag.isprintable() and 0 < len(tag) <= 100):
        raise SearchError(f"{text[:100]!r} is not a tag: give 1 to 100 printable characters")
    return tag


def tag_key(tag: str) -> str:
    """Return the form in which tags are compared: without case, in composed Unicode."""
    return caseless(" ".join(tag.split()))
