"""Indexing of a folder: new, changed, moved, offline and failed videos; decoding; kills."""

import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import archive
import numpy as np
import processes
import pytest

from hlformer_jax.errors import SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.index.roots import Roots
from hlformer_jax.search.ingest import decoding, extract
from hlformer_jax.search.ingest.decoding import (
    MAX_IMAGES_OF_BATCH,
    Done,
    Failed,
    Frames,
    Opened,
    VideoJob,
    decode,
)
from hlformer_jax.search.ingest.extract import Progress, Report
from hlformer_jax.video import VideoError


def counts(report):
    numbers = report._replace(elapsed=0, seconds=0, frames=0, still=0)._asdict()
    return {name: count for name, count in numbers.items() if count}


@pytest.mark.parametrize(
    ("change", "expected", "encoded"),
    [
        (lambda films: None, {"unchanged": 3}, 0),
        (lambda films: os.utime(films / "a.film", (1, 1)), {"recognised": 1, "unchanged": 2}, 0),
        (lambda films: archive.film(films / "b.film", ["blue"] * 21),
         {"indexed": 1, "unchanged": 2}, 1),
        (lambda films: (films / "b.film").unlink(), {"unchanged": 2, "offline": 1}, 0),
        (lambda films: (films / "trips").rename(films / "unlisted"),
         {"unchanged": 2, "offline": 1, "unlisted": 1}, 0),
        (lambda films: films.rename(films.parent / "old") and films.mkdir(), {"offline": 3}, 0),
    ],
    ids=["nothing", "touched", "changed", "deleted", "not to be listed", "emptied"],
)  # fmt: skip
def test_only_changed_videos_are_decoded_and_missing_ones_kept(
    index, films, change, expected, encoded
):
    change(films)
    encoder = archive.Encoder()
    report, lines = archive.fill(index, encoder)
    assert counts(report) == expected and encoder.seen == encoded
    unlisted = (films / "unlisted").exists()
    assert lines == [f"{films}/unlisted may not be listed"] * unlisted
    reopened = Index.open(index.directory)
    entries = reopened.entries()
    assert [entry.video for entry in entries] == ["a.film", "b.film", "trips/c.film"]
    assert sum(entry.state == "offline" for entry in entries) == expected.get("offline", 0)
    assert len(archive.vectors(index)) == 3 and reopened.verify() == {}
    assert entries[1].frames == (21 if encoded else 20)


def test_missing_folder_is_refused(index, films, tmp_path):
    films.rename(tmp_path / "elsewhere")
    with pytest.raises(SearchError, match="mounted"):
        archive.fill(index)


def test_videos_behind_links_are_added_by_the_names_of_a_scan(index, films, tmp_path):
    (films / "real" / "loop").parent.mkdir()
    (films / "real" / "x.mkv").write_bytes(b"x")
    (films / "real" / "loop").symlink_to("..")
    (films / "link").symlink_to("real")
    (tmp_path / "outside" / "deep").mkdir(parents=True)
    (tmp_path / "outside" / "deep" / "y.mkv").write_bytes(b"y")
    (films / "out").symlink_to(tmp_path / "outside")
    x, y = films / "real" / "x.mkv", films / "out" / "deep" / "y.mkv"
    for path, expected in (
        (films / "link", {x, y}), (films / "link" / "x.mkv", {x}), (films / "real", {x, y}),
        (films / "out", {y}), (y.parent, {y}), (y, {y}),
    ):  # fmt: skip
        videos, roots = extract.resolve_additions(index, [path])
        assert set(videos) == expected and len(videos) == len(expected) and not roots


def test_second_name_of_a_video_by_a_link_is_dropped(index, films):
    (films / "link").symlink_to("trips")
    archive.fill(index, only=[films / "link" / "c.film"])
    assert "link/c.film" in index.videos
    vectors = archive.vectors(index)
    with index.writing() as writer:
        writer.tag(["link/c.film"], add=["kept"])
    report, lines = archive.fill(index)
    assert lines == ["link/c.film is trips/c.film: kept by that name only"]
    assert counts(report) == {"unchanged": 3} and len(archive.vectors(index)) == len(vectors)
    reopened = Index.open(index.directory)
    assert "link/c.film" not in reopened.videos and reopened.verify() == {}
    tags = {entry.video: entry.tags for entry in reopened.entries()}
    assert tags["trips/c.film"] == ("kept",)


@pytest.mark.parametrize("name", ["A.film", "renamed.film"])
def test_name_that_a_disk_still_opens_is_dropped(index, films, name):
    """A disk that ignores case or Unicode forms still opens a name after a renaming."""
    os.link(films / "a.film", films / name)  # both names open, one is listed
    before = index.record("a.film").id

    def find(folder, report, pulse):
        return [path for path in archive.find(folder, report, pulse) if path.name != "a.film"]

    report, lines = archive.fill(index, video=archive.VIDEO._replace(find=find))
    is_move = name == "A.film"
    assert ("a.film is renamed.film: kept by that name only" in lines) != is_move
    assert not report.unreadable and (index.record(name).id == before) == is_move
    assert index.videos.keys() == {name, "b.film", "trips/c.film"}


def test_folder_that_cannot_be_listed_does_not_stop_a_run(index, films, tmp_path):
    further = tmp_path / "further"
    archive.film(further / "d.film", ["white"] * 3)
    archive.fill(index, further=[further])
    archive.film(films / "e.film", ["red"] * 3)
    closed = {further}

    def find(folder, report, pulse=lambda: None):
        if folder in closed:
            raise VideoError(f"{folder} may not be listed")
        return archive.find(folder, report, pulse)

    video = archive.VIDEO._replace(find=find)
    report, lines = archive.fill(index, video=video)
    assert lines == [f"{further} may not be listed"] == list(Index.open(index.directory).unlisted)
    assert counts(report) == {"indexed": 1, "unchanged": 3, "unlisted": 1, "unreadable": 1}
    closed.add(films)
    with pytest.raises(VideoError, match="may not be listed"):
        archive.fill(index, video=video)
    closed.clear()
    assert counts(archive.fill(index, video=video)[0]) == {"unchanged": 5}
    assert Index.open(index.directory).unlisted == ()


def test_moved_file_keeps_embeddings_and_id(index, films):
    before = {entry.video: entry.id for entry in index.entries()}
    vectors = archive.vectors(index)
    (films / "other place").mkdir()
    (films / "a.film").rename(films / "other place" / "new ‘name’.film")
    encoder = archive.Encoder()
    report, _ = archive.fill(index, encoder)
    assert counts(report) == {"recognised": 1, "unchanged": 2} and encoder.seen == 0
    after = {entry.video: entry.id for entry in index.entries()}
    assert after["other place/new ‘name’.film"] == before["a.film"]
    assert archive.vectors(index) == vectors


def test_other_video_at_the_path_of_a_removed_one_is_indexed(index, films):
    removed = (films / "b.film").read_bytes()
    index.remove(["b.film"])
    archive.film(films / "b.film", ["yellow"] * 7)
    assert archive.fill(index)[0].indexed == 1 and index.videos["b.film"].frames == 7
    report, _ = archive.fill(index)
    assert report.unchanged == 3 and report.removed == 0
    (films / "moved.film").write_bytes(removed)
    report, lines = archive.fill(index)
    assert report.removed == 1 and "moved.film was removed under another name" in lines[0]
    (films / "b.film").write_bytes(removed)
    archive.fill(index)
    assert set(index.videos) == {"a.film", "trips/c.film"}


def test_touched_removed_video_is_read_once_and_stays_removed(index, films, monkeypatch):
    index.remove(["b.film"])
    os.utime(films / "b.film", (1, 1))
    digested = []
    digest = extract.digest

    def record(path, pulse):
        digested.append(path.name)
        return digest(path, pulse)

    monkeypatch.setattr(extract, "digest", record)
    for _ in range(2):
        report, lines = archive.fill(index)
        assert report.removed == 1 and lines == []
    assert digested == ["b.film"] and "b.film" not in index.videos


@pytest.fixture
def index_with_copy(index, films):
    """An index from which b.film was removed, a copy of a.film."""
    (films / "b.film").write_bytes((films / "a.film").read_bytes())
    archive.fill(index)
    index.remove(["b.film"])
    return index


def test_kept_copy_of_a_removed_video_survives_swapped_names(index_with_copy, films):
    (films / "a.film").rename(films / "a2.film")
    archive.fill(index_with_copy)
    (films / "a2.film").rename(films / "t")
    (films / "trips" / "c.film").rename(films / "a2.film")
    (films / "t").rename(films / "trips" / "c.film")
    report, lines = archive.fill(index_with_copy)
    assert lines == [] and report.recognised == 2
    assert set(index_with_copy.videos) == {"a2.film", "trips/c.film"}


def test_kept_copy_is_renamed_after_the_removed_one_was_deleted(index_with_copy, films):
    (films / "b.film").unlink()
    (films / "a.film").rename(films / "a2.film")
    _, lines = archive.fill(index_with_copy)
    assert lines == [] and set(index_with_copy.videos) == {"a2.film", "trips/c.film"}


@pytest.mark.parametrize("renamed", ["b", "ab"])
def test_renamed_copy_of_a_kept_video_stays_removed(index_with_copy, films, renamed):
    for name in renamed:
        (films / f"{name}.film").rename(films / f"{name}2.film")
    _, lines = archive.fill(index_with_copy)
    assert lines == ["b2.film was removed under another name, and stays removed"]
    assert set(index_with_copy.videos) == {
        "a2.film" if "a" in renamed else "a.film",
        "trips/c.film",
    }


def test_recording_date_is_stored_or_else_the_file_date(index, films):

    def probe(path):
        return SimpleNamespace(duration=3.0, recorded=1.5e9)

    archive.film(films / "new.film", ["white"] * 3)
    archive.fill(index, video=archive.VIDEO._replace(probe=probe))
    (films / "new.film").rename(films / "moved.film")
    archive.fill(index)
    dates = {entry.video: (entry.date, entry.date_of) for entry in index.entries()}
    assert dates["moved.film"] == (1.5e9, "recording")
    assert dates["b.film"] == ((films / "b.film").stat().st_mtime_ns / 1e9, "file")


def test_file_that_cannot_be_read_once_keeps_its_vectors(index, films, monkeypatch):
    os.utime(films / "b.film", (1, 1))

    def unreadable(path, pulse):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(extract, "digest", unreadable)
    report, lines = archive.fill(index)
    assert counts(report) == {"unchanged": 2, "unreadable": 1}
    assert lines == ["b.film: Input/output error; its embeddings are kept"]
    monkeypatch.undo()
    assert counts(archive.fill(index)[0]) == {"unchanged": 2, "recognised": 1}


def test_copies_share_vectors_and_have_their_own_ids(index, films):
    (films / "copy.film").write_bytes((films / "a.film").read_bytes())
    archive.film(films / "x.film", ["white"] * 3)
    archive.film(films / "y.film", ["white"] * 3)
    encoder = archive.Encoder()
    report, _ = archive.fill(index, encoder)
    assert counts(report) == {"indexed": 1, "recognised": 2, "unchanged": 3} and encoder.seen == 1
    assert len({entry.id for entry in index.entries()}) == 6 and len(archive.vectors(index)) == 4
    ids = {entry.video: entry.id for entry in index.entries()}
    (films / "a.film").unlink()
    archive.fill(index)
    assert {entry.video: entry.id for entry in index.entries()} == ids
    with index.writing() as writer:
        writer.drop("a.film")
    del ids["a.film"]
    assert {entry.video: entry.id for entry in Index.open(index.directory).entries()} == ids


def test_damaged_video_is_retried_on_request_or_change(index, films):
    (films / "bad.film").write_bytes(b"broken")
    archive.film(films / "empty.film", [])
    report, lines = archive.fill(index)
    assert counts(report) == {"failed": 2, "unchanged": 3}
    assert "bad.film: is not a film: copy it again" in lines
    assert "empty.film: no frame of it can be decoded" in lines
    failed = [entry for entry in index.entries() if entry.state == "failed"]
    assert ["is not a film" in failed[0].reason, failed[1].frames] == [True, 0]
    assert counts(archive.fill(index)[0]) == {"unchanged": 3, "skipped": 2}
    assert counts(archive.fill(index, retry=True)[0]) == {"unchanged": 3, "failed": 2}
    archive.film(films / "bad.film", ["red"])
    (films / "empty.film").unlink()
    assert counts(archive.fill(index)[0]) == {"indexed": 1, "unchanged": 3, "forgotten": 1}


def test_warning_about_unusable_parts_is_stored(index, films):
    class Cut:
        """Frames of a film whose end cannot be read."""

        end, warning = 5.0, "cannot be read after 5 s"

        def __init__(self, path, fps, size):
            self.frames = archive.sample(path, fps, size)

        def __iter__(self):
            return self.frames

    archive.film(films / "cut.film", ["red", "white"] * 3)

    def warnings():
        return {
            entry.video: entry.reason
            for entry in Index.open(index.directory).entries()
            if entry.reason and entry.state == "indexed"
        }

    _, lines = archive.fill(index, video=archive.VIDEO._replace(sample=Cut))
    assert "cut.film: cannot be read after 5 s" in lines
    assert warnings() == {"cut.film": Cut.warning}
    # A copy is not decoded.
    (films / "copy.film").write_bytes((films / "cut.film").read_bytes())
    archive.fill(index)
    assert warnings() == dict.fromkeys(("copy.film", "cut.film"), Cut.warning)


def test_file_of_a_returning_disk_is_not_deleted(index, films, tmp_path, monkeypatch):
    check = Roots.is_available

    def come_back(self, root):
        (tmp_path / "elsewhere").rename(films)
        return check(self, root)

    films.rename(tmp_path / "elsewhere")
    monkeypatch.setattr(Roots, "is_available", come_back)
    assert not index.roots.is_deleted("b.film")


def test_file_of_a_disk_that_goes_offline_is_retried(index, films, tmp_path):
    archive.film(films / "disk" / "new.film", ["red"] * 5)

    def sample(path, fps, size):
        (films / "disk").rename(tmp_path / "elsewhere")
        yield from archive.sample(path, fps, size)

    assert archive.fill(index, video=archive.VIDEO._replace(sample=sample))[0].failed == 1
    (tmp_path / "elsewhere").rename(films / "disk")
    assert counts(archive.fill(index)[0]) == {"indexed": 1, "unchanged": 3}


def removal(index, *videos):
    """Return a function that removes videos, like another process, at its first call."""
    calls = iter([videos])

    def remove():
        for names in calls:
            Index.open(index.directory).remove(names)

    return remove


@pytest.mark.parametrize("is_readable", [True, False])
def test_run_continues_if_a_folder_is_removed_meanwhile(index, films, tmp_path, is_readable):
    folder = tmp_path / "more"
    for name in ("x.film", "y.film"):
        archive.film(folder / name, ["red"] * len(name))
    remove = removal(index, str(folder))

    def sample(path, fps, size):
        remove()
        if not is_readable:
            raise VideoError("no frame of it can be decoded")
        return archive.sample(path, fps, size)

    paths = [folder / "x.film", folder / "y.film", archive.film(films / "z.film", ["blue"] * 4)]
    options = {"only": paths, "further": [folder], "video": archive.VIDEO._replace(sample=sample)}
    archive.fill(index, **options)
    assert set(index.videos) == {"a.film", "b.film", "trips/c.film", "z.film"}
    archive.fill(index)
    assert index.verify() == {} and not index.excluded


def test_copy_of_a_video_that_is_pruned_meanwhile_is_indexed(index, films, monkeypatch):
    (films / "z.film").write_bytes((films / "a.film").read_bytes())
    os.utime(films / "a.film", (1, 1))
    monkeypatch.setattr(extract, "PATHS_AT_ONCE", 1)
    digest = extract.digest

    def prune_and_digest(path, pulse):
        if path.name == "z.film":
            with Index.open(index.directory).writing() as writer:
                writer.forget(["a.film"])
        return digest(path, pulse)

    monkeypatch.setattr(extract, "digest", prune_and_digest)
    assert counts(archive.fill(index)[0]) == {"recognised": 1, "unchanged": 2, "indexed": 1}
    assert set(index.videos) == {"b.film", "trips/c.film", "z.film"} and index.verify() == {}


def test_video_that_is_removed_during_decoding_stays_removed(index, monkeypatch):
    archive.damage(index, "a.film")
    remove, writing, decoded = removal(index, "a.film"), index.writing, []

    def write():
        if decoded:
            remove()
        return writing()

    def sample(path, fps, size):
        decoded.append(path)
        return archive.sample(path, fps, size)

    monkeypatch.setattr(index, "writing", write)
    archive.fill(index, video=archive.VIDEO._replace(sample=sample))
    assert decoded and set(index.videos) == {"b.film", "trips/c.film"}


def test_exclusions_are_not_read_once_per_restored_video(index, films, monkeypatch):
    exclusions, counts = Index.exclusions, [0]

    def reading(self):
        counts[-1] += 1
        return exclusions(self)

    monkeypatch.setattr(Index, "exclusions", reading)
    for name in ("a.film", "b.film"):
        (films / f"copy of {name}").write_bytes((films / name).read_bytes())
    archive.fill(index)
    for names in (["a.film"], ["a.film", "b.film"]):
        index.remove(names)
        counts.append(0)
        archive.fill(index, only=[films / name for name in names])
        assert not index.excluded and index.videos.keys() >= set(names)
    assert counts[1] == counts[2]


@pytest.mark.parametrize(("number", "runs"), [(errno.ESTALE, 2), (errno.EINVAL, 1)])
def test_video_that_the_disk_did_not_return_is_retried(index, films, number, runs):
    archive.film(films / "new.film", ["red"] * 5)
    decoded = []

    def sample(path, fps, size):
        decoded.append(path)
        yield from itertools.islice(archive.sample(path, fps, size), 2)
        raise archive.FilmError(f"{str(path)!r} cannot be read") from OSError(number, "reason")

    for _ in range(2):
        archive.fill(index, video=archive.VIDEO._replace(sample=sample))
    assert len(decoded) == runs and not index.videos["new.film"].indexed


@pytest.mark.slow  # it takes seconds
def test_crashed_process_fails_only_its_video(index, films, tmp_path):
    archive.film(films / "killer.film", ["red"] * 3)
    for i in range(3):
        archive.random_film(films / f"{i}.film", 70 + i, seed=i)
    steps = []
    second_index = archive.create(tmp_path / "other", films)
    report, lines = archive.fill(second_index, workers=2, progress=steps.append)
    assert counts(report) == {"indexed": 6, "failed": 1}
    assert lines == ["killer.film: its decoding process died (status -9)"]
    (films / "killer.film").unlink()
    archive.fill(second_index)
    archive.fill(index)
    assert archive.vectors(second_index) == archive.vectors(index)
    long = index.read(index.videos["2.film"].content)
    np.testing.assert_array_equal(long.times, np.arange(72))
    assert steps[-1].done == steps[-1].total == 7
    assert steps[-1].seconds == report.seconds == 5 * 0 + 16 + 20 + 18 + 70 + 71 + 72
    assert all(step.speed > 0 for step in steps[1:] if step.seconds)


def test_video_of_a_killed_process_is_retried_once(index, films):
    archive.random_film(films / "once killer.film", 40)
    reopened = Index.open(index.directory)
    report, lines = archive.fill(reopened, workers=1)
    assert (counts(report), lines) == ({"indexed": 1, "unchanged": 3}, [])
    assert report.seconds == 40 == reopened.videos["once killer.film"].frames


PROGRAM = """
import pathlib, signal, sys
import archive
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
if __name__ == "__main__":
    directory, films = map(pathlib.Path, sys.argv[1:3])
    from hlformer_jax.search.index.index import Index, SearchError
    try:
        index = Index.open(directory)
    except SearchError:
        index = archive.create(directory, films)
    print("begins", flush=True)
    archive.fill(index, workers=int(sys.argv[3]))
    print("done", flush=True)
"""


def start_indexing(tmp_path, directory, films, workers):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, program, directory, films, str(workers)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=processes.environment(),
    )  # fmt: skip


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(("kills", "workers", "min_killed_runs"), [(3, 0, 1), (20, 2, 10)])
def test_killed_runs_give_the_same_index_in_the_end(tmp_path, kills, workers, min_killed_runs):
    films = tmp_path / "films"
    for i in range(12):
        archive.random_film(films / f"slow {i}.film", 5 + i, seed=i)
    expected = archive.indexed(tmp_path / "expected", films)
    draw = random.Random(workers)
    directory = tmp_path / "index"
    killed_runs = 0
    for _ in range(kills):
        process = start_indexing(tmp_path, directory, films, workers)
        assert process.stdout.readline() == "begins\n"
        time.sleep(draw.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        killed_runs += "done" not in process.communicate()[0]
    process = start_indexing(tmp_path, directory, films, workers)
    out, errors = process.communicate(timeout=60)
    assert out == "begins\ndone\n", errors
    index = Index.open(directory)
    assert archive.vectors(index) == archive.vectors(expected)
    assert index.verify() == {}

    def records(index):  # without the times of the files
        return {
            name: (record.id, record.content, record.size, record.frames, record.state)
            for name, record in index.videos.items()
        }

    assert records(index) == records(expected)
    names = {".lock", ".hlformer-index", "index.db", "index.db.bak", "index.sums"}
    names |= {f"embeddings-1.{suffix}" for suffix in ("f16", "times", "i8", "bounds")}
    assert not {path.name for path in directory.iterdir()} - names
    assert killed_runs >= min_killed_runs


@pytest.mark.slow  # it takes seconds
def test_ctrl_c_keeps_complete_videos_and_ends_processes(tmp_path):
    films = tmp_path / "films"
    for i in range(30):
        archive.random_film(films / f"slow {i:02}.film", 10, seed=i)
    directory = tmp_path / "index"
    process = start_indexing(tmp_path, directory, films, 1)
    assert process.stdout.readline() == "begins\n"
    # Wait for two: the signal may come after rows are written and before they are recorded.
    while not (directory / "embeddings-1.f16").exists():
        time.sleep(0.02)
    while len(Index.open(directory).contents()) < 2:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert errors.rstrip().endswith("KeyboardInterrupt") and errors.count("Traceback") == 1
    done = [entry.state for entry in Index.open(directory).entries()]
    assert 1 <= len(done) < 30 and set(done) == {"indexed"}


def events(path, sample=archive.sample):
    """Decode a video in this process; return the events."""
    job = VideoJob(archive.VIDEO._replace(sample=sample), 1.0, 4, archive.preprocess)
    return list(decode([path], job, 0))


def frames_at(times):
    """Return a decoder that ignores the file and yields black frames at these times."""

    def sample(path, fps, size):
        for second in times:
            yield SimpleNamespace(time=second, image=np.zeros((6, 8, 3), np.uint8))

    return sample


def test_frames_come_in_batches_of_one_size_and_in_order(tmp_path):
    path = archive.random_film(tmp_path / "long.film", 2 * MAX_IMAGES_OF_BATCH + 5)
    opened, *batches, done = events(path)
    assert opened == Opened(path, 2 * MAX_IMAGES_OF_BATCH + 5.0) and isinstance(done, Done)
    assert [len(batch.times) for batch in batches] == [MAX_IMAGES_OF_BATCH, MAX_IMAGES_OF_BATCH, 5]
    times = np.concatenate([batch.times for batch in batches])
    np.testing.assert_array_equal(times, np.arange(2 * MAX_IMAGES_OF_BATCH + 5))
    assert all(batch.images.shape[1:] == (4, 4, 3) for batch in batches)


def test_frames_without_increasing_times_are_dropped(tmp_path):
    path = archive.film(tmp_path / "a.film", ["red"])
    _, batch, _ = events(path, frames_at([-0.5, 0.0, 1.0, 1.0, 0.5, 2.0]))
    assert isinstance(batch, Frames)
    np.testing.assert_array_equal(batch.times, [0.0, 1.0, 2.0])


def failing_decoder(error):
    """Return a decoder that fails."""

    def sample(path, fps, size):
        raise error
        yield

    return sample


@pytest.mark.parametrize(
    ("sample", "reason", "is_final"),
    [
        (frames_at([]), "no frame of it can be decoded", True),
        (failing_decoder(OSError(5, "Input/output error")), "Input/output error", False),
        (failing_decoder(MemoryError()), "its frames do not fit into memory", True),
        (failing_decoder(RuntimeError("odd\nand more")), "RuntimeError: odd", True),
        (failing_decoder(KeyError()), "KeyError: KeyError", True),
    ],
)
def test_undecodable_video_fails_with_one_line(tmp_path, sample, reason, is_final):
    path = archive.film(tmp_path / "a.film", ["red"])
    assert events(path, sample)[1:] == [Failed(path, reason, is_final)]


@pytest.mark.slow  # it takes seconds
def test_time_limit_fails_only_its_video(tmp_path):
    """A decoder that hangs and a slow one exceed the limit."""
    paths = [archive.film(tmp_path / f"{i}.film", ["red"] * 5) for i in range(4)]
    paths.insert(1, archive.film(tmp_path / "hanging.film", ["red"]))
    slow = archive.film(tmp_path / "slow.film", ["red"] * 3 * MAX_IMAGES_OF_BATCH)
    job = VideoJob(archive.VIDEO, 1.0, 4, archive.preprocess, timeout=0.3)
    results = [
        event for event in decode([*paths, slow], job, 2) if isinstance(event, Done | Failed)
    ]
    reasons = {event.path: event.reason for event in results if isinstance(event, Failed)}
    assert len(results) == 6 and reasons.keys() == {paths[1], slow}
    for reason in reasons.values():
        assert "more than 0.3 s" in reason and "raise the timeout" in reason
    assert isinstance(list(decode([slow], job, 0))[-1], Failed)


def test_time_limit_grows_with_the_length_up_to_a_bound():
    job = VideoJob(archive.VIDEO, 1.0, 4, archive.preprocess)
    assert 60 <= job.limit() < job.limit(60) < job.limit(3600) < job.limit(1e12) < 1e7


def test_length_of_short_videos_is_their_duration(tmp_path, films):
    index, steps = archive.create(tmp_path / "index", films), []
    video = archive.VIDEO._replace(probe=lambda path: SimpleNamespace(duration=0.04))
    report, _ = archive.fill(index, video=video, progress=steps.append)
    assert report.seconds == pytest.approx(0.12) == index.summary()["seconds"]
    assert steps[-1].seconds == pytest.approx(0.12) == max(step.seconds for step in steps)


def test_speed_is_a_multiple_of_real_time():
    progress = Progress(1, 3, "a.mp4", 4.0, 60.0, seconds=90.0, elapsed=30.0)
    assert progress.speed == pytest.approx(3)
    assert Report(indexed=1, seconds=90.0, elapsed=30.0).speed == pytest.approx(3)
    assert progress._replace(seconds=0.0, elapsed=0.0).speed == Report().speed == 0


class UnnormalisedEncoder(archive.Encoder):
    """An encoder of vectors of lengths 5 and 0."""

    def encode_images(self, pixels):
        return np.asarray([[3.0, 4.0], [0.0, 0.0]], np.float32)


def test_frame_vectors_are_normalised_in_half_precision():
    images, places = np.zeros((2, 4, 4, 3), np.uint8), np.arange(2)
    frames = Frames(Path("a.mp4"), np.asarray([0.0, 1.0]), images, places)
    encoded = decoding.encode(UnnormalisedEncoder(), frames)
    assert encoded.path == frames.path and encoded.times is frames.times
    assert encoded.vectors.dtype == np.float16
    expected = np.asarray([[0.6, 0.8], [0, 0]], np.float16)
    np.testing.assert_array_equal(encoded.vectors, expected)
