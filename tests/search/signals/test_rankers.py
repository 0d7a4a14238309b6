"""Rankers without training against brute force, and their intervals."""

import itertools
import math

import archive
import numpy as np
import pytest
import pywt
from scipy.signal import find_peaks

from hlformer_jax.errors import DamagedError, QueryError
from hlformer_jax.retrieval import segments as intervals
from hlformer_jax.retrieval.segments import segments
from hlformer_jax.search.index import Index, packed
from hlformer_jax.search.signals import rankers


@pytest.fixture
def films(tmp_path):
    for i in range(7):  # the first has one frame
        archive.random_film(tmp_path / "films" / f"{i}.film", 1 + 9 * i, seed=i)
    return tmp_path / "films"


def pooled(products, name):
    """Return the score of a video from the products of its rows."""
    return np.mean(sorted(products, reverse=True)[: 3 if name == "top_3_frames" else 1])


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("name", rankers.RANKERS)
def test_scores_agree_with_brute_force(index, records, name, normalise, monkeypatch):
    monkeypatch.setattr(packed, "ROWS_AT_ONCE", 10)
    bank = [" ".join(words) for words in itertools.product(archive.COLOURS, repeat=3)][:100]
    monkeypatch.setattr(rankers, "BANK", tuple(bank))
    ranker = rankers.UntrainedRanker(name, index, records, archive.Encoder(), normalise)
    query = ranker.encode(archive.Encoder(), "red yellow").astype(np.float64)
    scores = ranker.scores(query.astype(np.float32))
    bank_vectors = archive.Encoder().encode_texts(bank).astype(np.float64)
    for i, record in enumerate(records):
        arrays = index.read(record.content)
        rows, expected_over_time = arrays.vectors, arrays.vectors.astype(np.float64) @ query
        if name == "segments":
            spans, rows = segments(arrays.vectors, arrays.times)
            for frame, time in enumerate(arrays.times):
                [holder] = [j for j, (a, b) in enumerate(spans) if a <= time < b]
                expected_over_time[frame] = (rows[holder] @ query + expected_over_time[frame]) / 2
        best = pooled(rows.astype(np.float64) @ query, name)
        if normalise:
            bank_scores = [pooled(rows @ vector, name) for vector in bank_vectors]
            bias = 0.75 * np.mean(sorted(bank_scores)[-64:])
            best, expected_over_time = best - bias, expected_over_time - bias
        np.testing.assert_allclose(scores[i], best, atol=1e-6)
        scores_over_time = ranker.over_time(i, arrays, query.astype(np.float32))
        np.testing.assert_allclose(scores_over_time, expected_over_time, atol=1e-6)


def test_biases_are_computed_once_for_a_bank(index, records, monkeypatch):
    text_counts = []

    class Encoder(archive.Encoder):
        def encode_texts(self, texts):
            text_counts.append(len(texts))
            return super().encode_texts(texts)

    def build():
        return rankers.UntrainedRanker("best_frame", index, records, Encoder(), normalise=True)

    query = build().encode(archive.Encoder(), "red")
    assert text_counts == [len(rankers.BANK)] and len(set(rankers.BANK)) == 256
    first = build().scores(query)
    for path in [*(index.directory / "packed").glob("bias*"), *index.directory.rglob("bank*")]:
        assert len(text_counts) == 1  # damaged biases need only the stored bank
        path.write_bytes(b"damaged" * 99)
        np.testing.assert_array_equal(build().scores(query), first)
    next((index.directory / "packed").glob("bias*")).unlink()
    np.testing.assert_array_equal(build().scores(query), first)
    monkeypatch.setattr(rankers, "BANK", ("red", "blue"))
    other_scores = build().scores(query)
    assert len(text_counts) == 3 and not np.allclose(other_scores, first)
    assert not packed.find_damaged(index.directory)


def test_intervals_are_computed_once_and_again_for_other_videos(index, records, monkeypatch):
    first = rankers.UntrainedRanker("segments", index, records)
    query = first.encode(archive.Encoder(), "red")
    with monkeypatch.context() as patch:
        patch.setattr(intervals, "segments", None)  # read from their file
        loaded = rankers.UntrainedRanker("segments", index, records)
    np.testing.assert_array_equal(loaded.scores(query), first.scores(query))
    fewer = rankers.UntrainedRanker("segments", index, records[:3])
    np.testing.assert_array_equal(fewer.scores(query), first.scores(query)[:3])
    assert len(packed.list_files(index.directory, "segments-")) == 2  # of the last index alone


def test_damaged_video_is_named(index, records):
    name = next(name for name, record in index.videos.items() if record == records[2])
    archive.damage(index, name)
    for ranker in ("segments", "best_frame"):
        with pytest.raises(DamagedError, match=name) as damaged:
            rankers.UntrainedRanker(ranker, Index.open(index.directory), records)
        assert list(damaged.value.contents) == [records[2].content]
    assert not packed.list_files(index.directory)


def test_unknown_ranker_is_refused(index, records):
    with pytest.raises(QueryError, match="'segments'") as refused:
        rankers.UntrainedRanker("segment", index, records)
    assert refused.value.field == "ranker" and refused.value.allowed == tuple(rankers.RANKERS)


@pytest.mark.parametrize("name", ["best_frame", "segments"])
def test_quantised_search_agrees_with_exact_search(index, records, name, large):
    ranker = rankers.UntrainedRanker(name, index, records)
    is_allowed = np.arange(len(records)) != 3
    for sentence in ("red", "blue yellow", "white"):
        query = ranker.encode(archive.Encoder(), sentence)
        exact_scores = np.where(is_allowed, ranker.scores(query), -np.inf)
        scores = ranker.best(query, 2, is_allowed)
        best = np.argsort(-exact_scores)[:2]
        np.testing.assert_array_equal(np.argsort(-scores)[:2], best)
        # The two programs for a product differ in the rounding of float32.
        np.testing.assert_allclose(scores[best], exact_scores[best], atol=1e-6)


def video(frames, seed, width=6):
    rng = np.random.default_rng(seed)
    scene = np.cumsum(rng.random(frames) < 0.15)
    vectors = rng.normal(size=(frames + 1, width))[scene] + 0.3 * rng.normal(size=(frames, width))
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def unit(vector):
    norm = math.sqrt(sum(x * x for x in vector))
    return [x / norm for x in vector] if norm else list(vector)


def by_loops(frames):
    """Return first frames and vectors of the intervals, computed as the module describes."""
    count = len(frames)
    steps = [unit(frames[t + 1] - frames[t]) for t in range(count - 1)]
    signal = []
    for t in range(count - 2):
        still = not any(steps[t]) and not any(steps[t + 1])
        signal.append(0.0 if still else 1 - float(np.dot(steps[t], steps[t + 1])))
    bounds = []
    if signal:
        depth = max(pywt.dwt_max_level(len(signal), pywt.Wavelet("db4").dec_len), 1)
        parts = [np.asarray(signal)]
        for _ in range(depth):
            parts[:1] = pywt.dwt(parts[0], "db4", "symmetric")
        for level in range(depth, 0, -1):
            alone = [p if i == level else np.zeros_like(p) for i, p in enumerate(parts)]
            wave = np.abs(pywt.waverec(alone, "db4", "symmetric"))[: len(signal)]
            height = max(wave.mean() + wave.std(), 1e-6)
            peaks = [p for p in find_peaks(wave)[0] if wave[p] > height]
            bounds.append([0, *(int(p) + 2 for p in peaks), count])
    bounds = bounds or [[0, count]]
    nodes = [
        (level, a, b)
        for level, edges in enumerate(bounds)
        for a, b in zip(edges[:-1], edges[1:], strict=True)
    ]
    means = [np.asarray(unit(frames[a:b].mean(axis=0))) for _, a, b in nodes]
    graph = np.zeros((len(nodes), len(nodes)))
    for i, (level, a, b) in enumerate(nodes):
        lengths = [end - start for node_level, start, end in nodes if node_level == level]
        for j, (other_level, c, d) in enumerate(nodes):
            cosine = max(float(means[i] @ means[j]), 0.0)
            if i == j:
                graph[i, j] = 1
            elif level == other_level:
                distance = abs((a + b) / 2 - (c + d) / 2)
                graph[i, j] = cosine + math.exp(-distance / np.mean(lengths))
            elif abs(level - other_level) == 1:
                overlap = max(min(b, d) - max(a, c), 0)
                graph[i, j] = cosine * overlap / ((b - a) + (d - c) - overlap)
    degree = graph.sum(axis=1)
    walk = graph / np.sqrt(np.outer(degree, degree))
    # The series of the inverse, up to negligible terms.
    spread, term = np.zeros((len(nodes), frames.shape[1])), np.asarray(means)
    for _ in range(150):
        spread, term = spread + 0.3 * term, 0.7 * walk @ term
    starts = sorted({a for _, a, _ in nodes})
    rows = [
        np.mean([spread[i] for i, (_, a, b) in enumerate(nodes) if a <= start < b], axis=0)
        for start in starts
    ]
    return starts, np.asarray(rows)


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 7, 15, 16, 31, 60, 131, 260])
def test_segments_agree_with_loops(frames):
    vectors = video(frames, seed=frames)
    times = np.arange(frames) * 0.5
    starts, expected_rows = by_loops(vectors)
    spans, rows = segments(vectors, times, period=0.5)
    np.testing.assert_array_equal(spans[:, 0], times[starts])
    np.testing.assert_array_equal(spans[:-1, 1], spans[1:, 0])
    assert spans[-1, 1] == times[-1] + 0.5
    np.testing.assert_allclose(rows, expected_rows, rtol=0, atol=2e-7)
    assert rows.dtype == np.float32
    if frames >= 60:
        assert len(starts) > 3


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_non_finite_frames_are_refused(number):
    vectors = video(20, seed=1)
    vectors[7, 2] = number
    with pytest.raises(ValueError):
        segments(vectors, np.arange(20.0))


def test_still_video_is_one_interval_with_its_embedding():
    frame = video(1, seed=3)
    spans, rows = segments(np.repeat(frame, 40, axis=0), np.arange(40.0))
    assert spans.tolist() == [[0.0, 40.0]]
    cosine = rows[0] @ frame[0] / np.linalg.norm(rows[0])
    np.testing.assert_allclose(cosine, 1, atol=1e-6)


def test_change_of_scene_is_a_cut_before_its_first_frame():
    scenes = video(2, seed=4, width=20)
    vectors = np.repeat(scenes, 30, axis=0)
    spans, _ = segments(vectors, np.arange(60.0))
    assert 30.0 in spans[:, 0]


def test_peaks_agree_with_scipy_also_for_equal_values():
    rng = np.random.default_rng(0)
    for _ in range(200):
        details = rng.integers(0, 4, size=rng.integers(1, 30)).astype(float)
        height = max(details.mean() + details.std(), intervals.ROUNDING)
        peaks = [p + 2 for p in find_peaks(details)[0] if details[p] > height]
        assert intervals.peak_cuts(details).tolist() == peaks


def test_very_long_video_is_segmented_in_independent_parts(monkeypatch):
    vectors = video(90, seed=5)
    monkeypatch.setattr(intervals, "MAX_GRAPH_FRAMES", 32)
    spans, rows = segments(vectors, np.arange(90.0))
    parts = [segments(vectors[i : i + 30], np.arange(30.0)) for i in (0, 30, 60)]
    np.testing.assert_array_equal(
        spans[:, 0], np.concatenate([s[:, 0] + 30 * i for i, (s, _) in enumerate(parts)])
    )
    np.testing.assert_array_equal(rows, np.concatenate([rows for _, rows in parts]))
