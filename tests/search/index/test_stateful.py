"""Random sequences of changes to an archive and its index keep three invariants.

1. No file that the index did not write ever changes.
2. After indexing, the results equal the results of a fresh index of the same folder.
3. No video is encoded whose vectors are intact on the disk; and an indexed video loses its vectors
   only by damage, `remove`, `prune` or another content at its path.
"""

import contextlib
import functools
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import archive
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hlformer_jax import files, search
from hlformer_jax.errors import DamagedError, SearchError
from hlformer_jax.search.index import Index, packed, row_sums
from hlformer_jax.search.index.directory import COPY, DATABASE, MARK, SUMS

NAMES = ["a.film", "b.film", "disk/a.film", "disk/c.film", "sub/deep/d.film"]
COLOURS = ["red", "green", "blue", "white", "yellow"]
CONTENTS = range(5)
names, contents, numbers = st.sampled_from(NAMES), st.sampled_from(CONTENTS), st.integers(0, 10**6)


class Killed(BaseException):
    """The end of a process by a signal."""


class Kill:
    """Lets each write from the n-th on fail, as after SIGKILL."""

    def __init__(self, patch, after):
        self.remaining, self.dead, patch_ = after, False, patch.setattr
        write, replace, unlink = Path.write_bytes, Path.replace, Path.unlink

        def write_bytes(path, data):
            if self.dies():
                if not self.dead:
                    write(path, data[: len(data) // 2])
                self.end()
            return write(path, data)

        def replacing(path, target):
            if self.dies():
                if not self.dead and self.remaining % 2:
                    replace(path, target)
                self.end()
            return replace(path, target)

        def unlinking(path, missing_ok=False):
            if self.dead or self.dies():
                self.end()
            return unlink(path, missing_ok=missing_ok)

        kill, connect = self, sqlite3.connect

        class Connection(sqlite3.Connection):
            def execute(self, statement, *values):
                changes = statement.startswith(("BEGIN IMMEDIATE", "COMMIT", "INSERT", "DELETE"))
                if kill.dead and statement == "ROLLBACK":  # as the next process does
                    return super().execute(statement, *values)
                if changes and kill.dies():
                    if not kill.dead and statement == "COMMIT" and kill.remaining % 2:
                        super().execute(statement, *values)
                    kill.end()
                return super().execute(statement, *values)

        patch_(sqlite3, "connect", functools.partial(connect, factory=Connection))
        pwrite = os.pwrite

        def write_in_place(file, data, offset):
            if self.dies():
                if not self.dead:
                    pwrite(file, data[: len(data) // 2], offset)
                self.end()
            return pwrite(file, data, offset)

        patch_(os, "pwrite", write_in_place)
        patch_(Path, "write_bytes", write_bytes)
        patch_(Path, "replace", replacing)
        patch_(Path, "unlink", unlinking)

    def dies(self):
        self.remaining -= 1
        return self.dead or self.remaining < 0

    def end(self):
        self.dead = True
        raise Killed


class Machine(RuleBasedStateMachine):
    """An archive and its index, and the contents that both should have."""

    def __init__(self):
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="stateful-"))
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(os, "fsync", lambda file: None)
        self.films, self.unplugged_disk, self.directory = (
            self.place / name for name in ("films", "unplugged", "index")
        )
        self.films.mkdir()
        (self.films / "disk").mkdir()
        self.contents: dict[str, int] = {}  # contents by path, also on the disk that is unplugged
        self.records: dict[str, str] = {}  # digests by path, as the index should have them
        self.excluded: set[str] = set()
        self.damaged: set[str] = set()
        self.plugged, self.stale, self.foreign, self.clock = True, None, {}, 10**18
        self.bytes = {}
        for content in CONTENTS:
            path = self.place / "film"
            colours = [COLOURS[(content + i * i) % 5] for i in range(content % 2, 6)]
            archive.film(path, colours * 2)
            self.bytes[content] = path.read_bytes().ljust(400, b"\0")  # of one size
        (self.place / "film").unlink()
        self.digest = {}
        for content, data in self.bytes.items():
            (self.place / "film").write_bytes(data)
            self.digest[content] = files.digest(self.place / "film")

    def teardown(self):
        self.patch.undo()
        shutil.rmtree(self.place, ignore_errors=True)

    def visible(self, name):
        return self.plugged or not name.startswith("disk/")

    # Changes of the files.

    @rule(name=names, content=contents, backdated=st.booleans())
    def write(self, name, content, backdated):
        if self.visible(name):
            path = self.films / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.bytes[content])
            if backdated:
                os.utime(path, ns=(self.clock, self.clock))
            self.contents[name] = content

    @rule(name=names)
    def delete(self, name):
        if name in self.contents and self.visible(name):
            (self.films / name).unlink()
            del self.contents[name]

    @rule(name=names, to=names)
    def move(self, name, to):
        if name in self.contents and name != to and self.visible(name) and self.visible(to):
            (self.films / to).parent.mkdir(parents=True, exist_ok=True)
            (self.films / name).replace(self.films / to)
            self.contents[to] = self.contents.pop(name)

    @rule(empty=st.booleans())
    def unplug(self, empty):
        if self.plugged:
            (self.films / "disk").rename(self.unplugged_disk)
            self.plugged = False
            if empty:
                (self.films / "disk").mkdir()

    @rule()
    def plug(self):
        if not self.plugged:
            with contextlib.suppress(OSError):
                (self.films / "disk").rmdir()
            self.unplugged_disk.rename(self.films / "disk")
            self.plugged = True

    # Commands.

    def opened(self):
        try:
            return Index.open(self.directory)
        except SearchError:
            assert not self.records or self.damaged >= set(self.records.values())
            return archive.create(self.directory, self.films)

    def run(self, index=None, **options):
        """Index the folder; check that no video with intact vectors is decoded."""
        index = index or self.opened()
        readable, decoded = self.readable_contents(), []

        def sample(path, fps, size):
            decoded.append(files.digest(path))
            return archive.sample(path, fps, size)

        archive.fill(index, video=archive.VIDEO._replace(sample=sample), **options)
        assert not readable & set(decoded), "intact vectors were encoded again"
        assert len(decoded) == len(set(decoded))
        return index

    def readable_contents(self):
        """Return the contents whose vectors are intact."""
        readable = set()
        with contextlib.suppress(SearchError):
            index = Index.open(self.directory)
            rows = index._database.select("SELECT hash FROM contents")
            for [content] in rows:
                with contextlib.suppress(DamagedError):
                    index.read(content)
                    readable.add(content)
        return readable

    def expect_records(self, names):
        """Update the expected records after paths were scanned."""
        for name in sorted(names):
            digest = self.digest[self.contents[name]]
            if self.records.get(name) != digest:
                for path in sorted(self.records):  # a move, if a path with this content is missing
                    is_missing = path not in self.contents or not self.visible(path)
                    if self.records[path] == digest and is_missing:
                        del self.records[path]
                        break
            self.records[name] = digest

    def scanned(self):
        """Return the paths that a run of the index scans."""
        return {name for name in self.contents if self.visible(name)} - self.excluded

    @rule(stale=st.booleans())
    def index(self, stale):
        index = self.run(self.stale if stale else None)
        self.expect_records(self.scanned())
        self.compare(index)

    @rule(name=names)
    def add(self, name):
        if name in self.contents and self.visible(name):
            self.run(only=[self.films / name])
            self.excluded.discard(name)
            self.expect_records([name])

    @rule(name=names, drop=st.booleans())
    def remove(self, name, drop):
        """Remove a video, or prune it if it is offline."""
        index = self.opened()
        if name not in index.videos or (drop and name not in index.offline()):
            return
        with index.writing() as writer:
            content = index.videos[name].content
            writer.drop(name)
            if not drop:
                writer.exclude(name, "")
            writer.discard_unused({content})
        self.records.pop(name, None)
        if not drop:
            self.excluded.add(name)

    @rule()
    def remember(self):
        """Open the index as a second process does that writes later."""
        self.stale = self.opened()

    @rule()
    def second_writer(self):
        index = self.opened()
        with files.lock(self.directory):
            before = archive.everything(self.directory)
            with pytest.raises(SearchError):
                self.run(index)
            assert archive.everything(self.directory) == before

    @rule(after=st.integers(0, 30))
    def kill(self, after):
        self.opened()
        with pytest.MonkeyPatch.context() as patch:
            Kill(patch, after)
            try:
                archive.fill(Index.open(self.directory))
            except Killed:
                pass
        # Contents that were not replaced stay; new ones are stored if they were complete.
        replaced = {
            digest for name, digest in self.records.items()
            if name in self.scanned() and digest != self.digest[self.contents[name]]
        }  # fmt: skip
        retained = {
            digest for name, digest in self.records.items()
            if name not in self.scanned() or digest == self.digest[self.contents[name]]
        }  # fmt: skip
        assert (
            set(self.records.values()) - replaced | retained
            <= self.readable_contents() | self.damaged
        )
        index = self.opened()
        records = indexed_contents(index)
        for name, digest in records.items():
            assert digest == self.records.get(name) or digest == self.digest[self.contents[name]]
        self.records = records

    # Damage on the disk of the index.

    @rule(number=numbers, kind=st.sampled_from(["flip", "cut", "delete", "zero"]))
    def damage_vectors(self, number, kind):
        paths = sorted(self.directory.glob("embeddings-[0-9]*.*"))
        if paths:
            damage(paths[number % len(paths)], number, kind)
            self.forget()

    @rule(
        number=numbers,
        kind=st.sampled_from(["flip", "cut", "delete", "zero"]),
        name=st.sampled_from([DATABASE, COPY, SUMS, MARK]),
    )
    def damage_database(self, number, kind, name):
        path = self.directory / name
        if path.exists():
            before = path.read_bytes()
            damage(path, number, kind)
            try:
                reopened = Index.open(self.directory)
                # After a kill the copy may be older.
                records = indexed_contents(reopened)
                lost = set(reopened.excluded) != self.excluded or records != self.records
            except SearchError:  # both are damaged
                lost = True
            if lost:
                path.write_bytes(before)

    def forget(self):
        """Note which embeddings are damaged."""
        self.damaged |= set(self.records.values()) - self.readable_contents()

    @rule(number=numbers, kind=st.sampled_from(["flip", "cut", "delete", "zero"]))
    def damage_pack(self, number, kind):
        paths = packed.list_files(self.directory)
        if paths:
            damage(paths[number % len(paths)], number, kind)

    @rule()
    @precondition(lambda self: self.directory.exists() and not self.foreign)
    def put_foreign(self):
        self.opened()
        for name in archive.FOREIGN:
            (self.directory / name).parent.mkdir(exist_ok=True)
            (self.directory / name).write_bytes(name.encode())
            self.foreign[name] = name.encode()

    # Checks.

    @rule(ranker=st.sampled_from(["segments", "best_frame"]))
    def query(self, ranker):
        """Check that results are existing videos, and that errors are one line."""
        try:
            library = search.open(self.directory, ranker=ranker, encoder=archive.Encoder())
            hits = library.query("red", k=9)
        except SearchError as error:
            assert "\n" not in str(error)
            return
        assert all((self.films / hit.video).exists() for hit in hits)
        assert all("\n" not in line for line in hits.warnings)

    def compare(self, index):
        """Compare the index with the expected records and with a fresh index."""
        connection = index._database._connection
        assert row_sums.read(connection) in (None, row_sums.compute(connection))
        undamaged = set(self.records.values()) - self.damaged
        assert undamaged <= self.readable_contents()
        offline = {name for name in self.records if name not in self.scanned()}
        assert set(Index.open(self.directory).videos) == set(self.records)
        assert set(index.offline()) == offline
        # Damaged vectors of missing videos cannot be computed anew.
        self.damaged &= {self.records[name] for name in offline} - self.readable_contents()
        still_damaged = {content for content in self.damaged if content in self.records.values()}
        assert {name for name in index.verify() if len(name) == 64} == still_damaged
        fresh = archive.create(self.place / "fresh", self.films)
        with fresh.writing() as writer:
            for name in self.excluded:
                writer.exclude(name, "")
        archive.fill(fresh)
        try:
            for ranker in ("segments", "best_frame"):
                for sentence in ("red", "green white"):
                    expected = self.results_of(fresh, ranker, sentence)
                    assert self.results_of(index, ranker, sentence) == expected
        finally:
            shutil.rmtree(fresh.directory)

    def results_of(self, index, ranker, sentence):
        if not self.scanned():
            return []
        library = archive.opened(index, ranker=ranker)
        results = []  # rounded, because the rounding of BLAS depends on the number of rows
        for hit in library.query(sentence, k=9):
            moments = [(m.start, m.end, round(float(m.score), 5)) for m in hit.moments]
            results.append((hit.video, round(hit.score, 5), moments))
        return results

    @invariant()
    def nothing_else_changes(self):
        disk = self.films / "disk" if self.plugged else self.unplugged_disk
        for name, content in self.contents.items():
            path = disk / name[5:] if name.startswith("disk/") else self.films / name
            assert path.read_bytes() == self.bytes[content]
        for name, content in self.foreign.items():
            assert (self.directory / name).read_bytes() == content


def indexed_contents(index):
    """Return the content of each indexed video."""
    return {name: record.content for name, record in index.videos.items() if record.indexed}


def damage(path, number, kind):
    content = path.read_bytes()
    if kind == "delete":
        path.unlink()
    elif kind == "flip" and content:
        offset = number % len(content)
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
    elif kind == "cut":
        path.write_bytes(content[: number % (len(content) + 1)])
    else:
        path.write_bytes(bytes(len(content)))


# Most of the time is spent on the disk, so the fast tests try fewer archives than --all does.
DEFAULT = 15 if os.environ.get("HLFORMER_TEST_ALL") else 4
EXAMPLES = int(os.environ.get("HLFORMER_STATEFUL_EXAMPLES", DEFAULT))


TestArchive = Machine.TestCase
TestArchive.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=25, derandomize=EXAMPLES == DEFAULT, deadline=None,
    suppress_health_check=list(HealthCheck), database=None, report_multiple_bugs=False,
    phases=[Phase.generate] if "NOSHRINK" in os.environ else list(Phase),
)  # fmt: skip
