"""Figures of a model's attention over time.

windows    windows of the model's blocks (HLFormer, eq. 10; GMMFormer v2, eq. 13)
weights    the weight that the fusion gives to each block at each position
           (HLFormer, eq. 17; GMMFormer v2, eq. 2)
heatmap    captions over the time of their video, with the annotated moment and the model's first
           moment (GMMFormer v2, appendix D.1, Figure 7)
"""

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from hlformer_jax.data.transforms import unit
from hlformer_jax.figures import corpus, drawing
from hlformer_jax.figures.corpus import NotApplicable, Options, Subject, applicable
from hlformer_jax.figures.drawing import COLOURS, Columns, Drawing, Figure
from hlformer_jax.models.two_branch import bank_widths
from hlformer_jax.retrieval import moments
from hlformer_jax.typing import Array

BRANCHES = {"clips": "clip_branch", "frames": "frame_branch"}
"""Names of the branches' modules."""

MAX_CAPTIONS = 5
"""Largest number of captions in `heatmap`."""


def windows(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draw the window of the middle position in both branches, a row for each run.

    Blocks with the same width share a line. A window of 1 everywhere has no effect.
    `config.model.lorentz_window` determines how a Lorentz block applies its window.
    """
    del options
    measured, left_out = applicable(subjects, _widths)
    table = Columns("run", "branch", "block", "width", "position", "offset", "window")
    figure = Figure(figsize=(8.2, 0.6 + 2.4 * len(measured)), layout="constrained")
    rows = figure.subplots(len(measured), 2, squeeze=False)
    for (subject, widths), row in zip(measured, rows, strict=True):
        hyperparameters = subject.run.family.model.hyperparameters
        both = hyperparameters.clip_windows, hyperparameters.frame_windows
        for axes, branch, bank in zip(row, BRANCHES, both, strict=True):
            parts = [] if bank.euclidean is None else [np.asarray(bank.euclidean)]
            parts += [] if bank.log_lorentz is None else [np.exp(np.asarray(bank.log_lorentz))]
            windows = np.concatenate(parts)  # [blocks, L, L]
            length = windows.shape[-1]
            offsets = np.arange(length) - length // 2
            blocks: dict[float, list[str]] = {}
            window_of: dict[float, np.ndarray] = {}
            for (block, width), window in zip(
                block_names(*widths), windows[:, length // 2], strict=True
            ):
                blocks.setdefault(width, []).append(block)
                window_of[width] = window
                table.add(subject.label, branch, block, width, np.arange(length), offsets, window)
            for colour, width in zip(itertools.cycle(COLOURS), sorted(blocks), strict=False):
                label = f"{_width_name(width)}: {', '.join(blocks[width])}"
                axes.plot(offsets, window_of[width], color=colour, label=label)
            axes.set_ylim(0, None)
            drawing.integer_ticks(axes)
            axes.set_title(f"{subject.label}, {length} {branch}", loc="left")
            axes.set_xlabel(f"distance from the middle position ({branch})")
        row[0].set_ylabel(f"window ({subject.run.config.model.window})")
        row[1].legend(loc="center left", bbox_to_anchor=(1, 0.5), title="width: blocks")
    shows = (
        "How much the middle position of a video attends to each other position at most, for"
        " each width of the model's blocks (E: Euclidean, L: Lorentz, in their order)."
    )
    return Drawing(figure, table.columns, shows + left_out)


def _widths(subject: Subject) -> tuple[Sequence[float], Sequence[float]]:
    """Return the widths of the model's Euclidean and Lorentz blocks."""
    _ = subject.encoder  # raises NotApplicable for a model of another family
    euclidean, lorentz = bank_widths(subject.run.config)
    if not any((*euclidean, *lorentz)):
        raise NotApplicable(f"the blocks of {subject.label} have no windows")
    return euclidean, lorentz


def block_names(euclidean: Sequence[float], lorentz: Sequence[float]) -> list[tuple[str, float]]:
    """Return the name and the width of each block, in the order of the bank: E1, …, L1, …."""
    return [
        (f"{letter}{k}", float(width))
        for letter, widths in (("E", euclidean), ("L", lorentz))
        for k, width in enumerate(widths, 1)
    ]


def _width_name(width: float) -> str:
    return f"{width:g}" if width else "none"


def weights(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draw the mean weight of each block at each position, a row for each run.

    MAIM and the temporal consolidation give each block a weight at each position of each video. The
    weights at a position sum to 1.
    """
    measured, left_out = applicable(subjects, lambda subject: mean_weights(subject, options))
    table = Columns("run", "branch", "block", "width", "position", "weight")
    heights = [max(len(next(iter(weights_of.values()))), 4) for _, weights_of in measured]
    size = 8.2, 0.4 + sum(0.9 + 0.2 * k for k in heights)
    figure = Figure(figsize=size, layout="constrained")
    rows = figure.subplots(len(measured), 2, squeeze=False, height_ratios=heights)
    for (subject, weights_of), row in zip(measured, rows, strict=True):
        blocks_by_name = block_names(*bank_widths(subject.run.config))
        largest = max(float(weights.max()) for weights in weights_of.values())
        for axes, branch in zip(row, BRANCHES, strict=True):
            if branch not in weights_of:
                axes.set_axis_off()
                continue
            for (block, width), line in zip(blocks_by_name, weights_of[branch], strict=True):
                table.add(subject.label, branch, block, width, np.arange(len(line)), line)
            image = axes.imshow(
                weights_of[branch], drawing.MAP, aspect="auto", interpolation="nearest",
                vmin=0, vmax=largest,
            )  # fmt: skip
            labels = [f"{block}, {_width_name(width)}" for block, width in blocks_by_name]
            axes.set_yticks(range(len(blocks_by_name)), labels)
            axes.grid(visible=False)
            drawing.integer_ticks(axes)
            axes.set_title(f"{subject.label}, {branch}", loc="left")
            axes.set_xlabel(f"position ({branch})")
        row[0].set_ylabel("block, width of its window")
        figure.colorbar(image, ax=row.tolist(), label="mean weight", pad=0.01, aspect=14)
    shows = (
        "The weight that the fusion gives to each block at each position, averaged over the"
        f" videos of the {options.split} split. It shows which window and which geometry the"
        " model uses at each position. Equal weights would be 1 over the number of blocks."
    )
    return Drawing(figure, table.columns, shows + left_out)


def mean_weights(subject: Subject, options: Options) -> dict[str, Float[np.ndarray, "K L"]]:
    """Return the mean weight of each block at each position, by branch.

    The mean at a position is over the videos of the split that have the position.

    Raises:
      NotApplicable: for a fusion without such weights.
    """
    encoder, split = subject.encoder, subject.split(options)
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, np.ndarray] = {}
    for batch in encoder.batches(split, np.arange(len(split))):
        for branch, module in BRANCHES.items():
            noted = _last(batch.intermediates.get(module, {}), "weights")
            if noted is None:
                continue
            weights: np.ndarray = np.asarray(noted, np.float64)[:, : len(batch.indices)]
            lengths = np.full(len(batch.indices), weights.shape[-1])
            lengths = batch.num_frames if branch == "frames" else lengths
            real = np.arange(weights.shape[-1])[None] < lengths[:, None]
            sums[branch] = sums.get(branch, 0) + (weights * real).sum(axis=1)
            counts[branch] = counts.get(branch, 0) + real.sum(axis=0)
    if not sums:
        raise NotApplicable(
            f"{subject.label} has the fusion {subject.run.config.model.fusion!r}, which has"
            " no weights of blocks at positions"
        )
    return {branch: sums[branch] / np.maximum(counts[branch], 1) for branch in sums}


def _last(intermediates: Mapping[str, Any], name: str) -> Any:
    """Return the intermediate of a name from a branch's last fusion that has it, or None."""
    last = None
    for key in sorted(intermediates):
        value = intermediates[key]
        if key == name:
            last = value[-1]
        elif isinstance(value, Mapping):
            deeper = _last(value, name)
            last = last if deeper is None else deeper
    return last


def heatmap(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draw the cosines of captions with a video over time.

    Each run has a strip for the clips and a strip for the frames of each caption. All strips of
    clips share a scale of colours; so do all strips of frames. The dashed box is the annotated
    moment. The solid box is the first moment of `retrieval.moments`, by the model's ranking score.
    """
    subjects, left_out = corpus.on_one_split(subjects, options)
    split = subjects[0].split(options)
    [video] = corpus.select_videos(subjects[0], options, 1)[:1] or [0]
    spans: list[Any] = [None] * int(split.captions_per_video[video])
    spans = corpus.spans_by_video(split)[video] if split.spans else spans
    # Captions whose moments do not overlap, or without times the first captions.
    shown = (corpus.select_disjoint(spans) or list(range(len(spans))))[:MAX_CAPTIONS]
    timed = next((span for span in spans if span is not None), None)
    duration = 1.0 if timed is None else timed.duration
    measured, without = applicable(
        subjects, lambda subject: _measure(subject, subject.split(options), video, duration)
    )
    sentences, first = split.sentences(video), int(split.captions_per_video[:video].sum())
    ids = split.caption_ids()[first : first + len(sentences)]
    table = Columns("run", "video", "caption", "kind", "position", "start", "end", "cosine")
    size = 8.2, 0.5 + len(shown) * (0.42 + 0.62 * len(measured))
    figure = Figure(figsize=size, layout="constrained")
    rows = figure.subplots(len(shown) * len(measured), 1, squeeze=False, sharex=True)[:, 0]
    scales = _scales([strips for _, (strips, _) in measured], shown)
    for row, axes in enumerate(rows):
        place, run = divmod(row, len(measured))
        caption, (subject, (strips, first)) = shown[place], measured[run]
        note = subject.label, split.video_ids[video], ids[caption]
        drawn = {name: values[caption] for name, values in strips.items()}
        _draw_strips(axes, drawn, duration, scales)
        for name, values in strips.items():
            line = values[caption]
            edges = np.arange(len(line) + 1) / len(line) * duration
            table.add(*note, name, np.arange(len(line)), edges[:-1], edges[1:], line)
        label, moment, span = subject.label, first[caption], spans[caption]
        _box(axes, moment.start, moment.end, len(strips), "-", COLOURS[1])
        table.add(*note, "first moment", None, moment.start, moment.end, None)
        if span is not None:
            _box(axes, span.start, span.end, len(strips), "--", "black")
            table.add(*note, "annotated moment", None, span.start, span.end, None)
            overlap = moments.intersection_over_union(moment, span.start, span.end)
            label += f"\nIoU {overlap:.2f}"
        axes.text(1.01, 0.5, label, transform=axes.transAxes, va="center")
        if axes is not rows[-1]:
            axes.tick_params(axis="x", length=0)
        if run == 0:
            axes.set_title("\n".join(textwrap.wrap(sentences[caption], 100)), loc="left")
    rows[-1].set_xlabel("time (s)" if timed is not None else "share of the video")
    for name, scale in scales.items():
        drawing.add_colour_scale(figure, list(rows), scale, f"cosine with {name}")
    handles = [
        drawing.Line2D([], [], color="black", linestyle="--", label="annotated moment"),
        drawing.Line2D([], [], color=COLOURS[1], label="first moment of the model"),
    ]
    figure.legend(handles=handles[timed is None :], loc="outside lower center", ncols=2)
    shows = (
        f"Captions of the video {split.video_ids[video]} over time: the darker, the larger"
        " the cosine with the clip or frame at that time. IoU is the intersection over union"
        " of the first moment that the model finds and the annotated one."
    )
    return Drawing(figure, table.columns, shows + left_out + without)


def _measure(
    subject: Subject, split: Any, video: int, duration: float
) -> tuple[dict[str, np.ndarray], Sequence[Any]]:
    """Return the strips of a run by branch, and its first moments, for each caption."""
    [queries] = subject.encoder.captions(split, [video])
    scores = scores_over_time(subject, split, video, queries)
    return _strips(subject, split, video, queries), moments.first_moments(scores, duration)


def _scales(
    measured: Sequence[Mapping[str, np.ndarray]], captions: Sequence[int]
) -> dict[str, tuple[float, float]]:
    """Return the least and the largest cosine of some captions with clips and with frames."""
    names = dict.fromkeys(name for strips in measured for name in strips)
    values = {
        name: np.concatenate([x[name][list(captions)].ravel() for x in measured if name in x])
        for name in names
    }
    return {name: (float(x.min()), float(x.max())) for name, x in values.items()}


def _draw_strips(
    axes: Any,
    strips: Mapping[str, np.ndarray],
    duration: float,
    scales: Mapping[str, tuple[float, float]],
) -> None:
    """Draw the strips of a caption, the first strip on top, with room for boxes around them."""
    names = list(strips)[::-1]
    for level, name in enumerate(names):
        axes.imshow(
            strips[name][None], aspect="auto", cmap=drawing.MAP, interpolation="nearest",
            extent=(0, duration, level + 0.06, level + 0.94),
            vmin=scales[name][0], vmax=scales[name][1],
        )  # fmt: skip
    axes.set_xlim(-0.006 * duration, 1.006 * duration)
    axes.set_ylim(-0.16, len(names) + 0.16)
    axes.set_yticks(np.arange(len(names)) + 0.5, names)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def _box(axes: Any, start: float, end: float, height: float, line: str, colour: str) -> None:
    x = [start, end, end, start, start]
    y = [-0.08, -0.08, height + 0.08, height + 0.08, -0.08]
    axes.plot(x, y, linestyle=line, color=colour, linewidth=1.4, clip_on=False, zorder=4)


def scores_over_time(
    subject: Subject, split: Any, video: int, queries: Float[np.ndarray, "captions H"]
) -> Float[np.ndarray, "captions F"]:
    """Return the ranking score of encoded captions at each frame of their video.

    It is the score of `retrieval.evaluation`, with float32 encodings for any `config.eval.corpus`.
    """
    scorer = subject.run.family.evaluator.scorer
    cosines = _cosines(scorer, subject.encoder.ranked(split, video), unit(queries))
    frames = int(split.source_frames_per_video[video])
    host = {name: np.asarray(rows) for name, rows in cosines.items()}
    scores: np.ndarray = scorer.over_time(host, frames, split.max_clips, split.max_frames)
    return scores


@jax.jit
def _cosines(scorer: Any, video: Any, queries: Float[Array, "captions H"]) -> dict[str, Array]:
    """Return the cosines of captions with each position of a video, by the branch of the scorer."""
    stored = jax.tree.map(
        lambda x: jnp.repeat(x, len(queries), axis=0), scorer.store(video, "float32")
    )
    cosines: dict[str, Array] = scorer.position_cosines(queries, stored)
    return cosines


def _strips(
    subject: Subject, split: Any, video: int, queries: Float[np.ndarray, "captions H"]
) -> dict[str, np.ndarray]:
    """Return the cosines of captions with the clips and real frames of their video, by branch."""
    encoded = subject.encoder.videos(split, [video])
    strips = {}
    if encoded.clips is not None:
        strips["clips"] = unit(queries) @ unit(encoded.clips[0]).T
    # MS-SL compares captions with the guided vectors of its proposals instead of with frames.
    guided = subject.run.family.model.module.guides_frames and "clips" in strips
    if encoded.frames is not None and not guided:
        frames = encoded.frames[0, : encoded.num_frames[0]]
        frame_queries = subject.run.family.evaluator.scorer.of_branches(queries)["frames"]
        strips["frames"] = unit(np.asarray(frame_queries)) @ unit(frames).T
    if not strips:
        raise NotApplicable(
            f"{subject.label} has one embedding per video, so it has nothing to show over time"
        )
    return strips
