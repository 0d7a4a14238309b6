"""A tree's relations, of one whose middle leaf has two parents."""

import pytest

from hlformer_jax.data.trees.tree import Node, Tree

# Leaves 0 1 2, parents 3 = (0, 1) and 4 = (1, 2), root 5 = (3, 4).
SHARED = Tree(
    "v",
    (
        *(Node(10.0 * k, 10.0 * k + 10, (k,)) for k in range(3)),
        Node(0, 20, (0, 1), (0, 1)),
        Node(10, 30, (1, 2), (1, 2)),
        Node(0, 30, (0, 1, 2), (3, 4)),
    ),
    ((5, 3, 4), (3, 0, 1), (4, 1, 2)),
)
CHAIN = Tree("v", (Node(5, 9, (1,)), Node(0, 9, (0, 1), (0,))), ((1, 0),))
# A leaf beside a pair: 3 = (0, 1), root 4 = (3, 2).
UNEVEN = Tree(
    "v",
    (
        *(Node(k, k + 1, (k,)) for k in range(3)),
        Node(0, 2, (0, 1), (0, 1)),
        Node(0, 3, (0, 1, 2), (3, 2)),
    ),
    ((4, 3, 2), (3, 0, 1)),
)


@pytest.mark.parametrize(
    ("tree", "leaves", "levels", "positions"),
    [
        (SHARED, (0, 1, 2), (0, 0, 0, 1, 1, 2), (0, 1, 2, 0, 1, 0)),
        (CHAIN, (0,), (0, 1), (0, 0)),
        (UNEVEN, (0, 1, 2), (0, 0, 0, 1, 2), (0, 1, 2, 0, 0)),
    ],
    ids=["shared leaf", "chain", "uneven"],
)
def test_leaves_heights_and_places_in_time(tree, leaves, levels, positions):
    assert (tree.leaves, tree.levels, tree.positions) == (leaves, levels, positions)


def test_descendants_are_all_nodes_below_each_once():
    assert SHARED.descendants[3:] == (frozenset({0, 1}), frozenset({1, 2}), frozenset(range(5)))
    assert SHARED.descendants[:3] == (frozenset(),) * 3
    assert UNEVEN.descendants[4] == frozenset(range(4))


def test_a_node_with_two_parents_is_in_two_edges_and_two_pairs_of_siblings():
    assert SHARED.edges == ((3, 0), (3, 1), (4, 1), (4, 2), (5, 3), (5, 4))
    assert SHARED.siblings == ((3, 4), (0, 1), (1, 2))
    assert CHAIN.edges == ((1, 0),) and CHAIN.siblings == ()


def test_siblings_that_two_items_name_are_one_pair():
    twice = Tree("v", SHARED.nodes, (*SHARED.items, (5, 3, 4)))
    assert twice.siblings == SHARED.siblings
