"""All nodes of a split: numbered through, with their relations."""

import numpy as np

from hlformer_jax.data.trees.moment import AnnotatedMoment, TimedVideo
from hlformer_jax.data.trees.pool import pool
from hlformer_jax.data.trees.rule import build


def row(name, count, apart=0):
    step = 10.0 + apart
    moments = (
        AnnotatedMoment(f"{name}#{k}", step * k, step * k + 10, f"{name} does {k}.")
        for k in range(count)
    )
    return TimedVideo(name, 200.0, tuple(moments))


VIDEOS = [row("a", 3), row("b", 2, apart=5), row("c", 5)]
POOL = pool([build(video) for video in VIDEOS], VIDEOS, "joined")


def test_nodes_are_numbered_through_tree_by_tree():
    assert POOL.videos == ("a", "b", "c")
    assert POOL.tree.tolist() == [0] * 6 + [1] * 2 + [2] * 11
    assert POOL.leaves.tolist() == [3] * 6 + [1] * 2 + [5] * 11
    assert POOL.level.tolist() == [0, 0, 0, 1, 1, 2, 0, 1, *[0] * 5, 1, 1, 1, 2, 2, 3]
    assert POOL.position.tolist() == [0, 1, 2, 0, 1, 0, 0, 0, 0, 1, 2, 3, 4, 0, 2, 3, 0, 2, 0]
    assert POOL.names[6:8] == ("b#0", "b#1") and len(set(POOL.names)) == 19
    assert POOL.texts[7] == "b does 0. b does 1." and len(POOL.texts) == 19
    assert POOL.span[5].tolist() == [0, 30] and POOL.span[7].tolist() == [0, 25]


def test_items_name_a_parent_and_its_children_and_a_chain_repeats_its_only_one():
    assert POOL.subtrees[:4].tolist() == [[3, 0, 1], [4, 1, 2], [5, 3, 4], [7, 6, 6]]
    assert POOL.pair[:5].tolist() == [True, True, True, False, True]
    assert (POOL.level[POOL.subtrees[:, 0]] > POOL.level[POOL.subtrees[:, 1]]).all()
    assert {tuple(pair) for pair in POOL.siblings} == {
        tuple(item[1:]) for item in POOL.subtrees[POOL.pair].tolist()
    }
    edges = {(item[0], child) for item in POOL.subtrees.tolist() for child in item[1:]}
    assert {tuple(edge) for edge in POOL.edges.tolist()} == edges


def test_descendants_are_the_closure_of_the_edges():
    closure = np.zeros((19, 19), int)
    closure[tuple(POOL.edges.T)] = 1
    reached = sum(np.linalg.matrix_power(closure, k) for k in range(1, 5)) > 0
    found = np.zeros((19, 19), bool)
    found[tuple(POOL.ancestry.T)] = True
    np.testing.assert_array_equal(found, reached)
    for nodes in ([5, 0, 4, -1, 18, 8, 7, 6, -1], [-1, -1], [2, 12], list(range(18, -1, -1))):
        below = POOL.below(np.asarray(nodes, np.int32))
        for u, upper in enumerate(nodes):
            for w, lower in enumerate(nodes):
                real = upper >= 0 and lower >= 0
                assert below[u, w] == (real and reached[upper, lower]), (upper, lower)
