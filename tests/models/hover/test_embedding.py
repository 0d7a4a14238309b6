"""The model of HOVER: features to points, padding, gradients, the released factor."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree_nodes

from hlformer_jax.models import hover
from hlformer_jax.models.hover import embedding


@functools.cache
def _program(text_encoder, lift="unit"):
    config = tree_nodes.config(**{"model.text_encoder": text_encoder, "model.lift": lift})
    model = hover.build(config)
    run = lambda params, nodes: model.apply({"params": params}, nodes)
    value = lambda params, nodes: sum(jnp.sum(x[:4] ** 2) for x in run(params, nodes))
    return hover.init_params(config), jax.jit(run), jax.jit(jax.grad(value))


@pytest.mark.parametrize(
    "text_encoder",
    ["given", *(pytest.param(x, marks=pytest.mark.slow) for x in ("mean", "attention"))],
)
def test_what_is_masked_changes_nothing_and_no_gradient_is_lost(text_encoder):
    params, run, gradient = _program(text_encoder)
    one, other = run(params, tree_nodes.nodes()), run(params, tree_nodes.nodes(junk=7.0))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:4], b[:4]), one, other)
    assert all(np.all(np.isfinite(x)) and np.all(np.linalg.norm(x, axis=-1) < 1) for x in one)
    for x in jax.tree.leaves(
        gradient(params, tree_nodes.nodes())
    ):  # node 4 has no frame and no word
        assert np.all(np.isfinite(x))


def test_unit_features_start_on_one_sphere_and_learned_lengths_leave_it():
    params, run, _ = _program("given", "radius")
    nodes = tree_nodes.nodes()
    for points in run(params, nodes):
        np.testing.assert_allclose(np.linalg.norm(points[:4], axis=-1), np.tanh(1), rtol=1e-6)
    for lift in ("video_lift", "text_lift"):
        params[lift]["radius"] = np.linspace(-1, 1, 5, dtype=np.float32)
    norms = np.linalg.norm(run(params, nodes).video[:4], axis=-1)
    assert np.ptp(norms) > 0.01
    longest = np.exp(embedding.LONGEST)
    assert np.all((norms > np.tanh(1 / longest)) & (norms < np.tanh(longest)))


def test_the_released_factor_scales_gradients_and_no_value():
    x = np.array([[0.6, -0.8, 0.0]], np.float32)
    scaled = lambda x: embedding.as_parameter_of_the_ball(x, 1.0)
    np.testing.assert_array_equal(scaled(x), x)
    gradient = jax.grad(lambda x: jnp.sum(scaled(x)))(x)
    # ((1 - tanh²(1)) / 2)², 0.044 at the radius of unit features.
    np.testing.assert_allclose(gradient, ((1 - np.tanh(1.0) ** 2) / 2) ** 2, rtol=1e-5)
