"""Operations of a step, its memory, preparation and compiling."""

import jax
import pytest
import runs

from hlformer_jax import models, parallel
from hlformer_jax.benchmark import step as measured
from hlformer_jax.benchmark.measure import Options
from hlformer_jax.benchmark.step import Training
from hlformer_jax.config import default
from hlformer_jax.training import optim, prvr, step
from hlformer_jax.training.step import init_state


def _config():
    config = default()
    config.data.update(visual_dim=512, text_dim=256, max_frames=32, max_clips=16, max_words=8)
    config.model.update(hidden_size=192, lorentz_dim=63, euclidean_blocks=2, lorentz_blocks=3)
    return config


@pytest.mark.slow  # it compiles for seconds
def test_operations_of_a_step_are_those_of_its_products_forwards_and_backwards():
    config = _config()
    model, videos, captions = models.build(config), 6, 20
    batch = models.zero_batch(config, videos, captions)
    params = jax.eval_shape(lambda: models.init_params(model, config))

    def forward(params, batch):
        return (
            models.encode_video(model, params, batch.videos),
            models.encode_query(model, params, batch.captions),
        )

    forwards = parallel.count_flops(forward, params, batch)
    optimiser = optim.build(config.optim, model.module, 10)
    loss = prvr.build_objective(config, model)
    state = jax.eval_shape(lambda: init_state(models.init_params(model, config), optimiser))
    take = lambda loss, state, batch: step.train_step(loss, optimiser)(state, batch)
    counted = parallel.count_flops(take, loss, state, batch)
    # Backwards every product becomes two, but for features, which have no gradient.
    inputs = videos * (config.data.max_clips + config.data.max_frames) * config.data.visual_dim
    inputs += captions * config.data.max_words * config.data.text_dim
    expected = 3 * forwards - 2 * inputs * config.model.hidden_size
    assert 0.95 < counted / expected < 1.2  # the objective and the optimiser come on top


@pytest.mark.slow  # it compiles for seconds
def test_encoding_in_parts_takes_less_memory_and_counts_the_same_operations():
    wide = {"model.hidden_size": 64, "data.max_frames": 64, "data.visual_dim": 128}
    plain, in_parts = (
        Training(runs.retrieval("", **wide, **parts, **{"train.batch_size": 64}), 64, 1)
        for parts in ({}, {"train.encode_parts": 4})
    )
    plan, less = (parallel.memory_plan(x.compiled.program) for x in (plain, in_parts))
    # The parameters, their gradients and what the optimiser keeps of them stay.
    assert less["temporary"] < 0.75 * plan["temporary"]
    assert in_parts.flops() == plain.flops() > 1e8


def test_the_rate_is_that_of_the_bytes_read_and_the_floor_that_of_copying_them():
    config = default()
    config.data.update(visual_dim=6, text_dim=5, max_frames=30)
    [row] = measured.prepare(config, Options(videos=9))
    assert row.timing.repeats == 3 and row.timing.low > 0
    assert row.facts["MB/s"] == row.facts["MB"] / row.timing.median
    assert row.floor.bytes == 2e6 * row.facts["MB"]
    assert 0 < row.floor.seconds < row.timing.median


@pytest.mark.slow  # it compiles for seconds
def test_compiling_is_timed_part_by_part():
    keeps = jax.config.jax_enable_compilation_cache
    try:
        rows = list(measured.compilation(runs.retrieval(""), Options()))
    finally:
        jax.config.update("jax_enable_compilation_cache", keeps)
    assert [row.what for row in rows] == ["initial parameters", "training", "evaluation"]
