"""Figures of a model's space.

hyperbolic     captions, clips and frames that HLFormer lifts: their distances from the origin,
               and the Poincaré disc by HoroPCA (HLFormer, section 4.4, Figure 5)
positioning    variance of the clips that the captions of a video match, before and after training
               (GMMFormer v2, appendix D.2, Figure 8)
ball           action trees of HOVER in the Poincaré disc
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from hlformer_jax.figures import corpus, drawing
from hlformer_jax.figures.corpus import NotApplicable, Options, Subject, applicable
from hlformer_jax.figures.drawing import COLOURS, GREY, Columns, Drawing, Figure
from hlformer_jax.models.hlformer import lift
from hlformer_jax.ops import horopca, lorentz, poincare
from hlformer_jax.typing import Array

MAX_EMBEDDINGS = 3000
"""Number of captions, clips and frames together that `hyperbolic` draws."""

KINDS = {
    "captions": (COLOURS[1], "o"),
    "clips": (COLOURS[0], "^"),
    "frames": (COLOURS[2], "s"),
}
"""Colour and marker of each kind of embedding in `hyperbolic`."""

MAX_TREES = 3
"""Number of trees of a run in `ball`."""

HOROPCA_SAMPLE = 400
"""Number of points to which HoroPCA is fitted; it then projects all points."""


def hyperbolic(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draw histograms of distances from the origin, and discs, of lifted embeddings; a row per run.

    Distances are multiplied by √c, which gives distances at curvature −1.
    """
    measured, left_out = applicable(subjects, lambda subject: sample(subject, options))
    table = Columns("run", "kind", "distance", "x", "y")
    figure = Figure(figsize=(8.2, 0.5 + 3.5 * len(measured)), layout="constrained")
    rows = figure.subplots(len(measured), 2, squeeze=False, width_ratios=(6, 5))
    for (subject, tangents), (histogram, plane) in zip(measured, rows, strict=True):
        model = subject.run.config.model
        is_learned = model.learned_curvature
        c = float(np.exp(subject.run.params["curv"])) if is_learned else model.curvature
        points = {kind: np.asarray(_lift(rows, c)) for kind, rows in tangents.items()}
        distances = {
            kind: np.sqrt(c) * np.asarray(lorentz.distance0(jnp.asarray(rows), c))
            for kind, rows in points.items()
        }
        reduced = to_disc(np.concatenate(list(points.values())), c, options.seed)
        parts = np.split(reduced, np.cumsum(list(map(len, points.values())))[:-1])
        bins = np.linspace(0, max(float(radii.max()) for radii in distances.values()) * 1.02, 61)
        for (kind, radii), at in zip(distances.items(), parts, strict=True):
            shares = np.full(len(radii), 100 / len(radii))
            label, (colour, marker) = f"{kind}: mean {radii.mean():.3g}", KINDS[kind]
            faint: dict[str, Any] = {"color": colour, "alpha": 0.55, "label": label}
            histogram.hist(radii, bins=bins, weights=shares, **faint)
            # Captions are drawn on top; a thin white edge separates points.
            plane.plot(
                *at.T, marker, color=colour, markersize=4.5, alpha=0.8, label=kind,
                markeredgecolor="white", markeredgewidth=0.3,
                zorder=4 - list(KINDS).index(kind),
            )  # fmt: skip
            table.add(subject.label, kind, radii, *at.T)
        histogram.set_title(
            f"{subject.label}, {'learned' if is_learned else 'fixed'} curvature −{c:.3g}",
            loc="left",
        )
        histogram.set_xlabel("distance from the origin, times √c")
        histogram.set_ylabel("share (%)")
        histogram.legend(loc="best")
        prepare_disc(plane, reduced)
        plane.set_title("Poincaré disc, by HoroPCA", loc="left")
        plane.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    shows = (
        f"Captions, clips and frames of the {options.split} split, lifted into hyperbolic"
        " space as the model's partial order loss lifts them. An embedding nearer to the"
        " origin (+) is meant to be more general. The grey circles have the distances from"
        " the origin that their labels give."
    )
    return Drawing(figure, table.columns, shows + left_out)


def sample(subject: Subject, options: Options) -> dict[str, Float[np.ndarray, "N H"]]:
    """Draw equal numbers of captions, clips and frames at random, as tangent vectors at the origin.

    They are scaled like the inputs of the model's lift. They come from at most `MAX_EMBEDDINGS` / 3
    videos.

    Raises:
      NotApplicable: for a model without a lift.
    """
    encoder, split = subject.encoder, subject.split(options)
    if not subject.run.family.model.module.has_lift:
        raise NotApplicable(f"{subject.label} has no lift into hyperbolic space (HLFormer has one)")
    params: Any = subject.run.params
    rng = np.random.default_rng(options.seed)
    videos = np.sort(rng.permutation(len(split))[: MAX_EMBEDDINGS // 3])
    encoded = encoder.videos(split, videos)
    pools = {"captions": np.concatenate(encoder.captions(split, videos))}
    if encoded.clips is not None:
        pools["clips"] = encoded.clips.reshape(-1, encoded.clips.shape[-1])
    if encoded.frames is not None:
        real = np.arange(encoded.frames.shape[1])[None] < encoded.num_frames[:, None]
        pools["frames"] = encoded.frames[real]
    count = MAX_EMBEDDINGS // len(pools)
    text, video = (float(np.exp(params[name])) for name in ("textual_alpha", "video_alpha"))
    return {
        kind: rows[np.sort(rng.permutation(len(rows))[:count])]
        * np.float32(text if kind == "captions" else video)
        for kind, rows in pools.items()
    }


@jax.jit
def _lift(tangent: Any, c: Any) -> Any:
    return lift(tangent, jnp.asarray(c, tangent.dtype))


def positioning(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draw histograms of the `variances` before and after training, a panel for each run."""
    table = Columns("run", "parameters", "video", "captions", "variance")

    def before_and_after(subject: Subject) -> list[np.ndarray]:
        parameters = (subject.run.family.init_params(), None)
        return [variances(subject, options, params) for params in parameters]

    measured, left_out = applicable(subjects, before_and_after)
    largest = max(float(np.nanmax(values)) for _, pair in measured for values in pair)
    bins = np.linspace(0, max(largest, 1.0), 25)
    figure = Figure(figsize=(8.2, 2.9), layout="constrained")
    panels = figure.subplots(1, len(measured), squeeze=False, sharey=True)[0]
    for axes, (subject, pair) in zip(panels, measured, strict=True):
        split = subject.split(options)
        for when, colour, values in zip(
            ("before training", "after"), COLOURS[1::-1], pair, strict=True
        ):
            has_variance = ~np.isnan(values)
            values = values[has_variance]
            lowest = 100 * float(np.mean(values < bins[1]))
            mean = float(np.mean(values))
            label = f"{when}: mean {mean:.3g},\n{lowest:.0f} % below {bins[1]:.2g}"
            faint: dict[str, Any] = {"color": colour, "alpha": 0.55, "label": label}
            shares = np.full(len(values), 100 / len(values))
            axes.hist(values, bins=bins, weights=shares, **faint)
            ids = [video for video, real in zip(split.video_ids, has_variance, strict=True) if real]
            table.add(subject.label, when, ids, split.captions_per_video[has_variance], values)
        axes.set_title(subject.label, loc="left")
        axes.set_xlabel("variance of positions (clips²)")
        axes.legend(loc="upper right")
    panels[0].set_ylabel("videos (%)")
    shows = (
        "How far apart the captions of one video are located, over the videos of the"
        f" {options.split} split: the variance of the clips that they match. Near 0,"
        " different captions match the same clip."
    )
    return Drawing(figure, table.columns, shows + left_out)


def variances(subject: Subject, options: Options, params: Any = None) -> Float[np.ndarray, " V"]:
    """Return the variance of the positions of each video's captions, in clips².

    The position of a caption is the index of the clip of its own video with the largest cosine. The
    variance is 0 if all captions match the same clip.

    Args:
      subject: the run.
      options: options of the figure.
      params: parameters of the model; None for the parameters of the best epoch.

    Returns:
      The variances; NaN for a video with fewer than two captions.

    Raises:
      NotApplicable: if no video has two captions, or the model has no clips.
    """
    encoder, split = subject.encoder, subject.split(options)
    variances = np.full(len(split), np.nan)
    several = np.flatnonzero(split.captions_per_video >= 2)
    if not len(several):
        raise NotApplicable(f"no video of the split {options.split} has two captions")
    for batch in encoder.batches(split, several, params):
        if batch.clips is None:
            raise NotApplicable(f"{subject.label} has no clips")
        captions = encoder.captions(split, batch.indices, params)
        for index, clips, queries in zip(batch.indices, batch.clips, captions, strict=True):
            variances[index] = np.var(corpus.matches(queries, clips))
    return variances


def ball(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draw trees of each run, a panel per tree: texts and videos of the nodes, and the edges.

    The nodes of all drawn trees of a run are projected together.
    """
    measured, left_out = applicable(subjects, _check_ball)
    table = Columns("run", "tree", "node", "parent", "level", "kind", "x", "y", "distance")
    figure = Figure(figsize=(8.2, 0.5 + 3.0 * len(measured)), layout="constrained")
    rows = figure.subplots(len(measured), MAX_TREES, squeeze=False)
    highest = 0
    for (subject, _), row in zip(measured, rows, strict=True):
        split = subject.split(options)
        pool = split.pool
        trees = _trees(pool, options)
        placed = _place_nodes(subject, split, trees, options.seed)
        highest = max(highest, int(pool.level[placed.nodes].max()))
        for axes, tree in zip(row, trees, strict=False):
            _draw_tree(axes, table, subject.label, pool, placed, tree)
            prepare_disc(axes, np.concatenate([kind.positions for kind in placed.kinds]))
            axes.set_title(pool.videos[tree], loc="left", fontsize=9)
        for axes in row[len(trees) :]:
            axes.set_axis_off()
        if len(measured) > 1:
            row[0].set_ylabel(subject.label)

    def mark(label: str, colour: str, marker: str = "o", **style: Any) -> Any:
        return drawing.Line2D(
            [], [], marker=marker, color=colour, linestyle="", label=label, **style
        )

    marks = [mark("text", GREY), mark("video", GREY, "s", markerfacecolor="white")]
    for level in range(highest + 1):
        marks.append(mark(f"level {level}" if level else "leaf", _level_colour(level)))
    figure.legend(handles=marks, loc="outside lower center", ncols=min(len(marks), 6))
    shows = (
        "Nodes of some action trees, one panel per tree, with lines from parents to"
        " children. Parents are meant to be nearer to the origin (+) than their children."
        " The grey circles have the distances from the origin, times √c, that their labels"
        " give."
    )
    return Drawing(figure, table.columns, shows + left_out)


class _DiscPoints(NamedTuple):
    """The texts or the videos of nodes on the disc."""

    name: str
    marker: str
    positions: Float[np.ndarray, "N 2"]
    distances: Float[np.ndarray, " N"]  # from the origin, times √c


class _PlacedNodes(NamedTuple):
    """Nodes of the drawn trees of a run."""

    nodes: Int[np.ndarray, " N"]
    kinds: list[_DiscPoints]


def _place_nodes(subject: Subject, split: Any, trees: Sequence[int], seed: int) -> _PlacedNodes:
    """Project the nodes of trees to the disc together."""
    nodes = np.flatnonzero(np.isin(split.pool.tree, trees))
    points, c = _points(subject, split, nodes)
    positions = np.split(to_disc(points, c, seed), 2)
    distances = np.split(np.sqrt(c) * np.asarray(lorentz.distance0(points, c)), 2)
    kinds = [
        _DiscPoints("text", "o", positions[0], distances[0]),
        _DiscPoints("video", "s", positions[1], distances[1]),
    ]
    return _PlacedNodes(nodes, kinds)


def _draw_tree(
    axes: Any, table: Columns, label: str, pool: Any, placed: _PlacedNodes, tree: int
) -> None:
    """Draw the nodes and edges of a tree, and add its nodes to the table."""
    row_of = {int(node): k for k, node in enumerate(placed.nodes)}
    nodes = [int(node) for node in placed.nodes[pool.tree[placed.nodes] == tree]]
    edges = [(int(parent), int(child)) for parent, child in pool.edges if int(child) in nodes]
    parent_of = {child: parent for parent, child in edges}
    for kind in placed.kinds:
        for parent, child in edges:
            ends = kind.positions[[row_of[parent], row_of[child]]]
            axes.plot(*ends.T, color="#A0A0A0", linewidth=0.7, zorder=1)
        for node in nodes:
            position, level = kind.positions[row_of[node]], int(pool.level[node])
            axes.plot(
                *position, kind.marker, color=_level_colour(level), zorder=2,
                markersize=5.5, markerfacecolor=None if kind.name == "text" else "white",
            )  # fmt: skip
            table.add(
                label, pool.videos[tree], node, parent_of.get(node), level, kind.name,
                *map(float, position), float(kind.distances[row_of[node]]),
            )  # fmt: skip


def _level_colour(level: int) -> str:
    return COLOURS[level % len(COLOURS)]


def _check_ball(subject: Subject) -> None:
    """Raise `NotApplicable` for a run without action trees in hyperbolic space."""
    model = subject.run.config.model
    corpus.tree_data(subject)
    if model.geometry == "euclidean":
        raise NotApplicable(f"{subject.label} is Euclidean, so it has no disc")


def _trees(pool: Any, options: Options) -> list[int]:
    """Return the trees of the requested videos, or else the trees with most nodes."""
    if options.videos:
        if missing := sorted(set(options.videos) - set(pool.videos)):
            raise NotApplicable(f"`video`={missing[0]}: the split {options.split} has no such tree")
        return [pool.videos.index(video) for video in options.videos[:MAX_TREES]]
    sizes = np.bincount(pool.tree, minlength=len(pool.videos))
    return np.argsort(-sizes, kind="stable")[:MAX_TREES].tolist()


def _points(
    subject: Subject, split: Any, nodes: np.ndarray
) -> tuple[Float[np.ndarray, "N n1"], float]:
    """Return the texts and then the videos of nodes as points of the Lorentz model, and c."""
    run, evaluator = subject.run, subject.run.family.evaluator
    with contextlib.closing(evaluator.feed(split)) as feed:
        points = evaluator.encode(run.params, feed)
    c = float(run.config.model.curvature)
    inside = run.config.model.geometry == "poincare"
    to_lorentz = poincare.to_lorentz if inside else lorentz.from_space
    both = [to_lorentz(np.asarray(rows)[nodes], c) for rows in (points.text, points.video)]
    return np.concatenate(both), c


def to_disc(points: Float[np.ndarray, "N n1"], c: float, seed: int) -> Float[np.ndarray, "N 2"]:
    """Project points of the Lorentz model to the unit disc, by HoroPCA.

    The base point is the origin, which stays at the centre of the disc. Points with two dimensions
    are only mapped to the disc.

    Args:
      points: points [N, n + 1], time first.
      c: curvature.
      seed: seed of the sample to which HoroPCA is fitted.
    """
    space: Array = jnp.asarray(points, jnp.float32)
    if space.shape[-1] > 3:
        rng = np.random.default_rng(seed)
        sampled = np.sort(rng.permutation(len(points))[:HOROPCA_SAMPLE])
        origin = lorentz.origin(space.shape[-1] - 1, c)
        fitted = horopca.fit(space[sampled], 2, c, origin, joint=True, seed=seed)
        space = horopca.project(fitted, space)
    return np.asarray(poincare.from_lorentz(space, c)) * math.sqrt(c)


def prepare_disc(axes: Any, points: Float[np.ndarray, "N 2"]) -> None:
    """Draw the part of the disc that contains the points, with circles at round distances."""
    radius = max(float(np.linalg.norm(points, axis=-1).max()), 1e-6)
    is_large = radius > 0.5
    shown = 1.02 if is_large else 1.12 * radius
    angle = np.linspace(0, 2 * np.pi, 181)
    for distance in (1.0, 2.0, 3.0, 5.0) if is_large else _round_distances(2 * math.atanh(shown)):
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
    axes.spines[["left", "bottom"]].set_visible(False)


def _round_distances(reach: float) -> list[float]:
    """Return two to five round distances below the largest distance in the picture."""
    unit = 10.0 ** math.floor(math.log10(reach))
    step = next(unit * k for k in (0.2, 0.5, 1.0, 2.0) if reach / (unit * k) < 6)
    return [step * k for k in range(1, int(reach / step * 0.999) + 1)]
