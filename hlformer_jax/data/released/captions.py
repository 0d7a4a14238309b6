"""Caption lists: one ``CAPTION_ID SENTENCE`` a line, the video's id before the id's first ``#``."""

import dataclasses
import re
from pathlib import Path

from hlformer_jax.data.source import Caption, DataError

_LINE = re.compile(r"(\S+)(\s*)(.*)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class ListedCaption(Caption):
    """A caption and its line.

    Attributes:
      line: its line in the list, from 1.
    """

    line: int


def read_captions(path: Path) -> dict[str, tuple[ListedCaption, ...]]:
    """Reads a caption list.

    Args:
      path: the list, UTF-8, with either kind of line ends.

    Returns:
      The captions of every video; videos and captions in order of first appearance.

    Raises:
      DataError: at the first line that is not a caption.
    """
    videos: dict[str, list[ListedCaption]] = {}
    seen: dict[str, int] = {}
    for line_number, line in enumerate(_lines(path), 1):
        caption = _parse(f"{path}:{line_number}", line, line_number)
        if caption.caption_id in seen:
            raise DataError(
                f"{path}:{line_number}: caption id {caption.caption_id!r} was given before, in "
                f"line {seen[caption.caption_id]}; ids are unique in a split, remove or rename one"
            )
        seen[caption.caption_id] = line_number
        videos.setdefault(caption.caption_id.split("#", 1)[0], []).append(caption)
    if not videos:
        raise DataError(f"{path}: holds no caption; download it again")
    return {video: tuple(captions) for video, captions in videos.items()}


def _lines(path: Path) -> list[str]:
    data = path.read_bytes()
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise DataError(
            f"{path}:1: begins with a byte order mark; save the file as UTF-8 without one"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; convert the file to UTF-8"
        ) from None
    # str.splitlines would also split at characters that may stand inside a sentence.
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _parse(where: str, line: str, line_number: int) -> ListedCaption:
    line = line.strip()
    if line == "":
        raise DataError(f"{where}: blank line; remove it")
    if "\r" in line:
        raise DataError(f"{where}: a carriage return inside the line; remove it")
    match = _LINE.fullmatch(line)
    assert match is not None  # a line that is not blank always has this form
    caption_id, gap, sentence = match.groups()
    video, mark, rest = caption_id.partition("#")
    if not (video and mark and rest):
        raise DataError(
            f"{where}: begins with {caption_id!r}, which is no caption id (VIDEO#...); either the "
            f"sentence of the line before was broken by a newline, or the video's id is empty or "
            f"holds a blank; correct the line"
        )
    if gap and gap[0] != " ":
        raise DataError(
            f"{where}: caption {caption_id!r} is set apart from its sentence by {gap[0]!r}; "
            f"use one space"
        )
    if not sentence:
        raise DataError(f"{where}: caption {caption_id!r} has no sentence; add or remove it")
    if "/" in caption_id or "\0" in caption_id:
        raise DataError(
            f"{where}: caption id {caption_id!r} holds a '/' or a zero byte, which an HDF5 name "
            f"cannot; rename it"
        )
    return ListedCaption(caption_id, sentence, line_number)
