"""Metric logging of a run, and checks for non-finite values.

metrics.jsonl is the record. Its lines hold nothing that depends on the clock, and a run that
resumes from a checkpoint first drops the lines written after it: an interrupted run leaves the same
file as an uninterrupted one. TensorBoard is a view of it.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from ml_collections import ConfigDict
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar
from tqdm import tqdm

from hlformer_jax import files, parallel
from hlformer_jax.errors import UserError
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.training.checkpoints import Progress
from hlformer_jax.training.step import Chunk, Scalars


class NonFiniteLossError(UserError, ArithmeticError):
    """A loss became NaN or infinite; the message names the step and the term."""


class ScalarLog:
    """metrics.jsonl, and TensorBoard beside it; of several processes one `writes`.

    TensorBoard's file is a view: a failure to write it is said, and ends no run. (tensorboardX's
    own writer hands events to a thread; when that has died of a full disk, the run would wait for
    it for ever.) A new file hides what earlier ones have from its first step on.
    """

    def __init__(self, workdir: Path, position: int, step: int, writes: bool = True) -> None:
        self._file: Any = None
        self._events: EventsWriter | None = None
        if not writes:
            return
        path = workdir / "metrics.jsonl"
        files.check_output(path, "any")  # no link
        path.touch()
        if path.stat().st_size < position:
            raise OSError(
                f"{path} is shorter than when the newest checkpoint was written: restore it, or"
                " choose another --workdir"
            )
        self._file = path.open("r+", encoding="utf-8")
        self._file.truncate(position)
        self._file.seek(position)
        with self._as_far_as_it_goes():
            (workdir / "tensorboard").mkdir(exist_ok=True)
            self._events = EventsWriter(str(workdir / "tensorboard" / "events"))
            start = SessionLog(status=SessionLog.START)
            self._events.write_event(Event(step=step, file_version="brain.Event:2"))
            self._events.write_event(Event(step=step, session_log=start))

    def write(self, step: int, scalars: Mapping[str, float], **where: int) -> None:
        """Records scalars at a step; `where` (the epoch) goes into the JSON line alone."""
        if self._file is None:
            return
        self._file.write(json.dumps({"step": step, **where, **scalars}) + "\n")
        self._file.flush()
        self.board(step, scalars)

    def board(self, step: int, scalars: Mapping[str, float]) -> None:
        """Shows scalars in TensorBoard alone: rates, which no two runs share."""
        with self._as_far_as_it_goes():
            for name, value in scalars.items():
                if self._events is None:
                    break
                summary = scalar(name.replace("@", "_"), value)  # it knows no @
                self._events.write_event(Event(step=step, wall_time=time.time(), summary=summary))

    def position(self) -> int:
        """Length of the record so far, in bytes; what is before it is on disk."""
        if self._file is None:
            return 0
        self._file.flush()
        os.fsync(self._file.fileno())
        with self._as_far_as_it_goes():
            if self._events:
                self._events.flush()
        return self._file.tell()

    def close(self) -> None:
        """Closes both."""
        if self._file:
            self._file.close()
        with self._as_far_as_it_goes():
            if self._events:
                self._events.close()

    @contextlib.contextmanager
    def _as_far_as_it_goes(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            events, self._events = self._events, None
            with contextlib.suppress(OSError):
                if events:
                    events.close()
            logging.warning("TensorBoard's file is given up: %s", error)


class MetricsLogger:
    """Logs the scalars of the steps, one chunk behind the devices, and shows the progress bar."""

    def __init__(
        self,
        directory: Path,
        config: ConfigDict,
        steps_per_epoch: int,
        first: int,
        progress: Progress,
    ) -> None:
        self._directory, self._config = directory, config
        self._steps_per_epoch = steps_per_epoch
        self._log = ScalarLog(directory, progress.log_position, first, parallel.is_first())
        self._pending: list[tuple[Chunk, Scalars]] = []
        self._best, self._since, self._first = progress.best_metric, time.monotonic(), first
        self._bar = tqdm(
            total=steps_per_epoch * config.train.epochs,
            initial=first,
            desc="Training",
            unit="step",
            dynamic_ncols=True,
            disable=not parallel.is_first(),
            mininterval=0.2 if sys.stderr.isatty() else 30.0,
        )

    def steps(self, chunk: Chunk, scalars: Scalars, wait: bool) -> None:
        """Takes the scalars of a chunk, which may still be computed; logs those of chunks before.

        With `wait` it logs these too. A scalar that is NaN or infinite is a NonFiniteLossError.
        """
        self._pending.append((chunk, scalars))
        while len(self._pending) > (0 if wait else 1):
            self._record(*self._pending.pop(0))

    def _record(self, chunk: Chunk, scalars: Scalars) -> None:
        columns = {name: parallel.to_host(values) for name, values in scalars.items()}
        for index in range(chunk.num_steps):
            step = chunk.first + index
            epoch = step // self._steps_per_epoch
            values = {name: float(column[index]) for name, column in columns.items()}
            self._check_finite(step, epoch, values)
            if (step + 1) % self._config.train.log_every == 0:
                self._log.write(step, values, epoch=epoch)
        speed = (step + 1 - self._first) / (time.monotonic() - self._since)
        rate = speed * self._config.train.batch_size
        self._log.board(step, {"rate/examples_per_second": rate})
        self._bar.update(chunk.num_steps)
        best = "-" if self._best is None else f"{self._best:.4g}"
        self._bar.set_postfix(
            {
                "epoch": f"{epoch + 1}/{self._config.train.epochs}",
                "loss": f"{values['loss']:.3f}",
                f"best_{self._config.eval.select}": best,
                "examples_per_s": f"{rate:.0f}",
            },
            refresh=False,
        )

    def _check_finite(self, step: int, epoch: int, values: dict[str, float]) -> None:
        broken = [name for name, value in values.items() if not np.isfinite(value)]
        if broken:
            terms = [name for name in broken if name != "loss"] or broken
            raise NonFiniteLossError(
                f"step {step} (epoch {epoch}): {', '.join(terms)} is not finite; the newest"
                f" checkpoint in {self._directory}, if there is one, is from before it. Lower"
                " config.optim.learning_rate, with another --workdir, or look at its batch"
            )

    def validation(
        self, step: int, epoch: int, result: Result, seconds: float, progress: Progress
    ) -> None:
        """Logs a validation after a step; the clock of the rates starts anew."""
        scalars = {f"validation/{name}": value for name, value in result.metrics.items()}
        self._log.write(step, scalars, epoch=epoch)
        self._log.board(step, {"rate/validation_seconds": seconds})
        self._best = progress.best_metric

    def restart_clock(self, step: int) -> None:
        """Rates are those of the steps from this one on."""
        self._since, self._first = time.monotonic(), step

    def position(self) -> int:
        """Length of metrics.jsonl; what is before it is on disk."""
        return self._log.position()

    def close(self) -> None:
        """Closes the log and the bar."""
        self._log.close()
        self._bar.close()


@contextlib.contextmanager
def traced(directory: Path, state: object) -> Iterator[None]:
    """Traces what is computed inside into `directory`, for TensorBoard or Perfetto."""
    jax.block_until_ready(state)
    with jax.profiler.trace(str(directory)):
        yield
