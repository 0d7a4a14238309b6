"""The sound of a clip stays with its pictures."""

from fractions import Fraction

import av
import numpy as np
import pytest
import videos

from hlformer_jax import video
from hlformer_jax.video.opening import opened
from hlformer_jax.video.sound import Silence, Sound


def test_sound_is_cut_where_the_pictures_are(tmp_path):
    """The tone sounds from 0.5 to 2 s: in the clip from 1 s, up to its second 1."""
    path = videos.write(tmp_path / "a.mp4", frames=36, sound=(0.5, 2))
    out = tmp_path / "clip.mp4"
    video.cut(path, 0.25, 2.5, out)
    with av.open(str(out)) as container:
        stream = container.streams.audio[0]
        loud = np.zeros(round(2.25 * 48_000))
        for frame in container.decode(stream):
            place = round(frame.time * 48_000)
            piece = np.abs(frame.to_ndarray()[0])[: len(loud) - place]
            loud[place : place + len(piece)] = piece
        length = float(stream.duration * stream.time_base)
    edges = np.flatnonzero(loud > 0.3)
    assert edges[0] / 48_000 == pytest.approx(0.25, abs=0.03)
    assert edges[-1] / 48_000 == pytest.approx(1.75, abs=0.03)
    assert 1.7 < length <= 2.26


@pytest.fixture
def clip(tmp_path):
    """What is heard of a video between two seconds, as amplitudes of samples."""

    def make(path, first, last, steps):
        out = tmp_path / "sound.mp4"
        with opened(path) as film, Sound.of(path, film, Fraction(first), Fraction(last)) as sound:
            with av.open(str(out), "w") as container:
                sound.into(container)
                for second in steps:
                    sound.write(Fraction(second))
                sound.finish()
        with av.open(str(out)) as container:
            stream = container.streams.audio[0]
            pieces = [frame.to_ndarray()[0] for frame in container.decode(stream)]
            return np.abs(np.concatenate(pieces)), stream.codec_context.sample_rate

    return make


def test_sound_is_written_up_to_the_second_asked_for_and_never_behind_the_clip(tmp_path, clip):
    path = videos.write(tmp_path / "a.mp4", frames=36, sound=(0, 3))
    for steps, length in (([1], 1), ([0.5, 1, 1], 1), ([9], 2)):
        samples, rate = clip(path, 0.5, 2.5, steps)
        assert len(samples) / rate == pytest.approx(length, abs=0.03)
        assert (samples > 0.3).any()


def test_a_gap_before_the_sound_is_silent(tmp_path, clip):
    path = videos.write(tmp_path / "a.mkv", frames=48, sound=(3, 4))
    samples, rate = clip(path, 0.5, 4, [1, 3.5])
    assert np.flatnonzero(samples > 0.3)[0] / rate == pytest.approx(2.5, abs=0.05)


def test_a_video_without_sound_has_silence(tmp_path):
    path = videos.write(tmp_path / "a.mp4", frames=6)
    with opened(path) as film, Sound.of(path, film, Fraction(0), Fraction(1)) as sound:
        assert isinstance(sound, Silence)
    video.cut(path, 0, 0.5, tmp_path / "clip.mp4")
    with av.open(str(tmp_path / "clip.mp4")) as container:
        assert not container.streams.audio
