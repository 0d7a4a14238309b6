"""The Lorentzian centroid against 80-digit arithmetic, and its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from compiled import lorentz
from lorentz_cases import BOUND, DTYPES, POINTS, assert_close, pairs
from mpmath import mpf

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_centroid_values(dtype):
    x, y, c, _ = pairs(dtype, 3)
    space = np.stack([x, y, (x + y) / 2], axis=-2).astype(dtype)
    weights = np.array([[0.2, 0.5, 0.3], [3, 0, 1]], dtype)
    points = lorentz.from_space(space, c[:, None])
    got = lorentz.centroid(points, np.broadcast_to(weights, (len(x), 2, 3)), c)
    for i in range(len(x)):
        curvature = mpf(float(c[i]))
        rows = [reference.vector(row) for row in space[i]]
        exact = [[reference.time(row, curvature), *row] for row in rows]
        # A difference of squares: the rounding of the time components is worth this much.
        largest = float(points[i, :, 0].max()) ** 2
        bound = max(BOUND[dtype], float(jnp.finfo(dtype).eps * c[i]) * largest)
        for m in range(2):
            want = reference.centroid(exact, reference.vector(weights[m]), curvature)
            assert_close(got[i, m], want, bound, (i, m))


@pytest.mark.parametrize("dtype", DTYPES)
def test_centroid_of_equal_points_is_the_point_and_the_scale_of_weights_is_free(dtype):
    x = POINTS[0].astype(dtype)
    points = lorentz.from_space(x, 2.0)
    same = jnp.stack([points] * 4, axis=-2)
    rtol = 1e3 * float(jnp.finfo(dtype).eps)  # eps · c x_time²
    np.testing.assert_allclose(lorentz.centroid(same, c=2.0)[:, 0], points, rtol=rtol)
    weights = jnp.asarray([[0.1, 0, 2, 1, 1, 1], [0, 0, 0, 1, 0, 0]], dtype)
    want = lorentz.centroid(points, weights, 2.0)
    np.testing.assert_allclose(want[1], points[3], rtol=rtol)
    for scale in (1e-15, 1e15):
        scaled = lorentz.centroid(points, weights * jnp.asarray(scale, dtype), 2.0)
        np.testing.assert_allclose(scaled, want, rtol=rtol)


def test_centroid_without_any_weight_is_the_origin_with_finite_gradients():
    points = lorentz.from_space(POINTS[0])
    weights = jnp.zeros((1, 6))
    np.testing.assert_array_equal(lorentz.centroid(points, weights)[0], np.eye(6)[0])
    gradient = jax.jit(jax.jacrev(lorentz.centroid, argnums=(0, 1)))(points, weights)
    assert all(jnp.isfinite(array).all() for array in gradient)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 32, 1000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_the_exact_centroid_of_many_points_keeps_the_bound_of_the_module(dtype, count):
    radius = 25
    rng = np.random.default_rng(count)
    way = rng.normal(size=(2, 6))
    same = np.tile((radius * way[0] / np.linalg.norm(way[0])).astype(dtype), (count, 1))
    near = (same + 1e-3 * rng.normal(size=same.shape)).astype(dtype)
    spread = rng.normal(size=(count, 6))
    spread = (spread * rng.uniform(0, radius, (count, 1)) / np.linalg.norm(spread)).astype(dtype)
    weights = rng.uniform(0, 1, (1, count)).astype(dtype)
    kinds = [(space, w) for space in (same, near, spread) for w in (None, weights)]
    # Of so many points the 80 digits take seconds for each kind.
    for space, w in kinds if count < 20_000 else kinds[3:5]:
        got = lorentz.centroid(lorentz.from_space(space), w)
        assert_close(got[0], _wide_centroid(space, w), BOUND[dtype], (count, radius))


def _wide_centroid(space, weights):
    """The centroid of thousands of points in 40 digits or more, column by column."""
    rows = [reference.vector(row) for row in space]
    weights = np.ones(len(space)) if weights is None else weights[0]
    weights = reference.vector(weights)
    return reference.centroid([[reference.time(r, mpf(1)), *r] for r in rows], weights, mpf(1))


@pytest.mark.parametrize("count", [32, 1000])
def test_the_centroid_by_one_product_keeps_the_bound_that_it_states(count):
    space = np.full((count, 2), 16 / np.sqrt(2), np.float32)
    points = lorentz.from_space(space)
    got = lorentz.centroid(points, exact=False)
    error = reference.relative_error(got[0], _wide_centroid(space, None))
    assert error <= count * np.finfo(np.float32).eps * float(points[0, 0]) ** 2


@pytest.mark.parametrize("count", [1, 32])
def test_the_centroid_by_one_product_is_not_shorter_than_the_weights_where_nothing_is_left(count):
    # √c x_time is |x_space| in float32, and the difference of their squares 0.
    points = lorentz.from_space(np.full((count, 1), 1e5, np.float32))
    assert (points[:, 0] == points[:, 1]).all()
    got = lorentz.centroid(points, exact=False)
    np.testing.assert_allclose(got[0], points[0], rtol=count * np.finfo(np.float32).eps)


def test_the_exact_centroid_has_the_gradients_of_the_one_by_one_product():
    points, rng = lorentz.from_space(POINTS[0]), np.random.default_rng(0)
    weights = rng.uniform(size=(3, 6))
    cotangent = rng.normal(size=(3, 6))

    def total(space, weights, c, exact):
        return jnp.vdot(
            cotangent, lorentz.centroid(lorentz.from_space(space, c), weights, c, exact)
        )

    arguments = points[:, 1:], weights, jnp.asarray(0.7)
    gradient = jax.jit(jax.grad(total, (0, 1, 2)), static_argnums=3)
    for ours, theirs in zip(*(gradient(*arguments, exact) for exact in (True, False)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("unchecked")
def test_weights_without_an_axis_of_centroids_are_refused():
    points = lorentz.from_space(POINTS)
    for shape in ((3, 6), (6,), (3, 1, 5)):
        with pytest.raises(ValueError, match="M = 1 for one centroid") as refusal:
            lorentz.centroid(points, jnp.ones(shape))
        assert str(shape) in str(refusal.value) and str(points.shape) in str(refusal.value)


@pytest.mark.usefixtures("unchecked")
def test_a_curvature_broadcasts_to_the_sets_of_points_and_never_to_the_points():
    points = lorentz.from_space(POINTS)  # three sets of six
    for function in (
        lorentz.centroid,
        lambda x, w, c: lorentz.centroid(x, w, c, exact=False),
        lambda x, _, c: lorentz.pairwise_distance(x, x, c),
    ):
        traced = lambda x, c, function=function: function(x, None, c)
        assert jax.eval_shape(traced, points, jnp.ones(3)).shape[:1] == (3,)
        for wrong in ((6,), (3, 1), (1, 1), (3, 6)):
            with pytest.raises(ValueError, match="does not broadcast to the batch"):
                jax.eval_shape(traced, points, jnp.ones(wrong))


@pytest.mark.usefixtures("unchecked")
def test_complex_numbers_and_lists_are_refused_of_points_and_of_weights():
    points, weights = lorentz.from_space(POINTS[0]), np.ones((1, 6))
    for wrong in (lambda x: x.astype(complex), lambda x: x.tolist()):
        for arguments in ((wrong(points), weights), (points, wrong(weights))):
            with pytest.raises(TypeError):
                lorentz.centroid(*arguments)
        for function in (lorentz.pairwise_distance, lorentz.pairwise_inner):
            with pytest.raises(TypeError):
                function(wrong(points), points)
