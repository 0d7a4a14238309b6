"""Frames from a second on: the right ones, and few decoded before them."""

from fractions import Fraction

import pytest
import videos

from hlformer_jax.video import decoding
from hlformer_jax.video.opening import opened
from hlformer_jax.video.seeking import frames_from


def found(path, second):
    with opened(path) as film:
        return [
            (float(start), float(end), videos.number(frame.to_ndarray(format="rgb24")))
            for start, end, frame in frames_from(film, Fraction(second))
        ]


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "a.avi", "a.h264"])
def test_the_first_frame_is_the_one_shown_at_the_second_and_each_ends_at_the_next(tmp_path, name):
    frames = found(videos.write(tmp_path / name, gop_size=9), "2.05")
    assert [number for _, _, number in frames] == list(range(24, 36))
    assert [start for start, _, _ in frames] == pytest.approx(
        [number / 12 for number in range(24, 36)], abs=1e-3
    )
    assert [end for _, end, _ in frames[:-1]] == [start for start, _, _ in frames[1:]]
    assert frames[-1][1] == pytest.approx(3, abs=2e-3)


def test_a_second_outside_of_the_video_is_the_first_frame_or_the_last(tmp_path):
    path = videos.write(tmp_path / "a.mp4", times=[1 + k / 4 for k in range(8)], frames=8)
    assert [number for _, _, number in found(path, -3)] == list(range(8))
    assert [number for _, _, number in found(path, 500)] == [7]


def test_what_is_before_the_second_is_not_decoded(tmp_path, monkeypatch):
    path = videos.write(tmp_path / "a.mp4", frames=240, gop_size=12)
    decoders = []
    original = decoding.Decoder.__init__
    monkeypatch.setattr(
        decoding.Decoder, "__init__", lambda self, *a: decoders.append(self) or original(self, *a)
    )
    assert len(found(path, 18)) == 24
    assert sum(decoder.packets for decoder in decoders) <= 60
