"""Attention against NumPy: windows, masks, head merges and gradients; dropout and its bits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import lorentz
from jax.test_util import check_grads
from scipy import stats

from hlformer_jax.ops import attention
from hlformer_jax.ops.dropout import derive_key, dropout, part_of_batch, random_bits
from hlformer_jax.ops.windows import KINDS, attention_windows, log_attention_windows

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
    window = np.asarray(attention_windows((2.0,), LENGTH, dtype=jnp.float64)[0])
    logits = window * (query @ np.swapaxes(key, -1, -2)) / np.sqrt(DIM)
    logits = logits + np.where(_mask(), 0, -10000.0)[:, None, None]
    attended = attention.euclidean_attention(query, key, value, window, _mask())
    np.testing.assert_allclose(attended, _softmax(logits) @ value, rtol=1e-12)


def test_single_query_attends_as_with_keys_and_values(float64):
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
        single_query = query[:, :, None]
        attended = attention.euclidean_attention(single_query, key, value, None, _mask(), *drop)
        return attended[:, :, 0]

    def value_and_gradient(function):
        def total(*x):
            return jnp.sum(jnp.sin(function(*x)))

        both = jax.jit(lambda *x: (function(*x), jax.grad(total, (0, 1, 2))(*x)))
        return both(query, inputs, maps)

    (value, gradient), (want, expected_gradient) = map(value_and_gradient, (single, plain))
    np.testing.assert_allclose(value, want, rtol=1e-12, atol=1e-13)
    chex.assert_trees_all_close(gradient, expected_gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("corrected", [False, True])
def test_lorentz_attention_equals_numpy(float64, corrected):
    query, key, value = (np.asarray(_points(seed)) for seed in range(3))
    log_window = np.asarray(log_attention_windows((2.0,), LENGTH, dtype=jnp.float64)[0])
    inner = query[..., 1:] @ np.swapaxes(key[..., 1:], -1, -2)
    inner -= query[..., :1] @ np.swapaxes(key[..., :1], -1, -2)
    logits = (2 + 2 * inner) / 1.7 + 0.3
    logits = logits + log_window if corrected else logits * np.exp(log_window)
    logits = np.where(_mask()[:, None, None], logits, -1e18)
    mean = _softmax(logits) @ value
    norm = np.sqrt(mean[..., :1] ** 2 - np.sum(mean[..., 1:] ** 2, -1, keepdims=True))
    use = {"log_window": log_window} if corrected else {"window": np.exp(log_window)}
    attend = jax.jit(attention.lorentz_attention)
    attended = attend(query, key, value, 1.7, 0.3, mask=_mask(), **use)
    np.testing.assert_allclose(attended, mean / norm, rtol=1e-11)


def _mean_distance_attended(**window):
    """Return the mean |i - j| that attention gives to equidistant keys, due to the window."""
    length = 32
    rng = np.random.default_rng(0)
    points = lorentz.from_space(jnp.asarray(rng.normal(size=(1, length, 3)), jnp.float32))
    positions = np.arange(length)
    # Values on one axis each, so that the centroid reveals the attention weights.
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


def test_released_window_favours_distant_positions():
    log_window = log_attention_windows((2.0,), 32)[0]
    uniform = _mean_distance_attended()
    assert _mean_distance_attended(window=jnp.exp(log_window)) > 1.2 * uniform
    assert _mean_distance_attended(log_window=log_window) < 0.8 * uniform


def test_masked_keys_have_no_effect():
    points = _points(0, np.float32)
    changed_points = points.at[:, :, 3:].set(_points(9, np.float32)[:, :, 3:])
    mask = np.array([[True, True, True, False, False]] * 3)

    @jax.jit
    def attend(kv):
        return attention.lorentz_attention(
            points, kv, kv, jnp.float32(2), mask=mask
        ), attention.euclidean_attention(points, kv, kv, mask=mask)

    for original, changed in zip(attend(points), attend(changed_points), strict=True):
        np.testing.assert_array_equal(original, changed)


def test_attention_without_real_keys_is_finite():
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


def test_head_merge_on_the_hyperboloid():
    points = _points(4, np.float32)
    tangent = jax.jit(attention.merge_heads_on_hyperboloid)(points)
    assert tangent.shape == (3, LENGTH, HEADS * (DIM - 1))
    merged = lorentz.exp_map0(tangent)
    space = np.moveaxis(np.asarray(points[..., 1:]), 1, 2).reshape(3, LENGTH, -1)
    np.testing.assert_allclose(merged[..., 1:], space, rtol=1e-5, atol=1e-6)
    # The merged time follows from the heads': t^2 = sum t_i^2 - (N - 1).
    time = np.sqrt(np.sum(np.square(points[..., 0]), axis=1) - (HEADS - 1))
    np.testing.assert_allclose(merged[..., 0], time, rtol=1e-5)


def test_released_head_merge_equals_its_formula(float64):
    points = np.asarray(_points(4))
    concatenated = np.moveaxis(points, 1, 2).reshape(3, LENGTH, -1)
    time = concatenated[..., :1]
    expected = concatenated[..., 1:] * np.arccosh(time) / np.sqrt(time**2 - 1)
    np.testing.assert_allclose(attention.concatenate_heads_released(points), expected, rtol=1e-11)


@pytest.mark.parametrize("merge", ["concatenate_heads_released", "merge_heads_on_hyperboloid"])
def test_merging_heads_at_the_origin_has_a_finite_gradient(merge):
    origin = lorentz.from_space(jnp.zeros((HEADS, LENGTH, DIM - 1)))
    function = getattr(attention, merge)
    gradient = jax.jit(jax.grad(lambda p: jnp.sum(function(p))))(origin)
    assert np.all(np.isfinite(gradient))


WINDOW = log_attention_windows((2.0,), 3)[0]
REAL = np.array([True, True, False])

FIRST_ORDER = {
    "euclidean": lambda x: attention.euclidean_attention(x, x + 0.1, x, jnp.exp(WINDOW), REAL),
    "single query": lambda x: attention.single_query_attention(
        x[:, 0],
        jnp.concatenate(list(x), axis=-1),
        *[attention.Projection(_vectors(n, HEADS * DIM, HEADS, DIM), x[:, n]) for n in (1, 2)],
        REAL,
    ),
    "lorentz, released": lambda x: attention.lorentz_attention(
        *[lorentz.from_space(x)] * 3, 2.0, 0.1, window=jnp.exp(WINDOW), mask=REAL
    ),
    "lorentz, corrected": lambda x: attention.lorentz_attention(
        *[lorentz.from_space(x)] * 3, 2.0, log_window=WINDOW
    ),
    "heads, released": lambda x: attention.concatenate_heads_released(lorentz.from_space(x)),
    "heads, hyperboloid": lambda x: attention.merge_heads_on_hyperboloid(lorentz.from_space(x)),
}


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_first_derivatives_agree_with_differences(name, float64):
    x = jnp.asarray(_vectors(6, HEADS, 3, DIM))
    # The differences of chex, with step 6e-6 in float64, are accurate to 1e-8 here.
    check = functools.partial(chex.assert_numerical_grads, order=1, atol=1e-9, rtol=1e-5)
    check(jax.jit(FIRST_ORDER[name]), (x,), modes=["rev"])


@pytest.mark.slow
def test_numerical_gradients(float64):
    space = _vectors(5, HEADS, LENGTH, DIM - 1)
    log_window = log_attention_windows((2.0,), LENGTH, dtype=jnp.float64)[0]

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

    def euclidean(q, k):
        return attention.euclidean_attention(q, k, k, jnp.exp(log_window))

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
            with pytest.raises(TypeError, match="arrays of a floating dtype, got"):
                attention.euclidean_attention(*arguments)
    for wrong in (x.astype(complex), x.tolist()):
        with pytest.raises(TypeError):
            attention.lorentz_attention(wrong, x, x, jnp.float32(1))


@pytest.mark.parametrize("use", ["", "window", "log_window"])
def test_lorentz_attention_ignores_masked_keys_at_any_distance(use):
    tangents = np.array([[[22.0, 0]], [[-22.0, 0]], [[31.8, 0]], [[0.3, 0.1]]], np.float32)
    mask = np.array([True, False, False, False])
    window = {use: jnp.ones((1, 4)) if use == "window" else jnp.zeros((1, 4))} if use else {}

    @jax.jit
    def attend(tangents):
        points = lorentz.exp_map0(tangents)  # the query, a distant real key, two masked keys
        query, key = points[:1], jnp.roll(points, -1, axis=0).reshape(1, 4, 3)

        def attended(v):
            return attention.lorentz_attention(query, key, v, jnp.float32(2), mask=mask, **window)

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


def _released(width, length):
    """Compute the window like the released code: a list of centres against a linear space."""
    rows = []
    for centre in np.linspace(0, 1, length + 1)[:-1]:
        sigma = max(width, 1e-2) / 9
        weight = (
            0.3989422804014327
            / sigma
            * np.exp(-((np.linspace(0, 1, length) - centre) ** 2) / (2 * sigma**2))
        )
        rows.append(weight / weight.max())
    return np.stack(rows)


@pytest.mark.parametrize(("length", "width"), [(2, 2.0), (7, 10.0), (32, 0.5)])
def test_released_window(float64, length, width):
    window = attention_windows((width,), length, dtype=jnp.float64)[0]
    np.testing.assert_allclose(window, _released(width, length), rtol=1e-12)


def test_released_windows_have_a_minimum_width(float64):
    # Narrower windows would be NaN in the formula of the released code.
    windows = attention_windows((0.015, 0.01, 0.005), 64, dtype=jnp.float64)
    for window, width in zip(windows, (0.015, 0.01, 0.01), strict=True):
        np.testing.assert_allclose(window, _released(width, 64), rtol=1e-9, atol=1e-300)


def test_printed_window_is_equation_10(float64):
    window = attention_windows((3.0,), 6, "printed", jnp.float64)[0]
    i, j = np.mgrid[:6, :6]
    np.testing.assert_allclose(window, np.exp(-((j - i) ** 2) / 9.0) / (2 * np.pi), rtol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_width_of_nan_gives_nan(kind):
    window = jax.jit(lambda width: attention_windows(width[None], 5, kind))(jnp.float32(np.nan))
    assert np.isnan(window).all()


def test_width_zero_and_one_position_are_no_window():
    np.testing.assert_array_equal(attention_windows((0.0,), 5)[0], np.ones((5, 5)))
    np.testing.assert_array_equal(attention_windows((2.0,), 1), np.ones((1, 1, 1)))
    printed = attention_windows((0.0,), 5, "printed")[0]
    np.testing.assert_allclose(printed, np.full((5, 5), 1 / (2 * np.pi)), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_logarithms_stay_finite_where_the_window_underflows(kind):
    log_window = log_attention_windows((0.01, 0.1, 1.0), 128, kind)
    assert np.all(np.isfinite(log_window))
    window = attention_windows((0.01, 0.1, 1.0), 128, kind)
    assert np.any(window == 0)
    np.testing.assert_allclose(
        window, np.exp(np.asarray(log_window, np.float64)), rtol=2e-5, atol=1e-37
    )


@pytest.mark.parametrize("width", [0.1, 2.0, 5.0])
def test_boxcar_and_bartlett_have_the_gaussian_deviation(float64, width):
    length, middle = 1001, 500
    offset = (np.arange(length) - middle) / length
    for kind in ("boxcar", "bartlett"):
        row = np.asarray(attention_windows((width,), length, kind, jnp.float64)[0, middle])
        assert row[middle] == row.max() == 1
        np.testing.assert_array_equal(row, row[::-1])
        if width < 3:  # wider windows reach beyond the ends
            deviation = np.sqrt(np.sum(row * offset**2) / row.sum())
            np.testing.assert_allclose(deviation, width / 9, rtol=0.02)
    i, j = np.mgrid[:length, :length]
    distance, sigma = np.abs(j - i) / length, width / 9
    box = attention_windows((width,), length, "boxcar", jnp.float64)[0]
    np.testing.assert_array_equal(box, distance <= np.sqrt(3) * sigma)
    triangle = attention_windows((width,), length, "bartlett", jnp.float64)[0]
    want = np.maximum(1 - distance / (np.sqrt(6) * sigma), 0)
    np.testing.assert_allclose(triangle, want, rtol=1e-9, atol=1e-15)


def test_bank_is_the_stack_of_its_windows():
    bank = attention_windows((0.0, 2.0, 8.0), 9)
    for row, width in zip(bank, (0.0, 2.0, 8.0), strict=True):
        np.testing.assert_array_equal(row, attention_windows((width,), 9)[0])


@pytest.mark.parametrize(
    "arguments", [((1.0,), 4, "hann"), ((-1.0,), 4, "released"), ((1.0,), 0, "printed")]
)
def test_bad_windows_are_refused(arguments):
    with pytest.raises(ValueError, match="^(kind|length) must be"):
        log_attention_windows(*arguments)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_narrowest_windows_are_finite(kind, dtype):
    log = log_attention_windows((1e-200, 0.01), 128, kind, dtype)
    assert np.isfinite(np.asarray(log)).all()
    for width in (1e-9, 1e-200):
        window = np.asarray(attention_windows((width,), 128, kind))
        assert np.isfinite(window).all() and np.all(window.max(axis=-1) > 0)  # sees itself


def _bits(seed=0, shape=(1 << 16,)):
    return np.asarray(random_bits(jax.random.key(seed), shape))


@pytest.mark.parametrize("seed", [0, 2**31])
def test_random_bits_are_fair_and_bytes_uniform(seed):
    bits = _bits(seed)
    shares = ((bits[:, None] >> np.arange(32)) & 1).mean(axis=0)
    assert np.abs(shares - 0.5).max() < 5 * 0.5 / np.sqrt(len(bits))  # five standard deviations
    for shift in (0, 8, 16, 24):
        counts = np.bincount((bits >> shift) & 255, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-5


def test_neighbouring_bits_are_independent():
    is_high = _bits(3) >= 2**31
    for lag in (1, 2, 64, 128, 4096):
        table = np.histogram2d(is_high[:-lag], is_high[lag:], bins=2)[0]
        assert stats.chi2_contingency(table).pvalue > 1e-5, lag


def test_streams_of_neighbouring_keys_are_independent():
    keys = jax.random.split(jax.random.key(0), 8)
    streams = np.stack([np.asarray(random_bits(key, (1 << 14,))) for key in keys]) >= 2**31
    correlation = np.corrcoef(streams) - np.eye(len(keys))
    assert np.abs(correlation).max() < 5 / np.sqrt(1 << 14)


def test_bits_depend_on_the_row_major_index_only():
    key = jax.random.key(7)
    flat = random_bits(key, (24,))
    np.testing.assert_array_equal(random_bits(key, (2, 3, 4)).ravel(), flat)
    jitted = jax.jit(lambda key: random_bits(key, (24,)))(key)
    np.testing.assert_array_equal(jitted, flat)
    np.testing.assert_array_equal(random_bits(jax.random.key_data(key), (24,)), flat)
    rows = jax.vmap(lambda key: random_bits(key, (24,)))(jax.random.split(key, 2))
    np.testing.assert_array_equal(rows[1], random_bits(jax.random.split(key, 2)[1], (24,)))


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_rows_of_a_part_have_the_bits_of_the_batch(parts):
    key, batch_bits = jax.random.key(7), np.asarray(random_bits(jax.random.key(7), (6, 2, 5)))

    @jax.jit
    def bits_of_part(part):
        with part_of_batch(part, parts):
            return random_bits(key, (6 // parts, 2, 5))

    for part in range(parts):
        np.testing.assert_array_equal(bits_of_part(np.int32(part)), batch_bits[part::parts])
    np.testing.assert_array_equal(random_bits(key, (6, 2, 5)), batch_bits)  # outside the part


@pytest.mark.parametrize("rate", [0.1, 0.31, 0.9])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dropout_share_scale_and_dtype(rate, dtype):
    x = jnp.full((1 << 16,), 2, dtype)
    y = dropout(jax.random.key(1), x, rate)
    assert y.dtype == dtype
    dropped = np.asarray(y) == 0
    deviation = np.sqrt(rate * (1 - rate) / len(dropped))
    assert abs(dropped.mean() - rate) < 5 * deviation
    survivors = np.asarray(y, np.float64)[~dropped]
    np.testing.assert_allclose(survivors, 2 / (1 - rate), rtol=0.01)


def test_dropout_rates_of_zero_and_one():
    x = jnp.arange(5.0)
    np.testing.assert_array_equal(dropout(jax.random.key(0), x, 0.0), x)
    np.testing.assert_array_equal(dropout(jax.random.key(0), x, 1.0), np.zeros(5))


def test_dropout_gradient_is_the_mask():
    x = jnp.linspace(-1, 1, 64)
    key = jax.random.key(2)
    gradient = jax.grad(lambda x: jnp.sum(dropout(key, x, 0.5)))(x)
    mask = np.asarray(dropout(key, jnp.ones(64), 0.5))
    np.testing.assert_array_equal(gradient, mask)


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_dropout_of_integers_is_refused(rate):
    with pytest.raises(TypeError, match="floating dtype, got int32"):
        dropout(jax.random.key(0), jnp.arange(5), rate)


def key_data(*arguments):
    return tuple(np.asarray(jax.random.key_data(derive_key(*arguments))).tolist())


def test_derived_keys_differ_by_seed_name_and_step():
    keys = {
        key_data(seed, name, step)
        for seed in (0, 1, 2**31)
        for name in ("params", "dropout", "negatives", "")
        for step in (0, 1, 2)
    }
    assert len(keys) == 36
    assert key_data(1, "dropout", 2) == key_data(1, "dropout", 2) in keys
    assert key_data(7, "params") == key_data(7, "params", 0)


def test_traced_seed_and_step_give_the_same_key():
    traced = jax.jit(lambda seed, step: derive_key(seed, "dropout", step))
    key = jax.random.key_data(traced(jnp.int32(5), jnp.int32(9)))
    assert tuple(key.tolist()) == key_data(5, "dropout", 9)


def test_derived_key_uses_crc32_of_the_name():
    """Compare with the standard check value of CRC-32; Python's hash differs between processes."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), 0xCBF43926), 2)
    assert key_data(3, "123456789", 2) == tuple(jax.random.key_data(key).tolist())
