"""Frames that are left undecoded change no other, and what is damaged is passed over and told."""

import os
import re

import bad_videos
import numpy as np
import pytest
import videos
from bad_videos import noisy, ordinary

from hlformer_jax import video
from hlformer_jax.video import decoding


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


@pytest.mark.parametrize("kind", bad_videos.USED)
def test_what_can_be_decoded_is_used_and_the_rest_is_told(tmp_path, capfd, kind):
    make, (least, most), told = bad_videos.USED[kind]
    path = make(tmp_path)
    frames = video.sample(path, 4)
    times = [frame.time for frame in frames]
    assert least <= frames.end <= most
    assert times[0] == 0 and np.diff(times) == pytest.approx(0.25, abs=0.1)
    assert re.search(told, frames.warning) and "\n" not in frames.warning
    assert video.probe(path).width == 64
    assert capfd.readouterr() == ("", "")


def test_a_file_cut_off_at_any_place_ends_in_frames_or_one_line(tmp_path):
    whole = {
        suffix: ordinary(tmp_path, f"whole.{suffix}") for suffix in ("mp4", "mkv", "ts", "avi")
    }
    for suffix, source in whole.items():
        content = source.read_bytes()
        path = tmp_path / f"part.{suffix}"
        for length in range(1, len(content), len(content) // 12):
            path.write_bytes(content[:length])
            try:
                assert len(list(video.sample(path))) <= 4
            except video.VideoError as error:
                assert "\n" not in str(error)


def test_a_file_deleted_while_it_is_read_is_read_to_its_end(tmp_path):
    path = ordinary(tmp_path, rate=12, frames=120)
    frames = iter(video.sample(path))
    next(frames)
    path.unlink()
    assert len(list(frames)) == 9


def test_a_file_cut_off_while_it_is_read_ends_with_a_warning(tmp_path):
    path = ordinary(tmp_path, "a.mkv", paint=noisy, frames=240)
    frames = video.sample(path)
    next(frames)
    os.truncate(path, path.stat().st_size // 2)
    assert 1 <= len(list(frames)) < 15
    assert "used as far as it can be read" in frames.warning
