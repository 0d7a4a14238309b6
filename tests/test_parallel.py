"""Any number of devices: the same losses, gradients, ranks and searches; what programs cost."""

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
probe = lambda x: x @ np.cos(np.arange(x.size))  # tells its elements apart
wide = lambda x: x.astype(np.float64) if x.dtype == np.float32 else x
initial = step.init_state(models.init_params(first, config), optimiser)
initial = jax.device_get(jax.tree.map(wide, initial))
found = []
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
    found.append({
        "scalars": scalars,
        # Of every parameter, and of the mean gradients that the optimiser keeps of it.
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
print("RESULT", json.dumps(found))
"""

GAZE = {"model.glance": False}
NO_LIFT = {"model.fusion": "mean", "model.lorentz_blocks": 0, "loss.partial_order": 0.0}
EUCLIDEAN = {**GAZE, **NO_LIFT, "model.name": "gmmformer_v2"}  # compiles in a moment
GUIDED = {**NO_LIFT, "model.name": "ms_sl", "loss.optimal_matching": 0.1}
TAUGHT = {**NO_LIFT, "model.name": "dl_dkd", "loss.distillation": 0.1, "data.teacher_dim": 5}


class Case(NamedTuple):
    """A run: on so many devices, of a batch in so many parts, with that rate of dropout."""

    devices: int
    parts: int = 1
    dropout: float = 0.0


FEW = (Case(1, dropout=0.1), Case(4, parts=2, dropout=0.1))
MORE = (*FEW, Case(1), Case(8))


def _result(program, *arguments, timeout=300):
    command = [sys.executable, "-c", program, *arguments]
    done = processes.finish(command, env=processes.environment(devices=8), timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return json.loads(line.removeprefix("RESULT "))


def _found(cases, options):
    return dict(zip(cases, _result(PROGRAM, json.dumps(cases), json.dumps(options)), strict=True))


@pytest.fixture(scope="module")
def found():
    return _found(MORE, EUCLIDEAN)


def _several(found):
    """Of every case of several devices, what one device and the several found."""
    return [
        (found[Case(1, dropout=case.dropout)], found[case]) for case in found if case.devices > 1
    ]


def _assert_same_training(one, several):
    for chunk, other in zip(one["scalars"], several["scalars"], strict=True):
        for name, values in chunk.items():
            # Sums are taken in another order: rounding of float64, through three steps.
            np.testing.assert_allclose(other[name], values, rtol=1e-9, err_msg=name)
    norms = np.asarray(one["state"])[:, :1]
    assert np.all(np.abs(np.subtract(several["state"], one["state"])) <= 1e-9 * norms + 1e-15)


def _assert_same_search(one, several):
    assert several["metrics"] == one["metrics"]
    np.testing.assert_allclose(several["scores"], one["scores"], atol=1e-6)  # a float32 corpus
    assert several["videos"] == one["videos"]


@pytest.mark.slow  # a process that compiles a step for each case
def test_losses_gradients_and_parameters_do_not_depend_on_the_devices(found):
    for one, several in _several(found):
        _assert_same_training(one, several)


@pytest.mark.slow
def test_ranks_and_searches_do_not_depend_on_the_devices(found):
    for one, several in _several(found):
        _assert_same_search(one, several)


@pytest.mark.slow
@pytest.mark.parametrize("options", [GAZE, GUIDED, TAUGHT], ids=["hlformer", "ms_sl", "dl_dkd"])
def test_no_lorentz_block_no_guided_frame_and_no_teacher_depends_on_the_devices(options):
    one, several = _found(FEW, options).values()
    _assert_same_training(one, several)
    _assert_same_search(one, several)


@pytest.mark.slow
def test_each_device_holds_a_part_of_the_corpus_and_of_the_features(found):
    # Of 13 resident videos, and with 4 devices of a streamed chunk of 12.
    videos = {1: 13, 4: 3, 8: 2}
    for case, run in found.items():
        part, whole = run["part"]
        assert part * case.devices == whole
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
found = []
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
    found.append({"losses": losses, "norms": norms, "metrics": family.test(state.params).metrics})
print("RESULT", json.dumps(found))
"""


@pytest.mark.slow
def test_losses_parameters_and_ranks_do_not_depend_on_the_devices(tmp_path):
    one, several = _result(HOVER_PROGRAM, str(tmp_path), timeout=900)
    # Parameters and losses are float32: sums in another order, through four steps.
    np.testing.assert_allclose(several["losses"], one["losses"], rtol=1e-4)
    np.testing.assert_allclose(several["norms"], one["norms"], rtol=1e-4)
    assert several["metrics"] == pytest.approx(one["metrics"], rel=1e-3, abs=1e-3)


NAMES = ("jax_default_matmul_precision", "jax_compilation_cache_dir")


@pytest.fixture
def settings(monkeypatch, tmp_path):
    """JAX's settings as they are before a program; put back after the test."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in NAMES:
        jax.config.update(name, None)
    yield lambda: {name: getattr(jax.config, name) for name in NAMES}
    for name, value in before.items():
        jax.config.update(name, value)


def test_float32_products_are_as_precise_as_can_be_and_programs_are_kept(settings, tmp_path):
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


def test_a_folder_of_programs_that_was_named_is_kept(settings, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    compiler.configure(default())
    assert settings()["jax_compilation_cache_dir"] == str(tmp_path / "mine")


def test_the_next_run_of_a_process_finds_the_precision_as_it_was(settings):
    with pytest.raises(KeyError):
        with compiler.configured(default()):
            assert settings()["jax_default_matmul_precision"] == "highest"
            raise KeyError
    assert settings()["jax_default_matmul_precision"] is None


def test_fast_compilation_alone_skips_optimisations(settings, monkeypatch):
    updates = {}  # JAX does not tell this one
    with monkeypatch.context() as patch:
        patch.setattr(jax.config, "update", updates.__setitem__)
        compiler.configure(default())
        assert "jax_disable_most_optimizations" not in updates
        compiler.configure(debug(default()))
    assert updates["jax_disable_most_optimizations"] is True


def test_fast_compilation_alone_sets_compiler_options():
    assert compiler.compiler_options(default()) is None
    options = compiler.compiler_options(debug(default()))
    jax.jit(lambda x: x + 1, compiler_options=options)(1)  # this compiler knows them


def test_the_plan_of_memory_counts_arguments_and_results():
    x = jnp.ones((64, 64))
    plan = compiler.memory_plan(jax.jit(lambda x: (x @ x, x[0])).lower(x).compile())
    assert plan["arguments"] == x.nbytes
    assert x.nbytes + 64 * 4 <= plan["results"] <= x.nbytes + 64 * 4 + 64
    assert plan["peak"] == plan["arguments"] + plan["results"] + plan["temporary"]


def test_a_product_is_counted_by_its_multiplications_and_additions():
    x, y = jax.ShapeDtypeStruct((5, 7), np.float32), jax.ShapeDtypeStruct((7, 11), np.float32)
    assert compiler.count_flops(jnp.matmul, x, y) == 2 * 5 * 7 * 11
    twice = lambda x, y: (x @ y, (2 * x) @ y)
    assert compiler.count_flops(twice, x, y) == pytest.approx(2 * 2 * 5 * 7 * 11 + 5 * 7, abs=5 * 7)


def test_a_scan_is_counted_turn_by_turn():
    x = jax.ShapeDtypeStruct((5, 5), np.float32)
    turn = lambda carry, _: (carry @ carry, None)
    many = lambda x: jax.lax.scan(turn, x, length=4)[0]
    assert compiler.count_flops(many, x) == pytest.approx(4 * 2 * 5**3, rel=0.1)


def test_bytes_are_those_of_all_leaves_arrays_or_shapes():
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
