"""Errors that a user can correct: commands print their message and no traceback."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class UserError(Exception):
    """An error that a user can correct.

    Its message is one line: the thing, its value and the remedy. A subclass also inherits from the
    builtin that code which uses the package as a library would catch, for example
    `class ConfigError(UserError, ValueError)`.
    """


class ConfigError(UserError, ValueError):
    """A field of a configuration is unknown or has a wrong value; the message names it."""


class MissingExtra(UserError, ImportError):
    """A package is missing that an extra of this package installs."""


class SearchError(UserError, ValueError):
    """An index, a query or a folder of the search is wrong."""


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
          **values: other values of the template. A user's text belongs here: a brace in the
            template itself would begin a name.
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
    """A file of an index is missing or was changed.

    Attributes:
      contents: the contents whose vectors are damaged, each with its line of the message.
    """

    contents: Mapping[str, str] = {}

    @classmethod
    def from_contents(cls, contents: Mapping[str, str]) -> "DamagedError":
        """Return the error about the damaged vectors of contents."""
        error = cls("; ".join(contents.values()))
        error.contents = contents
        return error


class UnreadableError(DamagedError):
    """A file of an index cannot be read at the moment; it may be intact."""

    @classmethod
    def from_error(cls, path: Path, error: OSError) -> "UnreadableError":
        """Return the error of a file whose reading failed."""
        return cls(f"{path} cannot be read ({error.strerror or error})")


_OUT_OF_MEMORY = re.compile(
    r"can't start new thread|cannot allocate memory|failed to map segment|out of memory"
    r"|RESOURCE_EXHAUSTED",
    re.IGNORECASE,
)


def is_memory_error(error: BaseException) -> bool:
    """Return whether an error of Python, the loader, a thread or XLA means a lack of memory."""
    kinds = OSError, RuntimeError, ImportError, SystemError
    says_so = isinstance(error, kinds) and _OUT_OF_MEMORY.search(str(error)) is not None
    return says_so or isinstance(error, MemoryError)
