"""Videos encoded in parts: the same loss and gradient."""

import family
import jax
import numpy as np
import pytest
import tiny

SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("gmmformer_v2", "ms_sl", "dl_dkd", "shared curvature")
]


@pytest.mark.parametrize("name", ["dynamic", *SLOW])
def test_videos_encoded_in_parts_have_the_same_loss_and_gradient(name):
    _, (value, _), gradient = family.value_and_gradient(name, without_dropout=True)
    _, (other, _), in_parts = family.value_and_gradient(name, tiny.VIDEOS, without_dropout=True)
    # Sums are taken in another order: rounding of float32 through a network.
    np.testing.assert_allclose(other, value, rtol=1e-5)
    for one, several in zip(*map(jax.tree.leaves, (gradient, in_parts)), strict=True):
        np.testing.assert_allclose(several, one, rtol=0, atol=1e-4 * np.abs(one).max() + 1e-6)
