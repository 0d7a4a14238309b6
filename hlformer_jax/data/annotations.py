"""Annotations: caption lists, moments with their times, and the spans for evaluations.

All files are read strictly: UTF-8, JSON without surprises, and every error names file and line.
docs/data.md has the formats.
"""

import contextlib
import csv
import io
import json
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from absl import logging
from ml_collections import ConfigDict

from hlformer_jax import files
from hlformer_jax.data.sources.protocol import (
    Caption,
    Captions,
    DataError,
    MissingDataError,
    Reader,
)
from hlformer_jax.text import shown

FROM_DATA = "data"
"""The value of `config.eval.moments` that asks for the data set's own times."""

MAX_OVERHANG = 1.0
"""Seconds that a moment may end after its video without a warning: lengths are rounded."""

MAX_REVERSED, MAX_LONG = 0.01, 0.1
"""Shares of the moments of an evaluation that may begin after their end, and that may end after
their video by more than `MAX_OVERHANG`. In published annotations these are a few slips of
annotators; larger shares mean columns in another order, or times in another unit."""

MIN_DURATION = 1e-3
"""Shortest length of a video in seconds. Moments are measured in shares of it."""

MAX_LENGTHS = 2.0
"""A moment of a data set's own times that ends after more lengths of its video is refused. Other
late moments are only cut, because a video's length may be that of its readable frames."""


# Strict text and JSON. `where` is the place that an error message names: FILE or FILE:LINE, and in
# some cases the video or node.


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
      DataError: if it is empty, is not UTF-8, or has a byte order mark.
    """
    data = path.read_bytes()
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise DataError(
            f"{path}:1: the file begins with a byte order mark; save it as UTF-8 without one"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; convert the file to UTF-8"
        ) from None
    if not text or text.isspace():
        raise DataError(f"{path}: the file is empty; download it again")
    return text


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the place (FILE:LINE) and the text of each line; raise a DataError at a blank line."""
    # str.splitlines would also split at characters that may stand inside a sentence.
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), 1):
        if not line.strip():
            raise DataError(f"{path}:{number}: the line is blank; remove it")
        yield f"{path}:{number}", line.rstrip("\r")


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place (FILE:LINE) and the JSON object of each line of a file."""
    for where, line in read_lines(path):
        yield where, parse_object(line, where)


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
      text: the text of the object.
      where: the place of the text in error messages.

    Raises:
      DataError: if the text is not JSON, or has NaN, infinities or a key twice in one object.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record: dict[str, Any] = {}
        for name, value in pairs:
            if name in record:
                raise DataError(f"{where}: {name!r} appears twice in one object; remove one")
            record[name] = value
        return record

    def constant(name: str) -> float:
        raise DataError(f"{where}: contains {name}, which JSON does not allow; correct it")

    try:
        parsed = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except DataError:
        raise
    except json.JSONDecodeError as error:
        place = where if "\n" not in text.strip() else f"{where}:{error.lineno}"
        raise DataError(f"{place}: not valid JSON ({error}); correct it") from None
    except RecursionError:
        raise DataError(f"{where}: the JSON is nested too deeply") from None
    except ValueError:  # Python's limit on the digits of an integer
        raise DataError(f"{where}: contains a number of thousands of digits; correct it") from None
    if not isinstance(parsed, dict):
        raise DataError(f"{where}: expected a JSON object, {{…}}")
    return parsed


def field(
    record: Any,
    name: str,
    where: str,
    check: Callable[..., Any] = lambda value, *_: value,
    **options: Any,
) -> Any:
    """Return a field of a JSON object, checked by one of the functions below.

    Args:
      record: the parsed object.
      name: the name of the field.
      where: the place of the object in error messages.
      check: `as_text`, `as_seconds`, `as_duration`, `as_list` or a function with the same
        parameters; without it every value is accepted.
      **options: further keyword arguments of `check`.

    Raises:
      DataError: if `record` is not an object, the field is missing, or `check` refuses its value.
    """
    if not isinstance(record, dict):
        raise DataError(f"{where}: is {shown(record)}; it must be an object")
    if name not in record:
        raise DataError(f'{where}: "{name}" is missing; add it')
    return check(record[name], name, where, **options)


def as_text(value: Any, what: str, where: str, one_line: bool = True) -> str:
    """Return a text that is not blank and, with `one_line`, on one line; else raise a DataError.

    Args:
      value: the value to check.
      what: the name of the value in error messages.
      where: the place of the value in error messages.
      one_line: whether to refuse line breaks and zero bytes.
    """
    requirement = None
    if not isinstance(value, str) or not value.strip():
        requirement = "it must be a string that is not blank"
    elif one_line and any(mark in value for mark in "\n\r\0"):
        requirement = "it must be on one line"
    elif any("\ud800" <= mark <= "\udfff" for mark in value):
        requirement = "it must not contain an unpaired surrogate"
    if requirement:
        raise DataError(f"{where}: {what} is {shown(value)}; {requirement}")
    return value


def as_seconds(value: Any, what: str, where: str) -> float:
    """Return a time in seconds, a finite number of at least 0; else raise a DataError.

    `what` and `where` are as in `as_text`.
    """
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise DataError(
            f"{where}: {what} is {shown(value)}; it must be a time in seconds, 0 or more"
        )
    return number


def as_duration(value: Any, what: str, where: str) -> float:
    """Return the length of a video in seconds, at least `MIN_DURATION`; else raise a DataError.

    `what` and `where` are as in `as_text`.
    """
    try:
        duration = as_seconds(value, what, where)
    except DataError:
        duration = 0.0
    if duration < MIN_DURATION:
        raise DataError(
            f"{where}: {what} is {shown(value)}; it must be the length of the video in seconds, at"
            f" least {MIN_DURATION:g}: correct it"
        )
    return duration


def as_list(value: Any, what: str, where: str, length: int | None = None) -> list[Any]:
    """Return a list, with `length` items unless that is None; else raise a DataError.

    `what` and `where` are as in `as_text`.
    """
    if not isinstance(value, list) or (length is not None and len(value) != length):
        requirement = "a list" if length is None else f"a list of {length}"
        raise DataError(f"{where}: {what} is {shown(value)}; it must be {requirement}")
    return value


# Caption lists


def read_captions(path: Path) -> dict[str, tuple[Caption, ...]]:
    """Read a caption list, with CAPTION_ID SENTENCE on each line.

    The part of a caption's id before the first # is the video's id. Videos and captions are in
    order of first appearance. A DataError names the first line that is not a caption.
    """
    videos: dict[str, list[Caption]] = {}
    lines: dict[str, int] = {}
    for number, (where, line) in enumerate(read_lines(path), 1):
        caption_id, _, sentence = line.strip().partition(" ")
        video, _, rest = caption_id.partition("#")
        wrong = None
        if "\r" in line:
            wrong = "contains a carriage return; remove it"
        elif not (video and rest):
            wrong = (
                f"begins with {caption_id!r}, which is not a caption id (VIDEO#...): the id"
                " of its video is empty or contains a blank, or the line before was broken"
                " in two; correct it"
            )
        elif len(caption_id.split()) > 1 or "/" in caption_id or "\0" in caption_id:
            wrong = f"caption id {caption_id!r} contains a '/', a zero byte or a blank; rename it"
        elif not sentence:
            wrong = f"caption {caption_id!r} has no sentence; add one, or remove the line"
        elif caption_id in lines:
            wrong = (
                f"caption id {caption_id!r} is also in line {lines[caption_id]}; remove one of them"
            )
        if wrong:
            raise DataError(f"{where}: {wrong}")
        lines[caption_id] = number
        caption = Caption(caption_id, sentence.lstrip(), line=number)
        videos.setdefault(video, []).append(caption)
    return {video: tuple(captions) for video, captions in videos.items()}


def check_shared_ids(splits: Mapping[str, Captions], place: Callable[[str], Path]) -> None:
    """Check that no id has two sentences, because an id has one set of features.

    Args:
      splits: the captions of every split.
      place: function that returns the caption file of a split.

    Raises:
      DataError: if an id has two sentences; the message names the caption and both splits.
    """
    sentences: dict[str, tuple[str, str]] = {}
    for split, videos in splits.items():
        for caption in (caption for captions in videos.values() for caption in captions):
            name, sentence = caption.caption_id, " ".join(caption.sentence.split())
            first, known_sentence = sentences.setdefault(name, (split, sentence))
            if known_sentence != sentence:
                raise DataError(
                    f"{place(split)}:{caption.line}: caption {name!r} has another sentence in"
                    f" the split {first}, but one id can have features of one sentence only;"
                    " give the captions of one split other ids (for moments: python -m"
                    " hlformer_jax.data.moments --tag=TAG) and compute their features"
                )


def read_sentences(paths: Sequence[Path]) -> dict[str, str]:
    """Return the sentences of caption lists and files of moments by their ids.

    The same id may stand in several files if its sentence is the same.

    Args:
      paths: lists of CAPTION_ID SENTENCE, and files of moments, whose names end in .jsonl.

    Raises:
      DataError: if a file is faulty, or two files have different sentences for one id.
    """
    sentences: dict[str, str] = {}
    for path in paths:
        for name, sentence, line in _listed_sentences(path):
            if sentences.setdefault(name, sentence) != sentence:
                raise DataError(
                    f"{path}:{line}: caption {name!r} has another sentence in another file;"
                    " rename one of them (for moments: python -m hlformer_jax.data.moments"
                    " --tag=TAG)"
                )
    return sentences


def _listed_sentences(path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield the id, the sentence and the line of every caption or moment of a file."""
    if path.suffix == ".jsonl":
        for video, line in read_moments(path):
            for moment in video.moments:
                yield moment.moment_id, " ".join(moment.text.split()), line
    else:
        for captions in read_captions(path).values():
            for caption in captions:
                yield caption.caption_id, caption.sentence, caption.line


# Moments


class AnnotatedMoment(NamedTuple):
    """A moment of a video, as an annotator marked it."""

    moment_id: str  # key of its word features, unique in its split
    start: float  # seconds
    end: float
    # Unchanged: the texts of ActivityNet Captions begin with a blank; a few contain line breaks.
    text: str


class TimedVideo(NamedTuple):
    """A video and its moments, in the order of the annotations."""

    video: str
    duration: float  # seconds
    moments: tuple[AnnotatedMoment, ...]


def write_moments(
    path: Path, videos: Iterable[TimedVideo], replace: files.Replace = files.Replace.ANY
) -> None:
    """Write a file of moments atomically.

    Args:
      path: the file.
      videos: the videos, one for each line.
      replace: the existing files that may be replaced.
    """
    lines = (json.dumps(moments_to_json(video), ensure_ascii=False) for video in videos)
    files.write_bytes(path, "".join(f"{line}\n" for line in lines).encode(), replace)


def moments_to_json(video: TimedVideo) -> dict[str, Any]:
    """Return the line of a video in a file of moments, as JSON."""
    moments = [
        {"id": moment.moment_id, "start": moment.start, "end": moment.end, "text": moment.text}
        for moment in video.moments
    ]
    return {"video": video.video, "duration": video.duration, "moments": moments}


def read_moments(path: Path, warns: bool = True) -> list[tuple[TimedVideo, int]]:
    """Read a file of moments; return the videos, each with its line number, from 1.

    A DataError names the first faulty line. A moment that ends more than `MAX_OVERHANG` after its
    video, or that does not end after its start, is kept, with a warning if `warns`, because
    published annotations contain such moments. A moment that starts more than `MAX_OVERHANG` after
    its video is an error.
    """
    videos: dict[str, tuple[TimedVideo, int]] = {}
    lines: dict[str, int] = {}
    odd: dict[str, list[str]] = {"ends after its video": [], "does not end after its start": []}
    for number, (where, record) in enumerate(read_json_lines(path), 1):
        video = moments_from_json(record, where)
        if video.video in videos:
            first = videos[video.video][1]
            raise DataError(
                f"{where}: video {video.video!r} is also in line {first}; put all its moments on"
                " one line"
            )
        videos[video.video] = video, number
        for moment in video.moments:
            name = moment.moment_id
            if name in lines:
                raise DataError(
                    f"{where}: id {name!r} is also in line {lines[name]}; rename one of them"
                )
            lines[name] = number
            if moment.start > video.duration + MAX_OVERHANG:
                raise DataError(
                    f"{where}: moment {name!r} begins at {moment.start:g} s, but its video ends"
                    f" at {video.duration:g} s; correct one of them"
                )
            if moment.end > video.duration + MAX_OVERHANG:
                odd["ends after its video"].append(f"{where}: moment {name!r}")
            if moment.end <= moment.start:
                odd["does not end after its start"].append(f"{where}: moment {name!r}")
    for what, moments in odd.items():
        if moments and warns:
            more = f", as do {len(moments) - 1} more" if len(moments) > 1 else ""
            logging.warning("%s %s%s; only frames that exist are read", moments[0], what, more)
    return list(videos.values())


def moments_from_json(record: Mapping[str, Any], where: str) -> TimedVideo:
    """Parse a line of a file of moments.

    Args:
      record: the JSON object of the line.
      where: the place of the line in error messages.

    Raises:
      DataError: if the line is faulty or has no moment.
    """
    name = field(record, "video", where, as_text)
    duration = field(record, "duration", f"{where}: video {name!r}", as_duration)
    moments = tuple(
        AnnotatedMoment(
            field(entry, "id", f"{where}, a moment", as_text),
            field(entry, "start", where, as_seconds),
            field(entry, "end", where, as_seconds),
            field(entry, "text", where, as_text, one_line=False),
        )
        for entry in field(record, "moments", where, as_list)
    )
    if not moments:
        raise DataError(f"{where}: video {name!r} has no moment; remove the line")
    return TimedVideo(name, duration, moments)


def annotate(
    collection: str,
    videos: Iterable[TimedVideo],
    reader: Reader,
    trees: Iterable[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the annotations (`Reader.annotations`) of a split whose captions are moments.

    Args:
      collection: name of the collection, which decides how texts are joined (`trees.texts`).
      videos: the videos of the split with their moments.
      reader: the open data set, which has the number of words of each moment.
      trees: the trees of a file, each as `trees.tree_to_json` returns it; None without a file.

    Returns:
      A JSON object: `collection`; `videos`, each as `moments_to_json` returns it; `words`, for each
      video the number of word features of each moment; and `trees`, if they were given.
    """
    videos = list(videos)
    notes: dict[str, Any] = {
        "collection": collection,
        "videos": [moments_to_json(video) for video in videos],
        "words": [
            [reader.num_words(moment.moment_id) for moment in video.moments] for video in videos
        ],
    }
    return notes if trees is None else notes | {"trees": list(trees)}


# Published annotations


class Annotations(NamedTuple):
    """The moments of a published file; videos in order of first appearance."""

    collection: str  # activitynet, tvr or charades
    videos: tuple[TimedVideo, ...]
    left_out: int = 0  # moments that do not end after their start


def read_published(path: Path, durations: Sequence[Path] = ()) -> Annotations:
    """Read published annotations in one of three formats, recognised by the content.

        ActivityNet Captions  {"VIDEO": {"duration": …, "timestamps": [[s, e], …],
                               "sentences": […]}, …}
        TVR                   {"vid_name": …, "duration": …, "ts": [s, e], "desc": …} a line
        Charades-STA          VIDEO START END##SENTENCE a line, with the videos' lengths in
                              `durations`: Charades_v1_train.csv, Charades_v1_test.csv or both

    Ids of moments are VIDEO#enc#K, as in the published features. K counts the moments of a video
    in the order of the file, from 0. As for the published trees, the moments of TVR and
    Charades-STA are sorted by their start, and moments of Charades-STA that do not end after their
    start are left out.

    Args:
      path: the file.
      durations: tables of the lengths of videos, with the columns "id" and "length"; needed for
        Charades-STA alone.

    Raises:
      DataError: if the format is unknown or violated; the message names the first place.
    """
    text = read_text(path)
    first = text.partition("\n")[0]
    if text.lstrip()[0] != "{":
        if "##" not in first:
            raise DataError(
                f"{path}:1: unknown format; expected ActivityNet Captions' JSON, TVR's lines"
                " of JSON, or Charades-STA's VIDEO START END##SENTENCE"
            )
        return _read_charades(path, durations)
    if '"vid_name"' in first or '"ts"' in first:
        return _read_tvr(path)
    return _read_activitynet(path, text)


def _read_activitynet(path: Path, text: str) -> Annotations:
    videos = []
    for video, record in parse_object(text, str(path)).items():
        where = f"{path}: video {video!r}"
        as_text(video, "the id of a video", str(path))
        duration = field(record, "duration", where, as_duration)
        spans = field(record, "timestamps", where, as_list)
        sentences = field(record, "sentences", where, as_list, length=len(spans))
        moments = tuple(
            _moment(f"{video}#enc#{k}", span, sentence, f"{where}, moment {k}")
            for k, (span, sentence) in enumerate(zip(spans, sentences, strict=True))
        )
        videos.append(TimedVideo(video, duration, moments))
    if not videos:
        raise DataError(f"{path}: the file has no video; download it again")
    return Annotations("activitynet", tuple(videos))


def _read_tvr(path: Path) -> Annotations:
    durations: dict[str, float] = {}
    moments: dict[str, list[AnnotatedMoment]] = {}
    lines: dict[str, int] = {}
    for number, (where, record) in enumerate(read_json_lines(path), 1):
        video = field(record, "vid_name", where, as_text)
        duration = field(record, "duration", f"{where}: video {video!r}", as_duration)
        if durations.setdefault(video, duration) != duration:
            raise DataError(
                f"{where}: video {video!r} lasts {duration:g} s here, but"
                f" {durations[video]:g} s in an earlier line; correct one of them"
            )
        identity = shown(record.get("desc_id", number))
        if lines.setdefault(identity, number) != number:
            raise DataError(
                f"{where}: desc_id {identity} is also in line {lines[identity]}; remove one of them"
            )
        video_moments = moments.setdefault(video, [])
        name = f"{video}#enc#{len(video_moments)}"
        video_moments.append(
            _moment(name, field(record, "ts", where), field(record, "desc", where), where)
        )
    return Annotations("tvr", _by_start(durations, moments))


def _read_charades(path: Path, durations: Sequence[Path]) -> Annotations:
    if not durations:
        raise DataError(
            f"{path}: Charades-STA does not give the lengths of videos; merge it with them"
            " by python -m hlformer_jax.data.moments FILE --durations=Charades_v1_train.csv"
            " --out=MOMENTS.jsonl"
        )
    lengths: dict[str, float] = {}
    for table in durations:
        for video, length in _read_lengths(table).items():
            if lengths.setdefault(video, length) != length:
                raise DataError(
                    f"{table}: video {video!r} lasts {length:g} s here, but {lengths[video]:g} s in"
                    " an earlier file; correct one of them"
                )
    moments: dict[str, list[AnnotatedMoment]] = {}
    counts: dict[str, int] = {}
    left_out = 0
    for where, line in read_lines(path):
        head, mark, sentence = line.partition("##")
        video, *times = head.split(" ")
        if not mark or len(times) != 2:
            raise DataError(f"{where}: expected VIDEO START END##SENTENCE; correct it")
        if video not in lengths:
            raise DataError(
                f"{where}: the length of video {video!r} is not in"
                f" {', '.join(map(str, durations))}; also give the file that has it"
            )
        try:
            span = [float(time) for time in times]
        except ValueError:
            raise DataError(f"{where}: expected two times, got {shown(' '.join(times))}") from None
        counts[video] = counts.get(video, -1) + 1
        moment = _moment(f"{video}#enc#{counts[video]}", span, sentence, where)
        if moment.start < moment.end:
            moments.setdefault(video, []).append(moment)
        else:
            left_out += 1
    return Annotations("charades", _by_start(lengths, moments), left_out)


def _read_lengths(path: Path) -> dict[str, float]:
    """Read the lengths of videos in seconds from a table with columns "id" and "length".

    Raises:
      DataError: if the table is faulty, or has a video twice.
    """
    rows = csv.DictReader(io.StringIO(read_text(path), newline=""))
    lengths: dict[str, float] = {}
    lines: dict[str, int] = {}
    try:
        if rows.fieldnames is None or not {"id", "length"} <= set(rows.fieldnames):
            raise DataError(
                f'{path}:1: expected the columns "id" and "length"; give Charades_v1_*.csv'
            )
        for row in rows:
            video, length = row["id"], row["length"]
            where = f"{path}:{rows.line_num}: video {video!r}"
            with contextlib.suppress(TypeError, ValueError):  # `as_duration` refuses other values
                length = float(length)
            lengths[video] = as_duration(length, "length", where)
            if lines.setdefault(video, rows.line_num) != rows.line_num:
                raise DataError(f"{where} is also in line {lines[video]}; remove one of them")
    except csv.Error as error:
        raise DataError(
            f"{path}:{rows.line_num}: not a CSV table ({error}); download it again"
        ) from None
    return lengths


def _moment(name: str, span: Any, sentence: Any, where: str) -> AnnotatedMoment:
    start, end = as_list(span, "the span", where, 2)
    return AnnotatedMoment(
        name,
        as_seconds(start, "the start", where),
        as_seconds(end, "the end", where),
        as_text(sentence, "the sentence", where, one_line=False),
    )


def _by_start(
    durations: dict[str, float], moments: dict[str, list[AnnotatedMoment]]
) -> tuple[TimedVideo, ...]:
    return tuple(
        TimedVideo(
            video, durations[video], tuple(sorted(video_moments, key=lambda moment: moment.start))
        )
        for video, video_moments in moments.items()
    )


# Spans of an evaluation


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
        path = Path(config.data.manual_dir).expanduser() / config.data.collection / source
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


def read_spans(path: Path) -> Spans:
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
