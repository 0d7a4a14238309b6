"""TTML (.ttml, .dfxp, .xml), and YouTube's XML, whose elements and attributes have other names.

The times follow TTML2. An element begins and ends relative to its parent (`timeContainer="par"`,
the default) or to the end of the element before it ("seq"). It ends with its parent at the latest.
In lyrics of Apple Music, whose root has the attribute itunes:timing, all times count from 0.
"""

import itertools
import math
import re

from hlformer_jax.video.subtitles.formats import Parsed, attributes, count_frames, pieces, seconds
from hlformer_jax.video.subtitles.text import Block


class _Clock:
    """Converter of the times of a document, by the rates that its root element states."""

    def __init__(self) -> None:
        self.counted_rate = 30.0  # frames in a second of a time code
        self.frame_rate = 30.0  # frames a second
        self.sub_frame_rate = 1.0
        self.tick_rate = 1.0
        self.counts_frames = False  # whether clock times are time codes, which count frames
        self.is_lyrics = False  # whether all times count from 0, and each paragraph is one cue
        self.drop_mode = ""

    def state(self, root: dict[str, str]) -> None:
        """Set the rates from the attributes of the root element."""
        rate = root.get("framerate", "")
        if re.fullmatch(r"\d{1,4}(?:\.\d{1,6})?", rate) and float(rate):  # 23.976 is a mistake
            self.counted_rate, self.frame_rate = math.ceil(float(rate)), float(rate)
        factor = re.fullmatch(r"(\d{1,6})[ :](\d{1,6})", root.get("frameratemultiplier", ""))
        if factor and int(factor[1]) and int(factor[2]):
            self.frame_rate *= int(factor[1]) / int(factor[2])
        sub_frames = root.get("subframerate", "")
        if re.fullmatch(r"\d{1,4}", sub_frames) and int(sub_frames):
            self.sub_frame_rate = float(sub_frames)
        ticks = root.get("tickrate", "")
        if re.fullmatch(r"\d{1,12}", ticks) and int(ticks):
            self.tick_rate = float(ticks)
        elif rate:
            self.tick_rate = self.frame_rate * self.sub_frame_rate
        self.counts_frames = root.get("timebase") == "smpte"
        self.drop_mode = root.get("dropmode", "")
        self.is_lyrics = "timing" in root

    def seconds(self, time: str) -> float | None:
        """Return the seconds of an offset or a clock time; None if it is neither."""
        time = time.strip()
        offset = re.fullmatch(r"(\d{1,15}(?:[.,]\d+)?)(ms|h|m|s|f|t)?", time)
        if offset:
            number = float(offset[1].replace(",", "."))
            units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "f": 1 / self.frame_rate}
            return number * units.get(offset[2] or "s", 1 / self.tick_rate)
        clock = re.fullmatch(
            r"(\d{1,5}:\d{1,3}(?::\d{1,3})?(?:[.,]\d{1,40})?)(?:[:;](\d{1,4})(?:\.(\d{1,4}))?)?",
            time,
        )
        if clock is None:
            return None
        total = seconds(clock[1])
        frames = int(clock[2] or 0) + int(clock[3] or 0) / self.sub_frame_rate
        if not self.counts_frames:
            return total + frames / self.frame_rate
        if self.drop_mode == "dropPAL":
            minutes = int(total // 60)
            frames -= 4 * (minutes // 2 - minutes // 20)
        is_drop_frame = self.drop_mode == "dropNTSC"
        return count_frames(total, frames, self.counted_rate, is_drop_frame) / self.frame_rate


class _Element:
    """An open element with its interval, in seconds; the end is infinite if it is not stated."""

    def __init__(self, name: str, start: float = 0.0, end: float = math.inf) -> None:
        self.name, self.start, self.end = name, start, end
        self.is_sequential = False  # whether a child begins at the end of the child before it
        self.has_own_times = self.has_own_end = False
        self.is_timed = False  # whether it or an element around it has times
        self.last_end = start  # end of its last child, or, if parallel, of the one that ends last
        self.is_metadata = False  # whether it is in metadata, which has no cues
        self.display = self.visibility = ""  # styles; "none" and "hidden" hide its text
        self.ruby = ""  # part of an annotated word: "container", "base", "text" or "delimiter"

    def add_child(self, end: float) -> None:
        """Take the end of a child, which is infinite for text."""
        self.last_end = end if self.is_sequential else max(self.last_end, end)

    def animate(self, stated: dict[str, str]) -> None:
        """Take the styles that the element has later: a text that is shown then is a cue."""
        if stated.get("display", "none").strip() != "none":
            self.display = ""
        if stated.get("visibility", "").strip() == "visible":
            self.visibility = "visible"

    def close(self) -> None:
        """Set the end, if it is not stated, to the end of the children."""
        if not self.has_own_end:
            self.end = min(self.end, self.last_end)


_UNITS = frozenset({"p", "span", "text", "s"})
"""Names of elements with text. The text of the outermost of them is one cue or several."""

_METADATA = frozenset(
    {"metadata", "title", "desc", "copyright", "agent", "name", "actor", "item", "resource",
     "data", "chunk", "image"}
)  # fmt: skip
"""Names of elements that describe a document, or embed data in it."""

_RUBY_CONTAINERS = frozenset({"container", "baseContainer", "textContainer"})
_RUBY_TAGS = {"text": "rt", "delimiter": "rp"}
"""Tags of ruby characters in the text of a cue; `text.clean_lines` reads them."""
_READING = re.compile(r"<(rt|rp)>.*?</\1>|<ruby>", re.DOTALL)
"""The readings in the text of a cue, with their tags; without them the words remain."""

_ANIMATIONS = frozenset({"set", "animate"})

_BREAK = "<br>"
"""Break of a line in the text of a cue; `text.clean_lines` reads it."""

MAX_DEPTH = 1000
"""Largest number of open elements; those further inside count as part of the innermost."""

_MAX_WORD_CHARACTERS = 12
"""Largest number of characters without a space that may be a word or a syllable of a song."""


class _Unit:
    """The text of an outermost element with text, in the order of the document."""

    def __init__(self, element: _Element) -> None:
        self.element = element
        self.runs: list[tuple[_Element, list[str]]] = []  # consecutive texts of the same element

    def add(self, element: _Element, text: str) -> None:
        """Add a text of the unit or of the innermost span around it that has its own times."""
        if not self.runs or self.runs[-1][0] is not element:
            self.runs.append((element, []))
        self.runs[-1][1].append(text)

    def blocks(self, is_lyrics: bool) -> list[Block]:
        """Return the cues of the unit, one if these are lyrics. All its elements are closed."""
        texts = [(element, "".join(parts)) for element, parts in self.runs]
        texts = [(element, text) for element, text in texts if text.replace(_BREAK, "").strip()]
        if not texts:
            return []
        if not self.element.is_timed:
            texts = self._join_untimed(texts)
        start, end = self.element.start, self.element.end
        are_spans = all(e is not self.element and e.start < end for e, _ in texts)
        if are_spans and not is_lyrics and _are_cues(texts):
            return [_block(element.start, element.end, text) for element, text in texts]
        if are_spans:
            start, end = min(e.start for e, _ in texts), max(e.end for e, _ in texts)
        return [_block(start, end, "".join("".join(parts) for _, parts in self.runs))]

    def _join_untimed(self, texts: list[tuple[_Element, str]]) -> list[tuple[_Element, str]]:
        """Join the texts without times to the timed texts beside them."""
        timed: list[tuple[_Element, str]] = []
        before = ""
        for element, text in texts:
            if element is not self.element:
                timed.append((element, before + text))
                before = ""
            elif timed:
                timed[-1] = (timed[-1][0], timed[-1][1] + text)
            else:
                before = text
        return timed or texts


def _are_cues(texts: list[tuple[_Element, str]]) -> bool:
    """Return whether texts with times of their own are cues: neither words nor a growing line."""
    follow = all(
        former.end <= latter.start or former.end == math.inf
        for (former, _), (latter, _) in itertools.pairwise(texts)
    )
    words = [_READING.sub("", text.replace(_BREAK, " ")) for _, text in texts]
    return follow and any(
        len(text.split()) > 1 or len(text.strip()) > _MAX_WORD_CHARACTERS for text in words
    )


def _block(start: float, end: float, text: str) -> Block:
    return Block(start, None if end == math.inf else end, " ".join(text.split()))


class _Reader:
    """Collector of the cues of a document, which takes it piece by piece."""

    def __init__(self) -> None:
        self.clock = _Clock()
        self.blocks: list[Block] = []
        self.skipped = 0
        self.elements = [_Element("")]  # the open elements, the outermost first
        self.timed = [self.elements[0]]  # of each, the innermost with its own times, or the unit
        self.unit: _Unit | None = None
        self.styles: dict[str, dict[str, str]] = {}  # attributes of the styles in the head, by id

    def take_text(self, text: str) -> None:
        element = self.elements[-1]
        if self.unit is None or element.is_metadata:
            return
        if tag := _RUBY_TAGS.get(element.ruby):
            text = f"<{tag}>{text}</{tag}>"
        elif element.ruby in _RUBY_CONTAINERS and not text.strip():
            text = ""
        if element.display != "none" and element.visibility != "hidden":
            self.unit.add(self.timed[-1], text)
        if text.strip() and not element.is_sequential:
            element.add_child(math.inf)

    def take_break(self) -> None:
        if self.unit is not None:
            self.unit.add(self.timed[-1], _BREAK)

    def open(self, name: str, stated: dict[str, str], is_empty: bool) -> None:
        """Take the start tag of an element."""
        if name == "tt":
            self.clock.state(stated)
        is_open = any(element.name == "p" for element in self.elements[-20:])
        if name == "p" and is_open and not self.elements[-1].is_metadata:
            self.close("p")  # its end tag is missing
        for style in reversed(stated.get("style", "").split()):
            stated = self.styles.get(style, {}) | stated
        if name == "style":
            self.styles[stated.get("id", "")] = stated
        element, is_wrong = self._new_element(name, stated)
        if stated.get("ruby") in _RUBY_CONTAINERS and self.unit is not None:
            self.unit.add(self.timed[-1], "<ruby>")
        if name in _ANIMATIONS:
            self.elements[-1].animate(stated)
        if is_empty:
            element.close()
            self.elements[-1].add_child(element.end)
            return
        if len(self.elements) >= MAX_DEPTH:
            return
        self.elements.append(element)
        if self.unit is not None:
            self.timed.append(element if element.has_own_times else self.timed[-1])
            return
        self.timed.append(element)
        if element.is_metadata:
            return
        self.skipped += is_wrong
        if name in _UNITS and not is_wrong:
            self.unit = _Unit(element)

    def close(self, name: str) -> None:
        """Take an end tag: end the innermost open element of this name, and those inside it."""
        if not any(element.name == name for element in self.elements[-20:]):
            return
        is_closed = False
        while not is_closed:
            is_closed = self.elements[-1].name == name
            self._close_last()

    def finish(self) -> Parsed:
        """Return the cues; elements without an end tag end here."""
        while len(self.elements) > 1:
            self._close_last()
        return Parsed(self.blocks, self.skipped, "tags")

    def _close_last(self) -> None:
        element = self.elements.pop()
        self.timed.pop()
        element.close()
        self.elements[-1].add_child(element.end)
        if self.unit is None or self.unit.element is not element:
            return
        blocks = self.unit.blocks(self.clock.is_lyrics)
        shown: list[Block] = []
        if element.is_timed or any(run is not element for run, _ in self.unit.runs):
            shown = [block for block in blocks if block.start < self.elements[-1].end]
        self.blocks += shown
        self.skipped += len(blocks) - len(shown)  # in no interval, or after an endless element
        self.unit = None

    def _new_element(self, name: str, stated: dict[str, str]) -> tuple[_Element, bool]:
        """Return a new element, and whether a time of it is unreadable."""
        parent = self.elements[-1]
        base = parent.last_end if parent.is_sequential else parent.start
        times = _times(name, stated)
        begin, end, duration = (self.clock.seconds(time) if time else None for time in times)
        is_wrong = bool(times[0] and begin is None or times[1] and end is None)
        origin = 0.0 if self.clock.is_lyrics else base
        element = _Element(name, base if begin is None else origin + begin, parent.end)
        if end is not None:
            element.end = min(element.end, origin + end)
        if duration is not None:
            element.end = min(element.end, element.start + duration)
        element.has_own_end = end is not None or duration is not None
        element.has_own_times = element.has_own_end or begin is not None
        element.is_timed = element.has_own_times or parent.is_timed
        element.is_sequential = stated.get("timecontainer", "").strip() == "seq"
        element.is_metadata = parent.is_metadata or name in _METADATA
        is_removed = parent.display == "none"
        element.display = "none" if is_removed else stated.get("display", "").strip()
        element.visibility = stated.get("visibility", "").strip() or parent.visibility
        element.ruby = stated.get("ruby", "").strip() or parent.ruby
        return element, is_wrong


def _times(name: str, stated: dict[str, str]) -> tuple[str, str, str]:
    """Return the begin, the end and the duration that an element states; "" for each other."""
    if name in _ANIMATIONS:  # changes of a style, without text
        return "", "", ""
    begin, end, duration = (stated.get(key, "") for key in ("begin", "end", "dur"))
    if begin or end or name not in ("p", "text", "s"):
        return begin, end, duration
    if name == "text" and stated.get("start"):  # YouTube's: seconds, or milliseconds
        return f"{stated['start']}s", "", f"{duration}s" if duration else ""
    if name in ("p", "text") and stated.get("t"):
        length = stated.get("d", "")
        return f"{stated['t']}ms", "", f"{length}ms" if length else ""
    return ("", "", "") if name == "s" else (begin, end, duration)


def read_ttml(text: str) -> Parsed:
    """Read TTML or YouTube's XML."""
    reader = _Reader()
    for piece in pieces(text):
        if not piece.name:
            reader.take_text(piece.text)
        elif piece.name == "br":
            if not piece.is_end:
                reader.take_break()
        elif piece.is_end:
            reader.close(piece.name)
        else:
            reader.open(piece.name, attributes(piece.attributes), piece.is_empty)
    return reader.finish()
