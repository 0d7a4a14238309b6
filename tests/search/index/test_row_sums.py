"""The checksum of the rows of a database: exact after each change, different after damage."""

import contextlib
import os
import sqlite3

import archive
import pytest

from hlformer_jax import files
from hlformer_jax.search.index import Index, LockedError, database, row_sums
from hlformer_jax.search.index.directory import COPY, DATABASE, SUMS


def sums(index):
    """Return the stored and the computed sum of the rows of an index."""
    with contextlib.closing(sqlite3.connect(index.directory / DATABASE)) as connection:
        return row_sums.read(connection), row_sums.compute(connection)


def rows(index):
    """Return all rows of the database of an index, and the errors that SQLite finds."""
    with contextlib.closing(sqlite3.connect(index.directory / DATABASE)) as connection:
        connection.text_factory = bytes
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        contents = [
            connection.execute(f"SELECT * FROM {table.decode()}").fetchall() for [table] in tables
        ]
        return contents, connection.execute("PRAGMA integrity_check").fetchall()


@pytest.fixture
def killed_index(index, monkeypatch):
    """An index with a change whose process was killed before it wrote the checksums."""
    with monkeypatch.context() as patch:
        patch.setattr(database.Database, "finish", lambda self: None)
        with index.writing() as writer:
            writer.tag(["a.film"], ["kept"])
    return index


def test_sum_is_exact_after_each_change(index, films):
    for change in (
        lambda writer: writer.tag(["a.film", "b.film"], ["x", "y"]),
        lambda writer: writer.tag(["a.film"], ["X"], drop=["y"]),  # REPLACE deletes a row
        lambda writer: writer.set_precisions(["bfloat16"]),
        lambda writer: writer.remove(["b.film"]),  # deletes rows of other tables, too
    ):
        before = sums(index)
        with index.writing() as writer:
            change(writer)
        stored, computed = sums(index)
        assert stored == computed and stored != before[0]
    archive.film(films / "a.film", ["white"] * 9)
    archive.fill(index)
    assert sums(index)[0] == sums(index)[1]


def test_sum_of_a_rolled_back_change_is_not_stored(index):
    with pytest.raises(ZeroDivisionError), index.writing() as writer:
        writer.tag(["a.film"], ["lost"])
        1 / 0  # noqa: B018
    with index.writing() as writer:
        writer.tag(["a.film"], ["kept"])
    assert sums(index)[0] == sums(index)[1]


def test_sum_is_renewed_after_a_program_without_sums(index):
    with contextlib.closing(sqlite3.connect(index.directory / DATABASE)) as connection, connection:
        connection.execute("INSERT INTO tags SELECT hash, 'x', 'x' FROM contents")
        connection.execute("UPDATE settings SET value = value + 1 WHERE name = 'version'")
    reopened = Index.open(index.directory)
    assert reopened.notes == [] and len(reopened.tags) == 3 and sums(index)[0] is None
    with reopened.writing() as writer:
        writer.tag(["a.film"], ["y"])
    assert sums(index)[0] == sums(index)[1] is not None


def test_flipped_bit_of_a_name_is_damage_after_a_kill(killed_index):
    path, name = killed_index.directory / DATABASE, b"trips/c.film"
    content, expected = path.read_bytes(), rows(killed_index)
    offset, damage_count = content.find(name), 0
    while offset >= 0:
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
        # Unused space keeps the text of deleted rows.
        if rows(killed_index) != expected:
            [note] = Index.open(killed_index.directory).notes
            assert f"{DATABASE} is damaged" in note and "its copy of 2" in note
            assert list(Index.open(killed_index.directory).verify()) == [DATABASE]
            damage_count += 1
        offset = content.find(name, offset + 1)
    assert damage_count >= 2  # in the table, and in an index of SQLite


def test_next_run_after_damage_and_a_kill_restores_the_copy(killed_index):
    path = killed_index.directory / DATABASE
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE tags SET tag = 'damaged'")  # SQLite finds no error
    encoder = archive.Encoder()
    reopened = Index.open(killed_index.directory)
    [note] = reopened.notes
    assert f"{DATABASE} is damaged" in note and reopened.tags == {}  # the copy is older
    archive.fill(reopened, encoder)
    assert encoder.seen == 0 and reopened.notes == [] and reopened.verify() == {}
    assert set(reopened.videos) == {"a.film", "b.film", "trips/c.film"} and reopened.tags == {}
    assert b"damaged" not in path.read_bytes() + (killed_index.directory / COPY).read_bytes()


@pytest.mark.slow  # it takes seconds
def test_no_flipped_bit_changes_a_row_silently(killed_index, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    path = killed_index.directory / DATABASE
    content, expected = path.read_bytes(), rows(killed_index)
    checksums = (killed_index.directory / SUMS).read_bytes()
    for offset in range(0, len(content), 97):
        archive.flip(path, offset)
        if not Index.open(killed_index.directory).notes:
            assert rows(killed_index) == expected, offset
        path.write_bytes(content)
        (killed_index.directory / SUMS).write_bytes(checksums)  # opening renews them


@pytest.fixture
def summed_databases(monkeypatch):
    """The databases whose rows are summed during a test."""
    connections, compute = [], row_sums.compute

    def recording(connection):
        connections.append(connection)
        return compute(connection)

    monkeypatch.setattr(row_sums, "compute", recording)
    return connections


def test_rows_are_summed_once_after_a_kill(killed_index, summed_databases):
    for _ in range(3):
        assert Index.open(killed_index.directory).notes == []
    assert len(summed_databases) == 1
    archive.flip(killed_index.directory / DATABASE, 5000)
    [note] = Index.open(killed_index.directory).notes
    assert f"{DATABASE} is damaged" in note
    archive.fill(Index.open(killed_index.directory))
    assert Index.open(killed_index.directory).verify() == {}


def test_rows_are_summed_again_if_the_sum_cannot_be_stored(
    killed_index, summed_databases, monkeypatch
):
    def fail(path, content):
        raise PermissionError

    monkeypatch.setattr(files, "write_bytes", fail)
    for number in (1, 2):
        assert Index.open(killed_index.directory).notes == []
        assert len(summed_databases) == number


def test_opening_during_a_run_checks_only_the_structure(index, summed_databases):
    with index.running():
        with index.writing() as writer:
            writer.tag(["a.film"], ["new"])
        reopened = Index.open(index.directory)
        assert reopened.notes == [] and list(reopened.tags.values()) == [["new"]]
        assert summed_databases == []
        content = (index.directory / DATABASE).read_bytes()
        (index.directory / DATABASE).write_bytes(content[:-5000])
        assert len(Index.open(index.directory).notes) == 1
        (index.directory / DATABASE).write_bytes(content)


def test_opening_index_lets_a_run_begin(index, monkeypatch):
    """The lock that `is_locked` takes for a moment is not another run."""
    lock, failures = files.lock, [BlockingIOError()]

    def busy(directory):
        if failures:
            raise failures.pop()
        return lock(directory)

    monkeypatch.setattr(files, "lock", busy)
    with index.running(), pytest.raises(LockedError), Index.open(index.directory).running():
        pass
