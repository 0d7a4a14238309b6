"""The clock, and the floor."""

from types import SimpleNamespace

import pytest

from hlformer_jax.benchmark import measure


def test_the_floor_is_the_slower_of_arithmetic_and_memory():
    most = measure.ceilings()
    assert most.flops > 1e8 and most.bytes > 1e8
    assert measure.floor(most.flops, 1.0).seconds == pytest.approx(1)
    assert measure.floor(1.0, 2 * most.bytes).seconds == pytest.approx(2)


def test_the_clock_leaves_the_first_run_out_and_waits_for_the_results(monkeypatch):
    now, took = [0.0], iter((64.0, 0.5, 0.125, 0.25, 0.625, 0.375))

    class Result:
        def block_until_ready(self):
            now[0] += next(took)
            return self

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert measure.timed(Result, repeats=5) == measure.Timing(0.375, 0.125, 0.625, 5)
    assert next(took, None) is None
