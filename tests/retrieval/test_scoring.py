"""Scorers of the models and the search of a corpus, against NumPy and recorded scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import released
import tiny

from hlformer_jax import models
from hlformer_jax.data import transforms
from hlformer_jax.models import VideoEncoding
from hlformer_jax.models.ms_sl import GuidedEncoding, proposals
from hlformer_jax.retrieval import corpus, ranking, scoring
from hlformer_jax.retrieval.scoring import BranchwiseSimilarity, GuidedSimilarity, MaximumSimilarity


def test_zero_frames_have_cosine_zero_and_a_finite_gradient():
    frames = np.zeros((1, 2, 3), np.float32)
    frames[0, 0] = [-1, 0, 0]
    queries, owner = np.array([[1, 0, 0]], np.float32), np.zeros(1, np.int32)
    scorer = MaximumSimilarity(np.ones(2, np.float32))

    def best(frames):
        return scorer.similarities(queries, VideoEncoding(None, frames), owner).frame_cosine[0, 0]

    value, gradient = jax.jit(jax.value_and_grad(best))(frames)
    assert value == 0
    assert np.all(np.isfinite(gradient))


def _encoded():
    rng = np.random.default_rng(0)
    clips, frames = (rng.normal(size=(4, length, 6)).astype(np.float32) for length in (2, 5))
    frames[1, 3:] = 0  # padding
    return VideoEncoding(clips, frames), rng.normal(size=(3, 6)).astype(np.float32)


@pytest.mark.parametrize("missing", ["", "clips", "frames"])
def test_similarities_are_maxima_over_positions(missing):
    videos, queries = _encoded()
    if missing:
        videos = videos._replace(**{missing: None})
    scorer = MaximumSimilarity(np.ones(2, np.float32))
    similarities = jax.jit(scorer.similarities)(queries, videos, np.zeros(3, np.int32))
    expected = [
        part
        for branch in videos
        for part in ((None, None) if branch is None else tiny.cosine_maxima(queries, branch))
    ]
    for similarity, reference in zip(similarities, expected, strict=True):
        assert (similarity is None) == (reference is None)
        if similarity is not None:  # rounding of float32 sums of six products
            np.testing.assert_allclose(similarity, reference, rtol=1e-5, atol=1e-6)


X = np.random.default_rng(0).normal(size=(3, 4, 16)).astype(np.float32) * 10
X[1, 2] = 0
VECTORS = np.random.default_rng(1).normal(size=(5, 16)).astype(np.float32)


def _unit(x):
    return x / np.maximum(np.linalg.norm(x.astype(np.float64), axis=-1, keepdims=True), 1e-30)


def _values(stored):
    values = np.asarray(stored.values.astype(jnp.float32))
    return values if stored.scale is None else values * np.asarray(stored.scale)[..., None]


def test_stored_vectors_are_unit_up_to_rounding():
    largest = np.abs(_unit(X)).max(-1, keepdims=True)
    # bfloat16 has 8 bits, of a coordinate of at most 1; int8 half a step of 127 to the largest.
    for dtype, error in (("float32", 2**-22), ("bfloat16", 2**-9), ("int8", largest / 253)):
        stored = scoring.store(X, dtype)
        assert stored.values.dtype == jnp.dtype(dtype)
        assert (stored.scale is None) == (dtype != "int8")
        assert np.all(np.abs(_values(stored) - _unit(X)) <= error), dtype
        assert not np.any(_values(stored)[1, 2])  # a zero vector stays zero
        broken = scoring.store(np.where(np.arange(X.shape[-1]) == 1, np.nan, X), dtype)
        assert np.all(np.isnan(_values(broken)).any(-1))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("dtype", scoring.DTYPES)
@pytest.mark.parametrize("count", [1, 2, scoring.FEW_QUERIES])
def test_cosines_are_products_of_stored_values(dtype, count):
    vectors = np.resize(VECTORS, (count, VECTORS.shape[-1]))
    query, stored = scoring.store(vectors, dtype), scoring.store(X, dtype)
    expected = np.einsum("qh,blh->qbl", *(_values(x).astype(np.float64) for x in (query, stored)))
    # Sums of 16 products of float32.
    np.testing.assert_allclose(scoring.cosines(query, stored), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", scoring.DTYPES)
def test_paired_cosines_are_the_diagonal_of_all_cosines(dtype):
    query, stored = scoring.store(VECTORS[:3], dtype), scoring.store(X, dtype)
    paired = np.asarray(scoring.paired_cosines(query, stored))
    diagonal = np.asarray(scoring.cosines(query, stored))[np.arange(3), np.arange(3)]
    np.testing.assert_allclose(paired, diagonal, rtol=0, atol=2e-6)


RNG = np.random.default_rng(0)
VIDEOS = VideoEncoding(*(RNG.normal(size=(4, 5, 6)).astype(np.float32) for _ in range(2)))
QUERIES = RNG.normal(size=(3, 12)).astype(np.float32)
SCORER = BranchwiseSimilarity(np.asarray([0.7, 0.3], np.float32))


def test_each_branch_is_compared_with_its_own_half_of_the_query():
    similarities = jax.jit(SCORER.similarities)(QUERIES, VIDEOS, np.zeros(3, np.int32))
    clip = tiny.cosine_maxima(QUERIES[:, :6], VIDEOS.clips)
    frame = tiny.cosine_maxima(QUERIES[:, 6:], VIDEOS.frames)
    for similarity, reference in zip(similarities, (*clip, *frame), strict=True):
        np.testing.assert_allclose(similarity, reference, rtol=1e-5, atol=1e-6)
    assert not np.allclose(clip[0], tiny.cosine_maxima(QUERIES[:, 6:], VIDEOS.clips)[0])


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("count", [1, 3])
def test_search_adds_weighted_maxima_and_locates_them(count):
    library = corpus.build(VIDEOS, SCORER, "float32", block=2)
    cosines = []
    for part, positions in zip(np.split(QUERIES[:count], 2, axis=1), VIDEOS, strict=True):
        unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (part, positions)]
        cosines.append(np.einsum("qh,vlh->qvl", *unit))
    expected = 0.7 * cosines[0].max(-1) + 0.3 * cosines[1].max(-1)
    np.testing.assert_allclose(
        jax.jit(corpus.scores)(library, QUERIES[:count])[:, :4], expected, atol=1e-6
    )
    result = corpus.search(library, QUERIES[:count], 4)
    order = np.argsort(-expected, axis=1)
    np.testing.assert_array_equal(result.videos, order)
    for name, branch_cosines in zip(("clips", "frames"), cosines, strict=True):
        best = np.take_along_axis(branch_cosines.argmax(-1), order, axis=1)
        np.testing.assert_array_equal(result.positions[name], best)


@pytest.mark.parametrize("num_frames", [3, 5, 10])
def test_scores_over_time_follow_sampled_frames(num_frames):
    library = corpus.build(VIDEOS, SCORER, "int8")
    stored = corpus.rows(library, np.arange(3))
    cosines = {k: np.asarray(x) for k, x in SCORER.position_cosines(QUERIES, stored).items()}
    at = np.arange(num_frames) * 5 // max(num_frames, 5)  # two frames a position of ten
    halves = np.split(QUERIES, 2, axis=1)
    expected = np.zeros((3, num_frames))
    for weight, part, positions in zip((0.7, 0.3), halves, VIDEOS, strict=True):
        products = np.einsum("qh,qlh->ql", part, positions[:3])
        products /= np.linalg.norm(part, axis=-1)[:, None] * np.linalg.norm(positions[:3], axis=-1)
        expected += weight * products[:, at]
    over_time = SCORER.over_time(cosines, num_frames, 1, 5)
    np.testing.assert_allclose(over_time, expected, atol=0.02)  # 8 bits
    np.testing.assert_array_equal(over_time.argmax(-1), expected.argmax(-1))


def test_query_as_wide_as_a_single_branch_is_refused():
    library = corpus.build(VIDEOS, SCORER, "float32")
    with pytest.raises(ValueError, match=r"shape \[Q, 12\], got k = 1 and .*\(3, 6\)"):
        corpus.search(library, QUERIES[:, :6], 1)


@pytest.mark.parametrize("off", ["", "gaze", "glance"])
def test_scores_over_time_use_every_active_branch(off):
    config = tiny.case("dl_dkd")
    if off:
        config.model[off] = False
    scorer = scoring.build_scorer(config, models.build(config))
    branches = {"clips": VIDEOS.clips[:1], "frames": VIDEOS.frames[:1]}
    branches.pop({"gaze": "frames", "glance": "clips"}.get(off), None)
    stored = {name: scoring.store(branch, "float32") for name, branch in branches.items()}
    assert scorer.width(stored) == (6 if off else 12)
    query = QUERIES[:1, :6] if off else QUERIES[:1]
    cosines = jax.device_get(scorer.position_cosines(query, stored))
    # Three frames, fewer than positions: each frame has its own position.
    over_time = scorer.over_time(cosines, 3, config.data.max_clips, 5)
    weights = {name: 1.0 for name in branches} if off else {"clips": 0.7, "frames": 0.3}
    expected = sum(weights[name] * cosines[name][:, :3] for name in branches)
    np.testing.assert_allclose(over_time, expected, atol=1e-6)


def _normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def guided():
    shape = 11, 3, 16
    return GuidedEncoding(_normal(0, *shape), _normal(2, *shape))


def _cosines(queries, positions):
    return np.einsum("qh,vlh->qvl", _unit(queries), _unit(positions))


@pytest.mark.parametrize("count", [1, 7])
def test_guided_vectors_are_scored_at_the_best_clip(guided, count):
    queries = _normal(1, 7, 16)
    scorer = GuidedSimilarity(np.asarray([0.7, 0.3], np.float32))
    stored = corpus.build(guided, scorer, "float32", block=4)
    clip_cosine, guided_cosine = (_cosines(queries, x) for x in guided)
    best = clip_cosine.argmax(-1)[..., None]
    expected = 0.7 * clip_cosine.max(-1) + 0.3 * np.take_along_axis(guided_cosine, best, -1)[..., 0]
    scores = jax.jit(corpus.scores)(stored, queries[:count])
    np.testing.assert_allclose(scores[:, :11], expected[:count], rtol=0, atol=2e-7)
    result = corpus.search(stored, queries, 3)
    order = np.argsort(-expected, axis=1)[:, :3]
    np.testing.assert_array_equal(result.videos, order)
    clips = result.positions["clips"]
    np.testing.assert_array_equal(clips, np.take_along_axis(best[..., 0], order, 1))
    assert list(result.positions) == ["clips"]


def test_guided_similarities_cover_all_captions(guided):
    queries, owner = _normal(1, 5, 16), np.array([0, 0, 3, 7, 10], np.int32)
    scorer = GuidedSimilarity(np.ones(2, np.float32))
    similarities = jax.jit(scorer.similarities)(queries, guided, owner)
    cosines = _cosines(queries, guided.clips)
    products = np.einsum("qh,vlh->qvl", queries, guided.clips)
    guided = np.stack(
        [guided.guided[video, cosines[row, video].argmax()] for row, video in enumerate(owner)]
    )
    # Rounding of float32 sums of 16 products of size 1.
    expected = cosines.max(-1), products.max(-1), _unit(queries) @ _unit(guided).T
    for similarity, reference in zip(similarities, (*expected, queries @ guided.T), strict=True):
        np.testing.assert_allclose(similarity, reference, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def recorded():
    with np.load(released.GOLDEN / "hlformer_eval.npz") as file:
        return dict(file)


def test_recorded_evaluation_scores_ranks_and_metrics(recorded):
    recording = released.HLFORMER
    config, model, params = recording.config(), recording.build(), recording.params()
    from hlformer_jax.typing import Captions, Videos

    videos = Videos(
        recorded["in/clip_video_features"],
        recorded["in/frame_video_features"],
        recorded["in/videos_mask"] > 0,
        np.ones(12, bool),
    )
    captions = Captions(
        recorded["in/text_feat"],
        recorded["in/text_mask"] > 0,
        np.zeros(40, np.int32),
        np.ones(40, bool),
    )

    def run(params):
        encoded = models.encode_video(model, params, videos)
        queries = models.encode_query(model, params, captions)
        similar = scoring.build_scorer(config, model).similarities(queries, encoded, captions.video)
        weights = config.model.clip_weight, config.model.frame_weight
        return weights[0] * similar.clip_cosine + weights[1] * similar.frame_cosine

    scores = np.asarray(jax.jit(run)(params))
    # Four times the float32 noise of the recorded cosines (6.4e-7, golden/README.md).
    np.testing.assert_allclose(scores, recorded["out/score"], rtol=0, atol=2.6e-6)
    rank = ranking.ranks(scores, recorded["in/gt_video"])
    np.testing.assert_array_equal(rank, recorded["out/rank"])
    metrics = ranking.metrics(rank)
    np.testing.assert_allclose(
        list(metrics.values()), recorded["out/metrics_r1_r5_r10_r100_sumr"], rtol=1e-6
    )


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("case", ["tie_small", "tie_large", "tie_allequal"])
def test_ties_get_a_rank_between_best_and_worst(recorded, case):
    score, relevant = recorded[f"{case}/score"], recorded[f"{case}/gt"][:, 0].astype(np.int32)
    rank = np.asarray(ranking.ranks(score, relevant))
    low, high = recorded[f"{case}/rank_optimistic"], recorded[f"{case}/rank_pessimistic"]
    assert np.all((low <= rank) & (rank <= high))
    np.testing.assert_array_equal(rank, low + np.ceil((high - low) / 2))
    is_untied = low == high
    np.testing.assert_array_equal(rank[is_untied], recorded[f"{case}/rank_stable"][is_untied])
    assert not np.all(is_untied)


def test_frames_take_the_score_of_their_best_proposal():
    starts, ends = proposals(4)
    rng = np.random.default_rng(0)
    clips, guided = rng.normal(size=(2, 3, len(starts))).astype(np.float32)
    weights, together = np.asarray([0.6, 0.4], np.float32), 0.6 * clips + 0.4 * guided

    def expected(scores):  # eight frames, two of each clip
        holding = [(starts <= clip) & (clip < ends) for clip in np.arange(8) // 2]
        return np.stack([scores[:, inside].max(-1) for inside in holding], axis=-1)

    over_time = GuidedSimilarity(weights).over_time({"clips": clips, "guided": guided}, 8, 4, 9)
    np.testing.assert_allclose(over_time, expected(together), rtol=1e-5, atol=1e-6)
    scorer = MaximumSimilarity(weights)
    over_time = scorer.over_time({"clips": clips}, 8, 4, 9)
    np.testing.assert_allclose(over_time, 0.6 * expected(clips), rtol=1e-6)
    frames = rng.normal(size=(3, 9)).astype(np.float32)
    over_time = scorer.over_time({"frames": frames}, 8, 4, 9)
    np.testing.assert_allclose(over_time, 0.4 * frames[:, :8], rtol=1e-6)


def test_frame_takes_the_best_score_of_its_spans():
    rng = np.random.default_rng(0)
    for frames in (1, 3, 4, 7, 50):
        bounds, scores = transforms.boundaries(frames, 4), rng.normal(size=4)
        holding = [[] for _ in range(frames)]
        for span in range(4):
            last = frames if span == 3 else bounds[span + 1]
            for frame in range(bounds[span], max(last, bounds[span] + 1)):
                holding[frame].append(scores[span])
        expected = [max(scores_of_frame) for scores_of_frame in holding]
        np.testing.assert_allclose(
            scoring.spans_to_frames(scores, bounds, frames), expected, rtol=1e-6
        )


def test_short_video_takes_the_best_of_repeated_clips():
    scores = np.asarray([0.1, 0.5, 0.2, 0.9, 0.3, 0.4])
    # Boundaries 0 0 1 2 2 2 2, halves rounded to even: clips of frames 0 0 1 2 2 2.
    np.testing.assert_array_equal(scoring.clips_to_frames(scores, 3), [0.5, 0.2, 0.9])


CORPUS, CLIPS, FRAMES, H = 11, 3, 6, 16


@pytest.fixture(scope="module")
def encoded():
    rng = np.random.default_rng(0)
    frames = rng.normal(size=(CORPUS, FRAMES, H)).astype(np.float32)
    frames[3, 2:] = 0  # padding
    clips = rng.normal(size=(CORPUS, CLIPS, H)).astype(np.float32)
    return VideoEncoding(clips, frames)


@pytest.fixture(scope="module")
def queries():
    return np.random.default_rng(1).normal(size=(7, H)).astype(np.float32)


def _expected(queries, encoded):
    clip, frame = (_cosines(queries, x) for x in encoded[:2])
    return 0.7 * clip.max(-1) + 0.3 * frame.max(-1), clip, frame


# Half a unit in the last of 8 bits, in each of two unit vectors: 2 * 2^-9 at most for bfloat16.
# int8: half a step of each coordinate, largest / 254, against a unit vector whose coordinates'
# sizes add up to sqrt(H) at most: 2 * sqrt(16) / 254.
TOLERANCES = {"float32": 2e-7, "bfloat16": 2**-8, "int8": 8 / 254}


# 7 queries, 4 videos and 9 positions in a block: two of three blocks at once, or all.
@pytest.mark.parametrize(
    ("dtype", "block", "at_once"),
    [("float32", 4, 2**26), ("float32", 256, 2**26)]
    + [(dtype, 4, 2 * 7 * 4 * 9) for dtype in TOLERANCES],
)
def test_corpus_scores_equal_their_equation(encoded, queries, dtype, block, at_once, monkeypatch):
    monkeypatch.setattr(corpus, "SIMILARITIES_AT_ONCE", at_once)
    built = corpus.build(encoded, dtype=dtype, block=block)
    scores = np.asarray(jax.jit(corpus.scores)(built, queries))
    expected, _, _ = _expected(queries, encoded)
    np.testing.assert_allclose(scores[:, :CORPUS], expected, rtol=0, atol=TOLERANCES[dtype])
    assert np.all(scores[:, CORPUS:] == -np.inf)
    # One query alone takes another program.
    alone = np.asarray(jax.jit(corpus.scores)(built, queries[2:3]))
    np.testing.assert_allclose(alone, scores[2:3], rtol=0, atol=2e-7)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_search_ranks_no_video_with_nan(dtype):
    frames = np.random.default_rng(0).normal(size=(4, 3, 8)).astype(np.float32)
    frames[1, 2, 5] = np.nan
    result = corpus.search(corpus.build(VideoEncoding(None, frames), dtype=dtype), frames[:1, 0], 4)
    assert result.videos[0, 0] == 0 and set(result.videos[0, :3].tolist()) == {0, 2, 3}
    assert result.videos[0, 3] == result.positions["frames"][0, 3] == -1
    assert result.scores[0, 3] == -np.inf


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("k", [4, 15])
def test_search_returns_the_best_with_their_positions(encoded, queries, k):
    result = corpus.search(corpus.build(encoded, dtype="float32", block=4), queries, k)
    expected, clip, frame = _expected(queries, encoded)
    order = np.argsort(-expected, axis=1)[:, :k]
    real = min(k, CORPUS)
    np.testing.assert_array_equal(result.videos[:, :real], order)
    np.testing.assert_allclose(
        result.scores[:, :real], np.take_along_axis(expected, order, 1), atol=2e-7
    )
    clips, frames = result.positions["clips"], result.positions["frames"]
    for positions, cosine in ((clips, clip), (frames, frame)):
        best = np.take_along_axis(cosine.argmax(-1), order, 1)
        np.testing.assert_array_equal(positions[:, :real], best)
    fields = result.videos, result.scores, clips, frames
    for values, beyond in zip(fields, (-1, -np.inf, -1, -1), strict=True):
        assert values.shape == (len(queries), k)
        assert np.all(values[:, CORPUS:] == beyond)


def test_inactive_branch_has_no_position(encoded, queries):
    frames_only = encoded._replace(clips=None)
    scorer = MaximumSimilarity(np.ones(2, np.float32))
    result = corpus.search(corpus.build(frames_only, scorer, "float32"), queries, 2)
    _, _, frame = _expected(queries, encoded)
    np.testing.assert_array_equal(result.videos, np.argsort(-frame.max(-1), axis=1)[:, :2])
    assert list(result.positions) == ["frames"]
    assert np.all(result.positions["frames"] >= 0)


def test_bad_search_is_refused(encoded, queries):
    with pytest.raises(ValueError, match="float16"):
        corpus.build(encoded, dtype="float16")
    with pytest.raises(ValueError, match="at least one"):
        corpus.build(VideoEncoding(encoded.clips[:0], encoded.frames[:0]))
    built = corpus.build(encoded)
    with pytest.raises(ValueError, match="k = 0"):
        corpus.search(built, queries, 0)
    with pytest.raises(ValueError, match=r"\[Q, 16\]"):
        corpus.search(built, queries[:, :5], 1)
