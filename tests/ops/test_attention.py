"""Attention against NumPy, its two uses of the window, masks, head merges, and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import lorentz
from jax.test_util import check_grads

from hlformer_jax.ops import attention, windows

HEADS, LENGTH, DIM = 2, 5, 4


def _vectors(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def _points(seed, dtype=np.float64, scale=1.0):
    space = scale * _vectors(seed, 3, HEADS, LENGTH, DIM - 1)
    return lorentz.from_space(jnp.asarray(space, dtype))


def _mask():
    return np.arange(LENGTH)[None] < np.array([5, 3, 1])[:, None]


def _softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def test_euclidean_attention_equals_numpy(float64):
    query, key, value = (_vectors(seed, 3, HEADS, LENGTH, DIM) for seed in range(3))
    window = np.asarray(windows.attention_windows((2.0,), LENGTH, dtype=jnp.float64)[0])
    logits = window * (query @ np.swapaxes(key, -1, -2)) / np.sqrt(DIM)
    logits = logits + np.where(_mask(), 0, -10000.0)[:, None, None]
    ours = attention.euclidean_attention(query, key, value, window, _mask())
    np.testing.assert_allclose(ours, _softmax(logits) @ value, rtol=1e-12)


def test_a_single_query_attends_as_with_keys_and_values(float64):
    heads, width = 2, 6
    inputs, query = _vectors(0, 3, LENGTH, width), _vectors(1, 3, heads, DIM)
    maps = [
        attention.Projection(_vectors(n, width, heads, DIM), _vectors(n + 1, heads, DIM))
        for n in (2, 4)
    ]
    drop = jax.random.key(6), 0.4

    def single(query, inputs, maps):
        return attention.single_query_attention(query, inputs, *maps, _mask(), *drop)

    def plain(query, inputs, maps):
        key, value = (
            jnp.einsum("blh,hnd->bnld", inputs, x.kernel) + x.bias[None, :, None] for x in maps
        )
        one = query[:, :, None]
        attended = attention.euclidean_attention(one, key, value, None, _mask(), *drop)
        return attended[:, :, 0]

    def value_and_gradient(function):
        total = lambda *x: jnp.sum(jnp.sin(function(*x)))
        both = jax.jit(lambda *x: (function(*x), jax.grad(total, (0, 1, 2))(*x)))
        return both(query, inputs, maps)

    (value, gradient), (want, other) = map(value_and_gradient, (single, plain))
    np.testing.assert_allclose(value, want, rtol=1e-12, atol=1e-13)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), gradient, other
    )


@pytest.mark.parametrize("corrected", [False, True])
def test_lorentz_attention_equals_numpy(float64, corrected):
    query, key, value = (np.asarray(_points(seed)) for seed in range(3))
    log_window = np.asarray(windows.log_attention_windows((2.0,), LENGTH, dtype=jnp.float64)[0])
    inner = query[..., 1:] @ np.swapaxes(key[..., 1:], -1, -2)
    inner -= query[..., :1] @ np.swapaxes(key[..., :1], -1, -2)
    logits = (2 + 2 * inner) / 1.7 + 0.3
    logits = logits + log_window if corrected else logits * np.exp(log_window)
    logits = np.where(_mask()[:, None, None], logits, -1e18)
    mean = _softmax(logits) @ value
    norm = np.sqrt(mean[..., :1] ** 2 - np.sum(mean[..., 1:] ** 2, -1, keepdims=True))
    use = {"log_window": log_window} if corrected else {"window": np.exp(log_window)}
    attend = jax.jit(attention.lorentz_attention)
    ours = attend(query, key, value, 1.7, 0.3, mask=_mask(), **use)
    np.testing.assert_allclose(ours, mean / norm, rtol=1e-11)


def _mean_distance_attended(**window):
    """Mean |i - j| that attention gives to equally distant keys: what the window does alone."""
    length = 32
    rng = np.random.default_rng(0)
    points = lorentz.from_space(jnp.asarray(rng.normal(size=(1, length, 3)), jnp.float32))
    positions = np.arange(length)
    # Values whose centroid tells the attention weights: far apart on one axis each.
    marked = lorentz.from_space(
        1e-3 * np.eye(length * 3, dtype=np.float32)[::3].reshape(-1, 1, length, 3)
    )

    @jax.jit
    @jax.vmap
    def attended(marked):
        return attention.lorentz_attention(points, points, marked, jnp.float32(2), **window)

    weights = np.asarray(attended(marked)[:, 0, :, 1]).T / 1e-3
    distance = np.abs(positions[:, None] - positions[None])
    return float((weights * distance).sum(-1).mean() / weights.sum(-1).mean())


def test_the_released_window_favours_far_positions_and_the_corrected_one_near_ones():
    log_window = windows.log_attention_windows((2.0,), 32)[0]
    uniform = _mean_distance_attended()
    assert _mean_distance_attended(window=jnp.exp(log_window)) > 1.2 * uniform
    assert _mean_distance_attended(log_window=log_window) < 0.8 * uniform


def test_masked_keys_change_nothing():
    points = _points(0, np.float32)
    other = points.at[:, :, 3:].set(_points(9, np.float32)[:, :, 3:])
    mask = np.array([[True, True, True, False, False]] * 3)

    @jax.jit
    def attend(kv):
        return attention.lorentz_attention(
            points, kv, kv, jnp.float32(2), mask=mask
        ), attention.euclidean_attention(points, kv, kv, mask=mask)

    for kept, moved in zip(attend(points), attend(other), strict=True):
        np.testing.assert_array_equal(kept, moved)


def test_a_row_without_any_real_key_stays_finite():
    points, mask = _points(0, np.float32), np.zeros((3, LENGTH), bool)

    def total(points):
        scale, bias = jnp.asarray(2.0), jnp.asarray(0.0)
        lorentzian = attention.lorentz_attention(points, points, points, scale, bias, mask=mask)
        return jnp.sum(lorentzian) + jnp.sum(
            attention.euclidean_attention(points, points, points, mask=mask)
        )

    value, gradient = jax.jit(jax.value_and_grad(total))(points)
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))


def test_a_head_merge_that_stays_on_the_hyperboloid():
    points = _points(4, np.float32)
    tangent = jax.jit(attention.merge_heads_on_hyperboloid)(points)
    assert tangent.shape == (3, LENGTH, HEADS * (DIM - 1))
    back = lorentz.exp_map0(tangent)
    space = np.moveaxis(np.asarray(points[..., 1:]), 1, 2).reshape(3, LENGTH, -1)
    np.testing.assert_allclose(back[..., 1:], space, rtol=1e-5, atol=1e-6)
    # The merged time follows from the heads': t^2 = sum t_i^2 - (N - 1).
    time = np.sqrt(np.sum(np.square(points[..., 0]), axis=1) - (HEADS - 1))
    np.testing.assert_allclose(back[..., 0], time, rtol=1e-5)


def test_the_released_head_merge_is_its_formula(float64):
    points = np.asarray(_points(4))
    joined = np.moveaxis(points, 1, 2).reshape(3, LENGTH, -1)
    time = joined[..., :1]
    expected = joined[..., 1:] * np.arccosh(time) / np.sqrt(time**2 - 1)
    np.testing.assert_allclose(attention.concatenate_heads_released(points), expected, rtol=1e-11)


@pytest.mark.parametrize("merge", ["concatenate_heads_released", "merge_heads_on_hyperboloid"])
def test_merging_heads_at_the_origin_has_a_finite_gradient(merge):
    origin = lorentz.from_space(jnp.zeros((HEADS, LENGTH, DIM - 1)))
    function = getattr(attention, merge)
    gradient = jax.jit(jax.grad(lambda p: jnp.sum(function(p))))(origin)
    assert np.all(np.isfinite(gradient))


@pytest.mark.slow
def test_numerical_gradients(float64):
    space = _vectors(5, HEADS, LENGTH, DIM - 1)
    log_window = windows.log_attention_windows((2.0,), LENGTH, dtype=jnp.float64)[0]

    def both(space, scale, bias):
        points = lorentz.from_space(space)
        released = attention.lorentz_attention(
            points, points, points, scale, bias, window=jnp.exp(log_window)
        )
        corrected = attention.lorentz_attention(
            points, points, points, scale, bias, log_window=log_window
        )
        return attention.concatenate_heads_released(released), (
            attention.merge_heads_on_hyperboloid(corrected)
        )

    check_grads(both, (space, 2.0, 0.1), order=2, modes=["rev"], rtol=1e-4, atol=1e-5)
    query = _vectors(6, HEADS, LENGTH, DIM)
    euclidean = lambda q, k: attention.euclidean_attention(q, k, k, jnp.exp(log_window))
    check_grads(euclidean, (query, query + 0.1), order=2, modes=["rev"])


def test_half_precision_inputs_give_float32_centroids():
    points = _points(0, np.float32).astype(jnp.bfloat16)
    out = jax.eval_shape(attention.lorentz_attention, *[points] * 3, jnp.float32(2), jnp.float32(0))
    assert out.dtype == jnp.float32
    out = jax.eval_shape(attention.euclidean_attention, *[points] * 3)
    assert out.dtype == jnp.bfloat16


@pytest.mark.usefixtures("unchecked")
def test_complex_numbers_integers_and_lists_are_refused():
    x = _points(0, np.float32)
    for wrong in (x.astype(complex), x.astype(int), x.tolist()):
        for i in range(3):
            arguments = [wrong if i == j else x for j in range(3)]
            with pytest.raises(TypeError, match="takes floating arrays, not"):
                attention.euclidean_attention(*arguments)
    for wrong in (x.astype(complex), x.tolist()):
        with pytest.raises(TypeError):
            attention.lorentz_attention(wrong, x, x, jnp.float32(1))


@pytest.mark.parametrize("use", ["", "window", "log_window"])
def test_no_distance_makes_lorentz_attention_attend_to_a_masked_key(use):
    tangents = np.array([[[22.0, 0]], [[-22.0, 0]], [[31.8, 0]], [[0.3, 0.1]]], np.float32)
    mask = np.array([True, False, False, False])
    window = {use: jnp.ones((1, 4)) if use == "window" else jnp.zeros((1, 4))} if use else {}

    @jax.jit
    def attend(tangents):
        points = lorentz.exp_map0(tangents)  # the query, a far real key, masked ones
        query, key = points[:1], jnp.roll(points, -1, axis=0).reshape(1, 4, 3)
        attended = lambda v: attention.lorentz_attention(
            query, key, v, jnp.float32(2), mask=mask, **window
        )
        return key, attended(key), jax.grad(lambda v: jnp.sum(attended(v)[..., 1]))(key)

    key, out, gradient = attend(tangents)
    np.testing.assert_allclose(out[0, 0, 1], key[0, 0, 1], rtol=2e-5)
    assert np.isfinite(gradient).all() and not gradient[0, 1:].any()


def test_two_windows_are_refused():
    points = _points(0, np.float32)
    window = jnp.ones((LENGTH, LENGTH))
    with pytest.raises(ValueError, match="not both"):
        attention.lorentz_attention(
            points, points, points, jnp.float32(1), jnp.float32(0), window, window
        )


def test_heads_in_half_precision_are_merged_in_float32():
    points = lorentz.from_space(jnp.array([[[300.0, 0]], [[0, 400.0]]])).astype(jnp.float16)
    for merge in (attention.concatenate_heads_released, attention.merge_heads_on_hyperboloid):
        merged = jax.jit(merge)(points)
        assert merged.dtype == jnp.float32 and np.isfinite(merged).all()
