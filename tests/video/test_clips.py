"""Clips: their bounds, frames, sound and shape; thumbnails."""

import errno
import io
import math
import os
import resource
import struct
from fractions import Fraction

import av
import numpy as np
import pytest
import videos
from PIL import Image

from hlformer_jax import files, video
from hlformer_jax.video import clips, clocks
from hlformer_jax.video.read import Decoder, opened


def shown(path, fps=12):
    return [(frame.time, videos.number(frame.image)) for frame in video.sample(path, fps)]


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.mp4", "libx264"),
        ("a.mkv", "libx264"),
        ("a.ts", "libx264"),
        ("a.avi", "libx264"),
        ("a.h264", "libx264"),
        ("a.webm", "libvpx-vp9"),
        ("a.mov", "mjpeg"),
    ],
)
def test_clip_has_exactly_the_frames_between_its_bounds(tmp_path, name, codec):
    quality = {"pixels": "yuvj420p", "qmin": 1, "qmax": 1} if codec == "mjpeg" else {"gop_size": 9}
    path = videos.write(tmp_path / name, codec, **quality)
    out = tmp_path / "clip.mp4"
    video.cut(path, 1.01, 2.26, out)
    # Frame 12 is shown until 1.0833, frame 27 from 2.25: 10 ms of it.
    assert [number for _, number in shown(out, 100)] == [
        math.floor((1.01 + k / 100) * 12 + 1e-9) for k in range(125)
    ] or name in {"a.mkv", "a.webm"}  # their timestamps are rounded
    numbers = dict.fromkeys(number for _, number in shown(out, 100))
    assert list(numbers) == list(range(12, 28))
    assert video.probe(out).duration == pytest.approx(1.25, abs=2e-3)


def test_margin_is_added_inside_the_video(tmp_path):
    path = videos.write(tmp_path / "a.mp4")
    video.cut(path, 1, 2, tmp_path / "b.mp4", margin=0.5)
    assert video.probe(tmp_path / "b.mp4").duration == pytest.approx(2)
    video.cut(path, 1, 2, tmp_path / "c.mp4", margin=50)
    assert video.probe(tmp_path / "c.mp4").duration == pytest.approx(3)
    assert shown(tmp_path / "c.mp4")[0] == (0, 0)


def test_frames_of_a_variable_rate_keep_their_times(tmp_path):
    path = videos.write(tmp_path / "a.mkv", times=[0, 0.4, 0.5, 2.0, 2.1], frames=5)
    video.cut(path, 0.45, 2.05, tmp_path / "clip.mp4")
    with av.open(str(tmp_path / "clip.mp4")) as container:
        times = [frame.time for frame in container.decode(video=0)]
    assert times == pytest.approx([0, 0.05, 1.55], abs=1e-4)
    assert video.probe(tmp_path / "clip.mp4").duration == pytest.approx(1.6, abs=1e-4)


def test_clip_is_upright_and_of_even_size(tmp_path):
    path = videos.write(tmp_path / "a.mp4", frames=12, paint=videos.quadrants)
    videos.turned(path, (0, 1, -1, 0))
    video.cut(path, 0, 0.5, tmp_path / "clip.mp4")
    image = next(video.sample(tmp_path / "clip.mp4")).image
    assert image.shape == (64, 48, 3)
    corners = image[[16, 16, 48, 48], [12, 36, 12, 36]]
    expected = np.array([[0, 0, 255], [255, 0, 0], [255, 255, 255], [0, 255, 0]])
    assert np.abs(corners.astype(int) - expected).max() < 12  # the colours survive too


def test_odd_sizes_lose_a_row_at_most(tmp_path):
    image = np.full((47, 63, 3), 90, np.uint8)
    path = videos.write(tmp_path / "a.mkv", "ffv1", paint=lambda _: image, pixels="bgr0", frames=6)
    video.cut(path, 0, 0.4, tmp_path / "clip.mp4")
    assert video.probe(tmp_path / "clip.mp4")[1:3] == (62, 46)


def test_senseless_bounds_are_refused(tmp_path):
    path = videos.write(tmp_path / "a.mp4")
    for bounds in ((1, 1), (2, 1), (math.nan, 1), (0, math.inf), (0, 1, -1)):
        with pytest.raises(video.VideoError, match="cannot be cut"):
            video.cut(path, *bounds[:2], tmp_path / "clip.mp4", *bounds[2:])
    with pytest.raises(video.VideoError, match=r"ends at 3.00 s, before the clip begins"):
        video.cut(path, 3.5, 4, tmp_path / "clip.mp4")
    assert not (tmp_path / "clip.mp4").exists()


def test_clip_never_replaces_its_video(tmp_path):
    path, foreign_file = videos.write(tmp_path / "a.mp4"), tmp_path / "other.mp4"
    foreign_file.write_bytes(b"theirs")
    os.link(path, tmp_path / "hard.mp4")
    (tmp_path / "link.mp4").symlink_to(foreign_file)
    os.mkfifo(tmp_path / "pipe.mp4")
    before = path.read_bytes()
    for name in ("a.mp4", "other.mp4", "hard.mp4", "link.mp4", "pipe.mp4"):
        with pytest.raises(files.OutputError):
            video.cut(path, 0, 1, tmp_path / name)
    for name in ("a.mp4", "hard.mp4", "link.mp4", "pipe.mp4"):
        with pytest.raises((files.OutputError, video.VideoError)):
            video.cut(path, 0, 1, tmp_path / name, replace=files.Replace.ANY)
    assert path.read_bytes() == before and foreign_file.read_bytes() == b"theirs"
    video.cut(path, 0, 1, foreign_file, replace=files.Replace.ANY)
    assert video.probe(foreign_file).duration == pytest.approx(1)


@pytest.mark.parametrize(
    ("suffix", "form"), [("mp4", "mp4"), ("M4V", "mp4"), ("mov", "mov"), ("mkv", "matroska")]
)
def test_container_follows_the_suffix(tmp_path, suffix, form):
    path, out = videos.write(tmp_path / "a.mp4", sound=(0, 3)), tmp_path / f"clip.{suffix}"
    video.cut(path, 0.5, 2, out)
    with av.open(str(out)) as container:
        assert form in container.format.name
    head = out.read_bytes()[:12]
    assert head.startswith(b"\x1a\x45\xdf\xa3") if form == "matroska" else head[4:8] == b"ftyp"
    assert (b"qt  " in head) == (form == "mov")
    assert video.probe(out).duration == pytest.approx(1.5, abs=0.05)


def test_unknown_suffix_is_refused(tmp_path):
    path = videos.write(tmp_path / "a.mp4")
    for name in ("clip", "clip.txt", "clip.mp4.part", ".mp4", "clip.webm"):
        with pytest.raises(video.VideoError, match=r"\.m4v"):
            video.cut(path, 0, 1, tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


def test_unwritable_clip_says_why_and_keeps_the_older_one(tmp_path, monkeypatch):
    path, out = videos.write(tmp_path / "a.mp4", frames=6), tmp_path / "clip.mp4"
    with pytest.raises(video.VideoError, match="written") as error:
        video.cut(path, 0, 0.5, path / "clip.mp4")
    assert repr(str(path / "clip.mp4")) in str(error.value)
    out.write_text("an older clip")
    for number, advice in {
        errno.ENOENT: "is there such a folder",
        errno.ENOSPC: "is there room",
        errno.EACCES: "may this folder be written to",
        errno.EINVAL: "try another container",
    }.items():

        def fail(*_, number=number):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("os.fsync", fail)
        with pytest.raises(video.VideoError, match=advice):
            video.cut(path, 0, 0.5, out, replace=files.Replace.ANY)
    assert out.read_text() == "an older clip"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.mp4", "clip.mp4"]


def test_stopped_cut_leaves_no_file(tmp_path):
    path, frames = videos.write(tmp_path / "a.mp4"), [1, 2, 3]
    with pytest.raises(IndexError):
        video.cut(path, 0, 3, tmp_path / "clip.mp4", pulse=frames.pop)
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize(
    ("name", "sound", "part", "heard"),
    [
        ("a.mp4", (0.5, 2), (0.25, 2.5), (0.25, 1.75)),
        ("a.mp4", (0, 3), (0.5, 2.5), (0, 2)),
        ("a.mkv", (3, 4), (0.5, 4), (2.5, 3.5)),  # a gap before it is silent
    ],
)
def test_sound_is_cut_with_the_pictures(tmp_path, name, sound, part, heard):
    """`sound` and `heard` are the start and end of a tone in the video and in the clip."""
    path = videos.write(tmp_path / name, frames=48, sound=sound)
    out = tmp_path / "clip.mp4"
    video.cut(path, *part, out)
    with av.open(str(out)) as container:
        stream = container.streams.audio[0]
        loud = np.zeros(5 * 48_000)
        for frame in container.decode(stream):
            place = round(frame.time * 48_000)
            loud[place : place + frame.samples] = np.abs(frame.to_ndarray()[0])
        length = float(stream.duration * stream.time_base)
    edges = np.flatnonzero(loud > 0.3)[[0, -1]] / 48_000
    assert edges == pytest.approx(heard, abs=0.05)
    assert heard[1] - 0.05 < length <= part[1] - part[0] + 0.03


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_last_picture_is_shown_until_the_sound_ends(tmp_path, name):
    path = videos.write(tmp_path / name, sound=(0, 6))  # 3 s of pictures
    for start, end, until in ((2, 5, 5), (4, 5, 5), (5, 9, 6.1)):
        out = tmp_path / f"{start}.mp4"
        video.cut(path, start, end, out)
        assert video.probe(out).duration == pytest.approx(until - start, abs=0.1)
        assert heard(out)[-1] == pytest.approx(min(end, 6) - start, abs=0.1)
        assert {number for time, number in shown(out) if time > 1} <= {35}
    with pytest.raises(video.VideoError, match=r"ends at 3\.\d\d s, before the clip begins"):
        video.cut(path, 7, 8, tmp_path / "clip.mp4")


@pytest.mark.parametrize("start", [0.5, 2])
@pytest.mark.parametrize("write", [video.cut, video.copy])
def test_sound_that_avi_does_not_mark_as_keyframes_is_cut(tmp_path, write, start):
    """FFmpeg cannot seek in the sound of such files, which cameras write."""
    path = videos.write(
        tmp_path / "a.avi", "mjpeg", pixels="yuvj420p", frames=48, sound=(0, 4),
        sound_codec="pcm_s16le",
    )  # fmt: skip
    content = path.read_bytes()
    flags = b"01wb" + (16).to_bytes(4, "little")
    assert flags in content
    path.write_bytes(content.replace(flags, b"01wb" + bytes(4)))
    write(path, start, start + 1, tmp_path / "clip.mkv")
    times = heard(tmp_path / "clip.mkv")
    assert times[0] < 0.1 and times[-1] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize("write", [video.cut, video.copy])
def test_clip_keeps_the_language_of_its_sound(tmp_path, write, suffix):
    silence = np.zeros(192_000, np.float32)
    japanese = videos.Track(silence, 48_000, "jpn", is_default=True, codec="aac")
    unstated = videos.Track(silence, 48_000, codec="aac")
    path = videos.write_tracks(tmp_path / "a.mkv", unstated, japanese)
    write(path, 1, 3, tmp_path / f"japanese{suffix}")
    write(videos.write_tracks(tmp_path / "b.mkv", unstated), 1, 3, tmp_path / f"unstated{suffix}")
    for name, language in (("japanese", "jpn"), ("unstated", "und")):
        with av.open(str(tmp_path / f"{name}{suffix}")) as container:
            assert container.streams.audio[0].metadata.get("language", "und") == language


def test_clip_of_a_silent_video_is_silent(tmp_path):
    path = videos.write(tmp_path / "a.mp4", frames=6)
    video.cut(path, 0, 0.5, tmp_path / "clip.mp4")
    with av.open(str(tmp_path / "clip.mp4")) as container:
        assert not container.streams.audio


def picture_of(content):
    image = Image.open(io.BytesIO(content))
    assert image.format == "JPEG"
    return np.asarray(image)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "a.avi", "a.h264"])
def test_thumbnail_is_the_frame_shown_at_its_second(tmp_path, name):
    path = videos.write(tmp_path / name, gop_size=9)
    shown_at = {-1: 0, 0: 0, 1.0: 12, 1.99: 23, 2.5: 30, 2.99: 35, 60: 35}
    for time, number in shown_at.items():
        assert videos.number(picture_of(video.thumbnail(path, time, 64))) == number


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "a.avi"])
def test_time_in_milliseconds_selects_its_frame(tmp_path, name):
    path = videos.write(tmp_path / name, gop_size=13)
    start, end = round(13 / 12, 3), round(20 / 12, 3)
    assert start < 13 / 12 and end > 20 / 12
    assert videos.number(picture_of(video.thumbnail(path, start, 64))) == 13
    video.cut(path, start, end, tmp_path / "cut.mp4")
    numbers = dict.fromkeys(number for _, number in shown(tmp_path / "cut.mp4", 100))
    assert list(numbers) == list(range(13, 20))
    with av.open(str(tmp_path / "cut.mp4")) as clip:
        assert clip.streams.video[0].frames == 7 and clip.streams.video[0].start_time == 0
    copy_start, _ = video.copy(path, start, end, tmp_path / "copy.mkv")
    assert copy_start == pytest.approx(13 / 12, abs=2e-3)  # its keyframe


def test_thumbnail_is_never_wider_than_its_video(tmp_path):
    path = videos.write(tmp_path / "a.mp4")
    assert picture_of(video.thumbnail(path, 0, 32)).shape == (24, 32, 3)
    assert picture_of(video.thumbnail(path, 0, 640)).shape == (48, 64, 3)
    videos.turned(path, (0, 1, -1, 0))
    assert picture_of(video.thumbnail(path, 0, 24)).shape == (32, 24, 3)


@pytest.mark.parametrize(("time", "width"), [(float("nan"), 32), (0, 0)])
def test_senseless_time_or_width_is_refused(tmp_path, time, width):
    with pytest.raises(ValueError, match="finite"):
        video.thumbnail(tmp_path / "a.mp4", time, width)


@pytest.mark.parametrize("name", ["a.mp4", "a.ts"])
def test_copy_begins_at_the_keyframe_before(tmp_path, name):
    path = videos.write(tmp_path / name, gop_size=9, sound=(0, 3))
    zero = video.probe(path).start if name == "a.ts" else 0
    original = {videos.number(frame.image): frame.image for frame in video.sample(path, 12)}
    for out in (tmp_path / "clip.mp4", tmp_path / "clip.mkv"):
        copy_start, copy_end = video.copy(path, 1.01, 2.26, out)
        assert copy_start <= 1.01 and copy_end >= 2.26
        assert copy_start == pytest.approx(zero + 9 / 12, abs=0.13)
        assert video.probe(out).duration == pytest.approx(copy_end - copy_start, abs=0.09)
        copied = list(video.sample(out, 12))
        assert videos.number(copied[0].image) == 9
        assert copied[-1].time + copy_start >= 2.26 - 1 / 12
        for frame in copied:  # not encoded again
            assert np.array_equal(frame.image, original[videos.number(frame.image)])
        with av.open(str(out)) as container:
            times = [float(packet.pts * packet.time_base) for packet in container.demux(audio=0)
                     if packet.pts is not None]  # fmt: skip
        assert times[0] < 0.15 and -0.15 < times[-1] + copy_start - 2.26 < 0.01
        assert np.diff(times).max() < 0.15


def test_copy_without_the_palette_is_refused(tmp_path):
    path, out = videos.write(tmp_path / "a.mov", "qtrle", pixels="gray"), tmp_path / "clip.mov"
    with pytest.raises(video.VideoError, match="palette"):
        video.copy(path, 1, 2, out)
    video.copy(path, 0, 1, out)
    assert [videos.number(frame.image) for frame in video.sample(out, 12)] == list(range(12))


def test_copy_without_timestamps_is_refused(tmp_path):
    path = videos.write(tmp_path / "a.h264")
    for source, start in ((path, 0), (videos.write(tmp_path / "a.mp4"), 50)):
        before = source.read_bytes()
        with pytest.raises(video.VideoError):
            video.copy(source, start, start + 1, tmp_path / "clip.mp4")
        with pytest.raises((video.VideoError, files.OutputError)):
            video.copy(
                source,
                0,
                1,
                tmp_path / "a.mp4",
                replace=files.Replace.ANY if start else files.Replace.NOTHING,
            )
        assert source.read_bytes() == before
    assert not (tmp_path / "clip.mp4").exists()


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize("write", [video.cut, video.copy])
def test_clip_keeps_date_and_place_of_recording(tmp_path, write, suffix):
    stated = {"creation_time": "2021-05-06T07:08:09Z", "location": "+52.5000+013.4000/"}
    with av.open(str(videos.write(tmp_path / "a.mp4", gop_size=12))) as source:
        with av.open(str(tmp_path / "b.mp4"), "w") as container:
            container.metadata.update(stated)
            stream = container.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(video=0):
                if packet.dts is not None:
                    packet.stream = stream
                    container.mux(packet)
    write(tmp_path / "b.mp4", 1.0, 2.0, tmp_path / f"clip{suffix}")
    with av.open(str(tmp_path / f"clip{suffix}")) as container:
        metadata = {name.lower(): text for name, text in container.metadata.items()}
    assert metadata["location"] == stated["location"]
    assert metadata["creation_time"].startswith("2021-05-06T07:08:10")
    info = video.probe(tmp_path / f"clip{suffix}"), video.probe(tmp_path / "b.mp4")
    assert info[0].recorded == info[1].recorded + 1
    write(tmp_path / "a.mp4", 1.0, 2.0, tmp_path / f"plain{suffix}")
    assert video.probe(tmp_path / f"plain{suffix}").recorded == 0


def decoded(path):
    """Return the seconds and pixels of all frames."""
    with opened(path) as film:
        return [
            (float(time), frame.to_ndarray(format="rgb24").tobytes())
            for time, frame in Decoder(film)
        ]


def heard(path):
    """Return the seconds, from the first picture, at which the packets of the sound begin."""
    zero = video.probe(path).start
    with av.open(str(path)) as container:
        return [
            float(packet.pts * packet.time_base) - zero
            for packet in container.demux(audio=0)
            if packet.size and packet.pts is not None
        ]


COPIED = {
    "h264.ts": ("libx264", {"max_b_frames": 2}, "aac"),
    "h264.m2ts": ("libx264", {"max_b_frames": 2}, "ac3"),
    "h264.vob": ("libx264", {"max_b_frames": 2}, "ac3"),
    "mpeg2.vob": ("mpeg2video", {"max_b_frames": 2}, "ac3"),
    "mpeg2.mpg": ("mpeg2video", {"max_b_frames": 2}, "mp2"),
    "mpeg1.mpg": ("mpeg1video", {"max_b_frames": 2}, "mp2"),
    "mpeg2.ts": ("mpeg2video", {"max_b_frames": 2}, "mp2"),
    "h264.avi": ("libx264", {"max_b_frames": 3}, "ac3"),
    "mpeg4.avi": ("mpeg4", {"max_b_frames": 2}, "mp2"),
    "mpeg4 open.mkv": ("mpeg4", {"max_b_frames": 2}, "ac3"),
    "open.mp4": ("libx264", {"options": {"x264-params": "open-gop=1"}}, "aac"),
    "wmv2.wmv": ("wmv2", {}, "wmav2"),
    "flv1.flv": ("flv", {}, "pcm_s16le"),
    "huffyuv.avi": ("huffyuv", {"pixels": "yuv422p"}, "pcm_s16le"),
    "amr.3gp": ("mpeg4", {}, "libopencore_amrnb"),
    "gif.gif": ("gif", {"pixels": "rgb8"}, None),
    "flac.mkv": ("ffv1", {}, "flac"),
}
"""Videos of a kind: encoder, its settings, and the encoder of the sound."""


SLOW = {
    *("h264.m2ts", "h264.vob", "h264.avi", "mpeg1.mpg", "mpeg2.mpg", "mpeg2.ts"),
    *("mpeg4 open.mkv", "huffyuv.avi", "flac.mkv"),
}
"""Kinds that are similar to faster ones."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in COPIED],
)
def test_copy_has_every_frame_at_its_time_and_the_sound(tmp_path, name):
    codec, settings, sound = COPIED[name]
    rate = 8000 if sound == "libopencore_amrnb" else 11025 if name == "flv1.flv" else 48_000
    tone = {"sound": (0, 4), "sound_codec": sound, "sound_rate": rate} if sound else {}
    gop = {"gop_size": 80} | settings
    path = videos.write(
        tmp_path / name, codec, rate=25, frames=100, format="vob" if ".vob" in name else None,
        **tone, **gop,
    )  # fmt: skip
    source, out = decoded(path), tmp_path / "clip.mkv"
    for start, end in ((0, 0.5), (1.5, 2.25), (3.5, 3.9)):
        copy_start, copy_end = video.copy(path, start, end, out, replace=files.Replace.ANY)
        assert copy_start <= max(start, source[0][0]) and copy_end >= end - 1e-6
        expected = [
            (time - copy_start, image) for time, image in source if copy_start - 1e-6 <= time < end
        ]
        copied = decoded(out)
        assert [image for _, image in copied[: len(expected)]] == [image for _, image in expected]
        times = [time for time, _ in copied[: len(expected)]]
        assert times == pytest.approx([time for time, _ in expected], abs=2e-3)  # Matroska's ticks
        if sound:
            source_times = [
                time - copy_start for time in heard(path) if copy_start - 1e-6 <= time < end
            ]
            copied_times = heard(out)
            frame = max(np.diff(source_times), default=0.1) + 2e-3
            assert copied_times[0] == pytest.approx(source_times[0], abs=frame)
            assert copied_times[-1] == pytest.approx(source_times[-1], abs=frame)


def test_copy_keeps_the_pixel_shape_or_is_refused(tmp_path):
    path = videos.write(tmp_path / "a.mp4", "libvpx-vp9", frames=12, sample_aspect_ratio=2)
    with opened(path) as film:
        assert film.aspect == 2 and not film.stream.codec_context.sample_aspect_ratio
    video.copy(path, 0, 1, tmp_path / "b.mp4")
    assert video.probe(tmp_path / "b.mp4")[1:3] == video.probe(path)[1:3] == (128, 48)
    with pytest.raises(video.VideoError, match="shape of the pixels"):
        video.copy(path, 0, 1, tmp_path / "b.mkv")
    path = videos.write(tmp_path / "c.mp4", frames=12, sample_aspect_ratio=Fraction(32, 27))
    shape, rounded = struct.pack(">4sII", b"pasp", 32, 27), struct.pack(">4sII", b"pasp", 853, 720)
    path.write_bytes(path.read_bytes().replace(shape, rounded))  # 720 pixels shown as 853
    with opened(path) as film:
        assert film.aspect == Fraction(853, 720)
    video.copy(path, 0, 1, tmp_path / "d.mkv")
    with opened(tmp_path / "d.mkv") as film:
        assert film.aspect == Fraction(32, 27)


def test_copied_sound_with_repeated_header_is_intact(tmp_path):
    path = videos.write(tmp_path / "a.flv", frames=36, sound=(0.5, 3), max_b_frames=0)
    video.copy(path, 0.2, 1.5, tmp_path / "b.mkv")
    with av.open(tmp_path / "b.mkv") as container:
        assert [stream.type for stream in container.streams] == ["video", "audio"]


def test_copy_keeps_hidden_reference_frames(tmp_path):
    # As `ffmpeg -t` or a phone trims: the edit list ends before a frame that B-frames refer to.
    path = videos.write(
        tmp_path / "a.mp4", rate=25, frames=41, gop_size=80,
        options={"x264-params": "bframes=3:b-adapt=0:scenecut=0"},
    )  # fmt: skip
    content = bytearray(path.read_bytes())
    duration = content.index(b"elst") + 12  # duration of the only entry, in milliseconds
    content[duration : duration + 4] = (38 * 40).to_bytes(4, "big")
    path.write_bytes(content)
    with av.open(str(path)) as container:
        assert any(packet.is_discard for packet in container.demux(video=0))
    source = decoded(path)
    video.copy(path, 0, 2, tmp_path / "clip.mkv")
    assert decoded(tmp_path / "clip.mkv")[: len(source)] == source
    # If the decoding times of a file are invalid, times come from the decoder, which hides frames.
    with opened(path) as film:
        times, start, end = clips._times_by_decoding(
            film, clips._Keyframe(Fraction(0), None, 0), Fraction(2)
        )
    assert None not in times and (start, end) == (0, Fraction(41, 25))


@pytest.mark.parametrize(
    ("name", "codec", "pixels", "into", "reason"),
    [
        ("a.mov", "prores", "yuv422p10le", "clip.mp4", r"take prores: .*\.mkv or \.mov"),
        ("a.wmv", "wmv2", "yuv420p", "clip.mp4", r"take wmv2 and wmav2: .*\.mkv"),
        ("a.mkv", "ffv1", "yuv420p", "clip.mov", r"take ffv1: .*\.mkv or \.mp4"),
        ("a.y4m", "wrapped_avframe", "yuv420p", "clip.mkv", "take rawvideo: encode the clip"),
    ],
)
def test_refused_codec_names_suitable_containers(tmp_path, name, codec, pixels, into, reason):
    tone = {"sound": (0, 1), "sound_codec": "wmav2", "sound_rate": 48_000}
    more = tone if name == "a.wmv" else {}
    path = videos.write(tmp_path / name, codec, pixels=pixels, frames=24, **more)
    with pytest.raises(video.VideoError, match=reason) as error:
        video.copy(path, 0, 1, tmp_path / into)
    assert "folder" not in str(error.value) and "room" not in str(error.value)
    assert not (tmp_path / into).exists()


@pytest.mark.parametrize("write", [video.cut, video.copy])
def test_file_that_appears_beside_a_clip_is_named(tmp_path, monkeypatch, write):
    path, out = videos.write(tmp_path / "a.mp4"), tmp_path / "clip.mp4"
    name = "_encode" if write is video.cut else "_copy"
    make = getattr(clips, name)

    def beaten(*arguments):
        make(*arguments)
        out.write_text("another clip")

    monkeypatch.setattr(clips, name, beaten)
    with pytest.raises(files.OutputError, match="clip.mp4 exists: give another name"):
        write(path, 0, 1, out)
    assert out.read_text() == "another clip"


@pytest.mark.parametrize("write", [video.cut, video.copy])
def test_full_disk_is_reported_with_the_clip(tmp_path, write):
    path, out = videos.write(tmp_path / "a.mp4"), tmp_path / "clip.mp4"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(video.VideoError) as error:
            write(path, 0, 1, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(error.value).startswith(f"{str(out)!r} cannot be written (File too large)")
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("size", [clocks.MAX_BYTES_SCANNED, 0])
@pytest.mark.parametrize("seconds", [(48, 3), (6, 48), (3, 24, 24)])
def test_every_reset_of_a_clock_is_detected(tmp_path, monkeypatch, size, seconds):
    """Include resets near the start and the end; size 0 is like a file that is not read in full."""
    monkeypatch.setattr(clocks, "MAX_BYTES_SCANNED", size)
    monkeypatch.setattr(clocks, "_PLACES", 16)
    path, steady = tmp_path / "a.ts", tmp_path / "steady.ts"
    with open(path, "wb") as file:
        for place, length in enumerate(seconds):
            image = videos.grey(10 * place)
            part = videos.write(
                steady, rate=2, frames=2 * length, paint=lambda _, image=image: image,
                sound=(0, length),
            )  # fmt: skip
            file.write(part.read_bytes())
    with opened(steady) as film:
        assert film.has_steady_clock
    ends = np.cumsum(seconds).tolist()
    out = tmp_path / "clip.mkv"
    for place, end in enumerate(ends):
        assert videos.number(picture_of(video.thumbnail(path, end - 1, 64))) == 10 * place
        with pytest.raises(video.VideoError, match="clock that was reset"):
            video.copy(path, end - 2, end - 1, tmp_path / "copy.mkv")
        video.cut(path, end - 2, end - 1, out, replace=files.Replace.ANY)
        assert {number for _, number in shown(out)} == {10 * place}
        with av.open(str(out)) as container:
            levels = [np.abs(frame.to_ndarray()).max() for frame in container.decode(audio=0)]
        assert len(levels) > 40 and np.median(levels) > 0.5
    assert video.probe(path).duration == pytest.approx(ends[-1], abs=0.5)


def test_copy_refuses_joined_recordings_in_matroska(tmp_path):
    path = videos.write(tmp_path / "a.mkv", gop_size=6, sound=(0, 3))
    path.write_bytes(path.read_bytes() * 2)
    for start in (2.5, 4):
        with pytest.raises(video.VideoError, match="clock that was reset"):
            video.copy(path, start, start + 1, tmp_path / "clip.mkv")


def test_copy_refuses_a_part_before_the_first_picture(tmp_path):
    path = videos.write(tmp_path / "a.mkv", times=[2, 2.5, 3], frames=3, sound=(0, 4))
    for write in (video.cut, video.copy):
        with pytest.raises(video.VideoError, match="shows nothing in this part yet"):
            write(path, 0, 1.5, tmp_path / "clip.mkv")


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_copied_sound_ends_with_the_pictures(tmp_path, suffix):
    path = videos.write(tmp_path / "a.mp4", gop_size=6, sound=(0, 9))  # 3 s of pictures
    out = tmp_path / f"clip{suffix}"
    assert video.copy(path, 1.5, 8, out) == pytest.approx((1.5, 3))
    assert 1.2 < heard(out)[-1] < 1.5


def test_copy_shows_a_still_picture_to_the_end(tmp_path):
    times = [0, 0.4, 0.5, 5, 5.1, 8]
    path = videos.write(tmp_path / "a.mkv", times=times, frames=6, gop_size=3)
    out = tmp_path / "clip.mp4"
    for part in ((0.6, 1.9), (3, 4)):
        assert video.copy(path, *part, out, replace=files.Replace.ANY) == (0, part[1])
        assert video.probe(out).duration == pytest.approx(part[1], abs=2e-3)
        assert shown(out, 2)[-1][1] == 2
