"""Frames at a constant rate: the right ones, with true times, of every kind of file."""

import itertools
import math
import pathlib

import av
import numpy as np
import pytest
import videos

from hlformer_jax import video
from hlformer_jax.video import decoding

KINDS = {
    "h264 with B-frames.mp4": ("libx264", {"max_b_frames": 3}),
    "h264 without.mp4": ("libx264", {"max_b_frames": 0}),
    "h264.mkv": ("libx264", {}),
    "h264.ts": ("libx264", {}),
    "h264.avi": ("libx264", {}),  # FFmpeg's timestamps of it are wrong
    "h264.flv": ("libx264", {}),
    "raw.h264": ("libx264", {}),  # no timestamps at all
    "mpeg4.mp4": ("mpeg4", {"max_b_frames": 2, "qmax": 4}),
    "mpeg4.avi": ("mpeg4", {"max_b_frames": 2, "qmax": 4}),
    "flv.flv": ("flv", {}),
    "wmv.wmv": ("wmv2", {}),
    "motion jpeg.mov": ("mjpeg", {"pixels": "yuvj420p"}),
    "ffv1.mkv": ("ffv1", {}),
    "vp9.webm": ("libvpx-vp9", {"options": {"deadline": "realtime", "cpu-used": "8"}}),
    "hevc.mp4": (
        "libx265",
        {"options": {"x265-params": "log-level=none", "preset": "ultrafast"}},
    ),
    "h264 interlaced.ts": ("libx264", {"options": {"x264-params": "interlaced=1"}}),
    "mpeg2 interlaced.mkv": ("mpeg2video", {"options": {"flags": "+ildct+ilme"}}),
    "h264 of 10 bit.mkv": ("libx264", {"pixels": "yuv420p10le"}),
    "hevc of 10 bit.mp4": (
        "libx265",
        {
            "pixels": "yuv420p10le",
            "options": {"x265-params": "log-level=none", "preset": "ultrafast"},
        },
    ),
    "prores.mov": ("prores_ks", {"pixels": "yuv422p10le"}),
}


def have(codec):
    return codec in av.codecs_available


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("fps", [1, 5])
def test_the_frame_shown_at_each_instant_comes_with_its_timestamp(tmp_path, name, fps):
    codec, settings = KINDS[name]
    if not have(codec):
        pytest.skip(f"FFmpeg here has no {codec}")
    path = videos.write(tmp_path / name, codec, **settings)
    frames = video.sample(path, fps)
    found = [(frame.time, videos.number(frame.image)) for frame in frames]
    numbers = [math.floor(12 * k / fps + 1e-9) for k in range(3 * fps)]
    assert [number for _, number in found] == numbers or (
        # Containers that round to milliseconds may put a frame just behind its instant.
        path.suffix in {".mkv", ".webm", ".flv", ".wmv"}
        and all(
            number - 1 <= got <= number for number, (_, got) in zip(numbers, found, strict=True)
        )
    )
    assert [time for time, _ in found] == pytest.approx(
        [number / 12 for _, number in found], abs=1e-3
    )
    assert frames.warning == ""
    assert frames.end == pytest.approx(3, abs=2e-3)


def test_mpeg2_in_a_transport_stream_begins_at_second_0(tmp_path):
    path = videos.write(tmp_path / "a.ts", "mpeg2video", rate=25, frames=50, max_b_frames=2)
    assert [frame.time for frame in video.sample(path, 2)] == pytest.approx([0, 0.48, 1, 1.48])


def test_frames_of_a_variable_rate_are_the_last_before_each_instant(tmp_path):
    times = np.cumsum([0.0] + [0.05, 0.1, 0.4, 0.03, 0.02, 1.7] * 6)[:30].round(3).tolist()
    path = videos.write(tmp_path / "a.mkv", times=times, frames=30)
    found = [(frame.time, videos.number(frame.image)) for frame in video.sample(path, 2)]
    given = set()
    for k, (time, number) in enumerate(found):
        shown = max(i for i, t in enumerate(times) if t <= k / 2)
        assert number == shown
        assert time == pytest.approx(k / 2 if shown in given else times[shown])
        given.add(shown)
    assert len(found) == math.floor(times[-1] * 2) + 1
    assert all(a.time < b.time for a, b in itertools.pairwise(video.sample(path, 2)))


def test_a_frame_that_stays_is_given_at_every_instant(tmp_path):
    path = videos.write(tmp_path / "slides.mkv", times=[0, 4, 6.5], frames=3)
    found = [(frame.time, videos.number(frame.image)) for frame in video.sample(path)]
    assert found == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 1)]


def test_pictures_that_begin_after_the_sound_keep_their_seconds(tmp_path):
    times = [2.25 + k / 12 for k in range(24)]
    path = videos.write(tmp_path / "a.mkv", times=times, frames=24, sound=(0, 5))
    frames = list(video.sample(path))
    assert [frame.time for frame in frames] == pytest.approx([2.25, 3.0, 4.0], abs=1e-3)
    assert videos.number(frames[1].image) == 9


def test_negative_timestamps_begin_at_second_0(tmp_path):
    path = videos.write(tmp_path / "a.nut", times=[-3 + k / 4 for k in range(12)], frames=12)
    assert [frame.time for frame in video.sample(path)] == pytest.approx([0, 1, 2])


@pytest.mark.parametrize(
    ("codec", "suffix"), [("libx264", "mp4"), ("mpeg4", "mp4"), ("mpeg2video", "mkv")]
)
@pytest.mark.parametrize("fps", [1, 2.5, 7])
def test_passing_over_frames_changes_no_pixel(tmp_path, monkeypatch, codec, suffix, fps):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (48, 64, 3), np.uint8)
    paint = lambda k: np.roll(noise, (k, 3 * k), (0, 1))
    path = videos.write(
        tmp_path / f"a.{suffix}", codec, paint=paint, rate=25, frames=75, max_b_frames=3
    )
    quick = video.sample(path, fps)
    found = list(quick)
    monkeypatch.setattr(decoding, "SKIPPING", frozenset())
    every = list(video.sample(path, fps))
    assert [frame.time for frame in found] == [frame.time for frame in every]
    for one, other in zip(found, every, strict=True):
        np.testing.assert_array_equal(one.image, other.image)


def test_fewer_frames_are_decoded_than_there_are(tmp_path, monkeypatch):
    path = videos.write(tmp_path / "a.mp4", max_b_frames=3, rate=12, frames=60)
    decoders = []
    original = decoding.Decoder.__init__
    monkeypatch.setattr(
        decoding.Decoder, "__init__", lambda self, *a: decoders.append(self) or original(self, *a)
    )
    assert len(list(video.sample(path))) == 5
    assert decoders[0].frames < 40 and decoders[0].packets == 60


@pytest.mark.parametrize(
    ("matrix", "corners"),
    [
        ((1, 0, 0, 1), "rgbw"),
        ((0, 1, -1, 0), "brwg"),  # a quarter clockwise
        ((-1, 0, 0, -1), "wbgr"),
        ((0, -1, 1, 0), "gwrb"),
        ((-1, 0, 0, 1), "grwb"),  # mirrored
        ((1, 0, 0, -1), "bwrg"),
        ((0, 1, 1, 0), "rbgw"),
        ((0, -1, -1, 0), "wgbr"),
    ],
)
def test_pictures_are_turned_and_mirrored_as_the_file_asks(tmp_path, matrix, corners):
    path = videos.turned(videos.write(tmp_path / "a.mp4", paint=videos.quadrants, frames=2), matrix)
    image = next(iter(video.sample(path))).image
    height, width, _ = image.shape
    assert (width, height) == ((64, 48) if matrix[0] else (48, 64))
    names = {(1, 0, 0): "r", (0, 1, 0): "g", (0, 0, 1): "b", (1, 1, 1): "w"}
    places = itertools.product((height // 4, 3 * height // 4), (width // 4, 3 * width // 4))
    assert "".join(names[tuple(image[place] // 128)] for place in places) == corners
    assert video.probe(path)[1:3] == (width, height)


def test_pixels_that_are_not_square_become_square(tmp_path):
    path = videos.write(tmp_path / "a.mp4", frames=2, sample_aspect_ratio=2)
    assert next(iter(video.sample(path))).image.shape == (48, 128, 3)


def test_the_shorter_side_is_scaled_down_and_never_up(tmp_path):
    path = videos.write(tmp_path / "a.mp4", frames=2)
    assert next(iter(video.sample(path, size=24))).image.shape == (24, 32, 3)
    assert next(iter(video.sample(path, size=100))).image.shape == (48, 64, 3)


def test_a_gif_is_a_video(tmp_path):
    path = videos.write(tmp_path / "a.gif", "gif", pixels="rgb8", rate=10, frames=30)
    found = [(round(frame.time, 6), frame.image.shape) for frame in video.sample(path)]
    assert found == [(second, (48, 64, 3)) for second in range(3)]


@pytest.mark.parametrize(("fps", "size"), [(0, None), (-1, None), (math.nan, None), (1, 0)])
def test_a_senseless_rate_or_size_is_refused(tmp_path, fps, size):
    with pytest.raises(ValueError, match="fps > 0"):
        video.sample(tmp_path / "a.mp4", fps, size)


def test_memory_does_not_grow_with_the_number_of_frames(tmp_path):
    """320 x 240 pixels: 35 MB, were the decoded frames kept."""
    noise = np.random.default_rng(0).integers(0, 255, (240, 320, 3), np.uint8)
    path = videos.write(tmp_path / "a.mp4", "mpeg4", paint=lambda _: noise, frames=320)
    pages = lambda: int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    sizes = [4096 * pages() for _ in video.sample(path, 12)]
    assert len(sizes) == 320
    assert sizes[-1] - sizes[20] < 8_000_000
