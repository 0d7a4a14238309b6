"""The windows of a model's blocks: how much of each position the middle one may see.

Blocks of one width share a line. A window of 1 everywhere is none; what a Lorentz block makes of
its window is `config.model.lorentz_window`.
"""

import itertools
from collections.abc import Sequence

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
from hlformer_jax.models.options import bank_widths
from hlformer_jax.plots import style
from hlformer_jax.typing import Array


def draw(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draws the windows of the clip and the frame branch, a row for each run."""
    del options
    found, left_out = applicable(subjects, _widths)
    table = Columns("run", "branch", "block", "width", "position", "offset", "window")
    figure = style.Figure(figsize=(8.2, 0.6 + 2.4 * len(found)), layout="constrained")
    rows = figure.subplots(len(found), 2, squeeze=False)
    for (subject, widths), row in zip(found, rows, strict=True):
        config = subject.run.config
        named = block_names(*widths)
        hyperparameters = subject.run.family.model.hyperparameters
        both = hyperparameters.clip_windows, hyperparameters.frame_windows
        for axes, branch, bank in zip(row, ("clips", "frames"), both, strict=True):
            windows = _all(bank.euclidean, bank.log_lorentz)
            length = windows.shape[-1]
            middle = length // 2
            offsets = np.arange(length) - middle
            blocks: dict[float, list[str]] = {}
            window_of: dict[float, np.ndarray] = {}
            for (block, width), window in zip(named, windows[:, middle], strict=True):
                blocks.setdefault(width, []).append(block)
                window_of[width] = window
                table.add(
                    subject.label, branch, block, width, np.arange(length), offsets, window
                )  # fmt: skip
            for colour, width in zip(itertools.cycle(style.COLOURS), sorted(blocks), strict=False):
                label = f"{'none' if width == 0 else f'{width:g}'}: {', '.join(blocks[width])}"
                axes.plot(offsets, window_of[width], color=colour, label=label)
            axes.set_ylim(0, None)
            style.integer_ticks(axes)
            axes.set_title(f"{subject.label}, {length} {branch}", loc="left")
            axes.set_xlabel(f"distance from the middle position ({branch})")
        row[0].set_ylabel(f"window ({config.model.window})")
        row[1].legend(loc="center left", bbox_to_anchor=(1, 0.5), title="width: blocks")
    shows = (
        "How much of the other positions the middle position of a video may see, for each width of"
        " the model's blocks (E: Euclidean, L: Lorentz, in their order)."
    )
    return Drawing(figure, table.columns, shows + left_out)


def _widths(subject: Subject) -> tuple[Sequence[float], Sequence[float]]:
    """Widths of the model's Euclidean and Lorentz blocks."""
    _ = subject.encoder  # refuses models of another family
    euclidean, lorentz = bank_widths(subject.run.config)
    if not any((*euclidean, *lorentz)):
        raise NotApplicable(f"the blocks of {subject.label} have no windows")
    return euclidean, lorentz


def block_names(euclidean: Sequence[float], lorentz: Sequence[float]) -> list[tuple[str, float]]:
    """Returns a name and the width of each block, in the order of the bank: E1, …, L1, …."""
    return [
        (f"{letter}{k}", float(width))
        for letter, widths in (("E", euclidean), ("L", lorentz))
        for k, width in enumerate(widths, 1)
    ]


def _all(
    euclidean: Float[Array, "KE L L"] | None, log_lorentz: Float[Array, "KL L L"] | None
) -> Float[np.ndarray, "blocks L L"]:
    """The windows of all blocks in the order of the bank."""
    parts = [] if euclidean is None else [np.asarray(euclidean)]
    parts += [] if log_lorentz is None else [np.exp(np.asarray(log_lorentz))]
    return np.concatenate(parts)
