"""Speech and writing that are recognised: real writing; speech by a stand-in of faster-whisper."""

import inspect
import sys
from types import ModuleType, SimpleNamespace

import archive
import av
import numpy as np
import pytest
import videos
from PIL import Image, ImageDraw, ImageFont

from hlformer_jax.errors import SearchError
from hlformer_jax.search import commands, said
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.extract import index_folder
from hlformer_jax.search.library import Library

HEARD = {
    "loud.mp4": [(0.5, 1.0, " The boat  leaves "), (1.0, 1.5, " "), (1.5, 2.0, "at dawn")],
}


def signs(frame):
    """Frames of 12 a second: a sign for seconds 2 to 5, none until then, another afterwards."""
    image = Image.new("RGB", (320, 180), (40, 60, 80))
    text = "" if frame < 24 else "PLATFORM SEVEN" if frame < 72 else "Lisbon 09:40"
    ImageDraw.Draw(image).text((20, 70), text, fill="white", font=ImageFont.load_default(28))
    return np.asarray(image)


def tone(path):
    """A cue from the first to the last sample that sounds, in seconds of the decoded samples."""
    with av.open(path) as container:
        samples = [frame.to_ndarray().mean(0) for frame in container.decode(audio=0)]
        rate = container.streams.audio[0].rate
    loud = np.flatnonzero(np.abs(np.concatenate(samples)) > 0.02) / rate
    return loud[0], loud[-1], "tone"


@pytest.fixture
def index(tmp_path):
    folder = tmp_path / "films"
    folder.mkdir()
    videos.write(folder / "loud.mp4", sound=(0.5, 2.0))
    videos.write(folder / "subtitled.mp4", sound=(0, 1), frames=24)
    (folder / "subtitled.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nhello\n")
    videos.write(folder / "still.mp4", frames=30)
    index = archive.create(tmp_path / "index", folder)
    index_folder(index, archive.Encoder(), workers=1)
    return index


@pytest.fixture
def whisper(monkeypatch):
    """A module of faster-whisper's interface; the names of the videos that it was given."""
    asked = []

    class WhisperModel:
        supported_languages = ("en", "de")

        def __init__(self, model_size_or_path, device="auto", *, compute_type="default"):
            if model_size_or_path == "nope":
                raise ValueError("Invalid model size 'nope',\nexpected one of: tiny, small")

        def transcribe(self, audio, language=None, *, vad_filter=False):
            asked.append(audio.rpartition("/")[2])
            assert vad_filter and language in (None, "de")
            if isinstance(cues := HEARD.get(asked[-1]) or [tone(audio)], Exception):
                raise cues
            # Lazily, as faster-whisper does.
            return (SimpleNamespace(start=a, end=b, text=text) for a, b, text in cues), None

    module = ModuleType("faster_whisper")
    module.WhisperModel = WhisperModel
    monkeypatch.setitem(sys.modules, "faster_whisper", module)
    return asked


def told(index):
    return {
        entry.video: Library(index.directory, encoder=archive.Encoder()).transcript(entry.id)
        for entry in Library(index.directory).videos()
    }


@pytest.fixture(autouse=True)
def encoder(monkeypatch):
    monkeypatch.setattr(commands, "reload_encoder", lambda facts, given: archive.Encoder())


def transcribe(index, *options):
    return main(["transcribe", f"--index={index.directory}", *options])


def test_speech_is_recognised_where_there_is_sound_and_no_subtitle(index, whisper, capsys):
    assert transcribe(index, "--speech=small") == 0
    assert whisper == ["loud.mp4"] and "in 2 videos" in capsys.readouterr().out
    spoken = told(index)
    assert [text for *_, text in spoken["loud.mp4"]] == ["The boat leaves", "at dawn"]
    assert spoken["still.mp4"] == [] and [cue[2] for cue in spoken["subtitled.mp4"]] == ["hello"]
    library = Library(index.directory, encoder=archive.Encoder())
    [hit] = library.query("a boat leaves at dawn", only="said")
    assert hit.video == "loud.mp4" and hit.said[0].end - hit.said[0].start == 1.5
    # What is done is not done again, but by another model; indexing again keeps it.
    assert transcribe(index, "--speech=small") == 0 and whisper == ["loud.mp4"]
    index_folder(index, archive.Encoder(), workers=1)
    assert told(index) == spoken
    assert transcribe(index, "--speech=tiny", "--language=de") == 0 and len(whisper) == 2
    # Subtitles that are written later take its place.
    (index.root / "loud.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nahoy\n")
    index_folder(index, archive.Encoder(), workers=1)
    assert [cue[2] for cue in told(index)["loud.mp4"]] == ["ahoy"]
    assert said.damaged(index) == {}


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
def test_times_of_speech_count_from_the_first_frame(tmp_path, whisper, name):
    path = videos.write(tmp_path / name, sound=(1, 2))
    [cue] = said.speech("small").cues(path)
    assert cue == (pytest.approx(1, abs=0.05), pytest.approx(2, abs=0.15), "tone")


@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), RuntimeError("CUDA failed\nout of memory")]
)
def test_what_fails_is_a_line_and_is_tried_again(index, whisper, monkeypatch, capsys, error):
    heard = HEARD["loud.mp4"]
    monkeypatch.setitem(HEARD, "loud.mp4", error)
    assert transcribe(index, "--speech=small") == 0
    done = capsys.readouterr()
    assert "in 1 videos" in done.out and len(done.err.splitlines()) == 1 and "loud" in done.err
    monkeypatch.setitem(HEARD, "loud.mp4", heard)
    assert transcribe(index, "--speech=small") == 0 and len(told(index)["loud.mp4"]) == 2


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ([], "--writing"),
        (["--speech=nope"], "expected one of: tiny, small"),
        (["--speech=small", "--language=xx"], "'xx'"),
    ],
)
def test_what_cannot_be_recognised_is_refused(index, whisper, capsys, options, word):
    assert transcribe(index, *options) == 1
    [line] = [line for line in capsys.readouterr().err.splitlines() if line]
    assert word in line and whisper == []


def test_the_stand_in_takes_what_faster_whisper_takes():
    real = pytest.importorskip("faster_whisper", reason="extra speech").WhisperModel
    assert "compute_type" in inspect.signature(real.__init__).parameters
    assert {"language", "vad_filter"} <= inspect.signature(real.transcribe).parameters.keys()
    with pytest.raises(SearchError, match="nope"):
        said.speech("nope")


def test_writing_is_read_when_it_is_there(tmp_path, capsys):
    pytest.importorskip("rapidocr", reason="extra ocr")
    folder = tmp_path / "films"
    folder.mkdir()
    videos.write(folder / "signs.mp4", paint=signs, frames=120)
    index = archive.create(tmp_path / "index", folder)
    index_folder(index, archive.Encoder(), workers=1)
    assert transcribe(index, "--writing") == 0 and "in 1 videos" in capsys.readouterr().out
    first, second = told(index)["signs.mp4"]
    assert (first[2], second[2]) == ("PLATFORM SEVEN", "Lisbon 09:40")
    assert first[:2] == (2, 6) and second[:2] == pytest.approx((6, 10), abs=0.01)
    library = Library(index.directory, encoder=archive.Encoder())
    assert library.query("platform seven", only="said")[0].said[0].start == 2
    assert transcribe(index, "--writing") == 0 and "in 0 videos" in capsys.readouterr().out
