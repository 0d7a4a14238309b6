"""Training: one jitted step, and the loop around it.

The loop waits for the device only when a record is due; every loss and gradient norm since the last
record is then looked at. A run can be killed at any moment: what it does at a step depends on
the configuration, the data and the step alone, so it goes on from its newest checkpoint to the
same end.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import optax
from ml_collections import ConfigDict
from tqdm import tqdm

from hlformer_jax import (
    baseline,
    checkpoint,
    models,
    optim,
    report,
    retrieval,
    train_state,
    workdir,
)
from hlformer_jax.data import pipeline
from hlformer_jax.data.pipeline import Data, Schedule
from hlformer_jax.evaluate import Evaluator, Result, model_fields
from hlformer_jax.models import hlformer
from hlformer_jax.objective import draw_negatives, objective
from hlformer_jax.train_state import TrainState, derive_key
from hlformer_jax.typing import Array, Batch

Scalars = dict[str, Array]
Step = Callable[[TrainState, Batch], tuple[TrainState, Scalars]]


class NonFiniteLossError(ArithmeticError):
    """A loss became NaN or infinite; the message names the step and the term."""


class Stopped(Exception):  # noqa: N818 - it is no error
    """SIGTERM arrived; the state has been saved."""


class Progress(NamedTuple):
    """What the loop knows beside the state; saved with it.

    Attributes:
      best_epoch: the epoch, from 0, of the best validation SumR; -1 before the first.
      best_sum_recall: that SumR.
      epochs: number of epochs validated.
      log_position: length of metrics.jsonl.
    """

    best_epoch: int = -1
    best_sum_recall: float = -1.0
    epochs: int = 0
    log_position: int = 0


def make_train_step(
    model: nn.Module,
    config: ConfigDict,
    optimiser: optax.GradientTransformation,
    steps_per_epoch: int,
) -> Step:
    """Returns the jitted step: state and batch to the next state and the scalars of the loss.

    The hard-negative phase begins inside the step, by its number, so that there is one
    compilation. The state is donated.
    """

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Scalars]:
        epoch = state.step // steps_per_epoch
        negatives = draw_negatives(
            derive_key(config.seed, "negatives", state.step),
            batch,
            epoch >= config.loss.hard_negative_epoch,
            config.loss.hard_pool_size,
        )
        dropout_key = derive_key(config.seed, "dropout", state.step)

        def loss(params: Any) -> tuple[Array, Scalars]:
            return objective(model, config, params, batch, negatives, dropout_key)

        (total, terms), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
        updates, optimiser_state = optimiser.update(gradient, state.optimiser, state.params)
        params = optax.apply_updates(state.params, updates)
        params = hlformer.project(params, config.model.curvature)
        scalars = {"loss": total} | {f"loss/{name}": value for name, value in terms.items()}
        scalars["gradient_norm"] = optax.tree.norm(gradient)
        return TrainState(state.step + 1, params, optimiser_state), scalars

    return jax.jit(step, donate_argnums=0)


class Trainer:
    """One run: its data, its compiled functions and its directory."""

    def __init__(self, config: ConfigDict, directory: Path) -> None:
        self.config, self.directory = config, directory
        self.model = models.build(config)
        self.data: Data = pipeline.open_data(config)
        workdir.claim(directory, config, self.data.fingerprint)
        train = config.train
        self.schedule = Schedule(len(self.data.train), train.batch_size, config.seed)
        self.capacity = self.schedule.capacity(self.data.train.captions_per_video, train.epochs)
        self.total_steps = self.schedule.steps_per_epoch * train.epochs
        optimiser = optim.build(config, self.total_steps)
        self.step = make_train_step(self.model, config, optimiser, self.schedule.steps_per_epoch)
        self.evaluator = Evaluator(self.model, config)
        self.newest = checkpoint.newest(directory)
        self.best = checkpoint.best(directory)
        self.state = train_state.init_state(self.model, config, optimiser)
        self.progress = Progress()
        if self.newest.latest() is not None:
            self.state, saved = checkpoint.restore_state(self.newest, self.state)
            self.progress = Progress(**saved)

    def run(self) -> None:
        """Trains from where the run stands to its end."""
        steps_per_epoch = self.schedule.steps_per_epoch
        first = int(self.state.step)
        self.log = report.ScalarLog(self.directory, self.progress.log_position, first)
        with (
            contextlib.closing(self.log),
            _termination() as terminated,
            self._bar(first) as bar,
        ):
            batches = self._batches(range(first, self.total_steps))
            pending: list[Scalars] = []
            for number in range(first, self.total_steps):
                if self._finished():
                    break
                self.state, scalars = self.step(self.state, next(batches))
                pending.append(scalars)
                ends_epoch = (number + 1) % steps_per_epoch == 0
                due = (number + 1) % self.config.train.log_every == 0
                stop = terminated()
                if due or ends_epoch or stop:
                    self._record(number, pending, bar)
                    pending = []
                if ends_epoch:
                    self._validate()
                elif stop:
                    self._save()
                if stop:
                    raise Stopped(
                        f"SIGTERM: saved step {number + 1} in {self.directory}; the same command"
                        " goes on from there"
                    )

    def _batches(self, steps: range) -> Iterator[Batch]:
        sizes = self.config.data
        return pipeline.train_batches(
            self.data.train, self.schedule, self.capacity, sizes.max_words, sizes.max_frames, steps
        )

    def _bar(self, first: int) -> tqdm:
        return tqdm(
            total=self.total_steps,
            initial=first,
            desc="Training",
            unit="step",
            dynamic_ncols=True,
            mininterval=0.2 if sys.stderr.isatty() else 30.0,
        )

    def _record(self, last: int, pending: list[Scalars], bar: tqdm) -> None:
        """Checks the scalars of some steps, of which `last` is the last, and logs that one's."""
        values = jax.device_get(pending)
        for number, scalars in enumerate(values, start=last + 1 - len(values)):
            broken = [name for name, value in scalars.items() if not np.isfinite(value)]
            if broken:
                terms = [name for name in broken if name != "loss"] or broken
                raise NonFiniteLossError(
                    f"step {number} (epoch {number // self.schedule.steps_per_epoch}): "
                    f"{', '.join(terms)} is not finite; the newest checkpoint in "
                    f"{self.directory} is from before it. Lower config.optim.learning_rate, or "
                    "look at that step's batch"
                )
        epoch = last // self.schedule.steps_per_epoch
        if (last + 1) % self.config.train.log_every == 0:
            self.log.write(last, {k: float(v) for k, v in values[-1].items()}, epoch=epoch)
        bar.update(len(values))
        best = self.progress.best_sum_recall
        bar.set_postfix(
            epoch=f"{epoch + 1}/{self.config.train.epochs}",
            loss=f"{float(values[-1]['loss']):.3f}",
            best_SumR=f"{best:.1f}" if best >= 0 else "-",
            refresh=False,
        )
        rate = bar.format_dict["rate"]
        if rate:
            videos = rate * self.config.train.batch_size
            self.log.board(last, {"rate/videos_per_second": videos})

    def _validate(self) -> None:
        epoch = self.progress.epochs
        step = int(self.state.step)  # of the next step; records are of the last one
        start = time.monotonic()
        result = self.evaluator.evaluate(self.state.params, self.data.val)
        scalars = {f"validation/{name}": value for name, value in result.metrics.items()}
        self.log.write(step - 1, scalars, epoch=epoch)
        self.log.board(step - 1, {"rate/validation_seconds": time.monotonic() - start})
        sum_recall = result.metrics["SumR"]
        progress = self.progress._replace(epochs=epoch + 1, log_position=self.log.position())
        if sum_recall > progress.best_sum_recall:
            progress = progress._replace(best_epoch=epoch, best_sum_recall=sum_recall)
            info = {"epoch": epoch, "step": step, "validation_SumR": sum_recall}
            info |= model_fields(self.config)
            self.best.save(step, self.state.params, info)
        self.progress = progress
        self._save()

    def _save(self) -> None:
        self.progress = self.progress._replace(log_position=self.log.position())
        self.newest.save(int(self.state.step), self.state, self.progress._asdict())

    def _finished(self) -> bool:
        """Whether `patience` epochs have passed without a better one."""
        waited = self.progress.epochs - 1 - self.progress.best_epoch
        return self.progress.epochs > 0 and waited >= self.config.train.patience

    def test(self) -> dict[str, Result]:
        """Test metrics of the best epoch and of the last, and of the baseline if asked for."""
        best, info = self.best.restore(self.state.params), self.best.info()
        split = self.data.test
        rows = {
            f"best epoch ({info['epoch'] + 1})": self.evaluator.evaluate(best, split),
            f"last epoch ({self.progress.epochs})": self.evaluator.evaluate(
                self.state.params, split
            ),
        }
        if self.config.train.baseline:
            scores = baseline.mean_pooled_scores(self.data.train, self.data.val, split)
            rows["mean-pooled linear baseline"] = self.evaluator.result(scores, split)
            rows["chance"] = _chance(rows["mean-pooled linear baseline"])
        return rows


def _chance(like: Result) -> Result:
    """Expected metrics of a random ranking."""
    recalls = {f"R@{k}": 100.0 * min(k / like.videos, 1) for k in retrieval.RECALLS}
    return Result(recalls | {"SumR": sum(recalls.values())}, like.queries, like.videos)


def train(config: ConfigDict, directory: Path) -> None:
    """Trains, then reports the test split: a table, and test_metrics.json in the run's directory.

    Args:
      config: the resolved configuration.
      directory: the run's directory; a run that was interrupted there goes on.

    Raises:
      Stopped: when SIGTERM ended it; its state has been saved.
      NonFiniteLossError: when a loss is NaN or infinite.
      WorkdirError: when the directory holds another run.
      ReleasedDataError: when the data is missing or wrong.
    """
    trainer = Trainer(config, directory)
    trainer.run()
    rows = trainer.test()
    first = next(iter(rows.values()))
    report.write_json(directory / "test_metrics.json", first.as_json())
    title = f"Test split: {first.queries} queries, {first.videos} videos"
    report.results_table(title, {name: result.metrics for name, result in rows.items()})


@contextlib.contextmanager
def _termination() -> Iterator[Callable[[], bool]]:
    """Turns SIGTERM into a question that the loop asks between two steps."""
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGTERM, before)
