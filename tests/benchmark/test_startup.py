"""Preparation, timed on files of a few kilobytes, and compiling of the smallest model."""

import jax
import pytest
import runs

from hlformer_jax.benchmark import startup
from hlformer_jax.benchmark.measure import Options
from hlformer_jax.config import default


def test_the_rate_is_that_of_the_bytes_read_and_the_floor_that_of_copying_them():
    config = default()
    config.data.update(visual_dim=6, text_dim=5, max_frames=30)
    [row] = startup.prepare(config, Options(videos=9))
    assert row.timing.repeats == 3 and row.timing.low > 0
    assert row.facts["MB/s"] == row.facts["MB"] / row.timing.median
    assert row.floor.bytes == 2e6 * row.facts["MB"]
    assert 0 < row.floor.seconds < row.timing.median


@pytest.mark.slow  # it compiles for seconds
def test_compiling_is_timed_part_by_part():
    keeps = jax.config.jax_enable_compilation_cache
    try:
        rows = list(startup.compilation(runs.retrieval(""), Options()))
    finally:
        jax.config.update("jax_enable_compilation_cache", keeps)
    assert [row.what for row in rows] == ["initial parameters", "training", "evaluation"]
