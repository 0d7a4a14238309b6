"""A sweep of three variants and two seeds."""

import pytest
import sweeps

from hlformer_jax.sweep import definition


@pytest.fixture
def small():
    """The sweep and its six runs."""
    sweep = sweeps.sweep(
        {"full": {}, "w/ a|b": {"model": {"fusion": "mean"}}, "bad": {"model": {"gaze": False}}},
        published={"full": definition.metrics(1.0, 2.0, 3.0, 4.0, 10.0), "bad": {"SumR": 9.0}},
        seeds=(0, 1),
    )
    return sweep, definition.expand(sweep)
