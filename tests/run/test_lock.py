"""A lock on a directory: one holder at a time."""

import fcntl
import threading

import pytest

from hlformer_jax.run import lock


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path):
    with lock.hold(tmp_path / "new") as held:
        assert held
        with pytest.raises(BlockingIOError), lock.hold(tmp_path / "new"):
            pass
    with lock.hold(tmp_path / "new"):
        pass


def test_a_second_holder_may_wait(tmp_path):
    waits, found = threading.Event(), []

    def second():
        with lock.hold(tmp_path, waits.set):
            found.append("second")

    thread = threading.Thread(target=second)
    with lock.hold(tmp_path):
        thread.start()
        assert waits.wait(10)
        found.append("first")
    thread.join(10)
    assert found == ["first", "second"]


def test_a_disk_without_locks_keeps_no_one_out(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with lock.hold(tmp_path) as held:
        assert not held
