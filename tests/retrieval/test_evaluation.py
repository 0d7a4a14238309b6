"""Evaluation of a split, ranks, moments and their metrics, against NumPy over all examples."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from benchmarks.simulated import SimulatedVideos
from hlformer_jax.config import default
from hlformer_jax.data.annotations.spans import Span
from hlformer_jax.data.sources.protocol import DataError
from hlformer_jax.data.split import Example, Split
from hlformer_jax.models.hlformer import Lifted
from hlformer_jax.ops import lorentz
from hlformer_jax.pytrees import STATIC, register_dataclass
from hlformer_jax.retrieval import moments, ranking
from hlformer_jax.retrieval.evaluation import Evaluator, mean_pooled_scores, zero_shot_scores
from hlformer_jax.retrieval.moments import MAX_GAP_PERIODS, Moment, find_moments
from hlformer_jax.retrieval.ranking import Result, ScoreError, print_table
from hlformer_jax.runtime import devices

D, F, VIDEOS, CAPTIONS = 6, 8, 10, 23
MATRIX = np.random.default_rng(0).normal(size=(D, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def config():
    config = default()
    config.data.update(visual_dim=D, text_dim=D, max_frames=F, max_clips=3, max_words=4)
    config.data.dtype = "float32"
    config.eval.update(video_batch=4, query_batch=16)  # neither divides the split
    return config


@pytest.fixture(scope="module")
def split(config):
    return Split(SimulatedVideos(VIDEOS, CAPTIONS, config.data), config.data)


@pytest.fixture(scope="module")
def evaluator(config):
    return Evaluator(tiny.Linear(), config, devices.mesh())


@pytest.fixture(scope="module")
def expected(config, split):
    examples = [split[index] for index in range(VIDEOS)]
    queries = np.stack([words[0] for example in examples for words in example.words])
    clips = np.stack([example.clips for example in examples])
    frames = np.stack([np.pad(x.frames, ((0, F - len(x.frames)), (0, 0))) for x in examples])
    clip, frame = (
        tiny.cosine_maxima(queries @ MATRIX, positions @ MATRIX)[0] for positions in (clips, frames)
    )
    return config.model.clip_weight * clip + config.model.frame_weight * frame


def _unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("resident", [False, True])
def test_scores_are_ordered_by_caption_and_video(evaluator, split, expected, resident):
    encoded = evaluator.encode(MATRIX, evaluator.feed(split, resident))
    scores = evaluator.score(*encoded, split)
    assert scores.shape == (CAPTIONS, VIDEOS)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6)


def test_corpus_has_the_dtype_of_the_configuration(config, split):
    config = config.copy_and_resolve_references()
    config.eval.corpus = "int8"
    evaluator = Evaluator(tiny.Linear(), config, devices.mesh())
    stored, _ = evaluator.encode(MATRIX, evaluator.feed(split))
    assert {branch.values.dtype for branch in stored.stored.values()} == {jnp.dtype("int8")}


def test_metrics_agree_for_ranks_and_scores(evaluator, split, expected):
    result = evaluator.evaluate(MATRIX, evaluator.feed(split))
    true_scores = expected[np.arange(CAPTIONS), split.caption_video]
    ranks = 1 + np.sum(expected > true_scores[:, None], axis=1)  # no two scores are equal
    assert (result.queries, result.videos) == (CAPTIONS, VIDEOS)
    assert result.metrics == pytest.approx(ranking.metrics(ranks))
    assert evaluator.result(expected.astype(np.float32), split) == result
    close = 1 + 1e-10 * expected.astype(np.float64)  # equal in float32
    assert evaluator.result(close, split) == result


def test_captions_without_finite_scores_are_counted(evaluator, split, expected):
    feed = evaluator.feed(split)
    stored, queries = evaluator.encode(MATRIX, feed)
    broken = queries._replace(vectors=queries.vectors.at[3].set(np.nan).at[7].set(np.inf))
    message = "2 of 23 captions have scores that are not finite"
    for use in (evaluator.rank, evaluator.score):
        with pytest.raises(ScoreError, match=message):
            use(stored, broken, split)
    scores = expected.astype(np.float32)
    scores[0, 1] = scores[5, 2] = np.nan
    with pytest.raises(ScoreError, match=message):
        evaluator.result(scores, split)
    with pytest.raises(ScoreError, match="23 of 23 captions"):
        evaluator.evaluate(np.full_like(MATRIX, 3e38), feed)


def test_moments_and_metrics_follow_scores_over_time(config, split, expected):
    rng = np.random.default_rng(1)
    lengths = 3.0 * split.source_frames_per_video  # a frame in three seconds
    ids, spans = split.caption_ids(), {}
    for name, video in zip(ids[1:], split.caption_video[1:], strict=True):  # the first has none
        start, end = np.sort(rng.uniform(0, lengths[video], 2))
        spans[name] = Span(float(start), float(end), float(lengths[video]))
    timed = Split(SimulatedVideos(VIDEOS, CAPTIONS, config.data), config.data, spans)
    evaluator = Evaluator(tiny.Linear(), config, devices.mesh())
    result = evaluator.evaluate(MATRIX, evaluator.feed(timed))
    overlaps, caption = [], 0
    for video in range(VIDEOS):
        example = timed[video]
        count = len(example.frames)
        inner = np.round(np.asarray([1, 2]) / 3 * count)  # boundaries of the three clips
        clip_of = np.searchsorted(inner, np.arange(count), "right")
        for words in example.words:
            query = _unit(words[0] @ MATRIX)
            over_time = 0.7 * (_unit(example.clips @ MATRIX) @ query)[clip_of]
            over_time += 0.3 * (_unit(example.frames @ MATRIX) @ query)
            [moment] = find_moments(3.0 * np.arange(count), over_time, 3.0, 1)
            name, caption = ids[caption], caption + 1
            if name in spans:
                start, end, _ = spans[name]
                shared = max(min(end, moment.end) - max(start, moment.start), 0)
                overlaps.append(shared / (end - start + moment.end - moment.start - shared))
    assert len(overlaps) == CAPTIONS - 1 and 0 < np.mean(overlaps) < 1
    np.testing.assert_allclose(result.per_query["overlaps"][1:], overlaps, atol=1e-5)
    assert np.isnan(result.per_query["overlaps"][0])
    assert result.metrics["mIoU"] == pytest.approx(100 * np.mean(overlaps), abs=1e-3)
    np.testing.assert_array_equal(result.per_query["videos"], timed.caption_video)
    assert result.metrics | ranking.metrics(result.per_query["ranks"]) == result.metrics
    assert evaluator.result(expected.astype(np.float32), timed).metrics == pytest.approx(
        {name: x for name, x in result.metrics.items() if "IoU" not in name}
    )
    groups = {"0-0.2": [], "0.2-0.4": [], "0.4-1": []}
    for name, rank in zip(ids, result.per_query["ranks"], strict=True):
        if name in spans:
            share = (spans[name].end - spans[name].start) / spans[name].duration
            group = "0-0.2" if share <= 0.2 else "0.2-0.4" if share <= 0.4 else "0.4-1"
            groups[group].append(rank)
    assert min(map(len, groups.values())) > 1
    for group, ranks in groups.items():
        recalls = [100 * sum(rank <= k for rank in ranks) / len(ranks) for k in (1, 5, 10, 100)]
        metrics = [result.metrics[f"ratio={group}/{name}"] for name in ranking.metrics(np.ones(1))]
        assert metrics == pytest.approx([*recalls, sum(recalls)])


def test_ratio_at_a_bound_is_in_the_lower_group():
    spans = [Span(1.3, 3.3, 10.0), Span(0.0, 9.0, 10.0), None, Span(0.0, 10.5, 10.0)]
    metrics = ranking.metrics_by_ratio(np.asarray([1, 2, 3, 9]), moments.ratios(spans))
    assert {name.partition("/")[0] for name in metrics} == {"ratio=0-0.2", "ratio=0.4-1"}
    assert (metrics["ratio=0-0.2/R@1"], metrics["ratio=0.4-1/R@5"]) == (100, 50)


class _LiftingModule(tiny.LinearModule):
    has_lift = True


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Lifting(tiny.Linear):
    """A `Linear` that lifts the mean of a video's frames, and captions four times as far out."""

    module: Any = dataclasses.field(metadata=STATIC, default=_LiftingModule)

    def apply(self, params, inputs, *captions, method, rngs=None):
        if method != "lift":
            return super().apply(params, inputs, method=method, rngs=rngs)
        points = inputs.frames.mean(axis=1), 4 * captions[0]
        return Lifted(*(lorentz.from_space(x, 0.5) for x in points), jnp.float32(0.5))


def test_cone_share_compares_captions_with_their_video(config, split):
    evaluator = Evaluator(_Lifting(), config, devices.mesh())
    result = evaluator.evaluate(MATRIX, evaluator.feed(split))
    c, inside = 0.5, []
    for index in range(VIDEOS):
        example = split[index]
        x = example.frames.sum(axis=0, dtype=np.float64) / F @ MATRIX
        for words in example.words:
            y = 4 * (words[0].astype(np.float64) @ MATRIX)
            times = [np.sqrt(1 / c + z @ z) for z in (x, y)]
            product, length = c * (x @ y - times[0] * times[1]), np.linalg.norm(x)
            # The exterior angle and the half aperture as printed (HLFormer eq. 18, 19).
            cosine = (times[1] + times[0] * product) / (length * np.sqrt(product**2 - 1))
            aperture = np.arcsin(min(1, 2 * config.loss.min_radius / (np.sqrt(c) * length)))
            inside.append(np.arccos(cosine) <= aperture)
    assert 0 < np.mean(inside) < 1
    assert result.metrics["InCone"] == pytest.approx(100 * np.mean(inside))


def test_times_of_other_captions_are_refused(config):
    spans = {"elsewhere#0": Span(0.0, 1.0, 2.0)}
    mismatched = Split(SimulatedVideos(VIDEOS, CAPTIONS, config.data), config.data, spans)
    with pytest.raises(DataError, match="'video0#0'"):
        mismatched.caption_spans()
    with pytest.raises(DataError, match="val split .* 'video0#0'"):
        mismatched.check_spans("val")
    Split(SimulatedVideos(VIDEOS, CAPTIONS, config.data), config.data).check_spans("val")


class _Split(list):
    """Videos with the attributes of `Split` that the baselines read."""

    def __init__(self, examples):
        super().__init__(examples)
        counts = [len(example.words) for example in examples]
        self.caption_video = np.repeat(np.arange(len(examples)), counts)


def _split(rng, videos, weights, linear):
    """Return videos whose mean frame is a linear map of their mean words, or unrelated."""
    examples = []
    for _ in range(videos):
        words = tuple(rng.normal(size=(3, weights.shape[0])) for _ in range(2))
        mean = np.mean([w.mean(axis=0) for w in words], axis=0) @ weights
        if not linear:
            mean = rng.normal(size=mean.shape)
        noise = rng.normal(size=(5, len(mean)))
        frames = mean + noise - noise.mean(axis=0)  # only the mean identifies the video
        examples.append(Example(frames[:1], frames, words))
    return _Split(examples)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("linear", [True, False])
def test_linear_baseline_finds_a_linear_relation(linear):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(6, 8))
    train, val, test = (_split(rng, n, weights, linear) for n in (200, 20, 30))
    scores = mean_pooled_scores(train, val, test)
    assert scores.shape == (60, 30)
    assert np.abs(scores).max() <= 1 + 1e-9
    true_scores = scores[np.arange(60), test.caption_video]
    top5 = np.mean(np.sum(scores > true_scores[:, None], axis=1) < 5)
    if linear:
        assert top5 > 0.7
    else:
        assert top5 < 0.35  # chance is 5 of 30


@pytest.mark.usefixtures("unchecked")
def test_zero_shot_ranks_by_last_token_and_frames():
    rng = np.random.default_rng(0)
    examples = [
        Example(
            np.zeros((1, 4)),
            rng.normal(size=(count, 4)).astype(np.float16),
            tuple(rng.normal(size=(words, 4)).astype(np.float16) for words in lengths),
        )
        for count, lengths in ((3, (2, 1)), (1, (3,)), (2, (2, 2)))
    ]
    scores = zero_shot_scores(_Split(examples))
    # A video of one frame is one interval of its direction.
    cosines = scores["zero-shot, best interval"][:, 1] / scores["zero-shot, mean of frames"][:, 1]
    np.testing.assert_allclose(cosines, cosines[0], rtol=1e-4)
    row = 0
    for example in examples:
        for words in example.words:
            query = words[-1].astype(np.float64)
            for column, candidate in enumerate(examples):
                frames = candidate.frames.astype(np.float64)
                best, mean = (
                    scores[f"zero-shot, {name}"] for name in ("best frame", "mean of frames")
                )
                assert best[row, column] == pytest.approx(
                    (_unit(frames) @ _unit(query)).max(), abs=1e-6
                )
                assert mean[row, column] == pytest.approx(
                    _unit(_unit(frames).sum(axis=0)) @ _unit(query), abs=1e-6
                )
            row += 1


def _ranks(num_first, num_fifth):
    """Return 24 ranks, of which `num_first` are 1 and `num_fifth` at most 5."""
    return np.r_[[1] * num_first, [3] * (num_fifth - num_first), [7] * (24 - num_fifth)]


def test_sum_of_recalls_depends_on_the_number_of_hits_only():
    for first, fifth, moved in ((2, 9, 1), (11, 13, 5), (4, 4, 4), (8, 16, 7)):
        ranks, moved_ranks = _ranks(first, fifth), _ranks(first - moved, fifth + moved)
        assert ranking.sum_recall(ranks) == ranking.sum_recall(moved_ranks)
        parts = sum(ranking.recall_at_k(moved_ranks, k) for k in ranking.RECALLS)
        assert ranking.sum_recall(moved_ranks) == pytest.approx(parts, rel=1e-14)  # 4 roundings


def test_equal_scores_get_the_middle_rank():
    rank = ranking.ranks(np.zeros((3, 11), np.float32), np.array([0, 5, 10], np.int32))
    np.testing.assert_array_equal(rank, [6, 6, 6])


@pytest.mark.usefixtures("unchecked")
def test_scores_of_other_queries_are_refused():
    with pytest.raises(ValueError, match="must have shape"):
        ranking.ranks(np.ones((2, 3)), np.zeros(3, int))


SCORES = np.random.default_rng(0).normal(size=(3, 10)).astype(np.float32)


@pytest.mark.parametrize("column", [10, -1, 2**40])
def test_missing_relevant_column_is_refused(column):
    with pytest.raises(ValueError, match=rf"relevant\[1\] must be from 0 to 9, got {column}"):
        ranking.ranks(SCORES, np.array([0, column, 9]))


@pytest.mark.parametrize("column", [10, -1])
def test_missing_relevant_column_ranks_last_under_jit(column):
    columns = np.array([0, column, 9], np.int32)
    expected = np.asarray(ranking.ranks(SCORES, np.array([0, 0, 9])))
    ranks = np.asarray(jax.jit(ranking.ranks)(SCORES, columns))
    np.testing.assert_array_equal(ranks, [expected[0], 10, expected[2]])


@pytest.mark.parametrize("compute_ranks", [ranking.ranks, jax.jit(ranking.ranks)])
def test_ranks_with_ties_and_nan(compute_ranks):
    columns = np.array([3, 0, 9], np.int32)
    scores = np.round(SCORES)  # ties
    scores[2, 3] = np.nan
    true_scores = scores[np.arange(3), columns][:, None]
    equal = np.sum(scores == true_scores, axis=1) - 1
    ties = 1 + np.sum(scores > true_scores, axis=1) + (equal + 1) // 2
    expected = np.where([False, False, True], 10, ties).astype(np.int32)
    np.testing.assert_array_equal(compute_ranks(scores, columns), expected)


@pytest.mark.parametrize("columns", [[3, 0, 9], np.uint8([3, 0, 9]), jnp.asarray([3, 0, 9])])
def test_ranks_take_any_integer_columns(columns):
    expected = 1 + np.sum(SCORES > SCORES[np.arange(3), [3, 0, 9]][:, None], axis=1)
    np.testing.assert_array_equal(ranking.ranks(SCORES, columns), expected)
    np.testing.assert_array_equal(ranking.ranks(SCORES.tolist(), columns), expected)


@pytest.mark.usefixtures("unchecked")
def test_ranks_refuse_columns_that_are_not_integers():
    with pytest.raises(ValueError, match="relevant must be integers, got the dtype float"):
        ranking.ranks(SCORES, [0.0, 1.0, 2.0])


def test_nan_score_of_the_ranked_candidate_ranks_last():
    score, rivals = np.array([[np.nan], [9.0], [9.0]], np.float32), np.ones((3, 10), bool)
    np.testing.assert_array_equal(ranking.rank_among(SCORES, score, rivals), [10, 1, 1])
    np.testing.assert_array_equal(jax.jit(ranking.rank_among)(SCORES, score, rivals), [10, 1, 1])
    lists = SCORES.tolist(), score.tolist(), rivals.tolist()
    np.testing.assert_array_equal(ranking.rank_among(*lists), [10, 1, 1])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("argument", ["scores", "relevant"])
def test_ranks_name_the_argument_without_an_axis_of_queries(argument):
    scores, relevant = (SCORES[0], [3]) if argument == "scores" else (SCORES, 3)
    with pytest.raises(ValueError, match=f"^{argument} must have shape"):
        ranking.ranks(scores, relevant)


@pytest.mark.usefixtures("unchecked")
def test_rank_among_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"score must have .* got \(3, 2\)"):
        ranking.rank_among(SCORES, SCORES[:, :2], np.ones((3, 10), bool))
    with pytest.raises(ValueError, match=r"candidates must have .* got \(3, 9\)"):
        ranking.rank_among(SCORES, SCORES[:, :1], np.ones((3, 9), bool))


def test_metrics_equal_their_definitions():
    rank = np.array([1, 1, 3, 6, 11, 101])
    assert ranking.metrics(rank) == pytest.approx(
        {"R@1": 200 / 6, "R@5": 50, "R@10": 400 / 6, "R@100": 500 / 6, "SumR": 1400 / 6}
    )
    expected = np.mean([1, 1, 1 / 3, 1 / 6, 1 / 11, 1 / 101])
    assert ranking.mean_reciprocal_rank(rank) == pytest.approx(expected)


def test_result_counts_the_queries_with_times():
    overlaps = np.asarray([0.5, np.nan, np.nan], np.float32)
    result = Result({"mIoU": 50.0}, 3, 2, {"overlaps": overlaps})
    assert result.as_json() == {"mIoU": 50.0, "queries": 3, "videos": 2, "timed_queries": 1}
    assert result.counts() == "3 queries (1 with times of moments), 2 videos"
    result = Result({"mIoU": 50.0}, 1, 2, {"overlaps": overlaps[:1]})
    assert result.counts() == "1 queries, 2 videos" and result.as_json()["timed_queries"] == 1
    untimed = Result({"R@1": 12.5}, 40, 10)
    assert untimed.counts() == "40 queries, 10 videos"
    assert untimed.as_json() == {"R@1": 12.5, "queries": 40, "videos": 10}


def test_table_has_a_row_for_each_name(capsys):
    print_table("Test", {"model": {"R@1": 12.345, "SumR": 100.0}, "baseline": {"SumR": 7.0}})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["Test"] in lines and ["R@1", "SumR"] in lines
    assert ["model", "12.35", "100.00"] in lines or ["model", "12.34", "100.00"] in lines
    assert ["baseline", "7.00"] in lines


def test_undefined_metric_is_a_dash_with_its_reason(capsys):
    print_table("Test", {"model": {"hierarchy/video/RadiusTau": np.nan, "hierarchy/video/x": 1.0}})
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["model", "hierarchy/video", "–", "1.00"] for line in lines)
    assert lines[-1] == "–: the split has no pairs or trees to measure this on"


def test_table_names_the_group_of_the_largest_trees(capsys):
    print_table("Test", {"model": {"leaves=2/t2v/MRR": 0.5, "leaves=5/t2v/MRR": 0.25}})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["model", "leaves", "=", "2/t2v", "0.500"] in lines
    assert ["model", "leaves", "≥", "5/t2v", "0.250"] in lines


def test_one_peak_is_one_moment():
    scores = np.asarray([0.1, 0.1, 0.2, 0.9, 0.8, 0.1, 0.1])
    [moment] = find_moments(np.arange(7.0), scores, 1.0)
    assert moment == (3.0, 5.0, 3.0, 0.9)


def test_two_peaks_are_two_moments_best_first():
    scores = np.asarray([0.8, 0.1, 0.1, 0.9, 0.9, 0.9, 0.1, 0.7, 0.1, 0.1])
    two_moments = find_moments(np.arange(10.0), scores, 1.0)
    assert [(m.start, m.end, m.peak) for m in two_moments] == [(3, 6, 4), (0, 1, 0), (7, 8, 7)]
    assert find_moments(np.arange(10.0), scores, 1.0, 1) == two_moments[:1]


def test_equal_scores_on_both_sides_of_a_gap_are_two_moments():
    times = np.asarray([0.0, 1.0, 2.0, 10.0, 11.0])
    two_moments = find_moments(times, np.ones(5), 1.0)
    assert [(m.start, m.end) for m in two_moments] == [(0, 3), (10, 12)]


def test_interval_below_two_periods_is_not_a_gap():
    times = np.asarray([0.0, 1.0, 2.0, 3.9, 4.0])
    assert len(find_moments(times, np.ones(5), 1.0)) == 1


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "times, scores, message",
    [
        ([0.0, 1.0, 2.0], [1.0, np.nan, 2.0], "^scores must be finite, got nan for frame 1$"),
        ([0.0, 1.0, 2.0], [1.0, 2.0, -np.inf], "^scores must be finite, got -inf for frame 2$"),
        ([0.0, 1.0, 2.0], [1.0, 2.0], r"^scores must have shape \(3,\), got \(2,\)$"),
        ([], [], r"^times must have shape \[F\] with F >= 1, got \(0,\)$"),
    ],
)
def test_find_moments_refuses_invalid_scores(times, scores, message):
    with pytest.raises(ValueError, match=message):
        find_moments(times, scores, 1.0)


@pytest.mark.usefixtures("unchecked")
def test_first_moments_refuse_invalid_scores():
    for scores in (np.ones(3), np.ones((2, 0))):
        with pytest.raises(ValueError, match=r"^scores must have shape \[captions, F\]"):
            moments.first_moments(scores, 10.0)
    with pytest.raises(ValueError, match="^scores must be finite, got nan for frame 0$"):
        moments.overlaps([[np.nan, 1.0]], [Span(0.0, 1.0, 2.0)])


@pytest.mark.usefixtures("unchecked")
def test_metrics_of_moments_take_lists():
    times, scores = [0.0, 1.0, 2.0], [0, 1, 0]
    assert find_moments(times, scores, 1.0) == find_moments(np.array(times), np.array(scores), 1.0)
    assert moments.metrics([0.5, np.nan]) == moments.metrics(np.array([0.5, np.nan]))
    by_ratio = ranking.metrics_by_ratio([1, 9], [0.1, np.nan])
    assert by_ratio == ranking.metrics_by_ratio(np.array([1, 9]), np.array([0.1, np.nan]))
    with pytest.raises(ValueError, match=r"^ratio must have shape \(2,\), got \(1,\)$"):
        ranking.metrics_by_ratio([1, 9], [0.1])
    for wrong in (-0.1, 1.5, np.inf):
        with pytest.raises(ValueError, match=f"^ratio must be from 0 to 1, got {wrong:g}$"):
            ranking.metrics_by_ratio([1, 9], [0.1, wrong])


def _sampled(seed):
    """Return times of frames with gaps, their scores, and their period."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 40))
    period = float(rng.choice([0.2, 1.0, 3.0]))
    skipped = np.where(rng.random(count) < 0.15, rng.integers(2, 9, size=count), 0)
    # As frames are sampled: each within a period before its instant.
    times = period * (
        np.arange(count) + np.cumsum(skipped) + rng.uniform(0, 0.9) * rng.random(count)
    )
    return times, rng.normal(size=count).round(int(rng.integers(0, 4))), period


def test_moments_never_overlap_or_span_gaps():
    for seed in range(60):
        _check_moments(*_sampled(seed))


def _check_moments(times, scores, period):
    results = find_moments(times, scores, period, count=100)
    assert results and results[0].score == scores.max()
    assert [m.score for m in results] == sorted((m.score for m in results), reverse=True)
    gaps = np.flatnonzero(np.diff(times) > MAX_GAP_PERIODS * period)
    for moment in results:
        assert moment.end - moment.start >= period * (1 - 1e-9)
        assert moment.start <= moment.peak < moment.end
        assert scores[times == moment.peak] == moment.score
        inside = (times >= moment.start) & (times < moment.end)
        assert scores[inside].max() == moment.score
        assert not any(moment.start <= times[g] and times[g + 1] <= moment.end for g in gaps)
    ordered = sorted(results)
    for moment, following in zip(ordered[:-1], ordered[1:], strict=True):
        assert moment.end <= following.start + 1e-9


def test_overlap_is_intersection_over_union():
    cases = [(10, 20, 1), (0, 10, 0), (30, 40, 0), (15, 25, 5 / 15), (12, 16, 0.4)]
    for start, end, expected in cases:
        overlap = moments.intersection_over_union(Moment(start, end, start, 1.0), 10.0, 20.0)
        assert overlap == pytest.approx(expected)


def test_frames_are_equally_spaced_over_the_video():
    # Ten frames in 30 seconds: frames 4 and 5 are the seconds from 12 to 18.
    scores = np.asarray([[0, 0, 0, 0, 1, 0.9, 0, 0, 0, 0]])
    [moment] = moments.first_moments(scores, 30.0)
    assert moment == pytest.approx((12.0, 18.0, 12.0, 1.0))
    overlaps = moments.overlaps(
        np.repeat(scores, 3, axis=0), [Span(12.0, 18.0, 30.0), None, Span(12.0, 24.0, 30.0)]
    )
    np.testing.assert_allclose(overlaps, [1.0, np.nan, 0.5])


def test_moment_metrics_skip_captions_without_times():
    timed = np.asarray([0.0, 0.3, 0.5, 0.69, 0.7, 1.0])
    overlaps = np.concatenate([timed, [np.nan, np.nan]])
    expected = {"IoU 0.3": 500 / 6, "IoU 0.5": 400 / 6, "IoU 0.7": 200 / 6}
    assert moments.metrics(overlaps) == pytest.approx(expected | {"mIoU": 100 * timed.mean()})
    assert moments.metrics(np.full(3, np.nan)) == {}
    assert tuple(moments.metrics(overlaps)) == moments.METRICS


@pytest.mark.parametrize(
    "row",
    [
        np.array([0.5 + 1e-9, 0.5, 0.1]),
        np.array([2e300, 1e300, 3]),
        np.array([2**24 + 1, 2**24, 3], np.int32),
        np.array([2**40 + 1, 2**40, 3]),
        np.array([2**64 - 1, 2**64 - 2, 3], np.uint64),
        [0.5 + 1e-9, 0.5, 0.1],
    ],
)
def test_ranks_compare_scores_in_their_own_dtype(row):
    rows = [row] if isinstance(row, list) else row[None]
    assert [ranking.ranks(rows, [i]).item() for i in range(3)] == [1, 2, 3]
    assert jax.jit(lambda i: ranking.ranks(np.ones((1, 3)), i))(np.array([1])).item() == 2


@pytest.mark.parametrize(
    "metric",
    [
        ranking.metrics,
        ranking.sum_recall,
        ranking.mean_reciprocal_rank,
        lambda rank: ranking.recall_at_k(rank, 1),
    ],
)
def test_metrics_refuse_invalid_ranks(metric):
    for ranks in ([0, 1], [np.nan, 1], []):
        with pytest.raises(ValueError, match="^ranks start at 1, got|got none$"):
            metric(np.array(ranks))
