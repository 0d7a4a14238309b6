"""What all commands share: a wrong input is one line, Ctrl-C no traceback, programs are kept."""

import os
import subprocess

import archive
import processes
import pytest

from hlformer_jax.search import extract
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.commands import COMMANDS
from hlformer_jax.search.index import Index


def test_programs_are_kept_for_the_next_process_by_what_compiles(search, index, kept):
    kept.clear()
    assert search("status", "--index", index).status == 0 and not kept
    assert search("query", "blue", "--index", index).status == 0 and len(kept) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["serach"], "invalid choice: 'serach'"),
        (["query", "red"], "the following arguments are required: --index"),
        (["query", "red", "--index=nowhere"], "nowhere holds no index: make one with"),
        (["query", " ", "--index={index}"], "the sentence is empty"),
        (["query", "red", "--index={index}", "--k=0"], "k is 0"),
        (["query", "red", "--index={index}", "--k=many"], "invalid int value: 'many'"),
        (["query", "red", "--index={index}", "--ranker=best_frames"], "did you mean 'best_frame'?"),
        (["query", "red", "--index={index}", "--since=soon"], "'soon' is no date"),
        (["query", "red", "--index={index}", "--until="], "'' is no date"),
        (["query", "red", "--index={index}", "--checkpoint=nowhere"], "has no config.json"),
        (["index", "nowhere"], "nowhere is no folder"),
        (["index", "{films}", "--index={index}", "--fps=2"], "has 1 frames a second and --fps=2"),
        (["index", "{films}/trips", "--index={index}"], "is the index of "),
        (["index", "{films}", "--index={index}", "--workers=-1"], "--workers=-1: give 0 or more"),
        (["index", "{films}", "--index={films}"], "holds other things"),
        (["index", "{films}", "--index=new", "--fps=-1"], "--fps=-1"),
        (["index", "{films}", "--index=new", "--fps=0"], "--fps=0"),
        (["index", "{films}", "--index=new", "--fps=nan"], "--fps=nan"),
        (["index", ""], "the path is empty"),
        (["index", "{films}", "--index="], "the path is empty"),
        (["index", "{films}", "--index={index}", "--timeout=0"], "--timeout=0: give seconds"),
        (["query", "red", "--index={index}", "--folder=tripps"], "did you mean 'trips'?"),
        (["evaluate", "--index={index}", "--captions={deep}"], "deep.jsonl:1: this is no JSON"),
        (
            ["evaluate", "--index={index}", "--captions={deep}", "--json={deep}"],
            "deep.jsonl is there already",
        ),
        (["features", "{films}", "--captions={deep}", "--out={films}"], "holds other things"),
        (["add", "nowhere.film", "--index={index}"], "is not there: give files of"),
        (["add", "{index}", "--index={index}"], "is not in"),
        (
            ["remove", "b.flim", "--index={index}"],
            "holds no video 'b.flim'; did you mean 'b.film'?",
        ),
        (["cut", "x", "--index={index}", "--start=1", "--end=2"], "holds no video 'x'"),
        (["cut", "a.film", "--index={index}", "--start=x", "--end=2"], "'x' is no time"),
        (["evaluate", "--index={index}", "--captions=nowhere"], "No such file"),
        (["upload", "--index={index}"], "give the server to upload to: --store=http"),
        (
            ["query", "red", "--index={index}", "--store=dir"],
            "--store=dir is no address of a Qdrant",
        ),
    ],
)
def test_what_is_wrong_is_one_line_and_status_1(
    search, index, films, arguments, complaint, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    deep = tmp_path / "deep.jsonl"
    deep.write_text("[" * 100_000)
    done = search(*(one.format(index=index, films=films, deep=deep) for one in arguments))
    assert deep.stat().st_size == 100_000
    assert done.status == 1 and not done.out
    assert len(done.errors) == 1 and done.errors[0].startswith("error: ")
    assert complaint in done.errors[0]


def test_ctrl_c_is_a_line_and_not_a_traceback(search, films, index, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(extract, "fingerprint", interrupted)
    archive.film(films / "new.film", ["red"])
    done = search("index", films, f"--index={index}", "--workers=0")
    assert done.status == 130 and done.errors == [
        "interrupted: run the same command again to continue"
    ]


def test_every_command_has_help():
    for name in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0


def test_as_a_person_starts_it_with_names_that_are_no_text(films, tmp_path):
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
