import jax
import ml_dtypes
import numpy as np
import pytest
from scipy import special

from hlformer_jax.encoders import config, layers


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def draw(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def test_an_affine_map_is_that_of_numpy_with_and_without_a_bias(rng):
    params = {"kernel": draw(rng, 5, 4), "bias": draw(rng, 4)}
    x = draw(rng, 2, 3, 5)
    expected = x @ params["kernel"]
    np.testing.assert_allclose(layers.linear(params, x), expected + params["bias"], atol=1e-6)
    del params["bias"]
    np.testing.assert_allclose(layers.linear(params, x), expected, atol=1e-6)


def test_products_of_a_small_dtype_are_summed_in_float32(rng):
    kernel = draw(rng, 500, 2).astype(ml_dtypes.bfloat16)
    x = draw(rng, 3, 500)
    found = layers.linear({"kernel": kernel}, x)
    expected = x.astype(ml_dtypes.bfloat16).astype(np.float64) @ kernel.astype(np.float64)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_norm_centres_and_scales_with_its_epsilon_below_the_root(rng):
    params = {"scale": draw(rng, 6), "bias": draw(rng, 6)}
    x = draw(rng, 2, 3, 6)
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.5)
    found = layers.norm(params, x, 0.5)
    np.testing.assert_allclose(found, normal * params["scale"] + params["bias"], atol=1e-6)


ACTIVATIONS = {
    "quick_gelu": lambda x: x * special.expit(1.702 * x),
    "gelu": lambda x: x * special.ndtr(x),
    "gelu_new": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * special.expit(x),
}
ACTIVATIONS["gelu_pytorch_tanh"] = ACTIVATIONS["gelu_new"]


@pytest.mark.parametrize("name", config.ACTIVATIONS)
def test_activations_are_those_of_their_definitions(name):
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    np.testing.assert_allclose(layers.activation(name, x), ACTIVATIONS[name](x), atol=2e-6)


def test_an_activation_without_a_name_is_refused():
    with pytest.raises(ValueError, match="no activation 'gelo'"):
        layers.activation("gelo", np.zeros(1, np.float32))


@pytest.mark.parametrize("masked", [False, True])
def test_each_head_attends_on_its_own_and_to_no_masked_position(rng, masked):
    query, key, value = (draw(rng, 2, length, 6) for length in (3, 4, 4))
    mask = np.array([[1, 0, 0, 0], [1, 1, 0, 1], [0, 0, 1, 0]], bool) if masked else None
    found = layers.attend(query, key, value, 2, np.float32, mask)
    for head in (slice(0, 3), slice(3, 6)):
        logits = query[..., head] @ key[..., head].swapaxes(1, 2) / np.sqrt(3)
        weights = special.softmax(logits if mask is None else np.where(mask, logits, -1e9), -1)
        np.testing.assert_allclose(found[..., head], weights @ value[..., head], atol=1e-6)


def test_a_transformer_applies_its_layers_in_turn(loaded, rng):
    encoder = loaded("old_clip")
    tower, params = encoder.config.text, encoder.params["text"]["layers"]
    x = draw(rng, 1, 4, tower.width)
    run = jax.jit(lambda params, x: layers.transformer(params, x, tower))
    at_once, in_turn = run(params, x), x
    for index in range(tower.layers):
        in_turn = run(jax.tree.map(lambda leaf, i=index: leaf[i : i + 1], params), in_turn)
    assert tower.layers > 1
    np.testing.assert_allclose(at_once, in_turn, atol=2e-6)


def test_a_layer_adds_attention_and_then_the_feed_forward_of_what_it_normalised(loaded, rng):
    encoder = loaded("old_clip")
    tower, mask = encoder.config.text, np.tril(np.ones((4, 4), bool))
    params = jax.tree.map(lambda leaf: leaf[:1], encoder.params["text"]["layers"])

    @jax.jit
    def by_its_parts(x):
        own = jax.tree.map(lambda leaf: leaf[0], params)
        normal = layers.norm(own["norm1"], x, tower.epsilon)
        inputs = (layers.linear(own[name], normal) for name in ("query", "key", "value"))
        attended = layers.attend(*inputs, tower.heads, np.float32, mask)
        x = x + layers.linear(own["out"], attended)
        return x + layers.feed_forward(own, layers.norm(own["norm2"], x, tower.epsilon), tower)

    x = draw(rng, 1, 4, tower.width)
    found = layers.transformer(params, x, tower, mask)
    np.testing.assert_allclose(found, by_its_parts(x), atol=2e-6)


def test_a_zero_vector_stays_zero_and_others_have_norm_1(rng):
    x = draw(rng, 3, 5) * np.float32([[0], [1e-12], [1e12]])
    found = np.asarray(layers.unit(x))
    assert not found[0].any()
    np.testing.assert_allclose(np.linalg.norm(found[1:], axis=1), 1, rtol=1e-6)
