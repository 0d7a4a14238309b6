"""Annotations of moments as they were published, in three formats, told apart by their content.

    ActivityNet Captions  {"VIDEO": {"duration": …, "timestamps": [[s, e], …], "sentences": […]}, …}
    TVR                   {"vid_name": …, "duration": …, "ts": [s, e], "desc": …} a line
    Charades-STA          VIDEO START END##SENTENCE a line; lengths of the videos in Charades' CSV

Ids of moments are VIDEO#enc#K, K the moment's place among the video's in the file: so the published
features name them. ActivityNet's moments stay in the order of the file. TVR's and Charades-STA's
are sorted by their start, and of Charades-STA those that do not end after it are left out: by these
conventions the published trees were made (see `rule`). Sentences stay as they are, line breaks
included.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hlformer_jax.data.source import DataError
from hlformer_jax.data.trees.lines import (
    field,
    list_of,
    parse_object,
    read_text,
    seconds_of,
    split_lines,
    text_of,
)
from hlformer_jax.data.trees.moment import AnnotatedMoment, TimedVideo


class Annotations(NamedTuple):
    """The moments of a file.

    Attributes:
      collection: activitynet, tvr or charades.
      videos: the videos, in order of first appearance.
      left_out: number of moments that do not end after their start and were left out.
    """

    collection: str
    videos: tuple[TimedVideo, ...]
    left_out: int = 0


def read(path: Path, durations: Sequence[Path] = ()) -> Annotations:
    """Reads a file of annotations.

    Args:
      path: the file, in any of the three formats.
      durations: for Charades-STA, the files Charades_v1_train.csv and Charades_v1_test.csv, or the
        one that has its videos.

    Returns:
      Its moments.

    Raises:
      DataError: at the first thing that is not as the format has it, with file and line.
      OSError: when a file cannot be read.
    """
    text = read_text(path)
    if text.lstrip()[0] != "{":
        if "##" not in text.partition("\n")[0]:
            raise DataError(
                f"{path}:1: is neither ActivityNet Captions' JSON, nor TVR's lines of JSON, nor"
                " Charades-STA's VIDEO START END##SENTENCE"
            )
        return _charades(path, text, durations)
    first = text.partition("\n")[0]
    if '"vid_name"' in first or '"ts"' in first:
        return _tvr(path, text)
    return _activitynet(path, text)


def _activitynet(path: Path, text: str) -> Annotations:
    videos = []
    for video, record in parse_object(text, str(path)).items():
        where = f"{path}: video {video!r}"
        text_of(video, "the id of a video", str(path))
        if not isinstance(record, dict):
            raise DataError(f'{where}: must be an object with "timestamps" and "sentences"')
        duration = seconds_of(field(record, "duration", where), "duration", where)
        spans = list_of(field(record, "timestamps", where), "timestamps", where)
        sentences = field(record, "sentences", where)
        list_of(sentences, "sentences", where, len(spans))
        moments = tuple(
            _moment(f"{video}#enc#{k}", span, sentence, f"{where}, moment {k}")
            for k, (span, sentence) in enumerate(zip(spans, sentences, strict=True))
        )
        videos.append(TimedVideo(video, duration, moments))
    if not videos:
        raise DataError(f"{path}: has no video; get it again")
    return Annotations("activitynet", tuple(videos))


def _tvr(path: Path, text: str) -> Annotations:
    durations: dict[str, float] = {}
    moments: dict[str, list[AnnotatedMoment]] = {}
    seen: dict[Any, int] = {}
    for number, line in enumerate(split_lines(path, text), 1):
        where = f"{path}:{number}"
        record = parse_object(line, where)
        video = text_of(field(record, "vid_name", where), "vid_name", where)
        duration = seconds_of(field(record, "duration", where), "duration", where)
        if durations.setdefault(video, duration) != duration:
            raise DataError(
                f"{where}: video {video!r} lasts {duration:g} s here and {durations[video]:g} s"
                " before; correct one"
            )
        identity = str(record.get("desc_id", number))
        if identity in seen:
            raise DataError(f"{where}: desc_id {identity} was in line {seen[identity]}; remove one")
        seen[identity] = number
        own = moments.setdefault(video, [])
        name = f"{video}#enc#{len(own)}"
        own.append(_moment(name, field(record, "ts", where), field(record, "desc", where), where))
    return Annotations("tvr", _by_start(durations, moments))


def _charades(path: Path, text: str, durations: Sequence[Path]) -> Annotations:
    if not durations:
        raise DataError(
            f"{path}: is Charades-STA, which has no lengths of videos; put both together by"
            " python -m hlformer_jax.data.moments FILE --durations=Charades_v1_train.csv"
            " --out=MOMENTS.jsonl"
        )
    lengths: dict[str, float] = {}
    for table in durations:
        lengths |= _lengths(table)
    moments: dict[str, list[AnnotatedMoment]] = {}
    counts: dict[str, int] = {}
    left_out = 0
    for number, line in enumerate(split_lines(path, text), 1):
        where = f"{path}:{number}"
        head, mark, sentence = line.partition("##")
        fields = head.split(" ")
        if not mark or len(fields) != 3:
            raise DataError(f"{where}: is not VIDEO START END##SENTENCE; correct it")
        video, *times = fields
        if video not in lengths:
            raise DataError(
                f"{where}: video {video!r} is not in {', '.join(map(str, durations))}; give the"
                " file that has its length, too"
            )
        try:
            span = [float(time) for time in times]
        except ValueError:
            raise DataError(f"{where}: {' '.join(times)!r} are no two times; correct it") from None
        name = f"{video}#enc#{counts.setdefault(video, 0)}"
        counts[video] += 1
        moment = _moment(name, span, sentence, where)
        if moment.start < moment.end:
            moments.setdefault(video, []).append(moment)
        else:
            left_out += 1
    return Annotations("charades", _by_start(lengths, moments), left_out)


def _lengths(path: Path) -> dict[str, float]:
    """Lengths of videos in seconds, of a table with columns "id" and "length"."""
    rows = csv.DictReader(io.StringIO(read_text(path), newline=""))
    if rows.fieldnames is None or not {"id", "length"} <= set(rows.fieldnames):
        raise DataError(f'{path}:1: has no columns "id" and "length"; give Charades_v1_*.csv')
    lengths: dict[str, float] = {}
    for row in rows:
        where = f"{path}:{rows.line_num}"
        try:
            lengths[row["id"]] = seconds_of(float(row["length"]), "length", where)
        except (TypeError, ValueError):
            raise DataError(f"{where}: length is {row['length']!r}; it must be seconds") from None
    return lengths


def _moment(name: str, span: Any, sentence: Any, where: str) -> AnnotatedMoment:
    start, end = list_of(span, "the span", where, 2)
    return AnnotatedMoment(
        name,
        seconds_of(start, "the start", where),
        seconds_of(end, "the end", where),
        text_of(sentence, "the sentence", where, one_line=False),
    )


def _by_start(
    durations: dict[str, float], moments: dict[str, list[AnnotatedMoment]]
) -> tuple[TimedVideo, ...]:
    return tuple(
        TimedVideo(video, durations[video], tuple(sorted(own, key=lambda moment: moment.start)))
        for video, own in moments.items()
    )
