"""The log of a run: what resumes leaves the same lines, and TensorBoard is a view of them."""

import json
import shutil

import pytest
from tensorboardX.proto.event_pb2 import Event

from hlformer_jax.run import metrics_log


def test_a_log_that_resumes_drops_what_came_after_its_checkpoint(tmp_path):
    log = metrics_log.ScalarLog(tmp_path, 0, 0)
    log.write(1, {"loss": 1.0}, epoch=0)
    position = log.position()
    log.write(2, {"loss": 2.0}, epoch=0)
    log.close()
    log = metrics_log.ScalarLog(tmp_path, position, 1)
    log.write(2, {"loss": 3.0}, epoch=0)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "epoch": 0, "loss": 1.0}, {"step": 2, "epoch": 0, "loss": 3.0}]


def test_a_log_that_was_cut_is_not_filled_up(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(OSError, match="shorter than"):
        metrics_log.ScalarLog(tmp_path, 30, 0)


def test_of_several_processes_one_writes(tmp_path):
    log = metrics_log.ScalarLog(tmp_path, 0, 0, writes=False)
    log.write(1, {"loss": 1.0})
    assert log.position() == 0
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_for_tensorboard_ends_no_run(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space left")

    log = metrics_log.ScalarLog(tmp_path, 0, 0)
    monkeypatch.setattr(metrics_log.EventsWriter, "write_event", fail)
    for step in range(50):
        log.write(step, {"loss": 1.0})
        log.board(step, {"rate/x": 2.0})
    assert log.position() == (tmp_path / "metrics.jsonl").stat().st_size > 0
    log.close()
    shutil.rmtree(tmp_path / "tensorboard")
    (tmp_path / "tensorboard").touch()  # nor when there can be no file at all
    metrics_log.ScalarLog(tmp_path, 0, 0).close()


def test_tensorboard_shows_what_is_recorded(tmp_path):
    log = metrics_log.ScalarLog(tmp_path, 0, 7)
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
