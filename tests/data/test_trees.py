"""Trees of moments: the rule that makes them, their texts and files, and the pool of nodes."""

import json
import math
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from hlformer_jax.data import trees
from hlformer_jax.data.annotations.moments import AnnotatedMoment, TimedVideo
from hlformer_jax.data.annotations.published import read_published
from hlformer_jax.data.sources.protocol import DataError
from hlformer_jax.data.trees import (
    FORMS,
    Tree,
    build,
    build_all,
    make_pool,
    texts,
    without_articles,
)

# The rule


PUBLISHED = Path(os.environ.get("HOVER_DATA", ""))


def video(*spans):
    """Return a video with moments of these times."""
    moments = (AnnotatedMoment(f"v#{k}", a, b, f"does {k}.") for k, (a, b) in enumerate(spans))
    return TimedVideo("v", 100.0, tuple(moments))


def adjacent_moments(count):
    """Return a video with moments of ten seconds without a gap."""
    return video(*((10.0 * k, 10.0 * k + 10) for k in range(count)))


def spans(tree):
    """Return the times of the nodes of a tree."""
    return [(node.start, node.end) for node in tree.nodes]


FIVE = ((5, 0, 1), (6, 2, 3), (7, 3, 4), (8, 5, 6), (9, 6, 7), (10, 8, 9))
COMPOSED = [
    (2, "released", [(0, 20)], ((2, 0, 1),)),
    (3, "released", [(0, 20), (10, 30), (0, 30)], ((3, 0, 1), (4, 1, 2), (5, 3, 4))),
    (5, "released", [(0, 20), (20, 40), (30, 50), (0, 40), (20, 50), (0, 50)], FIVE),
    (5, "balanced", [(0, 20), (20, 40), (0, 40), (0, 50)], (*FIVE[:2], (7, 5, 6), (8, 7, 4))),
    (5, "shallow", [(0, 50)], ((5, 0, 1), (5, 2, 3), (5, 3, 4))),
]


@pytest.mark.parametrize(("count", "form", "parents", "items"), COMPOSED)
def test_adjacent_moments_are_composed_by_the_form(count, form, parents, items):
    tree = build(adjacent_moments(count), form)
    assert spans(tree) == [(10 * k, 10 * k + 10) for k in range(count)] + parents
    assert tree.items == items and tree.leaves == tuple(range(count))
    assert [node.moments for node in tree.nodes] == [
        tuple(range(int(a) // 10, int(b) // 10)) for a, b in spans(tree)
    ]
    shared = len(tree.edges) - len({child for _, child in tree.edges})
    assert (shared > 0) == (form == "released" and count > 2), "only here has a node two parents"


@pytest.mark.parametrize(
    ("second", "adjacent"),
    [
        ((12.9, 30), True),
        ((13, 30), False),  # a gap of exactly three seconds
        ((7.1, 30), True),
        ((7, 30), False),  # an overlap of exactly three seconds
        ((10, 30), True),
    ],
)
def test_moments_are_adjacent_within_less_than_three_seconds(second, adjacent):
    tree = build(video((0, 10), second))
    if adjacent:
        assert tree.leaves == (0, 1)
    elif second[0] > 10:
        assert tree.leaves == (0,), "distant moments make a chain"
    else:
        assert tree is None, "overlapping moments make no tree"


def test_three_second_gap_matches_published_trees():
    """8.7 - 5.7 is below three in float64, and 5.7 + 3 is not below 8.7; the latter decides."""
    assert 8.7 - 5.7 < 3
    assert build(video((0, 5.7), (8.7, 14))).leaves == (0,)
    assert 4.3 - 1.3 >= 3
    assert build(video((0, 4.3), (1.3, 13.1))).leaves == (0, 1)


@pytest.mark.parametrize("times", [((0, 10), (0, 9), (10, 20)), ((0, 2), (0, 2.5), (3, 9))])
def test_run_skips_moments_that_do_not_start_later(times):
    tree = build(video(*times))
    assert [tree.nodes[leaf].moments for leaf in tree.leaves] == [(0,), (2,)]


def test_longest_run_wins_and_ties_take_the_first():
    longest = build(video((0, 10), (10, 20), (50, 60), (60, 80)))
    assert spans(longest)[-1] == (50, 80)
    first = build(video((0, 10), (10, 20), (50, 60), (60, 70)))
    assert spans(first)[-1] == (0, 20)


def test_distant_moments_make_a_chain_of_root_and_longest():
    tree = build(video((0, 5), (10, 20), (40, 47)))
    assert spans(tree) == [(10, 20), (0, 47)] and tree.items == ((1, 0),)
    assert tree.nodes[1].moments == (0, 1, 2) and tree.leaves == (0,) and tree.siblings == ()
    tie = build(video((0, 5), (10, 15)))
    assert spans(tie)[0] == (0, 5), "the first of equally long moments"
    several = build(video((0, 50), (5, 10), (14, 20), (60, 62)))
    assert several.nodes[1].moments == (0, 3), "the run whose moments last longest"


def test_moments_are_visited_in_time_order():
    turned = video((20, 30), (10, 20), (0, 10))
    tree = build(turned)
    assert spans(tree) == spans(build(adjacent_moments(3)))
    assert [node.moments for node in tree.nodes[:4]] == [(2,), (1,), (0,), (2, 1)]
    root_text = "does 2. does 1. does 1. does 0."
    assert texts(tree, turned.moments)[-1] == root_text
    assert root_text in trees.parent_texts(turned)
    assert build(turned, collection="activitynet") is None, "as its published trees were built"
    chain = build(video((40, 47), (10, 20), (0, 5)))
    assert spans(chain) == [(10, 20), (0, 47)] and chain.nodes[1].moments == (2, 1, 0)


def test_video_without_a_usable_moment_is_dropped():
    single, nested = adjacent_moments(1), video((0, 50), (5, 10))
    assert build(single) is None and build(nested) is None
    assert list(build_all([single, adjacent_moments(2), nested])) == [build(adjacent_moments(2))]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [2, 3, 4, 6, 7, 9])
def test_every_form_holds_all_leaves_in_time_order(form, count):
    tree = build(adjacent_moments(count), form)
    pool = make_pool([tree], [adjacent_moments(count)])
    assert len(tree.leaves) == count and spans(tree)[-1] == (0, 10.0 * count)
    root = len(tree.nodes) - 1
    assert {node for ancestor, node in pool.ancestry.tolist() if ancestor == root} == set(
        range(root)
    )
    for parent, child in tree.edges:
        assert child < parent and pool.level[child] < pool.level[parent]
        assert set(tree.nodes[child].moments) < set(tree.nodes[parent].moments)
    assert {(item[0], k) for item in tree.items for k in item[1:]} == set(tree.edges)
    assert len(set(tree.nodes)) == len(tree.nodes)


SETS = [
    ("ActivityNet/test.json", "anet/test_tree_deep.json", "released"),
    ("ActivityNet/test.json", "anet/test_tree_shallow.json", "shallow"),
    ("ActivityNet/val.json", "anet/val_tree_shallow.json", "shallow"),
    ("Charades-STA/charades_sta_test.txt", "charades/test_tree_deep.json", "released"),
    ("Charades-STA/charades_sta_test.txt", "charades/test_tree_shallow.json", "shallow"),
]


@pytest.mark.skipif(not PUBLISHED.name, reason="HOVER_DATA does not say where published trees are")
@pytest.mark.parametrize(("annotated", "published", "form"), SETS)
def test_published_trees_are_reproduced_node_by_node(annotated, published, form):
    """Compare with trees in HOVER_DATA, which has 2D-TAN's annotations and the authors' trees."""
    if not ((PUBLISHED / annotated).exists() and (PUBLISHED / published).exists()):
        pytest.skip(f"{PUBLISHED} has no {annotated} and {published}")
    durations = sorted((PUBLISHED / annotated).parent.glob("Charades_v1_*.csv"))
    read = read_published(PUBLISHED / annotated, durations)
    built = {tree.video: tree for tree in build_all(read.videos, form, read.collection)}
    videos = {video.video: video for video in read.videos}
    expected = json.loads((PUBLISHED / published).read_text())
    assert built.keys() == expected.keys()
    for name, nodes in expected.items():
        node_texts = texts(built[name], videos[name].moments, read.collection)
        pairs = zip(built[name].nodes, node_texts, strict=True)
        built_nodes = {(node.start, node.end, text) for node, text in pairs}
        published_nodes = {
            (*span, " ".join(text.split()))
            for span, text in zip(nodes["timestamps"], nodes["sentences"], strict=True)
        }
        assert built_nodes == published_nodes, name
        assert nodes.get("leaf_num", len(built[name].leaves)) == len(built[name].leaves)


# Texts


@pytest.mark.parametrize(
    ("text", "shortened"),
    [
        ("A man is on the Island.", "man on land."),
        ("He is both a man", "He man"),
        ("at a a wall", "at wall"),
        (" Both are here", "  here"),
        ("In Area 51, Botham", "In a 51, am"),
        ("BoBothth", ""),
        ("a cat, the dog", "a cat, dog"),
    ],
)
def test_all_articles_are_deleted_even_inside_words(text, shortened):
    assert without_articles(text) == shortened


FIRST, SECOND, THIRD = "A man is on the Island.", "Both run.", "He stops at a a wall."
PARENT_TEXTS = [  # collection, gap between moments in seconds, texts of the parents
    # The leaf that two parents share is listed twice.
    ("activitynet", 0, ["man on land. run.", "run. He stops at wall.",
                        "man on land. run. run. He stops at wall."]),
    ("charades", 0, [f"{FIRST} {SECOND}", f"{SECOND} {THIRD}",
                     f"{FIRST} {SECOND} {SECOND} {THIRD}"]),
    # The root of a chain has the texts of all its moments and not only of its leaf.
    ("activitynet", 5, ["man on land. run. He stops at wall."]),
]  # fmt: skip


@pytest.mark.parametrize(("collection", "gap", "parents"), PARENT_TEXTS)
def test_parents_have_the_texts_of_their_children(collection, gap, parents):
    moments = tuple(
        AnnotatedMoment(str(k), k * (10.0 + gap), k * (10.0 + gap) + 10, sentence)
        for k, sentence in enumerate((FIRST, f" {SECOND}", f" {THIRD}"))
    )
    leaves = [FIRST] if gap else [FIRST, SECOND, THIRD]
    tree = build(TimedVideo("v", 100.0, moments))
    assert texts(tree, moments, collection) == leaves + parents


# The pool of nodes


def named_video(name, count, gap=0):
    """Return a video with moments of ten seconds and a gap between them."""
    step = 10.0 + gap
    moments = (
        AnnotatedMoment(f"{name}#{k}", step * k, step * k + 10, f"{name} does {k}.")
        for k in range(count)
    )
    return TimedVideo(name, 200.0, tuple(moments))


VIDEOS = [named_video("a", 3), named_video("b", 2, gap=5), named_video("c", 5)]
POOL = make_pool([build(video) for video in VIDEOS], VIDEOS)


def test_nodes_are_numbered_tree_by_tree():
    assert POOL.videos == ("a", "b", "c")
    assert POOL.tree.tolist() == [0] * 6 + [1] * 2 + [2] * 11
    assert POOL.leaves.tolist() == [3] * 6 + [1] * 2 + [5] * 11
    assert POOL.level.tolist() == [0, 0, 0, 1, 1, 2, 0, 1, *[0] * 5, 1, 1, 1, 2, 2, 3]
    assert POOL.names[6:8] == ("b#0", "b#1") and len(set(POOL.names)) == 19
    assert POOL.texts[7] == "b does 0. b does 1." and len(POOL.texts) == 19
    assert POOL.span[5].tolist() == [0, 30] and POOL.span[7].tolist() == [0, 25]


def test_items_name_a_parent_and_its_children():
    assert POOL.subtrees[:4].tolist() == [[3, 0, 1], [4, 1, 2], [5, 3, 4], [7, 6, 6]]
    assert POOL.pair[:5].tolist() == [True, True, True, False, True]
    assert {tuple(pair) for pair in POOL.siblings} == {
        tuple(item[1:]) for item in POOL.subtrees[POOL.pair].tolist()
    }
    edges = {(item[0], child) for item in POOL.subtrees.tolist() for child in item[1:]}
    assert {tuple(edge) for edge in POOL.edges.tolist()} == edges


def test_siblings_of_two_items_are_listed_once():
    tree = build(VIDEOS[0])
    twice = Tree("a", tree.nodes, (*tree.items, tree.items[-1]))
    assert twice.siblings == tree.siblings == ((0, 1), (1, 2), (3, 4))


def test_descendants_are_the_closure_of_the_edges():
    closure = np.zeros((19, 19), int)
    closure[tuple(POOL.edges.T)] = 1
    reached = sum(np.linalg.matrix_power(closure, k) for k in range(1, 5)) > 0
    ancestry = np.zeros((19, 19), bool)
    ancestry[tuple(POOL.ancestry.T)] = True
    np.testing.assert_array_equal(ancestry, reached)
    for nodes in ([5, 0, 4, -1, 18, 8, 7, 6, -1], [-1, -1], [2, 12], list(range(18, -1, -1))):
        descends = POOL.descends(np.asarray(nodes, np.int32))
        for u, upper in enumerate(nodes):
            for w, lower in enumerate(nodes):
                real = upper >= 0 and lower >= 0
                assert descends[u, w] == (real and reached[upper, lower]), (upper, lower)


# Files of trees


FIRST_VIDEO = TimedVideo(
    "v_a",
    60.0,
    tuple(
        AnnotatedMoment(f"v_a#enc#{k}", 10.0 * k, 10.0 * k + 11, f" Löst {k}.") for k in range(5)
    ),
)
SECOND_VIDEO = TimedVideo(
    "v_b", 9.5, (AnnotatedMoment("v_b#enc#0", 0.0, 1.0, "a"), AnnotatedMoment("x", 5.0, 9.0, "b"))
)


def read(folder, record, video=FIRST_VIDEO):
    """Write a file of one tree and read it."""
    path = folder / "t.jsonl"
    path.write_text(json.dumps(record))
    return trees.read_trees(path, [video])


@pytest.mark.parametrize("form", FORMS)
def test_trees_are_read_back(tmp_path, form):
    built = [build(FIRST_VIDEO, form), build(SECOND_VIDEO, form)]
    lines = map(trees.tree_to_json, built, [FIRST_VIDEO, SECOND_VIDEO])
    (tmp_path / "t.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert trees.read_trees(tmp_path / "t.jsonl", [SECOND_VIDEO, FIRST_VIDEO]) == built


def test_handmade_trees_are_ordered_and_may_have_texts(tmp_path):
    record = {
        "video": "v_a",
        "nodes": [
            {"span": [0, 31], "moments": ["v_a#enc#0", "v_a#enc#2"], "text": "All."},
            {"span": [20, 31], "moments": ["v_a#enc#2"]},
            {"span": [0, 11], "moments": ["v_a#enc#0"]},
        ],
        "subtrees": [[0, 2, 1]],
    }
    (tree,) = read(tmp_path, record)
    assert [node.moments for node in tree.nodes] == [(0,), (2,), (0, 2)]
    assert tree.items == ((2, 0, 1),) and tree.nodes[2].children == (0, 1)
    assert tree.nodes[2].text == "All."


def test_a_node_may_begin_within_a_second_after_its_video(tmp_path):
    record = {"video": "v_a", "nodes": [LEAF | {"span": [60.5, 61]}, ROOT | {"span": [0, 61]}]}
    (tree,) = read(tmp_path, record | {"subtrees": [[1, 0]]})
    assert tree.nodes[0][:2] == (60.5, 61)


LEAF, ROOT = (
    {"span": [0, 11], "moments": ["v_a#enc#0"]},
    {"span": [0, 31], "moments": ["v_a#enc#1"]},
)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"video": "v_z"}, "video 'v_z' has no moments"),
        ({"subtrees": []}, "has no subtree"),
        ({"subtrees": [[1]]}, "subtree 0: is [1]"),
        ({"subtrees": [[1, 2]]}, "nodes must be from 0 to 1"),
        ({"subtrees": [[1, -1]]}, "nodes must be from 0 to 1"),
        ({"subtrees": [[1, 0, 0]]}, "subtree 0: is [1, 0, 0]"),
        ({"subtrees": [[True, 0]]}, "subtree 0: is [True, 0]"),
        ({"subtrees": [[1, 0], [0, 1]]}, "node 0 is its own descendant"),
        ({"nodes": [LEAF, 3]}, "node 1: is 3"),
        ({"nodes": [LEAF, ROOT | {"moments": ["x"]}]}, "node 1: moment 'x' does not belong"),
        ({"nodes": [LEAF, ROOT | {"moments": []}]}, "node 1: names no moment"),
        ({"nodes": [LEAF, ROOT | {"span": [40, 50]}]}, "node 0 spans 0 to 11 s, but its parent 1"),
        ({"nodes": [LEAF | {"span": [40, 50]}, ROOT]}, "node 0 spans 40 to 50 s, but its parent"),
        ({"nodes": [LEAF, ROOT | {"text": ""}]}, "node 1: text is ''"),
        ({"nodes": "none"}, "nodes is 'none'"),
        (
            {"nodes": [LEAF, ROOT | {"moments": ["v_a#enc#1"] * 2}]},
            "node 1: names moment 'v_a#enc#1' t",
        ),
        (
            {"nodes": [LEAF, ROOT | {"span": [0, 31000]}]},
            "node 1: spans 0 to 31000 s, but its video 'v",
        ),
        (
            {"nodes": [LEAF, ROOT | {"span": [62, 70]}]},
            "node 1: spans 62 to 70 s, but its video 'v_a' e",
        ),
        (
            {"nodes": [LEAF, ROOT, LEAF]},
            "the nodes 1, 2 of video 'v_a' have no parent",
        ),
    ],
)
def test_bad_file_of_trees_is_refused_by_line(tmp_path, changes, complaint):
    record = {"video": "v_a", "nodes": [LEAF, ROOT], "subtrees": [[1, 0]]} | changes
    with pytest.raises(DataError) as error:
        read(tmp_path, record)
    message = str(error.value)
    assert "t.jsonl:1" in message and complaint in message and "\n" not in message


FIVE_SPANS = [0, 5], [5, 10], [10, 15], [0, 15], [5, 15]


@pytest.mark.parametrize(
    ("subtrees", "complaint"),
    [
        ([[3, 1, 0], [3, 2], [3, 4]], "the children 1 and 0 of node 3 start at 5 and 0 s"),
        ([[3, 1, 2], [3, 0, 1], [3, 4]], "the children 2 and 0 of node 3 start at 10 and 0 s"),
        ([[3, 0, 1], [3, 4], [4, 2, 1]], "the children 2 and 1 of node 4"),
        ([[3, 0, 1], [4, 2]], "the nodes 3, 4 of video 'v_a' have no parent"),
        ([[4, 1, 2], [3, 4]], "the nodes 0, 3 of video 'v_a' have no parent"),
    ],
)
def test_only_a_single_tree_in_time_order_is_read(tmp_path, subtrees, complaint):
    nodes = [{"span": span, "moments": ["v_a#enc#0"]} for span in FIVE_SPANS]
    with pytest.raises(DataError) as error:
        read(tmp_path, {"video": "v_a", "nodes": nodes, "subtrees": subtrees})
    assert complaint in str(error.value)


def test_slips_in_a_file_of_trees_are_reported_once(tmp_path, caplog):
    nodes = [
        {"span": [5, 0], "moments": ["v_a#enc#0"], "text": "Another text."},
        {"span": [5, 11], "moments": ["v_a#enc#1"], "text": "Löst  1."},
        {"span": [0, 62], "moments": ["v_a#enc#0", "v_a#enc#1"], "text": "Both."},
    ]
    assert len(read(tmp_path, {"video": "v_a", "nodes": nodes, "subtrees": [[2, 0, 1]]})) == 1
    late, reversed_span, text = sorted(record.getMessage() for record in caplog.records)
    assert "from 0 to 62 s ends after its video" in late
    assert "from 5 to 0 s does not end after its start (nodes like this: 1)" in reversed_span
    assert "from 5 to 0 s is a leaf whose text differs from its moments" in text


def test_nodes_may_end_as_late_as_a_moment_of_the_video(tmp_path):
    late = FIRST_VIDEO._replace(
        moments=(FIRST_VIDEO.moments[0], FIRST_VIDEO.moments[1]._replace(end=500.0))
    )
    tree = build(late)
    assert read(tmp_path, trees.tree_to_json(tree, late), late) == [tree]


@pytest.mark.parametrize(
    ("child", "parent", "is_warned"),
    [
        ([0, 40], [0, 31], True),
        ([0, 11], [5, 31], True),
        ([0, 34], [3, 31], False),
        ([34, 0], [31, 3], False),
        ([40, 0], [0, 31], True),
    ],
)
def test_child_that_exceeds_its_parent_is_reported(tmp_path, caplog, child, parent, is_warned):
    nodes = [LEAF | {"span": child}, ROOT | {"span": parent}]
    assert len(read(tmp_path, {"video": "v_a", "nodes": nodes, "subtrees": [[1, 0]]})) == 1
    assert ("node 0 spans 0 to" in caplog.text) == is_warned


# The rows of a node


SPANS = np.array([[0.0, 10.0], [3.0, 4.0], [9.0, 30.0], [20.0, 20.5], [25.0, 40.0], [6.0, 5.0]])
DURATION = np.full(6, 30.0)
L = np.array([60, 60, 60, 7, 7, 60], np.int32)


def test_rows_of_a_span_are_its_share_of_the_video():
    rows = trees.row_range(SPANS, DURATION, L)
    for (start, end), length, (first, last) in zip(SPANS, L, rows, strict=True):
        assert first == min(math.floor(Fraction(start) / 30 * int(length)), length - 1)
        assert last == min(math.floor(Fraction(max(start, end)) / 30 * int(length)), length - 1)
    # The last span ends after its video, the one before begins and ends within one frame.
    assert rows.dtype == np.int32 and rows[3].tolist() == [4, 4] and rows[4].tolist() == [5, 6]


def test_second_is_its_row_at_one_frame_per_second():
    for length in range(1, 200):
        seconds = np.arange(length, dtype=float)
        spans = np.stack([seconds, seconds], axis=1)
        lengths = np.full(length, length)
        rows = trees.row_range(spans, lengths.astype(float), lengths.astype(np.int32))
        np.testing.assert_array_equal(rows[:, 0], np.arange(length), str(length))


def test_parent_reads_the_words_of_its_leaves_cut_to_max():
    counts = np.array([3, 0, 4, 2], np.int32)
    rows = trees.word_rows([(0,), (2,), (0, 2), (0, 1, 2, 3), (3, 0)], counts, 6)
    assert rows.tolist() == [
        [0, 1, 2, -1, -1, -1],
        [3, 4, 5, 6, -1, -1],
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5],
        [7, 8, 0, 1, 2, -1],
    ]
