"""Frames and words to features, against their equations in NumPy."""

import jax
import numpy as np
import pytest
import tree_nodes

from hlformer_jax.models.hover import encoders
from hlformer_jax.models.hover.options import from_config
from hlformer_jax.nn.recurrent import LSTM

NODES = tree_nodes.nodes(junk=4.0)


def _mean(x, mask):
    """Means of real rows; 0 where there is none."""
    pairs = zip(x, mask, strict=True)
    return np.array([own[real].sum(0) / max(real.sum(), 1) for own, real in pairs])


def _dense(params, x):
    return np.float64(x) @ np.asarray(params["kernel"], float) + np.asarray(params["bias"], float)


def test_a_mean_is_of_real_rows_and_of_none_it_is_zero():
    found = encoders.masked_mean(NODES.frames, NODES.frame_mask)
    # Sums of four float32 numbers near 1.
    np.testing.assert_allclose(found, _mean(NODES.frames, NODES.frame_mask), atol=1e-6)
    assert not np.any(found[-1])


@pytest.mark.parametrize("hidden_size", [4, tree_nodes.D])
def test_a_video_is_the_mean_of_its_unit_frames_after_a_layer_with_a_residual(hidden_size):
    options = from_config(tree_nodes.config(**{"model.hidden_size": hidden_size}))
    encoder = encoders.VideoEncoder(options)
    given = NODES.frames, NODES.frame_mask
    params = jax.jit(encoder.init)(jax.random.key(0), *given)["params"]
    found = jax.jit(encoder.apply)({"params": params}, *given)
    # Features as wide as the model have no input layer.
    assert ("input" in params) == (hidden_size != tree_nodes.D)
    x = _dense(params["input"], given[0]) if "input" in params else np.float64(given[0])
    apply = jax.jit(LSTM(hidden_size).apply)
    layer = apply({"params": params["recurrent"]}, np.float32(x), given[1])
    x = x + np.asarray(layer, float)
    expected = _mean(x / np.linalg.norm(x, axis=-1, keepdims=True), given[1])
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("hidden_size", [4, tree_nodes.E])
def test_given_sentences_are_averaged_and_go_through_a_layer_where_widths_differ(hidden_size):
    options = from_config(
        tree_nodes.config(**{"model.hidden_size": hidden_size, "model.text_encoder": "given"})
    )
    encoder = encoders.TextEncoder(options)
    given = NODES.words, NODES.word_mask
    variables = jax.jit(encoder.init)(jax.random.key(0), *given)
    expected = _mean(*given)
    if hidden_size == tree_nodes.E:
        assert "params" not in variables
    else:
        expected = _dense(variables["params"]["input"], expected)
    np.testing.assert_allclose(encoder.apply(variables, *given), expected, atol=2e-6)


@pytest.mark.parametrize("text_encoder", ["mean", "attention"])
def test_of_one_word_its_copies_are_no_more_than_itself(text_encoder):
    # A text of one word: an average, and an attention without other words, is that word's feature.
    options = from_config(tree_nodes.config(**{"model.text_encoder": text_encoder}))
    encoder = encoders.TextEncoder(options)
    words = np.array(NODES.words)
    mask = np.zeros_like(NODES.word_mask)
    mask[:, 0] = True
    words[1] = words[0]
    words[1, 1:] = 9.0
    variables = jax.jit(encoder.init)(jax.random.key(0), words, mask)
    found = np.asarray(jax.jit(encoder.apply)(variables, words, mask))
    np.testing.assert_array_equal(found[0], found[1])
    assert np.any(found[0] != found[2])
