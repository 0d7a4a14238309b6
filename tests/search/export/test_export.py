"""Moments as files of other programs; frames and timecodes compared with OpenTimelineIO."""

import json
import re
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import av
import numpy as np
import pytest
import videos

from hlformer_jax import video
from hlformer_jax.errors import MissingExtra
from hlformer_jax.files import OutputError
from hlformer_jax.search import Moment, Result, SearchError, export
from hlformer_jax.search.export import Timing

NTSC24, NTSC30, NTSC60 = (Fraction(count * 1000, 1001) for count in (24, 30, 60))


def hit(name, *moments, duration=60.0):
    path = Path("/films") / name
    hit_moments = [Moment(start, end, (start + end) / 2, 0.25) for start, end in moments]
    times = np.arange(duration)
    facts = path, 0.25, "cosine", hit_moments, times, times, duration, 1e9, "file"
    return Result(f"{len(name):016x}", name, "", *facts, is_match=True, signals=("visual",))


def info(rate, timecode="", base=None, is_variable=False):
    return lambda path: SimpleNamespace(
        rate=float(rate), timecode=timecode, width=64, height=48, sound=timecode == "",
        base_rate=float(rate if base is None else base), is_variable=is_variable,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "drop"),
    [(NTSC24, False), (25, False), (NTSC30, False), (NTSC30, True), (NTSC60, True), (12, False)],
)
def test_timecodes_agree_with_opentimelineio(rate, drop):
    otio = pytest.importorskip("opentimelineio")
    timing = Timing(Fraction(rate), drop, 0)
    edges = [0, 1, 29, 30, 1799, 1800, 1801, 3597, 3598, 3600, 17981, 17982, 17983, 107892, 2589407]
    edges += [900_899, 900_900, 1_801_799, 1_801_800]  # the second minute after 500 minutes
    for number in [*edges, *np.random.default_rng(0).integers(0, 2_000_000, 50).tolist()]:
        timecode = timing.timecode(number)
        if rate != 12:  # OpenTimelineIO has no timecode of this rate
            nominal = round(rate)
            time = otio.opentime.RationalTime(number, float(rate) if drop else nominal)
            assert timecode == time.to_timecode(float(rate) if drop else nominal, drop)
        day = 86_400 * round(rate) * (0.999 if drop else 1)
        assert timing.number(timecode) == number % day


def test_timing_follows_rate_and_timecode():

    def timing(rate, timecode=""):
        return Timing.from_info(info(rate, timecode)(None))

    assert timing(29.97) == (NTSC30, True, 0)
    assert timing(29.87).rate == NTSC30 and timing(30).rate == 30 and not timing(30).drop
    assert timing(23.976) == (NTSC24, False, 0)
    assert timing(23.976, "01:00:00:00") == (NTSC24, False, 86_400)
    assert timing(29.97, "01:00:00:00") == (NTSC30, False, 108_000)
    assert timing(29.97, "01:00:00;00") == (NTSC30, True, 107_892)
    assert timing(25, "10:00:00:05") == (25, False, 900_005) and timing(12).rate == 24
    # An hour of 29.97 frames a second, in frames and on the clock.
    assert timing(29.97).frame(3600.0) == 107_892
    assert timing(29.97).timecode(107_892) == "01:00:00;00"


@pytest.mark.parametrize(
    ("mean", "base", "is_variable", "nominal"),
    [
        (29.4, 29.97, True, NTSC30), (29.4, 90_000, True, NTSC30), (28, 30, True, 30),
        (24.3, 30, True, 30), (14.2, 30, True, 30), (14.2, 0, True, 30), (5.1, 25, True, 25),
        (24.9, 50, False, 25), (12, 12, False, 24), (15, 15, False, 30), (5, 5, False, 25),
        (14.985, 14.985, False, NTSC30), (10, 10, False, 30), (1, 1, False, 24),
        (13.7, 13.7, False, 30), (59.5, 60, True, 60), (120, 120, False, 120),
        (239.9, 240, False, 240), (28, 33, True, NTSC30), (30, 30, True, 30),
        (29.98, 90_000, True, NTSC30), (23.98, 90_000, True, NTSC24),
    ],
)  # fmt: skip
def test_nominal_rate_is_a_standard_rate(mean, base, is_variable, nominal):
    rate = export.nominal_rate(info(mean, base=base, is_variable=is_variable)(None))
    assert rate == nominal


def test_two_clips_of_one_phone_share_an_edl(tmp_path):
    hits = [hit("a.mp4", (1.0, 2.0)), hit("b.mp4", (10.0, 12.0)), hit("c.mp4", (4.0, 5.0))]
    rates = {
        "a.mp4": info(29.4, base=30, is_variable=True),
        "b.mp4": info(NTSC30),
        "c.mp4": info(14.1, base=90_000, is_variable=True),
    }
    export.write(tmp_path / "x.edl", "t", hits, lambda path: rates[path.name](path))
    events = [line for line in (tmp_path / "x.edl").read_text().splitlines() if " AX " in line]
    assert [line.split()[4:6] for line in events] == [
        ["00:00:01;00", "00:00:02;00"],
        ["00:00:10;00", "00:00:12;00"],
        ["00:00:04;00", "00:00:05;00"],
    ]


def test_edl_of_variable_rates_uses_the_highest(tmp_path):
    hits = [hit("a.mp4", (0.5, 1.0)), hit("b.mp4", (0.5, 1.0))]
    rates = {
        "a.mp4": info(20, base=25, is_variable=True),
        "b.mp4": info(20, base=30, is_variable=True),
    }
    for listed, frames in ((hits[:1], "12"), (hits, "15"), (hits[::-1], "15")):
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.edl"
        export.write(out, "t", listed, lambda path: rates[path.name](path))
        [*_, event] = [line for line in out.read_text().splitlines() if " AX " in line]
        assert event.split()[4] == f"00:00:00:{frames}"


@pytest.mark.parametrize(
    ("rate", "count"),
    [
        (120, 60), (100, 50), (240, 60), (300, 60), (500, 50), (600, 60), (1000, 50), (165, 60),
        (Fraction(120_000, 1001), NTSC60), (Fraction(240_000, 1001), NTSC60), (959.0, NTSC60),
    ],
)  # fmt: skip
def test_timecode_above_60_fps_has_a_standard_rate(tmp_path, rate, count):
    export.write(tmp_path / "x.edl", "t", [hit("a.mp4", (1.99, 3.0))], info(rate))
    [event] = [line for line in (tmp_path / "x.edl").read_text().splitlines() if " AX " in line]
    start, _ = event.split()[4:6]
    otio = pytest.importorskip("opentimelineio")
    time = otio.opentime.RationalTime(round(Fraction(1.99) * count), float(count))
    assert start == time.to_timecode(float(count), count == NTSC60)


def test_edl_has_consecutive_events(tmp_path):
    hits = [hit("a.mp4", (10.0, 12.0), (61.0, 62.0)), hit("b c.mp4", (0.0, 0.001))]
    out = tmp_path / "x.edl"
    assert export.write(out, "a dog\nruns", hits, info(NTSC30, "01:00:00;00")) == 3
    assert out.read_text() == (
        "TITLE: a dog runs\nFCM: DROP FRAME\n\n"
        "001  AX       V     C        01:00:10;00 01:00:12;00 00:00:00;00 00:00:02;00\n"
        "* FROM CLIP NAME: a.mp4\n* SOURCE FILE: file:///films/a.mp4\n"
        "002  AX       V     C        01:01:01;00 01:01:02;00 00:00:02;00 00:00:03;00\n"
        "* FROM CLIP NAME: a.mp4\n* SOURCE FILE: file:///films/a.mp4\n"
        "003  AX       V     C        01:00:00;00 01:00:00;01 00:00:03;00 00:00:03;01\n"
        "* FROM CLIP NAME: b c.mp4\n* SOURCE FILE: file:///films/b%20c.mp4\n"
    )

    def mixed(path):
        return info(25 if path.name == "a.mp4" else 24)(path)

    with pytest.raises(SearchError, match=r"24, 25"):
        export.write(tmp_path / "y.edl", "x", hits, mixed)
    assert not (tmp_path / "y.edl").exists()


def test_numbers_of_more_than_999_events_have_six_digits(tmp_path):
    for count, digits in ((999, 3), (1000, 6)):
        hits = [hit("a.mp4", (1.0, 2.0))] * count
        export.write(tmp_path / f"{count}.edl", "t", hits, info(25))
        lines = (tmp_path / f"{count}.edl").read_text().splitlines()
        numbers = [line.split()[0] for line in lines if " AX " in line]
        assert numbers == [f"{number:0{digits}}" for number in range(1, count + 1)]


def test_otio_has_a_clip_and_a_marker_for_each_moment(tmp_path):
    otio = pytest.importorskip("opentimelineio")
    # The peak of the second is its end, beyond the stated length of the file.
    second = hit("b.mp4", (5.0, 6.0), duration=5.5)
    second = second._replace(moments=[second.moments[0]._replace(peak=6.0)])
    hits = [hit("a.mp4", (10.0, 14.0)), second]
    rates = {"a.mp4": info(NTSC24, "01:00:00:00"), "b.mp4": info(25)}
    export.write(tmp_path / "x.otio", "a dog", hits, lambda path: rates[path.name](path))
    [track] = otio.adapters.read_from_file(str(tmp_path / "x.otio")).tracks
    assert track.kind == "Video"
    first, second = track
    assert first.metadata["hlformer"] == {"score": 0.25, "rank": 1, "id": hits[0].id}
    start = first.source_range.start_time
    # 24 numbers a second, so that an hour of them is 3603.6 s.
    assert start.value == 86_400 + 240 and start.to_seconds() == pytest.approx(3603.6 + 10.01)
    assert first.source_range.duration.value == 96
    assert first.media_reference.target_url == "file:///films/a.mp4"
    assert first.media_reference.available_range.start_time.value == 86_400
    assert first.media_reference.available_range.duration.value == round(60 * NTSC24)
    [marker] = first.markers
    assert (marker.name, marker.marked_range.start_time.value) == ("a dog", 86_400 + 288)
    assert second.source_range.start_time == otio.opentime.RationalTime(125, 25)
    assert second.media_reference.available_range.duration.value == 150
    [marker] = second.markers
    assert marker.marked_range.start_time.value == 149 and marker.marked_range.duration.value == 1


def test_fcpxml_has_each_video_once_with_its_moments(tmp_path):
    hits = [hit("a&b.mp4", (10.0, 14.0), (50.0, 70.0)), hit("b\x01.mp4", (5.0, 6.0))]
    rates = {"a&b.mp4": info(NTSC24, "01:00:00:00"), "b\x01.mp4": info(25)}
    out = tmp_path / "x.fcpxml"
    assert export.write(out, 'a "dog"', hits, lambda path: rates[path.name](path)) == 3
    assert "<!DOCTYPE fcpxml>" in out.read_text()
    root = ElementTree.parse(out).getroot()
    assert root.get("version") == "1.10" and root.find("library/event").get("name") == 'a "dog"'

    def seconds(element, key):
        return Fraction(element.get(key).removesuffix("s"))

    first, second = root.findall("resources/asset")
    media = {"kind": "original-media", "src": "file:///films/a%26b.mp4"}
    assert first.get("name") == "a&b.mp4" and first.find("media-rep").attrib == media
    assert (first.get("hasAudio"), second.get("hasAudio")) == (None, "1")
    formats = {element.get("id"): element.get("frameDuration") for element in root.iter("format")}
    assert formats[first.get("format")] == "1001/24000s"
    assert formats[second.get("format")] == "1/25s"
    clip, second_clip = root.findall("library/event/asset-clip")
    assert clip.get("ref") == first.get("id") and second_clip.get("name") == "b\ufffd.mp4"
    assert clip.get("tcFormat") == "NDF" and clip.get("duration") == first.get("duration")
    # The file's first frame is number 86,400 by its timecode; its last moment ends after it.
    assert seconds(clip, "start") == seconds(first, "start") == 86_400 / NTSC24
    assert seconds(first, "duration") == round(70 * NTSC24) / NTSC24
    spans, peaks = clip.findall("keyword"), clip.findall("marker")
    assert [seconds(element, "start") for element in spans] == [
        (86_400 + n) / NTSC24 for n in (240, 1199)
    ]
    assert seconds(spans[0], "duration") == 96 / NTSC24
    assert seconds(peaks[0], "start") == (86_400 + 288) / NTSC24
    assert seconds(peaks[0], "duration") == 1 / NTSC24
    assert peaks[0].get("value") == 'a "dog"' and peaks[0].get("note") == "rank 1, score 0.25"
    assert seconds(second_clip.find("keyword"), "start") == 5
    export.write(tmp_path / "y.fcpxml", "", hits[:1], info(NTSC30))
    [clip] = ElementTree.parse(tmp_path / "y.fcpxml").iter("asset-clip")
    assert clip.get("tcFormat") == "DF"


def test_playlist_and_table_have_all_moments(tmp_path):

    def never(path):
        pytest.fail("no file is read for it")

    hits = [
        hit("=1+2.mp4", (1.25, 3.5))._replace(tags=("b", "c d")),
        hit("ü.mp4", (2.0, 4.0))._replace(id="00000000000000ab"),
    ]
    export.write(str(tmp_path / "x.m3u8"), "t", hits, never)
    assert (tmp_path / "x.m3u8").read_text().splitlines()[:6] == [
        "#EXTM3U", "#PLAYLIST:t", "#EXTINF:2,=1+2.mp4", "#EXTVLCOPT:start-time=1.250",
        "#EXTVLCOPT:stop-time=3.500", "file:///films/%3D1%2B2.mp4",
    ]  # fmt: skip
    table = tmp_path / "x.csv"
    assert export.write(table, "t", hits, never) == 2
    assert table.read_bytes().startswith(b"\xef\xbb\xbfrank,")  # Excel takes it for UTF-8
    assert "'=1+2.mp4" in table.read_text() and ",=" not in table.read_text()
    tags = [line.rpartition(",")[2] for line in table.read_text().splitlines()]
    assert tags == ["tags", "b; c d", ""]
    ids = [hit.id for hit in hits]
    assert f"1,'{ids[0]}," in table.read_text()  # a spreadsheet would round it
    assert f"2,{ids[1]}," in table.read_text()
    for marked in (True, False):
        assert export.read_csv(table) == [(ids[0], 1.25, 3.5), (ids[1], 2.0, 4.0)]
        table.write_bytes(table.read_bytes().removeprefix(b"\xef\xbb\xbf" if marked else b""))
    with pytest.raises(OutputError):
        export.write(table, "t", hits, never)
    assert export.check(Path("x.CSV")) == export.check(Path("x.csv"))
    for name, shown in (("x.txt", r"x.txt \('.txt'\)"), ("x", r"x \(no suffix\)")):
        with pytest.raises(SearchError, match=rf"{shown}: use one of .*\.otio"):
            export.check(Path(name))


def test_missing_package_is_reported_before_the_query(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentimelineio", None)
    assert export.check(Path("x.edl"))
    with pytest.raises(MissingExtra, match=r"\[editing\]"):
        export.check(Path("x.otio"))


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("id,start,end\nx,1.5,63\n", "utf-8"),
        ("id,start,end\r\nx,0:01.5,0:01:03\r\n", "utf-8-sig"),
        ("id;start;end;video\nx;1,5;1:03;a, b, c\n", "utf-8"),
        ("id\tstart\tend\nx\t1,5\t 63 \n", "utf-16"),
        ("id,start,end\rx,1.5,63\r", "utf-8"),
        ('id,start,end\nx,"1,5",63\n', "utf-8"),
    ],
)
def test_table_saved_by_a_spreadsheet_is_read(tmp_path, text, encoding):
    table = tmp_path / "x.csv"
    table.write_bytes(text.encode(encoding))
    assert export.read_csv(table) == [("x", 1.5, 63.0)]
    table.write_bytes(text.splitlines()[0].encode(encoding))
    assert export.read_csv(table) == []


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "x.csv has no column id and no column start and no column end: give a table that"),
        (b"to buy: milk, eggs\n", "x.csv has no column id and no column start"),
        (b"id,start\nx,3\n", "x.csv has no column end: give a table that query --export"),
        (b"id,start,end\nx,3,3\n", "x.csv:2: the end '3' is not after the start '3'"),
        (b"id,start,end\nx,nan,4\n", "x.csv:2: the column start: 'nan' is not a time: write"),
        (b"id,start,end\nx,1,2\nx,3\n", "x.csv:3: the column end: '' is not a time: write"),
        (b"id;start;end\nx;1;1.234,5\n", "x.csv:2: the column end: '1.234.5' is not a time"),
        (b"id,start,end\n,1,2\n", "x.csv:2: the column id is empty"),
        (b"start,end,id\n1,2\n", "x.csv:2: the column id is empty"),
        (b"id,start,end\n\xfc,1,2\n", "x.csv is not a table in UTF-8: save it as CSV in UTF-8"),
        (b"\xff\xfei", "x.csv is not a table in UTF-16"),
    ],
)
def test_error_in_a_table_names_its_place_and_value(tmp_path, content, complaint):
    table = tmp_path / "x.csv"
    table.write_bytes(content)
    with pytest.raises(SearchError, match=re.escape(complaint)):
        export.read_csv(table)


def test_timecode_of_a_file_is_read(tmp_path):
    plain = videos.write(tmp_path / "plain.mov", frames=6, rate=30)
    assert video.probe(plain).timecode == ""
    with av.open(str(plain)) as source, av.open(str(tmp_path / "timed.mov"), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        stream.metadata["timecode"] = "01:02:03:04"
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    assert video.probe(tmp_path / "timed.mov").timecode == "01:02:03:04"


@pytest.mark.parametrize("suffix", ["csv", "m3u", "edl", "otio", "fcpxml"])
def test_exports_have_no_control_or_direction_characters(tmp_path, suffix):
    if suffix == "otio":
        pytest.importorskip("opentimelineio")
    out = tmp_path / f"moments.{suffix}"
    results = [hit("a\x1b[31m\u202eb.mp4", (1, 3))]
    export.write(out, "red\u202e\x1b", results, info(25, "00:00:00:00"))
    text = out.read_text(encoding="utf-8-sig")
    if suffix == "otio":
        text = json.dumps(json.loads(text), ensure_ascii=False)
    assert not {"\x1b", "\u202e"} & set(text) and "\\u001b" not in text
