"""Options, parameters, description and cost of every model."""

import functools
import itertools
import json
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from hlformer_jax import models
from hlformer_jax.config import check, load
from hlformer_jax.models import cost, describe, hover, meaning
from hlformer_jax.models.two_branch import block_widths
from hlformer_jax.nn import blocks
from hlformer_jax.ops import windows
from hlformer_jax.training import prvr
from hlformer_jax.typing import Batch

# CLIP4Clip has neither branches nor blocks; see test_clip4clip.py.
MODELS = [name for name in models.MODELS if "clip4clip" not in name]


# test_parity.py has every gradient of the released models.
@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("name", ["dynamic", "weighted", "shared curvature"])
def test_gradients_reach_the_parameters_of_an_option(name):
    params, (value, computed), gradient = tiny.value_and_gradient(name)
    config = tiny.case(name)
    assert set(computed) == set(prvr.active_terms(config, models.build(config)))
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
    path = {
        "dynamic": ("weight_token",),
        "weighted": ("clip_branch", "fusion", "logits"),
        "shared curvature": ("attention_curv",),
    }[name]
    for key in path:
        params, gradient = params[key], gradient[key]
    assert np.any(np.asarray(gradient) != 0)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("standard_promotion")  # which some of JAX's rules ask for
# Sums of about 1e4 terms, each rounded by eps up or down; the two directions round gradients to
# bfloat16 at different places.
@pytest.mark.parametrize(("compute", "tolerance"), [("float32", 1e-6), ("bfloat16", 2**-7)])
def test_derivatives_in_forward_mode(compute, tolerance):
    config, batch = tiny.config(dtype=compute), tiny.batch()
    params = tiny.params(config)

    def loss(params):
        return tiny.loss(config, params, batch)[0]

    draw = np.random.default_rng(1).normal
    change = jax.tree.map(lambda x: draw(size=x.shape).astype(np.float32), params)
    _, forward = jax.jit(functools.partial(jax.jvp, loss))((params,), (change,))
    gradient = jax.jit(jax.grad(loss))(params)
    products = jax.tree.leaves(
        jax.tree.map(lambda g, x: np.asarray(g * x).ravel(), gradient, change)
    )
    products = np.concatenate(products)
    assert abs(forward - products.sum()) <= tolerance * np.abs(products).sum()


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_gradients_in_shard_map(compute):
    config = tiny.config(dtype=compute)
    model, videos, params = models.build(config), tiny.batch().videos, tiny.params(config)

    def slope(params, videos):
        def total(params):
            return jnp.sum(models.encode_video(model, params, videos).clips ** 3)

        return jax.grad(total)(params)

    replicated = jax.sharding.PartitionSpec()
    mesh = jax.make_mesh((1,), ("videos",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = replicated, jax.sharding.PartitionSpec("videos")
    parts = jax.shard_map(slope, mesh=mesh, in_specs=specs, out_specs=replicated)
    expected = jax.jit(slope)(params, videos)
    for a, b in zip(*map(jax.tree.leaves, (jax.jit(parts)(params, videos), expected)), strict=True):
        # bfloat16 has 8 bits, and products are rounded at different places.
        error = 1e-5 if compute == "float32" else 0.02
        np.testing.assert_allclose(a, b, rtol=error, atol=error * np.max(np.abs(b)))


@pytest.mark.slow  # it takes seconds
@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="explicit meshes are experimental")
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("parts", [1, 3])
def test_gradients_on_an_explicit_mesh(parts):
    config = tiny.config()
    model, videos, params = models.build(config), tiny.batch().videos, tiny.params(config)

    @jax.jit
    @jax.grad
    def slope(params, videos):
        return jnp.sum(models.encode_video(model, params, videos, parts=parts).clips ** 3)

    mesh = jax.make_mesh((1,), ("videos",), axis_types=(jax.sharding.AxisType.Explicit,))
    replicated, split = (
        jax.sharding.NamedSharding(mesh, jax.P(*axes)) for axes in ((), ("videos",))
    )
    expected = slope(params, videos)
    with jax.set_mesh(mesh):
        actual = slope(*jax.device_put((params, videos), (replicated, split)))
    for a, b in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.max(np.abs(b)))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(
    ("precision", "dtype", "setting"),
    [
        ("highest", "float32", "HIGHEST"),
        ("tf32", "float32", "HIGH"),  # JAX's name of TensorFloat-32
        ("highest", "bfloat16", None),
    ],
)
def test_products_have_the_configured_precision(precision, dtype, setting):
    config = tiny.config(precision=precision, dtype=dtype)
    model = models.build(config)
    params = jax.eval_shape(lambda: models.init_params(model, config))
    batch = models.zero_batch(config)
    before = jax.config.jax_default_matmul_precision
    for encode, inputs in (
        (models.encode_video, batch.videos),
        (models.encode_query, batch.captions),
    ):
        _check_products(functools.partial(encode, model), params, inputs, setting)
    assert jax.config.jax_default_matmul_precision == before


@pytest.mark.slow  # it takes seconds
def test_hover_products_have_the_configured_precision():
    config = load("hover", "activitynet-debug")
    model, nodes = hover.build(config), hover.zero_nodes(config)
    params = jax.eval_shape(lambda: hover.init_params(config))
    _check_products(lambda p, x: model.apply({"params": p}, x), params, nodes, "HIGHEST")


def _check_products(function, params, inputs, setting):
    """Check that no product has the default precision of JAX if the configuration sets one."""
    program = str(jax.make_jaxpr(function)(params, inputs))
    products = re.findall(r"dot_general\[.*?\]\s", program, re.DOTALL)
    default = [x for x in products if "precision=" not in x]
    assert products and bool(default) == (setting is None)
    assert setting is None or re.search(rf"\b{setting}\b", " ".join(products))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", blocks.FUSIONS)
def test_every_combination_of_options_can_be_traced(model, kind):
    """Trace every model with every aggregation; the remaining options are drawn at random."""
    rng = random.Random(f"{model} {kind}")

    def choose(*choices):
        return rng.choice(choices)

    lorentz = choose(0, 1)
    branches = choose((True, True), (True, False), (False, True))
    options = {
        "model.name": model,
        "model.fusion": kind,
        "model.lorentz_blocks": lorentz,
        "model.euclidean_blocks": choose(1, 2) if lorentz == 0 else choose(0, 2),
        "model.window": choose(*windows.KINDS),
        "model.gaze": branches[0],
        "model.glance": branches[1],
        "model.video_level": choose(branches[0], False) and model not in ("ms_sl", "dl_dkd"),
        "model.dropout": 0.1,
        "loss.optimal_matching": choose(0.0, 0.1) if branches[1] else 0.0,
        "loss.partial_order": choose(0.0, 0.1) if model == "hlformer" else 0.0,
        "loss.diversity_form": choose("pairs", "captions"),
    }
    if lorentz:
        options["model.lorentz_window"] = choose("released", "corrected")
        options["model.head_merge"] = choose("released", "hyperboloid")
        options["model.block_curvature"] = choose("fixed", "shared")
    config = tiny.config(**options)
    check(config)
    params = jax.eval_shape(lambda: models.init_params(models.build(config), config))

    def loss(p):
        return tiny.loss(config, p, tiny.batch(), jax.random.key(0))[0]

    assert jax.eval_shape(loss, params).shape == ()


def test_every_configuration_file_builds_its_model():
    for path, name in itertools.product(tiny.config_files(), ("", "debug")):
        config = load(path, name)
        model = models.build(config)
        assert type(model.module) is models.MODELS[config.model.name]
        assert prvr.active_terms(config, model)


# Parameters.


@pytest.mark.slow  # it takes seconds
def test_blocks_of_a_bank_start_different():
    config = tiny.config(**{"model.gaze": False, "model.lorentz_blocks": 0})
    bank = models.init_params(models.build(config), config)["clip_branch"]["bank"]
    kernel = bank["euclidean"]["attention"]["query"]["kernel"]
    assert not np.array_equal(kernel[0], kernel[1])
    # N(0, 0.02), as released.
    weights = bank["euclidean"]["output"]["layer1"]["kernel"]
    assert 0.015 < np.std(weights) < 0.025


def test_scalars_are_clamped_to_declared_bounds():
    config = tiny.config(**{"model.block_curvature": "shared", "model.curvature": 2.0})
    model = models.build(config)
    params = {
        "curv": jnp.asarray(9.0),
        "attention_curv": jnp.asarray(-9.0),
        "a": {"scale_alpha": jnp.array([-1.0, 0.5])},
        "b": jnp.asarray(2.0),
    }
    projected = models.project(model, params)
    np.testing.assert_allclose(np.exp(projected["curv"]), 20, rtol=1e-6)
    np.testing.assert_allclose(np.exp(projected["attention_curv"]), 0.1, rtol=1e-6)
    np.testing.assert_array_equal(projected["a"]["scale_alpha"], [-1.0, 0.0])
    assert projected["b"] == 2.0


def test_default_widths_are_the_released_ones():
    assert block_widths((), 4) == (0.0, 2.0, 4.0, 8.0)
    assert block_widths((), 1) == (0.0,)
    assert block_widths((3,), 2) == (3.0, 3.0)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(
    "name", ["weighted", "gmmformer_v2", "ms_sl", "dl_dkd", "shared curvature"]
)
def test_encoding_in_parts_keeps_loss_and_gradient(name):
    _, (value, _), gradient = tiny.value_and_gradient(name)
    _, (value_in_parts, _), in_parts = tiny.value_and_gradient(name, tiny.VIDEOS)
    # Sums have a different order: float32 rounding through a network.
    np.testing.assert_allclose(value_in_parts, value, rtol=1e-5)
    for expected, actual in zip(*map(jax.tree.leaves, (gradient, in_parts)), strict=True):
        np.testing.assert_allclose(
            actual, expected, rtol=0, atol=1e-4 * np.abs(expected).max() + 1e-6
        )


# Description and cost.


@pytest.mark.slow  # it takes seconds
def test_numpy_parameters_may_be_constants_of_a_program():
    config = tiny.config(**tiny.EUCLIDEAN, **tiny.ONE_BRANCH)
    model, params = models.build(config), jax.tree.map(np.asarray, tiny.params(config))
    videos = models.zero_batch(config).videos
    from_constants = jax.jit(lambda videos: models.encode_video(model, params, videos))(videos)
    from_arguments = jax.jit(models.encode_video)(model, params, videos)
    np.testing.assert_allclose(from_constants.clips, from_arguments.clips, atol=1e-6)


def test_description_is_json_without_free_fields():
    fields = describe(tiny.config())
    assert json.loads(json.dumps(fields)) == fields
    assert fields == describe(tiny.config(**{"model.dropout": 0.5, "model.clip_weight": 0.1}))
    for options in ({"model.hidden_size": 12}, {"data.max_words": 5}, {"model.fusion": "mean"}):
        assert describe(tiny.config(**options)) != fields


def test_equal_widths_have_equal_meaning():
    def means(**options):
        return meaning(describe(tiny.config(**options)))

    assert means() == means(**{"model.euclidean_widths": (0.0, 2.0)})
    assert means(**{"model.lorentz_widths": (3.0,)}) == means(
        **{"model.lorentz_widths": (3.0, 3.0)}
    )
    assert means() != means(**{"model.euclidean_widths": (0.0, 4.0)})
    # The single block of MS-SL has no window; converted checkpoints have the width [0.0].
    single_block = {"model.euclidean_blocks": 1, "model.lorentz_blocks": 0}
    assert means(**single_block) == means(**single_block, **{"model.euclidean_widths": (0.0,)})
    # Without a Lorentz block its width has no meaning.
    assert means(**single_block) == means(**single_block, **{"model.lorentz_dim": 3})
    assert means() != means(**{"model.lorentz_dim": 3})


PLAIN = {
    "model.name": "gmmformer_v2",
    "model.gaze": False,
    "model.euclidean_blocks": 1,
    "model.lorentz_blocks": 0,
    "model.fusion": "mean",
    "model.hidden_size": 32,
    "data.visual_dim": 48,
    "data.text_dim": 24,
}


def _dense(inside, outside):
    return inside * outside + outside


def test_parameters_and_products_equal_a_count_by_hand():
    counted = cost(tiny.config(**PLAIN))
    h, norm = 32, 2 * 32
    block = 3 * _dense(h, h) + _dense(h, 4 * h) + _dense(4 * h, h) + 2 * norm

    def branch(width, positions):
        return 2 * width + _dense(width, h) + positions * h + norm + block

    # The query's encoder pools its words by one vector.
    assert counted.parameters == branch(48, tiny.FRAMES) + branch(24, tiny.WORDS) + h

    def products(rows, width):
        inner = 3 * h * h + 2 * rows * h + 8 * h * h
        return 2 * rows * (width * h + inner)

    video, caption = products(tiny.CLIPS, 48), products(tiny.WORDS, 24) + 4 * tiny.WORDS * h
    # Normalisation and softmax add tens of operations per element.
    assert 1 <= counted.flops_video / video < 1.2
    assert 1 <= counted.flops_caption / caption < 1.2


def test_parts_of_a_batch_do_not_change_the_count():
    config = tiny.config(**PLAIN, **{"train.encode_parts": 4})
    assert cost(config) == cost(tiny.config(**PLAIN))
    assert config.train.encode_parts == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", models.MODELS)
def test_padding_changes_neither_loss_nor_gradient(float64, name):
    config = tiny.case(name)  # with dropout, whose masks must not move either
    config.dtype = "float64"
    with jax.numpy_dtype_promotion("standard"):
        params = jax.tree.map(lambda x: x.astype(np.float64), tiny.params(config))
        batch = tiny.batch(dtype=np.float64, with_teacher=config.data.teacher_dim > 0)

        def pad(n):
            return lambda x: np.concatenate([x, np.zeros((n, *x.shape[1:]), x.dtype)])

        padded = Batch(*(jax.tree.map(pad(n), part) for part, n in zip(batch, (2, 4), strict=True)))

        def loss(p, b):
            return tiny.loss(config, p, b, jax.random.key(5))[0]

        both = jax.jit(jax.value_and_grad(loss))
        value, gradient = both(params, batch)
        padded_value, padded_gradient = both(params, padded)
    np.testing.assert_allclose(padded_value, value, rtol=1e-12)
    for expected, padded in zip(*map(jax.tree.leaves, (gradient, padded_gradient)), strict=True):
        np.testing.assert_allclose(padded, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.usefixtures("float64", "standard_promotion")  # the batch is float32
def test_parameters_have_one_precision():
    """JAX_ENABLE_X64 trains in float64; a step would return a mixture of precisions as float64."""
    config = load("synthetic", "debug")
    initial = models.build(config), load("hover", "debug")
    shapes = jax.eval_shape(
        lambda: (models.init_params(initial[0], config), hover.init_params(initial[1]))
    )
    assert {x.dtype for x in jax.tree.leaves(shapes)} == {np.dtype(np.float64)}
