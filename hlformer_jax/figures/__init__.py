"""Pictures: what trained models see, curves of runs, plots of sweeps (`docs/figures.md`).

__main__     the command
report       the figures by name, and the page with all of them
drawing      the style, and how a picture and its numbers are written; the owner of matplotlib
curves       curves of a run, the plot of a sweep
corpus       the runs that are drawn, their videos and captions; frames, queries
attention    windows, weights, heatmap
geometry     hyperbolic, positioning, ball

A further figure is a function of subjects and options that returns a `Drawing`, and a line in
`report.FIGURES`.
"""
