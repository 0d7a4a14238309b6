"""Removal of markup and of repetitions from the text of subtitles.

`clean_lines` removes the markup of one cue. `merge_repeated` merges the cues of one source that
repeat text: in captions that roll up, each line occurs in several cues.
"""

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_CUE_CHARACTERS = 10_000
"""Longest text of a cue, in characters including markup; the rest is left out."""

REPEAT_SECONDS = 0.1
"""Longest gap between a cue and a repetition of its text that is merged with it, in seconds."""


class Cue(NamedTuple):
    """A timed text: start and end in seconds of the video, and the text."""

    start: float
    end: float
    text: str


class Block(NamedTuple):
    """A cue as in its source: start and end in seconds, end None if not stated; raw text."""

    start: float
    end: float | None
    text: str


# Every pattern ends at the next opening character or has a limited length, so that the time for a
# text of only opening characters is linear in its length.
_TAG = re.compile(
    r"<(?:/?(?P<name>[A-Za-z][A-Za-z0-9]{0,15})(?P<rest>(?:[.\s/:=\"'][^<>]{0,1000})?)"
    r"|\d{1,4}:\d\d(?::\d\d)?(?:[.,]\d{1,3})?)>"
)
_KNOWN_TAGS = frozenset(
    "a b basefont big br c center code del div em font h1 h2 h3 html body i img ins lang li nobr p"
    " pre q rp rt ruby s small span strike strong style sub sup table tbody td tr tt u v".split()
)
_TAGS_THAT_BREAK = frozenset({"br", "p", "div", "li", "td", "tr"})
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});|&nbsp")
_OVERRIDE = re.compile(
    r"\{(?:\\[^{}]*|[yYcCfFsSpPoOhH]:[^{}]{0,200}|/?[ibuIBU]|[^{}]{0,20}\bDEFAULT)\}"
)
_BRACES = re.compile(r"(?<!\\)\{([^{}]*)\}")
_DRAWING = re.compile(r"\\p(\d{1,3})(?![a-z])")
_ESCAPED_BREAK = re.compile(r"\\[Nnh]")
_INVISIBLE = re.compile(
    # Controls; marks of writing direction; zero width except the joiners, which letters need.
    "[\x01-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]"
)
_THUMBNAIL = re.compile(
    r"\S{1,500}(?:#xywh=[\d.,:%a-z]+|\.(?:jpe?g|png|webp|gif|avif)(?:[?#]\S*)?)", re.IGNORECASE
)


def clean_lines(text: str, markup: str) -> list[str]:
    """Return the lines of a cue without markup; [] if it shows no text.

    Args:
      text: the raw text.
      markup: the kind of markup: "ass" if all braces are overrides, "vtt" if all tags are markup,
        "tags" if the text may have both, "plain" if it only has entities.
    """
    text = text[:MAX_CUE_CHARACTERS]
    if markup == "ass":
        text = _without_ass_overrides(text)
    elif markup != "plain" and "{" in text:
        text = _OVERRIDE.sub("", text)
    if markup != "plain" and "<" in text:
        text = _without_tags(text, markup)
    text = _ESCAPED_BREAK.sub(lambda escape: " " if escape[0] == r"\h" else "\n", text)
    for _ in range(2):  # some converters escape twice
        if "&" in text:
            text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    lines = [
        " ".join(_INVISIBLE.sub("", line.replace("\0", " ")).split())
        for line in unicodedata.normalize("NFC", text).splitlines()
    ]
    lines = [line for line in lines if line]
    if len(lines) == 1 and _THUMBNAIL.fullmatch(lines[0]):
        return []  # a preview picture of the player's time line
    return lines


def _without_tags(text: str, markup: str) -> str:
    """Return a text without tags; the readings of ruby characters follow it in a line."""
    parts: dict[str, list[str]] = {"": [], "rt": [], "rp": []}  # text, readings, parentheses
    current = ""
    position = 0
    for tag in _TAG.finditer(text):
        parts[current].append(text[position : tag.start()])
        position = tag.end()
        name = (tag["name"] or "").lower()
        if name in ("ruby", "rt", "rp"):
            is_start = tag[0][1] != "/"
            current = name if is_start and name != "ruby" else ""
            parts["rt"].append(" " if is_start and name == "ruby" else "")
        parts[current].append(_tag_text(tag, markup))
    parts[current].append(text[position:])
    return "\n".join(("".join(parts[""]), "".join(parts["rt"])))


def _tag_text(tag: re.Match[str], markup: str) -> str:
    name = (tag["name"] or "").lower()
    if name in _TAGS_THAT_BREAK:
        return "\n" if name in ("br", "p", "div") else " "
    return "" if not name or markup == "vtt" or name in _KNOWN_TAGS else tag[0]


def _without_ass_overrides(text: str) -> str:
    """Return a text without overrides, comments in braces, and drawings."""
    texts = []
    drawing = False
    position = 0
    for braces in _BRACES.finditer(text):
        if not drawing:
            texts.append(text[position : braces.start()])
        position = braces.end()
        scales = _DRAWING.findall(braces[1])
        if scales:
            drawing = int(scales[-1]) > 0
    if not drawing:
        texts.append(text[position:])
    return "".join(texts).replace("\\{", "{").replace("\\}", "}")


def merge_repeated(cues: Iterable[tuple[float, float, list[str]]]) -> Iterator[Cue]:
    """Merge cues that repeat text, so that each sentence occurs once.

    Captions that roll up show the last line again above a new line. Captions that are painted show
    a growing line. Animated signs have a cue for each frame.

    Args:
      cues: start, end and lines of each cue, sorted by start.

    Yields:
      The merged cues.
    """
    merged: list[tuple[float, float, str]] = []
    latest: dict[str, int] = {}  # number of the last cue with a text
    previous: tuple[float, list[str]] = (-1.0, [])  # end and lines of the cue before, unmerged
    number = 0  # of the merged cue that contains the cue before
    for start, end, lines in cues:
        text = " ".join(lines)
        index = latest.get(text)
        if index is not None and start <= merged[index][1] + REPEAT_SECONDS:
            number = index
            merged[number] = (merged[number][0], max(end, merged[number][1]), text)
            previous = (end, lines)
            continue
        fresh = lines
        if start <= previous[0] + REPEAT_SECONDS:
            fresh = _fresh_lines(previous[1], lines)
            first, last, before = merged[number]
            if not fresh:
                merged[number] = (first, max(end, last), before)
            elif start >= last - REPEAT_SECONDS and _grown(before, fresh):
                latest.pop(before, None)
                merged[number] = (first, end, " ".join(fresh))
                latest[" ".join(fresh)] = number
                fresh = []
        previous = (end, lines)
        if fresh:
            text, number = " ".join(fresh), len(merged)
            latest[text] = number
            merged.append((start, end, text))
    for start, end, text in merged:
        yield Cue(round(start, 3), round(end, 3), text)


def _fresh_lines(before: list[str], lines: list[str]) -> list[str]:
    """Return the lines without those that repeat the last lines of the cue before."""
    for count in range(min(len(before), len(lines), 4), 0, -1):
        if before[-count:] == lines[:count]:
            return lines[count:]
    return lines


def _grown(before: str, lines: list[str]) -> bool:
    text = " ".join(lines)
    return len(text) > len(before) and text.startswith(before)
