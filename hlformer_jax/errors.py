"""Errors that a user can mend, of which commands show the message and not a traceback; their words.

On Linux a file's name is bytes. Those that are no UTF-8 stand in Python's texts as lone surrogates,
which no JSON, page or terminal takes: such a name is shown with U+FFFD in their place (`legible`).
"""

import difflib
import importlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


class UserError(Exception):
    """An error that a user can mend: its message is one line that says what, where and what to do.

    A subclass keeps the builtin that it is beside it, for example `class ConfigError(UserError,
    ValueError)`, so that code that uses the package as a library catches what it expects.
    """


class ConfigError(UserError, ValueError):
    """A field has a value that is unknown or makes no sense; the message names the field."""


class MissingExtra(UserError, ImportError):
    """A package is not installed that one of this package's extras brings."""


class SearchError(UserError, ValueError):
    """An index, a question or a folder is not as it should be; the message says what to do."""


class QueryError(SearchError):
    """A field of a query, or an option of a library, has a value that cannot be used.

    The message is a template in which `{name}` stands for a field, so that each interface can show
    its own vocabulary: `str(error)` has the names of the Python API.

    Attributes:
      field: the name of the field.
      allowed: the values that the field may have; empty if they cannot be listed.
    """

    def __init__(
        self, template: str, field: str, allowed: Sequence[str] = (), **values: object
    ) -> None:
        """Make the message of a template.

        Args:
          template: the message, in which `{name}` stands for a field or for one of `values`.
          field: the name of the field.
          allowed: the values that the field may have.
          **values: what the template shows that is no field. Texts of a user belong here, as a
            brace in the template itself would be read as a name.
        """
        self._template, self._values = template, values
        self.field, self.allowed = field, tuple(allowed)
        super().__init__(self.phrased({}))

    def phrased(self, names: Mapping[str, str]) -> str:
        """Return the message with the given names of fields; a field without one keeps its own."""
        return self._template.format_map(_Names({**names, **self._values}))


class _Names(dict[str, Any]):
    """The names of fields; a field that has none is shown by its own."""

    def __missing__(self, name: str) -> str:
        return name


class DamagedError(SearchError):
    """A file of an index is missing, or not what was written.

    `contents` has the contents whose vectors are damaged, each with its line.
    """

    contents: Mapping[str, str] = {}

    @classmethod
    def of(cls, contents: Mapping[str, str]) -> "DamagedError":
        """An error about the vectors of contents."""
        error = cls("; ".join(contents.values()))
        error.contents = contents
        return error


class UnreadableError(DamagedError):
    """A file of an index cannot be read now: what it holds is not known, and may be whole."""


def optional(module: str, extra: str) -> Any:
    """A module that needs an extra of this package.

    Raises:
      MissingExtra: saying what to install.
      MemoryError: when there is no room to load it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if (error.name or "").startswith("hlformer_jax"):
            raise
        if is_memory_error(error):
            raise MemoryError(str(error)) from None
        raise MissingExtra(
            f'{module} needs more packages: pip install "hlformer-jax[{extra}]" ({error})'
        ) from None


_OUT_OF_MEMORY = re.compile(
    r"can't start new thread|cannot allocate memory|failed to map segment|out of memory"
    r"|RESOURCE_EXHAUSTED",
    re.IGNORECASE,
)


def is_memory_error(error: BaseException) -> bool:
    """Whether an error says that memory has run out: of Python, the loader, a thread or XLA."""
    kinds = OSError, RuntimeError, ImportError, SystemError
    text = isinstance(error, kinds) and _OUT_OF_MEMORY.search(str(error)) is not None
    return text or isinstance(error, MemoryError)


def suggestion(name: object, known: Iterable[str]) -> str:
    """The end of a line on an unknown name: "; did you mean …?", or "" where none is near."""
    near = difflib.get_close_matches(str(name), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def command_line(module: str, *arguments: object) -> str:
    """A command of the package, to be pasted as it is into the shell in which this program runs."""
    return shlex.join([_python(), "-m", f"hlformer_jax.{module}", *map(str, arguments)])


def _python() -> str:
    """This environment's Python: by its name where the shell finds it, else by its path."""
    known = shutil.which("python")
    if known and os.path.dirname(os.path.abspath(known)) == os.path.dirname(sys.executable):
        return "python"
    own = Path(sys.executable)
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)


_PASSWORDS = (
    # user:password@ of an address: to its last @, as a password may hold any character
    re.compile(r"(\w+://[^\s/?#@:'\"]*:)[^\s'\"]*(?=@)"),
    # password=… of an address or of a list of settings, whose letters may be written as %70
    re.compile(
        r"((?:p|%70)(?:a|%61)(?:s|%73)(?:s|%73)(?:w|%77)(?:o|%6f)(?:r|%72)(?:d|%64)\s*=\s*)"
        r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s&'\"]+)",
        re.IGNORECASE,
    ),
)


def without_passwords(text: str, arguments: Iterable[str] = ()) -> str:
    """Return a text in which the passwords of addresses and settings are "…".

    Args:
      text: an error, say.
      arguments: of a command line, which the text may quote; a password in one of them may hold
        spaces and quotes.
    """
    for argument in arguments:
        place = "://" if "://" in argument else "^"
        hidden = re.sub(rf"({place}[^/?@:]*:).+(?=@)", r"\1…", argument, flags=re.DOTALL)
        for form in (str, repr):
            text = text.replace(form(argument), form(hidden))
    for pattern in _PASSWORDS:
        text = pattern.sub(r"\1…", text)
    return text


def legible(text: str) -> str:
    """A text with U+FFFD for every byte that is no UTF-8."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def printable(name: str) -> str:
    """A name as one line of a terminal: legible, and quoted where it holds a newline, say."""
    name = legible(name)
    return name if name.isprintable() else repr(name)
