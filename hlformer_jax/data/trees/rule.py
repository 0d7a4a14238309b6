"""The rule by which the moments of one video become a tree of actions.

1. An *adjacent run* begins at any moment. A later moment joins it when it starts within less than
   three seconds of the run's last end, before or after, and later than the run's last start. Of the
   runs of at least two moments, the one that spans the longest time gives the leaves.
2. Without such a run: a *separated run* takes every later moment that starts after its last end. Of
   those of at least two moments, the one whose moments last longest together gives a root over all
   of them, and its longest moment is the only leaf: a chain.
3. Without either there is no tree.

Of equal runs the first one counts, and moments are taken in their order. The leaves are then
composed (see `FORMS`). This is how the published trees of ActivityNet Captions and Charades-STA
were made; their nodes are reproduced one by one.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

from hlformer_jax.data.trees.moment import AnnotatedMoment, TimedVideo
from hlformer_jax.data.trees.tree import Node, Tree

NEAR = 3.0
"""Seconds between the end of a moment and the start of the next, below which they are adjacent."""

Run = tuple[int, ...]
"""Numbers of moments of a video, rising."""


def build(video: TimedVideo, form: str = "released") -> Tree | None:
    """Builds the tree of a video.

    Args:
      video: its moments, in the order of the annotations (of Charades-STA, by start).
      form: how leaves are composed, one of `FORMS`.

    Returns:
      The tree, its leaves first and its root last; None where the moments make none.
    """
    moments = video.moments
    compose = FORMS[form]
    adjacent = runs(moments, is_adjacent)
    if adjacent:
        leaves = max(adjacent, key=lambda run: moments[run[-1]].end - moments[run[0]].start)
        nodes = [Node(moments[k].start, moments[k].end, (k,)) for k in leaves]
        return Tree(video.video, *compose(nodes))
    separated = runs(moments, is_separated)
    if separated:
        length = lambda k: moments[k].end - moments[k].start
        run = max(separated, key=lambda run: sum(map(length, run)))
        leaf = max(run, key=length)
        nodes = [
            Node(moments[leaf].start, moments[leaf].end, (leaf,)),
            Node(moments[run[0]].start, moments[run[-1]].end, run, (0,)),
        ]
        return Tree(video.video, tuple(nodes), ((1, 0),))
    return None


def is_adjacent(last: AnnotatedMoment, moment: AnnotatedMoment) -> bool:
    """Whether a moment continues an adjacent run whose last moment is given.

    The bounds are rounded, not the gap, which decides where it is three seconds to a rounding error
    (5.7 and 8.7); so the published trees have it.
    """
    near = last.end - NEAR < moment.start < last.end + NEAR
    return near and moment.start > last.start


def is_separated(last: AnnotatedMoment, moment: AnnotatedMoment) -> bool:
    """Whether a moment continues a separated run whose last moment is given."""
    return moment.start > last.end


def runs(
    moments: Sequence[AnnotatedMoment], follows: Callable[[AnnotatedMoment, AnnotatedMoment], bool]
) -> list[Run]:
    """All runs of at least two moments, one from each moment that begins one.

    Args:
      moments: the moments of a video, in order.
      follows: whether a moment continues a run whose last moment is given.

    Returns:
      The runs, by their first moment.
    """
    found = []
    for first in range(len(moments)):
        run = [first]
        for later in range(first + 1, len(moments)):
            if follows(moments[run[-1]], moments[later]):
                run.append(later)
        if len(run) > 1:
            found.append(tuple(run))
    return found


Nodes = tuple[Node, ...]
Items = tuple[tuple[int, ...], ...]


def deep(leaves: Sequence[Node]) -> tuple[Nodes, Items]:
    """Composes neighbours level by level; of an odd level the last two are a pair as well.

    A node of an odd level has two parents then: with 3, 5, 6, 7, … leaves this is no tree in the
    strict sense, but a graph without cycles.

    Args:
      leaves: at least two, in the order of time.

    Returns:
      The nodes, leaves first and root last, and the items (parent, left, right).
    """
    return _by_levels(leaves, lambda level: (_last_twice(level), []))


def balanced(leaves: Sequence[Node]) -> tuple[Nodes, Items]:
    """Composes neighbours level by level; of an odd level the last one rises as it is: a tree.

    Args:
      leaves: at least two, in the order of time.

    Returns:
      As `deep`.
    """
    even = lambda level: len(level) // 2 * 2
    return _by_levels(leaves, lambda level: (_pairs(level[: even(level)]), level[even(level) :]))


def shallow(leaves: Sequence[Node]) -> tuple[Nodes, Items]:
    """Composes all leaves at once, under one root.

    Args:
      leaves: at least two, in the order of time.

    Returns:
      As `deep`; an item is the root with two neighbours, paired as `deep` pairs them.
    """
    nodes, root = tuple(leaves), len(leaves)
    children = tuple(range(root))
    top = Node(nodes[0].start, nodes[-1].end, _moments(nodes), children)
    return (*nodes, top), tuple((root, *pair) for pair in _last_twice(children))


FORMS: dict[str, Callable[[Sequence[Node]], tuple[Nodes, Items]]] = {
    "released": deep,
    "shallow": shallow,
    "balanced": balanced,
}
"""How leaves are composed, by the name that `config.trees.form` has for it."""


def _by_levels(
    leaves: Sequence[Node],
    split: Callable[[Sequence[int]], tuple[list[tuple[int, int]], Sequence[int]]],
) -> tuple[Nodes, Items]:
    nodes, items = list(leaves), []
    level: Sequence[int] = range(len(nodes))
    while len(level) > 1:
        pairs, risen = split(level)
        above = []
        for left, right in pairs:
            a, b = nodes[left], nodes[right]
            above.append(len(nodes))
            items.append((len(nodes), left, right))
            nodes.append(Node(a.start, b.end, _moments((a, b)), (left, right)))
        level = [*above, *risen]
    return tuple(nodes), tuple(items)


def _pairs(level: Sequence[int]) -> list[tuple[int, int]]:
    return [(level[k], level[k + 1]) for k in range(0, len(level), 2)]


def _last_twice(level: Sequence[int]) -> list[tuple[int, int]]:
    if len(level) % 2 == 0:
        return _pairs(level)
    return [*_pairs(level[:-1]), (level[-2], level[-1])]


def _moments(nodes: Sequence[Node]) -> Run:
    """The moments of several nodes, each once, in the order of the annotations."""
    return tuple(sorted(set(itertools.chain.from_iterable(node.moments for node in nodes))))


def build_all(videos: Sequence[TimedVideo], form: str = "released") -> Iterator[Tree]:
    """Builds the trees of all videos that have one, in their order; see `build`."""
    return (tree for tree in (build(video, form) for video in videos) if tree is not None)
