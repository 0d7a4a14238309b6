"""A tree of actions: nodes with their spans, and the items that a model is trained on."""

import dataclasses
import functools
from typing import NamedTuple


class Node(NamedTuple):
    """A node.

    Attributes:
      start: second at which its span begins.
      end: second at which its span ends.
      moments: numbers of the moments that its text tells, in the order of the video's annotations.
      children: numbers of its children in the tree, in the order of time; none for a leaf.
      text: its text, where it is given and not made of those of its moments; else "".
    """

    start: float
    end: float
    moments: tuple[int, ...]
    children: tuple[int, ...] = ()
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Tree:
    """The tree of a video; a node may have two parents (see `rule.deep`).

    Attributes:
      video: the video's id.
      nodes: its nodes; children stand before their parents, leaves in the order of time.
      items: training items, (parent, left child, right child) or (parent, child), as numbers of
        nodes.
    """

    video: str
    nodes: tuple[Node, ...]
    items: tuple[tuple[int, ...], ...]

    @functools.cached_property
    def leaves(self) -> tuple[int, ...]:
        """Numbers of the nodes without children, in the order of time."""
        return tuple(k for k, node in enumerate(self.nodes) if not node.children)

    @functools.cached_property
    def levels(self) -> tuple[int, ...]:
        """The height of each node: 0 for a leaf, else one more than that of its highest child."""
        levels: list[int] = []
        for node in self.nodes:
            levels.append(1 + max((levels[child] for child in node.children), default=-1))
        return tuple(levels)

    @functools.cached_property
    def descendants(self) -> tuple[frozenset[int], ...]:
        """Numbers of the nodes below each node."""
        below: list[frozenset[int]] = []
        for node in self.nodes:
            below.append(frozenset(node.children).union(*(below[child] for child in node.children)))
        return tuple(below)

    @functools.cached_property
    def positions(self) -> tuple[int, ...]:
        """The place among the leaves of the first leaf below each node, or of the leaf itself."""
        place = {leaf: position for position, leaf in enumerate(self.leaves)}
        first: list[int] = []
        for k, node in enumerate(self.nodes):
            first.append(min((first[child] for child in node.children), default=place.get(k, 0)))
        return tuple(first)

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """All pairs (parent, child)."""
        return tuple((k, child) for k, node in enumerate(self.nodes) for child in node.children)

    @property
    def siblings(self) -> tuple[tuple[int, int], ...]:
        """The pairs (left, right) of the items, each once: children of one parent, in order."""
        return tuple(dict.fromkeys((item[1], item[2]) for item in self.items if len(item) == 3))
