"""Training: the loop around chunks of steps that run on the devices without the host.

While a chunk is computed, the loop reads every loss and gradient norm of the previous chunk. A run
can be killed at any moment: a step depends only on the configuration, the data and its number, so
that the run resumes from its newest checkpoint to the same result.

metrics.jsonl is the complete record. Its lines do not depend on the clock. A run that resumes from
a checkpoint first drops the lines that were written after that checkpoint, so that an interrupted
run writes the same file as an uninterrupted run. TensorBoard shows the same scalars.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jaxtyping import Bool, Float
from ml_collections import ConfigDict
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from hlformer_jax import files, terminal, training
from hlformer_jax.config import ConfigError, check
from hlformer_jax.data.feed import Schedule
from hlformer_jax.errors import UserError
from hlformer_jax.retrieval import ranking
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.runtime import compiler, devices, processes
from hlformer_jax.training import Family, checkpoints, run_directory
from hlformer_jax.training.checkpoints import Progress, RunCheckpoints
from hlformer_jax.training.step import (
    Chunk,
    Feed,
    Scalars,
    Steps,
    TrainState,
    compile_steps,
    init_state,
)
from hlformer_jax.typing import Array

# Metric logging, and checks for non-finite values


class NonFiniteLossError(UserError, ArithmeticError):
    """A loss or a parameter is NaN or infinite; the message names the step and the term."""

    @classmethod
    def at_step(cls, terms: str, step: int, epoch: int, directory: Path) -> "NonFiniteLossError":
        """Return the error for terms, at a step of an epoch (from 0), in a run's directory."""
        return cls(
            f"step {step} (epoch {epoch + 1}): {terms} is not finite. The newest checkpoint in"
            f" {directory}, if any, is older. Inspect the batch, or lower"
            " config.optim.learning_rate and start again with another `workdir`"
        )


class ScalarLog:
    """metrics.jsonl, and TensorBoard beside it.

    If TensorBoard's file cannot be written, the run warns and continues. tensorboardX's
    `EventFileWriter` is not used, because it passes events to a thread: if a full disk ends that
    thread, the run waits forever. In TensorBoard a new file hides the later steps of earlier files.
    """

    def __init__(
        self, workdir: Path, position: int, step: int, writes: bool = True, digest: str = ""
    ) -> None:
        """Open the log.

        Args:
          workdir: the directory of the run.
          position: length of metrics.jsonl in bytes; later lines are dropped.
          step: the first step.
          writes: whether this process writes the log.
          digest: `digest` of the first `position` bytes; "" for a run that did not record it.

        Raises:
          OSError: if metrics.jsonl is shorter than `position`, has changed or cannot be written.
        """
        self._file: Any = None
        self._digest = hashlib.sha256()
        self._events: EventsWriter | None = None
        if not writes:
            return
        path = workdir / "metrics.jsonl"
        files.check_output(path, files.Replace.ANY)  # refuses a link
        path.touch()
        if path.stat().st_size < position:
            raise OSError(
                f"{path} is shorter than it was when the newest checkpoint was written:"
                " restore it, or choose another `workdir`"
            )
        with path.open("rb") as written:
            self._digest.update(written.read(position))
        if digest not in ("", self.digest()):
            raise OSError(
                f"{path} has changed since the newest checkpoint was written: restore it, or choose"
                " another `workdir`"
            )
        self._file = path.open("r+", encoding="utf-8")
        self._file.truncate(position)
        self._file.seek(position)
        with self._ignore_tensorboard_errors():
            (workdir / "tensorboard").mkdir(exist_ok=True)
            self._events = EventsWriter(str(workdir / "tensorboard" / "events"))
            start = SessionLog(status=SessionLog.START)
            self._events.write_event(Event(step=step, file_version="brain.Event:2"))
            self._events.write_event(Event(step=step, session_log=start))

    def write(self, step: int, scalars: Mapping[str, float], **where: int) -> None:
        """Record scalars at a step.

        Args:
          step: index of the step.
          scalars: values by name.
          **where: further entries of the JSON line, such as the epoch, that TensorBoard omits.
        """
        if self._file is None:
            return
        # JSON has no NaN: a metric that is undefined on the split is null.
        values = {name: x if math.isfinite(x) else None for name, x in scalars.items()}
        line = json.dumps({"step": step, **where, **values}) + "\n"
        with self._named_errors():
            self._file.write(line)
            self._digest.update(line.encode())
            self._file.flush()
        self.board(step, scalars)

    def board(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars to TensorBoard only, for rates, which differ between equal runs."""
        with self._ignore_tensorboard_errors():
            for name, value in scalars.items():
                if self._events is None:
                    break
                summary = scalar(name.replace("@", "_"), value)  # TensorBoard does not accept @
                self._events.write_event(Event(step=step, wall_time=time.time(), summary=summary))

    def position(self) -> int:
        """Flush metrics.jsonl to the disk, and return its length in bytes."""
        if self._file is None:
            return 0
        with self._named_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
        with self._ignore_tensorboard_errors():
            if self._events:
                self._events.flush()
        return self._file.tell()

    def digest(self) -> str:
        """Return the SHA-256 of the bytes of metrics.jsonl so far."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close both files."""
        try:
            if self._file:
                with self._named_errors():
                    self._file.close()
        finally:
            with self._ignore_tensorboard_errors():
                if self._events:
                    self._events.close()

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Add the path of metrics.jsonl to errors of writing, which lack it."""
        try:
            yield
        except OSError as error:
            error.filename = error.filename or self._file.name
            raise

    @contextlib.contextmanager
    def _ignore_tensorboard_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            events, self._events = self._events, None
            with contextlib.suppress(OSError):
                if events:
                    events.close()
            logging.warning("writing TensorBoard's file failed: %s", error)


class MetricsLogger:
    """The log of the steps, one chunk behind the devices, and the report of the progress.

    In a terminal it shows a progress bar; otherwise it prints a line per minute. In both cases it
    prints a line per epoch.

    Attributes:
      log: the log of the scalars.
    """

    def __init__(
        self,
        directory: Path,
        config: ConfigDict,
        steps_per_epoch: int,
        first: int,
        progress: Progress,
        rates: Float[np.ndarray, " steps"] | None = None,
    ) -> None:
        """Open the log of a run.

        Args:
          directory: directory of the run.
          config: its configuration.
          steps_per_epoch: number of steps of an epoch.
          first: index of the first step.
          progress: progress of the run so far.
          rates: learning rate of every step; None if it is unknown.
        """
        self._directory, self._config = directory, config
        self._steps_per_epoch, self._rates = steps_per_epoch, rates
        self.log = ScalarLog(
            directory, progress.log_position, first, processes.is_first(), progress.log_digest
        )
        self._pending: list[tuple[Chunk, Scalars]] = []
        self._best, self._since, self._first = progress.best_metric, time.monotonic(), first
        self._epoch_start = self._reported = time.monotonic()
        self._loss = np.nan
        self._has_bar = sys.stderr.isatty()
        self._bar = terminal.bar(
            "step",
            steps_per_epoch * config.train.epochs,
            initial=first,
            desc="Training",
            leave=True,
            disable=not (processes.is_first() and self._has_bar),
            mininterval=0.2,
        )

    def steps(self, chunk: Chunk, scalars: Scalars, wait: bool) -> None:
        """Log the scalars of earlier chunks, and store the scalars of a new chunk for later.

        Args:
          chunk: the chunk, which is still being computed.
          scalars: the scalars of the chunk.
          wait: whether to wait for these scalars and log them too.

        Raises:
          NonFiniteLossError: if a scalar is NaN or infinite.
        """
        self._pending.append((chunk, scalars))
        while len(self._pending) > (0 if wait else 1):
            self._record(*self._pending.pop(0))

    def _record(self, chunk: Chunk, scalars: Scalars) -> None:
        columns = {name: devices.to_host(values) for name, values in scalars.items()}
        for index in range(chunk.num_steps):
            step = chunk.first + index
            epoch = step // self._steps_per_epoch
            values = {name: float(column[index]) for name, column in columns.items()}
            self._check_finite(step, epoch, values)
            if self._rates is not None:
                values["learning_rate"] = float(self._rates[step])
            if (step + 1) % self._config.train.log_every == 0:
                self.log.write(step, values, epoch=epoch)
        self._loss = values["loss"]
        speed = (step + 1 - self._first) / (time.monotonic() - self._since)
        rate = speed * self._config.train.batch_size
        self.log.board(step, {"rate/examples_per_second": rate})
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
        if not self._has_bar and time.monotonic() - self._reported >= REPORT_SECONDS:
            self._reported = time.monotonic()
            last = self._steps_per_epoch * self._config.train.epochs
            report(f"step {step + 1} of {last}: loss {values['loss']:.4g}, {rate:.0f} examples/s")

    def _check_finite(self, step: int, epoch: int, values: dict[str, float]) -> None:
        broken = [name for name, value in values.items() if not np.isfinite(value)]
        if broken:
            terms = [name for name in broken if name != "loss"] or broken
            raise NonFiniteLossError.at_step(", ".join(terms), step, epoch, self._directory)

    def validation(
        self, step: int, epoch: int, result: Result, seconds: float, progress: Progress
    ) -> None:
        """Log a validation and report its epoch.

        Args:
          step: index of the last step before the validation.
          epoch: index of the epoch.
          result: metrics of the validation.
          seconds: time of the validation.
          progress: progress of the run, including this validation.
        """
        scalars = {f"validation/{name}": value for name, value in result.metrics.items()}
        self.log.write(step, scalars, epoch=epoch)
        self.log.board(step, {"rate/validation_seconds": seconds})
        self._best = progress.best_metric
        end = time.monotonic()
        report(self._epoch_line(step, epoch, result, end - self._epoch_start, progress))
        self._epoch_start = self._reported = end

    def _epoch_line(
        self, step: int, epoch: int, result: Result, seconds: float, progress: Progress
    ) -> str:
        """Return the line that reports an epoch."""
        select = self._config.eval.select
        chance = ranking.chance(select, result)
        best = f"best {progress.best_metric:.4g} in epoch {progress.best_epoch + 1}"
        compared = [best] if chance is None else [best, f"chance {chance:.4g}"]
        selected = (
            "the last epoch is used"
            if select == ranking.LAST
            else f"validation {select} {result.metrics[select]:.4g} ({', '.join(compared)})"
        )
        other_metrics = [
            f"{name} {value:.4g}"
            for name, value in result.metrics.items()
            if name != select and not name.startswith(("ratio=", "leaves="))
        ]
        rate = [] if self._rates is None else [f"learning rate {self._rates[step]:.3g}"]
        parts = [
            selected,
            *other_metrics,
            f"loss {self._loss:.4g}",
            *rate,
            f"{seconds:.1f} s",
        ]
        return f"epoch {epoch + 1} of {self._config.train.epochs}: {', '.join(parts)}"

    def restart_clock(self, step: int) -> None:
        """Measure rates from this step on."""
        self._since, self._first = time.monotonic(), step

    def close(self) -> None:
        """Close the log and the bar."""
        self.log.close()
        self._bar.close()


REPORT_SECONDS = 60.0
"""Seconds between two reports of the steps if there is no progress bar."""


def report(line: str) -> None:
    """Print a line of progress, in the first process only and not with --quiet."""
    if processes.is_first():
        terminal.report(line)


# The loop


class Stopped(Exception):  # noqa: N818 - a signal is not an error
    """A signal stopped the run, whose state is saved.

    Attributes:
      status: the exit status of the program.
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.status = 128 + signal_number


class Outcome(NamedTuple):
    """The result of a run.

    Attributes:
      results: test metrics by title; the best epoch comes first, then the last epoch.
      progress: the progress of the run.
      references: titles of the baselines in `results`, such as the linear baseline.
    """

    results: dict[str, Result]
    progress: Progress
    references: tuple[str, ...] = ()


def train(
    config: ConfigDict,
    directory: Path | str,
    profile: bool = False,
    family: Family | None = None,
    init: Path | str | None = None,
) -> Outcome:
    """Train or resume a run, print the test metrics and write them to its directory.

    Args:
      config: the configuration of the run.
      directory: the directory of the run.
      profile: whether to trace a chunk of steps into the directory, for TensorBoard or Perfetto.
      family: the family of models; by default the family of the configuration.
      init: run or checkpoint whose parameters the run starts from, see `start`.

    Raises:
      ConfigError: if the configuration cannot be trained.
      WorkdirError: if the directory holds another run.
      NonFiniteLossError: if a loss or a parameter becomes NaN or infinite.
      Stopped: if a signal stopped the run, after its state was saved.
    """
    directory = Path(directory)
    with start(config, directory, family=family, init=init) as trainer:
        trainer.run(profile)
        rows = trainer.test()
        first = next(iter(rows.values()))
        if processes.is_first():
            trainer.record_test(rows)
            ranking.write_result(first, directory)
            title = f"Test split: {first.counts()}"
            ranking.print_table(title, {name: result.metrics for name, result in rows.items()})
    report(
        f"metrics: {directory / ranking.METRICS_FILE}; log: {directory / 'metrics.jsonl'};"
        f" parameters: {directory / 'checkpoints' / 'best'}"
    )
    # The first two results are of the best and of the last epoch.
    return Outcome(rows, trainer.progress, tuple(rows)[2:])


@contextlib.contextmanager
def start(
    config: ConfigDict,
    directory: Path | str,
    family: Family | None = None,
    init: Path | str | None = None,
) -> Iterator["Trainer"]:
    """Claim the directory of a run, restore or initialise its state, and compile its steps.

    No other process may use the directory until the block ends.

    Args:
      config: the configuration of the run.
      directory: the directory of the run.
      family: the family of models; by default the family of the configuration.
      init: run (its best epoch) or converted checkpoint whose parameters the run starts from, with
        a fresh optimiser. config.json records the path for a run that resumes.

    Yields:
      The run.

    Raises:
      ConfigError: if the configuration cannot be trained.
      WorkdirError: if the directory holds another run.
      CheckpointError: if a checkpoint is missing, damaged or of another model.
    """
    check(config)
    directory = Path(directory)
    mesh = devices.mesh()
    family = family or training.build(config, mesh)
    family.check_trainable()
    if init is not None:
        init = Path(init).resolve()
        checkpoints.open_params(init).close()  # checked before the data is prepared
    inputs, train = run_directory.Fingerprints.from_family(family), config.train
    movable = ("train.epochs",) if getattr(family, "any_length", False) else ()
    with processes.first_alone("workdir"):
        claim = run_directory.claim_workdir(
            directory, config, inputs, processes.is_first(), init, movable
        )
    with claim:
        schedule = Schedule(family.num_examples, train.batch_size, config.seed)
        steps_per_epoch = schedule.steps_per_epoch
        feed = family.feed(schedule.groups(train.epochs, train.log_every))
        feed.load()
        saved = RunCheckpoints(directory, train.checkpoint_seconds)
        optimiser = family.optimiser(steps_per_epoch * train.epochs)
        # The trace is used for the shapes and for the compilation.
        initial = jax.jit(lambda: init_state(family.init_params(), optimiser)).trace()
        template = devices.abstract(mesh, initial.out_info)
        restored = saved.restore(template)
        origin = None if restored else init or run_directory.recorded_init(directory)
        params = None if origin is None else _initial_params(origin, template.params, family)
        report(f"directory: {directory}")
        summary = getattr(family, "summary", lambda: f"{family.num_examples:,} training examples")
        report(f"data: {summary()}")
        with (
            terminal.reported_if_slow(
                "compiling the training step: on a GPU this takes minutes; later starts read it"
                " from the cache of compiled programs",
                report,
            ),
            compiler.without_garbage_collection(),
            ThreadPoolExecutor(1, "state") as thread,  # compiles while the steps are compiled
        ):
            options = compiler.compiler_options(config)
            future: Any = None
            if restored is None:
                future = thread.submit(lambda: initial.lower().compile(options)())
            loss = family.loss(steps_per_epoch)
            constants: Any = None
            # Not inherited: a subclass may have another optimiser, projection or feed.
            if "program_constants" in vars(type(family)):
                constants = cast(Any, family).program_constants()
            compiled = compile_steps(
                loss, optimiser, family.project, feed, template, config, constants
            )
        state = restored[0] if restored else devices.replicate(mesh, future.result())
        if params is not None:
            state = dataclasses.replace(state, params=params)
        progress = restored[1] if restored else Progress()
        step = int(state.step)
        size = sum(x.size for x in jax.tree.leaves(template.params))
        peak = compiler.memory_plan(compiled.program).get("peak", 0)
        report(
            f"model: {size:,} parameters; {mesh.size} x {mesh.devices.flat[0].device_kind};"
            f" a step takes {(peak + feed.bytes_ahead) / 1e9:.2f} GB on each"
        )
        resumed = f"; resumed after step {step}, in epoch {progress.epochs + 1}" if step else ""
        report(f"steps: {steps_per_epoch} per epoch, at most {train.epochs} epochs{resumed}")
        yield Trainer(
            config=config,
            directory=directory,
            family=family,
            steps_per_epoch=steps_per_epoch,
            feed=feed,
            checkpoints=saved,
            steps=compiled.steps,
            state=state,
            progress=progress,
        )


def _initial_params(origin: Path, template: Any, family: Family) -> Any:
    """Return the parameters of a run or checkpoint, and report differing fields of its model."""
    with contextlib.closing(checkpoints.open_params(origin)) as saved:
        info, params = saved.info(), saved.restore(template)
    differing = [
        f"{name} ({info[name]} in the checkpoint, {value} now)"
        for name, value in family.describe().items()
        if name in info and info[name] != value
    ]
    note = f"; fields that differ: {', '.join(differing)}" if differing else ""
    report(f"initial parameters: {origin} ({checkpoints.summary(info)}){note}")
    return family.project(params)


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
    _noted: set[str] = dataclasses.field(default_factory=set, init=False)

    def run(self, profile: bool = False) -> None:
        """Train until the last epoch, early stopping or a signal.

        Args:
          profile: whether to trace the second chunk, or the first if it is the only chunk.

        Raises:
          NonFiniteLossError: if a loss or a parameter becomes NaN or infinite.
          Stopped: if a signal stopped the run, after its state was saved.
        """
        first, steps_per_epoch = int(self.state.step), self.steps_per_epoch
        last = steps_per_epoch * self.config.train.epochs
        rates = self._rates(last)
        if steps_per_epoch == 1 and rates is not None and not rates[0] and processes.is_first():
            size, examples = self.config.train.batch_size, self.family.num_examples
            terminal.warn(
                f"epoch 1 trains nothing: the learning rate of its only step is 0, as the warm-up"
                f" begins. config.train.batch_size is {size} for {examples} training examples:"
                " lower it for more steps in an epoch"
            )
        logger = MetricsLogger(
            self.directory, self.config, steps_per_epoch, first, self.progress, rates
        )
        with (
            contextlib.closing(logger),
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
                        jax.block_until_ready(self.state)
                        stack.enter_context(jax.profiler.trace(str(self.directory / "profile")))
                    self.state, scalars = self.steps(self.state, chunk)
                    if traces:
                        jax.block_until_ready(self.state)
                ends_epoch = end % steps_per_epoch == 0
                stop = processes.any_process(received() is not None)
                logger.steps(chunk, scalars, wait=ends_epoch or stop)
                if ends_epoch or stop:
                    self._check_params(end - 1)
                if ends_epoch:
                    self._validate(logger)
                if stop:
                    self.progress = self._clocked()
                    break
            self._save(logger.log)
            report(self._end())
            # Also after the last step, because the test or another run would follow.
            if processes.any_process(received() is not None):
                by = received() or signal.SIGTERM  # another process may have received it
                raise Stopped(
                    f"{by.name}: saved step {int(self.state.step)} in {self.directory}; the same"
                    " command resumes from there",
                    by,
                )

    def _check_params(self, step: int) -> None:
        """Raise NonFiniteLossError if the update of the last step made a parameter NaN or infinite.

        A loss shows this only at the next step, after the parameters were validated and saved.
        """
        if not bool(devices.to_host(_is_finite(self.state.params))):
            epoch = step // self.steps_per_epoch
            raise NonFiniteLossError.at_step(
                "a parameter after the update", step, epoch, self.directory
            )

    def _rates(self, last: int) -> Float[np.ndarray, " steps"] | None:
        """Return the learning rate of every step; None if the family has no schedule."""
        schedule = getattr(self.family, "learning_rate", None)
        return None if schedule is None else np.asarray(jax.vmap(schedule(last))(jnp.arange(last)))

    def _end(self) -> str:
        """Return a line with the reason for the end of the run and its best epoch."""
        progress, train = self.progress, self.config.train
        if not progress.epochs:
            return "ended before the first validation"
        select = self.config.eval.select
        best = f"best {select} {progress.best_metric:.4g} in epoch {progress.best_epoch + 1}"
        if select == ranking.LAST:
            best = "the last epoch is used"
        if progress.epochs < train.epochs and progress.is_over(train.patience):
            return (
                f"stopped after epoch {progress.epochs} of {train.epochs}: {select} did not"
                f" improve in {train.patience} epochs (config.train.patience); {best}"
            )
        if int(self.state.step) % self.steps_per_epoch:
            return f"stopped in epoch {progress.epochs + 1} of {train.epochs}; {best}"
        return f"ended after epoch {progress.epochs} of {train.epochs}; {best}"

    def record_test(self, rows: Mapping[str, Result]) -> None:
        """Add the test metrics of the best and the last epoch to the log."""
        step = int(self.state.step)
        position, digest = self.progress.log_position, self.progress.log_digest
        log = ScalarLog(self.directory, position, step, digest=digest)
        with contextlib.closing(log):
            for name, result in zip(("best", "last"), rows.values(), strict=False):
                scalars = {f"test/{name}/{key}": value for key, value in result.metrics.items()}
                log.write(step, scalars)

    def _validate(self, logger: MetricsLogger) -> None:
        epoch, step = self.progress.epochs, int(self.state.step)  # the number of the next step
        progress, start = self._clocked(), time.monotonic()
        result = self.family.validate(self.state.params)
        select = self.config.eval.select
        if select != ranking.LAST and select not in result.metrics:
            raise ConfigError(
                f"config.eval.select is {select!r}: use one of {', '.join(result.metrics)}"
            )
        metric = float(epoch) if select == ranking.LAST else result.metrics[select]
        if math.isnan(metric):  # no epoch would be better than it
            raise ConfigError(
                f"config.eval.select is {select!r}, which is NaN after epoch {epoch + 1}: use a"
                f" metric that is a number on the validation split, or {ranking.LAST}"
            )
        self.progress = progress.validated(epoch, metric)
        if self.progress.best_epoch == epoch:
            info = {"epoch": epoch, "step": step, f"validation_{select}": metric}
            self.checkpoints.keep_best(step, self.state.params, info | self.family.describe())
        seconds = time.monotonic() - start
        logger.validation(step - 1, epoch, result, seconds, self.progress)
        self._report_notes()
        if self.checkpoints.is_due():
            self._save(logger.log)
        self._epoch_start = time.monotonic()
        logger.restart_clock(step)

    def _report_notes(self) -> None:
        """Print each remark of the family once; of a split it has none before it has read it."""
        for note in getattr(self.family, "notes", list)():
            if note not in self._noted:
                self._noted.add(note)
                report(note)

    def _clocked(self) -> Progress:
        """Return the progress, with the time since the last validation added."""
        seconds = time.monotonic() - self._epoch_start
        return self.progress._replace(seconds=self.progress.seconds + seconds)

    def _save(self, log: ScalarLog) -> None:
        self.progress = self.progress._replace(log_position=log.position(), log_digest=log.digest())
        self.checkpoints.save(self.state, self.progress)

    def test(self) -> dict[str, Result]:
        """Return the test metrics of the best epoch, the last epoch, and the baselines."""
        self.family.close()  # release memory on the devices
        best, info = self.checkpoints.best.restore(self.state.params), self.checkpoints.best.info()
        rows = {
            f"best epoch ({info['epoch'] + 1})": self.family.test(best),
            f"last epoch ({self.progress.epochs})": self.family.test(self.state.params),
            **self.family.references(),
        }
        self._report_notes()
        return rows


@jax.jit
def _is_finite(params: Any) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(params)]))


@contextlib.contextmanager
def received_signal() -> Iterator[Callable[[], signal.Signals | None]]:
    """Record SIGTERM and the first Ctrl-C instead of stopping; a second Ctrl-C stops at once.

    Yields:
      A function that returns the received signal, or None.

    Raises:
      KeyboardInterrupt: at the second Ctrl-C.
    """
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
    if threading.current_thread() is not threading.main_thread():
        noted = []  # only the main thread can set handlers
    before = {signal_number: signal.signal(signal_number, note) for signal_number in noted}
    try:
        yield lambda: signals[0] if signals else None
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
