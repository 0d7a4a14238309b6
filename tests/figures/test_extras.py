"""Projections of the extra packages: deterministic, and one line where there are none."""

import sys

import numpy as np
import pytest

from hlformer_jax.figures import extras


def _points():
    rng = np.random.default_rng(0)
    middles = 5 * np.repeat(np.eye(4)[:2], 12, axis=0)
    return middles + 0.3 * rng.normal(size=(24, 4))


@pytest.mark.slow  # it compiles for seconds
def test_t_sne_keeps_groups_apart_and_gives_the_same_each_time():
    plane = extras.t_sne(_points(), 0)
    np.testing.assert_array_equal(plane, extras.t_sne(_points(), 0))
    assert extras.silhouette(_points(), np.repeat([0, 1], 12)) > 0.9
    one, other = plane[:12].mean(axis=0), plane[12:].mean(axis=0)
    inside = max(np.linalg.norm(plane[:12] - one, axis=1).max(), 0)
    assert np.linalg.norm(one - other) > inside


@pytest.mark.slow  # it compiles for ten seconds
def test_umap_keeps_groups_apart_and_gives_the_same_each_time():
    plane = extras.umap(_points(), 0)
    np.testing.assert_array_equal(plane, extras.umap(_points(), 0))
    one, other = plane[:12].mean(axis=0), plane[12:].mean(axis=0)
    assert np.linalg.norm(one - other) > np.linalg.norm(plane[:12] - one, axis=1).max()


@pytest.mark.parametrize(
    ("module", "call"), [("umap", extras.umap), ("sklearn.manifold", extras.t_sne)]
)
def test_a_package_that_is_missing_is_one_line_with_what_to_install(monkeypatch, module, call):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(extras.MissingExtra, match=r"pip install hlformer_jax\[figures\]") as raised:
        call(_points(), 0)
    assert "\n" not in str(raised.value)
