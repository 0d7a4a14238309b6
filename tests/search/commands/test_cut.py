"""`cut VIDEO`: times and margins of a clip, its name, and what it never replaces."""

import itertools

import archive

from hlformer_jax.search.commands import cut


def test_cut_takes_times_as_people_write_them(search, films, index, calls, tmp_path):
    out = tmp_path / "clip.mp4"
    flags = ["--start=0:05", "--end=8.5", "--margin=1", f"--out={out}", f"--index={index}"]
    assert search("cut", "a.film", *flags).status == 0
    assert calls.cuts == [((films / "a.film", 5.0, 8.5, out, 1.0), "none")]
    assert search("cut", "a.film", *flags, "--overwrite").status == 0
    assert calls.cuts[1][1] == "any"
    wrong = search("cut", "a.film", f"--index={index}", "--start=5", "--end=0:04")
    assert wrong.errors == ["error: --end=0:04 is not after --start=5"]


def test_clips_of_two_videos_or_parts_never_have_one_name():
    long = "x" * 250
    names = ["a.mp4", "b/a.mp4", "b_a.mp4", "b%2Fa.mp4", "b/a.mkv", f"{long}.mp4", f"b/{long}.mp4"]
    parts = [(3, 5), (3.0001, 5), (1234567.1, 1234567.2), (1234567.1, 1234567.3)]
    clips = [cut.clip_name(name, *part) for name, part in itertools.product(names, parts)]
    assert len(set(clips)) == len(clips)
    assert clips[0] == "a.mp4_3-5.mp4"
    assert all("/" not in clip and len(clip) < 240 for clip in clips)


def test_a_clip_never_replaces_a_video_of_the_index(search, films, index, calls, tmp_path):
    (tmp_path / "link.mp4").symlink_to(films / "b.film")
    for out in (films / "b.film", films / "trips" / ".." / "a.film", tmp_path / "link.mp4"):
        flags = ["--start=1", "--end=2", f"--out={out}", f"--index={index}", "--overwrite"]
        done = search("cut", "a.film", *flags)
        assert done.status == 1 and "is a video of the index" in done.errors[0]
    assert not calls.cuts
    done = search("cut", "a.film", "--start=1", "--end=2", "--out=", f"--index={index}")
    assert done.status == 1 and len(done.errors) == 1 and "path is empty" in done.errors[0]
    assert archive.find(films, print) and not calls.cuts
