"""The command line in this process, on films and an encoder that need no package of the extra."""

import itertools
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import archive
import numpy as np
import processes
import pytest

from hlformer_jax import files
from hlformer_jax.data.sources.extracted import ExtractedReader
from hlformer_jax.errors import SearchError
from hlformer_jax.search import export, times
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.cli.commands import COMMANDS
from hlformer_jax.search.encoder import DEFAULT_ENCODER
from hlformer_jax.search.evaluate import metrics
from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest import extract
from hlformer_jax.search.query import library
from hlformer_jax.search.signals import rankers, visual
from hlformer_jax.video import read, subtitles


@pytest.fixture
def films(tmp_path):
    return archive.folder(tmp_path / "my films")


@pytest.fixture
def calls(monkeypatch):
    """The fakes in the place of the packages that the extra brings; what they were asked."""
    seen = SimpleNamespace(encoder=archive.Encoder(), loaded=[], cuts=[], served=[])

    def load(name, report):
        seen.loaded.append(name)
        return seen.encoder

    modules = {
        "encoders.hub": SimpleNamespace(load=load),
        "video": SimpleNamespace(
            find=archive.find,
            probe=archive.probe,
            sample=archive.sample,
            cut=lambda *a, replace: seen.cuts.append((a, replace)),
            copy=lambda *a, replace: seen.cuts.append((a, replace)) or (2.5, 9.75),
        ),
        "video.read": read,
        "video.subtitles": subtitles,
        "search.serve.server": SimpleNamespace(serve=lambda *a, **b: seen.served.append((a, b))),
    }
    monkeypatch.setattr(subtitles, "read_tracks", lambda path: [])
    monkeypatch.setattr(extract, "default_workers", lambda: 0)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"hlformer_jax.{name}", module)
    return seen


@pytest.fixture
def search(calls, capsys):
    """Calls a command; returns its status, its output and the lines of its complaint."""

    def call(*arguments):
        try:
            status = main([*map(str, arguments)])
        except SystemExit as ended:
            status = ended.code
        out, err = capsys.readouterr()
        return SimpleNamespace(status=status, out=out, errors=err.splitlines())

    return call


@pytest.fixture
def index(search, films, tmp_path):
    directory = tmp_path / "index"
    done = search("index", films, f"--index={directory}", "--workers=0")
    assert done.status == 0, done
    return directory


@pytest.fixture
def ask(search, index):
    """Calls a command with the index."""
    return lambda name, *flags: search(name, *flags, f"--index={index}")


def test_only_compiling_commands_keep_programs(search, index, kept):
    kept.clear()
    assert search("status", "--index", index).status == 0 and not kept
    assert search("query", "blue", "--index", index).status == 0 and len(kept) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("serach", "invalid choice: 'serach'"),
        ("query red", "the following arguments are required: --index"),
        (
            "query red --index=nowhere",
            "nowhere holds no index: index a folder into it, or give another --index",
        ),
        ("query red {own} --k=0", "k is 0"),
        ("query red {own} --k=many", "invalid int value: 'many'"),
        ("query red {own} --ranker=best_frames", "did you mean 'best_frame'?"),
        ("query red {own} --since=soon", "'soon' is not a date"),
        ("query red {own} --checkpoint=nowhere", "has no config.json"),
        ("query {own}", "SENTENCE is empty"),
        ("query red blue {own} --then=red", "accepts one SENTENCE"),
        ("query red {own} --not=b --ranker=segments", "of frames"),
        ("query red {own} --signals=transcript", "has no subtitles: put .srt"),
        ("query red {own} --signals=heard", "--signals has 'heard'"),
        ("query red {own} --min-score=nan", "--min-score is NaN"),
        ("query {own} --image={deep}", "is not an image"),
        ("query {own} --image=nowhere.png", "No such file"),
        ("query {own} --like=a.film", "is not VIDEO@TIME"),
        ("query {own} --like=a.film@99", "has no second 99"),
        ("index nowhere", "nowhere is not a folder"),
        ("index {films} {own} --fps=2", "--fps=2: "),
        ("index {films} {own} --every-frame", "leave out --every-frame"),
        ("index {films}/trips {own}", " indexes "),
        ("index {films} {own} --workers=-1", "--workers=-1: give 0 or more"),
        ("index {films} --index={films}", "has other files"),
        ("index {films} --index=new --fps=0", "--fps=0"),
        (
            "index {films} --index=new --fps=1001",
            "--fps=1001: give a number of frames a second above 0 and up to 1000",
        ),
        ("evaluate {own} --captions={deep} --calibrate=100", "0.01 to below 100"),
        ("index ''", "the path is empty"),
        ("index {films} {own} --timeout=0", "--timeout=0: give seconds"),
        ("query red {own} --folder=tripps", "did you mean 'trips'?"),
        ("evaluate {own} --captions={deep}", "deep.jsonl:1: the line is not JSON"),
        ("evaluate {own} --captions={deep} --json={deep} --overwrite", "is also --captions"),
        ("features {films} --captions={deep} --out={films}", "contains other files"),
        ("add nowhere.film {own}", "does not exist: give files of"),
        ("add {deep} {own}", "is not in"),
        ("add {index} {own}", "holds no video"),
        ("index", "FOLDER is missing"),
        ("index {own} --move-root", "--move-root needs FOLDER"),
        ("index {films} --move-root", "holds no index: give its directory as --index"),
        ("transcribe {own} --ocr --language=de", "--language and --audio are for --speech"),
        ("features {films} --text-only --fps=2", "--fps is for videos"),
        ("query red {own} --within=5s", "--within is the gap before an event of --then"),
        ("remove b.flim {own}", "holds no video 'b.flim'; did you mean 'b.film'?"),
        ("upload {own}", "has no store to upload to"),
        ("cut a.film {own} --start=5 --end=0:04", "--end=0:04: give a time after --start=5"),
        ("cut {own} --from={deep}", "has no column id and no column start and no column end"),
        ("cut {own} --from={films}", "it is a folder, not a file"),
        ("query red {own} --store=dir", "--store dir is not the address"),
    ],
)
def test_error_is_one_line_and_status_1(
    search, index, films, arguments, complaint, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    deep = tmp_path / "deep.jsonl"
    deep.write_text("[" * 100_000)
    places = {"own": f"--index={index}", "index": index, "films": films, "deep": deep}
    done = search(*(one.format(**places) for one in shlex.split(arguments)))
    assert deep.stat().st_size == 100_000
    assert done.status == 1 and not done.out
    assert len(done.errors) == 1 and done.errors[0].startswith("error: ")
    assert complaint in done.errors[0]


def test_query_reports_copies_sequences_and_no_match(ask, films, monkeypatch):
    monkeypatch.setattr(visual, "MIN_FRAMES_FOR_THRESHOLD", 0)
    (films / "z.film").write_bytes((films / "b.film").read_bytes())
    assert ask("index", films).status == 0
    done = ask("query", "green", "--k=1")
    assert done.out.splitlines()[1].endswith("b.film (and 1 of the same content)")
    done = ask("query", "red", "--then=black", "--not=white", "--within=3s")
    assert done.status == 0 and "a.film" in done.out.splitlines()[1]
    [hit] = json.loads(ask("query", "green", "--k=1", "--json").out)
    assert hit["copies"] == ["z.film"] and hit["is_match"] in (True, False)
    done = ask("query", "red", "--k=1", "--offset=1")
    assert done.out.splitlines()[1].split()[0] == "2"
    assert "no video reaches the score 2" in ask("query", "red", "--min-score=2").out
    assert ask("query", "red", "--offset=9").out == "no results: there are only 3\n"
    done = ask("query", "red", "--offset=9", "--json")
    assert json.loads(done.out) == [] and done.errors == ["no results: there are only 3"]
    done = ask("query", "white")
    assert done.errors == ["no good match: these results are the nearest, but none stands out"]
    assert ask("query", "white", "--json").errors == done.errors


def test_query_prints_matching_passages(ask, films, index):
    words = "1\n00:00:12,000 --> 00:00:14,000\nThe captain\u2019s <i>ship</i>\n"
    (films / "b.srt").write_text(words)
    assert ask("index", films).status == 0
    done = ask("query", "a ship", "--k=1", "--signals=transcript")
    assert done.out.splitlines()[1].split()[2:4] == ["0:12–0:14", "transcript"]
    assert done.out.splitlines()[2].strip() == "0:12 “The captain’s ship”"
    hits = json.loads(ask("query", "a ship", "--json").out)
    [hit] = [hit for hit in hits if hit["passages"]]
    assert hit["passages"] == [{"start": 12, "end": 14, "text": "The captain’s ship"}]
    text = next((index / "texts").glob("*.vectors"))
    text.write_bytes(b"{}")
    done = ask("verify")
    assert done.status == 1 and text.name in done.out


def test_ctrl_c_is_a_line_and_not_a_traceback(ask, films, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(extract, "digest", interrupted)
    archive.film(films / "new.film", ["red"])
    done = ask("index", films)
    assert done.status == 130
    assert done.errors == ["interrupted: run the same command again to continue"]
    monkeypatch.setattr(Index, "unchanged_path", interrupted)
    done = ask("cut", "a.film", "--start=1", "--end=2")
    assert done.status == 130 and done.errors == ["interrupted"]


def test_a_full_disk_of_an_output_is_named_with_advice(ask, tmp_path, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    out = tmp_path / "moments.csv"
    done = ask("query", "red", f"--export={out}")
    assert done.status == 1
    assert done.errors[-1] == f"error: {out}: No space left on device; make room"


def test_every_command_has_help():
    for name in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0


@pytest.mark.slow  # it takes seconds
def test_status_shows_file_names_that_are_not_text(films, tmp_path):
    name = os.fsdecode(b"\xff.film")
    archive.film(films / name, ["red"])
    directory = archive.indexed(tmp_path / "index", films).directory
    (films / name).write_bytes(b"broken")
    archive.fill(Index.open(directory))
    env = {**processes.environment(), "PYTHONUTF8": "1"}
    command = processes.command("search", "status", f"--index={directory}")
    done = subprocess.run(command, capture_output=True, env=env, check=True)
    assert b"failed    1" in done.stdout and not done.stderr
    command = processes.command("search", "query", "red", f"--index={directory}", "--ranker=x")
    done = subprocess.run(command, capture_output=True, env=env, check=False)
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(
    "arguments",
    [
        (b"query", b"red", b"--index=no\xff"),
        (b"status", b"--index=no\xff"),
        (b"index", b"no\xff"),
        (b"query", b"red", b"--index=index", b"--export=no\xff.zip"),
        (b"nothing\xff",),
    ],
)
def test_errors_name_paths_that_are_not_text(films, tmp_path, arguments):
    archive.indexed(tmp_path / "index", films)
    command = [*processes.command("search"), *map(os.fsdecode, arguments)]
    env = {**processes.environment(), "PYTHONUTF8": "1"}
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, env=env, check=False)
    error = done.stderr.decode()
    assert done.returncode == 1 and error.startswith("error: ") and error.count("\n") == 1
    assert "no\ufffd" in error or "\\udcff" in error  # as it is, or in quotes


def test_times_are_formatted_and_parsed():
    assert [times.format_clock(t) for t in (0, 59.9, 60, 3599, 3600, -1)] == [
        "0:00", "0:59", "1:00", "59:59", "1:00:00", "0:00",
    ]  # fmt: skip
    assert [times.parse_seconds(t) for t in ("75", "1:02.5", "1:00:03", "90:30")] == [
        75, 62.5, 3603, 5430,
    ]  # fmt: skip
    for wrong in ("", "-1", "1:", ":3", "1:2:3:4", "nan", "1e3", "1:75", "1:60:00", "1:0:60"):
        with pytest.raises(SearchError, match="not a time"):
            times.parse_seconds(wrong)


def test_index_creates_an_index_and_prints_counts(search, films, calls):
    done = search("index", films, "--workers=0", "--encoder=colours", "--fps=2")
    assert done.status == 0
    assert "3 indexed" in done.out and "x real time" in done.out
    assert calls.loaded == ["colours"]
    again = search("index", films, "--workers=0")
    assert "3 unchanged" in again.out and calls.loaded == ["colours"] * 2
    index = Index.open(films / ".hlformer-search")
    assert index.fps == 2 and not index.every_frame


def test_still_frames_are_counted_unless_all_are_encoded(search, tmp_path):
    archive.film(tmp_path / "films" / "a.film", ["red"] * 5 + ["blue"])
    made = ["index", tmp_path / "films", "--workers=0", "--encoder=colours"]
    done = search(*made, f"--index={tmp_path / 'shared'}")
    assert "4 of 6 frames were still and share an embedding" in done.out
    done = search(*made, f"--index={tmp_path / 'every'}", "--every-frame")
    assert done.status == 0 and "frames were still" not in done.out
    assert Index.open(tmp_path / "every").every_frame


def test_damaged_database_is_restored_without_decoding(ask, films, index, calls):
    (index / "index.db").write_text("{")
    told = ask("status")
    assert told.status == 0 and "videos    3," in told.out and len(told.errors) == 1
    assert calls.loaded == [DEFAULT_ENCODER]
    seen, calls.loaded[:] = calls.encoder.seen, []
    done = ask("index", films)
    assert done.status == 0 and "3 unchanged" in done.out and calls.encoder.seen == seen
    assert "index.db is damaged" in done.errors[0]
    assert calls.loaded == [DEFAULT_ENCODER]  # that of the index
    assert not ask("status").errors


def test_another_encoder_is_refused_with_advice(ask, films, calls):
    calls.encoder = archive.Encoder("0" * 64)
    done = ask("index", films, "--encoder=other")
    assert done.status == 1 and "give --encoder=colours, or a new --index" in done.errors[0]
    done = ask("query", "red")
    assert done.status == 1 and "another fingerprint" in done.errors[0]


def test_another_folder_is_refused_unless_the_root_is_moved(ask, films, tmp_path):
    films.rename(tmp_path / "elsewhere")
    for given in (tmp_path / "elsewhere", tmp_path):
        done = ask("index", given)
        assert done.status == 1 and "--move-root" in done.errors[0]
    offline = ask("query", "red")
    assert offline.status == 0 and "moved root" in offline.errors[0]
    moved = ask("index", tmp_path / "elsewhere", "--move-root")
    assert moved.status == 0 and "3 unchanged" in moved.out
    assert not ask("query", "red").errors


def test_available_root_is_not_moved(ask, films, index, tmp_path):
    archive.folder(tmp_path / "copy")
    before = Index.open(index).roots
    done = ask("index", tmp_path / "copy", "--move-root")
    assert done.status == 1 and str(films) in done.errors[0] and len(done.errors) == 1
    archive.film(tmp_path / "disk" / "d.film", ["blue"] * 7)
    ask("add", tmp_path / "disk")
    done = ask("index", tmp_path / "copy", "--move-root")
    assert done.status == 1 and str(tmp_path / "disk") in done.errors[0]
    assert Index.open(index).roots == before | {"disk": tmp_path / "disk"}


def test_a_root_that_cannot_be_read_is_not_moved(ask, films, index, tmp_path, monkeypatch):
    archive.folder(tmp_path / "copy")
    listing = os.scandir

    def failing(place):
        if Path(place) == films:
            raise OSError(5, "Input/output error")
        return listing(place)

    monkeypatch.setattr(os, "scandir", failing)
    assert ask("index", tmp_path / "copy", "--move-root").status == 1
    assert Index.open(index).root == films


def forbid(monkeypatch, folder):
    """Let each look into a folder fail, as for a user without the right to read it."""
    for name in ("stat", "scandir", "open"):
        monkeypatch.setattr(os, name, _refusing(getattr(os, name), f"/{folder}"))


def _refusing(call, folder):
    def refusing(place, *values, **options):
        if folder in str(place):
            raise PermissionError(13, "Permission denied", str(place))
        return call(place, *values, **options)

    return refusing


def test_unreadable_folder_is_not_called_offline(ask, films, index, monkeypatch):
    (films / "b.film").unlink()
    forbid(monkeypatch, "trips")
    done = ask("index", films)
    assert "1 offline (kept; prune drops them), 1 unreadable (kept)" in done.out
    assert not done.errors  # the real `find` names the folder, and nothing else does
    status = ask("status").out
    assert "offline   1 videos" in status and "not read  1 videos" in status
    offline, unreadable, *_ = ask("query", "red").errors
    assert "1 of 3 videos is offline and left out ('b.film')" in offline
    assert "1 of 3 videos is unreadable and left out ('trips/c.film')" in unreadable


def test_query_of_an_open_library_survives_a_forbidden_folder(index, monkeypatch):
    opened = archive.opened(Index.open(index))
    assert len(opened.query("red")) == 3
    forbid(monkeypatch, "trips")
    results = opened.query("red")
    assert len(results) == 2 and "unreadable" in results.warnings[0]
    forbid(monkeypatch, "my films")
    assert "unreadable" in opened.query("red").warnings[0]


def test_prune_keeps_unreadable_videos(ask, films, index, monkeypatch):
    (films / "b.film").unlink()
    forbid(monkeypatch, "trips")
    done = ask("prune", "--yes")
    assert done.status == 0 and "trips/c.film" in done.errors[0]
    monkeypatch.undo()
    assert set(Index.open(index).videos) == {"a.film", "trips/c.film"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", "red", "--export={}/a.csv"],
        ["cut", "a.film", "--start=1", "--end=2", "--out={}/a.mp4"],
        ["evaluate", "--captions=c", "--json={}/index.db", "--overwrite"],
        ["evaluate", "--captions=c", "--json={films}/a.film", "--overwrite"],
        ["features", "{films}", "--captions=c", "--out={}/videos"],
        ["features", "{films}", "--text-only", "--out={}/new"],
        ["demo", "--out={}/packed"],
        ["mcp", "--out={}"],
    ],
    ids=lambda one: " ".join(one),
)
@pytest.mark.parametrize("through", ["itself", "link"])
def test_no_output_lands_in_an_index(search, index, films, tmp_path, arguments, through):
    place = index
    if through == "link":
        place = tmp_path / "elsewhere"
        place.symlink_to(index)
    before = archive.everything(index) | archive.everything(films)
    given = [one.format(place, films=films) for one in arguments]
    if arguments[0] in ("query", "cut", "evaluate", "mcp"):
        given.append(f"--index={index}")
    done = search(*given)
    assert done.status == 1 and len(done.errors) == 1, done
    assert "index" in done.errors[0]
    assert archive.everything(index) | archive.everything(films) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", "red", "--stroe=postgresql://me:cret@h/d"],
        ["query", "red", "--store=dbname=x password='s cret'"],
        ["query", "red", "--store", "postgresql://me:'s cret@h/d?p%61ssword=cret"],
        ["postgresql://me:s cret@h/d"],
    ],
    ids=lambda one: one[-1],
)
def test_no_error_shows_a_password(ask, films, arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["search", *arguments])
    done = ask(*arguments)
    assert done.status == 1 and len(done.errors) == 1 and "cret" not in done.errors[0]


def test_too_little_memory_is_one_line(ask, monkeypatch):
    failures = [
        MemoryError(), RuntimeError("can't start new thread"),
        ImportError("libx.so: failed to map segment from shared object"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."),
    ]  # fmt: skip

    def fail(options):
        raise failures[0]

    for name, command in list(COMMANDS.items()):
        monkeypatch.setitem(COMMANDS, name, command._replace(run=fail))
    while failures:
        done = ask("status")
        assert done.status == 1 and len(done.errors) == 1 and "memory" in done.errors[0]
        failures.pop(0)
    failures.append(RuntimeError("of another kind"))
    with pytest.raises(RuntimeError, match="of another kind"):
        ask("status")


@pytest.mark.parametrize(
    "closed",
    [*(pytest.param(one, marks=pytest.mark.slow) for one in ("0", "2", "0 1")), "1", "0 1 2"],
)
def test_a_closed_stream_is_at_most_one_line(index, closed):
    command = shlex.join(processes.command("search", "status", f"--index={index}"))
    redirected = " ".join(f"{number}>&-" for number in closed.split())
    done = subprocess.run(
        ["bash", "-c", f"{command} {redirected}"], capture_output=True, text=True, timeout=60,
        env=processes.environment(),
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert done.returncode == ("1" in closed) and len(lines) == (
        "1" in closed and "2" not in closed
    )
    assert ("videos" in done.stdout) == ("1" not in closed)


@pytest.mark.slow  # it takes seconds
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_output_that_cannot_be_written_is_named(index, more):
    command = processes.command("search", "status", f"--index={index}", *more)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
            env=processes.environment() | {"PYTHONUNBUFFERED": ""},
        )  # fmt: skip
    [line] = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("error: standard output cannot be written (No space left on device)")


@pytest.fixture
def disk(ask, tmp_path):
    """A further folder of the index, of two films: one named as a film of the first folder."""
    disk = tmp_path / "disk"
    archive.film(disk / "a.film", ["yellow"] * 4)
    archive.film(disk / "trips" / "d.film", ["blue"] * 7)
    done = ask("add", disk)
    assert done.status == 0 and "2 indexed" in done.out and "'disk'" in done.errors[0]
    return disk


def test_videos_of_two_folders_stay_distinct(ask, films, index, disk, tmp_path):
    found = lambda *asked: [hit["video"] for hit in json.loads(ask("query", *asked, "--json").out)]
    assert found("yellow", "--k=1") == ["disk//a.film"] and found("red", "--k=1") == ["a.film"]
    assert found("blue", "--folder=disk/trips") == ["disk//trips/d.film"]
    assert found("--like=disk//a.film@1", "--k=1") != ["disk//a.film"]
    for path, name in ((films / "a.film", "a.film"), (disk / "a.film", "disk//a.film")):
        assert Index.open(index).name_of(str(path)) == name
        entry = next(one for one in Index.open(index).entries() if one.video == name)
        assert entry.path == path and entry.folder == ("disk" if "//" in name else "")
    done = ask("query", "red", f"--export={disk}/a.film.csv")
    assert done.status == 0 and f"{disk}/a.film" in (disk / "a.film.csv").read_text()
    archive.film(disk / "e.film", ["green"] * 9)
    for given in ([films], [disk], []):
        done = ask("index", *given)
        assert done.status == 0, done
    assert "6 unchanged" in done.out
    assert ask("remove", "disk//e.film").status == 0
    assert "5 unchanged" in ask("index", films).out
    assert str(disk) in ask("status").out
    assert "removed 2 of 5" in ask("remove", disk).out
    assert Index.open(index).roots == {"": films} and (disk / "a.film").exists()
    assert len(Index.open(index).contents()) == 3


@pytest.mark.parametrize("left", [False, True], ids=["gone", "empty"])
def test_offline_folder_keeps_all_videos(ask, films, index, disk, tmp_path, left):
    (disk / "broken.film").write_bytes(b"broken")
    assert "1 failed" in ask("index", films).out
    before = Index.open(index).videos
    disk.rename(tmp_path / "elsewhere")
    if left:  # as a disk that is not mounted does
        disk.mkdir()
    (films / "copy.film").write_bytes((tmp_path / "elsewhere" / "a.film").read_bytes())
    done = ask("index")
    assert done.status == 0 and "2 offline" in done.out
    assert any(f"{disk} is missing" in line for line in done.errors) != left
    assert "0 videos are missing" in ask("prune").out
    assert "dropped 0" in ask("prune", "--yes").out
    after = Index.open(index).videos
    about = lambda one: (one.id, one.content, one.stamp, one.state, one.reason)
    assert after.keys() - before.keys() == {"copy.film"}
    assert all(about(after[name]) == about(one) for name, one in before.items())
    done = ask("query", "yellow", "--k=1", "--json")
    assert [hit["video"] for hit in json.loads(done.out)] == ["copy.film"]
    assert any(("is missing" in line) != left for line in done.errors)
    done = ask("index", tmp_path / "elsewhere", "--move-root")
    assert f"{disk} is now {tmp_path / 'elsewhere'}" in done.errors
    assert done.status == 0 and "6 unchanged" in done.out
    assert Index.open(index).videos == after
    done = ask("index", tmp_path / "third", "--move-root")
    assert done.status == 1


@pytest.mark.parametrize("made", [False, True])
def test_failed_index_leaves_no_files(search, films, tmp_path, made):
    empty, place = tmp_path / "empty", tmp_path / "index"
    empty.mkdir()
    if made:
        place.mkdir()
    cases = [
        ([empty], "has no video that FFmpeg can read"),
        ([films, "--fps=0"], "--fps=0"),
        ([films, "--workers=-1"], "--workers=-1"),
        ([films, "--checkpoint=nowhere"], "has no config.json"),
    ]
    for arguments, complaint in cases:
        done = search("index", *arguments, f"--index={place}")
        assert done.status == 1 and complaint in done.errors[0]
        assert place.exists() == made and not (made and list(place.iterdir()))
    assert search("index", empty).status == 1 and not list(empty.iterdir())


@pytest.mark.parametrize("folder", ["films", "empty"])
def test_directory_with_other_files_is_always_refused(search, films, tmp_path, folder, monkeypatch):
    (tmp_path / "empty").mkdir()
    project = tmp_path / "project"
    (project / "videos").mkdir(parents=True)
    for name in (".env.local", "videos/.gitlab-ci.yml", "videos/a.npz", "manifest.json"):
        (project / name).write_text("{}")
    before = archive.everything(project)
    given = films if folder == "films" else tmp_path / "empty"
    done = search("index", given, f"--index={project}", "--workers=0")
    assert done.status == 1 and "has other files" in done.errors[0]
    monkeypatch.chdir(project)
    assert search("index", "videos", "--index=.", "--workers=0").status == 1
    assert archive.everything(project) == before


def test_offline_videos_are_kept_until_they_are_pruned(ask, films, index, tmp_path, calls):
    (films / "trips").rename(tmp_path / "away")
    done = ask("index", films)
    assert done.status == 0 and "1 offline" in done.out
    assert "offline   1" in ask("status").out
    listed = ask("prune")
    assert listed.status == 0 and "trips/c.film" in listed.out and "--yes" in listed.out
    seen = calls.encoder.seen
    (tmp_path / "away").rename(films / "trips")
    assert "3 unchanged" in ask("index", films).out
    assert calls.encoder.seen == seen
    (films / "trips" / "c.film").unlink()
    assert "dropped 1 videos, 2" in ask("prune", "--yes").out
    assert len(Index.open(index).contents()) == 2
    assert ask("prune", "--yes").status == 0
    films.rename(tmp_path / "unmounted")
    refused = ask("prune", "--yes")
    assert refused.status == 1 and len(Index.open(index).contents()) == 2


def test_prune_keeps_the_videos_of_a_disk_that_goes_offline_meanwhile(
    ask, films, index, tmp_path, monkeypatch
):
    listed = Index.offline

    def unmounted(self):
        if films.exists():
            films.rename(tmp_path / "unmounted")
        return listed(self)

    monkeypatch.setattr(Index, "offline", unmounted)
    done = ask("prune", "--yes")
    assert done.status == 0 and "3 videos cannot be read and are kept" in done.errors[0]
    assert len(Index.open(index).videos) == 3


def test_add_indexes_only_the_named_files_and_folders(ask, films, index, calls):
    archive.film(films / "trips" / "d.film", ["white"] * 3)
    archive.film(films / "e.film", ["white", "red"])
    archive.film(films / "left out.film", ["green"])
    (films / "b.film").unlink()
    seen = calls.encoder.seen
    added = ask("add", films / "trips", films / "e.film")
    assert added.status == 0 and "2 indexed, 1 unchanged" in added.out
    assert calls.encoder.seen - seen == 1 + 2  # colours
    names = [entry.video for entry in Index.open(index).entries()]
    assert names == ["a.film", "b.film", "e.film", "trips/c.film", "trips/d.film"]


def test_a_link_of_the_folder_is_a_path_of_the_folder(ask, films, index, tmp_path):
    elsewhere = archive.film(tmp_path / "elsewhere.film", ["yellow"] * 2)
    (films / "link.film").symlink_to(elsewhere)
    refused = ask("add", elsewhere)
    assert refused.status == 1 and "add the folder that contains it" in refused.errors[0]
    assert ask("add", films / "link.film").status == 0
    assert "link.film" in Index.open(index).videos


def test_removed_video_stays_out_until_added(ask, films, index):
    identity = Index.open(index).entries()[1].id
    assert ask("remove", identity, films / "a.film").status == 0
    assert (films / "a.film").exists()
    assert [entry.video for entry in Index.open(index).entries()] == ["trips/c.film"]
    assert len(Index.open(index).contents()) == 1
    ask("index", films)
    assert len(Index.open(index).entries()) == 1
    assert "removed   2" in ask("status").out
    assert ask("add", films / "a.film").status == 0
    assert len(Index.open(index).entries()) == 2
    ask("add", films)
    assert len(Index.open(index).entries()) == 3


def test_status_lists_failures_with_reasons(ask, films):
    (films / "bad\nname.film").write_bytes(b"broken")
    done = ask("index", films)
    assert done.status == 0 and "1 failed" in done.out
    assert len(done.errors) == 1 and "is no film" in done.errors[0]
    out = ask("status").out
    assert "videos    3, 0:54 long" in out and "failed    1" in out and "is no film" in out
    status = json.loads(ask("status", "--json").out)
    assert status["videos"] == 3 and status["failures"][0]["video"] == "bad\nname.film"
    retried = ask("index", films, "--retry")
    assert "1 failed" in retried.out
    skipped = ask("index", films)
    assert "1 failed before" in skipped.out and not skipped.errors


def test_status_lists_folders_that_could_not_be_listed(search, films, tmp_path):
    (films / "unlisted").mkdir()
    flag = f"--index={tmp_path / 'index'}"
    line = f"{films}/unlisted may not be listed"
    done = search("index", films, flag)
    assert "1 folders not listed" in done.out and done.errors == [line]
    assert f"  not listed: {line}" in search("status", flag).out.splitlines()
    assert json.loads(search("status", "--json", flag).out)["unlisted"] == [line]


def test_a_folder_without_video_names_what_could_not_be_listed(search, tmp_path):
    (tmp_path / "empty" / "unlisted").mkdir(parents=True)
    line, error = search("index", tmp_path / "empty").errors
    assert "may not be listed" in line and "has no video" in error


def test_verify_names_damage_and_index_repairs_it(ask, films, index):
    assert ask("verify").out == "8 parts are intact\n"
    archive.damage(Index.open(index), "b.film")
    done = ask("verify")
    assert done.status == 1 and "'b.film'" in done.out and "1 of 8 parts" in done.errors[0]
    again = ask("index", films)
    assert "1 indexed, 2 unchanged" in again.out and "computed anew" in again.errors[0]
    assert ask("verify").status == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("index",), ("index", "{films}"), ("add", "{films}/a.film"), ("query", "red"),
        ("query", "red", "--export={out}.csv"), ("status",), ("tag",), ("tag", "a.film", "--add=x"),
        ("remove", "a.film"), ("prune",), ("prune", "--yes"), ("verify",), 
        ("features", "{films}", "--captions={captions}", "--out={out}"),
        ("cut", "a.film", "--start=1", "--end=2", "--out={out}.mp4"),
        ("evaluate", "--captions={captions}"),
        ("evaluate", "--captions={captions}", "--calibrate=50"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_damaged_database_is_reported_once(ask, films, index, tmp_path, arguments):
    captions = tmp_path / "captions.jsonl"
    captions.write_text('{"video": "a.film", "sentence": "red"}\n')
    (index / "index.db").write_text("{")
    places = {"films": films, "captions": captions, "out": tmp_path / "out"}
    done = ask(*(argument.format(**places) for argument in arguments))
    lines = [*done.out.splitlines(), *done.errors]
    assert sum("index.db is damaged" in line for line in lines) == 1, lines


def test_failed_files_do_not_count_as_videos(ask, films, index):
    for name in ("bad", "worse"):
        (films / f"{name}.film").write_bytes(f"broken {name}".encode())
    ask("index", films)
    assert ask("remove", "a.film").out == "removed 1 of 3 videos\n"
    assert ask("remove", "bad.film").out == "removed 1 failed file\n"
    done = ask("remove", "b.film", "worse.film")
    assert done.out == "removed 1 of 2 videos and 1 failed file\n"
    (films / "bad.film").write_bytes(b"broken again")
    ask("add", films / "bad.film")
    assert "1 are left" in ask("prune", "--yes").out


def test_quantised_embeddings_that_no_search_reads_are_mended_by_index(ask, films, index):
    path = archive.damage(Index.open(index), "b.film", "i8")
    done = ask("verify")
    assert done.status == 1 and f"{path} is damaged: index the folder again" in done.out
    assert ask("query", "blue").status == 0 and ask("verify").status == 1
    assert ask("index", films).status == 0
    assert ask("verify").out == "8 parts are intact\n"
    path.unlink()
    assert ask("verify").status == 1
    assert ask("index", films).status == 0 and ask("verify").status == 0


def test_quantised_embeddings_that_a_search_reads_are_mended_by_it(ask, index, large):
    path = archive.damage(Index.open(index), "b.film", "i8")
    done = ask("verify")
    assert done.status == 1 and f"{path} is damaged: the next search" in done.out
    assert ask("query", "blue").status == 0 and ask("verify").status == 0


@pytest.mark.slow  # it takes seconds
def test_verify_names_damaged_caches_and_a_search_mends_them(ask, films, index):
    (films / "b.srt").write_text("1\n00:00:12,000 --> 00:00:14,000\nThe captain's ship\n")
    assert ask("index", films).status == 0
    words = "query", "ship", "--signals=transcript", "--json"
    before, _ = ask(*words).out, ask("query", "red", "--normalise")
    for name in ("said-*.db", "bank-*.npy"):
        [path] = (index / "packed").glob(name)
        content = path.read_bytes()
        path.write_bytes(content[:-99] + b"x" + content[-98:])
        done = ask("verify")
        assert done.status == 1 and f"{path} is damaged: the next search" in done.out
        for bias in (index / "packed").glob("bias-*"):  # computed from the bank
            bias.unlink()
        assert ask(*words).out == before and ask("query", "red", "--normalise").status == 0
        assert ask("verify").status == 0


def test_query_prints_a_table_or_json(ask):
    done = ask("query", "blue", "--k=2", "--ranker=best_frame")
    lines = done.out.splitlines()
    assert lines[0].split() == ["rank", "score", "moment", "date", "file"]
    rank, score, moment, _, whose, video = lines[1].split()
    assert (rank, score, moment, video) == ("1", "1.000", "0:10–0:14", "trips/c.film")
    assert whose == "(file)"
    assert len(lines) == 3 and not done.errors
    done = ask("query", "red", "--json", "--ranker=best_frame")
    hits = json.loads(done.out)
    fields = {
        "id", "video", "date", "date_of", "score", "score_kind", "is_match", "signals", "moments",
        "passages", "copies", "tags",
    }  # fmt: skip
    assert [set(hit) for hit in hits] == [fields] * 3
    assert hits[0]["video"] == "a.film"
    assert all(set(m) == {"start", "end", "peak", "score"} for h in hits for m in h["moments"])
    first = hits[0]["moments"][0]
    assert (first["start"], first["end"], first["peak"]) == (5, 8, 6)
    assert hits == sorted(hits, key=lambda hit: -hit["score"])


def test_filters_reach_the_library(ask, index):
    found = lambda *flags: json.loads(ask("query", "red", "--json", *flags).out)
    names = lambda *flags: {hit["video"] for hit in found(*flags)}
    assert names("--folder=trips") == {"trips/c.film"} and found("--until=1999-01-01") == []
    assert "no results" in ask("query", "red", "--since=2999-01-01").out
    assert names("--longer=0:17") == {"b.film", "trips/c.film"}
    assert names("--shorter=16s") == {"a.film"}
    done = ask("tag", "a.film", "trips/c.film", "--add=Oma", "--add=favourite")
    assert done.out.splitlines() == [f"{one}: Oma, favourite" for one in ("a.film", "trips/c.film")]
    assert names("--tag=oma") == {"a.film", "trips/c.film"}
    ask("tag", "a.film", "--drop=favourite")
    assert names("--tag=oma", "--tag=favourite") == {"trips/c.film"}
    assert ask("tag").out.startswith("a.film: Oma\ntrips/c.film: ")
    assert ask("tag", "--add=x").status == 1
    assert "did you mean 'Oma'" in ask("query", "red", "--tag=Opa").errors[0]
    [hit] = library.Library(index).search("red", tags="oma", shorter=17.0)
    assert hit.tags == ("Oma",) and hit.as_json()["tags"] == ["Oma"]


def test_file_name_that_is_not_text_is_addressed_by_id(ask, films, calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    archive.film(films / os.fsdecode(b"caf\xe9") / os.fsdecode(b"\xff.film"), ["yellow"] * 4)
    (films / os.fsdecode(b"bad\xe9.film")).write_bytes(b"broken")
    done = ask("index", films)
    asked = ask("query", "yellow", "--json", "--k=1")
    [hit] = json.loads(asked.out)
    assert hit["video"] == "caf\ufffd/\ufffd.film"
    texts = [done.out, *done.errors, asked.out]
    texts.append(ask("query", "yellow", "--folder=caf\ufffd").out)
    assert hit["video"] in texts[-1]
    texts += [ask("status", *more).out for more in ([], ["--json"])]
    assert "bad\ufffd.film" in texts[-2] and "bad\\ufffd.film" in texts[-1]
    for text in texts:
        text.encode()
        assert "\\ud" not in text
    assert ask("cut", hit["id"], "--start=1", "--end=2").out.encode()
    assert calls.cuts[0][0][0] == films / os.fsdecode(b"caf\xe9/\xff.film")
    assert ask("remove", hit["id"]).status == 0
    assert ask("query", os.fsdecode(b"red \xff")).status == 0


def test_missing_encoder_gives_one_line(search, films, tmp_path):
    folder = tmp_path / "encoder"
    folder.mkdir()
    search("index", films, f"--index={tmp_path / 'index'}", f"--encoder={folder}", "--workers=0")
    folder.rmdir()
    done = search("query", "red", f"--index={tmp_path / 'index'}")
    assert done.status == 1 and "pass its new path as --encoder" in done.errors[0]


def test_serve_passes_its_options_on(ask, calls):
    assert ask("serve", "--port=0", "--open").status == 0
    access = "--token-file=t", "--allow-host=nas.local", "--allow-host=b", "--no-manage"
    assert ask("serve", "--host=0.0.0.0", *access).status == 0
    (library, *others), options = calls.served[0]
    assert (library.encoder_name, *others) == ("colours", 0, "127.0.0.1", True)
    assert options == {"token_file": None, "no_token": False, "allow_hosts": [], "manage": None}
    assert calls.served[1][1] == {
        "token_file": Path("t"), "no_token": False, "allow_hosts": ["nas.local", "b"],
        "manage": False,
    }  # fmt: skip


def test_evaluate_reports_recalls_of_videos_and_moments(ask, tmp_path):
    captions = tmp_path / "captions.jsonl"
    lines = [("a.film", "red", 5, 8), ("trips/c.film", "blue", 10, 14), ("b.film", "green", 0, 20)]
    form = '{{"video": "{}", "sentence": "{}", "start": {}, "end": {}}}\n'
    captions.write_text("".join(form.format(*line) for line in lines))
    out = tmp_path / "figures.json"
    done = ask("evaluate", f"--captions={captions}", f"--json={out}")
    assert done.status == 0
    assert all(name in done.out for name in ("segments", "best_frame", "IoU 0.7"))
    figures = json.loads(out.read_text())["rankers"]
    assert set(figures) == set(rankers.RANKERS)
    expected = {"R@1": 100, "R@5": 100, "IoU 0.3": 100, "IoU 0.7": 100, "SumR": 400}
    assert expected.items() <= figures["best_frame"].items()
    captions.write_text('{"video": "nowhere.film", "sentence": "red"}')
    done = ask("evaluate", f"--captions={captions}")
    assert done.status == 1 and "'nowhere.film', which is not indexed" in done.errors[0]


def test_calibrated_threshold_decides_good_matches(ask, films, index, tmp_path):
    captions = tmp_path / "captions.jsonl"
    of = {"a.film": "red", "b.film": "green", "trips/c.film": "blue", "": "yellow"}
    lines = [{"video": video, "sentence": sentence} for video, sentence in of.items()]
    captions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = f"--captions={captions}"
    out = tmp_path / "figures.json"
    done = ask("evaluate", given, "--calibrate=10", f"--json={out}")
    assert done.status == 1 and "10 % needs at least 9 visual captions (got 3)" in done.errors[0]
    assert "best_frame" in done.out and json.loads(out.read_text())["captions"] == 3
    for wrong in ("-1", "100", "nan", "1e-320"):
        assert "percent" in ask("evaluate", given, f"--calibrate={wrong}").errors[0]
    before = ask("query", "green").errors
    assert ask("evaluate", given, "--calibrate=50").status == 0
    levels = Index.open(index).thresholds
    assert set(levels) == set(rankers.RANKERS)
    assert (levels["best_frame"].false_alarms, levels["best_frame"].captions) == (50, 3)
    # By hand: above the second largest of what the three find in other videos, over the medians.
    encoder, frames = archive.Encoder(), {}
    for name, record in Index.open(index).videos.items():
        frames[name] = Index.open(index).read(record.content).vectors.astype(np.float32)
    every, elsewhere = np.concatenate(list(frames.values())), []
    for line in lines[:3]:
        (query,) = encoder.encode_texts([line["sentence"]])
        others = [own @ query for name, own in frames.items() if name != line["video"]]
        elsewhere.append(np.concatenate(others).max() - np.median(every @ query))
    assert levels["best_frame"].margin == pytest.approx(sorted(elsewhere)[1], abs=1e-6)
    assert levels["best_frame"].frames == len(every)
    assert "calibrated for 50 % false alarms on 3 captions" in ask("status").out
    for sentence in ("red", "white", "yellow", "black"):
        (query,) = encoder.encode_texts([sentence])
        good = (every @ query).max() - np.median(every @ query) >= levels["best_frame"].margin
        errors = ask("query", sentence).errors
        assert bool(errors) != good, sentence
        if errors:
            assert "50 % of what is absent do (calibrated with 3 captions)" in errors[0]
    for name in ("d", "e", "f"):
        archive.random_film(films / f"{name}.film", 60, seed=ord(name))
    assert ask("index", films).status == 0
    assert "calibrate it again" in ask("query", "green").errors[0]
    assert ask("evaluate", given, "--calibrate=0").status == 0
    assert ask("query", "green").errors == before


def test_caption_that_lists_every_video_prevents_calibration(ask, tmp_path):
    captions, out = tmp_path / "captions.jsonl", tmp_path / "figures.json"
    line = {"video": "a.film", "sentence": "red", "also": ["b.film", "trips/c.film"]}
    captions.write_text(json.dumps(line))
    flags = f"--captions={captions}", f"--json={out}", "--calibrate=50"
    done = ask("evaluate", *flags)
    assert done.status == 1 and "lists every video as correct" in done.errors[0]
    figures = files.parse_json(out.read_bytes(), finite=True)
    assert figures["rankers"]["best_frame"] == dict.fromkeys(
        ("R@1", "R@5", "R@10", "R@100"), 100
    ) | {"SumR": 400}
    assert figures["thresholds"]["best_frame"] == {"0.05": None, "0.1": None, "0.2": None}


def test_runs_have_short_names_in_a_table():
    runs = ["hlformer/0", "hlformer/1", "ms_sl"]
    shown = metrics.shorten_runs(["best_frame", *(f"/runs/{run}" for run in runs)])
    assert shown == ["best_frame", *runs]
    assert metrics.shorten_runs(["segments", "/runs/hlformer"]) == ["segments", "hlformer"]
    assert metrics.shorten_runs(["segments"]) == ["segments"]


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


def test_exported_table_is_cut_at_once(ask, films, calls, tmp_path):
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
    gone = "9,0123456789abcdef,gone.film,1.000,2.000,1.500,0.5,visual,2020-01-01,/gone.film,"
    table.write_text("\n".join([head, gone, *rows, ""]))
    made = []

    def cut(path, start, end, out, margin, replace):
        if not made and not failed:
            failed.append(out)
            raise read.VideoError(f"{str(out)!r} cannot be written (no reason): try again")
        made.append(out)

    failed: list[Path] = []
    monkeypatch.setattr(sys.modules["hlformer_jax.video"], "cut", cut)
    done = ask("cut", f"--from={table}", f"--out={folder}")
    assert done.status == 1 and len(made) == len(rows) - 1 >= 1
    assert done.out.split() == [str(out) for out in made]
    assert "holds no video '0123456789abcdef'" in done.errors[0]
    assert "no reason" in done.errors[1]
    assert done.errors[-1] == (
        f"error: 2 of {len(rows) + 1} clips could not be made: 0123456789abcdef, {failed[0].name}"
    )


def test_clips_are_cut_from_the_file_that_was_indexed_alone(ask, films, calls, tmp_path):
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


def test_printed_paths_stay_on_their_line(search, tmp_path):
    old, new, added, directory = (
        tmp_path / f"{name}\nplace" for name in ("old", "new", "added", "index")
    )
    archive.folder(old)
    archive.film(added / "x.film", ["red"])
    done = search("index", old, f"--index={directory}")
    assert done.status == 0 and done.out.startswith(f"{str(directory)!r}: ")
    old.rename(new)
    done = search("index", new, f"--index={directory}", "--move-root")
    assert repr(f"{old} is now {new}") in done.errors
    assert search("add", added, f"--index={directory}").status == 0
    added.rename(tmp_path / "away")
    [line] = search("prune", f"--index={directory}").errors
    assert "is missing, so its videos are kept" in line


def test_tags_with_a_comma_are_quoted(ask, films):
    assert ask("tag", "a.film", "--add=sea, sand", "--add=sun").status == 0
    assert ask("tag", "a.film").out == "a.film: 'sea, sand', sun\n"


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


def test_a_clip_never_replaces_a_video_of_the_index(ask, films, calls, tmp_path):
    (tmp_path / "link.mp4").symlink_to(films / "b.film")
    for out in (films / "b.film", films / "trips" / ".." / "a.film", tmp_path / "link.mp4"):
        flags = ["--start=1", "--end=2", f"--out={out}", "--overwrite"]
        done = ask("cut", "a.film", *flags)
        assert done.status == 1 and "is a video of the index" in done.errors[0]
    assert archive.find(films, print) and not calls.cuts


@pytest.fixture
def captions(tmp_path):
    path = tmp_path / "captions.jsonl"
    splits = {"a.film": "train", "b.film": "val", "trips/c.film": "test"}
    lines = [{"video": one, "sentence": "red", "split": split} for one, split in splits.items()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, lines[0]]))
    return path


def test_a_folder_is_indexed_and_its_captions_become_a_data_set(search, films, captions, tmp_path):
    out = tmp_path / "features"
    flags = [f"--captions={captions}", f"--out={out}", "--fps=2", "--workers=0"]
    done = search("features", films, *flags)
    assert done.status == 0 and "3 indexed" in done.out
    assert f"{out}: captions 2 of train, 1 of val, 1 of test\n" in done.out
    assert f"--config=configs/own.py:{out}" in done.out
    assert Index.open(films / ".hlformer-search").fps == 2
    splits = ExtractedReader(out).splits
    assert {split: list(of) for split, of in splits.items()} == {
        "train": ["a.film"], "val": ["b.film"], "test": ["trips/c.film"],
    }  # fmt: skip


def test_wrong_captions_are_refused_before_anything_is_indexed(search, films, captions, tmp_path):
    captions.write_text("{}")
    done = search("features", films, f"--captions={captions}", f"--out={tmp_path / 'out'}")
    assert done.status == 1 and 'captions.jsonl:1: "video" is missing' in done.errors[0]
    assert not (films / ".hlformer-search").exists() and not (tmp_path / "out").exists()


@pytest.mark.slow  # PostgreSQL starts in seconds
def test_commands_upload_to_a_store_and_query_it(tmp_path, monkeypatch, capsys, address):
    films = archive.varied_folder(tmp_path / "videos")
    archived = archive.indexed(tmp_path / "archive", films).directory
    monkeypatch.setattr(library, "reload_encoder", lambda facts, given: archive.Encoder())

    def call(*arguments):
        assert main([*arguments, f"--index={archived}"]) == 0
        return capsys.readouterr().out

    store = f"--store={address}"
    assert call("upload", store).endswith(": 15 uploaded\n")
    assert call("upload", store).endswith(": 15 already there\n")
    for flags in (["--k=4"], ["--folder=f1", "--since=2001-09-12"]):
        assert call("query", "red", store, *flags) == call("query", "red", *flags)


@pytest.mark.parametrize(
    ("flags", "parts", "seed"), [([], 1, 0), (["--seed=3", "--training"], 2, 3)]
)
def test_demo_parts_have_the_same_seed(search, monkeypatch, tmp_path, flags, parts, seed):
    made, names = [], ["make", "render_training"]
    note = lambda name: lambda out, seed, report: made.append((name, out, seed))
    module = SimpleNamespace(**{name: note(name) for name in names})
    monkeypatch.setitem(sys.modules, "hlformer_jax.search.demo", module)
    done = search("demo", f"--out={tmp_path}", *flags)
    assert done.status == 0 and made == [(name, tmp_path, seed) for name in names[:parts]]
    index = shlex.quote(f"--index={tmp_path / 'index'}")
    assert f"query 'a red circle' {index}" in done.out
