"""Trees of actions in the Poincaré disc, as HOVER embeds them.

Each panel is a tree of the split: its nodes' texts and videos, with lines from parents to children.
All nodes that are drawn are reduced together, to two dimensions by HoroPCA where they have more.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hlformer_jax.figures import disc
from hlformer_jax.figures.drawing import (
    Columns,
    Drawing,
    NotApplicable,
    Options,
    Subject,
    applicable,
)
from hlformer_jax.ops import lorentz, poincare
from hlformer_jax.plots import style

TREES = 3


def draw(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draws some trees, a row of panels for each run."""
    measured, left_out = applicable(subjects, _check)
    subjects = [subject for subject, _ in measured]
    table = Columns("run", "tree", "node", "parent", "level", "kind", "x", "y", "distance")
    figure = style.Figure(figsize=(8.2, 0.5 + 3.0 * len(subjects)), layout="constrained")
    rows = figure.subplots(len(subjects), TREES, squeeze=False)
    highest = 0
    for subject, row in zip(subjects, rows, strict=True):
        split = subject.split(options)
        pool = split.pool
        trees = _chosen(pool, options)
        nodes = np.flatnonzero(np.isin(pool.tree, trees))
        both, c = _points(subject, split, nodes)
        reduced = disc.to_disc(np.concatenate(both), c, options.seed)
        texts, videos = np.split(reduced, 2)
        distances = np.sqrt(c) * np.asarray(lorentz.distance0(np.concatenate(both), c))
        parent = {int(child): int(above) for above, child in pool.edges}
        highest = max(highest, int(pool.level[nodes].max()))
        place = {int(node): k for k, node in enumerate(nodes)}
        for axes, tree in zip(row, trees, strict=False):
            own = nodes[pool.tree[nodes] == tree]
            at = [place[int(node)] for node in own]
            for kind, points, first in (("text", texts, 0), ("video", videos, len(nodes))):
                for above, child in pool.edges:
                    if int(child) in place and pool.tree[child] == tree:
                        ends = points[[place[int(above)], place[int(child)]]]
                        axes.plot(*ends.T, color="#A0A0A0", linewidth=0.7, zorder=1)
                for node, k in zip(own, at, strict=True):
                    level = int(pool.level[node])
                    axes.plot(
                        *points[k], "o" if kind == "text" else "s", markersize=5.5, zorder=2,
                        color=style.COLOURS[level % len(style.COLOURS)],
                        markerfacecolor=None if kind == "text" else "white",
                    )  # fmt: skip
                    table.add(
                        subject.label, pool.videos[tree], int(node), parent.get(int(node)), level,
                        kind, *(float(x) for x in points[k]), float(distances[first + k]),
                    )  # fmt: skip
            disc.prepare(axes, reduced)
            axes.set_title(pool.videos[tree], loc="left", fontsize=9)
        for axes in row[len(trees) :]:
            axes.set_axis_off()
        if len(subjects) > 1:
            row[0].set_ylabel(subject.label)
    marks: list[Any] = [
        style.Line2D([], [], marker="o", color=style.GREY, linestyle="", label="text"),
        style.Line2D(
            [], [], marker="s", color=style.GREY, linestyle="", markerfacecolor="white",
            label="video",
        ),
    ]  # fmt: skip
    for level in range(highest + 1):
        name = "leaf" if level == 0 else f"level {level}"
        colour = style.COLOURS[level % len(style.COLOURS)]
        marks.append(style.Line2D([], [], marker="o", color=colour, linestyle="", label=name))
    figure.legend(handles=marks, loc="outside lower center", ncols=min(len(marks), 6))
    shows = (
        "Nodes of some action trees, a panel each, with lines from parents to children. Parents are"
        " meant to lie nearer to the origin (+) than their children; grey circles are at the"
        " distances they say, times √c."
    )
    return Drawing(figure, table.columns, shows + left_out)


def _check(subject: Subject) -> None:
    """Refuses a run that has no trees in a ball."""
    model = subject.run.config.model
    if model.name != "hover":
        raise NotApplicable(f"{subject.label} embeds videos and captions, and not action trees")
    if model.geometry == "euclidean":
        raise NotApplicable(f"{subject.label} is of Euclidean space: there is no disc to draw")


def _chosen(pool: Any, options: Options) -> list[int]:
    """The trees that are shown: those of the videos asked for, else those of most nodes."""
    if options.videos:
        missing = sorted(set(options.videos) - set(pool.videos))
        if missing:
            raise NotApplicable(f"--video={missing[0]}: the split {options.split} has no such tree")
        return [pool.videos.index(video) for video in options.videos[:TREES]]
    sizes = np.bincount(pool.tree, minlength=len(pool.videos))
    return np.argsort(-sizes, kind="stable")[:TREES].tolist()


def _points(
    subject: Subject, split: Any, nodes: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray], float]:
    """Texts and videos of nodes as points of the Lorentz model, and its curvature."""
    run, evaluator = subject.run, subject.run.family.evaluator
    feed = evaluator.feed(split)
    try:
        points = evaluator.encode(run.params, feed)
    finally:
        feed.close()
    c = float(run.config.model.curvature)
    inside = run.config.model.geometry == "poincare"
    to_lorentz = poincare.to_lorentz if inside else lorentz.from_space
    text, video = (
        np.asarray(to_lorentz(np.asarray(own)[nodes], c)) for own in (points.text, points.video)
    )
    return (text, video), c
