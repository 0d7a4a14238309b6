"""Ranks among nodes of action trees, and metrics of their hierarchy, against loops and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs

from hlformer_jax.data.annotations.moments import AnnotatedMoment, TimedVideo
from hlformer_jax.data.dataset import open_trees
from hlformer_jax.data.feed import in_order
from hlformer_jax.data.tree_feed import NodeFeed
from hlformer_jax.data.trees import build, make_pool
from hlformer_jax.models import hover
from hlformer_jax.retrieval import hierarchy
from hlformer_jax.retrieval.hierarchy import Coordinates, NodeEvaluator
from hlformer_jax.retrieval.ranking import ScoreError
from hlformer_jax.runtime import devices

COUNTS = (2, 3, 5, 1, 6)


@pytest.fixture(scope="session")
def pool():
    """The nodes of trees of 2, 3, 5 and 6 leaves, and of a chain."""
    trees, videos = [], []
    for number, count in enumerate(COUNTS):
        # A single leaf is of two moments with a gap between them.
        spans = [(k * 5, k * 5 + 5) for k in range(count)] if count > 1 else [(0, 4), (20, 30)]
        moments = tuple(
            AnnotatedMoment(f"v{number}#{k}", a, b, "x") for k, (a, b) in enumerate(spans)
        )
        videos.append(TimedVideo(f"v{number}", 60.0, moments))
        trees.append(build(videos[-1], "released"))
    return make_pool(trees, videos)


@pytest.fixture(scope="session")
def vectors(pool):
    """Vectors of queries and of candidates, with ties."""
    rng = np.random.default_rng(0)
    # Few values make ties.
    return rng.integers(-1, 2, size=(2, len(pool.tree), 3)).astype(np.float32)


@pytest.fixture(scope="session")
def node_ranks(pool, vectors):
    """The ranks of all queries."""
    return hierarchy.node_ranks(*vectors, hierarchy.relatives(pool), 7, devices.mesh())


def _rank(scores, target, candidates):
    """Return the middle rank of a target among candidates."""
    rivals = [c for c in candidates if c != target]
    higher = sum(scores[c] > scores[target] for c in rivals)
    equal = sum(scores[c] == scores[target] for c in rivals)
    return 1 + higher + -(-equal // 2)


def test_ranks_equal_loops_with_ties_in_the_middle(pool, vectors, node_ranks):
    scores, nodes = vectors[0] @ vectors[1].T, range(len(pool.tree))
    for u in nodes:
        assert node_ranks.rank[u] == _rank(scores[u], u, nodes)
        assert scores[u, node_ranks.first[u]] == scores[u].max()
        nodes_of_tree = [w for w in nodes if pool.tree[w] == pool.tree[u]]
        assert node_ranks.within[u] == _rank(scores[u], u, nodes_of_tree)
        children = sorted(w for p, w in pool.edges if p == u)
        ranked = node_ranks.children[u][node_ranks.children[u] > 0]
        rivals = [w for w in nodes if w != u and w not in children]
        assert sorted(ranked) == sorted(_rank(scores[u], w, rivals) for w in children)


def test_groups_by_leaves_average_to_the_metrics_of_all(pool, node_ranks):
    groups = hierarchy.leaf_groups(pool)
    metrics = hierarchy.metrics_by_leaves({"t2v": node_ranks, "v2t": node_ranks}, groups)
    counts = {k: int(np.sum(groups == k)) for k in (1, 2, 3, 5)}
    assert sum(counts.values()) == len(pool.tree)
    for name in ("R@1", "R@5", "R@10", "MRR", "MnR"):
        parts = [count * metrics[f"leaves={k}/v2t/{name}"] for k, count in counts.items()]
        assert metrics[f"v2t/{name}"] == pytest.approx(sum(parts) / len(pool.tree))
    assert metrics["t2v/MedR"] == np.median(node_ranks.rank)
    assert [name for name in metrics if "4" in name] == []


def test_confusions_within_a_tree_are_classified(pool, node_ranks):
    descendants = {u: {w for a, w in pool.ancestry if a == u} for u in range(len(pool.tree))}
    siblings = {frozenset(pair) for pair in pool.siblings.tolist()}
    inner = np.flatnonzero(pool.level > 0)
    confused = [
        (u, int(node_ranks.first[u]))
        for u in inner
        if node_ranks.first[u] != u and pool.tree[node_ranks.first[u]] == pool.tree[u]
    ]

    def share(pairs):
        return 100 * len(pairs) / len(inner)

    assert confused
    assert hierarchy.confusion(node_ranks, pool) == pytest.approx(
        {
            "OwnTree": share(confused),
            "Ancestor": share([pair for pair in confused if pair[0] in descendants[pair[1]]]),
            "Descendant": share([pair for pair in confused if pair[1] in descendants[pair[0]]]),
            "Sibling": share([pair for pair in confused if frozenset(pair) in siblings]),
        }
    )


def _is_a(scores, children):
    """Return precision and mean rank of children in lists sorted by score, with ties in any order.

    A child is behind half of the other candidates with the same score, rounded up.
    """
    precisions, ranks = [], []
    for u, kids in children.items():
        strangers = [w for w in range(len(scores)) if w != u and w not in kids]
        shuffled = sorted(np.random.default_rng(u).permutation(kids), key=lambda w: -scores[u, w])
        ahead = [_rank(scores[u], w, strangers) - 1 for w in shuffled]
        precisions.append(np.mean([k / (k + n) for k, n in enumerate(ahead, 1)]))
        ranks += [1 + n for n in ahead]
    return {"MAP": 100 * np.mean(precisions), "MeanRank": np.mean(ranks)}


@pytest.mark.parametrize("width", [1, 2, 5])
def test_hierarchy_precision_equals_loops_with_many_ties(pool, width):
    rng = np.random.default_rng(width)
    vectors = rng.integers(-1, 2, size=(2, len(pool.tree), width)).astype(np.float32)
    ranks = hierarchy.node_ranks(*vectors, hierarchy.relatives(pool), 7, devices.mesh())
    children = {u: [w for p, w in pool.edges if p == u] for u in np.unique(pool.edges[:, 0])}
    expected = _is_a(vectors[0] @ vectors[1].T, children)
    assert hierarchy.is_a(ranks) == pytest.approx(expected)


def test_equally_ranked_children_at_the_top_are_perfect():
    queries = np.float32([[1, 0], [0.6, 0.8], [0.6, 0.8], [-1, 0]])
    candidates = np.float32([[1, 0], [0.9, 0.1], [0.9, 0.1], [-1, 0]])
    tree, children = np.int32([0, 0, 0, 1]), np.int32([[1, 2], [-1, -1], [-1, -1], [-1, -1]])
    nodes = hierarchy.Relatives(tree, children)
    ranks = hierarchy.node_ranks(queries, candidates, nodes, 4, devices.mesh())
    assert hierarchy.is_a(ranks) == {"MAP": 100, "MeanRank": 1}


def test_norm_order_metrics_of_perfect_and_equal_norms(pool):
    rng = np.random.default_rng(0)
    norm = 0.9 - 0.1 * pool.level + 0.01 * rng.random(len(pool.tree))
    parents, children = pool.edges.T
    perfect = hierarchy.share_in_order(Coordinates(norm, norm), parents, children)
    assert perfect == {"same": 100, "cross": 100}
    flat = np.ones(len(norm)) + 1e-7 * rng.normal(size=len(norm))  # rounding of float32
    chance = hierarchy.share_in_order(Coordinates(flat, flat), parents, children)
    assert chance == {"same": 50, "cross": 50}
    assert hierarchy.radius_tau(-pool.level.astype(float), pool) == pytest.approx(1)
    assert hierarchy.radius_tau(pool.level.astype(float), pool) == pytest.approx(-1)
    assert hierarchy.radius_tau(flat, pool) == 0


def test_correlation_of_depth_and_radius_is_kendalls_tau(pool):
    stats = pytest.importorskip("scipy.stats")
    norm = np.random.default_rng(3).random(len(pool.tree))
    expected = [
        stats.kendalltau(pool.level[rows], -norm[rows]).statistic
        for rows in (np.flatnonzero(pool.tree == tree) for tree in np.unique(pool.tree))
        if len(rows) >= 3
    ]
    assert hierarchy.radius_tau(norm, pool) == pytest.approx(np.mean(expected))


def test_fitted_direction_separates_early_from_late():
    rng = np.random.default_rng(0)
    late = rng.normal(size=4)
    middle = rng.normal(size=(50, 4))
    direction = hierarchy.fit_direction(middle - 0.3 * late, middle + 0.3 * late)
    cosine = direction @ -late / np.linalg.norm(direction) / np.linalg.norm(late)
    assert cosine > 0.999


def test_hierarchy_metrics_equal_their_definitions(pool, node_ranks):
    rng = np.random.default_rng(1)
    drawn = rng.random((4, len(pool.tree)))
    norms, cosines = Coordinates(*drawn[:2]), Coordinates(*drawn[2:])
    metrics = hierarchy.hierarchy_metrics(pool, norms, cosines, {"t2v": node_ranks})
    parents, children = pool.edges.T
    cross = (norms.video[parents] < norms.text[children]).mean()
    cross = (cross + (norms.text[parents] < norms.video[children]).mean()) / 2
    assert metrics["hierarchy/cross/NormAcc"] == pytest.approx(100 * cross)
    earlier, later = pool.siblings.T
    # The earlier of two siblings has the smaller angle.
    accuracies = [(x[earlier] > x[later]).mean() for x in cosines]
    assert metrics["hierarchy/same/OrderAcc"] == pytest.approx(100 * np.mean(accuracies))
    within = 100 * np.mean(node_ranks.within == 1)
    assert metrics["hierarchy/t2v/WithinTree"] == pytest.approx(within)
    assert metrics["hierarchy/video/RadiusTau"] == hierarchy.radius_tau(norms.video, pool)
    assert not any(name.startswith("hierarchy/v2t") for name in metrics)


def test_metric_without_nodes_is_missing(pool, node_ranks):
    no_nodes = np.zeros(0, np.int32)
    values = Coordinates(np.ones(3), np.ones(3))
    assert all(np.isnan(x) for x in hierarchy.share_in_order(values, no_nodes, no_nodes).values())
    childless = node_ranks._replace(children=np.zeros_like(node_ranks.children))
    assert all(np.isnan(x) for x in hierarchy.is_a(childless).values())


BATCH = 7
"""Nodes of a batch: there are several batches, and the last is not full."""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A configuration of Euclidean space, whose programs compile quickly."""
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
    return NodeEvaluator(hover.build(config), config, devices.mesh())


@pytest.fixture(scope="module")
def feed(evaluator, split):
    feed = evaluator.feed(split)
    yield feed
    feed.close()


@pytest.fixture(scope="module")
def points(config, split, params):
    """The points of all nodes, encoded in a single batch."""
    feed = NodeFeed(split, in_order(split.num_nodes, split.num_nodes, 1), devices.mesh(), True)
    [chunk] = feed.chunks()
    batch = feed.batch(chunk, 0)
    feed.close()
    encoded = jax.jit(hover.build(config).apply)({"params": params}, batch)
    return [np.asarray(x, np.float64) for x in encoded]


@pytest.fixture(scope="module")
def scores(points):
    """Scores of all texts and all videos: negative distances."""
    video, text = points
    return -np.linalg.norm(text[:, None] - video[None], axis=-1)


@pytest.mark.parametrize("resident", [False, True])
def test_nodes_are_encoded_in_their_order_in_any_batches(
    evaluator, split, params, points, resident
):
    assert split.num_nodes % BATCH and split.num_nodes > 2 * BATCH
    feed = evaluator.feed(split, resident)
    encoded = evaluator.encode(params, feed)
    feed.close()
    for vectors, expected in zip(encoded, points, strict=True):
        # The same float32 products in batches of another size.
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_scores_are_of_all_texts_and_videos(evaluator, params, feed, scores):
    np.testing.assert_allclose(evaluator.scores(params, feed), scores, atol=1e-5)


def test_node_ranks_of_both_directions_follow_the_scores(evaluator, split, params, feed, scores):
    nodes = range(len(scores))
    expected = {
        direction: [_rank(row, u, nodes) for u, row in enumerate(rows)]  # equal nodes are ties
        for direction, rows in (("t2v", scores), ("v2t", scores.T))
    }
    node_ranks = evaluator.ranks(evaluator.encode(params, feed), split)
    result = evaluator.evaluate(params, feed)
    assert (result.queries, result.videos) == (split.num_nodes, len(split.pool.videos))
    for direction, ranks in expected.items():
        np.testing.assert_array_equal(node_ranks[direction].rank, ranks)
        mean = np.mean(1 / np.array(ranks))
        assert result.metrics[f"{direction}/MRR"] == pytest.approx(mean)


def test_nodes_without_finite_scores_are_counted(evaluator, split, params, feed):
    broken = jax.tree.map(lambda x: jnp.full_like(x, np.nan), params)
    for use in (evaluator.evaluate, evaluator.scores):
        with pytest.raises(ScoreError, match=f"{split.num_nodes} of {split.num_nodes} nodes"):
            use(broken, feed)


def test_report_adds_hierarchy_metrics(evaluator, split, params, feed, points):
    direction = np.linspace(-1, 2, points[0].shape[1])
    report = evaluator.report(params, feed, direction)
    result = evaluator.evaluate(params, feed)
    assert result.metrics.items() <= report.metrics.items()
    norms = [np.linalg.norm(x, axis=-1) for x in points]
    cosines = [
        x @ direction / norm / np.linalg.norm(direction)
        for x, norm in zip(points, norms, strict=True)
    ]
    node_ranks = evaluator.ranks(evaluator.encode(params, feed), split)
    expected = hierarchy.hierarchy_metrics(
        split.pool, Coordinates(*norms), Coordinates(*cosines), node_ranks
    )
    names = {name for name in report.metrics if name.startswith("hierarchy/")}
    assert names == set(expected)
    for name, value in expected.items():
        assert report.metrics[name] == pytest.approx(value, rel=1e-5, nan_ok=True), name


def test_direction_is_fitted_to_siblings_of_both_modalities(evaluator, split, params, feed, points):
    earlier, later = split.pool.siblings.T
    units = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in points]
    differences = np.concatenate([x[earlier] - x[later] for x in units])
    expected = np.linalg.lstsq(differences, np.ones(len(differences)), rcond=1e-6)[0]
    direction = evaluator.fit_direction(params, feed)
    cosine = direction @ expected / np.linalg.norm(direction) / np.linalg.norm(expected)
    assert cosine > 0.999
