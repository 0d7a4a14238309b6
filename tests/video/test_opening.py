"""Which files are opened, whatever they are called, and where their second 0 is."""

import contextlib
import os
import re
from fractions import Fraction
from pathlib import Path

import av
import bad_videos
import numpy as np
import pytest
import videos
from bad_videos import ordinary

from hlformer_jax import video
from hlformer_jax.video import opening
from hlformer_jax.video.opening import MOST_PIXELS, check_size, opened


@pytest.mark.parametrize("kind", bad_videos.REFUSED)
@pytest.mark.parametrize("ask", ["probe", "sample", "thumbnail", "cut"])
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path, capfd, kind, ask):
    make, reason = bad_videos.REFUSED[kind]
    path = make(tmp_path)
    capfd.readouterr()
    act = {
        "probe": lambda: video.probe(path),
        "sample": lambda: list(video.sample(path)),
        "thumbnail": lambda: video.thumbnail(path, 0.5, 32),
        "cut": lambda: video.cut(path, 0, 1, tmp_path / "clip.mp4"),
    }[ask]
    with pytest.raises(video.VideoError) as error:
        act()
    line = str(error.value)
    assert reason in line and repr(str(path)) in line
    assert line.isprintable() and re.search(r": .+$", line)
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "clip.mp4").exists()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("kind", bad_videos.PLAYLISTS)
def test_a_playlist_that_is_not_recognised_is_not_followed(tmp_path, kind):
    """By FFmpeg itself: without our look at its beginning and its name."""
    path = bad_videos.PLAYLISTS[kind](tmp_path)
    with contextlib.suppress(av.FFmpegError), opening.demuxer(path) as container:
        assert not container.streams.video  # but taken for subtitles, say
    with av.open(f"file:{tmp_path / 'part.mp4'}"):  # which is one that could be followed
        pass


NAMES = [
    'it\'s "quoted".mp4',
    "two\nlines\t.mp4",
    "Фильм 映画 🎬 é.mp4",
    "concat:a.mp4|b.mp4",
    "http:..mp4",
    "100%d.mp4",
    "-i.mp4",
    " .mp4",
    os.fsdecode(b"latin\xe9.mp4"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_may_be_anything(tmp_path, name):
    path = tmp_path / name
    ordinary(tmp_path, "plain.mp4").rename(path)
    assert len(list(video.sample(path))) == 3
    assert video.probe(path).duration == pytest.approx(3)
    video.cut(path, 1, 2, tmp_path / f"clip {name}")
    assert video.probe(tmp_path / f"clip {name}").duration == pytest.approx(1)
    assert video.find(tmp_path) == sorted(tmp_path.iterdir(), key=os.fsencode)


def test_a_relative_name_is_no_protocol(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ordinary(tmp_path, "plain.mp4").rename("pipe:0")
    assert len(list(video.sample("pipe:0"))) == 3


def test_a_wrong_suffix_does_not_matter(tmp_path):
    for name in ("a.avi", "b.ts", "c.jpg", "d"):
        ordinary(tmp_path, "plain.mkv").rename(tmp_path / name)
        assert len(list(video.sample(tmp_path / name))) == 3


def test_a_photograph_called_video_is_a_video_of_one_frame(tmp_path):
    path = bad_videos.photograph(tmp_path)
    assert [frame.time for frame in video.sample(path)] == [0]


def test_a_file_without_permission_is_refused(tmp_path):
    path = ordinary(tmp_path)
    path.chmod(0)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(video.VideoError, match="may not be read"):
            list(video.sample(path))
    finally:
        os.seteuid(before)


def test_mpeg2_in_a_transport_stream_begins_at_second_0(tmp_path):
    path = videos.write(tmp_path / "a.ts", "mpeg2video", rate=25, frames=50, max_b_frames=2)
    assert [frame.time for frame in video.sample(path, 2)] == pytest.approx([0, 0.48, 1, 1.48])


def test_pictures_that_begin_after_the_sound_keep_their_seconds(tmp_path):
    times = [2.25 + k / 12 for k in range(24)]
    path = videos.write(tmp_path / "a.mkv", times=times, frames=24, sound=(0, 5))
    frames = list(video.sample(path))
    assert [frame.time for frame in frames] == pytest.approx([2.25, 3.0, 4.0], abs=1e-3)
    assert videos.number(frames[1].image) == 9


def test_negative_timestamps_begin_at_second_0(tmp_path):
    path = videos.write(tmp_path / "a.nut", times=[-3 + k / 4 for k in range(12)], frames=12)
    assert [frame.time for frame in video.sample(path)] == pytest.approx([0, 1, 2])


def test_the_largest_of_the_films_is_the_video_where_none_is_the_default(tmp_path):
    path = tmp_path / "a.ts"
    with av.open(str(path), "w") as container:
        streams = []
        for width in (32, 64, 48):
            stream = container.add_stream("mpeg2video", rate=25)
            stream.width, stream.height, stream.pix_fmt = width, 48, "yuv420p"
            streams.append(stream)
        for index in range(3):
            for stream in streams:
                frame = av.VideoFrame.from_ndarray(
                    np.zeros((48, stream.width, 3), np.uint8), "rgb24"
                )
                frame.pts, frame.time_base = index, Fraction(1, 25)
                container.mux(stream.encode(frame))
        for stream in streams:
            container.mux(stream.encode(None))
    with opened(path) as film:
        assert film.stream.codec_context.width == 64
        assert film.period == Fraction(1, 25)
        read = {packet.stream.index for packet in film.container.demux() if packet.size}
        assert read == {film.stream.index}


def test_a_picture_is_refused_from_one_pixel_above_the_limit_on():
    check_size(Path("a.mp4"), MOST_PIXELS, 1)
    with pytest.raises(video.VideoError, match=r"'a\.mp4' states pictures of 134217729 x 1"):
        check_size(Path("a.mp4"), MOST_PIXELS + 1, 1)
