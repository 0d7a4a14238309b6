"""The command that converts annotated moments."""

import json
import os
from pathlib import Path

import pytest

from hlformer_jax.data import annotations, moments, trees

TVR = Path(os.environ.get("TVR_DATA", ""))


def annotated(path, **videos):
    content = {
        name: {"duration": 99, "timestamps": spans, "sentences": ["It happens."] * len(spans)}
        for name, spans in videos.items()
    }
    path.write_text(json.dumps(content))
    return path


def test_the_command_writes_both_files_and_prints_the_numbers(tmp_path, capsys):
    row = [[10 * k, 10 * k + 10] for k in range(6)]
    given = annotated(
        tmp_path / "a.json", v_a=row, v_b=row[:3], v_c=row[:1], v_d=[[0, 5], [20, 30]]
    )
    out, tree_file = tmp_path / "m.jsonl", tmp_path / "t.jsonl"
    assert moments.main([str(given), f"--out={out}", f"--trees={tree_file}"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[:2] == [
        "activitynet: 4 videos, 12 moments",
        "1 videos have no moments that make a tree",
    ]
    table = [line.split() for line in printed.splitlines()[3:]]
    assert table == [
        ["1", "1", "2", "1"],
        ["2", "0", "0", "0"],
        ["3", "1", "6", "3"],
        ["4", "0", "0", "0"],
        ["5+", "1", "12", "6"],
        ["all", "3", "20", "10"],
    ]
    videos = [video for video, _ in annotations.read_moments(out)]
    assert [video.video for video in videos] == ["v_a", "v_b", "v_c", "v_d"]
    assert [tree.video for tree in trees.read_trees(tree_file, videos)] == ["v_a", "v_b", "v_d"]


def test_only_the_videos_of_a_caption_list_are_kept_in_its_order(tmp_path, capsys):
    given = annotated(tmp_path / "a.json", v_a=[[0, 5], [5, 9]], v_b=[[0, 5]], v_c=[[0, 5], [5, 6]])
    captions = tmp_path / "activitynettrain.caption.txt"
    captions.write_text("v_c#enc#0 it\nv_a#enc#0 it\n")
    options = [str(given), f"--captions={captions}", f"--out={tmp_path / 'm.jsonl'}"]
    assert moments.main(options) == 0
    assert [video.video for video, _ in annotations.read_moments(tmp_path / "m.jsonl")] == [
        "v_c",
        "v_a",
    ]
    captions.write_text("v_c#enc#0 it\nv_z#enc#0 it\n")
    assert moments.main([*options, "--overwrite"]) == 1
    assert "caption.txt:2: video 'v_z' has no annotation" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{}", '{"v": ' + "[" * 100_000, "AB1 0 1##x", None])
def test_what_is_wrong_or_missing_is_one_line_and_nothing_is_written(tmp_path, capsys, content):
    given, out = tmp_path / "a.json", tmp_path / "m.jsonl"
    if content is not None:
        given.write_text(content)
    assert moments.main([str(given), f"--out={out}"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and len(error) < 400 and str(given) in error
    assert not out.exists()


@pytest.mark.skipif(not TVR.name, reason="TVR_DATA does not say where TVR's annotations are")
def test_tvr_gives_the_trees_of_the_specification(capsys):
    assert moments.main([str(TVR / "tvr_val_release.jsonl")]) == 0
    table = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[3:]]
    assert [int(trees) for _, trees in table] == [447, 1249, 394, 79, 10, 2179]


def test_what_is_there_is_not_replaced_unless_with_overwrite(tmp_path, capsys):
    given = annotated(tmp_path / "a.json", v_a=[[0, 5], [5, 9]])
    content, out = given.read_bytes(), tmp_path / "out.jsonl"
    out.write_bytes(b"theirs")
    (tmp_path / "link").symlink_to(out)
    refused = [
        [f"--out={out}"], [f"--trees={out}"], [f"--out={tmp_path}", "--overwrite"],
        [f"--out={tmp_path / 'link'}", "--overwrite"], [f"--trees={given}", "--overwrite"],
        [f"--out={tmp_path / 'x'}", f"--trees={tmp_path / 'x'}"],
    ]  # fmt: skip
    for flags in refused:
        assert moments.main([str(given), *flags]) == 1
        assert capsys.readouterr().err.count("\n") == 1
    assert out.read_bytes() == b"theirs" and given.read_bytes() == content
    assert moments.main([str(given), f"--out={out}", "--overwrite"]) == 0
    assert out.read_bytes() != b"theirs"
