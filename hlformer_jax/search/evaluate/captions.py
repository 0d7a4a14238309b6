"""Captions of one's own videos, of which the answer is known.

A file of captions has a JSON object a line:

    {"video": "a.mp4", "sentence": "a person opens the fridge", "start": 12.0, "end": 17.5}

`video` is a path relative to the indexed folder, or "" where no video has what the sentence says.
`start` and `end`, in seconds, may both be missing. `split`, where it is there, is train, val or
test. Further fields may be left out:

    "kind": "a name"      captions of a kind have a row of their own (`metrics.by_kind`)
    "also": ["b.mp4"]     further videos that are right, near-duplicates say
    "said": true          it is said, not seen
    "then": ["…"], "within": 10, "not": ["…"]    as `query` has them
"""

from pathlib import Path
from typing import Any, NamedTuple

from hlformer_jax import files
from hlformer_jax.errors import SearchError

SPLITS = ("train", "val", "test")


class Caption(NamedTuple):
    """A sentence on a video; see the module. `split` is "" where that is not said."""

    video: str
    sentence: str
    start: float | None = None
    end: float | None = None
    split: str = ""
    kind: str = ""
    also: tuple[str, ...] = ()
    said: bool = False
    then: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    within: float = 60.0

    @property
    def single(self) -> bool:
        """Whether it is one sentence on what is seen, in a video or in none."""
        return not (self.said or self.then or self.without)


def read(path: Path, split: str | None = None) -> list[Caption]:
    """The captions of a file in their order, at least one; of one split where that is named.

    Raises:
      SearchError: when a line is wrong; names it, and says what is.
      OSError: when the file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise SearchError(f"{path} is no text in UTF-8") from None
    listed = [_caption(line, f"{path}:{i}") for i, line in enumerate(lines, 1) if line.strip()]
    listed = [caption for caption in listed if not split or caption.split == split]
    if not listed:
        raise SearchError(f"{path} has no caption" + (f" of {split}" if split else ""))
    return listed


def _caption(line: str, where: str) -> Caption:
    try:
        fields: Any = files.parse_json(line)
    except ValueError as error:
        raise SearchError(f"{where}: this is no JSON ({error})") from None
    if not isinstance(fields, dict):
        raise SearchError(f"{where}: a caption is a JSON object")
    for name in ("video", "sentence"):
        absent = name == "video" and fields.get(name) == ""
        if not isinstance(fields.get(name), str) or not (fields[name].strip() or absent):
            raise SearchError(f'{where}: "{name}" is missing or no text')
    start: Any = fields.get("start")
    end: Any = fields.get("end")
    if (start, end) != (None, None):
        if not (_is_number(start) and _is_number(end)) or not 0 <= start < end:
            raise SearchError(
                f'{where}: "start" and "end" are {start} and {end}: seconds, the end after the'
                " start, or neither"
            )
        start, end = float(start), float(end)
    split = fields.get("split") or ""
    if split and split not in SPLITS:
        raise SearchError(f'{where}: "split" is {split!r}: write train, val or test')
    lists = {name: fields.get(name) or [] for name in ("also", "then", "not")}
    for name, texts in lists.items():
        if not isinstance(texts, list) or not all(isinstance(x, str) and x.strip() for x in texts):
            raise SearchError(f'{where}: "{name}" is {texts!r}: write a list of texts')
    kind, said, within = fields.get("kind", ""), fields.get("said", False), fields.get("within", 60)
    if not (isinstance(kind, str) and isinstance(said, bool) and _is_number(within) and within > 0):
        raise SearchError(
            f'{where}: "kind" is {kind!r}, "said" {said!r} and "within" {within!r}: a text, true or'
            " false, and seconds above 0"
        )
    if not fields["video"] and (lists["also"] or start is not None):
        raise SearchError(f'{where}: "video" is empty, of what no video has: leave out the rest')
    also, then, without = map(tuple, lists.values())
    return Caption(
        fields["video"], fields["sentence"], start, end, split, kind, also, said, then, without,
        float(within),
    )  # fmt: skip


def _is_number(value: Any) -> bool:
    """Whether a field is a number of seconds, and not one that no float holds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**40
