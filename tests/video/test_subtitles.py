"""Subtitle files and tracks: formats, encodings, damaged blocks, text without markup."""

import contextlib
import itertools
import os
import time
import tracemalloc
import unicodedata

import av
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from hlformer_jax.video import VideoError, sample
from hlformer_jax.video.subtitles import (
    SUFFIXES,
    charset,
    closed_captions,
    read_file,
    read_tracks,
    reader,
)
from hlformer_jax.video.subtitles.text import clean_lines

CUES = [(1.0, 2.5, "Hello there, world"), (3.0, 4.0, "Second line of two")]
SRT = (
    "1\n00:00:01,000 --> 00:00:02,500\nHello <i>there</i>, world\n\n"
    "2\n00:00:03,000 --> 00:00:04,000\nSecond line\nof two\n"
)
VTT = (
    "WEBVTT\n\n00:01.000 --> 00:02.500 align:start\n<v Ann>Hello <c.x>there</c>, world\n\n"
    "00:03.000 --> 00:04.000\nSecond line\nof two\n"
)
ASS = (
    "[Script Info]\nScriptType: v4.00+\n\n[Events]\n"
    "Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n"
    "Dialogue: 0,0:00:01.00,0:00:02.50,Default,,0,0,0,,{\\i1}Hello{\\i0} there, world\n"
    "Dialogue: 0,0:00:03.00,0:00:04.00,Default,,0,0,0,,Second line\\Nof two\n"
)


def add_film(container, codec="libx264", rate=10):
    stream = container.add_stream(codec, rate=rate)
    stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
    return stream


def encoded(film, count, first=0):
    """Return the packets of grey pictures whose timestamps begin at `first`."""
    packets = []
    for i in range(count):
        frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), i, np.uint8), format="rgb24")
        frame.pts = i + first
        packets += film.encode(frame)
    return packets + film.encode(None)


def muxed(path, source, start=0):
    """Write a video of five seconds with the unchanged packets of a subtitle file as its track.

    `start` is the timestamp in seconds of the first picture.
    """
    with av.open(str(source)) as words, av.open(str(path), "w") as out:
        film, text = add_film(out), out.add_stream_from_template(words.streams.subtitles[0])
        out.mux(encoded(film, 50, first=10 * start))
        for packet in words.demux():
            if packet.pts is not None:
                packet.pts = packet.dts = packet.pts + round(start / packet.time_base)
                packet.stream = text
                out.mux(packet)
    return path


@pytest.mark.parametrize("start", [0, 3])
def test_cues_of_a_container_count_from_its_start(tmp_path, start):
    (tmp_path / "a.srt").write_text(SRT)
    assert cue_rows(read_tracks(muxed(tmp_path / "a.mkv", tmp_path / "a.srt", start))) == CUES


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.srt", SRT.replace("there</i>, world", "&amp;</i> 5 < 6"), "Hello & 5 < 6"),
        ("a.srt", SRT.replace("there</i>", "{laughs}</i>"), "Hello {laughs}, world"),
        ("a.vtt", VTT.replace("world", "New&nbsp;York"), "Hello there, New York"),
        ("a.ass", ASS.replace("there", r"\hthere{\p1}m 0 0{\p0}"), "Hello there, world"),
    ],
)
def test_tracks_are_cleaned_like_files(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    subtitles = read_tracks(muxed(tmp_path / "a.mkv", tmp_path / name))
    assert cue_rows(subtitles) == [(1, 2.5, expected), CUES[1]]


def test_track_in_an_older_encoding_is_read(tmp_path):
    text = SRT.replace("Hello <i>there</i>, world", "Мы идём на рынок")
    (tmp_path / "a.srt").write_bytes(text.encode("cp1251"))
    subtitles = read_tracks(muxed(tmp_path / "a.mkv", tmp_path / "a.srt"))
    assert cue_rows(subtitles)[0] == (1, 2.5, "Мы идём на рынок") and subtitles.encoding == "cp1251"


def test_webvtt_track_of_mkvmerge_is_read(tmp_path):
    """FFmpeg does not know its codec, S_TEXT/WEBVTT."""
    (tmp_path / "a.srt").write_text(SRT)
    path = muxed(tmp_path / "a.mkv", tmp_path / "a.srt")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"S_TEXT/UTF8", b"S_TEXT/VTT\0"))
    assert cue_rows(read_tracks(path)) == CUES and read_tracks(path).format == "webvtt"
    content = content.replace(b"Hello", b"\1\0\2\3\4").replace(b"Second line", bytes(11))
    path.write_bytes(content.replace(b"S_TEXT/UTF8", b"S_KATE\0\0\0\0\0"))
    assert read_tracks(path).cues == ()


def test_packets_of_mp4_text_are_utf8_or_utf16():
    texts = ["Grüße", "ein grüner Elefant", "次の日", "ein Fahrrad"]
    for encodings in itertools.product(["utf-8", "utf-16"], repeat=4):
        contents = [text.encode(name) for text, name in zip(texts, encodings, strict=True)]
        packets = [
            reader._Packet(i, i + 1, len(content).to_bytes(2, "big") + content, 0)
            for i, content in enumerate(contents)
        ]
        blocks, *_ = reader._blocks(packets, "mov_text")
        assert [block.text for block in blocks] == texts


@pytest.mark.parametrize("codec", ["subrip", "webvtt", "ass"])
def test_text_of_a_packet_ends_at_a_zero(codec):
    fields = b"0,0,Default,,0,0,0,," if codec == "ass" else b""
    contents = [fields + line for line in (b"The first\0\xde\xad\xbe\xef\xde", "Grüße\0".encode())]
    packets = [reader._Packet(i, i + 1, content, 0) for i, content in enumerate(contents)]
    blocks, *_ = reader._blocks(packets, codec)
    assert [block.text for block in blocks] == ["The first", "Grüße"]


def test_ttml_track_of_mp4_is_read(tmp_path, monkeypatch):
    with av.open(str(tmp_path / "a.mp4"), "w") as out:
        film, text = add_film(out), out.add_stream("ttml")
        text.codec_context.subtitle_header = b"[Script Info]\nPlayResX: 64\nPlayResY: 48\n"
        out.mux(encoded(film, 50))
        for start, end, line in CUES:
            packet = av.Packet(line.encode())
            packet.stream, packet.time_base = text, text.time_base
            packet.pts = packet.dts = round(start / text.time_base)
            packet.duration = round((end - start) / text.time_base)
            out.mux(packet)
    subtitles = read_tracks(tmp_path / "a.mp4")
    assert cue_rows(subtitles) == CUES and subtitles.format == "ttml" and not subtitles.warnings
    # FFmpeg cannot decode CEA-708 in a track either, which has a packet for each picture.
    captions = (tmp_path / "a.mp4").read_bytes().replace(b"stpp", b"c708").replace(b"subt", b"clcp")
    (tmp_path / "b.mp4").write_bytes(captions.replace(b"<tt", b"\xff\xff\xff"))
    monkeypatch.setattr(reader, "MAX_SUBTITLE_BYTES", 100)
    subtitles = read_tracks(tmp_path / "b.mp4")
    assert subtitles.cues == () and not subtitles.warnings


def test_ttml_samples_share_a_cue():
    """Merge the samples of a cue; times count from the start of the track."""
    lines = '<p begin="1s" end="2.5s">Hello there, world</p>', '<p begin="3s" end="4s">Second</p>'
    packets = [
        reader._Packet(-0.5, None, f"<tt><body>{''.join(sample)}</body></tt>".encode(), 0)
        for sample in (lines, lines[1:], ())
    ]
    blocks, skipped, *_ = reader._blocks(packets, "ttml")
    cues, warnings = reader._finished(blocks, "tags", skipped)
    assert cues == [(0.5, 2.0, "Hello there, world"), (2.5, 3.5, "Second")] and not warnings


def caption_pairs(*parts):
    """Return pairs of bytes, one for each picture.

    A part is a text, a command (which is sent twice), or the number of pictures of a pause.
    """

    def with_parity(value):
        return value | (0x80 if value.bit_count() % 2 == 0 else 0)

    pairs = []
    for part in parts:
        if isinstance(part, int):
            pairs += [(0, 0)] * part
        elif isinstance(part, tuple):
            pairs += [part] * 2
        else:
            text = part + " " * (len(part) % 2)
            pairs += [(ord(a), ord(b)) for a, b in zip(text[::2], text[1::2], strict=True)]
    return [bytes(map(with_parity, pair)) for pair in pairs]


LOAD, ROLL, PAINT, ERASE, FEED, FLIP = ((0x14, low) for low in (0x20, 0x25, 0x29, 0x2C, 0x2D, 0x2F))
ROW, LANGUAGE = (0x14, 0x70), (0x1C, 0x29)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([LOAD, ROW, "ONE", FLIP, 60, ERASE], [(6, 70, "ONE")]),
        ([ROLL, FEED, ROW, "ONE", 60], [(2, 67, "ONE")]),  # nothing erases the last caption
        (
            [PAINT, ROW, "ONE", 60, ERASE, 90, PAINT, ROW, "TWO", 60],
            [(0, 66, "ONE"), (158, 223, "TWO")],
        ),
        ([PAINT, ROW, "ONE ", LANGUAGE, "ZWEI", PAINT, "TWO", 60], [(0, 73, "ONE TWO")]),
        (
            [(0x15, 0x25), (0x15, 0x2D), ROW, "ONE", 60, (0x15, 0x2C), 30, (0x15, 0x2D), "TWO", 60],
            [(2, 68, "ONE"), (100, 163, "TWO")],
        ),
        (  # nothing erases the captions that are painted over
            [PAINT, ROW, "FIRST", 60, PAINT, ROW, "TWO", 60, ROW, "3", 60],
            [(0, 69, "FIRST"), (69, 133, "TWO"), (133, 196, "3")],
        ),
        ([90], []),
    ],
    ids=[
        "loaded", "rolled up", "painted", "second channel", "second field", "painted over", "empty",
    ],
)  # fmt: skip
def test_captions_follow_the_times_of_their_commands(parts, expected):
    pairs = [(10 + i / 30, pair) for i, pair in enumerate(caption_pairs(*parts))]
    blocks = closed_captions.decode(pairs)
    assert [clean_lines(block.text, "ass") for block in blocks] == [[text] for *_, text in expected]
    times = [time for block in blocks for time in block[:2]]
    expected_times = [10 + picture / 30 for row in expected for picture in row[:2]]
    assert times == pytest.approx(expected_times, abs=0.07)  # two pictures


@pytest.mark.parametrize("parts", [(LOAD, ROW, "ONE", FLIP), (ROLL, FEED, ROW, "ONE")])
def test_last_caption_without_padding_has_no_end(parts):
    pairs = [(i / 30, pair) for i, pair in enumerate(caption_pairs(*parts))]
    [block] = closed_captions.decode(pairs)
    assert clean_lines(block.text, "ass") == ["ONE"] and block.end is None


def scenarist(path, pairs):
    """Write a Scenarist file with pairs of bytes, one for each picture."""
    lines = [f"00:00:{i // 30:02}:{i % 30:02}\t{pair.hex()}\n\n" for i, pair in enumerate(pairs)]
    path.write_text("".join(["Scenarist_SCC V1.0\n\n", *lines]))
    return path


def test_track_of_pictures_is_named(tmp_path):
    (tmp_path / "a.srt").write_text(SRT)
    path = muxed(tmp_path / "a.mkv", tmp_path / "a.srt")
    assert not read_tracks(path).warnings
    # A string of Matroska may end with zeros.
    path.write_bytes(path.read_bytes().replace(b"S_TEXT/UTF8", b"S_VOBSUB\0\0\0"))
    subtitles = read_tracks(path)
    [warning] = subtitles.warnings
    assert not subtitles.cues and warning.startswith("1 track could not be read")
    assert "(dvdsub)" in warning


def test_xml_of_other_kinds_has_no_cue(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text('<tt><body><p begin="1s" end="2s">Hello</p></body></tt>')
    assert list(read_file(path)) == [(1.0, 2.0, "Hello")]
    path.write_text(
        '<?xml version="1.0"?>\n<NonRealTimeMeta><Duration value="250"/></NonRealTimeMeta>'
    )
    subtitles = read_file(path)
    assert not subtitles.cues and not subtitles.warnings


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_only_subtitles_are_too_large_for_subtitles(tmp_path, encoding):
    path = tmp_path / "a.xml"
    project = '<?xml version="1.0"?>\n<!DOCTYPE xmeml>\n<xmeml version="4">\n'
    timed = '<?xml version="1.0"?>\n<tt><body><p begin="1s" end="2s">Hello</p></body></tt>\n'
    for text in (project, timed, timed.replace("<", "")):
        path.write_text(text + "<clip>x</clip>\n" * 1000, encoding)
        os.truncate(path, reader.MAX_SUBTITLE_BYTES + 1)
        if text == project:
            subtitles = read_file(path)
            assert not subtitles.cues and not subtitles.warnings
        else:
            with pytest.raises(VideoError, match="too large for subtitles"):
                read_file(path)
    path = tmp_path / "a.sub"
    path.write_bytes(b"\0\0\1\xba")
    os.truncate(path, reader.MAX_SUBTITLE_BYTES + 1)
    with pytest.raises(VideoError, match="is a VobSub file: its subtitles are pictures"):
        read_file(path)


def test_track_of_captions_is_read(tmp_path):
    pairs = caption_pairs(LOAD, ROW, "PURPLE", FLIP, 30, ERASE)
    subtitles = read_tracks(muxed(tmp_path / "a.mov", scenarist(tmp_path / "a.scc", pairs)))
    [(start, end, text)] = subtitles
    assert text == "PURPLE" and subtitles.format == "eia_608"
    assert (start, end) == pytest.approx((7 / 30, 39 / 30), abs=0.034)  # a picture


def captioned(path, lines, codec="libx264"):
    """Write a video with captions in its pictures."""
    parts = [part for line in lines for part in (FEED, ROW, line, 30)]
    pairs = caption_pairs(ROLL, *parts, ERASE)
    with av.open(str(path), "w") as out:
        film = add_film(out, codec, rate=30)
        for packet in encoded(film, len(pairs)):
            at = round(packet.pts * packet.time_base * 30)
            user_data = b"GA94\x03\x41\xff\xfc" + pairs[at] + b"\xff"
            if codec == "libx264":
                payload = b"\xb5\x00\x31" + user_data
                unit = b"\x06\x04" + bytes([len(payload)]) + payload + b"\x80"
                mark = b"\0\0\0\1"
            else:
                unit, mark = b"\xb2" + user_data, b"\0\0\1"
            place = max(bytes(packet).find(mark + b"\x01\x01"), 0) if codec != "libx264" else 0
            carrying = av.Packet(bytes(packet)[:place] + mark + unit + bytes(packet)[place:])
            carrying.pts, carrying.dts = packet.pts, packet.dts
            carrying.time_base, carrying.stream = packet.time_base, film
            carrying.is_keyframe = packet.is_keyframe
            out.mux(carrying)
    return path


LINES = ["PURPLE ELEPHANT", "GREEN BICYCLE", "RED KITE"]


@pytest.mark.parametrize(
    ("codec", "suffix"), [("libx264", "ts"), ("libx264", "mkv"), ("mpeg2video", "ts")]
)
def test_captions_in_the_pictures_are_read(tmp_path, codec, suffix):
    subtitles = read_tracks(captioned(tmp_path / f"a.{suffix}", LINES, codec))
    assert [cue.text for cue in subtitles] == LINES and subtitles.format == "eia_608"
    # FFmpeg's own times (movie=a.ts[out+subcc]); a picture is 33 ms.
    times = [time for cue in subtitles for time in cue[:2]]
    assert times == pytest.approx([0.067, 1.467, 1.467, 2.833, 2.833, 4.1], abs=0.034)


def test_track_that_repeats_captions_is_not_read(tmp_path):
    pictures = captioned(tmp_path / "a.mkv", LINES)
    track = scenarist(tmp_path / "a.scc", caption_pairs(LOAD, ROW, "PURPLE", FLIP, 30, ERASE))
    with (
        av.open(str(pictures)) as film,
        av.open(str(track)) as captions,
        av.open(str(tmp_path / "a.mov"), "w") as out,
    ):
        outputs = [out.add_stream_from_template(source.streams[0]) for source in (film, captions)]
        for source, stream in zip((film, captions), outputs, strict=True):
            for packet in source.demux():
                if packet.size:
                    packet.stream = stream
                    out.mux(packet)
    subtitles = read_tracks(tmp_path / "a.mov")
    assert [cue.text for cue in subtitles] == LINES and subtitles.format == "eia_608"


@pytest.mark.parametrize("suffix", ["ts", "mkv"])
def test_captions_of_joined_recordings_are_kept_apart(tmp_path, suffix):
    second_lines = ["YELLOW SUBMARINE", "ORANGE BALLOON"]
    path = captioned(tmp_path / f"a.{suffix}", LINES)
    second_path = captioned(tmp_path / f"b.{suffix}", second_lines)
    first, second = read_tracks(path), read_tracks(second_path)
    frames = len(list(sample(path, 30)))
    path.write_bytes(path.read_bytes() + second_path.read_bytes())
    subtitles = read_tracks(path)
    assert [cue.text for cue in subtitles] == [*LINES, *second_lines]
    starts = [cue.start for cue in first] + [cue.start + frames / 30 for cue in second]
    assert [cue.start for cue in subtitles] == pytest.approx(starts, abs=0.034)  # a picture


def test_cues_of_joined_recordings_follow_their_pictures(tmp_path):
    (tmp_path / "a.srt").write_text(SRT)
    path = muxed(tmp_path / "a.mkv", tmp_path / "a.srt")
    alone = cue_rows(read_tracks(path))
    path.write_bytes(path.read_bytes() * 2)
    later = [(start + 5, end + 5, text) for start, end, text in alone]
    assert cue_rows(read_tracks(path)) == [*alone, *later]
    images = [frame.image.mean() for frame in sample(path, 1)]
    assert images[5:] == images[:5]  # sampling shows the second recording from second 5 on


def test_files_without_cues_say_why(tmp_path, monkeypatch):
    path = tmp_path / "a.srt"
    for content, reason in (
        (b"", "is empty"),
        (b"no subtitles", "holds no cue: no line has the times"),
        (bytes(99), "is empty"),
        (bytes(range(256)) * 9, "is not text"),
        (b"\x00\x00\x01\xba" + bytes(99), "pictures, not text"),
        (b"PK\x03\x04" + bytes(99), "ZIP archive"),
        (b"1\n00:00:01,000 --> 00:00:02,000\n \n", "its cues have no text"),
        (b"1\n-00:00:05,000 --> -00:00:02,000\nhello\n", "1 block could not be read"),
        (b"[Events]\nDialogue: 0,0:00:0x.00,0:00:02.00,Default,,0,0,0,,hello", "1 block could not"),
    ):
        path.write_bytes(content)
        with pytest.raises(VideoError, match=reason):
            read_file(path)
    monkeypatch.setattr(reader, "MAX_SUBTITLE_BYTES", 9)
    with pytest.raises(VideoError, match="too large"):
        read_file(path)
    with pytest.raises(VideoError, match="not there"):
        read_file(tmp_path / "b.srt")


def read(tmp_path, content, name="a.srt"):
    """Write a file and return its subtitles."""
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(data)
    return read_file(tmp_path / name)


def cue_rows(subtitles):
    return [(cue.start, cue.end, cue.text) for cue in subtitles]


FIRST_CUE, SECOND_CUE = (1.0, 3.0, "purple elephant"), (5.0, 6.0, "green bicycle")
SUBRIP = """1
00:00:01,000 --> 00:00:03,000
purple elephant

2
00:00:05,000 --> 00:00:06,000
green bicycle
"""


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: text.replace("\n", "\r\r\n"),
        lambda text: text.replace("\n", "\n\n"),  # a blank line after each line
        lambda text: text.replace(",", "."),
        lambda text: text.replace("00:00:", "00:"),
        lambda text: text.replace(",000", ""),
        lambda text: text.replace("00:00:", "00:").replace(",", "."),
        lambda text: text.replace("00:00:0", "0:0:"),
        lambda text: text.replace(",000", ",0"),
        lambda text: text.replace(",000", ":000"),
        lambda text: text.replace("00:00:", "00: 00: ").replace(",", " , "),
        lambda text: text.replace("1\n00", "00").replace("2\n00", "00"),  # without numbers
        lambda text: text.replace("\n\n", "\n"),  # without blank lines
        lambda text: text.replace("\n\n", "\n").replace("1\n00", "00").replace("2\n00", "00"),
        lambda text: text.replace("\n\n", "\n  \t\n"),
        lambda text: text.replace("\n\n", "\n\n\n\n\n"),
        lambda text: text.replace(" --> ", "-->"),
        lambda text: text.replace("-->", "->"),
        lambda text: text.replace("-->", "--&gt;"),
        lambda text: text.replace("-->", "\u2192"),
        lambda text: text.replace("-->", "\u2013>"),
        lambda text: text.replace("1\n00", "1 00").replace("2\n00", "2 00"),
        lambda text: text.replace("3,000", "3,000  X1:100 X2:200 Y1:5 Y2:6"),
        lambda text: "\ufeff\n\n" + text + "\n\n\x1a",
        lambda text: "Downloaded somewhere\n\n" + text,
        lambda text: text.replace("2\n00", "17\n00"),
        lambda text: text.replace("1\n00", "00", 1),
        lambda text: text.replace("1\n00", "no. 1\n00", 1),
        lambda text: text.replace("1\n00", "[00").replace("2\n00", "00").replace("3,000", "3,000]"),
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("purple", "\u200bpu\x02rple\u202c\ufeff"),
        lambda text: text.replace(":0", "\uff1a0").replace(",", "\uff0c"),
    ],
)
def test_careless_subrip_gives_the_same_cues(tmp_path, change):
    assert cue_rows(read(tmp_path, change(SUBRIP))) == [FIRST_CUE, SECOND_CUE]


@pytest.mark.parametrize(
    "broken",
    [
        "00:00:0x,000 --> 00:00:04,000",
        "00:00:04,000 -->",
        "--> 00:00:04,000",
        "00:00:04,000 --> ",
        "??:??:?? --> 00:00:05,000",
        "-00:00:09,000 --> -00:00:04,000",
    ],
)
def test_unreadable_time_loses_only_its_block(tmp_path, broken):
    text = SUBRIP.replace("\n2\n", f"\n2\n{broken}\nlost words\nand more\n\n3\n")
    web = "WEBVTT\n\n" + text.replace(",", ".")
    for name in ("a.srt", "a.vtt"):
        subtitles = read(tmp_path, text, name)
        assert cue_rows(subtitles) == [FIRST_CUE, SECOND_CUE] and subtitles.skipped == 1
        assert subtitles.warnings == ("1 block could not be read",)
        assert cue_rows(read(tmp_path, web, name)) == [FIRST_CUE, SECOND_CUE]
    close = text.replace("\n\n", "\n")  # no blank line ends the text before
    assert cue_rows(read(tmp_path, close, "a.srt")) == [FIRST_CUE, SECOND_CUE]


@pytest.mark.parametrize("text", ["The train 12:30 -> 14:00", "from x -> 2.5"])
def test_arrow_in_a_sentence_is_text(tmp_path, text):
    subtitles = read(tmp_path, SUBRIP.replace("purple elephant", text))
    assert cue_rows(subtitles) == [(1, 3, text), SECOND_CUE] and not subtitles.skipped


def test_text_beside_the_times_keeps_its_words(tmp_path):
    close = SUBRIP.replace(
        ":03,000\npurple", ":03,000 align: start X1:1 Ending credits start\npurple"
    )
    [cue, _] = read(tmp_path, close)
    assert cue.text == "Ending credits start purple elephant"


WEB = "00:01.000 --> 00:03.000\npurple elephant\n\n00:05.000 --> 00:06.000\ngreen bicycle\n"


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        ("WEBVTT\n\n" + WEB, 0),
        ("WEBVTT - a title\nKind: captions\nX-TIMESTAMP-MAP=MPEGTS:900000\n\n" + WEB, 0),
        ("WEBVTT\n" + WEB, 0),
        ("WEBVTT\nhello header\n \n" + WEB.replace("\n\n", "\n \n"), 0),
        ("webvtt\n\n" + WEB, 0),
        ("WEBVTT\n \n" + WEB.replace("\n\n", "\n \n \nNOTE a comment\n \nname\n"), 0),
        ("\ufeffWEBVTT\tx\n\n" + WEB, 0),
        (WEB, 0),  # without its header
        ("WEBVTT\n\n" + WEB.replace("\n\n", "\n\nstray\n\n"), 1),
        ("WEBVTT\n\n" + WEB.replace("\n\n", "\n\nstray\nlines\n\nof two blocks\n\n"), 2),
        ("WEBVTT\n\n" + WEB.replace("\n\n", "\n\nNOTE a comment\nof lines\n\n"), 0),
        ("WEBVTT\n\nSTYLE\n::cue { color: red }\n\nREGION\nid:a\n\n" + WEB, 0),
        ("WEBVTT\n\n" + WEB.replace("\n\n", "\n\nname of it\n"), 0),
        ("WEBVTT\n\n1\n" + WEB.replace("\n\n", "\n\n2\n"), 0),
        ("WEBVTT\n\n" + WEB.replace("00:03.000", "00:03.000 align:start  line:9,end"), 0),
        ("WEBVTT\n\n" + WEB.replace(".", ","), 0),
        ("WEBVTT\n\n" + WEB.replace("00:0", "00:00:0"), 0),
        ("WEBVTT\n\n" + WEB.replace("\n\n", "\n"), 0),
        ("WEBVTT\n\n" + WEB.replace("purple", "<v.loud Ann><c.red>pur<00:00:02.000>ple</c>"), 0),
        (("WEBVTT\n\n" + WEB).replace("\n", "\r"), 0),
        (("WEBVTT\n\n" + WEB).replace("\n", "\r\n"), 0),
        ("WEBVTT\n\n" + WEB.replace(".000 -->", " -->").replace("3.000", "3"), 0),
    ],
)  # fmt: skip
def test_webvtt_ignores_other_paragraphs_between_cues(tmp_path, text, skipped):
    has_header = text.lstrip("\ufeff").lower().startswith("webvtt")
    subtitles = read(tmp_path, text, "a.ass" if has_header else "a.vtt")
    assert cue_rows(subtitles) == [FIRST_CUE, SECOND_CUE] and subtitles.format == "vtt"
    assert subtitles.skipped == skipped


ASS_HEAD = (
    "[Script Info]\nScriptType: v4.00+\n[V4+ Styles]\nFormat: Name, Fontname\n"
    "Style: Default,Arial\n[Events]\n"
)


def dialogue(start, end, text):
    return f"Dialogue: 0,0:00:{start},0:00:{end},Default,,0,0,0,,{text}\n"


def test_substation_lines_follow_the_stated_fields(tmp_path):
    stated = "Format: Start, End, Text\nDialogue: 0:00:01.00,0:00:03.00,purple elephant\n"
    assert cue_rows(read(tmp_path, ASS_HEAD + stated, "a.ass")) == [FIRST_CUE]
    broken = (
        dialogue("01.00", "03.00", "purple elephant")
        + "Dialogue: 0,0:00:04\n"
        + dialogue("xx.00", "05.00", "lost")
        + "Comment: 0,0:00:04.00,0:00:05.00,Default,,0,0,0,,a remark\n"
        + "[Fonts]\nfontname: a.ttf\n!#$%&\n[Events]\n"
        + dialogue("05.00", "06.00", "green bicycle")
    )
    indented = broken.replace("Dialogue:", "  dialogue:")
    for text in (ASS_HEAD + broken, broken, indented, (ASS_HEAD + broken).replace("\n", "\r\n")):
        subtitles = read(tmp_path, text, "a.srt")
        assert (
            cue_rows(subtitles) == [FIRST_CUE, SECOND_CUE]
            and subtitles.skipped == 2
            and subtitles.format == "ass"
        )
    with pytest.raises(VideoError, match="drawings, not text"):
        read(tmp_path, ASS_HEAD + dialogue("01.00", "02.00", r"{\p1}m 0 0 l 9 9"), "a.ass")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (r"{\p1}m 0 0 l 100 0{\p0}purple elephant", "purple elephant"),
        (r"purple{\pos(1,2)\pbo3} elephant", "purple elephant"),
        (r"purple\helephant", "purple elephant"),
        (r"purple\Nelephant\n", "purple elephant"),
        (r"{\k20}pur{\kf30}ple{\K9} ele{\ko1}phant", "purple elephant"),
        ("{a remark}purple {=12}elephant", "purple elephant"),
        (r"{\an8\fad(1,2)}{\i1}purple{\i0} elephant", "purple elephant"),
        (r"purple elephant, it said, {unclosed", "purple elephant, it said, {unclosed"),
        (r"5 < 6 and 7 > 3", "5 < 6 and 7 > 3"),
        (r"\{laughs\} {\i1}purple", "{laughs} purple"),  # as FFmpeg writes braces of WebVTT
        (r"\{{}laughs} purple", "{laughs} purple"),
    ],
)
def test_substation_overrides_are_removed(tmp_path, raw, text):
    subtitles = read(tmp_path, ASS_HEAD + dialogue("01.00", "03.00", raw), "a.ass")
    assert cue_rows(subtitles) == [(1, 3, text)]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("5 < 6 and 7 > 3", "5 < 6 and 7 > 3"),
        ("I <3 you, x<y and y>z", "I <3 you, x<y and y>z"),
        ("{laughs} {so they say}", "{laughs} {so they say}"),
        (r"{\an8}{\pos(1,2)}up{\i1} there{\i0}", "up there"),
        ("{y:i}{Y:b}{c:$0000ff}leaning", "leaning"),
        ('<i>lean</i>ing <font color="#ff0000">red</font><br/>line', "leaning red line"),
        ("<FONT COLOR='red' FACE='x'>red</FONT >", "red"),
        ("<laughs> loudly", "<laughs> loudly"),
        ("Tom&nbsp&amp;&nbsp;Ann&nbsp", "Tom & Ann"),
        ("Tom &amp; Ann &lt;3 &#9835; &#x266A; caf&eacute;", "Tom & Ann <3 ♫ ♪ café"),
        ("New&nbsp;York&ensp;city AT&T &unknown; &amp", "New York city AT&T &unknown; &amp"),
        ("it&amp;#39;s &amp;quot;fine&amp;quot;", 'it\'s "fine"'),
        ("\u266a la la \u266a", "♪ la la ♪"),
        ("A --> B", "A --> B"),
        ("first\n\nsecond after a blank line", "first second after a blank line"),
        ("over\x02 the\x00 hill", "over the hill"),
        ("\u202bשלום\u202c \u200fעולם", "שלום עולם"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("cafe\u0301", "café"),
        ("wide\u3000space\u00a0here", "wide space here"),
        ("in 1984\n42", "in 1984 42"),
        (
            "<ruby>東<rt>とう</rt>京<rt>きょう</ruby>都 "
            "<ruby>北<rp>(</rp><rt>きた</rt><rp>)</rp></ruby>区",
            "東京都 北区 とうきょう きた",
        ),
        ("one\0two\0", "one two"),
    ],
)
def test_text_keeps_its_words_and_loses_its_markup(tmp_path, raw, text):
    subtitles = read(tmp_path, f"1\n00:00:01,000 --> 00:00:03,000\n{raw}\n")
    assert cue_rows(subtitles) == [(1, 3, text)]


YOUTUBE = """WEBVTT
Kind: captions

00:00:00.160 --> 00:00:02.389 align:start position:0%
 
hello<00:00:00.400><c> everyone</c><00:00:01.000><c> here</c>

00:00:02.389 --> 00:00:02.399 align:start position:0%
hello everyone here
 

00:00:02.399 --> 00:00:05.000 align:start position:0%
hello everyone here
welcome<00:00:03.000><c> back</c>

00:00:05.000 --> 00:00:05.010 align:start position:0%
welcome back
 

00:00:05.010 --> 00:00:07.000 align:start position:0%
welcome back
today<00:00:06.000><c> we</c><00:00:06.500><c> swim</c>
"""


def test_rolling_captions_give_each_sentence_once(tmp_path):
    subtitles = read(tmp_path, YOUTUBE, "a.vtt")
    assert [cue.text for cue in subtitles] == [
        "hello everyone here",
        "welcome back",
        "today we swim",
    ]
    assert [cue.start for cue in subtitles] == [0.16, 2.399, 5.01]
    lines = ["one fine day", "we went out", "to the sea"]
    rolled = "".join(
        f"{i + 1}\n00:00:{2 * i:02},000 --> 00:00:{2 * i + 2:02},000\n"
        + "\n".join(lines[max(i - 1, 0) : i + 1])
        + "\n\n"
        for i in range(3)
    )
    assert [cue.text for cue in read(tmp_path, rolled)] == lines
    overlapping = rolled.replace("02,000\n", "03,500\n", 1).replace("04,000\n", "05,500\n", 1)
    assert [cue.text for cue in read(tmp_path, overlapping)] == lines
    grown = "".join(
        f"{i}\n00:00:0{i},000 --> 00:00:0{i + 1},000\n{'to the river'[: 4 * i]}\n\n"
        for i in (1, 2, 3)
    )
    assert cue_rows(read(tmp_path, grown)) == [(1, 4, "to the river")]
    again = SUBRIP.replace("green bicycle", "purple elephant")  # two seconds later it is said again
    assert len(read(tmp_path, again)) == 2


def test_rolling_line_extends_the_cue_that_contains_it(tmp_path):
    cues = (1, 4, "THE OLD\nSHOP"), (2, 3, "hello there"), (4, 6, "THE OLD\nSHOP"), (6, 8, "SHOP")
    text = "\n\n".join(f"00:00:0{start} --> 00:00:0{end}\n{shown}" for start, end, shown in cues)
    assert cue_rows(read(tmp_path, text)) == [(1, 8, "THE OLD SHOP"), (2, 3, "hello there")]


def test_sign_that_moves_every_frame_is_one_cue(tmp_path):
    lines = "".join(
        dialogue(f"{1 + i * 0.04:05.2f}", f"{1.04 + i * 0.04:05.2f}", rf"{{\pos({i},2)}}SHOP")
        for i in range(100)
    ) + dialogue("02.00", "04.00", "hello there")  # fmt: skip
    assert cue_rows(read(tmp_path, ASS_HEAD + lines, "a.ass")) == [
        (1, 5, "SHOP"), (2, 4, "hello there")
    ]  # fmt: skip


def test_thumbnail_tracks_are_refused(tmp_path):
    tile = "00:0{0}.000 --> 00:0{1}.000\nsprites/image1.jpg#xywh=0,0,160,90\n\n"
    text = "WEBVTT\n\n" + tile.format(1, 2) + tile.format(2, 3)
    with pytest.raises(VideoError, match="holds no cue: its cues show pictures"):
        read(tmp_path, text, "a.vtt")
    assert cue_rows(read(tmp_path, text + WEB, "a.vtt")) == [FIRST_CUE, SECOND_CUE]


def test_microdvd_uses_its_frame_rate_or_the_videos(tmp_path):
    text = "{1}{1}25.000\n{25}{75}{y:i}purple|elephant\n{125}{150}green bicycle\nbroken\n"
    subtitles = read(tmp_path, text, "a.sub")
    assert cue_rows(subtitles) == [FIRST_CUE, SECOND_CUE] and (
        subtitles.format,
        subtitles.skipped,
    ) == ("microdvd", 1)
    bare = text.partition("\n")[2]
    assert read(tmp_path, bare, "a.sub").cues[0].start == pytest.approx(25 * 1001 / 24000, abs=1e-3)
    with av.open(str(tmp_path / "a.mp4"), "w") as out:
        out.mux(encoded(add_film(out, rate=25), 50))
    assert cue_rows(read_file(tmp_path / "a.sub", tmp_path / "a.mp4")) == [FIRST_CUE, SECOND_CUE]
    tenths = "[10][30]purple|/elephant\n[50][60]green bicycle\n"
    assert cue_rows(read(tmp_path, tenths, "a.sub")) == [FIRST_CUE, SECOND_CUE]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sbv", "0:00:01.000,0:00:03.000\npurple\nelephant\n\n"
            "0:00:05.000,0:00:06.000\ngreen bicycle"),
        (
            "a.sub",
            "[INFORMATION]\n[TITLE]x\n[SUBTITLE]\n00:00:01.00,00:00:03.00\npurple[br]elephant\n\n"
            "00:00:05.00,00:00:06.00\ngreen bicycle\n",
        ),
        (
            "a.smi",
            "<SAMI><HEAD><STYLE>P {color:red}</STYLE></HEAD><BODY>\n"
            "<SYNC Start=1000><P Class=EN>purple<br>elephant\n"
            "<SYNC Start=3000><P Class=EN>&nbsp;\n<sync start='5000'>\n"
            "<P>green <b>bicycle</b>"
            "<SYNC Start=6000><P>&nbsp;</BODY></SAMI>",
        ),
        (
            "a.ttml",
            '<?xml version="1.0"?><tt xmlns="http://www.w3.org/ns/ttml"><head><metadata>no</metadata></head>'
            '<body><div><p begin="00:00:01.000" end="00:00:03.000">purple<br/>elephant</p>'
            '<p begin="5s" dur="1000ms"><span>green</span> bicycle</p></div></body></tt>',
        ),
        (
            "a.dfxp",
            '<tt:tt xmlns:tt="http://www.w3.org/2006/10/ttaf1" ttp:frameRate="25"'
            ' ttp:tickRate="1000"><tt:body><tt:div><tt:p begin="00:00:01:00"'
            ' end="00:00:02:25">purple\n  elephant</tt:p>'
            '<tt:p begin="5000t" end="150f">green bicycle</tt:p></tt:div></tt:body></tt:tt>',
        ),
        (
            "a.itt",
            '<tt><body begin="1s"><div><p begin="0s" end="2s">'
            '<span begin="0s">purple </span>elephant</p>'
            '<p begin="broken">lost</p><p><span begin="4s" end="5s">green & bicycle</span>'
            "</p></div></body>",
        ),
        (
            "a.ttml",
            '<!DOCTYPE tt [<!ENTITY a "aaaaaaaaaa"><!ENTITY x SYSTEM "file:///etc/passwd">]>'
            "<tt><body><div>"
            '<p begin="1s" end="3s">purple &x; elephant</p><p begin="5s" end="6s">green &a;bicycle'
            "</p>",
        ),
        (
            "a.xml",
            '<?xml version="1.0"?><transcript><text start="1" dur="2">purple elephant</text>'
            '<text start="5" dur="1">green bicycle</text></transcript>',
        ),
        (
            "a.ttml",
            '<timedtext format="3"><body><p t="1000" d="2000"><s>purple</s>'
            '<s t="500"> elephant</s></p>'
            '<p t="5000" d="1000">green bicycle</p></body></timedtext>',
        ),
        (
            "a.ttml",
            '<timedtext><text t="1000" d="2000">purple elephant</text>'
            '<text t="5000" d="1000">green bicycle</text></timedtext>',
        ),
    ],
)  # fmt: skip
def test_further_formats_give_the_same_cues(tmp_path, name, text):
    assert name == "a.xml" or name.removeprefix("a") in SUFFIXES
    cues = cue_rows(read(tmp_path, text, name))
    assert [(start, end) for start, end, _ in cues] == [(1, 3), (5, 6)]
    words = [" ".join(w for w in text.split() if w not in ("&", "&x;")) for *_, text in cues]
    assert [text.replace("&a;", "") for text in words] == ["purple elephant", "green bicycle"]


def test_times_are_ordered_and_not_negative(tmp_path):
    text = (
        "1\n00:00:09,000 --> 00:00:08,000\nend before start\n\n"
        "2\n-00:00:01,000 --> 00:00:02,000\nbegins early\n\n"
        "3\n00:00:01,500 --> 00:00:03,000\noverlaps\n\n"
        "4\n99999:00:00,000 --> 99999:00:01,000\nfar away\n\n"
    )
    subtitles = read(tmp_path, text)
    assert cue_rows(subtitles) == [
        (0, 2, "begins early"), (1.5, 3, "overlaps"), (9, 10, "end before start")
    ]  # fmt: skip
    assert subtitles.warnings == ("1 block could not be read",)


SENTENCES = {
    "cp1250 polish": "Gdzie zgubiłeś mój żółty płaszcz i książkę?",
    "cp1250 czech": "Zítra přijedeme až večer, počkejte na nás u řeky.",
    "cp1251 russian": "Завтра мы пойдём в лес за грибами.",
    "cp1251 ukrainian": "Завтра ми підемо до лісу по гриби, її сестра теж.",
    "koi8-r russian": "Собака спит под столом и видит сны.",
    "cp1252 french": "L'été dernier, la forêt était déjà brûlée là-bas.",
    "cp1252 german": "Die Mädchen hören schöne Lieder über große Flüsse.",
    "cp1252 spanish": "El niño comió una piña y después soñó con montañas.",
    "mac-roman french": "L'été dernier, la forêt était déjà brûlée là-bas.",
    "cp1253 greek": "Αύριο θα πάμε στη θάλασσα με τη γιαγιά.",
    "cp1254 turkish": "Yarın sabah dağdaki köye gideceğiz, çocuklar şarkı söyleyecek.",
    "cp1255 hebrew": "מחר נלך ליער לחפש פטריות.",
    "cp1256 arabic": "غدا سنذهب إلى الغابة مع الجدة.",
    "cp1257 lithuanian": "Rytoj eisime į mišką grybauti, močiutė taip pat važiuos.",
    "cp1257 latvian": "Rīt mēs iesim uz mežu sēņot, vecmāmiņa arī būs.",
    "cp1258 vietnamese": "Ngày mai chúng tôi s\u0303e đi biê\u0309n.",
    "gb18030 chinese": "明天我们去森林里采蘑菇。",
    "big5 chinese": "明天我們去森林裡採蘑菇。",
    "cp932 japanese": "明日は森へきのこを採りに行きます。",
    "euc_jp japanese": "明日は森へきのこを採りに行きます。",
    "cp949 korean": "내일 우리는 숲으로 버섯을 따러 가요.",
    "cp874 thai": "สวัสดีครับ สบายดีไหม",
    "iso8859-2 polish": "Cześć, źle zaparkowany samochód zajmuje każdą ścieżkę.",
    "iso8859-2 czech": "Šel jsem do města koupit chléb, žádný tu není.",
    "cp852 polish": "Gdzie zgubiłeś mój żółty płaszcz i książkę?",
    "iso8859-7 greek": "Άσε το σκυλί, Άννα, γιατί δαγκώνει.",
    "cp737 greek": "Αύριο θα πάμε στη θάλασσα με τη γιαγιά.",
    "iso8859-5 russian": "Где моя красная машина, за которой мы едем?",
    "cp866 russian": "Осторожно, собака кусается, до свидания.",
    "cp855 russian": "Осторожно, собака кусается, до свидания.",
    "mac-cyrillic russian": "Завтра мы пойдём в лес за грибами.",
    "cp850 french": "L'été dernier, la forêt était déjà brûlée là-bas.",
    "iso8859-15 french": "Ma sœur a le cœur léger, même très tôt.",
    "cp857 turkish": "Yarın sabah dağdaki köye gideceğiz, çocuklar şarkı söyleyecek.",
    "cp862 hebrew": "מחר נלך ליער לחפש פטריות.",
    "iso8859-6 arabic": "غدا سنذهب إلى الغابة مع الجدة.",
}
"""A sentence in each older encoding, in the languages of that encoding."""

SHORT_SENTENCES = {
    "cp1250": ["Dobrý den", "Dzień dobry", "Mulţumesc, bună ziua", "Kako se imaš, čovječe?"],
    "cp1252": [
        "Ça va très bien",
        "Você está lá?",
        "Perché non è venuto?",
        "un café, s'il vous plaît",
    ],
    "cp1254": ["Iğdır ağacı", "Köpek sokakta koşuyor"],
    "cp1257": ["Labas, kaip sekasi? Ačiū", "Suņi skrien pa ielu ātri"],
    "mac-roman": ["Ça va très bien", "El corazón del niño"],
    "cp1251": ["Добър ден", "Їжак їсть"],
}
"""A few words with two or three letters that are not ASCII."""


@pytest.mark.parametrize(
    ("encoding", "text"),
    [(name, text) for name, texts in SHORT_SENTENCES.items() for text in texts],
)
def test_few_words_suffice_to_detect_the_encoding(tmp_path, encoding, text):
    data = f"1\n00:00:01,000 --> 00:00:03,000\n{text}\n".encode(encoding)
    (tmp_path / "a.srt").write_bytes(data)
    assert [cue.text for cue in read_file(tmp_path / "a.srt")] == [text]


@pytest.mark.parametrize("case", SENTENCES)
def test_single_sentence_suffices_to_detect_the_encoding(tmp_path, case):
    encoding = case.split()[0]
    text = unicodedata.normalize("NFC", SENTENCES[case])
    data = SENTENCES[case].encode(encoding)
    block = b"1\n00:00:01,000 --> 00:00:03,000\n%s\n"
    subtitles = read(tmp_path, block % data)
    assert cue_rows(subtitles) == [(1, 3, text)] and not subtitles.warnings
    many = b"\n".join(block % data for _ in range(6)).replace(b"\n", b"\r\n")
    assert [cue.text for cue in read(tmp_path, many)] == [text]
    # A damaged byte loses its character, and a neighbour in Chinese, Japanese and Korean.
    place = len(data) * 2 // 3
    damaged = data[:place] + b"\xff" + data[place + 1 :]
    [cue] = read(tmp_path, block % damaged, f"a.{case.split()[1]}.srt")
    assert cue.text[:6] == text[:6]
    assert len(set(text.split()) - set(cue.text.split())) <= 2


@pytest.mark.parametrize("encoding", ["iso8859-13", "cp1257"])
def test_quotation_marks_of_baltic_encodings_are_read(tmp_path, encoding):
    for marks in ("\u201e\u201c", "\u201c\u201d"):
        for language in ("lithuanian", "latvian"):
            text = marks[0] + SENTENCES[f"cp1257 {language}"] + marks[1]
            data = SUBRIP.encode().replace(b"purple elephant", text.encode(encoding))
            subtitles = read(tmp_path, data)
            assert subtitles.cues[0].text == text and not subtitles.warnings
            assert subtitles.encoding == encoding


def test_text_in_no_listed_encoding_has_a_warning(tmp_path):
    text = SENTENCES["cp852 polish"]
    data = SUBRIP.encode().replace(b"purple elephant", text.encode("mac-latin2"))
    [line] = read(tmp_path, data).warnings
    assert line.startswith("uncertain text encoding: symbols inside words as ")
    (tmp_path / "a.srt").write_bytes(data)
    assert line in read_tracks(muxed(tmp_path / "a.mkv", tmp_path / "a.srt")).warnings


def test_latin_words_in_chinese_have_no_warning(tmp_path):
    text = "如何以及何时使用CSS，在IE中为abbr标签加样式，alt属性和title属性，OK吗"
    data = SUBRIP.encode().replace(b"purple elephant", text.encode("gb18030"))
    subtitles = read(tmp_path, data)
    assert subtitles.cues[0].text == text and not subtitles.warnings


def test_file_of_albanian_sentences_is_not_read_as_lithuanian(tmp_path):
    text = "Kjo është një ditë e mirë për të shkuar. Nuk e di se çfarë të them."
    data = SUBRIP.encode().replace(b"purple elephant", text.encode("cp1250"))
    assert read(tmp_path, data).cues[0].text == text


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"],
)
def test_unicode_needs_no_byte_order_mark(tmp_path, encoding):
    for text in ("purple elephant", "Мы идём на рынок", "日本語\u3000テスト", "é"):
        block = f"1\n00:00:01,000 --> 00:00:03,000\n{text}\n"
        assert cue_rows(read(tmp_path, block.encode(encoding))) == [(1, 3, " ".join(text.split()))]


def test_damaged_byte_of_utf8_loses_one_character(tmp_path):
    text = "日本語 テスト, русский текст"
    data = text.encode()
    for place in range(len(data)):
        broken = data[:place] + b"\xff" + data[place + 1 :]
        [cue] = read(tmp_path, b"1\n00:00:01,000 --> 00:00:03,000\n" + broken + b"\n")
        assert sum(c not in cue.text for c in set(text)) <= 1
    cue = read(tmp_path, SUBRIP.encode().replace(b"purple", b"pur\xe9ple")).cues[0]
    assert cue.text == "puréple elephant"  # a single byte is of an older encoding


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("text", "encoding"),
    [("Où est le café ?", "cp1252"), ("“Давай” домам", "latin-1"), ("Às vezes é bom", "latin-1")],
)
def test_text_that_was_encoded_twice_is_restored(tmp_path, mark, text, encoding):
    once = (mark + SUBRIP.replace("purple elephant", text)).encode()
    subtitles = read(tmp_path, once.decode(encoding).encode())
    assert cue_rows(subtitles)[0] == (1, 3, text) and subtitles.encoding == "utf-8"


@pytest.mark.parametrize(
    "text", ["CAFÉ Â LA CARTE", "NÃO É", "± 5 Â", "«Ça»", "Ich weiß…", "CAFÉ\xa0!"]
)
def test_text_that_was_encoded_once_is_unchanged(tmp_path, text):
    subtitles = read(tmp_path, SUBRIP.replace("purple elephant", text).encode())
    assert cue_rows(subtitles)[0] == (1, 3, text.replace("\xa0", " "))


def test_utf8_mark_before_another_encoding_is_ignored(tmp_path):
    data = SUBRIP.encode().replace(b"purple elephant", "Мы идём на рынок".encode("cp1251"))
    assert read(tmp_path, b"\xef\xbb\xbf" + data).cues[0].text == "Мы идём на рынок"


def test_words_of_ascii_do_not_favour_an_encoding(tmp_path):
    for text in ("Kas see on öö? See on see, kas see on öö", "Jestem tu, jestem, jestem gość"):
        data = SUBRIP.encode().replace(b"purple elephant", text.encode("cp1250"))
        assert read(tmp_path, data).cues[0].text == text


def test_language_in_the_name_helps_to_detect_the_encoding(tmp_path):
    data = SUBRIP.encode().replace(b"purple elephant", "Le titre à part".encode("cp1252"))
    assert read(tmp_path, data, "a.fr.srt").cues[0].text == "Le titre à part"
    greek = SUBRIP.encode().replace(b"purple elephant", "Ναι, ναι".encode("cp1253"))
    assert read(tmp_path, greek, "a.el.forced.srt").cues[0].text == "Ναι, ναι"
    hebrew = SUBRIP.encode().replace(b"purple elephant", "כן".encode("cp1255"))
    for name in ("a.he.srt", "a_he.srt", "a-he-IL.srt", "2_Hebrew.srt", "a (Hebrew).srt"):
        assert read(tmp_path, hebrew, name).cues[0].text == "כן"


HEADS = {
    "srt": "1\n00:00:01,000 --> 00:00:03,000\n",
    "vtt": "WEBVTT\n\n00:01.000 --> 00:03.000\n",
    "ass": ASS_HEAD + "Dialogue: 0,0:00:01.00,0:00:03.00,D,,0,0,0,,",
    "ttml": "<tt><body><p begin='1s' end='2s'>",
    "sami": "<SAMI><SYNC Start=1000>",
}


@pytest.mark.parametrize("head", HEADS)
def test_reading_time_is_linear_in_the_length_of_a_file(tmp_path, head):
    for unit in "<", "{", "&", "--> ", "<a a=", "<!--", "\n", " ", "1:", "{\\p1}", "\xff", "<p>":
        start = time.process_time()
        with contextlib.suppress(VideoError):
            read(tmp_path, HEADS[head] + unit * (30_000 // len(unit)))
        seconds = time.process_time() - start
        assert seconds < 1.5, unit  # 4 s if each opener is followed to the end


def test_detecting_an_encoding_takes_little_memory():
    content = ("лес " * 60_000).encode()
    tracemalloc.start()
    assert charset.detect(content) == "utf-8"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * len(content)  # 40 times with a string for each letter


def test_too_many_cues_or_letters_are_cut_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MAX_CUES", 1)
    subtitles = read(tmp_path, SUBRIP.replace("purple", "purple " * 9999))
    assert len(subtitles) == 1 and len(subtitles.cues[0].text) <= 10_000
    assert subtitles.warnings == (
        "1 cue cut to 10,000 characters", "1 cue left out: only 1 are read"
    )  # fmt: skip


@hypothesis.settings(max_examples=60, deadline=None, database=None)
@hypothesis.given(data=st.data())
def test_any_damage_gives_cues_or_one_line(tmp_path_factory, data):
    seeds = [*HEADS.values(), SUBRIP, "WEBVTT\n\n" + WEB, YOUTUBE, "{1}{1}25\n{25}{75}a|b\n"]
    content = data.draw(st.sampled_from(seeds)).encode()
    parts = [b"<", b"{", b"-->", b"\n", b"\xff", b"\x00", b"99:", b"Dialogue:", b""]
    pieces = st.sampled_from(parts) | st.binary(max_size=4)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 9))
        content = content[:place] + data.draw(pieces) + content[place + length :]
    folder = tmp_path_factory.getbasetemp()
    try:
        subtitles = read(folder, content, "a" + data.draw(st.sampled_from(sorted(SUFFIXES))))
    except VideoError as error:
        assert "\n" not in str(error)
    else:
        assert subtitles.cues or subtitles.format == "xml"
        assert all(0 <= cue.start < cue.end and cue.text for cue in subtitles)
