"""Runs of HOVER: trained, stopped, resumed, streamed and evaluated."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
import runs

from hlformer_jax import training
from hlformer_jax.data.feed import Schedule
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.training import checkpoints, hover, loaded_run, loop, optim

DIRECTIONS = ("t2v", "v2t")


@pytest.mark.slow  # it takes seconds
def test_hover_reports_metrics_by_direction_and_leaves(hover_run, trees_dir):
    path, _ = hover_run
    metrics = json.loads((path / "test_metrics.json").read_text())
    for direction in DIRECTIONS:
        for name in ("R@1", "R@5", "R@10", "MRR"):
            assert f"{direction}/{name}" in metrics
    groups = {name.partition("/")[0] for name in metrics if name.startswith("leaves=")}
    assert groups and all(f"{group}/{x}/MRR" in metrics for group in groups for x in DIRECTIONS)
    assert metrics["videos"] == 6 < metrics["queries"]
    assert {"hierarchy/cross/NormAcc", "hierarchy/same/OrderAcc", "hierarchy/t2v/MAP"} <= {*metrics}
    assert all(np.isfinite(value) for value in metrics.values())
    losses = [line for line in runs.records(path) if "loss" in line]
    weights = runs.hover(trees_dir).loss
    for line in losses:
        terms = {name: line[f"loss/{name}"] for name in ("align", "tree", "chain", "order")}
        total = sum(weights[name] * value for name, value in terms.items())
        assert line["loss"] == pytest.approx(total, rel=1e-5)
    assert checkpoints.best(path).info()["model.geometry"] == "poincare"


@pytest.mark.slow
def test_stopped_streaming_run_ends_bit_for_bit_the_same(hover_run, trees_dir, tmp_path):
    config = runs.hover(trees_dir, **{"data.resident": "never"})
    runs.train_stopped(config, tmp_path, last=4)  # in mid epoch
    loop.train(config, tmp_path)
    runs.assert_same(tmp_path, hover_run[0])


@pytest.mark.slow  # it takes seconds
def test_checkpoint_gives_the_metrics_of_its_run(hover_run, trees_dir, tmp_path):
    path, results = hover_run
    scores = tmp_path / "scores.npz"
    config = runs.hover(trees_dir)
    again = loaded_run.evaluate_checkpoint(config, path, scores, lambda line: None)
    assert again == next(iter(results.values()))
    with np.load(scores) as written:
        assert written["scores"].shape == (again.queries, again.queries)
        recorded = json.loads((path / "config.json").read_text())
        assert written["data"] == recorded["data_fingerprint"]
        assert {len(written[name]) for name in ("queries", "sentences")} == {again.queries}
        best = np.mean(written["scores"].argmax(axis=1) == np.arange(again.queries))
    assert 100 * best == pytest.approx(again.metrics["t2v/R@1"])
    with pytest.raises(checkpoints.CheckpointError, match="`config.model.geometry`=poincare"):
        config.model.geometry = "lorentz"
        loaded_run.evaluate_checkpoint(config, path, None, lambda line: None)


@pytest.mark.slow  # it takes seconds
def test_videos_without_tree_are_reported(hover_run, trees_dir, monkeypatch):
    note, lines = "1 of 9 videos of test have no tree: 1 with a single moment", []

    original = hover.open_trees

    def open_trees(config):
        data = original(config)
        return data._replace(test=dataclasses.replace(data.test, note=note))

    monkeypatch.setattr(hover, "open_trees", open_trees)
    config = runs.hover(trees_dir)
    assert training.build(config).notes() == [note]
    loaded_run.evaluate_checkpoint(config, hover_run[0], None, lines.append)
    assert note in lines


def test_test_split_may_be_another_collection(trees_dir, tmp_path, monkeypatch):
    collections, subsets, data_sets = [], [], []
    original = hover.open_trees

    def open_trees(config):
        collections.append((config.data.collection, config.data.feature))
        subsets.append((config.trees.train_subset, config.trees.train_leaves))
        data_sets.append(original(config))
        return data_sets[-1]

    monkeypatch.setattr(hover, "open_trees", open_trees)
    subset = tmp_path / "few.txt"
    subset.write_text("train_00002\ntrain_00007\n")
    options = {"eval.test_collection": "charades", "eval.test_feature": "other"}
    options |= {"trees.train_subset": str(subset), "trees.train_leaves": (1, 2, 3, 4, 5, 6)}
    family = training.build(runs.hover(trees_dir, **options))
    assert " " in family.fingerprint and family.subset_fingerprint == family.data.train.subset
    # The test collection has none of the videos of the subset.
    assert subsets == [(str(subset), (1, 2, 3, 4, 5, 6)), ("full", ())]
    assert family.data.test is data_sets[1].test and family.data[:2] == data_sets[0][:2]
    assert collections[1] == ("charades", "other") != collections[0]


@pytest.mark.slow  # it takes seconds
def test_registry_builds_the_family_of_hover(trees_dir):
    family = training.build(runs.hover(trees_dir))
    assert isinstance(family, hover.HOVER)
    assert family.meaning(family.describe()) == family.describe()
    cost = family.cost()
    assert cost.parameters == sum(x.size for x in jax.tree.leaves(family.init_params()))
    assert cost.flops_video > cost.flops_caption > 0


def test_every_output_is_computed_on_its_split(trees_dir, monkeypatch):
    family, calls = training.build(runs.hover(trees_dir, seed=5)), []
    data, params = family.data, {"direction": np.ones(6, np.float32)}
    names, fitted = data.test.pool.names, np.zeros(6)
    points = hover.Points(np.zeros((len(names), 6)), np.ones((len(names), 6)))
    scores = np.arange(len(names) ** 2).reshape(len(names), -1)

    def replace(name, value):
        def record_call(params, feed, *arguments):
            calls.append((feed.split, *arguments))
            return value

        monkeypatch.setattr(family.evaluator, name, record_call)

    for name in ("evaluate", "report"):
        replace(name, Result({}, 1, 1))
    replace("scores", scores)
    replace("encode", points)
    replace("fit_direction", fitted)
    family.validate(params)
    [split] = calls.pop()
    assert split is data.val
    _, arrays = family.test_scores(params)
    assert arrays["scores"] is scores and arrays["data"] == family.fingerprint
    assert arrays["queries"] == arrays["videos"] == names
    assert arrays["sentences"] == data.test.pool.texts != names
    np.testing.assert_array_equal(arrays["relevant"], np.arange(len(names)))
    embeddings = family.test_embeddings(params)
    assert embeddings["nodes"] == names
    np.testing.assert_array_equal(embeddings["text"], points.text)
    np.testing.assert_array_equal(embeddings["video"], points.video)
    assert all(split is data.test for split, *_ in calls)
    assert calls[1][1] is params["direction"]  # of the report
    family._config.loss.order = 0.0
    family.test(params)
    assert calls[-2][0] is data.train and calls[-1][0] is data.test and calls[-1][1] is fitted
    feed = family.feed(Schedule(family.num_examples, 6, 0).groups(1, 2))
    assert (feed.seed, feed.batch_size, feed.split is data.train) == (5, 6, True)
    assert sum(len(x) for group in feed.groups for x in group.steps) == len(data.train.pool.pair)
    assert family.project({"log_scale": np.float32(99)})["log_scale"] < 99
    assert {"trees.node_frames", "data.max_words"} <= set(family.describe())


def test_rates_and_schedule_equal_the_released_ones(trees_dir):
    rates = {"learning_rate": 0.1, "hyperbolic_rate": 0.01, "scale_rate": 0.0, "warmup": 0.1}
    config = runs.hover(trees_dir, **{f"optim.{name}": value for name, value in rates.items()})
    transform = training.build(config).optimiser(10)
    params = {"log_scale": np.float32(1), "lift": {"hyperbolic": np.ones(2, np.float32)}, "x": 1.0}
    params = jax.tree.map(lambda x: jax.numpy.asarray(x, jax.numpy.float32), params)
    state = transform.init(params)
    sizes = []
    for _ in range(3):
        updates, state = transform.update(jax.tree.map(jax.numpy.ones_like, params), state, params)
        sizes.append(updates)
    assert float(sizes[0]["x"]) == 0  # the warm-up begins at 0
    assert float(sizes[2]["log_scale"]) == 0
    ratio = float(sizes[2]["lift"]["hyperbolic"][0]) / float(sizes[2]["x"])
    assert ratio == pytest.approx(0.1, rel=1e-3)
    schedule = optim.schedule("warmup_cosine", 2.0, 0.1, 100)
    assert float(schedule(5)) == pytest.approx(1.0)
    for step in (10, 40, 100):
        assert float(schedule(step)) == pytest.approx(1 + np.cos(np.pi * step / 100), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("geometry", "text_encoder"), [("lorentz", "attention"), ("euclidean", "given")]
)
def test_every_space_and_text_encoder_trains(geometry, text_encoder, trees_dir, tmp_path):
    options = {"model.geometry": geometry, "model.text_encoder": text_encoder}
    outcome = loop.train(runs.hover(trees_dir, **options), tmp_path)
    assert all(np.isfinite(x) for x in next(iter(outcome.results.values())).metrics.values())
    shutil.rmtree(tmp_path)
