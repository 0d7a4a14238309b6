"""Small sweeps, and results of their runs without running them."""

import types

import jax
import pytest
from processes import ROOT

from hlformer_jax import sweep as definition
from hlformer_jax.sweep import runs


@pytest.fixture
def sweep_of():
    """Defines a sweep like a file in configs/sweeps/."""
    path = str(ROOT / "configs" / "sweeps" / "example.py")

    def define(variants, name="", base="../anet.py", **settings):
        settings = {"title": "a | title", "base": base, "variants": variants, **settings}
        return definition.define(path, name, **settings)

    return define


@pytest.fixture
def result_of():
    """Makes the content of a run's result.json, with a SumR."""

    def result(run, sum_recall):
        metrics = dict(
            zip(definition.METRICS, (1.0, 2.0, 3.0, sum_recall - 6, sum_recall), strict=True)
        )
        cost = {"parameters": 1234567, "flops_video": 2.5e9, "flops_caption": 1.5e6}
        return {
            "variant": run.variant, "corpus": run.corpus, "seed": run.seed, "metrics": metrics,
            "seconds_per_epoch": 1.5, "versions": {"jax": "0"}, **cost,
        }  # fmt: skip

    return result


@pytest.fixture
def small_sweep(sweep_of, monkeypatch):
    """A sweep of three variants and two seeds, and its six runs, without clearing of memory."""
    monkeypatch.setattr(runs, "gc", types.SimpleNamespace(collect=lambda: None))
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # other tests need the caches
    sweep = sweep_of(
        {"full": {}, "w/ a|b": {"model": {"fusion": "mean"}}, "bad": {"model": {"gaze": False}}},
        published={"full": definition.metrics(1.0, 2.0, 3.0, 4.0, 10.0), "bad": {"SumR": 9.0}},
        cited={"other": {"SumR": 8.0}},
        seeds=(0, 1),
    )
    return sweep, definition.expand(sweep)
