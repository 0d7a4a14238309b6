"""Errors of the search, and names of files as text.

On Linux a name is bytes. Those that are no UTF-8 stand in Python's texts as lone surrogates, which
no JSON, page or terminal takes: such a name is shown with U+FFFD in their place, and its video is
addressed by the id.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from hlformer_jax.errors import UserError


class SearchError(UserError, ValueError):
    """An index, a question or a folder is not as it should be; the message says what to do."""


class DamagedError(SearchError):
    """A file of an index is missing, or not what was written.

    `contents` has the contents whose vectors are damaged, each with its line.
    """

    contents: Mapping[str, str] = {}

    @classmethod
    def of(cls, contents: Mapping[str, str]) -> "DamagedError":
        """An error about the vectors of contents."""
        error = cls("; ".join(contents.values()))
        error.contents = contents
        return error


def legible(text: str) -> str:
    """A text with U+FFFD for every byte that is no UTF-8."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def printable(name: str) -> str:
    """A name as one line of a terminal: legible, and quoted where it holds a newline, say."""
    name = legible(name)
    return name if name.isprintable() else repr(name)


def jsonable(value: Any) -> Any:
    """A value as JSON holds it: NaN as null, NumPy's numbers as Python's, texts legible."""
    if isinstance(value, Mapping):
        return {legible(str(key)): jsonable(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(child) for child in value]
    if isinstance(value, np.ndarray | np.generic):
        return jsonable(value.tolist())
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else legible(str(value))
