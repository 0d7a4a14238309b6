"""The index on the disk: what is written is read, damage is named, a second writer kept out."""

import json
import subprocess
import sys

import archive
import numpy as np
import processes
import pytest

from hlformer_jax.search import arrays, manifest
from hlformer_jax.search.errors import DamagedError, SearchError
from hlformer_jax.search.index import Index


def test_an_index_that_is_opened_again_has_what_was_written(index):
    again = Index.open(index.directory)
    assert again.manifest == index.manifest
    assert [entry.video for entry in again.entries()] == ["a.film", "b.film", "trips/c.film"]
    entry = again.entries()[2]
    assert (entry.folder, entry.frames, entry.duration, entry.state) == ("trips", 18, 18, "indexed")
    assert entry.path.is_file() and len(entry.id) == 16
    content = again.manifest.videos["a.film"].content
    found = again.read(content)
    assert content[:16] == again.entries()[0].id
    assert found.vectors.dtype == np.float16 and found.segments.dtype == np.float32
    assert found.spans.shape == (again.manifest.videos["a.film"].intervals, 2)
    colours = np.load(entry.path.parents[1] / "a.film").astype(float)
    cosines = np.sum(found.vectors * archive.embed(colours), axis=-1)
    np.testing.assert_allclose(cosines, 1, atol=2e-3)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PK\3\4 no archive"),
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.write_bytes(path.read_bytes()[:300]),
        lambda path: path.write_bytes(_flipped(path.read_bytes())),
        lambda path: np.savez(path, times=np.asarray([{}], object)),
        lambda path: path.unlink(),
    ],
    ids=["empty", "no archive", "cut off", "beginning alone", "a bit", "pickle", "missing"],
)
def test_a_damaged_file_is_named_and_made_anew(index, damage):
    before = archive.arrays(index)
    name = index.manifest.videos["b.film"].content + ".npz"
    damage(index.directory / "videos" / name)
    with pytest.raises(DamagedError, match=f"{name} .*index the folder again"):
        index.read(index.manifest.videos["b.film"].content)
    assert list(index.verify()) == [name]
    report, told = archive.fill(index)
    assert (report.indexed, report.unchanged) == (1, 2)
    assert archive.arrays(index) == before
    assert index.verify() == {}


def _flipped(content, place=400):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_no_index_another_format_and_a_foreign_directory_are_one_line_each(index, tmp_path):
    with pytest.raises(SearchError, match="holds no index: make one with"):
        Index.open(tmp_path / "nowhere")
    path = index.directory / manifest.NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 7}))
    with pytest.raises(SearchError, match="is of format 7, this version reads 2"):
        Index.open(index.directory)
    with pytest.raises(SearchError, match="holds other things"):
        archive.create(tmp_path / "films", tmp_path)
    with pytest.raises(SearchError, match="--fps=0"):
        archive.create(tmp_path / "new", tmp_path, fps=0)


@pytest.mark.parametrize(
    ("field", "value"), [("fingerprint", "9" * 64), ("preprocessing", "9"), ("width", 99)]
)
def test_another_encoder_is_refused_with_what_to_do(index, field, value):
    encoder = archive.Encoder()
    setattr(encoder, field, value)
    with pytest.raises(
        SearchError, match=f"another {field}: give --encoder=colours, or a new --in"
    ):
        index.check_encoder(encoder)


def test_a_second_writer_in_another_process_is_refused_and_damages_nothing(index):
    before = archive.arrays(index)
    program = (
        "import sys, pathlib\n"
        "from hlformer_jax.search.index import Index, SearchError\n"
        "index = Index.open(pathlib.Path(sys.argv[1]))\n"
        "try:\n"
        "    with index.writing(): index.drop('a.film')\n"
        "except SearchError as error: print(error)\n"
    )
    command = [sys.executable, "-c", program, str(index.directory)]
    with index.writing():
        done = subprocess.run(
            command, capture_output=True, text=True, env=processes.environment(), check=True
        )
        assert "another process is writing to" in done.stdout
    assert len(Index.open(index.directory).entries()) == 3
    assert archive.arrays(index) == before
    subprocess.run(command, env=processes.environment(), check=True)
    assert len(Index.open(index.directory).entries()) == 2


def test_a_full_disk_is_one_line_and_what_was_there_stays(index, tmp_path, monkeypatch):
    archive.film(index.root / "new.film", ["red"] * 4)
    monkeypatch.setattr(arrays.files, "write_bytes", _full)
    with pytest.raises(
        SearchError, match="the disk of .* is full: make room, and the same command"
    ):
        archive.fill(index)
    monkeypatch.undo()
    assert [e.video for e in Index.open(index.directory).entries()] == [
        "a.film", "b.film", "trips/c.film",
    ]  # fmt: skip
    assert archive.fill(index)[0].indexed == 1


def _full(path, arrays):
    raise OSError(28, "No space left on device")


def test_what_killed_writers_left_is_removed(index):
    drafts = [index.directory / ".manifest.json.host.1", index.directory / "videos/.x.npz.host.1"]
    for draft in drafts:
        draft.write_bytes(b"half")
    archive.fill(index)
    assert not any(draft.exists() for draft in drafts)
    assert (index.directory / ".lock").exists()
