"""Files are written whole or not at all; a lock on a directory has one holder at a time."""

import fcntl
import json
import math
import threading

import numpy as np
import pytest

from hlformer_jax import files


def test_json_has_null_for_what_it_lacks(tmp_path):
    path = tmp_path / "new" / "content.json"
    files.write_json(path, {"x": math.nan, "y": [1.5, (math.nan, 2)], "z": {"w": "text"}})
    assert json.loads(path.read_text()) == {"x": None, "y": [1.5, [None, 2]], "z": {"w": "text"}}


def test_arrays_are_written_under_exactly_that_name(tmp_path):
    files.write_npz(tmp_path / "scores", {"x": np.arange(3)})
    with np.load(tmp_path / "scores") as file:
        np.testing.assert_array_equal(file["x"], np.arange(3))


def test_a_write_that_fails_leaves_what_was_there_and_no_draft(tmp_path):
    files.write_bytes(tmp_path / "file", b"before")
    with pytest.raises(TypeError):
        files.write_bytes(tmp_path / "file", object())
    with pytest.raises(ValueError, match="Out of range float values"):
        files.write_json(tmp_path / "file", {"x": math.inf})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"before"


def test_a_place_for_a_file_is_tried_and_left_as_it_was(tmp_path):
    files.check_place(tmp_path / "new" / "scores.npz")
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(OSError, match="is a directory: give the name of a file"):
        files.check_place(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        files.check_place(tmp_path / "file" / "scores.npz")


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path):
    with files.lock(tmp_path / "new") as held:
        assert held
        with pytest.raises(BlockingIOError), files.lock(tmp_path / "new"):
            pass
    with files.lock(tmp_path / "new"):
        pass


def test_a_second_holder_may_wait(tmp_path):
    waits, found = threading.Event(), []

    def second():
        with files.lock(tmp_path, waits.set):
            found.append("second")

    thread = threading.Thread(target=second)
    with files.lock(tmp_path):
        thread.start()
        assert waits.wait(10)
        found.append("first")
    thread.join(10)
    assert found == ["first", "second"]


def test_a_disk_without_locks_keeps_no_one_out(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with files.lock(tmp_path) as held:
        assert not held
