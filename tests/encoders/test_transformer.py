import dataclasses

import jax
import ml_dtypes
import numpy as np
import pytest
from scipy import special

from hlformer_jax.encoders import config, transformer
from hlformer_jax.encoders.config import LARGEST_ID, Vision


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def draw(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def test_an_affine_map_is_that_of_numpy_with_and_without_a_bias(rng):
    params = {"kernel": draw(rng, 5, 4), "bias": draw(rng, 4)}
    x = draw(rng, 2, 3, 5)
    expected = x @ params["kernel"]
    np.testing.assert_allclose(transformer.linear(params, x), expected + params["bias"], atol=1e-6)
    del params["bias"]
    np.testing.assert_allclose(transformer.linear(params, x), expected, atol=1e-6)


def test_products_of_a_small_dtype_are_summed_in_float32(rng):
    kernel = draw(rng, 500, 2).astype(ml_dtypes.bfloat16)
    x = draw(rng, 3, 500)
    found = transformer.linear({"kernel": kernel}, x)
    expected = x.astype(ml_dtypes.bfloat16).astype(np.float64) @ kernel.astype(np.float64)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_norm_centres_and_scales_with_its_epsilon_below_the_root(rng):
    params = {"scale": draw(rng, 6), "bias": draw(rng, 6)}
    x = draw(rng, 2, 3, 6)
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.5)
    found = transformer.norm(params, x, 0.5)
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
    np.testing.assert_allclose(transformer.activation(name, x), ACTIVATIONS[name](x), atol=2e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_each_head_attends_on_its_own_and_to_no_masked_position(rng, masked):
    query, key, value = (draw(rng, 2, length, 6) for length in (3, 4, 4))
    mask = np.array([[1, 0, 0, 0], [1, 1, 0, 1], [0, 0, 1, 0]], bool) if masked else None
    found = transformer.attend(query, key, value, 2, np.float32, mask)
    for head in (slice(0, 3), slice(3, 6)):
        logits = query[..., head] @ key[..., head].swapaxes(1, 2) / np.sqrt(3)
        weights = special.softmax(logits if mask is None else np.where(mask, logits, -1e9), -1)
        np.testing.assert_allclose(found[..., head], weights @ value[..., head], atol=1e-6)


def test_a_transformer_applies_its_layers_in_turn(loaded, rng):
    encoder = loaded("old_clip")
    tower, params = encoder.config.text, encoder.params["text"]["layers"]
    x = draw(rng, 1, 4, tower.width)
    run = jax.jit(lambda params, x: transformer.transformer(params, x, tower))
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
        normal = transformer.norm(own["norm1"], x, tower.epsilon)
        inputs = (transformer.linear(own[name], normal) for name in ("query", "key", "value"))
        attended = transformer.attend(*inputs, tower.heads, np.float32, mask)
        x = x + transformer.linear(own["out"], attended)
        return x + transformer.feed_forward(
            own, transformer.norm(own["norm2"], x, tower.epsilon), tower
        )

    x = draw(rng, 1, 4, tower.width)
    found = transformer.transformer(params, x, tower, mask)
    np.testing.assert_allclose(found, by_its_parts(x), atol=2e-6)


def test_a_zero_vector_stays_zero_and_others_have_norm_1(rng):
    x = draw(rng, 3, 5) * np.float32([[0], [1e-12], [1e12]])
    found = np.asarray(transformer.unit(x))
    assert not found[0].any()
    np.testing.assert_allclose(np.linalg.norm(found[1:], axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(("kind", "ahead"), [("old_clip", False), ("siglip", True)])
def test_tokens_of_a_clip_read_those_before_them_and_a_siglips_read_all(loaded, kind, ahead):
    encoder = loaded(kind)
    states = jax.jit(
        lambda ids: transformer.token_states(encoder.params["text"], encoder.config, ids)
    )
    ids = np.arange(5, 13, dtype=np.int32)[None]
    other = ids.copy()
    other[0, 4] = 20
    before, after = np.asarray(states(ids)), np.asarray(states(other))
    assert before.shape == (1, 8, encoder.config.text.width)
    assert np.array_equal(before[:, :4], after[:, :4]) != ahead
    assert (before[:, 4:] != after[:, 4:]).any(axis=-1).all()


@pytest.mark.parametrize(
    ("kind", "eos", "positions"),
    [
        ("old_clip", LARGEST_ID, (4, 1)),  # the first of the largest ids
        ("new_clip", 7, (2, 3)),  # the first end of the sentence
        ("siglip", 7, (5, 5)),
    ],
)
def test_a_sentence_is_pooled_at_its_end_or_a_siglips_at_the_last_position(
    loaded, kind, eos, positions
):
    encoder = loaded(kind)
    sizes = encoder.config
    sizes = dataclasses.replace(sizes, text=dataclasses.replace(sizes.text, eos=eos))
    ids = np.array([[3, 5, 7, 7, 9, 9], [3, 9, 5, 7, 9, 0]], np.int32)
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(2, 6, sizes.text.width)).astype(np.float32)
    found = transformer.pool_sentence(encoder.params["text"], sizes, hidden, ids)
    head = encoder.params["text"]["head"]
    expected = hidden[np.arange(2), positions] @ np.asarray(head["kernel"])
    np.testing.assert_allclose(found, expected + np.asarray(head.get("bias", 0)), atol=2e-6)


def test_vectors_of_sentences_have_norm_1_and_come_with_the_states_of_tokens(loaded):
    encoder = loaded("siglip")
    params, config = encoder.params["text"], encoder.config
    ids = np.arange(12, dtype=np.int32).reshape(2, 6)
    vectors, hidden = jax.jit(lambda ids: transformer.encode_sentences(params, config, ids))(ids)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    pooled = np.asarray(transformer.pool_sentence(params, config, hidden, ids))
    np.testing.assert_allclose(
        vectors, pooled / np.linalg.norm(pooled, axis=1, keepdims=True), atol=2e-6
    )


AGREEMENT = 2e-6
"""Largest difference in float32, relative to a position's norm."""


def test_hidden_states_of_patches_agree_with_transformers(encoder, expected, pictures):
    preparation = encoder.preparation
    pixels = encoder.preprocess(pictures[0])[None].astype(np.float32)
    normal = (pixels - np.float32(preparation.shift)) * np.float32(preparation.scale)
    found = np.asarray(transformer.image_states(encoder.params["vision"], encoder.config, normal))
    scale = np.linalg.norm(expected.patches, axis=-1, keepdims=True)
    apart = np.linalg.norm(found / scale - expected.patches / scale, axis=-1)
    assert apart.max() < AGREEMENT


def test_patches_are_cut_row_by_row_and_what_fills_none_is_left_out():
    sizes = Vision(8, 8, 1, 1, "gelu", 1e-5, image_size=7, patch_size=3)
    pixels = np.random.default_rng(0).random((2, 7, 7, 3), np.float32)
    found = np.asarray(transformer.patches(pixels, sizes))
    assert found.shape == (2, 4, 27)
    for place, (row, column) in enumerate([(0, 0), (0, 3), (3, 0), (3, 3)]):
        cell = pixels[:, row : row + 3, column : column + 3]
        np.testing.assert_array_equal(found[:, place], cell.reshape(2, 27))


def test_a_clip_pools_its_class_position_alone_and_a_siglip_all_patches(loaded):
    for kind, alone in (("old_clip", True), ("siglip", False)):
        encoder = loaded(kind)
        sizes = encoder.config.vision
        rng = np.random.default_rng(0)
        hidden = rng.normal(size=(1, sizes.grid**2 + alone, sizes.width)).astype(np.float32)
        pool = jax.jit(lambda x, e=encoder: transformer.pool_image(e.params["vision"], e.config, x))
        before = pool(hidden)
        assert before.shape == (1, encoder.width)
        changed = rng.normal(size=hidden.shape).astype(np.float32)
        changed[:, 0] = hidden[:, 0]
        assert np.array_equal(before, pool(changed)) == alone


def test_pixels_are_shifted_before_they_are_scaled_each_channel_by_its_own(loaded):
    encoder = loaded("siglip")
    params, config = encoder.params["vision"], encoder.config
    encode = jax.jit(lambda *inputs: transformer.encode_images(params, config, *inputs))
    pixels = np.random.default_rng(0).integers(30, 120, (2, 36, 36, 3), np.uint8)
    shift, scale = np.array([10, 20, 30], np.uint8), np.float32([0.01, 0.02, 0.03])
    found = encode(pixels, np.float32(shift), 2 * scale)
    expected = encode(2 * (pixels - shift), np.zeros(3, np.float32), scale)
    np.testing.assert_allclose(found, expected, atol=AGREEMENT)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
