"""The evaluation of HOVER: every node encoded once, and ranked as loops over its scores say."""

import jax
import numpy as np
import pytest
import runs

from hlformer_jax import parallel
from hlformer_jax.data.dataset import open_trees
from hlformer_jax.data.feed import in_order
from hlformer_jax.data.tree_feed import NodeFeed
from hlformer_jax.models import hover
from hlformer_jax.retrieval import hierarchy, nodes
from hlformer_jax.retrieval.hierarchy import Coordinates
from hlformer_jax.retrieval.node_evaluator import NodeEvaluator

BATCH = 7
"""Nodes of a batch: several, and the last of them not full."""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Of Euclidean space, whose programs compile in a moment."""
    options = {"model.geometry": "euclidean", "data.synthetic_videos": (3, 1, 6)}
    options |= {"eval.node_batch": BATCH, "eval.query_batch": 10}
    return runs.hover(tmp_path_factory.mktemp("prepared"), **options)


@pytest.fixture(scope="module")
def split(config):
    return open_trees(config).test


@pytest.fixture(scope="module")
def params(config):
    return hover.init_params(config)


@pytest.fixture(scope="module")
def evaluator(config):
    return NodeEvaluator(hover.build(config), config, parallel.mesh())


@pytest.fixture(scope="module")
def feed(evaluator, split):
    feed = evaluator.feed(split)
    yield feed
    feed.close()


@pytest.fixture(scope="module")
def points(config, split, params):
    """The points of all nodes, of one batch that holds them all."""
    feed = NodeFeed(split, in_order(split.num_nodes, split.num_nodes, 1), parallel.mesh(), True)
    [chunk] = feed.chunks()
    batch = feed.batch(chunk, 0)
    feed.close()
    encoded = jax.jit(hover.build(config).apply)({"params": params}, batch)
    return [np.asarray(x, np.float64) for x in encoded]


@pytest.fixture(scope="module")
def scores(points):
    """Of all texts and all videos: distances with the sign changed."""
    video, text = points
    return -np.linalg.norm(text[:, None] - video[None], axis=-1)


def _ranks(scores, candidates):
    """Middle ranks of the nodes' own partners: nodes of equal frames or words are ties."""
    found = []
    for u, row in enumerate(scores):
        others = np.array([row[w] for w in candidates(u) if w != u])
        found.append(1 + np.sum(others > row[u]) + -(-np.sum(others == row[u]) // 2))
    return found


@pytest.mark.parametrize("resident", [False, True])
def test_nodes_are_encoded_in_their_order_in_any_batches(
    evaluator, split, params, points, resident
):
    assert split.num_nodes % BATCH and split.num_nodes > 2 * BATCH
    feed = evaluator.feed(split, resident)
    found = evaluator.encode(params, feed)
    feed.close()
    for one, other in zip(found, points, strict=True):
        # The same float32 products in batches of another size.
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_scores_are_of_all_texts_and_videos(evaluator, params, feed, scores):
    np.testing.assert_allclose(evaluator.scores(params, feed), scores, atol=1e-5)


def test_ranks_and_metrics_of_both_directions_are_those_of_the_scores(
    evaluator, split, params, feed, scores
):
    every = lambda u: range(len(scores))
    expected = {"t2v": _ranks(scores, every), "v2t": _ranks(scores.T, every)}
    found = evaluator.ranks(evaluator.encode(params, feed), split)
    result = evaluator.evaluate(params, feed)
    assert (result.queries, result.videos) == (split.num_nodes, len(split.pool.videos))
    for direction, ranks in expected.items():
        np.testing.assert_array_equal(found[direction].rank, ranks)
        mean = np.mean(1 / np.array(ranks))
        assert result.metrics[f"{direction}/MRR"] == pytest.approx(mean)


def test_candidates_are_of_trees_with_as_many_leaves_where_that_is_asked_for(
    config, split, params, feed, scores
):
    config = config.copy_and_resolve_references()
    config.eval.pool = "group"
    evaluator = NodeEvaluator(hover.build(config), config, parallel.mesh())
    groups = nodes.leaf_groups(split.pool)
    assert len(np.unique(groups)) > 1
    found = evaluator.ranks(evaluator.encode(params, feed), split)["t2v"]
    expected = _ranks(scores, lambda u: np.flatnonzero(groups == groups[u]))
    np.testing.assert_array_equal(found.rank, expected)


def test_a_report_adds_the_hierarchy_of_norms_and_of_cosines_with_the_direction(
    evaluator, split, params, feed, points
):
    direction = np.linspace(-1, 2, points[0].shape[1])
    report = evaluator.report(params, feed, direction)
    result = evaluator.evaluate(params, feed)
    assert result.metrics.items() <= report.metrics.items()
    norms = [np.linalg.norm(x, axis=-1) for x in points]
    cosines = [
        x @ direction / norm / np.linalg.norm(direction)
        for x, norm in zip(points, norms, strict=True)
    ]
    found = evaluator.ranks(evaluator.encode(params, feed), split)
    expected = hierarchy.metrics(split.pool, Coordinates(*norms), Coordinates(*cosines), found)
    names = {name for name in report.metrics if name.startswith("hierarchy/")}
    assert names == set(expected)
    for name, value in expected.items():
        assert report.metrics[name] == pytest.approx(value, rel=1e-5, nan_ok=True), name


def test_a_direction_is_fitted_to_the_siblings_of_both_modalities(
    evaluator, split, params, feed, points
):
    left, right = split.pool.siblings.T
    units = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in points]
    apart = np.concatenate([x[left] - x[right] for x in units])
    expected = np.linalg.lstsq(apart, np.ones(len(apart)), rcond=1e-6)[0]
    found = evaluator.fit_direction(params, feed)
    cosine = found @ expected / np.linalg.norm(found) / np.linalg.norm(expected)
    assert cosine > 0.999
