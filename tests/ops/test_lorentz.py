"""The Lorentz model against 80-digit arithmetic, its gradients where they are awkward, its laws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from compiled import lorentz
from derivatives import check_curvature
from lorentz_cases import (
    BOUND,
    CURVATURE,
    DTYPES,
    POINTS,
    PRECISIONS,
    SLOW_FLOAT64,
    assert_close,
    pairs,
    tangent,
)
from mpmath import mpf

from hlformer_jax.ops import attention

pytestmark = pytest.mark.usefixtures("float64")


# Every function, of the space components of two points (or of a point and a vector) and c.
OPS = {
    "inner": lambda x, y, c: lorentz.inner(lorentz.from_space(x, c), lorentz.from_space(y, c)),
    "project_tangent": lambda x, y, c: lorentz.project_tangent(
        lorentz.from_space(x, c), jnp.concatenate([y[..., :1], y], axis=-1), c
    ),
    "tangent_norm": lambda x, y, c: lorentz.tangent_norm(
        lorentz.from_space(x, c), tangent(lorentz.from_space(x, c), y, c), c
    ),
    "direction": lambda x, y, c: lorentz.direction(
        lorentz.from_space(x, c), lorentz.from_space(y, c), c
    )[1],
    "squared_distance": lambda x, y, c: lorentz.squared_distance(
        lorentz.from_space(x, c), lorentz.from_space(y, c), c
    ),
    "distance": lambda x, y, c: lorentz.distance(
        lorentz.from_space(x, c), lorentz.from_space(y, c), c
    ),
    "exp_map0": lambda x, y, c: lorentz.exp_map0(y, c),
    "log_map0": lambda x, y, c: lorentz.log_map0(lorentz.from_space(x, c), c),
    "exp_map": lambda x, y, c: lorentz.exp_map(
        lorentz.from_space(x, c), tangent(lorentz.from_space(x, c), y, c), c
    ),
    "log_map": lambda x, y, c: lorentz.log_map(
        lorentz.from_space(x, c), lorentz.from_space(y, c), c
    ),
    "transport": lambda x, y, c: lorentz.parallel_transport(
        lorentz.from_space(x, c),
        lorentz.from_space(y, c),
        tangent(lorentz.from_space(x, c), jnp.ones_like(x), c),
        c,
    ),
    "centroid": lambda x, y, c: lorentz.centroid(
        jnp.stack([lorentz.from_space(x, c), lorentz.from_space(y, c)], axis=-2), None, c
    ),
}
SMOOTH_EVERYWHERE = sorted(set(OPS) - {"distance", "tangent_norm", "direction"})


@pytest.mark.parametrize(("dtype", "dim"), PRECISIONS)
def test_values_on_near_collinear_antipodal_and_perpendicular_pairs(dtype, dim):
    x, y, c, kinds = pairs(dtype, dim)
    a, b = lorentz.from_space(x, c), lorentz.from_space(y, c)
    # Tangent vectors of at most norm 8.
    u = (y * np.minimum(1, 8 / np.linalg.norm(y, axis=-1, keepdims=True))).astype(dtype)
    v = np.asarray(tangent(a, u, c))
    got = {
        "squared_distance": lorentz.squared_distance(a, b, c),
        "distance": lorentz.distance(a, b, c),
        "log_map": lorentz.log_map(a, b, c),
        "tangent_norm": lorentz.tangent_norm(a, v, c),
        "exp_map": lorentz.exp_map(a, v, c),
        "parallel_transport": lorentz.parallel_transport(a, b, v, c),
    }
    assert all(value.dtype == dtype for value in got.values())
    eps = float(jnp.finfo(dtype).eps)
    for i, kind in enumerate(kinds):
        point, other, vector = map(reference.vector, (x[i], y[i], v[i, 1:]))
        curvature = mpf(float(c[i]))
        norm2 = reference.tangent_inner(point, vector, vector, curvature)
        want = {
            "squared_distance": reference.squared_distance(point, other, curvature),
            "distance": reference.distance(point, other, curvature),
            "log_map": reference.log_map(point, other, curvature),
            "tangent_norm": norm2**0.5,
            "exp_map": reference.exp_map(point, vector, curvature),
            "parallel_transport": reference.parallel_transport(point, other, vector, curvature),
        }
        for name in want:
            bound = BOUND[dtype]
            if name == "exp_map" and kind == "antipodal":
                # Through the origin: v's own rounding is worth this much.
                bound = max(bound, 4 * eps * float(c[i]) * float(a[i, 0]) ** 2)
            context = (name, kind, float(c[i]), np.linalg.norm(x[i]))
            assert_close(got[name][i], want[name], bound, context)


@pytest.mark.parametrize(("dtype", "dim"), PRECISIONS)
def test_values_at_the_origin_of_the_maps(dtype, dim):
    x, y, c, _ = pairs(dtype, dim)
    x, y, c = x[:12], y[:12], c[:12]
    a = lorentz.from_space(x, c)
    points, logs, moved = lorentz.exp_map0(x, c), lorentz.log_map0(a, c), tangent(a, y, c)
    for i in range(len(x)):
        point, other = reference.vector(x[i]), reference.vector(y[i])
        zero, curvature = [mpf(0)] * dim, mpf(float(c[i]))
        exact = reference.exp_map(zero, point, curvature)
        assert_close(a[i, 0], reference.time(point, curvature), BOUND[dtype], "time")
        assert_close(points[i], exact, BOUND[dtype], "exp_map0")
        # By itself, for near the origin the time component hides it.
        assert_close(points[i, 1:], exact[1:], BOUND[dtype], "exp_map0, space")
        assert_close(
            logs[i], reference.log_map(zero, point, curvature)[1:], BOUND[dtype], "log_map0"
        )
        want = reference.parallel_transport(zero, point, other, curvature)
        assert_close(moved[i], want, BOUND[dtype], "transport0")


@pytest.mark.parametrize("dtype", DTYPES)
def test_inner_products_are_exact_relative_to_their_terms(dtype):
    x, y, c, _ = pairs(dtype, 127)
    a, b = np.asarray(lorentz.from_space(x, c)), np.asarray(lorentz.from_space(y, c))
    pairwise, aligned = map(np.asarray, (lorentz.pairwise_inner(a, b), lorentz.inner(a, b)))
    assert pairwise.shape == (len(a), len(b))
    assert pairwise.dtype == aligned.dtype == dtype
    sign = np.r_[-1, np.ones(127)]
    want = (a * sign).astype(np.float64) @ b.astype(np.float64).T
    bound = 64 * float(jnp.finfo(dtype).eps) * a[:, :1] * b[:, 0]  # a sum of 127 terms
    assert (abs(pairwise - want) <= bound).all()
    assert (abs(aligned - np.diag(want)) <= np.diag(bound)).all()


AWKWARD = {
    "generic": ([0.3, -0.7, 0.2], [-0.4, 0.5, 0.9]),
    "far": ([3.0, -7.0, 2.0], [4.0, -5.0, 1.0]),
    "tiny": ([1e-9, 2e-9, 0.0], [0.0, -1e-9, 1e-9]),
    "origins": ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    "from the origin": ([0.0, 0.0, 0.0], [0.4, 0.5, -0.9]),
    "to the origin": ([0.4, 0.5, -0.9], [0.0, 0.0, 0.0]),
    "coincident": ([0.3, -0.7, 0.2], [0.3, -0.7, 0.2]),
    "coincident, far": ([3.0, -7.0, 2.0], [3.0, -7.0, 2.0]),
    "collinear": ([3.0, -6.0, 2.0], [1.5, -3.0, 1.0]),
    "antipodal": ([0.3, -0.7, 0.2], [-0.3, 0.7, -0.2]),
}


KINK = {"distance", "direction", "tangent_norm"}  # where a norm is 0


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_second_derivatives_wherever_the_function_is_smooth(name):
    smooth = ("generic", "far", "collinear", "antipodal") if name in KINK else AWKWARD
    x, y = (jnp.array(points) for points in zip(*(AWKWARD[kind] for kind in smooth), strict=True))
    c = jnp.full(len(x), 0.7)
    check_curvature(OPS[name], (x, y, c))


def grid(dtype, c):
    """Pairs of points from 0 over 1e-20 to where the exponential map stops, all with all."""
    direction = np.array([0.6, -0.64, 0.48])
    radii = [0, 1e-20, 1e-6, 0.05, 1, 80]
    rows = [r * s * direction for r in radii for s in (1, -1)] + [[1, 0, 0], [0, 80, 1e-9]]
    points = np.array(rows).astype(dtype)
    far = np.asarray(lorentz.exp_map0(points[-3:], c))[:, 1:]
    x = np.concatenate([points, far, points * np.asarray(1 + 1e-6, dtype)])
    count = len(x)
    first, second = np.repeat(x, count, axis=0), np.tile(x, (count, 1))
    vectors = np.tile(np.concatenate([points, points[-5:], points[-12:]])[:count], (count, 1))
    return first, second, vectors, np.full(len(first), c, dtype)


@pytest.mark.parametrize("dtype", SLOW_FLOAT64)
@pytest.mark.parametrize("name", OPS)
def test_values_and_gradients_are_finite_everywhere(name, dtype):
    x, y, vectors, c = map(np.concatenate, zip(grid(dtype, 0.1), grid(dtype, 10), strict=True))
    if name in ("project_tangent", "tangent_norm", "exp_map0", "exp_map"):
        y = vectors  # of norm up to 80: at the far points nothing can be moved farther
    args = (x, y, c)

    @jax.jit
    def everything(*args):
        value, pullback = jax.vjp(OPS[name], *args)
        _, forward = jax.jvp(OPS[name], args, tuple(map(jnp.ones_like, args)))
        return value, pullback(jnp.ones_like(value)), forward

    for array in jax.tree.leaves(everything(*args)):
        assert array.dtype == dtype
        assert jnp.isfinite(array).all()


TYPICAL = {"distance", "exp_map", "log_map", "centroid"}


@pytest.mark.parametrize(
    "name", [pytest.param(op, marks=() if op in TYPICAL else pytest.mark.slow) for op in OPS]
)
def test_jit_vmap_and_more_batch_axes_change_nothing(name):
    x, y, c, _ = pairs("float64", 3)
    rows, columns = 4, len(x) // 4
    with jax.disable_jit():
        want = OPS[name](*(v.reshape(rows, columns, *v.shape[1:]) for v in (x, y, c)))
    got = jax.jit(jax.vmap(OPS[name]))(x, y, c)
    assert got.shape == (rows * columns, *want.shape[2:])
    scale = 1e-13 * max(1, abs(np.asarray(want)).max())  # fused sums are rounded otherwise
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-11, atol=scale)


def test_bfloat16_is_computed_and_returned_in_float32():
    x, y = jnp.array(AWKWARD["generic"], jnp.bfloat16)
    for name in OPS:
        assert jax.eval_shape(OPS[name], x, y, 1.0).dtype == jnp.float32
    got = OPS["distance"](x, y, 1.0)
    assert got == OPS["distance"](x.astype(jnp.float32), y.astype(jnp.float32), 1.0)


def test_distance_is_symmetric_and_the_length_of_the_logarithm():
    c = CURVATURE
    a, b = lorentz.from_space(POINTS[0], c), lorentz.from_space(POINTS[1], c)
    distance = lorentz.distance(a, b, c)
    np.testing.assert_allclose(lorentz.distance(b, a, c), distance, rtol=1e-14)
    length = lorentz.tangent_norm(a, lorentz.log_map(a, b, c), c)
    np.testing.assert_allclose(length, distance, rtol=1e-12)
    squared = lorentz.squared_distance(a, b, c)
    np.testing.assert_allclose(squared, lorentz.inner(a - b, a - b), rtol=1e-10)
    np.testing.assert_allclose(squared, 4 / c * jnp.sinh(c**0.5 * distance / 2) ** 2, rtol=1e-12)
    pairwise = lorentz.pairwise_inner(a, b)
    np.testing.assert_allclose(-2 / c - 2 * jnp.diag(pairwise), squared, rtol=1e-10)


def test_projection_to_the_tangent_space_is_tangent_and_leaves_tangent_vectors():
    x, u, _ = POINTS
    a = lorentz.from_space(x)
    v = lorentz.project_tangent(a, jnp.concatenate([u[:, :1], u], axis=-1))
    assert (abs(lorentz.inner(a, v)) <= 1e-14 * a[:, 0] * jnp.linalg.norm(v, axis=-1)).all()
    np.testing.assert_allclose(lorentz.project_tangent(a, v), v, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(set(SMOOTH_EVERYWHERE) - {"project_tangent", "centroid"}))
def test_second_derivatives_at_tiny_points_are_finite_in_float32(op):
    far = jnp.array([0.48, -0.64, 0.6], jnp.float32)
    sizes = [0, 1e-30, 1e-23, 1e-20, 1e-18, 1e-10]
    x = jnp.asarray(np.outer(sizes, [0.6, -0.64, 0.48]), jnp.float32)
    both = lambda v, c: (OPS[op](v, far, c), OPS[op](far, v, c))
    curves = jax.jit(jax.vmap(jax.hessian(both), (0, None)))
    for c in (1.0, 1e4):
        for hessians in curves(x, jnp.float32(c)):
            assert np.isfinite(hessians).all()


def test_a_projection_to_the_tangent_space_that_overflows_is_infinite_with_its_sign():
    x = lorentz.exp_map0(jnp.asarray([31.0, 0, -31.0 / 3], jnp.float32))
    v = jnp.asarray([0, 1e30, 1, -1e30], jnp.float32)
    got = lorentz.project_tangent(x, v)
    np.testing.assert_array_equal(np.sign(got), [1, 1, 1, -1])
    assert np.isposinf(got[0]) and np.isposinf(got[1]) and np.isneginf(got[3]) and got[2] == 1
    small = lorentz.project_tangent(x, v / 1e30)
    assert np.isfinite(small).all()


def test_a_stale_time_is_seen_by_inner_products_and_by_its_error_alone():
    x, y = lorentz.from_space(POINTS[:2])
    stale = x.at[..., 0].multiply(1.5)
    np.testing.assert_allclose(lorentz.time_error(stale), 0.5)
    assert (lorentz.time_error(x) < 1e-15).all()
    np.testing.assert_array_equal(lorentz.distance(stale, y), lorentz.distance(x, y))
    np.testing.assert_array_equal(lorentz.centroid(stale), lorentz.centroid(x))
    for function in (lorentz.inner, lambda x, _: lorentz.centroid(x, exact=False)):
        assert (function(stale, y) != function(x, y)).any()
    attend = lambda x: attention.lorentz_attention(x[None], x[None], x[None], 1.0)
    assert (attend(stale) != attend(x)).any()
    np.testing.assert_array_equal(lorentz.project(stale), x)


def test_parts_of_a_point_are_points_and_join_again():
    c = CURVATURE
    x = lorentz.from_space(POINTS[0], c)
    parts = lorentz.split(x, (1, 3, 1), c)
    assert [part.shape[-1] for part in parts] == [2, 4, 2]
    np.testing.assert_array_equal(lorentz.concatenate(parts, c), x)
    for part in parts:
        assert (lorentz.time_error(part, c) < 1e-15).all()
    with pytest.raises(ValueError, match=r"dimensions \(1, 3\) of a point of dimension 5"):
        lorentz.split(x, (1, 3), c)
