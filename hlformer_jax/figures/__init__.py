"""Figures of trained models, curves of runs, and plots of sweeps (`docs/figures.md`).

__main__     the command
report       the figures by name, and a page with all figures
drawing      the style of all figures, and their files; the only module that imports matplotlib
curves       curves of a run, the plot of a sweep
corpus       the runs to draw, their videos and captions; the figures frames, queries, retrieved,
             leaves
attention    the figures windows, weights, heatmap
geometry     the figures hyperbolic, positioning, ball

To add a figure, write a function of subjects and options that returns a `Drawing`, and add a line
to `report.FIGURES`.
"""
