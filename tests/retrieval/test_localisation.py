"""Moments of any scores, and first moments against annotated ones."""

import numpy as np
import pytest

from hlformer_jax.data.annotations import Span
from hlformer_jax.retrieval import localisation
from hlformer_jax.retrieval.localisation import GAP, Moment, moments


def test_a_peak_in_the_middle_is_one_moment_with_the_ends_of_its_frames():
    scores = np.asarray([0.1, 0.1, 0.2, 0.9, 0.8, 0.1, 0.1])
    [moment] = moments(np.arange(7.0), scores, 1.0)
    assert moment == (3.0, 5.0, 3.0, 0.9)


def test_two_peaks_are_two_moments_best_first_and_no_more_than_asked_for():
    scores = np.asarray([0.8, 0.1, 0.1, 0.9, 0.9, 0.9, 0.1, 0.7, 0.1, 0.1])
    found = moments(np.arange(10.0), scores, 1.0)
    assert [(m.start, m.end, m.peak) for m in found] == [(3, 6, 4), (0, 1, 0), (7, 8, 7)]
    assert moments(np.arange(10.0), scores, 1.0, 1) == found[:1]


def test_equal_scores_on_both_sides_of_a_gap_are_two_moments():
    times = np.asarray([0.0, 1.0, 2.0, 10.0, 11.0])
    found = moments(times, np.ones(5), 1.0)
    assert [(m.start, m.end) for m in found] == [(0, 3), (10, 12)]


def test_a_shift_between_two_frames_below_two_periods_is_no_gap():
    times = np.asarray([0.0, 1.0, 2.0, 3.9, 4.0])
    assert len(moments(times, np.ones(5), 1.0)) == 1


@pytest.mark.parametrize("seed", range(60))
def test_of_any_scores_moments_are_separate_within_gaps_and_not_shorter_than_a_period(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 40))
    period = float(rng.choice([0.2, 1.0, 3.0]))
    skipped = np.where(rng.random(count) < 0.15, rng.integers(2, 9, size=count), 0)
    # As frames are sampled: each within a period before its instant.
    times = period * (
        np.arange(count) + np.cumsum(skipped) + rng.uniform(0, 0.9) * rng.random(count)
    )
    scores = rng.normal(size=count).round(int(rng.integers(0, 4)))
    found = moments(times, scores, period, count=100)
    assert found and found[0].score == scores.max()
    assert [m.score for m in found] == sorted((m.score for m in found), reverse=True)
    gaps = np.flatnonzero(np.diff(times) > GAP * period)
    for moment in found:
        assert moment.end - moment.start >= period * (1 - 1e-9)
        assert moment.start <= moment.peak < moment.end
        assert scores[times == moment.peak] == moment.score
        inside = (times >= moment.start) & (times < moment.end)
        assert scores[inside].max() == moment.score
        assert not any(moment.start <= times[g] and times[g + 1] <= moment.end for g in gaps)
    ordered = sorted(found)
    for one, other in zip(ordered[:-1], ordered[1:], strict=True):
        assert one.end <= other.start + 1e-9


def test_the_overlap_of_moments():
    of = lambda start, end: localisation.intersection_over_union(
        Moment(start, end, start, 1.0), 10.0, 20.0
    )
    assert of(10, 20) == 1 and of(0, 10) == 0 and of(30, 40) == 0
    assert of(15, 25) == pytest.approx(5 / 15) and of(12, 16) == pytest.approx(0.4)


def test_frames_stand_at_equal_distances_over_the_length_of_the_video():
    # Ten frames in 30 seconds: frames 4 and 5 are the seconds from 12 to 18.
    scores = np.asarray([[0, 0, 0, 0, 1, 0.9, 0, 0, 0, 0]])
    [moment] = localisation.first_moments(scores, 30.0)
    assert moment == pytest.approx((12.0, 18.0, 12.0, 1.0))
    found = localisation.overlaps(
        np.repeat(scores, 3, axis=0), [Span(12.0, 18.0, 30.0), None, Span(12.0, 24.0, 30.0)]
    )
    np.testing.assert_allclose(found, [1.0, np.nan, 0.5])


def test_metrics_are_of_the_captions_that_have_times():
    known = np.asarray([0.0, 0.3, 0.5, 0.69, 0.7, 1.0])
    overlaps = np.concatenate([known, [np.nan, np.nan]])
    expected = {"IoU 0.3": 500 / 6, "IoU 0.5": 400 / 6, "IoU 0.7": 200 / 6}
    assert localisation.metrics(overlaps) == pytest.approx(expected | {"mIoU": 100 * known.mean()})
    assert localisation.metrics(np.full(3, np.nan)) == {}
    assert tuple(localisation.metrics(overlaps)) == localisation.METRICS
