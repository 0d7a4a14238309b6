"""Equal losses, gradients, ranks and searches on any number of devices; costs of programs."""

import json
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest

from hlformer_jax.config import debug, default
from hlformer_jax.runtime import compiler, devices

# In a process of its own: the number of virtual devices is set before JAX starts.
PROGRAM = """
import functools, json, sys
import jax
import numpy as np
from benchmarks.simulated import SimulatedVideos

jax.config.update("jax_enable_x64", True)  # so that a difference is one, and not rounding

from hlformer_jax import models
from hlformer_jax.config import debug, default
from hlformer_jax.data.feed import Schedule, VideoFeed
from hlformer_jax.data.split import Split
from hlformer_jax.retrieval import corpus
from hlformer_jax.retrieval.evaluation import Evaluator
from hlformer_jax.runtime import devices
from hlformer_jax.training import optim, prvr, step

config = debug(default())
config.data.update(visual_dim=8, text_dim=8, max_frames=8, max_clips=4, max_words=6)
config.data.dtype = config.dtype = "float64"
config.model.update(hidden_size=8, lorentz_dim=7, euclidean_blocks=1, lorentz_blocks=1)
config.update_from_flattened_dict(json.loads(sys.argv[2]))
config.loss.hard_negative_epoch = 0  # negatives are chosen among all videos of the batch
config.optim.warmup = 0.0
config.eval.video_batch = 6  # which 4 and 8 devices do not divide
split = Split(SimulatedVideos(13, 31, config.data), config.data)
first = models.build(config)
optimiser = optim.build(config.optim, first.module, 10)
project = functools.partial(models.project, first)
def probe(x):  # depends on the order of the elements
    return x @ np.cos(np.arange(x.size))
def widen(x):
    return x.astype(np.float64) if x.dtype == np.float32 else x
initial = step.init_state(models.init_params(first, config), optimiser)
initial = jax.device_get(jax.tree.map(widen, initial))
results = []
for number, parts, dropout in json.loads(sys.argv[1]):
    mesh = devices.mesh(jax.devices()[:number])
    feed = VideoFeed(split, Schedule(13, 6, 0).groups(1, 2), mesh, 6, resident=number != 4)
    state = devices.replicate(mesh, initial)
    config.train.encode_parts = parts
    config.model.update(dropout=dropout, input_dropout=dropout)
    model = models.build(config)
    loss = prvr.build_objective(config, model, 3, int(split.captions_per_video.max()))
    steps = step.compile_steps(loss, optimiser, project, feed, state, config).steps
    scalars = []
    for chunk in feed.chunks():
        state, records = steps(state, chunk)
        scalars.append({k: np.asarray(v)[: chunk.num_steps].tolist() for k, v in records.items()})
    evaluator = Evaluator(model, config, mesh)
    test = evaluator.feed(split)
    stored, queries = evaluator.encode(state.params, test)
    result = evaluator.rank(stored, queries, split)
    searched = corpus.search(stored, queries.vectors, 5)
    vectors = jax.tree.leaves(stored.stored)[0]
    results.append({
        "scalars": scalars,
        # The norm and a projection of every parameter and of its moments in the optimiser.
        "state": [
            [float(f(np.asarray(x).ravel())) for f in (np.linalg.norm, probe)]
            for x in jax.tree.leaves((state.params, state.optimiser))
        ],
        "metrics": result.metrics,
        "videos": np.asarray(searched.videos).tolist(),
        "scores": np.asarray(searched.scores).tolist(),
        "videos_per_device": len(chunk.features.clips.addressable_shards[0].data),
        "part": [vectors.addressable_shards[0].data.nbytes, vectors.nbytes],
    })
print("RESULT", json.dumps(results))
"""

GAZE = {"model.glance": False}
NO_LIFT = {"model.fusion": "mean", "model.lorentz_blocks": 0, "loss.partial_order": 0.0}
EUCLIDEAN = {**GAZE, **NO_LIFT, "model.name": "gmmformer_v2"}  # compiles in a moment
GUIDED = {**NO_LIFT, "model.name": "ms_sl", "loss.optimal_matching": 0.1}
TAUGHT = {**NO_LIFT, "model.name": "dl_dkd", "loss.distillation": 0.1, "data.teacher_dim": 5}


class Case(NamedTuple):
    """A run: the number of devices, the parts of a batch that it encodes, the rate of dropout."""

    devices: int
    parts: int = 1
    dropout: float = 0.0


DROPOUT_CASES = (Case(1, dropout=0.1), Case(4, parts=2, dropout=0.1))
ALL_CASES = (*DROPOUT_CASES, Case(1), Case(8))


def _run(program, *arguments, timeout=300):
    command = [sys.executable, "-c", program, *arguments]
    done = processes.finish(command, env=processes.environment(devices=8), timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return json.loads(line.removeprefix("RESULT "))


def _results(cases, options):
    runs = _run(PROGRAM, json.dumps(cases), json.dumps(options))
    return dict(zip(cases, runs, strict=True))


@pytest.fixture(scope="module")
def results():
    return _results(ALL_CASES, EUCLIDEAN)


def _pairs(results):
    """Return the results of one device and of several devices, for each case of several."""
    return [
        (results[Case(1, dropout=case.dropout)], run)
        for case, run in results.items()
        if case.devices > 1
    ]


def _assert_same_training(reference, run):
    for chunk, run_chunk in zip(reference["scalars"], run["scalars"], strict=True):
        for name, values in chunk.items():
            # Sums are taken in another order: rounding of float64, through three steps.
            np.testing.assert_allclose(run_chunk[name], values, rtol=1e-9, err_msg=name)
    norms = np.asarray(reference["state"])[:, :1]
    assert np.all(np.abs(np.subtract(run["state"], reference["state"])) <= 1e-9 * norms + 1e-15)


def _assert_same_search(reference, run):
    assert run["metrics"] == reference["metrics"]
    np.testing.assert_allclose(run["scores"], reference["scores"], atol=1e-6)  # a float32 corpus
    assert run["videos"] == reference["videos"]


@pytest.mark.slow  # a process that compiles a step for each case
def test_training_does_not_depend_on_the_devices(results):
    for reference, run in _pairs(results):
        _assert_same_training(reference, run)


@pytest.mark.slow
def test_search_does_not_depend_on_the_devices(results):
    for reference, run in _pairs(results):
        _assert_same_search(reference, run)


@pytest.mark.slow
@pytest.mark.parametrize("options", [GAZE, GUIDED, TAUGHT], ids=["hlformer", "ms_sl", "dl_dkd"])
def test_every_model_is_independent_of_the_devices(options):
    reference, run = _results(DROPOUT_CASES, options).values()
    _assert_same_training(reference, run)
    _assert_same_search(reference, run)


@pytest.mark.slow
def test_corpus_and_features_are_split_over_the_devices(results):
    # 13 resident videos; with 4 devices a streamed chunk of 12.
    videos = {1: 13, 4: 3, 8: 2}
    for case, run in results.items():
        part, total = run["part"]
        assert part * case.devices == total
        assert run["videos_per_device"] == videos[case.devices]


HOVER_PROGRAM = """
import json, sys
import jax
import numpy as np

from hlformer_jax import training
from hlformer_jax.config import debug, default
from hlformer_jax.data.feed import Schedule
from hlformer_jax.runtime import devices
from hlformer_jax.training import step

config = debug(default("hover"))
config.data.update(data_dir=sys.argv[1], visual_dim=6, text_dim=5, synthetic_videos=(9, 3, 5))
config.data.update(max_frames=64, max_clips=1)
config.model.update(hidden_size=6, hyperbolic_dim=4, text_encoder="mean", lift="radius")
config.train.update(batch_size=7)
config.optim.warmup = 0.0
results = []
for number in (1, 8):
    mesh = devices.mesh(jax.devices()[:number])
    family = training.build(config, mesh)
    feed = family.feed(Schedule(family.num_examples, 7, 0).groups(1, 2)[:2])
    optimiser = family.optimiser(10)
    state = devices.replicate(mesh, step.init_state(family.init_params(), optimiser))
    loss = family.loss(3)
    steps = step.compile_steps(loss, optimiser, family.project, feed, state, config).steps
    losses = []
    for chunk in feed.chunks():
        state, records = steps(state, chunk)
        losses += np.asarray(records["loss"])[: chunk.num_steps].tolist()
    norms = [float(np.linalg.norm(x)) for x in jax.tree.leaves(jax.device_get(state.params))]
    results.append({"losses": losses, "norms": norms, "metrics": family.test(state.params).metrics})
print("RESULT", json.dumps(results))
"""


@pytest.mark.slow
def test_hover_does_not_depend_on_the_devices(tmp_path):
    reference, run = _run(HOVER_PROGRAM, str(tmp_path), timeout=900)
    # Parameters and losses are float32: sums in another order, through four steps.
    np.testing.assert_allclose(run["losses"], reference["losses"], rtol=1e-4)
    np.testing.assert_allclose(run["norms"], reference["norms"], rtol=1e-4)
    assert run["metrics"] == pytest.approx(reference["metrics"], rel=1e-3, abs=1e-3)


NAMES = ("jax_default_matmul_precision", "jax_compilation_cache_dir")


@pytest.fixture
def settings(monkeypatch, tmp_path):
    """Resets JAX's settings as before a program, and restores them after the test."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in NAMES:
        jax.config.update(name, None)
    yield lambda: {name: getattr(jax.config, name) for name in NAMES}
    for name, value in before.items():
        jax.config.update(name, value)


def test_configure_sets_precision_and_compilation_cache(settings, tmp_path):
    config = default()
    config.dtype = "bfloat16"
    compiler.configure(config)
    assert settings()["jax_default_matmul_precision"] is None
    config.dtype = "float32"
    compiler.configure(config)
    assert settings()["jax_default_matmul_precision"] == "highest"
    assert settings()["jax_compilation_cache_dir"].startswith(str(tmp_path / "hlformer_jax"))
    config.precision = "tf32"
    compiler.configure(config)
    assert settings()["jax_default_matmul_precision"] == "tensorfloat32"


def test_configure_keeps_a_compilation_cache_that_is_set(settings, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    compiler.configure(default())
    assert settings()["jax_compilation_cache_dir"] == str(tmp_path / "mine")


def test_configured_restores_the_precision(settings):
    with pytest.raises(KeyError):
        with compiler.configured(default()):
            assert settings()["jax_default_matmul_precision"] == "highest"
            raise KeyError
    assert settings()["jax_default_matmul_precision"] is None


def test_only_fast_compilation_skips_optimisations(settings, monkeypatch):
    updates = {}  # jax.config has no value for this setting
    with monkeypatch.context() as patch:
        patch.setattr(jax.config, "update", updates.__setitem__)
        compiler.configure(default())
        assert "jax_disable_most_optimizations" not in updates
        compiler.configure(debug(default()))
    assert updates["jax_disable_most_optimizations"] is True


def test_only_fast_compilation_sets_compiler_options():
    assert compiler.compiler_options(default()) is None
    options = compiler.compiler_options(debug(default()))
    jax.jit(lambda x: x + 1, compiler_options=options)(1)  # this compiler knows them


def test_memory_plan_counts_arguments_and_results():
    x = jnp.ones((64, 64))
    plan = compiler.memory_plan(jax.jit(lambda x: (x @ x, x[0])).lower(x).compile())
    assert plan["arguments"] == x.nbytes
    assert x.nbytes + 64 * 4 <= plan["results"] <= x.nbytes + 64 * 4 + 64
    assert plan["peak"] == plan["arguments"] + plan["results"] + plan["temporary"]


def test_product_counts_multiplications_and_additions():
    x, y = jax.ShapeDtypeStruct((5, 7), np.float32), jax.ShapeDtypeStruct((7, 11), np.float32)
    assert compiler.count_flops(jnp.matmul, x, y) == 2 * 5 * 7 * 11

    def two_products(x, y):
        return x @ y, (2 * x) @ y

    flops = compiler.count_flops(two_products, x, y)
    assert flops == pytest.approx(2 * 2 * 5 * 7 * 11 + 5 * 7, abs=5 * 7)


def test_scan_counts_every_iteration():
    x = jax.ShapeDtypeStruct((5, 5), np.float32)

    def power(x):
        return jax.lax.scan(lambda carry, _: (carry @ carry, None), x, length=4)[0]

    assert compiler.count_flops(power, x) == pytest.approx(4 * 2 * 5**3, rel=0.1)


def test_nbytes_counts_arrays_and_shapes():
    tree = {"a": np.zeros((3, 5), np.float16), "b": [jax.ShapeDtypeStruct((7,), np.int32)]}
    assert devices.nbytes(tree) == 3 * 5 * 2 + 7 * 4


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("config", ["synthetic.py:debug", "ms_sl.py:tvr-debug"])
def test_two_devices_train_in_bfloat16(config, tmp_path):
    flags = (f"--config={processes.ROOT / 'configs' / config}", "--config.dtype=bfloat16")
    losses = []
    for count in (1, 2):
        workdir, env = tmp_path / str(count), processes.environment(devices=count)
        done = processes.run("main", *flags, f"--workdir={workdir}", env=env)
        assert done.returncode == 0, done.stderr
        losses.append(first_loss(workdir))
    # The same loss of the first epoch, up to the rounding of a few hundred products to 8 bits.
    np.testing.assert_allclose(*losses, rtol=0.02)


def first_loss(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return next(record["loss"] for record in map(json.loads, lines) if "loss" in record)
