"""What an indexing run says of its speed."""

import pytest

from hlformer_jax.search.extract import Progress, Report


def test_speed_is_in_multiples_of_real_time_and_finite_at_the_start():
    progress = Progress(1, 3, "a.mp4", 4.0, 60.0, seconds=90.0, elapsed=30.0)
    assert progress.speed == pytest.approx(3)
    assert Report(indexed=1, seconds=90.0, elapsed=30.0).speed == pytest.approx(3)
    assert progress._replace(seconds=0.0, elapsed=0.0).speed == Report().speed == 0
