"""The index on the disk: what is written is read, damage is named, a second writer kept out."""

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


def test_an_index_that_is_opened_again_has_what_was_written(index):
    again = Index.open(index.directory)
    assert again.videos == index.videos and again.encoder == index.encoder
    assert [entry.video for entry in again.entries()] == ["a.film", "b.film", "trips/c.film"]
    entry = again.entries()[2]
    assert (entry.folder, entry.frames, entry.duration, entry.state) == ("trips", 18, 18, "indexed")
    assert entry.path.is_file() and len(entry.id) == 16
    content = again.videos["a.film"].content
    found = again.read(content)
    assert content[:16] == again.entries()[0].id
    assert found.vectors.dtype == np.float16
    colours = np.load(entry.path.parents[1] / "a.film").astype(float)
    cosines = np.sum(found.vectors * archive.embed(colours), axis=-1)
    np.testing.assert_allclose(cosines, 1, atol=2e-3)


def test_foreign_directory_is_refused_and_unchanged(tmp_path, films):
    for where in (tmp_path / "project", films):
        for name in [*archive.FOREIGN, DATABASE]:
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            (where / name).write_bytes(b"{}")
        before = archive.everything(where)
        with pytest.raises(SearchError, match="another index"):
            archive.create(where, films)
        with pytest.raises(SearchError, match="damaged"):
            Index.open(where)
        assert archive.everything(where) == before


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
def test_another_encoder_is_refused_before_anything_is_decoded(index, films, field, value):
    archive.film(films / "new.film", ["red"])
    encoder = archive.Encoder()
    setattr(encoder, field, value)
    with pytest.raises(SearchError, match=f"another {field}"):
        archive.fill(index, encoder)
    assert encoder.seen == 0


def test_encoders_of_one_name_are_told_apart_by_their_place(tmp_path, films):
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
            other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
            time.sleep(0.5)
            assert other.poll() is None
            assert "b.film" in Index.open(index.directory).videos  # a reader does not wait
            assert Index.open(index.directory).tags == {}
        assert other.wait(20) == 0
        other.stdout.close()
    again = Index.open(index.directory)
    assert set(again.videos) == {"b.film", "trips/c.film"} and len(again.tags) == 1
    assert again.verify() == {}


def test_change_waits_at_most_the_given_time(index):
    other = Index.open(index.directory)
    with index.writing() as writer:
        writer.drop("a.film")
        with pytest.raises(LockedError, match="another process"), other.writing(wait=0.05):
            pass
    with other.writing(wait=0.05) as writer:
        writer.drop("b.film")
    assert set(Index.open(index.directory).videos) == {"trips/c.film"}


def test_full_disk_gives_one_line_and_keeps_the_file(index, tmp_path, monkeypatch):
    archive.film(index.root / "new.film", ["red"] * 4)
    monkeypatch.setattr(os, "pwrite", _full)
    with pytest.raises(SearchError, match="is full"):
        archive.fill(index)
    monkeypatch.undo()
    assert [e.video for e in Index.open(index.directory).entries()] == [
        "a.film", "b.film", "trips/c.film",
    ]  # fmt: skip
    assert archive.fill(index)[0].indexed == 1


def _full(file, data, offset):
    raise OSError(28, "No space left on device")


def test_leftovers_of_killed_writers_are_removed(index):
    own = [COPY, f"texts/{'0' * 64}.vectors", f"packed/segments-{'0' * 32}.int8.npy"]
    paths = [index.directory / name for name in own]
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
def loaded(monkeypatch):
    """The names by which encoders were loaded."""
    names = []
    load = lambda name, report: names.append(name) or archive.Encoder()
    monkeypatch.setitem(sys.modules, "hlformer_jax.encoders.hub", SimpleNamespace(load=load))
    return names


def test_loaded_encoder_records_absolute_folder_or_hub_id(loaded, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_encoder("mine")[1] == (str(tmp_path / "mine"),)
    assert load_encoder(Path("mine"))[1] == (str(tmp_path / "mine"),)
    assert load_encoder(HUB)[1] == (HUB,)
    assert loaded == ["mine", "mine", HUB]


def test_first_existing_place_is_loaded_unless_one_is_given(loaded, tmp_path):
    gone, here = tmp_path / "gone", tmp_path / "here"
    here.mkdir()
    facts = lambda *places: EncoderFacts.from_encoder(archive.Encoder(), tuple(map(str, places)))
    for known, given, expected in (
        (facts(gone, here, HUB), None, str(here)),
        (facts(gone, HUB), None, HUB),
        (facts(), None, "colours"),
        (facts(gone), here, str(here)),
    ):
        reload_encoder(known, given)
        assert loaded.pop() == expected and not loaded
    with pytest.raises(QueryError, match=f"{gone}.*encoder") as refused:
        reload_encoder(facts(gone))
    assert refused.value.field == "encoder"
    assert "--encoder" in refused.value.phrased({"encoder": "--encoder"})


def test_tags_survive_changes_of_their_videos(index, films):
    with index.writing() as writer:
        writer.tag(["a.film", "b.film"], ["Oma", " at  the sea"])
        writer.tag(["b.film"], ["OMA", "x"], ["at the sea", "never given"])
        for wrong in ("", "a\0", "x" * 101):
            with pytest.raises(SearchError, match="not a tag"):
                writer.tag(["a.film"], [wrong])
    tags = lambda: {
        one.video: one.tags for one in Index.open(index.directory).entries() if one.tags
    }
    given = {"a.film": ("Oma", "at the sea"), "b.film": ("OMA", "x")}
    assert tags() == given
    (films / "copy.film").write_bytes((films / "a.film").read_bytes())
    (films / "b.film").rename(films / "moved.film")
    archive.fill(index)
    given = {"a.film": given["a.film"], "copy.film": given["a.film"], "moved.film": given["b.film"]}
    assert tags() == given
    archive.film(films / "moved.film", ["white"] * 5)  # another content at the same path
    archive.fill(index)
    assert tags() == given
    with index.writing() as writer:
        writer.forget(["copy.film", "a.film"])
    archive.fill(index)
    assert tags() == given
    (index.directory / DATABASE).write_bytes(b"")
    assert tags() == given
    archive.fill(Index.open(index.directory))
    assert tags() == given and Index.open(index.directory).verify() == {}
    again = Index.open(index.directory)
    with again.writing() as writer:
        writer.tag(given, drop=["oma", "AT THE SEA", "x"])
    assert tags() == {}
