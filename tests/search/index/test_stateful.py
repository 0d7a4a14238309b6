"""Anything that happens to an archive and its index, in any order: three invariants.

1. No file that the index did not write ever changes.
2. After indexing, the hits are those of a fresh index of what is there.
3. Nothing is encoded whose vectors are whole on the disk; and nothing that was indexed loses its
   vectors but by damage, `remove`, `prune` or another content in its place.
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
    """The process is gone."""


class Kill:
    """From the n-th step of writing on, nothing is written any more: as after SIGKILL."""

    def __init__(self, patch, after):
        self.left, self.dead, patch_ = after, False, patch.setattr
        write, replace, unlink = Path.write_bytes, Path.replace, Path.unlink

        def write_bytes(path, content):
            if self.dies():
                if not self.dead:
                    write(path, content[: len(content) // 2])
                self.end()
            return write(path, content)

        def replacing(path, target):
            if self.dies():
                if not self.dead and self.left % 2:
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
                    if not kill.dead and statement == "COMMIT" and kill.left % 2:
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
        self.left -= 1
        return self.dead or self.left < 0

    def end(self):
        self.dead = True
        raise Killed


class Machine(RuleBasedStateMachine):
    """An archive, its index, and what both should be."""

    def __init__(self):
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="stateful-"))
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(os, "fsync", lambda file: None)
        self.films, self.away, self.directory = (
            self.place / name for name in ("films", "away", "index")
        )
        self.films.mkdir()
        (self.films / "disk").mkdir()
        self.there: dict[str, int] = {}  # contents by path, also on the disk that is away
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

    # What a person does with the files.

    @rule(name=names, content=contents, backdated=st.booleans())
    def write(self, name, content, backdated):
        if self.visible(name):
            path = self.films / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.bytes[content])
            if backdated:
                os.utime(path, ns=(self.clock, self.clock))
            self.there[name] = content

    @rule(name=names)
    def delete(self, name):
        if name in self.there and self.visible(name):
            (self.films / name).unlink()
            del self.there[name]

    @rule(name=names, to=names)
    def move(self, name, to):
        if name in self.there and name != to and self.visible(name) and self.visible(to):
            (self.films / to).parent.mkdir(parents=True, exist_ok=True)
            (self.films / name).replace(self.films / to)
            self.there[to] = self.there.pop(name)

    @rule(empty=st.booleans())
    def unplug(self, empty):
        if self.plugged:
            (self.films / "disk").rename(self.away)
            self.plugged = False
            if empty:
                (self.films / "disk").mkdir()

    @rule()
    def plug(self):
        if not self.plugged:
            with contextlib.suppress(OSError):
                (self.films / "disk").rmdir()
            self.away.rename(self.films / "disk")
            self.plugged = True

    # What the index is told to do.

    def opened(self):
        try:
            return Index.open(self.directory)
        except SearchError:
            assert not self.records or self.damaged >= set(self.records.values())
            return archive.create(self.directory, self.films)

    def run(self, index=None, **options):
        """Indexes; nothing is decoded whose vectors were whole."""
        index = index or self.opened()
        known, read = self.whole(), []

        def sample(path, fps, size):
            read.append(files.digest(path))
            return archive.sample(path, fps, size)

        archive.fill(index, video=archive.VIDEO._replace(sample=sample), **options)
        assert not known & set(read), "what was known was encoded again"
        assert len(read) == len(set(read))
        return index

    def whole(self):
        found = set()
        with contextlib.suppress(SearchError):
            index = Index.open(self.directory)
            rows = index._database.select("SELECT hash FROM contents")
            for [content] in rows:
                with contextlib.suppress(DamagedError):
                    index.read(content)
                    found.add(content)
        return found

    def note(self, names):
        """The records that there should be after such paths were looked at."""
        for name in sorted(names):
            digest = self.digest[self.there[name]]
            if self.records.get(name) != digest:
                for other in sorted(self.records):
                    gone = other not in self.there or not self.visible(other)
                    if self.records[other] == digest and gone:
                        del self.records[other]
                        break
            self.records[name] = digest

    def look(self):
        return {name for name in self.there if self.visible(name)} - self.excluded

    @rule(stale=st.booleans())
    def index(self, stale):
        index = self.run(self.stale if stale else None)
        self.note(self.look())
        self.compare(index)

    @rule(name=names)
    def add(self, name):
        if name in self.there and self.visible(name):
            self.run(only=[self.films / name])
            self.excluded.discard(name)
            self.note([name])

    @rule(name=names, drop=st.booleans())
    def remove(self, name, drop):
        """`remove`, or `prune` of one that is offline."""
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
        """A second process has opened the index, and will write later."""
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
        # What was not replaced is kept; of what is new, as much as was complete.
        replaced = {
            digest for name, digest in self.records.items()
            if name in self.look() and digest != self.digest[self.there[name]]
        }  # fmt: skip
        others = {
            digest for name, digest in self.records.items()
            if name not in self.look() or digest == self.digest[self.there[name]]
        }  # fmt: skip
        assert set(self.records.values()) - replaced | others <= self.whole() | self.damaged
        index = self.opened()
        found = {name: one.content for name, one in index.videos.items() if one.indexed}
        for name, digest in found.items():
            assert digest == self.records.get(name) or digest == self.digest[self.there[name]]
        self.records = found

    # What happens to the disk of the index.

    @rule(number=numbers, how=st.sampled_from(["flip", "cut", "delete", "zero"]))
    def damage_vectors(self, number, how):
        paths = sorted(self.directory.glob("embeddings-[0-9]*.*"))
        if paths:
            damage(paths[number % len(paths)], number, how)
            self.forget()

    @rule(
        number=numbers,
        how=st.sampled_from(["flip", "cut", "delete", "zero"]),
        which=st.sampled_from([DATABASE, COPY, SUMS, MARK]),
    )
    def damage_database(self, number, how, which):
        path = self.directory / which
        if path.exists():
            before = path.read_bytes()
            damage(path, number, how)
            try:
                left = Index.open(self.directory)
                # After a kill the copy may be older.
                known = {name: one.content for name, one in left.videos.items() if one.indexed}
                lost = set(left.excluded) != self.excluded or known != self.records
            except SearchError:  # both are damaged
                lost = True
            if lost:
                path.write_bytes(before)

    def forget(self):
        """Note which embeddings are damaged."""
        self.damaged |= set(self.records.values()) - self.whole()

    @rule(number=numbers, how=st.sampled_from(["flip", "cut", "delete", "zero"]))
    def damage_pack(self, number, how):
        paths = packed.list_files(self.directory)
        if paths:
            damage(paths[number % len(paths)], number, how)

    @rule()
    @precondition(lambda self: self.directory.exists() and not self.foreign)
    def put_foreign(self):
        self.opened()
        for name in archive.FOREIGN:
            (self.directory / name).parent.mkdir(exist_ok=True)
            (self.directory / name).write_bytes(name.encode())
            self.foreign[name] = name.encode()

    # What should be.

    @rule(ranker=st.sampled_from(["segments", "best_frame"]))
    def query(self, ranker):
        """Whatever has happened: no hit that is not there, and no error but one line."""
        try:
            library = search.open(self.directory, ranker=ranker, encoder=archive.Encoder())
            hits = library.query("red", k=9)
        except SearchError as error:
            assert "\n" not in str(error)
            return
        assert all((self.films / hit.video).exists() for hit in hits)
        assert all("\n" not in line for line in hits.warnings)

    def compare(self, index):
        """The index is that of what is there, and keeps what is not."""
        connection = index._database._connection
        assert row_sums.read(connection) in (None, row_sums.compute(connection))
        kept = set(self.records.values()) - self.damaged
        assert kept <= self.whole()
        offline = {name for name in self.records if name not in self.look()}
        assert set(Index.open(self.directory).videos) == set(self.records)
        assert set(index.offline()) == offline
        # Of those that are not there, damaged ones stay so.
        self.damaged &= {self.records[name] for name in offline} - self.whole()
        wrong = {content for content in self.damaged if content in self.records.values()}
        assert {name for name in index.verify() if len(name) == 64} == wrong
        fresh = archive.create(self.place / "fresh", self.films)
        with fresh.writing() as writer:
            for name in self.excluded:
                writer.exclude(name, "")
        archive.fill(fresh)
        try:
            for ranker in ("segments", "best_frame"):
                for sentence in ("red", "green white"):
                    hits = [self.hits(one, ranker, sentence) for one in (index, fresh)]
                    assert hits[0] == hits[1]
        finally:
            shutil.rmtree(fresh.directory)

    def hits(self, index, ranker, sentence):
        if not self.look():
            return []
        library = archive.opened(index, ranker=ranker)
        found = []  # BLAS rounds a product by how many rows there are
        for hit in library.query(sentence, k=9):
            moments = [(one.start, one.end, round(float(one.score), 5)) for one in hit.moments]
            found.append((hit.video, round(hit.score, 5), moments))
        return found

    @invariant()
    def nothing_else_changes(self):
        disk = self.films / "disk" if self.plugged else self.away
        for name, content in self.there.items():
            path = disk / name[5:] if name.startswith("disk/") else self.films / name
            assert path.read_bytes() == self.bytes[content]
        for name, content in self.foreign.items():
            assert (self.directory / name).read_bytes() == content


def damage(path, number, how):
    content = path.read_bytes()
    if how == "delete":
        path.unlink()
    elif how == "flip" and content:
        place = number % len(content)
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    elif how == "cut":
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
