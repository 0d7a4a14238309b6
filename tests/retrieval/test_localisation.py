"""First moments against annotated ones: plain cases, and the metrics of many."""

import numpy as np
import pytest

from hlformer_jax.data.annotations import Span
from hlformer_jax.retrieval import localisation
from hlformer_jax.retrieval.moments import Moment


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
