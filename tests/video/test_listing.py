"""The video files of a folder: by name, by content, through links."""

import os

import pytest
import videos

from hlformer_jax import video


def names(folder, **settings):
    return [os.fspath(path.relative_to(folder)) for path in video.find(folder, **settings)]


def touch(folder, *paths, content=b"x"):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def test_videos_are_found_by_name_in_all_folders_and_sorted(tmp_path):
    touch(tmp_path, "b.MP4", "a/c.mkv", "a/b/d.webm", "notes.txt", "song.m4a", "photo.jpg")
    assert names(tmp_path) == ["a/b/d.webm", "a/c.mkv", "b.MP4"]


def test_names_with_a_dot_in_front_are_left_out(tmp_path):
    touch(tmp_path, ".a.mp4", ".trash/b.mp4", "._c.mp4", "d.mp4")
    assert names(tmp_path) == ["d.mp4"]


@pytest.mark.parametrize("kind", ["mp4", "mkv", "avi", "flv", "ts", "webm", "wmv", "mpg"])
def test_a_video_without_a_telling_name_is_found_by_its_content(tmp_path, kind):
    codec = {"webm": "libvpx-vp9", "wmv": "wmv2", "flv": "flv", "mpg": "mpeg2video"}
    rate = 25 if kind == "mpg" else 12
    videos.write(tmp_path / f"a.{kind}", codec.get(kind, "mpeg4"), frames=6, rate=rate)
    (tmp_path / f"a.{kind}").rename(tmp_path / "clip (1)")
    assert names(tmp_path) == ["clip (1)"]


def test_other_files_are_not_taken_for_videos(tmp_path):
    touch(tmp_path, "program.ts", "Good.x", content=b"Go export const a = 1;\n" * 40)
    touch(tmp_path, "empty", content=b"")
    touch(tmp_path, "sound", content=b"RIFF\0\0\0\0WAVEfmt ")
    touch(tmp_path, "photo", content=b"\0\0\0\x18ftypheic\0\0\0\0")
    touch(tmp_path, "text", content=b"\0" * 400)
    assert names(tmp_path) == []


def test_a_transport_stream_is_told_from_a_program_by_its_content(tmp_path):
    videos.write(tmp_path / "a.ts", frames=6)
    touch(tmp_path, "b.ts", content=b"const a = 1;\n" * 100)
    assert names(tmp_path) == ["a.ts"]


def test_links_in_a_circle_are_followed_once(tmp_path):
    touch(tmp_path, "z/real/a.mp4")
    (tmp_path / "z" / "real" / "up").symlink_to(tmp_path)
    (tmp_path / "a-link").symlink_to(tmp_path / "z" / "real")
    (tmp_path / "b.mp4").symlink_to("b.mp4")
    (tmp_path / "gone.mp4").symlink_to("nowhere")
    assert names(tmp_path) == ["b.mp4", "gone.mp4", "z/real/a.mp4"]


def test_a_linked_folder_outside_is_searched(tmp_path):
    touch(tmp_path, "outside/a.mp4", "inside/b.mp4")
    (tmp_path / "inside" / "more").symlink_to(tmp_path / "outside")
    assert names(tmp_path / "inside") == ["b.mp4", "more/a.mp4"]


def test_a_folder_that_is_none_is_one_line(tmp_path):
    touch(tmp_path, "a.mp4")
    with pytest.raises(video.VideoError, match="is no folder"):
        video.find(tmp_path / "a.mp4")
    with pytest.raises(video.VideoError, match="is not there"):
        video.find(tmp_path / "b")


def test_a_folder_below_that_cannot_be_listed_is_told(tmp_path, monkeypatch):
    touch(tmp_path, "a/b.mp4", "c.mp4")
    listing = os.scandir

    def refuse(place):
        if str(place).endswith("a"):
            raise PermissionError(13, "Permission denied")
        return listing(place)

    monkeypatch.setattr("os.scandir", refuse)
    told = []
    assert names(tmp_path, tell=told.append) == ["c.mp4"]
    assert len(told) == 1 and "may not be read" in told[0] and repr(str(tmp_path / "a")) in told[0]
