"""Files that are broken or odd: each is used as far as it can be, or refused in one clear line."""

import os
import re

import bad_videos
import numpy as np
import pytest
import videos
from bad_videos import noisy, ordinary

from hlformer_jax import video


@pytest.mark.parametrize("kind", bad_videos.REFUSED)
@pytest.mark.parametrize("ask", ["probe", "sample", "thumbnail", "cut"])
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path, capfd, kind, ask):
    make, reason = bad_videos.REFUSED[kind]
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
    path = bad_videos.photograph(tmp_path)
    assert [frame.time for frame in video.sample(path)] == [0]


def test_one_frame_is_a_video(tmp_path):
    for suffix in ("mp4", "mkv", "ts", "avi", "webm"):
        codec = "libvpx-vp9" if suffix == "webm" else "libx264"
        path = ordinary(tmp_path, f"a.{suffix}", codec=codec, frames=1)
        frames = list(video.sample(path))
        assert [(frame.time, videos.number(frame.image)) for frame in frames] == [(0, 0)]
        assert video.probe(path).duration == pytest.approx(1 / 12, abs=2e-3)


def test_timestamps_that_stand_still_are_told(tmp_path):
    frames = video.sample(bad_videos.standing_still(tmp_path), 12)
    assert len(list(frames)) == 4
    assert "2 frames come too late" in frames.warning


def test_a_huge_picture_is_scaled_without_a_huge_copy(tmp_path):
    (frame,) = video.sample(bad_videos.huge_picture(tmp_path), size=100)
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
