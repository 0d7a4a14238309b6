"""The family of HLFormer and its ancestors: objective, and runs on a tiny synthetic corpus."""

import json
import re
import types

import jax
import numpy as np
import pytest
import runs
import tiny
from tiny import Linear, cosine_maxima

from hlformer_jax import models
from hlformer_jax.config import ConfigError
from hlformer_jax.data.annotations.spans import Span
from hlformer_jax.data.feed import VideoFeed
from hlformer_jax.data.sources.protocol import DataError
from hlformer_jax.losses import retrieval
from hlformer_jax.losses.retrieval import Pairs
from hlformer_jax.retrieval import evaluation
from hlformer_jax.retrieval.evaluation import Queries
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.runtime import devices
from hlformer_jax.training import checkpoints, loop, prvr
from hlformer_jax.training.prvr import PRVR, draw_negatives


def test_run_reports_metrics_and_weighted_terms(retrieval, data_dir):
    metrics = json.loads((retrieval.path / "test_metrics.json").read_text())
    assert list(metrics) == ["R@1", "R@5", "R@10", "R@100", "SumR", "queries", "videos"]
    assert metrics["videos"] == 5
    assert metrics["R@5"] == 100
    losses = [line for line in runs.records(retrieval.path) if "loss" in line]
    weights = runs.retrieval(data_dir).loss
    assert [line["step"] for line in losses] == [1, 3, 5, 7]
    for line in losses:
        total = sum(weights[x] * line[f"loss/{x}"] for x in prvr.TERMS if f"loss/{x}" in line)
        assert line["loss"] == pytest.approx(total, rel=1e-5)
    assert set(losses[0]) == {
        *("step", "epoch", "loss", "gradient_norm", "learning_rate"),
        *("loss/frame_triplet", "loss/frame_nce", "loss/query_diversity"),
    }
    assert checkpoints.best(retrieval.path).info()["model.name"] == "gmmformer_v2"


@pytest.mark.slow
def test_distillation_weight_falls_by_epoch(data_dir, tmp_path):
    options = {"model.name": "dl_dkd", "model.glance": True, "data.teacher_dim": 8}
    config = runs.retrieval(data_dir, **options, **{"loss.distillation": 0.1})
    config.loss.distillation_rate = 0.5
    loop.train(config, tmp_path)
    losses = [line for line in runs.records(tmp_path) if "loss" in line]
    assert [line["epoch"] for line in losses] == [0, 1, 1, 2]
    for line in losses:
        weights = {**config.loss, "distillation": 0.1 * 0.5 ** line["epoch"]}
        total = sum(weights[x] * line[f"loss/{x}"] for x in prvr.TERMS if f"loss/{x}" in line)
        assert line["loss"] == pytest.approx(total, rel=1e-5)
        assert line["loss/distillation"] > 0


def test_training_moves_the_parameters(retrieval):
    moved = jax.tree.map(lambda a, b: np.any(a != b), retrieval.initial, retrieval.final)
    assert np.mean(jax.tree.leaves(moved)) > 0.9


def test_no_program_is_compiled_after_the_first_epoch(retrieval):
    second = retrieval.compiled[runs.CHUNKS.index(3) + 1]
    assert 0 < retrieval.compiled[0] < second == retrieval.compiled[-1]


def test_run_is_compared_with_linear_baseline_and_chance(retrieval):
    names = ["best epoch", "last epoch", "mean-pooled linear baseline", "chance"]
    assert [re.sub(r" \(\d\)", "", name) for name in retrieval.results] == names
    chance = retrieval.results["chance"].metrics
    assert chance == {"R@1": 20, "R@5": 100, "R@10": 100, "R@100": 100, "SumR": 320}


@pytest.mark.slow  # test_loop.py has a fast test of this with a tree, and test_feed.py of streaming
def test_stopped_streaming_run_ends_bit_for_bit_the_same(data_dir, tmp_path, retrieval):
    config = runs.retrieval(data_dir, **{"data.resident": "never", "train.baseline": True})
    runs.train_stopped(config, tmp_path, last=4)  # in mid epoch
    loop.train(config, tmp_path)
    runs.assert_same(tmp_path, retrieval.path)


def test_fingerprint_of_moments_depends_on_the_times_only():
    def fingerprint(*times, val=()):
        family = PRVR.__new__(PRVR)
        spans = [Span(*span) if span else None for span in times]
        val = types.SimpleNamespace(spans=val, caption_spans=lambda: list(val.spans))
        test = types.SimpleNamespace(spans=times, caption_spans=lambda: spans)
        family.data = types.SimpleNamespace(val=val, test=test)
        return family.moments_fingerprint

    assert fingerprint() is None
    assert fingerprint((0.0, 1.0, 9.0), None) == fingerprint((0.0, 1.0, 9.0), None)
    assert fingerprint((0.0, 1.0, 9.0), None) != fingerprint((0.0, 1.5, 9.0), None)
    assert fingerprint(None) != fingerprint(None, val=(None,)) != fingerprint(val=(None,))


def test_every_output_is_computed_on_its_split(data_dir, monkeypatch):
    options = {"model.glance": True, "train.baseline": True}
    family, calls = PRVR(runs.retrieval(data_dir, **options), devices.mesh()), []
    family._config.data.feature = "clip_L14"
    data, test = family.data, family.data.test
    scores = np.arange(len(test.caption_video) * len(test), dtype=np.float32)
    scores = scores.reshape(-1, len(test))
    queries, result = Queries(scores[:, :2], None), Result({}, 1, 1)
    returned = {
        "evaluate": result, "encode": ("stored", queries), "score": scores, "rank": result,
        "positions": {"frames": scores},
    }  # fmt: skip

    def replace(module, name, value):
        def record_call(*arguments):
            inputs = [x.split if isinstance(x, VideoFeed) else x for x in arguments]
            calls.append((name, *(x for x in inputs if not isinstance(x, np.ndarray | Queries))))
            return value

        monkeypatch.setattr(module, name, record_call)

    for name, value in returned.items():
        replace(family.evaluator, name, value)
    family.validate("p")
    family.test("p")
    _, arrays = family.test_scores("p")
    embeddings = family.test_embeddings("p")
    assert calls == [
        ("evaluate", "p", data.val),
        ("evaluate", "p", test),
        ("encode", "p", test),
        ("score", "stored", test),
        ("rank", "stored", test),
        ("encode", "p", test, "float32"),
        ("positions", "stored", test),
    ]
    assert arrays["scores"] is scores and arrays["data"] == family.fingerprint
    assert arrays["queries"] == embeddings["query_ids"] == test.caption_ids()
    assert arrays["videos"] == embeddings["video_ids"] == test.video_ids
    assert arrays["relevant"] is embeddings["relevant"] is test.caption_video
    assert arrays["sentences"] == test.caption_sentences()
    assert embeddings["branches"] == ["frames"]
    assert embeddings["weights"] == [family._config.model.frame_weight]
    assert family.loss(1).max_captions == data.train.captions_per_video.max()
    calls.clear()
    replace(evaluation, "mean_pooled_scores", scores)
    replace(evaluation, "zero_shot_scores", {"CLIP": -scores})
    linear, clip, chance = family.references().items()
    assert calls == [("mean_pooled_scores", *data[:3]), ("zero_shot_scores", test)]
    assert (linear[0], clip[0], chance[0]) == ("mean-pooled linear baseline", "CLIP", "chance")
    # Scores that rise by column put the last video first, and the negative scores the first.
    for metrics, first in ((linear[1].metrics, len(test) - 1), (clip[1].metrics, 0)):
        assert metrics["R@1"] == pytest.approx(100 * np.mean(test.caption_video == first))


def test_metric_names_depend_on_the_model_and_moments():
    family = PRVR(tiny.config(), devices.mesh())
    assert family.metric_names() == ("R@1", "R@5", "R@10", "R@100", "SumR", "InCone")


def test_initial_parameters_depend_on_the_seed(data_dir, retrieval):
    config = runs.retrieval(data_dir, seed=1)
    kernels = [
        np.asarray(params["query_input"]["dense"]["kernel"])
        for params in (models.init_params(models.build(config), config), retrieval.initial)
    ]
    assert not np.array_equal(*kernels)


def test_wrong_configuration_is_refused_before_data(tmp_path):
    config = runs.retrieval(tmp_path, **{"data.manual_dir": "nowhere"})
    config.loss.update({name: 0.0 for name in prvr.TERMS})
    with pytest.raises(ConfigError, match="nothing to train"):
        loop.train(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "num_devices", "message"),
    [
        ({"train.encode_parts": 3}, 1, r"multiple of .*encode_parts .*, 3 x 1"),
        ({"train.encode_parts": 4}, 4, r"batch_size is 4: .* 4 x 4"),
        ({"train.batch_size": 1}, 1, "batch_size is 1: it must be at least 2"),
    ],
)
def test_unsuitable_batch_is_refused(options, num_devices, message):
    with pytest.raises(ConfigError, match=message):
        prvr.check_trainable(runs.retrieval("", **options), num_devices)
    prvr.check_trainable(runs.retrieval("", **{"train.encode_parts": 2}), 2)


WEIGHTED = {
    "loss.clip_triplet": 0.5,
    "loss.frame_triplet": 0.25,
    "loss.clip_nce": 2.0,
    "loss.frame_nce": 3.0,
    "loss.query_diversity": 4.0,
    "loss.partial_order": 0.0,
}
LOSS = jax.jit(lambda loss, *inputs: loss(*inputs)[0])
EVALUATE = jax.jit(lambda loss, *inputs: loss.evaluate(*inputs))
PARAMS = np.random.default_rng(1).normal(size=(tiny.WIDTH, 4)).astype(np.float32)


def _build(steps_per_epoch=1, **options):
    config = tiny.config(**{**WEIGHTED, **options})
    return prvr.build_objective(config, Linear(), steps_per_epoch, 2)


def _expected_terms(batch, negatives):
    """Return the terms from cosines and dot products in NumPy."""
    queries = batch.captions.words[:, 0] @ PARAMS
    clip_cosine, clip_dot = cosine_maxima(queries, batch.videos.clips @ PARAMS)
    frame_cosine, frame_dot = cosine_maxima(queries, batch.videos.frames @ PARAMS)
    pairs = Pairs(batch.captions.video, batch.captions.mask, batch.videos.mask)
    triplet, nce = jax.jit(retrieval.triplet), jax.jit(retrieval.nce)
    return {
        "clip_triplet": triplet(clip_cosine, pairs, negatives.clip, 0.2),
        "frame_triplet": triplet(frame_cosine, pairs, negatives.frame, 0.2),
        "clip_nce": nce(clip_dot, pairs),
        "frame_nce": nce(frame_dot, pairs),
        "query_diversity": jax.jit(retrieval.query_diversity)(queries, pairs, 0.2, 32.0, 1.0),
    }


@pytest.mark.slow  # it takes seconds
def test_loss_is_the_weighted_sum_of_its_terms():
    batch = tiny.batch()
    negatives = draw_negatives(jax.random.key(0), batch, np.asarray(False), 20)
    total, terms = EVALUATE(_build(), PARAMS, batch, negatives)
    expected = _expected_terms(batch, negatives)
    assert _build().terms == tuple(name for name in prvr.TERMS if name in terms)
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(terms[name], value, rtol=1e-5, err_msg=name)
    weighted = sum(WEIGHTED[f"loss.{name}"] * float(value) for name, value in expected.items())
    np.testing.assert_allclose(total, weighted, rtol=1e-5)


def test_single_training_video_is_refused(tmp_path):
    config = runs.retrieval(tmp_path / "data", **{"data.synthetic_videos": (1, 4, 5)})
    with pytest.raises(DataError, match="one video: it must have at least 2"):
        loop.train(config, tmp_path / "run")


@pytest.mark.parametrize(("ratio", "is_refused"), [(0.3, True), (0.6, False)])
def test_selected_ratio_must_occur_in_the_validation_split(data_dir, ratio, is_refused):
    options = {"eval.select": "ratio=0.4-1/SumR", "eval.moments": "data"}
    family = PRVR(runs.retrieval(data_dir, **options), devices.mesh())
    family.check_trainable()
    spans = [Span(0.0, 10 * ratio, 10.0)]
    family.data = types.SimpleNamespace(
        train=types.SimpleNamespace(captions_per_video=np.ones(2, int)),
        val=types.SimpleNamespace(caption_spans=lambda: spans),
    )
    if is_refused:
        with pytest.raises(ConfigError, match=r"only captions of ratio=0\.2-0\.4: use"):
            family.loss(1)
    else:
        family.loss(1)


@pytest.mark.parametrize("field", ["margin", "clip_nce", "diversity_gamma", "diversity_scale"])
def test_every_number_is_an_argument_of_the_loss(field):
    loss, changed = _build(), _build(**{f"loss.{field}": 0.6})
    assert jax.tree.structure(loss) == jax.tree.structure(changed)  # they share a program
    inputs = PARAMS, tiny.batch(), np.int32(0)
    assert LOSS(loss, *inputs) != LOSS(changed, *inputs)


def test_phase_and_keys_depend_on_epoch_seed_and_step(monkeypatch):
    calls, keys = [], set()

    def draw(key, batch, hard, pool, frame_columns):
        keys.add(tuple(jax.random.key_data(key).tolist()))
        return bool(hard), int(pool)

    def evaluate(self, params, batch, negatives, dropout_key, epoch):
        keys.add(tuple(jax.random.key_data(dropout_key).tolist()))
        calls.append((*negatives, int(epoch)))
        return np.float32(0), {}

    monkeypatch.setattr(prvr, "draw_negatives", draw)
    monkeypatch.setattr(prvr.Objective, "evaluate", evaluate)
    options = {"loss.hard_negative_epoch": 2, "loss.hard_pool_size": 7}
    for seed in (0, 1):
        loss = _build(steps_per_epoch=3, seed=seed, **options)
        for step in range(8):
            loss(PARAMS, tiny.batch(), np.int32(step))
    phases = [(False, 7, 0)] * 3 + [(False, 7, 1)] * 3 + [(True, 7, 2)] * 2
    assert calls == 2 * phases
    assert len(keys) == 2 * 2 * 8


def test_both_encoders_have_dropout_in_training(monkeypatch):
    keys, negatives = [], prvr.Negatives(None, None)

    def encode_query(model, params, captions, key):
        keys.append(key)

    def encode_video(model, params, videos, key, parts):
        keys.append(key)
        raise StopIteration(parts)  # the terms do not matter here

    monkeypatch.setattr(models, "encode_query", encode_query)
    monkeypatch.setattr(models, "encode_video", encode_video)
    monkeypatch.setattr(prvr, "draw_negatives", lambda *arguments: negatives)
    loss, batch = _build(**{"train.encode_parts": 3}), tiny.batch()
    assert loss.max_captions == 2
    with pytest.raises(StopIteration, match="3"):
        loss(PARAMS, batch, np.int32(0))
    with pytest.raises(StopIteration, match="3"):
        loss.evaluate(PARAMS, batch, negatives)
    query, video, *without_dropout = keys
    assert np.any(jax.random.key_data(query) != jax.random.key_data(video))
    assert without_dropout == [None, None]


def test_branches_draw_separate_negatives():
    batch = tiny.batch()
    draws = [draw_negatives(jax.random.key(k), batch, np.asarray(False), 20) for k in range(8)]
    assert any(not np.array_equal(draw.clip.video, draw.frame.video) for draw in draws)
    for draw in draws:
        assert draw.clip.video.max() < tiny.VIDEOS - 1
        # Captions of other videos: 5 without those of the same video.
        assert np.all(np.asarray(draw.clip.caption) < np.array([3, 4, 3]))


def test_hard_negatives_come_from_the_pool():
    batch, hard = tiny.batch(), np.asarray(True)
    draws = [draw_negatives(jax.random.key(k), batch, hard, 2, "captions") for k in range(16)]
    frame = np.stack([draw.frame.caption for draw in draws])
    assert frame.shape[1:] == (tiny.CAPTIONS,)
    assert set(frame.ravel()) == {0, 1}
    assert not np.any([draw.clip.caption for draw in draws])  # of a video: the hardest
    hardest = draw_negatives(jax.random.key(0), batch, hard, 1)
    assert not any(np.any(rank) for rank in jax.tree.leaves(hardest))


@pytest.mark.parametrize(
    ("options", "terms"),
    [
        ({}, "clip_triplet frame_triplet clip_nce frame_nce query_diversity partial_order"),
        ({"model.glance": False}, "frame_triplet frame_nce query_diversity partial_order"),
        ({"model.gaze": False, "loss.clip_nce": 0.0}, "clip_triplet query_diversity partial_order"),
    ],
)
def test_active_terms_have_a_weight_and_a_branch(options, terms):
    config = tiny.config(**options)
    assert prvr.active_terms(config, models.build(config)) == tuple(terms.split())


TAUGHT = {
    "model.name": "dl_dkd",
    "model.lorentz_blocks": 0,
    "loss.partial_order": 0.0,
    "loss.distillation": 0.1,
}
NOTHING = {f"loss.{name}": 0.0 for name in prvr.TERMS}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss.optimal_matching": 0.1, "model.glance": False}, "optimal_matching"),
        (
            {"model.name": "gmmformer", "model.lorentz_blocks": 0},
            "partial_order",
        ),
        (NOTHING, "nothing to train"),
        ({**NOTHING, "model.glance": False, "loss.clip_nce": 1.0}, "nothing to train"),
        ({"loss.distillation": 0.1}, "use dl_dkd"),
        (TAUGHT | {"model.glance": False}, "model.glance"),
        (TAUGHT, "teacher_dim"),
    ],
    ids=["matching", "order", "weights", "branch", "student", "inheritance", "teacher"],
)
def test_losses_that_a_model_lacks_are_refused(options, message):
    config = tiny.config(**options)
    model = models.build(config)  # an evaluation accepts them
    with pytest.raises(ConfigError, match=message):
        prvr.build_objective(config, model)
