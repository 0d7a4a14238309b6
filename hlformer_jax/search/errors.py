"""The errors of the search product that a user can mend."""

from hlformer_jax.errors import UserError


class SearchError(UserError, ValueError):
    """An index, a question or a folder is not as it should be; the message says what to do."""


class DamagedError(SearchError):
    """A file of an index is missing, or not what was written."""
