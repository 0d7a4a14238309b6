"""Batches of action trees without features, and points for them: what tests of the losses share."""

import numpy as np

from hlformer_jax.typing import Nodes, Subtrees, TreeBatch

# Two trees and a chain. Tree 0: leaves 0 1 2, parents 3 = (0, 1), 4 = (1, 2), root 5 = (3, 4).
# Tree 1: leaves 6 7, root 8. Tree 2, a chain: leaf 9, root 10.
ITEMS = ((5, 3, 4), (3, 0, 1), (4, 1, 2), (8, 6, 7), (10, 9, 9))
PAIR = (True, True, True, True, False)
BELOW = {5: (0, 1, 2, 3, 4), 3: (0, 1), 4: (1, 2), 8: (6, 7), 10: (9,)}
TREE = (0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2)
LEVEL = (0, 0, 0, 1, 1, 2, 0, 0, 1, 0, 1)
POSITION = (0, 1, 2, 0, 1, 0, 0, 1, 0, 0, 0)


def batch(items=(0, 1, 2, 3, 4), padding=0):
    """The batch of some of the items, with padded items and nodes behind."""
    count, rows = len(TREE) + padding, np.zeros((len(items) + padding, 3), np.int32)
    rows[: len(items)] = [ITEMS[k] for k in items]
    used = np.zeros(count, bool)
    used[np.unique(rows[: len(items)])] = True
    below = np.zeros((count, count), bool)
    for node, under in BELOW.items():
        below[node, list(under)] = True
    number = lambda values: np.array([*values, *[0] * padding], np.int32)
    real = np.arange(len(items) + padding) < len(items)
    pair = np.array([PAIR[k] for k in items] + [False] * padding)
    empty = np.zeros((count, 1, 1), np.float32)
    nodes = Nodes(
        *(empty, np.ones((count, 1), bool), empty, np.ones((count, 1), bool)),
        *(used, number(TREE), number(LEVEL), number(POSITION)),
    )
    return TreeBatch(nodes, Subtrees(rows, pair, real), below)


def points(seed=0, padding=0, poison=0.0, n=3):
    """Points of the unit ball for all nodes of both modalities; `poison` where padded."""
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(2, len(TREE), n))
    drawn *= rng.uniform(0.2, 0.8, (2, len(TREE), 1)) / np.linalg.norm(
        drawn, axis=-1, keepdims=True
    )
    rest = np.full((2, padding, n), poison)
    return np.concatenate([drawn, rest], axis=1).astype(np.float32)
