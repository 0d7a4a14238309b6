"""Annotation files, their faults, which are named with their place, and the command `moments`."""

import json
import math
import os
from pathlib import Path

import pytest
from corpora import SMALL, assert_refused, edit, line

from hlformer_jax.config import default
from hlformer_jax.data import moments
from hlformer_jax.data.annotations.captions import read_captions, read_sentences
from hlformer_jax.data.annotations.moments import (
    AnnotatedMoment,
    TimedVideo,
    moments_to_json,
    read_moments,
    write_moments,
)
from hlformer_jax.data.annotations.parsing import (
    as_list,
    as_seconds,
    as_text,
    field,
    parse_object,
    read_lines,
)
from hlformer_jax.data.annotations.published import read_published
from hlformer_jax.data.annotations.spans import Span, configured_spans, read_spans
from hlformer_jax.data.sources.protocol import Caption, DataError

DEEP = "[" * 100_000 + "]" * 100_000
LONG = "9" * 5000
"""A number with more digits than Python reads; of JSON, 1e999 is too large as well."""


def assert_error(complaint, call, *args):
    """Assert that a call raises a DataError of one short line."""
    with pytest.raises(DataError) as error:
        call(*args)
    message = str(error.value)
    assert complaint in message and "\n" not in message and len(message) < 400, message


@pytest.fixture
def write_file(tmp_path):
    """A function that writes a file and returns its path."""

    def write(text, name="annotations"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


# Strict text and JSON


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", ": the file is empty"),
        (b"\xef\xbb\xbfa", ":1: the file begins with a byte order mark"),
        (b"a\nb\ncaf\xe9\n", ":3: byte 0xe9 is not UTF-8"),
        (b"one\n \ntwo\n", ":2: the line is blank"),
    ],
)
def test_bad_text_file_is_refused_with_its_line(write_file, data, complaint):
    path = write_file(data)
    assert_error(f"{path}{complaint}", lambda: list(read_lines(path)))


def test_lines_end_at_line_feeds_alone(write_file):
    path = write_file("one\u2028still one\r\ntwo\x0bstill two")
    assert [text for _, text in read_lines(path)] == ["one\u2028still one", "two\x0bstill two"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"a": 1, "a": 2}', "f:7: 'a' appears twice"),
        ("[1]", "f:7: expected a JSON object"),
        ("{", "f:7: not valid JSON"),
        ('{"a": ' + DEEP + "}", "f:7: the JSON is nested too deeply"),
        ('{"a": NaN}', "f:7: contains NaN"),
        ('{"a": ' + LONG + "}", "f:7: contains a number of thousands of digits"),
    ],
)
def test_text_that_is_not_a_json_object_is_refused(text, complaint):
    assert_error(complaint, parse_object, text, "f:7")


def test_fields_are_checked_and_returned():
    value = {"a": [1, {"b": None}], "c": "ü", "d": 2, "e": " a\nb"}
    assert parse_object(json.dumps(value), "f") == value
    assert as_text("ü", "c", "f") == "ü" and as_text(" a\nb", "e", "f", one_line=False) == " a\nb"
    seconds = field(value, "d", "f", as_seconds)
    assert seconds == 2.0 and isinstance(seconds, float)
    assert field(value, "a", "f", as_list, length=2) == value["a"]
    assert_error("f:2: a is [1, {'b': None}]; it", as_list, value["a"], "a", "f:2", 3)
    assert_error("f:2: c is 'ü'; it must be a list", field, value, "c", "f:2", as_list)
    assert_error('f:3: "z" is missing', field, value, "z", "f:3")


@pytest.mark.parametrize("value", ["  ", None, "a\nb", "a\ud800"])
def test_bad_text_is_refused(value):
    assert_error("f:1: name is ", as_text, value, "name", "f:1")


@pytest.mark.parametrize("value", [-1, float("nan"), True, "3", 10**400, {"a": DEEP}])
def test_bad_time_is_refused(value):
    assert_error("f:1: start is ", as_seconds, value, "start", "f:1")


# Caption lists


CAPTION_FAULTS = [
    (b"", ["the line is blank"]),
    (b"train_1#enc#1 ", ["'train_1#enc#1'", "no sentence"]),
    (b"train_1#enc#1 a person\rdoes", ["carriage return"]),
    (b"#enc#1 a person", ["'#enc#1'", "not a caption id"]),
    (b"train/1#enc#1 a person", ["'train/1#enc#1'"]),
    (b"train_1#enc#0 again", ["'train_1#enc#0'", "line 2"]),
]


@pytest.mark.parametrize(("new", "expected"), CAPTION_FAULTS)
def test_bad_caption_is_refused_with_its_line(tiny, write, new, expected):
    def damage(collection):
        edit(collection.captions("train"), line(3, new))

    assert_refused(write(tiny), damage, ["tinytrain.caption.txt:3", *expected])


def test_reads_blanks_and_line_ends_of_real_captions(tiny, write):
    collection = write(tiny)
    first = 'train_0#enc#0  Zoë says: "#1, it\'s 50\u2028% off"  \n'
    edit(collection.captions("train"), line(1, first.encode().rstrip(b"\n")))
    edit(collection.captions("test"), bytes.rstrip)  # the last line may lack its newline
    for path in (collection.captions("train"), collection.feature_dir / "shape.txt"):
        edit(path, lambda data: data.replace(b"\n", b"\r\n"))
    with collection.open() as reader:
        edited, *captions = (captions[0] for captions in reader.splits["train"].values())
        assert edited == Caption("train_0#enc#0", 'Zoë says: "#1, it\'s 50\u2028% off"', line=1)
        assert {caption.sentence for caption in captions} == {"a person does thing 0"}
        assert len(reader.splits["test"]) == 2


# Published annotations


LENGTHS = 'id,script,length\nAB1,x,30.5\nCD2,"two\nlines",12.0\n'


def tvr(video="v", span=(0, 5), text="A man runs.", duration=60.5, **fields):
    """Return a line of TVR's annotations."""
    record = {"vid_name": video, "duration": duration, "ts": list(span), "desc": text}
    return json.dumps(record | fields)


def activitynet(**videos):
    """Return annotations of ActivityNet Captions with these spans of each video."""
    return json.dumps(
        {
            name: {"duration": 50, "timestamps": spans, "sentences": [f" s{s}" for s, _ in spans]}
            for name, spans in videos.items()
        }
    )


def test_activitynet_keeps_the_order_of_the_file(write_file):
    read = read_published(write_file(activitynet(v_b=[[9, 12], [0, 4]], v_a=[[1, 2]])))
    assert read.collection == "activitynet" and read.left_out == 0
    assert [video.video for video in read.videos] == ["v_b", "v_a"]
    moments = read.videos[0].moments
    assert moments[0] == ("v_b#enc#0", 9.0, 12.0, " s9") and moments[1].moment_id == "v_b#enc#1"
    assert read.videos[0].duration == 50.0


def test_tvr_is_grouped_by_video_and_sorted_by_start(write_file):
    lines = [
        tvr("v", (30, 40), "c\nd", desc_id=1),
        tvr("w", (0, 1), desc_id=2),
        tvr("v", (2, 9), "b", desc_id=3),
        tvr("v", (2, 5), "a", desc_id=4),
    ]
    read = read_published(write_file("\n".join(lines) + "\n"))
    assert read.collection == "tvr"
    assert [video.video for video in read.videos] == ["v", "w"]
    texts = [(moment.moment_id, moment.text) for moment in read.videos[0].moments]
    assert texts == [("v#enc#1", "b"), ("v#enc#2", "a"), ("v#enc#0", "c\nd")]


def test_charades_takes_lengths_from_the_table(write_file):
    table = write_file(LENGTHS, "Charades_v1_test.csv")
    lines = "AB1 8.0 12.5##person runs.\r\nAB1 9.0 9.0##person sits.\r\nAB1 0 7##opens # door.\r\n"
    read = read_published(write_file(lines), [table])
    assert read.collection == "charades" and read.left_out == 1
    (video,) = read.videos
    assert video.duration == 30.5
    assert [(moment.moment_id, moment.start, moment.text) for moment in video.moments] == [
        ("AB1#enc#2", 0.0, "opens # door."),
        ("AB1#enc#0", 8.0, "person runs."),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("once upon a time", "annotations:1: unknown format"),
        ('{"qid": 1, "relevant_windows": [[0, 2], [6, 8]]}', "QVHighlights' windows are not read"),
        ("{}", "annotations: the file has no video"),
        ('{\n"v": {"duration": 1,,}\n}', "annotations:2: not valid JSON"),
        ('{"v": {"duration": 9, "timestamps": [[0, 1]]}}', '"sentences" is missing'),
        ('{"v": {"duration": 9, "timestamps": [[0, 1]], "sentences": []}}', "a list of 1"),
        ('{"v": {"duration": 9, "timestamps": [[-1, 1]], "sentences": ["a"]}}', "the start is -1"),
        (
            tvr() + "\n" + tvr(duration=3),
            "annotations:2: video 'v' lasts 3 s here, but 60.5 s in an earlier line",
        ),
        (tvr(desc_id=7) + "\n" + tvr(desc_id=7), "annotations:2: desc_id 7 is also in line 1"),
        ("AB1 0 1##x", "Charades_v1_train.csv"),
    ],
)
def test_bad_published_annotations_are_refused(write_file, text, complaint):
    assert_error(complaint, read_published, write_file(text))


@pytest.mark.parametrize(
    ("text", "table", "complaint"),
    [
        ("AB1 0 1##x\nZZ9 0 1##x", LENGTHS, "annotations:2: the length of video 'ZZ9' is not in"),
        ("AB1 0 1##x\nAB1 0 x##x", LENGTHS, "annotations:2: expected two times, got '0 x'"),
        ("AB1 0 1##x\nAB1 0 1 x", LENGTHS, "annotations:2: expected VIDEO START END##SENTENCE"),
        ("AB1 0 1##x", "id,script\nAB1,x\n", 'table:1: expected the columns "id" and "length"'),
        ("AB1 0 1##x", "id,length\nAB1,long\n", "table:2: video 'AB1': length is 'long'"),
        ("AB1 0 1##x", "id,length\nAB1\n", "table:2: video 'AB1': length is None"),
        ("AB1 0 1##x", "id,length\nAB1,0\n", "table:2: video 'AB1': length is 0.0"),
        ("AB1 0 1##x", "id,length\nAB1,1e-320\n", "table:2: video 'AB1': length is 1e-320"),
        ("AB1 0 1##x", "id,length\nAB1,nan\n", "table:2: video 'AB1': length is nan"),
        ("AB1 0 1##x", "id,length\nAB1,inf\n", "table:2: video 'AB1': length is inf"),
        (
            "AB1 0 1##x",
            "id,length\nAB1,9\nCD2,9\nAB1,9\n",
            "table:4: video 'AB1' is also in line 2; remove one of them",
        ),
        ("AB1 0 1##x", f"id,length\n{'A' * 200_000},1\n", "not a CSV table"),
    ],
)
def test_bad_charades_annotations_are_refused(write_file, text, table, complaint):
    assert_error(complaint, read_published, write_file(text), [write_file(table, "table")])


def test_charades_tables_with_different_lengths_are_refused(write_file):
    tables = [write_file(f"id,length\nAB1,{x}\n", f"table{x}") for x in (10, 20)]
    text = write_file("AB1 0 1##x")
    assert read_published(text, [tables[0]] * 2).videos[0].duration == 10
    complaint = "table20: video 'AB1' lasts 20 s here, but 10 s in an earlier file"
    assert_error(complaint, read_published, text, tables)


# Files of moments


FIRST_VIDEO = TimedVideo("v_a", 60.0, (AnnotatedMoment("v_a#enc#0", 10.0, 21.0, " Löst."),))
SECOND_VIDEO = TimedVideo(
    "v_b", 9.5, (AnnotatedMoment("v_b#enc#0", 0.0, 1.0, "a"), AnnotatedMoment("x", 5.0, 9.0, "b"))
)


def timed(**changes):
    """Return the line of `SECOND_VIDEO` with changed fields."""
    return json.dumps(moments_to_json(SECOND_VIDEO) | changes)


def moment(**changes):
    """Return the line of `SECOND_VIDEO` with one moment, whose fields are changed."""
    return timed(moments=[moments_to_json(SECOND_VIDEO)["moments"][0] | changes])


def test_moments_are_read_back_with_their_lines(tmp_path):
    path = tmp_path / "new" / "moments.jsonl"
    write_moments(path, [FIRST_VIDEO, SECOND_VIDEO])
    assert read_moments(path) == [(FIRST_VIDEO, 1), (SECOND_VIDEO, 2)]


def test_odd_moments_are_kept_with_a_warning(write_file, caplog):
    odd = [
        timed(video=f"w{end}", moments=[{"id": str(end), "start": 8, "end": end, "text": "x"}])
        for end in (11, 7)
    ]
    read = read_moments(write_file("\n".join([timed(), *odd]), "m.jsonl"))
    assert [len(video.moments) for video, _ in read] == [2, 1, 1]
    assert [record.getMessage().partition("m.jsonl")[2][:24] for record in caplog.records] == [
        ":2: moment '11' ends aft",
        ":3: moment '7' does not ",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (timed() + "\n" + timed(), "m.jsonl:2: video 'v_b' is also in line 1"),
        (timed() + "\n" + timed(video="c"), "m.jsonl:2: id 'v_b#enc#0' is also in line 1"),
        (timed(duration=0), "m.jsonl:1: video 'v_b': duration is 0"),
        (timed(moments=[]), "m.jsonl:1: video 'v_b' has no moment"),
        (moment(start=10.6, end=10.9), "begins at 10.6 s, but its video ends at 9.5 s"),
    ],
)
def test_bad_file_of_moments_is_refused_by_line(write_file, text, complaint):
    assert_error(complaint, read_moments, write_file(text, "m.jsonl"))


# Spans


ACTIVITYNET = {
    "v_a": {"duration": 20.0, "timestamps": [[1, 5], [4.5, 20]], "sentences": ["One.", " Two."]}
}
EXPECTED = {"v_a#enc#0": Span(1.0, 5.0, 20.0), "v_a#enc#1": Span(4.5, 20.0, 20.0)}


def moments_config(moments, **data):
    """Return a configuration that asks for these moments."""
    config = default()
    config.eval.moments = moments
    config.data.update(data)
    return config


def test_every_file_format_gives_the_same_times(write_file, tmp_path):
    published = write_file(json.dumps(ACTIVITYNET), "val_1.json")
    spans = read_spans(published)
    assert spans == EXPECTED
    assert spans.sentences == {"v_a#enc#0": "One.", "v_a#enc#1": " Two."}
    path = tmp_path / "moments.jsonl"
    write_moments(path, read_published(published).videos)
    assert read_spans(path) == EXPECTED
    by_caption = {
        name: {"video": "v_a", "start": 0, "start_s": a, "end_s": b, "duration_s": c}
        for name, (a, b, c) in EXPECTED.items()
    }
    assert read_spans(write_file(json.dumps(by_caption), "moments.json")) == EXPECTED
    spans = read_spans(write_file(tvr("v", (2, 3), duration=9.0), "tvr.jsonl"))
    assert spans == {"v#enc#0": Span(2.0, 3.0, 9.0)}


def test_relative_path_starts_at_the_collection_folder(write_file, tmp_path):
    (tmp_path / "tvr" / "times").mkdir(parents=True)
    path = write_file(json.dumps(ACTIVITYNET), "tvr/times/m.json")
    relative = moments_config("times/m.json", manual_dir=str(tmp_path), collection="tvr")
    assert configured_spans(relative, [None]) == [EXPECTED]
    absolute = moments_config(str(path), collection="charades")
    assert configured_spans(absolute, [None] * 2) == [EXPECTED] * 2
    assert configured_spans(moments_config(""), [{"spans": {"a": [0, 1, 2]}}]) == [{}]


def test_synthetic_corpus_has_its_own_spans():
    reader = SMALL.open().__enter__()
    annotations = json.loads(json.dumps([reader.annotations(split) for split in reader.splits]))
    spans = configured_spans(moments_config("data"), annotations)
    for videos, spans_of_split in zip(reader.splits.values(), spans, strict=True):
        assert spans_of_split == {
            caption.caption_id: (*reader.moments[caption.caption_id], reader.num_frames(video))
            for video, captions in videos.items()
            for caption in captions
        }


@pytest.mark.parametrize("annotations", [None, {"videos": []}])
def test_data_set_without_times_is_refused(annotations):
    complaint = "'activitynet' has no times of moments: give a file"
    assert_error(complaint, configured_spans, moments_config("data"), [annotations])


def test_times_of_a_data_set_allow_for_a_frame_interval(caplog):
    times = {"near": [8.0, 13.0, 10.0], "late": [9.0, 17.0, 10.0], "after": [16.0, 18.0, 10.0]}
    annotations = {"spans": times, "seconds_per_frame": 2.5}
    [spans] = configured_spans(moments_config("data"), [annotations])
    assert spans == {"near": (8, 13, 10), "late": (9, 10, 10), "after": (10, 10, 10)}
    place = "the times of the data set 'activitynet'"
    assert f"{place}: 2 of 3 moments end more than 3.5 s after their video" in caplog.text


@pytest.mark.parametrize(
    ("span", "complaint"),
    [
        ((3000.0, 4000.0), "moment 'x' begins at 3000 s, but its video ends at 20 s"),
        ((0.0, 4000.0), "moment 'x' ends at 4000 s, but its video ends at 20 s"),
        ((0.0, 0.5, 0.0), "moment 'x': the length of its video is 0.0; it must be the length"),
        ((0.0, 0.5, math.nan), "moment 'x': the length of its video is nan; it must be the length"),
        ((math.nan, 0.5), "moment 'x': the start is nan; it must be a time in seconds, 0 or more"),
        ((0.0, math.nan), "moment 'x': the end is nan; it must be a time in seconds, 0 or more"),
        ((-1.0, 0.5), "moment 'x': the start is -1.0; it must be a time in seconds, 0 or more"),
        ((None, None), "moment 'x': the start is None; it must be a time in seconds, 0 or more"),
    ],
)
def test_impossible_times_of_a_data_set_are_refused(span, complaint):
    annotations = [{"spans": {"x": [*span, 20.0][:3]}}]
    assert_error(complaint, configured_spans, moments_config("data"), annotations)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"a": {"start_s": 1, "end_s": 2}}, "caption 'a': \"duration_s\" is missing"),
        ({"a": {"start_s": 1, "end_s": 2, "duration_s": 0}}, "duration_s is 0; it must be the"),
    ],
)
def test_bad_file_of_spans_is_refused(write_file, content, complaint):
    path = write_file(json.dumps(content))
    assert_error(complaint, read_spans, path)
    assert_error(str(path), read_spans, path)


def span_file(kind, *times, duration=30.0):
    """Returns annotations in one of the four formats, with moments of one video."""
    if kind == "activitynet":
        sentences = ["It happens."] * len(times)
        record = {"duration": duration, "timestamps": times, "sentences": sentences}
        return json.dumps({"v": record})
    if kind == "tvr":
        return "\n".join(tvr("v", span, duration=duration) for span in times)
    if kind == "moments":
        moments = [
            AnnotatedMoment(f"v#enc#{k}", *span, "It happens.") for k, span in enumerate(times)
        ]
        return json.dumps(moments_to_json(TimedVideo("v", duration, tuple(moments))))
    return json.dumps(
        {
            f"v#enc#{k}": {"start_s": start, "end_s": end, "duration_s": duration}
            for k, (start, end) in enumerate(times)
        }
    )


KINDS = ("activitynet", "tvr", "moments", "captions")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("span", "complaint"),
    [
        ((20, 5), "1 of 2 moments begin after their end, such as 'v#enc#1' from 20 to 5 s"),
        ((12000, 15000), "'v#enc#1' begins at 12000 s, but its video ends at 30 s"),
        ((5, 3000), "1 of 2 moments end more than 1 s after their video, such as 'v#enc#1' from 5"),
        ((-1, 5), "-1"),
        ((math.nan, 5), "NaN"),
    ],
)
def test_impossible_times_are_refused_in_every_format(write_file, kind, span, complaint):
    path = write_file(span_file(kind, (1, 2), span))
    assert_error(complaint, read_spans, path)
    assert_error(str(path), read_spans, path)


@pytest.mark.parametrize(
    ("kind", "duration"),
    [(kind, 0) for kind in KINDS] + [("captions", x) for x in (1e-320, -1, math.inf, 10**400)],
)
def test_impossible_durations_are_refused_in_every_format(write_file, kind, duration):
    path = write_file(span_file(kind, (0, 0.5), duration=duration))
    item = "caption 'v#enc#0'" if kind == "captions" else "video 'v'"
    complaint = "Infinity" if duration == math.inf else f"{item}: duration"
    assert_error(complaint, read_spans, path)
    assert_error(str(path), read_spans, path)


@pytest.mark.parametrize("kind", KINDS)
def test_few_faulty_times_are_counted_in_warnings(write_file, kind, caplog):
    times = [*((k / 10, 10.0) for k in range(97)), (30.5, 30.9), (20, 5), (5, 30.9), (6, 40)]
    spans = read_spans(write_file(span_file(kind, *times)))
    assert len(spans) == 100 and Span(20, 5, 30) not in spans.values()
    late_spans = {Span(30.5, 30.9, 30.0), Span(5.0, 30.9, 30.0), Span(6.0, 30.0, 30.0)}
    assert late_spans <= set(spans.values())
    assert "1 of 101 moments begin after their end and are left out, such as" in caplog.text
    assert "1 of 101 moments end more than 1 s after their video and are cut there" in caplog.text
    assert len(caplog.records) == 2


def test_missing_file_of_spans_is_named(tmp_path):
    assert_error("missing.json: no such file", read_spans, tmp_path / "missing.json")


# The command that converts


TVR = Path(os.environ.get("TVR_DATA", ""))


def write_activitynet(path, **videos):
    """Write annotations of ActivityNet Captions with these spans of each video."""
    content = {
        name: {"duration": 99, "timestamps": spans, "sentences": ["It happens."] * len(spans)}
        for name, spans in videos.items()
    }
    path.write_text(json.dumps(content))
    return path


def test_command_writes_moments_and_prints_counts(tmp_path, capsys):
    row = [[10 * k, 10 * k + 10] for k in range(6)]
    path = write_activitynet(
        tmp_path / "a.json", v_a=row, v_b=row[:3], v_c=row[:1], v_d=[[0, 5], [20, 30]]
    )
    out = tmp_path / "m.jsonl"
    assert moments.main([str(path), f"--out={out}"]) == 0
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
    videos = [video for video, _ in read_moments(out)]
    assert [video.video for video in videos] == ["v_a", "v_b", "v_c", "v_d"]
    assert moments.main([str(path)]) == 0 and capsys.readouterr().out == printed


def test_tag_separates_two_annotations_of_a_video(tmp_path, capsys):
    path = write_activitynet(tmp_path / "a.json", v_a=[[0, 5], [5, 9]])
    out = tmp_path / "m.jsonl"
    assert moments.main([str(path), f"--out={out}", "--tag=val_2"]) == 0
    [(video, _)] = read_moments(out)
    assert [moment.moment_id for moment in video.moments] == ["v_a#val_2#0", "v_a#val_2#1"]
    assert moments.main([str(path), f"--out={out}", "--tag=a/b", "--overwrite"]) == 1
    assert "--tag=a/b" in capsys.readouterr().err


def test_tagged_charades_moments_keep_their_numbers(write_file, tmp_path, capsys):
    tables = [write_file(f"id,length\n{name},30\n", f"{name}.csv") for name in ("AB1", "CD2")]
    lines = "AB1 8 12##runs.\nAB1 9 9##sits.\nCD2 0 5##reads.\nAB1 0 7##opens.\n"
    out = tmp_path / "m.jsonl"
    flags = [f"--durations={table}" for table in tables]
    assert moments.main([str(write_file(lines)), *flags, f"--out={out}", "--tag=b"]) == 0
    ids = [[moment.moment_id for moment in video.moments] for video, _ in read_moments(out)]
    assert ids == [["AB1#b#2", "AB1#b#0"], ["CD2#b#0"]]
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [
        "charades: 2 videos, 3 moments",
        "1 moments do not end after their start and are left out",
    ]


def test_caption_list_selects_and_orders_videos(tmp_path, capsys):
    path = write_activitynet(
        tmp_path / "a.json", v_a=[[0, 5], [5, 9]], v_b=[[0, 5]], v_c=[[0, 5], [5, 6]]
    )
    captions = tmp_path / "activitynettrain.caption.txt"
    captions.write_text("v_c#enc#0 it\nv_a#enc#0 it\n")
    options = [str(path), f"--captions={captions}", f"--out={tmp_path / 'm.jsonl'}"]
    assert moments.main([*options[:2], f"--out={captions}", "--overwrite"]) == 1
    assert "is an input file" in capsys.readouterr().err
    assert moments.main(options) == 0
    assert [video.video for video, _ in read_moments(tmp_path / "m.jsonl")] == [
        "v_c",
        "v_a",
    ]
    captions.write_text("v_c#enc#0 it\nv_z#enc#0 it\n")
    assert moments.main([*options, "--overwrite"]) == 1
    assert "caption.txt:2: video 'v_z' has no annotation" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{}", '{"v": ' + "[" * 100_000, "AB1 0 1##x", None])
def test_command_error_is_one_line_and_writes_no_file(tmp_path, capsys, content):
    path, out = tmp_path / "a.json", tmp_path / "m.jsonl"
    if content is not None:
        path.write_text(content)
    assert moments.main([str(path), f"--out={out}"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and len(error) < 400 and str(path) in error
    assert not out.exists()


@pytest.mark.skipif(not TVR.name, reason="TVR_DATA does not say where TVR's annotations are")
def test_tvr_has_the_expected_numbers_of_trees(capsys):
    assert moments.main([str(TVR / "tvr_val_release.jsonl")]) == 0
    table = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[3:]]
    assert [int(trees) for _, trees in table] == [447, 1249, 394, 79, 10, 2179]


def test_existing_file_needs_overwrite(tmp_path, capsys):
    path = write_activitynet(tmp_path / "a.json", v_a=[[0, 5], [5, 9]])
    content, out = path.read_bytes(), tmp_path / "out.jsonl"
    out.write_bytes(b"foreign")
    (tmp_path / "link").symlink_to(out)
    rejected_flags = [
        [f"--out={out}"], [f"--out={tmp_path}", "--overwrite"],
        [f"--out={tmp_path / 'link'}", "--overwrite"], [f"--out={path}", "--overwrite"],
    ]  # fmt: skip
    for flags in rejected_flags:
        assert moments.main([str(path), *flags]) == 1
        assert capsys.readouterr().err.count("\n") == 1
    assert out.read_bytes() == b"foreign" and path.read_bytes() == content
    assert moments.main([str(path), f"--out={out}", "--overwrite"]) == 0
    assert out.read_bytes() != b"foreign"


def test_sentences_of_several_files_differ_in_more_than_blanks(tmp_path):
    captions, moments_file = tmp_path / "train.caption.txt", tmp_path / "train.moments.jsonl"
    captions.write_text("a#0 A  man sits.\n")
    moment = AnnotatedMoment("a#0", 0.0, 1.0, "A  man sits.")
    write_moments(moments_file, [TimedVideo("a", 2.0, (moment,))])
    assert read_sentences([captions, moments_file]) == {"a#0": "A  man sits."}
    captions.write_text("a#0 A man stands.\n")
    with pytest.raises(DataError, match="another sentence in another file"):
        read_sentences([captions, moments_file])


def test_paths_may_be_texts(tmp_path):
    path, captions = str(tmp_path / "moments.jsonl"), tmp_path / "train.caption.txt"
    moment = AnnotatedMoment("a#0", 0.0, 1.0, "A man sits.")
    write_moments(path, [TimedVideo("a", 2.0, (moment,))])
    assert [video.video for video, _ in read_moments(path)] == ["a"]
    assert read_spans(path).sentences == read_sentences([path]) == {"a#0": "A man sits."}
    captions.write_text("a#0 A man sits.\n")
    assert read_captions(str(captions)) == read_captions(captions)
    published = write_activitynet(tmp_path / "a.json", v_a=[[0, 5], [5, 9]])
    assert read_published(str(published)) == read_published(published)
