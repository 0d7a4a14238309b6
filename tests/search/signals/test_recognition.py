"""Recognition of speech and text: cues, pieces of sound, tracks, languages, stored state, OCR.

The model here recognises beeps by their frequency. test_speech.py has a real model.
"""

import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import archive
import numpy as np
import pytest
import videos
from PIL import Image, ImageDraw, ImageFont
from videos import Track

from hlformer_jax.errors import SearchError
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.cli import index as index_commands
from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest.decoding import update_transcripts
from hlformer_jax.search.ingest.extract import index_folder, real_video
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.signals.transcript import passages, recognition
from hlformer_jax.search.signals.transcript.recognition import Word
from hlformer_jax.search.signals.transcript.transcripts import Cue
from hlformer_jax.video import sound
from hlformer_jax.video.faults import VideoError

RATE = recognition.SAMPLE_RATE


def beeps(total, **frequencies):
    """Return `total` seconds of sound with beeps of half a second at the seconds s1, s2, …"""
    samples = np.zeros(round(total * RATE), np.float32)
    wave = 2 * np.pi * np.arange(RATE // 2) / RATE
    for second, frequency in frequencies.items():
        start = round(float(second[1:].replace("_", ".")) * RATE)
        samples[start : start + RATE // 2] = 0.5 * np.sin(frequency * wave)
    return samples


def find_beeps(samples):
    """Return the stretches of sound that 0.1 s of silence separates."""
    loud = np.flatnonzero(np.abs(samples) > 0.05)
    if not len(loud):
        return []
    breaks = np.flatnonzero(np.diff(loud) > 0.1 * RATE)
    starts, stops = loud[[0, *(breaks + 1)]], loud[[*breaks, -1]] + 1
    return [(int(start), int(stop)) for start, stop in zip(starts, stops, strict=True)]


class Model:
    """A model that transcribes each beep as its frequency, rounded to ten hertz."""

    def __init__(self, languages=("de", "en"), detects="en", temperature=0.0, avg_logprob=-0.4):
        self.supported_languages = list(languages)
        self.detects = detects
        self.certainty = {"temperature": temperature, "avg_logprob": avg_logprob}
        self.calls = []  # seconds and language of each
        self.fail_at, self.error = None, None

    def detect_language(self, audio):
        return self.detects, 0.9, []

    def transcribe(self, audio, language=None, *, word_timestamps=False):
        assert word_timestamps and audio.dtype == np.float32
        if len(self.calls) == self.fail_at:
            raise self.error
        self.calls.append((len(audio) / RATE, language))
        return self._segments(audio), None

    def _segments(self, audio):
        for start, stop in find_beeps(audio):
            spectrum = np.abs(np.fft.rfft(audio[start:stop]))
            hertz = round(np.argmax(spectrum) * RATE / (stop - start), -1)
            word = SimpleNamespace(start=start / RATE - 0.2, end=stop / RATE, word=f" {hertz:.0f}.")
            yield SimpleNamespace(start=word.start, end=word.end, words=[word], **self.certainty)


def recogniser(model, find=find_beeps, **settings):
    return recognition.SpeechRecogniser(model, find, "beeps", **settings)


def recognised(path, model=None, **settings):
    """Recognise the speech of a file; return the outcome."""
    return archive.recognise(recogniser(model or Model(), **settings), path)


def texts(outcome):
    return [cue.text.rstrip(".") for cue in outcome.cues]


# Cues


def words(*described):
    return [Word(start, end, f" {text}") for start, end, text in described]


def cues_of(*described, voices=((0, 100),)):
    stretches = [(round(start * RATE), round(end * RATE)) for start, end in voices]
    return recognition._cues_of(words(*described), stretches)


def test_cue_ends_with_its_sentence_or_at_a_pause():
    cues = cues_of(
        (1, 1.4, "It"), (1.4, 1.8, "rains."), (1.9, 2.2, "We"), (2.2, 2.5, "go"),
        (4.0, 4.3, "home"), (4.3, 4.6, "now"),
    )  # fmt: skip
    assert cues == [(1, 1.8, "It rains."), (1.9, 2.5, "We go"), (4.0, 4.6, "home now")]


def test_sentences_without_full_stops_are_split_at_silences():
    spoken_words = [
        (1, 1.5, "it"), (1.5, 2, "rains"), (2, 2.6, "today,"), (2.6, 3.4, "we"), (3.4, 4, "stay"),
        (4, 5, "home"), (5.1, 5.4, "well"), (5.4, 5.6, "then"),
    ]  # fmt: skip
    cues = cues_of(*spoken_words, voices=((1, 2.5), (2.9, 5), (5.3, 5.6)))
    assert [cue[::2] for cue in cues] == [(1, "it rains today,"), (2.9, "we stay home well then")]


VOICES = (1, 2.5), (2.9, 4.5)


@pytest.mark.parametrize(
    ("spoken_words", "voices", "texts"),
    [
        # At the nearest end of a word; a comma counts as 0.2 s nearer.
        ([(1, 2.45, "it,"), (2.45, 2.8, "so"), (2.8, 4.5, "we")], VOICES, ["it,", "so we"]),
        ([(1, 2.4, "it"), (2.4, 2.8, "so,"), (2.8, 4.5, "we")], VOICES, ["it so,", "we"]),
        ([(1, 2.4, "well"), (2.8, 3.5, "we"), (3.5, 4.4, "stay")], VOICES, ["well", "we stay"]),
        ([(1, 2.4, "a"), (3, 4.4, "b"), (5, 6.5, "c")], (*VOICES, (5, 6.5)), ["a", "b", "c"]),
        # No word ends within 0.5 s of the silence.
        ([(1, 4.4, "a"), (4.4, 7, "b")], ((1, 2), (4, 7)), ["a", "b"]),
        ([(1, 4.6, "a"), (4.6, 7, "b")], ((1, 2), (4, 7)), ["a b"]),
        # A part would be shorter than a second.
        ([(1, 1.5, "so"), (2, 2.6, "we"), (2.6, 4, "stay")], ((1, 1.5), (2, 4)), ["so we stay"]),
    ],
)
def test_sentence_is_split_near_its_silences(spoken_words, voices, texts):
    assert [cue.text for cue in cues_of(*spoken_words, voices=voices)] == texts


def test_title_ends_no_sentence_without_a_pause():
    assert [
        cue.text for cue in cues_of((1, 1.2, "Dr."), (1.2, 1.6, "Smith"), (1.6, 2, "left."))
    ] == ["Dr. Smith left."]
    assert len(cues_of((1, 1.2, "by"), (1.2, 1.6, "Tom."), (2, 2.4, "Next"))) == 2


@pytest.mark.parametrize(
    ("word", "voices", "times"),
    [
        ((2, 3.5), ((0, 2.03), (3, 4)), (3, 3.5)),  # the word starts at the end of a voice
        ((2, 2.5), ((3, 4),), (2.5, 2.6)),  # without a voice it has 0.1 s
        ((5, 5.4), ((1, 2),), (5, 5.1)),
        ((1, 6), ((1, 2), (4, 5)), (1, 5.2)),
        ((1, 2), ((1, 1.5), (4, 5)), (1, 1.7)),
        ((1, 2), ((1, 1.5), (1.8, 5)), (1, 2)),
    ],
)
def test_cue_has_the_times_of_the_voices_at_its_ends(word, voices, times):
    [cue] = cues_of((*word, "Hi"), voices=voices)
    assert cue[:2] == pytest.approx(times) and cue.text == "Hi"


def test_words_without_text_are_left_out():
    assert cues_of((1, 1.4, ""), (4, 4.4, "Hi")) == [(4, 4.4, "Hi")]


def test_script_without_spaces_stays_one_word():
    [cue] = recognition._cues_of([Word(1, 1.2, "日"), Word(1.2, 1.4, "本")], [(RATE, 2 * RATE)])
    assert cue.text == "日本"


# Pieces


@pytest.mark.slow  # it takes seconds
def test_cues_are_at_the_seconds_of_the_sound(tmp_path):
    sound = beeps(40, s3=300, s4=500, s20=700, s39=900)
    path = videos.write_tracks(tmp_path / "a.mkv", Track(sound))
    outcome = recognised(path)
    assert outcome.result == "transcribed" and texts(outcome) == ["300", "500", "700", "900"]
    assert [cue.start for cue in outcome.cues] == pytest.approx([3, 4, 20, 39], abs=0.01)
    assert all(0.5 <= cue.end - cue.start < 0.8 for cue in outcome.cues)


def samples(*seconds):
    """Return stretches of seconds in samples."""
    return [(round(start * RATE), round(end * RATE)) for start, end in seconds]


@pytest.mark.parametrize(
    ("stretches", "second"),
    [
        ([(0, 70), (72, 100)], 119),  # the longest silence, one second before its end
        ([(0, 70), (75, 119.5)], 74),
        ([(0, 40), (50, 70), (70.4, 120)], 70.2),  # a short one after a minute
        ([(0, 10), (11, 30), (31, 50), (51, 120)], 50.5),  # or else the last of all
        ([(0, 5), (6, 120)], 5.5),
        ([(0, 3), (4, 120)], None),
        ([(0, 70), (70.29, 120)], None),
        ([], 119),
    ],
)
def test_piece_ends_in_a_silence(stretches, second):
    cut = recognition._place_to_cut(samples(*stretches), 120 * RATE)
    assert cut == (None if second is None else round(second * RATE))


def test_piece_without_silence_ends_after_a_word():
    spoken_words = words((98, 100, "a"), (116, 118, "b"), (117, 118.1, "c"))
    assert recognition._cut_words(spoken_words, 120 * RATE) == (118 * RATE, spoken_words[:2])
    assert recognition._cut_words(spoken_words[:1], 120 * RATE) == (100 * RATE, spoken_words[:1])
    assert recognition._cut_words(words((49, 50, "a")), 120 * RATE)[0] == 90 * RATE
    assert recognition._cut_words([], 120 * RATE) == (118 * RATE, [])


@pytest.mark.parametrize(
    ("second", "count"), [((18, 33), 1), ((18.1, 25), 2), ((16, 33.1), 2), ((16, 33), 1)]
)
def test_window_has_short_pauses_and_a_limited_length(second, count):
    stretches = samples((5, 15), second)
    windows = recognition._windows(stretches)
    assert len(windows) == count and sum(windows, []) == stretches


def test_sound_around_a_voice_is_transcribed_with_it():
    model = Model()
    stretches = samples((1, 20), (20.3, 40), (50, 50.2), (60, 61))
    state = recognition._new_track()
    recogniser(model)._hear_piece(np.zeros(int(61.1 * RATE), np.float32), stretches, state)
    # From 0.6 to the second voice, from the first voice to 40.4, and from 59.6 to the end.
    assert [seconds for seconds, _ in model.calls] == pytest.approx([19.7, 20.4, 1.5])


def test_missing_sound_shifts_no_cue_and_is_noted(tmp_path):
    sound = Track(beeps(8, s1=300, s6=500), start=1, gap=(3, 6))
    outcome = recognised(videos.write_tracks(tmp_path / "a.mkv", sound))
    assert texts(outcome) == ["300", "500"]
    assert [cue.start for cue in outcome.cues] == pytest.approx([2, 7], abs=0.01)
    [note] = outcome.notes
    assert float(note.split()[0]) == pytest.approx(3, abs=0.15)  # whole packets
    assert "s of the sound of '" in note and "a.mkv" in note


def test_sound_that_ends_early_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(sound.Sound, "stated_end", 20)
    outcome = recognised(videos.write_tracks(tmp_path / "a.mkv", Track(beeps(12, s11=300))))
    assert texts(outcome) == ["300"]
    [note] = outcome.notes
    assert note.endswith("a.mkv' ends at 12.0 s of the 20.0 s stated in the file")


@pytest.mark.parametrize(
    ("facts", "end"),
    [
        ({}, ""),
        ({"stated_end": 10.9}, ""),
        ({"stated_end": 11.1}, "ends at 10.0 s of the 11.1 s stated in the file"),
        ({"stated_end": 12, "stopped": "x"}, "ends at 10.0 s of the 12.0 s stated in the file (x)"),
        ({"position": 100 * RATE, "stated_end": 101.9}, ""),
        ({"position": 100 * RATE, "stated_end": 102.1},
         "ends at 100.0 s of the 102.1 s stated in the file"),
        ({"stated_end": None, "stopped": "x"}, "ends at 10.0 s (x)"),
        ({"packets": 0, "decoded": 0}, ""),
    ],
)  # fmt: skip
def test_end_of_sound_is_compared_with_the_stated_length(facts, end):
    audio = {"packets": 9, "decoded": 10, "position": 10 * RATE, "stated_end": 10.0, "stopped": ""}
    state = recognition._new_track()
    recognition._check_decoded(None, SimpleNamespace(**audio | facts), state)
    assert state["end"] == end


def test_sound_that_cannot_be_decoded_is_refused():
    audio = SimpleNamespace(packets=9, decoded=0)
    with pytest.raises(VideoError, match="a.mkv.*9 packets of sound, none of which can be decoded"):
        recognition._check_decoded(SimpleNamespace(path=Path("a.mkv")), audio, {})


@pytest.mark.slow  # it takes seconds
def test_pieces_are_bounded_and_no_word_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(recognition, "MAX_PIECE", 10.0)
    monkeypatch.setattr(recognition, "MIN_PIECE", 6.0)
    starts = np.arange(0.3, 59, 1.3)
    frequencies = {
        f"s{start:.1f}".replace(".", "_"): 300 + 10 * i for i, start in enumerate(starts)
    }
    path = videos.write_tracks(tmp_path / "a.mkv", Track(beeps(60, **frequencies)))
    sizes = []

    def find(samples):
        sizes.append(len(samples))
        return find_beeps(samples)

    outcome = recognised(path, find=find)
    assert texts(outcome) == [f"{frequency}" for frequency in frequencies.values()]
    assert [cue.start for cue in outcome.cues] == pytest.approx(starts, abs=0.02)
    assert max(sizes) <= 10 * RATE and len(sizes) >= 6


@pytest.mark.slow  # it takes seconds
def test_speech_without_silence_is_transcribed_once(tmp_path, monkeypatch):
    monkeypatch.setattr(recognition, "MAX_PIECE", 10.0)
    # A word each half second without silence; its loudness is its number.
    levels = np.repeat(np.arange(1, 121) / 128, RATE // 2).astype(np.float32)
    path = videos.write_tracks(tmp_path / "a.mkv", Track(levels))

    class Levels(Model):
        def _segments(self, audio):
            change = np.flatnonzero(np.abs(np.diff(audio)) > 1 / 512) + 1
            bounds = [0, *change.tolist(), len(audio)]
            words = [
                SimpleNamespace(start=a / RATE, end=b / RATE, word=f" {audio[a] * 128:.0f}")
                for a, b in zip(bounds, bounds[1:], strict=False)
            ]
            yield SimpleNamespace(start=0, end=bounds[-1] / RATE, words=words, **self.certainty)

    outcome = recognised(path, Levels(), find=lambda samples: [(0, len(samples))])
    transcribed_words = " ".join(texts(outcome)).split()
    assert transcribed_words == [str(number) for number in range(1, 121)]


def test_silence_and_clicks_are_not_transcribed(tmp_path):
    sound = beeps(10)
    sound[5 * RATE : 5 * RATE + 800] = 0.5  # 50 ms
    model = Model()
    outcome = recognised(videos.write_tracks(tmp_path / "a.mkv", Track(sound)), model)
    assert outcome.result == "without speech" and not model.calls


# Tracks and languages


def two_languages(path, default=0):
    german, english = (beeps(4, s1=frequency) for frequency in (300, 900))
    return videos.write_tracks(
        path,
        Track(german, language="ger", is_default=default == 0),
        Track(english, language="eng", is_default=default == 1),
    )


@pytest.mark.parametrize(
    ("default", "settings", "expected"),
    [
        pytest.param(0, {}, ["300"], marks=pytest.mark.slow),
        pytest.param(1, {}, ["900"], marks=pytest.mark.slow),
        pytest.param(0, {"language": "en"}, ["900"], marks=pytest.mark.slow),
        (1, {"language": "de"}, ["300"]),
        pytest.param(1, {"language": "fr"}, ["900"], marks=pytest.mark.slow),
        pytest.param(0, {"audio": "all"}, ["300", "900"], marks=pytest.mark.slow),
    ],
)
def test_track_is_the_default_or_of_the_language(tmp_path, default, settings, expected):
    model = Model(("de", "en", "fr"))
    outcome = recognised(two_languages(tmp_path / "a.mkv", default), model, **settings)
    assert texts(outcome) == expected
    assert {language for _, language in model.calls} == {settings.get("language", "en")}


def test_english_model_hears_the_english_track(tmp_path):
    outcome = recognised(two_languages(tmp_path / "a.mkv"), Model(["en"]))
    assert texts(outcome) == ["900"] and outcome.notes == []


@pytest.mark.parametrize("evidence", ["tagged", "unsure", "improbable"])
def test_another_language_is_not_stored_by_an_english_model(tmp_path, evidence):
    tracks = [
        Track(beeps(4, s1=300), language="ger" if evidence == "tagged" else "", is_default=True)
    ]
    if evidence == "tagged":
        tracks.insert(0, Track(beeps(4), language="fre"))
    path = videos.write_tracks(tmp_path / "a.mkv", *tracks)
    certainty = {"avg_logprob": -0.8} if evidence == "improbable" else {"temperature": 1.0}
    model = Model(["en"], **certainty)
    outcome = recognised(path, model)
    assert outcome.result == "in another language" and outcome.cues == [] and outcome.notes
    assert bool(model.calls) == (evidence != "tagged") == ("'ger'" not in outcome.notes[0])
    assert texts(recognised(path, model, language="en")) == ["300"]


def test_tags_of_tracks_are_compared_as_languages():
    is_language = {tag: recognition._is_language(tag) for tag in ("", "ger", "en-us", "track1")}
    assert is_language == {"": False, "ger": True, "en-us": True, "track1": False}
    for tag, is_same in (("ger", True), ("de-AT", True), ("dut", False), ("a b!", False)):
        assert recognition._same_language("de", tag) == is_same


def test_english_model_without_a_language_gives_a_warning(monkeypatch):
    ocr = recogniser(Model(["en"]))
    monkeypatch.setattr(recognition, "load_ocr", lambda: ocr)
    monkeypatch.setattr(
        recognition, "load_speech", lambda *settings: recogniser(Model([settings[0]]))
    )
    for model, language, line_count in (("en", "", 1), ("en", "en", 0), ("de", "", 0)):
        lines = []
        ocr_recogniser, speech = recognition.load_all(
            True, model, language, "default", lines.append
        )
        assert ocr_recogniser is ocr and speech.source == "speech" and len(lines) == line_count
    assert recognition.load_all(False, None, "", "default", print) == []


def test_same_words_of_two_tracks_are_one_cue(tmp_path):
    both = [Track(beeps(4, s1=300, s2_5=frequency)) for frequency in (500, 900)]
    outcome = recognised(videos.write_tracks(tmp_path / "a.mkv", *both), audio="all")
    assert sorted(texts(outcome)) == ["300", "500", "900"]


def test_words_that_differ_in_a_vowel_sign_stay_two_cues():
    cues = [Cue(0, 2, "पानी"), Cue(0, 2, "पीना"), Cue(1, 2, "STRASSE!"), Cue(1, 2, "Straße")]
    assert [cue.text for cue in recognition._merge_cues(cues)] == ["पानी", "पीना", "STRASSE!"]


def test_silent_default_track_names_the_others(tmp_path):
    tracks = Track(beeps(4), is_default=True), Track(beeps(4, s1=300))
    outcome = recognised(videos.write_tracks(tmp_path / "a.mkv", *tracks))
    assert outcome.result == "without speech" and "audio=all" in outcome.notes[0]


def test_language_is_detected_once_for_a_video(tmp_path, monkeypatch):
    monkeypatch.setattr(recognition, "MAX_PIECE", 10.0)
    path = videos.write_tracks(tmp_path / "a.mkv", Track(beeps(30, s1=300, s15=500, s28=700)))
    model = Model(detects="de")
    detected = iter(["de", "en", "en"])
    monkeypatch.setattr(model, "detect_language", lambda audio: (next(detected), 0.9, []))
    recognised(path, model)
    assert [language for _, language in model.calls] == ["de"] * 3


# Recognition for an index


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """A folder of videos with and without speech, which each test copies."""
    folder = tmp_path_factory.mktemp("spoken")
    videos.write_tracks(folder / "loud.mkv", Track(beeps(30, s1=300, s12=500, s25=700)), seconds=30)
    videos.write_tracks(folder / "quiet.mkv", Track(beeps(4)))
    videos.write(folder / "subtitled.mp4", sound=(0, 1), frames=24)
    (folder / "subtitled.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nhello\n")
    videos.write(folder / "still.mp4", frames=30)
    return folder


@pytest.fixture
def index(tmp_path, spoken):
    folder = shutil.copytree(spoken, tmp_path / "films")
    index = archive.create(tmp_path / "index", folder)
    index_folder(index, archive.Encoder(), workers=0)
    return index


@pytest.fixture(autouse=True)
def encoder(monkeypatch):
    monkeypatch.setattr(index_commands, "reload_encoder", lambda *_: archive.Encoder())


@pytest.fixture
def model(monkeypatch):
    """The model that `transcribe` loads, which hears pieces of at most 10 s."""
    model = Model()
    monkeypatch.setattr(
        recognition,
        "load_speech",
        lambda name, language="", audio="default": recognition.SpeechRecogniser(
            model, find_beeps, name, language, audio
        ),
    )
    monkeypatch.setattr(recognition, "MAX_PIECE", 10.0)
    monkeypatch.setattr(recognition, "MIN_PIECE", 5.0)
    return model


def transcribe(index, *options):
    return main(["transcribe", f"--index={index.directory}", *options])


def transcripts_of(index):
    """Return the transcript of each video."""
    library = Library(index.directory, encoder=archive.Encoder())
    return {entry.video: library.transcript(entry.id) for entry in library.videos()}


def texts_of(index, video):
    return [text.rstrip(".") for *_, text in transcripts_of(index)[video]]


def partial_results(index):
    return index.select("SELECT content, model, state FROM partial_recognitions")


def test_every_video_is_counted_by_its_result(index, model, capsys):
    assert transcribe(index, "--speech=small") == 0
    assert capsys.readouterr().out.strip() == (
        "faster-whisper small: 1 transcribed, 1 without speech, 1 without audio, 1 with subtitles"
    )
    assert texts_of(index, "loud.mkv") == ["300", "500", "700"]
    assert texts_of(index, "subtitled.mp4") == ["hello"]
    [hit] = Library(index.directory, encoder=archive.Encoder()).query("500", signals="transcript")
    assert hit.video == "loud.mkv" and hit.passages[0].start == pytest.approx(12, abs=0.1)
    calls = len(model.calls)
    assert transcribe(index, "--speech=small") == 0 and len(model.calls) == calls
    assert "3 done before" in capsys.readouterr().out
    (index.root / "loud.mkv").rename(index.root.parent / "loud.mkv")
    assert transcribe(index, "--speech=small") == 0
    assert "1 offline" in capsys.readouterr().out and passages.find_damaged(index) == {}


def test_subtitles_that_come_later_replace_speech(index, model):
    assert transcribe(index, "--speech=small") == 0
    (index.root / "loud.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nahoy\n")
    index_folder(index, archive.Encoder(), workers=0)
    assert texts_of(index, "loud.mkv") == ["ahoy"]


def test_copy_without_subtitles_is_recognised(index, model, capsys):
    shutil.copyfile(index.root / "loud.mkv", index.root / "copy.mkv")
    (index.root / "copy.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nahoy\n")
    index_folder(index, archive.Encoder(), workers=0)
    assert transcribe(index, "--speech=small") == 0
    assert "1 transcribed" in capsys.readouterr().out
    assert texts_of(index, "loud.mkv") == ["300", "500", "700"]
    assert texts_of(index, "copy.mkv") == ["ahoy"]


@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), RuntimeError("CUDA failed\nout of memory")]
)
def test_failure_is_named_and_tried_again(index, model, capsys, error):
    model.fail_at, model.error = 0, error
    assert transcribe(index, "--speech=small") == 0
    done = capsys.readouterr()
    assert "1 failed" in done.out and len(done.err.splitlines()) == 1 and "loud" in done.err
    model.fail_at = None
    assert transcribe(index, "--speech=small") == 0 and len(transcripts_of(index)["loud.mkv"]) == 3


def test_disk_error_of_the_sound_is_a_failure(index, model, capsys, monkeypatch):
    def failing(self):
        yield from packets(self)
        self.stopped, self.stopped_by_disk = "cannot be read (Input/output error)", True

    packets = sound.Sound._packets
    monkeypatch.setattr(sound.Sound, "_packets", failing)
    assert transcribe(index, "--speech=small") == 0
    done = capsys.readouterr()
    assert "2 failed" in done.out and "Input/output error" in done.err
    monkeypatch.setattr(sound.Sound, "_packets", packets)
    assert transcribe(index, "--speech=small") == 0 and len(transcripts_of(index)["loud.mkv"]) == 3


def test_interrupted_run_continues_within_the_video(index, model, capsys):
    model.fail_at, model.error = 2, KeyboardInterrupt()
    assert transcribe(index, "--speech=small") == 130
    assert len(model.calls) == 2 and len(partial_results(index)) == 1
    assert transcripts_of(index)["loud.mkv"] == []  # a part is not stored
    index_folder(Index.open(index.directory), archive.Encoder(), workers=0)
    model.fail_at = None
    assert transcribe(index, "--speech=small") == 0
    assert len(model.calls) == 3 and not partial_results(index)
    cues = transcripts_of(index)["loud.mkv"]
    assert texts_of(index, "loud.mkv") == ["300", "500", "700"]
    assert [start for start, *_ in cues] == pytest.approx([1, 12, 25], abs=0.01)


@pytest.mark.parametrize("has_state", [True, False])
def test_run_continues_if_a_video_is_removed_meanwhile(tmp_path, films, has_state):
    index = archive.indexed(tmp_path / "index", films)

    class RemovingRecogniser:
        source, name, by = "speech", "model", "model"

        def recognise(self, path, state):
            if path.name == "a.film":
                Index.open(index.directory).remove(["a.film"])
            yield recognition.Step(0.0, 1.0, {"done": 1} if has_state else None)
            return recognition.Outcome(recognition.TRANSCRIBED, [(0.0, 1.0, "ahoy")], [])

    with index.running():
        recognition.recognise(index, RemovingRecogniser(), print)
    assert set(transcripts_of(index)) == {"b.film", "trips/c.film"} and index.verify() == {}
    assert all(transcripts_of(index).values()) and not partial_results(index)


def test_ocr_keeps_the_state_of_unfinished_speech_recognition(index, model):
    model.fail_at, model.error = 2, KeyboardInterrupt()
    assert transcribe(index, "--speech=small") == 130
    before = partial_results(index)

    def engine(image):
        return SimpleNamespace(txts=None)

    with index.running():
        recognition.recognise(index, recognition.TextRecogniser(engine, "0"), print)
    assert partial_results(index) == before
    model.fail_at = None
    assert transcribe(index, "--speech=small") == 0 and len(model.calls) == 3


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("change", ["model", "language", "video"])
def test_partial_result_of_something_else_is_discarded(index, model, change):
    model.fail_at, model.error = 2, KeyboardInterrupt()
    assert transcribe(index, "--speech=small") == 130
    model.fail_at, options, [_] = None, ["--speech=small"], partial_results(index)
    if change == "model":
        options = ["--speech=large-v3"]
    elif change == "language":
        options.append("--language=de")
    else:
        video = index.root / "loud.mkv"
        videos.write_tracks(video, Track(beeps(30, s2=400, s13=600, s26=800)), seconds=30)
        index_folder(Index.open(index.directory), archive.Encoder(), workers=0)
        assert not partial_results(index)
    assert transcribe(index, *options) == 0
    assert len(model.calls) == 2 + 3 and not partial_results(index)
    assert len(transcripts_of(index)["loud.mkv"]) == 3


def test_progress_shows_the_seconds_of_the_video(index, model):
    positions = []
    with index.running():
        update_transcripts(index, real_video(), print, workers=0)
        recognition.recognise(index, recogniser(model), print, positions.append)
    loud = [
        position for position in positions if position.path and position.path.name == "loud.mkv"
    ]
    durations = [position.duration for position in loud]
    assert durations == pytest.approx([30] * len(loud), abs=0.1)
    seconds = [position.second for position in loud]
    assert seconds == sorted(seconds) and len(set(seconds)) >= 4 and seconds[-1] > 29


@pytest.fixture
def whisper(monkeypatch):
    """A fake package faster-whisper that refuses models named "nope"."""

    def load(name, compute_type):
        if "nope" in name:
            raise ValueError(f"Invalid model size '{name}',\nexpected one of: tiny, small")
        return Model()

    module, vad = ModuleType("faster_whisper"), ModuleType("faster_whisper.vad")
    module.WhisperModel, module.vad = load, vad
    vad.VadOptions = vad.get_speech_timestamps = dict
    monkeypatch.setitem(sys.modules, "faster_whisper", module)
    monkeypatch.setitem(sys.modules, "faster_whisper.vad", vad)
    return vad


def test_voice_detector_separates_at_silences_and_adds_no_sound(whisper):
    used = {}

    def vad_options(**options):
        used.update(options)
        return used

    def get_speech_timestamps(samples, options):
        return [{"start": len(samples), "end": options["min_silence_duration_ms"]}]

    whisper.VadOptions, whisper.get_speech_timestamps = vad_options, get_speech_timestamps
    for language in ("", "de"):
        speech = recognition.load_speech("small", language)
        assert speech._find_speech(np.zeros(5, np.float32)) == [(5, 300)]
    assert used == {"min_silence_duration_ms": 300, "speech_pad_ms": 0}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ([], "--ocr"),
        (["--speech=nope"], "expected one of: tiny, small"),
        (["--speech=/models/nope"], "'/models/nope' is not a folder: give an existing folder"),
        (["--speech=models/nope"], "there is no such folder, and it is not fetched"),
        (["--speech=small", "--language=xx"], "'xx'"),
    ],
)
@pytest.mark.usefixtures("whisper")
def test_unknown_model_or_language_is_refused(tmp_path, films, capsys, options, word):
    assert transcribe(archive.indexed(tmp_path / "index", films), *options) == 1
    [line] = [line for line in capsys.readouterr().err.splitlines() if line]
    assert word in line


def test_real_package_refuses_an_unknown_model():
    pytest.importorskip("faster_whisper", reason="extra speech")
    with pytest.raises(SearchError, match="nope"):
        recognition.load_speech("nope")


# Text in pictures


def signs(frame):
    """Paint frames, 12 a second: a sign from second 2 to 6, then another sign."""
    image = Image.new("RGB", (320, 180), (40, 60, 80))
    text = "" if frame < 24 else "PLATFORM SEVEN" if frame < 72 else "Lisbon 09:40"
    ImageDraw.Draw(image).text((20, 70), text, fill="white", font=ImageFont.load_default(28))
    return np.asarray(image)


def test_video_without_text_does_not_stop_a_run(tmp_path):
    folder = tmp_path / "films"
    folder.mkdir()
    for name, frames in (("blank.mp4", 6), ("signs.mp4", 7)):
        videos.write(folder / name, frames=frames)
    index = archive.create(tmp_path / "index", folder)
    index_folder(index, archive.Encoder(), workers=0)
    texts = iter([None, ("EXIT",)])  # one frame of each video is read

    def engine(image):
        return SimpleNamespace(txts=next(texts))

    reader = recognition.TextRecogniser(engine, "0")
    with index.running():
        counts = recognition.recognise(index, reader, print)
    assert counts["without text"] == counts["transcribed"] == 1 and not counts["failed"]


def blocks(frame):
    """Paint a blue frame with a white block that moves every two seconds of 12 frames."""
    image = np.full((72, 128, 3), (20, 40, 200), np.uint8)
    image[20:40, 24 * (frame // 24) : 24 * (frame // 24) + 16] = 255
    return image


def test_cue_lasts_while_its_text_is_visible(tmp_path):
    path = videos.write(tmp_path / "a.mp4", paint=lambda frame: blocks(min(frame, 95)), frames=120)
    texts, read = iter([None, ("PLATFORM", " SEVEN\n"), ("PLATFORM SEVEN",), ("Lisbon",)]), []

    def engine(image):
        read.append(image)
        return SimpleNamespace(txts=next(texts))

    work = recognition.TextRecogniser(engine, "0").recognise(path, None)
    steps = []
    while True:
        try:
            steps.append(next(work))
        except StopIteration as stop:
            outcome = stop.value
            break
    assert outcome == ("transcribed", [(2, 6, "PLATFORM SEVEN"), (6, 10, "Lisbon")], [])
    assert [(step.position, step.duration) for step in steps] == [(2 * i, 10) for i in range(5)]
    assert len(read) == 4  # the last of the five frames equals the fourth
    np.testing.assert_allclose(read[0][60, 100], (200, 40, 20), atol=12)  # BGR, as OpenCV has it


@pytest.mark.slow  # it takes seconds
def test_text_in_pictures_is_read(tmp_path, capsys):
    pytest.importorskip("rapidocr", reason="extra ocr")
    folder = tmp_path / "films"
    folder.mkdir()
    videos.write(folder / "signs.mp4", paint=signs, frames=120)
    index = archive.create(tmp_path / "index", folder)
    index_folder(index, archive.Encoder(), workers=0)
    assert transcribe(index, "--ocr") == 0 and "1 transcribed" in capsys.readouterr().out
    first, second = transcripts_of(index)["signs.mp4"]
    assert (first[2], second[2]) == ("PLATFORM SEVEN", "Lisbon 09:40")
    assert first[:2] == (2, 6) and second[:2] == pytest.approx((6, 10), abs=0.01)
    library = Library(index.directory, encoder=archive.Encoder())
    assert library.query("platform seven", signals="transcript")[0].passages[0].start == 2
    assert transcribe(index, "--ocr") == 0 and "1 done before" in capsys.readouterr().out
