"""Speech recognition and OCR for videos without subtitles.

A model of faster-whisper (extra `speech`) recognises speech, and RapidOCR (extra `ocr`) reads text
in frames. This package decodes the sound (`video.sound`) and passes it to the model in pieces of at
most `MAX_PIECE` seconds, so memory does not grow with the length of a video. A piece ends in a
silence if there is one. The cues recognised so far are stored in the database of the index
(`partial_recognitions`), and the next run after a killed one continues from there.
"""

import contextlib
import importlib.metadata
import json
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from hlformer_jax.errors import SearchError, UserError
from hlformer_jax.lazy import optional
from hlformer_jax.search.index import Index
from hlformer_jax.search.signals.transcript import transcripts
from hlformer_jax.search.signals.transcript.transcripts import Cue
from hlformer_jax.search.signals.transcript.words import normalise
from hlformer_jax.search.times import format_clock
from hlformer_jax.text import printable

SAMPLE_RATE = 16_000
"""Samples a second that Whisper and its voice detector expect."""

MAX_PIECE, MIN_PIECE = 120.0, 60.0
"""Longest piece of sound that is in memory, and shortest that may end in a silence, in seconds."""

MAX_WINDOW = 28.0
"""Longest sound that the model transcribes at once, in seconds; Whisper's limit is 30."""

MAX_PAUSE_IN_WINDOW = 3.0
"""Longest silence in a window, in seconds. In a longer one Whisper's times drift and it invents."""

MIN_SILENCE = 0.3
"""Shortest silence that separates two stretches of speech, in seconds."""

MIN_SPEECH = 0.25
"""Shortest voice in a window that is transcribed, in seconds; a shorter one is rather a click."""

PADDING = 0.4
"""Seconds of sound before and after a voice that are transcribed with it."""

MIN_SURE_LOGPROB = -0.75
"""Mean log-probability of words, below which an English-only model may hear another language.

For synthesised English speech, the model tiny.en gives -0.34 to -0.70.
"""

MAX_WORD_GAP = 1.0
"""Longest gap between two words of one cue, in seconds."""

MIN_PART = 1.0
"""Shortest part of a sentence that is split at a silence, in seconds."""

OVERLAP = 2.0
"""Seconds that are transcribed again where speech without any silence had to be cut."""

MIN_REPORTED_SILENCE = 0.05
"""Shortest missing sound of a video that is reported, in seconds; less is a rounded timestamp."""

READ_EVERY = 2.0
"""Seconds between two frames that OCR reads."""

READ_SIZE = 720
"""Pixels of the shorter side, to which larger frames are scaled down for OCR."""

_VISIBLE_DIFFERENCE, _MIN_CHANGED_SHARE = 32, 0.002
"""Visible difference of two 8-bit values, and the share of such values that makes a new frame."""

_SENTENCE_END = re.compile(r"[.?!…。？！]+[\"'”’»)\]]*$")
_ABBREVIATION = re.compile(r"([A-Z][a-z]{0,2}\.)+$")

TRANSCRIBED, NO_AUDIO, OTHER_LANGUAGE = "transcribed", "without audio", "in another language"
FAILED, SUBTITLED, DONE, OFFLINE = "failed", "with subtitles", "done before", "offline"
"""Results of a video, by which videos are counted."""

WITHOUT = {"speech": "without speech", "ocr": "without text"}
"""Result of a video in which nothing was recognised, by the source of the recogniser."""

Samples = Float32[np.ndarray, " samples"]

Stretch = tuple[int, int]
"""Stretch of speech: its first sample, and the sample behind its last."""


class Word(NamedTuple):
    """A recognised word, with the space before it."""

    start: float  # seconds of the video
    end: float
    text: str


class Step(NamedTuple):
    """The progress of the recognition of one video."""

    position: float  # seconds of the video that are done
    duration: float  # seconds of the video; 0 if unknown
    state: dict[str, Any] | None = None  # to continue from later; None if that is not possible


class Outcome(NamedTuple):
    """The result of the recognition of one video."""

    result: str  # the kind of result, such as `TRANSCRIBED`
    cues: list[Cue]
    notes: Sequence[str] = ()  # lines on parts that could not be used


@runtime_checkable
class Recogniser(Protocol):
    """A recogniser of cues in videos."""

    source: str  # "speech" or "ocr"
    name: str  # name of the model, as it is shown
    by: str  # identifies model and settings; cues of other ones are replaced

    def recognise(self, path: Path, state: dict[str, Any] | None) -> Generator[Step, None, Outcome]:
        """Recognise a video step by step.

        Args:
          path: the path of the video.
          state: the state of an earlier step to continue from; None to begin.

        Yields:
          The progress, with a state from which a later call can continue.

        Returns:
          The cues of the video.

        Raises:
          UserError: if the video cannot be read.
        """
        ...


def load_all(
    ocr: bool, speech: str | None, language: str, audio: str, report: Callable[[str], None]
) -> list[Recogniser]:
    """Load the requested recognisers.

    Args:
      ocr: whether to recognise text in frames (`load_ocr`).
      speech: the model of speech recognition (`load_speech`); None for none.
      language: see `load_speech`.
      audio: see `load_speech`.
      report: takes a warning about a model that knows only English.

    Raises:
      MissingExtra: if a package is not installed.
      SearchError: if the speech model cannot be loaded.
    """
    recognisers: list[Recogniser] = [load_ocr()] if ocr else []
    if speech:
        recogniser = load_speech(speech, language, audio)
        if recogniser.is_english_only and not language:
            report(
                f"{speech} knows only English: it transcribes every language as English, so"
                " videos that do not sound like English are left out"
            )
        recognisers.append(recogniser)
    return recognisers


# Speech


_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
"""Form of an id of the hub; a path may have it too."""


def load_speech(model: str, language: str = "", audio: str = "default") -> "SpeechRecogniser":
    """Load a recogniser of speech.

    Args:
      model: a size, such as small, or an id of the hub, whose model is fetched once; or a folder
        in CTranslate2's format.
      language: code of the language that is spoken, such as de; "" to detect it in each video.
      audio: "default" for one track of each video, "all" for every track.

    Raises:
      MissingExtra: if faster-whisper is not installed.
      SearchError: if the model cannot be found, fetched or loaded, or lacks the language.
    """
    whisper = optional("faster_whisper", "speech")
    vad = optional("faster_whisper.vad", "speech")
    optional("langcodes", "search")
    if "/" in model and not (os.path.isdir(model) or _HUB_ID.fullmatch(model)):
        raise SearchError(
            f"the speech model {model!r} is not a folder: give an existing folder, or a size such"
            " as small"
        )
    try:
        loaded = whisper.WhisperModel(model, compute_type="auto")
        if language and language not in loaded.supported_languages:
            raise ValueError(f"it does not know the language {language!r}")
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        if "/" in model and not os.path.isdir(model):
            reason = f"there is no such folder, and it is not fetched from the hub ({reason})"
        raise SearchError(f"the speech model {model!r} cannot be loaded: {reason}") from None
    options = vad.VadOptions(min_silence_duration_ms=int(1000 * MIN_SILENCE), speech_pad_ms=0)

    def find_speech(samples: Samples) -> list[Stretch]:
        stretches = vad.get_speech_timestamps(samples, options)
        return [(stretch["start"], stretch["end"]) for stretch in stretches]

    return SpeechRecogniser(loaded, find_speech, model, language, audio)


class SpeechRecogniser:
    """A recogniser of speech by a Whisper model."""

    source = "speech"

    def __init__(
        self,
        model: Any,
        find_speech: Callable[[Samples], list[Stretch]],
        name: str,
        language: str = "",
        audio: str = "default",
    ) -> None:
        """Set the model and the voice detector; see `load_speech`.

        Args:
          model: a model of faster-whisper.
          find_speech: takes samples; returns the stretches of speech.
          name: name of the model.
          language: code of the spoken language; "" to detect it.
          audio: "default" or "all".
        """
        self._model, self._find_speech = model, find_speech
        self._language, self._audio = language, audio
        self.is_english_only = list(model.supported_languages) == ["en"]
        settings = (language, "all tracks" if audio == "all" else "")
        self.name = " ".join(filter(None, ("faster-whisper", name, *settings)))
        self.by = f"{self.name}; words"

    def recognise(self, path: Path, state: dict[str, Any] | None) -> Generator[Step, None, Outcome]:
        """Recognise the speech of a video; the state has the finished part of each track.

        Raises:
          VideoError: if the video or its sound cannot be read, with the reason.
        """
        read, sound = optional("hlformer_jax.video.read", "search"), _sound()
        heard: dict[str, Any] = {"tracks": {}} if state is None else state
        with read.opened(path) as video:
            tracks = sound.tracks(video.container)
            if not tracks:
                return Outcome(NO_AUDIO, [])
            selected = self._choose(tracks)
            if not selected:
                tag = next(track.language for track in tracks if track.is_default)
                note = f"{str(path)!r} is in the language {tag!r}, which {self.name} does not know"
                return Outcome(OTHER_LANGUAGE, [], [note])
            notes = []
            for track in selected:
                track_state = heard["tracks"].setdefault(str(track.stream), _new_track())
                if not track_state["done"]:
                    yield from self._hear_track(video, track.stream, track_state, heard)
                notes += _notes(
                    path, track_state, f" of audio track {track.number}" * (len(tracks) > 1)
                )
        parts = [heard["tracks"][str(track.stream)] for track in selected]
        cues = _merge_cues([Cue(*cue) for part in parts for cue in part["cues"]])
        unsure, sure = (sum(part[name] for part in parts) for name in ("unsure", "sure"))
        if self.is_english_only and not self._language and unsure > sure:
            notes.append(
                f"{str(path)!r} does not seem to be in English, the only language that"
                f" {self.name} knows; the result is left out (language=en keeps it)"
            )
            return Outcome(OTHER_LANGUAGE, [], notes)
        if not cues and len(selected) < len(tracks):
            notes.append(
                f"{str(path)!r} has no speech in audio track {selected[0].number} of"
                f" {len(tracks)}: audio=all also recognises the others"
            )
        return Outcome(TRANSCRIBED if cues else WITHOUT[self.source], cues, notes)

    def _choose(self, tracks: Sequence[Any]) -> list[Any]:
        """Return the tracks to transcribe; none if the model does not know their language."""
        if self._audio == "all":
            return list(tracks)
        language = self._language or ("en" if self.is_english_only else "")
        for track in sorted(tracks, key=lambda track: not track.is_default):
            if language and track.language and _same_language(language, track.language):
                return [track]
        default = next(track for track in tracks if track.is_default)
        if not self._language and self.is_english_only and _is_language(default.language):
            return []
        return [default]

    def _hear_track(
        self, video: Any, stream: int, track_state: dict[str, Any], heard: dict[str, Any]
    ) -> Iterator[Step]:
        """Transcribe the rest of a track; `track_state` is updated after each piece."""
        fault = optional("hlformer_jax.video.faults", "search").fault
        with _sound().reading(video, stream, rate=SAMPLE_RATE, layout="mono") as audio:
            if audio is None:
                raise fault(video.path, "has no timestamps", "convert it to another container")
            duration = float(audio.stated_end or video.end or 0)
            for _ in audio.read(track_state["position"]):
                pass  # decoding is fast, and seeking is not exact
            yield Step(track_state["position"] / SAMPLE_RATE, duration)
            size = int(MAX_PIECE * SAMPLE_RATE)
            buffer = np.zeros(0, np.float32)
            while not track_state["done"]:
                start = track_state["position"]
                buffer = np.concatenate([buffer, *(x[0] for x in audio.read(start + size))])
                if audio.stopped_by_disk:
                    second = audio.position / SAMPLE_RATE
                    what = f"cannot be read beyond {second:.0f} s ({audio.stopped})"
                    raise fault(video.path, what, "the rest is tried again next time")
                is_last = len(buffer) < size
                stretches = self._find_speech(buffer)
                cut = None if is_last else _place_to_cut(stretches, len(buffer))
                if cut is not None:
                    stretches = [stretch for stretch in stretches if stretch[1] <= cut]
                words = self._hear_piece(buffer, stretches, track_state)
                if is_last:
                    cut = len(buffer)
                elif cut is None:
                    cut, words = _cut_words(words, len(buffer))
                shift = start / SAMPLE_RATE
                track_state["cues"] += [
                    [round(cue.start + shift, 3), round(cue.end + shift, 3), cue.text]
                    for cue in _cues_of(words, stretches)
                ]
                buffer = buffer[cut:]
                track_state |= {
                    "position": start + cut,
                    "done": is_last,
                    "missing": float(audio.missing),
                }
                if is_last:
                    _check_decoded(video, audio, track_state)
                yield Step(track_state["position"] / SAMPLE_RATE, duration, heard)

    def _hear_piece(
        self, samples: Samples, stretches: Sequence[Stretch], track_state: dict[str, Any]
    ) -> list[Word]:
        """Recognise the words of a piece; their times are in seconds from the piece's start."""
        if stretches and not (self._language or track_state["language"] or self.is_english_only):
            voices = np.concatenate([samples[onset:end] for onset, end in stretches])
            track_state["language"] = self._model.detect_language(voices)[0]
        words: list[Word] = []
        padding = int(PADDING * SAMPLE_RATE)
        bounds = [0, *(end for _, end in stretches)], [*(x for x, _ in stretches), len(samples)]
        place = 0
        for group in _windows(stretches):
            # The sound around a window ends where another window's voice begins.
            onset = max(group[0][0] - padding, bounds[0][place])
            end = min(group[-1][1] + padding, bounds[1][place + len(group)])
            place += len(group)
            if sum(y - x for x, y in group) < MIN_SPEECH * SAMPLE_RATE:
                continue
            segments, _ = self._model.transcribe(
                samples[onset:end],
                language=self._language or track_state["language"] or None,
                word_timestamps=True,
            )
            shift = onset / SAMPLE_RATE
            for segment in segments:
                is_sure = segment.temperature == 0 and segment.avg_logprob > MIN_SURE_LOGPROB
                kind = "sure" if is_sure else "unsure"
                track_state[kind] += segment.end - segment.start
                words += [
                    Word(float(word.start) + shift, float(word.end) + shift, word.word)
                    for word in segment.words
                ]
        return words


def _sound() -> Any:
    return optional("hlformer_jax.video.sound", "search")


def _new_track() -> dict[str, Any]:
    """Return the state of a track before its first sample."""
    return {
        "position": 0, "done": False, "language": "", "cues": [],
        "missing": 0.0, "end": "", "sure": 0.0, "unsure": 0.0,
    }  # fmt: skip


def _is_language(tag: str) -> bool:
    """Return whether a track's tag names a language."""
    return bool(optional("langcodes", "search").tag_is_valid(tag))


def _same_language(language: str, tag: str) -> bool:
    """Return whether a track's tag, such as "ger" or "de-AT", means a language of Whisper."""
    langcodes = optional("langcodes", "search")
    with contextlib.suppress(langcodes.LanguageTagError):
        # Below 10 are regional and close variants, such as Norwegian and Bokmål; a related but
        # distinct language is farther away.
        return bool(langcodes.tag_distance(language, tag) < 10)
    return False


def _windows(stretches: Sequence[Stretch]) -> list[list[Stretch]]:
    """Group the stretches of speech that are transcribed at once."""
    pause, longest = MAX_PAUSE_IN_WINDOW * SAMPLE_RATE, MAX_WINDOW * SAMPLE_RATE
    groups: list[list[Stretch]] = []
    for onset, end in stretches:
        group = groups[-1] if groups else []
        if group and onset - group[-1][1] <= pause and end - group[0][0] <= longest:
            group.append((onset, end))
        else:
            groups.append([(onset, end)])
    return groups


def _place_to_cut(stretches: Sequence[Stretch], length: int) -> int | None:
    """Return the sample at which a piece ends; None if it has no silence to end in.

    It ends in the longest silence after `MIN_PIECE` seconds, or else in the last one before.
    """
    second = SAMPLE_RATE
    ends = [0, *(end for _, end in stretches)]
    begins = [*(onset for onset, _ in stretches), length]
    silences = [
        (onset - end, onset - min((onset - end) // 2, second))
        for end, onset in zip(ends, begins, strict=True)
        if onset - end >= MIN_SILENCE * second
    ]
    late = [silence for silence in silences if silence[1] >= MIN_PIECE * second]
    early = [silence for silence in silences if silence[1] >= 5 * second]
    if late:
        return max(late)[1]
    return early[-1][1] if early else None


def _cut_words(words: list[Word], length: int) -> tuple[int, list[Word]]:
    """Cut a piece without silence after a word; the rest is transcribed again.

    Returns:
      The number of samples before the cut, and the words before it.
    """
    limit = length / SAMPLE_RATE - OVERLAP
    complete = [word for word in words if word.end <= limit]
    end = max(complete[-1].end if complete else limit, limit - MAX_WINDOW)
    return int(end * SAMPLE_RATE), complete


def _cues_of(words: Sequence[Word], stretches: Sequence[Stretch]) -> list[Cue]:
    """Make a cue of each sentence, or of each part of a sentence between silences.

    A cue begins and ends with the voice, because a word's times extend into the silence around it.
    """
    sentences: list[list[Word]] = []
    for word in words:
        before = sentences[-1][-1] if sentences else None
        if before is None or _is_break(before, word):
            sentences.append([])
        sentences[-1].append(word)
    voices = [(onset / SAMPLE_RATE, end / SAMPLE_RATE) for onset, end in stretches]
    cues = []
    for part in (part for sentence in sentences for part in _split(sentence, voices)):
        text = " ".join("".join(word.text for word in part).split())
        if not text:
            continue
        start, end = part[0].start, part[-1].end
        voice = next((voice for voice in voices if voice[1] > start + 0.05), None)
        start = start if voice is None else min(max(start, voice[0]), max(end, start))
        last = next((voice for voice in reversed(voices) if voice[0] < end), None)
        end = end if last is None else min(end, last[1] + 0.2)
        cues.append(Cue(float(start), float(max(end, start + 0.1)), text))
    return cues


def _split(
    sentence: Sequence[Word], voices: Sequence[tuple[float, float]]
) -> Iterator[Sequence[Word]]:
    """Split a sentence at the silences in it, because the model sometimes omits a full stop."""
    onset = 0
    for (_, silence), (voice, _) in zip(voices, voices[1:], strict=False):
        middle = (silence + voice) / 2

        def distance(place: int, middle: float = middle) -> float:
            before, after = sentence[place - 1], sentence[place]
            # A word's times can be wrong by 0.2 s: a comma is a better sign of the silence.
            comma = 0.2 * before.text.rstrip().endswith((",", ";", ":", "，", "、"))
            return abs((before.end + after.start) / 2 - middle) - comma

        place = min(range(onset + 1, len(sentence)), key=distance, default=0)
        if place and distance(place) < 0.5 + (voice - silence) / 2:
            if min(silence - sentence[onset].start, sentence[-1].end - voice) >= MIN_PART:
                yield sentence[onset:place]
                onset = place
    yield sentence[onset:]


def _is_break(before: Word, word: Word) -> bool:
    """Return whether a cue ends between two words."""
    gap, text = word.start - before.end, before.text.strip()
    if gap > MAX_WORD_GAP:
        return True
    # An abbreviation such as "Dr." ends a sentence only if a pause follows.
    return bool(_SENTENCE_END.search(text)) and (gap > 0.25 or not _ABBREVIATION.search(text))


def _merge_cues(cues: Iterable[Cue]) -> list[Cue]:
    """Sort cues, and leave out a cue that repeats the words of an earlier one at the same time."""
    merged: list[Cue] = []
    for cue in sorted(cues):
        text = normalise(cue.text).split()
        if not any(
            earlier.end > cue.start and normalise(earlier.text).split() == text
            for earlier in merged[-8:]
        ):
            merged.append(cue)
    return merged


def _check_decoded(video: Any, audio: Any, track_state: dict[str, Any]) -> None:
    """Refuse a track without any decodable packet; note in its state if it ended too early."""
    if audio.packets and not audio.decoded:
        what = f"has {audio.packets} packets of sound, none of which can be decoded"
        fault = optional("hlformer_jax.video.faults", "search").fault
        raise fault(video.path, what, "try it in a player, or copy it again")
    end, stated = audio.position / SAMPLE_RATE, float(audio.stated_end or 0)
    reason = f" ({audio.stopped})" if audio.stopped else ""
    # 2 %: the length in the file may be rounded, or measured from another start.
    if stated - end > max(1.0, 0.02 * stated):
        track_state["end"] = f"ends at {end:.1f} s of the {stated:.1f} s stated in the file{reason}"
    elif audio.stopped:
        track_state["end"] = f"ends at {end:.1f} s{reason}"


def _notes(path: Path, track_state: dict[str, Any], which: str) -> list[str]:
    """Return lines on the sound of a track that could not be used."""
    notes = []
    if track_state["missing"] >= MIN_REPORTED_SILENCE:
        notes.append(
            f"{track_state['missing']:.1f} s of the sound{which} of {str(path)!r} are"
            " damaged or missing, and are treated as silence"
        )
    if track_state["end"]:
        notes.append(f"the sound{which} of {str(path)!r} {track_state['end']}")
    return notes


# Text in pictures


def load_ocr() -> "TextRecogniser":
    """Load a recogniser of text in pictures.

    Raises:
      MissingExtra: if RapidOCR or onnxruntime is not installed.
    """
    ocr = optional("rapidocr", "ocr")
    optional("onnxruntime", "ocr")
    engine = ocr.RapidOCR(params={"Global.log_level": "critical"})
    return TextRecogniser(engine, importlib.metadata.version("rapidocr"))


class TextRecogniser:
    """A recogniser of text in pictures, in a frame every `READ_EVERY` seconds.

    A frame that looks like the last one that was read is not read again.
    """

    source = "ocr"

    def __init__(self, engine: Any, version: str) -> None:
        """Set the engine of RapidOCR and the version of the package."""
        self._engine = engine
        self.name = self.by = f"rapidocr {version}"

    def recognise(self, path: Path, state: dict[str, Any] | None) -> Generator[Step, None, Outcome]:
        """Recognise the text of a video from its start; the state is not used.

        Raises:
          VideoError: if the video cannot be read, with the reason.
        """
        video = optional("hlformer_jax.video", "search")
        duration = video.probe(path).duration
        cues: list[Cue] = []
        last_read: Any = None
        text, start = "", 0.0
        frames = video.sample(path, 1 / READ_EVERY, READ_SIZE)
        for time, image in frames:
            yield Step(time, duration)
            if last_read is not None and not _differs(last_read, image):
                continue
            last_read = image
            lines = self._engine(np.ascontiguousarray(image[..., ::-1])).txts or ()
            if (new := " ".join(" ".join(lines).split())) != text:
                if text:
                    cues.append(Cue(round(start, 3), round(time, 3), text))
                text, start = new, time
        if text:
            cues.append(Cue(round(start, 3), round(frames.end, 3), text))
        notes = [frames.warning] if frames.warning else []
        return Outcome(TRANSCRIBED if cues else WITHOUT[self.source], cues, notes)


def _differs(before: np.ndarray, image: np.ndarray) -> bool:
    """Return whether two frames differ visibly."""
    if before.shape != image.shape:
        return True
    difference = np.abs(image.astype(np.int16) - before)
    return bool((difference > _VISIBLE_DIFFERENCE).mean() > _MIN_CHANGED_SHARE)


# The videos of an index


def load_state(index: Index, content: str, by: str) -> dict[str, Any] | None:
    """Load the state of the unfinished recognition of a content; None if there is none.

    Args:
      index: the index.
      content: the content.
      by: the identity of the recogniser (`Recogniser.by`).
    """
    return index.decode(
        lambda rows: dict(json.loads(rows[0][0])) if rows else None,
        "SELECT state FROM partial_recognitions WHERE content = ? AND model = ?",
        [content, by],
    )


def save_state(index: Index, content: str, by: str, state: dict[str, Any]) -> None:
    """Write the state of a recognition in place of the one before, unless it was removed."""
    text = json.dumps(state, allow_nan=False)
    with index.writing() as writer:
        writer.execute(
            "INSERT OR REPLACE INTO partial_recognitions"
            " SELECT hash, ?, ? FROM contents WHERE hash = ?",
            by, text, content,
        )  # fmt: skip


class Position(NamedTuple):
    """The progress of the recognition of an index."""

    done: int  # videos
    total: int
    path: Path | None = None  # of the video that is being recognised
    second: float = 0.0
    duration: float = 0.0  # seconds; 0 if unknown


def progress_of(bar: Any) -> Callable[[Position], None]:
    """Return a function that shows a `Position` on a tqdm progress bar."""

    def show(position: Position) -> None:
        bar.total, bar.n = position.total, position.done
        if position.duration:
            bar.n += min(1.0, position.second / position.duration)
        text = f"{position.done}/{position.total} videos"
        if position.path is not None:
            times = f"{format_clock(position.second)}/{format_clock(position.duration)}"
            text += f", {printable(position.path.name[-40:])} {times}"
        bar.set_postfix_str(text)

    return show


def recognise(
    index: Index,
    recogniser: Recogniser,
    report: Callable[[str], None],
    progress: Callable[[Position], None] = lambda position: None,
) -> dict[str, int]:
    """Recognise the available videos that have no cues of this recogniser yet.

    The caller holds the index's lock and has called `transcripts.update`. The cues of a content are
    written when its recognition is complete; until then its last step is stored (`save_state`).
    Speech is not recognised if all copies have subtitles. A video that fails is reported in one
    line, and is tried again in the next run.

    Args:
      index: the index.
      recogniser: the recogniser of speech or text.
      report: takes lines about videos that failed or could not be used completely.
      progress: takes the progress after each step.

    Returns:
      The number of videos of each result, such as `TRANSCRIBED`; videos with equal bytes count
      once.
    """
    paths = {content: own_paths[0] for content, own_paths in transcripts.videos(index).items()}
    counts = {TRANSCRIBED: 0, WITHOUT[recogniser.source]: 0, NO_AUDIO: 0, OTHER_LANGUAGE: 0}
    counts |= {FAILED: 0, SUBTITLED: 0, DONE: 0, OFFLINE: len(set(index.contents()) - set(paths))}
    waiting: dict[str, Path] = {}
    for content, path in paths.items():
        transcript = transcripts.load(index, content) or transcripts.Transcript()
        has_subtitles = all(map(transcript.has_subtitles, index.paths(content)))
        if recogniser.source == "speech" and has_subtitles:
            counts[SUBTITLED] += 1
        elif transcript.recognised.get(recogniser.source, {}).get("by") == recogniser.by:
            counts[DONE] += 1
        else:
            waiting[content] = path
    for number, (content, path) in enumerate(waiting.items()):
        state = load_state(index, content, recogniser.by)
        with contextlib.closing(recogniser.recognise(path, state)) as steps:
            while isinstance(event := _next_event(steps, path), Step):
                progress(Position(number, len(waiting), path, event.position, event.duration))
                if event.state is not None:
                    save_state(index, content, recogniser.by, event.state)
        outcome = event
        counts[outcome.result] += 1
        for note in outcome.notes:
            report(note)
        if outcome.result == FAILED:
            continue
        transcript = transcripts.load(index, content) or transcripts.Transcript()
        cues = [tuple(cue) for cue in outcome.cues]
        transcript.recognised[recogniser.source] = {"by": recogniser.by, "cues": cues}
        with index.writing() as writer:
            transcripts.put(writer, content, transcript)
            writer.execute(
                "DELETE FROM partial_recognitions WHERE content = ? AND model = ?",
                content, recogniser.by,
            )  # fmt: skip
    progress(Position(len(waiting), len(waiting)))
    return counts


def _next_event(steps: Generator[Step, None, Outcome], path: Path) -> Step | Outcome:
    """Return the next step, or the outcome; an error of the video or of a library is `FAILED`."""
    try:
        return next(steps)
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome
    except UserError as error:
        return Outcome(FAILED, [], [str(error)])
    except Exception as error:  # one bad video must not end hours of work
        return Outcome(FAILED, [], [f"{str(path)!r}: {error!r}"])
