"""What is said in videos: timed text of subtitles, kept in the index and searched by its words.

Subtitles are read that are text, in a video's file and in files beside it: beside `a.mp4` these are
`a.srt` and `a.en.srt`, say, SubRip, WebVTT or ASS. What no subtitles hold can be recognised: speech
by a Whisper model (faster-whisper, extra `speech`), where its detector hears a voice; writing by
RapidOCR, which ships its models (extra `ocr`), in a frame every `READ_EVERY` seconds, unless that
looks like the last that was read; a cue is the writing of frames that have the same. Speech counts
where there are no subtitles.

    DIR/texts/DIGEST.json     the cues of one content under a digest, and of what they are
    DIR/packed/said-….db      the passages of all contents in a table of SQLite's FTS5

A passage is a cue and the next, where that begins within `PAUSE` seconds of its end. Passages rank
by BM25 of their words, which are folded and stemmed (English). One says a sentence when the words
that it shares with it have half of their weight at least, ln(1 + (P − p + ½) / (p + ½)) for a word
in p of P passages, where one in none counts as in one: so a video is not found for its articles. A
content ranks by its best passage.
"""

import contextlib
import hashlib
import importlib.metadata
import io
import json
import math
import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hlformer_jax import files
from hlformer_jax.errors import SearchError, UserError, optional, printable
from hlformer_jax.search import storage
from hlformer_jax.search.index import Index

SUFFIXES = {".srt": "srt", ".vtt": "webvtt", ".ass": "ass", ".ssa": "ass"}
"""Formats of FFmpeg by the suffixes of files of subtitles."""

MAX_BYTES = 2**25
"""Size of a file of subtitles, at most; a day of speech has a thirtieth of it."""

PAUSE = 5.0
"""Seconds between two cues of one passage."""

MAX_PASSAGES = 2000
"""Passages of a sentence that are read, the best by BM25."""

RARE = 0.05, 1000
"""Share and number of passages above both of which a word is too common to search by."""

READ_EVERY = 2.0
"""Seconds from one frame that is read to the next."""

READ_SIZE = 720
"""Pixels of the shorter side, to which larger frames are scaled down before they are read."""

_TEXT = frozenset({"ass", "mov_text", "srt", "ssa", "subrip", "text", "webvtt"})
"""FFmpeg's codecs of subtitles that are text."""

_DIFFERS, _CHANGED = 32, 0.002
"""By how much of 255 a value differs visibly, and the share of values from which a frame does."""

_STYLE = re.compile(r"\{[^}]*\}|<[^>]*>")
_DIGEST = 64
_TABLE = (
    "CREATE VIRTUAL TABLE said USING fts5(text, content UNINDEXED, start UNINDEXED, stop UNINDEXED,"
    " tokenize='porter unicode61 remove_diacritics 2')"
)


class Cue(NamedTuple):
    """What is said or written from one second of a video to another."""

    start: float
    end: float
    text: str


class Passage(NamedTuple):
    """What is said from one second of a video to another.

    Its score is its BM25, and `share` what it has of the weight of a sentence's words, of 1.
    """

    start: float
    end: float
    text: str
    score: float
    share: float = 1.0


class Reader(NamedTuple):
    """What reads subtitles: `inside` and `beside`, or a test's."""

    suffixes: Iterable[str]
    inside: Callable[[Path], Iterable[tuple[float, float, str]]]
    beside: Callable[[Path], Iterable[tuple[float, float, str]]]


def inside(path: str | Path) -> list[Cue]:
    """The cues in a video's file, in the order of their times; raises as `video.read.opened`."""
    from av.stream import Discard

    with optional("hlformer_jax.video.read", "search").opened(path) as video:
        streams = [
            stream
            for stream in video.container.streams.subtitles
            if stream.codec_context is not None and stream.codec_context.name in _TEXT
        ]
        video.stream.discard = Discard.all
        for stream in streams:
            stream.discard = Discard.default
        return sorted(_decoded(video.container, streams, float(video.start or 0)))


def beside(path: str | Path) -> list[Cue]:
    """The cues of a file of subtitles, in the order of their times.

    Raises:
      VideoError: when it is none, too large, or cannot be read.
    """
    av, video = optional("av", "search"), optional("hlformer_jax.video.read", "search")
    path = Path(path)
    with video.named(path):
        if path.stat().st_size > MAX_BYTES:
            raise video.fault(path, "is too large for subtitles", "leave it out")
        content = io.BytesIO(_text(files.read_bytes(path)).encode())
        with av.open(content, format=SUFFIXES[path.suffix.lower()]) as container:
            return sorted(_decoded(container, container.streams.subtitles, 0.0))


def _text(content: bytes) -> str:
    """The text of a file: UTF-8 or UTF-16, or else Windows' Western European."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def _decoded(container: Any, streams: Sequence[Any], start: float) -> Iterator[Cue]:
    for packet in container.demux(streams) if streams else ():
        if packet.pts is None or not packet.size:
            continue
        begin = max(float(packet.pts * packet.time_base) - start, 0.0)
        length = float((packet.duration or 0) * packet.time_base)
        for line in packet.decode():
            text = _STYLE.sub("", line.dialogue.decode(errors="replace")).replace(r"\N", " ")
            if text := " ".join(text.split()):
                yield Cue(round(begin, 3), round(begin + max(length, 1.0), 3), text)


def read(path: Path) -> dict[str, Any] | None:
    """What a file of cues holds; None where it is not there, or not what was written."""
    try:
        kept = storage.unseal(files.read_bytes(path))
        cues = lambda own: [(float(start), float(end), str(text)) for start, end, text in own]
        recognised = {
            str(what): {"by": str(own["by"]), "cues": cues(own["cues"])}
            for what, own in kept.get("recognised", {}).items()
        }
        whole = {"inside": cues(kept["inside"]), "cues": cues(kept["cues"])}
        return {"sources": kept["sources"], "recognised": recognised, **whole}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def told(path: Path) -> list[tuple[float, float, str]]:
    """All cues of a content that count, in order: (start, end, text)."""
    kept = read(path)
    if kept is None:
        return []
    subtitles = kept["cues"]
    others = [
        cue
        for what, own in kept["recognised"].items()
        if not (what == "speech" and subtitles)
        for cue in own["cues"]
    ]
    return sorted([*subtitles, *others])


def update(index: Index, reader: Reader, report: Callable[[str], None]) -> None:
    """Brings the texts of all videos that are there up to date; under the index's lock."""
    listed: dict[Path, list[str]] = {}
    for content, own in _there(index).items():
        found = [other for path in own for other in _beside(path, reader.suffixes, listed)]
        sources = [[os.fsencode(other).hex(), *_stamp(other)] for other in found]
        kept = read(index.text(content))
        if kept is not None and kept["sources"] == sources:
            continue
        inside = kept["inside"] if kept else _cues(reader.inside, own[0], report)
        cues = sorted(
            {*inside, *(cue for other in found for cue in _cues(reader.beside, other, report))}
        )
        recognised = kept["recognised"] if kept else {}
        write(index, content, sources=sources, inside=inside, cues=cues, recognised=recognised)


def _there(index: Index) -> dict[str, list[Path]]:
    """The files of each content of which there is one."""
    paths: dict[str, list[Path]] = {}
    for name, record in sorted(index.manifest.videos.items()):
        if record.indexed and (path := index.path(name)).is_file():
            paths.setdefault(record.content, []).append(path)
    return paths


def write(index: Index, content: str, **kept: Any) -> None:
    """Keeps what `read` gives for a content; under the index's lock."""
    files.write_bytes(index.text(content), storage.seal({"content": content, **kept}))


def _cues(read: Callable[[Path], Any], path: Path, report: Callable[[str], None]) -> list[Any]:
    """The cues of a file; none, and a line, where it cannot be read."""
    try:
        return [tuple(cue) for cue in read(path)]
    except UserError as error:
        report(printable(str(error)))
        return []


def _beside(path: Path, suffixes: Iterable[str], listed: dict[Path, list[str]]) -> list[Path]:
    """The files of subtitles beside a video: of its name, and a language's where wanted."""
    if path.parent not in listed:
        with contextlib.suppress(OSError):
            listed[path.parent] = sorted(os.listdir(path.parent))
    known = [path.parent / name for name in listed.get(path.parent, ())]
    same = lambda other: (
        other.stem == path.stem
        or re.fullmatch(re.escape(path.stem) + r"\.[A-Za-z]{2,3}([-_.]\w+)*", other.stem)
    )
    return [one for one in known if one.suffix.lower() in suffixes and same(one) and one.is_file()]


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


# Recognised speech and writing


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
        frames = video.sample(path, 1 / READ_EVERY, READ_SIZE)
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


def recognise(
    index: Index,
    recogniser: Recogniser,
    report: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Recognises what is missing in the videos that are there; returns in how many.

    Under the index's lock, after `update`. Each content is kept once it is done, so that a run
    that was killed goes on from there. Of a video with subtitles no speech is recognised. What
    cannot be read gives a line, and is tried again the next time.
    """
    there = {content: paths[0] for content, paths in _there(index).items()}
    texts = {content: read(index.text(content)) for content in there}
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
        except Exception as error:  # a library's own, too: one video does not end hours of work
            line = str(error) if isinstance(error, UserError) else f"{there[content]}: {error!r}"
            report(printable(line))
            continue
        own["recognised"][recogniser.what] = {"by": recogniser.by, "cues": cues}
        write(index, content, **own)
        done += 1
    progress(len(waiting), len(waiting))
    return done


# Searched


class Said:
    """The passages of an index."""

    def __init__(self, index: Index) -> None:
        """Maps the table of all passages, or makes it anew of the contents' texts."""
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self.count, listing = 0, []
        with contextlib.suppress(OSError), os.scandir(index.directory / "texts") as entries:
            listing = sorted((one.name, *_stamp(Path(one.path))) for one in entries)
        if not listing:
            return
        key = hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:32]
        path = index.directory / "packed" / f"said-{key}.db"
        self._db = self._database()
        if not self._loaded(path):
            self._db = self._database()  # damaged content spoils the other
            self._db.execute(_TABLE)
            passages = list(_passages(index, [name for name, *_ in listing]))
            if not passages:
                return
            self._db.executemany("INSERT INTO said VALUES (?, ?, ?, ?)", passages)
            self._db.commit()
            with contextlib.suppress(OSError):
                content = self._db.serialize()
                files.write_bytes(path, content + hashlib.sha256(content).hexdigest().encode())
                for other in path.parent.glob("said-*.db"):
                    if other != path and storage.PACKED.fullmatch(other.name):
                        files.discard(other)
        self.count = int(self._db.execute("SELECT count(*) FROM said").fetchone()[0])

    def _database(self) -> sqlite3.Connection:
        """An empty database in memory, closed with this object."""
        database = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, database.close)
        return database

    def _loaded(self, path: Path) -> bool:
        try:
            raw = files.read_bytes(path)
            if hashlib.sha256(raw[:-_DIGEST]).hexdigest().encode() != raw[-_DIGEST:]:
                return False
            self._db.deserialize(raw[:-_DIGEST])
            return True
        except (OSError, sqlite3.Error):
            return False

    def search(self, sentence: str) -> dict[str, list[Passage]]:
        """The passages that say a sentence, by contents, the best contents and passages first."""
        words = sorted(set(re.findall(r"\w+", sentence.casefold())))
        with self._lock:
            return self._search(words) if words and self.count else {}

    def _search(self, words: list[str]) -> dict[str, list[Passage]]:
        weights = {word: self._weight(word) for word in words}
        rare = [
            word for word in words if 0 < self._counts[word] <= max(RARE[0] * self.count, RARE[1])
        ]
        shared: dict[int, float] = {}
        for word in rare:
            for (row,) in self._db.execute(
                "SELECT rowid FROM said WHERE said MATCH ?", [f'"{word}"']
            ):
                shared[row] = shared.get(row, 0.0) + weights[word]
        total = sum(weights.values())
        found: dict[str, list[Passage]] = {}
        saying = [row for row, weight in shared.items() if weight >= total / 2]
        if not saying:
            return found
        # The plus keeps SQLite from asking for each of the rows; BM25 is computed of them alone.
        ranked = self._db.execute(
            "SELECT rowid, content, start, stop, text, -bm25(said) FROM said WHERE said MATCH ?"
            " AND +rowid IN (SELECT value FROM json_each(?)) ORDER BY bm25(said), rowid LIMIT ?",
            [" OR ".join(f'"{word}"' for word in rare), json.dumps(saying), MAX_PASSAGES],
        )
        for row, content, start, end, text, score in ranked:
            own = found.get(content, [])
            if all(end <= one.start or one.end <= start for one in own):
                found[content] = [*own, Passage(start, end, text, score, shared[row] / total)]
        return found

    def _weight(self, word: str) -> float:
        if word not in self._counts:
            count = "SELECT count(*) FROM said WHERE said MATCH ?"
            self._counts[word] = int(self._db.execute(count, [f'"{word}"']).fetchone()[0])
        there = max(self._counts[word], 1)
        return math.log(1 + (self.count - there + 0.5) / (there + 0.5))


def _passages(index: Index, names: Iterable[str]) -> Iterator[tuple[str, str, float, float]]:
    """Rows of the table."""
    for name in names:
        cues = told(index.directory / "texts" / name) if storage.TEXTS.fullmatch(name) else []
        for (start, end, text), (begins, ends, more) in zip(
            cues, [*cues[1:], (math.inf, 0.0, "")], strict=False
        ):
            if begins - end <= PAUSE:
                yield f"{text} {more}", name.removesuffix(".json"), start, max(end, ends)
            else:
                yield text, name.removesuffix(".json"), start, end


def damaged(index: Index) -> dict[str, str]:
    """What is damaged of the texts of an index, by the name of the file."""
    return {
        path.name: f"{path} is damaged: index the folder again to make it anew"
        for path in map(index.text, index.contents())
        if path.exists() and read(path) is None
    }
