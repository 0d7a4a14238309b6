"""The index on the disk: what is written is read, damage is named, a second writer kept out."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import archive
import numpy as np
import processes
import pytest

from hlformer_jax.errors import DamagedError, SearchError
from hlformer_jax.search.encoder import load_encoder, reload_encoder
from hlformer_jax.search.index import storage
from hlformer_jax.search.index.database import Index
from hlformer_jax.search.index.storage import EncoderFacts


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
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: np.savez(path, times=np.asarray([{}], object)),
        lambda path: path.unlink(),
    ],
    ids=["empty", "cut off", "pickle", "missing"],
)
def test_a_damaged_file_is_named_and_made_anew(index, damage):
    before = archive.arrays(index)
    name = index.manifest.videos["b.film"].content + ".npz"
    damage(index.directory / "videos" / name)
    with pytest.raises(DamagedError, match=name):
        index.read(index.manifest.videos["b.film"].content)
    assert list(index.verify()) == [name]
    report, told = archive.fill(index)
    assert (report.indexed, report.unchanged) == (1, 2)
    assert archive.arrays(index) == before
    assert index.verify() == {}
    with np.load(index.directory / "videos" / name, allow_pickle=False) as file:
        assert set(file) == {*storage.VideoArrays._fields, "facts"}


def test_no_index_and_another_format_are_one_line_each(index, tmp_path):
    with pytest.raises(SearchError, match="no index"):
        Index.open(tmp_path / "nowhere")
    path = index.directory / storage.MANIFEST
    whole = storage.unseal(path.read_bytes())
    older = json.dumps({**whole, "format": 2}).encode()
    for text in (storage.seal({**whole, "format": 7}), older):
        path.write_bytes(text)
        before = archive.everything(index.directory)
        with pytest.raises(SearchError, match="version"):
            Index.open(index.directory)
        assert archive.everything(index.directory) == before
    with pytest.raises(SearchError, match="--fps=0"):
        archive.create(tmp_path / "new", tmp_path, fps=0)


def test_a_directory_of_others_is_refused_and_not_touched(tmp_path, films):
    for where in (tmp_path / "project", films):
        for name in [*archive.FOREIGN, storage.MANIFEST]:
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            (where / name).write_bytes(b"{}")
        before = archive.everything(where)
        with pytest.raises(SearchError, match="--index"):
            archive.create(where, films)
        with pytest.raises(SearchError, match="damaged"):
            Index.open(where)
        assert archive.everything(where) == before


def test_what_was_only_begun_is_taken_for_an_empty_directory(tmp_path, films):
    directory = tmp_path / "index"
    directory.mkdir()
    (directory / ".lock").touch()
    (directory / f".{storage.MARK}.hlformer-0123456789abcdef.part").touch()
    index = archive.create(directory, films)
    assert archive.fill(index)[0].indexed == 3
    assert not list(directory.glob("*.part"))


@pytest.mark.parametrize(
    ("field", "value"), [("fingerprint", "9" * 64), ("preprocessing", "9"), ("width", 99)]
)
def test_another_encoder_is_refused_with_what_to_do(index, field, value):
    encoder = archive.Encoder()
    setattr(encoder, field, value)
    with pytest.raises(SearchError, match=f"another {field}"):
        index.check_encoder(encoder)


def test_a_second_writer_in_another_process_is_refused_and_damages_nothing(index):
    before = archive.arrays(index)
    program = (
        "import sys, pathlib\n"
        "from hlformer_jax.search.index.database import Index, SearchError\n"
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
    monkeypatch.setattr(storage.files, "write_bytes", _full)
    with pytest.raises(SearchError, match="is full"):
        archive.fill(index)
    monkeypatch.undo()
    assert [e.video for e in Index.open(index.directory).entries()] == [
        "a.film", "b.film", "trips/c.film",
    ]  # fmt: skip
    assert archive.fill(index)[0].indexed == 1


def _full(path, arrays):
    raise OSError(28, "No space left on device")


def test_what_killed_writers_left_is_removed(index):
    own = [storage.MANIFEST, f"videos/{'0' * 64}.npz", f"packed/segments-{'0' * 32}.int8.npy"]
    paths = [index.directory / name for name in own]
    part = ".hlformer-0123456789abcdef.part"
    drafts = [path.with_name(f".{path.name}{part}") for path in paths]
    (index.directory / "packed").mkdir()
    for draft in drafts:
        draft.write_bytes(b"half")
    archive.fill(index)
    assert not any(draft.exists() for draft in drafts)
    assert (index.directory / ".lock").exists()


HUB = "google/siglip-base-patch16-224"


@pytest.fixture
def loaded(monkeypatch):
    """The names by which encoders were loaded."""
    names = []
    load = lambda name, report: names.append(name) or archive.Encoder()
    monkeypatch.setitem(sys.modules, "hlformer_jax.encoders.hub", SimpleNamespace(load=load))
    return names


def test_a_folder_is_found_again_from_anywhere_and_a_hub_id_by_itself(
    loaded, tmp_path, monkeypatch
):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_encoder("mine")[1] == (str(tmp_path / "mine"),)
    assert load_encoder(Path("mine"))[1] == (str(tmp_path / "mine"),)
    assert load_encoder(HUB)[1] == (HUB,)
    assert loaded == ["mine", "mine", HUB]


def test_the_first_place_that_is_there_is_taken_unless_another_is_named(loaded, tmp_path):
    gone, here = tmp_path / "gone", tmp_path / "here"
    here.mkdir()
    facts = lambda *places: EncoderFacts.of(archive.Encoder(), tuple(map(str, places)))
    for known, given, expected in (
        (facts(gone, here, HUB), None, str(here)),
        (facts(gone, HUB), None, HUB),
        (facts(), None, "colours"),
        (facts(gone), here, str(here)),
    ):
        reload_encoder(known, given)
        assert loaded.pop() == expected and not loaded
    with pytest.raises(SearchError, match=f"{gone}.*--encoder="):
        reload_encoder(facts(gone))


def test_tags_survive_whatever_happens_to_a_video_but_taking_them(index, films):
    with index.writing():
        index.tag(["a.film", "b.film"], ["Oma", " at  the sea"])
        index.tag(["b.film"], ["OMA", "x"], ["at the sea", "never given"])
        for wrong in ("", "a\0", "x" * 101):
            with pytest.raises(SearchError, match="no tag"):
                index.tag(["a.film"], [wrong])
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
    with index.writing():
        index.drop("copy.film")
        index.drop("a.film")
        index.discard_unused()
    archive.fill(index)
    assert tags() == given
    for name in ("manifest.json", "manifest.previous.json"):
        (index.directory / name).write_bytes(b"")
    assert tags() == given
    archive.fill(Index.open(index.directory))
    assert tags() == given and Index.open(index.directory).verify() == {}
    again = Index.open(index.directory)
    with again.writing():
        again.tag(given, drop=["oma", "AT THE SEA", "x"])
    assert tags() == {}
