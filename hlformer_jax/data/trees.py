"""Trees of actions: moments of a video composed into nodes, each a span and a text.

The rule by which the moments of one video become a tree:

1. An *adjacent run* begins at any moment. A later moment joins it when it starts within less than
   three seconds of the run's last end, before or after, and later than the run's last start. Of the
   runs of at least two moments, the one that spans the longest time gives the leaves.
2. Without such a run: a *separated run* takes every later moment that starts after its last end. Of
   those of at least two moments, the one whose moments last longest together gives a root over all
   of them, and its longest moment is the only leaf: a chain.
3. Without either there is no tree.

Of equal runs the first one counts, and moments are taken in their order. The leaves are then
composed (see `FORMS`). This is how the published trees of ActivityNet Captions and Charades-STA
were made; their nodes are reproduced one by one. A file of trees stands in for the rule where it is
there; docs/hover.md has its format.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Bool, Float, Int

from hlformer_jax import files
from hlformer_jax.data.annotations import (
    AnnotatedMoment,
    TimedVideo,
    as_list,
    as_seconds,
    list_field,
    read_json_lines,
    shown,
    text_field,
    write_json_lines,
)
from hlformer_jax.data.source import DataError

MAX_GAP = 3.0
"""Seconds between the end of a moment and the start of the next, below which they are adjacent."""

PARENT_TEXTS = ("released", "joined")
"""How a parent's text is made; see `texts`."""

CLEANED = ("activitynet",)
"""Collections whose published texts lost their articles; the sentences there begin with a blank."""

_BETWEEN_WORDS = (" a ", " the ", " an ", " both ", " is ", " are ")
_ANYWHERE = ("A ", "The ", "An ", "Both", "Is", "Are")

Run = tuple[int, ...]
"""Numbers of moments of a video, rising."""


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
    """The tree of a video; a node may have two parents (see `compose_levels`).

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


# The rule


def build(video: TimedVideo, form: str = "released") -> Tree | None:
    """Builds the tree of a video.

    Args:
      video: its moments, in the order of the annotations (of Charades-STA, by start).
      form: how leaves are composed, one of `FORMS`.

    Returns:
      The tree, its leaves first and its root last; None where the moments make none.
    """
    moments = video.moments
    if adjacent := _runs(moments, _continues_adjacent):
        leaves = max(adjacent, key=lambda run: moments[run[-1]].end - moments[run[0]].start)
        nodes = [Node(moments[k].start, moments[k].end, (k,)) for k in leaves]
        return Tree(video.video, *FORMS[form](nodes))
    if separated := _runs(moments, _continues_separated):
        length = lambda k: moments[k].end - moments[k].start
        run = max(separated, key=lambda run: sum(map(length, run)))
        leaf = max(run, key=length)
        nodes = [
            Node(moments[leaf].start, moments[leaf].end, (leaf,)),
            Node(moments[run[0]].start, moments[run[-1]].end, run, (0,)),
        ]
        return Tree(video.video, tuple(nodes), ((1, 0),))
    return None


def build_all(videos: Sequence[TimedVideo], form: str = "released") -> Iterator[Tree]:
    """Builds the trees of all videos that have one, in their order; see `build`."""
    return (tree for tree in (build(video, form) for video in videos) if tree is not None)


def _continues_adjacent(last: AnnotatedMoment, moment: AnnotatedMoment) -> bool:
    # The bounds are rounded, not the gap, which decides where it is three seconds to a rounding
    # error (5.7 and 8.7); so the published trees have it.
    near = last.end - MAX_GAP < moment.start < last.end + MAX_GAP
    return near and moment.start > last.start


def _continues_separated(last: AnnotatedMoment, moment: AnnotatedMoment) -> bool:
    return moment.start > last.end


def _runs(
    moments: Sequence[AnnotatedMoment],
    continues: Callable[[AnnotatedMoment, AnnotatedMoment], bool],
) -> list[Run]:
    """All runs of at least two moments, one from each moment that begins one, in that order."""
    runs = []
    for first in range(len(moments)):
        run = [first]
        for later in range(first + 1, len(moments)):
            if continues(moments[run[-1]], moments[later]):
                run.append(later)
        if len(run) > 1:
            runs.append(tuple(run))
    return runs


Nodes = tuple[Node, ...]
Items = tuple[tuple[int, ...], ...]


def compose_levels(leaves: Sequence[Node], share: bool = True) -> tuple[Nodes, Items]:
    """Composes neighbours level by level.

    Args:
      leaves: at least two, in the order of time.
      share: of an odd level, whether the last two are a pair as well, so that a node has two
        parents (with 3, 5, 6, 7, … leaves this is no tree in the strict sense, but a graph without
        cycles); or the last one rises as it is.

    Returns:
      The nodes, leaves first and root last, and the items (parent, left, right).
    """
    nodes, items = list(leaves), []
    level: Sequence[int] = range(len(nodes))
    while len(level) > 1:
        whole = len(level) if share else len(level) // 2 * 2
        above = []
        for left, right in _pairs(level[:whole]):
            a, b = nodes[left], nodes[right]
            above.append(len(nodes))
            items.append((len(nodes), left, right))
            nodes.append(Node(a.start, b.end, _moments((a, b)), (left, right)))
        level = [*above, *level[whole:]]
    return tuple(nodes), tuple(items)


def compose_shallow(leaves: Sequence[Node]) -> tuple[Nodes, Items]:
    """Composes all leaves at once, under one root; an item is the root with two neighbours."""
    nodes, root = tuple(leaves), len(leaves)
    children = tuple(range(root))
    top = Node(nodes[0].start, nodes[-1].end, _moments(nodes), children)
    return (*nodes, top), tuple((root, *pair) for pair in _pairs(children))


FORMS: dict[str, Callable[[Sequence[Node]], tuple[Nodes, Items]]] = {
    "released": compose_levels,
    "shallow": compose_shallow,
    "balanced": functools.partial(compose_levels, share=False),
}
"""How leaves are composed, by the name that `config.trees.form` has for it."""


def _pairs(level: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbours in pairs; of an odd number the last two are a pair as well."""
    pairs = [(level[k], level[k + 1]) for k in range(0, len(level) - 1, 2)]
    return pairs if len(level) % 2 == 0 else [*pairs, (level[-2], level[-1])]


def _moments(nodes: Sequence[Node]) -> Run:
    """The moments of several nodes, each once, in the order of the annotations."""
    return tuple(sorted(set(itertools.chain.from_iterable(node.moments for node in nodes))))


# Texts


def texts(
    tree: Tree, moments: tuple[AnnotatedMoment, ...], form: str = "released", collection: str = ""
) -> list[str]:
    """The text of every node of a tree.

    Args:
      tree: the tree.
      moments: those of its video.
      form: "released": the texts of the children one after another, so that a leaf which two of
        them share stands there twice; of `CLEANED` collections without a blank between, then by
        `without_articles`. "joined": the sentences of the moments, each once, a blank between.
      collection: the collection of the moments.

    Returns:
      The texts; of a leaf its sentence, and where a node has a text of its own, that. White space
      becomes single blanks, at the very end.

    Raises:
      ValueError: when there is no such form.
    """
    if form not in PARENT_TEXTS:
        raise ValueError(f"the text of a parent is {' or '.join(PARENT_TEXTS)}, not {form!r}")
    cleaned = collection in CLEANED
    raw: list[str] = []
    for node in tree.nodes:
        own = [moments[k].text for k in node.moments]
        if node.text:
            text = node.text
        elif len(node.moments) == 1 and not node.children:
            text = own[0]
        elif form == "joined":
            text = " ".join(sentence.strip() for sentence in own)
        else:
            # A chain tells all its moments, and only one of them is its child.
            chain = len(node.children) < 2
            parts = own if chain else [raw[child] for child in node.children]
            text = without_articles("".join(parts)) if cleaned else " ".join(parts)
        raw.append(text)
    return [" ".join(text.split()) for text in raw]


def without_articles(text: str) -> str:
    """Deletes articles and some verbs as the published texts of ActivityNet Captions lost them.

    It shortens long texts and, as released, also cuts into words: "Island" becomes "land".

    Args:
      text: the text.

    Returns:
      The text without any of " a ", " the ", " an ", " both ", " is ", " are " (a blank is left),
      nor of "A ", "The ", "An ", "Both", "Is", "Are", wherever they stood; each is deleted until
      none is left, in this order.
    """
    for words, left in ((_BETWEEN_WORDS, " "), (_ANYWHERE, "")):
        for word in words:
            while word in text:
                text = text.replace(word, left)
    return text


# Files of trees


def write_trees(
    path: Path, trees: Iterable[tuple[Tree, TimedVideo]], replace: files.Replace = "any"
) -> None:
    """Writes trees, each beside the video of its moments, whole or not at all.

    Raises:
      OSError: when the file cannot be written.
    """
    write_json_lines(path, (tree_to_json(tree, video) for tree, video in trees), replace)


def tree_to_json(tree: Tree, video: TimedVideo) -> dict[str, Any]:
    """A line of a file of trees."""
    nodes = []
    for node in tree.nodes:
        record: dict[str, Any] = {
            "span": [node.start, node.end],
            "moments": [video.moments[k].moment_id for k in node.moments],
        }
        nodes.append(record | ({"text": node.text} if node.text else {}))
    return {"video": tree.video, "nodes": nodes, "subtrees": [list(item) for item in tree.items]}


def read_trees(path: Path, videos: Sequence[TimedVideo]) -> list[Tree]:
    """Reads trees.

    Args:
      path: the file.
      videos: the videos with their moments.

    Returns:
      The trees, in the order of the file.

    Raises:
      DataError: at the first line that is wrong; names it, and says what is.
      OSError: when the file cannot be read.
    """
    known = {video.video: video for video in videos}
    trees: dict[str, Tree] = {}
    for where, record in read_json_lines(path):
        name = text_field(record, "video", where)
        if name not in known:
            raise DataError(f"{where}: video {name!r} has no moments beside this file; remove it")
        if name in trees:
            raise DataError(f"{where}: video {name!r} has a tree already; remove one")
        trees[name] = tree_from_json(record, known[name], where)
    return list(trees.values())


def tree_from_json(record: Mapping[str, Any], video: TimedVideo, where: str) -> Tree:
    """The tree of a line of a file of trees.

    Args:
      record: the line, parsed.
      video: the video, with its moments.
      where: where it stands, for messages.

    Returns:
      The tree; nodes are ordered anew, children before parents and leaves by their times.

    Raises:
      DataError: when it is no tree, or its nodes are not what they should be.
    """
    places = {moment.moment_id: k for k, moment in enumerate(video.moments)}
    nodes = [
        _node(entry, places, f"{where}, node {k}")
        for k, entry in enumerate(list_field(record, "nodes", where))
    ]
    items = [
        _item(entry, len(nodes), f"{where}, subtree {k}")
        for k, entry in enumerate(list_field(record, "subtrees", where))
    ]
    if not items:
        raise DataError(f"{where}: has no subtree; remove the line")
    children: list[dict[int, None]] = [{} for _ in nodes]
    for parent, *below in items:
        for child in below:
            children[parent][child] = None
            _check_spans(nodes, parent, child, where)
    order = _bottom_up(nodes, children, where)
    number = {old: new for new, old in enumerate(order)}
    ordered = tuple(
        nodes[old]._replace(children=tuple(number[child] for child in children[old]))
        for old in order
    )
    return Tree(video.video, ordered, tuple(tuple(number[node] for node in item) for item in items))


def _check_spans(nodes: Sequence[Node], parent: int, child: int, where: str) -> None:
    """Refuses a child apart from its parent, and warns of one that juts out.

    A run may end before its last moment but one does, by less than `MAX_GAP`; annotations with a
    moment that ends before it starts give more.
    """
    outer, inner = sorted(nodes[parent][:2]), sorted(nodes[child][:2])
    spans = (
        f"{where}: node {child} spans {inner[0]:g} to {inner[1]:g} s, and its parent {parent}"
        f" {outer[0]:g} to {outer[1]:g} s"
    )
    if inner[1] < outer[0] or inner[0] > outer[1]:
        raise DataError(f"{spans}; correct one")
    if inner[0] < outer[0] - MAX_GAP or inner[1] > outer[1] + MAX_GAP:
        logging.warning("%s", spans)


def _node(entry: Any, places: Mapping[str, int], where: str) -> Node:
    start, end = list_field(entry, "span", where, 2)
    start, end = as_seconds(start, "the start", where), as_seconds(end, "the end", where)
    moments = []
    for name in list_field(entry, "moments", where):
        if not isinstance(name, str) or name not in places:
            raise DataError(f"{where}: moment {shown(name)} is not one of its video; correct it")
        moments.append(places[name])
    if not moments:
        raise DataError(f"{where}: names no moment, hence no word features; name one")
    text = text_field(entry, "text", where) if "text" in entry else ""
    return Node(start, end, tuple(moments), (), text)


def _item(entry: Any, num_nodes: int, where: str) -> tuple[int, ...]:
    item = as_list(entry, "it", where)
    whole = all(isinstance(k, int) and not isinstance(k, bool) for k in item)
    if len(item) not in (2, 3) or not whole or len(set(item)) < len(item):
        raise DataError(f"{where}: is {shown(item)}; it must be [parent, left, right] or two nodes")
    if not all(0 <= k < num_nodes for k in item):
        raise DataError(f"{where}: is {shown(item)}, and there are nodes 0 to {num_nodes - 1}")
    return tuple(item)


def _bottom_up(
    nodes: Sequence[Node], children: Sequence[Mapping[int, None]], where: str
) -> list[int]:
    """An order of the nodes with children before parents, and leaves first, by their times."""
    order = sorted(
        (k for k in range(len(nodes)) if not children[k]),
        key=lambda k: (nodes[k].start, nodes[k].end, k),
    )
    left = [k for k in range(len(nodes)) if children[k]]
    while left:
        done = set(order)
        ready = [k for k in left if done.issuperset(children[k])]
        if not ready:
            raise DataError(f"{where}: node {left[0]} is below itself; a tree has no circle")
        order += ready
        left = [k for k in left if k not in set(ready)]
    return order


# The rows of a node


def row_range(
    span: Float[np.ndarray, "U 2"],
    duration: Float[np.ndarray, " U"],
    num_rows: Int[np.ndarray, " U"],
) -> Int[np.ndarray, "U 2"]:
    """The first and the last feature row of nodes.

    Args:
      span: seconds at which each begins and ends, inside of its video.
      duration: length of each one's video in seconds.
      num_rows: feature rows of each one's video, at least 1.

    Returns:
      Rows of the videos, int32; the first is not after the last.
    """
    ends = np.stack([span[:, 0], span.max(axis=1)], axis=1)  # a few end before they start
    # The product first: a second at a frame a second is then its frame, and not the one before.
    rows = np.floor(ends * num_rows[:, None] / duration[:, None]).astype(np.int32)
    return np.clip(rows, 0, num_rows[:, None].astype(np.int32) - 1)


def word_rows(
    moments: Sequence[Sequence[int]], counts: Int[np.ndarray, " captions"], max_words: int
) -> Int[np.ndarray, "U W"]:
    """The rows of its video's word features that each node of one video reads.

    Args:
      moments: for each node, the numbers of its moments.
      counts: rows of each moment of the video; they lie one after another.
      max_words: W; the words of a node are cut to it.

    Returns:
      Rows of the video's words, int32, those of a node's moments one after another; -1 where
      padded.
    """
    starts = np.cumsum(counts) - counts
    rows = np.full((len(moments), max_words), -1, np.int32)
    for row, own in zip(rows, moments, strict=True):
        words = np.concatenate([starts[k] + np.arange(counts[k]) for k in own])[:max_words]
        row[: len(words)] = words
    return rows


# All nodes of a split


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


def make_pool(
    trees: Sequence[Tree],
    videos: Sequence[TimedVideo],
    parent_text: str = "released",
    collection: str = "",
) -> Pool:
    """Numbers the nodes of trees through, those of a tree one after another.

    Args:
      trees: the trees.
      videos: the video of each, with its moments.
      parent_text: how the text of a parent is made; see `texts`.
      collection: the collection of the moments; likewise.

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


def _rows(rows: Iterable[tuple[int, ...]], width: int) -> Int[np.ndarray, "rows width"]:
    return np.asarray(list(rows), np.int64).reshape(-1, width)
