"""Moments with their times, and the files that have a video and its moments on each line."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from hlformer_jax import files
from hlformer_jax.data.annotations.parsing import (
    as_duration,
    as_list,
    as_seconds,
    as_text,
    field,
    read_json_lines,
)
from hlformer_jax.data.sources.protocol import DataError, Reader

MAX_OVERHANG = 1.0
"""Seconds that a moment may end after its video without a warning: lengths are rounded."""


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
    path: str | Path, videos: Iterable[TimedVideo], replace: files.Replace = files.Replace.ANY
) -> None:
    """Write a file of moments atomically.

    Args:
      path: the file.
      videos: the videos, one for each line.
      replace: the existing files that may be replaced.
    """
    lines = (json.dumps(moments_to_json(video), ensure_ascii=False) for video in videos)
    files.write_bytes(Path(path), "".join(f"{line}\n" for line in lines).encode(), replace)


def moments_to_json(video: TimedVideo) -> dict[str, Any]:
    """Return the line of a video in a file of moments, as JSON."""
    moments = [
        {"id": moment.moment_id, "start": moment.start, "end": moment.end, "text": moment.text}
        for moment in video.moments
    ]
    return {"video": video.video, "duration": video.duration, "moments": moments}


def read_moments(path: str | Path, warns: bool = True) -> list[tuple[TimedVideo, int]]:
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
