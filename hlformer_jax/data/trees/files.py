"""The files {train,val,test}.moments.jsonl and {train,val,test}.trees.jsonl: a video a line.

    {"video": "v_a", "duration": 82.7, "moments":
      [{"id": "v_a#enc#0", "start": 0.8, "end": 19.9, "text": "A woman …"}, …]}

    {"video": "v_a", "nodes": [{"span": [0.8, 19.9], "moments": ["v_a#enc#0"]}, …],
     "subtrees": [[2, 0, 1], …]}

Trees are built from moments (`rule`); a file of them stands in for the rule where it is there. A
node names its moments, whose sentences make its text, and may have a "text" of its own; a subtree
names a parent and its two children, or its only one, by their places among the nodes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from hlformer_jax import files
from hlformer_jax.data.source import DataError
from hlformer_jax.data.trees.lines import (
    field,
    list_of,
    parse_object,
    read_text,
    seconds_of,
    shown,
    split_lines,
    text_of,
)
from hlformer_jax.data.trees.moment import AnnotatedMoment, TimedVideo
from hlformer_jax.data.trees.rule import NEAR
from hlformer_jax.data.trees.tree import Node, Tree

OUTSIDE = 1.0
"""Seconds that a moment may end after its video without a warning: lengths are rounded."""


def write_moments(path: Path, videos: Iterable[TimedVideo]) -> None:
    """Writes the moments of videos, whole or not at all.

    Raises:
      OSError: when the file cannot be written.
    """
    _write(path, map(as_json, videos))


def as_json(video: TimedVideo) -> dict[str, Any]:
    """A line of a file of moments."""
    moments = [
        {"id": moment.moment_id, "start": moment.start, "end": moment.end, "text": moment.text}
        for moment in video.moments
    ]
    return {"video": video.video, "duration": video.duration, "moments": moments}


def read_moments(path: Path) -> list[tuple[TimedVideo, int]]:
    """Reads the moments of videos.

    Args:
      path: the file.

    Returns:
      The videos, each with its line, from 1.

    Raises:
      DataError: at the first line that is wrong; names it, and says what is.
      OSError: when the file cannot be read.
    """
    found: dict[str, tuple[TimedVideo, int]] = {}
    lines: dict[str, int] = {}
    odd: dict[str, list[str]] = {"ends after its video": [], "does not end after its start": []}
    for number, line in enumerate(split_lines(path, read_text(path)), 1):
        where = f"{path}:{number}"
        video = from_json(parse_object(line, where), where)
        if video.video in found:
            raise DataError(
                f"{where}: video {video.video!r} was in line {found[video.video][1]}; give all its"
                " moments in one line"
            )
        found[video.video] = video, number
        for moment in video.moments:
            name = moment.moment_id
            if name in lines:
                raise DataError(f"{where}: id {name!r} was in line {lines[name]}; rename one")
            lines[name] = number
            if moment.start > video.duration:
                raise DataError(
                    f"{where}: moment {name!r} begins at {moment.start:g} s, and its video ends at"
                    f" {video.duration:g} s; correct one"
                )
            if moment.end > video.duration + OUTSIDE:
                odd["ends after its video"].append(f"{where}: moment {name!r}")
            if moment.end <= moment.start:
                odd["does not end after its start"].append(f"{where}: moment {name!r}")
    for what, moments in odd.items():
        if moments:
            also = f", as do {len(moments) - 1} more" if len(moments) > 1 else ""
            logging.warning("%s %s%s; it reads the frames that there are", moments[0], what, also)
    return list(found.values())


def from_json(record: Mapping[str, Any], where: str) -> TimedVideo:
    """The video of a line of a file of moments.

    Args:
      record: the line, parsed.
      where: where it stands, for messages.

    Returns:
      The video, with at least one moment.

    Raises:
      DataError: when something is missing or is not what it should be.
    """
    name = text_of(field(record, "video", where), "video", where)
    duration = seconds_of(field(record, "duration", where), "duration", where)
    if duration == 0:
        raise DataError(f"{where}: duration is 0; give the length of the video in seconds")
    moments = []
    for entry in list_of(field(record, "moments", where), "moments", where):
        if not isinstance(entry, dict):
            raise DataError(f"{where}: a moment is {shown(entry)}; it must be an object")
        moments.append(
            AnnotatedMoment(
                text_of(field(entry, "id", where), "id", where),
                seconds_of(field(entry, "start", where), "start", where),
                seconds_of(field(entry, "end", where), "end", where),
                text_of(field(entry, "text", where), "text", where, one_line=False),
            )
        )
    if not moments:
        raise DataError(f"{where}: video {name!r} has no moment; remove the line")
    return TimedVideo(name, duration, tuple(moments))


def write_trees(path: Path, trees: Iterable[tuple[Tree, TimedVideo]]) -> None:
    """Writes trees, each beside the video of its moments, whole or not at all.

    Raises:
      OSError: when the file cannot be written.
    """
    _write(path, (tree_as_json(tree, video) for tree, video in trees))


def tree_as_json(tree: Tree, video: TimedVideo) -> dict[str, Any]:
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
    found: dict[str, Tree] = {}
    for number, line in enumerate(split_lines(path, read_text(path)), 1):
        where = f"{path}:{number}"
        record = parse_object(line, where)
        name = text_of(field(record, "video", where), "video", where)
        if name not in known:
            raise DataError(f"{where}: video {name!r} has no moments beside this file; remove it")
        if name in found:
            raise DataError(f"{where}: video {name!r} has a tree already; remove one")
        found[name] = tree_from_json(record, known[name], where)
    return list(found.values())


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
        for k, entry in enumerate(list_of(field(record, "nodes", where), "nodes", where))
    ]
    items = [
        _item(entry, len(nodes), f"{where}, subtree {k}")
        for k, entry in enumerate(list_of(field(record, "subtrees", where), "subtrees", where))
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

    A run may end before its last moment but one does, by less than `NEAR`; annotations with a
    moment that ends before it starts give more.
    """
    outer, inner = sorted(nodes[parent][:2]), sorted(nodes[child][:2])
    spans = (
        f"{where}: node {child} spans {inner[0]:g} to {inner[1]:g} s, and its parent {parent}"
        f" {outer[0]:g} to {outer[1]:g} s"
    )
    if inner[1] < outer[0] or inner[0] > outer[1]:
        raise DataError(f"{spans}; correct one")
    if inner[0] < outer[0] - NEAR or inner[1] > outer[1] + NEAR:
        logging.warning("%s", spans)


def _write(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    lines = (json.dumps(record, ensure_ascii=False) for record in records)
    files.write_bytes(path, "".join(f"{line}\n" for line in lines).encode())


def _node(entry: Any, places: Mapping[str, int], where: str) -> Node:
    if not isinstance(entry, dict):
        raise DataError(f"{where}: is {shown(entry)}; it must be an object")
    start, end = list_of(field(entry, "span", where), "span", where, 2)
    start, end = seconds_of(start, "the start", where), seconds_of(end, "the end", where)
    moments = []
    for name in list_of(field(entry, "moments", where), "moments", where):
        if not isinstance(name, str) or name not in places:
            raise DataError(f"{where}: moment {shown(name)} is not one of its video; correct it")
        moments.append(places[name])
    if not moments:
        raise DataError(f"{where}: names no moment, hence no word features; name one")
    text = text_of(entry["text"], "text", where) if "text" in entry else ""
    return Node(start, end, tuple(moments), (), text)


def _item(entry: Any, num_nodes: int, where: str) -> tuple[int, ...]:
    item = list_of(entry, "it", where)
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
