"""Watching of folders: the changes that are indexed, when, and the lines that are reported."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import archive
import processes
import pytest

from hlformer_jax.errors import SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest import watch
from hlformer_jax.search.signals.transcript import passages, transcripts
from hlformer_jax.video import VideoError, subtitles


@contextlib.contextmanager
def following(index, settle=0.3):
    """Watch in a thread until the block ends; yield the lines and a function that awaits one."""
    pytest.importorskip("watchfiles", reason="the extra search is not installed")
    lines, stop, failed = [], threading.Event(), []

    def until_stopped():
        for changed_paths in watch.watch_changes(index.directory):
            if stop.is_set():
                return
            yield changed_paths

    texts = transcripts.SubtitleReader(subtitles.SUFFIXES, lambda path: [], subtitles.read_file)

    def run():
        try:
            watch.follow(
                index.directory, archive.Encoder(), settle, lines.append,
                archive.VIDEO._replace(texts=texts), until_stopped(), workers=0,
            )  # fmt: skip
        except BaseException as error:
            failed.append(error)

    def wait(text, seconds=15):
        end = time.monotonic() + seconds
        while not any(text in line for line in lines):
            assert time.monotonic() < end and not failed, (text, lines, failed)
            time.sleep(0.02)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lines, wait
    finally:
        stop.set()
        thread.join(20)
    assert not failed and not thread.is_alive()


def place(path, content):
    """Write a file in one step: if a busy machine writes parts, each is reported."""
    written = path.parents[1] / "written"
    written.write_bytes(content)
    written.replace(path)


@pytest.mark.slow  # waits eight times until changes settle
def test_changes_are_indexed_and_reported(index, films, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "TICK_MILLISECONDS", 50)
    archive.film(films / "before.film", ["red"] * 3)  # before watching begins
    (films / "b.film").unlink()
    with following(index) as (lines, wait):
        wait("indexed before.film (3 s)")
        wait("offline: 1 video (kept")
        archive.film(films / "new folder" / "n.film", ["white"] * 4)
        wait("indexed new folder/n.film (4 s)")
        ids = {entry.video: entry.id for entry in Index.open(index.directory).entries()}
        (films / "new folder").rename(films / "renamed")
        wait("moved new folder/n.film to renamed/n.film")
        archive.film(films / "a.film", ["blue"] * 6)
        wait("indexed a.film (6 s)")
        (films / "a.film").unlink()
        wait("offline a.film")
        archive.film(films / "b.film", ["green"] * 20)
        wait("online again b.film")
        place(films / "bad.film", b"broken")
        wait("is not a film")
        place(films / "before.srt", b"1\n00:00:00,000 --> 00:00:02,000\nahoy\n")
        wait(f"subtitles {films / 'before.srt'}")
        films.rename(tmp_path / "elsewhere")
        wait(f"{films} is offline")
        (tmp_path / "elsewhere").rename(films)
        wait(f"{films} is online again")
        disk = tmp_path / "disk"
        archive.film(disk / "d.film", ["black"] * 9)
        second_index = Index.open(index.directory)
        with second_index.running():  # as `add` does in another process
            with second_index.writing() as writer:
                writer.add_root(disk)
            archive.film(films / "while locked.film", ["blue"] * 2)
            wait("another process is writing")
        wait("indexed while locked.film")
        wait("indexed disk//d.film")
    assert [line for line, count in Counter(lines).items() if count > 1] == [], "\n".join(lines)
    reopened = Index.open(index.directory)
    states = {entry.video: entry.state for entry in reopened.entries()}
    assert states == {
        "a.film": "offline", "b.film": "indexed", "bad.film": "failed", "before.film": "indexed",
        "disk//d.film": "indexed", "renamed/n.film": "indexed", "trips/c.film": "indexed",
        "while locked.film": "indexed",
    }  # fmt: skip
    assert reopened.entries()[5].id == ids["new folder/n.film"]
    spoken = passages.PassageIndex(reopened, archive.Encoder()).search_words("ahoy")
    assert spoken.scores.keys() == {reopened.videos["before.film"].content}
    assert reopened.verify() == {}


@pytest.mark.slow  # it takes seconds
def test_file_that_is_being_copied_waits(index, films):
    encoder, lines = archive.Encoder(), []
    content = (films / "b.film").read_bytes()
    copy = films / "copied.film"
    archive.film(films / "c.film", ["red", "blue"])
    steps = iter([content[:90], content[:200], content[:400]])

    def changes():
        for _ in range(3):
            copy.write_bytes(next(steps))
            yield [str(copy)]
            time.sleep(0.06)
        assert encoder.seen == 0
        assert "copied.film" not in Index.open(index.directory).videos
        copy.write_bytes(content[:-3] + bytes(3))
        end = time.monotonic() + 10
        while len(lines) < 2 and time.monotonic() < end:
            yield ()
            time.sleep(0.05)
        for _ in range(4):  # nothing more is reported
            yield ()
            time.sleep(0.05)

    watch.follow(index.directory, encoder, 0.5, lines.append, archive.VIDEO, changes(), workers=0)
    assert sorted(lines) == ["indexed c.film (2 s)", "indexed copied.film (20 s)"]
    assert encoder.seen == 2 + 2  # each colour of each video once


@pytest.mark.parametrize("limit", ["instances", "watches"])
def test_files_are_polled_if_the_system_has_no_watches(index, films, monkeypatch, limit):
    watchfiles = pytest.importorskip("watchfiles", reason="the extra search is not installed")
    real, lines = watchfiles.watch, []
    errors = {
        "instances": RuntimeError("Error creating recommended watcher: Too many open files"),
        "watches": OSError("OS file watch limit reached."),
    }

    def limited(*places, force_polling, **options):
        if not force_polling:
            raise errors[limit]
        yield from real(*places, force_polling=True, **options)

    monkeypatch.setattr(watchfiles, "watch", limited)
    monkeypatch.setattr(watch, "POLL_MILLISECONDS", 50)
    monkeypatch.setattr(watch, "TICK_MILLISECONDS", 50)
    changes = watch.watch_changes(index.directory, lines.append)
    assert next(changes) == [str(index.directory)]
    archive.film(films / "new.film", ["red"] * 3)
    assert any(str(films / "new.film") in next(changes) for _ in range(100))
    [line] = lines
    assert "max_user_" in line and "no watches left" in line and "\n" not in line


@pytest.mark.slow  # it takes seconds
def test_deleted_index_ends_watching(index):
    changes = watch.watch_changes(index.directory)
    next(changes)
    shutil.rmtree(index.directory)
    with pytest.raises(SearchError, match="deleted or moved"):
        for _ in range(3):
            next(changes)
    with pytest.raises(SearchError, match="deleted or moved"):
        next(watch.watch_changes(index.directory))


def test_removed_videos_stay_out_and_failures_are_tried_once(index, films):
    index.remove(["a.film", "b.film"])
    os.utime(films / "a.film", (1, 1))
    archive.film(films / "b.film", ["yellow"] * 7)  # another video
    (films / "bad.film").write_bytes(b"broken")
    lines, changes = [], [["x"]] * 4
    options = lines.append, archive.VIDEO, changes
    watch.follow(index.directory, archive.Encoder(), 0.0, *options, workers=0)
    assert len(lines) == 2 and "is not a film" in lines[0] and lines[1] == "indexed b.film (7 s)"
    assert {"a.film", "b.film"} == set(Index.open(index.directory).excluded)
    assert set(Index.open(index.directory).videos) == {"b.film", "bad.film", "trips/c.film"}
    (films / "bad.film").unlink()
    watch.follow(index.directory, archive.Encoder(), 0.0, *options, workers=0)
    assert "bad.film" not in Index.open(index.directory).videos


@pytest.mark.parametrize(("rescan", "runs"), [(0.0, 2), (600.0, 1)])
def test_video_of_an_absent_disk_is_retried(index, films, monkeypatch, rescan, runs):
    archive.film(films / "new.film", ["white"] * 4)
    lines, decoded = [], []

    def sample(path, fps, size):
        decoded.append(path)
        if len(decoded) == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        return archive.sample(path, fps, size)

    monkeypatch.setattr(watch, "RESCAN_SECONDS", rescan)
    options = lines.append, archive.VIDEO._replace(sample=sample), [["x"]] * 3
    watch.follow(index.directory, archive.Encoder(), 0.0, *options, workers=0)
    assert lines == ["new.film: Stale file handle", "indexed new.film (4 s)"][:runs]


def test_older_copy_of_the_index_is_brought_up_to_date(index, films, tmp_path):
    older = tmp_path / "older"
    shutil.copytree(index.directory, older)
    lines = []

    def changes():
        yield [str(archive.film(films / "new.film", ["red"] * 3))]
        index.directory.rename(tmp_path / "newer")
        older.rename(index.directory)
        for _ in range(3):
            yield []

    options = lines.append, archive.VIDEO, changes()
    watch.follow(index.directory, archive.Encoder(), 0.0, *options, workers=0)
    assert lines.count("indexed new.film (3 s)") == 2
    assert "new.film" in Index.open(index.directory).videos


def test_scan_does_not_read_the_roots_once_per_file(index, films, monkeypatch):
    roots, counts = Index.roots, []

    def reading(self):
        counts[-1] += 1
        return roots.fget(self)

    monkeypatch.setattr(Index, "roots", property(reading))
    options = lambda line: None, archive.VIDEO, [["x"]]
    for number in range(2):
        counts.append(0)
        watch.follow(index.directory, archive.Encoder(), 1e9, *options, workers=0)
        for name in range(9):
            archive.film(films / f"{number} {name}.film", ["red", "white"])
    assert counts[0] >= counts[1] > 0


def test_folder_that_cannot_be_listed_is_reported_once(index, films, tmp_path):
    further = tmp_path / "further"
    archive.film(further / "d.film", ["white"] * 3)
    archive.fill(index, further=[further])
    closed, lines = {further}, []

    def find(folder, report, pulse=lambda: None):
        if folder in closed:
            raise VideoError(f"{folder} may not be listed")
        return archive.find(folder, report, pulse)

    def changes():
        yield ["x"]
        yield ["x"]  # the second scan reports nothing new
        assert Index.open(index.directory).unlisted == (f"{further} may not be listed",)
        archive.film(films / "unlisted" / "e.film", ["white"] * 4)
        yield ["x"]
        assert len(Index.open(index.directory).unlisted) == 2
        closed.clear()
        (films / "unlisted").rename(films / "listed")
        yield ["x"]

    archive.film(films / "f.film", ["red"] * 5)
    video = archive.VIDEO._replace(find=find)
    watch.follow(
        index.directory, archive.Encoder(), 0.0, lines.append, video, changes(), workers=0
    )  # fmt: skip
    assert lines == [
        f"{further} may not be listed", "indexed f.film (5 s)",
        f"{films}/unlisted may not be listed", "indexed listed/e.film (4 s)",
    ]  # fmt: skip
    assert Index.open(index.directory).unlisted == ()


PROGRAM = """
import archive, sys
from pathlib import Path
from hlformer_jax.search.cli import index
index.reload_encoder = lambda *a: archive.Encoder()
index.watch_folders.real_video = lambda: archive.VIDEO
from hlformer_jax.search.__main__ import main
sys.exit(main(["watch", f"--index={sys.argv[1]}", "--settle=0.2", "--workers=0"]))
"""


@pytest.mark.slow  # starts processes
def test_killed_watch_continues_and_ctrl_c_ends_it(index, films):
    env = processes.environment()
    command = [sys.executable, "-c", PROGRAM, str(index.directory)]
    # Its decoding never ends, so the kill always comes first.
    archive.random_film(films / "hanging.film", 60)
    for signal_number, expected in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 0)):
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as started:
            too_long = threading.Timer(120, started.kill)
            too_long.start()
            assert started.stdout.readline() == f"watching {films} (Ctrl-C ends it)\n"
            if signal_number == signal.SIGINT:
                lines = [started.stdout.readline() for _ in range(2)]
                assert sorted(lines) == [
                    f"indexed {name}.film (60 s)\n" for name in ("new", "slow")
                ]
            else:
                time.sleep(0.5)
            started.send_signal(signal_number)
            rest = started.stdout.read()
        too_long.cancel()
        assert started.returncode == expected, rest
        assert signal_number == signal.SIGKILL or rest == "stopped\n"
        if signal_number == signal.SIGKILL:
            (films / "hanging.film").rename(films / "new.film")
            archive.random_film(films / "slow.film", 60)
    reopened = Index.open(index.directory)
    assert reopened.verify() == {} and len(reopened.videos) == 5 and not reopened.notes
