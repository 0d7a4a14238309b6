"""The index on the disk: what it stores, which folders it refuses, and concurrent writers."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import archive
import numpy as np
import processes
import pytest

from hlformer_jax.errors import QueryError, SearchError
from hlformer_jax.search.encoder import load_encoder, reload_encoder
from hlformer_jax.search.index import Index, LockedError
from hlformer_jax.search.index.directory import COPY, DATABASE, MARK
from hlformer_jax.search.index.records import EncoderFacts


def test_reopened_index_has_what_was_written(index):
    reopened = Index.open(index.directory)
    assert reopened.videos == index.videos and reopened.encoder == index.encoder
    assert [entry.video for entry in reopened.entries()] == ["a.film", "b.film", "trips/c.film"]
    entry = reopened.entries()[2]
    assert (entry.folder, entry.frames, entry.duration, entry.state) == ("trips", 18, 18, "indexed")
    assert entry.path.is_file() and len(entry.id) == 16
    content = reopened.videos["a.film"].content
    arrays = reopened.read(content)
    assert content[:16] == reopened.entries()[0].id
    assert arrays.vectors.dtype == np.float16
    colours = np.load(entry.path.parents[1] / "a.film").astype(float)
    cosines = np.sum(arrays.vectors * archive.embed(colours), axis=-1)
    np.testing.assert_allclose(cosines, 1, atol=2e-3)


def test_foreign_directory_is_refused_and_unchanged(tmp_path, films):
    for directory in (tmp_path / "project", films):
        for name in [*archive.FOREIGN, DATABASE]:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(b"{}")
        before = archive.everything(directory)
        with pytest.raises(SearchError, match="another index"):
            archive.create(directory, films)
        with pytest.raises(SearchError, match="damaged"):
            Index.open(directory)
        assert archive.everything(directory) == before


def test_unfinished_creation_counts_as_an_empty_directory(tmp_path, films):
    directory = tmp_path / "index"
    directory.mkdir()
    (directory / ".lock").touch()
    (directory / f".{MARK}.hlformer-0123456789abcdef.part").touch()
    index = archive.create(directory, films)
    assert archive.fill(index)[0].indexed == 3
    assert not list(directory.glob("*.part"))


@pytest.mark.parametrize(
    ("field", "value"), [("fingerprint", "9" * 64), ("preprocessing", "9"), ("width", 99)]
)
def test_another_encoder_is_refused_before_decoding(index, films, field, value):
    archive.film(films / "new.film", ["red"])
    encoder = archive.Encoder()
    setattr(encoder, field, value)
    with pytest.raises(SearchError, match=f"another {field}"):
        archive.fill(index, encoder)
    assert encoder.seen == 0


def test_encoder_of_the_same_name_is_refused_with_its_place(tmp_path, films):
    place = "/encoders/old/colours"
    index = archive.create(tmp_path / "index", films, places=(place,))
    with pytest.raises(SearchError) as refused:
        index.check_encoder(archive.Encoder("0" * 64))
    assert str(refused.value) == (
        f"{index.directory} was made by the encoder '{place}', and the given encoder of the same"
        f" name has another fingerprint: give encoder={place}, or a new index"
    )


PROGRAM = """
import sys, pathlib
from hlformer_jax.search.index import Index
index = Index.open(pathlib.Path(sys.argv[1]))
try:
    with index.running():
        print("runs", flush=True)
except Exception as error: print(error)
with index.writing() as writer:
    writer.drop("a.film")
"""


@pytest.mark.slow  # it takes seconds
def test_second_run_is_refused_and_short_changes_wait(index):
    command = [sys.executable, "-c", PROGRAM, str(index.directory)]
    environment = processes.environment()
    with index.running():
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        assert "another process is writing to" in done.stdout  # and the change was made
        assert index.record("a.film") is None
        with index.writing() as writer:
            writer.tag(["b.film"], ["kept"])
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
            time.sleep(0.5)
            assert process.poll() is None
            assert "b.film" in Index.open(index.directory).videos  # a reader does not wait
            assert Index.open(index.directory).tags == {}
        assert process.wait(20) == 0
        process.stdout.close()
    reopened = Index.open(index.directory)
    assert set(reopened.videos) == {"b.film", "trips/c.film"} and len(reopened.tags) == 1
    assert reopened.verify() == {}


def test_change_waits_at_most_the_given_time(index):
    second_index = Index.open(index.directory)
    with index.writing() as writer:
        writer.drop("a.film")
        with pytest.raises(LockedError, match="another process"), second_index.writing(wait=0.05):
            pass
    with second_index.writing(wait=0.05) as writer:
        writer.drop("b.film")
    assert set(Index.open(index.directory).videos) == {"trips/c.film"}


def test_full_disk_gives_one_line_and_keeps_the_file(index, tmp_path, monkeypatch):
    archive.film(index.root / "new.film", ["red"] * 4)
    monkeypatch.setattr(os, "pwrite", archive.fail_on_full_disk)
    with pytest.raises(SearchError, match="is full"):
        archive.fill(index)
    monkeypatch.undo()
    assert [e.video for e in Index.open(index.directory).entries()] == [
        "a.film", "b.film", "trips/c.film",
    ]  # fmt: skip
    assert archive.fill(index)[0].indexed == 1


def test_leftovers_of_killed_writers_are_removed(index):
    names = [COPY, f"texts/{'0' * 64}.vectors", f"packed/segments-{'0' * 32}.int8.npy"]
    paths = [index.directory / name for name in names]
    part = ".hlformer-0123456789abcdef.part"
    drafts = [path.with_name(f".{path.name}{part}") for path in paths]
    for folder in ("packed", "texts"):
        (index.directory / folder).mkdir()
    for draft in drafts:
        draft.write_bytes(b"half")
    archive.fill(index)
    assert not any(draft.exists() for draft in drafts)


HUB = "google/siglip-base-patch16-224"


@pytest.fixture
def loaded_names(monkeypatch):
    """The names by which encoders are loaded during a test."""
    names = []

    def load(name, report):
        names.append(name)
        return archive.Encoder()

    monkeypatch.setitem(sys.modules, "hlformer_jax.encoders.hub", SimpleNamespace(load=load))
    return names


def test_loaded_encoder_records_absolute_folder_or_hub_id(loaded_names, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_encoder("mine")[1] == (str(tmp_path / "mine"),)
    assert load_encoder(Path("mine"))[1] == (str(tmp_path / "mine"),)
    assert load_encoder(HUB)[1] == (HUB,)
    assert loaded_names == ["mine", "mine", HUB]


def test_first_existing_place_is_loaded_unless_one_is_given(loaded_names, tmp_path):
    missing, existing = tmp_path / "missing", tmp_path / "existing"
    existing.mkdir()

    def facts(*places):
        return EncoderFacts.from_encoder(archive.Encoder(), tuple(map(str, places)))

    for places, choice, expected in (
        ((missing, existing, HUB), None, str(existing)),
        ((missing, HUB), None, HUB),
        ((), None, "colours"),
        ((missing,), existing, str(existing)),
    ):
        reload_encoder(facts(*places), choice)
        assert loaded_names.pop() == expected and not loaded_names
    with pytest.raises(QueryError, match=f"{missing}.*encoder") as refused:
        reload_encoder(facts(missing))
    assert refused.value.field == "encoder"
    assert "--encoder" in refused.value.phrased({"encoder": "--encoder"})


def test_tags_survive_changes_of_their_videos(index, films):
    with index.writing() as writer:
        writer.tag(["a.film", "b.film"], ["Oma", " at  the sea"])
        writer.tag(["b.film"], ["OMA", "x"], ["at the sea", "never given"])
        for wrong in ("", "a\0", "x" * 101):
            with pytest.raises(SearchError, match="not a tag"):
                writer.tag(["a.film"], [wrong])

    def tags():
        entries = Index.open(index.directory).entries()
        return {entry.video: entry.tags for entry in entries if entry.tags}

    expected = {"a.film": ("Oma", "at the sea"), "b.film": ("OMA", "x")}
    assert tags() == expected
    (films / "copy.film").write_bytes((films / "a.film").read_bytes())
    (films / "b.film").rename(films / "moved.film")
    archive.fill(index)
    expected = {
        "a.film": expected["a.film"],
        "copy.film": expected["a.film"],
        "moved.film": expected["b.film"],
    }
    assert tags() == expected
    archive.film(films / "moved.film", ["white"] * 5)  # another content at the same path
    archive.fill(index)
    assert tags() == expected
    with index.writing() as writer:
        writer.forget(["copy.film", "a.film"])
    archive.fill(index)
    assert tags() == expected
    (index.directory / DATABASE).write_bytes(b"")
    assert tags() == expected
    archive.fill(Index.open(index.directory))
    assert tags() == expected and Index.open(index.directory).verify() == {}
    reopened = Index.open(index.directory)
    with reopened.writing() as writer:
        writer.tag(expected, drop=["oma", "AT THE SEA", "x"])
    assert tags() == {}
