"""All nodes of all trees of a split: what is retrieved, and how the nodes are related."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from hlformer_jax.data.trees.moment import TimedVideo
from hlformer_jax.data.trees.text import texts
from hlformer_jax.data.trees.tree import Tree


class Pool(NamedTuple):
    """The trees of a split with their nodes numbered through, those of a tree one after another.

    Attributes:
      videos: id of every tree's video.
      texts: text of every node.
      tree: number of every node's tree.
      node: number of every node in its tree, leaves first and root last.
      leaves: number of leaves of every node's tree.
      level: height of every node above the leaves; 0 for a leaf.
      position: among the leaves of its tree in time order, the first below every node, from 0.
      span: seconds at which every node begins and ends.
      edges: R pairs (parent, child).
      siblings: S pairs (left, right) of children of one parent.
      ancestry: all pairs (node, descendant), rising.
      subtrees: B training items, parent, left and right child; the right one is the left one where
        there is one child.
      pair: whether each item has two children.
    """

    videos: tuple[str, ...]
    texts: tuple[str, ...]
    tree: Int[np.ndarray, " U"]
    node: Int[np.ndarray, " U"]
    leaves: Int[np.ndarray, " U"]
    level: Int[np.ndarray, " U"]
    position: Int[np.ndarray, " U"]
    span: Float[np.ndarray, "U 2"]
    edges: Int[np.ndarray, "R 2"]
    siblings: Int[np.ndarray, "S 2"]
    ancestry: Int[np.ndarray, "pairs 2"]
    subtrees: Int[np.ndarray, "B 3"]
    pair: Bool[np.ndarray, " B"]

    @property
    def names(self) -> tuple[str, ...]:
        """Unique names of the nodes, VIDEO#NUMBER."""
        pairs = zip(self.tree.tolist(), self.node.tolist(), strict=True)
        return tuple(f"{self.videos[tree]}#{node}" for tree, node in pairs)

    def below(self, nodes: Int[np.ndarray, " rows"]) -> Bool[np.ndarray, "rows rows"]:
        """Which of some nodes descend from which.

        Args:
          nodes: numbers of nodes; -1 where padded.

        Returns:
          Entry (u, w) is True where the node of row w descends from that of row u.
        """
        tree = np.where(nodes >= 0, self.tree[np.maximum(nodes, 0)], -1 - np.arange(len(nodes)))
        above, under = np.nonzero(tree[:, None] == tree[None])
        codes = self.ancestry[:, 0] * len(self.tree) + self.ancestry[:, 1]
        below = np.zeros((len(nodes), len(nodes)), bool)
        wanted = nodes[above].astype(np.int64) * len(self.tree) + nodes[under]
        place = np.minimum(np.searchsorted(codes, wanted), max(len(codes) - 1, 0))
        if len(codes):
            below[above, under] = codes[place] == wanted
        return below


def pool(
    trees: Sequence[Tree],
    videos: Sequence[TimedVideo],
    parent_text: str = "released",
    collection: str = "",
) -> Pool:
    """Numbers the nodes of trees through.

    Args:
      trees: the trees.
      videos: the video of each, with its moments.
      parent_text: how the text of a parent is made; see `text.texts`.
      collection: what the moments are of; likewise.

    Returns:
      The pool.
    """
    sizes = [len(tree.nodes) for tree in trees]
    starts = np.cumsum([0, *sizes])[:-1].tolist()
    told = (
        texts(tree, video.moments, parent_text, collection)
        for tree, video in zip(trees, videos, strict=True)
    )
    chain = itertools.chain.from_iterable
    each = lambda values: np.fromiter(chain(values), np.int32)
    numbered = list(zip(starts, trees, strict=True))
    ancestry = (
        (start + node, start + below)
        for start, tree in numbered
        for node, descendants in enumerate(tree.descendants)
        for below in sorted(descendants)
    )
    return Pool(
        videos=tuple(tree.video for tree in trees),
        texts=tuple(chain(told)),
        tree=np.repeat(np.arange(len(trees), dtype=np.int32), sizes),
        node=each(range(size) for size in sizes),
        leaves=each([len(tree.leaves)] * len(tree.nodes) for tree in trees),
        level=each(tree.levels for tree in trees),
        position=each(tree.positions for tree in trees),
        span=np.asarray(
            [(node.start, node.end) for tree in trees for node in tree.nodes], np.float64
        ).reshape(-1, 2),
        edges=_rows(((s + a, s + b) for s, tree in numbered for a, b in tree.edges), 2),
        siblings=_rows(((s + a, s + b) for s, tree in numbered for a, b in tree.siblings), 2),
        ancestry=_rows(ancestry, 2),
        subtrees=_rows(
            ((s + i[0], s + i[1], s + i[-1]) for s, tree in numbered for i in tree.items), 3
        ),
        pair=np.fromiter((len(item) == 3 for tree in trees for item in tree.items), bool),
    )


def _rows(rows: object, width: int) -> Int[np.ndarray, "rows width"]:
    return np.asarray(list(rows), np.int64).reshape(-1, width)  # type: ignore[call-overload]
