"""Training: the loop around chunks of steps that run without the host.

While a chunk is computed the loop looks at the records of the one before: every loss and every
gradient norm. A run can be killed at any moment: what it does at a step depends on the
configuration, the data and the step alone, so it resumes from its newest checkpoint to the same
end.
"""

import contextlib
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from hlformer_jax import parallel
from hlformer_jax.config import ConfigError
from hlformer_jax.data.feed import Schedule
from hlformer_jax.retrieval import results
from hlformer_jax.retrieval.results import Result
from hlformer_jax.training import checkpoints, families, signals
from hlformer_jax.training.checkpoints import Progress, RunCheckpoints
from hlformer_jax.training.family import Family
from hlformer_jax.training.metrics import Monitor, traced
from hlformer_jax.training.signals import Stopped
from hlformer_jax.training.step import TrainState, compile_steps, init_state


class Outcome(NamedTuple):
    """The outcome of a finished run.

    Attributes:
      results: test metrics by what they are of, first those of the best epoch.
      progress: progress of the run at its end.
    """

    results: dict[str, Result]
    progress: Progress


class Trainer:
    """One run: its family, its compiled steps and its directory.

    Attributes:
      family: the family of models on its data.
      checkpoints: the checkpoints of the run.
      feed: brings the training batches to the devices.
      steps: takes the steps of a chunk, compiled.
      state: the training state.
      progress: what is known beside it.
    """

    def __init__(
        self,
        config: ConfigDict,
        directory: Path,
        mesh: Mesh | None = None,
        family: Family | None = None,
    ) -> None:
        """Opens the data, claims the directory, restores or initialises the state, and compiles.

        Args:
          config: the whole configuration.
          directory: the run's directory.
          mesh: the devices; all there are by default.
          family: the family of models; by default that of `config.model.name`.
        """
        self.config, self.directory = config, directory
        self._mesh = parallel.mesh() if mesh is None else mesh
        self.family: Family = family or families.build(config, self._mesh)
        self.family.check_trainable()
        fingerprint = self.family.fingerprint
        with parallel.first_alone("workdir"):
            claim = checkpoints.claim_workdir(directory, config, fingerprint, parallel.is_first())
        with claim:  # given back if the rest fails
            train = config.train
            self.schedule = Schedule(self.family.num_examples, train.batch_size, config.seed)
            self.feed = self.family.feed(self.schedule.groups(train.epochs, train.log_every))
            self.feed.load()
            self.checkpoints = RunCheckpoints(directory, train.checkpoint_seconds)
            steps_per_epoch = self.schedule.steps_per_epoch
            optimiser = self.family.optimiser(steps_per_epoch * train.epochs)
            # Traced once, for its shapes and to be compiled.
            initial = jax.jit(lambda: init_state(self.family.init_params(), optimiser)).trace()
            template = parallel.abstract(self._mesh, initial.out_info)
            restored = self.checkpoints.restore(template)
            self.progress = restored[1] if restored else Progress()
            with (
                parallel.without_garbage_collection(),
                ThreadPoolExecutor(1, "state") as aside,  # both take long, to compile
            ):
                start = lambda: parallel.replicate(self._mesh, initial.lower().compile()())
                state = aside.submit((lambda: restored[0]) if restored else start)
                compiled = compile_steps(
                    self.family.loss(steps_per_epoch),
                    optimiser,
                    self.family.project,
                    self.feed,
                    template,
                    config,
                )
                self.state: TrainState = state.result()
            self.steps = compiled.steps
            self._claim, self._epoch_start = claim.pop_all(), time.monotonic()

    def run(self, profile: bool = False) -> None:
        """Trains from where the run stands to its end.

        Args:
          profile: whether to trace the second chunk, or the first where it is the last.
        """
        first, steps_per_epoch = int(self.state.step), self.schedule.steps_per_epoch
        last = steps_per_epoch * self.config.train.epochs
        monitor = Monitor(self.directory, self.config, steps_per_epoch, first, self.progress)
        with (
            self._claim,
            contextlib.closing(monitor),
            contextlib.closing(self.feed),
            signals.received() as received,
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
                monitor.watch(chunk, scalars, wait=ends_epoch or stop)
                if ends_epoch:
                    self._validate(monitor)
                if stop:
                    self.progress = self._clocked()
                    break
            self._save(monitor)
            # Also of a run that has come to its end: its test, or another run, would be next.
            if parallel.any_process(received() is not None):
                by = received() or signal.SIGTERM  # or another process received it
                raise Stopped(
                    f"{by.name}: saved step {int(self.state.step)} in {self.directory}; the same"
                    " command resumes from there",
                    by,
                )

    def _validate(self, monitor: Monitor) -> None:
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
        monitor.validated(step - 1, epoch, result, seconds, self.progress)
        if self.checkpoints.due():
            self._save(monitor)
        self._epoch_start = time.monotonic()
        monitor.restart_clock(step)

    def _clocked(self) -> Progress:
        """The progress with the time since the last validation added."""
        seconds = time.monotonic() - self._epoch_start
        return self.progress._replace(seconds=self.progress.seconds + seconds)

    def _save(self, monitor: Monitor) -> None:
        self.progress = self.progress._replace(log_position=monitor.position())
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


def train(
    config: ConfigDict, directory: Path, profile: bool = False, family: Family | None = None
) -> Outcome:
    """Trains, then reports the test split: a table, and in the run's directory `results.write`.

    Args:
      config: the resolved configuration.
      directory: the run's directory; a run that was interrupted there resumes.
      profile: whether to trace a chunk of steps into `profile` below it, for TensorBoard or
        Perfetto.
      family: the family of models; by default that of `config.model.name`.

    Returns:
      The outcome of the run.

    Raises:
      Stopped: when SIGTERM or Ctrl-C ended it; its state has been saved.
      NonFiniteLossError: when a loss is NaN or infinite.
      WorkdirError: when the directory holds another run, or this one is under way.
      ConfigError: when the configuration cannot be trained, or takes more memory than the devices
        have.
      DataError: when the data is missing or wrong.
    """
    trainer = Trainer(config, directory, family=family)
    trainer.run(profile)
    rows = trainer.test()
    first = next(iter(rows.values()))
    if parallel.is_first():
        results.write(first, directory)
        title = f"Test split: {first.queries} queries, {first.videos} videos"
        results.print_table(title, {name: result.metrics for name, result in rows.items()})
    return Outcome(rows, trainer.progress)
