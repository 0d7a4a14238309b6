"""The database of an index: repair of damage from the copy, and refusal of other formats."""

import contextlib
import errno
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import archive
import numpy as np
import processes
import pytest

from hlformer_jax import files, search
from hlformer_jax.errors import DamagedError, SearchError, UnreadableError
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.index import Index, LockedError, database
from hlformer_jax.search.index import index as index_module
from hlformer_jax.search.index.directory import (
    COPY,
    DAMAGED,
    DATABASE,
    MARK,
    MARKED,
    SUMS,
    find_enclosing_index,
)


def query_red(directory):
    library = search.open(directory, encoder=archive.Encoder())
    return [(hit.video, hit.id, hit.score) for hit in library.query("red", k=9)]


DAMAGES = {
    "missing": os.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(9000)),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5000]),
    "no database": lambda path: path.write_bytes(b"{}" * 3000),
    "a flipped bit": lambda path: archive.flip(path, 5000),
}


@pytest.fixture
def tagged(index, films):
    """An index with a removed video and a tag."""
    index.remove(["b.film"])
    with index.writing() as writer:
        writer.tag(["a.film"], ["kept"])
    return index


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_database_is_replaced_by_its_copy(tagged, films, damage):
    path, expected = tagged.directory / DATABASE, Index.open(tagged.directory)
    ranked, content = query_red(tagged.directory), path.read_bytes()
    damage(path)
    reopened = Index.open(tagged.directory)
    assert reopened.videos == expected.videos and query_red(tagged.directory) == ranked
    [note] = reopened.notes
    assert f"{DATABASE} is" in note and "its copy of 2" in note and "\n" not in note
    assert note in archive.opened(tagged).query("red").warnings
    assert list(reopened.verify()) == [DATABASE]
    encoder = archive.Encoder()
    archive.fill(reopened, encoder)
    assert encoder.seen == 0 and reopened.notes == []
    reopened = Index.open(tagged.directory)
    assert reopened.notes == [] and reopened.verify() == {} and path.read_bytes() == content
    assert reopened.videos == expected.videos and reopened.tags == expected.tags
    assert set(reopened.excluded) == {"b.film"}


def test_every_flipped_bit_of_the_database_is_damage(index):
    path = index.directory / DATABASE
    content = path.read_bytes()
    for offset in range(0, len(content), 1013):
        archive.flip(path, offset)
        assert len(Index.open(index.directory).notes) == 1, offset
        path.write_bytes(content)
    assert Index.open(index.directory).notes == []


def test_damage_of_the_copy_is_named_and_mended(index):
    archive.flip(index.directory / COPY, 7000)
    assert list(index.verify()) == [COPY]
    archive.fill(index)
    assert index.verify() == {}


def test_index_without_database_and_copy_is_rebuilt(index, films, capsys):
    before = archive.vectors(index)
    for name in (DATABASE, COPY):
        (index.directory / name).write_bytes(b"x" * 5000)
    damaged = archive.everything(index.directory)
    for command in ("status", "verify"):
        assert main([command, f"--index={index.directory}"]) == 1
        output = capsys.readouterr()
        assert f"{DATABASE} is damaged" in output.out + output.err
    with pytest.raises(DamagedError, match=DATABASE):
        Index.open(index.directory)
    assert archive.everything(index.directory) == damaged
    rebuilt = archive.create(index.directory, films)
    assert archive.fill(rebuilt)[0].indexed == 3 and archive.vectors(rebuilt) == before
    assert (index.directory / DAMAGED).read_bytes() == b"x" * 5000


@pytest.mark.parametrize("damage", ["no database", "missing"])
def test_index_is_not_rebuilt_if_its_copy_cannot_be_read_now(index, films, damage, tmp_path):
    DAMAGES[damage](index.directory / DATABASE)
    (index.directory / COPY).rename(tmp_path / COPY)
    (index.directory / COPY).symlink_to("/proc/self/mem")  # reading it is an I/O error
    before = sorted(os.listdir(index.directory))
    with pytest.raises(UnreadableError, match=f"{DATABASE} is .*{COPY} cannot be read"):
        Index.open(index.directory)
    with pytest.raises(UnreadableError, match=f"{COPY} cannot be read"):
        archive.create(index.directory, films)
    assert sorted(os.listdir(index.directory)) == before
    assert (index.directory / COPY).is_symlink()


def test_second_of_two_first_runs_names_the_first(index, films, tmp_path):
    with index.running(), pytest.raises(LockedError, match="another process is writing to"):
        archive.create(index.directory, films)
    with files.lock(tmp_path / "new"), pytest.raises(LockedError, match="wait until it has ended"):
        archive.create(tmp_path / "new", films)
    assert archive.create(tmp_path / "new", films).videos == {}


@pytest.mark.parametrize("action", ["open", "find_damaged"])
def test_locked_database_is_not_waited_for_longer(index, monkeypatch, action):
    opened = database.Database(index.directory)
    monkeypatch.setattr(database, "WAIT_SECONDS", 0.1)
    path = index.directory / DATABASE
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    unlock = threading.Timer(5.0, other.execute, ["ROLLBACK"])
    unlock.start()
    begin = time.monotonic()
    with pytest.raises(LockedError, match="another process is writing to"):
        database.Database(index.directory) if action == "open" else opened.find_damaged()
    assert time.monotonic() - begin < 4
    unlock.cancel()
    other.close()


def test_complete_index_is_not_rebuilt(index, films):
    before = archive.everything(index.directory)
    with pytest.raises(SearchError, match="is an index: open it"):
        archive.create(index.directory, films)
    (index.directory / DATABASE).unlink()  # its copy is intact
    with pytest.raises(SearchError, match="is an index: open it"):
        archive.create(index.directory, films)
    archive.fill(Index.open(index.directory))
    assert archive.everything(index.directory) == before


@pytest.mark.parametrize("damage", ["empty", "a flipped bit", "missing"])
def test_damaged_checksums_are_named_and_rewritten(index, damage):
    DAMAGES[damage](index.directory / SUMS)
    reopened = Index.open(index.directory)
    [note] = reopened.notes
    state = "missing" if damage == "missing" else "damaged"
    assert f"index.sums is {state}" in note and "\n" not in note
    assert note in archive.opened(index).query("red").warnings
    assert list(reopened.verify()) == [SUMS] and len(reopened.videos) == 3
    archive.fill(reopened)
    assert reopened.notes == [] and reopened.verify() == {} == Index.open(index.directory).verify()
    with index.writing() as writer:
        writer.tag(["a.film"], ["x"])
    archive.flip(index.directory / DATABASE, 5000)
    assert len(Index.open(index.directory).notes) == 1


def test_unreadable_checksums_are_named_and_the_copy_stays(index):
    sums, copy = index.directory / SUMS, index.directory / COPY
    content, copied = sums.read_bytes(), copy.read_bytes()
    sums.unlink()
    sums.symlink_to("/proc/self/mem")  # reading its first byte is an I/O error
    reopened = Index.open(index.directory)
    [note] = reopened.notes
    assert f"{SUMS} cannot be read (Input/output error)" in note and "\n" not in note
    assert list(reopened.verify()) == [SUMS]
    with reopened.writing() as writer:
        writer.tag(["a.film"], ["kept"])
    archive.fill(reopened)
    assert copy.read_bytes() == copied  # the database that would replace it is not verified
    assert reopened.notes == [note]
    sums.unlink()
    sums.write_bytes(content)
    archive.fill(reopened)
    assert reopened.notes == [] and reopened.verify() == {} and copy.read_bytes() != copied
    (index.directory / DATABASE).unlink()
    assert len(Index.open(index.directory).tags) == 1


def test_unreadable_mark_is_not_a_missing_one(index, tmp_path):
    (index.directory / MARK).unlink()
    (index.directory / MARK).symlink_to("/proc/self/mem")
    with pytest.raises(UnreadableError, match=f"{MARK} cannot be read"):
        find_enclosing_index(index.directory / "out.csv")
    (index.directory / DATABASE).rename(tmp_path / DATABASE)
    (index.directory / COPY).unlink()
    with pytest.raises(UnreadableError, match=f"{MARK} cannot be read"):
        Index.open(index.directory)
    with pytest.raises(UnreadableError, match=f"{MARK} cannot be read"):
        archive.create(index.directory, index.root)


def test_database_that_cannot_be_examined_is_not_replaced(index):
    library, path = Index.open(index.directory), index.directory / DATABASE
    path.unlink()
    path.symlink_to(DATABASE)  # a link to itself
    before = sorted(os.listdir(index.directory))
    with pytest.raises(UnreadableError, match=f"{DATABASE} cannot be read"):
        library.remove(["a.film"])
    assert sorted(os.listdir(index.directory)) == before


def test_change_whose_checksum_was_not_written_is_kept(index, monkeypatch):
    monkeypatch.setattr(database.Database, "finish", lambda self: None)  # as after a kill
    with index.writing() as writer:
        writer.tag(["a.film"], ["kept"])
    monkeypatch.undo()
    reopened = Index.open(index.directory)
    assert reopened.notes == [] and len(reopened.tags) == 1
    archive.fill(reopened)
    (index.directory / DATABASE).unlink()
    assert len(Index.open(index.directory).tags) == 1


@pytest.mark.parametrize(
    ("copy_seconds", "copies_in_size", "interval"),
    [(0.01, 0, 10), (1.0, 0, 100), (60.0, 0, 300), (0.01, 2, 200)],
)
def test_run_copies_the_database_early_if_copies_are_fast(
    index, monkeypatch, copy_seconds, copies_in_size, interval
):
    if copies_in_size:  # a large database
        size = (index.directory / DATABASE).stat().st_size
        monkeypatch.setattr(index_module, "COPY_SPEED", size / copies_in_size)
    copied = (index.directory / COPY).read_bytes()
    with index.running():
        for seconds in (interval - 2, interval + 2):
            index._copied, index._copy_seconds = time.monotonic() - seconds, copy_seconds
            with index.writing() as writer:
                writer.tag(["a.film"], [f"after {seconds} seconds"])
            is_copied = (index.directory / COPY).read_bytes() != copied
            assert is_copied == (seconds > interval)
        killed = shutil.copytree(index.directory, index.directory.with_name("killed"))
    (killed / DATABASE).unlink()
    assert f"after {interval + 2} seconds" in Index.open(killed).tags.popitem()[1]


def test_first_change_of_a_later_run_is_not_copied_at_once(index):
    index._copied -= 1000
    with index.running():
        copied = (index.directory / COPY).read_bytes()
        with index.writing() as writer:
            writer.tag(["a.film"], ["x"])
        assert (index.directory / COPY).read_bytes() == copied


def test_missing_mark_is_accepted_foreign_database_refused(index, films, tmp_path):
    (index.directory / MARK).unlink()
    assert len(Index.open(index.directory).videos) == 3
    shutil.copytree(index.directory, tmp_path / "site")
    (tmp_path / "site" / COPY).unlink()
    with sqlite3.connect(tmp_path / "foreign.db") as connection:
        connection.execute("CREATE TABLE pages (text)")
    connection.close()
    os.replace(tmp_path / "foreign.db", tmp_path / "site" / DATABASE)
    before = archive.everything(tmp_path / "site")
    with pytest.raises(DamagedError, match="another program"):
        Index.open(tmp_path / "site")
    with pytest.raises(SearchError, match="choose another index"):
        archive.create(tmp_path / "site", films)
    assert archive.everything(tmp_path / "site") == before


def test_older_format_is_refused_and_left_unchanged(tmp_path, films):
    older = tmp_path / "older"
    older.mkdir()
    (older / MARK).write_bytes(MARKED + b'{\n  "digest": "0", "format": 3}')
    (older / "manifest.json").write_bytes(b'{"format": 3}')
    (older / "videos").mkdir()
    (older / "videos" / f"{'0' * 64}.npz").write_bytes(b"embeddings")
    before = archive.everything(older)
    for act in (Index.open, lambda place: archive.create(place, films)):
        with pytest.raises(SearchError, match="older format: index the folder again") as refused:
            act(older)
        assert "\n" not in str(refused.value)
    assert archive.everything(older) == before


def test_newer_format_is_refused(index, monkeypatch):
    monkeypatch.setattr(database, "FORMAT", database.FORMAT - 1)
    before = archive.everything(index.directory)
    with pytest.raises(SearchError, match="update hlformer-jax"):
        Index.open(index.directory)
    assert archive.everything(index.directory) == before


def test_index_of_this_format_is_migrated_by_a_newer_version(index, monkeypatch):
    def add_column(connection):
        connection.execute("ALTER TABLE roots ADD COLUMN note TEXT NOT NULL DEFAULT 'new'")

    monkeypatch.setattr(database, "FORMAT", database.FORMAT + 1)
    monkeypatch.setitem(database.MIGRATIONS, database.FORMAT - 1, add_column)
    for _ in range(2):
        reopened = Index.open(index.directory)
        assert reopened.notes == [] and len(reopened.videos) == 3
        assert reopened._database.select("SELECT note FROM roots") == [("new",)]
    archive.fill(reopened)
    assert reopened.verify() == {}


READER = """
import pathlib, sys
from hlformer_jax.search.index import Index
for _ in range(40):
    index = Index.open(pathlib.Path(sys.argv[1]))
    assert index.notes == [], index.notes
    tags = index.tags.values()
    assert len({len(names) for names in tags}) <= 1, tags
"""


@pytest.mark.slow  # it takes seconds
def test_readers_in_other_processes_see_complete_changes(index):
    command = [sys.executable, "-c", READER, str(index.directory)]
    reader = subprocess.Popen(command, env=processes.environment(), stderr=subprocess.PIPE)
    number = 0
    while reader.poll() is None:
        with index.writing() as writer:
            for name in index.videos:
                writer.tag([name], [f"tag {number}"])
        number += 1
    assert reader.returncode == 0, reader.stderr.read()
    reader.stderr.close()
    assert number > 2


@pytest.mark.parametrize("name", [COPY, SUMS])
def test_change_does_not_fail_if_a_run_begins_while_it_is_copied(index, monkeypatch, name):
    write = files.atomic_write

    @contextlib.contextmanager
    def begin_run(path, *options):
        with write(path, *options) as draft:
            yield draft
            if path.name == name:
                monkeypatch.undo()
                with Index.open(index.directory).running():
                    pass

    monkeypatch.setattr(files, "atomic_write", begin_run)
    with index.writing() as writer:
        writer.tag(["a.film"], ["kept"])
    (index.directory / DATABASE).unlink()
    assert list(Index.open(index.directory).tags.values()) == [["kept"]]


def test_copied_index_and_moved_root_keep_their_identity(index, films, tmp_path):
    ranked = query_red(index.directory)
    shutil.copytree(index.directory, tmp_path / "elsewhere")
    shutil.rmtree(index.directory)
    assert query_red(tmp_path / "elsewhere") == ranked
    films.rename(tmp_path / "moved")
    reopened = Index.open(tmp_path / "elsewhere")
    with reopened.writing() as writer:
        writer.move_root("", tmp_path / "moved")
    report, _ = archive.fill(reopened)
    assert report.unchanged == 3 and query_red(tmp_path / "elsewhere") == ranked


def test_full_database_is_one_line_and_changes_nothing(index):
    before = archive.everything(index.directory)
    index._database.select(
        f"PRAGMA max_page_count = {index._database.select('PRAGMA page_count')[0][0]}"
    )
    with pytest.raises(SearchError, match="is full: make room"), index.writing() as writer:
        writer.tag(["a.film"], [hashlib.sha256(b"%d" % i).hexdigest() for i in range(500)])
    assert archive.everything(index.directory) == before


@pytest.fixture
def copies_fail(monkeypatch):
    """Let the disk be full whenever the database is copied."""
    write = files.write_bytes

    def fail(path, content):
        if path.name == COPY:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_bytes", fail)
        yield patch


def test_change_is_stored_if_the_copy_does_not_fit(index, copies_fail):
    with pytest.raises(SearchError) as error, index.writing() as writer:
        writer.tag(["a.film"], ["kept"])
    message = str(error.value)
    assert message.startswith("the change is stored, but ") and "repeat" not in message
    assert f"{COPY}, the copy of the database, cannot be renewed (No space left" in message
    copies_fail.undo()
    with index.writing() as writer:
        writer.tag(["a.film"], ["too"])
    (index.directory / DATABASE).unlink()
    assert list(Index.open(index.directory).tags.values()) == [["kept", "too"]]


def test_run_ends_with_its_own_error_if_the_copy_does_not_fit(index, copies_fail, monkeypatch):
    monkeypatch.setattr(index_module, "COPY_SECONDS", (0.0, 0.0))
    with pytest.raises(SearchError, match="the change is stored"), index.running():
        for tag in ("a", "b"):  # a copy during the run is tried again
            with index.writing() as writer:
                writer.tag(["a.film"], [tag])
    with pytest.raises(SearchError, match=r"^the run failed$"), index.running():
        raise SearchError("the run failed")
    assert list(Index.open(index.directory).tags.values()) == [["a", "b"]]


def test_disk_without_room_for_a_journal_is_full(index, monkeypatch):
    (index.directory / "index.db-journal").mkdir()  # SQLite cannot create its journal
    before = archive.everything(index.directory)

    def tag():
        with index.writing() as writer:
            writer.tag(["a.film"], ["x"])

    with pytest.raises(UnreadableError, match="cannot be read"):
        tag()

    def fail(**_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    with pytest.raises(SearchError, match="is full: make room"):
        tag()
    assert archive.everything(index.directory) == before


def test_read_only_index_is_searched(index, read_only):
    before = archive.everything(index.directory)
    assert len(query_red(index.directory)) == 3
    with pytest.raises(SearchError, match="read-only: make it writable"):
        Index.open(index.directory).remove(["a.film"])
    assert archive.everything(index.directory) == before


def test_forbidden_lock_is_not_called_a_read_only_disk(index, monkeypatch):
    os_open = os.open

    def forbidden(path, *flags, **options):
        if Path(path).name == ".lock":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return os_open(path, *flags, **options)

    monkeypatch.setattr(os, "open", forbidden)
    with pytest.raises(SearchError, match=r"\.lock may not be read or written by this user"):
        archive.fill(index)


@pytest.mark.parametrize("name", ["index", "index/index.db"])
def test_forbidden_directory_is_not_called_a_read_only_disk(index, read_only, name, monkeypatch):
    forbidden = index.directory.parent / name
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != forbidden)
    with pytest.raises(SearchError, match=f"{name} may not be read or written by this user"):
        Index.open(index.directory).remove(["a.film"])


@pytest.mark.parametrize("suffix", ["f16", "times", "i8", "bounds"])
def test_forbidden_embeddings_are_named_or_computed_again(index, suffix, large, monkeypatch):
    ranked, mapping = query_red(index.directory), np.memmap

    def forbidden(path, *options, **more):
        if path.suffix == f".{suffix}":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return mapping(path, *options, **more)

    os_open = os.open
    monkeypatch.setattr(np, "memmap", forbidden)
    monkeypatch.setattr(
        os, "open", lambda path, *flags, **more: forbidden(path, *flags, **more)
        if Path(path).suffix == f".{suffix}" else os_open(path, *flags, **more),
    )  # fmt: skip
    if suffix in ("i8", "bounds"):
        assert query_red(index.directory) == ranked
        return
    advice = "check the disk and the rights"
    with pytest.raises(UnreadableError, match=rf"\.{suffix} cannot be read .*{advice}"):
        query_red(index.directory)
    assert all(advice in line for line in index.verify().values())
