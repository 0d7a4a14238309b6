"""The errors that a user sees: every command prints one as a line, without a traceback."""


class UserError(Exception):
    """An error that a user can mend; its message is one line: what, where, and what to do."""
