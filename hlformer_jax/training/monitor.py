"""What is watched of a run while it trains: finite losses, the log, the progress bar."""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from hlformer_jax.errors import UserError
from hlformer_jax.parallel import devices, processes
from hlformer_jax.retrieval.results import Result
from hlformer_jax.run.metrics_log import ScalarLog
from hlformer_jax.training.progress import Progress
from hlformer_jax.training.step import Chunk, Scalars


class NonFiniteLossError(UserError, ArithmeticError):
    """A loss became NaN or infinite; the message names the step and the term."""


class Monitor:
    """Looks at the scalars of every step, one chunk behind the devices, and logs those due."""

    def __init__(
        self,
        directory: Path,
        config: ConfigDict,
        steps_per_epoch: int,
        first: int,
        progress: Progress,
    ) -> None:
        """Opens the log where the run stood, and the bar.

        Args:
          directory: the run's directory.
          config: the whole configuration.
          steps_per_epoch: number of steps in an epoch.
          first: number of the next step.
          progress: progress of the run.
        """
        self._directory, self._config = directory, config
        self._steps_per_epoch = steps_per_epoch
        self._log = ScalarLog(directory, progress.log_position, first, processes.is_first())
        self._pending: list[tuple[Chunk, Scalars]] = []
        self._best, self._since, self._first = progress.best_metric, time.monotonic(), first
        self._bar = tqdm(
            total=steps_per_epoch * config.train.epochs,
            initial=first,
            desc="Training",
            unit="step",
            dynamic_ncols=True,
            disable=not processes.is_first(),
            mininterval=0.2 if sys.stderr.isatty() else 30.0,
        )

    def watch(self, chunk: Chunk, scalars: Scalars, wait: bool) -> None:
        """Takes the scalars of a chunk, and records those of the chunks before it.

        Args:
          chunk: the chunk.
          scalars: the scalars of its steps, which may still be computed.
          wait: whether to wait for these too.

        Raises:
          NonFiniteLossError: when a scalar is NaN or infinite.
        """
        self._pending.append((chunk, scalars))
        while len(self._pending) > (0 if wait else 1):
            self._record(*self._pending.pop(0))

    def _record(self, chunk: Chunk, scalars: Scalars) -> None:
        columns = {name: devices.host(values) for name, values in scalars.items()}
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

    def validated(
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
