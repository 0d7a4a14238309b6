"""Moments: what holds of them for any scores, and cases that are plain to see."""

import numpy as np
import pytest

from hlformer_jax.retrieval.moments import GAP, moments


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
