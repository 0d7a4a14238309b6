"""The model's options and invariants, on tiny sizes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from hlformer_jax import models
from hlformer_jax.losses import embeddings, ranking
from hlformer_jax.models import hlformer
from hlformer_jax.training import prvr

# What sets the branches apart is under test elsewhere, and one of them compiles in half the time.
ONE_BRANCH = {"model.glance": False}
OPTIONS = {
    "as released": {},
    "no gaze": {"model.gaze": False},
    "no glance": ONE_BRANCH,
    "mean fusion": ONE_BRANCH | {"model.fusion": "mean"},
    "concatenation": ONE_BRANCH | {"model.fusion": "concat"},
    "all Euclidean": ONE_BRANCH | {"model.euclidean_blocks": 3, "model.lorentz_blocks": 0},
    "all Lorentz": ONE_BRANCH | {"model.euclidean_blocks": 0, "model.lorentz_blocks": 2},
    "one width for all": ONE_BRANCH | {"model.euclidean_widths": (3.0,)},
    "printed window": ONE_BRANCH | {"model.window": "printed"},
    "corrected window": ONE_BRANCH | {"model.lorentz_window": "corrected"},
    "merge on the hyperboloid": ONE_BRANCH | {"model.head_merge": "hyperboloid"},
    "one loss term": {
        "loss.clip_nce": 0.0,
        "loss.frame_nce": 0.0,
        "loss.frame_triplet": 0.0,
        "loss.query_diversity": 0.0,
        "loss.partial_order": 0.0,
    },
}


@functools.cache
def _value_and_gradient(name):
    config, batch = tiny.config(**OPTIONS[name]), tiny.batch()
    params = tiny.params(config)
    loss = lambda params: tiny.loss(config, params, batch)
    return params, *jax.jit(jax.value_and_grad(loss, has_aux=True))(params)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_finite_gradients_and_changes_the_loss(name):
    config = tiny.config(**OPTIONS[name])
    params, (value, terms), gradient = _value_and_gradient(name)
    assert set(terms) == set(prvr.active_terms(config, models.build(config)))
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
    values = {other: float(_value_and_gradient(other)[1][0]) for other in OPTIONS}
    same = [other for other in OPTIONS if values[other] == values[name]]
    assert same == [name]
    branches = {"clip_branch": config.model.glance, "frame_branch": config.model.gaze}
    for branch, on in branches.items():
        assert (branch in params) == on


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.3, 0.9])
def test_gradients_stay_finite_when_dropout_removes_whole_points(rate):
    config = tiny.config(**ONE_BRANCH, **{"model.dropout": rate, "model.input_dropout": rate})
    params = tiny.params(config)
    batch = tiny.batch()
    grad = jax.jit(jax.value_and_grad(lambda p, key: tiny.loss(config, p, batch, key)[0]))
    values = set()
    for seed in range(12):
        value, gradient = grad(params, jax.random.key(seed))
        values.add(float(value))
        assert np.isfinite(value)
        assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
    assert len(values) == 12  # the masks differ


@pytest.mark.slow
def test_bfloat16_changes_losses_and_gradients_by_its_rounding_alone():
    config, half, batch = tiny.config(), tiny.config(dtype="bfloat16"), tiny.batch()
    with jax.numpy_dtype_promotion("standard"):
        params = tiny.params(config)
        loss = lambda c: jax.value_and_grad(lambda p: tiny.loss(c, p, batch), has_aux=True)
        (_, exact), gradient = jax.jit(loss(config))(params)
        (_, terms), rounded = jax.jit(loss(half))(params)
    for name, value in terms.items():
        assert value.dtype == jnp.float32
        np.testing.assert_allclose(value, exact[name], rtol=2**-8, err_msg=name)
    one, other = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(g)]) for g in (gradient, rounded)
    )
    # Through a dozen layers there and back, each 2^-8: measured 0.047 of the norm.
    assert np.linalg.norm(other - one) < 0.1 * np.linalg.norm(one)


def test_the_lift_is_limited_and_its_gradient_finite():
    c = jnp.asarray(1.0)
    far = jnp.full((1, 4), 1e3)
    total = lambda u: (jnp.sum(hlformer.lift(u, c)), hlformer.lift(u, c))
    gradient, point = jax.jit(jax.grad(total, has_aux=True))(far)
    space = np.linalg.norm(point[0, 1:])
    np.testing.assert_allclose(space, hlformer.MAX_SINH, rtol=1e-4)
    assert np.all(np.isfinite(gradient))


@jax.jit
def _order_loss(videos, captions, c):
    """The partial-order loss of tangents, and its gradients."""
    pairs = ranking.Pairs(np.array([0, 0, 1, 2, 2], np.int32), np.ones(5, bool), np.ones(3, bool))

    def loss(videos, captions, c):
        lifted = hlformer.lift(videos, c), hlformer.lift(captions, c)
        return embeddings.partial_order(*lifted, c, pairs, 0.1)

    return jax.value_and_grad(loss, (0, 1, 2))(videos, captions, c)


@pytest.mark.parametrize("c", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("size", [0.0, 1e-4, 1.0, 50.0])
def test_the_lift_and_its_loss_are_finite_at_any_curvature(c, size):
    rng = np.random.default_rng(2)
    tangents = [jnp.asarray(size * rng.normal(size=(n, 8)), jnp.float32) for n in (3, 5)]
    value, gradient = _order_loss(*tangents, jnp.float32(c))
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
