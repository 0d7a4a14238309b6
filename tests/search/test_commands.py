"""The command line: what it prints, what it refuses, in one line and without a traceback."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import archive
import processes
import pytest

from hlformer_jax.search import encoding, extract, rankers
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.commands import COMMANDS, evaluate
from hlformer_jax.search.commands import options as shared
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.index import Index


@pytest.fixture
def films(tmp_path):
    return archive.folder(tmp_path / "my films")


@pytest.fixture
def calls(monkeypatch):
    """The fakes in the place of the packages that the extra brings; what they were asked."""
    seen = SimpleNamespace(encoder=archive.Encoder(), loaded=[], cuts=[], served=[])

    def load(name, tell):
        seen.loaded.append(name)
        return seen.encoder

    modules = {
        "encoders": SimpleNamespace(load=load),
        "video": SimpleNamespace(**archive.VIDEO._asdict(), cut=lambda *a: seen.cuts.append(a)),
        "search.page.server": SimpleNamespace(serve=lambda *a: seen.served.append(a)),
    }
    monkeypatch.setattr(encoding, "extra", modules.__getitem__)
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


def test_index_makes_an_index_and_says_what_it_did(search, films, calls):
    done = search("index", films, "--workers=0", "--encoder=colours", "--fps=2")
    assert done.status == 0
    assert "3 indexed" in done.out and "x real time" in done.out
    assert calls.loaded == ["colours"]
    again = search("index", films, "--workers=0")
    assert "3 unchanged" in again.out and calls.loaded == ["colours"] * 2
    assert Index.open(films / ".hlformer-search").manifest.fps == 2


def test_programs_are_kept_for_the_next_process_by_what_compiles(search, index, kept):
    kept.clear()
    assert search("status", "--index", index).status == 0 and not kept
    assert search("query", "blue", "--index", index).status == 0 and len(kept) == 1


def test_without_an_encoder_the_default_is_loaded(index, calls):
    assert calls.loaded == [encoding.DEFAULT]


def test_query_prints_a_table_with_rank_score_moment_and_file(search, index):
    done = search("query", "blue", f"--index={index}", "--k=2", "--ranker=best_frame")
    lines = done.out.splitlines()
    assert lines[0].split() == ["rank", "score", "moment", "file"]
    assert lines[1].split() == ["1", "1.000", "0:10–0:14", "trips/c.film"]
    assert len(lines) == 3 and not done.errors


def test_query_json_is_exactly_the_list_that_programs_read(search, index):
    done = search("query", "red", f"--index={index}", "--json", "--ranker=best_frame")
    hits = json.loads(done.out)
    assert [set(hit) for hit in hits] == [{"video", "score", "moments"}] * 3
    assert hits[0]["video"] == "a.film"
    assert all(set(m) == {"start", "end", "peak", "score"} for h in hits for m in h["moments"])
    first = hits[0]["moments"][0]
    assert (first["start"], first["end"], first["peak"]) == (5, 8, 6)
    assert hits == sorted(hits, key=lambda hit: -hit["score"])


def test_filters_reach_the_library(search, index):
    done = search("query", "red", f"--index={index}", "--json", "--folder=trips")
    assert [hit["video"] for hit in json.loads(done.out)] == ["trips/c.film"]
    assert (
        json.loads(search("query", "red", f"--index={index}", "--json", "--until=1999-01-01").out)
        == []
    )
    assert (
        "nothing was found" in search("query", "red", f"--index={index}", "--since=2999-01-01").out
    )


def test_status_lists_what_failed_and_why(search, films, index):
    (films / "bad\nname.film").write_bytes(b"broken")
    done = search("index", films, f"--index={index}", "--workers=0")
    assert done.status == 0 and "1 failed" in done.out
    assert len(done.errors) == 1 and "is no film" in done.errors[0]
    out = search("status", f"--index={index}").out
    assert "videos    3, 0:54 long" in out and "failed    1" in out and "is no film" in out
    status = json.loads(search("status", f"--index={index}", "--json").out)
    assert status["videos"] == 3 and status["failures"][0]["video"] == "bad\nname.film"
    retried = search("index", films, f"--index={index}", "--workers=0", "--retry")
    assert "1 failed" in retried.out
    skipped = search("index", films, f"--index={index}", "--workers=0")
    assert "1 failed before" in skipped.out and not skipped.errors


def test_what_is_removed_stays_out_until_it_is_added(search, films, index):
    identity = Index.open(index).entries()[1].id
    assert search("remove", identity, films / "a.film", f"--index={index}").status == 0
    assert (films / "a.film").exists()
    assert [entry.video for entry in Index.open(index).entries()] == ["trips/c.film"]
    assert len(list((index / "videos").iterdir())) == 1
    search("index", films, f"--index={index}", "--workers=0")
    assert len(Index.open(index).entries()) == 1
    assert "removed   2" in search("status", f"--index={index}").out
    assert search("add", films / "a.film", f"--index={index}", "--workers=0").status == 0
    assert len(Index.open(index).entries()) == 2
    search("add", films, f"--index={index}", "--workers=0")
    assert len(Index.open(index).entries()) == 3


def test_verify_names_what_is_damaged_and_index_makes_it_anew(search, films, index):
    assert search("verify", f"--index={index}").out == "3 files are whole\n"
    path = next((index / "videos").iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    done = search("verify", f"--index={index}")
    assert done.status == 1 and path.name in done.out and "1 of 3 files" in done.errors[0]
    again = search("index", films, f"--index={index}", "--workers=0")
    assert "1 indexed, 2 unchanged" in again.out and "made anew" in again.errors[0]
    assert search("verify", f"--index={index}").status == 0


def test_a_damaged_manifest_is_told_and_made_anew_without_decoding(search, films, index, calls):
    (index / "manifest.json").write_text("{")
    assert search("status", f"--index={index}").status == 1
    seen = calls.encoder.seen
    done = search("index", films, f"--index={index}", "--workers=0")
    assert done.status == 0 and "3 found again" in done.out and calls.encoder.seen == seen
    assert "manifest.json is damaged" in done.errors[0]


def test_cut_takes_times_as_people_write_them(search, films, index, calls, tmp_path):
    out = tmp_path / "clip.mp4"
    flags = ["--start=0:05", "--end=8.5", "--margin=1", f"--out={out}", f"--index={index}"]
    assert search("cut", "a.film", *flags).status == 0
    assert calls.cuts == [(films / "a.film", 5.0, 8.5, out, 1.0)]
    wrong = search("cut", "a.film", f"--index={index}", "--start=5", "--end=0:04")
    assert wrong.errors == ["error: --end=0:04 is not after --start=5"]


def test_serve_hands_the_library_to_the_page(search, index, calls):
    assert search("serve", f"--index={index}", "--port=0", "--open").status == 0
    library, port, host, opened = calls.served[0]
    assert (library.encoder_name, port, host, opened) == ("colours", 0, "127.0.0.1", True)


def test_evaluate_reports_recalls_of_videos_and_moments(search, index, tmp_path):
    captions = tmp_path / "captions.jsonl"
    lines = [("a.film", "red", 5, 8), ("trips/c.film", "blue", 10, 14), ("b.film", "green", 0, 20)]
    keys = ("video", "sentence", "start", "end")
    captions.write_text(
        "".join(json.dumps(dict(zip(keys, line, strict=True))) + "\n" for line in lines)
    )
    out = tmp_path / "figures.json"
    done = search("evaluate", f"--index={index}", f"--captions={captions}", f"--json={out}")
    assert done.status == 0 and all(
        name in done.out for name in ("segments", "best_frame", "IoU 0.7")
    )
    figures = json.loads(out.read_text())["rankers"]
    assert set(figures) == set(rankers.ROWS)
    expected = {"R@1": 100, "R@5": 100, "IoU 0.3": 100, "IoU 0.7": 100, "SumR": 400}
    assert expected.items() <= figures["best_frame"].items()
    captions.write_text('{"video": "nowhere.film", "sentence": "red"}')
    done = search("evaluate", f"--index={index}", f"--captions={captions}")
    assert done.status == 1 and "'nowhere.film', which the index lacks" in done.errors[0]


def test_runs_are_told_apart_in_a_table():
    shown = evaluate._shown(["best_frame", "/runs/hlformer/0", "/runs/hlformer/1", "/runs/ms_sl"])
    assert shown == ["best_frame", "hlformer/0", "hlformer/1", "ms_sl"]
    assert evaluate._shown(["segments", "/runs/hlformer"]) == ["segments", "hlformer"]
    assert evaluate._shown(["segments"]) == ["segments"]


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
        (["query", "red", "--index={index}", "--checkpoint=nowhere"], "has no config.json"),
        (["index", "nowhere"], "nowhere is no folder"),
        (["index", "{films}", "--index={index}", "--fps=2"], "has 1 frames a second and --fps=2"),
        (["index", "{films}/trips", "--index={index}"], "is the index of "),
        (["index", "{films}", "--index={index}", "--workers=-1"], "--workers=-1: give 0 or more"),
        (["index", "{films}", "--index={films}"], "holds other things"),
        (["index", "{films}", "--index=new", "--fps=-1"], "--fps=-1"),
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
    done = search(*(one.format(index=index, films=films) for one in arguments))
    assert done.status == 1 and not done.out
    assert len(done.errors) == 1 and done.errors[0].startswith("error: ")
    assert complaint in done.errors[0]


def test_another_encoder_is_refused_with_what_to_do(search, films, index, calls):
    calls.encoder = archive.Encoder("0" * 64)
    done = search("index", films, f"--index={index}", "--encoder=other")
    assert done.status == 1 and "give --encoder=colours, or a new --index" in done.errors[0]
    done = search("query", "red", f"--index={index}")
    assert done.status == 1 and "another fingerprint" in done.errors[0]


def test_a_folder_that_has_moved_keeps_its_index(search, films, index, tmp_path):
    films.rename(tmp_path / "elsewhere")
    done = search("index", tmp_path / "elsewhere", f"--index={index}", "--workers=0")
    assert done.status == 0 and "3 unchanged" in done.out


def test_a_folder_without_videos_says_so(search, tmp_path):
    (tmp_path / "empty").mkdir()
    done = search("index", tmp_path / "empty", "--workers=0")
    assert done.status == 1 and "holds no video that FFmpeg reads" in done.errors[0]


def test_an_encoder_that_is_gone_is_one_line(search, films, tmp_path):
    folder = tmp_path / "encoder"
    folder.mkdir()
    search("index", films, f"--index={tmp_path / 'index'}", f"--encoder={folder}", "--workers=0")
    folder.rmdir()
    done = search("query", "red", f"--index={tmp_path / 'index'}")
    assert done.status == 1 and "say where it is by --encoder=PATH" in done.errors[0]


def test_ctrl_c_is_a_line_and_not_a_traceback(search, films, index, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(extract, "fingerprint", interrupted)
    archive.film(films / "new.film", ["red"])
    done = search("index", films, f"--index={index}", "--workers=0")
    assert done.status == 130 and done.errors == [
        "interrupted: run the same command again to continue"
    ]


def test_without_the_extra_the_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "hlformer_jax.encoders", None)

    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="safetensors")

    monkeypatch.setattr(encoding.importlib, "import_module", missing)
    with pytest.raises(SearchError, match=r'pip install "hlformer-jax\[search\]" .*no safetensors'):
        encoding.extra("encoders")


def test_times_are_written_and_read():
    assert [shared.clock(t) for t in (0, 59.9, 60, 3599, 3600, -1)] == [
        "0:00", "0:59", "1:00", "59:59", "1:00:00", "0:00",
    ]  # fmt: skip
    assert [shared.seconds(t) for t in ("5", "1:02.5", "1:00:03")] == [5, 62.5, 3603]
    for wrong in ("", "-1", "1:", ":3", "1:2:3:4", "nan", "1e3"):
        with pytest.raises(SearchError, match="is no time"):
            shared.seconds(wrong)


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
