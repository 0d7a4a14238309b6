"""Which block the fusion asks at each position: mean weights over the videos of a split.

MAIM and the temporal consolidation give each block a weight at each position of each video; the
weights of a position sum to 1. Of frames, videos that have the position count.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from hlformer_jax.figures.drawing import (
    Columns,
    Drawing,
    NotApplicable,
    Options,
    Subject,
    applicable,
)
from hlformer_jax.figures.windows import block_names
from hlformer_jax.models.options import bank_widths
from hlformer_jax.plots import style

BRANCHES = {"clips": "clip_branch", "frames": "frame_branch"}
"""The branches, and what their modules are called."""


def draw(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draws mean weights over blocks and positions, a row for each run."""
    measured, left_out = applicable(subjects, lambda subject: mean_weights(subject, options))
    table = Columns("run", "branch", "block", "width", "position", "weight")
    heights = [max(len(next(iter(own.values()))), 4) for _, own in measured]
    figure = style.Figure(figsize=(8.2, 0.4 + sum(0.9 + 0.2 * k for k in heights)))
    figure.set_layout_engine("constrained")
    rows = figure.subplots(len(measured), 2, squeeze=False, height_ratios=heights)
    for (subject, own), row in zip(measured, rows, strict=True):
        named = block_names(*bank_widths(subject.run.config))
        largest = max(float(weights.max()) for weights in own.values())
        for axes, branch in zip(row, BRANCHES, strict=True):
            if branch not in own:
                axes.set_axis_off()
                continue
            weights = own[branch]
            for (block, width), line in zip(named, weights, strict=True):
                table.add(subject.label, branch, block, width, np.arange(len(line)), line)
            image = axes.imshow(
                weights, aspect="auto", cmap=style.MAP, vmin=0, vmax=largest,
                interpolation="nearest",
            )  # fmt: skip
            labels = [
                f"{block}, {'none' if width == 0 else f'{width:g}'}" for block, width in named
            ]
            axes.set_yticks(range(len(named)), labels)
            axes.grid(visible=False)
            style.integer_ticks(axes)
            axes.set_title(f"{subject.label}, {branch}", loc="left")
            axes.set_xlabel(f"position ({branch})")
        row[0].set_ylabel("block, width of its window")
        figure.colorbar(image, ax=row.tolist(), label="mean weight", pad=0.01, aspect=14)
    shows = (
        "The weight that the fusion gives each block at each position, mean over the videos of the"
        f" {options.split} split: which window, and which geometry, the model asks where. Equal"
        " weights would be 1 over the number of blocks."
    )
    return Drawing(figure, table.columns, shows + left_out)


def mean_weights(subject: Subject, options: Options) -> dict[str, Float[np.ndarray, "K L"]]:
    """Mean weights of the blocks at each position, by branch.

    Raises:
      NotApplicable: when the model's fusion gives blocks no weights at positions.
    """
    encoder, split = subject.encoder, subject.split(options)
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, np.ndarray] = {}
    for chosen, encoded, noted in encoder.batches(split, np.arange(len(split))):
        for branch, module in BRANCHES.items():
            noted_weights = _noted(noted.get(module, {}), "weights")
            if noted_weights is None:
                continue
            weights: np.ndarray = np.asarray(noted_weights, np.float64)[:, : len(chosen)]
            counted = np.full(len(chosen), weights.shape[-1])
            if branch == "frames":
                counted = encoded.num_frames
            real = np.arange(weights.shape[-1])[None] < counted[:, None]
            sums[branch] = sums.get(branch, 0) + (weights * real).sum(axis=1)
            counts[branch] = counts.get(branch, 0) + real.sum(axis=0)
    if not sums:
        raise NotApplicable(
            f"{subject.label} has the fusion {subject.run.config.model.fusion!r}, which gives its"
            " blocks no weights at positions"
        )
    return {branch: sums[branch] / np.maximum(counts[branch], 1) for branch in sums}


def _noted(noted: Mapping[str, Any], name: str) -> Any:
    """What the last of a branch's fusions noted by this name; None where none did."""
    found = None
    for key in sorted(noted):
        value = noted[key]
        if key == name:
            found = value[-1]
        elif isinstance(value, Mapping):
            deeper = _noted(value, name)
            found = found if deeper is None else deeper
    return found
