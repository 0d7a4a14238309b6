"""Every sweep of the papers, rehearsed by `:debug`: its runs train and its table is written.

Nearly all of the time is compilation, so a run is trained where its model or one of its switches
has not been, in any sweep; the others have its files. The gradients of every option are those of
tests/models and tests/losses.
"""

import json
import math
import shutil

import processes
import pytest

from hlformer_jax import sweep as definition
from hlformer_jax.config import load
from hlformer_jax.sweep import runs, tables

FILES = sorted(path.stem for path in (processes.ROOT / "configs" / "sweeps").glob("*.py"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("prepared")


@pytest.fixture(scope="module")
def trained():
    """Directories and results of the runs that were trained, by their models."""
    return {}


def _model(config):
    named = ("name", "geometry", "metric", "lift")
    fields = config.model.items()
    return frozenset((key, x) for key, x in fields if key in named or isinstance(x, bool))


@pytest.mark.slow
@pytest.mark.parametrize("stem", FILES)
def test_a_sweep_trains_what_it_varies_and_writes_its_table(stem, data, trained, tmp_path):
    sweep = load(processes.ROOT / "configs" / "sweeps" / f"{stem}.py", "debug")
    # HOVER's tables are by the number of leaves of a tree: its test videos have every number.
    test = 64 if stem.startswith("hover") else 8
    sweep.base.data.update(data_dir=str(data), synthetic_videos=(16, 8, test))
    planned = definition.expand(sweep)
    runs.check(planned, tmp_path)
    runs.open_data(planned, tmp_path)

    def execute(run, directory):
        model = _model(run.config)
        if model in trained and set(sweep.metrics) <= trained[model][1]["metrics"].keys():
            shutil.copytree(trained[model][0], directory)
        else:
            trained[model] = directory, runs._execute(run, directory)
        own = {"variant": run.variant, "corpus": run.corpus, "seed": run.seed}
        return trained[model][1] | own

    assert runs.perform(planned, tmp_path, print, execute=execute) == {}
    table = tables.publish(sweep, planned, tmp_path)
    assert json.loads((tmp_path / "table.json").read_text()) == json.loads(json.dumps(table))
    assert len(table["variants"]) > 1
    for variant in table["variants"]:
        assert variant["seeds"] == [0], variant["variant"]
        for name in table["metrics"]:
            assert math.isfinite(variant["mean"][name]), variant["variant"]
    for name in ("table.md", "table.csv", "sweep.png", "sweep.svg"):
        assert (tmp_path / name).stat().st_size > 100
