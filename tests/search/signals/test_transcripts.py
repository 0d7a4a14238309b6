"""Transcripts in the database of an index: nothing that was recognised is lost in silence."""

import json
import shutil
from types import SimpleNamespace

import archive
import pytest

from hlformer_jax.errors import DamagedError, SearchError
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.cli import index as index_commands
from hlformer_jax.search.index import Index, database
from hlformer_jax.search.index import index as index_module
from hlformer_jax.search.signals.transcript import passages, transcripts

SPOKEN = {"by": "a model", "cues": [(4.0, 6.0, "recognised ahoy")]}


@pytest.fixture(autouse=True)
def encoder(monkeypatch):
    monkeypatch.setattr(index_commands, "reload_encoder", lambda facts, given: archive.Encoder())
    monkeypatch.setattr(index_commands, "real_video", lambda: archive.TOLD)


@pytest.fixture
def index(tmp_path, films):
    """An index in which speech was recognised in one video, a.film."""
    (films / "b.srt").write_text('[[0, 1, "beside b"]]')
    index = archive.create(tmp_path / "index", films)
    archive.fill(index, video=archive.TOLD)
    with index.running():
        transcript = transcripts.load(index, content(index))
        transcript.recognised["speech"] = dict(SPOKEN)
        save(index, content(index), transcript)
        passages.embed_passages(index, archive.Encoder(), print)
    return index


def content(index, video="a.film"):
    return index.videos[video].content


def save(index, content, transcript):
    with index.writing() as writer:
        transcripts.put(writer, content, transcript)


def fill(index):
    return archive.fill(Index.open(index.directory), video=archive.TOLD)[1]


def found(index, words="ahoy"):
    """Return the videos that say something, and the warnings."""
    hits = archive.opened(index).query(words)
    return [hit.video for hit in hits if hit.passages], hits.warnings


def status(index, capsys, command="status"):
    code = main([command, f"--index={index.directory}"])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


def database_of(index):
    return index.directory / database.DATABASE


def test_a_damaged_database_loses_no_recognised_text(index, capsys):
    archive.flip(database_of(index), 5000)
    code, shown = status(index, capsys, "verify")
    assert code == 1 and "index.db is damaged" in shown
    saying, warnings = found(index)
    assert saying == ["a.film"] and "repeat later transcriptions" in warnings[0]
    assert [line for line in fill(index) if "index.db" in line] == []
    assert found(index) == (["a.film"], []) and status(index, capsys, "verify")[0] == 0


def test_cues_damaged_twice_are_not_treated_as_missing(index, capsys):
    for name in (database.DATABASE, database.COPY):
        archive.flip(index.directory / name, 5000)
    before = archive.everything(index.directory)
    for command in ("status", "verify"):
        code, shown = status(index, capsys, command)
        assert code == 1 and "index.db is damaged" in shown
    with pytest.raises(DamagedError, match="damaged"):
        archive.opened(index)
    assert archive.everything(index.directory) == before


def test_long_runs_copy_the_database_now_and_then(index, monkeypatch):
    monkeypatch.setattr(index_module, "COPY_SECONDS", (0.0, 0.0))
    with index.running():
        transcript = transcripts.load(index, content(index, "b.film"))
        transcript.recognised["speech"] = {"by": "a model", "cues": [(1.0, 2.0, "more words")]}
        for _ in range(2):
            save(index, content(index, "b.film"), transcript)
        # As after a kill, and damage of the disk.
        copy = index.directory.with_name("copy")
        shutil.copytree(index.directory, copy)
    database_of(SimpleNamespace(directory=copy)).unlink()
    assert transcripts.load(Index.open(copy), content(index, "b.film")) == transcript


def test_a_full_disk_leaves_the_transcript_before(index):
    before = transcripts.load(index, content(index))
    [[pages]] = index.select("PRAGMA page_count")
    index.select(f"PRAGMA max_page_count = {pages}")
    cues = [(float(i), i + 1.0, f"words {i} " * 20) for i in range(300)]
    more = transcripts.load(index, content(index))
    more.recognised["ocr"] = {"by": "another", "cues": cues}
    with pytest.raises(SearchError, match="is full"):
        save(index, content(index), more)
    assert transcripts.load(Index.open(index.directory), content(index)) == before


def test_state_of_a_recogniser_is_kept(index):
    transcript = transcripts.load(index, content(index))
    transcript.recognised["speech"]["until"] = 12.5
    save(index, content(index), transcript)
    assert transcripts.load(index, content(index)) == transcript


def test_video_that_is_encoded_again_keeps_its_transcript(index):
    archive.damage(index, "a.film")
    assert [line for line in fill(index) if "computed anew" in line]
    assert found(index) == (["a.film"], [])


def test_no_transcript_stays_when_a_video_is_dropped(index):
    with index.writing() as writer:
        writer.forget({"a.film"})
    assert len(transcripts.contents(index)) == 2
    assert index.select("SELECT count(*) FROM cues WHERE source = 'speech'") == [(0,)]


@pytest.mark.parametrize("source", ["file", "tracks"])
def test_video_that_is_removed_while_its_subtitles_are_read_ends_no_run(index, films, source):
    (films / "a.srt").write_text('[[0, 1, "beside a"]]')

    def read(path, video=None):
        if path.name.startswith("a."):
            Index.open(index.directory).remove(set(index.videos) & {"a.film"})
            raise archive.FilmError("it is broken")
        return []

    with index.writing() as writer:  # its tracks are read again
        writer.execute("DELETE FROM cues")
    reader = archive.TOLD.texts._replace(**{source: read})
    archive.fill(index, video=archive.TOLD._replace(texts=reader))
    assert set(index.videos) == {"b.film", "trips/c.film"} and index.verify() == {}
    assert found(index, "beside b")[0] == ["b.film"] * (source == "tracks")


def test_cues_after_the_end_of_the_video_are_left_out_and_counted(index, films, capsys):
    late = [[0, 99, "beside b"], [20.5, 21, "last words"], [442_801, 442_805, "next film"]]
    (films / "b.srt").write_text(json.dumps(late))
    line = "b.srt: 1 of 3 cues begin after the end of the video (20.0 s) and are left out"
    assert fill(index) == [line] and fill(index) == []
    assert f"subtitles: {line}" in status(index, capsys)[1]
    assert found(index, "next film") == ([], []) and found(index, "last words")[0] == ["b.film"]
    transcript = transcripts.load(index, content(index, "b.film"))
    assert [cue[:2] for cue in transcript.cues("b.film")] == [(0, 21), (20.5, 21)]
    # An index from before this rule loses such cues when it is updated.
    transcript.tracks.cues = [transcripts.Cue(500.0, 501.0, "too late")]
    with index.running():
        save(index, content(index, "b.film"), transcript)
    assert "its subtitle tracks: 1 of 1 cues" in fill(index)[0]
    assert found(index, "too late") == ([], [])
