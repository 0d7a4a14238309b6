"""Definition of a sweep: its variants, runs and published figures, and refusals of wrong ones."""

import re

import numpy as np
import pytest
from ml_collections import ConfigDict
from processes import ROOT

from hlformer_jax import models
from hlformer_jax import sweep as definition
from hlformer_jax.config import ConfigError, debug, default, load
from hlformer_jax.data.annotations.moments import moments_from_json
from hlformer_jax.data.dataset import choose_tree_source
from hlformer_jax.data.trees import build_all
from hlformer_jax.retrieval import ranking
from hlformer_jax.sweep import (
    METRICS,
    changed_fields,
    expand,
    mark_given,
    runs,
    share,
    task_of_array,
)

FILES = sorted(path.stem for path in (ROOT / "configs" / "sweeps").glob("*.py"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variants": {}}, "no variants"),
        ({"seeds": ()}, "no seeds"),
        (
            {"variants": {"a": {"model": {"fuson": "mean"}}}},
            "config.model.fuson is unknown; did",
        ),
        ({"variants": {"a": {"modell": {}}}}, "'a': the field config.modell is unknown"),
        ({"variants": {"a": {"model": {"name": {}}}}}, "config.model.name is {}: it must be a str"),
        ({"variants": {"a": {"model": 3}}}, "'a': config.model is a section"),
        ({"variants": {"a": {"model": {"name": {"x": 1}}}}}, "'a': config.model.name is a field"),
        ({"variants": {"a": {"model": {"gaze": "yes"}}}}, "must be a bool"),
        ({"variants": {"a": {"model": {"dropout": 2.0}}}}, "'a': config.model.dropout is 2.0"),
        ({"variants": {"a": {"seed": 3}}}, "config.seeds"),
        ({"variants": {"a": {"base": "other"}}}, "base 'other'"),
        ({"variants": {"w/ a": {}, "w a": {}}}, "share the directory w-a/seed0"),
        ({"variants": {"A": {}, "a": {}}}, "share the directory a/seed0"),
        ({"seeds": (1, 1)}, "share the directory"),
        ({"variants": {"../": {}}}, "must have a letter"),
        ({"published": {"ful": {"SumR": 1.0}}}, "variant 'ful' is unknown; did you mean 'full'"),
        ({"published": {"full": {"R@2": 1.0}}}, "'R@2' is not a metric"),
        ({"corrections": {"full": {"R@1": (1.0, "why")}}}, "no published R@1"),
        ({"cited": {"full": {"R@1": 1.0}}}, "'full' is a variant"),
        ({"quantity": "x"}, "go together"),
        ({"relative": {"full": "ful"}}, "variant 'ful'"),
        ({"metrics": ()}, "config.metrics is (): give one or more"),
        ({"metrics": ("R@1", "R@1")}, "each once"),
        ({"variants": {"a": {"model": {"name": "gmmformer_v2"}}}}, "'a': config.model.name is"),
        ({"base": "../ms_sl.py:tvr-"}, "ms_sl.py: there is no variant 'tvr-'"),
        ({"name": "fast"}, "variant 'fast'"),
    ],
)
def test_wrong_sweep_is_refused_in_one_line(sweep_of, settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        expand(sweep_of(**({"variants": {"full": {}}} | settings)))
    assert "\n" not in str(caught.value)


def test_runs_have_the_base_with_their_overrides_and_seed(sweep_of):
    sweep = sweep_of(
        {
            "full": ConfigDict({"model": {}}),
            "w/ 0.5": {"model": {"fusion": "mean", "euclidean_widths": (0.5,)}},
        },
        seeds=(3, 5),
    )
    planned = expand(sweep)
    # Seeds are the outer loop, so that a table with all variants exists early.
    assert [(run.variant, run.seed) for run in planned] == [
        ("full", 3), ("w/ 0.5", 3), ("full", 5), ("w/ 0.5", 5),
    ]  # fmt: skip
    assert [str(run.directory) for run in planned[:2]] == ["full/seed3", "w-0.5/seed3"]
    assert [run.config.seed for run in planned] == [3, 3, 5, 5]
    expected = default()
    expected.seed = 5
    assert planned[2].config.to_dict() == expected.to_dict()
    expected.model.update(fusion="mean", euclidean_widths=(0.5,))
    assert planned[3].config.to_dict() == expected.to_dict()
    assert sweep.base.to_dict() == default().to_dict()


def test_sweep_outside_the_package_finds_its_base(tmp_path):
    base_file = tmp_path / "mine.py"
    base_file.write_text(
        "from hlformer_jax.config import load\n\n\n"
        "def get_config(name=''):\n"
        "    config = load('tvr', name)\n"
        "    config.seed = 7\n"
        "    return config\n"
    )

    def define(base):
        path = str(tmp_path / "sweep.py")
        return definition.define(path, "", title="t", base=base, variants={"full": {}})

    assert define("tvr").base == load("tvr")
    assert define("ms_sl:tvr").base.model.name == "ms_sl"
    assert define("mine").base.seed == define("mine.py").base.seed == 7
    with pytest.raises(ConfigError, match="did you mean 'tvr'"):
        define("tvrr")


def test_debug_shrinks_the_base_but_keeps_variants(sweep_of):
    blocks = {"euclidean_blocks": 3, "lorentz_blocks": 0, "euclidean_widths": (0.0, 0.5, 1.0)}
    sweep = sweep_of({"three": {"model": blocks}}, "debug", published={"three": {"SumR": 150.0}})
    assert sweep.published == {"three": {"SumR": 150.0}}
    assert sweep.title == "a | title (debug)"
    [run] = expand(sweep)
    assert run.config.model.euclidean_widths == (0.0, 0.5, 1.0)
    assert run.config.train.epochs == 1
    expected = debug(default())
    assert run.config.model.hidden_size == expected.model.hidden_size
    assert run.config.data.to_dict() == expected.data.to_dict()
    models.build(run.config)


def test_command_line_changes_every_base_but_no_variant(sweep_of):
    sweep = sweep_of(
        {"tvr": {"base": "tvr"}, "longer tvr": {"base": "tvr", "train": {"epochs": 7}}, "anet": {}},
        bases={"tvr": "../tvr.py"},
        seeds=(0,),
    )
    sweep.base.train.epochs = 3
    sweep.base.data.manual_dir = "somewhere"
    tvr, longer_tvr, anet = (run.config for run in expand(sweep))
    assert (tvr.data.collection, anet.data.collection) == ("tvr", "activitynet")
    assert tvr.model.temperature == 0.09
    assert [config.train.epochs for config in (tvr, longer_tvr, anet)] == [3, 7, 3]
    assert {config.data.manual_dir for config in (tvr, longer_tvr, anet)} == {"somewhere"}
    sweep.base.seed = 4
    with pytest.raises(ConfigError, match="config.seeds"):
        expand(sweep)


def test_field_set_by_the_user_applies_to_every_base(sweep_of):
    variants = {"tvr": {"base": "tvr"}, "anet": {}}
    for fields, expected in (((), [0.09, 0.6]), (("seeds", "base.model.temperature"), [0.6] * 2)):
        sweep = sweep_of(variants, bases={"tvr": "../tvr.py"}, seeds=(0,))
        assert sweep.base.model.temperature == 0.6
        mark_given(sweep, fields)
        mark_given(sweep, ("base.train.epochs",))  # equal in both
        assert [run.config.model.temperature for run in expand(sweep)] == expected
        assert changed_fields(sweep) == ({"model.temperature": 0.6} if fields else {})


@pytest.mark.usefixtures("unchecked")
def test_tasks_share_every_run_exactly_once():
    items = list(range(11))
    for tasks in (1, 3, 11, 20):
        parts = [share(items, task, tasks) for task in range(tasks)]
        assert sorted(item for part in parts for item in part) == items
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for task, tasks in ((-1, 2), (2, 2), (0, 0)):
        with pytest.raises(ConfigError, match="`tasks`"):
            share(items, task, tasks)


def test_tasks_of_a_slurm_array_count_from_its_minimum():
    def array(**values):
        return {f"SLURM_ARRAY_TASK_{key}": str(x) for key, x in values.items()}

    assert task_of_array({}) == (0, 1)
    assert task_of_array(array(ID=5, COUNT=4, MIN=3, STEP=1)) == (2, 4)
    assert task_of_array(array(ID=8, COUNT=4, MIN=2, STEP=2)) == (3, 4)
    with pytest.raises(ConfigError, match="without gaps"):
        task_of_array(array(ID=9, COUNT=3, MIN=1, STEP=1))
    with pytest.raises(ConfigError, match="process"):
        task_of_array({"SLURM_STEP_NUM_TASKS": "2"})


def test_published_metrics_have_the_names_of_measured_ones():
    assert METRICS == tuple(ranking.metrics(np.ones(1)))
    assert definition.metrics(1, 2, 3, 4, 10) == dict(zip(METRICS, (1, 2, 3, 4, 10), strict=True))
    assert definition.metrics(10) == {"SumR": 10}


NAMES = {
    **dict.fromkeys(
        ("hlformer_table2", "hlformer_blocks", "main_comparison"), ("tvr", "charades", "tvr-debug")
    ),
    "clip_features": ("anet", "charades", "qv"),
}
"""The names behind the colon of the sweeps that have more than the debug size."""


@pytest.mark.parametrize("stem", FILES)
def test_every_packaged_sweep_can_run(stem, tmp_path):
    for name in ("", "debug", *NAMES.get(stem, ())):
        _check_sweep(stem, name, tmp_path)


def _check_sweep(stem, name, tmp_path):
    sweep = load(ROOT / "configs" / "sweeps" / f"{stem}.py", name)
    planned = expand(sweep)
    runs.check(planned, tmp_path)
    runs_each = 1 if "debug" in name else 3 * max(len(sweep.corpora), 1)
    assert len(planned) == len(sweep.variants) * runs_each
    assert len({run.config.to_json() for run in planned}) == len(planned), "two runs are the same"
    # Printed figures add up to SumR, up to rounding.
    for figures in [*sweep.published.values(), *sweep.cited.values()]:
        if len(figures) > 1 and "SumR" in figures:
            total = sum(figures[name] for name in METRICS[:-1])
            assert total == pytest.approx(figures["SumR"], abs=0.21)


def test_hover_sweeps_have_printed_and_corrected_figures():
    sweeps = {k: load(ROOT / f"configs/sweeps/hover_table{k}.py", "") for k in (1, 2, 3, 4)}
    first = sweeps[1]
    assert first.published["HOVER"]["t2v/MRR"] == 0.176
    assert first.published["HOVER"]["Δ t2v/MRR"] == 16.56
    assert first.cited["CLIP4Clip"]["v2t/R@10"] == 19.6
    assert {
        name: {k: x[0] for k, x in corrections.items()}
        for name, corrections in first.corrections.items()
    } == {
        "HOVER": {"t2v/MRR": 0.1645, "Δ t2v/MRR": 8.94},
        "CLIP4Clip": {"v2t/R@10": 29.7},
    }
    assert sweeps[2].published["HOVER"]["Δ t2v/MRR"] == 10.34
    assert sweeps[3].published["HOVER"]["leaves=2/t2v/R@10"] == 19.4
    # Nothing is published about the baseline of this package.
    assert not any("flat" in name for sweep in sweeps.values() for name in sweep.published)
    assert {"Frozen", "Frozen on MSR-VTT", "HOVER on MSVD"} <= set(sweeps[2].cited)


def test_manual_of_hover_has_every_published_figure():
    manual = (ROOT / "docs" / "hover.md").read_text(encoding="utf-8").replace("−", "-")
    numbers = set(re.findall(r"[+-]?\d+\.\d+", manual))
    for table in (1, 2, 3, 4):
        sweep = load(ROOT / f"configs/sweeps/hover_table{table}.py", "")
        for figures in [*sweep.published.values(), *sweep.cited.values()]:
            for metric, value in figures.items():
                form = "+.2f" if "Δ" in metric else ".3f" if "MRR" in metric else ".1f"
                assert format(value, form) in numbers, (table, metric)


@pytest.mark.parametrize(
    "name",
    ["debug", "charades-debug", pytest.param("tvr-debug", marks=pytest.mark.slow)],
)
def test_debug_size_of_hover_has_every_number_of_leaves(name, tmp_path):
    config = load(ROOT / "configs/hover.py", name)
    source = choose_tree_source(config)
    with source.open() as reader:
        videos = reader.annotations("test")["videos"]
    timed = [moments_from_json(line, name) for line in videos]
    # The sweeps of test_sweeps_end_to_end.py test this for activitynet-debug.
    counts = {min(len(tree.leaves), 5) for tree in build_all(timed, config.trees.form)}
    assert counts == {1, 2, 3, 4, 5}
