"""The checkpoints that a run keeps: its newest state, and the parameters of its best epoch."""

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from hlformer_jax.parallel import processes
from hlformer_jax.run import checkpoint
from hlformer_jax.training.progress import Progress
from hlformer_jax.training.train_state import TrainState


class Checkpoints:
    """Both series of a run's directory.

    Attributes:
      newest: the whole training state, and the progress of the run.
      best: the parameters of the best epoch.
    """

    def __init__(self, directory: Path, seconds: float) -> None:
        """Opens both.

        Args:
          directory: the run's directory.
          seconds: time between two saves.
        """
        self.newest, self.best = checkpoint.newest(directory), checkpoint.best(directory)
        self._seconds, self._saved = seconds, time.monotonic()
        self._unsaved_best: tuple[int, Any, dict[str, Any]] | None = None
        # A run that was killed before its newest state was saved need not come to the same best
        # epoch again where rounding differs, with other devices say.
        self.best.forget_after(self.newest.latest())

    def restore(self, template: TrainState) -> tuple[TrainState, Progress] | None:
        """The newest state and its progress; None for a run that has none.

        Raises:
          CheckpointError: when either series is damaged or has another structure.
        """
        if self.newest.latest() is None:
            return None
        state: TrainState = self.newest.restore(template)
        progress = Progress(**self.newest.info())
        if progress.best_epoch >= 0:
            self.best.check()  # now, and not when all is trained
        return state, progress

    def keep_best(self, step: int, params: Any, info: dict[str, Any]) -> None:
        """Takes parameters as those of the best epoch; they are saved with the next state."""
        # A copy, since the state is donated to the steps that follow.
        self._unsaved_best = step, jax.tree.map(jnp.copy, params), info

    def due(self) -> bool:
        """Whether it is time to save, in every process when in one."""
        return processes.any_process(time.monotonic() - self._saved >= self._seconds)

    def save(self, state: TrainState, progress: Progress) -> None:
        """Saves the best epoch first: what the newest state says of it is then there."""
        if self._unsaved_best is not None:
            self.best.save(*self._unsaved_best)
            self._unsaved_best = None
        self.newest.save(int(state.step), state, progress._asdict())
        self._saved = time.monotonic()
