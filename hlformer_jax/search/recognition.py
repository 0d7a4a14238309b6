"""Text that no subtitles hold: speech, and writing in the pictures.

Speech is recognised by a Whisper model (faster-whisper, extra `speech`), where its detector hears a
voice. Writing is recognised by RapidOCR, which ships its models (extra `ocr`), in a frame every
`PERIOD` seconds, unless that looks like the last that was read; a cue is the writing of frames that
have the same. The cues are kept with a content's subtitles (`said`), under the name of what
recognised them, and are searched as subtitles are.
"""

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hlformer_jax.errors import SearchError, UserError, optional, printable
from hlformer_jax.search import said
from hlformer_jax.search.index import Index
from hlformer_jax.search.said import Cue

PERIOD = 2.0
"""Seconds from one frame that is read to the next."""

SIZE = 720
"""Pixels of the shorter side, to which larger frames are scaled down before they are read."""

_DIFFERS, _CHANGED = 32, 0.002
"""By how much of 255 a value differs visibly, and the share of values from which a frame does."""


class Recogniser(NamedTuple):
    """What gives the cues of a video."""

    what: str  # "speech" or "writing"
    by: str  # what does it; cues of another are replaced
    cues: Callable[[Path], Iterable[Cue]]


def speech(model: str, language: str = "") -> Recogniser:
    """A recogniser of speech.

    Args:
      model: a size, such as small, which is fetched once, or a folder in CTranslate2's format.
      language: of the speech, such as de; recognised for each video when "".

    Raises:
      MissingExtra: when faster-whisper is not installed.
      SearchError: when there is no such model, or it can be neither found nor fetched.
    """
    whisper = optional("faster_whisper", "speech")
    video = optional("hlformer_jax.video.read", "search")
    try:
        loaded = whisper.WhisperModel(model, compute_type="auto")
        if language and language not in loaded.supported_languages:
            raise ValueError(f"it knows no language {language!r}")
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise SearchError(f"--speech={model} is no model that can be loaded: {reason}") from None

    def cues(path: Path) -> list[Cue]:
        with video.named(path):
            with video.opened(path) as file:
                streams = file.container.streams.audio
                if not streams:
                    return []
                # Times count from the first sample, and here from the first frame.
                first = float((streams[0].start_time or 0) * (streams[0].time_base or 0))
                late = first - float(file.start or 0)
            found, _ = loaded.transcribe(str(path), language=language or None, vad_filter=True)
            return [
                Cue(round(max(one.start + late, 0.0), 3), round(one.end + late, 3), text)
                for one in found
                if (text := " ".join(one.text.split())) and one.end + late > 0
            ]

    return Recogniser("speech", f"faster-whisper {model} {language}".strip(), cues)


def writing() -> Recogniser:
    """A recogniser of writing.

    Raises:
      MissingExtra: when RapidOCR or onnxruntime is not installed.
    """
    ocr, video = optional("rapidocr", "ocr"), optional("hlformer_jax.video.read", "search")
    optional("onnxruntime", "ocr")
    engine = ocr.RapidOCR(params={"Global.log_level": "critical"})

    def cues(path: Path) -> Iterator[Cue]:
        before: Any = None  # the last frame that was read
        text, start = "", 0.0
        frames = video.sample(path, 1 / PERIOD, SIZE)
        for time, image in frames:
            if before is not None and not _changed(before, image):
                continue
            before = image
            lines = engine(np.ascontiguousarray(image[..., ::-1])).txts or ()
            if (now := " ".join(" ".join(lines).split())) != text:
                if text:
                    yield Cue(round(start, 3), round(time, 3), text)
                text, start = now, time
        if text:
            yield Cue(round(start, 3), round(frames.end, 3), text)

    version = importlib.metadata.version("rapidocr")
    return Recogniser("writing", f"rapidocr {version}", cues)


def _changed(before: np.ndarray, image: np.ndarray) -> bool:
    if before.shape != image.shape:
        return True
    apart = np.abs(image.astype(np.int16) - before)
    return float((apart > _DIFFERS).mean()) >= _CHANGED


def update(
    index: Index,
    recogniser: Recogniser,
    report: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Recognises what is missing in the videos that are there; returns in how many.

    Under the index's lock, after `said.update`. Each content is kept once it is done, so that a run
    that was killed goes on from there. Of a video with subtitles no speech is recognised. What
    cannot be read gives a line, and is tried again the next time.
    """
    there: dict[str, Path] = {}
    for name, record in sorted(index.manifest.videos.items()):
        if record.indexed and index.path(name).is_file():
            there.setdefault(record.content, index.path(name))
    texts = {content: said.read(index.text(content)) for content in there}
    waiting = {
        content: own
        for content, own in texts.items()
        if own is not None
        and not (recogniser.what == "speech" and own["cues"])
        and own["recognised"].get(recogniser.what, {}).get("by") != recogniser.by
    }
    done = 0
    for i, (content, own) in enumerate(waiting.items()):
        progress(i, len(waiting))
        try:
            cues = [tuple(cue) for cue in recogniser.cues(there[content])]
        except UserError as error:
            report(printable(str(error)))
            continue
        own["recognised"][recogniser.what] = {"by": recogniser.by, "cues": cues}
        said.write(index, content, **own)
        done += 1
    progress(len(waiting), len(waiting))
    return done
