"""Subtitle files and tracks: formats, encodings, damaged blocks, text without markup."""

import av
import numpy as np
import pytest

from hlformer_jax.video import VideoError, subtitles
from hlformer_jax.video.subtitles import read_file, read_tracks

TWO = [(1.0, 2.5, "Hello there, world"), (3.0, 4.0, "Second line of two")]
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


@pytest.mark.parametrize(
    ("name", "text"), [("a.srt", SRT), ("a.en.VTT", VTT), ("a.ass", ASS), ("a.ssa", ASS)]
)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_every_format_gives_the_same_cues(tmp_path, name, text, encoding):
    (tmp_path / name).write_text(text, encoding=encoding)
    assert list(read_file(tmp_path / name)) == TWO


def test_a_text_of_an_older_encoding_is_read(tmp_path):
    (tmp_path / "a.srt").write_bytes("1\n00:00:01,000 --> 00:00:02,000\nCafé\n".encode("cp1252"))
    assert list(read_file(tmp_path / "a.srt")) == [(1, 2, "Café")]


@pytest.mark.parametrize("begin", [0, 3])
def test_cues_of_a_container_count_from_its_beginning(tmp_path, begin):
    (tmp_path / "a.srt").write_text(SRT)
    path = tmp_path / "a.mkv"
    with av.open(str(tmp_path / "a.srt")) as words, av.open(str(path), "w") as out:
        film = out.add_stream("libx264", rate=10)
        film.width, film.height, film.pix_fmt = 64, 48, "yuv420p"
        text = out.add_stream_from_template(words.streams.subtitles[0])
        for i in range(50):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), i, np.uint8), format="rgb24")
            frame.pts = i + 10 * begin
            out.mux(film.encode(frame))
        for packet in words.demux():
            if packet.pts is not None:
                packet.pts = packet.dts = packet.pts + 1000 * begin
                packet.stream = text
                out.mux(packet)
        out.mux(film.encode(None))
    assert list(read_tracks(path)) == TWO


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
        (b"1\n00:00:0x,000 --> 00:00:02,000\nhello\n", "1 block could not be read"),
    ):
        path.write_bytes(content)
        with pytest.raises(VideoError, match=reason):
            read_file(path)
    monkeypatch.setattr(subtitles, "MAX_SUBTITLE_BYTES", 9)
    with pytest.raises(VideoError, match="too large"):
        read_file(path)
    with pytest.raises(VideoError, match="not there"):
        read_file(tmp_path / "b.srt")
