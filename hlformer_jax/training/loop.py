"""Training: the loop around chunks of steps that run without the host.

While a chunk is computed the loop looks at the records of the one before: every loss and every
gradient norm. A run can be killed at any moment: what it does at a step depends on the
configuration, the data and the step alone, so it resumes from its newest checkpoint to the same
end.
"""

import contextlib
import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from hlformer_jax import parallel
from hlformer_jax.config import ConfigError
from hlformer_jax.data.feed import Schedule
from hlformer_jax.retrieval import ranking
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.training import checkpoints, families
from hlformer_jax.training.checkpoints import Progress, RunCheckpoints
from hlformer_jax.training.families import Family
from hlformer_jax.training.metrics import MetricsLogger, traced
from hlformer_jax.training.step import Feed, Steps, TrainState, compile_steps, init_state


class Stopped(Exception):  # noqa: N818 - it is no error
    """A signal asked the run to stop; its state is saved. `status` is the program's exit status."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.status = 128 + signal_number


class Outcome(NamedTuple):
    """Test metrics by what they are of, first those of the best epoch, and the run's progress."""

    results: dict[str, Result]
    progress: Progress


def train(
    config: ConfigDict, directory: Path, profile: bool = False, family: Family | None = None
) -> Outcome:
    """Trains, or resumes, then reports the test split: a table, and `ranking.write_result`'s files.

    With `profile` a chunk of steps is traced into that directory, for TensorBoard or Perfetto.
    """
    with start(config, directory, family=family) as trainer:
        trainer.run(profile)
    rows = trainer.test()
    first = next(iter(rows.values()))
    if parallel.is_first():
        ranking.write_result(first, directory)
        title = f"Test split: {first.queries} queries, {first.videos} videos"
        ranking.print_table(title, {name: result.metrics for name, result in rows.items()})
    return Outcome(rows, trainer.progress)


@contextlib.contextmanager
def start(
    config: ConfigDict,
    directory: Path,
    mesh: Mesh | None = None,
    family: Family | None = None,
) -> Iterator["Trainer"]:
    """Claims the directory of a run, restores or initialises its state, and compiles its steps.

    No other process may use the directory until the block ends.
    """
    mesh = parallel.mesh() if mesh is None else mesh
    family = family or families.build(config, mesh)
    family.check_trainable()
    fingerprint, train = family.fingerprint, config.train
    with parallel.first_alone("workdir"):
        claim = checkpoints.claim_workdir(directory, config, fingerprint, parallel.is_first())
    with claim:
        schedule = Schedule(family.num_examples, train.batch_size, config.seed)
        steps_per_epoch = schedule.steps_per_epoch
        feed = family.feed(schedule.groups(train.epochs, train.log_every))
        feed.load()
        saved = RunCheckpoints(directory, train.checkpoint_seconds)
        optimiser = family.optimiser(steps_per_epoch * train.epochs)
        # Traced once, for its shapes and to be compiled.
        initial = jax.jit(lambda: init_state(family.init_params(), optimiser)).trace()
        template = parallel.abstract(mesh, initial.out_info)
        restored = saved.restore(template)
        with (
            parallel.without_garbage_collection(),
            ThreadPoolExecutor(1, "state") as aside,  # both take long, to compile
        ):
            fresh = lambda: parallel.replicate(mesh, initial.lower().compile()())
            state = aside.submit((lambda: restored[0]) if restored else fresh)
            loss = family.loss(steps_per_epoch)
            compiled = compile_steps(loss, optimiser, family.project, feed, template, config)
        yield Trainer(
            config=config,
            directory=directory,
            family=family,
            steps_per_epoch=steps_per_epoch,
            feed=feed,
            checkpoints=saved,
            steps=compiled.steps,
            state=state.result(),
            progress=restored[1] if restored else Progress(),
        )


@dataclasses.dataclass
class Trainer:
    """A run that has started."""

    config: ConfigDict
    directory: Path
    family: Family
    steps_per_epoch: int
    feed: Feed
    checkpoints: RunCheckpoints
    steps: Steps
    state: TrainState
    progress: Progress
    _epoch_start: float = dataclasses.field(default=0.0, init=False)

    def run(self, profile: bool = False) -> None:
        """Trains to the end; `profile` traces the second chunk, or the first if it is the last."""
        first, steps_per_epoch = int(self.state.step), self.steps_per_epoch
        last = steps_per_epoch * self.config.train.epochs
        log = MetricsLogger(self.directory, self.config, steps_per_epoch, first, self.progress)
        with (
            contextlib.closing(log),
            contextlib.closing(self.feed),
            received_signal() as received,
        ):
            self._epoch_start = time.monotonic()
            for index, chunk in enumerate(self.feed.chunks(first)):
                if self.progress.is_over(self.config.train.patience):
                    break
                end = chunk.first + chunk.num_steps
                traces = profile and (index == 1 or (index == 0 and end == last))
                with contextlib.ExitStack() as stack:
                    if traces:
                        stack.enter_context(traced(self.directory / "profile", self.state))
                    self.state, scalars = self.steps(self.state, chunk)
                    if traces:
                        jax.block_until_ready(self.state)
                ends_epoch = end % steps_per_epoch == 0
                stop = parallel.any_process(received() is not None)
                log.steps(chunk, scalars, wait=ends_epoch or stop)
                if ends_epoch:
                    self._validate(log)
                if stop:
                    self.progress = self._clocked()
                    break
            self._save(log)
            # Also of a run that has come to its end: its test, or another run, would be next.
            if parallel.any_process(received() is not None):
                by = received() or signal.SIGTERM  # or another process received it
                raise Stopped(
                    f"{by.name}: saved step {int(self.state.step)} in {self.directory}; the same"
                    " command resumes from there",
                    by,
                )

    def _validate(self, log: MetricsLogger) -> None:
        epoch, step = self.progress.epochs, int(self.state.step)  # of the next step
        progress, start = self._clocked(), time.monotonic()
        result = self.family.validate(self.state.params)
        select = self.config.eval.select
        if select not in result.metrics:
            raise ConfigError(
                f"config.eval.select is {select!r}: a validation gives {', '.join(result.metrics)}"
            )
        metric = result.metrics[select]
        self.progress = progress.validated(epoch, metric)
        if self.progress.best_epoch == epoch:
            info = {"epoch": epoch, "step": step, f"validation_{select}": metric}
            self.checkpoints.keep_best(step, self.state.params, info | self.family.describe())
        seconds = time.monotonic() - start
        log.validation(step - 1, epoch, result, seconds, self.progress)
        if self.checkpoints.due():
            self._save(log)
        self._epoch_start = time.monotonic()
        log.restart_clock(step)

    def _clocked(self) -> Progress:
        """The progress with the time since the last validation added."""
        seconds = time.monotonic() - self._epoch_start
        return self.progress._replace(seconds=self.progress.seconds + seconds)

    def _save(self, log: MetricsLogger) -> None:
        self.progress = self.progress._replace(log_position=log.position())
        self.checkpoints.save(self.state, self.progress)

    def test(self) -> dict[str, Result]:
        """Test metrics of the best epoch and of the last, and of the family's references."""
        self.family.close()  # makes room on the devices
        best, info = self.checkpoints.best.restore(self.state.params), self.checkpoints.best.info()
        return {
            f"best epoch ({info['epoch'] + 1})": self.family.test(best),
            f"last epoch ({self.progress.epochs})": self.family.test(self.state.params),
            **self.family.references(),
        }


@contextlib.contextmanager
def received_signal() -> Iterator[Callable[[], signal.Signals | None]]:
    """Notes SIGTERM and the first Ctrl-C, which it yields on request; a second stops at once."""
    signals: list[signal.Signals] = []

    def note(signal_number: int, frame: Any) -> None:
        if signal_number == signal.SIGINT:
            if signals:
                raise KeyboardInterrupt
            print("\nstopping after these steps; Ctrl-C again stops at once", file=sys.stderr)
        signals.append(signal.Signals(signal_number))

    noted = [signal.SIGTERM]
    # A shell's background jobs ignore Ctrl-C.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        noted.append(signal.SIGINT)
    before = {signal_number: signal.signal(signal_number, note) for signal_number in noted}
    try:
        yield lambda: signals[0] if signals else None
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
