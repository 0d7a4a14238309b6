"""Faults of the disk, and interruptions, at every write: nothing half-made becomes durable."""

import contextlib
import errno
import os
import shutil
from pathlib import Path

import archive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlformer_jax import files
from hlformer_jax.errors import SearchError
from hlformer_jax.search.index import storage
from hlformer_jax.search.index.database import Index
from hlformer_jax.search.index.storage import Stamp
from hlformer_jax.search.ingest import watch
from hlformer_jax.search.serve.files import open_video


class Faults:
    """Makes the n-th writing, bringing to the disk or renaming of a file fail.

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

        self.patch.setattr(Path, "write_bytes", half_written)
        self.patch.setattr(os, "fsync", failing(fsync))
        self.patch.setattr(os, "link", failing(os.link))
        self.patch.setattr(Path, "replace", failing(replace))
        # The clearing away of drafts goes wrong as well.
        self.patch.setattr(Path, "unlink", failing(unlink))
        return self

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
each_error = pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)


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
    return entries, archive.vectors(again), again.manifest.excluded


@each_error
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
            for record in Index.open(directory).manifest.videos.values():
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
    "remove": lambda index: index.remove(["a.film", "trips/c.film"]),
    "tag": lambda index: tagged(index),
    "prune": lambda index: pruned(index),
    "add a folder": lambda index: added(index),
}


def tagged(index):
    with index.writing():
        index.tag(["a.film", "b.film"], ["holiday"])


def pruned(index):
    with index.writing():
        index.forget(["a.film", "b.film"])


def added(index):
    with index.writing():
        index.add_root(index.directory.parent / "other")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("error", [ERRORS["full disk"], ERRORS["Ctrl-C"]], ids=["full", "Ctrl-C"])
def test_a_change_that_fails_at_any_write_is_whole_or_not_made(index, change, error):
    saved = index.directory.with_name("saved")
    shutil.copytree(index.directory, saved)
    settings = lambda: (state(index), Index.open(index.directory).manifest.roots)
    before = settings()
    change(Index.open(index.directory))
    after = settings()
    assert before != after
    outcomes = []

    def act():
        shutil.rmtree(index.directory)
        shutil.copytree(saved, index.directory)
        change(Index.open(index.directory))

    for number in in_turn(error, act):
        now = settings()
        assert now[0][0] in (before[0][0], after[0][0]) and now[1] in (before[1], after[1]), number
        outcomes.append(now == before)
        if now[0][0] == before[0][0] and now[1] == before[1]:
            change(Index.open(index.directory))
        archive.fill(Index.open(index.directory), only=[])
        with Index.open(index.directory).writing():
            pass
    assert any(outcomes)


def test_an_error_in_the_block_leaves_the_index_as_it_was(index):
    before = archive.everything(index.directory)
    with pytest.raises(KeyError), index.writing():
        index.manifest.tags[index.manifest.videos["a.film"].content] = ["x"]
        index.drop("b.film")
        raise KeyError
    assert archive.everything(index.directory) == before
    assert "b.film" in index.manifest.videos and not index.manifest.tags


def test_tags_are_given_to_all_videos_or_to_none(index, films):
    (films / "bad.film").mkdir()
    with index.writing():
        index.record_failure("bad.film", "", Stamp(0, 0, 0), "it is a folder")
    with pytest.raises(SearchError, match="bad.film"), index.writing():
        index.tag(["a.film", "bad.film"], ["holiday"])
    assert not Index.open(index.directory).manifest.tags


def test_a_record_that_an_interruption_left_is_tried_again(index):
    with index.writing():  # as an older version left it
        record = index.manifest.videos["b.film"]
        index.record_failure("b.film", record.content, record.stamp, "")
        index.file(record.content).unlink()
    report, _ = archive.fill(Index.open(index.directory))
    assert report.indexed == 1 and report.skipped == 0


# Values


CHARACTERS = st.text(st.characters(exclude_characters="\0"), max_size=20)
NUMBERS = st.floats() | st.integers(-(10**30), 10**30).map(float)


@given(
    name=CHARACTERS,
    stamp=st.tuples(*[st.integers(-(10**30), 10**30)] * 3),
    reason=CHARACTERS,
    duration=NUMBERS,
    recorded=NUMBERS,
    counts=st.tuples(*[st.integers(-3, 2**70)] * 3),
)
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_what_is_written_of_a_record_is_read_again(
    tmp_path_factory, name, stamp, reason, duration, recorded, counts
):
    directory = tmp_path_factory.mktemp("index")
    index = archive.create(directory / "index", directory)
    frames, intervals, size = counts
    about = {
        "reason": reason, "duration": duration, "frames": frames, "intervals": intervals,
        "digest": "b" * 64, "bytes": size, "recorded": recorded,
    }  # fmt: skip
    with index.writing(), contextlib.suppress(ValueError):
        index.record(name, "a" * 64, Stamp(*stamp).clipped(), about)
    again = Index.open(index.directory)
    assert again.notes == [] and again.manifest == index.manifest


@given(
    frames=st.integers(0, 3),
    bad=st.sampled_from([np.nan, np.inf, -np.inf, 1e300, -1.0]),
    field=st.sampled_from(["times", "vectors", "spans", "segments", "duration", "recorded"]),
)
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_what_is_written_of_vectors_is_read_again(tmp_path_factory, frames, bad, field):
    path = tmp_path_factory.mktemp("vectors") / "a.npz"
    arrays = storage.VideoArrays(
        np.arange(frames, dtype=float), np.ones((frames, 2), np.float16), np.zeros((frames, 2)),
        np.zeros((frames, 2), np.float32), np.asarray(1.0),
    )  # fmt: skip
    with np.errstate(over="ignore"):
        wrong = np.full_like(getattr(arrays, field), bad)
    arrays = arrays._replace(**{field: float(wrong) if field == "recorded" else wrong})
    try:
        storage.write_vectors(path, arrays, {})
    except SearchError:
        assert not path.exists()
    else:
        assert storage.read_vectors(path).size


def test_settings_that_a_reader_refuses_are_not_written(index):
    before = (index.directory / storage.MANIFEST).read_bytes()
    for change in (
        {"fps": float("nan")}, {"fps": 0.0}, {"roots": {"a/b": "/x"}}, {"tags": {"a": [3]}},
        {"levels": {"best_frame": storage.Level(float("inf"), 10.0, 9, 9)}},
    ):  # fmt: skip
        with pytest.raises(SearchError, match="manifest"), index.writing():
            index.manifest.__dict__.update(change)
        assert (index.directory / storage.MANIFEST).read_bytes() == before


@pytest.mark.parametrize("year", [2262, 2300, 2446, 9999])
def test_a_date_after_2262_is_clipped_with_a_line(index, films, year):
    seconds = int((year - 1970) * 365.2425 * 86400) + 86400 * 300
    path = films / "b.film"
    try:
        os.utime(path, (seconds, seconds))
    except (OSError, OverflowError):
        pytest.skip("the disk keeps no such dates")
    if path.stat().st_mtime_ns <= storage.MAX_TIME_NS:
        pytest.skip("the disk keeps no such dates")
    report, told = archive.fill(index)
    assert report.known == 1 and "b.film" in told[0] and "2262" in told[0]
    again = Index.open(index.directory)
    assert again.notes == [] and again.verify() == {}
    assert archive.fill(again)[0].unchanged == 3
    [entry] = [one for one in archive.opened(index).videos() if one.video == "b.film"]
    assert open_video(archive.opened(index), entry.id).entry == entry


def test_one_bad_record_does_not_spoil_the_others(index):
    content = storage.unseal((index.directory / storage.MANIFEST).read_bytes())
    content["videos"]["b.film"]["modified_ns"] = 2**70
    content["videos"]["a.film"]["frames"] = -1
    (index.directory / storage.MANIFEST).write_bytes(storage.seal(content))
    (index.directory / storage.PREVIOUS).unlink()
    manifest, note = storage.read_manifest(index.directory)
    assert set(manifest.videos) == {"b.film", "trips/c.film"} and "of 'a.film'" in note
    assert manifest.videos["b.film"].modified_ns == storage.MAX_TIME_NS
    encoder = archive.Encoder()
    archive.fill(Index.open(index.directory), encoder)
    assert encoder.seen == 0 and Index.open(index.directory).notes == []
    assert len(Index.open(index.directory).manifest.videos) == 3


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


@pytest.mark.parametrize("change", ["renamed", "moved", "copied", "over another"])
@pytest.mark.parametrize("way", ["index", "watch"])
def test_a_removed_video_stays_removed_under_any_name(index, films, change, way):
    content = index.manifest.videos["a.film"].content
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
    assert content not in again.contents() and name not in again.manifest.videos
    encoder = archive.Encoder()
    assert archive.fill(again, encoder)[0].indexed == 0 and encoder.seen == 0
    report, _ = archive.fill(again, only=[films / name])
    assert report.indexed == 1 and name in Index.open(index.directory).manifest.videos
    (films / name).rename(films / "last.film")  # and it is an ordinary video again
    archive.fill(again)
    assert "last.film" in Index.open(index.directory).manifest.videos


def test_a_copy_of_a_removed_video_in_the_index_stays(index, films):
    shutil.copy(films / "a.film", films / "copy.film")
    archive.fill(index)
    index.remove(["a.film"])
    archive.fill(index)
    assert "copy.film" in Index.open(index.directory).manifest.videos
    (films / "a.film").rename(films / "z.film")
    archive.fill(index)
    assert "z.film" not in Index.open(index.directory).manifest.videos


# Places of outputs


@pytest.mark.parametrize("through", ["itself", "folder", "link", "link above"])
def test_a_place_in_an_index_is_known_through_links(index, tmp_path, through):
    place = index.directory / "manifest.json"
    if through == "folder":
        place = index.directory / "new" / "folder" / "a.csv"
    elif through == "link":
        (tmp_path / "a.csv").symlink_to(place)
        place = tmp_path / "a.csv"
    elif through == "link above":
        (tmp_path / "here").symlink_to(index.directory)
        place = tmp_path / "here" / "a.csv"
    assert storage.index_around(place) == index.directory
    assert storage.index_around(tmp_path / "a") is None


# What cannot be read is not gone


@pytest.fixture
def unreadable(monkeypatch):
    """Makes files whose paths end so fail as those of a failing disk do."""
    ends = []
    look = files.read_bytes

    def read(path):
        if any(str(path).endswith(one) for one in ends):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return look(path)

    monkeypatch.setattr(files, "read_bytes", read)
    return ends


@pytest.mark.parametrize("name", [storage.MANIFEST, storage.MARK])
def test_a_manifest_that_cannot_be_read_now_is_not_replaced(index, unreadable, name):
    with index.writing():
        index.tag(["a.film"], ["kept"])
    before = archive.everything(index.directory)
    unreadable.append(name)
    assert len(Index.open(index.directory).manifest.videos) == 3  # a reader goes on
    with pytest.raises(SearchError, match="cannot be read"):
        index.remove(["b.film"])
    with pytest.raises(SearchError, match="cannot be read"):
        archive.fill(Index.open(index.directory))
    unreadable.clear()
    assert archive.everything(index.directory) == before


def test_vectors_that_cannot_be_read_now_are_not_deleted(index, films, unreadable):
    content = index.manifest.videos["b.film"].content
    for name in (storage.MANIFEST, storage.PREVIOUS):
        (index.directory / name).unlink()
    (films / "b.film").rename(films.parent / "b.film")  # it is not indexed anew
    unreadable.append(f"{content}.npz")
    archive.fill(Index.open(index.directory))
    assert index.file(content).exists()
    unreadable.clear()
    archive.fill(Index.open(index.directory))
    assert Index.open(index.directory).offline() == ["b.film"]


def test_only_what_is_known_to_be_gone_is_gone(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    gone = {name: files.is_gone(tmp_path / name) for name in os.listdir(tmp_path)}
    assert gone == {"file": False, "dangling": False, "circle": False}
    assert files.is_gone(tmp_path / "nothing") and files.is_gone(tmp_path / "file" / "x")
    assert files.is_gone(tmp_path / "dangling", follow=True)
    assert not files.is_gone(tmp_path / "circle" / "x")
