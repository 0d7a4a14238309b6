"""Rows of all videos in one matrix: packed once, taken over, made anew; widened exactly."""

import io
import os

import archive
import ml_dtypes
import numpy as np
import pytest

from hlformer_jax.search import packed, rankers
from hlformer_jax.search.errors import DamagedError


def test_every_number_of_two_bytes_is_widened_exactly():
    bits = np.arange(2**16, dtype=np.uint16)[:, None]
    target = np.empty(bits.shape, np.float32)
    half = bits[np.isfinite(bits.view(np.float16))][:, None].view(np.float16)
    np.testing.assert_array_equal(
        packed.widened(half, target[: len(half)]), half.astype(np.float32)
    )
    brain = bits[(bits & 0x7F80) != 0x7F80][:, None]  # finite ones
    np.testing.assert_array_equal(
        packed.widened(brain, target[: len(brain)]),
        brain.view(ml_dtypes.bfloat16).astype(np.float32),
    )


@pytest.fixture
def films(tmp_path):
    return archive.random_folder(tmp_path / "films")


def test_rows_are_packed_once_and_again_after_the_index_has_changed(index, records):
    ranker = rankers.Untrained("segments", index, records)
    [first] = (index.directory / "packed").iterdir()
    stamp = first.stat().st_mtime_ns
    rankers.Untrained("segments", index, records)
    assert first.stat().st_mtime_ns == stamp
    query = ranker.encode(archive.Encoder(), "red")
    fewer = rankers.Untrained("segments", index, records[:3])
    [second] = (index.directory / "packed").iterdir()
    assert second.name != first.name
    np.testing.assert_array_equal(fewer.scores(query), ranker.scores(query)[:3])


def test_where_nothing_can_be_packed_the_rows_are_held_in_memory(index, records):
    expected = rankers.Untrained("best_frame", index, records)
    [path] = (index.directory / "packed").iterdir()
    path.unlink()
    (index.directory / "packed").rmdir()
    (index.directory / "packed").write_text("in the way")
    found = rankers.Untrained("best_frame", index, records)
    query = found.encode(archive.Encoder(), "blue")
    np.testing.assert_array_equal(found.scores(query), expected.scores(query))


def test_packed_rows_of_another_form_are_made_anew(index, records):
    ranker = rankers.Untrained("segments", index, records)
    query = ranker.encode(archive.Encoder(), "blue")
    [path] = (index.directory / "packed").iterdir()
    expected, before, whole = ranker.scores(query), np.load(path), path.read_bytes()
    del ranker  # a file that a process has mapped must not shrink
    nans = before.copy()
    nans[:] = np.nan
    replaced = io.BytesIO()
    np.save(replaced, nans)
    other = bytearray(whole)
    other[-100] ^= 4
    for content in (
        b"", b"no array", whole[:-8], replaced.getvalue(), replaced.getvalue() + whole[-64:],
        bytes(other), whole[:128] + bytes(len(whole) - 128),
    ):  # fmt: skip
        path.unlink()
        path.write_bytes(content)
        found = rankers.Untrained("segments", index, records)
        np.testing.assert_array_equal(found.scores(query), expected)
        np.testing.assert_array_equal(np.load(path), before)


@pytest.fixture
def large(monkeypatch):
    """Every archive counts as a large one."""
    monkeypatch.setattr(packed, "LARGE", 1)


def test_a_large_matrix_takes_its_rows_from_the_one_before(index, records, large):
    rankers.Untrained("best_frame", index, records[:5])
    for record in records[1:5]:
        index.file(record.content).unlink()  # so: these are not read again
    chosen = [records[6], *records[1:5]]
    found = rankers.Untrained("best_frame", index, chosen)
    folder = index.directory / "packed"
    suffixes = sorted(path.name.partition(".")[2] for path in folder.iterdir())
    assert suffixes == ["int8-bounds.npy", "int8.npy", "json", "npy"]
    query = found.encode(archive.Encoder(), "red")
    whole = index.read(records[6].content).vectors.astype(np.float64) @ query
    np.testing.assert_allclose(found.scores(query)[0], whole.max(), atol=1e-6)
    [listing] = folder.glob("*.json")
    edited = listing.read_text().replace(records[1].content, records[2].content)
    for damaged in ("", "[]", "{}", '{"key": 1}', edited):
        [listing] = folder.glob("*.json")
        listing.write_text(damaged)
        with pytest.raises(DamagedError, match=records[1].content):
            rankers.Untrained("best_frame", index, chosen[:2])
    packed.forget(index)
    assert not list(folder.iterdir())


def test_damage_of_any_block_is_seen_and_named(index, records, monkeypatch):
    rankers.Untrained("segments", index, records)
    [path] = packed.own_files(index.directory)
    assert packed.damaged(index.directory) == {}
    whole = path.read_bytes()
    for place in [*range(128, len(whole), 251), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 32]) + whole[place + 1 :])
        assert list(packed.damaged(index.directory)) == [path.name]
    swapped = np.random.default_rng(0).integers(0, 256, 3 * 4096).astype(np.uint8)
    digest = packed._digest(swapped)
    assert packed._digest(np.roll(swapped, 4096)) != digest == packed._digest(swapped.copy())


def test_room_is_made_where_the_system_has_no_call_for_it(index, records, monkeypatch):
    expected = rankers.Untrained("segments", index, records)
    packed.forget(index)
    monkeypatch.delattr(os, "posix_fallocate")
    found = rankers.Untrained("segments", index, records)
    query = found.encode(archive.Encoder(), "red")
    np.testing.assert_array_equal(found.scores(query), expected.scores(query))
    assert packed.own_files(index.directory)
