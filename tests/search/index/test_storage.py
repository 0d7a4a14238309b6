"""Files of embeddings: damage is named, and what stands in the place of a file stays."""

import hashlib
import io
import os
import zipfile

import archive
import numpy as np
import pytest

from hlformer_jax import search
from hlformer_jax.errors import DamagedError
from hlformer_jax.search.index import Index


def hits(directory):
    library = search.open(directory, encoder=archive.Encoder())
    return [(hit.video, hit.id, hit.score) for hit in library.query("red", k=9)]


def test_counts_that_are_not_the_file_s_leave_the_video_out_until_it_is_indexed(index):
    expected = hits(index.directory)
    content = index.videos["b.film"].content
    with index._database.transaction() as connection:
        connection.execute("UPDATE contents SET frames = 99 WHERE hash = ?", [content])
    found = archive.opened(index, ranker="best_frame").query("red", k=9)
    assert {hit.video for hit in found} == {"a.film", "trips/c.film"}
    [line] = found.warnings
    assert "not what the index says" in line
    assert len(Index.open(index.directory).verify()) == 1
    archive.fill(Index.open(index.directory))
    assert Index.open(index.directory).verify() == {}
    assert hits(index.directory) == expected


def test_vectors_of_another_encoder_are_not_taken_for_those_of_this_one(index, tmp_path):
    content = index.videos["b.film"].content
    other = Index.create(tmp_path / "other", index.root, archive.Encoder("0" * 64))
    with other.writing() as writer:
        writer.keep(content, index.read(content), {})
    (other.directory / "videos" / f"{content}.npz").replace(index.file(content))
    with pytest.raises(DamagedError, match="not of"):
        index.read(content)


def test_any_byte_that_differs_is_damage(index):
    content = index.videos["b.film"].content
    path = index.file(content)
    whole = path.read_bytes()
    for place in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DamagedError, match="damaged"):
            index.read(content)
    path.write_bytes(whole)
    index.read(content)


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
    content = index.videos["b.film"].content
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
    vectors = index.file(index.videos["b.film"].content)
    for path in (first, vectors, *([lock] if place is _pipe else [])):
        path.unlink()
        place(path)
    assert len(hits(index.directory)) == len(whole) - 1
    archive.film(films / "new.film", ["red"] * 4)
    report, lines = archive.fill(Index.open(index.directory))
    assert (report.indexed, report.failed) == (1, 1) and any("b.film" in line for line in lines)
    assert len(hits(index.directory)) == len(whole)
    assert not vectors.is_file() or vectors.read_text() == "theirs"
