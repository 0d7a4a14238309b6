"""File names that are not text, or that would change the terminal."""

import json
import os
import subprocess
import time

import archive
import processes
import pytest

from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest import watch
from hlformer_jax.text import printable


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
        (b"status", b"--index=no\xff"),
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
    answer = ask("query", "yellow", "--json", "--k=1")
    [hit] = json.loads(answer.out)
    assert hit["video"] == "caf\ufffd/\ufffd.film"
    texts = [done.out, *done.errors, answer.out]
    texts.append(ask("query", "yellow", "--folder=caf\ufffd").out)
    assert hit["video"] in texts[-1]
    texts += [ask("status", *flags).out for flags in ([], ["--json"])]
    assert "bad\ufffd.film" in texts[-2] and "bad\\ufffd.film" in texts[-1]
    for text in texts:
        text.encode()
        assert "\\ud" not in text
    assert ask("cut", hit["id"], "--start=1", "--end=2").out.encode()
    assert calls.cuts[0][0][0] == films / os.fsdecode(b"caf\xe9/\xff.film")
    assert ask("remove", hit["id"]).status == 0
    assert ask("query", os.fsdecode(b"red \xff")).status == 0


HOSTILE = "\x1b]0;x\x07\nerror: all is lost\u202e\u2066\x9b2J\u2028"
"""Beginning of a file name that would change a terminal."""


def are_safe(*texts):
    """Return whether texts have no characters that change a terminal except for newlines."""
    return all(printable(line) == line for text in texts for line in text.split("\n"))


def test_hostile_file_names_do_not_change_the_terminal(search, tmp_path, calls, monkeypatch):
    monkeypatch.chdir(tmp_path)
    films, disk = tmp_path / f"films{HOSTILE}", tmp_path / f"disk{HOSTILE}"
    archive.folder(films)
    archive.film(films / f"{HOSTILE}.film", ["yellow"] * 9)
    (films / f"{HOSTILE}bad.film").write_bytes(b"broken")
    (films / f"{HOSTILE}.srt").write_text(f"1\n00:00:01,000 --> 00:00:04,000\nship{HOSTILE}\n")
    (films / "b.srt").write_bytes(b"\0")
    (films / f"{HOSTILE}unlisted").mkdir()
    archive.film(disk / f"{HOSTILE}.film", ["blue"] * 3)
    flag = f"--index={tmp_path / f'index{HOSTILE}'}"

    def check(*arguments, status=0):
        done = search(*arguments, flag)
        assert done.status == status, done
        assert are_safe(done.out, *done.errors), done
        return done.out + "\n".join(done.errors)

    shown = printable(f"{HOSTILE}.film")
    for arguments in (("index", films), ("index", films, "--retry"), ("add", disk)):
        assert printable(HOSTILE) in check(*arguments)
    assert shown in check("query", "yellow") and "ship" in check("query", "ship")
    assert "[" in check("query", "yellow", "--json")
    assert printable(f"{HOSTILE}bad.film") in check("status")
    assert shown in check("tag", f"{HOSTILE}.film", "--add=x")
    assert check("query", "yellow", f"--export={HOSTILE}.csv")
    assert check("cut", f"--from={HOSTILE}.csv", f"--out={HOSTILE}")
    out = f"{HOSTILE}.mp4"
    assert printable(out) in check(
        "cut", f"{HOSTILE}.film", "--start=1", "--end=99", f"--out={out}"
    )
    check("cut", f"{HOSTILE}.flim", "--start=1", "--end=2", status=1)
    (films / f"{HOSTILE}.film").unlink()
    archive.film(films / "a.film", ["white"])
    check("cut", f"--from={HOSTILE}.csv", f"--out={HOSTILE}2", status=1)
    assert shown in check("prune")
    elsewhere = tmp_path / f"elsewhere{HOSTILE}"
    disk.rename(elsewhere)
    for command in (("query", "red"), ("verify",), ("prune", "--yes"), ("remove", "b.film")):
        check(*command)
    assert printable(f"{disk} is now {elsewhere}") in check("index", elsewhere, "--move-root")


def test_watch_prints_hostile_file_names_on_their_lines(search, index, films, monkeypatch):
    hostile = films / f"{HOSTILE}.film"

    def changes(directory, report):
        yield [str(films)]
        archive.film(hostile, ["yellow"] * 9)
        yield [str(hostile)]
        time.sleep(0.2)
        yield [str(hostile)]
        hostile.unlink()
        yield [str(hostile)]
        time.sleep(0.2)
        yield [str(hostile)]
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "watch_changes", changes)
    done = search("watch", f"--index={index}", "--settle=0.1", "--workers=0")
    shown = printable(hostile.name)
    assert f"indexed {shown} (9 s)" in done.out.splitlines(), done
    assert f"offline {shown} (kept until prune)" in done.out.splitlines()
    assert are_safe(done.out, *done.errors)
