"""Queries of several parts, exact against loops over all frames; match thresholds."""

import itertools

import archive
import numpy as np
import pytest

from hlformer_jax.errors import QueryError
from hlformer_jax.search.index import packed
from hlformer_jax.search.signals import composition, visual
from hlformer_jax.search.signals.composition import chain


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """An index of 17 films of random colours, of 1 to 63 frames."""
    folder = tmp_path_factory.mktemp("archive")
    films = folder / "films"
    for i in range(16):
        archive.random_film(films / f"{i:02}.film", 3 + 4 * i, seed=i)
    archive.film(films / "single.film", ["red"])
    return archive.indexed(folder / "index", films)


def brute(index, required, unwanted=(), levels=(), within=None):
    """Return the score of each video by loops over its frames, and the ends of its best sequence.

    Without a sequence, return the scores of the frames in place of the ends.
    """
    encoder, scores_by_video = archive.Encoder(), {}
    for name, record in index.videos.items():
        arrays = index.read(record.content)
        frames = arrays.vectors.astype(np.float32)
        parts = []
        for vector in encoder.encode_texts(required):
            scores = [float(frame @ vector) for frame in frames]
            for i, baseline in enumerate(levels):
                unwanted_vector = encoder.encode_texts(unwanted)[i]
                for f, frame in enumerate(frames):
                    scores[f] -= max(float(frame @ unwanted_vector) - baseline, 0)
            parts.append(scores)
        if within is None:
            scores_by_video[name] = np.mean([max(part) for part in parts]), np.mean(parts, axis=0)
            continue
        best = -np.inf, None
        for places in itertools.combinations(range(len(frames)), len(parts)):
            times = arrays.times[list(places)]
            if all(0 < b - a <= within for a, b in itertools.pairwise(times)):
                score = np.mean([parts[i][place] for i, place in enumerate(places)])
                if score > best[0]:
                    best = score, (times[0], times[-1])
        scores_by_video[name] = best
    return scores_by_video


@pytest.fixture(params=[1, 2**30], ids=["quantised", "exact"])
def library(index, monkeypatch, request):
    monkeypatch.setattr(packed, "MIN_QUANTISED_ROWS", request.param)
    monkeypatch.setattr(composition, "VIDEOS_PER_BATCH", 2)  # most videos are behind the bound
    return archive.opened(index)


@pytest.mark.parametrize(
    ("required", "options"),
    [
        (["red", "green white"], {}),
        (["red", "blue", "yellow"], {"without": "green"}),
        (["red"], {"without": ["green", "black white"]}),
        (["red"], {"then": "blue"}),
        (["red"], {"then": "blue", "within": 3}),
        pytest.param(
            ["red"], {"then": ["blue", "green"], "within": 4, "without": "white"},
            marks=pytest.mark.slow,  # it takes seconds
        ),
        (["red"], {"then": "blue", "within": 0.5}),
    ],
)  # fmt: skip
def test_scores_agree_with_a_loop_over_all_frames(library, index, required, options):

    def texts(name):
        option = options.get(name, [])
        return [option] if isinstance(option, str) else option

    following, unwanted = texts("then"), texts("without")
    ranker = library._ready()[0].visual.ranker
    levels = [
        visual.chosen_threshold(ranker, vector, None)
        for vector in (archive.Encoder().encode_texts(unwanted) if unwanted else ())
    ]
    within = options.get("within", 60) if following else None
    expected = brute(index, [*required, *following], unwanted, levels, within)
    expected = {name: result for name, result in expected.items() if np.isfinite(result[0])}
    order = sorted(expected, key=lambda name: (-round(expected[name][0], 5), name))
    for k in (1, 4, 99):
        hits = library.query(required, k=k, **options)
        assert [hit.video for hit in hits] == order[:k]
        for hit in hits:
            score, details = expected[hit.video]
            shown = min(score, 1)  # rows of float16 may be longer than 1
            assert hit.score == pytest.approx(shown, abs=1e-5) and np.isfinite(hit.scores).all()
            if within is None:
                np.testing.assert_allclose(hit.scores, np.minimum(details, 1), atol=1e-5)
            else:  # the moment goes from the first of the sequence to the last
                assert hit.moments[0].peak == details[0] and hit.moments[0].end >= details[1] + 1


def test_bounds_are_not_below_the_largest_product(library, index):
    queries = np.random.default_rng(0).normal(size=(50, archive.WIDTH)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=-1, keepdims=True)
    ranker = library._ready()[0].visual.ranker
    largest = [
        (queries @ index.read(record.content).vectors.astype(np.float32).T).max(-1)
        for record in index.records().values()
    ]
    excess = ranker.bounds(queries) - np.stack(largest, axis=-1)
    assert excess.min() >= 0 and excess.max() < 0.02


def test_each_of_several_sentences_has_its_moment(tmp_path):
    films = archive.folder(tmp_path / "films")
    archive.film(films / "d.film", ["black"] * 4 + ["red"] * 2 + ["black"] * 4 + ["blue"] * 3)
    index = archive.indexed(tmp_path / "index", films)
    library = archive.opened(index)
    hit = library.query(["blue", "red"])[0]
    assert hit.video == "d.film" and [m[:2] for m in hit.moments[:2]] == [(10, 13), (4, 6)]
    first = library.query("red", then="blue")[0]
    assert first.video == "d.film" and first.moments[0][:2] == (4, 11)
    assert library.query("red", then="blue", within=2)[0].score < first.score
    archive.film(films / "r.film", ["red"])
    archive.fill(index)
    hit = archive.opened(index).query(like=("r.film", 0), then="blue")[0]
    assert hit.video == "d.film" and hit.moments[0][:2] == (4, 11)


@pytest.mark.parametrize("probable", [True, False])
def test_text_that_no_video_shows_has_no_good_match(tmp_path, probable, monkeypatch):
    films = tmp_path / "films"
    for i in range(12):  # grey and black scenes; red in one of them
        rows = np.random.default_rng(i).normal(90, 6, size=(90, 3))
        rows[30:33] = (255, 0, 0) if i == 3 else rows[30:33]
        archive.film(films / f"{i:02}.film", rows.clip(0, 255))
    index = archive.indexed(tmp_path / "index", films)
    encoder = archive.Encoder(probable=probable)

    def probability(cosine):  # 0.01 at a cosine of 0.82, more than between grey and red
        return 1 / (1 + np.exp(-(60 * cosine - 54)))

    if probable:
        monkeypatch.setattr(encoder, "probability", probability)
    library = archive.opened(index, encoder=encoder)
    hits = library.query("red", k=12)
    assert hits.good and [hit.video for hit in hits if hit.is_match] == ["03.film"]
    absent = library.query("blue", k=12)
    assert len(absent) == 12 and not absent.good and not any(hit.is_match for hit in absent)


def test_queries_with_parts_search_only_frames(index):
    for options in ({"ranker": "segments"}, {"ranker": "top_3_frames"}):
        library = archive.opened(index, **options)
        with pytest.raises(QueryError) as refused:
            library.query("red", then="blue")
        assert refused.value.field == "ranker"
        assert library.query("red").good in (True, False)


def test_gap_of_a_sequence_includes_its_longest_length():
    times = np.arange(100) / 10
    parts = np.zeros((2, 100), np.float32)
    assert np.isfinite(chain(parts, times, within=0.1)[0][:-1]).all()


class Products:
    """A ranker of three contents of one frame, whose products do not depend on the query."""

    values = np.asarray([0.9, 0.5, 0.1], np.float32)

    def bounds(self, required):
        return np.tile(self.values, (len(required), 1))

    def products(self, content, queries):
        return np.full((len(queries), 1), self.values[content])


def test_only_contents_that_pass_the_filters_are_searched(monkeypatch):
    monkeypatch.setattr(composition, "VIDEOS_PER_BATCH", 1)
    required, nothing = np.ones((2, 3), np.float32), np.ones((0, 3), np.float32)
    query = composition.ComposedQuery(Products(), None, required, nothing, np.ones(0), None)
    scores = query.best(1, np.asarray([False, True, True]))
    np.testing.assert_array_equal(scores, np.asarray([-np.inf, 0.5, -np.inf], np.float32))
