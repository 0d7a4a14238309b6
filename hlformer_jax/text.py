"""Text for messages: suggestions, legible file names, and hidden passwords.

On Linux the name of a file is bytes. Python represents bytes that are not UTF-8 as lone
surrogates, which neither JSON nor a page nor a terminal accepts: `legible` replaces them.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

_PASSWORDS = (
    # user:password@ of an address, up to the last @, because a password may contain any character
    re.compile(r"(\w+://[^\s/?#@:'\"]*:)[^\s'\"]*(?=@)"),
    # password=… of an address or a list of settings; its letters may be escaped, such as %70
    re.compile(
        r"((?:p|%70)(?:a|%61)(?:s|%73)(?:s|%73)(?:w|%77)(?:o|%6f)(?:r|%72)(?:d|%64)\s*=\s*)"
        r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s&'\"]+)",
        re.IGNORECASE,
    ),
)


def suggestion(name: object, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: "; did you mean …?", or ""."""
    matches = difflib.get_close_matches(str(name), list(names), 1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def shown(value: Any) -> str:
    """Return a value as text for a message, at most 60 characters on one line."""
    try:
        text = " ".join(line.strip() for line in repr(value).splitlines())
    except (RecursionError, ValueError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:59]}…"


def counted(count: int, noun: str) -> str:
    """Return a number and a noun whose plural ends in -s: "1 video", "1,200 videos"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def caseless(text: str) -> str:
    """Return a text in the form that ignores case and how accents are encoded."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def legible(text: str) -> str:
    """Return a text with U+FFFD in place of every byte that is not UTF-8."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, ends of lines and paragraphs, marks of direction, and lone surrogates."""


def visible(text: str) -> str:
    """Return a text with U+FFFD for control characters, marks of direction, and bytes of no text.

    Such characters change how the rest of a line is shown; ESC begins a command to a terminal.
    """
    return _INVISIBLE.sub("\ufffd", text)


def printable(text: str) -> str:
    r"""Return a text for one line of a terminal, with such characters escaped: \x1b, \n, \u202e.

    Bytes that are not UTF-8 become U+FFFD.
    """
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), legible(text))


def without_passwords(text: str, arguments: Iterable[str] = ()) -> str:
    """Replace the passwords of addresses and settings by "…".

    Args:
      text: the text, for example the message of an error.
      arguments: arguments of a command line that the text may quote. Their passwords may contain
        spaces and quotes; other passwords in the text end at a space or a quote.
    """
    for argument in arguments:
        start = "://" if "://" in argument else "^"
        hidden = re.sub(rf"({start}[^/?@:]*:).+(?=@)", r"\1…", argument, flags=re.DOTALL)
        for form in (str, repr):
            text = text.replace(form(argument), form(hidden))
    for pattern in _PASSWORDS:
        text = pattern.sub(r"\1…", text)
    return text
