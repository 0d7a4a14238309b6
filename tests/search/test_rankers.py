"""Rankers without training against brute force over every video."""

import archive
import numpy as np
import pytest

from hlformer_jax.search import packed, rankers
from hlformer_jax.search.errors import DamagedError, SearchError
from hlformer_jax.search.index import Index


@pytest.fixture
def films(tmp_path):
    return archive.random_folder(tmp_path / "films")


@pytest.mark.parametrize("name", rankers.ROWS)
def test_scores_are_those_of_brute_force(index, records, name, monkeypatch):
    monkeypatch.setattr(packed, "ROWS_AT_ONCE", 10)
    ranker = rankers.Untrained(name, index, records)
    query = ranker.encode(archive.Encoder(), "red yellow")
    found = ranker.scores(query)
    for i, record in enumerate(records):
        arrays = index.read(record.content)
        best, over_time = -np.inf, []
        if name == "best_frame":
            over_time = [float(np.dot(v.astype(np.float64), query)) for v in arrays.vectors]
            best = max(over_time)
        else:
            inner = [float(np.dot(v.astype(np.float64), query)) for v in arrays.segments]
            best = max(inner)
            for time, vector in zip(arrays.times, arrays.vectors, strict=True):
                [holder] = [j for j, (a, b) in enumerate(arrays.spans) if a <= time < b]
                own = float(np.dot(vector.astype(np.float64), query))
                over_time.append((inner[holder] + own) / 2)
        np.testing.assert_allclose(found[i], best, atol=1e-6)
        np.testing.assert_allclose(ranker.over_time(i, arrays, query), over_time, atol=1e-6)


def test_a_damaged_video_is_named_and_an_unknown_ranker_too(index, records):
    index.file(records[2].content).write_bytes(b"")
    with pytest.raises(DamagedError, match=records[2].content):
        rankers.Untrained("segments", Index.open(index.directory), records)
    assert not list((index.directory / "packed").iterdir())
    with pytest.raises(SearchError, match="--ranker=segment is unknown; did you mean 'segments'"):
        rankers.Untrained("segment", index, records)


@pytest.fixture
def large(monkeypatch):
    """Every archive counts as a large one."""
    monkeypatch.setattr(packed, "LARGE", 1)


@pytest.mark.parametrize("name", rankers.ROWS)
def test_the_best_of_a_large_archive_have_the_scores_of_a_small_one(index, records, name, large):
    ranker = rankers.Untrained(name, index, records)
    among = np.arange(len(records)) != 3
    for sentence in ("red", "blue yellow", "white"):
        query = ranker.encode(archive.Encoder(), sentence)
        every = np.where(among, ranker.scores(query), -np.inf)
        found = ranker.best(query, 2, among)
        best = np.argsort(-every)[:2]
        np.testing.assert_array_equal(np.argsort(-found)[:2], best)
        # Two programs for one product: rounding of float32.
        np.testing.assert_allclose(found[best], every[best], atol=1e-6)
