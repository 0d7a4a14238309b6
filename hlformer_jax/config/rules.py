"""Rules: the values that a field of the configuration may have, in words and as a function.

Every field has one, beside its default (`fields`). A rule has bounds that no run exceeds, so that a
slip of the keyboard is refused by name instead of filling the memory. A number is never a bool.
"""

import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any

from hlformer_jax.errors import UserError


class ConfigError(UserError, ValueError):
    """A field has a value that is unknown or makes no sense; the message names the field."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a field may be.

    Attributes:
      meaning: the end of the sentence "it must be …".
      holds: whether a value of any type is so.
      choices: the values that there are, for a field with a list of them.
    """

    meaning: str
    holds: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


def whole(low: int, high: int) -> Rule:
    """A whole number of at least `low` and at most `high`."""
    return Rule(
        f"a whole number from {low:,} to {high:,}",
        lambda x: _is_number(x) and isinstance(x, numbers.Integral) and low <= int(x) <= high,
    )


def real(low: float, high: float) -> Rule:
    """A finite number of at least `low` and at most `high`."""
    return Rule(
        f"a number from {_written(low)} to {_written(high)}",
        lambda x: _is_number(x) and low <= x <= high,
    )


def positive(high: float) -> Rule:
    """A finite number above 0 and at most `high`."""
    return Rule(
        f"a number above 0 and at most {_written(high)}",
        lambda x: _is_number(x) and 0 < x <= high,
    )


def share() -> Rule:
    """A number of at least 0 and below 1."""
    return Rule("a number of at least 0 and below 1", lambda x: _is_number(x) and 0 <= x < 1)


def flag() -> Rule:
    """True or False; no number stands for one."""
    return Rule("True or False", lambda x: isinstance(x, bool))


def one_of(*choices: str) -> Rule:
    """One of several names."""
    *others, last = choices
    return Rule(f"{', '.join(others)} or {last}", lambda x: x in choices, choices)


def path() -> Rule:
    """A path, or "" for none."""
    return Rule("a path on one line", lambda x: isinstance(x, str) and (not x or x.isprintable()))


def folder() -> Rule:
    """The name of one folder, which leads nowhere else."""
    return Rule(
        "the name of a folder, without a slash",
        lambda x: (
            _is_line(x) and not any(mark in x for mark in "/\\") and not x.startswith((".", "~"))
        ),
    )


def line() -> Rule:
    """A name that is not empty."""
    return Rule("a name on one line", _is_line)


def widths() -> Rule:
    """Widths of windows, one for each block, one for all, or none for the default ones."""
    return Rule(
        "a tuple of numbers from 0 to 1,000,000",
        lambda x: (
            isinstance(x, tuple | list)
            and all(_is_number(width) and 0 <= width <= 1e6 for width in x)
        ),
    )


def wholes(low: int, high: int) -> Rule:
    """A tuple of whole numbers of at least `low` and at most `high`; it may be empty."""
    number = whole(low, high)
    return Rule(
        f"a tuple of whole numbers from {low:,} to {high:,}",
        lambda x: isinstance(x, tuple | list) and all(map(number.holds, x)),
    )


def split_sizes(high: int) -> Rule:
    """The numbers of videos of three splits: all positive, or all 0."""
    size = whole(0, high)
    return Rule(
        f"three whole numbers from 1 to {high:,}, or three zeros",
        lambda x: (
            isinstance(x, tuple | list)
            and len(x) == 3
            and all(map(size.holds, x))
            and (min(x) > 0 or not any(x))
        ),
    )


def _is_number(x: Any) -> bool:
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        return False
    # An int beyond every float is compared with bounds as it is.
    return isinstance(x, numbers.Integral) or math.isfinite(x)


def _is_line(x: Any) -> bool:
    return isinstance(x, str) and bool(x.strip()) and x.isprintable()


def _written(x: float) -> str:
    return f"{x:,.0f}" if x == int(x) and abs(x) < 1e10 else f"{x:g}"
