"""Errors, streams and outputs of all commands, on films that need no FFmpeg."""

import errno
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import archive
import processes
import pytest

from hlformer_jax import files
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.cli.commands import COMMANDS
from hlformer_jax.search.cli.options import seed
from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest import extract


def test_only_compiling_commands_keep_programs(search, index, keep_programs_calls):
    keep_programs_calls.clear()
    assert search("status", "--index", index).status == 0 and not keep_programs_calls
    assert search("query", "blue", "--index", index).status == 0 and len(keep_programs_calls) == 1


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder of films, its index, and a file of captions; failing commands do not change them."""
    folder = tmp_path_factory.mktemp("refused")
    films = archive.folder(folder / "my films")
    index = archive.create(folder / "index", films, fps=1.0, every_frame=False)
    archive.fill(index)
    deep = folder / "deep.jsonl"
    deep.write_text("[" * 100_000)
    index_flag = f"--index={index.directory}"
    return {"films": films, "index": index.directory, "index_flag": index_flag, "deep": deep}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("serach", "invalid choice: 'serach'"),
        ("query red", "required: --index (hlformer-search query --help lists the options)"),
        (
            "query red --index=nowhere",
            "nowhere holds no index: index a folder into it, or give another --index",
        ),
        ("query red {index_flag} --ranker=best_frames", "did you mean 'best_frame'?"),
        ("query red {index_flag} --checkpoint=nowhere", "has no config.json"),
        ("query {index_flag}", "SENTENCE is empty"),
        ("query red blue {index_flag} --then=red", "accepts one SENTENCE"),
        ("query red {index_flag} --not=b --ranker=segments", "of frames"),
        ("query red {index_flag} --signals=transcript", "has no subtitles: put .srt"),
        ("query red {index_flag} --signals=heard", "--signals has 'heard'"),
        ("query red {index_flag} --min-score=nan", "--min-score is NaN"),
        ("query {index_flag} --image=nowhere.png", "No such file"),
        ("query {index_flag} --like=a.film", "is not VIDEO@TIME"),
        ("index nowhere", "nowhere is not a folder"),
        ("index {films} {index_flag} --fps=2", "--fps=2: "),
        ("index {films} {index_flag} --every-frame", "leave out --every-frame"),
        ("index {films}/trips {index_flag}", " indexes "),
        (
            "index {films} --index=new --fps=1001",
            "--fps=1001: give a number of frames a second above 0 and up to 1000",
        ),
        ("index ''", "the path is empty"),
        ("index {films} {index_flag} --timeout=0", "--timeout=0: give seconds"),
        ("query red {index_flag} --folder=tripps", "did you mean 'trips'?"),
        ("evaluate {index_flag} --captions={deep}", "deep.jsonl:1: the line is not JSON"),
        ("evaluate {index_flag} --captions={deep} --json={deep} --overwrite", "is also --captions"),
        ("features {films} --captions={deep} --out={films}", "contains other files"),
        ("add nowhere.film {index_flag}", "does not exist: give files of"),
        ("add {deep} {index_flag}", "is not in"),
        ("add {index} {index_flag}", "holds no video"),
        ("index", "FOLDER is missing"),
        ("index {index_flag} --move-root", "--move-root needs FOLDER"),
        ("index {films} --move-root", "holds no index: give its directory as --index"),
        ("transcribe {index_flag} --ocr --language=de", "--language and --audio are for --speech"),
        ("features {films} --text-only --fps=2", "--fps is for videos"),
        ("query red {index_flag} --within=5s", "--within is the gap before an event of --then"),
        ("remove b.flim {index_flag}", "holds no video 'b.flim'; did you mean 'b.film'?"),
        ("upload {index_flag}", "has no store to upload to"),
        ("cut a.film {index_flag} --start=5 --end=0:04", "--end=0:04: give a time after --start=5"),
        ("cut {index_flag} --from={films}", "it is a folder, not a file"),
        ("demo --out=new --seed=-1", "--seed: '-1': give a whole number of 0 or more"),
        (
            "serve {index_flag} --manage --no-manage",
            "--manage and --no-manage contradict each other",
        ),
        ("query red {index_flag} --store=dir", "--store dir is not the address"),
    ],
)
def test_error_is_one_line_and_status_1(search, places, arguments, complaint, monkeypatch):
    monkeypatch.chdir(places["films"].parent)
    before = archive.everything(Path.cwd())
    done = search(*(word.format(**places) for word in shlex.split(arguments)))
    assert archive.everything(Path.cwd()) == before
    assert done.status == 1 and not done.out
    assert len(done.errors) == 1 and done.errors[0].startswith("error: ")
    assert complaint in done.errors[0]


def test_ctrl_c_prints_one_line(ask, films, monkeypatch):
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


def test_full_disk_of_an_output_is_named_with_advice(ask, tmp_path, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    out = tmp_path / "moments.csv"
    done = ask("query", "red", f"--export={out}")
    assert done.status == 1
    assert done.errors[-1] == f"error: {out}: No space left on device; make room"


@pytest.mark.parametrize("name", ["index", "add", "transcribe"])
def test_locked_index_is_refused_before_an_encoder_loads(ask, index, films, calls, name):
    calls.loaded.clear()
    arguments = {"index": films, "add": films / "a.film", "transcribe": "--ocr"}
    with files.lock(index):
        done = ask(name, arguments[name])
    assert done.status == 1 and "another process is writing to" in done.errors[-1]
    assert not calls.loaded


def test_empty_index_is_refused_before_an_encoder_loads(ask, calls):
    assert ask("remove", "a.film", "b.film", "trips/c.film").status == 0
    calls.loaded.clear()
    done = ask("query", "red")
    assert done.status == 1 and "has no indexed video: 3 removed videos" in done.errors[-1]
    assert not calls.loaded


@pytest.mark.parametrize("name", COMMANDS)
def test_empty_value_of_an_option_is_refused(search, name):
    for option, settings in COMMANDS[name].options:
        if option.startswith("--") and settings.get("action") in (None, "append"):
            done = search(name, f"{option}=")
            assert done.status == 1 and f"error: argument {option}: " in done.errors[0]
            if "choices" not in settings and settings.get("type") not in (int, float, seed):
                assert " is empty: " in done.errors[0]


def test_every_command_has_help():
    for name in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0


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
    ids=lambda argument: " ".join(argument),
)
def test_no_output_lands_in_an_index(search, places, tmp_path, arguments):
    index, films = places["index"], places["films"]
    (tmp_path / "link").symlink_to(index)
    before = archive.everything(films.parent)
    for place in (index, tmp_path / "link"):
        words = [argument.format(place, films=films) for argument in arguments]
        if arguments[0] in ("query", "cut", "evaluate", "mcp"):
            words.append(f"--index={index}")
        done = search(*words)
        assert done.status == 1 and len(done.errors) == 1, done
        assert "index" in done.errors[0]
        assert archive.everything(films.parent) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", "red", "--stroe=postgresql://me:cret@h/d"],
        ["query", "red", "--store=dbname=x password='s cret'"],
        ["query", "red", "--store", "postgresql://me:'s cret@h/d?p%61ssword=cret"],
        ["postgresql://me:s cret@h/d"],
    ],
    ids=lambda arguments: arguments[-1],
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
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("0", "2", "0 1")), "1", "0 1 2"],
)
def test_closed_stream_prints_at_most_one_line(index, closed):
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


def test_search_is_imported_without_jax():
    imports = "import sys, hlformer_jax.search.__main__, hlformer_jax.search.serve.app"
    command = [sys.executable, "-c", f"{imports}; sys.exit('jax' in sys.modules)"]
    done = subprocess.run(command, env=processes.environment(), check=False, timeout=60)
    assert done.returncode == 0


@pytest.mark.slow  # it takes seconds
@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="this system has no /proc")
@pytest.mark.parametrize(
    ("caches", "expected"),
    [
        ("/proc/self", "compiled programs cannot be kept in /proc/"),
        ("~", "compiled programs cannot be kept in ~/hlformer_jax/"),
    ],
)
def test_folder_of_compiled_programs_that_is_not_writable_is_named(caches, expected):
    code = "from hlformer_jax.runtime import compiler; compiler.keep_programs()"
    variables = processes.environment() | {"XDG_CACHE_HOME": caches}  # also not for root
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, stderr=subprocess.PIPE, text=True, timeout=60
    )
    [line] = done.stderr.splitlines()
    assert done.returncode == 0 and line.startswith(expected)
    assert ("(this user has no home)" in line) == caches.startswith("~")


@pytest.mark.slow  # it takes seconds
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])  # as in launch/Dockerfile
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_output_that_cannot_be_written_is_named(index, flags, unbuffered):
    command = processes.command("search", "status", f"--index={index}", *flags)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
            env=processes.environment() | {"PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    [line] = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("error: standard output cannot be written (No space left on device)")


def test_serve_passes_its_options_on(ask, calls):
    assert ask("serve", "--port=0", "--open").status == 0
    access = "--token-file=t", "--allow-host=nas.local", "--allow-host=b", "--no-manage"
    assert ask("serve", "--host=0.0.0.0", *access).status == 0
    (library, *values), options = calls.served[0]
    assert (library.encoder_name, *values) == ("colours", 0, "127.0.0.1", True)
    assert options == {"token_file": None, "no_token": False, "allow_hosts": [], "manage": None}
    assert calls.served[1][1] == {
        "token_file": Path("t"), "no_token": False, "allow_hosts": ["nas.local", "b"],
        "manage": False,
    }  # fmt: skip


@pytest.fixture
def forbidden(tmp_path, monkeypatch):
    """A folder in which nothing can be created, as for a user without the right to write there."""
    folder = tmp_path / "forbidden"
    (folder / "empty").mkdir(parents=True)
    create, make = os.open, os.mkdir

    def open_existing(path, flags, *values, **options):
        if flags & (os.O_CREAT | getattr(os, "O_TMPFILE", 0) & ~os.O_DIRECTORY) and is_inside(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return create(path, flags, *values, **options)

    def make_outside(path, *values, **options):
        if is_inside(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return make(path, *values, **options)

    def is_inside(path):
        return Path(os.fsdecode(path)).is_relative_to(folder)

    monkeypatch.setattr(os, "open", open_existing)
    monkeypatch.setattr(os, "mkdir", make_outside)
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["index", "{films}", "--index={forbidden}/empty"],
        ["index", "{films}", "--index={forbidden}/new/index"],
        ["index", "{films}", "--index={forbidden}/index"],
        ["add", "{films}/a.film", "--index={forbidden}/index"],
        ["watch", "--index={forbidden}/index"],
        ["evaluate", "--captions={captions}", "--calibrate=50", "--index={forbidden}/index"],
        ["evaluate", "--captions={captions}", "--json={forbidden}/a.json", "--index={index}"],
        ["features", "{films}", "--captions={captions}", "--out={forbidden}/new"],
        ["features", "{films}", "--captions={captions}", "--out={forbidden}/empty"],
        ["features", "{films}", "--captions={captions}", "--out=out", "--index={forbidden}/new"],
        ["query", "red", "--export={forbidden}/a.csv", "--index={index}"],
        ["cut", "--from={table}", "--out={forbidden}/clips", "--index={index}"],
        ["mcp", "--out={forbidden}/clips", "--index={index}"],
    ],
    ids=" ".join,
)
def test_unwritable_place_is_named_before_the_encoder_loads(
    search, films, index, calls, forbidden, tmp_path, monkeypatch, arguments
):
    if arguments[0] == "mcp":
        pytest.importorskip("mcp", reason="the extra mcp is not installed")
    monkeypatch.chdir(tmp_path)
    captions, table = tmp_path / "captions.jsonl", tmp_path / "hits.csv"
    captions.write_text('{"video": "a.film", "sentence": "red"}\n')
    table.write_text("id,start,end\na.film,1,2\n")
    os.rename(index, forbidden / "index")
    shutil.copytree(forbidden / "index", index)
    calls.loaded.clear()
    places = dict(films=films, forbidden=forbidden, index=index, captions=captions, table=table)
    before = archive.everything(tmp_path)
    done = search(*(argument.format(**places) for argument in arguments))
    assert done.status == 1 and len(done.errors) == 1, done
    assert str(forbidden) in done.errors[0] and "rights" in done.errors[0]
    assert not calls.loaded and not calls.cuts and archive.everything(tmp_path) == before


@pytest.mark.parametrize("place", ["file", "file/index"])
def test_index_at_a_file_is_refused_before_the_encoder_loads(search, films, calls, tmp_path, place):
    (tmp_path / "file").write_text("notes")
    done = search("index", films, f"--index={tmp_path / place}")
    assert done.status == 1 and "is not a directory" in done.errors[0] and not calls.loaded


@pytest.mark.parametrize("name", ["index.db", ".lock"])
def test_unreadable_index_is_named_before_the_encoder_loads(
    ask, films, index, calls, monkeypatch, name
):
    calls.loaded.clear()
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: path != index / name and access(path, mode)
    )
    done = ask("index", films)
    assert done.status == 1 and not calls.loaded
    assert f"{index / name} may not be read or written by this user" in done.errors[0]
