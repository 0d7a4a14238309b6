"""Checkpoints: what is saved comes back, and what is damaged or of another shape says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlformer_jax.run import checkpoint

TREE = {"block": {"kernel": np.arange(6.0, dtype=np.float32).reshape(2, 3)}, "bias": np.ones(2)}


@pytest.fixture
def series(tmp_path):
    series = checkpoint.Series(tmp_path / "series")
    series.save(3, TREE, {"epoch": 0, "metric": 1.5})
    return series


def _delete(file):
    file.unlink()


def _flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_arrays_and_information_come_back(series, tmp_path):
    again = checkpoint.Series(tmp_path / "series")
    assert again.latest() == 3
    assert again.info() == {"epoch": 0, "metric": 1.5}
    for one, other in zip(*map(jax.tree.leaves, (again.restore(TREE), TREE)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_step_that_is_there_is_not_written_again(series):
    series.save(3, {"other": np.zeros(1)}, {})
    series.save(2, {"other": np.zeros(1)}, {})
    assert series.latest() == 3 and series.info()["epoch"] == 0


def test_the_best_series_keeps_the_one_before_and_forgets_what_came_later(tmp_path):
    best = checkpoint.best(tmp_path)
    for step in (3, 6, 9):
        best.save(step, TREE, {"epoch": step})
    assert sorted(int(path.name) for path in (tmp_path / "checkpoints/best").iterdir()) == [6, 9]
    best.forget_after(6)
    assert best.latest() == 6
    best.forget_after(None)
    assert best.latest() is None


@pytest.mark.parametrize("damage", [_delete, _flip_a_bit])
@pytest.mark.parametrize("what", ["manifest.ocdbt", "d/*", "metadata"])
def test_a_damaged_checkpoint_is_one_line(series, tmp_path, what, damage):
    files = list((tmp_path / "series").rglob(what))
    assert files
    for file in files:
        damage(file)
    with pytest.raises(
        checkpoint.CheckpointError, match=r"of step 3 is damaged \(.*\): put a copy"
    ):
        checkpoint.Series(tmp_path / "series").restore(TREE)


def test_a_save_that_was_killed_before_its_sums_were_written_is_there(series, tmp_path):
    step = tmp_path / "series" / "3"
    (step / "SHA256SUMS").rename(step / ".SHA256SUMS")
    again = checkpoint.Series(tmp_path / "series")
    np.testing.assert_array_equal(again.restore(TREE)["bias"], TREE["bias"])
    again.save(4, TREE, {})
    assert again.latest() == 4


def test_a_checkpoint_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    series = checkpoint.Series(tmp_path)

    def fail(*_, **__):
        raise ValueError("RESOURCE_EXHAUSTED: no space left\nand more")

    monkeypatch.setattr(series._manager, "save", fail)
    with pytest.raises(
        checkpoint.CheckpointError, match=r"step 3 cannot .* left\): make room there"
    ):
        series.save(3, {"x": np.zeros(2)}, {})


@pytest.mark.parametrize(
    "template",
    [
        {"block": {"kernel": jnp.zeros((2, 4))}, "bias": jnp.zeros(2)},
        {"block": {"kernel": jnp.zeros((2, 3))}},
        {"block": {"kernel": jnp.zeros((2, 3)), "scale": jnp.zeros(2)}, "bias": jnp.zeros(2)},
    ],
    ids=["another shape", "one less", "one more"],
)
def test_parameters_of_another_shape_are_refused_with_the_fields_to_set(series, template):
    with pytest.raises(checkpoint.CheckpointError, match=r"has shape .* config\.model"):
        series.restore(template)


def test_a_directory_without_a_checkpoint_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(checkpoint.CheckpointError, match="holds no checkpoint"):
            checkpoint.open_params(path)
    with pytest.raises(checkpoint.CheckpointError, match="holds no checkpoint"):
        checkpoint.best(tmp_path).info()


def test_parameters_alone_are_written_into_a_new_directory(tmp_path):
    checkpoint.save_params(tmp_path / "converted", TREE, {"step": 7})
    saved = checkpoint.open_params(tmp_path / "converted")
    np.testing.assert_array_equal(saved.restore(TREE)["bias"], TREE["bias"])
    assert saved.latest() == 7
    with pytest.raises(checkpoint.CheckpointError, match="is not empty"):
        checkpoint.save_params(tmp_path / "converted", TREE, {})
