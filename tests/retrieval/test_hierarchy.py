"""What embeddings say of a hierarchy, against loops over thirty nodes and against SciPy."""

import numpy as np
import pytest

from hlformer_jax.retrieval import hierarchy
from hlformer_jax.retrieval.hierarchy import Coordinates


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
        for rows in (np.flatnonzero(pool.tree == tree) for tree in np.unique(pool.tree))
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


def test_all_metrics_are_named_by_pairs_modality_and_direction(pool, found):
    rng = np.random.default_rng(1)
    drawn = rng.random((4, len(pool.tree)))
    norms, cosines = Coordinates(*drawn[:2]), Coordinates(*drawn[2:])
    named = hierarchy.metrics(pool, norms, cosines, {"t2v": found})
    parents, children = pool.edges.T
    cross = (norms.video[parents] < norms.text[children]).mean()
    cross = (cross + (norms.text[parents] < norms.video[children]).mean()) / 2
    assert named["hierarchy/cross/NormAcc"] == pytest.approx(100 * cross)
    left, right = pool.siblings.T
    same = [(x[left] > x[right]).mean() for x in cosines]  # the earlier has the smaller angle
    assert named["hierarchy/same/OrderAcc"] == pytest.approx(100 * np.mean(same))
    within = 100 * np.mean(found.within == 1)
    assert named["hierarchy/t2v/WithinTree"] == pytest.approx(within)
    assert named["hierarchy/video/RadiusTau"] == hierarchy.radius_tau(norms.video, pool)
    assert not any(name.startswith("hierarchy/v2t") for name in named)


def test_what_there_is_nothing_of_has_no_number(pool, found):
    none = np.zeros(0, np.int32)
    values = Coordinates(np.ones(3), np.ones(3))
    assert all(np.isnan(x) for x in hierarchy.share_in_order(values, none, none).values())
    alone = found._replace(children=np.zeros_like(found.children))
    assert all(np.isnan(x) for x in hierarchy.is_a(alone).values())
