"""Faults of the disk, and interruptions, at every write: nothing half-made becomes durable."""

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
    """Makes the n-th writing, syncing or renaming of a file, or beginning or end of a change, fail.

    A disk that is full stays so until the block ends; any other error happens once, as where a
    smaller file finds room.
    """

    def __init__(self, error, number):
        self.error, self.left = error, number

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
                    if statement == "COMMIT" and faults.left % 2:
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
        # The clearing away of drafts goes wrong as well.
        self.patch.setattr(Path, "unlink", failing(unlink))
        return self

    def of_sqlite(self):
        """The error as SQLite raises it."""
        codes = {errno.ENOSPC: sqlite3.SQLITE_FULL, errno.EIO: sqlite3.SQLITE_IOERR}
        if not isinstance(self.error, OSError):
            return self.error
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = codes[self.error.errno]
        return error

    def fails(self):
        self.left -= 1
        return self.left == 0 or self.left < 0 and self.error is ERRORS["full disk"]

    def __exit__(self, *_):
        self.patch.undo()


ERRORS = {
    "full disk": OSError(errno.ENOSPC, "No space left on device"),
    "too large a file": OSError(errno.ENOSPC, "No space left on device"),
    "failing disk": OSError(errno.EIO, "Input/output error"),
    "Ctrl-C": KeyboardInterrupt(),
    "no memory": MemoryError(),
}


def in_turn(error, act):
    """Calls `act` with the first, second … write failing, until none does; yields each time."""
    for number in range(1, 200):
        failed = False
        with Faults(error, number) as faults:
            try:
                act()
            except (OSError, SearchError, KeyboardInterrupt, MemoryError):
                failed = True
        if not failed and faults.left > 0:
            assert number > 2
            return
        yield number
    raise AssertionError("it never ended")


def state(index):
    """All that a person sees of an index, its vectors included."""
    again = Index.open(index.directory)
    assert not again.notes and again.verify() == {}
    entries = {one.video: one._replace(path=None) for one in again.entries()}
    return entries, archive.vectors(again), again.excluded


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_an_index_run_that_fails_at_any_write_goes_on(tmp_path, films, error):
    shutil.rmtree(films / "trips")
    (films / "b.film").write_bytes((films / "a.film").read_bytes())
    fresh = state(archive.indexed(tmp_path / "fresh", films))
    directory = tmp_path / "index"

    def run():
        shutil.rmtree(directory, ignore_errors=True)
        archive.fill(archive.create(directory, films))

    for number in in_turn(error, run):
        with contextlib.suppress(SearchError):
            for record in Index.open(directory).videos.values():
                assert record.indexed, (number, record)
        try:
            index = Index.open(directory)
        except SearchError:  # it failed before there was anything
            index = archive.create(directory, films)
        report, told = archive.fill(index)
        assert report.failed == report.skipped == 0, (number, told)
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

    settings = lambda: (state(index), Index.open(index.directory).roots)
    before = settings()
    write()
    after = settings()
    assert before != after
    outcomes = []

    def act():
        shutil.rmtree(index.directory)
        shutil.copytree(saved, index.directory)
        write()

    for number in in_turn(error, act):
        now = settings()
        assert now[0][0] in (before[0][0], after[0][0]) and now[1] in (before[1], after[1]), number
        outcomes.append(now == before)
        if now[0][0] == before[0][0] and now[1] == before[1]:
            write()
        archive.fill(Index.open(index.directory), only=[])
    assert any(outcomes)


def test_an_error_in_the_block_leaves_the_index_as_it_was(index):
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
    again = Index.open(index.directory)
    assert again.notes == [] and again.videos == index.videos
    for video, record in again.videos.items():
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
        wrong = np.full_like(getattr(arrays, field), bad)
    wrong = wrong if field in ("times", "vectors") else float(wrong)
    arrays = arrays._replace(**{field: wrong})
    content = "a" * 64
    try:
        with index.writing() as writer:
            writer.keep(content, arrays, {"a.film": Stamp(1, 2, 3)})
    except ArraysError:
        assert Index.open(index.directory).videos == {}
    else:
        again = Index.open(index.directory).read(content)
        assert all(np.array_equal(one, other) for one, other in zip(again, arrays, strict=True))


@pytest.mark.parametrize("name", ["/a.film", "a/../b.film", "."])
def test_name_that_cannot_be_written_is_refused(name):
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
def test_a_record_that_cannot_be_written_names_its_field(field, value):
    record = Record("0" * 16, "a" * 64, 0, 0, 0, INDEXED)
    shown = {"modified_ns": "stamp is "}.get(field, f"{field} is '{value}', allowed")
    with pytest.raises(ValueError, match=f"'a.film' cannot be written: its {shown}"):
        check_record("a.film", dataclasses.replace(record, **{field: value}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"times": np.zeros(2)}, r"vectors must be .*\(2, 8\), got .*\(3, 8\)"),
        ({"times": np.zeros(3, np.float32)}, "times must be float64 .* got float32"),
        ({"times": np.array([0, np.nan, np.inf])}, "2 of the 3 numbers of its times"),
        ({"duration": -1.0}, "duration .* got -1"),
        ({"recorded": np.inf}, "date of recording .* got inf"),
    ],
)
def test_embeddings_that_cannot_be_stored_name_what_is_wrong(changes, said):
    arrays = VideoArrays(np.arange(3.0), np.ones((3, 8), np.float16), 1.0)
    check_arrays(arrays, 8)
    with pytest.raises(ArraysError, match=said):
        check_arrays(arrays._replace(**changes), 8)


@pytest.mark.parametrize(
    "threshold", [(float("nan"), 10.0, 9, 9), (float("inf"), 10.0, 9, 9), (0.1, 0.0, 9, 9)]
)
def test_a_threshold_that_is_no_number_is_not_written(index, threshold):
    before = archive.everything(index.directory)
    with pytest.raises(ValueError, match="threshold"), index.writing() as writer:
        writer.set_thresholds({"best_frame": Threshold(*threshold)})
    assert archive.everything(index.directory) == before


@pytest.mark.parametrize("year", [2262, 2446])
def test_a_date_after_2262_is_clipped_with_a_line(index, films, year):
    seconds = int((year - 1970) * 365.2425 * 86400) + 86400 * 300
    path = films / "b.film"
    try:
        os.utime(path, (seconds, seconds))
    except (OSError, OverflowError):
        pytest.skip("the disk keeps no such dates")
    if path.stat().st_mtime_ns <= records.MAX_TIME_NS:
        pytest.skip("the disk keeps no such dates")
    report, told = archive.fill(index)
    assert report.recognised == 1 and "b.film" in told[0] and "2262" in told[0]
    again = Index.open(index.directory)
    assert again.notes == [] and again.verify() == {}
    assert archive.fill(again)[0].unchanged == 3
    [entry] = [one for one in archive.opened(index).videos() if one.video == "b.film"]
    assert open_video(archive.opened(index), entry.id).entry == entry


# What was removed


def removed_then(films, change):
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
    ("change", "way"),
    [
        ("renamed", "index"), ("moved", "index"), ("copied", "index"), ("over another", "index"),
        ("copied", "watch"),
    ],
)  # fmt: skip
def test_a_removed_video_stays_removed_under_any_name(index, films, change, way):
    content = index.videos["a.film"].content
    index.remove(["a.film"])
    name = removed_then(films, change)
    if way == "index":
        report, told = archive.fill(Index.open(index.directory))
        assert report.removed >= 1 and any(name in line for line in told)
    else:
        watch.follow(
            index.directory, archive.Encoder(), 0.0, lambda line: None, archive.VIDEO, [["x"]] * 3,
            workers=0,
        )  # fmt: skip
    again = Index.open(index.directory)
    assert content not in again.contents() and name not in again.videos
    encoder = archive.Encoder()
    assert archive.fill(again, encoder)[0].indexed == 0 and encoder.seen == 0
    report, _ = archive.fill(again, only=[films / name])
    assert report.indexed == 1 and name in Index.open(index.directory).videos
    (films / name).rename(films / "last.film")  # and it is an ordinary video again
    archive.fill(again)
    assert "last.film" in Index.open(index.directory).videos


# Places of outputs


def test_enclosing_index_is_found_through_links(index, tmp_path):
    (tmp_path / "a.csv").symlink_to(index.directory / "index.db")
    (tmp_path / "here").symlink_to(index.directory)
    for place in (
        index.directory / "index.db", index.directory / "new" / "folder" / "a.csv",
        tmp_path / "a.csv", tmp_path / "here" / "a.csv",
    ):  # fmt: skip
        assert find_enclosing_index(place) == index.directory
    assert find_enclosing_index(tmp_path / "a") is None


# What cannot be read is not gone


@contextlib.contextmanager
def unreadable(*names):
    """Make databases of these names fail as those of a failing disk do."""
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


def test_a_database_that_cannot_be_read_now_is_not_replaced(index):
    with index.writing() as writer:
        writer.tag(["a.film"], ["kept"])
    before = archive.everything(index.directory)
    with unreadable("index.db"):
        again = Index.open(index.directory)
        assert len(again.videos) == 3 and "cannot be read" in again.notes[0]  # a reader goes on
        with pytest.raises(UnreadableError, match="nothing is changed"):
            again.remove(["b.film"])
        with pytest.raises(UnreadableError, match="nothing is changed"):
            archive.fill(again)
    assert archive.everything(index.directory) == before
    assert archive.fill(again)[0].unchanged == 3 and again.notes == []
    with unreadable("index.db", "index.db.bak"):
        for act in (Index.open, lambda place: archive.create(place, index.root)):
            with pytest.raises(UnreadableError):
                act(index.directory)


def test_only_certainly_missing_files_count_as_missing(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    gone = {name: files.is_gone(tmp_path / name) for name in os.listdir(tmp_path)}
    assert gone == {"file": False, "dangling": False, "circle": False}
    assert files.is_gone(tmp_path / "nothing") and files.is_gone(tmp_path / "file" / "x")
    assert files.is_gone(tmp_path / "dangling", follow=True)
    assert not files.is_gone(tmp_path / "circle" / "x")
