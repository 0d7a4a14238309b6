"""The progress of a run: which epoch is the best, and when enough have passed since."""

from hlformer_jax.training.progress import Progress


def _after(*metrics):
    progress = Progress()
    for epoch, metric in enumerate(metrics):
        progress = progress.validated(epoch, metric)
    return progress


def test_the_first_of_equal_epochs_stays_the_best():
    progress = _after(1.0, 3.0, 3.0, 2.0)
    assert (progress.best_epoch, progress.best_metric, progress.epochs) == (1, 3.0, 4)


def test_a_metric_below_zero_can_be_the_best():
    assert _after(-2.0, -1.0).best_epoch == 1


def test_a_run_is_over_after_so_many_epochs_without_a_better_one():
    assert not Progress().is_over(1)
    assert not _after(1.0).is_over(1)
    assert _after(1.0, 1.0).is_over(1)
    assert not _after(1.0, 0.5, 0.5).is_over(3)
    assert _after(1.0, 0.5, 0.5, 0.5).is_over(3)
