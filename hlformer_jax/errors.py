"""The base of every error that a user can mend; commands show its message, not a traceback."""


class UserError(Exception):
    """An error that a user can mend: its message is one line that says what, where and what to do.

    A subclass keeps the builtin that it is beside it, for example `class ConfigError(UserError,
    ValueError)`, so that code that uses the package as a library catches what it expects.
    """
