"""Files that are broken or odd: each is used as far as it can be, or refused in one clear line."""

import os
import re
from fractions import Fraction

import av
import numpy as np
import pytest
import videos

from hlformer_jax import video


def ordinary(folder, name="a.mp4", **settings):
    return videos.write(folder / name, **settings)


def holding(content):
    def make(folder):
        path = folder / "a.mp4"
        path.write_bytes(content)
        return path

    return make


def without_index(folder):
    path = ordinary(folder)
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"moov") - 4])
    return path


def sound_alone(folder):
    path = folder / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def song_with_a_cover(folder):
    path = folder / "a.mp3"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libmp3lame", rate=44100, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 44100), np.float32), "fltp", "mono")
        frame.sample_rate = 44100
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    size = lambda number: bytes(number >> shift & 127 for shift in (21, 14, 7, 0))
    cover = b"\0image/jpeg\0\3\0" + video.thumbnail(ordinary(folder), 0, 64)
    picture = b"APIC" + size(len(cover)) + b"\0\0" + cover
    path.write_bytes(b"ID3\4\0\0" + size(len(picture)) + picture + path.read_bytes())
    return path


def no_frame(folder):
    path = folder / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=12)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.start_encoding()
    return path


def unknown_codec(folder):
    path = ordinary(folder)
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzzz").replace(b"avcC", b"zzzC"))
    return path


def frames_of_noise(folder):
    path = ordinary(folder, codec="mpeg4")
    content = bytearray(path.read_bytes())
    start, end = content.index(b"mdat") + 4, content.index(b"moov") - 4
    content[start:end] = np.random.default_rng(0).bytes(end - start)
    path.write_bytes(bytes(content))
    return path


def pipe(folder):
    os.mkfifo(folder / "a.mp4")
    return folder / "a.mp4"


def dangling(folder):
    (folder / "a.mp4").symlink_to("nowhere.mp4")
    return folder / "a.mp4"


def circle(folder):
    (folder / "a.mp4").symlink_to("a.mp4")
    return folder / "a.mp4"


def folder_called_so(folder):
    (folder / "a.mp4").mkdir()
    return folder / "a.mp4"


def absurd_size(folder, side=15_000):
    path = ordinary(folder, "a.avi", codec="rawvideo", frames=2)
    content = path.read_bytes()
    size = lambda width, height: width.to_bytes(4, "little") + height.to_bytes(4, "little")
    path.write_bytes(content.replace(size(64, 48), size(side, side)))
    return path


def beyond(folder):
    return absurd_size(folder, 40_000)


def named_like_an_order(folder):
    path = folder / "a\nerror: all is lost\x1b[31m.mp4"
    path.write_bytes(b"")
    return path


REFUSED = {
    "empty": (holding(b""), "is empty"),
    "text": (holding(b"not a video\n" * 50), "no video that FFmpeg knows"),
    "subtitles": (holding(b"1\n00:00:01,000 --> 00:00:02,000\nHello\n\n" * 9), "holds no video"),
    "zeros": (holding(bytes(5000)), "no video that FFmpeg knows"),
    "noise": (holding(np.random.default_rng(1).bytes(5000)), "no video that FFmpeg knows"),
    "only a beginning": (holding(b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41"), "has no index"),
    "MP4 whose end is missing": (without_index, "has no index (moov)"),
    "sound alone": (sound_alone, "sound alone"),
    "song with a cover": (song_with_a_cover, "sound alone"),
    "no frame": (no_frame, "holds no frame"),
    "unknown codec": (unknown_codec, "codec that FFmpeg cannot decode"),
    "frames of noise": (frames_of_noise, "can be decoded"),
    "absurd size": (absurd_size, "15000 x 15000 pixels"),
    "size beyond FFmpeg's": (beyond, "can be decoded, or absurdly large ones"),
    "pipe": (pipe, "pipe, socket or device"),
    "dangling link": (dangling, "is not there"),
    "link to itself": (circle, "Too many levels of symbolic links"),
    "not there": (lambda folder: folder / "a.mp4", "is not there"),
    "folder": (folder_called_so, "is a folder"),
    "name with a newline": (named_like_an_order, "is empty"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("ask", ["probe", "sample", "thumbnail", "cut"])
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path, capfd, kind, ask):
    make, reason = REFUSED[kind]
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


def cut_off(suffix, **settings):
    def make(folder):
        path = ordinary(folder, f"a.{suffix}", frames=38, **settings)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 6 // 10])
        return path

    return make


def noisy(index):
    rng = np.random.default_rng(index)
    return rng.integers(0, 255, (48, 64, 3), np.uint8)


FRONT = {"movflags": "faststart"}


def with_index_in_front(folder):
    plain = ordinary(folder, "plain.mp4", paint=noisy, frames=38)
    path = folder / "a.mp4"
    with av.open(str(plain)) as source, av.open(str(path), "w", options=FRONT) as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 6 // 10])
    return path


def damaged(folder):
    path = ordinary(folder, codec="libx264", paint=noisy, frames=38, gop_size=6)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 3000] = bytes(3000)
    path.write_bytes(bytes(content))
    return path


def joined(folder):
    path = ordinary(folder, "a.ts", frames=36)
    path.write_bytes(path.read_bytes() * 2)
    return path


def jump_ahead(folder):
    times = [k / 12 for k in range(18)] + [90_000 + k / 12 for k in range(18)]
    return ordinary(folder, "a.mkv", times=times, frames=36)


USED = {
    "MP4 that is cut off": (with_index_in_front, (1.5, 2.4), r"packets|ends at .* of the 3.2 s"),
    "Matroska that is cut off": (
        cut_off("mkv", paint=noisy), (1.5, 2.4), r"ends at .* s of the 3.2 s",
    ),
    "FLV that is cut off": (cut_off("flv", codec="flv", paint=noisy), (1.2, 2.4), "ends at"),
    "damaged in the middle": (damaged, (3, 3.3), r"of its 38 packets are damaged|^$"),
    "two recordings in one": (joined, (5.9, 6.1), "timestamps jump 1 times"),
    "timestamps that jump ahead": (jump_ahead, (2.9, 3.1), "timestamps jump 1 times"),
}  # fmt: skip


@pytest.mark.parametrize("kind", USED)
def test_what_can_be_decoded_is_used_and_the_rest_is_told(tmp_path, capfd, kind):
    make, (least, most), told = USED[kind]
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
    path = tmp_path / "photo.mp4"
    path.write_bytes(video.thumbnail(ordinary(tmp_path), 0, 64))
    assert [frame.time for frame in video.sample(path)] == [0]


def test_one_frame_is_a_video(tmp_path):
    for suffix in ("mp4", "mkv", "ts", "avi", "webm"):
        codec = "libvpx-vp9" if suffix == "webm" else "libx264"
        path = ordinary(tmp_path, f"a.{suffix}", codec=codec, frames=1)
        frames = list(video.sample(path))
        assert [(frame.time, videos.number(frame.image)) for frame in frames] == [(0, 0)]
        assert video.probe(path).duration == pytest.approx(1 / 12, abs=2e-3)


def test_timestamps_that_stand_still_are_told(tmp_path):
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=12)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for index in range(6):
            frame = av.VideoFrame.from_ndarray(videos.grey(index), "rgb24").reformat(
                format="yuvj420p"
            )
            frame.pts, frame.time_base = index, Fraction(1, 12)
            for packet in stream.encode(frame):
                packet.pts = packet.dts = min(packet.pts, 3)
                container.mux(packet)
    frames = video.sample(path, 12)
    assert len(list(frames)) == 4
    assert "2 frames come too late" in frames.warning


def test_a_huge_picture_is_scaled_without_a_huge_copy(tmp_path):
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=1)
        stream.width, stream.height, stream.pix_fmt = 10_000, 10_000, "yuvj420p"
        frame = av.VideoFrame(10_000, 10_000, "yuvj420p")
        for plane, value in zip(frame.planes, (200, 128, 128), strict=True):
            plane.update(np.full(plane.buffer_size, value, np.uint8))
        frame.pts, frame.time_base = 0, Fraction(1)
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    (frame,) = video.sample(path, size=100)
    assert frame.image.shape == (100, 100, 3)
    assert abs(frame.image.mean() - 200) < 3


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


def test_an_error_can_be_sent_between_processes(tmp_path):
    import pickle

    with pytest.raises(video.VideoError) as error:
        video.probe(tmp_path / "a.mp4")
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


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
