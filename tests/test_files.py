"""Atomic writes of files, and the lock on a directory, which one process holds at a time."""

import errno
import fcntl
import hashlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import processes
import pytest

from hlformer_jax import files


def test_nan_is_null_in_json(tmp_path):
    path = tmp_path / "new" / "content.json"
    files.write_json(path, {"x": math.nan, "y": [1.5, (math.nan, 2)], "z": {"w": "text"}})
    assert json.loads(path.read_text()) == {"x": None, "y": [1.5, [None, 2]], "z": {"w": "text"}}


def test_home_of_an_unknown_user_is_left_as_it_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    paths = {"~/a": "/home/ann/a", "~": "/home/ann", "a/~": "a/~", "~nobody-of-this/a": None}
    for path, expected in paths.items():
        assert str(files.expand(path)) == str(files.expand(Path(path))) == (expected or path)


def test_arrays_are_written_under_exactly_that_name(tmp_path):
    files.write_npz(tmp_path / "scores", {"x": np.arange(3)})
    with np.load(tmp_path / "scores") as file:
        np.testing.assert_array_equal(file["x"], np.arange(3))


def test_failed_write_keeps_the_old_file_and_no_draft(tmp_path):
    files.write_bytes(tmp_path / "file", b"before")
    with pytest.raises(TypeError):
        files.write_bytes(tmp_path / "file", object())
    with pytest.raises(ValueError, match="float"):
        files.write_json(tmp_path / "file", {"x": math.inf})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"before"


def test_check_output_leaves_no_file(tmp_path):
    files.check_output(tmp_path / "new" / "scores.npz")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        files.check_output(tmp_path / "file" / "scores.npz")


@pytest.mark.parametrize("kind", ["link", "dangling", "directory", "pipe"])
def test_only_a_regular_file_is_replaced(tmp_path, kind):
    output, foreign_file = tmp_path / "out", tmp_path / "theirs"
    foreign_file.write_bytes(b"theirs")
    make = {
        "link": lambda: output.symlink_to(foreign_file),
        "dangling": lambda: output.symlink_to(tmp_path / "nowhere"),
        "directory": output.mkdir,
        "pipe": lambda: os.mkfifo(output),
    }
    make[kind]()
    before = output.lstat()
    replace = files.Replace
    for allowed in (replace.ANY, replace.NOTHING, replace.OWN, replace.ANY | replace.OWN):
        with pytest.raises(files.OutputError):
            files.check_output(output, allowed)
        with pytest.raises(files.OutputError):
            files.write_bytes(output, b"ours", allowed)
    assert output.lstat() == before and foreign_file.read_bytes() == b"theirs"
    assert not (tmp_path / "nowhere").exists()


def test_existing_file_is_replaced_only_if_allowed(tmp_path):
    output = tmp_path / "out"
    output.write_bytes(b"theirs")
    for replace in (files.Replace.NOTHING, files.Replace.OWN):
        with pytest.raises(files.OutputError, match="overwrite"):
            files.check_output(output, replace)
        with pytest.raises(files.OutputError, match="overwrite"):
            files.write_bytes(output, b"ours", replace)
    assert output.read_bytes() == b"theirs"
    files.write_bytes(output, b"ours", files.replacing(True))
    assert output.read_bytes() == b"ours"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_error_of_a_write_names_the_file(tmp_path):
    full = open("/dev/full", "wb", buffering=0)
    with full, pytest.raises(OSError, match="No space left") as raised:
        with files.atomic_write(tmp_path / "out.csv"):
            full.write(b"x")
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.filename == str(tmp_path / "out.csv") and not list(tmp_path.iterdir())


def test_directory_without_room_for_a_block_is_named(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # as a full disk: files stay empty
    try:
        with pytest.raises(OSError) as raised:
            files.check_writable(tmp_path / "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.filename == str(tmp_path / "new") and not list(tmp_path.iterdir())


def test_file_that_appears_during_a_write_stays(tmp_path):
    with (
        pytest.raises(files.OutputError),
        files.atomic_write(tmp_path / "out", files.Replace.NOTHING) as draft,
    ):
        draft.write_bytes(b"ours")
        (tmp_path / "out").write_bytes(b"theirs")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"theirs"]


def test_own_file_is_rewritten_until_somebody_changes_it(tmp_path):
    table = tmp_path / "table.md"
    for content in (b"one", b"two", b"one"):
        files.write_bytes(table, content, files.Replace.OWN)
    table.write_bytes(b"one, with a remark")
    with pytest.raises(files.OutputError):
        files.write_bytes(table, b"three", files.Replace.OWN)
    assert table.read_bytes() == b"one, with a remark"
    files.write_bytes(table, b"three", files.replacing(True, listed=True))
    files.write_bytes(table, b"four", files.Replace.OWN)
    assert table.read_bytes() == b"four"


def test_own_file_may_have_a_line_separator_in_its_name(tmp_path):
    table = tmp_path / "a\u2028b.md"
    for content in (b"one", b"two"):
        files.write_bytes(table, content, files.Replace.OWN)
    assert table.read_bytes() == b"two"


def test_own_file_stays_own_after_a_killed_write(tmp_path, monkeypatch):
    files.write_bytes(tmp_path / "x", b"one", files.Replace.OWN)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("pathlib.Path.replace", killed)
        files.write_bytes(tmp_path / "x", b"two", files.Replace.OWN)
    files.write_bytes(tmp_path / "x", b"three", files.Replace.OWN)


def test_own_file_rewritten_by_another_process_stays_own(tmp_path, monkeypatch):
    path, digest = tmp_path / "table.md", files.digest
    files.write_bytes(path, b"first", files.Replace.OWN)

    def replace_and_digest(own_path):
        monkeypatch.undo()
        files.write_bytes(path, b"second", files.Replace.OWN)
        return digest(own_path)

    monkeypatch.setattr(files, "digest", replace_and_digest)
    files.check_output(path, files.Replace.OWN)
    assert path.read_bytes() == b"second"


def test_list_of_own_files_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / files.WRITTEN).symlink_to("theirs")
    with pytest.raises(OSError):
        files.write_bytes(tmp_path / "x", b"ours", files.Replace.OWN)
    assert (tmp_path / "theirs").read_bytes() == b"theirs"


@pytest.mark.parametrize(
    ("make", "kind"), [(os.mkdir, "a folder"), (os.mkfifo, "a pipe, socket or device")]
)
def test_reading_names_what_is_not_a_file(tmp_path, make, kind):
    make(tmp_path / "place")
    with pytest.raises(OSError, match=f"it is {kind}, not a file"):
        files.read_bytes(tmp_path / "place")


def test_list_of_own_files_that_is_a_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / files.WRITTEN)
    (tmp_path / "table.md").write_text("theirs")
    with pytest.raises(files.OutputError, match="written"):
        files.check_output(tmp_path / "table.md", files.Replace.OWN)
    with pytest.raises(OSError):
        files.write_bytes(tmp_path / "new.md", b"ours", files.Replace.OWN)
    assert sorted(os.listdir(tmp_path)) == sorted([files.WRITTEN, "table.md"])


def test_check_directory_refuses_links_and_files(tmp_path):
    files.check_directory(tmp_path)
    files.check_directory(tmp_path / "new")
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(files.OutputError):
            files.check_directory(tmp_path / name)


def test_deeply_nested_json_is_a_value_error():
    with pytest.raises(ValueError):
        files.parse_json("[" * 100_000 + "]" * 100_000)
    assert files.parse_json('{"x": [1, null]}') == {"x": [1, None]}


def test_second_lock_is_refused_until_the_first_is_released(tmp_path):
    with files.lock(tmp_path / "new") as is_locked:
        assert is_locked
        with pytest.raises(BlockingIOError), files.lock(tmp_path / "new"):
            pass
    with files.lock(tmp_path / "new"):
        pass


def test_second_lock_may_wait(tmp_path):
    is_waiting, holders = threading.Event(), []

    def second():
        with files.lock(tmp_path, is_waiting.set):
            holders.append("second")

    thread = threading.Thread(target=second)
    with files.lock(tmp_path):
        thread.start()
        assert is_waiting.wait(10)
        holders.append("first")
    thread.join(10)
    assert holders == ["first", "second"]


def test_disk_without_locks_excludes_nobody(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with files.lock(tmp_path) as is_locked:
        assert not is_locked


@pytest.mark.parametrize("size", [0, 1, 300_000])
def test_digest_is_the_sha256_of_the_file(tmp_path, size):
    content = bytearray(os.urandom(size))
    path = tmp_path / "file"
    path.write_bytes(content)
    assert files.digest(path) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), MemoryError()])
def test_unreadable_npz_file_is_not_called_damaged(tmp_path, monkeypatch, error):
    files.write_npz(tmp_path / "a.npz", {"x": np.ones(3)})

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(np, "load", fail)  # a disk error at the time of reading
    with pytest.raises(type(error)):
        files.read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.write_text("a sentence"), "it is not an .npz file"),
        (lambda path: path.write_bytes(b""), "it is not an .npz file"),
        (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00"), "it is not an .npz file"),
        (lambda path: path.write_bytes(b"PK\3\4 cut off"), "File is not a zip file"),
        (lambda path: np.savez(path, x=np.array([{}])), "one of its arrays has Python objects"),
    ],
    ids=["text", "empty", "npy", "damaged", "objects"],
)
def test_npz_file_is_refused_without_advice_to_unpickle(tmp_path, make, reason):
    make(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=f"^{reason}") as error:
        files.read_npz(tmp_path / "a.npz")
    assert "pickle" not in str(error.value)


def test_signal_in_a_forked_child_keeps_the_parents_draft(tmp_path):
    program = (
        "import os, pathlib, signal, sys\n"
        "from hlformer_jax import files\n"
        "files.discard_drafts_on_signals()\n"
        "with files.atomic_write(pathlib.Path(sys.argv[1])) as draft:\n"
        "    draft.write_text('content')\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "out")],
        env=processes.environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert process.stdout.split() == [str(-signal.SIGTERM)]
    assert (tmp_path / "out").read_text() == "content"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_discards_drafts_and_ends_the_process(tmp_path, number):
    code = (
        "import os, pathlib, sys, threading, time\n"
        "from hlformer_jax import files\n"
        "files.discard_drafts_on_signals()\n"
        "def write(name):\n"
        "    with files.atomic_write(pathlib.Path(sys.argv[1], name)) as draft:\n"
        "        draft.write_bytes(b'new')\n"
        "        os.write(1, b'begins\\n')\n"
        "        time.sleep(100)\n"
        "threading.Thread(target=write, args=['a'], daemon=True).start()\n"
        "write('b')\n"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, env=processes.environment())
    assert [process.stdout.readline() for _ in range(2)] == [b"begins\n"] * 2
    assert len(list(tmp_path.iterdir())) == 2
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == -number and not list(tmp_path.iterdir())
