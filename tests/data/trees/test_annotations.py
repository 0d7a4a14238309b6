"""The three published formats of moments: told apart by content, and refused with file and line."""

import json

import pytest

from hlformer_jax.data.source import DataError
from hlformer_jax.data.trees import annotations

LENGTHS = 'id,script,length\nAB1,x,30.5\nCD2,"two\nlines",12.0\n'


def tvr(video="v", span=(0, 5), text="A man runs.", duration=60.5, **more):
    record = {"vid_name": video, "duration": duration, "ts": list(span), "desc": text}
    return json.dumps(record | more)


def activitynet(**videos):
    return json.dumps(
        {
            name: {"duration": 50, "timestamps": spans, "sentences": [f" s{s}" for s, _ in spans]}
            for name, spans in videos.items()
        }
    )


@pytest.fixture
def write(tmp_path):
    def to_file(text, name="given"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return to_file


def test_activitynet_stays_in_the_order_of_the_file(write):
    read = annotations.read(write(activitynet(v_b=[[9, 12], [0, 4]], v_a=[[1, 2]])))
    assert read.collection == "activitynet" and read.left_out == 0
    assert [video.video for video in read.videos] == ["v_b", "v_a"]
    moments = read.videos[0].moments
    assert moments[0] == ("v_b#enc#0", 9.0, 12.0, " s9") and moments[1].moment_id == "v_b#enc#1"
    assert read.videos[0].duration == 50.0


def test_tvr_is_gathered_by_video_and_sorted_by_start_stably(write):
    lines = [
        tvr("v", (30, 40), "c\nd", desc_id=1),
        tvr("w", (0, 1), desc_id=2),
        tvr("v", (2, 9), "b", desc_id=3),
        tvr("v", (2, 5), "a", desc_id=4),
    ]
    read = annotations.read(write("\n".join(lines) + "\n"))
    assert read.collection == "tvr"
    assert [video.video for video in read.videos] == ["v", "w"]
    named = [(moment.moment_id, moment.text) for moment in read.videos[0].moments]
    assert named == [("v#enc#1", "b"), ("v#enc#2", "a"), ("v#enc#0", "c\nd")]


def test_charades_has_lengths_from_the_table_and_no_empty_moments(write):
    table = write(LENGTHS, "Charades_v1_test.csv")
    lines = "AB1 8.0 12.5##person runs.\r\nAB1 9.0 9.0##person sits.\r\nAB1 0 7##opens # door.\r\n"
    read = annotations.read(write(lines), [table])
    assert read.collection == "charades" and read.left_out == 1
    (video,) = read.videos
    assert video.duration == 30.5
    assert [(one.moment_id, one.start, one.text) for one in video.moments] == [
        ("AB1#enc#2", 0.0, "opens # door."),
        ("AB1#enc#0", 8.0, "person runs."),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "given: is empty"),
        ("\ufeff{}", "given:1: begins with a byte order mark"),
        (b"{\n\xff}", "given:2: byte 0xff is not UTF-8"),
        ("once upon a time", "given:1: is neither"),
        ("{}", "given: has no video"),
        ('{"v": 3}', "video 'v': must be an object"),
        ('{\n"v": {"duration": 1,,}\n}', "given:2: this is no JSON"),
        ('{"v": {}, "v": {}}', "'v' stands twice"),
        ('{"v": {"duration": 9, "timestamps": [[0, 1]]}}', 'has no "sentences"'),
        ('{"v": {"duration": NaN, "timestamps": [], "sentences": []}}', "duration is nan"),
        ('{"v": {"duration": 9, "timestamps": [[0]], "sentences": ["a"]}}', "v', moment 0: the sp"),
        ('{"v": {"duration": 9, "timestamps": [[0, 1]], "sentences": []}}', "a list of 1"),
        ('{"v": {"duration": 9, "timestamps": [[-1, 1]], "sentences": ["a"]}}', "the start is -1"),
        ('{"v": {"duration": 9, "timestamps": [[0, true]], "sentences": ["a"]}}', "the end is Tru"),
        ('{"v": {"duration": 9, "timestamps": [[0, 1]], "sentences": [" "]}}', "the sentence is"),
        ("[" * 10 + "]" * 10, "is neither"),
        ('{"v": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        (tvr() + "\n\n" + tvr(), "given:2: blank line"),
        (tvr() + "\n" + tvr(duration=3), "given:2: video 'v' lasts 3 s here and 60.5 s before"),
        (tvr(desc_id=7) + "\n" + tvr(desc_id=7), "given:2: desc_id 7 was in line 1"),
        (tvr() + '\n{"vid_name": "w"}', 'given:2: has no "duration"'),
        (tvr() + "\nv", "given:2: this is no JSON"),
        (tvr() + "\n[1]", "given:2: this must be a JSON object"),
        (tvr(text="\\ud800").replace("\\\\", "\\"), "half a surrogate pair"),
        ("AB1 0 1##x", "Charades_v1_train.csv"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(write, text, complaint):
    with pytest.raises(DataError) as caught:
        annotations.read(write(text))
    message = str(caught.value)
    assert complaint in message and "\n" not in message and len(message) < 400


@pytest.mark.parametrize(
    ("text", "table", "complaint"),
    [
        ("AB1 0 1##x\nZZ9 0 1##x", LENGTHS, "given:2: video 'ZZ9' is not in"),
        ("AB1 0 1##x\nAB1 0 x##x", LENGTHS, "given:2: '0 x' are no two times"),
        ("AB1 0 1##x\nAB1 0 inf##x", LENGTHS, "given:2: the end is inf"),
        ("AB1 0 1##x\nAB1 0 1 x", LENGTHS, "given:2: is not VIDEO START END##SENTENCE"),
        ("AB1 0 1##", LENGTHS, "given:1: the sentence is ''"),
        ("AB1 0 1##x", "id,script\nAB1,x\n", 'table:1: has no columns "id" and "length"'),
        ("AB1 0 1##x", "id,length\nAB1,long\n", "table:2: length is 'long'"),
        ("AB1 0 1##x", "id,length\nAB1\n", "table:2: length is None"),
    ],
)
def test_what_is_wrong_with_charades_is_named_in_one_line(write, text, table, complaint):
    with pytest.raises(DataError) as caught:
        annotations.read(write(text), [write(table, "table")])
    assert complaint in str(caught.value) and "\n" not in str(caught.value)
