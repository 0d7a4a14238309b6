"""Rows: a tree comes back from its matrices, and the optimiser does to them what it does to it."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hlformer_jax.config import default
from hlformer_jax.training import optim, step
from hlformer_jax.training.optim import Rows


def _tree(seed):
    rng = np.random.default_rng(seed)
    shapes = {
        "bank": {"kernel": (3, 40, 50), "bias": (3, 50), "scale": (3,)},
        "dense": {"kernel": (70, 30), "bias": (30,)},
        "tall": (70, 1),
        "scale": (),
        "curvature": (),
    }
    draw = lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return jax.tree.map(draw, shapes, is_leaf=lambda x: isinstance(x, tuple))


@pytest.fixture(params=[48, 3])
def at_most(request, monkeypatch):
    monkeypatch.setattr(optim, "ARRAYS", request.param)


@pytest.mark.usefixtures("at_most")
def test_a_tree_comes_back_bit_for_bit():
    tree = _tree(0)
    jax.tree.map(np.testing.assert_array_equal, Rows.of(tree).tree(), tree)
    negative = lambda tree: tree | {"scale": -tree["scale"]}
    jax.tree.map(
        np.testing.assert_array_equal, Rows.of(tree).apply(negative).tree(), negative(tree)
    )


@pytest.mark.usefixtures("at_most")
@pytest.mark.parametrize("together", [None, 0.5])
def test_the_optimiser_does_to_rows_what_it_does_to_the_tree(together):
    fields = default().optim
    if together:
        fields = fields.copy_and_resolve_references()
        fields.unlock()
        fields.update(global_clip=together, fast_rate=0.3)
    rates = {"curvature": "fast_rate"} if together else {}
    module = SimpleNamespace(stacked=("bank",), undecayed=("bias",), rates=rates)
    optimiser = optim.build(fields, module, 10)
    state = step.init_state(_tree(0), optimiser)

    @jax.jit
    def step_of(one, gradient):
        given = one.params.like(gradient) if isinstance(one.params, Rows) else gradient
        updates, kept = optimiser.update(given, one.optimiser, one.params)
        return one.replace(params=optax.apply_updates(one.params, updates), optimiser=kept)

    both = state, step.joined(state)
    for seed in range(1, 4):
        both = tuple(step_of(one, _tree(seed)) for one in both)
    expected, found = both
    close = lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-8)
    jax.tree.map(close, found.params.tree(), expected.params)
    apart = lambda part: part.tree() if isinstance(part, Rows) else part
    kept = jax.tree.map(apart, found.optimiser, is_leaf=lambda part: isinstance(part, Rows))
    jax.tree.map(close, kept, expected.optimiser)
    norms = [optax.tree.norm(given) for given in (_tree(1), Rows.of(_tree(1)))]
    close(Rows.of(_tree(1)).norm(), norms[0])
    close(*norms)
