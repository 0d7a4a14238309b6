"""File names that are not text, or that would change the terminal."""

import json
import os
import subprocess

import archive
import processes
import pytest

from hlformer_jax.search.index import Index


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
