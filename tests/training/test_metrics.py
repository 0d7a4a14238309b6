"""The log of a run: what resumes leaves the same lines, and what is not finite ends it."""

import json
import shutil

import numpy as np
import pytest
import runs
from tensorboardX.proto.event_pb2 import Event

from hlformer_jax.data.feed import Chunk
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.training import loop
from hlformer_jax.training.checkpoints import Progress
from hlformer_jax.training.loop import MetricsLogger, NonFiniteLossError


def test_a_log_that_resumes_drops_what_came_after_its_checkpoint(tmp_path):
    log = loop.ScalarLog(tmp_path, 0, 0)
    log.write(1, {"loss": 1.0}, epoch=0)
    position = log.position()
    log.write(2, {"loss": 2.0}, epoch=0)
    log.close()
    log = loop.ScalarLog(tmp_path, position, 1)
    log.write(2, {"loss": 3.0}, epoch=0)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "epoch": 0, "loss": 1.0}, {"step": 2, "epoch": 0, "loss": 3.0}]


def test_a_log_that_was_cut_is_not_filled_up(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(OSError, match="shorter"):
        loop.ScalarLog(tmp_path, 30, 0)


def test_of_several_processes_one_writes(tmp_path):
    log = loop.ScalarLog(tmp_path, 0, 0, writes=False)
    log.write(1, {"loss": 1.0})
    assert log.position() == 0
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_for_tensorboard_ends_no_run(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space left")

    log = loop.ScalarLog(tmp_path, 0, 0)
    monkeypatch.setattr(loop.EventsWriter, "write_event", fail)
    for step in range(50):
        log.write(step, {"loss": 1.0})
        log.board(step, {"rate/x": 2.0})
    assert log.position() == (tmp_path / "metrics.jsonl").stat().st_size > 0
    log.close()
    shutil.rmtree(tmp_path / "tensorboard")
    (tmp_path / "tensorboard").touch()  # nor when there can be no file at all
    loop.ScalarLog(tmp_path, 0, 0).close()


def test_tensorboard_shows_what_is_recorded(tmp_path):
    log = loop.ScalarLog(tmp_path, 0, 7)
    log.write(8, {"validation/R@1": 2.5}, epoch=0)
    log.position()
    [path] = (tmp_path / "tensorboard").iterdir()
    content, events = path.read_bytes(), []
    while content:  # length, its sum, the event, its sum
        size = int.from_bytes(content[:8], "little")
        events.append(Event.FromString(content[12 : 12 + size]))
        content = content[16 + size :]
    assert [event.session_log.status for event in events if event.step == 7] == [0, 1]
    [value] = events[-1].summary.value
    assert (events[-1].step, value.tag, value.simple_value) == (8, "validation/R_1", 2.5)
    log.close()


@pytest.fixture
def logger(tmp_path):
    logger = MetricsLogger(tmp_path, runs.tree(), steps_per_epoch=3, first=0, progress=Progress())
    yield logger
    logger.close()


def _chunk(first, *losses):
    scalars = {"loss": np.asarray(losses, np.float32), "loss/near": np.ones(len(losses))}
    return Chunk(first, len(losses), None, None), scalars


def test_a_chunk_is_recorded_when_the_next_one_is_under_way(logger, tmp_path):
    logger.steps(*_chunk(0, 0.5, 0.25), wait=False)
    assert runs.records(tmp_path) == []
    logger.steps(*_chunk(2, 4.0, 2.0), wait=False)
    assert [line["loss"] for line in runs.records(tmp_path)] == [0.25]  # every second step
    logger.steps(*_chunk(4, 1.0, 8.0), wait=True)
    found = [(line["step"], line["epoch"], line["loss"]) for line in runs.records(tmp_path)]
    assert found == [(1, 0, 0.25), (3, 1, 2.0), (5, 1, 8.0)]
    assert logger.position() == (tmp_path / "metrics.jsonl").stat().st_size


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_step_and_the_term_that_are_not_finite_are_named(logger, value):
    chunk, scalars = _chunk(3, 1.0, value)
    scalars["loss/near"][1] = value
    with pytest.raises(NonFiniteLossError, match="step 4 .*loss/near"):
        logger.steps(chunk, scalars, wait=True)


def test_what_lies_beyond_the_last_step_of_a_chunk_is_not_looked_at(logger, tmp_path):
    chunk, scalars = _chunk(0, 1.0, np.nan)
    logger.steps(chunk._replace(num_steps=1), scalars, wait=True)
    assert runs.records(tmp_path) == []


def test_a_validation_is_recorded_under_its_own_name(logger, tmp_path):
    result = Result({"nearest": 70.0}, 10, 11)
    logger.validation(2, 0, result, 0.1, Progress().validated(0, 70.0))
    assert runs.records(tmp_path) == [{"step": 2, "epoch": 0, "validation/nearest": 70.0}]
