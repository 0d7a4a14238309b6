"""The base class of the errors that a user sees."""


class UserError(Exception):
    """An error that a user can mend; its message is one line: what, where and what to do."""
