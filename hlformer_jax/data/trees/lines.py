"""Text files read strictly: UTF-8, JSON without surprises, and every error with file and line."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hlformer_jax.data.source import DataError


def read_text(path: Path) -> str:
    """Reads a text file.

    Args:
      path: the file.

    Returns:
      Its text.

    Raises:
      DataError: when it is empty, not UTF-8, or begins with a byte order mark.
      OSError: when it cannot be read.
    """
    data = path.read_bytes()
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}:1: begins with a byte order mark; save the file without one")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; convert the file to UTF-8"
        ) from None
    if not text.strip():
        raise DataError(f"{path}: is empty; get it again")
    return text


def split_lines(path: Path, text: str) -> list[str]:
    """The lines of a file's text; a blank one is refused by its number.

    Raises:
      DataError: at the first blank line.
    """
    # str.splitlines would also split at characters that may stand inside a sentence.
    lines = text.split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise DataError(f"{path}:{number}: blank line; remove it")
    return [line.rstrip("\r") for line in lines]


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Parses a JSON object; a key that stands twice in one object is refused.

    Args:
      text: the JSON.
      where: what it is, FILE or FILE:LINE, for messages.

    Returns:
      The object.

    Raises:
      DataError: when it is not one.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(f"{where}: {twice!r} stands twice in one object; remove one")
        return found

    try:
        parsed = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        place = where if "\n" not in text.strip() else f"{where}:{error.lineno}"
        raise DataError(
            f"{place}: this is no JSON ({error.msg} at column {error.colno}); correct it"
        ) from None
    except RecursionError:
        raise DataError(f"{where}: this is nested too deeply to be annotations") from None
    if not isinstance(parsed, dict):
        raise DataError(f"{where}: this must be a JSON object, {{…}}")
    return parsed


def field(record: Mapping[str, Any], name: str, where: str) -> Any:
    """A field of an object.

    Raises:
      DataError: when the object has none of that name.
    """
    if name not in record:
        raise DataError(f'{where}: has no "{name}"; give it one')
    return record[name]


def text_of(value: Any, what: str, where: str, one_line: bool = True) -> str:
    """A text that is not blank, and of one line unless it may have several.

    Raises:
      DataError: when the value is no such text.
    """
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {what} is {shown(value)}; it must be a text")
    if one_line and any(mark in value for mark in "\n\r\0"):
        raise DataError(f"{where}: {what} is {shown(value)}; it must be on one line")
    if any("\ud800" <= mark <= "\udfff" for mark in value):
        raise DataError(f"{where}: {what} is {shown(value)}; half a surrogate pair is no character")
    return value


def seconds_of(value: Any, what: str, where: str) -> float:
    """A time in seconds: a finite number of at least 0.

    Raises:
      DataError: when the value is no such number.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise DataError(f"{where}: {what} is {shown(value)}; it must be seconds, 0 or more")
    return float(value)


def list_of(value: Any, what: str, where: str, length: int | None = None) -> list[Any]:
    """A list, of a given length where one is given.

    Raises:
      DataError: when the value is none.
    """
    if not isinstance(value, list) or (length is not None and len(value) != length):
        wanted = "a list" if length is None else f"a list of {length}"
        raise DataError(f"{where}: {what} is {shown(value)}; it must be {wanted}")
    return value


def shown(value: Any) -> str:
    """A value as a message has it, on one line and not longer than one."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
