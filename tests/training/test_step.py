"""The training step: which numbers of a configuration are arguments of its program."""

import jax
import numpy as np
import pytest

from hlformer_jax import models
from hlformer_jax.benchmark.training import Training
from hlformer_jax.config import ConfigError, debug, default
from hlformer_jax.parallel import analysis
from hlformer_jax.training import optim, step, train_state


def _config(**options):
    config = debug(default())
    config.data.update(visual_dim=6, text_dim=5, max_frames=8, max_clips=4, max_words=5)
    config.model.update(hidden_size=8, lorentz_dim=7, lorentz_blocks=1, gaze=False, num_heads=2)
    config.update_from_flattened_dict(options)
    return config


def _program(config):
    """The step of a configuration, lowered but not compiled, as text."""
    model, optimiser = models.build(config), optim.build(config, 10)
    state = jax.eval_shape(lambda: train_state.init_state(model, config, optimiser))
    program = jax.jit(step.train_step(model, config, optimiser, 5, 2))
    batch = models.zero_batch(config, videos=2, captions=3)
    return program.lower(state, batch, step.numbers(config)).as_text()


@pytest.fixture(scope="module")
def program():
    return _program(_config())


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 3},
        {"loss.clip_nce": 0.5, "loss.margin": 0.1, "loss.diversity_gamma": 2.0},
        {"loss.hard_negative_epoch": 7, "loss.hard_pool_size": 3},
        {"model.temperature": 0.05},
        {"model.window": "boxcar", "model.euclidean_widths": (0.5, 3.0)},
    ],
    ids=str,
)
def test_variants_that_differ_in_numbers_share_one_program(program, options):
    assert _program(_config(**options)) == program


def test_a_variant_of_another_form_has_its_own(program):
    assert _program(_config(**{"model.fusion": "mean"})) != program


@pytest.fixture(scope="module")
def loss():
    """Loss of the first step from one state, as a function of the numbers, compiled once."""
    config = _config()
    model, optimiser = models.build(config), optim.build(config, 10)
    rng = np.random.default_rng(0)
    noise = lambda x: rng.normal(size=x.shape).astype(x.dtype) if x.dtype == np.float32 else x
    batch = jax.tree.map(noise, models.zero_batch(config, videos=3, captions=4))
    captions = batch.captions._replace(video=np.array([0, 0, 1, 2], np.int32))
    batch = batch._replace(captions=captions)
    shapes = jax.eval_shape(lambda: train_state.init_state(model, config, optimiser))
    draw = lambda x: np.asarray(0.3 * rng.normal(size=x.shape), np.float32)
    state = jax.tree.map(lambda x: draw(x) if x.ndim else np.zeros((), x.dtype), shapes)
    program = jax.jit(step.train_step(model, config, optimiser, 5, 2))
    return lambda config: float(program(state, batch, step.numbers(config))[1]["loss"])


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 3},
        {"loss.clip_nce": 0.5},
        {"loss.margin": 0.9},
        {"loss.diversity_gamma": 2.0},
        {"model.temperature": 0.05},
        {"model.window": "boxcar"},
    ],
    ids=str,
)
def test_those_numbers_reach_the_loss(loss, options):
    assert loss(_config(**options)) != loss(_config())


@pytest.mark.parametrize("resident", [True, False])
def test_a_step_that_the_devices_have_no_room_for_is_refused(monkeypatch, resident):
    config, refused = _config(), pytest.raises(ConfigError, match="GB on each.*encode_parts")
    training = Training(config, 16, 2, resident)
    program, feed = training.compiled.program, training.feed
    needed = analysis.memory(program)["peak"]
    needed += 0 if resident else feed.bytes_per_device * 2 / 3  # two windows more
    monkeypatch.setattr(step.devices, "available_bytes", lambda mesh: needed + 1)
    step._check_room(program, feed)
    monkeypatch.setattr(step.devices, "available_bytes", lambda mesh: needed - 1)
    with refused:
        step._check_room(program, feed)
    with refused:
        Training(config, 16, 2, resident)


@pytest.mark.parametrize(
    ("options", "devices", "message"),
    [
        ({"kernels": "pallas"}, 2, "'pallas', which is for one device, and there are 2"),
        ({"train.encode_parts": 3}, 1, r"multiple of .*encode_parts .*, 3 x 1"),
        ({"train.encode_parts": 4}, 4, r"batch_size is 8: .* 4 x 4"),
    ],
)
def test_what_the_devices_cannot_train_is_refused_with_the_reason(options, devices, message):
    with pytest.raises(ConfigError, match=message):
        step.check(_config(**options), devices)
    step.check(_config(**{"train.encode_parts": 2}), 4)
