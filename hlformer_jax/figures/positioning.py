"""How far apart the captions of a video are located, before training and after.

The position of a caption is the clip of its own video with the largest cosine. The positioning
variance of a video is the variance of its captions' positions, in clips squared: 0 where all meet
in one clip. Videos with two captions or more count.

References:
  GMMFormer v2, appendix D.2, Figure 8.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from hlformer_jax.data.transforms import unit
from hlformer_jax.figures.drawing import (
    Columns,
    Drawing,
    NotApplicable,
    Options,
    Subject,
    applicable,
)
from hlformer_jax.plots import style


def draw(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draws histograms of the variances, a panel for each run."""
    table = Columns("run", "parameters", "video", "captions", "variance")
    both = lambda subject: [
        variances(subject, options, params) for params in (subject.run.family.init_params(), None)
    ]
    measured, left_out = applicable(subjects, both)
    pairs = [pair for _, pair in measured]
    largest = max(float(np.nanmax(one)) for pair in pairs for one in pair)
    bins = np.linspace(0, max(largest, 1.0), 25)
    figure = style.Figure(figsize=(8.2, 2.9), layout="constrained")
    panels = figure.subplots(1, len(pairs), squeeze=False, sharey=True)[0]
    for axes, (subject, pair) in zip(panels, measured, strict=True):
        split = subject.split(options)
        for (when, colour), values in zip(
            (("before training", style.COLOURS[1]), ("after", style.COLOURS[0])), pair, strict=True
        ):
            known = ~np.isnan(values)
            mean = float(np.mean(values[known]))
            near = 100 * float(np.mean(values[known] < bins[1]))
            label = f"{when}: mean {mean:.3g},\n{near:.0f} % below {bins[1]:.2g}"
            shares = np.full(known.sum(), 100 / known.sum())
            style_of: dict[str, Any] = {"color": colour, "alpha": 0.55, "label": label}
            axes.hist(values[known], bins=bins, weights=shares, **style_of)
            ids = [video for video, real in zip(split.video_ids, known, strict=True) if real]
            counts = split.captions_per_video[known]
            table.add(subject.label, when, ids, counts, values[known])
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
    """The positioning variance of each video of the split; NaN with fewer than two captions.

    Raises:
      NotApplicable: for a model without clips, or a split whose videos have one caption each.
    """
    encoder, split = subject.encoder, subject.split(options)
    variances = np.full(len(split), np.nan)
    several = np.flatnonzero(split.captions_per_video >= 2)
    if not len(several):
        raise NotApplicable(f"no video of the split {options.split} has two captions")
    for chosen, encoded, _ in encoder.batches(split, several, params):
        if encoded.clips is None:
            raise NotApplicable(f"{subject.label} reads no clips")
        queries = encoder.captions(split, chosen, params)
        for index, clips, own in zip(chosen, encoded.clips, queries, strict=True):
            variances[index] = np.var(matches(own, clips))
    return variances


def matches(
    queries: Float[np.ndarray, "captions H"], clips: Float[np.ndarray, "C H"]
) -> np.ndarray:
    """The clip that each caption matches: that of the largest cosine."""
    return np.argmax(unit(queries) @ unit(clips).T, axis=-1)
