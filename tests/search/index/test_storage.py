"""What lies on the disk: what is damaged is one line, and what stands in for it loses nothing."""

import hashlib
import io
import os
import shutil
import zipfile

import archive
import numpy as np
import pytest

from hlformer_jax import search
from hlformer_jax.errors import DamagedError, SearchError
from hlformer_jax.search.index import storage
from hlformer_jax.search.index.database import Index
from hlformer_jax.search.index.storage import Stamp

DEEP = b'{"videos": ' * 100_000
DAMAGES = {
    "empty": b"", "zeros": bytes(500), "cut": b"{", "list": b"[]", "object": b"{}",
    "no text": b"\xff\xfe", "no digest": b'{"format": 3, "root": 3}', "deep": DEEP,
    "sealed, deep": b'{\n  "digest": "' + b"0" * 64 + b'",' + DEEP, "NaN": b'{"fps": NaN}',
}  # fmt: skip


def named(index):
    return {name: (one.id, one.content, one.frames) for name, one in index.manifest.videos.items()}


def hits(directory):
    library = search.open(directory, encoder=archive.Encoder())
    return [(hit.video, hit.id, hit.score) for hit in library.query("red", k=9)]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("both", [False, True])
def test_a_damaged_manifest_is_a_line_and_changes_nothing_else(index, films, damage, both):
    with index.writing():
        index.drop("b.film")
        index.manifest.excluded.add("b.film")
    expected, ranked = named(index), hits(index.directory)
    for name in (storage.MANIFEST, storage.PREVIOUS)[: 1 + both]:
        (index.directory / name).write_bytes(damage)
    again = Index.open(index.directory)
    assert named(again) == expected and hits(index.directory) == ranked
    [note] = again.notes
    assert "manifest.json is damaged" in note and "\n" not in note
    assert note in archive.opened(index).query("red").warnings
    encoder = archive.Encoder()
    archive.fill(again, encoder)
    assert encoder.seen == 0 and named(Index.open(index.directory)) == expected
    assert Index.open(index.directory).notes == []
    assert Index.open(index.directory).manifest.excluded == {"b.film"}


@pytest.mark.parametrize("lost", ["manifests", "all but vectors", "vectors too"])
def test_what_is_lost_is_made_again_of_what_is_left(index, films, lost):
    before = Index.open(index.directory).manifest
    for name in (storage.MANIFEST, storage.PREVIOUS, storage.MARK)[: 2 + (lost != "manifests")]:
        (index.directory / name).unlink(missing_ok=True)
    if lost == "vectors too":
        shutil.rmtree(index.directory / "videos")
        with pytest.raises(search.SearchError, match="no index"):
            Index.open(index.directory)
        return
    again = Index.open(index.directory)
    assert again.manifest.videos == before.videos
    assert again.manifest.key == before.key
    assert again.manifest.root == ("" if lost != "manifests" else before.root)


def test_a_manifest_before_the_last_changes_is_brought_up_to_date(index, films):
    archive.film(films / "new.film", ["white"] * 4)
    (films / "a.film").rename(films / "moved.film")
    archive.film(films / "b.film", ["blue"] * 7)
    archive.fill(index)
    expected = named(index)
    (index.directory / storage.MANIFEST).write_bytes(b"")
    encoder = archive.Encoder()
    again = Index.open(index.directory)
    archive.fill(again, encoder)
    assert encoder.seen == 0 and named(again) == expected


def edit(index, change):
    """Writes the manifest again after a change of its content, under a right digest."""
    path = index.directory / storage.MANIFEST
    content = storage.unseal(path.read_bytes())
    change(content)
    path.write_bytes(storage.seal(content))


def renamed(content, name):
    content["videos"][name] = content["videos"].pop("a.film")


RECORD = [
    ("content", "../../x"), ("size", "big"), ("size", -1), ("state", "?"), ("frames", True),
    ("frames", 0), ("intervals", 10**30), ("duration", -1.0), ("duration", 1e300), ("id", "x"),
    ("bytes", 0.5), ("digest", ""), ("reason", None), ("modified_ns", 10**40), ("more", 1),
]  # fmt: skip


SETTINGS = [
    ("fps", 0), ("fps", True), ("fps", 10**400), ("root", 3), ("excluded", [3]), ("videos", []),
    ("excluded", "a"), ("encoder", {}), ("dtype", "float64"), ("checkpoint", None),
    ("levels", []), ("levels", {"best_frame": "high"}),
]  # fmt: skip
LEVELS = [
    ("above", 10**400), ("above", "0.1"), ("false_alarms", 0), ("false_alarms", 100),
    ("captions", 0), ("frames", -1), ("frames", 0.5), ("more", 1),
]  # fmt: skip
LEVEL = {"above": 0.1, "false_alarms": 10.0, "captions": 9, "frames": 54}
NAMES = ["", ".", "/a.film", "../a.film", "a/../../b.film", "a\0b"]
WRONG = [
    *((lambda one, f=f, v=v: one["videos"]["a.film"].update({f: v})) for f, v in RECORD),
    *((lambda one, f=f, v=v: one.update({f: v})) for f, v in SETTINGS),
    *((lambda one, f=f, v=v: one.update(levels={"best_frame": LEVEL | {f: v}})) for f, v in LEVELS),
    *((lambda one, name=name: renamed(one, name)) for name in NAMES),
]


@pytest.mark.parametrize("change", WRONG, ids=map(repr, [*RECORD, *SETTINGS, *LEVELS, *NAMES]))
def test_a_record_a_setting_or_a_path_that_cannot_be_is_damage(index, change):
    edit(index, change)
    [note] = Index.open(index.directory).notes
    assert "manifest.json is damaged" in note


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_level_that_is_not_finite_is_damage(index, number):
    edit(index, lambda one: one.update(levels={"best_frame": LEVEL | {"above": "?"}}))
    path = index.directory / storage.MANIFEST
    rest = path.read_bytes().partition(b",")[2].replace(b'"?"', number.encode())
    path.write_bytes(b'{\n  "digest": "%s",%s' % (hashlib.sha256(rest).hexdigest().encode(), rest))
    [note] = Index.open(index.directory).notes
    assert f"it holds {number}" in note


def test_what_an_older_index_lacks_is_empty(index):
    edit(index, lambda one: [one.pop(name) for name in ("roots", "tags", "levels")])
    again = Index.open(index.directory)
    assert again.notes == [] and again.manifest.levels == again.manifest.tags == {}


def test_counts_that_are_not_the_file_s_leave_the_video_out_until_it_is_indexed(index):
    expected = hits(index.directory)
    edit(index, lambda content: content["videos"]["b.film"].update(frames=99))
    found = archive.opened(index, ranker="best_frame").query("red", k=9)
    assert {hit.video for hit in found} == {"a.film", "trips/c.film"}
    [line] = found.warnings
    assert "not what the manifest says" in line
    assert len(Index.open(index.directory).verify()) == 1
    archive.fill(Index.open(index.directory))
    assert Index.open(index.directory).verify() == {}
    assert hits(index.directory) == expected


def test_vectors_of_another_encoder_are_not_taken_for_those_of_this_one(index, tmp_path):
    content = index.manifest.videos["b.film"].content
    other = Index.create(tmp_path / "other", index.root, archive.Encoder("0" * 64))
    with other.writing():
        other.keep(content, index.read(content), {"b.film": Stamp(1, 2, 3)})
    (other.directory / "videos" / f"{content}.npz").replace(index.file(content))
    with pytest.raises(DamagedError, match="not of"):
        index.read(content)


def test_any_byte_that_differs_is_damage(index):
    content = index.manifest.videos["b.film"].content
    path = index.file(content)
    whole = path.read_bytes()
    for place in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DamagedError, match="damaged"):
            index.read(content)
    path.write_bytes(whole)
    index.read(content)


@pytest.mark.parametrize("theirs", ['{"name": "their page"}', '["a"]', "3"])
def test_a_manifest_of_another_program_beside_a_copied_mark_stays(index, tmp_path, theirs):
    (tmp_path / "site").mkdir()
    shutil.copy(index.directory / ".hlformer-index", tmp_path / "site")
    (tmp_path / "site" / "manifest.json").write_text(theirs)
    with pytest.raises(SearchError, match="another program"):
        archive.fill(Index.open(tmp_path / "site"))
    assert (tmp_path / "site" / "manifest.json").read_text() == theirs


def _archive(write):
    buffer = io.BytesIO()
    write(buffer)
    with zipfile.ZipFile(buffer, "a") as file:
        file.comment = bytes(64)
    return buffer.getvalue()[:-64]


def _huge(buffer):
    header = io.BytesIO()
    about = {"descr": "<f8", "fortran_order": False, "shape": (2**58,)}
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("times.npy", header.getvalue())


@pytest.mark.parametrize(
    "write",
    [
        lambda buffer: np.savez_compressed(buffer, times=np.zeros(10**6)),
        _huge,
        lambda buffer: np.savez(buffer, times=np.zeros(3), vectors=np.zeros(3)),
        lambda buffer: buffer.write(b"PK"),
    ],
    ids=["bomb", "huge", "other arrays", "no archive"],
)
def test_an_archive_with_a_right_digest_that_we_did_not_write_is_damage(index, write):
    content = index.manifest.videos["b.film"].content
    try:
        made = _archive(write)
    except zipfile.BadZipFile:
        made = b"PK"
    index.file(content).write_bytes(made + hashlib.sha256(made).hexdigest().encode())
    with pytest.raises(DamagedError, match="damaged"):
        index.read(content)


def _pipe(path):
    os.mkfifo(path)


def _link(path):
    (path.parent / "theirs").write_text("theirs")
    path.symlink_to("theirs")


@pytest.mark.parametrize("place", [_pipe, _link, os.mkdir])
def test_what_is_no_file_in_the_place_of_one_stays_and_blocks_nothing(index, films, place):
    whole = hits(index.directory)
    first, *_ = (index.directory / "packed").iterdir()
    lock = index.directory / ".lock"
    vectors = index.file(index.manifest.videos["b.film"].content)
    for path in (first, vectors, *([lock] if place is _pipe else [])):
        path.unlink()
        place(path)
    assert len(hits(index.directory)) == len(whole) - 1
    archive.film(films / "new.film", ["red"] * 4)
    report, lines = archive.fill(Index.open(index.directory))
    assert (report.indexed, report.failed) == (1, 1) and any("b.film" in line for line in lines)
    assert len(hits(index.directory)) == len(whole)
    assert not vectors.is_file() or vectors.read_text() == "theirs"
