"""Video files: listing, opening, decoding with true times, sampling, seeking and probing."""

import contextlib
import errno
import itertools
import math
import os
import pickle
import re
import socket
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import videos
from av.stream import Disposition
from videos import noisy, ordinary

from hlformer_jax import video
from hlformer_jax.video import clocks, encryption, faults, listing, read
from hlformer_jax.video.encryption import encrypted_share
from hlformer_jax.video.read import MAX_PIXELS, Clock, check_size, frames_from, opened


def names(folder, **settings):
    return [os.fspath(path.relative_to(folder)) for path in video.find(folder, **settings)]


def touch(folder, *paths, content=b"x"):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def test_finds_sorted_videos_except_hidden_ones(tmp_path):
    touch(tmp_path, "b.MP4", "a/c.mkv", "a/b/d.webm", "notes.txt", "song.m4a", "photo.jpg")
    touch(tmp_path, ".a.mp4", ".trash/b.mp4", "._c.mp4")
    assert names(tmp_path) == ["a/b/d.webm", "a/c.mkv", "b.MP4"]


@pytest.mark.parametrize("kind", ["mp4", "mkv", "avi", "flv", "ts", "webm", "wmv", "mpg"])
def test_video_without_a_known_suffix_is_recognised(tmp_path, kind):
    codec = {"webm": "libvpx-vp9", "wmv": "wmv2", "flv": "flv", "mpg": "mpeg2video"}
    rate = 25 if kind == "mpg" else 12
    videos.write(tmp_path / f"a.{kind}", codec.get(kind, "mpeg4"), frames=6, rate=rate)
    (tmp_path / f"a.{kind}").rename(tmp_path / "clip (1)")
    assert names(tmp_path) == ["clip (1)"]


def test_other_files_are_not_taken_for_videos(tmp_path):
    videos.write(tmp_path / "a.ts", frames=6)  # a transport stream, not TypeScript
    touch(tmp_path, "program.ts", "Good.x", content=b"Go export const a = 1;\n" * 40)
    touch(tmp_path, "empty", content=b"")
    touch(tmp_path, "sound", content=b"RIFF\0\0\0\0WAVEfmt ")
    touch(tmp_path, "photo", content=b"\0\0\0\x18ftypheic\0\0\0\0")
    touch(tmp_path, "text", content=b"\0" * 400)
    assert names(tmp_path) == ["a.ts"]


def test_links_are_followed_once(tmp_path):
    touch(tmp_path, "z/real/a.mp4")
    (tmp_path / "z" / "real" / "up").symlink_to(tmp_path)
    (tmp_path / "a-link").symlink_to(tmp_path / "z" / "real")
    (tmp_path / "b.mp4").symlink_to("b.mp4")
    (tmp_path / "gone.mp4").symlink_to("nowhere")
    assert names(tmp_path) == ["b.mp4", "gone.mp4", "z/real/a.mp4"]
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "more").symlink_to(tmp_path / "z" / "real")
    assert "more/a.mp4" in names(tmp_path / "inside")


def test_find_refuses_a_path_that_is_not_a_folder(tmp_path):
    touch(tmp_path, "a.mp4")
    with pytest.raises(video.VideoError, match="not a folder"):
        video.find(tmp_path / "a.mp4")
    with pytest.raises(video.VideoError, match="not there"):
        video.find(tmp_path / "b")


def test_unlistable_subfolder_is_reported(tmp_path, monkeypatch):
    touch(tmp_path, "a/b.mp4", "c.mp4")
    listing = os.scandir

    def refuse(path):
        if str(path).endswith("a"):
            raise PermissionError(13, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr("os.scandir", refuse)
    lines = []
    assert names(tmp_path, report=lines.append) == ["c.mp4"]
    [line] = lines
    assert "may not be read" in line and repr(str(tmp_path / "a")) in line


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name, place in {"null": "/dev/null", "tty": "/dev/tty", "zero.ts": "/dev/zero"}.items():
            (tmp_path / name).symlink_to(place)
        touch(tmp_path, "a.mp4")
        assert "a.mp4" in names(tmp_path)


def test_kernel_file_systems_are_left_out_and_named(tmp_path):
    if not listing._pseudo_devices():
        pytest.skip("there are none on this machine")
    touch(tmp_path, "a.mp4")
    (tmp_path / "processes").symlink_to("/proc")
    (tmp_path / "log").symlink_to("/proc/kmsg")
    (tmp_path / "log.mp4").symlink_to("/proc/self/mem")
    lines = []
    assert names(tmp_path, report=lines.append) == ["a.mp4"]
    assert any("'/proc'" in line or "processes" in line for line in lines)
    assert any("log" in line and "1 more" in line for line in lines) and len(lines) == 2
    assert video.find("/proc", lines.append) == [] and "'/proc'" in lines[-1]


def test_unreadable_files_are_counted_and_named(tmp_path, monkeypatch):
    touch(tmp_path, "a", "b", "c.mp4", "d/e.ts", "c.srt", "c.txt")  # not suffixes of videos

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("hlformer_jax.files.open_regular", refuse)
    lines = []
    assert names(tmp_path, report=lines.append) == ["c.mp4", "d/e.ts"]
    [line] = lines
    assert "1 more" in line and str(tmp_path) in line
    (tmp_path / "b").unlink()
    lines.clear()
    names(tmp_path, report=lines.append)
    assert lines == [f"{str(tmp_path / 'a')!r} cannot be read: whether it is a video is not known"]


def test_find_can_be_stopped_anywhere(tmp_path):
    touch(tmp_path, "a/b/c.mp4", "d.mp4", "e")
    calls = []
    assert len(names(tmp_path, pulse=lambda: calls.append(None))) == 2

    class Stopped(Exception):
        pass

    def stop():
        calls.pop()
        if not calls:
            raise Stopped

    assert len(calls) == 6  # three folders and three files
    with pytest.raises(Stopped):
        video.find(tmp_path, pulse=stop)


@pytest.mark.parametrize("kind", videos.REFUSED)
def test_unusable_file_is_refused_in_one_line(tmp_path, capfd, kind):
    make, reason = videos.REFUSED[kind]
    path = make(tmp_path)
    capfd.readouterr()
    for act in (
        lambda: video.probe(path),
        lambda: list(video.sample(path)),
        lambda: video.thumbnail(path, 0.5, 32),
        lambda: video.cut(path, 0, 1, tmp_path / "clip.mp4"),
    ):
        with pytest.raises(video.VideoError) as error:
            act()
        line = str(error.value)
        assert videos.says(line, reason) and repr(str(path)) in line
        assert line.isprintable() and re.search(r": .+$", line)
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "clip.mp4").exists()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("kind", videos.PLAYLISTS)
def test_unrecognised_playlist_is_not_followed(tmp_path, kind):
    path = videos.PLAYLISTS[kind](tmp_path)
    with contextlib.suppress(av.FFmpegError), read.demuxer(path) as container:
        assert not container.streams.video  # for example, it is taken for subtitles
    with av.open(f"file:{tmp_path / 'part.mp4'}"):  # the playlist could be followed
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
def test_video_with_any_file_name_is_read_and_cut(tmp_path, name):
    path = tmp_path / name
    ordinary(tmp_path, "plain.mp4").rename(path)
    assert len(list(video.sample(path))) == 3
    assert video.probe(path).duration == pytest.approx(3)
    video.cut(path, 1, 2, tmp_path / f"clip {name}")
    assert video.probe(tmp_path / f"clip {name}").duration == pytest.approx(1)
    assert video.find(tmp_path) == sorted(tmp_path.iterdir(), key=os.fsencode)


def test_relative_name_is_not_a_protocol(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ordinary(tmp_path, "plain.mp4").rename("pipe:0")
    assert len(list(video.sample("pipe:0"))) == 3


def test_wrong_suffix_does_not_matter(tmp_path):
    for name in ("a.avi", "b.ts", "c.jpg", "d"):
        ordinary(tmp_path, "plain.mkv").rename(tmp_path / name)
        assert len(list(video.sample(tmp_path / name))) == 3


def test_photograph_is_a_video_of_one_frame(tmp_path):
    path = videos.photograph(tmp_path)
    assert [frame.time for frame in video.sample(path)] == [0]


def test_file_without_permission_is_refused(tmp_path):
    path = ordinary(tmp_path)
    path.chmod(0)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(video.VideoError, match="may not"):
            list(video.sample(path))
    finally:
        os.seteuid(before)


def test_mpeg2_in_a_transport_stream_begins_at_second_0(tmp_path):
    path = videos.write(tmp_path / "a.ts", "mpeg2video", rate=25, frames=50, max_b_frames=2)
    assert [frame.time for frame in video.sample(path, 2)] == pytest.approx([0, 0.48, 1, 1.48])


def test_stuffing_in_a_programme_stream_is_not_encryption(tmp_path):
    with opened(videos.stuffed_programme(tmp_path)) as film:
        assert len(list(film.container.decode(film.stream))) == 38


@pytest.mark.parametrize(("name", "codec"), [("a.vob", "mpeg2video"), ("a.ts", "libx264")])
def test_decrypted_stream_may_keep_the_bits_of_encryption(tmp_path, name, codec):
    path = videos.ordinary(tmp_path, name, codec=codec, rate=25, frames=38, paint=noisy)

    def read_all():
        samples = video.sample(path, 25)
        times = [frame.time for frame in samples]
        return video.probe(path), times, samples.warning

    before = read_all()
    videos.with_bits_of_encryption(path)
    with opened(path) as film:
        assert encrypted_share(path, film.stream) == (name == "a.vob")
    assert read_all() == before and "encrypted" not in before[2]


def test_decrypted_dvd_with_a_damaged_picture_is_shown(tmp_path):
    path = videos.ordinary(tmp_path, "a.vob", codec="mpeg2video", rate=25, frames=75, paint=noisy)
    videos.with_bits_of_encryption(path)
    content = bytearray(path.read_bytes())
    place = len(content) * 3 // 10 // 2048 * 2048 + 400
    content[place : place + 1600] = np.random.default_rng(0).bytes(1600)
    path.write_bytes(bytes(content))
    with opened(path) as film:
        assert any(frame.is_corrupt for frame in film.container.decode(film.stream))
    for second in np.arange(0, 3, 0.04):  # after the damaged picture, it is one of a few
        video.thumbnail(path, float(second), 32)


def test_stream_without_errors_is_not_searched_for_encryption(tmp_path, monkeypatch):
    path = videos.ordinary(tmp_path, "a.vob", codec="mpeg2video", rate=25, frames=38)
    monkeypatch.setattr(encryption, "encrypted_share", None)  # a call would fail
    list(video.sample(path))
    video.thumbnail(path, 1, 32)


def test_pictures_that_begin_after_the_sound_keep_their_seconds(tmp_path):
    times = [2.25 + k / 12 for k in range(24)]
    path = videos.write(tmp_path / "a.mkv", times=times, frames=24, sound=(0, 5))
    frames = list(video.sample(path))
    assert [frame.time for frame in frames] == pytest.approx([2.25, 3.0, 4.0], abs=1e-3)
    assert videos.number(frames[1].image) == 9


def test_slow_matroska_without_b_frames_can_be_sought(tmp_path):
    """FFmpeg states no start of such a file."""
    times = [2.0 * k for k in range(12)]
    path = videos.write(tmp_path / "a.mkv", times=times, frames=12, rate=1, max_b_frames=0)
    with av.open(path) as container:
        assert container.streams.video[0].start_time is None
    with opened(path) as film:
        assert (film.start, film.end) == (0, 23)
    assert video.copy(path, 5, 7, tmp_path / "b.mkv") == (0, 7)


def test_negative_timestamps_begin_at_second_0(tmp_path):
    path = videos.write(tmp_path / "a.nut", times=[-3 + k / 4 for k in range(12)], frames=12)
    assert [frame.time for frame in video.sample(path)] == pytest.approx([0, 1, 2])


def write_tracks(path, codec, sizes):
    """Write a video with a track for each pair of width and number of frames, all the default."""
    with av.open(str(path), "w") as container:
        streams = []
        for width, _ in sizes:
            stream = container.add_stream(codec, rate=25)
            stream.width, stream.height, stream.pix_fmt = width, 48, "yuv420p"
            stream.disposition = Disposition.default
            streams.append(stream)
        for index in range(max(frames for _, frames in sizes)):
            for stream, (width, frames) in zip(streams, sizes, strict=True):
                if index < frames:
                    image = np.zeros((48, width, 3), np.uint8)
                    frame = av.VideoFrame.from_ndarray(image, "rgb24")
                    frame.pts, frame.time_base = index, Fraction(1, 25)
                    container.mux(stream.encode(frame))
        for stream in streams:
            container.mux(stream.encode(None))
    return path


def test_largest_stream_is_chosen_without_a_default(tmp_path):
    path = write_tracks(tmp_path / "a.ts", "mpeg2video", [(32, 3), (64, 3), (48, 3)])
    with opened(path) as film:
        assert film.stream.codec_context.width == 64
        assert film.period == Fraction(1, 25)
        read = {packet.stream.index for packet in film.container.demux() if packet.size}
        assert read == {film.stream.index}


def test_track_of_few_larger_pictures_is_not_the_film(tmp_path):
    path = write_tracks(tmp_path / "a.mp4", "libx264", [(64, 2), (32, 25), (48, 25)])
    with opened(path) as film:
        assert film.stream.codec_context.width == 48


def test_picture_above_the_pixel_limit_is_refused():
    check_size(Path("a.mp4"), MAX_PIXELS, 1)
    with pytest.raises(video.VideoError, match="134217729 x 1"):
        check_size(Path("a.mp4"), MAX_PIXELS + 1, 1)


def test_error_can_be_sent_between_processes(tmp_path):
    with pytest.raises(video.VideoError) as error:
        video.probe(tmp_path / "a.mp4")
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "does not fit into memory"),
        (av.error.InvalidDataError(1, "invalid"), "is not a video that FFmpeg knows"),
        (av.error.DecoderNotFoundError(1, "none"), "has a codec that FFmpeg cannot decode"),
        (OSError(errno.EIO, "Input/output\n error"), "cannot be read (Input/output error)"),
        (OSError(), "cannot be read (OSError)"),
    ],
)
def test_errors_of_ffmpeg_and_of_the_disk_are_explained(error, reason):
    with pytest.raises(video.VideoError) as caught, faults.name_errors("a.mp4"):
        raise error
    assert str(caught.value).startswith(f"'a.mp4' {reason}")
    assert caught.value.__cause__ is error and "\n" not in str(caught.value)


def test_timestamps_that_do_not_rise_are_reported(tmp_path):
    frames = video.sample(videos.standing_still(tmp_path), 12)
    assert len(list(frames)) == 4
    assert "2 frames come too late" in frames.warning


@pytest.fixture
def film(tmp_path):
    """An opened video of 12 frames a second with timestamps in milliseconds."""
    with opened(videos.write(tmp_path / "film.mkv", frames=24)) as opening:
        yield opening


def stamped(seconds):
    frame = av.VideoFrame(16, 16, "yuv420p")
    frame.pts = None if seconds is None else round(1000 * seconds)
    return frame


def times(clock, *stamps):
    return [clock.time(stamped(stamp)) for stamp in stamps]


def test_frame_without_timestamp_follows_the_last(film):
    clock, frame = Clock(film), stamped(0)
    frame.duration = 250
    assert clock.time(frame) == 0 and clock.end == Fraction(1, 4)
    later = times(clock, None, None, 0.5)
    assert later == [Fraction(1, 4), Fraction(1, 4) + film.period, Fraction(1, 2)]
    assert clock.end == Fraction(1, 2) + film.period


def test_late_frames_are_dropped_or_count_as_a_jump(film):
    clock = Clock(film)
    assert times(clock, 5, 5, 3) == [5, None, None]
    assert (clock.disordered, clock.jumps) == (2, 0)
    after = 5 + film.period
    assert times(clock, 2.99, 3.49) == [after, after + Fraction(1, 2)]
    assert (clock.disordered, clock.jumps) == (2, 1)


def test_gap_of_more_than_an_hour_is_a_jump(film):
    clock = Clock(film)
    assert times(clock, 0, 3600) == [0, 3600]
    assert clock.jumps == 0
    assert times(clock, 7201) == [3600 + film.period]
    assert clock.jumps == 1
    clock = Clock(film)  # the last frame ends where the file says that its video does
    times(clock, float(film.end) - 0.01)
    assert clock.end == film.end


def test_file_without_timestamps_starts_at_its_first_frame(tmp_path):
    with opened(videos.write(tmp_path / "a.h264", frames=6)) as raw:
        assert raw.start is None
        clock, frame = Clock(raw), stamped(None)
        frame.pts = 90_000
        assert clock.time(frame) == 0


def test_gap_in_the_reception_moves_no_later_frame(tmp_path):
    path = videos.write(
        tmp_path / "a.ts", rate=10, frames=120, max_b_frames=2, gop_size=120, paint=noisy
    )
    content = path.read_bytes()
    lost = [len(content) // 188 * part // 40 * 188 for part in (20, 30)]
    path.write_bytes(content[: lost[0]] + content[lost[1] :])
    with opened(path) as film:
        decoder = read.Decoder(film)
        times = [float(time) for time, _ in decoder]
    assert max(after - before for before, after in itertools.pairwise(times)) > 2
    assert decoder.clock.disordered and not decoder.clock.jumps
    assert times[-1] == pytest.approx(11.9)


@pytest.mark.parametrize("seconds", [1, 3, 10])
def test_slow_videos_with_reordered_frames_have_right_times(tmp_path, seconds):
    options = {"preset": "medium", "x264-params": "bframes=3:b-adapt=0:b-pyramid=normal"}
    path = videos.write(tmp_path / "a.mp4", rate=Fraction(1, seconds), frames=12, options=options)
    frames = video.sample(path, 1 / seconds)
    samples = [(frame.time, videos.number(frame.image)) for frame in frames]
    assert samples == [(k * seconds, k) for k in range(12)] and not frames.warning


def delay(places, seconds):
    """Return a function of a packet's place that is `seconds` for these places, or else 0."""
    return lambda place: seconds if place in places else 0


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
@pytest.mark.parametrize("b_frames", [0, 2])
def test_contradictory_timestamps_are_dropped(tmp_path, suffix, b_frames):
    plain = videos.write(
        tmp_path / f"plain.{suffix}", rate=25, frames=150, max_b_frames=b_frames, gop_size=50
    )
    errors = ((60, 61), 300), ((60, 61), 10), (range(60, 85), 300), ((60, 61, 90), 40)
    for wrong, by in errors:
        path = videos.restamped(plain, tmp_path / f"a.{suffix}", delay(wrong, by))
        frames = video.sample(path, 25)
        samples = [(frame.time, videos.number(frame.image)) for frame in frames]
        assert [number for _, number in samples] == [place % 40 for place in range(150)]
        # Matroska's ticks are milliseconds.
        assert [time for time, _ in samples] == pytest.approx(
            [k / 25 for k in range(150)], abs=2e-3
        )
        assert f"{len(wrong)} packets have wrong timestamps" in frames.warning


@pytest.mark.parametrize("b_frames", [0, 2])
def test_decoding_times_that_leap_and_return_are_dropped(tmp_path, b_frames):
    path = videos.write(tmp_path / "a.flv", rate=25, frames=150, max_b_frames=b_frames, gop_size=50)
    plain = path.read_bytes()
    for wrong, by in (((60, 61), 300), ((60,), -2), (range(60, 65), -2.4), ((60, 62), 5)):
        path.write_bytes(plain)
        frames = video.sample(videos.restamped_flv(path, delay(wrong, by)), 25)
        samples = [(frame.time, videos.number(frame.image)) for frame in frames]
        assert [number for _, number in samples] == [place % 40 for place in range(150)]
        assert [time for time, _ in samples] == pytest.approx(
            [k / 25 for k in range(150)], abs=2e-3
        )


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize("b_frames", [0, 2])
def test_gap_between_frames_is_kept(tmp_path, suffix, b_frames):
    times = [k / 25 + (300 if k >= 60 else 0) for k in range(150)]
    path = videos.write(
        tmp_path / f"a.{suffix}", times=times, rate=25, frames=150, max_b_frames=b_frames
    )
    with opened(path) as film:
        decoded_times = [float(time) for time, _ in read.Decoder(film, lambda *_: True)]
    assert decoded_times == pytest.approx(times, abs=2e-3)


def test_sampling_after_a_jump_skips_no_needed_frame(tmp_path):
    times = [k / 12 for k in range(18)] + [90_000.3 + k / 12 for k in range(18)]
    path = videos.write(
        tmp_path / "a.mkv", "mjpeg", times=times, frames=36, pixels="yuvj420p", qmin=1, qmax=1
    )
    with opened(path) as film:
        all_frames = [
            (float(time), videos.number(frame.to_ndarray(format="rgb24")))
            for time, frame in read.Decoder(film)
        ]
    for rate in (2, 5):
        for place, frame in enumerate(video.sample(path, rate)):
            shown = [number for time, number in all_frames if time <= place / rate + 1e-6]
            assert videos.number(frame.image) == shown[-1]


@pytest.mark.slow
def test_every_second_of_joined_recordings_is_sampled(tmp_path):
    path = videos.write(tmp_path / "a.ts", rate=25, frames=100, max_b_frames=2, gop_size=25)
    second_recording = videos.write(tmp_path / "b.ts", rate=25, frames=75, paint=videos.quadrants)
    path.write_bytes(path.read_bytes() + second_recording.read_bytes())
    frames = list(video.sample(path, 5))
    for frame in frames:
        [(_, _, picture)] = frames_shown_from(path, frame.time + 0.01)[:1]
        assert picture == videos.number(frame.image)
    assert len({videos.number(frame.image) for frame in frames[-14:]}) == 1
    with pytest.raises(video.VideoError, match="clock that was reset"):
        video.copy(path, 5, 6, tmp_path / "clip.mp4")
    video.cut(path, 5, 6, tmp_path / "clip.mp4")
    assert video.probe(tmp_path / "clip.mp4").duration == pytest.approx(1, abs=0.05)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("offset", [95_436, 95_439, 95_440])
def test_frames_are_right_where_the_clock_wraps(tmp_path, offset):
    """Cross 95,443.7 s, where 33 bits of 1/90,000 s wrap."""
    path = videos.write(
        tmp_path / "a.ts", rate=25, frames=150, max_b_frames=2, gop_size=25,
        muxer={"output_ts_offset": str(offset)},
    )  # fmt: skip
    assert len(list(video.sample(path, 25))) == 150
    for second in (0, 0.02, 0.3, 0.9, 1.02, 2.5, 4.1, 5.9):
        assert frames_shown_from(path, second)[0][2] == math.floor(second * 25 + 1e-9) % 40


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_video_of_an_old_encoder_is_decoded_right_after_a_seek(tmp_path, suffix):
    """Decode 4:4:4 of x264 before core 151, which only the first packet names as the encoder."""
    source = Path(__file__).with_name("x264_core_148.mp4")  # of two keyframes
    path = videos.stamped(source, tmp_path / f"a.{suffix}")
    with opened(path) as film:
        images = [frame.to_ndarray(format="rgb24") for _, frame in read.Decoder(film)]
    for place in (0, 4, 5, 7):
        with opened(path) as film:
            _, _, frame = next(frames_from(film, Fraction(place, 12) + Fraction(1, 100)))
        np.testing.assert_array_equal(frame.to_ndarray(format="rgb24"), images[place])
    video.copy(path, 0.4, 0.6, tmp_path / "clip.mkv")
    with opened(tmp_path / "clip.mkv") as film:
        for place, (_, frame) in enumerate(read.Decoder(film), 4):
            np.testing.assert_array_equal(frame.to_ndarray(format="rgb24"), images[place])


def test_avi_frames_take_decoding_times_in_order(tmp_path):
    """Use the decoding times, because AVI has no others and FFmpeg's guesses are wrong."""
    path = videos.write(tmp_path / "a.avi", "mpeg4", frames=6, max_b_frames=2)
    with opened(path) as avi:
        clock = Clock(avi)
        packets = [packet for packet in avi.container.demux(avi.stream) if packet.size]
        for packet in packets[:3]:
            clock.sent(packet)
        stamps = sorted(packet.dts * avi.unit for packet in packets[:3])
        times = [clock.time(stamped(99), coming) for coming in (2, 1, 0)]
        assert np.diff(stamps).tolist() == [avi.period] * 2
        assert times == [stamp - avi.start for stamp in stamps]


@pytest.mark.parametrize(
    ("codec", "suffix"), [("libx264", "mp4"), ("mpeg4", "mp4"), ("mpeg2video", "mkv")]
)
def test_skipping_frames_changes_no_pixel(tmp_path, monkeypatch, codec, suffix):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (48, 64, 3), np.uint8)

    def paint(k):
        return np.roll(noise, (k, 3 * k), (0, 1))

    path = videos.write(
        tmp_path / f"a.{suffix}", codec, paint=paint, rate=25, frames=75, max_b_frames=3
    )
    for fps in (1, 2.5, 7):
        skipping = list(video.sample(path, fps))
        with monkeypatch.context() as patch:
            patch.setattr(read, "SKIPPING", frozenset())
            complete = list(video.sample(path, fps))
        assert [frame.time for frame in skipping] == [frame.time for frame in complete]
        for frame, reference in zip(skipping, complete, strict=True):
            np.testing.assert_array_equal(frame.image, reference.image)


@pytest.fixture
def decoders(monkeypatch):
    """All decoders that are created during a test."""
    made_decoders, original = [], read.Decoder.__init__

    def record(self, *values, **options):
        made_decoders.append(self)
        original(self, *values, **options)

    monkeypatch.setattr(read.Decoder, "__init__", record)
    return made_decoders


def test_fewer_frames_are_decoded_than_there_are(tmp_path, decoders):
    path = videos.write(tmp_path / "a.mp4", max_b_frames=3, rate=12, frames=60)
    assert len(list(video.sample(path))) == 5
    assert decoders[0].frames < 40 and decoders[0].packets == 60


@pytest.mark.parametrize("kind", videos.USED)
def test_decodable_parts_are_used_and_the_rest_is_reported(tmp_path, capfd, kind):
    make, (least, most), warning = videos.USED[kind]
    path = make(tmp_path)
    frames = video.sample(path, 4)
    times = [frame.time for frame in frames]
    assert least <= frames.end <= most
    assert times[0] == 0 and np.diff(times) == pytest.approx(0.25, abs=0.1)
    assert re.search(warning, frames.warning) and "\n" not in frames.warning
    assert video.probe(path).width == 64
    assert capfd.readouterr() == ("", "")


def test_disk_error_is_not_the_end_of_a_video(tmp_path, monkeypatch):
    path, packets = ordinary(tmp_path, "a.mkv"), read.packets_after_seek

    def count_frames(error):
        def failing(container, stream):
            yield from itertools.islice(packets(container, stream), 20)
            raise error

        monkeypatch.setattr(read, "packets_after_seek", failing)
        with opened(path) as film:
            return len(list(frames_from(film, Fraction(1))))

    assert count_frames(av.error.InvalidDataError(1, "Invalid data", "a.mkv")) > 1
    with pytest.raises(video.VideoError, match="Input/output error"):
        count_frames(OSError(errno.EIO, "Input/output error"))


@pytest.mark.parametrize("module", [clocks, read])
def test_disk_error_does_not_shorten_a_video(tmp_path, monkeypatch, module):
    path = ordinary(tmp_path, "a.ts")

    def failing(packets, *_):
        yield next(packets)
        raise av.error.FFmpegError(errno.EIO, "Input/output error", "a.ts")

    with opened(path) as film, monkeypatch.context() as patch:
        patch.setattr(module, "Timestamps", failing)
        with pytest.raises(av.FFmpegError, match="Input/output error"):
            read._measure_length(film) if module is read else film.recordings
    with opened(path) as film:  # nothing was cached
        assert len(film.recordings) == 1
        assert read._measure_length(film) == pytest.approx(3)


def test_truncated_file_gives_frames_or_one_line(tmp_path):
    sources = {
        suffix: ordinary(tmp_path, f"whole.{suffix}") for suffix in ("mp4", "mkv", "ts", "avi")
    }
    for suffix, source in sources.items():
        content = source.read_bytes()
        path = tmp_path / f"part.{suffix}"
        for length in range(1, len(content), len(content) // 12):
            path.write_bytes(content[:length])
            try:
                assert len(list(video.sample(path))) <= 4
            except video.VideoError as error:
                assert "\n" not in str(error)


def test_file_deleted_during_reading_is_read_to_its_end(tmp_path):
    path = ordinary(tmp_path, rate=12, frames=120)
    frames = iter(video.sample(path))
    next(frames)
    path.unlink()
    assert len(list(frames)) == 9


def test_file_truncated_during_reading_gives_a_warning(tmp_path):
    path = ordinary(tmp_path, "a.mkv", paint=noisy, frames=240)
    frames = video.sample(path)
    next(frames)
    os.truncate(path, path.stat().st_size // 2)
    assert 1 <= len(list(frames)) < 15
    assert "used as far as it can be read" in frames.warning


def test_joined_segments_of_a_stream_do_not_end_early(tmp_path):
    manifest = tmp_path / "stream.mpd"
    videos.write(manifest, frames=72, format="dash", muxer={"seg_duration": "1"}, gop_size=12)
    chunks = sorted(tmp_path.glob("chunk-stream0-*.m4s"))
    path, header = tmp_path / "joined.mp4", tmp_path / "init-stream0.m4s"
    path.write_bytes(b"".join(file.read_bytes() for file in (header, *chunks[3:])))
    frames = video.sample(path)
    assert [videos.number(frame.image) for frame in frames] == [36, 8, 20]  # modulo 40
    assert frames.warning == "" and frames.end == pytest.approx(3)
    assert video.probe(path).duration == pytest.approx(3)
    assert video.probe(path).start == pytest.approx(3)


def frames_shown_from(path, second):
    """Return the start, end and number of the frames of a video from a second on."""
    with opened(path) as film:
        return [
            (float(start), float(end), videos.number(frame.to_ndarray(format="rgb24")))
            for start, end, frame in frames_from(film, Fraction(second))
        ]


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "a.avi", "a.h264"])
def test_frames_from_a_second_begin_with_the_shown_one(tmp_path, name):
    frames = frames_shown_from(videos.write(tmp_path / name, gop_size=9), "2.05")
    assert [number for _, _, number in frames] == list(range(24, 36))
    assert [start for start, _, _ in frames] == pytest.approx(
        [number / 12 for number in range(24, 36)], abs=1e-3
    )
    assert [end for _, end, _ in frames[:-1]] == [start for start, _, _ in frames[1:]]
    assert frames[-1][1] == pytest.approx(3, abs=2e-3)


def test_second_outside_the_video_is_an_end_frame(tmp_path):
    path = videos.write(tmp_path / "a.mp4", times=[1 + k / 4 for k in range(8)], frames=8)
    assert [number for _, _, number in frames_shown_from(path, -3)] == list(range(8))
    assert [number for _, _, number in frames_shown_from(path, 500)] == [7]


def test_flv_whose_sound_begins_first_has_its_first_frames(tmp_path):
    # FFmpeg refuses to seek in it to a time before the first picture.
    tone = {"sound": (0, 4), "sound_codec": "libmp3lame", "sound_rate": 44_100}
    path = videos.write(tmp_path / "a.flv", "flv1", frames=48, **tone)
    assert [number for _, _, number in frames_shown_from(path, 0)][:3] == [0, 1, 2]


def test_frames_before_the_second_are_not_decoded(tmp_path, decoders):
    path = videos.write(tmp_path / "a.mp4", frames=240, gop_size=12)
    assert len(frames_shown_from(path, 18)) == 24
    assert sum(decoder.packets for decoder in decoders) <= 60


KINDS = {
    "h264 with B-frames.mp4": ("libx264", {"max_b_frames": 3}),
    "h264 without.mp4": ("libx264", {"max_b_frames": 0}),
    "h264.mkv": ("libx264", {}),
    "h264.ts": ("libx264", {}),
    "h264.avi": ("libx264", {}),  # FFmpeg guesses its timestamps wrongly
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


@pytest.mark.parametrize("name", KINDS)
def test_sampled_frames_have_their_timestamps(tmp_path, name):
    codec, settings = KINDS[name]
    if codec not in av.codecs_available:
        pytest.skip(f"FFmpeg here has no {codec}")
    path = videos.write(tmp_path / name, codec, **settings)
    for fps in (1, 5):
        frames = video.sample(path, fps)
        samples = [(frame.time, videos.number(frame.image)) for frame in frames]
        numbers = [math.floor(12 * k / fps + 1e-9) for k in range(3 * fps)]
        assert [number for _, number in samples] == numbers or (
            # Containers that round to milliseconds may show a frame slightly late.
            path.suffix in {".mkv", ".webm", ".flv", ".wmv"}
            and all(
                number - 1 <= sampled <= number
                for number, (_, sampled) in zip(numbers, samples, strict=True)
            )
        )
        assert [time for time, _ in samples] == pytest.approx(
            [number / 12 for _, number in samples], abs=1e-3
        )
        assert frames.warning == ""
        assert frames.end == pytest.approx(3, abs=2e-3)


def test_variable_rate_samples_the_last_frame_before(tmp_path):
    times = np.cumsum([0.0] + [0.05, 0.1, 0.4, 0.03, 0.02, 1.7] * 6)[:30].round(3).tolist()
    path = videos.write(tmp_path / "a.mkv", times=times, frames=30)
    samples = [(frame.time, videos.number(frame.image)) for frame in video.sample(path, 2)]
    sampled = set()
    for k, (time, number) in enumerate(samples):
        shown = max(i for i, t in enumerate(times) if t <= k / 2)
        assert number == shown
        assert time == pytest.approx(k / 2 if shown in sampled else times[shown])
        sampled.add(shown)
    assert len(samples) == math.floor(times[-1] * 2) + 1
    assert all(a.time < b.time for a, b in itertools.pairwise(video.sample(path, 2)))


def test_long_frame_is_sampled_at_every_instant(tmp_path):
    path = videos.write(tmp_path / "slides.mkv", times=[0, 4, 6.5], frames=3)
    samples = [(frame.time, videos.number(frame.image)) for frame in video.sample(path)]
    assert samples == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 1)]


@pytest.mark.parametrize(("fps", "size"), [(0, None), (-1, None), (math.nan, None), (1, 0)])
def test_senseless_rate_or_size_is_refused(tmp_path, fps, size):
    with pytest.raises(ValueError, match="fps > 0"):
        video.sample(tmp_path / "a.mp4", fps, size)


def test_memory_does_not_grow_with_the_number_of_frames(tmp_path):
    """Sample frames that would take 35 MB if they were kept."""
    noise = np.random.default_rng(0).integers(0, 255, (240, 320, 3), np.uint8)
    path = videos.write(tmp_path / "a.mp4", "mpeg4", paint=lambda _: noise, frames=320)

    def resident_bytes():
        return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

    sizes = [resident_bytes() for _ in video.sample(path, 12)]
    assert len(sizes) == 320
    assert sizes[-1] - sizes[20] < 8_000_000


def test_one_frame_is_a_video(tmp_path):
    for suffix in ("mp4", "mkv", "ts", "avi", "webm"):
        codec = "libvpx-vp9" if suffix == "webm" else "libx264"
        path = ordinary(tmp_path, f"a.{suffix}", codec=codec, frames=1)
        frames = list(video.sample(path))
        assert [(frame.time, videos.number(frame.image)) for frame in frames] == [(0, 0)]
        assert video.probe(path).duration == pytest.approx(1 / 12, abs=2e-3)


def test_abandoned_iteration_closes_the_file(tmp_path):
    path = ordinary(tmp_path)
    frames = video.sample(path)

    def is_open():
        links = Path("/proc/self/fd").iterdir()
        return any(link.samefile(path) for link in links if link.exists())

    next(frames)
    assert is_open()
    frames.close()
    assert not is_open()


@pytest.mark.parametrize(
    ("name", "codec", "shown"),
    [
        ("a.mp4", "libx264", "h264"),
        ("a.mkv", "mpeg4", "mpeg4"),
        ("a.webm", "libvpx-vp9", "vp9"),
        ("a.avi", "mpeg4", "mpeg4"),
        ("a.ts", "libx264", "h264"),
        ("a.h264", "libx264", "h264"),  # states no length: its packets are counted
        ("a.gif", "gif", "gif"),
    ],
)
def test_probe_returns_the_written_properties(tmp_path, name, codec, shown):
    pixels = "rgb8" if codec == "gif" else "yuv420p"
    path = videos.write(tmp_path / name, codec, rate=10, frames=25, pixels=pixels)
    info = video.probe(path)
    assert info.duration == pytest.approx(2.5, abs=2e-3)
    assert (info.width, info.height, info.codec) == (64, 48, shown)
    assert name == "a.h264" or info.rate == pytest.approx(10, rel=1e-3)


def test_programme_stream_start_and_length(tmp_path):
    path = videos.write(tmp_path / "a.mkv", times=[7 + k / 4 for k in range(8)], frames=8)
    info = video.probe(path)
    assert info.start == pytest.approx(7)
    assert info.duration == pytest.approx(2, abs=0.3)  # the muxer's length of the last frame
    path = videos.write(tmp_path / "a.mpg", "mpeg2video", rate=25, frames=60, max_b_frames=2)
    assert video.probe(path).duration == pytest.approx(2.4)


def test_rate_of_raw_dv_is_that_of_its_frames(tmp_path):
    path, rate = tmp_path / "a.dv", Fraction(30_000, 1001)
    with av.open(path, "w") as container:
        stream = container.add_stream("dvvideo", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 720, 480, "yuv411p"
        for _ in range(8):
            container.mux(stream.encode(av.VideoFrame(720, 480, "yuv411p")))
    info = video.probe(path)
    assert (info.rate, info.is_variable) == (pytest.approx(float(rate)), False)


@pytest.mark.parametrize("rate", [960, 1000, 2400])
def test_rate_of_slow_motion_is_read(tmp_path, rate):
    path = videos.write(tmp_path / "a.mp4", rate=rate, frames=24)
    info = video.probe(path)
    assert (info.rate, info.is_variable) == (pytest.approx(rate), False)
    assert info.duration == pytest.approx(24 / rate, rel=1e-3)  # in ticks of the file


def test_probing_decodes_a_single_frame(tmp_path):
    path = videos.write(tmp_path / "a.mp4", frames=60)
    content = bytearray(path.read_bytes())
    middle = content.index(b"moov") // 2
    content[middle : middle + 200] = bytes(200)
    path.write_bytes(bytes(content))
    assert video.probe(path).duration == pytest.approx(5)


@pytest.mark.parametrize(
    ("name", "stated", "date"),
    [
        (
            "a.mov",
            {
                "creation_time": "2024-05-01T10:00:00Z",
                "com__apple__quicktime__creationdate": "2019-07-04T18:30:00+0200",
            },
            datetime(2019, 7, 4, 16, 30, tzinfo=UTC),
        ),
        ("a.mp4", {"creation_time": "2021-05-06T07:08:09Z"}, datetime(2021, 5, 6, 7, 8, 9)),
        ("a.mkv", {"creation_time": "2021-05-06T07:08:09Z"}, datetime(2021, 5, 6, 7, 8, 9)),
        ("a.mkv", {"Creation_Time": "2021-05-06T07:08:09Z"}, datetime(2021, 5, 6, 7, 8, 9)),
        ("a.mkv", {"DATE_RECORDED": "2018-01-02 03:04:05"}, datetime(2018, 1, 2, 3, 4, 5)),
        ("a.mkv", {"DATE_UTC": "2018-01-02T03:04:05Z"}, datetime(2018, 1, 2, 3, 4, 5)),
        ("a.mkv", {"date_encoded": "2018-01-02T03:04:05-0500"}, datetime(2018, 1, 2, 8, 4, 5)),
        ("a.avi", {"date": "2003-05-11"}, datetime(2003, 5, 11, 10)),
        ("a.mkv", {"DATE_RECORDED": "2018-01-02"}, datetime(2018, 1, 2, 10)),
        ("a.avi", {"date": "2003:05:11 01:02:03"}, datetime(2003, 5, 11, 1, 2, 3)),
        ("a.avi", {"date": "Sun May 11 01:02:03 2003"}, datetime(2003, 5, 11, 1, 2, 3)),
        ("a.avi", {"date": "2003"}, None),
        ("a.mp4", {"date": "2003-05-11"}, None),  # the date of publication
        ("a.mp4", {"date": "2019-07-04T18:30:00+0200"}, datetime(2019, 7, 4, 16, 30)),
        ("a.mkv", {"creation_time": "yesterday"}, None),
        ("a.mp4", {"creation_time": "1970-01-01T00:00:01Z"}, None),  # a clock that was never set
        ("a.mkv", {"creation_time": "1904-01-01T00:00:00Z"}, None),
        ("a.mkv", {"creation_time": "2199-01-01T00:00:00Z"}, None),  # in the future
        (
            "a.mkv",
            {"date_recorded": "1970-01-01T00:00:00Z", "creation_time": "2021-05-06T07:08:09Z"},
            datetime(2021, 5, 6, 7, 8, 9),
        ),
    ],
)
def test_recording_date_is_read_from_all_metadata(tmp_path, name, stated, date):
    codec = "mpeg4" if name == "a.avi" else "libx264"
    plain = videos.write(tmp_path / f"plain{Path(name).suffix}", codec, frames=3)
    path = videos.stamped(plain, tmp_path / name, **stated)
    expected = date.replace(tzinfo=UTC).timestamp() if date else 0
    assert video.probe(path).recorded == expected


def test_variable_rate_is_reported(tmp_path):
    steady = video.probe(videos.write(tmp_path / "steady.mp4", rate=30, frames=60))
    assert (steady.is_variable, round(steady.base_rate)) == (False, 30)
    times = [k / 20 for k in range(120) if k % 40 != 20]
    varied = videos.write(tmp_path / "varied.mp4", rate=20, times=times, frames=len(times))
    assert video.probe(varied).is_variable
    interlaced = videos.write(
        tmp_path / "interlaced.ts", rate=25, frames=50, options={"x264-params": "interlaced=1"}
    )
    assert not video.probe(interlaced).is_variable
