"""Seconds of frames, and what stands in for timestamps that are missing or bad."""

from fractions import Fraction

import av
import bad_videos
import numpy as np
import pytest
import videos

from hlformer_jax import video
from hlformer_jax.video.clock import Clock
from hlformer_jax.video.opening import opened


def test_timestamps_that_stand_still_are_told(tmp_path):
    frames = video.sample(bad_videos.standing_still(tmp_path), 12)
    assert len(list(frames)) == 4
    assert "2 frames come too late" in frames.warning


@pytest.fixture
def film(tmp_path):
    """Twelve frames a second, whose timestamps are in milliseconds."""
    with opened(videos.write(tmp_path / "film.mkv", frames=24)) as opening:
        yield opening


def stamped(seconds):
    frame = av.VideoFrame(16, 16, "yuv420p")
    frame.pts = None if seconds is None else round(1000 * seconds)
    return frame


def times(clock, *stamps):
    return [clock.time(stamped(stamp)) for stamp in stamps]


def test_a_frame_without_a_timestamp_follows_the_one_before(film):
    clock = Clock(film)
    assert times(clock, 0, None, None, 0.5) == [0, film.period, 2 * film.period, Fraction(1, 2)]
    assert clock.end == Fraction(1, 2) + film.period


def test_the_length_of_a_frame_is_its_own_where_it_has_one(film):
    clock, frame = Clock(film), stamped(0)
    frame.duration = 250
    assert clock.time(frame) == 0 and clock.end == Fraction(1, 4)
    assert times(clock, None) == [Fraction(1, 4)]


def test_a_frame_up_to_two_seconds_late_is_left_out_and_one_later_still_is_a_jump(film):
    clock = Clock(film)
    assert times(clock, 5, 5, 3) == [5, None, None]
    assert (clock.disordered, clock.jumps) == (2, 0)
    after = 5 + film.period
    assert times(clock, 2.99, 3.49) == [after, after + Fraction(1, 2)]
    assert (clock.disordered, clock.jumps) == (2, 1)


def test_a_gap_of_an_hour_is_kept_and_a_longer_one_is_a_jump(film):
    clock = Clock(film)
    assert times(clock, 0, 3600) == [0, 3600]
    assert clock.jumps == 0
    assert times(clock, 7201) == [3600 + film.period]
    assert clock.jumps == 1


def test_the_last_frame_ends_where_the_file_says_that_its_video_does(film):
    clock = Clock(film)
    times(clock, float(film.end) - 0.01)
    assert clock.end == film.end


def test_a_file_without_timestamps_begins_at_its_first_frame(tmp_path):
    with opened(videos.write(tmp_path / "a.h264", frames=6)) as raw:
        assert raw.start is None
        clock, frame = Clock(raw), stamped(None)
        frame.pts = 90_000
        assert clock.time(frame) == 0


def test_frames_of_an_avi_take_its_decoding_times_in_their_order(tmp_path):
    """The container has no others: what FFmpeg guesses of them is not asked."""
    path = videos.write(tmp_path / "a.avi", "mpeg4", frames=6, max_b_frames=2)
    with opened(path) as avi:
        clock = Clock(avi)
        packets = [packet for packet in avi.container.demux(avi.stream) if packet.size]
        for packet in packets[:3]:
            clock.sent(packet)
        stamps = sorted(packet.dts * avi.unit for packet in packets[:3])
        found = [clock.time(stamped(99), coming) for coming in (2, 1, 0)]
        assert np.diff(stamps).tolist() == [avi.period] * 2
        assert found == [stamp - avi.start for stamp in stamps]
