"""Commands that maintain an index: status, remove, tag, verify, upload."""

import json

import archive
import pytest

from hlformer_jax.search.__main__ import main
from hlformer_jax.search.index import Index
from hlformer_jax.search.query import library


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
    assert len(done.errors) == 1 and "is not a film" in done.errors[0]
    out = ask("status").out
    assert "videos    3, 0:54 long" in out and "failed    1" in out and "is not a film" in out
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
        ("index", "{films}"), ("add", "{films}/a.film"), ("query", "red", "--export={out}.csv"),
        ("status",), ("tag", "a.film", "--add=x"), ("remove", "a.film"), ("prune", "--yes"),
        ("verify",),
        ("features", "{films}", "--captions={captions}", "--out={out}"),
        ("cut", "a.film", "--start=1", "--end=2", "--out={out}.mp4"),
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
    assert "; left: 1\n" in ask("prune", "--yes").out


def test_index_mends_unused_quantised_embeddings(ask, films, index):
    path = archive.damage(Index.open(index), "b.film", "i8")
    done = ask("verify")
    assert done.status == 1 and f"{path} is damaged: index the folder again" in done.out
    assert ask("query", "blue").status == 0 and ask("verify").status == 1
    assert ask("index", films).status == 0
    assert ask("verify").out == "8 parts are intact\n"
    path.unlink()
    assert ask("verify").status == 1
    assert ask("index", films).status == 0 and ask("verify").status == 0


def test_search_mends_its_quantised_embeddings(ask, index, large):
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


def test_tags_with_a_comma_are_quoted(ask, films):
    assert ask("tag", "a.film", "--add=sea, sand", "--add=sun").status == 0
    assert ask("tag", "a.film").out == "a.film: 'sea, sand', sun\n"


@pytest.mark.slow  # PostgreSQL starts in seconds
def test_commands_upload_to_a_store_and_query_it(tmp_path, monkeypatch, capsys, address):
    films = archive.varied_folder(tmp_path / "videos")
    archived = archive.indexed(tmp_path / "archive", films).directory
    monkeypatch.setattr(library, "reload_encoder", lambda facts, name: archive.Encoder())

    def call(*arguments):
        assert main([*arguments, f"--index={archived}"]) == 0
        return capsys.readouterr().out

    store = f"--store={address}"
    assert call("upload", store).endswith(": 15 uploaded\n")
    assert call("upload", store).endswith(": 15 already there\n")
    for flags in (["--k=4"], ["--folder=f1", "--since=2001-09-12"]):
        assert call("query", "red", store, *flags) == call("query", "red", *flags)
