"""Batch norm of points against its formulas: the centroid, distances from it, and a bias."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from derivatives import check_slopes
from mpmath import mpf
from reference import centroid, distance, vector

import hlformer_jax as hl
from hlformer_jax.nn import batch_statistics
from hlformer_jax.ops.manifolds import Lorentz, Poincare

C = 0.7
S = np.random.default_rng(0).normal(size=(6, 3)) + [1.0, 0.0, -0.5]
"""Space components of points around a centre away from the origin."""
SCALE, BIAS = 1.7, np.array([0.3, -0.2, 0.5])


@jax.jit
def lifted(space, s):
    return space.from_lorentz(hl.lorentz.from_space(s, space.c))


def points_of(space, s=S):
    return lifted(space, jnp.asarray(s))


@jax.jit
def normalised(space, x, mask=None):
    mean, variance = batch_statistics.batch_moments(space, x, mask)
    y = batch_statistics.batch_norm(space, x, mean, variance, SCALE, jnp.asarray(BIAS), 0.0)
    return mean, variance, y


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("model", [Lorentz, Poincare])
def test_moments_are_centroid_and_mean_squared_distance(model):
    space = model(C)
    mean, variance, _ = normalised(space, points_of(space))
    rows, c = [vector(s) for s in S], mpf(C)
    lifted = [[mpmath.sqrt(1 / c + mpmath.fsum(a * a for a in s)), *s] for s in rows]
    want = centroid(lifted, [mpf(1)] * len(rows), c)
    got = space.to_lorentz(mean)
    np.testing.assert_allclose(got, [float(a) for a in want], rtol=1e-12)
    squares = [distance(want[1:], s, c) ** 2 for s in rows]
    np.testing.assert_allclose(variance, float(mpmath.fsum(squares) / len(squares)), rtol=1e-12)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("model", [Lorentz, Poincare])
def test_batch_norm_scales_distances_about_the_bias(model):
    """The distance from the bias is the scaled distance from the mean; angles stay the same."""
    space = model(C)
    x = points_of(space)
    mean, variance, y = normalised(space, x)
    bias = points_of(space, BIAS[None])

    @jax.jit
    def seen_from(at, points):
        v = space.log_map(at, points)
        v = v / space.norm(at, v)[:, None]
        return space.distance(points, at), space.inner(at[:, None], v[:, None], v[None])

    (before, angles), (after, turned) = seen_from(mean[None], x), seen_from(bias, y)
    np.testing.assert_allclose(after, SCALE * before / np.sqrt(variance), rtol=1e-10)
    np.testing.assert_allclose(angles, turned, atol=1e-9)


@pytest.mark.usefixtures("float64")
def test_masked_points_have_no_effect_on_statistics():
    space, mask = Lorentz(C), jnp.asarray([[True] * 6, [False] * 6])
    x = points_of(space)
    both = jnp.stack([x, points_of(space, 9 * S)])
    got, want = normalised(space, both, mask), normalised(space, x)
    for masked, single in zip(got[:2], want[:2], strict=True):
        np.testing.assert_allclose(masked, single, rtol=1e-12)
    np.testing.assert_allclose(got[2][0], want[2], rtol=1e-10, atol=1e-12)

    @jax.jit
    def updated(x, mask):
        module = hl.nn.BatchNorm(space, momentum=0.8, epsilon=0.5)
        params = {"scale": 1.0, "bias": jnp.zeros(3)}
        stats = {"mean": jnp.asarray([0.3, 0.1, 0.0]), "variance": 2.0}
        variables = {"params": params, "batch_stats": stats}
        y, changed = module.apply(variables, x, False, mask, mutable=["batch_stats"])
        mean, variance, _ = want
        by_batch = batch_statistics.batch_norm(
            space, x, mean, variance + 0.5, 1.0, jnp.zeros(3), 0.0
        )
        centre = hl.lorentz.from_space(stats["mean"], C)
        running = module.apply(variables, x, True)
        by_running = batch_statistics.batch_norm(space, x, centre, 2.5, 1.0, jnp.zeros(3), 0.0)
        moved = space.geodesic(0.2, centre, want[0])
        return (y, running), (by_batch, by_running), changed["batch_stats"], moved

    got, expected, stats, moved = updated(both, mask)
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(stats["mean"], moved[1:], rtol=1e-12)
    np.testing.assert_allclose(stats["variance"], 0.8 * 2 + 0.2 * want[1], rtol=1e-12)


@pytest.mark.usefixtures("float64")
def test_nearly_flat_batch_norm_is_euclidean():
    space = Lorentz(1e-10)
    y = normalised(space, points_of(space))[2]
    u = S - S.mean(0)
    want = SCALE * u / np.sqrt(np.mean(np.sum(u * u, -1))) + BIAS
    np.testing.assert_allclose(y[:, 1:], want, rtol=1e-6, atol=1e-7)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
def test_batch_norm_has_derivatives():
    def evaluate(s, c):
        return normalised(Lorentz(c), hl.lorentz.from_space(s, c))

    check_slopes(evaluate, (S, np.asarray(C)))


@pytest.mark.slow  # it takes seconds
def test_module_learns_from_running_moments():
    space = Lorentz(jnp.float32(C))
    module, x = hl.nn.BatchNorm(space), points_of(space, S.astype("float32"))
    variables = jax.jit(lambda: module.init(jax.random.key(0), x, False))()
    np.testing.assert_array_equal(variables["batch_stats"]["mean"], np.zeros(3))
    train = jax.jit(lambda v: module.apply(v, x, False, mutable=["batch_stats"]))
    y, state = train(variables)
    mean, variance = jax.jit(batch_statistics.batch_moments)(space, x)
    # A tenth of the way to the mean, along the geodesic from the origin.
    tenth = jax.jit(lambda x: hl.lorentz.exp_map0(hl.lorentz.log_map0(x, C) / 10, C))(mean)
    np.testing.assert_allclose(state["batch_stats"]["mean"], tenth[1:], rtol=1e-5)
    np.testing.assert_allclose(state["batch_stats"]["variance"], 0.9 + variance / 10, rtol=1e-6)
    for _ in range(150):
        _, state = train(variables | state)
    evaluate = jax.jit(lambda v: module.apply(v, x, True))
    np.testing.assert_allclose(evaluate(variables | state), y, rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("model", [Lorentz, Poincare])
def test_batch_norm_is_finite_for_equal_and_distant_points(model):
    space = model(jnp.float32(1))
    point = jax.jit(space.exp_map0)
    far_points = point(jnp.asarray([[12.0, 0, 0], [-12.0, 0, 0], [0, 12.0, 0]]) / 2)
    equal_points = point(jnp.full((3, 3), 0.2))

    def total(x):
        y = hl.nn.BatchNorm(space).apply(
            {"params": {"scale": jnp.ones(()), "bias": jnp.zeros(3)}}, x, False,
            mutable=["batch_stats"],
        )[0]  # fmt: skip
        return jnp.sum(jnp.arcsinh(y)), y

    run = jax.jit(jax.grad(total, has_aux=True))
    for x in (far_points, equal_points):
        slope, y = run(x)
        assert np.isfinite(y).all() and np.isfinite(slope).all()
    _, narrow = jax.eval_shape(run, far_points.astype(jnp.bfloat16))
    assert narrow.dtype == jnp.float32
