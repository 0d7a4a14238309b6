"""Sets of points in both models: centroids, Fréchet means, distances of all pairs."""

import functools

import ball_reference as ball
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from compiled import lorentz, poincare, statistics
from derivatives import check_curvature, check_slopes, check_two_derivatives
from mpmath import mpf
from reference import BOUND, DTYPES, POINTS, PRECISIONS, SLOW_FLOAT64, assert_close, pairs

from hlformer_jax import nn
from hlformer_jax.ops.manifolds import Lorentz

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.slow  # it takes seconds
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
        # The effect of rounding the time components on a difference of squares.
        largest = float(points[i, :, 0].max()) ** 2
        bound = max(BOUND[dtype], float(jnp.finfo(dtype).eps * c[i]) * largest)
        for m in range(2):
            want = reference.centroid(exact, reference.vector(weights[m]), curvature)
            assert_close(got[i, m], want, bound, (i, m))


@pytest.mark.parametrize("dtype", SLOW_FLOAT64)
def test_centroid_of_equal_points_and_scaled_weights(dtype):
    x = POINTS[0].astype(dtype)
    points = lorentz.from_space(x, 2.0)
    copies = jnp.stack([points] * 4, axis=-2)
    rtol = 1e3 * float(jnp.finfo(dtype).eps)  # eps · c x_time²
    np.testing.assert_allclose(lorentz.centroid(copies, c=2.0)[:, 0], points, rtol=rtol)
    weights = jnp.asarray([[0.1, 0, 2, 1, 1, 1], [0, 0, 0, 1, 0, 0]], dtype)
    want = lorentz.centroid(points, weights, 2.0)
    np.testing.assert_allclose(want[1], points[3], rtol=rtol)
    for scale in (1e-15, 1e15):
        scaled = lorentz.centroid(points, weights * jnp.asarray(scale, dtype), 2.0)
        np.testing.assert_allclose(scaled, want, rtol=rtol)


def test_centroid_of_zero_weights_is_the_origin():
    points = lorentz.from_space(POINTS[0])
    weights = jnp.zeros((1, 6))
    np.testing.assert_array_equal(lorentz.centroid(points, weights)[0], np.eye(6)[0])
    gradient = jax.jit(jax.jacrev(lorentz.centroid, argnums=(0, 1)))(points, weights)
    assert all(jnp.isfinite(array).all() for array in gradient)


def _far_points(kind, radius, dtype):
    """Return four points, at least one of them at this distance from the origin."""
    generic = np.random.default_rng(0).normal(size=(4, 3))
    middle = np.array([0.6, -0.64, 0.48])
    space = {
        "one": np.sinh(radius) * np.tile(middle, (4, 1)),
        "nearly one": np.sinh(radius) * (middle + 1e-6 * generic),
        "near": np.sinh(radius) * (middle + 1e-3 * generic),
        "one far": np.sinh([radius, 1, 1, 1])[:, None] * generic,
        "around the origin": np.sinh(radius) * generic * np.array([1, 1e-3, 1, 1])[:, None],
    }[kind]
    return space.astype(dtype)


@jax.jit
def _along_centroid(x, weights, c, cotangent):
    mean = lorentz.centroid(lorentz.from_space(x, c), weights[None], c)[0, 1:]
    return jnp.vdot(mean, cotangent), mean


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("radius", [12.0, 30.0])
@pytest.mark.parametrize("kind", ["one", "nearly one", "near", "one far", "around the origin"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_centroid_of_distant_points_against_80_digits(dtype, kind, radius):
    x, c = _far_points(kind, radius, dtype), np.asarray(1.25, dtype)
    weights, cotangent = np.array([0.5, 2, 0.7, 1.3], dtype), np.array([0.8, -0.3, 0.5], dtype)
    bound = BOUND[dtype]

    def exact(x, weights, c):
        rows = [[reference.time(row, c), *row] for row in (x[i : i + 3] for i in (0, 3, 6, 9))]
        return reference.centroid(rows, weights, c)[1:]

    inputs = [reference.vector(np.ravel(array)) for array in (x, weights, c)]
    want = exact(*inputs[:2], inputs[2][0])
    got, mean = jax.grad(_along_centroid, (0, 1, 2), has_aux=True)(x, weights, c, cotangent)
    assert_close(mean, want, bound, kind)
    size = reference.norm(want) * reference.norm(reference.vector(cotangent))
    for index, gradient in enumerate(got):
        slopes = []
        for i, number in enumerate(inputs[index]):
            ends = []
            for step in (mpf(10) ** -30, -(mpf(10) ** -30)):
                moved = [list(numbers) for numbers in inputs]
                moved[index][i] = number * (1 + step)
                mean = exact(*moved[:2], moved[2][0])
                ends.append(reference.dot(mean, reference.vector(cotangent)))
            slopes.append((ends[0] - ends[1]) / (2 * mpf(10) ** -30 * number))
        # Derivatives in the weights and in c may cancel almost entirely.
        scale = reference.norm(slopes) if index == 0 else size
        gap = [a - b for a, b in zip(reference.vector(np.ravel(gradient)), slopes, strict=True)]
        assert reference.norm(gap) <= bound * scale, index


def _wide_centroid(space, weights):
    """Return the centroid of thousands of points in 80 digits, column by column."""
    rows = [reference.vector(row) for row in space]
    weights = np.ones(len(space)) if weights is None else weights[0]
    weights = reference.vector(weights)
    return reference.centroid([[reference.time(r, mpf(1)), *r] for r in rows], weights, mpf(1))


@pytest.mark.parametrize("dtype", SLOW_FLOAT64)
@pytest.mark.parametrize(
    "count", [1, 1000, *(pytest.param(n, marks=pytest.mark.slow) for n in (32, 20_000))]
)
def test_exact_centroid_of_many_points_keeps_the_error_bound(dtype, count):
    radius = 25
    rng = np.random.default_rng(count)
    directions = rng.normal(size=(2, 6))
    copies = np.tile(
        (radius * directions[0] / np.linalg.norm(directions[0])).astype(dtype), (count, 1)
    )
    cluster = (copies + 1e-3 * rng.normal(size=copies.shape)).astype(dtype)
    spread = rng.normal(size=(count, 6))
    spread = (spread * rng.uniform(0, radius, (count, 1)) / np.linalg.norm(spread)).astype(dtype)
    weights = rng.uniform(0, 1, (1, count)).astype(dtype)
    kinds = [(space, w) for space in (copies, cluster, spread) for w in (None, weights)]
    # 80 digits of 20,000 points take seconds for each kind.
    for space, w in kinds if count < 20_000 else kinds[3:5]:
        got = lorentz.centroid(lorentz.from_space(space), w)
        assert_close(got[0], _wide_centroid(space, w), BOUND[dtype], (count, radius))


@pytest.mark.parametrize("count", [32, 1000])
def test_product_centroid_keeps_its_error_bound(count):
    space = np.full((count, 2), 16 / np.sqrt(2), np.float32)
    points = lorentz.from_space(space)
    got = lorentz.centroid(points, exact=False)
    error = reference.relative_error(got[0], _wide_centroid(space, None))
    assert error <= count * np.finfo(np.float32).eps * float(points[0, 0]) ** 2


@pytest.mark.parametrize("count", [1, 32])
def test_centroid_norm_has_lower_bound(count):
    # √c x_time is |x_space| in float32, and the difference of their squares 0.
    points = lorentz.from_space(np.full((count, 1), 1e5, np.float32))
    assert (points[:, 0] == points[:, 1]).all()
    got = lorentz.centroid(points, exact=False)
    np.testing.assert_allclose(got[0], points[0], rtol=count * np.finfo(np.float32).eps)


@pytest.mark.parametrize(("c", "radius"), [(1.0, 31.8), (1e-6, 24)])
def test_attention_of_distant_points_has_finite_gradients(c, radius):
    directions = np.array([[0.6, -0.64, 0.48], [0.48, 0.6, 0.64], [-0.8, 0, 0.6]], np.float32)
    u, c = jnp.asarray(directions * np.float32(radius / np.sqrt(c))), jnp.float32(c)

    def total(points, c):
        return jnp.sum(nn.attention(Lorentz(c), points, points, points, 1.3))

    for slope in jax.jit(jax.grad(total, (0, 1)))(lorentz.exp_map0(u, c), c):
        assert np.isfinite(slope).all()


def test_both_centroids_have_equal_gradients():
    points, rng = lorentz.from_space(POINTS[0]), np.random.default_rng(0)
    weights = rng.uniform(size=(3, 6))
    cotangent = rng.normal(size=(3, 6))

    def total(space, weights, c, exact):
        return jnp.vdot(
            cotangent, lorentz.centroid(lorentz.from_space(space, c), weights, c, exact)
        )

    arguments = points[:, 1:], weights, jnp.asarray(0.7)
    gradient = jax.jit(jax.grad(total, (0, 1, 2)), static_argnums=3)
    for actual, expected in zip(
        *(gradient(*arguments, exact) for exact in (True, False)), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


def _two_sets(dtype, dim, rng):
    """Return sets with pairs that are near, equal, far out, and at the origin."""
    x = rng.normal(size=(2, 7, dim)) * np.array([1e-3, 0.1, 1, 1, 3, 8, 0])[:, None] / dim**0.5
    y = rng.normal(size=(2, 9, dim)) / dim**0.5
    y[:, :5], y[:, 7] = x[:, :5] * (1 + 1e-6), -x[:, 5]
    y[:, 3] = x[:, 3]
    return x.astype(dtype), y.astype(dtype)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(("dtype", "dim"), PRECISIONS)
def test_pairwise_distances_are_as_exact_as_distances(dtype, dim):
    x, y = _two_sets(dtype, dim, np.random.default_rng(dim))
    c = np.array([0.3, 5.0], dtype)
    a, b = lorentz.from_space(x, c[:, None]), lorentz.from_space(y, c[:, None])
    got = lorentz.pairwise_distance(a, b, c)
    assert got.shape == (2, 7, 9) and got.dtype == dtype
    for i, j, k in np.ndindex(got.shape):
        if np.array_equal(x[i, j], y[i, k]):
            assert got[i, j, k] == 0
            continue
        start, end = reference.vector(x[i, j]), reference.vector(y[i, k])
        exact = reference.distance(start, end, mpf(float(c[i])))
        assert_close(got[i, j, k], exact, BOUND[dtype], (i, j, k))


@pytest.mark.slow  # it takes seconds
def test_pairwise_distances_by_product_state_their_error():
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(5, 1000)).astype(np.float32) / 100 for _ in range(2))
    y = y + x * rng.uniform(0.5, 1.2, (5, 1)).astype(np.float32)  # some nearer, some farther
    for size in (0.1, 1, 8):
        a, b = np.float32(size) * x, np.float32(size) * y
        got = lorentz.pairwise_distance(lorentz.from_space(a), lorentz.from_space(b))
        for j, k in np.ndindex(got.shape):
            exact = reference.distance(reference.vector(a[j]), reference.vector(b[k]), mpf(1))
            assert_close(got[j, k], exact, BOUND["float32"], (size, j, k))


def _two_sets_of_the_ball(dtype, dim):
    """Return sets with pairs that are near, equal, tiny, far out, and at the origin."""
    rng = np.random.default_rng(dim)
    p = rng.normal(size=(2, 8, dim)) / dim**0.5
    p *= np.array([1e-30, 1e-19, 1e-3, 0.3, 0.5, 0.6, 0.6, 0])[:, None]
    q = rng.normal(size=(2, 9, dim)) / dim**0.5 / 2
    q[:, :6], q[:, 7] = p[:, :6] * (1 + 1e-5), -p[:, 5]
    q[:, 3] = p[:, 3]
    return p.astype(dtype), q.astype(dtype)


@pytest.mark.parametrize("dim", [3, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", SLOW_FLOAT64)
def test_pairwise_distances_of_the_ball_state_their_error(dtype, dim):
    p, q = _two_sets_of_the_ball(dtype, dim)
    c = np.array([0.3, 2.5 / 4], dtype)
    got = poincare.pairwise_distance(p, q, c)
    assert got.shape == (2, 8, 9) and got.dtype == dtype
    bound = BOUND[dtype]
    for i, j, k in np.ndindex(got.shape):
        a, b = reference.vector(p[i, j]), reference.vector(q[i, k])
        want = ball.distance(a, b, mpf(float(c[i])))
        norms = max(map(float, map(reference.norm, (a, b))))
        allowed = max(bound, 16 * np.finfo(dtype).eps / (1 - float(c[i]) ** 0.5 * norms))
        if want < 1e-34 and dtype == "float32":  # may count as 0, see `length`
            assert 0 <= got[i, j, k] < 2e-34
            continue
        assert abs(float(got[i, j, k]) - want) <= allowed * want, (i, j, k)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _total_and_slopes(by_rows, on_hyperboloid, cotangent, *arguments):
    """Return the weighted sum of pairwise distances and its gradients, by rows or by products."""
    model = lorentz if on_hyperboloid else poincare

    def total(x, y, c):
        if on_hyperboloid:
            x, y = (lorentz.from_space(points, c[:, None]) for points in (x, y))
        if by_rows:
            distances = model.distance(x[:, :, None], y[:, None], c[:, None, None])
        else:
            distances = model.pairwise_distance(x, y, c)
        return jnp.vdot(cotangent, distances)

    return jax.value_and_grad(total, (0, 1, 2))(*arguments)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("is_crowded", [False, True])
@pytest.mark.parametrize(
    "model", [lorentz, pytest.param(poincare, marks=pytest.mark.slow)], ids=["lorentz", "poincare"]
)
def test_gradients_of_pairwise_and_single_distances_agree(model, is_crowded):
    if model is lorentz:
        x, y = _two_sets("float64", 3, np.random.default_rng(0))
    else:
        x, y = (points[:, 2:] for points in _two_sets_of_the_ball("float64", 3))
    if is_crowded:  # more near pairs than the function has room for
        x = x[:, :1] * (1 + 1e-7 * np.arange(x.shape[1]))[:, None]
        y = x[:, :1] * (1 + 1e-5 * np.arange(y.shape[1]))[:, None]
    c = np.array([0.3, 0.6 if model is poincare else 5.0])
    cotangent = np.random.default_rng(1).normal(size=(2, x.shape[1], y.shape[1]))

    of_pairs, of_rows = (
        _total_and_slopes(rows, model is lorentz, cotangent, x, y, c) for rows in (False, True)
    )
    for actual, expected in zip(jax.tree.leaves(of_pairs), jax.tree.leaves(of_rows), strict=True):
        assert np.isfinite(actual).all()
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_second_derivatives_of_pairwise_distances():
    x, y = np.random.default_rng(2).normal(size=(2, 3, 4))

    def function(x, y, c):
        return lorentz.pairwise_distance(lorentz.from_space(x, c), lorentz.from_space(y, c), c)

    check_curvature(function, (x, y[:2], jnp.asarray(0.7)))
    p, q = np.random.default_rng(2).uniform(-0.5, 0.5, size=(2, 3, 3))
    check_two_derivatives(poincare.pairwise_distance, (p, q[:2], jnp.asarray(0.7)))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_pairwise_distances_take_time_and_memory_of_a_product():
    a = jax.ShapeDtypeStruct((256, 129), jnp.float32)
    gradient = jax.grad(lambda x, y: lorentz.pairwise_distance(x, y).sum(), (0, 1))
    used = jax.jit(gradient).lower(a, a).compile().memory_analysis().temp_size_in_bytes
    assert used < 20 * 256 * 256 * 4 + 30 * 1024 * 129 * 4  # broadcasting would take 348 MB
    with pytest.raises(ValueError, match="same number of coordinates, got 4 and 3"):
        lorentz.pairwise_distance(jnp.ones((2, 5)), jnp.ones((2, 4)))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(
    "check", [check_slopes, pytest.param(check_curvature, marks=pytest.mark.slow)]
)
def test_pairwise_squared_distances_equal_single_ones(check):
    x, y = POINTS[:2].reshape(2, 2, 3, 5)
    y = np.concatenate([y, x[:, :1] * (1 + 1e-9), x[:, :1]], axis=1)
    c = np.array([0.5, 2.0])
    a, b = lorentz.from_space(x, c[:, None]), lorentz.from_space(y, c[:, None])

    def of_rows(model, x, y):
        return model.squared_distance(x[:, :, None], y[:, None], c[:, None, None])

    want = of_rows(lorentz, a, b)
    got = lorentz.pairwise_squared_distance(a, b, c)
    np.testing.assert_allclose(got, want, rtol=1e-11)
    assert got[0, 0, -1] == 0
    p, q = (poincare.from_lorentz(points, c[:, None]) for points in (a, b))
    got = poincare.pairwise_squared_distance(p, q, c)
    np.testing.assert_allclose(got, of_rows(poincare, p, q), rtol=1e-11)
    check(poincare.pairwise_squared_distance, (p, q, c))


@pytest.mark.usefixtures("unchecked")
def test_weights_without_an_axis_of_centroids_are_refused():
    points = lorentz.from_space(POINTS)
    for shape in ((3, 6), (6,), (3, 1, 5)):
        with pytest.raises(ValueError, match="M = 1") as refusal:
            lorentz.centroid(points, jnp.ones(shape))
        assert str(shape) in str(refusal.value) and str(points.shape) in str(refusal.value)


@pytest.mark.usefixtures("unchecked")
def test_weights_that_are_complex_numbers_or_lists_are_refused():
    points, weights = lorentz.from_space(POINTS[0]), np.ones((1, 6))
    for wrong in (weights.astype(complex), weights.tolist()):
        with pytest.raises(TypeError):
            lorentz.centroid(points, wrong)


C = np.array([0.3, 1.0, 2.5])


def _weighted(size, dtype="float64"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 6, 4))
    x[:, 4] = x[:, 3] * (1 + 1e-7)  # near
    return (x * size).astype(dtype), rng.uniform(0, 1, size=(3, 2, 6)).astype(dtype)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(
    ("dtype", "bound"),
    [("float32", 1e-5), pytest.param("float64", 1e-13, marks=pytest.mark.slow)],
)
def test_weighted_logarithms_at_the_mean_cancel(dtype, bound):
    c = C.astype(dtype)

    @jax.jit
    def excess(x, w):
        points = lorentz.exp_map0(x, c[:, None])
        mean = statistics.lorentz_mean(points, w, c)
        steps = lorentz.log_map(mean[:, :, None], points[:, None], c[:, None, None])
        total = jnp.einsum("bml,bmln->bmn", w, steps) / jnp.sum(w, -1, keepdims=True)
        length = lorentz.tangent_norm(mean, total, c[:, None])
        return mean, length, lorentz.distance(mean[:, :, None], points[:, None], c[:, None, None])

    for size in (1e-6, 0.3, 3.0):
        mean, length, distances = excess(*_weighted(size, dtype))
        assert mean.shape == (3, 2, 5) and mean.dtype == dtype
        # Far out, the space components of log_map are longer than the vector by √c x_time.
        stretch = np.asarray(mean[..., 0] * np.sqrt(c)[:, None])
        assert (length <= bound * stretch * np.sqrt(np.mean(distances**2, -1))).all(), size


@pytest.mark.slow
def test_mean_of_two_points_lies_on_their_geodesic():
    x, _ = _weighted(0.5)
    points = lorentz.exp_map0(x, C[:, None])
    two = points[:, :2]
    got = statistics.lorentz_mean(two, np.array([[[1.0, 1.0], [3.0, 1.0], [0.0, 2.0]]] * 3), C)
    want = [lorentz.geodesic(share, two[:, 0], two[:, 1], C) for share in (0.5, 0.25, 1.0)]
    np.testing.assert_allclose(got, np.stack(want, 1), rtol=1e-12, atol=1e-13)
    copies = jnp.broadcast_to(points[:, :1], points.shape)
    np.testing.assert_allclose(statistics.lorentz_mean(copies, None, C), points[:, :1], rtol=1e-13)


def test_gradients_of_the_mean_in_weights_of_any_scale():
    points = lorentz.exp_map0(jnp.asarray([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], jnp.float32))
    slopes = jax.jit(jax.grad(lambda weights: statistics.lorentz_mean(points, weights)[0, 1]))
    weights = jnp.asarray([[1.0, 2.0, 0.5]], jnp.float32)
    for scale in (1e-30, 1e30):
        np.testing.assert_allclose(scale * slopes(scale * weights), slopes(weights), rtol=1e-4)


@pytest.mark.slow
def test_poincare_mean_equals_lorentz_mean_and_translates():
    x, w = _weighted(0.3)
    points = lorentz.exp_map0(x, C[:, None])
    p = poincare.from_lorentz(points, C[:, None])
    got = statistics.poincare_mean(p, w, C)
    want = poincare.from_lorentz(statistics.lorentz_mean(points, w, C), C[:, None])
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)
    a = p[:, :1] * 0.7
    moved = statistics.poincare_mean(poincare.mobius_add(a, p, C[:, None]), w, C)
    np.testing.assert_allclose(moved, poincare.mobius_add(a, got, C[:, None]), rtol=1e-11)


@pytest.mark.slow
def test_mean_has_two_derivatives():
    x, w = _weighted(0.6)

    def mean(x, w, c):
        points = lorentz.from_space(x, c[:, None])
        return statistics.lorentz_mean(points, w, c)[..., 1:]

    check_two_derivatives(mean, (x, w + 0.1, jnp.asarray(C)))


@pytest.mark.slow
def test_loose_tolerance_bounds_the_distance_from_the_mean():
    x, w = _weighted(2.0)
    points = lorentz.exp_map0(x, C[:, None])
    mean = statistics.lorentz_mean(points, w, C)
    loose = statistics.lorentz_mean(points, w, C, tolerance=0.05)
    error = lorentz.distance(loose, mean, C[:, None])
    spread = lorentz.distance(mean[:, :, None], points[:, None], C[:, None, None])
    assert (error <= 0.06 * jnp.sqrt(jnp.max(spread**2, -1))).all()
