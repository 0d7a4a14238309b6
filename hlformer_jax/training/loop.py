"""Training: the loop around groups of steps that run without the host.

While a group of steps is computed the loop looks at the records of the one before: every loss and
every gradient norm. A run can be killed at any moment: what it does at a step depends on
the configuration, the data and the step alone, so it goes on from its newest checkpoint to the
same end.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict
from tqdm import tqdm

from hlformer_jax import models
from hlformer_jax.data import feed, source
from hlformer_jax.data.feed import Feed, Window
from hlformer_jax.data.schedule import Schedule
from hlformer_jax.data.source import Data
from hlformer_jax.parallel import devices, processes
from hlformer_jax.retrieval import baseline, ranking, table
from hlformer_jax.retrieval.evaluate import model_fields
from hlformer_jax.retrieval.evaluator import Evaluator, Result
from hlformer_jax.run import checkpoint, files, metrics_log, workdir
from hlformer_jax.training import optim, train_state
from hlformer_jax.training.step import Scalars, check, compile_steps


class NonFiniteLossError(ArithmeticError):
    """A loss became NaN or infinite; the message names the step and the term."""


class Stopped(Exception):  # noqa: N818 - it is no error
    """A signal asked the run to stop; the state has been saved.

    Attributes:
      status: what the program should exit with.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.status = 128 + number


class Progress(NamedTuple):
    """What the loop knows beside the state; saved with it.

    Attributes:
      best_epoch: the epoch, from 0, of the best validation SumR; -1 before the first.
      best_sum_recall: that SumR.
      epochs: number of epochs validated.
      log_position: length of metrics.jsonl.
      seconds: what the epochs took to train, validation excluded; it alone depends on the clock.
    """

    best_epoch: int = -1
    best_sum_recall: float = -1.0
    epochs: int = 0
    log_position: int = 0
    seconds: float = 0.0


class Outcome(NamedTuple):
    """What a finished run came to.

    Attributes:
      results: test metrics, first those of the best epoch.
      progress: of the run, at its end.
    """

    results: dict[str, Result]
    progress: Progress


class Trainer:
    """One run: its data, its compiled functions and its directory."""

    def __init__(self, config: ConfigDict, directory: Path, mesh: Mesh | None = None) -> None:
        self.config, self.directory = config, directory
        self.mesh = devices.mesh() if mesh is None else mesh
        check(config, self.mesh.size)
        self.model = models.build(config)
        with processes.first_alone("data"):
            self.data: Data = source.open_data(config)
        with processes.first_alone("workdir"):
            claim = workdir.claim(directory, config, self.data.fingerprint, processes.is_first())
        with claim:  # given back if the rest fails
            self._compile()
            self.claim = claim.pop_all()

    def _compile(self) -> None:
        config, train = self.config, self.config.train
        self.schedule = Schedule(len(self.data.train), train.batch_size, config.seed)
        self.total_steps = self.schedule.steps_per_epoch * train.epochs
        groups = self.schedule.groups(train.epochs, train.log_every)
        resident = feed.fits(self.data.train, self.mesh, config)
        self.feed = Feed(self.data.train, groups, self.mesh, train.batch_size, resident)
        self.feed.load()
        optimiser = optim.build(config, self.total_steps)
        self.evaluator = Evaluator(self.model, config, self.mesh)
        self._validation: Feed | None = None
        self._unsaved_best: tuple[int, Any, dict[str, Any]] | None = None
        self.newest = checkpoint.newest(self.directory)
        self.best = checkpoint.best(self.directory)
        # Of a run that was killed before its newest state was saved: it need not come to that again
        # where rounding differs, with other devices say.
        self.best.forget_after(self.newest.latest())
        initial = lambda: train_state.init_state(self.model, config, optimiser)
        like = devices.abstract(self.mesh, jax.eval_shape(initial))
        self.progress = Progress()
        with ThreadPoolExecutor(1, "state") as aside:  # both take long, to compile
            if self.newest.latest() is None:
                state = aside.submit(lambda: devices.replicate(self.mesh, initial()))
            else:
                restored = self.newest.restore(like)
                state = aside.submit(lambda: restored)
                self.progress = Progress(**self.newest.info())
                if self.progress.best_epoch >= 0:
                    self.best.check()  # now, and not when all is trained
            compiled = compile_steps(
                self.model, config, optimiser, self.feed, self.schedule.steps_per_epoch, like
            )
            self.state = state.result()
        self.steps, self.flops = compiled.steps, compiled.flops

    def run(self, profile: bool = False) -> None:
        """Trains from where the run stands to its end; `profile` traces its second group."""
        first = int(self.state.step)
        self.log = metrics_log.ScalarLog(
            self.directory, self.progress.log_position, first, processes.is_first()
        )
        with (
            self.claim,
            contextlib.closing(self.log),
            contextlib.closing(self.feed),
            _termination() as asked,
            self._bar(first) as bar,
        ):
            pending: list[tuple[Window, Scalars]] = []
            self._since, self._saved = (time.monotonic(), first), time.monotonic()
            for number, window in enumerate(self.feed.windows(first)):
                if self._finished():
                    break
                with self._trace(profile and number == 1):
                    self.state, scalars = self.steps(self.state, window)
                pending.append((window, scalars))
                end = window.first + window.num_steps
                ends_epoch = end % self.schedule.steps_per_epoch == 0
                stop = processes.any_process(asked() is not None)
                while len(pending) > (0 if ends_epoch or stop else 1):
                    self._record(*pending.pop(0), bar)
                if ends_epoch:
                    self._validate()
                if stop:
                    self.progress = self._clocked()
                    break
            self._save()
            # Also of a run that has come to its end: its test, or another run, would be next.
            if processes.any_process(asked() is not None):
                asker = asked() or signal.SIGTERM  # or it was another process that was asked
                raise Stopped(
                    f"{asker.name}: saved step {int(self.state.step)} in {self.directory}; the same"
                    " command goes on from there",
                    asker,
                )

    def _bar(self, first: int) -> tqdm:
        return tqdm(
            total=self.total_steps,
            initial=first,
            desc="Training",
            unit="step",
            dynamic_ncols=True,
            disable=not processes.is_first(),
            mininterval=0.2 if sys.stderr.isatty() else 30.0,
        )

    @contextlib.contextmanager
    def _trace(self, wanted: bool) -> Iterator[None]:
        if not wanted:
            yield
            return
        jax.block_until_ready(self.state)
        with jax.profiler.trace(str(self.directory / "profile")):
            yield
            jax.block_until_ready(self.state)

    def _record(self, window: Window, scalars: Scalars, bar: tqdm) -> None:
        """Checks the scalars of a group of steps, and logs those that are due."""
        columns = {name: devices.host(values) for name, values in scalars.items()}
        for place in range(window.num_steps):
            number = window.first + place
            values = {name: float(column[place]) for name, column in columns.items()}
            epoch = number // self.schedule.steps_per_epoch
            broken = [name for name, value in values.items() if not np.isfinite(value)]
            if broken:
                terms = [name for name in broken if name != "loss"] or broken
                raise NonFiniteLossError(
                    f"step {number} (epoch {epoch}): {', '.join(terms)} is not finite; the newest"
                    f" checkpoint in {self.directory}, if there is one, is from before it. Lower"
                    " config.optim.learning_rate, with another --workdir, or look at its batch"
                )
            if (number + 1) % self.config.train.log_every == 0:
                self.log.write(number, values, epoch=epoch)
        bar.update(window.num_steps)
        best = self.progress.best_sum_recall
        since, before = self._since
        speed = (number + 1 - before) / (time.monotonic() - since)
        rates = {"rate/videos_per_second": speed * self.config.train.batch_size}
        self.log.board(number, rates)
        bar.set_postfix(
            epoch=f"{epoch + 1}/{self.config.train.epochs}",
            loss=f"{values['loss']:.3f}",
            best_SumR=f"{best:.1f}" if best >= 0 else "-",
            videos_per_s=f"{rates['rate/videos_per_second']:.0f}",
            refresh=False,
        )

    def _validate(self) -> None:
        epoch = self.progress.epochs
        step = int(self.state.step)  # of the next step; records are of the last one
        clocked, start = self._clocked(), time.monotonic()
        if self._validation is None:
            resident = feed.fits(self.data.val, self.mesh, self.config)
            self._validation = self.evaluator.feed(self.data.val, resident)
        result = self.evaluator.evaluate(self.state.params, self._validation)
        scalars = {f"validation/{name}": value for name, value in result.metrics.items()}
        self.log.write(step - 1, scalars, epoch=epoch)
        self.log.board(step - 1, {"rate/validation_seconds": time.monotonic() - start})
        sum_recall = result.metrics["SumR"]
        progress = clocked._replace(epochs=epoch + 1, log_position=self.log.position())
        if sum_recall > progress.best_sum_recall:
            progress = progress._replace(best_epoch=epoch, best_sum_recall=sum_recall)
            info = {"epoch": epoch, "step": step, "validation_SumR": sum_recall}
            info |= model_fields(self.config)
            # A copy, since the state is donated to the steps that follow.
            self._unsaved_best = step, jax.tree.map(jnp.copy, self.state.params), info
        self.progress = progress
        waited = time.monotonic() - self._saved
        if processes.any_process(waited >= self.config.train.checkpoint_seconds):
            self._save()
        self._since = time.monotonic(), step

    def _clocked(self) -> Progress:
        """The progress with the time since the last validation added."""
        seconds = time.monotonic() - self._since[0]
        return self.progress._replace(seconds=self.progress.seconds + seconds)

    def _save(self) -> None:
        """Saves the best epoch first: what the newest state says of it is then there."""
        if self._unsaved_best is not None:
            self.best.save(*self._unsaved_best)
            self._unsaved_best = None
        self.progress = self.progress._replace(log_position=self.log.position())
        self.newest.save(int(self.state.step), self.state, self.progress._asdict())
        self._saved = time.monotonic()

    def _finished(self) -> bool:
        """Whether `patience` epochs have passed without a better one."""
        waited = self.progress.epochs - 1 - self.progress.best_epoch
        return self.progress.epochs > 0 and waited >= self.config.train.patience

    def test(self) -> dict[str, Result]:
        """Test metrics of the best epoch and of the last, and of the baseline if asked for."""
        if self._validation is not None:
            self._validation.close()  # its features make room on the devices
            self._validation = None
        best, info = self.best.restore(self.state.params), self.best.info()
        split = self.data.test
        with contextlib.closing(self.evaluator.feed(split)) as windows:
            rows = {
                f"best epoch ({info['epoch'] + 1})": self.evaluator.evaluate(best, windows),
                f"last epoch ({self.progress.epochs})": self.evaluator.evaluate(
                    self.state.params, windows
                ),
            }
        if self.config.train.baseline:
            scores = baseline.mean_pooled_scores(self.data.train, self.data.val, split)
            rows["mean-pooled linear baseline"] = self.evaluator.result(scores, split)
            rows["chance"] = _chance(rows["mean-pooled linear baseline"])
        return rows


def _chance(like: Result) -> Result:
    """Expected metrics of a random ranking."""
    recalls = {f"R@{k}": 100.0 * min(k / like.videos, 1) for k in ranking.RECALLS}
    return Result(recalls | {"SumR": sum(recalls.values())}, like.queries, like.videos)


def train(config: ConfigDict, directory: Path, profile: bool = False) -> Outcome:
    """Trains, then reports the test split: a table, and test_metrics.json in the run's directory.

    Args:
      config: the resolved configuration.
      directory: the run's directory; a run that was interrupted there goes on.
      profile: whether to trace a group of steps into `profile` below it, for TensorBoard or
        Perfetto.

    Returns:
      What was reported, and the progress of the run.

    Raises:
      Stopped: when SIGTERM or Ctrl-C ended it; its state has been saved.
      NonFiniteLossError: when a loss is NaN or infinite.
      WorkdirError: when the directory holds another run, or this one is under way.
      ConfigError: when the configuration cannot be trained, see `step.check`, or takes more memory
        than the devices have.
      ReleasedDataError: when the data is missing or wrong.
    """
    trainer = Trainer(config, directory)
    trainer.run(profile)
    rows = trainer.test()
    first = next(iter(rows.values()))
    if processes.is_first():
        files.write_json(directory / "test_metrics.json", first.as_json())
        title = f"Test split: {first.queries} queries, {first.videos} videos"
        table.results_table(title, {name: result.metrics for name, result in rows.items()})
    return Outcome(rows, trainer.progress)


@contextlib.contextmanager
def _termination() -> Iterator[Callable[[], signal.Signals | None]]:
    """Turns SIGTERM and the first Ctrl-C into a question that the loop asks between two groups."""
    received: list[signal.Signals] = []

    def note(number: int, frame: Any) -> None:
        if number == signal.SIGINT:
            if received:
                raise KeyboardInterrupt
            print("\nstopping after these steps; Ctrl-C again stops at once", file=sys.stderr)
        received.append(signal.Signals(number))

    numbers = [signal.SIGTERM]
    # A shell's background jobs ignore Ctrl-C.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
