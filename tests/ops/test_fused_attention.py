"""Fused attention, run as JAX operations, against the plain one; whether Triton takes it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from hlformer_jax.ops import attention, fused_attention, kernels, lorentz
from hlformer_jax.ops.dropout import dropout
from hlformer_jax.ops.numerics import as_float

BATCH, HEADS = 3, 2
RATE = 0.31
# Queries, keys, coordinates: odd sizes; one query; several blocks of both; several pieces.
SIZES = [(5, 7, 6), (1, 20, 32), (70, 70, 16), (20, 33, 112)]
# The same sums in another order, of up to 112 terms of size 1.
FLOAT32 = {"rtol": 1e-4, "atol": 2e-5}


def _vectors(seed, *shape, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def _inputs(rows, length, dim, dtype=np.float32):
    shapes = ((BATCH, HEADS, size, dim) for size in (rows, length, length))
    return tuple(_vectors(seed, *shape, dtype=dtype) for seed, shape in enumerate(shapes))


def _window(rows, length, *blocks):
    return jnp.asarray(np.random.default_rng(7).uniform(0.1, 1, (*blocks, rows, length)), "float32")


def _mask(length):
    """One batch element with all keys, one with some, one with none."""
    return np.arange(length)[None] < np.array([length, length // 2, 0])[:, None]


def _with_gradients(attend, arguments):
    """The attended values, and the gradients of a sum in which no two of them weigh the same."""

    def total(*arguments):
        out = attend(*arguments)
        weights = _vectors(9, *out.shape, dtype=out.dtype)
        return jnp.sum(as_float(weights * jnp.sin(out))), out

    every = tuple(range(len(arguments)))
    gradients, out = jax.jit(jax.grad(total, every, has_aux=True))(*arguments)
    return out, *gradients


def _assert_same(fused, plain, arguments, **tolerance):
    ours, theirs = (_with_gradients(attend, arguments) for attend in (fused, plain))
    for our, their in zip(ours, theirs, strict=True):
        assert our.dtype == their.dtype
        our, their = (np.asarray(x, np.float64) for x in (our, their))
        np.testing.assert_allclose(our, their, **(tolerance or FLOAT32))


@pytest.mark.parametrize(
    ("size", "options"),
    [*zip(SIZES, ["window mask dropout", "", "window dropout", "mask"], strict=True)],
)
def test_euclidean_attention_and_its_gradients(size, options):
    window = _window(*size[:2]) if "window" in options else None
    mask = _mask(size[1]) if "mask" in options else None
    key = jax.random.key(3) if "dropout" in options else None
    through = lambda module: lambda *x: module.euclidean_attention(*x, window, mask, key, RATE)
    _assert_same(through(fused_attention), through(attention), _inputs(*size))


@pytest.mark.parametrize(
    ("size", "options"),
    [*zip(SIZES[1:], ["", "log_window mask", "window mask"], strict=True)],
)
def test_lorentz_attention_and_its_gradients(size, options):
    use = {}
    if "log_window" in options:
        use["log_window"] = jnp.log(_window(*size[:2]))
    elif "window" in options:
        use["window"] = _window(*size[:2])
    if "mask" in options:
        use["mask"] = _mask(size[1])

    def through(attend):
        def run(query, key, value, scale, bias):
            # At distances of about 1, however many coordinates there are.
            points = (lorentz.from_space(x / np.sqrt(size[2])) for x in (query, key, value))
            return attend(*points, scale, bias, **use)

        return run

    space = _inputs(size[0], size[1], size[2] - 1)
    _assert_same(
        through(fused_attention.lorentz_attention),
        through(attention.lorentz_attention),
        (*space, jnp.float32(1.7), jnp.float32(0.3)),
    )


@pytest.mark.parametrize(("length", "dtype"), [(16, jnp.bfloat16), (70, jnp.float32)])
def test_dropout_drops_the_very_same_weights(length, dtype):
    key = jax.random.key(11)
    query, other, _ = _inputs(length, length, 8, dtype)
    # Values that tell the weights: the identity.
    value = jnp.broadcast_to(jnp.eye(length, dtype=dtype), (BATCH, HEADS, length, length))

    @jax.jit
    def every(key):
        attend = lambda module, key: module.euclidean_attention(
            query, other, value, None, None, key, RATE
        )
        dropped = dropout(key, jnp.ones(value.shape, dtype), RATE) == 0
        same = attend(fused_attention, jax.random.key_data(key))
        return attend(fused_attention, key), attend(attention, key), same, dropped

    fused, plain, same, dropped = every(key)
    np.testing.assert_array_equal(fused == 0, dropped)
    # In bfloat16 two roundings, of a weight and of what it is scaled to; in float32 that of a
    # logit of up to 10, which the exponential makes a relative one.
    tolerance = {jnp.float32: 1e-5, jnp.bfloat16: 2**-6}[dtype]
    np.testing.assert_allclose(*(np.asarray(x, "float64") for x in (fused, plain)), rtol=tolerance)
    np.testing.assert_array_equal(fused, same)


def test_rates_of_zero_and_one():
    key, x = jax.random.key(0), _inputs(5, 5, 4)
    attend = lambda *use: fused_attention.euclidean_attention(*x, None, None, *use)
    every, plain, none = jax.jit(lambda key: (attend(key, 0.0), attend(), attend(key, 1.0)))(key)
    np.testing.assert_array_equal(every, plain)
    np.testing.assert_array_equal(none, np.zeros(x[0].shape))


def test_keys_that_are_masked_or_pad_change_nothing():
    query, key, value = _inputs(5, 5, 4)
    mask = np.arange(5)[None] < np.array([3, 3, 3])[:, None]
    point = lorentz.from_space
    other = key.at[:, :, 3:].set(9.0)

    @jax.jit
    def both(key, value):
        scale, bias = jnp.float32(1.7), jnp.float32(0.3)
        return (
            fused_attention.euclidean_attention(query, key, value, None, mask),
            fused_attention.lorentz_attention(
                point(query), point(key), point(value), scale, bias, mask=mask
            ),
        )

    for kept, moved in zip(both(key, key), both(other, other), strict=True):
        np.testing.assert_array_equal(kept, moved)
    nobody = np.zeros((BATCH, 5), bool)
    # Of no real key all five have the same weight, and those that pad none.
    same = jnp.broadcast_to(key[:, :, :1], key.shape)
    out = fused_attention.euclidean_attention(query, same, value, None, nobody)
    np.testing.assert_allclose(out, np.repeat(value.mean(2, keepdims=True), 5, 2), atol=1e-6)


def test_bfloat16_is_as_near_to_float32_as_the_plain_attention_in_bfloat16():
    window, mask = _window(33, 33), _mask(33)
    wide = _inputs(33, 33, 24)
    exact = _with_gradients(lambda *x: attention.euclidean_attention(*x, window, mask), wide)
    narrow = tuple(x.astype(jnp.bfloat16) for x in wide)
    fused = lambda *x: fused_attention.euclidean_attention(*x, window, mask)
    plain = lambda *x: attention.euclidean_attention(*x, window, mask)
    error = lambda x, y: np.abs(np.asarray(x, np.float64) - np.asarray(y)).max()
    for our, their, value in zip(
        _with_gradients(fused, narrow), _with_gradients(plain, narrow), exact, strict=True
    ):
        assert our.dtype == jnp.bfloat16
        # Both round inputs, weights and results to 8 bits: errors are a few of 2^-8, of one size.
        assert error(our, value) < 2 * error(their, value)
        assert error(our, value) < 0.03 * np.abs(value).max()


def test_a_bank_of_blocks_by_vmap():
    blocks, length = 3, 20
    keys = jax.random.split(jax.random.key(1), blocks)
    window, mask = _window(length, length, blocks), _mask(length)
    inputs = tuple(_vectors(seed, blocks, BATCH, HEADS, length, 8) for seed in range(3))

    def through(module):
        def attend(query, key, value, window, dropout_key):
            return module.euclidean_attention(query, key, value, window, mask, dropout_key, RATE)

        return lambda *x: jax.vmap(attend)(*x, window, keys)

    _assert_same(through(fused_attention), through(attention), inputs)

    def lorentzian(module):
        def attend(query, key, value, scale, bias, window):
            points = (lorentz.from_space(x) for x in (query, key, value))
            return module.lorentz_attention(*points, scale, bias, window, mask=mask)

        return lambda *x: jax.vmap(attend)(*x, window)

    scalars = jnp.asarray([1.7, 2.0, 3.0]), jnp.asarray([0.3, 0.0, -0.2])
    _assert_same(lorentzian(fused_attention), lorentzian(attention), (*inputs, *scalars))


def test_without_batch_axes_and_in_double_precision(float64):
    inputs = tuple(_vectors(seed, HEADS, 5, 4, dtype=np.float64) for seed in range(3))
    window, mask = _window(5, 5), np.arange(5) < 4

    def both(module):
        def attend(query, key, value, scale, bias):
            points = (lorentz.from_space(x) for x in (query, key, value))
            return jnp.concatenate(
                [
                    module.euclidean_attention(query, key, value, window, mask),
                    module.lorentz_attention(*points, scale, bias, window, mask=mask),
                ],
                axis=-1,
            )

        return attend

    arguments = (*inputs, jnp.float64(1.7), jnp.float64(0.3))
    _assert_same(both(fused_attention), both(attention), arguments, rtol=1e-11, atol=1e-12)


# Of query, key, value: fewer key heads, a key batch of 1, queries shared by the batch.
@pytest.mark.parametrize(
    "leads",
    [
        [(BATCH, HEADS), (BATCH, 1), (BATCH, 1)],
        [(BATCH, HEADS), (1, HEADS), (1, 1)],
        [(1, 1), (BATCH, HEADS), (BATCH, HEADS)],
    ],
)
@pytest.mark.parametrize("geometry", ["euclidean", "lorentz"])
def test_batch_axes_and_heads_broadcast_as_in_the_plain_attention(geometry, leads):
    sizes = [(5, 6), (7, 6), (7, 6)]
    inputs = [_vectors(i, *x, *y) for i, (x, y) in enumerate(zip(leads, sizes, strict=True))]
    window, mask = _window(1, 7), _mask(7)

    def through(module):
        if geometry == "euclidean":
            key = jax.random.key(3)
            return lambda *x: module.euclidean_attention(*x, window, mask, key, RATE)
        scale, bias = jnp.float32(1.7), jnp.float32(0.3)
        points = lambda x: (lorentz.from_space(y / 3) for y in x)
        return lambda *x: module.lorentz_attention(*points(x), scale, bias, window, mask=mask[:1])

    _assert_same(through(fused_attention), through(attention), inputs)


@pytest.mark.usefixtures("unchecked")
def test_shapes_that_do_not_go_together_are_refused_by_name():
    query, key, value = _inputs(5, 7, 6)
    attend = fused_attention.euclidean_attention
    for wrong, message in (
        ((query, key[..., :4], value), "different widths"),
        ((query, key, value[:, :, :3]), "different numbers of positions"),
        ((query, key[:2], value), "do not broadcast"),
    ):
        with pytest.raises(ValueError, match=message) as refusal:
            attend(*wrong)
        assert all(str(x.shape) in str(refusal.value) for x in wrong)


@pytest.mark.parametrize("module", [attention, fused_attention])
@pytest.mark.parametrize("use", ["", "window", "log_window"])
def test_no_distance_makes_lorentz_attention_attend_to_a_masked_key(module, use):
    tangents = np.array([[[22.0, 0]], [[-22.0, 0]], [[31.8, 0]], [[0.3, 0.1]]], np.float32)
    mask = np.array([True, False, False, False])
    window = {use: jnp.ones((1, 4)) if use == "window" else jnp.zeros((1, 4))} if use else {}

    @jax.jit
    def attend(tangents):
        points = lorentz.exp_map0(tangents)  # the query, a far real key, masked ones
        query, key = points[:1], jnp.roll(points, -1, axis=0).reshape(1, 4, 3)
        attended = lambda v: module.lorentz_attention(
            query, key, v, jnp.float32(2), mask=mask, **window
        )
        return key, attended(key), jax.grad(lambda v: jnp.sum(attended(v)[..., 1]))(key)

    key, out, gradient = attend(tangents)
    np.testing.assert_allclose(out[0, 0, 1], key[0, 0, 1], rtol=2e-5)
    assert np.isfinite(gradient).all() and not gradient[0, 1:].any()


def test_two_windows_are_refused():
    x, window, scalar = _inputs(5, 5, 4), jnp.ones((5, 5)), jnp.float32(1)
    with pytest.raises(ValueError, match="not both"):
        fused_attention.lorentz_attention(*x, scalar, scalar, window, window)


def _lowered(function, *arguments):
    """What XLA is given for an NVIDIA GPU, which need not be there."""
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def _skip_unless_kernels_lower_here():
    def copy(x, out):
        out[...] = x[...]

    params = kernels.compiler_params(4, 1)
    x = jnp.zeros((16, 16))
    call = pl.pallas_call(
        copy, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), compiler_params=params
    )
    try:
        _lowered(call, x)
    except Exception as error:
        if jax.__version_info__ < (0, 11):
            raise
        # JAX later than 0.10 compiles the kernel as it lowers it, which takes its CUDA plugin.
        pytest.skip(f"no kernel lowers for a GPU here: {error}")


@pytest.mark.parametrize(("length", "dtype"), [(32, jnp.float32), (100, jnp.bfloat16)])
def test_triton_takes_the_kernels(length, dtype):
    _skip_unless_kernels_lower_here()
    blocks = 2
    window, mask = _window(length, length, blocks), _mask(length)
    keys = jax.random.split(jax.random.key(1), blocks)

    def euclidean(query, key, value, window, dropout_key):
        return fused_attention.euclidean_attention(
            query, key, value, window, mask, dropout_key, RATE, interpret=False
        )

    def lorentzian(query, key, value, scale, window):
        scale = scale.astype(jnp.float32)
        return fused_attention.lorentz_attention(
            query, key, value, scale, scale, log_window=window, mask=mask, interpret=False
        )

    x = jax.ShapeDtypeStruct((blocks, BATCH, HEADS, length, 96), dtype)
    bank = lambda *x: jax.vmap(euclidean)(*x, window, keys)
    text = _lowered(lambda *x: _with_gradients(bank, x), x, x, x)
    assert text.count("@__gpu$xla.gpu.triton") == 3
    scale = jax.ShapeDtypeStruct((blocks,), jnp.float32)
    bank = lambda *x: jax.vmap(lorentzian)(*x, window)
    text = _lowered(lambda *x: _with_gradients(bank, x), x, x, x, scale)
    assert text.count("@__gpu$xla.gpu.triton") == 3
