"""Scalars of a run: metrics.jsonl, which is the record, and TensorBoard, which is a view of it."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from absl import logging
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar


class ScalarLog:
    """Scalars of a run: metrics.jsonl, which is the record, and TensorBoard, which is a view of it.

    The JSON lines hold nothing that depends on the clock, and a run that resumes from a checkpoint
    first drops the lines written after it: an interrupted run leaves the same file as an
    uninterrupted one.
    """

    def __init__(self, workdir: Path, position: int, step: int, writes: bool = True) -> None:
        """Opens both where they stood; of several processes one `writes`."""
        self._file: Any = None
        if not writes:
            return
        path = workdir / "metrics.jsonl"
        path.touch()
        if path.stat().st_size < position:
            raise OSError(
                f"{path} is shorter than when the newest checkpoint was written: restore it, or"
                " choose another --workdir"
            )
        self._file = path.open("r+", encoding="utf-8")
        self._file.truncate(position)
        self._file.seek(position)
        self._board = _Board(workdir / "tensorboard", step)

    def write(self, step: int, scalars: Mapping[str, float], **where: int) -> None:
        """Records scalars at a step; `where` (the epoch) goes into the JSON line alone."""
        if self._file is None:
            return
        line = {"step": step, **where, **scalars}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self.board(step, scalars)

    def board(self, step: int, scalars: Mapping[str, float]) -> None:
        """Shows scalars in TensorBoard alone: rates, which no two runs share."""
        if self._file is not None:
            self._board.show(step, scalars)

    def position(self) -> int:
        """Length of the record so far, in bytes; what is before it is on disk."""
        if self._file is None:
            return 0
        self._file.flush()
        os.fsync(self._file.fileno())
        self._board.flush()
        return self._file.tell()

    def close(self) -> None:
        """Closes both."""
        if self._file is None:
            return
        self._file.close()
        self._board.close()


class _Board:
    """A TensorBoard file. It is a view: a failure to write it is said, and ends no run.

    tensorboardX's own writer hands events to a thread; when that has died of a full disk, the run
    would wait for it for ever.
    """

    def __init__(self, directory: Path, step: int) -> None:
        """Starts a file, which hides what earlier ones have from that step on."""
        self._writer: EventsWriter | None = None
        with self._given_up():
            directory.mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(directory / "events"))
            start = SessionLog(status=SessionLog.START)
            self._writer.write_event(Event(step=step, file_version="brain.Event:2"))
            self._writer.write_event(Event(step=step, session_log=start))

    def show(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds scalars of a step, by names without the @ that TensorBoard does not know."""
        with self._given_up():
            if self._writer is None:
                return
            for name, value in scalars.items():
                summary = scalar(name.replace("@", "_"), value)
                self._writer.write_event(Event(step=step, wall_time=time.time(), summary=summary))

    def flush(self) -> None:
        """Brings what there is to the disk."""
        with self._given_up():
            if self._writer:
                self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        with self._given_up():
            if self._writer:
                self._writer.close()

    @contextmanager
    def _given_up(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            writer, self._writer = self._writer, None
            with suppress(OSError):
                if writer:
                    writer.close()
            logging.warning("TensorBoard's file is given up: %s", error)
