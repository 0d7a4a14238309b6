"""Linear maps of the ball, and parts of a point."""

import jax.numpy as jnp
import numpy as np
import pytest
from compiled import poincare

pytestmark = pytest.mark.usefixtures("float64")

C = np.array([0.3, 1.0, 2.5])


def test_the_linear_map_is_the_product_and_a_translation():
    rng = np.random.default_rng(0)
    p, matrix, bias = rng.uniform(-0.3, 0.3, (5, 3, 4)), rng.normal(size=(2, 4)), rng.normal(size=2)
    got = poincare.mobius_linear(matrix, p, bias, C)
    start = jnp.broadcast_to(poincare.exp_map0(jnp.tile(bias, (3, 1)), C), (5, 3, 2))
    want = poincare.mobius_add(poincare.mobius_matvec(matrix, p, C), start, C)
    np.testing.assert_allclose(got, want, rtol=1e-14)
    # HOVER's first layer: of the point of a feature no logarithm is needed.
    feature = rng.normal(size=(5, 3, 4)) / 2
    lifted = poincare.mobius_linear(np.eye(4), poincare.exp_map0(feature, C), np.zeros(4), C)
    np.testing.assert_allclose(lifted, poincare.exp_map0(feature, C), rtol=1e-13, atol=1e-15)


def test_parts_of_a_point_join_again_and_keep_the_expected_length():
    rng = np.random.default_rng(0)
    p = rng.uniform(-0.4, 0.4, size=(5, 3, 4))
    parts = poincare.split(p, (1, 3), C)
    assert [part.shape[-1] for part in parts] == [1, 3]
    np.testing.assert_allclose(poincare.concatenate(parts, C), p, rtol=1e-13)
    with pytest.raises(ValueError, match=r"dimensions \(1, 2\) of a point of dimension 4"):
        poincare.split(p, (1, 2), C)
    # The length of a normal vector of n coordinates is expected to be √2 Γ((n+1)/2) / Γ(n/2).
    v = rng.normal(size=(2, 20000, 8)) * 0.02
    tall = poincare.log_map0(poincare.concatenate(list(map(poincare.exp_map0, v))))
    ratio = np.linalg.norm(tall, axis=-1).mean() / np.linalg.norm(v[0], axis=-1).mean()
    np.testing.assert_allclose(ratio, 1, rtol=0.01)  # 0.0025 is its standard deviation over √n
