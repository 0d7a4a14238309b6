"""The released form of HOVER's losses against numbers recorded from the released modules."""

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


def _batch(items):
    """Items that share no node: the parents, then the left, then the right children."""
    count = 3 * items
    number, rows = np.zeros(count, np.int32), np.arange(count, dtype=np.int32)
    empty = np.zeros((count, 1, 1), np.float32)
    real = np.ones((count, 1), bool)
    nodes = Nodes(empty, real, empty, real, np.ones(count, bool), number, number, number)
    ones = np.ones(items, bool)
    subtrees = Subtrees(rows.reshape(3, items).T, ones, ones)
    return TreeBatch(nodes, subtrees, np.zeros((count, count), bool))


@pytest.mark.parametrize("case", ["near", "far", "one"])
def test_values_and_gradients_are_those_of_the_released_modules(case):
    recorded = {
        name.partition("/")[2]: RECORDED[name]
        for name in RECORDED.files
        if name.startswith(f"{case}/")
    }
    points = recorded["points"]  # modality, slot, item, coordinate
    config = preset(default("hover"), "released")
    config.model.update(hyperbolic_dim=6, learned_scale=False, scale=float(recorded["scale"]))
    config.loss.order = 0.2
    objective = tree_objective.build(config, hover.build(config))
    batch = _batch(points.shape[2])

    def terms(points):
        flat = Points(*points.reshape(2, -1, 6))
        return objective.evaluate({"direction": RECORDED["base"]}, flat, batch)[1]

    values, gradients = jax.jit(lambda points: (terms(points), jax.jacrev(terms)(points)))(points)
    for name, alpha in ALPHA.items():
        # The released distances add 1e-5 to denominators; theirs and ours are float32.
        assert float(values[name]) == pytest.approx(recorded[name] / alpha, rel=2e-4, abs=1e-6)
        expected = recorded[f"{name}_gradient"] / alpha
        size = np.abs(expected).max()
        np.testing.assert_allclose(gradients[name], expected, atol=1e-3 * size + 1e-7)
