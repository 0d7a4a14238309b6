"""What is watched of a run: it is logged one chunk late, and what is not finite ends it."""

from types import SimpleNamespace

import numpy as np
import pytest
import runs

from hlformer_jax.retrieval.results import Result
from hlformer_jax.training.monitor import Monitor, NonFiniteLossError
from hlformer_jax.training.progress import Progress


@pytest.fixture
def monitor(tmp_path):
    monitor = Monitor(tmp_path, runs.tree(), steps_per_epoch=3, first=0, progress=Progress())
    yield monitor
    monitor.close()


def _chunk(first, *losses):
    scalars = {"loss": np.asarray(losses, np.float32), "loss/near": np.ones(len(losses))}
    return SimpleNamespace(first=first, num_steps=len(losses), features=None, indices=None), scalars


def test_a_chunk_is_recorded_when_the_next_one_is_under_way(monitor, tmp_path):
    monitor.watch(*_chunk(0, 0.5, 0.25), wait=False)
    assert runs.records(tmp_path) == []
    monitor.watch(*_chunk(2, 4.0, 2.0), wait=False)
    assert [line["loss"] for line in runs.records(tmp_path)] == [0.25]  # every second step
    monitor.watch(*_chunk(4, 1.0, 8.0), wait=True)
    found = [(line["step"], line["epoch"], line["loss"]) for line in runs.records(tmp_path)]
    assert found == [(1, 0, 0.25), (3, 1, 2.0), (5, 1, 8.0)]
    assert monitor.position() == (tmp_path / "metrics.jsonl").stat().st_size


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_step_and_the_term_that_are_not_finite_are_named(monitor, value):
    chunk, scalars = _chunk(3, 1.0, value)
    scalars["loss/near"][1] = value
    with pytest.raises(NonFiniteLossError, match=r"step 4 \(epoch 1\): loss/near is not finite"):
        monitor.watch(chunk, scalars, wait=True)


def test_what_lies_beyond_the_last_step_of_a_chunk_is_not_looked_at(monitor, tmp_path):
    chunk, scalars = _chunk(0, 1.0, np.nan)
    chunk.num_steps = 1
    monitor.watch(chunk, scalars, wait=True)
    assert runs.records(tmp_path) == []


def test_a_validation_is_recorded_under_its_own_name(monitor, tmp_path):
    result = Result({"nearest": 70.0}, 10, 11)
    monitor.validated(2, 0, result, 0.1, Progress().validated(0, 70.0))
    assert runs.records(tmp_path) == [{"step": 2, "epoch": 0, "validation/nearest": 70.0}]
