"""Figures of what trained models see, from finished runs.

    python -m hlformer_jax.figures NAME --workdir=RUN [--workdir=OTHER ...] [--out=DIR]

RUN is a directory that `python -m hlformer_jax.main --workdir=RUN` left, of any model; the
parameters are those of its best epoch. Several runs on the same data are set side by side. Written
are NAME.png, NAME.svg and NAME.csv, the numbers that are drawn, into DIR (RUN/figures by default);
the same run gives the same files. A run that has nothing to show for a figure is left out, with the
reason.

    frames        frames of videos in the plane by UMAP, coloured by annotated moment
                  (HLFormer, Figure 4)
    hyperbolic    captions, clips and frames lifted into hyperbolic space: their distances from the
                  origin, and the Poincaré disc by HoroPCA (HLFormer, Figure 5)
    queries       captions and clips of the two videos nearest in meaning, by t-SNE, each caption
                  joined with the clip it matches (GMMFormer v2, Figure 6)
    heatmap       cosines of captions with clips and frames over time, the annotated moment and the
                  first that the model finds (GMMFormer v2, Figure 7)
    positioning   how far apart the captions of a video are located, before training and after
                  (GMMFormer v2, Figure 8)
    windows       the windows of the model's blocks
    weights       which block the fusion (maim, consolidation) asks at each position
    ball          action trees in the Poincaré disc, of HOVER
    report        all of them that apply in one page, report.html, with the test metrics and why
                  others do not apply; it needs no network

`frames` and `queries` need the extra `figures` (`pip install hlformer_jax[figures]`); all others
need nothing more than training does.

Options: `--video=ID` chooses a video to show and may be given again (by default those with most
captions whose moments do not overlap); `--split` whose videos (test; the paper's `hyperbolic` is of
train); `--moments=FILE` the times of moments for a run whose configuration names none
(`data/spans.py`: `frames` needs them, `heatmap` can do without); `--manual_dir` and `--data_dir`
where the features and prepared sets are, if they were moved; `--seed` of samples and projections.

    drawing       a figure with its numbers; the runs it is drawn of; what is left out
    registry      the figures by name
    encoding      videos and captions encoded by a run's model
    annotated     which videos are shown, and their moments
    extras        UMAP and t-SNE
    disc          the Poincaré disc as a picture
    report        the page

A further figure is a module with a function `draw(subjects, options)` that returns a `Drawing`, and
a line in `registry.FIGURES`; its colours and the writing of files are those of `plots.style`.
"""
