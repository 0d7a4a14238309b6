"""Damaged rows of a database without a valid checksum: the copy replaces them."""

import contextlib
import hashlib
import sqlite3

import archive
import pytest

from hlformer_jax.errors import DamagedError
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.index import Index, database
from hlformer_jax.search.index.directory import COPY, DATABASE
from hlformer_jax.search.signals.transcript import transcripts
from hlformer_jax.search.signals.transcript.recognition import load_state, save_state

DAMAGES = {
    "content of a path": "UPDATE paths SET content = replace(hex(zeroblob(32)), '00', '0f')"
    " WHERE path = x'612E66696C6D'",
    "first root": "UPDATE roots SET name = 'x'",
    "name of a setting": "UPDATE settings SET name = 'fpz' WHERE name = 'fps'",
    "frame rate": "UPDATE settings SET value = 'x' WHERE name = 'fps'",
    "encoder": "UPDATE settings SET value = '[' || value WHERE name = 'encoder'",
    "field of the encoder": "UPDATE settings SET value = replace(value, 'width', 'widt')",
    "precisions": "INSERT INTO settings VALUES ('precisions', '[')",
    "checkpoint": "UPDATE settings SET value = 7 WHERE name = 'checkpoint'",
    "rows end": "UPDATE settings SET name = 'rows_enc' WHERE name = 'rows_end'",
    "facts of cues": "UPDATE cues SET facts = '{'",
    "name of a fact": "UPDATE cues SET facts = replace(facts, 'stamp', 'stamq')",
    "cues": "UPDATE cues SET cues = x'00'",
    "counts": "UPDATE repeats SET counts = x'00'",
    "number of counts": "UPDATE repeats SET rows = rows + 1",
    "times": "UPDATE repeats SET times = counts",
    "partial recognition": "UPDATE partial_recognitions SET state = '{'",
    "subtitle problem": "UPDATE subtitle_problems SET file = 7",
}


@pytest.fixture
def index(tmp_path, films):
    """An index that has rows in all tables."""
    (films / "b.srt").write_text('[[0, 1, "beside b"]]')
    (films / "a.srt").write_text("broken")
    index = archive.create(tmp_path / "index", films)
    archive.fill(index, video=archive.SUBTITLED)
    content = index.videos["a.film"].content
    transcript = transcripts.load(index, content)
    transcript.recognised["speech"] = {"by": "a model", "cues": [(4.0, 6.0, "ahoy")]}
    with index.writing() as writer:
        transcripts.put(writer, content, transcript)
    save_state(index, content, "a model", {"until": 1.0})
    return index


def damage(index, statement, name=DATABASE):
    """Change rows as damage after a kill does: index.sums has the checksum of another version."""
    with contextlib.closing(sqlite3.connect(index.directory / name)) as connection, connection:
        connection.execute(statement)
        connection.execute("UPDATE settings SET value = value + 1 WHERE name = 'version'")


def read(index):
    """Return all that an index holds."""
    contents = index.contents()
    return {
        "counts": index.frames(list(index.records())).counts.tolist(),
        "videos": index.videos,
        "entries": index.entries(),
        "summary": index.summary(),
        "transcripts": [transcripts.load(index, content) for content in contents],
        "problems": transcripts.problems(index),
        "partial": load_state(index, index.videos["a.film"].content, "a model"),
        "vectors": archive.vectors(index),
        "thresholds": index.thresholds,
    }


@pytest.mark.parametrize("statement", DAMAGES.values(), ids=DAMAGES)
def test_copy_replaces_database_with_a_damaged_row(index, statement, capsys):
    expected = read(index)
    damage(index, statement)
    reopened = Index.open(index.directory)
    assert read(reopened) == expected
    [note] = reopened.notes
    assert f"{DATABASE} is damaged" in note and "its copy of 2" in note and "\n" not in note
    assert "repeat later transcriptions" in note
    if "partial" not in statement:
        assert main(["verify", f"--index={index.directory}"]) == 1
        assert f"{DATABASE} is damaged" in capsys.readouterr().out
    encoder = archive.Encoder()
    archive.fill(reopened, encoder, video=archive.SUBTITLED)
    assert encoder.seen == 0 and read(reopened) == expected
    reopened = Index.open(index.directory)
    assert reopened.notes == [] and reopened.verify() == {} and read(reopened) == expected


def test_open_index_uses_the_copy_if_a_record_is_damaged(index):
    expected = read(index)
    damage(index, DAMAGES["content of a path"])
    assert index.videos == expected["videos"] and len(index.notes) == 1
    assert read(index) == expected and list(index.verify()) == [DATABASE]


def test_open_index_uses_the_copy_if_its_database_is_replaced(index):
    expected, path = read(index), index.directory / DATABASE
    content = path.read_bytes()
    path.rename(path.with_suffix(".old"))
    path.write_bytes(content[:-5000])
    assert index.videos == expected["videos"] and len(index.notes) == 1
    assert read(index) == expected and list(index.verify()) == [DATABASE]


def test_change_of_contradictory_rows_is_one_line(index, capsys):
    """Earlier versions stored the checksum of damage that came after a kill."""
    path = index.directory / DATABASE
    content = path.read_bytes()
    offset = content.rindex(b"b.film" + index.videos["b.film"].id.encode())  # in the table
    content = content[:offset] + b"c" + content[offset + 1 :]
    entry = [index.state[1], hashlib.sha256(content).hexdigest()]
    path.write_bytes(content)
    (index.directory / COPY).write_bytes(content)
    database._write_sums(index.directory, {DATABASE: entry, COPY: entry})
    reopened = Index.open(index.directory)
    with pytest.raises(DamagedError, match=f"{DATABASE} is damaged .*UNIQUE.*backup, or") as error:
        archive.fill(reopened, video=archive.SUBTITLED)
    assert "\n" not in str(error.value) and reopened.notes == []
    assert main(["verify", f"--index={index.directory}"]) == 1
    output = capsys.readouterr().out
    assert f"{DATABASE} is damaged" in output and f"{COPY} is damaged" in output
