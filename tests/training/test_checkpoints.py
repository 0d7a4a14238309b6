"""The checkpoints of a run: the best epoch is on disk before the state that speaks of it."""

import jax.numpy as jnp
import numpy as np
import pytest

from hlformer_jax.run.checkpoint import CheckpointError
from hlformer_jax.training.checkpoints import Checkpoints
from hlformer_jax.training.progress import Progress
from hlformer_jax.training.train_state import TrainState


def _state(step):
    return TrainState(jnp.asarray(step), {"x": jnp.full(3, float(step))}, ())


def test_a_run_without_checkpoints_has_nothing_to_restore(tmp_path):
    assert Checkpoints(tmp_path, 0.0).restore(_state(0)) is None


def test_state_progress_and_best_parameters_come_back(tmp_path):
    checkpoints = Checkpoints(tmp_path, 0.0)
    first, second = Progress().validated(0, 3.5), Progress().validated(0, 3.5).validated(1, 2.0)
    checkpoints.keep_best(3, _state(3).params, {"epoch": 0})
    assert checkpoints.best.latest() is None  # saved with the next state
    checkpoints.save(_state(3), first)
    checkpoints.save(_state(6), second)
    again = Checkpoints(tmp_path, 0.0)
    state, progress = again.restore(_state(0))
    assert int(state.step) == 6 and progress == second
    np.testing.assert_array_equal(state.params["x"], np.full(3, 6.0))
    np.testing.assert_array_equal(again.best.restore(_state(0).params)["x"], np.full(3, 3.0))


def test_the_parameters_that_are_kept_outlive_a_donated_state(tmp_path):
    checkpoints, state = Checkpoints(tmp_path, 0.0), _state(3)
    checkpoints.keep_best(3, state.params, {"epoch": 0})
    state.params["x"].delete()
    checkpoints.save(_state(3), Progress().validated(0, 1.0))
    np.testing.assert_array_equal(checkpoints.best.restore(_state(0).params)["x"], np.full(3, 3.0))


def test_a_best_epoch_that_the_newest_state_does_not_know_is_forgotten(tmp_path):
    checkpoints = Checkpoints(tmp_path, 0.0)
    checkpoints.keep_best(3, _state(3).params, {"epoch": 0})
    checkpoints.save(_state(3), Progress().validated(0, 1.0))
    checkpoints.best.save(6, _state(6).params, {"epoch": 1})  # and then the run is killed
    assert Checkpoints(tmp_path, 0.0).best.latest() == 3


def test_a_state_whose_best_epoch_is_missing_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path, 0.0)
    checkpoints.save(_state(3), Progress().validated(0, 1.0))
    with pytest.raises(CheckpointError, match="best holds no checkpoint"):
        Checkpoints(tmp_path, 0.0).restore(_state(0))


def test_a_save_is_due_after_the_seconds_between_two(tmp_path):
    assert Checkpoints(tmp_path, 0.0).due()
    assert not Checkpoints(tmp_path, 1e9).due()
