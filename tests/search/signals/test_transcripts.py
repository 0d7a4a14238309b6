"""What becomes of transcripts whose files rot, or cannot be read: nothing is lost in silence."""

import contextlib
import errno
import os

import archive
import pytest

from hlformer_jax.errors import DamagedError
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.cli import index as index_commands
from hlformer_jax.search.index.database import Index
from hlformer_jax.search.signals.transcript import said, transcripts

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
    with index.writing():
        transcript = transcripts.load(index, content(index))
        transcript.recognised["speech"] = dict(SPOKEN)
        transcripts.save(index, content(index), transcript)
        said.embed(index, archive.Encoder(), print)
    return index


def content(index, video="a.film"):
    return index.manifest.videos[video].content


def fill(index):
    return archive.fill(Index.open(index.directory), video=archive.TOLD)[1]


def found(index, words="ahoy"):
    """Return the videos that say something, and the warnings."""
    hits = archive.opened(index).query(words)
    return [hit.video for hit in hits if hit.passages], hits.warnings


def flip(path, place=-40):
    """Flip one bit of a file."""
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


def both(index):
    return index.text(content(index)), index.text_copy(content(index))


def status(index, capsys, command="status"):
    code = main([command, f"--index={index.directory}"])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


@contextlib.contextmanager
def io_error(*paths):
    """Let every opening of files for reading fail with an I/O error."""

    def failing(path, flags, *options, **more):
        if os.fspath(path) in known and not flags & os.O_WRONLY:
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
        return call(path, flags, *options, **more)

    known, call = {os.fspath(path) for path in paths}, os.open
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", failing)
        yield


@pytest.mark.parametrize("place", [3, 40, 200, -40, -2])
@pytest.mark.parametrize("which", [0, 1])
def test_a_flipped_bit_is_healed_from_the_other_copy(index, capsys, which, place):
    path = both(index)[which]
    whole = path.read_bytes()
    flip(path, place)
    code, shown = status(index, capsys, "verify")
    assert code == 1 and path.name in shown and "makes them anew" in shown
    assert path.name in status(index, capsys)[1]
    assert found(index)[0] == ["a.film"]  # before it is healed, too
    [line] = fill(index)
    assert path.name in line and "made anew" in line
    assert [path.read_bytes() for path in both(index)] == [whole, whole]
    assert status(index, capsys, "verify")[0] == 0 and fill(index) == []


def test_a_missing_file_is_made_of_its_copy(index):
    for path in both(index):
        whole = path.read_bytes()
        path.unlink()
        assert found(index)[0] == ["a.film"]
        fill(index)
        assert path.read_bytes() == whole


def test_what_is_damaged_twice_is_kept_aside_and_told(index, capsys):
    for path in both(index):
        flip(path)
    damaged = [path.read_bytes() for path in both(index)]
    for command in ("verify", "status"):
        shown = status(index, capsys, command)[1]
        assert all(path.name in shown for path in both(index)) and "transcribe" in shown
    saying, warnings = found(index)
    assert saying == [] and [line for line in warnings if "is damaged" in line]
    told = fill(index)
    aside = transcripts.kept_aside(index)
    assert [path.read_bytes() for path in aside] == damaged
    assert len(told) == 2 and all("a.film" in line and "transcribe" in line for line in told)
    # It is told until a person deletes it, and a second one does not replace the first.
    for command in ("verify", "status"):
        assert all(path.name in status(index, capsys, command)[1] for path in aside)
    index.text(content(index)).write_bytes(b"")
    fill(index)
    assert len(transcripts.kept_aside(index)) == 3
    assert [path.read_bytes() for path in aside] == damaged
    for path in transcripts.kept_aside(index):
        path.unlink()
    assert status(index, capsys, "verify")[0] == 0 and fill(index) == []


def test_a_damaged_transcript_of_subtitles_is_made_anew(index, capsys):
    path = index.text(content(index, "b.film"))
    whole = path.read_bytes()
    flip(path)
    assert "makes them anew" in status(index, capsys, "verify")[1]
    assert [line for line in fill(index) if "made anew" in line]
    assert path.read_bytes() == whole and transcripts.kept_aside(index) == []


def test_what_an_older_version_recognised_is_kept_aside(index):
    for path in both(index):
        path.unlink()
    old = b'{"digest": "0", "inside": [], "cues": [], "recognised": {"speech": {"by": "x"}}}'
    index.text(content(index)).write_bytes(old)
    assert "transcribe" in fill(index)[0]
    assert [path.read_bytes() for path in transcripts.kept_aside(index)] == [old]


def test_a_transcript_of_an_older_version_is_brought_up_to_date(index):
    from hlformer_jax.search.index import storage

    for path in both(index):
        path.unlink()
    older = {
        "content": content(index),
        "sources": [["61", 1, 1]],
        "inside": [],
        "cues": [(0, 1, "of old subtitles")],
        "recognised": {"ocr": SPOKEN},
    }
    index.text(content(index)).write_bytes(storage.seal(older))
    assert found(index)[0] == found(index, "old subtitles")[0] == ["a.film"]
    fill(index)
    assert found(index)[0] == ["a.film"] and found(index, "old subtitles")[0] == []
    assert both(index)[0].read_bytes() == both(index)[1].read_bytes()


def test_an_io_error_leaves_the_files_as_they_are(index, capsys):
    before = archive.everything(index.directory / "texts")
    (index.root / "a.srt").write_text('[[0, 1, "new words"]]')
    with io_error(*both(index)):
        for _ in range(2):
            [line] = fill(index)
            assert os.strerror(errno.EIO) in line and "left as it is" in line
        assert archive.everything(index.directory / "texts") == before
        for command in ("verify", "status"):
            shown = status(index, capsys, command)[1]
            assert both(index)[0].name in shown and os.strerror(errno.EIO) in shown
            assert command == "status" or "the lines above say" in shown
        saying, warnings = found(index)
        assert saying == [] and [line for line in warnings if os.strerror(errno.EIO) in line]
        with pytest.raises(DamagedError, match=os.strerror(errno.EIO)):
            archive.opened(index).transcript(index.manifest.videos["a.film"].id)
    assert found(index)[0] == ["a.film"] and found(index)[1] == []
    fill(index)
    assert found(index)[0] == [] and found(index, "new words")[0] == ["a.film"]  # speech gives way
    (index.root / "a.srt").unlink()
    fill(index)
    assert found(index)[0] == ["a.film"]


@pytest.mark.parametrize("which", [0, 1])
def test_an_io_error_of_one_copy_loses_nothing(index, which):
    before = archive.everything(index.directory / "texts")
    with io_error(both(index)[which]):
        [line] = fill(index)
        assert os.strerror(errno.EIO) in line and found(index) == (["a.film"], [])
    assert archive.everything(index.directory / "texts") == before


def test_a_folder_of_transcripts_that_cannot_be_listed_is_told(index, monkeypatch):
    scandir = os.scandir

    def failing(path):
        if os.fspath(path).endswith("texts"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    saying, warnings = found(index)
    assert saying == [] and os.strerror(errno.EIO) in warnings[0]


def test_a_full_disk_leaves_the_transcript_before(index, monkeypatch):
    from hlformer_jax import files

    def full(path, raw):
        if path in both(index)[1:]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_bytes(path, raw)

    write_bytes = files.write_bytes
    transcript = transcripts.load(index, content(index))
    transcript.recognised["ocr"] = {"by": "another", "cues": [(1.0, 2.0, "more")]}
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(files, "write_bytes", full)
        transcripts.save(index, content(index), transcript)
    assert {"speech", "ocr"} == set(transcripts.load(index, content(index)).recognised)
    fill(index)
    assert both(index)[0].read_bytes() == both(index)[1].read_bytes()


def test_what_a_recogniser_keeps_beside_its_cues_stays(index):
    transcript = transcripts.load(index, content(index))
    transcript.recognised["speech"]["until"] = 12.5
    transcripts.save(index, content(index), transcript)
    assert transcripts.load(index, content(index)) == transcript


def test_a_damaged_list_of_problems_is_made_anew(index, capsys):
    (index.root / "unrelated.srt").write_text("[]")
    fill(index)
    path = index.directory / "texts" / "problems.list"
    whole = path.read_bytes()
    flip(path)
    assert path.name in status(index, capsys, "verify")[1]
    assert "is damaged" in status(index, capsys)[1]
    fill(index)
    assert path.read_bytes() == whole and status(index, capsys, "verify")[0] == 0


def test_no_copy_stays_when_a_video_is_dropped(index):
    paths = both(index)
    with index.writing():
        index.forget({"a.film"})
    assert not any(path.exists() for path in paths)
