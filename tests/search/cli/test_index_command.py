"""Commands that index: index, add, features, demo."""

import json
import shlex
import shutil
import sys
from types import SimpleNamespace

import archive
import pytest

from hlformer_jax.data.sources.extracted import ExtractedReader
from hlformer_jax.search.encoder import DEFAULT_ENCODER
from hlformer_jax.search.index import Index
from hlformer_jax.search.index.directory import LOCK, MARK


def test_index_creates_an_index_and_prints_counts(search, films, calls):
    done = search("index", films, "--workers=0", "--encoder=colours", "--fps=2")
    assert done.status == 0
    assert "3 indexed" in done.out and "x real time" in done.out
    assert calls.loaded == ["colours"]
    second = search("index", films, "--workers=0")
    assert "3 unchanged" in second.out and calls.loaded == ["colours"] * 2
    index = Index.open(films / ".hlformer-search")
    assert index.fps == 2 and not index.every_frame


def test_still_frames_are_counted_unless_all_are_encoded(search, tmp_path):
    archive.film(tmp_path / "films" / "a.film", ["red"] * 5 + ["blue"])
    arguments = ["index", tmp_path / "films", "--workers=0", "--encoder=colours"]
    done = search(*arguments, f"--index={tmp_path / 'shared'}")
    assert "4 of 6 frames were still and share an embedding" in done.out
    done = search(*arguments, f"--index={tmp_path / 'every'}", "--every-frame")
    assert done.status == 0 and "frames were still" not in done.out
    assert Index.open(tmp_path / "every").every_frame


def test_damaged_database_is_restored_without_decoding(ask, films, index, calls):
    (index / "index.db").write_text("{")
    status = ask("status")
    assert status.status == 0 and "videos    3," in status.out and len(status.errors) == 1
    assert calls.loaded == [DEFAULT_ENCODER]
    frames_before, calls.loaded[:] = calls.encoder.seen, []
    done = ask("index", films)
    assert done.status == 0 and "3 unchanged" in done.out and calls.encoder.seen == frames_before
    assert "index.db is damaged" in done.errors[0]
    assert calls.loaded == [DEFAULT_ENCODER]  # the encoder of the index
    assert not ask("status").errors


def test_remade_index_is_reported(ask, films, index):
    for name in ("index.db", "index.db.bak"):
        (index / name).write_text("{")
    assert ask("index").status == 1
    done = ask("index", films)
    assert done.status == 0 and "3 indexed" in done.out
    [line] = [line for line in done.errors if "index.db is damaged" in line]
    assert "it will be made anew, without tags and recognised speech" in line


def test_index_that_was_never_written_is_not_called_damaged(ask, films, index):
    for path in index.iterdir():  # as a full disk leaves them
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (MARK, LOCK):
            path.unlink()
    done = ask("index", films)
    assert done.status == 0 and "3 indexed" in done.out and not done.errors


def test_another_encoder_is_refused_with_advice(ask, films, calls):
    calls.encoder = archive.Encoder("0" * 64)
    done = ask("index", films, "--encoder=other")
    assert done.status == 1 and f"give --encoder={DEFAULT_ENCODER}, or a new" in done.errors[0]
    done = ask("query", "red")
    assert done.status == 1 and "another fingerprint" in done.errors[0]


@pytest.mark.parametrize("exists", [False, True])
def test_failed_index_leaves_no_files(search, films, tmp_path, exists):
    empty, directory = tmp_path / "empty", tmp_path / "index"
    empty.mkdir()
    if exists:
        directory.mkdir()
    cases = [
        ([empty], "has no video that FFmpeg can read"),
        ([films, "--fps=0"], "--fps=0"),
        ([films, "--workers=-1"], "--workers=-1"),
        ([films, "--checkpoint=nowhere"], "has no config.json"),
    ]
    for arguments, complaint in cases:
        done = search("index", *arguments, f"--index={directory}")
        assert done.status == 1 and complaint in done.errors[0]
        assert directory.exists() == exists and not (exists and list(directory.iterdir()))
    assert search("index", empty).status == 1 and not list(empty.iterdir())


@pytest.mark.parametrize("folder", ["films", "empty"])
def test_directory_with_other_files_is_refused(search, films, tmp_path, folder, monkeypatch):
    (tmp_path / "empty").mkdir()
    project = tmp_path / "project"
    (project / "videos").mkdir(parents=True)
    for name in (".env.local", "videos/.gitlab-ci.yml", "videos/a.npz", "manifest.json"):
        (project / name).write_text("{}")
    before = archive.everything(project)
    videos = films if folder == "films" else tmp_path / "empty"
    done = search("index", videos, f"--index={project}", "--workers=0")
    assert done.status == 1 and "has other files" in done.errors[0]
    monkeypatch.chdir(project)
    assert search("index", "videos", "--index=.", "--workers=0").status == 1
    assert archive.everything(project) == before


def test_add_indexes_only_the_named_files_and_folders(ask, films, index, calls):
    archive.film(films / "trips" / "d.film", ["white"] * 3)
    archive.film(films / "e.film", ["white", "red"])
    archive.film(films / "left out.film", ["green"])
    (films / "b.film").unlink()
    frames_before = calls.encoder.seen
    added = ask("add", films / "trips", films / "e.film")
    assert added.status == 0 and "2 indexed, 1 unchanged" in added.out
    assert calls.encoder.seen - frames_before == 1 + 2  # colours
    names = [entry.video for entry in Index.open(index).entries()]
    assert names == ["a.film", "b.film", "e.film", "trips/c.film", "trips/d.film"]


def test_link_in_the_folder_can_be_added(ask, films, index, tmp_path):
    elsewhere = archive.film(tmp_path / "elsewhere.film", ["yellow"] * 2)
    (films / "link.film").symlink_to(elsewhere)
    refused = ask("add", elsewhere)
    assert refused.status == 1 and "add the folder that contains it" in refused.errors[0]
    assert ask("add", films / "link.film").status == 0
    assert "link.film" in Index.open(index).videos


def test_folder_without_video_names_unlistable_folders(search, tmp_path):
    (tmp_path / "empty" / "unlisted").mkdir(parents=True)
    line, error = search("index", tmp_path / "empty").errors
    assert "may not be listed" in line and "has no video" in error


def test_missing_encoder_gives_one_line(search, films, tmp_path):
    folder = tmp_path / "encoder"
    folder.mkdir()
    search("index", films, f"--index={tmp_path / 'index'}", f"--encoder={folder}", "--workers=0")
    folder.rmdir()
    done = search("query", "red", f"--index={tmp_path / 'index'}")
    assert done.status == 1 and "pass its new path as --encoder" in done.errors[0]


@pytest.fixture
def captions(tmp_path):
    path = tmp_path / "captions.jsonl"
    splits = {"a.film": "train", "b.film": "val", "trips/c.film": "test"}
    lines = [{"video": video, "sentence": "red", "split": split} for video, split in splits.items()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, lines[0]]))
    return path


def test_features_indexes_a_folder_and_writes_a_data_set(search, films, captions, tmp_path):
    out = tmp_path / "features"
    flags = [f"--captions={captions}", f"--out={out}", "--fps=2", "--workers=0"]
    done = search("features", films, *flags)
    assert done.status == 0 and "3 indexed" in done.out
    assert f"{out}: captions 2 of train, 1 of val, 1 of test\n" in done.out
    assert f"--config=configs/own.py:{out}" in done.out
    assert Index.open(films / ".hlformer-search").fps == 2
    splits = ExtractedReader(out).splits
    assert {split: list(videos) for split, videos in splits.items()} == {
        "train": ["a.film"], "val": ["b.film"], "test": ["trips/c.film"],
    }  # fmt: skip


def test_wrong_captions_are_refused_before_anything_is_indexed(search, films, captions, tmp_path):
    captions.write_text("{}")
    done = search("features", films, f"--captions={captions}", f"--out={tmp_path / 'out'}")
    assert done.status == 1 and 'captions.jsonl:1: "video" is missing' in done.errors[0]
    assert not (films / ".hlformer-search").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "parts", "seed"), [([], 1, 0), (["--seed=3", "--training"], 2, 3)]
)
def test_demo_parts_have_the_same_seed(search, monkeypatch, tmp_path, flags, parts, seed):
    steps, names = [], ["make", "render_training"]

    def step(name):
        return lambda out, seed, report: steps.append((name, out, seed))

    module = SimpleNamespace(**{name: step(name) for name in names})
    monkeypatch.setitem(sys.modules, "hlformer_jax.search.demo", module)
    done = search("demo", f"--out={tmp_path}", *flags)
    assert done.status == 0 and steps == [(name, tmp_path, seed) for name in names[:parts]]
    index = shlex.quote(f"--index={tmp_path / 'index'}")
    assert f"query 'a red circle' {index}" in done.out
