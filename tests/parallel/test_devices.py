"""Any number of devices: the same losses, gradients, ranks and searches."""

import json
import sys
from typing import NamedTuple

import numpy as np
import processes
import pytest

# In a process of its own: the number of virtual devices is set before JAX starts.
PROGRAM = """
import functools, json, sys
import jax
import numpy as np

jax.config.update("jax_enable_x64", True)  # so that a difference is one, and not rounding

from hlformer_jax import models
from hlformer_jax.config import debug, default
from hlformer_jax.data.feed import VideoFeed
from hlformer_jax.data.schedule import Schedule
from hlformer_jax.data.simulated import SimulatedVideos
from hlformer_jax.data.split import Split
from hlformer_jax.parallel import devices
from hlformer_jax.retrieval import corpus
from hlformer_jax.retrieval.evaluator import Evaluator
from hlformer_jax.training import objective, optim, step, train_state

config = debug(default())
config.data.update(visual_dim=8, text_dim=8, max_frames=8, max_clips=4, max_words=6)
config.data.dtype = config.dtype = "float64"
config.model.update(hidden_size=8, lorentz_dim=7, euclidean_blocks=1, lorentz_blocks=1)
config.update_from_flattened_dict(json.loads(sys.argv[2]))
config.loss.hard_negative_epoch = 0  # negatives are chosen among all videos of the batch
config.optim.warmup = 0.0
config.eval.video_batch = 6  # which 4 and 8 devices do not divide
split = Split(SimulatedVideos(13, 31, config.data), config.data)
optimiser = optim.build(config, 10)
project = functools.partial(models.project, config=config)
probe = lambda x: x @ np.cos(np.arange(x.size))  # tells its elements apart
wide = lambda x: x.astype(np.float64) if x.dtype == np.float32 else x
initial = train_state.init_state(models.init_params(models.build(config), config), optimiser)
initial = jax.device_get(jax.tree.map(wide, initial))
found = []
for number, parts, dropout in json.loads(sys.argv[1]):
    mesh = devices.mesh(jax.devices()[:number])
    feed = VideoFeed(split, Schedule(13, 6, 0).groups(1, 2), mesh, 6, resident=number != 4)
    state = devices.replicate(mesh, initial)
    config.train.encode_parts = parts
    config.model.update(dropout=dropout, input_dropout=dropout)
    model = models.build(config)
    loss = objective.build(config, model, 3, int(split.captions_per_video.max()))
    steps = step.compile_steps(loss, optimiser, project, feed, state, config).steps
    scalars = []
    for chunk in feed.chunks():
        state, records = steps(state, chunk)
        scalars.append({k: np.asarray(v)[: chunk.num_steps].tolist() for k, v in records.items()})
    evaluator = Evaluator(model, config, mesh)
    test = evaluator.feed(split)
    stored, queries = evaluator.encode(state.params, test)
    result = evaluator.rank(stored, queries, split)
    searched = corpus.search(stored, queries, 5)
    first = jax.tree.leaves(stored.stored)[0]
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
        "part": [first.addressable_shards[0].data.nbytes, first.nbytes],
    })
print("RESULT", json.dumps(found))
"""

GAZE = {"model.glance": False}
NO_LIFT = {"model.fusion": "mean", "model.lorentz_blocks": 0, "loss.partial_order": 0.0}
EUCLIDEAN = {**GAZE, **NO_LIFT, "model.name": "gmmformer_v2"}  # compiles in a moment
GUIDED = {**NO_LIFT, "model.name": "ms_sl", "loss.optimal_matching": 0.1}
TAUGHT = {**NO_LIFT, "model.name": "dl_dkd", "loss.distillation": 0.1, "data.teacher_dim": 5}


class Case(NamedTuple):
    """A run: on so many devices, of a batch in so many parts, which have masks of their own."""

    devices: int
    parts: int = 1
    dropout: float = 0.0


FEW = (Case(1), Case(4, parts=2))
MORE = (Case(1), Case(1, dropout=0.1), Case(2, parts=3), Case(8, dropout=0.1))


def _found(cases, options):
    command = [sys.executable, "-c", PROGRAM, json.dumps(cases), json.dumps(options)]
    done = processes.finish(command, env=processes.environment(devices=8))
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return dict(zip(cases, json.loads(line.removeprefix("RESULT ")), strict=True))


@pytest.fixture(
    scope="module", params=[FEW, pytest.param(MORE, marks=pytest.mark.slow)], ids=["few", "more"]
)
def found(request):
    return _found(request.param, EUCLIDEAN)


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


def test_losses_gradients_and_parameters_do_not_depend_on_the_devices(found):
    for one, several in _several(found):
        _assert_same_training(one, several)


def test_ranks_and_searches_do_not_depend_on_the_devices(found):
    for one, several in _several(found):
        _assert_same_search(one, several)


@pytest.mark.slow
@pytest.mark.parametrize("options", [GAZE, GUIDED, TAUGHT], ids=["hlformer", "ms_sl", "dl_dkd"])
def test_no_lorentz_block_no_guided_frame_and_no_teacher_depends_on_the_devices(options):
    one, several = _found(FEW, options).values()
    _assert_same_training(one, several)
    _assert_same_search(one, several)


def test_each_device_holds_a_part_of_the_corpus_and_of_the_features(found):
    # Of 13 resident videos, and with 4 devices of a streamed chunk of 12.
    videos = {1: 13, 2: 7, 4: 3, 8: 2}
    for case, run in found.items():
        part, whole = run["part"]
        assert part * case.devices == whole
        assert run["videos_per_device"] == videos[case.devices]
