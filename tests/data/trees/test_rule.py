"""The rule from moments to trees: every clause by hand, and the published trees where they are."""

import json
import os
from pathlib import Path

import pytest

from hlformer_jax.data.trees import annotations
from hlformer_jax.data.trees.moment import AnnotatedMoment, TimedVideo
from hlformer_jax.data.trees.rule import FORMS, build, build_all
from hlformer_jax.data.trees.text import texts

PUBLISHED = Path(os.environ.get("HOVER_DATA", ""))


def video(*spans):
    moments = (AnnotatedMoment(f"v#{k}", a, b, f"does {k}.") for k, (a, b) in enumerate(spans))
    return TimedVideo("v", 100.0, tuple(moments))


def in_a_row(count):
    """Moments of ten seconds without a gap."""
    return video(*((10.0 * k, 10.0 * k + 10) for k in range(count)))


def spans(tree):
    return [(node.start, node.end) for node in tree.nodes]


def test_two_neighbours_make_one_parent():
    tree = build(in_a_row(2))
    assert spans(tree) == [(0, 10), (10, 20), (0, 20)]
    assert tree.items == ((2, 0, 1),)
    assert tree.leaves == (0, 1) and tree.levels == (0, 0, 1)
    assert tree.nodes[2].moments == (0, 1)


def test_of_three_leaves_the_middle_one_has_two_parents():
    tree = build(in_a_row(3))
    assert spans(tree)[3:] == [(0, 20), (10, 30), (0, 30)]
    assert tree.items == ((3, 0, 1), (4, 1, 2), (5, 3, 4))
    assert tree.nodes[5].moments == (0, 1, 2)
    assert sum(child == 1 for _, child in tree.edges) == 2


def test_five_leaves_have_three_then_two_parents_then_a_root():
    tree = build(in_a_row(5))
    assert [tree.levels.count(level) for level in range(4)] == [5, 3, 2, 1]
    assert tree.items == ((5, 0, 1), (6, 2, 3), (7, 3, 4), (8, 5, 6), (9, 6, 7), (10, 8, 9))
    assert [tree.nodes[k].moments for k in (8, 9)] == [(0, 1, 2, 3), (2, 3, 4)]
    assert tree.descendants[9] == {6, 7, 2, 3, 4}
    assert tree.positions == (0, 1, 2, 3, 4, 0, 2, 3, 0, 2, 0)
    assert tree.siblings == ((0, 1), (2, 3), (3, 4), (5, 6), (6, 7), (8, 9))


def test_a_balanced_tree_lets_the_odd_one_rise():
    tree = build(in_a_row(5), "balanced")
    assert tree.items == ((5, 0, 1), (6, 2, 3), (7, 5, 6), (8, 7, 4))
    assert tree.levels == (0, 0, 0, 0, 0, 1, 1, 2, 3)
    parents = [child for _, child in tree.edges]
    assert sorted(parents) == list(range(8)), "every node but the root has one parent"


def test_a_shallow_tree_has_all_leaves_under_its_root():
    tree = build(in_a_row(5), "shallow")
    assert spans(tree)[5:] == [(0, 50)]
    assert tree.edges == tuple((5, leaf) for leaf in range(5))
    assert tree.items == ((5, 0, 1), (5, 2, 3), (5, 3, 4))
    assert tree.levels == (0, 0, 0, 0, 0, 1)


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
        assert tree.leaves == (0,), "they lie apart: a chain"
    else:
        assert tree is None, "they neither follow nor lie apart"


def test_three_seconds_are_compared_as_the_published_trees_have_it():
    """8.7 - 5.7 is below three in float64, and 5.7 + 3 is not below 8.7; the latter decides."""
    assert 8.7 - 5.7 < 3
    assert build(video((0, 5.7), (8.7, 14))).leaves == (0,)
    assert 4.3 - 1.3 >= 3
    assert build(video((0, 4.3), (1.3, 13.1))).leaves == (0, 1)


def test_a_moment_that_does_not_start_later_is_skipped_and_the_run_goes_on():
    tree = build(video((0, 10), (0, 9), (10, 20)))
    assert [tree.nodes[leaf].moments for leaf in tree.leaves] == [(0,), (2,)]


def test_of_several_runs_the_longest_in_time_wins_and_of_equal_ones_the_first():
    longest = build(video((0, 10), (10, 20), (50, 60), (60, 80)))
    assert spans(longest)[-1] == (50, 80)
    first = build(video((0, 10), (10, 20), (50, 60), (60, 70)))
    assert spans(first)[-1] == (0, 20)


def test_moments_apart_make_a_chain_of_the_root_and_the_longest():
    tree = build(video((0, 5), (10, 20), (40, 47)))
    assert spans(tree) == [(10, 20), (0, 47)]
    assert tree.items == ((1, 0),)
    assert tree.nodes[1].moments == (0, 1, 2) and tree.nodes[1].children == (0,)
    assert tree.leaves == (0,) and tree.siblings == ()
    tie = build(video((0, 5), (10, 15)))
    assert spans(tie)[0] == (0, 5), "of equally long ones the first"


def test_of_separated_runs_the_one_whose_moments_last_longest_wins():
    tree = build(video((0, 50), (5, 10), (14, 20), (60, 62)))
    assert tree.nodes[1].moments == (0, 3)


def test_a_video_whose_moments_make_nothing_is_dropped():
    one, nested = in_a_row(1), video((0, 50), (5, 10))
    assert build(one) is None and build(nested) is None
    assert list(build_all([one, in_a_row(2), nested])) == [build(in_a_row(2))]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [2, 3, 4, 6, 7, 9])
def test_every_form_holds_all_leaves_in_time_order(form, count):
    tree = build(in_a_row(count), form)
    assert len(tree.leaves) == count and spans(tree)[-1] == (0, 10.0 * count)
    assert tree.descendants[-1] == set(range(len(tree.nodes) - 1))
    for parent, child in tree.edges:
        assert tree.levels[parent] > tree.levels[child]
        assert child < parent
        assert set(tree.nodes[child].moments) < set(tree.nodes[parent].moments)
    assert {pair for item in tree.items for pair in ((item[0], k) for k in item[1:])} == set(
        tree.edges
    )
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
def test_the_published_trees_are_reproduced_node_by_node(annotated, published, form):
    """HOVER_DATA holds the annotations of 2D-TAN's data folder and the authors' own."""
    if not ((PUBLISHED / annotated).exists() and (PUBLISHED / published).exists()):
        pytest.skip(f"{PUBLISHED} has no {annotated} and {published}")
    durations = sorted((PUBLISHED / annotated).parent.glob("Charades_v1_*.csv"))
    read = annotations.read(PUBLISHED / annotated, durations)
    built = {tree.video: tree for tree in build_all(read.videos, form)}
    videos = {video.video: video for video in read.videos}
    expected = json.loads((PUBLISHED / published).read_text())
    assert built.keys() == expected.keys()
    for name, nodes in expected.items():
        told = texts(built[name], videos[name].moments, "released", read.collection)
        pairs = zip(built[name].nodes, told, strict=True)
        ours = {(node.start, node.end, text) for node, text in pairs}
        stamped = zip(nodes["timestamps"], nodes["sentences"], strict=True)
        assert ours == {(*span, " ".join(text.split())) for span, text in stamped}, name
        assert nodes.get("leaf_num", len(built[name].leaves)) == len(built[name].leaves)
