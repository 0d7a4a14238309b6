"""The training step, the optimiser, and what a compiled program depends on."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import runs

from hlformer_jax import models
from hlformer_jax.config import ConfigError, default
from hlformer_jax.data.feed import Schedule
from hlformer_jax.runtime import compiler, devices
from hlformer_jax.training import optim, prvr, step
from hlformer_jax.training.optim import Rows
from hlformer_jax.training.step import init_state


class Quadratic:
    terms = ("square",)

    def __call__(self, params, batch, step):
        square = jnp.sum((params["x"] - batch) ** 2)
        return square + 2.0 * step, {"square": square}


def test_step_is_a_projected_update_with_scalars():
    optimiser = optax.sgd(0.25)
    take = step.train_step(Quadratic(), optimiser, lambda params: {"x": params["x"].clip(-1, 1)})
    state = init_state({"x": jnp.asarray([0.0, 1.0])}, optimiser)
    state = dataclasses.replace(state, step=jnp.asarray(3))
    following, scalars = take(state, jnp.asarray([4.0, 0.0]))
    assert int(following.step) == 4
    # Gradients are -8 and 2: updates of 2 and -0.5, the first of which is clipped.
    np.testing.assert_allclose(following.params["x"], [1.0, 0.5])
    assert {name: float(value) for name, value in scalars.items()} == pytest.approx(
        {"loss": 17.0 + 6.0, "loss/square": 17.0, "gradient_norm": np.sqrt(68.0)}
    )


def _tree_steps(config, longest):
    """Return the compiled steps of a tree, its initial state and its feed."""
    family = runs.Tree(config)
    groups = Schedule(family.num_examples, config.train.batch_size, 0).groups(1, longest)
    feed, optimiser = family.feed(groups), family.optimiser(10)
    state = devices.replicate(family.mesh, init_state(family.init_params(), optimiser))
    compiled = step.compile_steps(family.loss(3), optimiser, family.project, feed, state, config)
    return compiled, state, feed


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(
    ("options", "setting"),
    [({}, "highest"), ({"precision": "tf32"}, "tensorfloat32"), ({"dtype": "bfloat16"}, None)],
)
def test_loss_is_traced_in_the_precision_of_the_configuration(monkeypatch, options, setting):
    settings, call, before = set(), runs.Attraction.__call__, _precision()

    def record_precision(*inputs):
        settings.add(_precision())
        return call(*inputs)

    monkeypatch.setattr(runs.Attraction, "__call__", record_precision)
    _tree_steps(runs.tree(**options), 1)
    assert settings == {setting} and _precision() == before


def _precision():
    return jax.config.jax_default_matmul_precision


@pytest.mark.slow  # it takes seconds
def test_chunk_length_does_not_change_the_steps():
    ends, losses = [], []
    for longest in (1, 3):
        compiled, state, feed = _tree_steps(runs.tree(), longest)
        losses.append([])
        for chunk in feed.chunks():
            state, scalars = compiled.steps(state, chunk)
            losses[-1] += np.asarray(scalars["loss"])[: chunk.num_steps].tolist()
        ends.append(np.asarray(state.params["space"]))
    # A loop of a single step is rounded differently.
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-6)
    assert len(losses[0]) == 3


@pytest.mark.slow  # it takes seconds
def test_program_beyond_device_memory_is_refused(monkeypatch):
    monkeypatch.setattr(runs.ExampleFeed, "bytes_ahead", 1000)  # chunks not yet in use
    needed = compiler.memory_plan(_tree_steps(runs.tree(), 2)[0].program)["peak"] + 1000
    monkeypatch.setattr(devices, "available_bytes", lambda mesh: needed)
    _tree_steps(runs.tree(), 2)
    monkeypatch.setattr(devices, "available_bytes", lambda mesh: needed - 1)
    with pytest.raises(ConfigError, match="encode_parts"):
        _tree_steps(runs.tree(), 2)


def _program(**options):
    """Return the lowered but not compiled step of a configuration as text."""
    config = runs.retrieval("", **options)
    model = models.build(config)
    optimiser = optim.build(config.optim, model.module, 10)
    loss = prvr.build_objective(config, model, 5, 2)
    state = jax.eval_shape(lambda: init_state(models.init_params(model, config), optimiser))
    batch = models.zero_batch(config, videos=2, captions=3)

    def take_step(loss, state, batch):
        return step.train_step(loss, optimiser)(state, batch)

    return jax.jit(take_step).lower(loss, state, batch).as_text()


@pytest.fixture(scope="module")
def program():
    return _program()


NUMBERS = {
    **{"seed": 3, "loss.frame_nce": 0.5, "loss.margin": 0.1, "loss.diversity_gamma": 2.0},
    **{"loss.hard_negative_epoch": 7, "loss.hard_pool_size": 3, "model.temperature": 0.05},
    **{"model.window": "boxcar", "model.euclidean_widths": (0.5,)},
}


@pytest.mark.slow  # it takes seconds
def test_variants_that_differ_in_numbers_share_a_program(program):
    assert _program(**NUMBERS) == program


@pytest.mark.slow  # it takes seconds
def test_variant_of_another_form_has_another_program(program):
    assert _program(**{"model.fusion": "weighted"}) != program


def test_zero_gradient_stays_zero():
    zeros = jax.tree.map(jnp.zeros_like, _draw_tree(np.random.default_rng(0)))
    clipped, _ = optim.clip_by_tensor_norm(1.0).update(zeros, optax.EmptyState())
    assert not any(np.any(x) for x in jax.tree.leaves(clipped))


@pytest.mark.parametrize("warmup", [0.0, 0.1])
def test_schedule_rises_falls_and_ends_at_zero(warmup):
    rates = np.array([optim.schedule("linear", 2.0, warmup, 100)(k) for k in range(101)])
    assert rates[0] == (0.0 if warmup else 2.0)
    assert rates[100] == 0
    np.testing.assert_allclose(rates.max(), 2.0, rtol=1e-6)
    assert np.argmax(rates) == round(100 * warmup)
    assert np.all(np.diff(rates[round(100 * warmup) :]) < 0)


def _by_path(tree):
    """Return the arrays of a tree in float64 by their paths."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.float64(x) for path, x in paths}


def _draw_tree(rng):
    """Return a tree of single and banked parameters, some of which take several rows."""
    shapes = {
        "bank": {"kernel": (3, 40, 50), "bias": (3, 50), "scale": (3,)},
        "dense": {"kernel": (70, 30), "bias": (30,)},
        "tall": (70, 1),
        "scale": (),
        "curvature": (),
    }
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


@pytest.mark.parametrize("max_arrays", [None, 3, 48])
@pytest.mark.parametrize("global_clip", [None, 0.5])
def test_built_optimiser_equals_numpy(global_clip, max_arrays, monkeypatch):
    as_rows = max_arrays is not None
    monkeypatch.setattr(optim, "MAX_ARRAYS", max_arrays)
    fields = default().optim.copy_and_resolve_references()
    with fields.unlocked():
        fields.update(learning_rate=0.1, warmup=0.2, weight_decay=0.3, clip_norm=0.4)
        fields.update({"global_clip": global_clip, "fast_rate": 0.7} if global_clip else {})
    rates = {"curvature": "fast_rate"} if global_clip else {}
    module = SimpleNamespace(stacked=("bank",), undecayed=("bias",), rates=rates)
    optimiser = optim.build(fields, module, 10)
    rng = np.random.default_rng(0)
    params = _draw_tree(rng)
    expected = _by_path(params)
    first, second = ({name: np.zeros_like(x) for name, x in expected.items()} for _ in range(2))
    params = Rows.from_tree(params) if as_rows else params
    state, update = optimiser.init(params), jax.jit(optimiser.update)
    for k in range(5):
        gradient = _draw_tree(rng)
        inputs = params.like(gradient) if as_rows else gradient
        updates, state = update(inputs, state, params)
        params = optax.apply_updates(params, updates)
        gradients = _by_path(gradient)
        norm = np.sqrt(sum(np.sum(g**2) for g in gradients.values()))
        falling = (1 + np.cos(np.pi * k / 10)) / 2 if global_clip else (1 - k / 10) / 0.8
        rate = 0.1 * (k / 2 if k < 2 else falling)
        for name, g in gradients.items():
            g = g * min(1, global_clip / norm) if global_clip else g
            axes = tuple(range(1, g.ndim)) if "bank" in name else None  # each block of the bank
            g = g * np.minimum(1, 0.4 / np.sqrt(np.sum(g**2, axes, keepdims=True)))
            first[name] = fields.beta1 * first[name] + (1 - fields.beta1) * g
            second[name] = fields.beta2 * second[name] + (1 - fields.beta2) * g**2
            change = first[name] / (np.sqrt(second[name]) + fields.epsilon)
            change += (0 if "bias" in name else 0.3) * expected[name]
            factor = 7 if global_clip and "curvature" in name else 1
            expected[name] = expected[name] - factor * rate * change
    for name, x in _by_path(params.tree() if as_rows else params).items():
        np.testing.assert_allclose(x, expected[name], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("max_arrays", [3, 48])
def test_rows_restore_a_tree_bit_for_bit(max_arrays, monkeypatch):
    monkeypatch.setattr(optim, "MAX_ARRAYS", max_arrays)
    tree = _draw_tree(np.random.default_rng(0))
    rows = Rows.from_tree(tree)
    jax.tree.map(np.testing.assert_array_equal, rows.tree(), tree)

    def negate_scale(tree):
        return tree | {"scale": -tree["scale"]}

    negated = rows.apply(negate_scale).tree()
    jax.tree.map(np.testing.assert_array_equal, negated, negate_scale(tree))
    state = init_state(tree, optax.adam(0.1))
    restored = step.separate_rows(step.join_rows(state))
    jax.tree.map(np.testing.assert_array_equal, restored, state)
    for norm in (rows.norm(), optax.tree.norm(rows)):
        np.testing.assert_allclose(norm, optax.tree.norm(tree), rtol=2e-6)


@pytest.mark.slow  # it takes seconds
def test_short_runs_with_equal_constants_share_a_program():
    families = [runs.Tree(runs.tree(**{"compile_fast": True, "seed": seed})) for seed in (0, 1)]
    compiled, ends = [], []
    for family, constants in [*((family, "tree") for family in families), (families[1], "other")]:
        groups = Schedule(family.num_examples, family.config.train.batch_size, 0).groups(1, 3)
        feed, optimiser = family.feed(groups), family.optimiser(10)
        state = devices.replicate(family.mesh, init_state(family.init_params(), optimiser))
        arguments = family.loss(3), optimiser, family.project, feed, state, family.config
        compiled.append(step.compile_steps(*arguments, constants))
        ends.append(compiled[-1].steps(state, next(iter(feed.chunks())))[0].params["space"])
    assert compiled[0].program is compiled[1].program is not compiled[2].program
    # The second run has the loss of its own seed.
    np.testing.assert_array_equal(ends[1], ends[2])
    assert np.any(ends[0] != ends[1])


def test_program_fields_exclude_the_numbers_of_the_loss():
    config = default()
    fields = step.list_program_fields(config)
    config.loss.margin = 0.5
    config.model.temperature = 2.0
    assert step.list_program_fields(config) == fields
    config.optim.learning_rate = 0.5
    assert step.list_program_fields(config) != fields
