"""Strict reading of text and JSON: UTF-8 without surprises, and errors that name file and line.

``where`` is the place that an error message names: FILE or FILE:LINE, and in some cases the video
or node.
"""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hlformer_jax.data.sources.protocol import DataError
from hlformer_jax.text import shown

MIN_DURATION = 1e-3
"""Shortest length of a video in seconds. Moments are measured in shares of it."""


def read_text(path: str | Path) -> str:
    """Return the text of a file.

    Raises:
      DataError: if it is empty, is not UTF-8, or has a byte order mark.
    """
    data = Path(path).read_bytes()
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise DataError(
            f"{path}:1: the file begins with a byte order mark; save it as UTF-8 without one"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; convert the file to UTF-8"
        ) from None
    if not text or text.isspace():
        raise DataError(f"{path}: the file is empty; download it again")
    return text


def read_lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield the place (FILE:LINE) and the text of each line; raise a DataError at a blank line."""
    # str.splitlines would also split at characters that may stand inside a sentence.
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), 1):
        if not line.strip():
            raise DataError(f"{path}:{number}: the line is blank; remove it")
        yield f"{path}:{number}", line.rstrip("\r")


def read_json_lines(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place (FILE:LINE) and the JSON object of each line of a file."""
    for where, line in read_lines(path):
        yield where, parse_object(line, where)


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
      text: the text of the object.
      where: the place of the text in error messages.

    Raises:
      DataError: if the text is not JSON, or has NaN, infinities or a key twice in one object.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record: dict[str, Any] = {}
        for name, value in pairs:
            if name in record:
                raise DataError(f"{where}: {name!r} appears twice in one object; remove one")
            record[name] = value
        return record

    def constant(name: str) -> float:
        raise DataError(f"{where}: contains {name}, which JSON does not allow; correct it")

    try:
        parsed = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except DataError:
        raise
    except json.JSONDecodeError as error:
        place = where if "\n" not in text.strip() else f"{where}:{error.lineno}"
        raise DataError(f"{place}: not valid JSON ({error}); correct it") from None
    except RecursionError:
        raise DataError(f"{where}: the JSON is nested too deeply") from None
    except ValueError:  # Python's limit on the digits of an integer
        raise DataError(f"{where}: contains a number of thousands of digits; correct it") from None
    if not isinstance(parsed, dict):
        raise DataError(f"{where}: expected a JSON object, {{…}}")
    return parsed


def field(
    record: Any,
    name: str,
    where: str,
    check: Callable[..., Any] = lambda value, *_: value,
    **options: Any,
) -> Any:
    """Return a field of a JSON object, checked by one of the functions below.

    Args:
      record: the parsed object.
      name: the name of the field.
      where: the place of the object in error messages.
      check: `as_text`, `as_seconds`, `as_duration`, `as_list` or a function with the same
        parameters; without it every value is accepted.
      **options: further keyword arguments of `check`.

    Raises:
      DataError: if `record` is not an object, the field is missing, or `check` refuses its value.
    """
    if not isinstance(record, dict):
        raise DataError(f"{where}: is {shown(record)}; it must be an object")
    if name not in record:
        raise DataError(f'{where}: "{name}" is missing; add it')
    return check(record[name], name, where, **options)


def as_text(value: Any, what: str, where: str, one_line: bool = True) -> str:
    """Return a text that is not blank and, with `one_line`, on one line; else raise a DataError.

    Args:
      value: the value to check.
      what: the name of the value in error messages.
      where: the place of the value in error messages.
      one_line: whether to refuse line breaks and zero bytes.
    """
    requirement = None
    if not isinstance(value, str) or not value.strip():
        requirement = "it must be a string that is not blank"
    elif one_line and any(mark in value for mark in "\n\r\0"):
        requirement = "it must be on one line"
    elif any("\ud800" <= mark <= "\udfff" for mark in value):
        requirement = "it must not contain an unpaired surrogate"
    if requirement:
        raise DataError(f"{where}: {what} is {shown(value)}; {requirement}")
    return value


def as_seconds(value: Any, what: str, where: str) -> float:
    """Return a time in seconds, a finite number of at least 0; else raise a DataError.

    `what` and `where` are as in `as_text`.
    """
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise DataError(
            f"{where}: {what} is {shown(value)}; it must be a time in seconds, 0 or more"
        )
    return number


def as_duration(value: Any, what: str, where: str) -> float:
    """Return the length of a video in seconds, at least `MIN_DURATION`; else raise a DataError.

    `what` and `where` are as in `as_text`.
    """
    try:
        duration = as_seconds(value, what, where)
    except DataError:
        duration = 0.0
    if duration < MIN_DURATION:
        raise DataError(
            f"{where}: {what} is {shown(value)}; it must be the length of the video in seconds, at"
            f" least {MIN_DURATION:g}: correct it"
        )
    return duration


def as_list(value: Any, what: str, where: str, length: int | None = None) -> list[Any]:
    """Return a list, with `length` items unless that is None; else raise a DataError.

    `what` and `where` are as in `as_text`.
    """
    if not isinstance(value, list) or (length is not None and len(value) != length):
        requirement = "a list" if length is None else f"a list of {length}"
        raise DataError(f"{where}: {what} is {shown(value)}; it must be {requirement}")
    return value
