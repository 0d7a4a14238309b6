"""Formats of subtitle files, read block by block, so that only a damaged block is lost.

Each reader takes a text whose lines end in newlines. It returns the blocks that it could read and
the number of unreadable blocks. The readers are as tolerant as players: they accept times without
hours or milliseconds, with a comma or a point, and blocks without numbers or without blank lines
between them. Other libraries that were tried (pysubs2, srt, webvtt-py, FFmpeg) lose such blocks, or
all blocks after a damaged one.
"""

import html
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hlformer_jax.video.subtitles.text import Block

DEFAULT_FRAME_RATE = 24_000 / 1001
"""Frames a second of a MicroDVD file if neither the file nor its video states a rate."""


class Parsed(NamedTuple):
    """The blocks of a file, and how many could not be read."""

    blocks: list[Block]
    skipped: int
    markup: str  # kind of markup, as for `text.clean_lines`


def sniff(text: str, suffix: str) -> str:
    """Return the format of a text by its content, or by its suffix if the content is ambiguous.

    Args:
      text: the text of a file.
      suffix: the suffix of the file.

    Returns:
      "srt", "vtt", "sbv", "ass", "microdvd", "mpl2", "ttml", "sami" or "scc"; "" if it is none of
      these.
    """
    head = text[:4096].lstrip()
    lowered = head.lower()
    if lowered.startswith("webvtt"):
        return "vtt"
    if lowered.startswith("scenarist_scc"):
        return "scc"
    if lowered.startswith("<") or suffix in (".ttml", ".dfxp", ".xml", ".smi", ".sami"):
        if re.search(r"<sami\b|<sync\b", lowered):
            return "sami"
        if re.search(r"<(?:\w{1,20}:)?tt[\s>]|<timedtext\b|<transcript\b", lowered):
            return "ttml"
    counts = dict.fromkeys(("ass", "microdvd", "mpl2", "sbv", "srt"), 0)
    for number, line in enumerate(text.split("\n")):
        if number > 5000 and any(counts.values()):
            break
        counts["ass"] += line.lstrip()[:9].lower() == "dialogue:"
        counts["microdvd"] += bool(_FRAMES["{"].match(line))
        counts["mpl2"] += bool(_FRAMES["["].match(line))
        counts["srt"] += _arrow_times(line) is not None
        counts["sbv"] += bool(_COMMA_TIMES.fullmatch(line.strip()))
    best = max(counts, key=lambda name: counts[name])
    if not counts[best]:
        return ""
    if best == "srt" and suffix == ".vtt" and not re.search(r"\d,\d{3}\s*-->", text[:4096]):
        return "vtt"
    return best


# Times

_TIME = (
    r"-?\s?\d{1,5}\s?:\s?\d{1,3}(?:\s?:\s?\d{1,3})?(?:\s?[.,:;]\s?\d{1,9})?(?![\d:])"  # 1:02:03,456
)
_ARROW = r"(?:-{1,3}\s?>|--?&gt;|[\u2013\u2014]>|\u2192|=>)"
_ARROW_TIMES = re.compile(
    rf"\s*(?:\d{{1,9}}\s+)?[\[(]?({_TIME})\s*{_ARROW}\s*({_TIME})(.*)", re.DOTALL
)
_ARROW_LIKE = re.compile(r"-->|--?&gt;|->|\u2192|=>|[\u2013\u2014]>")
_COMMA_TIMES = re.compile(
    r"(-?\d{1,5}:\d{1,2}:\d{1,2}(?:[.,]\d{1,3})?)\s?[,;]\s?(-?\d{1,5}:\d{1,2}:\d{1,2}(?:[.,]\d{1,3})?)"
)
_SETTING = re.compile(
    r"(?<!\S)(?:align|line|position|size|vertical|region|[XY][12]):\s?\S*", re.IGNORECASE
)
_WIDE = str.maketrans("\uff1a\uff0c\uff0e\u066b\ufe50", ":,.,,")


def seconds(time: str) -> float:
    """Return the seconds of a clock time, which may lack hours and the part of a second."""
    time = "".join(time.split())
    sign = -1.0 if time.startswith("-") else 1.0
    clock, separator, part = re.fullmatch(
        r"(\d+:\d+(?::\d+)?)(?:([.,:;])(\d+))?", time.lstrip("-")
    ).groups("")  # type: ignore[union-attr]
    fields = [int(field) for field in clock.split(":")]
    if separator in (":", ";") and len(fields) == 2:
        fields.append(int(part))
        part = ""
    total = 0.0
    for field in fields:
        total = 60 * total + field
    if separator in (":", ";") and len(part) < 3:  # frames, nearly always 25 or 30 a second
        return sign * (total + min(int(part or 0) / 25, 0.96))
    return sign * (total + int(part or 0) / 10 ** len(part))


def count_frames(seconds: float, frames: float, rate: float, is_drop_frame: bool = False) -> float:
    """Return the number of the frame with an SMPTE timecode.

    Args:
      seconds: hours, minutes and seconds of the timecode, in seconds.
      frames: its frames.
      rate: numbers counted in a second.
      is_drop_frame: whether two numbers of each minute are left out, except of each tenth.
    """
    minutes = int(seconds // 60) if is_drop_frame else 0
    return seconds * rate + frames - 2 * (minutes - minutes // 10)


def _arrow_times(line: str) -> re.Match[str] | None:
    if ">" not in line and "\u2192" not in line and "&gt;" not in line:
        return None
    return _ARROW_TIMES.match(line) or _ARROW_TIMES.match(line.translate(_WIDE))


# Formats with a line of times above the text: SubRip, WebVTT, SubViewer, YouTube's .sbv

_SILENT_PARAGRAPHS = (
    "NOTE", "STYLE", "REGION", "Region:", "Style:", "X-TIMESTAMP-MAP", "WEBVTT",
)  # fmt: skip
"""Beginnings of WebVTT's comments, styles and other paragraphs that are not cues."""

_SPACE = " \t\x0b\x0c\xa0\u200b\ufeff\x00"


def read_timed_lines(text: str, strict: bool) -> Parsed:
    """Read blocks that have a line with two times, and lines of text.

    Args:
      text: the text of a file.
      strict: whether an empty line ends a block, as in WebVTT, where further lines without times
        are a comment, a style or a mistake. False: such lines belong to the block before.
    """
    reader = _TimedLines(strict)
    for full_line in text.split("\n"):
        line = full_line.strip(_SPACE)
        if times := _times(line):
            reader.take_times(*times)
        elif not line:
            reader.take_blank(is_empty=not full_line.strip("\x00"))
        elif _is_broken_time(line, reader.expects_times()):
            reader.take_broken_times()
        else:
            reader.take_text(line)
    return reader.finish()


class _TimedLines:
    """Collector of blocks with times, which takes a text line by line."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.blocks: list[Block] = []
        self.skipped = 0
        self.times: tuple[float, float] | None = None  # times of the block that is being read
        self.lines: list[str] = []  # text of that block; "" between paragraphs
        self.stray: list[str] = []  # lines that belong to no block; "" between paragraphs
        self.count = 0  # number of lines of times so far
        self.is_numbered = False  # whether blocks begin with a number
        self.is_after_blank = True
        self.is_lost = False  # whether the times of the current block are unreadable

    def take_times(self, start: float, end: float, text: str) -> None:
        self._end_block()
        self.times, self.lines = (start, end), [text] if text else []
        self.skipped += end <= 0

    def take_broken_times(self) -> None:
        self._end_block()
        self.times, self.lines, self.is_lost = None, [], True
        self.skipped += 1

    def take_blank(self, is_empty: bool) -> None:
        # A line with only a space is inside a cue for YouTube, and between cues for Netflix.
        if self.strict and not is_empty and self.times is not None and not self.is_after_blank:
            if self.lines:
                self.lines.append("")
            return
        self.is_after_blank = True
        if self.stray:
            self.stray.append("")

    def take_text(self, line: str) -> None:
        if self.is_lost:
            pass
        elif self.times is None or (self.strict and self.is_after_blank):
            self.stray.append(line)
            return  # in WebVTT, all lines up to the next line of times are stray
        else:
            if self.is_after_blank and self.lines:
                self.lines.append("")
            self.lines.append(line)
        self.is_after_blank = False

    def expects_times(self) -> bool:
        """Return whether the line before was blank or a number."""
        return self.is_after_blank or bool(self.lines and self.lines[-1].isdecimal())

    def finish(self) -> Parsed:
        """Return the blocks and the number of unreadable ones."""
        self._end_block(is_last=True)
        return Parsed(self.blocks, self.skipped, "vtt" if self.strict else "tags")

    def _end_block(self, is_last: bool = False) -> None:
        if not self.count:  # lines before the first times are a header
            number = next((line for line in reversed(self.stray) if line), "")
            self.is_numbered = number.isdecimal()
        else:
            if not is_last:
                self._drop_name()
            self.skipped += self._count_stray(is_last)
        if self.times is not None and self.times[1] > 0:
            start, end = self.times
            self.blocks.append(Block(max(start, 0.0), end, "\n".join(self._own_lines())))
        self.count += 1
        self.stray = []
        self.is_after_blank = self.is_lost = False

    def _drop_name(self) -> None:
        """Remove the name or number of the next block from the end of this block."""
        lines = self.lines
        if not lines:
            return
        is_alone = len(lines) > 1 and lines[-2] == ""
        if lines[-1].isdecimal() and (self.is_numbered or self.strict or is_alone):
            if not self.is_after_blank or lines[-1] == str(self.count + 1):
                lines.pop()
        elif self.strict and not self.is_after_blank and is_alone:
            lines.pop()

    def _own_lines(self) -> list[str]:
        if not self.strict or "" not in self.lines:
            return self.lines
        paragraphs = "\n".join(self.lines).split("\n\n")
        return [text for text in paragraphs if not text.lstrip().startswith(_SILENT_PARAGRAPHS)]

    def _count_stray(self, is_last: bool) -> int:
        """Count the paragraphs that are neither comments nor the name of the next block."""
        paragraphs = [text for text in "\n".join(self.stray).split("\n\n") if text.strip()]
        if paragraphs and not is_last and self.stray[-1] and "\n" not in paragraphs[-1].strip():
            paragraphs.pop()
        return sum(
            not text.strip().startswith(_SILENT_PARAGRAPHS) and not text.strip().isdecimal()
            for text in paragraphs
        )


def _times(line: str) -> tuple[float, float, str] | None:
    """Return the start, the end and the text in a line of times; None for any other line."""
    match = _arrow_times(line)
    if match is None:
        if not line[:1].isdigit() or len(line) > 60:
            return None
        match = _COMMA_TIMES.fullmatch(line)
        return None if match is None else (seconds(match[1]), seconds(match[2]), "")
    text = _SETTING.sub("", match[3].lstrip("])"))
    return seconds(match[1]), seconds(match[2]), " ".join(text.split())


def _is_broken_time(line: str, first: bool) -> bool:
    """Return whether a line is meant to have two times, but they cannot be read."""
    if len(line) > 200 or not _ARROW_LIKE.search(line):
        return False
    sides = re.split(r"\s*(?:-->|--?&gt;|->|\u2192|=>|[\u2013\u2014]>)\s*", line, maxsplit=1)
    timely = [bool(re.match(r"[\W_]*[\d?x]+\s?[:.;]\s?[\dx?]", side)) for side in sides]
    has_digits = "-->" in line and sum(c.isdigit() for c in line) >= 2
    return timely[0] or first and (any(timely) or has_digits)


def read_srt(text: str) -> Parsed:
    """Read SubRip (.srt)."""
    return read_timed_lines(text, strict=False)


_TIMESTAMP_MAP = re.compile(
    rf"^X-TIMESTAMP-MAP\s*[=:](?=.{{0,80}}MPEGTS:(?P<ticks>\d{{1,12}}))"
    rf"(?=.{{0,80}}LOCAL:(?P<local>{_TIME}))",
    re.MULTILINE,
)
_TICKS_PER_SECOND, _TICKS_PERIOD = 90_000, 2**33


def read_vtt(text: str) -> Parsed:
    """Read WebVTT (.vtt), also if it is several segments of a stream in one file."""
    if len(_TIMESTAMP_MAP.findall(text)) < 2:
        return read_timed_lines(text, strict=True)
    blocks: list[Block] = []
    skipped = 0
    first: tuple[int, float] | None = None
    shift = 0.0
    for segment in re.split(r"^(?=WEBVTT)", text, flags=re.MULTILINE):
        if match := _TIMESTAMP_MAP.search(segment):
            ticks, local = int(match["ticks"]), seconds(match["local"])
            first = first or (ticks, local)
            half_period = _TICKS_PERIOD // 2
            difference = (ticks - first[0] + half_period) % _TICKS_PERIOD - half_period
            shift = difference / _TICKS_PER_SECOND - (local - first[1])
        parsed = read_timed_lines(segment, strict=True)
        blocks += [
            Block(max(start + shift, 0.0), None if end is None else end + shift, text)
            for start, end, text in parsed.blocks
        ]
        skipped += parsed.skipped
    return Parsed(blocks, skipped, "vtt")


def read_sbv(text: str) -> Parsed:
    """Read SubViewer and YouTube's .sbv."""
    return read_timed_lines(text.replace("[br]", "\n"), strict=False)


# SubStation Alpha

_ASS_FIELDS = "layer start end style name marginl marginr marginv effect text".split()
_ASS_TIME = re.compile(r"\s*-?\d{1,5}:\d{1,3}(?::\d{1,3})?(?:[.,:]\d{1,9})?\s*")
_COLON_OF_HUNDREDTHS = re.compile(r"(:\d{1,3}:\d{1,3}):(\d{1,9}\s*)$")


def read_ass(text: str) -> Parsed:
    """Read the lines of dialogue of SubStation Alpha, by the fields that the file states."""
    fields = _ASS_FIELDS
    blocks: list[Block] = []
    skipped = 0
    in_events = True
    for line in text.split("\n"):
        line = line.strip()
        if line.startswith("[") and line.endswith("]") and len(line) < 80:
            in_events = line.lower() == "[events]"
        elif line[:7].lower() == "format:" and in_events:
            stated = [field.strip().lower() for field in line[7:2000].split(",")]
            if {"start", "end"} <= set(stated) and stated[-1] == "text":
                fields = stated
        elif line[:9].lower() == "dialogue:":
            values = line[9:].split(",", len(fields) - 1)
            event = dict(zip(fields, values, strict=False))
            # The specification of SSA has a colon before the hundredths of a second.
            start, end = (
                _COLON_OF_HUNDREDTHS.sub(r"\1.\2", event.get(name, "")) for name in ("start", "end")
            )
            if "text" not in event or not (_ASS_TIME.fullmatch(start) and _ASS_TIME.fullmatch(end)):
                skipped += 1
            elif seconds(end) > 0:
                blocks.append(Block(max(seconds(start), 0.0), seconds(end), event["text"]))
            else:
                skipped += 1
    return Parsed(blocks, skipped, "ass")


# MicroDVD and MPL2

_FRAMES = {
    "{": re.compile(r"\s*\{\s*(\d{1,9})\s*\}\s*\{\s*(\d{0,9})\s*\}(.*)"),
    "[": re.compile(r"\s*\[\s*(\d{1,9})\s*\]\s*\[\s*(\d{0,9})\s*\](.*)"),
}


def read_microdvd(text: str, frame_rate: Callable[[], float | None]) -> Parsed:
    """Read MicroDVD, whose times are numbers of frames.

    Args:
      text: the text of a file; its first line may state the frames a second.
      frame_rate: called if the file states no rate; returns the frames a second of the video, or
        None if they are unknown.
    """
    rate: float | None = None
    rows, skipped = _numbered_lines(text, "{")
    if rows:
        start, end, first = rows[0]
        stated = re.fullmatch(r"(\d{1,3}(?:[.,]\d{1,6})?)\s*(?:fps)?", first.strip(), re.IGNORECASE)
        number = float(stated[1].replace(",", ".")) if stated else 0.0
        # A longer line of a whole number is spoken.
        if start <= 1 and number >= 1 and ((end or 0) <= 1 or not first.strip().isdecimal()):
            rate = number
            rows = rows[1:]
    if rate is None:
        rate = frame_rate() or DEFAULT_FRAME_RATE
    return Parsed(_by_unit(rows, 1 / rate), skipped, "tags")


def read_mpl2(text: str) -> Parsed:
    """Read MPL2, whose times are tenths of a second."""
    rows, skipped = _numbered_lines(text, "[")
    return Parsed(_by_unit(rows, 0.1), skipped, "tags")


def _numbered_lines(text: str, opener: str) -> tuple[list[tuple[int, int | None, str]], int]:
    rows: list[tuple[int, int | None, str]] = []
    skipped = 0
    for line in text.split("\n"):
        match = _FRAMES[opener].match(line)
        if match is None:
            skipped += bool(line.strip()) and not line.startswith("{DEFAULT}")
        else:
            shown = "\n".join(part.removeprefix("/") for part in match[3].split("|"))
            rows.append((int(match[1]), int(match[2]) if match[2] else None, shown))
    return rows, skipped


def _by_unit(rows: list[tuple[int, int | None, str]], unit: float) -> list[Block]:
    return [
        Block(start * unit, None if end is None else end * unit, text) for start, end, text in rows
    ]


# Tags of TTML and SAMI. Document types are ignored, so their entities are not expanded.

_ELEMENT = re.compile(  # a value in quotation marks may contain ">"
    r"<(/?)([A-Za-z][\w:.\-]{0,60})((?:\s(?:=\s*(?:\"[^\"<]*\"|'[^'<]*')|[^<>])*+|/)?)>"
)
_OPENING = re.compile(r"<(?=[A-Za-z/!?])")
_ATTRIBUTE = re.compile(
    r"(?<![\w:.\-])([\w:.\-]{1,60})\s{0,20}=\s{0,20}(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+))"
)


class Piece(NamedTuple):
    """A piece of a document: text, or the start tag or end tag of an element."""

    text: str = ""
    name: str = ""  # lower case, without its namespace
    attributes: str = ""
    is_end: bool = False
    is_empty: bool = False


def pieces(text: str) -> Iterator[Piece]:
    """Split a document into its tags and the text between them."""
    position = 0
    length = len(text)
    comment_ends = section_ends = True  # whether there may be further ends of these
    while position < length:
        match = _OPENING.search(text, position)
        if match is None:
            yield Piece(text[position:])
            return
        opening = match.start()
        if opening > position:
            yield Piece(text[position:opening])
        position = opening + 1
        if comment_ends and text.startswith("<!--", opening):
            end = text.find("-->", opening)
            comment_ends = end >= 0
            position = end + 3 if comment_ends else opening + 4
        elif section_ends and text.startswith("<![CDATA[", opening):
            end = text.find("]]>", opening)
            section_ends = end >= 0
            yield Piece(text[opening + 9 : end].replace("&", "&amp;") if section_ends else "")
            position = end + 3 if section_ends else opening + 9
        elif match := _ELEMENT.match(text, opening):
            rest = match[3].rstrip()
            name = match[2].rsplit(":", 1)[-1].lower()
            yield Piece("", name, rest, bool(match[1]), rest.endswith("/"))
            position = match.end()
        elif text[opening + 1] not in "!?":
            yield Piece("<")
        else:
            end = text.find(">", opening, opening + 1000)
            position = end + 1 if end > 0 else position


def attributes(text: str) -> dict[str, str]:
    """Return the attributes of a start tag by their names in lower case, without namespaces."""
    return {
        name.rsplit(":", 1)[-1].lower(): html.unescape(double or single or bare)
        for name, double, single, bare in _ATTRIBUTE.findall(text)
    }


# SAMI


_SAMI_LANGUAGE = re.compile(r"\.([\w\-]{1,40})\s{0,20}\{[^{}]{0,500}\blang\s{0,9}:", re.IGNORECASE)


def read_sami(text: str) -> Parsed:
    """Read SAMI, in which each text lasts until the next one of its language replaces it."""
    languages = {name.lower() for name in _SAMI_LANGUAGE.findall(text[: 2**16])}
    syncs: list[tuple[float | None, dict[str, list[str]]]] = []  # time, and parts by language
    skipped = 0
    language = ""
    for piece in pieces(text):
        if piece.name == "sync" and not piece.is_end:
            time = attributes(piece.attributes).get("start", "")
            stated = re.fullmatch(r"\s*(\d{1,12})(?:\.\d+)?\s*(?:ms)?\s*", time)
            skipped += stated is None
            syncs.append((int(stated[1]) / 1000 if stated else None, {}))
            language = ""
        elif piece.name in ("body", "sami") and piece.is_end:
            syncs.append((None, {}))
        elif syncs and piece.name in ("br", "p", "div"):
            if piece.name == "p" and not piece.is_end:
                name = attributes(piece.attributes).get("class", "").lower()
                language = name if name in languages or name.endswith("cc") else ""
            syncs[-1][1].setdefault(language, []).append("\n")
        elif syncs and not piece.name and (piece.text.strip() or syncs[-1][1]):
            parts = syncs[-1][1].setdefault(language, [])
            parts.append(" ".join(piece.text.split("\n")))
    return Parsed(_sami_blocks(syncs), skipped, "plain")


def _sami_blocks(syncs: list[tuple[float | None, dict[str, list[str]]]]) -> list[Block]:
    blocks: list[Block] = []
    shown: dict[str, tuple[float, str]] = {}  # start and text, by language

    def hide(language: str, end: float | None) -> None:
        start, text = shown.pop(language)
        is_later = end is not None and end > start
        blocks.append(Block(start, end if is_later else None, text))

    for time, texts in syncs:
        for language in list(shown):
            # A text without a language replaces all texts, and any text replaces it.
            if time is None or not language or language in texts or "" in texts or not texts:
                hide(language, time)
        if time is not None:
            for language, parts in texts.items():
                if text := "".join(parts).strip():
                    shown[language] = time, text
    for language in list(shown):
        hide(language, None)
    return blocks
