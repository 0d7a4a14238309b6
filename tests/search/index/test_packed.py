"""Matrices of all rows: stored and verified files, quantised products and their error bounds."""

import io
import os

import numpy as np
import pytest

from hlformer_jax.search.index import Index, packed
from hlformer_jax.search.ingest.extract import default_workers


def test_every_float16_is_widened_exactly():
    numbers = np.arange(2**16, dtype=np.uint16).view(np.float16)[:, None]
    numbers = numbers[np.isfinite(numbers)][:, None]
    target = np.empty(numbers.shape, np.float32)
    np.testing.assert_array_equal(packed.to_float32(numbers, target), numbers.astype(np.float32))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "packed" / f"segments-{'0' * 32}.npy"


def test_derived_matrix_is_computed_once_and_after_damage(path):
    rows, calls = _rows(0, 30).astype(np.float32), []

    def make():
        calls.append(None)
        return rows

    def load():
        return packed.load_or_compute(path, rows.shape, make)

    for _ in range(2):
        np.testing.assert_array_equal(load(), rows)
    assert len(calls) == 1
    intact = path.read_bytes()
    replaced = io.BytesIO()
    np.save(replaced, np.full_like(rows, np.nan))
    flipped = bytearray(intact)
    flipped[-100] ^= 4
    for number, content in enumerate((
        b"", b"no array", intact[:-8], replaced.getvalue(), replaced.getvalue() + intact[-64:],
        bytes(flipped), intact[:128] + bytes(len(intact) - 128),
    ), 2):  # fmt: skip
        path.unlink()
        path.write_bytes(content)
        np.testing.assert_array_equal(load(), rows)
        assert len(calls) == number and path.read_bytes() == intact


def test_unwritable_matrix_stays_in_memory(path):
    path.parent.write_text("in the way")
    rows = _rows(0, 30).astype(np.float32)
    np.testing.assert_array_equal(packed.load_or_compute(path, rows.shape, lambda: rows), rows)


def test_damage_of_any_block_is_detected_and_named(path, tmp_path):
    rows = _rows(0, 300).astype(np.float32)
    packed.load_or_compute(path, rows.shape, lambda: rows)
    assert packed.list_files(tmp_path) == [path] and packed.find_damaged(tmp_path) == {}
    content = path.read_bytes()
    for offset in [*range(128, len(content), 2511), len(content) - 1]:
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 32]) + content[offset + 1 :])
        assert list(packed.find_damaged(tmp_path)) == [path.name]
    swapped = np.random.default_rng(0).integers(0, 256, 3 * 4096).astype(np.uint8)
    digest = packed._digest(swapped)
    assert packed._digest(np.roll(swapped, 4096)) != digest == packed._digest(swapped.copy())


def test_damaged_archives_and_tables_are_named(path, tmp_path):
    table, arrays = path.with_name(f"said-{'0' * 32}.db"), path.with_name(f"trained-{'0' * 32}.npz")
    path.parent.mkdir()
    packed.write_table(table, b"rows" * 99)
    np.savez(arrays, a=np.arange(99))
    assert packed.load_table(table) == b"rows" * 99 and packed.find_damaged(tmp_path) == {}
    for damaged in (table, arrays):
        intact = damaged.read_bytes()
        for content in (b"", intact[:-9], intact[:200] + b"x" + intact[201:]):
            damaged.write_bytes(content)
            assert list(packed.find_damaged(tmp_path)) == [damaged.name]
        damaged.write_bytes(intact)


def test_calls_that_macos_lacks_are_not_needed(path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert default_workers() == 2
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert default_workers() == 8
    rows = _rows(0, 30).astype(np.float32)
    packed.load_or_compute(path, rows.shape, lambda: rows)
    np.testing.assert_array_equal(packed.load_matrix(path, rows.shape, "float32"), rows)


def test_rows_of_contents_exclude_unused_rows():
    matrix = _rows(0, 40)
    starts, ends = np.asarray([3, 10, 25]), np.asarray([7, 20, 30])
    counts = np.repeat([0, 1] * 3 + [0], [3, 4, 3, 10, 5, 5, 10])
    rows = packed.ContentRows(matrix, starts, ends, counts)
    query = _query(0)
    products = _exact(matrix, query)
    expected = [products[3:7].max(), products[10:20].max(), products[25:30].max()]
    np.testing.assert_array_equal(rows.maxima(products), expected)
    np.testing.assert_array_equal(rows.maxima(np.stack([products, -products]))[0], expected)
    assert rows.total == 19
    parts = np.concatenate([matrix[3:7], matrix[10:20], matrix[25:30]])
    np.testing.assert_array_equal(rows.sample(99), parts)
    np.testing.assert_array_equal(rows.sample(4), parts[[0, 4, 9, 14]])
    contiguous = packed.ContentRows.of_counts(parts, [4, 10, 5])
    np.testing.assert_array_equal(contiguous.maxima(_exact(parts, query)), expected)


WIDTH = 40


def _rows(seed, count):
    """Return unit vectors; the first four are equal coordinates, an axis, zero and tiny."""
    rows = np.random.default_rng(seed).normal(size=(count, WIDTH))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[:4] = 0.0
    rows[0] = WIDTH**-0.5
    rows[1, 3] = -1.0
    rows[3, 5:9] = 1e-6
    return rows.astype(np.float16)


def _query(seed):
    query = np.random.default_rng((seed, 1)).normal(size=WIDTH)
    return (query / np.linalg.norm(query)).astype(np.float32)


def _exact(rows, query):
    return rows.astype(np.float64) @ query.astype(np.float64)


def test_error_in_a_thread_is_raised(large):
    with pytest.raises(ValueError, match="broadcast"):
        packed.multiply(_rows(0, 100), _query(0)[:-1])


def test_quantised_products_are_within_their_bound():
    rows = _rows(1, 2000)
    rounded = packed.quantise(rows)
    for seed in range(20):
        query = _query(seed)
        if seed % 2:  # the worst query for a row: along its rounding error
            rest = rows[seed] - rounded.values[seed] * rounded.scale[seed].astype(np.float64)
            query = (rest / np.linalg.norm(rest)).astype(np.float32) if rest.any() else query
        products, reach = packed.multiply_quantised(rounded, query)
        assert np.all(np.abs(products - _exact(rows, query)) <= reach)
        assert np.all(reach < rounded.error * 1.01 * np.linalg.norm(query) + 1e-3)
        several = packed.multiply_quantised(rounded, np.stack([_query(99), query]))
        np.testing.assert_array_equal(several[0][:, 1], products)
        np.testing.assert_array_equal(several[1][:, 1], reach)
    assert rounded.error.max() < 0.02  # half a 127th of a coordinate of 1 is 0.004 for each of 40


@pytest.mark.parametrize("count", [1, 10])
def test_best_videos_agree_with_brute_force(count, monkeypatch):
    monkeypatch.setattr(packed, "MAX_EXACT_ROWS", 7)
    rows = _rows(2, 3000)
    rows[2500:2600] = rows[100:200]  # equal videos
    starts = np.arange(0, 3000, 50)
    allowed = np.random.default_rng(3).random(len(starts)) < 0.8
    rounded = packed.quantise(rows)
    for seed in range(10):
        query = _query(seed)
        best = packed.find_best(rounded, rows, starts, query, count, allowed)
        exact = np.where(allowed, np.maximum.reduceat(_exact(rows, query), starts), -np.inf)
        last = np.sort(exact)[-count]
        is_best = exact >= last
        np.testing.assert_allclose(best[is_best], exact[is_best], atol=1e-6)
        assert np.all(best[~is_best] <= exact[~is_best] + 1e-6) and np.all(best[~is_best] < last)
        is_both_allowed = allowed[50:52] & allowed[2:4]
        np.testing.assert_array_equal(best[50:52][is_both_allowed], best[2:4][is_both_allowed])


def test_few_allowed_videos_are_all_scored_exactly():
    rows = _rows(2, 3000)
    starts = np.arange(0, 3000, 50)
    allowed = np.isin(np.arange(len(starts)), [3, 40, 59])
    for count in (3, 60):
        best = packed.find_best(packed.quantise(rows), rows, starts, _query(0), count, allowed)
        exact = np.where(allowed, np.maximum.reduceat(_exact(rows, _query(0)), starts), -np.inf)
        np.testing.assert_allclose(best, exact, atol=1e-6)


def test_find_best_needs_bounds_that_exclude_rows():
    rows, starts = _rows(4, 400), np.arange(0, 400, 4)
    rounded, allowed = packed.quantise(rows), np.ones(100, bool)
    assert packed.find_best(rounded, rows, starts, _query(0), 100, allowed) is None
    assert packed.find_best(rounded, rows, starts, _query(0), 90, allowed) is None
    assert packed.find_best(rounded, rows, starts, _query(0), 2, allowed) is not None


def test_quantised_rows_are_stored_and_recomputed_if_missing(tmp_path):
    path, rows = tmp_path / "rows-0123.npy", _rows(5, 1100)
    computed = packed.load_quantised(path, rows)
    files = sorted(tmp_path.iterdir())
    assert [file.suffixes for file in files] == [[".int8-bounds", ".npy"], [".int8", ".npy"]]
    stamps = [file.stat().st_mtime_ns for file in files]
    loaded = packed.load_quantised(path, rows)
    assert [file.stat().st_mtime_ns for file in files] == stamps
    files[0].unlink()
    for rounded in (loaded, packed.load_quantised(path, rows), packed.quantise(rows)):
        for array, expected in zip(rounded, computed, strict=True):
            np.testing.assert_array_equal(array, expected)


def test_matrix_with_a_deleted_draft_is_not_stored_in_part(index):
    def fill(matrix):
        matrix[:] = 1
        with Index.open(index.directory).running():
            pass

    path = index.directory / "packed" / f"bank-{'0' * 32}.npy"
    assert packed.write_matrix(path, (50, 50), "float32", fill).sum() == 2500
    assert list(path.parent.iterdir()) == [] and packed.find_damaged(index.directory) == {}
