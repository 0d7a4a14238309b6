"""Files of captions: descriptions of moments in a user's videos.

Each line is a JSON object:

    {"video": "a.mp4", "sentence": "a person opens the fridge", "start": 12.0, "end": 17.5}

`video` is a path relative to the indexed folder, or "" if no video matches the sentence. `start`
and `end` are the times of the moment in seconds; both may be missing. Optional fields:

    "split": "train"      train, val or test
    "kind": "a name"      evaluation reports each kind in a row of its own (`metrics.by_kind`)
    "also": ["b.mp4"]     further videos that are correct, such as near-duplicates
    "transcript": true    the sentence is about speech or text, not about the picture
    "then": ["…"]         events that follow the sentence, in this order
    "within": 10          longest gap between consecutive events in seconds; 60 by default
    "not": ["…"]          things that must not be visible in the same frames
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hlformer_jax import files
from hlformer_jax.data.annotations.spans import Span, possible_times
from hlformer_jax.errors import SearchError

SPLITS = ("train", "val", "test")

MAX_SECONDS = 2.0**40
"""Every time in a caption, in seconds, must be smaller than this."""


class Caption(NamedTuple):
    """A line of a file of captions; the module describes the fields."""

    video: str
    sentence: str
    start: float | None = None
    end: float | None = None
    split: str = ""
    kind: str = ""
    duplicates: tuple[str, ...] = ()  # "also"
    in_transcript: bool = False  # "transcript"
    following: tuple[str, ...] = ()  # "then"
    without: tuple[str, ...] = ()  # "not"
    within: float | None = None

    @property
    def is_visual(self) -> bool:
        """True if the query is a single sentence about the picture."""
        return not (self.in_transcript or self.following or self.without)

    @property
    def videos(self) -> tuple[str, ...]:
        """The correct videos; empty if no video matches the sentence."""
        return (self.video, *self.duplicates) if self.video else ()


def read(path: Path, split: str | None = None) -> list[Caption]:
    """Read the captions of a file.

    Args:
      path: the file.
      split: the split to read; None for all captions.

    Raises:
      SearchError: if the file is not in UTF-8, a line is malformed, or no caption is found.
      OSError: if the file cannot be read.
    """
    try:
        # str.splitlines would also split at characters that may stand inside a sentence.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise SearchError(f"{path} is not encoded in UTF-8") from None
    captions = [_parse(line, f"{path}:{i}") for i, line in enumerate(lines, 1) if line.strip()]
    captions = [caption for caption in captions if not split or caption.split == split]
    if not captions:
        raise SearchError(f"{path} has no caption" + (f" of the split {split}" if split else ""))
    return captions


def cut_times(
    captions: Sequence[Caption], durations: Mapping[str, float], seconds_per_frame: float
) -> list[Caption]:
    """Return captions whose times end with their videos, and warn of those that ended later.

    Args:
      captions: the captions.
      durations: the length of each indexed video in seconds; captions of others are kept.
      seconds_per_frame: the interval of the frames, by which a length may be too short.

    Raises:
      DataError: if a time is impossible, such as one in milliseconds.
    """
    names = [f"{i}: {caption.sentence} ({caption.video})" for i, caption in enumerate(captions, 1)]
    spans = {
        name: Span(caption.start, caption.end, durations[caption.video])
        for name, caption in zip(names, captions, strict=True)
        if caption.start is not None and caption.end is not None and caption.video in durations
    }
    possible = possible_times(spans, "the captions", seconds_per_frame)
    return [
        caption._replace(start=possible[name].start, end=possible[name].end)
        if name in possible
        else caption
        for name, caption in zip(names, captions, strict=True)
    ]


def _parse(line: str, where: str) -> Caption:
    try:
        fields: Any = files.parse_json(line)
    except ValueError as error:
        raise SearchError(f"{where}: the line is not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise SearchError(f"{where}: the line must be a JSON object")
    for name in ("video", "sentence"):
        may_be_empty = name == "video" and fields.get(name) == ""
        if not isinstance(fields.get(name), str) or not (fields[name].strip() or may_be_empty):
            raise SearchError(f'{where}: "{name}" is missing, or not a text')
    start: Any = fields.get("start")
    end: Any = fields.get("end")
    if (start, end) != (None, None):
        if not (_is_seconds(start) and _is_seconds(end)) or not 0 <= start < end:
            raise SearchError(
                f'{where}: "start" is {start} and "end" is {end}: give seconds with the end after'
                " the start, or leave out both"
            )
        start, end = float(start), float(end)
    split = fields.get("split") or ""
    if split and split not in SPLITS:
        raise SearchError(f'{where}: "split" is {split!r}: give train, val or test')
    lists = {name: fields.get(name) or [] for name in ("also", "then", "not")}
    for name, texts in lists.items():
        if not isinstance(texts, list) or not all(isinstance(x, str) and x.strip() for x in texts):
            raise SearchError(f'{where}: "{name}" is {texts!r}: give a list of texts')
    kind, in_transcript = fields.get("kind", ""), fields.get("transcript", False)
    within = fields.get("within")
    if not isinstance(kind, str):
        raise SearchError(f'{where}: "kind" is {kind!r}: give a text')
    if not isinstance(in_transcript, bool):
        raise SearchError(f'{where}: "transcript" is {in_transcript!r}: give true or false')
    if within is not None:
        if not (_is_seconds(within) and within > 0):
            raise SearchError(f'{where}: "within" is {within!r}: give seconds above 0')
        if not lists["then"]:
            raise SearchError(f'{where}: "within" needs "then": add it, or leave out "within"')
        within = float(within)
    if not fields["video"] and (lists["also"] or start is not None):
        raise SearchError(f'{where}: "video" is empty: leave out "also", "start" and "end" too')
    duplicates, following, without = map(tuple, lists.values())
    return Caption(
        fields["video"], fields["sentence"], start, end, split, kind, duplicates, in_transcript,
        following, without, within,
    )  # fmt: skip


def _is_seconds(value: Any) -> bool:
    """Return whether a field is a finite number of seconds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < MAX_SECONDS
