"""Laws of hyperbolic space in both models, and of sets of points, on draws of Hypothesis."""

import jax
import numpy as np
import pytest
from compiled import lorentz, poincare, statistics
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hlformer_jax.ops import attention
from hlformer_jax.ops import poincare as ball

pytestmark = pytest.mark.usefixtures("float64")

MODELS = {"lorentz": lorentz, "poincare": poincare}
drawn = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def numbers(*shape):
    return arrays(np.float64, shape, elements=st.floats(-1.25, 1.25, width=32))


curvatures = arrays(np.float64, (3,), elements=st.floats(0.125, 2.5, width=32))
TURN = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]


def _laws(name, vectors, share, c):
    """Return both sides of each law, for three points each and their curvatures.

    Each function is compiled once; one program of all laws would contain twenty-five distances.
    """
    model = MODELS[name]
    # In the ball a vector at the origin is half as long in coordinates.
    a, x, y, u, w = vectors if name == "lorentz" else vectors / 2
    a, x, y = (np.asarray(model.exp_map0(v, c)) for v in (a, x, y))
    zero = model.exp_map0(0 * u, c)
    v, w = model.transport0(x, u, c), model.transport0(x, w, c)

    def distance(x, y):
        return model.distance(x, y, c)

    def norm(x, v):
        return model.tangent_norm(x, v, c)

    move = lorentz.boost if name == "lorentz" else poincare.mobius_add
    turn = (lambda x: lorentz.rotate(TURN, x, c)) if name == "lorentz" else lambda p: p @ TURN.T
    log, length = model.log_map(x, y, c), distance(x, y)
    moved = model.parallel_transport(x, y, v, c)
    both = np.stack([x, y], axis=-2)
    middle = lorentz.centroid if name == "lorentz" else poincare.gyromidpoint
    laws = {
        "exp undoes log": (model.exp_map(x, log, c), y),
        "log undoes exp": (model.log_map(x, model.exp_map(x, v, c), c), v),
        "log undoes exp at the origin": (model.log_map0(model.exp_map0(u, c), c), u),
        "exp at the origin": (model.exp_map(zero, model.transport0(zero, u, c), c),
                              model.exp_map0(u, c)),
        "distances are symmetric": (distance(y, x), length),
        "a logarithm is as long as the distance": (norm(x, log), length),
        "the distance from the origin": (model.distance0(x, c), distance(zero, x)),
        "the squared Lorentzian distance": (
            model.squared_distance(x, y, c), 4 / c * np.sinh(np.sqrt(c) * length / 2) ** 2,
        ),
        "translations keep distances": (distance(move(a, x, c), move(a, y, c)), length),
        "a translation takes the origin": (move(a, zero, c), a),
        "translations are undone": (move(model.antipode(a), move(a, x, c), c)
                                    if name == "poincare"
                                    else move(model.antipode(a, c), move(a, x, c), c), x),
        "rotations keep distances": (distance(turn(x), turn(y)), length),
        "transport keeps lengths": (norm(y, moved), norm(x, v)),
        "transport is linear": (
            model.parallel_transport(x, y, v + 2 * w, c),
            moved + 2 * model.parallel_transport(x, y, w, c),
        ),
        "transport takes a geodesic along": (
            model.parallel_transport(x, y, log, c), -model.log_map(y, x, c),
        ),
        "transport is undone": (model.parallel_transport(y, x, moved, c), v),
        "transport from the origin": (
            model.parallel_transport(zero, y, model.transport0(zero, u, c), c),
            model.transport0(y, u, c),
        ),
        "a share of a geodesic": (
            distance(x, model.geodesic(share, x, y, c)), abs(share) * length,
        ),
        "a geodesic of unit speed": (
            distance(x, model.geodesic_unit(share, x, v, c)),
            np.where(np.any(u != 0, axis=-1), abs(share), 0),
        ),
        "the midpoint": (middle(both, None, c)[..., 0, :], model.geodesic(0.5, x, y, c)),
        "points that are limited": (
            model.distance0(model.limit_distance0(x, 0.7, c), c),
            np.minimum(model.distance0(x, c), 0.7),
        ),
    }  # fmt: skip
    if name == "poincare":
        add, gap = (lambda p, q: move(p, q, c)), lambda p: 1 - c * np.sum(p * p, -1)
        denominator = 1 + 2 * c * np.sum(x * y, -1) + c**2 * np.sum(x * x, -1) * np.sum(y * y, -1)
        laws |= {
            "the gyrocommutative law": (add(x, y), poincare.gyration(x, y, add(y, x), c)),
            "the gyroassociative law": (
                add(a, add(x, y)), add(add(a, x), poincare.gyration(a, x, y, c)),
            ),
            "gyrations keep lengths": (
                np.linalg.norm(poincare.gyration(a, x, y, c), axis=-1), np.linalg.norm(y, axis=-1),
            ),
            "the gap of a sum": (gap(add(x, y)), gap(x) * gap(y) / denominator),
            "multiples": (poincare.mobius_scalar_mul(3.0, a / 3, c), add(a / 3, add(a / 3, a / 3))),
            "the scale of the curvature": (
                poincare.distance(np.sqrt(c)[:, None] * x, np.sqrt(c)[:, None] * y) / np.sqrt(c),
                length,
            ),
        }  # fmt: skip
    triangle = distance(x, y) <= (distance(x, a) + distance(a, y)) * (1 + 1e-12) + 1e-12
    ends = (y, moved, model.exp_map(x, v, c), move(a, x, c), model.geodesic(share, x, y, c))
    on = lorentz.time_error(np.stack(ends[2:]), c[None]) if name == "lorentz" else 0
    return laws, triangle, on


@pytest.mark.slow  # it takes seconds
@drawn
@given(vectors=numbers(5, 3, 4), share=st.floats(-0.5, 1.5), c=curvatures)
@pytest.mark.parametrize("name", MODELS)
def test_laws_of_metric_geodesics_and_isometries(name, vectors, share, c):
    laws, triangle, off = _laws(name, vectors, share, c)
    for law, (left, right) in laws.items():
        # The coordinates of vectors and points are up to τ times as long as their norms.
        np.testing.assert_allclose(left, right, rtol=1e-10, atol=1e-11, err_msg=law)
    assert np.all(triangle) and np.all(np.asarray(off) < 1e-13)


_differential = jax.jit(lambda p, w, c: jax.jvp(lambda p: ball.to_lorentz(p, c), (p,), (w,))[1])


def _both_models(vectors, c):
    """Return results of the ball, converted to the Lorentz model, and results of that model."""
    p, q = (poincare.exp_map0(v / 2, c) for v in vectors[:2])
    v = poincare.transport0(p, vectors[2] / 2, c)
    a, b = poincare.to_lorentz(p, c), poincare.to_lorentz(q, c)

    # The differential of the conversion maps tangent vectors.
    def push_forward(p, w):
        return _differential(p, w, c)

    w = push_forward(p, v)
    return {
        "exp_map0": (poincare.to_lorentz(p, c), lorentz.exp_map0(vectors[0], c)),
        "log_map0": (2 * poincare.log_map0(p, c), lorentz.log_map0(a, c)),
        "distance": (poincare.distance(p, q, c), lorentz.distance(a, b, c)),
        "squared_distance": (
            poincare.squared_distance(p, q, c), lorentz.squared_distance(a, b, c),
        ),
        "log_map": (push_forward(p, poincare.log_map(p, q, c)), lorentz.log_map(a, b, c)),
        "tangent_norm": (poincare.tangent_norm(p, v, c), lorentz.tangent_norm(a, w, c)),
        "exp_map": (
            poincare.to_lorentz(poincare.exp_map(p, v, c), c), lorentz.exp_map(a, w, c),
        ),
        "parallel_transport": (
            push_forward(q, poincare.parallel_transport(p, q, v, c)),
            lorentz.parallel_transport(a, b, w, c),
        ),
        "boost": (poincare.to_lorentz(poincare.mobius_add(p, q, c), c), lorentz.boost(a, b, c)),
    }  # fmt: skip


@pytest.mark.slow  # it takes seconds
@drawn
@given(vectors=numbers(3, 3, 4), c=curvatures)
def test_ball_agrees_with_the_lorentz_model(vectors, c):
    for name, (from_ball, expected) in _both_models(vectors, c).items():
        np.testing.assert_allclose(from_ball, expected, rtol=1e-10, atol=1e-11, err_msg=name)


attend = jax.jit(lambda q, k, v, mask: (
    attention.lorentz_attention(q, k, v, 1.7, 0.3, mask=mask),
    attention.euclidean_attention(q, k, v, mask=mask),
))  # fmt: skip


@pytest.mark.slow  # it takes seconds
@drawn
@given(
    numbers(1, 6, 3),
    arrays(float, (1, 2, 6), elements=st.floats(0.1, 2)),
    st.permutations(range(6)),
)
def test_means_ignore_the_order_of_points(vectors, weights, order):
    points = np.asarray(lorentz.from_space(vectors))

    def sums(points, weights):
        return lorentz.centroid(points, weights, exact=False)

    for mean in (lorentz.centroid, sums, statistics.lorentz_mean):
        direct, permuted = mean(points, weights), mean(points[:, order], weights[..., order])
        np.testing.assert_allclose(direct, permuted, rtol=1e-11, atol=1e-12)


@pytest.mark.slow  # it takes seconds
@drawn
@given(
    numbers(3, 1, 2, 6, 3),
    arrays(bool, (1, 6)).filter(np.any),
    st.permutations(range(6)),
    numbers(6, 3),
)
def test_attention_ignores_the_order_of_keys_and_padding(vectors, mask, order, padding):
    query, key, value = (np.asarray(lorentz.from_space(v)) for v in vectors)
    want = attend(query, key, value, mask)
    permuted = attend(query, key[..., order, :], value[..., order, :], mask[:, order])
    pad = np.asarray(lorentz.from_space(padding))
    padded = (np.where(mask[0, :, None], x, pad) for x in (key, value))
    for results in (permuted, attend(query, *padded, mask)):
        for actual, expected in zip(results, want, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-12)
