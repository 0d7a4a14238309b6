"""Rankers without training against brute force, their intervals, and simulated archives."""

import itertools
import json
import math

import archive
import numpy as np
import pytest
import pywt
from scipy.signal import find_peaks

from hlformer_jax.errors import DamagedError, SearchError
from hlformer_jax.retrieval import ranking
from hlformer_jax.retrieval import segments as intervals
from hlformer_jax.retrieval.segments import segments
from hlformer_jax.search import evaluation, packed, rankers
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.evaluation import REGIMES, Regime
from hlformer_jax.search.index import Index


@pytest.fixture
def films(tmp_path):
    return archive.random_folder(tmp_path / "films")


def pooled(products, name):
    """The score of a video from the products of its frames, in float64."""
    if name.startswith("best_frame"):
        return max(products)
    if name.startswith("top_3_frames"):
        return np.mean(sorted(products, reverse=True)[:3])
    windows = [min(width, len(products)) for width in (1, 3, 5)]
    return np.mean([
        max(np.mean(products[i : i + width]) for i in range(len(products) - width + 1))
        for width in windows
    ])  # fmt: skip


@pytest.mark.parametrize("name", rankers.ROWS)
def test_scores_are_those_of_brute_force(index, records, name, monkeypatch):
    monkeypatch.setattr(packed, "ROWS_AT_ONCE", 10)
    bank = [" ".join(words) for words in itertools.product(archive.COLOURS, repeat=3)][:100]
    monkeypatch.setattr(rankers, "BANK", tuple(bank))
    ranker = rankers.Untrained(name, index, records, archive.Encoder())
    query = ranker.encode(archive.Encoder(), "red yellow")
    found = ranker.scores(query)
    others = archive.Encoder().sentences(bank).astype(np.float64)
    for i, record in enumerate(records):
        arrays = index.read(record.content)
        best, over_time = -np.inf, []
        if name != "segments":
            over_time = [float(np.dot(v.astype(np.float64), query)) for v in arrays.vectors]
            best = pooled(over_time, name)
            if name.endswith("_nnn"):
                every = [pooled(list(arrays.vectors @ other), name) for other in others]
                bias = 0.75 * np.mean(sorted(every)[-64:])
                best, over_time = best - bias, [score - bias for score in over_time]
        else:
            inner = [float(np.dot(v.astype(np.float64), query)) for v in arrays.segments]
            best = max(inner)
            for time, vector in zip(arrays.times, arrays.vectors, strict=True):
                [holder] = [j for j, (a, b) in enumerate(arrays.spans) if a <= time < b]
                own = float(np.dot(vector.astype(np.float64), query))
                over_time.append((inner[holder] + own) / 2)
        np.testing.assert_allclose(found[i], best, atol=1e-6)
        np.testing.assert_allclose(ranker.over_time(i, arrays, query), over_time, atol=1e-6)


def test_biases_are_computed_once_for_an_archive_an_encoder_and_a_bank(index, records, monkeypatch):
    asked = []

    class Encoder(archive.Encoder):
        def sentences(self, texts):
            asked.append(len(texts))
            return super().sentences(texts)

    build = lambda: rankers.Untrained("best_frame_nnn", index, records, Encoder())
    query = build().encode(archive.Encoder(), "red")
    assert asked == [len(rankers.BANK)] and len(set(rankers.BANK)) == 256
    first = build().scores(query)
    for beside in [*(index.directory / "packed").glob("*nnn*"), *index.directory.rglob("bank*")]:
        assert len(asked) == 1  # biases that are lost need the bank, which is there
        beside.write_bytes(b"damaged" * 99)
        np.testing.assert_array_equal(build().scores(query), first)
    next((index.directory / "packed").glob("*nnn*")).unlink()
    np.testing.assert_array_equal(build().scores(query), first)
    monkeypatch.setattr(rankers, "BANK", ("red", "blue"))
    other = build().scores(query)
    assert len(asked) == 3 and not np.allclose(other, first)
    assert not packed.damaged(index.directory)


def test_a_damaged_video_is_named_and_an_unknown_ranker_too(index, records):
    index.file(records[2].content).write_bytes(b"")
    with pytest.raises(DamagedError, match=records[2].content):
        rankers.Untrained("segments", Index.open(index.directory), records)
    assert not list((index.directory / "packed").iterdir())
    with pytest.raises(SearchError, match="'segments'"):
        rankers.Untrained("segment", index, records)


@pytest.mark.parametrize("name", ["best_frame", "segments"])
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


def video(frames, seed, width=6):
    rng = np.random.default_rng(seed)
    scene = np.cumsum(rng.random(frames) < 0.15)
    vectors = rng.normal(size=(frames + 1, width))[scene] + 0.3 * rng.normal(size=(frames, width))
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def unit(vector):
    norm = math.sqrt(sum(x * x for x in vector))
    return [x / norm for x in vector] if norm else list(vector)


def by_loops(frames):
    """The intervals as the module describes them, word by word: first frames and vectors."""
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
        lengths = [end - start for other, start, end in nodes if other == level]
        for j, (other, c, d) in enumerate(nodes):
            cosine = max(float(means[i] @ means[j]), 0.0)
            if i == j:
                graph[i, j] = 1
            elif level == other:
                distance = abs((a + b) / 2 - (c + d) / 2)
                graph[i, j] = cosine + math.exp(-distance / np.mean(lengths))
            elif abs(level - other) == 1:
                both = max(min(b, d) - max(a, c), 0)
                graph[i, j] = cosine * both / ((b - a) + (d - c) - both)
    degree = graph.sum(axis=1)
    walk = graph / np.sqrt(np.outer(degree, degree))
    # The series of the inverse, as far as it matters.
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
def test_segments_are_those_of_an_evaluation_by_loops(frames):
    vectors = video(frames, seed=frames)
    times = np.arange(frames) * 0.5
    starts, rows = by_loops(vectors)
    spans, found = segments(vectors, times, period=0.5)
    np.testing.assert_array_equal(spans[:, 0], times[starts])
    np.testing.assert_array_equal(spans[:-1, 1], spans[1:, 0])
    assert spans[-1, 1] == times[-1] + 0.5
    np.testing.assert_allclose(found, rows, rtol=0, atol=2e-7)
    assert found.dtype == np.float32
    if frames >= 60:
        assert len(starts) > 3


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_frames_that_are_no_numbers_are_refused_and_never_spread(number):
    vectors = video(20, seed=1)
    vectors[7, 2] = number
    with pytest.raises(ValueError):
        segments(vectors, np.arange(20.0))


def test_a_video_that_stands_still_is_one_interval_of_its_own_vector():
    frame = video(1, seed=3)
    spans, rows = segments(np.repeat(frame, 40, axis=0), np.arange(40.0))
    assert spans.tolist() == [[0.0, 40.0]]
    cosine = rows[0] @ frame[0] / np.linalg.norm(rows[0])
    np.testing.assert_allclose(cosine, 1, atol=1e-6)


def test_a_change_of_scene_is_a_cut_before_its_first_frame():
    one, other = video(2, seed=4, width=20)
    vectors = np.asarray([one] * 30 + [other] * 30)
    spans, _ = segments(vectors, np.arange(60.0))
    assert 30.0 in spans[:, 0]


def test_peaks_are_those_of_scipy_rows_of_equal_values_too():
    rng = np.random.default_rng(0)
    for _ in range(200):
        details = rng.integers(0, 4, size=rng.integers(1, 30)).astype(float)
        height = max(details.mean() + details.std(), intervals.ROUNDING)
        peaks = [p + 2 for p in find_peaks(details)[0] if details[p] > height]
        assert intervals.peak_cuts(details).tolist() == peaks


def test_a_very_long_video_is_ranked_in_parts_that_do_not_see_each_other(monkeypatch):
    vectors = video(90, seed=5)
    monkeypatch.setattr(intervals, "LONGEST", 32)
    spans, rows = segments(vectors, np.arange(90.0))
    parts = [segments(vectors[i : i + 30], np.arange(30.0)) for i in (0, 30, 60)]
    np.testing.assert_array_equal(
        spans[:, 0], np.concatenate([s[:, 0] + 30 * i for i, (s, _) in enumerate(parts)])
    )
    np.testing.assert_array_equal(rows, np.concatenate([rows for _, rows in parts]))


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(evaluation, "FRAMES", 90)


@pytest.mark.usefixtures("short")
def test_a_sentence_without_doubt_is_nearest_to_its_scene_and_frames_have_unit_length():
    drawn = evaluation._Drawn(Regime(3, 5, noise=0.1, topic=0.5, doubt=0.0), 6, seed=0)
    frames = np.stack(drawn.videos)
    np.testing.assert_allclose(np.linalg.norm(frames, axis=-1), 1, atol=1e-6)
    cosines = np.einsum("vfd,qd->qvf", frames, drawn.queries).max(-1)
    assert cosines.argmax(-1).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    same = evaluation._Drawn(Regime(3, 5, noise=0.1, topic=0.5, doubt=0.0), 6, seed=0)
    np.testing.assert_array_equal(same.queries, drawn.queries)


@pytest.mark.usefixtures("short")
def test_recalls_of_the_best_frame_are_those_of_a_plain_product():
    regime = REGIMES["short scenes"]
    table = evaluation.recalls(regime, 8, seed=1)
    assert list(table) == list(rankers.ROWS)
    drawn = evaluation._Drawn(regime, 8, seed=1)
    frames = np.stack(drawn.videos).astype(np.float16).astype(np.float64)
    scores = np.einsum("vfd,qd->qvf", frames, drawn.queries).max(-1)
    ranks = 1 + (scores > np.take_along_axis(scores, np.arange(16)[:, None] // 2, 1)).sum(-1)
    assert ranking.metrics(ranks).items() <= table["best_frame"].items()


@pytest.mark.usefixtures("short")
def test_what_archives_have_and_lack_is_told_apart_where_sentences_leave_no_doubt():
    clear = Regime(5, 15, noise=0.1, topic=0.0, doubt=0.1)
    for name, own in evaluation.recalls(clear, 8, seed=0).items():
        least = 60 if name == "segments" else 95
        assert own["AUC"] > least and own["AUC above median"] > least, name
    blind = evaluation.recalls(clear._replace(doubt=1e6), 8, seed=0)
    assert all(20 < own["AUC"] < 80 for own in blind.values())


@pytest.mark.usefixtures("short")
def test_the_command_writes_all_regimes_and_refuses_what_is_there(tmp_path, capsys):
    out = tmp_path / "figures.json"
    assert main(["simulate", "--videos=3", f"--json={out}"]) == 0
    written = json.loads(out.read_text())
    assert set(written) == set(REGIMES) and "short scenes" in capsys.readouterr().out
    assert main(["simulate", "--videos=3", f"--json={out}"]) == 1
    assert main(["simulate", "--videos=1"]) == 1
