"""The base of every error that a user can mend; commands show its message, not a traceback."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """An error that a user can mend: its message is one line that says what, where and what to do.

    A subclass keeps the builtin that it is beside it, for example `class ConfigError(UserError,
    ValueError)`, so that code that uses the package as a library catches what it expects.
    """


def suggestion(name: object, known: Iterable[str]) -> str:
    """The end of a line on a name that is unknown: the known name that is nearest, if one is near.

    Args:
      name: the unknown name.
      known: the names that there are.

    Returns:
      "; did you mean 'NAME'?", or "".
    """
    near = difflib.get_close_matches(str(name), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""
