"""Which videos a figure shows, and where in time the moments of their captions lie."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hlformer_jax.errors import suggestion
from hlformer_jax.figures.drawing import NotApplicable, Options, Subject, applicable

NO_TIMES = "no times of moments are known: give --moments=FILE (see hlformer_jax/data/spans.py)"


def spans_by_video(split: Any) -> list[list[Any]]:
    """The annotated moments of the captions of each video, `Span` or None each.

    Raises:
      NotApplicable: when the split has no times.
    """
    if not split.spans:
        raise NotApplicable(NO_TIMES)
    spans = split.caption_spans()
    sizes = split.captions_per_video.tolist()
    ends = np.cumsum(sizes).tolist()
    return [spans[end - count : end] for end, count in zip(ends, sizes, strict=True)]


def apart(spans: Sequence[Any]) -> list[int]:
    """The most captions whose moments do not overlap, in the order of time.

    Args:
      spans: the moment of each caption, `Span` or None.

    Returns:
      Their numbers; of moments that overlap the one that ends first.
    """
    known = [k for k, span in enumerate(spans) if span is not None and span.end > span.start]
    chosen: list[int] = []
    for k in sorted(known, key=lambda k: (spans[k].end, spans[k].start)):
        if not chosen or spans[k].start >= spans[chosen[-1]].end:
            chosen.append(k)
    return chosen


def most_apart(spans: Sequence[Sequence[Any]], count: int) -> list[int]:
    """The videos with most captions whose moments do not overlap; of equal ones the first.

    Args:
      spans: the moments of the captions of each video.
      count: how many videos at most.

    Returns:
      Their indices.
    """
    sizes = [len(apart(own)) for own in spans]
    order = sorted(range(len(spans)), key=lambda video: -sizes[video])
    return [video for video in order[:count] if sizes[video]]


def chosen(subject: Subject, options: Options, count: int) -> list[int]:
    """The videos that are asked for, or those with most captions whose moments do not overlap.

    Args:
      subject: the run whose split is looked at.
      options: what is asked for.
      count: how many videos at most, where none are.

    Returns:
      Indices of the split; without times those of most captions.

    Raises:
      NotApplicable: when there is no such video.
    """
    split = subject.split(options)
    if options.videos:
        place = {video: index for index, video in enumerate(split.video_ids)}
        for video in options.videos:
            if video not in place:
                raise NotApplicable(
                    f"--video={video}: the split {options.split} has no such video"
                    f"{suggestion(video, place)}"
                )
        return [place[video] for video in options.videos]
    if not split.spans:
        order = np.argsort(-split.captions_per_video, kind="stable")
        return [int(index) for index in order[:count]]
    return most_apart(spans_by_video(split), count)


def on_one_split(subjects: Sequence[Subject], options: Options) -> tuple[list[Subject], str]:
    """The runs whose models encode videos, all on the same videos.

    Returns:
      The runs, and a sentence on those left out.

    Raises:
      NotApplicable: when there are none, or one was trained on other videos than the first.
    """
    measured, left_out = applicable(subjects, lambda subject: subject.encoder)
    kept = [subject for subject, _ in measured]
    ids = [tuple(subject.split(options).video_ids) for subject in kept]
    for subject, own in zip(kept, ids, strict=True):
        if own != ids[0]:
            raise NotApplicable(
                f"{subject.run.directory} was trained on another data set than"
                f" {kept[0].run.directory}: draw them apart"
            )
    return kept, left_out
