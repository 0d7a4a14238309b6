"""What a run knows of itself beside its state; saved with it."""

from typing import NamedTuple


class Progress(NamedTuple):
    """The progress of a run.

    Attributes:
      best_epoch: the epoch, from 0, of the best validation; -1 before the first.
      best_metric: the metric of that validation that chooses it (`config.eval.select`).
      epochs: number of epochs validated.
      log_position: length of metrics.jsonl in bytes.
      seconds: what the epochs took to train, validation excluded; it alone depends on the clock.
    """

    best_epoch: int = -1
    best_metric: float | None = None
    epochs: int = 0
    log_position: int = 0
    seconds: float = 0.0

    def validated(self, epoch: int, metric: float) -> "Progress":
        """The progress after the validation of an epoch; the first of equal ones stays the best."""
        progress = self._replace(epochs=epoch + 1)
        if self.best_metric is None or metric > self.best_metric:
            progress = progress._replace(best_epoch=epoch, best_metric=metric)
        return progress

    def is_over(self, patience: int) -> bool:
        """Whether `patience` epochs have passed without a better one."""
        return self.epochs > 0 and self.epochs - 1 - self.best_epoch >= patience
