"""The benchmark: its counts against a count by hand, its clock, its command line."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
import runs

from hlformer_jax import models
from hlformer_jax.benchmark import measure
from hlformer_jax.benchmark.training import Training
from hlformer_jax.config import default
from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.parallel import analysis
from hlformer_jax.retrieval import corpus
from hlformer_jax.training import objective, optim, step
from hlformer_jax.training.train_state import init_state


def _config():
    config = default()
    config.data.update(visual_dim=512, text_dim=256, max_frames=32, max_clips=16, max_words=8)
    config.model.update(hidden_size=192, lorentz_dim=63, euclidean_blocks=2, lorentz_blocks=3)
    return config


def _by_hand(config, videos, captions):
    """Multiplications and additions of matrix products in one forward pass, twice the former."""
    data, model = config.data, config.model
    width, point = model.hidden_size, model.lorentz_dim + 1
    total = 0

    def dense(rows, inside, outside):
        nonlocal total
        total += 2 * rows * inside * outside

    def attend(batch, queries, keys, size):  # size: of all heads together
        dense(batch * queries, size, keys)
        dense(batch * queries, keys, size)

    def feed_forward(rows, expansion=4):
        dense(rows, width, expansion * width)
        dense(rows, expansion * width, width)

    blocks = model.euclidean_blocks + model.lorentz_blocks
    for length in (data.max_clips, data.max_frames):
        rows = videos * length
        dense(rows, data.visual_dim, width)
        for _ in range(model.euclidean_blocks):
            for _ in ("query", "key", "value"):
                dense(rows, width, width)
            attend(videos, length, length, width)
            feed_forward(rows)
        for _ in range(model.lorentz_blocks):
            dense(rows, width, point - 1)
            for _ in ("query", "key", "value"):
                dense(rows, point, point)
            attend(videos, length, length, point)
            dense(rows, point - 1, width)
            feed_forward(rows)
        # Fusion: one query, whose key and value projections act on N vectors and not on L.
        dense(blocks * videos, width, width)
        for _ in ("key", "value"):
            dense(blocks * videos, width, width)
        attend(blocks * videos * model.num_heads, 1, length, width)
        feed_forward(blocks * videos, 1)
        dense(blocks * videos, width, width)
        dense(blocks * videos, width, length)
        dense(rows, blocks, width)  # the weighted sum
    rows = captions * data.max_words
    dense(rows, data.text_dim, width)
    for _ in ("query", "key", "value"):
        dense(rows, width, width)
    attend(captions, data.max_words, data.max_words, width)
    feed_forward(rows)
    dense(rows, width, 1)
    dense(captions, data.max_words, width)
    return total


def test_operations_of_a_step_are_those_counted_by_hand():
    config = _config()
    model, videos, captions = models.build(config), 6, 20
    batch = models.zero_batch(config, videos, captions)
    params = jax.eval_shape(lambda: models.init_params(model, config))

    def forward(params, batch):
        return (
            models.encode_video(model, params, batch.videos),
            models.encode_query(model, params, batch.captions),
        )

    by_hand = _by_hand(config, videos, captions)
    counted = analysis.count(forward, params, batch)
    # Beside products there are normalisation, softmax, geometry: tens of operations an element.
    assert 1 <= counted / by_hand < 1.1

    optimiser, loss = optim.build(config, 10), objective.build(config, model)
    state = jax.eval_shape(lambda: init_state(models.init_params(model, config), optimiser))
    take = lambda loss, state, batch: step.train_step(loss, optimiser)(state, batch)
    counted = analysis.count(take, loss, state, batch)
    # Backwards every product becomes two, but for features, which have no gradient.
    inputs = videos * (config.data.max_clips + config.data.max_frames) * config.data.visual_dim
    inputs += captions * config.data.max_words * config.data.text_dim
    by_hand = 3 * by_hand - 2 * inputs * config.model.hidden_size
    assert 1 <= counted / by_hand < 1.2  # the objective and the optimiser come on top


def test_encoding_in_parts_takes_less_memory_and_counts_the_same_operations():
    wide = {"model.hidden_size": 64, "data.max_frames": 32, "data.visual_dim": 128}
    plain, in_parts = (
        Training(runs.retrieval("", **wide, **parts, **{"train.batch_size": 8}), 8, 1)
        for parts in ({}, {"train.encode_parts": 4})
    )
    plan, less = (analysis.memory(x.compiled.program) for x in (plain, in_parts))
    # The parameters, their gradients and what the optimiser keeps of them stay.
    assert less["temporary"] < 0.75 * plan["temporary"]
    assert in_parts.flops() == plain.flops() > 1e8


def test_operations_of_a_compiled_search_are_those_counted_by_hand():
    rng = np.random.default_rng(0)
    encoded = VideoEncoding(None, rng.normal(size=(8, 16, 256)).astype(np.float32))
    built = corpus.build(encoded, dtype="float32")
    queries = jnp.ones((32, 256))
    compiled = jax.jit(corpus.scores).lower(built, queries).compile()
    by_hand = 2 * 32 * 8 * 16 * 256
    assert 1 <= analysis.flops(compiled) / by_hand < 1.05


def test_the_plan_of_memory_counts_arguments_and_results():
    x = jnp.ones((64, 64))
    plan = analysis.memory(jax.jit(lambda x: (x @ x, x[0])).lower(x).compile())
    assert plan["arguments"] == x.nbytes
    assert x.nbytes + 64 * 4 <= plan["results"] <= x.nbytes + 64 * 4 + 64
    assert plan["peak"] == plan["arguments"] + plan["results"] + plan["temporary"]


def test_the_floor_is_the_slower_of_arithmetic_and_memory():
    most = measure.ceilings()
    assert most.flops > 1e8 and most.bytes > 1e8
    assert measure.floor(most.flops, 1.0).seconds == pytest.approx(1)
    assert measure.floor(1.0, 2 * most.bytes).seconds == pytest.approx(2)


def test_the_clock_leaves_the_first_run_out_and_waits_for_the_results(monkeypatch):
    now, took = [0.0], iter((64.0, 0.5, 0.125, 0.25, 0.625, 0.375))

    class Result:
        def block_until_ready(self):
            now[0] += next(took)
            return self

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert measure.timed(Result, repeats=5) == measure.Timing(0.375, 0.125, 0.625, 5)
    assert next(took, None) is None


def test_a_benchmark_prints_a_table_and_writes_its_figures(tmp_path):
    config = f"--config={processes.ROOT}/configs/anet.py:debug"
    sizes = "--videos=40", "--repeats=3"
    result = processes.run("benchmark", "query", config, *sizes, f"--json={tmp_path}/query.json")
    assert result.returncode == 0, result.stderr
    assert "search, int8, 256 at once" in result.stdout
    written = json.loads((tmp_path / "query.json").read_text())
    assert written["platform"] == "cpu"
    search = {row["what"]: row for row in written["rows"]}["search, bfloat16, 256 at once"]
    assert search["seconds"]["median"] > search["floor"]["seconds"] > 0
    # 8 clips and 32 frames of 16 numbers of 2 bytes, and what tells padding apart.
    assert search["facts"]["bytes/video"] == pytest.approx(40 * 16 * 2, abs=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give one name: step"),
        (("speed",), "give one name: step"),
        (("query", "--peer=nowhere"), "--peer goes with step and evaluate"),
        (("step", "--peer=nowhere"), "nowhere"),
    ],
)
def test_a_wrong_command_is_one_clear_line(arguments, message):
    result = processes.run("benchmark", *arguments)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert message in result.stderr.strip().splitlines()[-1]
