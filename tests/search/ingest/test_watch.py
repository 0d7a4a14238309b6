"""An index that follows its folders: what it reads, when, and what it says."""

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
def following(index, settle=0.3, changes=True):
    """The lines of a follower in a thread, and what waits for one; it ends with the block."""
    pytest.importorskip("watchfiles", reason="the extra search is not installed")
    told, stop, failed = [], threading.Event(), []

    def until_stopped():
        for one in watch.watch_changes(index.directory):
            if stop.is_set():
                return
            yield one if changes else ()

    texts = transcripts.SubtitleReader(subtitles.SUFFIXES, lambda path: [], subtitles.read_file)

    def run():
        try:
            watch.follow(
                index.directory, archive.Encoder(), settle, told.append,
                archive.VIDEO._replace(texts=texts), until_stopped(), workers=0,
            )  # fmt: skip
        except BaseException as error:
            failed.append(error)

    def wait(line, seconds=15):
        end = time.monotonic() + seconds
        while not any(line in one for one in told):
            assert time.monotonic() < end and not failed, (line, told, failed)
            time.sleep(0.02)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield told, wait
    finally:
        stop.set()
        thread.join(20)
    assert not failed and not thread.is_alive()


def place(path, content):
    """Put a whole file in its place: one that a busy machine writes in parts is told for each."""
    written = path.parents[1] / "written"
    written.write_bytes(content)
    written.replace(path)


@pytest.mark.slow  # waits for what settles, eight times
def test_changes_are_indexed_and_reported(index, films, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "TICK_MILLISECONDS", 50)
    archive.film(films / "before.film", ["red"] * 3)  # while nothing watched
    (films / "b.film").unlink()
    with following(index) as (told, wait):
        wait("indexed before.film (3 s)")
        wait("1 videos are offline")
        archive.film(films / "new folder" / "n.film", ["white"] * 4)
        wait("indexed new folder/n.film (4 s)")
        ids = {one.video: one.id for one in Index.open(index.directory).entries()}
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
        films.rename(tmp_path / "away")
        wait(f"{films} is offline")
        (tmp_path / "away").rename(films)
        wait(f"{films} is online again")
        disk = tmp_path / "disk"
        archive.film(disk / "d.film", ["black"] * 9)
        other = Index.open(index.directory)
        with other.running():  # as `add` does in another process
            with other.writing() as writer:
                writer.add_root(disk)
            archive.film(films / "while locked.film", ["blue"] * 2)
            wait("another process is writing")
        wait("indexed while locked.film")
        wait("indexed disk//d.film")
    assert [line for line, times in Counter(told).items() if times > 1] == [], "\n".join(told)
    now = Index.open(index.directory)
    states = {one.video: one.state for one in now.entries()}
    assert states == {
        "a.film": "offline", "b.film": "indexed", "bad.film": "failed", "before.film": "indexed",
        "disk//d.film": "indexed", "renamed/n.film": "indexed", "trips/c.film": "indexed",
        "while locked.film": "indexed",
    }  # fmt: skip
    assert now.entries()[5].id == ids["new folder/n.film"]
    spoken = passages.PassageIndex(now, archive.Encoder()).search_words("ahoy")
    assert spoken.scores.keys() == {now.videos["before.film"].content}
    assert now.verify() == {}


@pytest.mark.slow  # it takes seconds
def test_a_file_that_is_being_copied_waits(index, films):
    encoder, told = archive.Encoder(), []
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
        while len(told) < 2 and time.monotonic() < end:
            yield ()
            time.sleep(0.05)
        for _ in range(4):  # nothing more is told
            yield ()
            time.sleep(0.05)

    watch.follow(index.directory, encoder, 0.5, told.append, archive.VIDEO, changes(), workers=0)
    assert sorted(told) == ["indexed c.film (2 s)", "indexed copied.film (20 s)"]
    assert encoder.seen == 2 + 2  # each colour of each video once


@pytest.mark.parametrize("limit", ["instances", "watches"])
def test_files_are_polled_if_the_system_has_no_watches(index, films, monkeypatch, limit):
    watchfiles = pytest.importorskip("watchfiles", reason="the extra search is not installed")
    real, told = watchfiles.watch, []
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
    changes = watch.watch_changes(index.directory, told.append)
    assert next(changes) == [str(index.directory)]
    archive.film(films / "new.film", ["red"] * 3)
    assert any(str(films / "new.film") in next(changes) for _ in range(100))
    [line] = told
    assert "max_user_" in line and "no watches left" in line and "\n" not in line


@pytest.mark.slow  # it takes seconds
def test_a_deleted_index_ends_watching(index):
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
    told, changes = [], [["x"]] * 4
    options = told.append, archive.VIDEO, changes
    watch.follow(index.directory, archive.Encoder(), 0.0, *options, workers=0)
    assert len(told) == 2 and "is not a film" in told[0] and told[1] == "indexed b.film (7 s)"
    assert {"a.film", "b.film"} == set(Index.open(index.directory).excluded)
    assert set(Index.open(index.directory).videos) == {"b.film", "bad.film", "trips/c.film"}
    (films / "bad.film").unlink()
    watch.follow(index.directory, archive.Encoder(), 0.0, *options, workers=0)
    assert "bad.film" not in Index.open(index.directory).videos


@pytest.mark.parametrize(("rescan", "runs"), [(0.0, 2), (600.0, 1)])
def test_video_of_an_absent_disk_is_retried_from_time_to_time(
    index, films, monkeypatch, rescan, runs
):
    archive.film(films / "new.film", ["white"] * 4)
    told, tried = [], []

    def sample(path, fps, size):
        tried.append(path)
        if len(tried) == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        return archive.sample(path, fps, size)

    monkeypatch.setattr(watch, "RESCAN_SECONDS", rescan)
    options = told.append, archive.VIDEO._replace(sample=sample), [["x"]] * 3
    watch.follow(index.directory, archive.Encoder(), 0.0, *options, workers=0)
    assert told == ["new.film: Stale file handle", "indexed new.film (4 s)"][:runs]


def test_a_scan_reads_the_folders_as_often_for_many_files(index, films, monkeypatch):
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


def test_folders_that_cannot_be_listed_are_reported_once_and_recorded(index, films, tmp_path):
    further = tmp_path / "further"
    archive.film(further / "d.film", ["white"] * 3)
    archive.fill(index, further=[further])
    closed, told = {further}, []

    def find(folder, report, pulse=lambda: None):
        if folder in closed:
            raise VideoError(f"{folder} may not be listed")
        return archive.find(folder, report, pulse)

    def changes():
        yield ["x"]
        yield ["x"]  # the second scan says nothing new
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
        index.directory, archive.Encoder(), 0.0, told.append, video, changes(), workers=0
    )  # fmt: skip
    assert told == [
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
def test_a_killed_watch_continues_and_ctrl_c_ends_it(index, films):
    env = processes.environment()
    command = [sys.executable, "-c", PROGRAM, str(index.directory)]
    # Its decoding never ends, so that the kill comes before that whenever it comes.
    archive.random_film(films / "hanging.film", 60)
    for ended, expected in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 0)):
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as started:
            too_long = threading.Timer(120, started.kill)
            too_long.start()
            assert started.stdout.readline() == f"watching {films} (Ctrl-C ends it)\n"
            if ended == signal.SIGINT:
                lines = [started.stdout.readline() for _ in range(2)]
                assert sorted(lines) == [f"indexed {one}.film (60 s)\n" for one in ("new", "slow")]
            else:
                time.sleep(0.5)
            started.send_signal(ended)
            rest = started.stdout.read()
        too_long.cancel()
        assert started.returncode == expected, rest
        assert ended == signal.SIGKILL or rest == "stopped\n"
        if ended == signal.SIGKILL:
            (films / "hanging.film").rename(films / "new.film")
            archive.random_film(films / "slow.film", 60)
    now = Index.open(index.directory)
    assert now.verify() == {} and len(now.videos) == 5 and not now.notes
