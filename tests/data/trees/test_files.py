"""Files of moments and of trees: what is written is read again, and what is wrong is named."""

import json

import pytest

from hlformer_jax.data.source import DataError
from hlformer_jax.data.trees import files
from hlformer_jax.data.trees.moment import AnnotatedMoment, TimedVideo
from hlformer_jax.data.trees.rule import FORMS, build

VIDEO = TimedVideo(
    "v_a",
    60.0,
    tuple(
        AnnotatedMoment(f"v_a#enc#{k}", 10.0 * k, 10.0 * k + 11, f" Löst {k}.") for k in range(5)
    ),
)
OTHER = TimedVideo(
    "v_b", 9.5, (AnnotatedMoment("v_b#enc#0", 0.0, 1.0, "a"), AnnotatedMoment("x", 5.0, 9.0, "b"))
)


def line(**changes):
    return json.dumps(files.as_json(OTHER) | changes)


def moment(**changes):
    return line(moments=[files.as_json(OTHER)["moments"][0] | changes])


def test_moments_are_read_as_they_were_written_with_their_lines(tmp_path):
    path = tmp_path / "new" / "moments.jsonl"
    files.write_moments(path, [VIDEO, OTHER])
    assert files.read_moments(path) == [(VIDEO, 1), (OTHER, 2)]


@pytest.mark.parametrize("form", FORMS)
def test_trees_are_read_as_they_were_written(tmp_path, form):
    trees = [build(VIDEO, form), build(OTHER, form)]
    files.write_trees(tmp_path / "t.jsonl", zip(trees, [VIDEO, OTHER], strict=True))
    assert files.read_trees(tmp_path / "t.jsonl", [OTHER, VIDEO]) == trees


def test_trees_by_hand_are_ordered_and_may_have_texts(tmp_path):
    record = {
        "video": "v_a",
        "nodes": [
            {"span": [0, 31], "moments": ["v_a#enc#0", "v_a#enc#2"], "text": "All."},
            {"span": [20, 31], "moments": ["v_a#enc#2"]},
            {"span": [0, 11], "moments": ["v_a#enc#0"]},
        ],
        "subtrees": [[0, 2, 1]],
    }
    (tmp_path / "t.jsonl").write_text(json.dumps(record))
    (tree,) = files.read_trees(tmp_path / "t.jsonl", [VIDEO])
    assert [node.moments for node in tree.nodes] == [(0,), (2,), (0, 2)]
    assert tree.items == ((2, 0, 1),) and tree.nodes[2].children == (0, 1)
    assert tree.nodes[2].text == "All."


def test_moments_that_end_late_or_before_they_start_are_kept_and_warned_of(tmp_path, caplog):
    records = [line(), line(video="w", moments=[{"id": "1", "start": 8, "end": 11, "text": "x"}])]
    records += [line(video="u", moments=[{"id": "2", "start": 8, "end": 7, "text": "x"}])]
    (tmp_path / "m.jsonl").write_text("\n".join(records))
    assert [len(video.moments) for video, _ in files.read_moments(tmp_path / "m.jsonl")] == [
        2,
        1,
        1,
    ]
    assert [record.getMessage().partition("m.jsonl")[2][:24] for record in caplog.records] == [
        ":2: moment '1' ends afte",
        ":3: moment '2' does not ",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "m.jsonl: is empty"),
        (line() + "\n" + line(), "m.jsonl:2: video 'v_b' was in line 1"),
        (line() + "\n" + line(video="c"), "m.jsonl:2: id 'v_b#enc#0' was in line 1"),
        (line() + "\n\n", "m.jsonl:2: blank line"),
        (line(duration=0), "m.jsonl:1: duration is 0"),
        (line(duration="9"), "m.jsonl:1: duration is '9'"),
        (line(video=""), "m.jsonl:1: video is ''"),
        (line(video="a\nb"), "m.jsonl:1: video is 'a\\nb'"),
        (line(moments=[]), "m.jsonl:1: video 'v_b' has no moment"),
        (line(moments={}), "m.jsonl:1: moments is {}"),
        (line(moments=[3]), "m.jsonl:1: a moment is 3"),
        (line(moments=[{"id": "a"}]), 'm.jsonl:1: has no "start"'),
        (moment(id=7), "m.jsonl:1: id is 7"),
        (moment(start=-0.5), "m.jsonl:1: start is -0.5"),
        (moment(end=1e400), "m.jsonl:1: end is inf"),
        (moment(start=9.6, end=9.9), "begins at 9.6 s, and its video ends at 9.5 s"),
        (moment(text=" "), "m.jsonl:1: text is ' '"),
    ],
)
def test_a_file_of_moments_that_is_wrong_is_refused_by_line(tmp_path, text, complaint):
    (tmp_path / "m.jsonl").write_text(text)
    with pytest.raises(DataError) as caught:
        files.read_moments(tmp_path / "m.jsonl")
    assert complaint in str(caught.value) and "\n" not in str(caught.value)


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
        ({"subtrees": [[1, 0, 0]]}, "subtree 0: is [1, 0, 0]"),
        ({"subtrees": [[1, True]]}, "subtree 0: is [1, True]"),
        ({"subtrees": [[1, 2]]}, "there are nodes 0 to 1"),
        ({"subtrees": [[1, 0], [0, 1]]}, "node 0 is below itself"),
        ({"nodes": [LEAF, 3]}, "node 1: is 3"),
        ({"nodes": [LEAF, ROOT | {"moments": ["x"]}]}, "node 1: moment 'x' is not one"),
        ({"nodes": [LEAF, ROOT | {"moments": []}]}, "node 1: names no moment"),
        ({"nodes": [LEAF, ROOT | {"span": [40, 50]}]}, "node 0 spans 0 to 11 s, and its parent 1"),
        ({"nodes": [LEAF, ROOT | {"text": ""}]}, "node 1: text is ''"),
        ({"nodes": "none"}, "nodes is 'none'"),
    ],
)
def test_a_file_of_trees_that_is_wrong_is_refused_by_line(tmp_path, changes, complaint):
    record = {"video": "v_a", "nodes": [LEAF, ROOT], "subtrees": [[1, 0]]} | changes
    (tmp_path / "t.jsonl").write_text(json.dumps(record))
    with pytest.raises(DataError) as caught:
        files.read_trees(tmp_path / "t.jsonl", [VIDEO])
    message = str(caught.value)
    assert "t.jsonl:1" in message and complaint in message and "\n" not in message


def test_a_child_that_juts_out_of_its_parent_is_warned_of(tmp_path, caplog):
    nodes = [LEAF | {"span": [0, 40]}, ROOT]
    (tmp_path / "t.jsonl").write_text(
        json.dumps({"video": "v_a", "nodes": nodes, "subtrees": [[1, 0]]})
    )
    assert len(files.read_trees(tmp_path / "t.jsonl", [VIDEO])) == 1
    assert "node 0 spans 0 to 40 s" in caplog.text
