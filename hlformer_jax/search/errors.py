"""The errors of the search product that a user can mend."""

from collections.abc import Iterable

from hlformer_jax.errors import UserError


class SearchError(UserError, ValueError):
    """An index, a question or a folder is not as it should be; the message says what to do."""


class DamagedError(SearchError):
    """A file of an index is missing, or not what was written.

    Attributes:
      contents: the contents whose vectors are damaged, each with its line.
    """

    def __init__(self, message: str, contents: Iterable[tuple[str, str]] = ()) -> None:
        """An error about one file, or about those of several contents."""
        super().__init__(message)
        self.contents = dict(contents)
