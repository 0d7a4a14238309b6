"""Trees of actions: moments of a video composed into nodes, each a span and a text.

The rule by which the moments of one video become a tree:

1. An *adjacent run* can begin at any moment. A later moment joins the run if it starts later than
   the run's last moment, and less than three seconds before or after the end of that moment. Among
   the runs of at least two moments, the one that spans the longest time gives the leaves.
2. If there is no such run: a *separated run* can begin at any moment; every later moment joins it
   that starts after the end of the run's last moment. Among the runs of at least two moments, the
   one with the largest sum of lengths makes a chain: a root over all its moments, whose only child,
   the leaf, is the longest moment.
3. Without either run the video has no tree.

Moments are visited in the order of their start, in `ANNOTATED_ORDER` collections in the order of
the annotations; of equal runs the first is taken. The leaves are then composed by one of `FORMS`.
This rule reproduces every node of the published trees of ActivityNet Captions and Charades-STA. A
file of trees replaces the rule; docs/hover.md has its format.
"""

import dataclasses
import functools
import graphlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Bool, Float, Int

from hlformer_jax.data.annotations.moments import MAX_OVERHANG, AnnotatedMoment, TimedVideo
from hlformer_jax.data.annotations.parsing import (
    as_list,
    as_seconds,
    as_text,
    field,
    read_json_lines,
)
from hlformer_jax.data.annotations.spans import MAX_LENGTHS
from hlformer_jax.data.sources.protocol import DataError
from hlformer_jax.text import shown

MAX_GAP = 3.0
"""Moments are adjacent if fewer seconds lie between the end of one and the start of the next."""

CLEANED = ("activitynet",)
"""Collections whose published node texts have no articles. Their sentences begin with a blank."""

ANNOTATED_ORDER = ("activitynet",)
"""Collections whose published trees visit moments in the order of the annotations, even where that
is not the order of time. (The annotations of other published trees are sorted by start.)"""

_BETWEEN_WORDS = (" a ", " the ", " an ", " both ", " is ", " are ")
_ANYWHERE = ("A ", "The ", "An ", "Both", "Is", "Are")


class Node(NamedTuple):
    """A node of a tree."""

    start: float  # seconds
    end: float  # seconds
    moments: tuple[int, ...]  # numbers of the moments of its text
    children: tuple[int, ...] = ()  # numbers of its children in the tree, in the order of time
    text: str = ""  # text of a file of trees, which replaces the texts of the moments


@dataclasses.dataclass(frozen=True)
class Tree:
    """The tree of a video. A node may have two parents (see `compose_levels`).

    Attributes:
      video: id of the video.
      nodes: the nodes, children before their parents, leaves in the order of time.
      items: the training items, (parent, left child, right child) or (parent, child), as numbers
        of nodes.
    """

    video: str
    nodes: tuple[Node, ...]
    items: tuple[tuple[int, ...], ...]

    @functools.cached_property
    def leaves(self) -> tuple[int, ...]:
        """Numbers of the nodes without children, in the order of time."""
        return tuple(k for k, node in enumerate(self.nodes) if not node.children)

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """All pairs (parent, child)."""
        return tuple((k, child) for k, node in enumerate(self.nodes) for child in node.children)

    @property
    def siblings(self) -> tuple[tuple[int, int], ...]:
        """The pairs (left child, right child) of the training items, each once."""
        return tuple(dict.fromkeys((item[1], item[2]) for item in self.items if len(item) == 3))


# The rule


def build(video: TimedVideo, form: str = "released", collection: str = "") -> Tree | None:
    """Build the tree of a video by the rule in the docstring of this module.

    Args:
      video: a video with its moments in the order of `published.read_published`.
      form: name of the entry of `FORMS` that composes the leaves.
      collection: name of the collection, which decides whether moments are sorted.

    Returns:
      The tree, or None if the moments make no tree.
    """
    if collection in ANNOTATED_ORDER:
        return _build_in_order(video, form)
    numbers = sorted(range(len(video.moments)), key=lambda k: video.moments[k].start)
    moments = tuple(video.moments[k] for k in numbers)
    tree = _build_in_order(video._replace(moments=moments), form)
    if tree is None:
        return None
    nodes = (node._replace(moments=tuple(numbers[k] for k in node.moments)) for node in tree.nodes)
    return dataclasses.replace(tree, nodes=tuple(nodes))


def _build_in_order(video: TimedVideo, form: str) -> Tree | None:
    """Build the tree of a video whose moments are visited in their given order."""
    moments = video.moments

    def length(k: int) -> float:
        return moments[k].end - moments[k].start

    if adjacent := _runs(moments, _continues_adjacent):
        leaves = max(adjacent, key=lambda run: moments[run[-1]].end - moments[run[0]].start)
        nodes = [Node(moments[k].start, moments[k].end, (k,)) for k in leaves]
        return Tree(video.video, *FORMS[form](nodes))
    if separated := _runs(moments, lambda last, moment: moment.start > last.end):
        run = max(separated, key=lambda run: sum(map(length, run)))
        leaf = max(run, key=length)
        chain = (
            Node(moments[leaf].start, moments[leaf].end, (leaf,)),
            Node(moments[run[0]].start, moments[run[-1]].end, run, (0,)),
        )
        return Tree(video.video, chain, ((1, 0),))
    return None


def build_all(
    videos: Sequence[TimedVideo], form: str = "released", collection: str = ""
) -> Iterator[Tree]:
    """Build the trees of all videos that have one, in their order; see `build`."""
    built = (build(video, form, collection) for video in videos)
    return (tree for tree in built if tree is not None)


def _continues_adjacent(last: AnnotatedMoment, moment: AnnotatedMoment) -> bool:
    # Compare the start with rounded bounds, as for the published trees. `start - end < 3` would
    # differ where the gap is three seconds up to a rounding error (such as 5.7 and 8.7).
    adjacent = last.end - MAX_GAP < moment.start < last.end + MAX_GAP
    return adjacent and moment.start > last.start


def _runs(
    moments: Sequence[AnnotatedMoment],
    continues: Callable[[AnnotatedMoment, AnnotatedMoment], bool],
) -> list[tuple[int, ...]]:
    """Return the runs of at least two moments, in the order of the moments that begin them."""
    runs = []
    for first in range(len(moments)):
        run = [first]
        for later in range(first + 1, len(moments)):
            if continues(moments[run[-1]], moments[later]):
                run.append(later)
        if len(run) > 1:
            runs.append(tuple(run))
    return runs


Composed = tuple[tuple[Node, ...], tuple[tuple[int, ...], ...]]
"""The nodes, leaves first and root last, and the training items."""


def compose_levels(leaves: Sequence[Node], share: bool = True) -> Composed:
    """Compose neighbours level by level.

    Args:
      leaves: at least two leaves, in the order of time.
      share: if True, the last two nodes of a level of odd length are composed as well, so that a
        node has two parents: with 3, 5, 6, 7, … leaves the result is a directed graph without
        cycles, not a tree. If False, the last node of such a level moves up to the next one.
    """
    nodes, items = list(leaves), []
    level: Sequence[int] = range(len(nodes))
    while len(level) > 1:
        paired = len(level) if share else len(level) // 2 * 2
        parents = []
        for left, right in _pairs(level[:paired]):
            a, b = nodes[left], nodes[right]
            parents.append(len(nodes))
            items.append((len(nodes), left, right))
            nodes.append(Node(a.start, b.end, _moments((a, b)), (left, right)))
        level = [*parents, *level[paired:]]
    return tuple(nodes), tuple(items)


def compose_shallow(leaves: Sequence[Node]) -> Composed:
    """Compose all leaves under one root; a training item is the root with two neighbours."""
    nodes, root = tuple(leaves), len(leaves)
    children = tuple(range(root))
    top = Node(nodes[0].start, nodes[-1].end, _moments(nodes), children)
    return (*nodes, top), tuple((root, *pair) for pair in _pairs(children))


FORMS: dict[str, Callable[[Sequence[Node]], Composed]] = {
    "released": compose_levels,
    "shallow": compose_shallow,
    "balanced": functools.partial(compose_levels, share=False),
}
"""The functions that compose leaves, by the value of `config.trees.form`."""


def _pairs(level: Sequence[int]) -> list[tuple[int, int]]:
    """Return neighbours in pairs; if their number is odd, the last two are a pair as well."""
    pairs = [(level[k], level[k + 1]) for k in range(0, len(level) - 1, 2)]
    return pairs if len(level) % 2 == 0 else [*pairs, (level[-2], level[-1])]


def _moments(nodes: Sequence[Node]) -> tuple[int, ...]:
    """Return the moments of several nodes, each once, in the order of the annotations."""
    return tuple(sorted(set(itertools.chain.from_iterable(node.moments for node in nodes))))


# Texts


def texts(tree: Tree, moments: tuple[AnnotatedMoment, ...], collection: str = "") -> list[str]:
    """Return the text of every node of a tree.

    A node with a given text has that text, a leaf the sentence of its moment, and a parent the
    joined texts of its children (the parent of a chain those of all its moments). A leaf that two
    children share therefore appears twice in the text of their parent. Texts are joined by a blank.
    In `CLEANED` collections they are joined without one, because sentences there begin with a
    blank, and `without_articles` is applied. At the end, runs of white space become single blanks.

    Args:
      tree: the tree.
      moments: the moments of its video.
      collection: name of the collection.
    """
    cleaned = collection in CLEANED
    raw: list[str] = []
    for node in tree.nodes:
        moment_texts = [moments[k].text for k in node.moments]
        if node.text:
            text = node.text
        elif len(node.moments) == 1 and not node.children:
            text = moment_texts[0]
        else:
            # The root of a chain has the texts of all moments, but only one of them is its child.
            chain = len(node.children) < 2
            parts = moment_texts if chain else [raw[child] for child in node.children]
            text = without_articles("".join(parts)) if cleaned else " ".join(parts)
        raw.append(text)
    return [" ".join(text.split()) for text in raw]


def parent_texts(video: TimedVideo, collection: str = "") -> list[str]:
    """Return the texts of the parents in a video's trees of all `FORMS`, each once.

    Args:
      video: a video with its moments.
      collection: name of the collection, as in `build` and `texts`.
    """
    texts_of_parents: dict[str, None] = {}
    for form in FORMS:
        if (tree := build(video, form, collection)) is not None:
            node_texts = texts(tree, video.moments, collection)
            pairs = zip(node_texts, tree.nodes, strict=True)
            texts_of_parents |= dict.fromkeys(text for text, node in pairs if node.children)
    return list(texts_of_parents)


def without_articles(text: str) -> str:
    """Delete articles, "both", "is" and "are" as in the published texts of ActivityNet Captions.

    The words in lower case are replaced by a blank where blanks surround them. Those that begin
    with a capital are deleted anywhere. As released, this includes the beginnings of longer words:
    "Island" becomes "land". Each word is deleted until none is left before the next one.
    """
    for words, replacement in ((_BETWEEN_WORDS, " "), (_ANYWHERE, "")):
        for word in words:
            while word in text:
                text = text.replace(word, replacement)
    return text


# Files of trees


def tree_to_json(tree: Tree, video: TimedVideo) -> dict[str, Any]:
    """Return a tree as the JSON of a line of a file of trees."""
    nodes = []
    for node in tree.nodes:
        record: dict[str, Any] = {
            "span": [node.start, node.end],
            "moments": [video.moments[k].moment_id for k in node.moments],
        }
        nodes.append(record | ({"text": node.text} if node.text else {}))
    return {"video": tree.video, "nodes": nodes, "subtrees": [list(item) for item in tree.items]}


def read_trees(path: str | Path, videos: Sequence[TimedVideo]) -> list[Tree]:
    """Read a file of trees, in the order of the file.

    Slips are kept, with warnings: nodes that end more than `MAX_OVERHANG` after their video or not
    after their start, and leaves with another text than that of their moments.

    Args:
      path: the file.
      videos: the videos of the split with their moments.

    Raises:
      DataError: if a line is faulty, or its video is not among `videos`.
    """
    path = Path(path)
    by_name = {video.video: video for video in videos}
    trees: dict[str, Tree] = {}
    for where, record in read_json_lines(path):
        name = field(record, "video", where, as_text)
        if name not in by_name:
            raise DataError(
                f"{where}: video {name!r} has no moments in the file of moments; remove the line"
            )
        if name in trees:
            raise DataError(f"{where}: video {name!r} already has a tree; remove one of them")
        trees[name] = tree_from_json(record, by_name[name], where)
    _warn_of_slips(path, trees.values(), by_name)
    return list(trees.values())


def _warn_of_slips(path: Path, trees: Iterable[Tree], videos: Mapping[str, TimedVideo]) -> None:
    """Warn of odd times and of texts that do not belong to the features; see `read_trees`."""
    slips: dict[str, list[str]] = {}
    for tree in trees:
        duration, moments = videos[tree.video][1:]
        for node in tree.nodes:
            span = f"a node of video {tree.video!r} from {node.start:g} to {node.end:g} s"
            sentences = " ".join(moments[k].text for k in node.moments).split()
            if node.end > duration + MAX_OVERHANG:
                slips.setdefault(
                    "ends after its video; only frames that exist are read", []
                ).append(span)
            if node.end <= node.start:
                slips.setdefault("does not end after its start", []).append(span)
            if node.text and not node.children and node.text.split() != sentences:
                slips.setdefault(
                    "is a leaf whose text differs from its moments; its features are of these", []
                ).append(span)
    for what, nodes in slips.items():
        logging.warning("%s: %s %s (nodes like this: %d)", path, nodes[0], what, len(nodes))


def tree_from_json(record: Mapping[str, Any], video: TimedVideo, where: str) -> Tree:
    """Parse a line of a file of trees.

    Nodes are sorted: children before parents, and leaves by their times. The line must have a
    single root, and list children in the order of their starts.

    Args:
      record: the JSON object of the line.
      video: its video with its moments.
      where: the place of the line in error messages.

    Raises:
      DataError: if the line is faulty.
    """
    places = {moment.moment_id: k for k, moment in enumerate(video.moments)}
    nodes = [
        _node(entry, places, video, f"{where}, node {k}")
        for k, entry in enumerate(field(record, "nodes", where, as_list))
    ]
    items = [
        _item(entry, len(nodes), f"{where}, subtree {k}")
        for k, entry in enumerate(field(record, "subtrees", where, as_list))
    ]
    if not items:
        raise DataError(f"{where}: has no subtree; remove the line")
    children: list[dict[int, None]] = [{} for _ in nodes]
    for parent, *node_children in items:
        for child in node_children:
            children[parent][child] = None
            _check_spans(nodes, parent, child, where)
    _check_order(nodes, [*items, *((k, *listed) for k, listed in enumerate(children))], where)
    height = [0] * len(nodes)
    try:
        for k in graphlib.TopologicalSorter(dict(enumerate(children))).static_order():
            height[k] = 1 + max((height[child] for child in children[k]), default=-1)
    except graphlib.CycleError as error:
        raise DataError(
            f"{where}: node {min(error.args[1])} is its own descendant; a tree must not have cycles"
        ) from None
    roots = sorted(set(range(len(nodes))) - set(itertools.chain.from_iterable(children)))
    if len(roots) > 1:
        raise DataError(
            f"{where}: the nodes {', '.join(map(str, roots))} of video {video.video!r} have no"
            " parent; only the root of the tree may have none: add subtrees, or remove nodes"
        )
    # Leaves by their times, other nodes as listed.
    times = [node[:2] if height[k] == 0 else () for k, node in enumerate(nodes)]
    order = sorted(range(len(nodes)), key=lambda k: (height[k], times[k], k))
    number = {old: new for new, old in enumerate(order)}
    ordered = tuple(
        nodes[old]._replace(children=tuple(number[child] for child in children[old]))
        for old in order
    )
    return Tree(video.video, ordered, tuple(tuple(number[node] for node in item) for item in items))


def _node(entry: Any, places: Mapping[str, int], video: TimedVideo, where: str) -> Node:
    span = field(entry, "span", where, as_list, length=2)
    start, end = as_seconds(span[0], "the start", where), as_seconds(span[1], "the end", where)
    # The moments of the video were checked before; some published ones end late.
    latest = max(MAX_LENGTHS * video.duration + MAX_OVERHANG, *(m.end for m in video.moments))
    if start > video.duration + MAX_OVERHANG or end > latest:
        raise DataError(
            f"{where}: spans {start:g} to {end:g} s, but its video {video.video!r} ends at"
            f" {video.duration:g} s; correct one of them (times are in seconds)"
        )
    moments = field(entry, "moments", where, as_list)
    if not moments:
        raise DataError(f"{where}: names no moment, so it has no word features; name one")
    for name in moments:
        if not isinstance(name, str) or name not in places:
            raise DataError(
                f"{where}: moment {shown(name)} does not belong to its video; correct it"
            )
    if repeated := [name for k, name in enumerate(moments) if name in moments[:k]]:
        raise DataError(f"{where}: names moment {repeated[0]!r} twice; remove one of them")
    text = field(entry, "text", where, as_text) if "text" in entry else ""
    return Node(start, end, tuple(places[name] for name in moments), (), text)


def _item(entry: Any, num_nodes: int, where: str) -> tuple[int, ...]:
    item = as_list(entry, "it", where)
    are_numbers = all(isinstance(k, int) and not isinstance(k, bool) for k in item)
    if len(item) not in (2, 3) or not are_numbers or len(set(item)) < len(item):
        raise DataError(f"{where}: is {shown(item)}; it must be [parent, left, right] or two nodes")
    if not all(0 <= k < num_nodes for k in item):
        raise DataError(f"{where}: is {shown(item)}; nodes must be from 0 to {num_nodes - 1}")
    return tuple(item)


def _check_order(nodes: Sequence[Node], families: Iterable[tuple[int, ...]], where: str) -> None:
    """Refuse children that are not in the order of their starts.

    Args:
      nodes: the nodes.
      families: numbers of parents, each with its children in the order of the file.
      where: the place of the line in error messages.
    """
    for parent, *children in families:
        for left, right in itertools.pairwise(children):
            if nodes[right].start < nodes[left].start:
                raise DataError(
                    f"{where}: the children {left} and {right} of node {parent} start at"
                    f" {nodes[left].start:g} and {nodes[right].start:g} s; list the earlier one"
                    " first"
                )


def _check_spans(nodes: Sequence[Node], parent: int, child: int, where: str) -> None:
    """Refuse a child that does not overlap its parent; warn if it exceeds the parent by `MAX_GAP`.

    By the rule, the last moment of a run may end before an earlier one does, so that a child can
    exceed its parent by less than `MAX_GAP`, or by more if a moment ends before its start.
    """
    outer, inner = sorted(nodes[parent][:2]), sorted(nodes[child][:2])
    spans = (
        f"{where}: node {child} spans {inner[0]:g} to {inner[1]:g} s, but its parent"
        f" {parent} {outer[0]:g} to {outer[1]:g} s"
    )
    if inner[1] < outer[0] or inner[0] > outer[1]:
        raise DataError(f"{spans}; correct one of them")
    if inner[0] < outer[0] - MAX_GAP or inner[1] > outer[1] + MAX_GAP:
        logging.warning("%s", spans)


# The rows of a node


def row_range(
    span: Float[np.ndarray, "U 2"],
    duration: Float[np.ndarray, " U"],
    num_rows: Int[np.ndarray, " U"],
) -> Int[np.ndarray, "U 2"]:
    """Return the first and the last feature row of nodes, int32.

    Args:
      span: start and end of each node, in seconds.
      duration: length of each node's video, in seconds.
      num_rows: number of feature rows of each node's video, at least 1.
    """
    ends = np.stack([span[:, 0], span.max(axis=1)], axis=1)  # a few nodes end before they start
    # Multiply before dividing: at one frame per second, second k must be row k, not k - 1.
    rows = np.floor(ends * num_rows[:, None] / duration[:, None]).astype(np.int32)
    return np.clip(rows, 0, num_rows[:, None].astype(np.int32) - 1)


def word_rows(
    moments: Sequence[Sequence[int]], counts: Int[np.ndarray, " captions"], max_words: int
) -> Int[np.ndarray, "U W"]:
    """Return the rows of a video's word features that each node reads, int32; -1 is padding.

    Args:
      moments: for each node, the numbers of the moments whose words it reads.
      counts: the number of words of each moment of the video.
      max_words: W; further words are cut.
    """
    starts = np.cumsum(counts) - counts
    rows = np.full((len(moments), max_words), -1, np.int32)
    for row, numbers in zip(rows, moments, strict=True):
        words = np.concatenate([starts[k] + np.arange(counts[k]) for k in numbers])[:max_words]
        row[: len(words)] = words
    return rows


# All nodes of a split


class Pool(NamedTuple):
    """The trees of a split, with all nodes numbered tree by tree."""

    videos: tuple[str, ...]  # id of every tree's video
    texts: tuple[str, ...]  # text of every node
    tree: Int[np.ndarray, " U"]  # number of every node's tree
    node: Int[np.ndarray, " U"]  # number of every node in its tree, leaves first and root last
    leaves: Int[np.ndarray, " U"]  # number of leaves of every node's tree
    level: Int[np.ndarray, " U"]  # height above the leaves; 0 for a leaf
    span: Float[np.ndarray, "U 2"]  # seconds
    edges: Int[np.ndarray, "R 2"]  # pairs (parent, child)
    siblings: Int[np.ndarray, "S 2"]  # pairs (left, right) of children of one parent
    ancestry: Int[np.ndarray, "pairs 2"]  # all pairs (node, descendant), sorted
    # Training items: parent, left and right child. An only child is given twice.
    subtrees: Int[np.ndarray, "B 3"]
    pair: Bool[np.ndarray, " B"]  # whether each item has two children

    @property
    def names(self) -> tuple[str, ...]:
        """Unique names of the nodes, VIDEO#NUMBER."""
        pairs = zip(self.tree.tolist(), self.node.tolist(), strict=True)
        return tuple(f"{self.videos[tree]}#{node}" for tree, node in pairs)

    def descends(self, nodes: Int[np.ndarray, " rows"]) -> Bool[np.ndarray, "rows rows"]:
        """Return a matrix that tells which nodes descend from which.

        Args:
          nodes: numbers of nodes; -1 is padding.

        Returns:
          Entry (u, w) is True if `nodes[w]` is a descendant of `nodes[u]`; False for padding.
        """
        tree = np.where(nodes >= 0, self.tree[np.maximum(nodes, 0)], -1 - np.arange(len(nodes)))
        row, column = np.nonzero(tree[:, None] == tree[None])
        codes = self.ancestry[:, 0] * len(self.tree) + self.ancestry[:, 1]
        descends = np.zeros((len(nodes), len(nodes)), bool)
        code = nodes[row].astype(np.int64) * len(self.tree) + nodes[column]
        place = np.minimum(np.searchsorted(codes, code), max(len(codes) - 1, 0))
        if len(codes):
            descends[row, column] = codes[place] == code
        return descends


def make_pool(
    trees: Sequence[Tree],
    videos: Sequence[TimedVideo],
    collection: str = "",
) -> Pool:
    """Number the nodes of several trees consecutively.

    Args:
      trees: the trees.
      videos: the video of each tree, with its moments.
      collection: name of the collection, as in `texts`.
    """
    sizes = [len(tree.nodes) for tree in trees]
    starts = np.cumsum([0, *sizes])[:-1].tolist()
    node_texts = (
        texts(tree, video.moments, collection) for tree, video in zip(trees, videos, strict=True)
    )

    def rows(width: int, get_rows: Callable[[Tree], Iterable[tuple[int, ...]]]) -> np.ndarray:
        numbered = zip(starts, trees, strict=True)
        values = [[start + k for k in row] for start, tree in numbered for row in get_rows(tree)]
        return np.asarray(values, np.int64).reshape(-1, width)

    leaves, level, ancestry = [], [], []
    for start, tree in zip(starts, trees, strict=True):
        height: list[int] = []
        descendants: list[frozenset[int]] = []
        for k, node in enumerate(tree.nodes):
            under = node.children
            height.append(1 + max((height[child] for child in under), default=-1))
            descendants.append(frozenset(under).union(*(descendants[child] for child in under)))
            ancestry += [(start + k, start + child) for child in sorted(descendants[k])]
        leaves += [len(tree.leaves)] * len(tree.nodes)
        level += height

    def integers(values: Sequence[int]) -> np.ndarray:
        return np.asarray(values, np.int32)

    return Pool(
        videos=tuple(tree.video for tree in trees),
        texts=tuple(itertools.chain.from_iterable(node_texts)),
        tree=np.repeat(np.arange(len(trees), dtype=np.int32), sizes),
        node=integers([k for size in sizes for k in range(size)]),
        leaves=integers(leaves),
        level=integers(level),
        span=np.asarray([node[:2] for tree in trees for node in tree.nodes], float).reshape(-1, 2),
        edges=rows(2, lambda tree: tree.edges),
        siblings=rows(2, lambda tree: tree.siblings),
        ancestry=np.asarray(ancestry, np.int64).reshape(-1, 2),
        subtrees=rows(3, lambda tree: ((item[0], item[1], item[-1]) for item in tree.items)),
        pair=np.fromiter((len(item) == 3 for tree in trees for item in tree.items), bool),
    )
