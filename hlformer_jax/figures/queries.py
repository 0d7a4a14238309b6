"""Captions and clips of two videos that are near in meaning, in the plane.

The two videos are those of the split whose mean caption embeddings, of unit length each, are
nearest to one another for the first run; further runs show the same. Their captions and clips are
put into the plane together by t-SNE of the cosine distance; a line joins each caption and the clip
of its video that it matches.

References:
  GMMFormer v2, appendix C, Figure 6.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

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
from hlformer_jax.figures.positioning import matches
from hlformer_jax.plots import style

BLOCK = 1024
"""Videos that are compared with all others at once."""


def draw(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draws the two videos, a panel for each run."""
    subjects, left_out = annotated.on_one_split(subjects, options)
    split = subjects[0].split(options)
    pair = _pair(subjects[0], options)
    encoded, without = applicable(subjects, lambda subject: _clips(subject, options, pair))
    table = Columns("run", "video", "kind", "number", "x", "y", "matched clip")
    figure = style.Figure(figsize=(4.1 * len(encoded) + 0.6, 4.4), layout="constrained")
    panels = figure.subplots(1, len(encoded), squeeze=False)[0]
    for axes, (subject, clips) in zip(panels, encoded, strict=True):
        queries = subject.encoder.captions(subject.split(options), pair)
        rows = np.concatenate([*clips, *queries])
        plane = extras.t_sne(unit(rows), options.seed)
        ends = np.cumsum([*(len(own) for own in clips), *(len(own) for own in queries)])
        parts = np.split(plane, ends[:-1])
        for k, index in enumerate(pair):
            at, asked = parts[k], parts[2 + k]
            matched = matches(queries[k], clips[k])
            colour, video = style.COLOURS[k], split.video_ids[index]
            for point, clip in zip(asked, matched, strict=True):
                axes.plot(*np.stack([point, at[clip]]).T, color=colour, linewidth=0.8, zorder=1)
            axes.plot(*at.T, "o", color=colour, markersize=4, alpha=0.6, label=f"clips of {video}")
            axes.plot(
                *asked.T, "*", color=colour, markersize=12, markeredgecolor="black",
                markeredgewidth=0.6, label=f"captions of {video}", zorder=3,
            )  # fmt: skip
            table.add(subject.label, video, "clip", np.arange(len(at)), *at.T, None)
            table.add(subject.label, video, "caption", np.arange(len(asked)), *asked.T, matched)
        axes.set_title(subject.label, loc="left")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel("t-SNE, first coordinate")
    panels[0].set_ylabel("t-SNE, second coordinate")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    shows = (
        "Captions (stars) and clips (dots) of two videos whose captions mean nearly the same, in"
        " the plane by t-SNE. A line joins a caption and the clip it matches: where several lines"
        " end in one clip, different captions find the same moment."
    )
    return Drawing(figure, table.columns, shows + left_out + without)


def _clips(subject: Subject, options: Options, pair: Sequence[int]) -> Float[np.ndarray, "2 C H"]:
    clips = subject.encoder.videos(subject.split(options), pair).clips
    if clips is None:
        raise NotApplicable(f"{subject.label} reads no clips")
    return clips


def _pair(subject: Subject, options: Options) -> list[int]:
    """The two videos that are shown."""
    if options.videos:
        pair = annotated.chosen(subject, options, 2)
        if len(pair) != 2:
            raise NotApplicable("the figure queries shows two videos: give --video twice, or not")
        return pair
    split = subject.split(options)
    several = np.flatnonzero(split.captions_per_video >= 2)
    if len(several) < 2:
        raise NotApplicable(f"the split {options.split} has no two videos with two captions each")
    embedded = subject.encoder.captions(split, several)
    means = np.stack([unit(own).mean(axis=0) for own in embedded])
    return [int(several[k]) for k in nearest_pair(means)]


def nearest_pair(points: Float[np.ndarray, "V H"]) -> tuple[int, int]:
    """The two points that are nearest to one another; of equally near ones the first."""
    best, pair = np.inf, (0, 1)
    squares = (points.astype(np.float64) ** 2).sum(axis=-1)
    for start in range(0, len(points), BLOCK):
        block = points[start : start + BLOCK].astype(np.float64)
        apart = squares[start : start + BLOCK, None] + squares[None] - 2 * block @ points.T
        rows = start + np.arange(len(block))
        apart[np.arange(len(points))[None] <= rows[:, None]] = np.inf
        least = int(np.argmin(apart))
        if apart.flat[least] < best:
            best = float(apart.flat[least])
            pair = (start + least // len(points), least % len(points))
    return pair
