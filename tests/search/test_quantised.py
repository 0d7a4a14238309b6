"""Rounded rows: their bounds in float64, and what is found by them against brute force."""

import ml_dtypes
import numpy as np
import pytest

from hlformer_jax.search import packed

WIDTH = 40


def _rows(seed, count):
    """Unit vectors, among them an even one, one of a single coordinate, none and a tiny one."""
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


def test_bfloat16_is_rounded_as_everywhere():
    rows = _rows(0, 300).astype(np.float32)
    np.testing.assert_array_equal(
        packed.quantise(rows, "bfloat16").values,
        rows.astype(ml_dtypes.bfloat16).view(np.uint16),
    )


@pytest.mark.parametrize(("dtype", "largest"), [("int8", 0.02), ("bfloat16", 0.004)])
def test_no_product_is_off_by_more_than_its_bound(dtype, largest):
    rows = _rows(1, 2000)
    rounded = packed.quantise(rows, dtype)
    for seed in range(20):
        query = _query(seed)
        if seed % 2:  # the worst query for one row: along what was rounded off
            wide = packed.widened(rounded.values, np.empty(rows.shape, np.float32))
            rest = rows[seed] - wide[seed] * rounded.scale[seed].astype(np.float64)
            query = (rest / np.linalg.norm(rest)).astype(np.float32) if rest.any() else query
        off = np.abs(packed.rounded_products(rounded, query) - _exact(rows, query))
        assert np.all(off <= rounded.error * (1 + 1e-6))
    # Half a 127th of a coordinate of 1 is 0.004 for each of 40; half an ulp of bfloat16 is 2^-9.
    assert rounded.error.max() < largest


@pytest.mark.parametrize("dtype", packed.DTYPES)
@pytest.mark.parametrize("count", [1, 3, 10])
def test_the_best_are_those_of_brute_force(dtype, count, monkeypatch):
    monkeypatch.setattr(packed, "MAX_ROWS", 7)
    rows = _rows(2, 3000)
    rows[2500:2600] = rows[100:200]  # equal videos
    starts = np.arange(0, 3000, 50)
    among = np.random.default_rng(3).random(len(starts)) < 0.8
    rounded = packed.quantise(rows, dtype)
    for seed in range(10):
        query = _query(seed)
        found = packed.best(rounded, rows, starts, query, count, among)
        exact = np.where(among, np.maximum.reduceat(_exact(rows, query), starts), -np.inf)
        last = np.sort(exact)[-count]
        wanted = exact >= last
        np.testing.assert_allclose(found[wanted], exact[wanted], atol=1e-6)
        assert np.all(found[~wanted] <= exact[~wanted] + 1e-6)
        assert np.all(found[~wanted] < last)
        both = among[50:52] & among[2:4]
        np.testing.assert_array_equal(found[50:52][both], found[2:4][both])


def test_where_all_must_be_multiplied_again_nothing_is_found_by_rounding():
    rows, starts = _rows(4, 400), np.arange(0, 400, 4)
    rounded, among = packed.quantise(rows), np.ones(100, bool)
    assert packed.best(rounded, rows, starts, _query(0), 100, among) is None
    assert packed.best(rounded, rows, starts, _query(0), 90, among) is None
    assert packed.best(rounded, rows, starts, _query(0), 2, among) is not None


def test_rounded_rows_are_kept_beside_their_matrix_and_made_anew_when_damaged(tmp_path):
    path, rows = tmp_path / "rows-0123.npy", _rows(5, 1100)
    made = packed.kept(path, rows)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [
        "rows-0123.int8-bounds.npy", "rows-0123.int8.npy"
    ]  # fmt: skip
    stamps = [file.stat().st_mtime_ns for file in files]
    again = packed.kept(path, rows)
    assert [file.stat().st_mtime_ns for file in files] == stamps
    files[0].unlink()
    for found in (again, packed.kept(path, rows), packed.quantise(rows)):
        for one, other in zip(found, made, strict=True):
            np.testing.assert_array_equal(one, other)
