"""Errors that a user can correct: commands print their message and no traceback."""

import errno
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class UserError(Exception):
    """An error that a user can correct.

    The message is one line: the thing, its value and the remedy. A subclass also inherits from a
    built-in exception, which callers of the Python API would catch, for example
    `class ConfigError(UserError, ValueError)`.
    """


class ConfigError(UserError, ValueError):
    """Error for a field of a configuration that is unknown or has a wrong value."""


class MissingExtra(UserError, ImportError):
    """Error for a missing package that an extra of hlformer_jax installs."""


class SearchError(UserError, ValueError):
    """Error for an index, a query or a folder that cannot be searched."""


class QueryError(SearchError):
    """Error for a field of a query, or an option of a library, whose value cannot be used.

    The message is a template in which `{name}` stands for a field, so that each interface can show
    its own names of fields. `str(error)` has the names of the Python API.

    Attributes:
      field: the name of the field.
      allowed: the values that the field may have; empty if they cannot be listed.
    """

    def __init__(
        self, template: str, field: str, allowed: Sequence[str] = (), **values: object
    ) -> None:
        """Fill the template.

        Args:
          template: the message, in which `{name}` stands for a field or for one of `values`.
          field: the name of the field.
          allowed: the values that the field may have.
          **values: other values of the template. Text from a user belongs here, because a brace in
            the template itself would begin a name.
        """
        self._template, self._values = template, values
        self.field, self.allowed = field, tuple(allowed)
        super().__init__(self.phrased({}))

    def phrased(self, names: Mapping[str, str]) -> str:
        """Return the message with the given names of fields.

        Args:
          names: the name of each field in the caller's interface; a field that is not among them
            keeps its name of the Python API.
        """
        return self._template.format_map(_Names({**names, **self._values}))


class _Names(dict[str, Any]):
    """Names of fields for a message; a field without an entry keeps its name of the Python API."""

    def __missing__(self, name: str) -> str:
        return name


class DamagedError(SearchError):
    """Error for a file of an index that is missing or was changed.

    Attributes:
      contents: the contents whose embeddings are damaged, each with its line of the message.
    """

    contents: Mapping[str, str] = {}

    @classmethod
    def from_contents(cls, contents: Mapping[str, str]) -> "DamagedError":
        """Return the error for contents with damaged embeddings, each with its line.

        The message is one line, also for thousands of contents: their number and the first line.
        """
        first_line, *more_lines = contents.values()
        count = f"the embeddings of {len(contents)} videos are damaged or missing, for example: "
        error = cls(count + first_line if more_lines else first_line)
        error.contents = contents
        return error


class UnreadableError(DamagedError):
    """Error for a file of an index that cannot be read at the moment, but may be intact."""

    @classmethod
    def from_error(cls, path: Path, error: OSError) -> "UnreadableError":
        """Return the error for a file that could not be read."""
        return cls(f"{path} cannot be read ({error.strerror or error})")


_ADVICE = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EROFS: "its disk is read-only, so give a path on another one",
    errno.EACCES: "ask for the rights",
    errno.EPERM: "ask for the rights",
    errno.EIO: "check the disk",
    errno.EEXIST: "give another path",
    errno.ENOTDIR: "a file stands where a folder must be, so give another path",
}
"""Advice for errors of the disk, by error number."""

_DISK_ERRORS = frozenset(errno.errorcode) - {
    errno.EINVAL, errno.ENOMEM, errno.EPERM, errno.ENOSYS, errno.ERANGE, errno.EDOM
}  # fmt: skip
"""Error numbers that mean a fault of the disk or network and not of a file's content.

FFmpeg also uses the numbers that are left out, for damaged files and unknown formats.
"""


def is_of_disk(error: BaseException | None) -> bool:
    """Return whether the disk or network caused an error, so that the file may be intact."""
    return getattr(error, "errno", None) in _DISK_ERRORS


def describe(error: Exception) -> str:
    """Return the message of an error; for an error of the system its file, reason and advice."""
    if not isinstance(error, OSError) or error.errno is None or error.strerror is None:
        return str(error)
    place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    advice = f"; {_ADVICE[error.errno]}" if error.errno in _ADVICE else ""
    return f"{place}{error.strerror}{advice}"


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
