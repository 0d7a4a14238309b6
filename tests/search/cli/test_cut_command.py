"""The command cut: times, tables of moments, and names of clips."""

import itertools
import os
import sys
from pathlib import Path

import archive
import pytest

from hlformer_jax import files
from hlformer_jax.errors import SearchError
from hlformer_jax.search import export, times
from hlformer_jax.video import faults


def test_times_are_formatted_and_parsed():
    assert [times.format_clock(t) for t in (0, 59.9, 60, 3599, 3600, -1)] == [
        "0:00", "0:59", "1:00", "59:59", "1:00:00", "0:00",
    ]  # fmt: skip
    assert [times.parse_seconds(t) for t in ("75", "1:02.5", "1:00:03", "90:30")] == [
        75, 62.5, 3603, 5430,
    ]  # fmt: skip
    too_large = "9" * 400, "10000001", "3000:00:00"
    for wrong in ("", "-1", "1:", ":3", "1:2:3:4", "nan", "1e3", "1:75", "1:60:00", *too_large):
        with pytest.raises(SearchError, match="not a time"):
            times.parse_seconds(wrong)


def test_cut_takes_times_as_people_write_them(ask, films, calls, tmp_path):
    out = tmp_path / "clip.mp4"
    flags = ["--start=0:05", "--end=8.5", "--margin=1", f"--out={out}"]
    assert ask("cut", "a.film", *flags).status == 0
    assert calls.cuts == [((films / "a.film", 5.0, 8.5, out, 1.0), files.Replace.NOTHING)]
    assert ask("cut", "a.film", *flags, "--overwrite").status == 0
    assert calls.cuts[1][1] == files.Replace.ANY
    late = ask("cut", "a.film", "--start=1", "--end=99", f"--out={tmp_path / 'late.mp4'}")
    assert late.errors == ["a.film ends at 16.0 s, before the end of the part"]
    calls.cuts.pop()
    done = ask("cut", "a.film", *flags, "--copy")
    assert done.out == f"{out}\n" and len(calls.cuts) == 3
    assert done.errors == ["from 2.500 s, 1.500 s before the start, to 9.750 s"]


def test_every_moment_of_an_exported_table_is_cut(ask, films, calls, tmp_path):
    table, folder = tmp_path / "hits.csv", tmp_path / "clips"
    flags = "red", "--signals=visual", f"--export={table}", "--k=2"
    done = ask("query", *flags)
    assert done.status == 0 and "moments" in done.errors[-1]
    assert ask("query", *flags).status == 1
    assert ask("query", *flags, "--overwrite").status == 0
    assert ask("cut", f"--from={table}", f"--out={folder}").status == 0
    assert len(calls.cuts) == len(table.read_text().splitlines()) - 1 >= 2
    (path, start, end, out, _), replace = calls.cuts[0]
    assert (path, out.parent, replace) == (
        films / "a.film",
        folder,
        files.Replace.NOTHING,
    ) and start < end
    for wrong in (["a.film", f"--from={table}"], ["a.film", "--start=1"], []):
        assert "VIDEO" in ask("cut", *wrong).errors[0]
    video = f"--export={films / 'trips' / 'c.csv'}", "--overwrite"
    archive.film(films / "trips" / "c.csv", ["red"])
    assert ask("add", films / "trips" / "c.csv").status == 0
    done = ask("query", "red", *video)
    assert done.status == 1 and "is a video of the index" in done.errors[0]


def test_table_without_rows_makes_no_clips(ask, calls, tmp_path):
    table = tmp_path / "hits.csv"
    table.write_text("id,start,end\n")
    done = ask("cut", f"--from={table}")
    assert done.status == 0 and not done.out and not calls.cuts
    assert done.errors == [f"{table} has no rows, so no clips are cut"]


def test_cut_continues_after_a_failed_clip(ask, films, calls, monkeypatch, tmp_path):
    table, folder = tmp_path / "hits.csv", tmp_path / "clips"
    assert ask("query", "red", "--signals=visual", f"--export={table}", "--k=2").status == 0
    head, *rows = table.read_text(encoding="utf-8-sig").splitlines()
    missing_row = "9,0123456789abcdef,gone.film,1.000,2.000,1.500,0.5,visual,2020-01-01,/gone.film,"
    table.write_text("\n".join([head, missing_row, *rows, ""]))
    clips = []

    def cut(path, start, end, out, margin, replace):
        if not clips and not failed:
            failed.append(out)
            raise faults.VideoError(f"{str(out)!r} cannot be written (no reason): try again")
        clips.append(out)

    failed: list[Path] = []
    monkeypatch.setattr(sys.modules["hlformer_jax.video"], "cut", cut)
    done = ask("cut", f"--from={table}", f"--out={folder}")
    assert done.status == 1 and len(clips) == len(rows) - 1 >= 1
    assert done.out.split() == [str(out) for out in clips]
    assert "holds no video '0123456789abcdef'" in done.errors[0]
    assert "no reason" in done.errors[1]
    assert done.errors[-1] == (
        f"error: 2 of {len(rows) + 1} clips could not be made: 0123456789abcdef, {failed[0].name}"
    )


def test_clips_are_cut_only_from_the_indexed_file(ask, films, calls, tmp_path):
    table = tmp_path / "hits.csv"
    assert ask("query", "red", "--signals=visual", f"--export={table}", "--k=2").status == 0
    os.utime(films / "a.film", (1, 1))  # the content is the same
    flags = "--start=5", "--end=8"
    assert ask("cut", "a.film", *flags, f"--out={tmp_path / 'same.mp4'}").status == 0
    assert len(calls.cuts) == 1
    archive.film(films / "a.film", ["blue"] * 10)
    done = ask("cut", "a.film", *flags, f"--out={tmp_path / 'other.mp4'}")
    assert done.status == 1 and "a.film has changed since it was indexed" in done.errors[0]
    done = ask("cut", f"--from={table}", f"--out={tmp_path / 'clips'}")
    assert done.status == 1 and "a.film has changed since it was indexed" in done.errors[0]
    assert all(cut[0][0] != films / "a.film" for cut in calls.cuts[1:])


def test_clip_names_are_unique():
    long = "x" * 250
    names = ["a.mp4", "b/a.mp4", "b_a.mp4", "b%2Fa.mp4", "b/a.mkv", f"{long}.mp4", f"b/{long}.mp4"]
    parts = [(3, 5), (3.0001, 5), (1234567.1, 1234567.2), (1234567.1, 1234567.3)]
    clips = [export.clip_name(name, *part) for name, part in itertools.product(names, parts)]
    assert len(set(clips)) == len(clips)
    assert clips[0] == "a.mp4_3-5.mp4"
    assert all("/" not in clip and len(clip) < 240 for clip in clips)
    for name in ("a\x1b[31m.mp4", "a\u202egpj.mp4", "a\nb.mp4"):
        assert export.clip_name(name, 3, 5).isascii() and export.clip_name(name, 3, 5).isprintable()
    assert export.clip_name("映画\u3000一  é.mp4", 3, 5) == "映画\u3000一  é.mp4_3-5.mp4"


def test_clip_never_replaces_a_video_of_the_index(ask, films, calls, tmp_path):
    (tmp_path / "link.mp4").symlink_to(films / "b.film")
    for out in (films / "b.film", films / "trips" / ".." / "a.film", tmp_path / "link.mp4"):
        flags = ["--start=1", "--end=2", f"--out={out}", "--overwrite"]
        done = ask("cut", "a.film", *flags)
        assert done.status == 1 and "is a video of the index" in done.errors[0]
    assert archive.find(films, print) and not calls.cuts


@pytest.mark.parametrize("place", ["", "trips", "new"])
def test_overwrite_keeps_videos_of_indexed_folders(ask, films, calls, tmp_path, place):
    folder = films / place
    folder.mkdir(exist_ok=True)
    (tmp_path / "link").symlink_to(folder)
    foreign_clip = folder / export.clip_name("a.film", 5, 8)
    foreign_clip.write_bytes(b"a video that is not indexed yet")
    foreign_table = folder / "moments.csv"
    foreign_table.write_bytes(bytes(4) + b"ftypisom")  # a video by its first bytes
    table = tmp_path / "hits.csv"
    table.write_text("id,start,end\na.film,5,8\n")
    commands = [
        ("cut", "a.film", "--start=5", "--end=8", f"--out={foreign_clip}"),
        ("cut", "a.film", "--start=5", "--end=8", f"--out={tmp_path / 'link' / foreign_clip.name}"),
        ("cut", f"--from={table}", f"--out={folder}"),
        ("query", "red", f"--export={foreign_table}"),
    ]
    for command in commands:
        done = ask(*command, "--overwrite")
        assert done.status == 1 and "where none is replaced" in done.errors[0], done
    assert not calls.cuts and foreign_clip.read_bytes() == b"a video that is not indexed yet"
    assert foreign_table.read_bytes() == bytes(4) + b"ftypisom"
    foreign_table.write_text("rank\n")  # a table in the folder is replaced
    assert ask("query", "red", f"--export={foreign_table}", "--overwrite").status == 0
    outside = tmp_path / foreign_clip.name
    outside.write_bytes(b"an earlier clip")
    assert ask(*commands[0][:-1], f"--out={outside}", "--overwrite").status == 0
    assert len(calls.cuts) == 1
