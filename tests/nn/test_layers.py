"""Layers, fusion and attention blocks against their equations in NumPy, and at the edges."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx

from hlformer_jax.nn import blocks, layers
from hlformer_jax.nn.blocks import (
    FUSIONS,
    AttentionPooling,
    BankOptions,
    BlockOptions,
    BlockWeights,
    Concatenation,
    DynamicWeights,
    EuclideanBlock,
    FusionInputs,
    GaussianBank,
    LorentzAttention,
    LorentzBlock,
    LorentzOptions,
    make_windows,
)
from hlformer_jax.ops import windows
from hlformer_jax.ops.dropout import dropout, relu_dropout

# Layers


X = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)


def _norm(x):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5)


def _drawn(module, *inputs):
    """Return random parameters; some initial ones are 0 or 1 and would hide errors."""
    initial = module.init(jax.random.key(0), *inputs)
    rng = np.random.default_rng(1)

    def draw(p):
        return (np.asarray(p) + rng.normal(size=p.shape)).astype(np.float32)

    return jax.tree.map(draw, initial)


def _dense(params, x):
    return x @ params["kernel"] + params["bias"]


def _scaled(params, x):
    return _norm(x) * params["scale"] + params["bias"]


def _projected(params, x):
    return np.maximum(_dense(params["dense"], _scaled(params["LayerNorm"], x)), 0)


def test_projection_is_norm_linear_and_relu():
    module = layers.InputProjection(3, 0.0)
    variables = _drawn(module, X, False)
    expected = _projected(variables["params"], X)
    # Rounding of float32 sums of four products.
    np.testing.assert_allclose(module.apply(variables, X, False), expected, rtol=1e-5, atol=1e-5)


def test_shorter_input_uses_the_first_positions():
    module = layers.PositionEmbedding(7, 0.0)
    variables = _drawn(module, X, False)
    params = variables["params"]
    assert params["embedding"].shape == (7, 4)
    expected = _scaled(params["LayerNorm"], X + params["embedding"][:5])
    np.testing.assert_allclose(module.apply(variables, X, False), expected, rtol=1e-5, atol=1e-5)


def test_feed_forward_is_two_linear_maps_around_relu():
    module = layers.FeedForward(6, 0.0)
    variables = _drawn(module, X, False)
    params = variables["params"]
    expected = _dense(params["layer2"], np.maximum(_dense(params["layer1"], X), 0))
    np.testing.assert_allclose(module.apply(variables, X, False), expected, rtol=1e-5, atol=1e-5)


def test_norm_far_from_the_origin_keeps_its_digits():
    x = (1e3 + X).astype(np.float32)
    module = layers.LayerNorm(jnp.float32, name="norm")
    variables = module.init(jax.random.key(0), x)
    # The fast variance of numbers with squares of 1e6 would be wrong in the first digit. The
    # float32 input and its mean are rounded by 1e3 / 2^24 each.
    expected = _norm(x.astype(np.float64))
    np.testing.assert_allclose(module.apply(variables, x), expected, rtol=0, atol=1e-3)


def test_dropout_is_the_identity_outside_of_training():
    inputs = np.ones((100, 100), np.float32)

    def apply(rate, train):
        return np.asarray(
            layers.Dropout(rate, train).apply({}, inputs, rngs={"dropout": jax.random.key(0)})
        )

    np.testing.assert_array_equal(apply(0.3, False), inputs)
    np.testing.assert_array_equal(apply(0.0, True), inputs)
    dropped = apply(0.3, True)
    np.testing.assert_allclose(np.unique(dropped), [0, 1 / 0.7], rtol=1e-6)
    # Ten thousand draws: four times the standard deviation of the share.
    assert abs(np.mean(dropped == 0) - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 1e4)


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_relu_with_dropout_has_the_derivatives_of_both(rate):
    key = jax.random.key(0) if rate else None
    x = jnp.linspace(-2, 2, 12)

    def directions(function):
        """Return second derivatives in all orders of the two modes, and a third derivative."""

        def total(x):
            return jnp.sum(function(x) ** 3 * jnp.cos(x))

        modes = jax.jacfwd, jax.jacrev
        second = [outer(inner(total)) for outer in modes for inner in modes]
        derivatives = [*second, jax.jacfwd(jax.jacrev(jax.grad(total)))]
        return jax.jit(lambda x: [derivative(x) for derivative in derivatives])(x)

    fused = directions(lambda x: relu_dropout(key, x, rate))
    separate = directions(lambda x: dropout(key, jax.nn.relu(x), rate))
    for actual, expected in zip(fused, separate, strict=True):
        assert np.any(np.asarray(expected) != 0)
        # The factor 1 / (1 - rate) multiplies different terms.
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("float64", "standard_promotion")
@pytest.mark.parametrize("name", ["norm", "feed forward", "projection"])
def test_second_derivatives(name):
    options = {"dropout": 0.0, "dtype": jnp.float64}
    module, arguments = {
        "norm": (layers.LayerNorm(jnp.float64), ()),
        "feed forward": (layers.FeedForward(6, **options), (False,)),
        "projection": (layers.InputProjection(6, **options), (False,)),
    }[name]
    x = jnp.asarray(X, jnp.float64)
    params = module.init(jax.random.key(1), x, *arguments)
    params = jax.tree.map(lambda p: 30 * p.astype(jnp.float64), params)

    def total(t):
        return jnp.sum(jnp.sin(module.apply(params, x + t * jnp.cos(x), *arguments)))

    slope = jax.grad(total)
    second_derivatives = jax.grad(slope), jax.jacfwd(slope), jax.jacfwd(jax.jacfwd(total))
    derivatives = jax.jit(lambda t: [second(t) for second in second_derivatives])(0.1)
    compiled = jax.jit(slope)
    expected = (compiled(0.1 + 1e-5) - compiled(0.1 - 1e-5)) / 2e-5
    # Errors of a difference: 1e-10 times the fourth derivative, and eps / 1e-5.
    np.testing.assert_allclose(derivatives, [expected] * 3, rtol=1e-6)


# Fusion and pooling


def test_block_weights_of_equal_logits_are_the_mean():
    blocks = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 4, 8)), jnp.float32)
    weights = BlockWeights(BlockOptions(2, 0.0))
    inputs = FusionInputs(blocks, blocks[0], None, jnp.float32(0.5), None), False
    params = weights.init(jax.random.key(0), *inputs)
    np.testing.assert_allclose(weights.apply(params, *inputs), blocks.mean(0), rtol=1e-5, atol=1e-6)
    params["params"]["logits"] = jnp.asarray([0.0, 0.0, 50.0])
    np.testing.assert_allclose(weights.apply(params, *inputs), blocks[2], rtol=1e-5, atol=1e-6)


def test_dynamic_weights_are_a_softmax_of_attended_inputs():
    rng = np.random.default_rng(0)
    blocks, inputs = (rng.normal(size=(*k, 2, 4, 6)).astype(np.float32) for k in ((3,), ()))
    token, mask = (
        rng.normal(size=6).astype(np.float32),
        np.asarray([[True] * 4, [True] * 2 + [False] * 2]),
    )
    fuse = DynamicWeights(BlockOptions(2, 0.3))
    batches = [
        FusionInputs(blocks, x, mask, jnp.float32(0.6), token) for x in (inputs, inputs.copy())
    ]
    batches[1].inputs[1, 2:] = 9  # padding
    shapes = jax.eval_shape(lambda: fuse.init(jax.random.key(0), batches[0], False))
    params = jax.tree.map(lambda p: rng.normal(size=p.shape).astype(np.float32), shapes)
    fused, padded = jax.jit(lambda: [fuse.apply(params, x, False) for x in batches])()
    np.testing.assert_array_equal(fused, padded)
    params = params["params"]
    token_query = np.broadcast_to(token, (2, 1, 6))
    cross = EuclideanBlock(BlockOptions(2, 0.0, expansion=1))
    attended = cross.apply({"params": params["cross"]}, token_query, inputs, None, mask, False)
    attended = np.asarray(attended)[:, 0]
    logits = _dense(params["layer2"], np.maximum(_dense(params["layer1"], attended), 0))
    weights = np.exp(logits / 0.6)
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("vk,kvlh->vlh", weights, blocks)
    np.testing.assert_allclose(fused, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [n for n, f in FUSIONS.items() if f.uses_token])
def test_fusion_without_its_token_is_refused(name):
    fuse, blocks = FUSIONS[name](BlockOptions(2, 0.0)), jnp.ones((3, 1, 4, 8))
    with pytest.raises(ValueError):
        inputs = FusionInputs(blocks, blocks[0], None, jnp.float32(1), None)
        fuse.init(jax.random.key(0), inputs, False)


@pytest.mark.parametrize("name", FUSIONS)
@pytest.mark.parametrize("count", [1, 5])
def test_fusion_takes_any_number_of_blocks(name, count):
    fuse, blocks = FUSIONS[name](BlockOptions(2, 0.0)), jnp.ones((count, 2, 4, 8))
    token = jnp.ones(8) if fuse.uses_token else None
    inputs = FusionInputs(blocks, blocks[0], None, jnp.float32(1), token)
    fused, _ = jax.eval_shape(lambda: fuse.init_with_output(jax.random.key(0), inputs, False))
    assert fused.shape == (2, 4, 8)


def test_pooling_is_a_softmax_over_real_positions():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 4, 3)).astype(np.float32)
    mask = np.array([[True, True, True, False], [True, False, False, False]])
    kernel = rng.normal(size=(3, 1)).astype(np.float32)

    def apply(mask):
        return AttentionPooling().apply({"params": {"kernel": kernel}}, x, mask)

    for pooling_mask, real in ((None, np.ones_like(mask)), (mask, mask)):
        weights = np.exp(x @ kernel)[..., 0] * real
        weights /= weights.sum(-1, keepdims=True)
        expected = np.einsum("vl,vlh->vh", weights, x)
        # Rounding of float32 sums of a few products.
        np.testing.assert_allclose(apply(pooling_mask), expected, rtol=1e-5, atol=1e-6)


def test_concatenation_is_one_linear_map_of_all_blocks():
    blocks = np.random.default_rng(0).normal(size=(3, 2, 4, 5)).astype(np.float32)
    fuse = Concatenation(BlockOptions(2, 0.0))
    inputs = FusionInputs(blocks, blocks[0], None, jnp.float32(1), None), False
    params = fuse.init(jax.random.key(0), *inputs)
    kernel = np.asarray(params["params"]["dense"]["kernel"]).reshape(3, 5, 5)
    expected = np.einsum("kvlh,khj->vlj", blocks, kernel)
    np.testing.assert_allclose(fuse.apply(params, *inputs), expected, rtol=1e-5, atol=1e-6)


# Blocks and banks of them


AS_RELEASED = LorentzOptions(7, "released", "released")


def _numpy_attention(params, x, c, merge):
    """Compute Lorentz attention on the hyperboloid of curvature -c by its equations."""
    heads, dim = 2, 7

    def norm(v):
        return np.linalg.norm(v, axis=-1, keepdims=True)

    beta = np.exp(params["scale_alpha"])
    u = _projected(params["input_proj"], x) * beta
    r = np.sqrt(c) * norm(u)
    point = np.concatenate([np.cosh(r), np.sinh(r) * u / norm(u)], -1) / np.sqrt(c)

    def linear(p):
        z = (point @ p["dense"]["kernel"]).reshape(*x.shape[:-1], heads, (dim + 1) // heads)
        time = np.exp(p["scale"]) / (1 + np.exp(-z[..., :1])) + 1.1
        space = z[..., 1:] / norm(z[..., 1:]) * np.sqrt(time**2 - 1)
        return np.concatenate([time, space], -1) / np.sqrt(c)  # <p, p>_L = -1 / c

    def inner(a, b):
        return (a[..., 1:] * b[..., 1:]).sum(-1) - a[..., 0] * b[..., 0]

    q, k, v = (np.moveaxis(linear(params[n]), -2, -3) for n in ("query", "key", "value"))
    squared_distance = -2 / c - 2 * inner(q[..., :, None, :], k[..., None, :, :])
    logits = -squared_distance / params["scale"] + params["bias"]
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    m = np.einsum("...ml,...ld->...md", weights / weights.sum(-1, keepdims=True), v)
    centroid = m / np.sqrt(c * np.abs(inner(m, m)))[..., None]

    def side_by_side(heads):
        return np.moveaxis(heads, -3, -2).reshape(*x.shape[:-1], -1)

    if merge == "hyperboloid":
        space = side_by_side(centroid[..., 1:])
        s = np.sqrt(c) * norm(space)
        tangent = np.arcsinh(s) / s * space
    else:  # the time of head 0 is the merged time; the other times become space coordinates
        s = np.sqrt(c) * norm(centroid[..., 0, :, 1:])
        tangent = np.arcsinh(s) / s * side_by_side(centroid)[..., 1:]
    return _projected(params["output_proj"], tangent / beta)


@pytest.mark.parametrize("merge", blocks.HEAD_MERGES)
def test_attention_on_a_hyperboloid_of_any_curvature(float64, merge):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 8))
    attend = LorentzAttention(
        BlockOptions(2, 0.0, dtype=jnp.float64), LorentzOptions(7, "released", merge)
    )
    with jax.numpy_dtype_promotion("standard"):
        init = jax.jit(lambda key: attend.init(key, x, None, None, False)["params"])
        params = init(jax.random.key(0))
        params = jax.tree.map(lambda p: np.asarray(p + 0.3 * rng.normal(size=p.shape)), params)
        apply = jax.jit(lambda p, c: attend.apply({"params": p}, x, None, None, False, c))
        for c in (0.05, 1.0, 20.0):
            attended = apply(params, jnp.asarray(c))
            expected = _numpy_attention(params, x, c, merge)
            np.testing.assert_allclose(attended, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow  # it takes seconds
def test_lorentz_attention_is_finite_at_any_curvature():
    attend = LorentzAttention(BlockOptions(2, 0.0), AS_RELEASED)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 4, 8)), jnp.float32)
    params = attend.init(jax.random.key(0), x, None, None, False)

    def loss(p, x, c):
        return jnp.sum(jnp.sin(attend.apply(p, x, None, None, False, c)))

    run = jax.jit(jax.value_and_grad(loss, (0, 2)))
    for size, c in itertools.product((1e-4, 1.0, 1e3), (0.05, 0.3, 5.0, 20.0)):
        value, gradient = run(params, np.float32(size) * x, jnp.float32(c))
        assert np.isfinite(value), (size, c)
        assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient)), (size, c)


@pytest.mark.slow  # it takes seconds
def test_bank_equals_its_blocks_one_by_one():
    block, lorentz, widths = BlockOptions(2, 0.0), AS_RELEASED, (0.0, 2.0)
    bank = GaussianBank(BankOptions(block, lorentz, euclidean_blocks=2, lorentz_blocks=2))
    of_both = make_windows(widths, widths, tiny.FRAMES, "released", jnp.float32)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(tiny.VIDEOS, tiny.FRAMES, 8)).astype(np.float32)
    mask = tiny.batch().videos.frame_mask
    shapes = jax.eval_shape(lambda: bank.init(jax.random.key(0), x, of_both, mask, False))

    def draw(p):
        return (0.3 * rng.normal(size=p.shape)).astype(p.dtype)

    params = jax.tree.map(draw, shapes)["params"]
    # Scales are divisors.
    params["lorentz"]["attention"]["scale"] = np.asarray([1.5, 2.5], np.float32)
    outputs = jax.jit(lambda p: bank.apply({"params": p}, x, of_both, mask, False))(params)
    assert outputs.shape == (4, *x.shape)
    log_windows = windows.log_attention_windows(widths, tiny.FRAMES)
    one_euclidean = jax.jit(lambda p, w: EuclideanBlock(block).apply(p, x, x, w, mask, False))
    one_lorentzian = jax.jit(lambda p, w: LorentzBlock(block, lorentz).apply(p, x, w, mask, False))
    for k in range(2):
        block_params = jax.tree.map(lambda p, k=k: p[k], params)
        euclidean = one_euclidean({"params": block_params["euclidean"]}, jnp.exp(log_windows[k]))
        lorentzian = one_lorentzian({"params": block_params["lorentz"]}, log_windows[k])
        np.testing.assert_allclose(outputs[k], euclidean, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(outputs[2 + k], lorentzian, rtol=1e-5, atol=1e-5)
        assert np.abs(outputs[k] - outputs[2 + k]).max() > 0.01
    assert np.abs(outputs[0] - outputs[1]).max() > 0.01


def _shape_of_bank(bank_windows, euclidean=2, lorentz=1, num_heads=2):
    options = BankOptions(BlockOptions(num_heads, 0.0), AS_RELEASED, euclidean, lorentz)
    x = jnp.asarray(X)
    init = GaussianBank(options).init_with_output
    return jax.eval_shape(lambda: init(jax.random.key(0), x, bank_windows, None, False)[0]).shape


def test_bank_initialised_without_windows_has_the_blocks_of_its_options():
    assert _shape_of_bank(blocks.Windows(None, None)) == (3, *X.shape)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "widths, message",
    [
        (
            ((1.0,), (1.0,)),
            r"euclidean must have shape .2, L, L., .* got \(1, 5, 5\)",
        ),
        (((1.0, 1.0), (1.0, 2.0)), "windows.log_lorentz must have shape .1, L, L."),
    ],
)
def test_bank_refuses_another_number_of_windows(widths, message):
    with pytest.raises(ValueError, match=message):
        _shape_of_bank(make_windows(*widths, X.shape[1], "released", jnp.float32))


def test_bank_names_heads_and_blocks_that_are_not_possible():
    with pytest.raises(ValueError, match="num_heads must divide the .* features, got 5"):
        _shape_of_bank(blocks.Windows(None, None), num_heads=5)
    with pytest.raises(ValueError, match="at least one block"):
        _shape_of_bank(blocks.Windows(None, None), 0, 0)


@pytest.mark.parametrize("options, message", [
    ({"window": "gauss"}, "window must be one of released, corrected, got 'gauss'"),
    ({"head_merge": "mean"}, "head_merge must be one of released, hyperboloid, got 'mean'"),
])  # fmt: skip
def test_unknown_names_in_lorentz_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(AS_RELEASED, **options)


def test_windows_of_a_bank_take_arrays_of_widths():
    of_numbers = make_windows((0.5, 2.0), (), 5, "released", jnp.float32)
    of_arrays = make_windows(np.array([0.5, 2.0]), jnp.zeros(0), 5, "released", jnp.float32)
    np.testing.assert_array_equal(of_arrays.euclidean, of_numbers.euclidean)
    assert of_arrays.log_lorentz is None


@pytest.mark.slow  # it compiles operation by operation
def test_blocks_become_nnx_modules():
    options, x, mask = BlockOptions(2, 0.5), jnp.asarray(X), np.ones((2, 5), bool)
    for block, *inputs in (
        (EuclideanBlock(options), x, x, None, mask),
        (LorentzBlock(options, AS_RELEASED), x, None, mask),
    ):
        rngs = nnx.Rngs(0)
        module = nnx.bridge.lazy_init(nnx.bridge.ToNNX(block, rngs=rngs), *inputs, train=False)
        first, second = (module(*inputs, train=True, rngs=rngs) for _ in range(2))
        assert first.shape == X.shape and np.any(first != second)
