"""Rules of fields: which values a field of a configuration may have.

The bounds are wider than any sensible run needs. A typing error such as an additional digit is
reported with the name of the field, instead of exhausting the memory.
"""

import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Rule:
    """Allowed values of a field.

    Attributes:
      meaning: the end of the sentence "it must be …".
      holds: returns whether a value, of any type, is allowed.
      choices: the allowed names, for a field whose values are names.
    """

    meaning: str
    holds: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


def integer(low: int, high: int) -> Rule:
    """Allow whole numbers from `low` to `high`."""
    return Rule(
        f"a whole number from {low:,} to {high:,}",
        lambda x: _is_number(x) and isinstance(x, numbers.Integral) and low <= int(x) <= high,
    )


def number(low: float, high: float) -> Rule:
    """Allow finite numbers from `low` to `high`."""
    return Rule(
        f"a number from {_format(low)} to {_format(high)}",
        lambda x: _is_number(x) and low <= x <= high,
    )


def positive(high: float) -> Rule:
    """Allow finite numbers above 0 and at most `high`."""
    return Rule(
        f"a number above 0 and at most {_format(high)}",
        lambda x: _is_number(x) and 0 < x <= high,
    )


def choice(*names: str) -> Rule:
    """Allow the given names."""
    *first, last = names
    return Rule(f"{', '.join(first)} or {last}" if first else last, lambda x: x in names, names)


def integers(low: int, high: int) -> Rule:
    """Allow tuples, including the empty tuple, of whole numbers from `low` to `high`."""
    element = integer(low, high)
    return Rule(
        f"a tuple of whole numbers from {low:,} to {high:,}",
        lambda x: isinstance(x, tuple | list) and all(map(element.holds, x)),
    )


def split_sizes(high: int) -> Rule:
    """Allow the numbers of videos of three splits: all positive, or all 0."""
    sizes = integers(0, high)
    return Rule(
        f"three whole numbers from 1 to {high:,}, or three zeros",
        lambda x: sizes.holds(x) and len(x) == 3 and (min(x) > 0 or not any(x)),
    )


def _is_number(x: Any) -> bool:
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        return False
    # An integer too large for a float is compared with the bounds without conversion.
    return isinstance(x, numbers.Integral) or math.isfinite(x)


def _is_line(x: Any) -> bool:
    return isinstance(x, str) and bool(x.strip()) and x.isprintable()


def _format(x: float) -> str:
    return f"{x:,.0f}" if x == int(x) and abs(x) < 1e10 else f"{x:g}"


FLAG = Rule("True or False", lambda x: isinstance(x, bool))
SHARE = Rule("a number of at least 0 and below 1", lambda x: _is_number(x) and 0 <= x < 1)
LINE = Rule("a name on one line", _is_line)
PATH = Rule("a path on one line", lambda x: isinstance(x, str) and (not x or x.isprintable()))
FOLDER = Rule(
    "the name of a folder, without a slash",
    lambda x: _is_line(x) and not any(mark in x for mark in "/\\") and x[0] not in ".~",
)
WINDOW_WIDTHS = Rule(
    "a tuple of numbers from 0 to 1,000,000",
    lambda x: isinstance(x, tuple | list) and all(map(number(0, 1e6).holds, x)),
)
RATE, WEIGHT, CURVATURE = number(0, 100), number(0, 1e6), number(1e-5, 1e3)
SIZE, COUNT = integer(1, 2**16), integer(1, 10**9)
