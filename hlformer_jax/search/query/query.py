"""Query: texts or a picture to search for, filters, and the number of results."""

import dataclasses
import math
import os
import unicodedata
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from hlformer_jax.errors import QueryError, SearchError
from hlformer_jax.search import times
from hlformer_jax.search.signals import SIGNALS
from hlformer_jax.search.times import When
from hlformer_jax.text import legible, shown, suggestion


@dataclasses.dataclass(frozen=True)
class Query:
    """A text or picture to search for, with filters and limits; creating it checks its fields.

    Texts, tags and signals may be one string or several strings; they are stored as tuples.

    Attributes:
      text: descriptions of moments. A video should match all of them, in any order. It may be empty
        if there is a picture.
      k: maximum number of results.
      folder: path of a folder, relative to the indexed folder: only videos in it or below it; case
        is ignored.
      since: only videos from this date or later: a text such as 2026, 2026-11 or 2026-11-22, or a
        `datetime.date`. The date of a video is the time of its recording, or else of its file.
      until: only videos from this date or earlier.
      moments: maximum number of moments of each result.
      image: path of a picture, or the content of its file: find similar frames.
      like: path or id of an indexed video, and a time in it in seconds: find frames of other videos
        that are similar to the frame at that time. The video and its copies are left out.
      then: events that should follow the text, in this order.
      within: longest gap between these events, in seconds; None: `DEFAULT_WITHIN`.
      without: things that should not be visible in the same frames.
      min_score: leave out results with a lower score, unless a signal other than the first matches
        them.
      offset: number of best results to skip.
      signals: names of the signals to search by (`signals.SIGNALS`), as a sequence or as one string
        such as "visual,transcript"; by default all signals that accept the query.
      longer: only videos of at least this length, in seconds.
      shorter: only videos of at most this length, in seconds.
      tags: only videos that have all of these tags; case is ignored.

    Raises:
      QueryError: if a field is invalid or contradicts another field; the error names the field.
    """

    text: Sequence[str] = ()
    k: int = 10
    folder: str | None = None
    since: When = None
    until: When = None
    moments: int = 3
    image: str | os.PathLike[str] | bytes | None = None
    like: tuple[str, float] | None = None
    then: Sequence[str] = ()
    within: float | None = None
    without: Sequence[str] = ()
    min_score: float | None = None
    offset: int = 0
    signals: Sequence[str] | None = None
    longer: float | None = None
    shorter: float | None = None
    tags: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Convert the fields to the form in which they are stored, and check them."""
        self._check_types()
        for name in ("text", "then", "without"):
            self._set(name, _texts(name, getattr(self, name)))
        self._set("tags", _strings("tags", self.tags))
        if self.signals is not None:
            signals = self.signals
            names = signals.split(",") if isinstance(signals, str) else signals
            names = [name.strip() for name in _strings("signals", names)]
            self._set("signals", tuple(dict.fromkeys(names)))
        if isinstance(self.image, str | os.PathLike):
            self._set("image", Path(self.image))
        elif self.image is not None:
            self._set("image", bytes(self.image))  # also of a bytearray or memoryview
        self._check_parts()
        self._check_signals()
        self._check_numbers()
        for name in ("since", "until"):
            _check_date(name, getattr(self, name))
        if self.since is not None and self.until is not None:
            if times.date_span(self.since)[0] >= times.date_span(self.until)[1]:
                raise QueryError(
                    "{since} is {first} and {until} is {last}, which is earlier: no date is both",
                    field="since", first=self.since, last=self.until,
                )  # fmt: skip

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def has_picture(self) -> bool:
        """True if the query has a picture."""
        return self.image is not None or self.like is not None

    @property
    def has_parts(self) -> bool:
        """True if the query has several texts, following events or unwanted things."""
        return len(self.text) > 1 or bool(self.then or self.without)

    def _check_types(self) -> None:
        for types, type_name, names in _TYPES:
            for name in names:
                value = getattr(self, name)
                if value is not getattr(Query, name) and not isinstance(value, types):
                    raise _type_error(name, value, type_name)
        match self.like:
            case None | (str(), Real()):
                pass
            case like:
                raise _type_error("like", like, "a video and a number of seconds")

    def _check_parts(self) -> None:
        if not (self.text or self.has_picture):
            raise QueryError("{text} is empty: describe what to find", field="text")
        if self.image is not None and self.like is not None:
            raise QueryError(
                "{image} and {like} exclude each other: give one of them", field="image"
            )
        if len(self.text) > 1 and (self.has_picture or self.then):
            raise QueryError(
                "a query with a picture or {then} accepts one {text}: leave out the others",
                field="text",
            )

    def _check_signals(self) -> None:
        if self.signals == ():
            raise QueryError(
                f"{{signals}} is empty: use any of {', '.join(SIGNALS)}, or leave it out for all",
                field="signals", allowed=[*SIGNALS],
            )  # fmt: skip
        for name in self.signals or ():
            if name not in SIGNALS:
                raise QueryError(
                    "{signals} has {value!r}" + suggestion(name, SIGNALS)
                    + f": use any of {', '.join(SIGNALS)}",
                    field="signals", allowed=[*SIGNALS], value=name,
                )  # fmt: skip

    def _check_numbers(self) -> None:
        for name, minimum in (("k", 1), ("moments", 1), ("offset", 0)):
            if (count := getattr(self, name)) < minimum:
                raise QueryError(f"{{{name}}} is {count}: give {minimum} or more", field=name)
        if self.within is not None:
            if not self.within > 0:
                raise QueryError(f"{{within}} is {self.within:g} s: give seconds above 0", "within")
            if not self.then:
                raise QueryError(
                    "{within} is the gap before an event of {then}: add {then}, or leave it out",
                    field="within",
                )
        for name in ("longer", "shorter"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds >= 0:
                raise QueryError(f"{{{name}}} is {seconds:g} s: give 0 s or more", field=name)
        if self.longer is not None and self.shorter is not None and self.longer > self.shorter:
            raise QueryError(
                f"{{longer}} is {self.longer:g} s and {{shorter}} is {self.shorter:g} s: no length"
                " is both",
                field="longer",
            )
        if self.min_score is not None and math.isnan(self.min_score):
            raise QueryError("{min_score} is NaN: give a number", field="min_score")


_TYPES: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (Integral, "an integer", ("k", "moments", "offset")),
    (Real, "a number", ("within", "longer", "shorter", "min_score")),
    (str, "a string", ("folder",)),
    ((str, os.PathLike, bytes, bytearray, memoryview), "a path or the bytes of a file", ("image",)),
)
"""Types of fields, how errors name the types, and the fields; each field may have its default."""


def _type_error(name: str, value: Any, type_name: str) -> QueryError:
    line = f"{{{name}}} is {{value}}: give {type_name}"
    return QueryError(line, field=name, value=shown(value))


def _strings(name: str, strings: Iterable[str]) -> tuple[str, ...]:
    """Return the strings of a field as a tuple.

    Raises:
      QueryError: if a value is not a string.
    """
    values = (strings,) if isinstance(strings, str | bytes) else strings
    values = tuple(values) if isinstance(values, Iterable) else (values,)
    for value in values:
        if not isinstance(value, str):
            raise _type_error(name, value, "strings")
    return values


def _texts(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of a field in legible form; an empty string counts as no text.

    Letters and their accents are composed (NFC), as in the texts with which encoders were trained;
    texts from macOS have separate characters for them.

    Raises:
      QueryError: if one of several texts is empty.
    """
    texts = () if isinstance(texts, str) and not texts.strip() else _strings(name, texts)
    if not all(text.strip() for text in texts):
        raise QueryError(f"{{{name}}} has an empty text: describe what to find", field=name)
    return tuple(unicodedata.normalize("NFC", legible(text)) for text in texts)


def _check_date(name: str, when: When) -> None:
    if when is None:
        return
    try:
        times.date_span(when)
    except SearchError as error:
        raise QueryError(f"{{{name}}}: {{problem}}", field=name, problem=error) from None
