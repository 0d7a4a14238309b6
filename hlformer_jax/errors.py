"""The base of every error that a user can mend; commands show its message, not a traceback."""

import difflib
import importlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class UserError(Exception):
    """An error that a user can mend: its message is one line that says what, where and what to do.

    A subclass keeps the builtin that it is beside it, for example `class ConfigError(UserError,
    ValueError)`, so that code that uses the package as a library catches what it expects.
    """


class MissingExtra(UserError, ImportError):
    """A package is not installed that one of this package's extras brings."""


def optional(module: str, extra: str) -> Any:
    """A module that needs an extra of this package.

    Raises:
      MissingExtra: saying what to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if (error.name or "").startswith("hlformer_jax"):
            raise
        raise MissingExtra(
            f'{module} needs more packages: pip install "hlformer-jax[{extra}]" ({error})'
        ) from None


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
