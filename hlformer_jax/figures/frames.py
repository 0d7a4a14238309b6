"""The frames of videos in the plane, coloured by the annotated moment that they are of.

Each panel is UMAP of the cosine distance of one video's encoded frames by one run's model. Of
moments that overlap, the one that ends first has a colour; frames of none are grey. The silhouette
beside a panel's title is that of the coloured frames in the model's own space, not in the plane: 1
where frames of a moment are near one another and far from those of other moments.

References:
  HLFormer, Figure 4.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from hlformer_jax.data.transforms import unit
from hlformer_jax.figures import annotated, extras
from hlformer_jax.figures.drawing import (
    Columns,
    Drawing,
    NotApplicable,
    Options,
    Subject,
    applicable,
)
from hlformer_jax.plots import style

FEWEST = 6
"""Frames that a video needs to be shown."""

MOST_MOMENTS = len(style.COLOURS)


def draw(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draws the videos, a row each, and the runs, a column each."""
    subjects, left_out = annotated.on_one_split(subjects, options)
    split = subjects[0].split(options)
    spans = annotated.spans_by_video(split)
    videos = _videos(subjects[0], options)
    measured, without = applicable(subjects, lambda subject: _frames(subject, options, videos))
    table = Columns("run", "video", "frame", "moment", "x", "y")
    size = (3.1 * len(measured) + 2.9, 3.1 * len(videos) + 0.3)
    figure = style.Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(videos), len(measured), squeeze=False)
    for column, (subject, frames) in enumerate(measured):
        for row, (video, points) in enumerate(zip(videos, frames, strict=True)):
            shown = annotated.apart(spans[video])[:MOST_MOMENTS]
            moment = moment_of_frames(spans[video], shown, len(points))
            plane = extras.umap(points, options.seed)
            _panel(grid[row, column], plane, moment, [_named(spans[video][k]) for k in shown])
            title = subject.label + _silhouette(points, moment)
            grid[row, column].set_title(title, loc="left")
            table.add(
                subject.label, split.video_ids[video], np.arange(len(points)),
                [None if k < 0 else shown[k] for k in moment], *plane.T,
            )  # fmt: skip
    for axes in grid[-1]:
        axes.set_xlabel("UMAP, first coordinate")
    for row, video in enumerate(videos):
        grid[row, 0].set_ylabel(f"{split.video_ids[video]}\nUMAP, second coordinate")
        grid[row, -1].legend(loc="center left", bbox_to_anchor=(1, 0.5), title="moment")
    shows = (
        "The encoded frames of a video in the plane, by UMAP, a point each; frames of one annotated"
        " moment have one colour, frames of none are grey. The silhouette says how well moments"
        " part in the model's own space (1: perfectly; 0: not at all)."
    )
    return Drawing(figure, table.columns, shows + left_out + without)


def _videos(subject: Subject, options: Options) -> list[int]:
    """The videos that are shown: those asked for, or the two with most moments apart."""
    enough = subject.split(options).frames_per_video >= FEWEST
    if options.videos:
        chosen = annotated.chosen(subject, options, 2)
    else:
        spans = annotated.spans_by_video(subject.split(options))
        long = [own if enough[video] else [] for video, own in enumerate(spans)]
        chosen = annotated.most_apart(long, 2)
    videos = [video for video in chosen if enough[video]]
    if not videos:
        which = (
            "that is asked for" if options.videos else f"of the split {options.split} with times"
        )
        raise NotApplicable(f"no video {which} has {FEWEST} frames")
    return videos


def _frames(subject: Subject, options: Options, videos: Sequence[int]) -> list[np.ndarray]:
    """The encoded frames of each video, of unit length."""
    encoded = subject.encoder.videos(subject.split(options), videos)
    if encoded.frames is None:
        raise NotApplicable(f"{subject.label} encodes no frames one by one")
    pairs = zip(encoded.frames, encoded.num_frames, strict=True)
    return [unit(frames[: int(count)]) for frames, count in pairs]


def _silhouette(points: np.ndarray, moment: np.ndarray) -> str:
    """What a title says of the coloured frames; nothing where moments cannot be compared."""
    coloured = moment >= 0
    if not 1 < len(set(moment[coloured])) < coloured.sum():
        return ""
    return f", silhouette {extras.silhouette(points[coloured], moment[coloured]):.2f}"


def moment_of_frames(
    spans: Sequence[Any], shown: Sequence[int], num_frames: int
) -> Int[np.ndarray, " F"]:
    """The moment that the middle of each frame lies in.

    Args:
      spans: the moments of a video's captions.
      shown: numbers of captions whose moments do not overlap.
      num_frames: frames, which share the video's duration equally.

    Returns:
      Places in `shown`; -1 for a frame of none.
    """
    moments = np.full(num_frames, -1)
    for place, caption in enumerate(shown):
        span = spans[caption]
        middle = (np.arange(num_frames) + 0.5) / num_frames * span.duration
        moments[(middle >= span.start) & (middle < span.end)] = place
    return moments


def _panel(axes: Any, plane: np.ndarray, moment: np.ndarray, names: Sequence[str]) -> None:
    axes.plot(*plane[moment < 0].T, ".", color="#B8B8B8", markersize=5, label="none")
    for place, name in enumerate(names):
        points = plane[moment == place].T
        if not points.size:  # a moment between the middles of two frames
            continue
        marker = style.MARKERS[place % len(style.MARKERS)]
        axes.plot(*points, marker, linestyle="", color=style.COLOURS[place], label=name)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.margins(0.06)


def _named(span: Any) -> str:
    return f"{span.start:.1f} to {span.end:.1f} s"
