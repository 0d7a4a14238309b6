"""Ranks among nodes and what they say of a hierarchy, against loops over thirty nodes."""

import numpy as np
import pytest

from hlformer_jax.data.trees import pool as pools
from hlformer_jax.data.trees.moment import Moment, TimedVideo
from hlformer_jax.data.trees.rule import build
from hlformer_jax.parallel import devices
from hlformer_jax.retrieval import hierarchy, nodes
from hlformer_jax.retrieval.hierarchy import Coordinates

COUNTS = (2, 3, 5, 6, 1)


def _pool():
    trees, videos = [], []
    for number, count in enumerate(COUNTS):
        # A single leaf is of two moments with a gap between them.
        spans = [(k * 5, k * 5 + 5) for k in range(count)] if count > 1 else [(0, 4), (20, 30)]
        moments = tuple(Moment(f"v{number}#{k}", a, b, "x") for k, (a, b) in enumerate(spans))
        videos.append(TimedVideo(f"v{number}", 60.0, moments))
        trees.append(build(videos[-1], "released"))
    return pools.pool(trees, videos)


@pytest.fixture(scope="module")
def pool():
    return _pool()


@pytest.fixture(scope="module")
def vectors(pool):
    rng = np.random.default_rng(0)
    # Few values, so that there are ties.
    return rng.integers(-1, 2, size=(2, len(pool.tree), 3)).astype(np.float32)


@pytest.fixture(scope="module")
def found(pool, vectors):
    return nodes.ranks(*vectors, nodes.relatives(pool), 7, devices.mesh())


def _rank(scores, own, candidates):
    """Middle rank of one candidate among others."""
    others = [c for c in candidates if c != own]
    higher = sum(scores[c] > scores[own] for c in others)
    equal = sum(scores[c] == scores[own] for c in others)
    return 1 + higher + -(-equal // 2)


def test_ranks_equal_loops_with_ties_in_the_middle(pool, vectors, found):
    scores, every = vectors[0] @ vectors[1].T, range(len(pool.tree))
    for u in every:
        assert found.rank[u] == _rank(scores[u], u, every)
        assert scores[u, found.first[u]] == scores[u].max()
        own_tree = [w for w in every if pool.tree[w] == pool.tree[u]]
        assert found.within[u] == _rank(scores[u], u, own_tree)
        children = sorted(w for p, w in pool.edges if p == u)
        ranked = found.children[u][found.children[u] > 0]
        others = [w for w in every if w != u]
        assert sorted(ranked) == sorted(_rank(scores[u], w, others) for w in children)


def test_candidates_may_be_those_of_trees_with_as_many_leaves(pool, vectors):
    found = nodes.ranks(*vectors, nodes.relatives(pool, by_group=True), 64, devices.mesh())
    scores, groups = vectors[0] @ vectors[1].T, np.minimum(pool.leaves, 5)
    for u, rank in enumerate(found.rank):
        assert rank == _rank(scores[u], u, np.flatnonzero(groups == groups[u]))


def test_groups_of_leaves_weigh_up_to_all(pool, found):
    groups = nodes.leaf_groups(pool)
    named = nodes.by_leaves({"t2v": found, "v2t": found}, groups)
    counts = {k: int(np.sum(groups == k)) for k in (1, 2, 3, 5)}
    assert sum(counts.values()) == len(pool.tree)
    for name in ("R@1", "R@5", "R@10", "MRR", "MnR"):
        parts = [count * named[f"leaves={k}/v2t/{name}"] for k, count in counts.items()]
        assert named[f"v2t/{name}"] == pytest.approx(sum(parts) / len(pool.tree))
    assert named["t2v/MedR"] == np.median(found.rank)
    assert [name for name in named if "4" in name] == []


def test_first_results_of_the_own_tree_are_told_by_their_kin(pool, found):
    below = {u: {w for a, w in pool.ancestry if a == u} for u in range(len(pool.tree))}
    siblings = {frozenset(pair) for pair in pool.siblings.tolist()}
    inner = np.flatnonzero(pool.level > 0)
    own = [
        (u, int(found.first[u]))
        for u in inner
        if found.first[u] != u and pool.tree[found.first[u]] == pool.tree[u]
    ]
    share = lambda pairs: 100 * len(pairs) / len(inner)
    assert own
    assert hierarchy.confusion(found, pool) == pytest.approx(
        {
            "OwnTree": share(own),
            "Ancestor": share([pair for pair in own if pair[0] in below[pair[1]]]),
            "Descendant": share([pair for pair in own if pair[1] in below[pair[0]]]),
            "Sibling": share([pair for pair in own if frozenset(pair) in siblings]),
        }
    )


def test_average_precision_is_of_the_children_of_every_parent(found):
    precisions, alone = [], []
    for row in found.children:
        ranked = sorted(row[row > 0])
        if ranked:
            precisions.append(np.mean([(k + 1) / rank for k, rank in enumerate(ranked)]))
            alone += [rank - k for k, rank in enumerate(ranked)]
    expected = {"MAP": 100 * np.mean(precisions), "MeanRank": np.mean(alone)}
    assert hierarchy.is_a(found) == pytest.approx(expected)


def test_norms_in_the_order_of_the_levels_are_perfect_and_equal_ones_are_chance(pool):
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


def test_the_correlation_of_levels_and_radii_is_kendalls(pool):
    stats = pytest.importorskip("scipy.stats")
    norm = np.random.default_rng(3).random(len(pool.tree))
    expected = [
        stats.kendalltau(pool.level[rows], -norm[rows]).statistic
        for rows in (np.flatnonzero(pool.tree == tree) for tree in range(len(COUNTS)))
        if len(rows) >= 3
    ]
    assert hierarchy.radius_tau(norm, pool) == pytest.approx(np.mean(expected))


def test_a_direction_is_fitted_that_tells_early_from_late():
    rng = np.random.default_rng(0)
    late = rng.normal(size=4)
    middle = rng.normal(size=(50, 4))
    direction = hierarchy.fit_direction(middle - 0.3 * late, middle + 0.3 * late)
    cosine = direction @ -late / np.linalg.norm(direction) / np.linalg.norm(late)
    assert cosine > 0.999
