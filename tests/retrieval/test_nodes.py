"""Ranks among nodes, against loops over thirty of them."""

import numpy as np
import pytest

from hlformer_jax import parallel
from hlformer_jax.retrieval import nodes


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
    found = nodes.ranks(*vectors, nodes.relatives(pool, by_group=True), 64, parallel.mesh())
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
