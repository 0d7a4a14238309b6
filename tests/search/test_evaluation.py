"""Recalls of a library on captions, and the overlap of moments."""

import pytest

from hlformer_jax.retrieval.moments import Moment
from hlformer_jax.search.evaluation import intersection_over_union


def test_the_overlap_of_moments():
    of = lambda start, end: intersection_over_union(Moment(start, end, start, 1.0), 10.0, 20.0)
    assert of(10, 20) == 1 and of(0, 10) == 0 and of(30, 40) == 0
    assert of(15, 25) == pytest.approx(5 / 15) and of(12, 16) == pytest.approx(0.4)
