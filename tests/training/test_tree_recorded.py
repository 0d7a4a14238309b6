"""The released form of HOVER's losses against numbers recorded from the released modules."""

import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from hlformer_jax.config import default, preset
from hlformer_jax.models import hover
from hlformer_jax.models.hover import Points
from hlformer_jax.training import tree_objective
from hlformer_jax.typing import Nodes, Subtrees, TreeBatch

RECORDED = np.load(Path(__file__).parents[1] / "golden" / "hover_losses.npz")
ALPHA = {"align": 1.0, "tree": 1.0, "chain": 1.0, "order": 0.2}
"""Weights that the released modules multiply in."""


MOST = 5
"""Items of the largest case, to which others are padded: one program for all."""


def _batch(items):
    """Items that share no node: the parents, then the left, then the right children."""
    real = np.arange(MOST) < items
    number, rows = np.zeros(3 * MOST, np.int32), np.arange(3 * MOST, dtype=np.int32)
    empty, some = np.zeros((3 * MOST, 1, 1), np.float32), np.ones((3 * MOST, 1), bool)
    nodes = Nodes(empty, some, empty, some, np.tile(real, 3), number, number, number)
    subtrees = Subtrees(rows.reshape(3, MOST).T * real[:, None], real, real)
    return TreeBatch(nodes, subtrees, np.zeros((3 * MOST, 3 * MOST), bool))


@functools.cache
def _program():
    config = preset(default("hover"), "released")
    config.model.update(hyperbolic_dim=6)
    config.loss.order = 0.2
    objective = tree_objective.build(config, hover.build(config))

    def one(points, batch, scale, weights):
        params = {"direction": RECORDED["base"], "log_scale": jax.numpy.log(scale)}
        flat = Points(*points.reshape(2, -1, 6))
        terms = objective.evaluate(params, flat, batch)[1]
        return sum(weights[name] * value for name, value in terms.items())

    return jax.jit(jax.value_and_grad(one))


@pytest.mark.parametrize("case", ["near", "far", "one"])
def test_values_and_gradients_are_those_of_the_released_modules(case):
    recorded = {
        name.partition("/")[2]: RECORDED[name]
        for name in RECORDED.files
        if name.startswith(f"{case}/")
    }
    points = recorded["points"]  # modality, slot, item, coordinate
    items = points.shape[2]
    padded = np.pad(points, ((0, 0), (0, 0), (0, MOST - items), (0, 0)))
    for name, alpha in ALPHA.items():
        weights = {other: np.float32(other == name) for other in ALPHA}
        value, gradient = _program()(padded, _batch(items), recorded["scale"], weights)
        # The released distances add 1e-5 to denominators; theirs and ours are float32.
        assert float(value) == pytest.approx(recorded[name] / alpha, rel=2e-4, abs=1e-6)
        expected = recorded[f"{name}_gradient"] / alpha
        size = np.abs(expected).max()
        np.testing.assert_allclose(gradient[:, :, :items], expected, atol=1e-3 * size + 1e-7)
