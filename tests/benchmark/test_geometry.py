"""The functions of hyperbolic space beside their peers: times, and errors against 60 digits."""

import numpy as np
import pytest

from hlformer_jax.benchmark import geometry
from hlformer_jax.benchmark.measure import Floor, Options
from hlformer_jax.config import default


@pytest.fixture
def small(monkeypatch):
    """Few points, two functions, and this package again in the place of a peer."""
    sizes = {"PAIRS": 5, "DIMENSION": 3, "POINTS": 4, "POINT_DIMENSION": 3, "RADII": (1e-6, 1.0)}
    for name, value in {**sizes, "FUNCTIONS": ("distance", "pairwise_distance")}.items():
        monkeypatch.setattr(geometry, name, value)
    monkeypatch.setattr(geometry, "floor", lambda flops, moved: Floor(flops, moved, 1.0))
    monkeypatch.setattr(geometry, "peers", lambda dtype: {"peer": geometry.ours()})


@pytest.mark.slow  # it compiles every function in two precisions
def test_each_function_is_timed_and_measured_with_its_gradients_and_beside_its_peers(small):
    rows = list(geometry.geometry(default(), Options(repeats=3)))
    assert [row.what for row in rows] == [
        f"{model}.{name}, {shape}"
        for model in geometry.MODELS
        for name, shape in (("distance", "[5, 3]"), ("pairwise_distance", "[4, 3]"))
    ]
    for row in rows:
        assert row.timing.repeats == 3 and row.facts["peer: times as long"] > 0
        assert ("peer: gradients times as long" in row.facts) == ("pairwise" not in row.what)
        for dtype in ("float32", "float64"):
            bound = 64 * np.finfo(dtype).eps
            for prefix in ("", "peer: "):
                assert row.facts[f"{prefix}not finite, {dtype}"] == 0
                assert 0 < row.facts[f"{prefix}error, {dtype}"] < bound
                assert 0 < row.facts[f"{prefix}gradient's error, {dtype}"] < bound


@pytest.mark.parametrize("model", geometry.MODELS)
@pytest.mark.parametrize("name", geometry.FUNCTIONS)
def test_the_sixty_digits_are_those_of_the_functions(model, name, monkeypatch):
    """Values and gradients of the formulas agree with the functions where these are exact."""
    monkeypatch.setattr(geometry, "RADII", (0.1, 1.0))
    [(_, facts)] = geometry._errors_of(model, name, "float32", {"ours": geometry.ours()})
    assert facts["not finite"] == 0
    assert facts["error"] < 1e-5 and facts["gradient's error"] < 1e-4


def test_a_wrong_or_infinite_value_is_seen():
    ours = geometry.ours()
    wrong = {
        ("lorentz", "distance"): lambda x, y: ours.functions["lorentz", "distance"](x, y) * 1.01,
    }
    infinite = {("lorentz", "distance"): lambda x, y: 0 * y[..., 1] / (x - y)[..., 1]}
    libraries = {
        "wrong": ours._replace(functions=wrong),
        "infinite": ours._replace(functions=infinite),
    }
    facts = dict(geometry._errors_of("lorentz", "distance", "float32", libraries))
    np.testing.assert_allclose(facts["wrong"]["error"], 0.01, rtol=1e-3)
    np.testing.assert_allclose(facts["wrong"]["gradient's error"], 0.01, rtol=1e-3)
    assert facts["infinite"]["not finite"] >= 2 * len(geometry.RADII)
