"""Rankers without training against brute force over every video."""

import archive
import numpy as np
import pytest

from hlformer_jax.search import packed, rankers
from hlformer_jax.search.errors import DamagedError, SearchError
from hlformer_jax.search.index import Index


@pytest.fixture
def index(tmp_path):
    for i in range(7):
        archive.random_film(tmp_path / "films" / f"{i}.film", 1 + 9 * i, seed=i)
    return archive.indexed(tmp_path / "index", tmp_path / "films")


@pytest.fixture
def records(index):
    return [one for _, one in sorted(index.manifest.videos.items())]


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
    for content in (b"", b"no array", whole[:-8]):
        path.unlink()
        path.write_bytes(content)
        found = rankers.Untrained("segments", index, records)
        np.testing.assert_array_equal(found.scores(query), expected)
        np.testing.assert_array_equal(np.load(path), before)


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
    for damaged in ("", "[]", "{}", '{"key": 1}'):
        [listing] = folder.glob("*.json")
        listing.write_text(damaged)
        with pytest.raises(DamagedError, match=records[1].content):
            rankers.Untrained("best_frame", index, chosen[:2])
    packed.forget(index)
    assert not list(folder.iterdir())
