"""The published annotations of ActivityNet Captions, TVR and Charades-STA."""

import contextlib
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hlformer_jax.data.annotations.moments import AnnotatedMoment, TimedVideo
from hlformer_jax.data.annotations.parsing import (
    as_duration,
    as_list,
    as_seconds,
    as_text,
    field,
    parse_object,
    read_json_lines,
    read_lines,
    read_text,
)
from hlformer_jax.data.sources.protocol import DataError
from hlformer_jax.text import shown


class Annotations(NamedTuple):
    """The moments of a published file; videos in order of first appearance."""

    collection: str  # activitynet, tvr or charades
    videos: tuple[TimedVideo, ...]
    left_out: int = 0  # moments that do not end after their start


def read_published(path: str | Path, durations: Sequence[str | Path] = ()) -> Annotations:
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
    path = Path(path)
    text = read_text(path)
    first = text.partition("\n")[0]
    if text.lstrip()[0] != "{":
        if "##" not in first:
            raise DataError(
                f"{path}:1: unknown format; expected ActivityNet Captions' JSON, TVR's lines"
                " of JSON, or Charades-STA's VIDEO START END##SENTENCE"
            )
        return _read_charades(path, [Path(table) for table in durations])
    if '"qid"' in first:
        raise DataError(
            f"{path}:1: QVHighlights' windows are not read, because a query may have several, and"
            " a caption has one moment"
        )
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
