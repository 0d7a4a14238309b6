"""Any number of devices and processes: the same losses, gradients, ranks and searches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]

# In a process of its own: the number of virtual devices is set before JAX starts.
PROGRAM = """
import json, sys
import jax
import numpy as np

jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_enable_x64", True)  # so that a difference is one, and not rounding

from hlformer_jax import corpus, devices, evaluate, models, optim, step, train_state
from hlformer_jax.config import debug, default
from hlformer_jax.data.feed import DeviceFeed
from hlformer_jax.data.schedule import Schedule
from hlformer_jax.data.split import Split
from hlformer_jax.data.simulated import SimulatedVideos

config = debug(default())
config.data.update(visual_dim=8, text_dim=8, max_frames=8, max_clips=4, max_words=6)
config.data.dtype = config.dtype = "float64"
config.model.update(hidden_size=8, lorentz_dim=7, euclidean_blocks=1, lorentz_blocks=1)
config.update_from_flattened_dict(json.loads(sys.argv[2]))
config.loss.hard_negative_epoch = 0  # negatives are chosen among all videos of the batch
config.optim.warmup = 0.0
config.eval.video_batch = 6  # which 4 and 8 devices do not divide
split = Split(SimulatedVideos(13, 31, config.data), config.data)
model = models.build(config)
optimiser = optim.build(config, 10)
probe = lambda x: x @ np.cos(np.arange(x.size))  # tells its elements apart
found = {}
parts = {2: 3, 4: 2}  # of the batch, one after another
for number in json.loads(sys.argv[1]):
    mesh = devices.mesh(jax.devices()[:number])
    feed = DeviceFeed(split, Schedule(13, 6, 0).groups(1, 2), mesh, 6, resident=number != 4)
    state = train_state.init_state(model, config, optimiser)
    config.train.encode_parts = parts.get(number, 1)
    wide = lambda x: x.astype(np.float64) if x.dtype == np.float32 else x
    state = devices.replicate(mesh, jax.tree.map(wide, state))
    steps = step.compile_steps(model, config, optimiser, feed, 3, state).steps
    scalars = []
    for window in feed.chunks():
        state, records = steps(state, window)
        scalars.append({k: np.asarray(v)[: window.num_steps].tolist() for k, v in records.items()})
    evaluator = evaluate.Evaluator(model, config, mesh)
    test = evaluator.feed(split)
    stored, queries = evaluator.encode(state.params, test)
    result = evaluator.rank(stored, queries, split)
    searched = corpus.search(stored, queries, 5)
    first = jax.tree.leaves(stored)[0]
    found[number] = {
        "scalars": scalars,
        # Of every parameter, and of the mean gradients that the optimiser keeps of it.
        "state": [
            [float(f(np.asarray(x).ravel())) for f in (np.linalg.norm, probe)]
            for x in jax.tree.leaves((state.params, state.optimiser))
        ],
        "metrics": result.metrics,
        "videos": np.asarray(searched.videos).tolist(),
        "scores": np.asarray(searched.scores).tolist(),
        "videos_per_device": len(window.features.clips.addressable_shards[0].data),
        "part": [first.addressable_shards[0].data.nbytes, first.nbytes],
    }
print("RESULT", json.dumps(found))
"""


GAZE = {"model.glance": False}  # compiles in half the time
GUIDED = {
    "model.name": "ms_sl",
    "model.fusion": "mean",
    "model.lorentz_blocks": 0,
    "loss.partial_order": 0.0,
    "loss.optimal_matching": 0.1,
}


def _found(numbers, options):
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(numbers), json.dumps(options)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("RESULT")]
    return json.loads(line.removeprefix("RESULT "))


@pytest.fixture(scope="module")
def found():
    return _found([1, 2, 4, 8], GAZE)


def test_guided_frames_and_optimal_matching_do_not_depend_on_the_devices():
    found = _found([1, 4], GUIDED)
    _assert_same_training(found["1"], found["4"])
    _assert_same_search(found["1"], found["4"])


@pytest.mark.parametrize("number", ["2", "4", "8"])
def test_losses_gradients_and_parameters_do_not_depend_on_the_devices(found, number):
    _assert_same_training(found["1"], found[number])


def _assert_same_training(one, several):
    for window, other in zip(one["scalars"], several["scalars"], strict=True):
        for name, values in window.items():
            # Sums are taken in another order: rounding of float64, through three steps.
            np.testing.assert_allclose(other[name], values, rtol=1e-9, err_msg=name)
    norms = np.asarray(one["state"])[:, :1]
    assert np.all(np.abs(np.subtract(several["state"], one["state"])) <= 1e-9 * norms + 1e-15)


@pytest.mark.parametrize("number", ["2", "4", "8"])
def test_ranks_and_searches_do_not_depend_on_the_devices(found, number):
    _assert_same_search(found["1"], found[number])


def _assert_same_search(one, several):
    assert several["metrics"] == one["metrics"]
    np.testing.assert_allclose(several["scores"], one["scores"], atol=1e-6)  # a float32 corpus
    assert several["videos"] == one["videos"]


def test_each_device_holds_a_part_of_the_corpus_and_of_the_features(found):
    for number in ("2", "4", "8"):
        part, whole = found[number]["part"]
        assert part * int(number) == whole
    # Features too: of 13 resident videos, and with 4 devices of a streamed window of 12.
    held = {number: found[number]["videos_per_device"] for number in found}
    assert held == {"1": 13, "2": 7, "4": 3, "8": 2}
