"""Texts, clips and frames in the hyperbolic space of the model's lift.

As many captions, clips and frames, 3,000 in all, drawn at random from at most 1,000 videos of a
split, are lifted to the hyperboloid as the model lifts videos and sentences for its partial order
loss: times exp(video_alpha) or exp(textual_alpha), then the exponential map at the origin at the
learned curvature. On the left their distances from the origin (√c times them: of curvature −1), on
the right two dimensions of them by HoroPCA.

References:
  HLFormer, section 4.3, Figure 5.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from hlformer_jax.figures import disc
from hlformer_jax.figures.drawing import (
    Columns,
    Drawing,
    NotApplicable,
    Options,
    Subject,
    applicable,
)
from hlformer_jax.models.hlformer import lift
from hlformer_jax.ops import lorentz
from hlformer_jax.plots import style

EMBEDDINGS = 3000

KINDS = {"captions": style.COLOURS[1], "clips": style.COLOURS[0], "frames": style.COLOURS[2]}
"""What is lifted, with its colour."""


def draw(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draws histograms and discs, a row for each run."""
    measured, left_out = applicable(subjects, lambda subject: sample(subject, options))
    table = Columns("run", "kind", "distance", "x", "y")
    figure = style.Figure(figsize=(8.2, 0.5 + 3.5 * len(measured)), layout="constrained")
    rows = figure.subplots(len(measured), 2, squeeze=False, width_ratios=(6, 5))
    for (subject, tangents), (histogram, plane) in zip(measured, rows, strict=True):
        c = float(np.exp(subject.run.params["curv"]))
        points = {kind: np.asarray(_lift(rows, c)) for kind, rows in tangents.items()}
        distances = {
            kind: np.sqrt(c) * np.asarray(lorentz.distance0(jnp.asarray(own), c))
            for kind, own in points.items()
        }
        every = np.concatenate(list(points.values()))
        reduced = disc.to_disc(every, c, options.seed)
        parts = np.split(reduced, np.cumsum([len(own) for own in points.values()])[:-1])
        bins = np.linspace(0, max(float(own.max()) for own in distances.values()) * 1.02, 61)
        for (kind, own), at in zip(distances.items(), parts, strict=True):
            shares = np.full(len(own), 100 / len(own))
            label = f"{kind}: mean {own.mean():.3g}"
            histogram.hist(
                own, bins=bins, weights=shares, color=KINDS[kind], alpha=0.55, label=label
            )
            plane.plot(
                *at.T, ".", color=KINDS[kind], markersize=2.5, alpha=0.5, label=kind,
                markeredgewidth=0,
            )  # fmt: skip
            table.add(subject.label, kind, own, *at.T)
        histogram.set_title(f"{subject.label}, learned curvature −{c:.3g}", loc="left")
        histogram.set_xlabel("distance from the origin, times √c")
        histogram.set_ylabel("share (%)")
        histogram.legend(loc="best")
        disc.prepare(plane, reduced)
        plane.set_title("Poincaré disc, by HoroPCA", loc="left")
    shows = (
        f"Captions, clips and frames of the {options.split} split, lifted into hyperbolic space as"
        " the model's partial order loss lifts them. The nearer to the origin (+), the more general"
        " an embedding is meant to be; grey circles are at the distances they say."
    )
    return Drawing(figure, table.columns, shows + left_out)


def sample(subject: Subject, options: Options) -> dict[str, Float[np.ndarray, "N H"]]:
    """As many captions, clips and frames, scaled, as tangent vectors at the origin.

    Raises:
      NotApplicable: for a model without a lift.
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
