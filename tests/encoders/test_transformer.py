import dataclasses

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from hlformer_jax.encoders import config, transformer
from hlformer_jax.encoders.config import LARGEST_ID


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def draw(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def test_products_of_a_small_dtype_are_summed_in_float32(rng):
    kernel = draw(rng, 500, 2).astype(ml_dtypes.bfloat16)
    x = draw(rng, 3, 500)
    found = transformer.linear({"kernel": kernel}, x)
    expected = x.astype(ml_dtypes.bfloat16).astype(np.float64) @ kernel.astype(np.float64)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)


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


def test_a_zero_vector_stays_zero_and_others_have_norm_1(rng):
    x = draw(rng, 3, 5) * np.float32([[0], [1e-12], [1e12]])
    found = np.asarray(transformer.unit(x))
    assert not found[0].any()
    np.testing.assert_allclose(np.linalg.norm(found[1:], axis=1), 1, rtol=1e-6)


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
