"""`index FOLDER`: what it makes, says and refuses, and what it makes anew."""

import archive
import pytest

from hlformer_jax.search import encoding
from hlformer_jax.search.index import Index


def test_index_makes_an_index_and_says_what_it_did(search, films, calls):
    done = search("index", films, "--workers=0", "--encoder=colours", "--fps=2")
    assert done.status == 0
    assert "3 indexed" in done.out and "x real time" in done.out
    assert calls.loaded == ["colours"]
    again = search("index", films, "--workers=0")
    assert "3 unchanged" in again.out and calls.loaded == ["colours"] * 2
    assert Index.open(films / ".hlformer-search").manifest.fps == 2


def test_without_an_encoder_the_default_is_loaded(index, calls):
    assert calls.loaded == [encoding.DEFAULT]


def test_a_damaged_manifest_is_told_and_made_anew_without_decoding(search, films, index, calls):
    for name in ("manifest.json", "manifest.previous.json"):
        (index / name).write_text("{")
    told = search("status", f"--index={index}")
    assert told.status == 0 and "videos    3," in told.out and len(told.errors) == 1
    seen, calls.loaded[:] = calls.encoder.seen, []
    done = search("index", films, f"--index={index}", "--workers=0")
    assert done.status == 0 and "3 unchanged" in done.out and calls.encoder.seen == seen
    assert "manifest.json is damaged" in done.errors[0]
    assert calls.loaded == [encoding.DEFAULT]  # that of the index
    assert not search("status", f"--index={index}").errors


def test_another_encoder_is_refused_with_what_to_do(search, films, index, calls):
    calls.encoder = archive.Encoder("0" * 64)
    done = search("index", films, f"--index={index}", "--encoder=other")
    assert done.status == 1 and "give --encoder=colours, or a new --index" in done.errors[0]
    done = search("query", "red", f"--index={index}")
    assert done.status == 1 and "another fingerprint" in done.errors[0]


def test_another_folder_is_refused_unless_the_root_is_moved(search, films, index, tmp_path):
    films.rename(tmp_path / "elsewhere")
    for given in (tmp_path / "elsewhere", tmp_path):
        done = search("index", given, f"--index={index}", "--workers=0")
        assert done.status == 1 and "--move-root" in done.errors[0]
    offline = search("query", "red", f"--index={index}")
    assert offline.status == 0 and "--move-root" in offline.errors[0]
    moved = search(
        "index", tmp_path / "elsewhere", f"--index={index}", "--workers=0", "--move-root"
    )
    assert moved.status == 0 and "3 unchanged" in moved.out
    assert not search("query", "red", f"--index={index}").errors


@pytest.mark.parametrize("made", [False, True])
def test_what_fails_leaves_nothing_and_touches_nothing(search, films, tmp_path, made):
    empty, place = tmp_path / "empty", tmp_path / "index"
    empty.mkdir()
    if made:
        place.mkdir()
    cases = [
        ([empty], "holds no video that FFmpeg reads"),
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
def test_a_directory_of_others_is_refused_whatever_is_wrong_besides(
    search, films, tmp_path, folder, monkeypatch
):
    (tmp_path / "empty").mkdir()
    project = tmp_path / "project"
    (project / "videos").mkdir(parents=True)
    for name in (".env.local", "videos/.gitlab-ci.yml", "videos/a.npz", "manifest.json"):
        (project / name).write_text("{}")
    before = archive.everything(project)
    given = films if folder == "films" else tmp_path / "empty"
    done = search("index", given, f"--index={project}", "--workers=0")
    assert done.status == 1 and "holds other things" in done.errors[0]
    monkeypatch.chdir(project)
    assert search("index", "videos", "--index=.", "--workers=0").status == 1
    assert archive.everything(project) == before


def test_offline_videos_are_kept_until_they_are_pruned(search, films, index, tmp_path, calls):
    (films / "trips").rename(tmp_path / "away")
    done = search("index", films, f"--index={index}", "--workers=0")
    assert done.status == 0 and "1 offline" in done.out
    assert "offline   1" in search("status", f"--index={index}").out
    listed = search("prune", f"--index={index}")
    assert listed.status == 0 and "trips/c.film" in listed.out and "--yes" in listed.out
    seen = calls.encoder.seen
    (tmp_path / "away").rename(films / "trips")
    assert "3 unchanged" in search("index", films, f"--index={index}", "--workers=0").out
    assert calls.encoder.seen == seen
    (films / "trips" / "c.film").unlink()
    assert "dropped 1 videos, 2" in search("prune", f"--index={index}", "--yes").out
    assert len(list((index / "videos").iterdir())) == 2
    assert search("prune", f"--index={index}", "--yes").status == 0
    films.rename(tmp_path / "unmounted")
    refused = search("prune", f"--index={index}", "--yes")
    assert refused.status == 1 and len(list((index / "videos").iterdir())) == 2
