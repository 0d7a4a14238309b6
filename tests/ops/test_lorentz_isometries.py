"""Boosts and rotations of the Lorentz model; `test_lorentz_maps` has boosts against 80 digits."""

import numpy as np
import pytest
from compiled import lorentz, poincare
from lorentz_cases import CURVATURE, POINTS

pytestmark = pytest.mark.usefixtures("float64")


def test_isometries_keep_distances_and_take_the_origin_where_they_say():
    c = CURVATURE
    a, x, y = (lorentz.from_space(points, c) for points in POINTS)
    close = lambda one, other, **more: np.testing.assert_allclose(one, other, rtol=1e-9, **more)
    close(
        lorentz.distance(lorentz.boost(a, x, c), lorentz.boost(a, y, c), c),
        lorentz.distance(x, y, c),
    )
    close(lorentz.boost(a, lorentz.origin(5, c), c), a)
    close(lorentz.boost(lorentz.antipode(a, c), a, c)[:, 1:], 0, atol=1e-12)
    back = lorentz.boost(a, lorentz.boost(lorentz.antipode(a, c), x, c), c)
    close(back, x, atol=1e-9)
    p, q = poincare.from_lorentz(a, c), poincare.from_lorentz(x, c)
    sum_ = poincare.to_lorentz(poincare.mobius_add(p, q, c), c)
    close(lorentz.boost(a, x, c)[2:4], sum_[2:4], atol=1e-5)  # as far as the ball tells
    matrix, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))
    turned = lorentz.rotate(matrix, x, c)
    close(lorentz.distance(turned, lorentz.rotate(matrix, y, c), c), lorentz.distance(x, y, c))
    close(turned[:, 0], x[:, 0])
    close(turned[:, 1:], x[:, 1:] @ matrix.T)


def test_a_matrix_that_is_no_rotation_maps_space_and_the_time_follows():
    x = lorentz.from_space(POINTS[0], CURVATURE)
    matrix = np.random.default_rng(0).normal(size=(5, 5))
    moved = lorentz.rotate(matrix, x, CURVATURE)
    np.testing.assert_allclose(moved[:, 1:], x[:, 1:] @ matrix.T, rtol=1e-13, atol=1e-14)
    assert (lorentz.time_error(moved, CURVATURE) < 1e-14).all()


@pytest.mark.usefixtures("unchecked")
def test_a_matrix_of_another_width_is_refused():
    with pytest.raises(ValueError, match="vectors of 4 and of 5 coordinates"):
        lorentz.rotate(np.eye(4), lorentz.origin(5))
