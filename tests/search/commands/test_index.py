"""`index FOLDER`: what it makes, says and refuses, and what it makes anew."""

import archive

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
    (index / "manifest.json").write_text("{")
    assert search("status", f"--index={index}").status == 1
    seen = calls.encoder.seen
    done = search("index", films, f"--index={index}", "--workers=0")
    assert done.status == 0 and "3 found again" in done.out and calls.encoder.seen == seen
    assert "manifest.json is damaged" in done.errors[0]


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
