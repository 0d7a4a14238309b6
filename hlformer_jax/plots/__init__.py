"""Plots of runs and sweeps, from what they wrote, and the style of all drawings.

    python -m hlformer_jax.plots DIR

draws again: for a sweep's directory DIR/sweep.png, .svg and the curves of its runs, for a run's
directory DIR/curves.png, .svg.

    style     colours, the style, files: the only module that knows matplotlib
    runs      the curves of a run
    sweeps    a sweep's metric, by variant or over the swept quantity

What a trained model sees is drawn by `hlformer_jax.figures`, in the same style.
"""

from hlformer_jax.plots.runs import curves_figure, draw_run
from hlformer_jax.plots.sweeps import draw_sweep, sweep_figure

__all__ = ["curves_figure", "draw_run", "draw_sweep", "sweep_figure"]
