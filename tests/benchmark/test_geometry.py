"""Each function of the geometry is timed with its gradients and beside its peers."""

from types import SimpleNamespace

import jax.numpy as jnp

from hlformer_jax.benchmark import geometry
from hlformer_jax.benchmark.measure import Floor, Options
from hlformer_jax.config import default


def test_each_function_is_timed_with_its_gradients_and_beside_its_peers(monkeypatch):
    square = lambda x, y: jnp.sum((x - y) ** 2, -1)  # stands for a distance, and compiles at once
    functions = {
        "distance": square,
        "log_map": jnp.subtract,
        "pairwise_distance": lambda x, y: square(x[:, None], y[None]),
        "exp_map0": lambda x: jnp.pad(x, ((0, 0), (1, 0))),
    }
    for name, value in {"PAIRS": 5, "DIMENSION": 3, "POINTS": 4}.items():
        monkeypatch.setattr(geometry, name, value)
    monkeypatch.setattr(geometry, "floor", lambda flops, moved: Floor(flops, moved, 1.0))
    monkeypatch.setattr(geometry, "lorentz", SimpleNamespace(**functions))
    monkeypatch.setattr(geometry, "_peer", lambda: functions | {"one distance": square})
    rows = list(geometry.geometry(default(), Options(repeats=3)))
    names = "distance, [5, 3]", "log_map, [5, 3]", "pairwise_distance, 4 x 4"
    assert [row.what for row in rows[::2]] == list(names)
    points = 2 * 5 * 4 * 4  # bytes of two times five points of four coordinates
    assert [row.floor.bytes for row in rows[:2]] == [points + 4 * 5, 2 * points + 4]
    for row in rows:
        assert row.timing.repeats == 3
        assert row.facts["hyperbolix, ms"] > 0 and row.facts["times that of hyperbolix"] > 0
    assert "broadcasting, ms" in rows[-1].facts
