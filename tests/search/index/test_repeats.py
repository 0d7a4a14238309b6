"""Consecutive frames with equal embeddings share a row, which changes no result."""

import archive
import numpy as np
import pytest

from hlformer_jax.errors import SearchError
from hlformer_jax.search.index import Index, database, embeddings
from hlformer_jax.search.index.embeddings import Repeats
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.signals import rankers

COLOURS = list(archive.COLOURS.values())


def still_films(folder):
    """Write films of still scenes of different lengths, and one without."""
    generator = np.random.default_rng(3)
    for number in range(5):
        scenes = generator.integers(0, len(COLOURS), 6), generator.integers(1, 9, 6)
        frames = [COLOURS[c] for c, count in zip(*scenes, strict=True) for _ in range(count)]
        archive.film(folder / f"{number}.film", frames)
    archive.random_film(folder / "moving.film", 30)
    return folder


@pytest.fixture(scope="module")
def indexes(tmp_path_factory):
    """An index whose rows are shared, and one with a row for each frame."""

    def find(times, vectors):
        return Repeats(np.ones(len(times), np.int64), times)

    folder = tmp_path_factory.mktemp("repeats")
    films = still_films(folder / "films")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embeddings.Repeats, "find", find)
        full = archive.indexed(folder / "full", films)
    return archive.indexed(folder / "index", films), full


def row_count(index):
    return index.frames(list(index.records())).matrix.shape[0]


def test_still_frames_save_rows_and_change_no_array(indexes):
    index, full = indexes
    assert row_count(index) < row_count(full) / 2
    for content in index.contents():
        arrays, expected = index.read(content), full.read(content)
        np.testing.assert_array_equal(arrays.times, expected.times)
        np.testing.assert_array_equal(arrays.vectors, expected.vectors)
    summary, expected = index.summary(), full.summary()
    assert summary["frames"] == expected["frames"] and expected["still"] == 0
    assert summary["still"] == summary["frames"] - row_count(index)
    assert summary["bytes"] == index.embeddings.size(row_count(index))
    assert index.verify() == {}


@pytest.mark.parametrize("name", list(rankers.RANKERS))
def test_rankers_count_each_frame(indexes, name):
    scores = []
    for index in indexes:
        records = list(index.records().values())
        ranker = rankers.UntrainedRanker(name, index, records, archive.Encoder(), normalise=True)
        query = ranker.encode(archive.Encoder(), "red green")
        queries = np.stack([query, ranker.encode(archive.Encoder(), "blue")])
        products = [ranker.products(place, queries) for place in range(len(records))]
        scores.append((ranker.count, ranker.scores(query), ranker.sample(queries), *products))
    for shared, full in zip(*scores, strict=True):
        np.testing.assert_allclose(shared, full, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("ranker", "query"),
    [
        ("best_frame", Query("red")),
        ("top_3_frames", Query("red")),
        ("segments", Query("red")),
        ("best_frame", Query("red", then=("blue",), within=20)),
        ("best_frame", Query("red", without=("green",))),
        ("best_frame", Query(like=("0.film", 7.0))),
    ],
    ids=["best", "top 3", "segments", "then", "not", "like"],
)
def test_queries_have_the_same_videos_moments_and_curves(indexes, ranker, query):
    results, expected = (archive.opened(index, ranker=ranker).query(query) for index in indexes)
    assert [result.video for result in results] == [result.video for result in expected]
    for result, unshared in zip(results, expected, strict=True):
        assert result.score == pytest.approx(unshared.score, abs=1e-6)
        np.testing.assert_array_equal(result.times, unshared.times)
        np.testing.assert_allclose(result.scores, unshared.scores, rtol=0, atol=1e-6)
        assert [moment[:3] for moment in result.moments] == [
            moment[:3] for moment in unshared.moments
        ]


def test_rows_survive_compaction_until_their_content_is_gone(tmp_path):
    index = archive.indexed(tmp_path / "index", still_films(tmp_path / "films"))
    before = {content: index.read(content) for content in index.contents()}
    archive.film(index.root / "0.film", ["red"] * 4)  # other content at the same path
    index.remove([name for name in index.videos if name in ("1.film", "2.film", "moving.film")])
    archive.fill(index)
    reopened = Index.open(index.directory)
    assert reopened.select("SELECT value FROM settings WHERE name = 'generation'") != [(1,)]
    for content in set(before) & set(reopened.contents()):
        np.testing.assert_array_equal(reopened.read(content).vectors, before[content].vectors)
        np.testing.assert_array_equal(reopened.read(content).times, before[content].times)
    contents = {content for [content] in reopened.select("SELECT content FROM repeats")}
    assert contents <= set(reopened.contents()) and reopened.verify() == {}


@pytest.fixture
def older_directory(tmp_path, monkeypatch):
    """The directory of an index without videos, in the format before rows were shared."""
    films = still_films(tmp_path / "films")
    facts = archive.create(tmp_path / "current", films)._database.setting("encoder")
    settings = {"encoder": facts, "fps": 1.0, "checkpoint": b""}
    with monkeypatch.context() as patch:
        patch.setattr(database, "FORMAT", 4)
        database.Database.create(tmp_path / "older", settings, films)
    return tmp_path / "older"


def test_index_without_shared_rows_is_migrated(older_directory):
    index, encoder = Index.open(older_directory), archive.Encoder()
    archive.fill(index, encoder)
    frames = sum(record.frames for record in index.videos.values())
    assert index.every_frame and encoder.seen == frames
    assert index.summary()["still"] > 0  # equal embeddings share rows in every mode
    assert archive.opened(Index.open(older_directory)).query("red")


def test_older_index_on_a_read_only_disk_is_read(older_directory, read_only):
    before = archive.everything(older_directory)
    index = Index.open(older_directory)
    assert index.notes == [] and index.excluded == {} == index.videos
    with pytest.raises(SearchError, match="read-only: make it writable"), index.writing() as writer:
        writer.exclude("a.film", "")
    assert archive.everything(older_directory) == before


def test_damaged_index_without_shared_rows_is_restored(older_directory):
    (older_directory / "index.db").write_text("{")
    index = Index.open(older_directory)
    assert len(index.notes) == 1
    archive.fill(index)
    reopened = Index.open(older_directory)
    assert not reopened.notes and len(reopened.videos) == 6 and reopened.verify() == {}


def test_packed_times_and_counts_are_the_same_to_the_bit():
    generator = np.random.default_rng(0)
    times = np.cumsum(generator.random(500))
    vectors = np.repeat(generator.random((100, 4)), 5, axis=0).astype(np.float16)
    repeats = Repeats.find(times, vectors)
    assert list(repeats.counts) == [5] * 100 and list(repeats.firsts) == list(range(0, 500, 5))
    restored = Repeats.unpack(*repeats.pack())
    np.testing.assert_array_equal(restored.counts, repeats.counts)
    np.testing.assert_array_equal(restored.times, times)
