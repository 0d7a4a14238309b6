"""Where the moment of a caption lies in its video: annotated times, for evaluation alone.

`config.eval.moments` names what has them: "data", the data set itself (the synthetic corpus, one's
own videos), or a file, of which a relative path begins at {manual_dir}/{collection}. A file is one
of

    MOMENTS.jsonl                what `python -m hlformer_jax.data.moments` writes
    published annotations        ActivityNet Captions' JSON or TVR's lines of JSON
    a JSON object                {CAPTION_ID: {"start_s": …, "end_s": …, "duration_s": …}, …}

told apart by their content. Training reads none of it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from hlformer_jax.data.source import DataError
from hlformer_jax.data.trees import annotations, files
from hlformer_jax.data.trees.lines import field, parse_object, read_text, seconds_of
from hlformer_jax.data.trees.moment import TimedVideo

DATA = "data"
"""The value of `config.eval.moments` for what the data set knows itself."""


class Span(NamedTuple):
    """The annotated moment of a caption.

    Attributes:
      start: second at which it begins.
      end: second at which it ends.
      duration: length of the video in seconds.
    """

    start: float
    end: float
    duration: float


def of_splits(config: ConfigDict, annotated: Sequence[Any]) -> list[dict[str, Span]]:
    """The annotated moments that a configuration asks for.

    Args:
      config: the whole configuration.
      annotated: what the data set knows of its splits, `PreparedVideos.annotations` of each.

    Returns:
      For each split the moments by the id of their caption, those of a file as they are; empty
      where none are asked for, or the data set knows none of that split.

    Raises:
      DataError: when the data set knows no times, or the file is not as it should be.
    """
    asked = config.eval.get("moments")  # not every family has the field
    if not asked:
        return [{} for _ in annotated]
    if asked != DATA:
        path = Path(config.data.manual_dir).expanduser() / config.data.collection / asked
        return [read(path)] * len(annotated)
    found = []
    for known in annotated:
        if not isinstance(known, Mapping) or "spans" not in known:
            raise DataError(
                f"config.eval.moments is {DATA!r}, and the data set {config.data.collection!r} has"
                " no times of moments: give a file that has, or '' for none"
            )
        found.append({name: Span(*span) for name, span in known["spans"].items()})
    return found


def read(path: Path) -> dict[str, Span]:
    """Reads annotated moments.

    Args:
      path: a file of one of the kinds above.

    Returns:
      The moments by the id of their caption.

    Raises:
      DataError: when the file is missing, or is not as it should be; says where.
    """
    try:
        first = read_text(path).lstrip()[:4096]
        if '"start_s"' in first:
            return _by_caption(path)
        if '"moments"' in first:
            return _of_videos(video for video, _ in files.read_moments(path))
        return _of_videos(annotations.read(path).videos)
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file; config.eval.moments is a file with the times of moments, or ''"
        ) from None


def _of_videos(videos: Iterable[TimedVideo]) -> dict[str, Span]:
    return {
        moment.moment_id: Span(moment.start, moment.end, video.duration)
        for video in videos
        for moment in video.moments
    }


def _by_caption(path: Path) -> dict[str, Span]:
    found = {}
    for name, record in parse_object(read_text(path), str(path)).items():
        where = f"{path}: caption {name!r}"
        if not isinstance(record, dict):
            raise DataError(f"{where} is {json.dumps(record)[:60]}; it must be an object")
        names = ("start_s", "end_s", "duration_s")
        times = [seconds_of(field(record, key, where), key, where) for key in names]
        if times[2] <= 0:
            raise DataError(f"{where}: duration_s is {times[2]:g}; give the video's length")
        found[name] = Span(*times)
    return found
