"""Lifted embeddings lie where the model's own lift puts them."""

import numpy as np
import pytest

from hlformer_jax import models
from hlformer_jax.figures import hyperbolic
from hlformer_jax.figures.drawing import NotApplicable
from hlformer_jax.models import VideoEncoding


@pytest.mark.slow  # it compiles for seconds
def test_captions_are_lifted_as_the_loss_lifts_them(subject, options, monkeypatch):
    monkeypatch.setattr(hyperbolic, "EMBEDDINGS", 30)
    drawn = hyperbolic.draw([subject], options)
    run, split = subject.run, subject.split(options)
    table = {name: np.asarray(column) for name, column in drawn.table.items()}
    captions = np.concatenate(subject.encoder.captions(split, np.arange(len(split))))
    encoded = subject.encoder.videos(split, np.arange(len(split)))
    videos = VideoEncoding(encoded.clips, encoded.frames)
    lifted = models.lift(run.family.model, run.params, videos, captions)
    c = float(lifted.curvature)
    of_all = np.arccosh(np.sqrt(c) * np.asarray(lifted.captions)[:, 0])
    got = table["distance"][table["kind"] == "captions"]
    assert len(got) == 10
    assert all(np.abs(of_all - one).min() < 1e-3 * max(one, 1) for one in got)
    # On the disc nothing is farther out than it is: the projection keeps or shortens.
    radius = 2 * np.arctanh(np.hypot(table["x"], table["y"]))
    assert (radius <= table["distance"] + 1e-3).all()
    assert {kind: int((table["kind"] == kind).sum()) for kind in hyperbolic.KINDS} == dict.fromkeys(
        hyperbolic.KINDS, 10
    )


def test_a_model_without_a_lift_is_told(plain, trees, options):
    for other, name in ((plain, "GMMFormer"), (trees, "HOVER")):
        with pytest.raises(NotApplicable, match=f"{name} has no lift into hyperbolic space"):
            hyperbolic.draw([other], options)
