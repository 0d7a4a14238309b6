"""Fusion of blocks into one sequence, and pooling into one vector."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlformer_jax.nn import fusion
from hlformer_jax.nn.blocks import BlockOptions


def test_learned_weights_of_equal_logits_are_the_mean():
    blocks = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 4, 8)), jnp.float32)
    weights = fusion.BlockWeights(BlockOptions(2, 0.0))
    inputs = fusion.FusionInputs(blocks, blocks[0], None, jnp.float32(0.5), None), False
    params = weights.init(jax.random.key(0), *inputs)
    np.testing.assert_allclose(weights.apply(params, *inputs), blocks.mean(0), rtol=1e-5, atol=1e-6)
    params["params"]["logits"] = jnp.asarray([0.0, 0.0, 50.0])
    np.testing.assert_allclose(weights.apply(params, *inputs), blocks[2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [n for n, f in fusion.FUSIONS.items() if f.uses_token])
def test_a_fusion_that_asks_with_a_token_refuses_to_do_without(name):
    fuse, blocks = fusion.FUSIONS[name](BlockOptions(2, 0.0)), jnp.ones((3, 1, 4, 8))
    with pytest.raises(ValueError):
        inputs = fusion.FusionInputs(blocks, blocks[0], None, jnp.float32(1), None)
        fuse.init(jax.random.key(0), inputs, False)


def test_pooling_weighs_positions_by_a_softmax_and_leaves_padding_out():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 4, 3)).astype(np.float32)
    mask = np.array([[True, True, True, False], [True, False, False, False]])
    kernel = rng.normal(size=(3, 1)).astype(np.float32)
    apply = lambda mask: fusion.AttentionPooling().apply({"params": {"kernel": kernel}}, x, mask)
    for given, real in ((None, np.ones_like(mask)), (mask, mask)):
        weights = np.exp(x @ kernel)[..., 0] * real
        weights /= weights.sum(-1, keepdims=True)
        expected = np.einsum("vl,vlh->vh", weights, x)
        # Rounding of float32 sums of a few products.
        np.testing.assert_allclose(apply(given), expected, rtol=1e-5, atol=1e-6)


def test_a_concatenation_is_one_linear_map_of_all_blocks():
    blocks = np.random.default_rng(0).normal(size=(3, 2, 4, 5)).astype(np.float32)
    fuse = fusion.Concatenation(BlockOptions(2, 0.0))
    inputs = fusion.FusionInputs(blocks, blocks[0], None, jnp.float32(1), None), False
    params = fuse.init(jax.random.key(0), *inputs)
    kernel = np.asarray(params["params"]["dense"]["kernel"]).reshape(3, 5, 5)
    expected = np.einsum("kvlh,khj->vlj", blocks, kernel)
    np.testing.assert_allclose(fuse.apply(params, *inputs), expected, rtol=1e-5, atol=1e-6)
