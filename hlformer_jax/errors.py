"""Errors that a user can correct: commands print their message and no traceback."""

import re
from collections.abc import Mapping


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


class DamagedError(SearchError):
    """A file of an index is missing or was changed.

    Attributes:
      contents: the contents whose vectors are damaged, each with its line of the message.
    """

    contents: Mapping[str, str] = {}

    @classmethod
    def of(cls, contents: Mapping[str, str]) -> "DamagedError":
        """Return the error about the damaged vectors of contents."""
        error = cls("; ".join(contents.values()))
        error.contents = contents
        return error


class UnreadableError(DamagedError):
    """A file of an index cannot be read at the moment; it may be intact."""


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
