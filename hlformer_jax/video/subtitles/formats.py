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
      "srt", "vtt", "sbv", "ass", "microdvd", "mpl2", "ttml" or "sami"; "" if it is none of these.
    """
    head = text[:4096].lstrip()
    lowered = head.lower()
    if lowered.startswith("webvtt"):
        return "vtt"
    if lowered.startswith("<") or suffix in (".ttml", ".dfxp", ".xml", ".smi", ".sami"):
        if re.search(r"<sami\b|<sync\b", lowered):
            return "sami"
        if re.search(r"<(?:\w{1,20}:)?tt[\s>]|<timedtext\b|<transcript\b", lowered):
            return "ttml"
    counts = dict.fromkeys(("ass", "microdvd", "mpl2", "sbv", "srt"), 0)
    for number, line in enumerate(text.split("\n")):
        if number > 5000 and any(counts.values()):
            break
        counts["ass"] += line.startswith("Dialogue:")
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
    r"(?:align|line|position|size|vertical|region|[XY][12]):\S*|start|middle|end", re.IGNORECASE
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
    rest = match[3].lstrip("])").split()
    text = " ".join(word for word in rest if not _SETTING.match(word))
    return seconds(match[1]), seconds(match[2]), text


def _is_broken_time(line: str, first: bool) -> bool:
    """Return whether a line is meant to have two times, but they cannot be read."""
    if len(line) > 200 or not _ARROW_LIKE.search(line):
        return False
    sides = re.split(r"\s*(?:-->|--?&gt;|->|\u2192|=>|[\u2013\u2014]>)\s*", line, maxsplit=1)
    timely = [bool(re.match(r"[\W_]*[\d?x]+\s?[:.;]\s?[\dx?]", side)) for side in sides]
    return any(timely) or (first and "-->" in line and sum(c.isdigit() for c in line) >= 2)


def read_srt(text: str) -> Parsed:
    """Read SubRip (.srt)."""
    return read_timed_lines(text, strict=False)


def read_vtt(text: str) -> Parsed:
    """Read WebVTT (.vtt)."""
    return read_timed_lines(text, strict=True)


def read_sbv(text: str) -> Parsed:
    """Read SubViewer and YouTube's .sbv."""
    return read_timed_lines(text.replace("[br]", "\n"), strict=False)


# SubStation Alpha

_ASS_FIELDS = "layer start end style name marginl marginr marginv effect text".split()
_ASS_TIME = re.compile(r"\s*-?\d{1,5}:\d{1,3}(?::\d{1,3})?(?:[.,:]\d{1,9})?\s*")


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
            start, end = event.get("start", ""), event.get("end", "")
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
        first = rows[0][2].strip().replace(",", ".")
        if rows[0][0] <= 1 and re.fullmatch(r"\d{1,3}(\.\d{1,6})?", first) and float(first) >= 1:
            rate = float(first)
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


# TTML and SAMI, by their tags. Document types are ignored, so their entities are not expanded.

_ELEMENT = re.compile(r"<(/?)([A-Za-z][\w:.\-]{0,60})((?:\s[^<>]{0,2000}|/)?)>")
_OPENING = re.compile(r"<(?=[A-Za-z/!?])")
_ATTRIBUTE = re.compile(
    r"(?<![\w:.\-])([\w:.\-]{1,60})\s{0,20}=\s{0,20}(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+))"
)


class _Piece(NamedTuple):
    """A piece of a document: text, or the start tag or end tag of an element."""

    text: str = ""
    name: str = ""  # lower case, without its namespace
    attributes: str = ""
    is_end: bool = False
    is_empty: bool = False


def _pieces(text: str) -> Iterator[_Piece]:
    """Split a document into its tags and the text between them."""
    position = 0
    length = len(text)
    comment_ends = section_ends = True  # whether there may be further ends of these
    while position < length:
        match = _OPENING.search(text, position)
        if match is None:
            yield _Piece(text[position:])
            return
        opening = match.start()
        if opening > position:
            yield _Piece(text[position:opening])
        position = opening + 1
        if comment_ends and text.startswith("<!--", opening):
            end = text.find("-->", opening)
            comment_ends = end >= 0
            position = end + 3 if comment_ends else opening + 4
        elif section_ends and text.startswith("<![CDATA[", opening):
            end = text.find("]]>", opening)
            section_ends = end >= 0
            yield _Piece(text[opening + 9 : end].replace("&", "&amp;") if section_ends else "")
            position = end + 3 if section_ends else opening + 9
        elif match := _ELEMENT.match(text, opening):
            rest = match[3].rstrip()
            name = match[2].rsplit(":", 1)[-1].lower()
            yield _Piece("", name, rest, bool(match[1]), rest.endswith("/"))
            position = match.end()
        elif text[opening + 1] not in "!?":
            yield _Piece("<")
        else:
            end = text.find(">", opening, opening + 1000)
            position = end + 1 if end > 0 else position


def _attributes(text: str) -> dict[str, str]:
    return {
        name.rsplit(":", 1)[-1].lower(): html.unescape(double or single or bare)
        for name, double, single, bare in _ATTRIBUTE.findall(text)
    }


class _Clock:
    """Converter of the times of a TTML document, by the rates that its root element states."""

    def __init__(self) -> None:
        self.frame_rate = 30.0
        self.tick_rate: float | None = None

    def state(self, attributes: dict[str, str]) -> None:
        """Set the rates from the attributes of the root element."""
        rate = attributes.get("framerate", "")
        if re.fullmatch(r"\d{1,4}", rate) and int(rate):
            self.frame_rate = float(rate)
        factor = re.fullmatch(r"(\d{1,6})[ :](\d{1,6})", attributes.get("frameratemultiplier", ""))
        if factor and int(factor[1]) and int(factor[2]):
            self.frame_rate *= int(factor[1]) / int(factor[2])
        ticks = attributes.get("tickrate", "")
        if re.fullmatch(r"\d{1,12}", ticks) and int(ticks):
            self.tick_rate = float(ticks)

    def seconds(self, time: str) -> float | None:
        """Return the seconds of an offset or a clock time; None if it is neither."""
        time = time.strip()
        offset = re.fullmatch(r"(\d{1,15}(?:[.,]\d{1,9})?)(ms|h|m|s|f|t)?", time)
        if offset:
            number = float(offset[1].replace(",", "."))
            units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "f": 1 / self.frame_rate}
            return number * units.get(offset[2] or "s", 1 / (self.tick_rate or self.frame_rate))
        clock = re.fullmatch(
            r"(\d{1,5}:\d{1,3}(?::\d{1,3})?(?:[.,]\d{1,9})?)(?:[:;](\d{1,4})(?:\.\d+)?)?", time
        )
        if clock is None:
            return None
        return seconds(clock[1]) + int(clock[2] or 0) / self.frame_rate


def read_ttml(text: str) -> Parsed:
    """Read TTML (.ttml, .dfxp, .xml), and YouTube's XML, whose elements have other names."""
    clock = _Clock()
    blocks: list[Block] = []
    skipped = 0
    offsets = [0.0]  # starts of the enclosing elements
    names = [""]
    # The element whose text is collected: depth, start, end, parts.
    shown: tuple[int, float, float | None, list[str]] | None = None
    untimed: list[str] | None = None
    for piece in _pieces(text):
        if not piece.name:
            if shown is not None:
                shown[3].append(piece.text)
            elif untimed is not None:
                untimed.append(piece.text)
            continue
        if piece.name == "br":
            if shown is not None and not piece.is_end:
                shown[3].append("<br>")
            continue
        if not piece.is_end:
            attributes = _attributes(piece.attributes)
            if piece.name == "tt":
                clock.state(attributes)
            start, end, wrong = _interval(attributes, piece.name, clock, offsets[-1])
            if piece.name == "p" and shown is not None:  # its end tag is missing
                blocks.append(Block(shown[1], shown[2], "".join(shown[3])))
                shown = None
            if not piece.is_empty and len(names) < 1000:
                names.append(piece.name)
                offsets.append(start if start is not None else offsets[-1])
                if piece.name in ("p", "span", "text", "s") and shown is None:
                    if wrong:
                        skipped += 1
                    elif start is not None:
                        shown = (len(names), start, end, [])
                        untimed = None
                    elif piece.name == "p":
                        untimed = []
        elif piece.name in names[-20:]:
            while names[-1] != piece.name:
                names.pop()
                offsets.pop()
            if shown is not None and len(names) <= shown[0]:
                blocks.append(Block(shown[1], shown[2], "".join(shown[3])))
                shown = None
            if piece.name == "p" and untimed is not None:
                if "".join(untimed).strip() and offsets[-1] > 0:
                    blocks.append(Block(offsets[-1], None, "".join(untimed)))
                untimed = None
            names.pop()
            offsets.pop()
    if shown is not None:
        blocks.append(Block(shown[1], shown[2], "".join(shown[3])))
    return Parsed([block._replace(text=_one_line(block.text)) for block in blocks], skipped, "tags")


def _interval(
    attributes: dict[str, str], name: str, clock: _Clock, offset: float
) -> tuple[float | None, float | None, bool]:
    """Return the start and the end of an element, and whether one is stated but unreadable."""
    begin, end, length = (attributes.get(key, "") for key in ("begin", "end", "dur"))
    if name in ("p", "text", "s") and not begin:  # YouTube's: seconds, or milliseconds
        unit = "s" if name == "text" else "ms"
        begin, length = (
            f"{time}{unit}" if time else ""
            for time in (
                attributes.get("start" if name == "text" else "t", ""),
                attributes.get("dur" if name == "text" else "d", ""),
            )
        )
        if name == "s":  # a word of a paragraph
            return None, None, False
    if not begin and not end:
        return None, None, False
    start = clock.seconds(begin) if begin else 0.0
    stop = clock.seconds(end) if end else None
    lasting = clock.seconds(length) if length and not end else None
    if start is None or (end and stop is None):
        return None, None, True
    start += offset
    if lasting is not None:
        return start, start + lasting, False
    return start, None if stop is None else stop + offset, False


def _one_line(text: str) -> str:
    return " ".join(text.split())


def read_sami(text: str) -> Parsed:
    """Read SAMI, in which each text lasts until the next one replaces it."""
    blocks: list[Block] = []
    skipped = 0
    start: float | None = None
    parts: list[str] = []

    def close(end: float | None) -> None:
        if start is not None and "".join(parts).strip():
            blocks.append(Block(start, end, "".join(parts)))

    for piece in _pieces(text):
        if piece.name == "sync" and not piece.is_end:
            time = _attributes(piece.attributes).get("start", "")
            following = re.fullmatch(r"\s*(\d{1,12})(?:\.\d+)?\s*(?:ms)?\s*", time)
            skipped += following is None
            close(int(following[1]) / 1000 if following else None)
            start, parts = int(following[1]) / 1000 if following else None, []
        elif piece.name in ("body", "sami") and piece.is_end:
            close(None)
            start, parts = None, []
        elif piece.name in ("br", "p", "div"):
            parts.append("\n")
        elif not piece.name:
            parts.append(" ".join(piece.text.split("\n")))
    close(None)
    return Parsed(blocks, skipped, "plain")
