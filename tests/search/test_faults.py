"""Faults of the disk, and interruptions, at every write: nothing half-made becomes durable."""

import contextlib
import errno
import os
import shutil
from pathlib import Path

import archive
import pytest

from hlformer_jax.errors import SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.storage import Stamp


class Faults:
    """Makes the n-th writing, bringing to the disk or renaming of a file fail.

    A disk that is full stays so until the block ends; any other error happens once.
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
        full = getattr(self.error, "errno", None) == errno.ENOSPC
        return self.left == 0 or self.left < 0 and full

    def __exit__(self, *_):
        self.patch.undo()


ERRORS = {
    "full disk": OSError(errno.ENOSPC, "No space left on device"),
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
