"""Faults of the disk and interruptions at each write: the index stays consistent."""

import contextlib
import dataclasses
import errno
import functools
import os
import shutil
import sqlite3
from pathlib import Path

import archive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlformer_jax import files
from hlformer_jax.errors import SearchError, UnreadableError
from hlformer_jax.search.index import (
    Index,
    Stamp,
    Threshold,
    VideoArrays,
    records,
)
from hlformer_jax.search.index.directory import find_enclosing_index
from hlformer_jax.search.index.records import (
    INDEXED,
    ArraysError,
    Record,
    check_arrays,
    check_record,
)
from hlformer_jax.search.ingest import watch
from hlformer_jax.search.serve.files import open_video


class Faults:
    """Lets the n-th write, sync or renaming of a file, or start or end of a transaction, fail.

    A full disk stays full until the block ends; any other error happens once, as if a smaller file
    fitted.
    """

    def __init__(self, error, number):
        self.error, self.remaining = error, number

    def __enter__(self):
        self.patch = pytest.MonkeyPatch()
        write, fsync, replace, unlink = Path.write_bytes, os.fsync, Path.replace, Path.unlink

        def half_written(path, content):
            if self.fails():
                write(path, content[: len(content) // 2])
                raise self.error
            return write(path, content)

        def failing(function):
            def act(*arguments, **options):
                if self.fails():
                    raise self.error
                return function(*arguments, **options)

            return act

        faults = self

        class Connection(sqlite3.Connection):
            def execute(self, statement, *values):
                if statement in ("BEGIN IMMEDIATE", "COMMIT") and faults.fails():
                    if statement == "COMMIT" and faults.remaining % 2:
                        super().execute(statement)  # the error comes after it
                    raise faults.of_sqlite()
                return super().execute(statement, *values)

        connect = functools.partial(sqlite3.connect, factory=Connection)
        self.patch.setattr(sqlite3, "connect", connect)
        self.patch.setattr(Path, "write_bytes", half_written)
        pwrite = os.pwrite

        def half_in_place(file, data, offset):
            if self.fails():
                pwrite(file, data[: len(data) // 2], offset)
                raise self.error
            return pwrite(file, data, offset)

        self.patch.setattr(os, "pwrite", half_in_place)
        self.patch.setattr(os, "fsync", failing(fsync))
        self.patch.setattr(os, "link", failing(os.link))
        self.patch.setattr(Path, "replace", failing(replace))
        # Deleting drafts fails, too.
        self.patch.setattr(Path, "unlink", failing(unlink))
        return self

    def of_sqlite(self):
        """Return the error as SQLite raises it."""
        codes = {errno.ENOSPC: sqlite3.SQLITE_FULL, errno.EIO: sqlite3.SQLITE_IOERR}
        if not isinstance(self.error, OSError):
            return self.error
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = codes[self.error.errno]
        return error

    def fails(self):
        self.remaining -= 1
        return self.remaining == 0 or self.remaining < 0 and self.error is ERRORS["full disk"]

    def __exit__(self, *_):
        self.patch.undo()


ERRORS = {
    "full disk": OSError(errno.ENOSPC, "No space left on device"),
    "too large a file": OSError(errno.ENOSPC, "No space left on device"),
    "failing disk": OSError(errno.EIO, "Input/output error"),
    "Ctrl-C": KeyboardInterrupt(),
    "no memory": MemoryError(),
}


def fail_each_write(error, act):
    """Call `act` with the first, second … write failing, until none fails; yield each number."""
    for number in range(1, 200):
        failed = False
        with Faults(error, number) as faults:
            try:
                act()
            except (OSError, SearchError, KeyboardInterrupt, MemoryError):
                failed = True
        if not failed and faults.remaining > 0:
            assert number > 2
            return
        yield number
    raise AssertionError("it never ended")


def state(index):
    """Return all that a user sees of an index, and its vectors."""
    reopened = Index.open(index.directory)
    assert not reopened.notes and reopened.verify() == {}
    entries = {entry.video: entry._replace(path=None) for entry in reopened.entries()}
    return entries, archive.vectors(reopened), reopened.excluded


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_index_run_that_fails_at_any_write_can_be_repeated(tmp_path, films, error):
    shutil.rmtree(films / "trips")
    (films / "b.film").write_bytes((films / "a.film").read_bytes())
    fresh = state(archive.indexed(tmp_path / "fresh", films))
    directory = tmp_path / "index"

    def run():
        shutil.rmtree(directory, ignore_errors=True)
        archive.fill(archive.create(directory, films))

    for number in fail_each_write(error, run):
        with contextlib.suppress(SearchError):
            for record in Index.open(directory).videos.values():
                assert record.indexed, (number, record)
        try:
            index = Index.open(directory)
        except SearchError:  # it failed before the index was created
            index = archive.create(directory, films)
        report, lines = archive.fill(index)
        assert report.failed == report.skipped == 0, (number, lines)
        assert state(index) == fresh, number
        assert not list(directory.rglob("*.part"))


CHANGES = {
    "remove": lambda writer: writer.remove(["a.film", "trips/c.film"]),
    "tag": lambda writer: writer.tag(["a.film", "b.film"], ["holiday"]),
    "prune": lambda writer: writer.forget(["a.film", "b.film"]),
    "add a folder": lambda writer: writer.add_root(Path("/other")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ERRORS["full disk"], id="full"),
        pytest.param(ERRORS["Ctrl-C"], id="Ctrl-C", marks=pytest.mark.slow),
    ],
)
def test_change_that_fails_at_any_write_is_atomic(index, change, error):
    saved = index.directory.with_name("saved")
    shutil.copytree(index.directory, saved)

    def write():
        with Index.open(index.directory).writing() as writer:
            change(writer)

    def read():
        return state(index), Index.open(index.directory).roots

    before = read()
    write()
    after = read()
    assert before != after
    outcomes = []

    def act():
        shutil.rmtree(index.directory)
        shutil.copytree(saved, index.directory)
        write()

    for number in fail_each_write(error, act):
        after_fault, roots = read()
        assert after_fault[0] in (before[0][0], after[0][0]), number
        assert roots in (before[1], after[1]), number
        outcomes.append((after_fault, roots) == before)
        if after_fault[0] == before[0][0] and roots == before[1]:
            write()
        archive.fill(Index.open(index.directory), only=[])
    assert any(outcomes)


def test_error_in_a_change_leaves_the_index_unchanged(index):
    before = archive.everything(index.directory)
    with pytest.raises(KeyError), index.writing() as writer:
        writer.tag(["a.film"], ["x"])
        writer.drop("b.film")
        assert "b.film" not in index.videos
        raise KeyError
    assert archive.everything(index.directory) == before
    assert "b.film" in index.videos and not index.tags


def test_tags_are_set_for_all_videos_or_for_none(index, films):
    (films / "bad.film").mkdir()
    with index.writing() as writer:
        writer.record_failure("bad.film", "", Stamp(0, 0, 0), "it is a folder")
    with pytest.raises(SearchError, match="bad.film"), index.writing() as writer:
        writer.tag(["a.film", "bad.film"], ["holiday"])
    assert not Index.open(index.directory).tags


# Values


CHARACTERS = st.text(st.characters(exclude_characters="\0"), max_size=20)


@pytest.mark.slow  # it takes seconds
@given(
    name=CHARACTERS,
    stamp=st.tuples(*[st.integers(-(10**30), 10**30)] * 3),
    reason=CHARACTERS,
)
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_records_are_read_as_written_or_refused(tmp_path_factory, name, stamp, reason):
    directory = tmp_path_factory.mktemp("index")
    index = archive.create(directory / "index", directory)
    with contextlib.suppress(ValueError), index.writing() as writer:
        writer.record_failure(name, "a" * 64, Stamp(*stamp).clipped(), reason)
    reopened = Index.open(index.directory)
    assert reopened.notes == [] and reopened.videos == index.videos
    for video, record in reopened.videos.items():
        check_record(video, record)
        assert video == name and record.reason == reason


@pytest.mark.slow  # it takes seconds
@given(
    frames=st.integers(0, 3),
    bad=st.sampled_from([np.nan, np.inf, -np.inf, 1e300, -1.0]),
    field=st.sampled_from(["times", "vectors", "duration", "recorded"]),
)
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_embeddings_are_read_as_written_or_refused(tmp_path_factory, frames, bad, field):
    directory = tmp_path_factory.mktemp("index")
    index = archive.create(directory / "index", directory)
    arrays = VideoArrays(
        np.arange(frames, dtype=float), np.ones((frames, archive.WIDTH), np.float16), 1.0
    )
    with np.errstate(over="ignore"):
        bad_value = np.full_like(getattr(arrays, field), bad)
    bad_value = bad_value if field in ("times", "vectors") else float(bad_value)
    arrays = arrays._replace(**{field: bad_value})
    content = "a" * 64
    try:
        with index.writing() as writer:
            writer.keep(content, arrays, {"a.film": Stamp(1, 2, 3)})
    except ArraysError:
        assert Index.open(index.directory).videos == {}
    else:
        restored = Index.open(index.directory).read(content)
        assert all(np.array_equal(*pair) for pair in zip(restored, arrays, strict=True))


@pytest.mark.parametrize("name", ["/a.film", "a/../b.film", "."])
def test_invalid_name_is_refused(name):
    record = Record("0" * 16, "a" * 64, 0, 0, 0, INDEXED)
    check_record("a.film", record)
    with pytest.raises(ValueError, match=f"its name is {name!r}, allowed: the relative path"):
        check_record(name, record)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "a1"), ("content", ""), ("state", "offline"), ("size", -1), ("frames", 2**60),
        ("duration", float("nan")), ("recorded", -(2.0**41)), ("modified_ns", 2**70),
    ],
)  # fmt: skip
def test_invalid_record_is_refused_by_field(field, value):
    record = Record("0" * 16, "a" * 64, 0, 0, 0, INDEXED)
    shown = {"modified_ns": "stamp is "}.get(field, f"{field} is '{value}', allowed")
    with pytest.raises(ValueError, match=f"'a.film' cannot be written: its {shown}"):
        check_record("a.film", dataclasses.replace(record, **{field: value}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"times": np.zeros(2)}, r"vectors must be .*\(2, 8\), got .*\(3, 8\)"),
        ({"times": np.zeros(3, np.float32)}, "times must be float64 .* got float32"),
        ({"times": np.array([0, np.nan, np.inf])}, "2 of the 3 numbers of its times"),
        ({"duration": -1.0}, "duration .* got -1"),
        ({"recorded": np.inf}, "date of recording .* got inf"),
    ],
)
def test_invalid_embeddings_are_refused_with_the_reason(changes, reason):
    arrays = VideoArrays(np.arange(3.0), np.ones((3, 8), np.float16), 1.0)
    check_arrays(arrays, 8)
    with pytest.raises(ArraysError, match=reason):
        check_arrays(arrays._replace(**changes), 8)


@pytest.mark.parametrize(
    "threshold", [(float("nan"), 10.0, 9, 9), (float("inf"), 10.0, 9, 9), (0.1, 0.0, 9, 9)]
)
def test_invalid_threshold_is_not_written(index, threshold):
    before = archive.everything(index.directory)
    with pytest.raises(ValueError, match="threshold"), index.writing() as writer:
        writer.set_thresholds({"best_frame": Threshold(*threshold)})
    assert archive.everything(index.directory) == before


def test_date_after_2262_is_clipped_with_a_line(index, films):
    seconds = int((2263 - 1970) * 365.2425 * 86400)
    path = films / "b.film"
    try:
        os.utime(path, (seconds, seconds))
    except (OSError, OverflowError):
        pytest.skip("the disk keeps no such dates")
    if path.stat().st_mtime_ns <= records.MAX_TIME_NS:
        pytest.skip("the disk keeps no such dates")
    report, lines = archive.fill(index)
    assert report.recognised == 1 and "b.film" in lines[0] and "2262" in lines[0]
    reopened = Index.open(index.directory)
    assert reopened.notes == [] and reopened.verify() == {}
    assert archive.fill(reopened)[0].unchanged == 3
    [entry] = [entry for entry in archive.opened(index).videos() if entry.video == "b.film"]
    assert open_video(archive.opened(index), entry.id).entry == entry


# Removed videos


def change_removed_video(films, change):
    """Change the file of the removed a.film; return the name at which its content is now."""
    if change == "renamed":
        (films / "a.film").rename(films / "z.film")
        return "z.film"
    if change == "moved":
        (films / "a.film").rename(films / "trips" / "a.film")
        return "trips/a.film"
    if change == "copied":
        shutil.copy(films / "a.film", films / "z.film")
        return "z.film"
    (films / "a.film").replace(films / "b.film")  # over another video
    return "b.film"


@pytest.mark.parametrize(
    ("change", "command"),
    [
        ("renamed", "index"), ("moved", "index"), ("copied", "index"), ("over another", "index"),
        ("copied", "watch"),
    ],
)  # fmt: skip
def test_removed_video_stays_removed_under_any_name(index, films, change, command):
    content = index.videos["a.film"].content
    index.remove(["a.film"])
    name = change_removed_video(films, change)
    if command == "index":
        report, lines = archive.fill(Index.open(index.directory))
        assert report.removed >= 1 and any(name in line for line in lines)
    else:
        watch.follow(
            index.directory, archive.Encoder(), 0.0, lambda line: None, archive.VIDEO, [["x"]] * 3,
            workers=0,
        )  # fmt: skip
    reopened = Index.open(index.directory)
    assert content not in reopened.contents() and name not in reopened.videos
    encoder = archive.Encoder()
    assert archive.fill(reopened, encoder)[0].indexed == 0 and encoder.seen == 0
    report, _ = archive.fill(reopened, only=[films / name])
    assert report.indexed == 1 and name in Index.open(index.directory).videos
    (films / name).rename(films / "last.film")  # and it is an ordinary video again
    archive.fill(reopened)
    assert "last.film" in Index.open(index.directory).videos


# Outputs inside an index


def test_enclosing_index_is_found_through_links(index, tmp_path):
    (tmp_path / "a.csv").symlink_to(index.directory / "index.db")
    (tmp_path / "link").symlink_to(index.directory)
    for place in (
        index.directory / "index.db", index.directory / "new" / "folder" / "a.csv",
        tmp_path / "a.csv", tmp_path / "link" / "a.csv",
    ):  # fmt: skip
        assert find_enclosing_index(place) == index.directory
    assert find_enclosing_index(tmp_path / "a") is None


# Unreadable files are not missing


@contextlib.contextmanager
def unreadable(*names):
    """Let databases of these names fail as on a failing disk."""
    connect = sqlite3.connect

    def failing(place, **options):
        if any(f"/{name}?" in place for name in names):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
            raise error
        return connect(place, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", failing)
        yield


def test_unreadable_database_is_not_replaced(index):
    with index.writing() as writer:
        writer.tag(["a.film"], ["kept"])
    before = archive.everything(index.directory)
    with unreadable("index.db"):
        reopened = Index.open(index.directory)
        assert len(reopened.videos) == 3  # read from the copy
        assert "cannot be read" in reopened.notes[0]
        with pytest.raises(UnreadableError, match="nothing is changed"):
            reopened.remove(["b.film"])
        with pytest.raises(UnreadableError, match="nothing is changed"):
            archive.fill(reopened)
    assert archive.everything(index.directory) == before
    assert archive.fill(reopened)[0].unchanged == 3 and reopened.notes == []
    with unreadable("index.db", "index.db.bak"):
        for act in (Index.open, lambda place: archive.create(place, index.root)):
            with pytest.raises(UnreadableError):
                act(index.directory)


def test_only_certainly_missing_files_count_as_missing(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    missing = {name: files.is_gone(tmp_path / name) for name in os.listdir(tmp_path)}
    assert missing == {"file": False, "dangling": False, "circle": False}
    assert files.is_gone(tmp_path / "nothing") and files.is_gone(tmp_path / "file" / "x")
    assert files.is_gone(tmp_path / "dangling", follow=True)
    assert not files.is_gone(tmp_path / "circle" / "x")
