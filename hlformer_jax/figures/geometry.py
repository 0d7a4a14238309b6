"""Pictures of a model's space.

hyperbolic     captions, clips and frames as HLFormer lifts them: their distances from the
               origin, and the Poincaré disc by HoroPCA (HLFormer, section 4.4, Figure 5)
positioning    how far apart the captions of a video are located, before training and after
               (GMMFormer v2, appendix D.2, Figure 8)
ball           action trees of HOVER in the Poincaré disc
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from hlformer_jax.figures import corpus, drawing
from hlformer_jax.figures.corpus import NotApplicable, Options, Subject, applicable
from hlformer_jax.figures.drawing import COLOURS, GREY, Columns, Drawing, Figure
from hlformer_jax.models.hlformer import lift
from hlformer_jax.ops import horopca, lorentz, poincare
from hlformer_jax.typing import Array

EMBEDDINGS = 3000
"""Captions, clips and frames that `hyperbolic` draws in all."""

KINDS = {
    "captions": (COLOURS[1], "o"),
    "clips": (COLOURS[0], "^"),
    "frames": (COLOURS[2], "s"),
}
"""What `hyperbolic` lifts, with its colour and its marker."""

TREES = 3
"""Trees of a run in `ball`."""

SAMPLE = 400
"""Points that HoroPCA is fitted to; all are projected."""


def hyperbolic(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Lifted embeddings: histograms of their distances from the origin, and discs, a row a run.

    Distances are times √c: those at curvature −1.
    """
    measured, left_out = applicable(subjects, lambda subject: sample(subject, options))
    table = Columns("run", "kind", "distance", "x", "y")
    figure = Figure(figsize=(8.2, 0.5 + 3.5 * len(measured)), layout="constrained")
    rows = figure.subplots(len(measured), 2, squeeze=False, width_ratios=(6, 5))
    for (subject, tangents), (histogram, plane) in zip(measured, rows, strict=True):
        model = subject.run.config.model
        fixed = not model.learned_curvature
        c = model.curvature if fixed else float(np.exp(subject.run.params["curv"]))
        points = {kind: np.asarray(_lift(rows, c)) for kind, rows in tangents.items()}
        distances = {
            kind: np.sqrt(c) * np.asarray(lorentz.distance0(jnp.asarray(own), c))
            for kind, own in points.items()
        }
        reduced = to_disc(np.concatenate(list(points.values())), c, options.seed)
        parts = np.split(reduced, np.cumsum([len(own) for own in points.values()])[:-1])
        bins = np.linspace(0, max(float(own.max()) for own in distances.values()) * 1.02, 61)
        for (kind, own), at in zip(distances.items(), parts, strict=True):
            shares, label = np.full(len(own), 100 / len(own)), f"{kind}: mean {own.mean():.3g}"
            colour, marker = KINDS[kind]
            faint: dict[str, Any] = {"color": colour, "alpha": 0.55, "label": label}
            histogram.hist(own, bins=bins, weights=shares, **faint)
            # Captions, of which there are fewest, lie on top; a thin white edge keeps points apart.
            plane.plot(
                *at.T, marker, color=colour, markersize=4.5, alpha=0.8, label=kind,
                markeredgecolor="white", markeredgewidth=0.3,
                zorder=4 - list(KINDS).index(kind),
            )  # fmt: skip
            table.add(subject.label, kind, own, *at.T)
        histogram.set_title(f"{subject.label}, learned curvature −{c:.3g}", loc="left")
        histogram.set_xlabel("distance from the origin, times √c")
        histogram.set_ylabel("share (%)")
        histogram.legend(loc="best")
        prepare_disc(plane, reduced)
        plane.set_title("Poincaré disc, by HoroPCA", loc="left")
        plane.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    shows = (
        f"Captions, clips and frames of the {options.split} split, lifted into hyperbolic space as"
        " the model's partial order loss lifts them. The nearer to the origin (+), the more general"
        " an embedding is meant to be; grey circles are at the distances they say."
    )
    return Drawing(figure, table.columns, shows + left_out)


def sample(subject: Subject, options: Options) -> dict[str, Float[np.ndarray, "N H"]]:
    """As many captions, clips and frames, drawn at random, as tangent vectors at the origin.

    They are scaled as the model scales them before its lift, and of a third as many videos at most.
    """
    if not getattr(getattr(subject.run.family.model, "module", None), "has_lift", False):
        raise NotApplicable(f"{subject.label} has no lift into hyperbolic space (HLFormer has one)")
    encoder, split = subject.encoder, subject.split(options)
    params: Any = subject.run.params
    rng = np.random.default_rng(options.seed)
    videos = np.sort(rng.permutation(len(split))[: EMBEDDINGS // 3])
    encoded = encoder.videos(split, videos)
    pools = {"captions": np.concatenate(encoder.captions(split, videos))}
    if encoded.clips is not None:
        pools["clips"] = encoded.clips.reshape(-1, encoded.clips.shape[-1])
    if encoded.frames is not None:
        real = np.arange(encoded.frames.shape[1])[None] < encoded.num_frames[:, None]
        pools["frames"] = encoded.frames[real]
    each = EMBEDDINGS // len(pools)
    text, video = (float(np.exp(params[name])) for name in ("textual_alpha", "video_alpha"))
    return {
        kind: rows[np.sort(rng.permutation(len(rows))[:each])]
        * np.float32(text if kind == "captions" else video)
        for kind, rows in pools.items()
    }


@jax.jit
def _lift(tangent: Any, c: Any) -> Any:
    return lift(tangent, jnp.asarray(c, tangent.dtype))


def positioning(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Histograms of the positioning variances before training and after, a panel for each run."""
    table = Columns("run", "parameters", "video", "captions", "variance")
    both = lambda subject: [
        variances(subject, options, params) for params in (subject.run.family.init_params(), None)
    ]
    measured, left_out = applicable(subjects, both)
    largest = max(float(np.nanmax(one)) for _, pair in measured for one in pair)
    bins = np.linspace(0, max(largest, 1.0), 25)
    figure = Figure(figsize=(8.2, 2.9), layout="constrained")
    panels = figure.subplots(1, len(measured), squeeze=False, sharey=True)[0]
    for axes, (subject, pair) in zip(panels, measured, strict=True):
        split = subject.split(options)
        for when, colour, values in zip(
            ("before training", "after"), COLOURS[1::-1], pair, strict=True
        ):
            known = ~np.isnan(values)
            near = 100 * float(np.mean(values[known] < bins[1]))
            mean = float(np.mean(values[known]))
            label = f"{when}: mean {mean:.3g},\n{near:.0f} % below {bins[1]:.2g}"
            faint: dict[str, Any] = {"color": colour, "alpha": 0.55, "label": label}
            shares = np.full(known.sum(), 100 / known.sum())
            axes.hist(values[known], bins=bins, weights=shares, **faint)
            ids = [video for video, real in zip(split.video_ids, known, strict=True) if real]
            table.add(subject.label, when, ids, split.captions_per_video[known], values[known])
        axes.set_title(subject.label, loc="left")
        axes.set_xlabel("variance of positions (clips²)")
        axes.legend(loc="upper right")
    panels[0].set_ylabel("videos (%)")
    shows = (
        "How far apart the captions of one video are located, over the videos of the"
        f" {options.split} split: the variance of the clips that they match. Near 0, different"
        " captions meet in the same clip."
    )
    return Drawing(figure, table.columns, shows + left_out)


def variances(subject: Subject, options: Options, params: Any = None) -> Float[np.ndarray, " V"]:
    """The positioning variance of each video of the split, in clips²; NaN below two captions.

    The position of a caption is the clip of its own video with the largest cosine; the variance of
    a video is that of its captions' positions, 0 where all meet in one clip. By default parameters
    are those of the run's best epoch.
    """
    encoder, split = subject.encoder, subject.split(options)
    variances = np.full(len(split), np.nan)
    several = np.flatnonzero(split.captions_per_video >= 2)
    if not len(several):
        raise NotApplicable(f"no video of the split {options.split} has two captions")
    for batch in encoder.batches(split, several, params):
        if batch.clips is None:
            raise NotApplicable(f"{subject.label} reads no clips")
        captions = encoder.captions(split, batch.indices, params)
        for index, clips, own in zip(batch.indices, batch.clips, captions, strict=True):
            variances[index] = np.var(corpus.matches(own, clips))
    return variances


def ball(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Some trees of each run, a panel a tree: nodes' texts and videos, lines from parents down.

    All nodes of a run are reduced together.
    """
    measured, left_out = applicable(subjects, _check_ball)
    table = Columns("run", "tree", "node", "parent", "level", "kind", "x", "y", "distance")
    figure = Figure(figsize=(8.2, 0.5 + 3.0 * len(measured)), layout="constrained")
    rows = figure.subplots(len(measured), TREES, squeeze=False)
    highest = 0
    for (subject, _), row in zip(measured, rows, strict=True):
        split = subject.split(options)
        pool = split.pool
        trees = _trees(pool, options)
        nodes = np.flatnonzero(np.isin(pool.tree, trees))
        points, c = _points(subject, split, nodes)
        reduced = to_disc(points, c, options.seed)
        distances = np.split(np.sqrt(c) * np.asarray(lorentz.distance0(points, c)), 2)
        kinds = zip(("text", "video"), ("o", "s"), np.split(reduced, 2), distances, strict=True)
        parent = {int(child): int(above) for above, child in pool.edges}
        place = {int(node): k for k, node in enumerate(nodes)}
        highest = max(highest, int(pool.level[nodes].max()))
        drawn = list(kinds)
        for axes, tree in zip(row, trees, strict=False):
            own = [int(node) for node in nodes[pool.tree[nodes] == tree]]
            for kind, marker, at, away in drawn:
                for above, child in pool.edges:
                    if int(child) in own:
                        ends = at[[place[int(above)], place[int(child)]]]
                        axes.plot(*ends.T, color="#A0A0A0", linewidth=0.7, zorder=1)
                for node in own:
                    k, level = place[node], int(pool.level[node])
                    axes.plot(
                        *at[k], marker, markersize=5.5, zorder=2, color=_level_colour(level),
                        markerfacecolor=None if kind == "text" else "white",
                    )  # fmt: skip
                    table.add(
                        subject.label, pool.videos[tree], node, parent.get(node), level, kind,
                        float(at[k, 0]), float(at[k, 1]), float(away[k]),
                    )  # fmt: skip
            prepare_disc(axes, reduced)
            axes.set_title(pool.videos[tree], loc="left", fontsize=9)
        for axes in row[len(trees) :]:
            axes.set_axis_off()
        if len(measured) > 1:
            row[0].set_ylabel(subject.label)
    mark = lambda label, colour, marker="o", **more: drawing.Line2D(
        [], [], marker=marker, color=colour, linestyle="", label=label, **more
    )
    marks = [mark("text", GREY), mark("video", GREY, "s", markerfacecolor="white")]
    for level in range(highest + 1):
        marks.append(mark(f"level {level}" if level else "leaf", _level_colour(level)))
    figure.legend(handles=marks, loc="outside lower center", ncols=min(len(marks), 6))
    shows = (
        "Nodes of some action trees, a panel each, with lines from parents to children. Parents are"
        " meant to lie nearer to the origin (+) than their children; grey circles are at the"
        " distances they say, times √c."
    )
    return Drawing(figure, table.columns, shows + left_out)


def _level_colour(level: int) -> str:
    return COLOURS[level % len(COLOURS)]


def _check_ball(subject: Subject) -> None:
    """Refuses a run that has no trees in a ball."""
    model = subject.run.config.model
    corpus.tree_data(subject)
    if model.geometry == "euclidean":
        raise NotApplicable(f"{subject.label} is of Euclidean space: there is no disc to draw")


def _trees(pool: Any, options: Options) -> list[int]:
    """The trees that are shown: those of the videos asked for, else those of most nodes."""
    if options.videos:
        if missing := sorted(set(options.videos) - set(pool.videos)):
            raise NotApplicable(f"--video={missing[0]}: the split {options.split} has no such tree")
        return [pool.videos.index(video) for video in options.videos[:TREES]]
    sizes = np.bincount(pool.tree, minlength=len(pool.videos))
    return np.argsort(-sizes, kind="stable")[:TREES].tolist()


def _points(
    subject: Subject, split: Any, nodes: np.ndarray
) -> tuple[Float[np.ndarray, "N n1"], float]:
    """Texts of some nodes, then their videos, in the Lorentz model; and its curvature."""
    run, evaluator = subject.run, subject.run.family.evaluator
    feed = evaluator.feed(split)
    try:
        points = evaluator.encode(run.params, feed)
    finally:
        feed.close()
    c = float(run.config.model.curvature)
    inside = run.config.model.geometry == "poincare"
    to_lorentz = poincare.to_lorentz if inside else lorentz.from_space
    both = [to_lorentz(np.asarray(own)[nodes], c) for own in (points.text, points.video)]
    return np.concatenate(both), c


def to_disc(points: Float[np.ndarray, "N n1"], c: float, seed: int) -> Float[np.ndarray, "N 2"]:
    """Points of the Lorentz model in the unit disc, reduced to two dimensions by HoroPCA.

    The base point is the origin, which is to stay the root of what is drawn. Two dimensions stay
    as they are.
    """
    space: Array = jnp.asarray(points, jnp.float32)
    if space.shape[-1] > 3:
        rng = np.random.default_rng(seed)
        chosen = np.sort(rng.permutation(len(points))[:SAMPLE])
        origin = lorentz.origin(space.shape[-1] - 1, c)
        fitted = horopca.fit(space[chosen], 2, c, origin, joint=True, seed=seed)
        space = horopca.project(fitted, space)
    return np.asarray(poincare.from_lorentz(space, c)) * math.sqrt(c)


def prepare_disc(axes: Any, points: Float[np.ndarray, "N 2"]) -> None:
    """Makes axes a disc: as much of it as points need, with circles at whole distances."""
    radius = max(float(np.linalg.norm(points, axis=-1).max()), 1e-6)
    whole = radius > 0.5
    shown = 1.02 if whole else 1.12 * radius
    angle = np.linspace(0, 2 * np.pi, 181)
    for distance in (1.0, 2.0, 3.0, 5.0) if whole else _round_distances(2 * math.atanh(shown)):
        r = math.tanh(distance / 2)
        axes.plot(r * np.cos(angle), r * np.sin(angle), color="#D9D9D9", linewidth=0.7, zorder=0)
        axes.text(
            0, -r, f"{distance:.2g}", color=GREY, fontsize=7, ha="center", va="center",
            zorder=3, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    axes.plot(np.cos(angle), np.sin(angle), color="black", linewidth=1, zorder=0)
    axes.plot(0, 0, "+", color="black", markersize=8, zorder=5)
    axes.set_xlim(-shown, shown)
    axes.set_ylim(-shown, shown)
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _round_distances(reach: float) -> list[float]:
    """Two to five round distances below the one that the picture reaches to."""
    unit = 10.0 ** math.floor(math.log10(reach))
    step = next(unit * k for k in (0.2, 0.5, 1.0, 2.0) if reach / (unit * k) < 6)
    return [step * k for k in range(1, int(reach / step * 0.999) + 1)]
