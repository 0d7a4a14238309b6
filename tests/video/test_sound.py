"""Sound: the choice of a track, and samples at their times in damaged and unusual files."""

import re
from fractions import Fraction

import av
import numpy as np
import pytest
import videos
from videos import Track

from hlformer_jax import video
from hlformer_jax.video import read, sound

RATE = 16_000


def tone(seconds, frequency=440, rate=RATE):
    time = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * frequency * time)).astype(np.float32)


def silence(seconds, rate=RATE):
    return np.zeros(round(seconds * rate), np.float32)


def beep(start, total=4.0, frequency=440, rate=RATE):
    """Return a tone of half a second that begins at a second."""
    parts = silence(start, rate), tone(0.5, frequency, rate), silence(total - start - 0.5, rate)
    return np.concatenate(parts)


def heard(path, stream=None, first=Fraction(0), seconds=60.0):
    """Return all samples of a file's sound, and its reader."""
    with read.opened(path) as file:
        with sound.reading(file, stream, rate=RATE, layout="mono", first=first) as audio:
            parts = list(audio.read(round(seconds * RATE)))
            return np.concatenate([silence(0), *(part[0] for part in parts)]), audio


def begins(samples):
    """Return the seconds at which sound begins after 0.1 s of silence."""
    loud = np.flatnonzero(np.abs(samples) > 0.1)
    starts = loud[np.diff(loud, prepend=-RATE) > 0.1 * RATE]
    return (starts / RATE).tolist()


def frequency(samples):
    return np.argmax(np.abs(np.fft.rfft(samples))) * RATE / len(samples)


def test_gap_in_the_timestamps_becomes_silence(tmp_path):
    both = beep(0.5) + beep(3)
    path = videos.write_tracks(tmp_path / "a.mkv", Track(both, gap=(1.2, 2.5)))
    samples, audio = heard(path)
    assert begins(samples) == pytest.approx([0.5, 3], abs=0.002)
    assert audio.missing == pytest.approx(1.3, abs=0.1)  # whole packets of 64 ms


@pytest.mark.parametrize("codec", ["aac", "mp2", "ac3"])
def test_damaged_packets_become_silence(tmp_path, codec):
    both = beep(0.5, rate=48_000) + beep(3, rate=48_000)
    path = videos.write_tracks(tmp_path / "a.mkv", Track(both, 48_000, codec=codec))
    before, _ = heard(path)
    after, audio = heard(videos.overwrite_packets(path, 1.5, 4))
    assert begins(after) == pytest.approx(begins(before), abs=0.02)
    assert len(before) == pytest.approx(len(after), abs=0.1 * RATE)
    assert 0 < audio.missing < 0.5


def test_samples_of_damaged_packets_are_bounded(tmp_path):
    samples = np.full(4 * RATE, 0.1, np.float32)
    samples[RATE], samples[2 * RATE], samples[3 * RATE] = np.nan, np.inf, -1e30
    path = videos.write_tracks(tmp_path / "a.mkv", Track(samples, codec="pcm_f32le"))
    read_back, _ = heard(path)
    assert np.isfinite(read_back).all() and np.abs(read_back).max() <= 1
    video.cut(path, 0, 3, tmp_path / "clip.mp4")  # its encoder takes no NaN


def test_change_of_rate_and_channels_is_followed(tmp_path):
    first = videos.write_tracks(tmp_path / "a.ts", Track(beep(1, rate=48_000), 48_000, codec="aac"))
    stereo = np.stack([beep(1, rate=22_050)] * 2)
    second = Track(stereo, 22_050, codec="aac")
    videos.write_tracks(tmp_path / "b.ts", second)
    first.write_bytes(first.read_bytes() + (tmp_path / "b.ts").read_bytes())
    samples, _ = heard(first)
    # The clock of the second file is reset: it follows the first, 4 s and an AAC frame long.
    assert begins(samples) == pytest.approx([1, 5], abs=0.1)


@pytest.mark.parametrize("name", ["a.mkv", "a.mp4", "a.ts"])
def test_late_sound_keeps_its_time(tmp_path, name):
    track = Track(beep(0.5, 2, rate=48_000), 48_000, codec="aac", start=1.5)
    samples, _ = heard(videos.write_tracks(tmp_path / name, track))
    assert begins(samples) == pytest.approx([2], abs=0.03)


@pytest.mark.parametrize("first", ["0", "2.5"])
def test_rounded_timestamps_make_no_gaps(tmp_path, first):
    wave = tone(4, rate=44_100)
    path = videos.write_tracks(tmp_path / "a.mkv", Track(wave, 44_100, codec="aac"))
    samples, audio = heard(path, first=Fraction(first), seconds=1)
    middle = samples[2000:-2000]  # AAC fades in and out
    fit = np.stack([f(2 * np.pi * 440 * np.arange(len(middle)) / RATE) for f in (np.sin, np.cos)])
    rest = middle - np.linalg.lstsq(fit.T, middle, rcond=None)[0] @ fit
    # AAC changes samples by 0.02; a missing millisecond would shift the rest and leave 0.5.
    assert np.abs(rest).max() < 0.05 and audio.missing == 0


@pytest.mark.parametrize("first", ["0.5", "1.5"])
def test_flv_with_late_sound_keeps_its_beginning(tmp_path, first):
    # FFmpeg refuses to seek in it to a time before the first sample.
    tone = {"sound": (1, 5), "sound_codec": "libmp3lame", "sound_rate": 44_100}
    path = videos.write(tmp_path / "a.flv", frames=60, **tone)
    samples, _ = heard(path, first=Fraction(first), seconds=1)
    assert begins(samples) == pytest.approx([max(1 - float(first), 0)], abs=0.05)


def test_damaged_packet_that_announces_a_stream_is_ignored(tmp_path):
    tone = {"sound": (0, 10), "sound_codec": "libmp3lame", "sound_rate": 44_100}
    path = videos.write(tmp_path / "a.flv", "flv1", frames=120, **tone)
    times, (sounding, _) = [frame.time for frame in video.sample(path)], heard(path)
    content = bytearray(path.read_bytes())
    tags = [match.end() for match in re.finditer(rb"\x08.{6}\0{4}(?=\x2e)", content, re.DOTALL)]
    content[tags[200]] = 0x1E  # ADPCM instead of MP3
    path.write_bytes(bytes(content))
    assert [frame.time for frame in video.sample(path)] == times
    assert len(heard(path)[0]) == pytest.approx(len(sounding), abs=100)


def change_times(monkeypatch, change):
    """Change the timestamps that the reader sees; no muxer writes wrong ones."""
    second = sound.Sound._second
    monkeypatch.setattr(
        sound.Sound, "_second", lambda self, frame: Fraction(change(second(self, frame)))
    )


def test_few_wrong_timestamps_do_not_move_sound(tmp_path, monkeypatch):
    path = videos.write_tracks(tmp_path / "a.mkv", Track(beep(0.5) + beep(3)))
    change_times(monkeypatch, lambda second: second + 300 * (1.5 < second < 1.7))
    samples, audio = heard(path)
    assert begins(samples) == pytest.approx([0.5, 3], abs=0.01)
    assert len(samples) == pytest.approx(4 * RATE, abs=100) and audio.missing == 0


@pytest.mark.parametrize("jump", [90_000, -90_000, -60])
def test_sound_continues_after_a_reset_of_the_clock(tmp_path, monkeypatch, jump):
    path = videos.write_tracks(tmp_path / "a.mkv", Track(beep(0.5) + beep(3)))
    change_times(monkeypatch, lambda second: second + jump * (second > 1.5))
    samples, audio = heard(path)
    assert begins(samples) == pytest.approx([0.5, 3], abs=0.01) and audio.missing == 0


def recording(path, frequency, seconds=4, heard=None):
    """Write a recording with a tone that lasts `heard` seconds; None: as long as the pictures."""
    track = Track(tone(heard or seconds, frequency, 48_000), 48_000, codec="ac3")
    return videos.write_tracks(path, track, seconds=seconds, rate=25)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("name", ["a.ts", "a.vob", "a.mkv"])
def test_joined_recordings_keep_their_own_sound(tmp_path, name):
    path = recording(tmp_path / name, 440, heard=2)  # its sound ends before its pictures
    second_recording = recording(tmp_path / f"b{path.suffix}", 1200)
    path.write_bytes(path.read_bytes() + second_recording.read_bytes())
    samples, audio = heard(path)
    assert begins(samples) == pytest.approx([0, 4], abs=0.1)
    for first, expected in ((1, 440), (4.5, 1200), (6, 1200)):
        samples, _ = heard(path, first=Fraction(first), seconds=0.75)
        assert len(samples) == 0.75 * RATE
        assert frequency(samples) == pytest.approx(expected, abs=5)
    # FFmpeg decodes from a clip: the old tone, silence, and the new tone.
    video.cut(path, 1, 6, tmp_path / "clip.mkv")
    with av.open(str(tmp_path / "clip.mkv")) as container:
        frames = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
    clip = np.concatenate(frames)[::3]  # to RATE
    assert len(clip) == pytest.approx(5 * RATE, abs=0.1 * RATE)
    assert frequency(clip[: RATE // 2]) == pytest.approx(440, abs=5)
    assert np.abs(clip[round(1.2 * RATE) : round(2.8 * RATE)]).max() < 0.01
    assert frequency(clip[4 * RATE :]) == pytest.approx(1200, abs=5)


def two_tracks(path, *, default=0, **stated):
    low, high = (beep(1, frequency=frequency) for frequency in (300, 1200))
    tracks = [
        Track(low, is_default=default == 0, language="ger"),
        Track(high, is_default=default == 1, language="eng"),
    ]
    return videos.write_tracks(path, *tracks, **stated)


@pytest.mark.parametrize(("default", "expected"), [(0, 300), (1, 1200), (None, 300)])
def test_default_track_is_taken(tmp_path, default, expected):
    path = two_tracks(tmp_path / "a.mkv", default=default)
    assert frequency(heard(path)[0]) == pytest.approx(expected, abs=5)
    with av.open(str(path)) as container:
        tracks = sound.tracks(container)
    assert [track.language for track in tracks] == ["ger", "eng"]
    assert [track.is_default for track in tracks] == [expected == 300, expected == 1200]
    for track in tracks:
        expected_frequency = 300 if track.number == 1 else 1200
        assert frequency(heard(path, track.stream)[0]) == pytest.approx(expected_frequency, abs=5)


@pytest.mark.parametrize("write", [video.cut, video.copy])
def test_clips_have_the_default_track(tmp_path, write):
    path = two_tracks(tmp_path / "a.mkv", default=1)
    write(path, 0, 3, tmp_path / "clip.mkv")
    samples, _ = heard(tmp_path / "clip.mkv")
    assert frequency(samples) == pytest.approx(1200, abs=5)
    assert begins(samples) == pytest.approx([1], abs=0.05)


def test_video_without_sound_has_none(tmp_path):
    path = videos.write(tmp_path / "a.mp4")
    with read.opened(path) as file, sound.reading(file, rate=RATE, layout="mono") as audio:
        assert audio is None
