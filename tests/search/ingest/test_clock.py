"""Wrong clocks and file dates: no change is missed, and no video encoded twice."""

import os
import shutil
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import archive
import av
import pytest
import videos

from hlformer_jax.search.index import Index, Stamp
from hlformer_jax.search.index.directory import COPY, DATABASE
from hlformer_jax.search.ingest import watch
from hlformer_jax.search.signals.transcript import transcripts
from hlformer_jax.video import dates

MEMORY = Path("/dev/shm")
"""A file system that keeps dates of 64 bits."""

DECADE = 10 * 365 * 86400
TICK = 0.02
"""Seconds after which a change gets another file time, whose resolution is 4 ms."""

DATES = {"1901": -2_150_000_000, "1970": 0, "tomorrow": None, "2250": 8_850_000_000}
"""Dates of files, in seconds since the epoch."""


@pytest.fixture
def subtitled(tmp_path, films):
    """The complete index of `films`, with subtitles in a file and in a video."""
    (films / "a.srt").write_text('[[0, 2, "beside"]]')
    index = archive.create(tmp_path / "index", films)
    archive.fill(index, video=archive.SUBTITLED)
    return index


def cues(index):
    """Return the sources of each transcript with their cues."""
    loaded = {content: transcripts.load(index, content) for content in index.contents()}
    return {
        content: [(source.file, source.cues) for source in (transcript.tracks, *transcript.files)]
        for content, transcript in loaded.items()
    }


def touch(folder, seconds):
    """Give all files below a folder a date."""
    if seconds is None:
        seconds = time.time() + 86400
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (seconds, seconds))


@pytest.mark.parametrize("date", DATES.values(), ids=DATES)
def test_files_of_any_date_are_recognised_by_their_content(subtitled, films, date):
    before = cues(subtitled), archive.vectors(subtitled)
    touch(films, date)
    encoder = archive.Encoder()
    report, lines = archive.fill(subtitled, encoder, video=archive.SUBTITLED)
    assert (report.recognised, report.indexed, report.failed) == (3, 0, 0)
    report, second_lines = archive.fill(subtitled, encoder, video=archive.SUBTITLED)
    assert report.unchanged == 3 and encoder.seen == 0 and lines == second_lines == []
    assert (cues(subtitled), archive.vectors(subtitled)) == before
    assert Index.open(subtitled.directory).verify() == {}


@pytest.mark.parametrize("date", ["before", *DATES])
def test_change_is_found_for_any_file_date(subtitled, films, date):
    times = {name: (films / name).stat().st_mtime for name in ("b.film", "a.srt")}
    time.sleep(TICK)
    archive.film(films / "b.film", ["blue"] * 20)  # of the same size
    (films / "a.srt").write_text('[[0, 2, "BESIDE"]]')
    for name, seconds in times.items():
        seconds = seconds if date == "before" else DATES[date] or time.time() + 86400
        os.utime(films / name, (seconds, seconds))
    encoder = archive.Encoder()
    report, _ = archive.fill(subtitled, encoder, video=archive.SUBTITLED)
    assert (report.indexed, report.unchanged, encoder.seen) == (1, 2, 1)
    [files] = [dict(sources) for sources in cues(subtitled).values() if len(sources) == 2]
    assert [cue.text for cue in files[str(films / "a.srt")]] == ["BESIDE"]


def test_changes_after_2262_differ_from_each_other():
    time_ns = 10**9 * int(datetime(2300, 1, 1, tzinfo=UTC).timestamp())
    stamps = {
        Stamp.from_status(
            os.stat_result(
                range(10), {"st_mtime_ns": time_ns, "st_ctime_ns": time_ns + seconds * 10**9}
            )
        )
        for seconds in range(3)
    }
    assert len(stamps) == 3 and all(stamp == stamp.clipped() for stamp in stamps)


def test_copy_with_an_unknown_date_is_used(index):
    if not MEMORY.is_dir():
        pytest.skip("no disk stores dates of 64 bits")
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        shutil.copytree(index.directory, directory, dirs_exist_ok=True)
        os.utime(Path(directory, COPY), (10**17, 10**17))
        Path(directory, DATABASE).unlink()
        reopened = Index.open(Path(directory))
        assert len(reopened.videos) == 3 and "its copy of unknown date" in reopened.notes[0]


@pytest.mark.parametrize("year", [1970, 2200])
def test_recording_date_does_not_depend_on_the_clock(tmp_path, monkeypatch, year):
    class Clock(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime(year, 1, 1, tzinfo=zone)

    monkeypatch.setattr(dates, "datetime", Clock)
    path = videos.stamped(
        videos.write(tmp_path / "plain.mkv", frames=3),
        tmp_path / "dated.mkv",
        creation_time="2021-05-06T07:08:09Z",
    )
    with av.open(str(path)) as container:
        recorded = dates.recording_time(container, container.streams.video[0])
    assert recorded == datetime(2021, 5, 6, 7, 8, 9, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "offset",
    [
        pytest.param(-DECADE, id="backwards"),
        pytest.param(DECADE, id="forwards", marks=pytest.mark.slow),
    ],
)
def test_watch_with_a_wrong_clock_indexes_whole_files(index, films, monkeypatch, offset):
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + offset)
    encoder, lines = archive.Encoder(), []
    content = (films / "b.film").read_bytes()[:-3] + bytes(3)
    copy = films / "copied.film"

    def changes():
        for end in (90, 150, len(content)):
            copy.write_bytes(content[:end])
            yield [str(copy)]
            time.sleep(0.06)
        for _ in range(12):
            yield ()
            time.sleep(0.05)

    watch.follow(index.directory, encoder, 0.2, lines.append, archive.VIDEO, changes(), workers=0)
    reopened = Index.open(index.directory)
    assert reopened.videos["copied.film"].frames == 20
    assert encoder.seen == 2  # one frame for each colour
    assert all(record.indexed for record in reopened.videos.values()) and len(reopened.videos) == 4
