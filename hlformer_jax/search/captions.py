"""Captions of one's own videos: a file with a JSON object a line.

    {"video": "a.mp4", "sentence": "a person opens the fridge", "start": 12.0, "end": 17.5}

`video` is a path relative to the indexed folder. `start` and `end`, in seconds, may both be
missing. `split`, where it is there, is train, val or test.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

from hlformer_jax import files
from hlformer_jax.search.errors import SearchError

SPLITS = ("train", "val", "test")


class Caption(NamedTuple):
    """A sentence on a video.

    Attributes:
      video: path relative to the indexed folder, with slashes.
      sentence: what happens there.
      start: second at which it begins; None where that is not known.
      end: second at which it ends; None where that is not known.
      split: train, val or test; "" where that is not said.
    """

    video: str
    sentence: str
    start: float | None = None
    end: float | None = None
    split: str = ""


def read(path: Path) -> list[Caption]:
    """Reads a file of captions.

    Args:
      path: the file.

    Returns:
      Its captions in their order, at least one.

    Raises:
      SearchError: when a line is wrong; names it, and says what is.
      OSError: when the file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise SearchError(f"{path} is no text in UTF-8") from None
    found = [_caption(line, f"{path}:{i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise SearchError(f"{path} has no caption")
    return found


def _caption(line: str, where: str) -> Caption:
    try:
        fields: Any = files.parse_json(line)
    except ValueError as error:
        raise SearchError(f"{where}: this is no JSON ({error})") from None
    if not isinstance(fields, dict):
        raise SearchError(f"{where}: a caption is a JSON object")
    for name in ("video", "sentence"):
        if not isinstance(fields.get(name), str) or not fields[name].strip():
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
    return Caption(fields["video"], fields["sentence"], start, end, split)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
