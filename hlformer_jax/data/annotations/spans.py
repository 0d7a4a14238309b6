"""Spans: the annotated moments of captions, with which an evaluation scores found moments."""

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from absl import logging
from ml_collections import ConfigDict

from hlformer_jax import files
from hlformer_jax.data.annotations.moments import MAX_OVERHANG, read_moments
from hlformer_jax.data.annotations.parsing import (
    as_duration,
    as_seconds,
    field,
    parse_object,
    read_text,
)
from hlformer_jax.data.annotations.published import read_published
from hlformer_jax.data.sources.protocol import DataError, MissingDataError

FROM_DATA = "data"
"""The value of `config.eval.moments` that asks for the data set's own times."""

MAX_REVERSED, MAX_LONG = 0.01, 0.1
"""Shares of the moments of an evaluation that may begin after their end, and that may end after
their video by more than `MAX_OVERHANG`. In published annotations these are a few slips of
annotators; larger shares mean columns in another order, or times in another unit."""

MAX_LENGTHS = 2.0
"""A moment of a data set's own times that ends after more lengths of its video is refused. Other
late moments are only cut, because a video's length may be that of its readable frames."""


class Span(NamedTuple):
    """The annotated moment of a caption, and the length of its video, in seconds."""

    start: float
    end: float
    duration: float


class Spans(dict[str, Span]):
    """Annotated moments by the id of their caption.

    Attributes:
      sentences: sentence of each caption by its id; empty if the annotations have none.
      source: the file of the annotations; empty for times of the data set itself.
    """

    def __init__(
        self,
        spans: Mapping[str, Span] = MappingProxyType({}),
        sentences: Mapping[str, str] = MappingProxyType({}),
        source: str = "",
    ) -> None:
        """Store copies of both mappings."""
        super().__init__(spans)
        self.sentences = dict(sentences)
        self.source = source

    def conflicts(self, caption_id: str, sentence: str) -> bool:
        """Return whether the annotations have another sentence for a caption.

        Only letters and digits are compared, without their case: caption lists that are derived
        from annotations may differ in white space, punctuation and capitals.
        """
        annotated = self.sentences.get(caption_id)
        return annotated is not None and _letters(annotated) != _letters(sentence)


def _letters(sentence: str) -> str:
    normalised = unicodedata.normalize("NFKC", sentence).casefold()
    return "".join(mark for mark in normalised if mark.isalnum())


def configured_spans(config: ConfigDict, annotated: Sequence[Any]) -> list[Spans]:
    """Return the annotated moments of each split from the place that `config.eval.moments` names.

    Args:
      config: the whole configuration. A relative path in `config.eval.moments` begins at
        {manual_dir}/{collection}.
      annotated: the annotations of each split, `PreparedVideos.annotations`.

    Returns:
      For each split the moments by the id of their caption; empty if `config.eval.moments` is
      empty. The moments of a file are the same for every split, so that they may include ids that
      the split does not have.

    Raises:
      DataError: if the data set has no times or impossible ones, or the file is missing or faulty.
    """
    source = config.eval.get("moments")  # not every family has the field
    if not source:
        return [Spans() for _ in annotated]
    if source != FROM_DATA:
        path = files.expand(config.data.manual_dir) / config.data.collection / source
        return [read_spans(path)] * len(annotated)
    if not all(isinstance(notes, Mapping) and "spans" in notes for notes in annotated):
        raise DataError(
            f"config.eval.moments is {FROM_DATA!r}, but the data set"
            f" {config.data.collection!r} has no times of moments: give a file with times,"
            " or '' for none"
        )
    place = f"the times of the data set {config.data.collection!r}"
    return [
        Spans(
            possible_times(
                {name: Span(*span) for name, span in notes["spans"].items()},
                place,
                notes.get("seconds_per_frame", 0.0),
            )
        )
        for notes in annotated
    ]


def read_spans(path: str | Path) -> Spans:
    """Read annotated moments by the id of their caption, with their sentences if the file has them.

    The format is recognised by the content: a file of moments, the published annotations of
    ActivityNet Captions or TVR, or one JSON object
    {CAPTION_ID: {"start_s": …, "end_s": …, "duration_s": …}, …}.

    In published annotations, a few moments begin after their end, or end after their video. The
    former are left out; those that end more than `MAX_OVERHANG` after their video are cut there. A
    warning counts both.

    Raises:
      DataError: if the file is missing or faulty, a moment begins more than `MAX_OVERHANG` after
        its video, or the shares of faulty moments exceed `MAX_REVERSED` or `MAX_LONG`; the message
        names the place.
    """
    path = Path(path)
    try:
        text = read_text(path)
        first = text.lstrip()[:4096]
        if '"start_s"' in first:
            return Spans(possible_times(_spans_by_caption(path, text), path), source=str(path))
        if '"moments"' in first:
            videos = [video for video, _ in read_moments(path, warns=False)]
        else:
            videos = list(read_published(path).videos)
    except FileNotFoundError:
        remedy = "correct config.eval.moments, or set it to ''"
        raise MissingDataError(f"{path}: no such file", remedy) from None
    moments = [(moment, video.duration) for video in videos for moment in video.moments]
    spans = {moment.moment_id: Span(moment.start, moment.end, length) for moment, length in moments}
    sentences = {moment.moment_id: moment.text for moment, _ in moments}
    return Spans(possible_times(spans, path), sentences, str(path))


def possible_times(
    spans: Mapping[str, Span], place: Path | str, seconds_per_frame: float | None = None
) -> dict[str, Span]:
    """Return spans without impossible times, with warnings; see `read_spans`.

    Args:
      spans: the annotated moments.
      place: the file or the data set of the times in warnings and errors.
      seconds_per_frame: for a data set's own times, the interval of the frames from which the
        lengths of videos are computed, which may be shorter by it; late moments are then refused by
        `MAX_LENGTHS` only. None for a file of annotations.

    Raises:
      DataError: if a moment or the share of faulty moments is impossible.
    """
    is_file = seconds_per_frame is None
    overhang = MAX_OVERHANG + (seconds_per_frame or 0.0)
    possible: dict[str, Span] = {}
    reversed_names, long_names = [], []
    for name, span in spans.items():
        where = f"{place}: moment {name!r}"
        start = as_seconds(span.start, "the start", where)
        end = as_seconds(span.end, "the end", where)
        duration = as_duration(span.duration, "the length of its video", where)
        is_late = start > duration + overhang
        is_far = max(start, end) > MAX_LENGTHS * duration + overhang
        if is_late if is_file else is_far:
            what = f"begins at {start:g} s" if is_late else f"ends at {end:g} s"
            raise DataError(
                f"{where} {what}, but its video ends at"
                f" {duration:g} s; correct one of them (times are in seconds)"
            )
        if start > end:
            reversed_names.append(name)
            continue
        if end > duration + overhang:
            long_names.append(name)
            span = Span(min(start, duration), duration, duration)
        possible[name] = span
    if reversed_names:
        start, end, _ = spans[reversed_names[0]]
        what = f"{len(reversed_names)} of {len(spans)} moments begin after their end"
        example = f"{reversed_names[0]!r} from {start:g} to {end:g} s"
        if len(reversed_names) > MAX_REVERSED * len(spans):
            raise DataError(f"{place}: {what}, such as {example}; correct them")
        logging.warning("%s: %s and are left out, such as %s", place, what, example)
    if long_names:
        start, end, duration = spans[long_names[0]]
        what = f"{len(long_names)} of {len(spans)} moments end more than {overhang:g} s after"
        example = f"{long_names[0]!r} from {start:g} to {end:g} of {duration:g} s"
        if is_file and len(long_names) > MAX_LONG * len(spans):
            raise DataError(
                f"{place}: {what} their video, such as {example}; correct the times, which are in"
                " seconds"
            )
        logging.warning("%s: %s their video and are cut there, such as %s", place, what, example)
    return possible


def _spans_by_caption(path: Path, text: str) -> dict[str, Span]:
    spans = {}
    for name, record in parse_object(text, str(path)).items():
        where = f"{path}: caption {name!r}"
        spans[name] = Span(
            field(record, "start_s", where, as_seconds),
            field(record, "end_s", where, as_seconds),
            field(record, "duration_s", where, as_duration),
        )
    return spans
