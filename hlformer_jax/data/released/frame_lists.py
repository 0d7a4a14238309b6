"""id.txt and video2frames.txt: which rows of feature.bin are a video's frames, in time order.

video2frames.txt is one Python dict literal, ``{'video': ['frame', ...], ...}``. It is read as text
and never evaluated. Almost all lists are split at their quotes at once; a list with an escape, a
double quote or anything unusual is read token by token, which also finds where a fault stands.
Names become row indices list by list, so millions of frame names never exist side by side twice.
"""

import ast
import re
import warnings
from collections.abc import Container
from pathlib import Path

import numpy as np

from hlformer_jax.data.source import DataError

Rows = np.ndarray  # int32 [F_i]

_TEXT = re.compile(rb"\S")
# Possessive (++, *+): without a closing quote it must not go back over every byte it has read.
_STRING = re.compile(rb"""u?(?:'(?:[^'\\\r\n]++|\\.)*+'|"(?:[^"\\\r\n]++|\\.)*+")""", re.DOTALL)
_CLOSING = {b"[": b"]", b"(": b")"}


def read_row_names(path: Path, rows: int) -> dict[bytes, int]:
    """Reads id.txt.

    Args:
      path: names separated by white space; UTF-8 or ISO-8859-1.
      rows: how many there must be.

    Returns:
      The row of every name (UTF-8).

    Raises:
      DataError: if names are missing, too many or given twice.
    """
    names = _row_names(path)
    if len(names) != rows:
        raise DataError(
            f"{path}: names {len(names)} rows, shape.txt beside it says {rows}; one of the two "
            f"belongs to another download"
        )
    row_of = {name: row for row, name in enumerate(names)}
    if len(row_of) != rows:
        first: dict[bytes, int] = {}
        for row, name in enumerate(names):
            if first.setdefault(name, row) != row:
                raise DataError(
                    f"{path}: name {name.decode()!r} stands there twice, in rows "
                    f"{first[name]} and {row}; a row has one name, remove or rename one"
                )
    return row_of


def row_name(path: Path, row: int) -> str:
    """Returns the name of a row: for messages, it reads the file anew."""
    return _row_names(path)[row].decode()


def _row_names(path: Path) -> list[bytes]:
    data = path.read_bytes()
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        data = data.decode("iso-8859-1").encode("utf-8")
    # bytes.split knows ASCII's white space only: str.split would break names at U+0085 and U+00A0.
    return data.split()


def read_frame_lists(
    path: Path, row_of: dict[bytes, int], wanted: Container[str] | None = None
) -> dict[str, Rows]:
    """Reads video2frames.txt.

    Args:
      path: the dict literal, UTF-8.
      row_of: the row of every frame name.
      wanted: videos whose frames are looked up; None for all.

    Returns:
      Rows of every video in time order, int32 [F_i]; empty for a video that is not wanted.

    Raises:
      DataError: where the text is not such a literal, at a video that stands there twice
        and at a frame that id.txt does not name.
    """
    return _FrameLists(path, row_of, wanted).read()


class _FrameLists:
    """The text, and a position in it."""

    def __init__(self, path: Path, row_of: dict[bytes, int], wanted: Container[str] | None) -> None:
        self.path, self.row_of, self.wanted = path, row_of, wanted
        self.text = path.read_bytes()
        self.at = 0

    def read(self) -> dict[str, Rows]:
        lists: dict[str, Rows] = {}
        self.expect(b"{")
        while not self.take(b"}"):
            start = self.at
            video = self.decode(self.string("a video's id in quotes"))
            if video in lists:
                raise self.error(
                    f"video {video!r} stands there twice; remove one of the two", start
                )
            self.expect(b":")
            lists[video] = self.frames(video)
            if not self.take(b","):
                self.expect(b"}", "',' or '}'")
                break
        self.skip()
        if self.at != len(self.text):
            raise self.error("text after the end of the dict")
        return lists

    def frames(self, video: str) -> Rows:
        self.skip()
        opening = self.text[self.at : self.at + 1]
        closing = _CLOSING.get(opening)
        if closing is None:
            raise self.error(f"expected the list of frames of video {video!r}")
        start = self.at + 1
        end = self.text.find(closing, start)
        names = self.split_at_quotes(start, end)
        if names is None or (opening == b"(" and len(names) < 2):
            names = self.tokens(start, opening, closing)
        else:
            self.at = end + 1
        if self.wanted is not None and video not in self.wanted:
            return np.empty(0, np.int32)
        try:
            return np.fromiter(map(self.row_of.__getitem__, names), np.int32, len(names))
        except KeyError as error:
            name = self.decode(error.args[0])
            raise self.error(
                f"frame {name!r} of video {video!r} is not in id.txt; the two files belong to "
                f"different downloads",
                start,
            ) from None

    def split_at_quotes(self, start: int, end: int) -> list[bytes] | None:
        """Reads a list of plainly quoted names; None if it may be anything else."""
        # Without backslash and double quote, quotes pair up in order: an even number of them up to
        # `end` means that the closing bracket there is not inside a name.
        body = self.text[start:end]
        if end < 0 or b"\\" in body or b'"' in body:
            return None
        parts = body.split(b"'")
        between = parts[0::2]
        if len(parts) % 2 == 0 or between[0].strip() or between[-1].strip() not in (b"", b","):
            return None
        if len(parts) == 1:
            return [] if not body.strip() else None
        if any(gap.strip() != b"," for gap in set(between[1:-1])):
            return None
        return parts[1::2]

    def tokens(self, start: int, opening: bytes, closing: bytes) -> list[bytes]:
        names: list[bytes] = []
        self.at, comma = start, False
        while not self.take(closing):
            if names and not comma:
                raise self.error(f"expected ',' or {closing.decode()!r}")
            names.append(self.string("a frame's name in quotes"))
            comma = self.take(b",")
        if opening == b"(" and len(names) == 1 and not comma:
            raise self.error("a name in parentheses is not a list; write ['name']", start)
        return names

    def string(self, what: str) -> bytes:
        self.skip()
        match = _STRING.match(self.text, self.at)
        if match is None:
            raise self.error(f"expected {what}")
        token = match.group()
        if b"\\" not in token:
            self.at = match.end()
            return token[token.index(token[-1:]) + 1 : -1]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an unknown escape is only a warning to Python
                value = ast.literal_eval(token.decode("utf-8"))
            name = value.encode("utf-8")
        except (SyntaxError, ValueError):
            raise self.error("a string with an invalid escape or encoding") from None
        self.at = match.end()
        return name

    def decode(self, name: bytes) -> str:
        try:
            return name.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"name {name!r} is not UTF-8; convert the file to UTF-8") from None

    def skip(self) -> None:
        match = _TEXT.search(self.text, self.at)
        self.at = match.start() if match else len(self.text)

    def take(self, token: bytes) -> bool:
        self.skip()
        taken = self.text.startswith(token, self.at)
        self.at += len(token) if taken else 0
        return taken

    def expect(self, token: bytes, what: str | None = None) -> None:
        if not self.take(token):
            raise self.error(f"expected {what or repr(token.decode())}")

    def error(self, what: str, at: int | None = None) -> DataError:
        at = self.at if at is None else at
        line = self.text.count(b"\n", 0, at) + 1
        column = at - self.text.rfind(b"\n", 0, at)
        near = self.text[at : at + 30].decode("utf-8", "replace") or "the end of the file"
        return DataError(
            f"{self.path}:{line}:{column}: {what}, near {near!r} (the file is one dict literal, "
            f"video to list of frames, and is never run as code)"
        )
