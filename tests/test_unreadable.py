"""Files that cannot be read are not taken for missing, damaged or foreign ones."""

import errno
import os
from pathlib import Path

import pytest

from hlformer_jax import files
from hlformer_jax.config import default
from hlformer_jax.data import prepared
from hlformer_jax.data.sources import extracted
from hlformer_jax.training import run_directory

EIO = os.strerror(errno.EIO)


@pytest.fixture
def unreadable(monkeypatch):
    """Return a function that makes files of a name unreadable: opening them is an I/O error."""

    def make_unreadable(name):
        def refusing(call):
            def refused(path, *options, **keywords):
                if Path(path).name == name:
                    raise OSError(errno.EIO, EIO, os.fspath(path))
                return call(path, *options, **keywords)

            return refused

        monkeypatch.setattr(os, "open", refusing(os.open))
        monkeypatch.setattr(Path, "read_bytes", refusing(Path.read_bytes))
        monkeypatch.setattr(Path, "read_text", refusing(Path.read_text))
        monkeypatch.setattr(os, "listdir", refusing(os.listdir))

    return make_unreadable


@pytest.mark.parametrize("name", ["index.json", "1.0.0"])
def test_unreadable_prepared_set_is_not_remade(tmp_path, unreadable, name):
    folder = tmp_path / "1.0.0"
    folder.mkdir()
    (folder / "prvr-train.array_record-00000-of-00001").write_bytes(b"rows")
    (folder / "index.json").write_text(
        '{"files": {"prvr-train.array_record-00000-of-00001": 4}}', encoding="utf-8"
    )
    assert prepared._is_complete(folder)
    assert not prepared._is_complete(tmp_path / "2.0.0")
    unreadable(name)
    with pytest.raises(OSError, match=EIO):
        prepared._is_complete(folder)


def test_unreadable_features_are_not_called_foreign(tmp_path, unreadable):
    (tmp_path / extracted.CONTENTS).write_text('{"format": 1}')
    extracted.check_place(tmp_path, overwrite=True)
    unreadable(extracted.CONTENTS)
    with pytest.raises(OSError, match=EIO):
        extracted.check_place(tmp_path, overwrite=True)


def test_unreadable_list_calls_no_own_file_foreign(tmp_path, unreadable):
    files.write_bytes(tmp_path / "table.txt", b"one", files.Replace.OWN)
    files.check_output(tmp_path / "table.txt", files.Replace.OWN)
    unreadable(files.WRITTEN)
    with pytest.raises(OSError, match=EIO):
        files.check_output(tmp_path / "table.txt", files.Replace.OWN)


def test_run_with_unlistable_checkpoints_does_not_start_over(tmp_path, monkeypatch):
    config = default()
    run_directory.claim_workdir(tmp_path, config, run_directory.UNKNOWN).close()
    (tmp_path / "checkpoints" / "newest" / "4").mkdir(parents=True)
    before = (tmp_path / "config.json").read_bytes()

    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))

    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr(os, "scandir", refuse)
    config.seed += 1
    with pytest.raises(PermissionError, match="newest"):
        run_directory.claim_workdir(tmp_path, config, run_directory.UNKNOWN)
    assert (tmp_path / "config.json").read_bytes() == before


def test_unlistable_packed_rows_are_reported(tmp_path, unreadable):
    packed = pytest.importorskip("hlformer_jax.search.index.packed")
    assert packed.find_damaged(tmp_path) == {}
    (tmp_path / "packed").mkdir()
    unreadable("packed")
    assert EIO in packed.find_damaged(tmp_path)["packed"]


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".db"])
def test_unreadable_packed_file_is_not_called_damaged(tmp_path, unreadable, suffix):
    packed = pytest.importorskip("hlformer_jax.search.index.packed")
    path = tmp_path / "packed" / f"said-{'0' * 32}{suffix}"
    path.parent.mkdir()
    path.write_bytes(b"damage")
    assert "is damaged: the next search" in packed.find_damaged(tmp_path)[path.name]
    unreadable(path.name)
    line = packed.find_damaged(tmp_path)[path.name]
    assert f"cannot be read ({EIO})" in line and "damaged" not in line


def test_unreadable_embeddings_are_not_called_damaged(tmp_path):
    archive = pytest.importorskip("archive")
    index = archive.indexed(tmp_path / "index", archive.folder(tmp_path / "films"))
    path = index.directory / "embeddings-1.i8"
    path.write_bytes(b"damage")
    assert "is damaged: index" in index.verify()[path.name]
    path.unlink()
    assert "is missing: index" in index.verify()[path.name]
    path.symlink_to("/proc/self/mem")  # reading its first byte is an I/O error
    assert f"{path.name} cannot be read (" in index.verify()[path.name]


def test_unreadable_demo_is_not_called_foreign(tmp_path, unreadable):
    demo = pytest.importorskip(
        "hlformer_jax.search.demo.making", reason="the extra search is missing"
    )
    (tmp_path / demo.DEMO_NOTE).write_text("{}")
    unreadable(demo.DEMO_NOTE)
    with pytest.raises(OSError, match=EIO):
        demo._read_note(tmp_path)


def test_cluster_machine_says_why_it_lacks_a_file(tmp_path, monkeypatch):
    cluster = pytest.importorskip("hlformer_jax.search.ingest.cluster")
    (tmp_path / "a.mp4").write_bytes(b"video")
    assert cluster._difference(tmp_path / "a.mp4", 5) == ""
    assert cluster._difference(tmp_path / "a.mp4", None) == ""
    assert cluster._difference(tmp_path / "a.mp4", 6) == "is another file"
    assert cluster._difference(tmp_path / "b.mp4", 5) == "is missing"

    def failing(path, **options):
        raise OSError(errno.EIO, EIO, str(path))

    monkeypatch.setattr(Path, "stat", failing)
    assert EIO in cluster._difference(tmp_path / "a.mp4", 5)
