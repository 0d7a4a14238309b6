"""Frames at a constant rate: the right ones, with true times, of every kind of file."""

import itertools
import math
import os
import pathlib

import av
import numpy as np
import pytest
import videos
from bad_videos import ordinary

from hlformer_jax import video

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


def test_one_frame_is_a_video(tmp_path):
    for suffix in ("mp4", "mkv", "ts", "avi", "webm"):
        codec = "libvpx-vp9" if suffix == "webm" else "libx264"
        path = ordinary(tmp_path, f"a.{suffix}", codec=codec, frames=1)
        frames = list(video.sample(path))
        assert [(frame.time, videos.number(frame.image)) for frame in frames] == [(0, 0)]
        assert video.probe(path).duration == pytest.approx(1 / 12, abs=2e-3)


def test_an_iteration_given_up_closes_the_file(tmp_path):
    path = ordinary(tmp_path)
    frames = video.sample(path)
    next(frames)
    assert str(path) in open_files()
    frames.close()
    assert str(path) not in open_files()


def open_files():
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the listing's own, closed by now
            continue
    return found
