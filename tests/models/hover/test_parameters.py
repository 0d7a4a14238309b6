"""Initial parameters of HOVER, and the limit of its learned scale."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
import tree_nodes

from hlformer_jax.models import hover
from hlformer_jax.models.hover import parameters


@functools.cache
def _initial(**options):
    return hover.init_params(tree_nodes.config(**options))


def test_layers_start_as_the_identity_or_as_released():
    params = hover.init_params(tree_nodes.config(**{"model.hyperbolic_dim": 3}))
    layer = params["video_lift"]["hyperbolic"]
    np.testing.assert_array_equal(layer["matrix"], np.eye(3, 4))
    assert not np.any(layer["bias"])
    params = hover.init_params(tree_nodes.config(**{"model.hyperbolic_init": "kaiming"}))
    layer = params["text_lift"]["hyperbolic"]
    assert all(0 < np.abs(x).max() <= 0.5 for x in layer.values())


def test_a_learned_scale_stays_within_its_limit():
    params = _initial()
    assert np.exp(params["log_scale"]) == pytest.approx(1 / 0.07)
    limited = parameters.project(params | {"log_scale": jnp.float32(9.0)})
    assert np.exp(limited["log_scale"]) == pytest.approx(100, rel=1e-5)
    assert "log_scale" not in hover.init_params(tree_nodes.config(**{"model.learned_scale": False}))


def test_another_seed_draws_other_parameters():
    one, other = _initial(), _initial(seed=8)
    drawn = lambda params: (params["direction"], params["video_encoder"]["recurrent"]["input"])
    assert all(np.any(x != y) for x, y in zip(drawn(one), drawn(other), strict=True))


def test_nodes_of_zeros_have_the_shapes_of_the_configuration_and_are_all_real():
    nodes = parameters.zero_nodes(tree_nodes.config(), 3)
    assert nodes.frames.shape == (3, tree_nodes.FRAMES, tree_nodes.D)
    assert nodes.words.shape == (3, tree_nodes.WORDS, tree_nodes.E)
    assert all(np.all(x) for x in (nodes.frame_mask, nodes.word_mask, nodes.mask))
