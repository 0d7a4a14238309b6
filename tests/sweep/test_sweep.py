"""Sweeps: their definition, their runs, what is resumed, and their tables."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from command_line import calls

from hlformer_jax import models, plots
from hlformer_jax.config import ConfigError, debug, default, load
from hlformer_jax.retrieval import ranking
from hlformer_jax.run import files
from hlformer_jax.run.workdir import OccupiedError, WorkdirError
from hlformer_jax.sweep import definition, publish, runs, tables
from hlformer_jax.sweep.definition import METRICS, define, expand, share, task_of_array
from hlformer_jax.training import loop
from hlformer_jax.training.monitor import NonFiniteLossError

ROOT = Path(__file__).parents[2]
HERE = str(ROOT / "configs" / "sweeps" / "here.py")
FILES = sorted(path.stem for path in (ROOT / "configs" / "sweeps").glob("*.py"))


def _sweep(variants, name="", base="../anet.py", **more):
    return define(HERE, name, title="a | title", base=base, variants=variants, **more)


# --- definition --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"variants": {}}, "no variants"),
        ({"seeds": ()}, "no seeds"),
        ({"variants": {"a": {"model": {"fuson": "mean"}}}}, "config.model.fuson; did you mean"),
        ({"variants": {"a": {"modl": {}}}}, "config.modl; did you mean 'model'"),
        ({"variants": {"a": {"model": 3}}}, "'a': config.model is a section"),
        ({"variants": {"a": {"dtype": {"x": 1}}}}, "config.dtype is a field"),
        ({"variants": {"a": {"model": {"gaze": "yes"}}}}, "must be a bool"),
        ({"variants": {"a": {"model": {"dropout": 2.0}}}}, "'a': config.model.dropout is 2.0"),
        ({"variants": {"a": {"seed": 3}}}, "config.seeds"),
        ({"variants": {"a": {"base": "other"}}}, "no base 'other'"),
        ({"variants": {"w/ a": {}, "w a": {}}}, "share the directory w-a/seed0"),
        ({"variants": {"A": {}, "a": {}}}, "share the directory a/seed0"),
        ({"seeds": (1, 1)}, "share the directory"),
        ({"variants": {"../": {}}}, "needs a letter"),
        ({"published": {"ful": {"SumR": 1.0}}}, "no variant 'ful'; did you mean 'full'"),
        ({"published": {"full": {"R@2": 1.0}}}, "'R@2' is no metric"),
        ({"values": {"ful": 1.0}, "quantity": "x"}, "no variant 'ful'"),
        ({"quantity": "x"}, "go together"),
        ({"metrics": ()}, "config.metrics is (): name one or more"),
        ({"metrics": ("R@1", "R@1")}, "each once"),
        ({"metrics": ("R@1",), "published": {"full": {"SumR": 1.0}}}, "'SumR' is no metric"),
        ({"variants": {"a": {"model": {"name": "gmmformer_v2"}}}}, "'a': config.model.name is"),
        ({"base": "../ms_sl.py:tvr-"}, "ms_sl.py: there is no variant 'tvr-'"),
        ({"name": "fast"}, "no variant 'fast'"),
    ],
)
def test_a_wrong_sweep_is_one_clear_line(more, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        expand(_sweep(**({"variants": {"full": {}}} | more)))
    assert "\n" not in str(caught.value)


def test_runs_have_the_base_with_their_overrides_and_seed():
    sweep = _sweep(
        {"full": {}, "w/ 0.5": {"model": {"fusion": "mean", "euclidean_widths": (0.5,)}}},
        seeds=(3, 5),
    )
    found = expand(sweep)
    # A table with all variants is there as early as can be.
    assert [(run.variant, run.seed) for run in found] == [
        ("full", 3), ("w/ 0.5", 3), ("full", 5), ("w/ 0.5", 5),
    ]  # fmt: skip
    assert [str(run.directory) for run in found[:2]] == ["full/seed3", "w-0.5/seed3"]
    assert [run.config.seed for run in found] == [3, 3, 5, 5]
    expected = default()
    expected.seed = 5
    assert found[2].config.to_dict() == expected.to_dict()
    expected.model.update(fusion="mean", euclidean_widths=(0.5,))
    assert found[3].config.to_dict() == expected.to_dict()
    assert sweep.base.to_dict() == default().to_dict()


def test_debug_shrinks_the_base_and_keeps_what_a_variant_is():
    blocks = {"euclidean_blocks": 3, "lorentz_blocks": 0, "euclidean_widths": (0.0, 0.5, 1.0)}
    sweep = _sweep({"three": {"model": blocks}}, "debug", published={"three": {"SumR": 150.0}})
    assert not sweep.published  # it would stand beside what it cannot be compared with
    [run] = expand(sweep)
    assert run.config.model.euclidean_widths == (0.0, 0.5, 1.0)
    assert run.config.train.epochs == 1
    expected = debug(default())
    assert run.config.model.hidden_size == expected.model.hidden_size
    assert run.config.data.to_dict() == expected.data.to_dict()
    models.build(run.config)


def test_what_the_command_line_changes_holds_for_every_base_but_not_against_a_variant():
    sweep = _sweep(
        {"tvr": {"base": "tvr"}, "own": {"base": "tvr", "train": {"epochs": 7}}, "anet": {}},
        bases={"tvr": "../tvr.py"},
        seeds=(0,),
    )
    sweep.base.train.epochs = 3
    sweep.base.data.manual_dir = "somewhere"
    tvr, own, anet = (run.config for run in expand(sweep))
    assert (tvr.data.collection, anet.data.collection) == ("tvr", "activitynet")
    assert tvr.model.temperature == 0.09
    assert [config.train.epochs for config in (tvr, own, anet)] == [3, 7, 3]
    assert {config.data.manual_dir for config in (tvr, own, anet)} == {"somewhere"}
    sweep.base.seed = 4
    with pytest.raises(ConfigError, match="config.seeds"):
        expand(sweep)


@pytest.mark.usefixtures("unchecked")
def test_tasks_share_all_runs_once():
    items = list(range(11))
    for tasks in (1, 3, 11, 20):
        parts = [share(items, task, tasks) for task in range(tasks)]
        assert sorted(item for part in parts for item in part) == items
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for task, tasks in ((-1, 2), (2, 2), (0, 0)):
        with pytest.raises(ConfigError, match="--tasks"):
            share(items, task, tasks)


def test_tasks_of_a_slurm_array_are_counted_from_its_first():
    array = lambda **given: {f"SLURM_ARRAY_TASK_{key}": str(x) for key, x in given.items()}
    assert task_of_array({}) == (0, 1)
    assert task_of_array(array(ID=5, COUNT=4, MIN=3, STEP=1)) == (2, 4)
    assert task_of_array(array(ID=8, COUNT=4, MIN=2, STEP=2)) == (3, 4)
    with pytest.raises(ConfigError, match="--array"):
        task_of_array(array(ID=9, COUNT=3, MIN=1, STEP=1))
    with pytest.raises(ConfigError, match="one process a task"):
        task_of_array({"SLURM_STEP_NUM_TASKS": "2"})


def test_published_metrics_have_the_names_of_measured_ones():
    assert METRICS == tuple(ranking.metrics(np.ones(1)))
    assert definition.metrics(1, 2, 3, 4, 10) == dict(zip(METRICS, (1, 2, 3, 4, 10), strict=True))
    assert definition.metrics(10) == {"SumR": 10}


# --- the files ---------------------------------------------------------------------------------

NAMES = [(stem, "") for stem in FILES]
NAMES += [("hlformer_table2", name) for name in ("tvr", "charades", "tvr-debug")]


@pytest.mark.parametrize(("stem", "name"), NAMES + [(stem, "debug") for stem in FILES])
def test_every_sweep_of_the_papers_is_one_that_can_run(stem, name, tmp_path):
    sweep = load(ROOT / "configs" / "sweeps" / f"{stem}.py", name)
    planned = expand(sweep)
    runs.check(planned, tmp_path)
    assert len(planned) == len(sweep.variants) * (1 if "debug" in name else 3)
    assert len({run.config.to_json() for run in planned}) == len(planned), "two runs are the same"
    # Printed figures add up to SumR as far as they are rounded.
    for figures in sweep.published.values():
        if len(figures) > 1 and "SumR" in figures:
            total = sum(figures[name] for name in METRICS[:-1])
            assert total == pytest.approx(figures["SumR"], abs=0.21)


# --- runs --------------------------------------------------------------------------------------


def _result(run, sum_recall):
    metrics = dict(zip(METRICS, (1.0, 2.0, 3.0, sum_recall - 6, sum_recall), strict=True))
    cost = {"parameters": 1234567, "flops_video": 2.5e9, "flops_caption": 1.5e6}
    return {
        "variant": run.variant, "seed": run.seed, "metrics": metrics, "seconds_per_epoch": 1.5,
        "versions": {"jax": "0"}, **cost,
    }  # fmt: skip


@pytest.fixture
def small():
    sweep = _sweep(
        {"full": {}, "w/ a|b": {"model": {"fusion": "mean"}}, "bad": {"model": {"gaze": False}}},
        published={"full": definition.metrics(1.0, 2.0, 3.0, 4.0, 10.0), "bad": {"SumR": 9.0}},
        seeds=(0, 1),
    )
    return sweep, expand(sweep)


def test_a_run_that_fails_leaves_the_others_and_is_tried_again(small, tmp_path):
    sweep, planned = small
    called, told = [], []

    def execute(run, directory):
        called.append(directory.relative_to(tmp_path))
        assert directory == tmp_path / run.directory
        if run.variant == "bad" and run.seed == 1 and len(called) <= len(planned):
            raise NonFiniteLossError("step 4: loss is not finite\nand more")
        return _result(run, 10.0 + run.seed)

    failures = runs.perform(planned, tmp_path, told.append, execute=execute)
    assert called == [run.directory for run in planned]
    reason = "NonFiniteLossError: step 4: loss is not finite"
    assert failures == {Path("bad/seed1"): reason}
    assert told[0] == "run 1 of 6: full, seed 0"
    assert told[-1] == f"failed: bad, seed 1: {reason}"
    table = tables.collect(sweep, planned, tmp_path)
    assert (table["finished"], table["total"]) == (5, 6)
    assert table["variants"][2]["failures"] == [{"seed": 1, "reason": reason}]
    assert reason in tables.markdown(table)
    assert "Traceback" in json.loads((tmp_path / "bad/seed1/failure.json").read_text())["traceback"]

    assert runs.perform(planned, tmp_path, told.append, execute=execute) == {}
    assert called[6:] == [Path("bad/seed1")]
    assert told[-2:] == ["5 of 6 runs are finished already", "run 6 of 6: bad, seed 1"]
    assert not (tmp_path / "bad/seed1/failure.json").exists()
    assert tables.notes(tables.collect(sweep, planned, tmp_path)) == []
    assert runs.perform(planned, tmp_path, told.append, execute=execute) == {}
    assert len(called) == 7


def test_a_run_that_is_stopped_ends_the_sweep_and_counts_as_neither(small, tmp_path):
    _, planned = small

    def execute(run, directory):
        raise loop.Stopped("stopped", signal.SIGTERM)

    with pytest.raises(loop.Stopped):
        runs.perform(planned, tmp_path, lambda line: None, execute=execute)
    assert not list(tmp_path.rglob("*.json"))


def test_a_run_that_another_process_has_done_meanwhile_is_not_done_again(small, tmp_path):
    _, planned = small
    called = []

    def execute(run, directory):
        called.append(run.directory)
        other = tmp_path / planned[1].directory
        other.mkdir(parents=True, exist_ok=True)
        (other / "result.json").write_text("{}")
        return {}

    assert runs.perform(planned, tmp_path, lambda line: None, execute=execute) == {}
    assert called == [planned[0].directory, *(run.directory for run in planned[2:])]


def test_a_run_that_another_process_does_is_left_to_it(small, tmp_path):
    _, planned = small
    told = []

    def execute(run, directory):
        if run == planned[1]:
            raise OccupiedError("a run is under way")
        return _result(run, 10.0)

    assert runs.perform(planned, tmp_path, told.append, execute=execute) == {}
    assert "left to the process that does it" in told[2]
    assert not (tmp_path / planned[1].directory).exists()
    assert all(runs.finished(run, tmp_path) for run in planned if run != planned[1])


def test_a_changed_sweep_is_refused_where_another_was_begun(small, tmp_path):
    sweep, planned = small
    one = tmp_path / planned[1].directory
    content = {"config": json.loads(planned[1].config.to_json()), "data_fingerprint": "x"}
    files.write_json(one / "config.json", content)
    (one / "checkpoints" / "newest" / "7").mkdir(parents=True)
    runs.check(planned, tmp_path)
    sweep.base.data.manual_dir = "moved"  # not what it is, but where it lies
    runs.check(expand(sweep), tmp_path)
    sweep.base.optim.learning_rate = 0.5
    with pytest.raises(WorkdirError, match=r"w-a-b/seed0 .*learning_rate \(0.00025 there, 0.5 now"):
        runs.check(expand(sweep), tmp_path)
    (one / "checkpoints" / "newest" / "7").rename(one / "checkpoints" / "newest" / "7.part")
    runs.check(expand(sweep), tmp_path)  # nothing was saved: no run to mix it up with


def test_a_model_that_cannot_be_is_refused_before_any_run(tmp_path):
    sweep = _sweep({"full": {}, "both off": {"model": {"gaze": False, "glance": False}}})
    with pytest.raises(ConfigError, match="variant 'both off': .*both off: keep one"):
        runs.check(expand(sweep), tmp_path)
    nothing = {name: 0.0 for name in ("query_diversity", "partial_order")}
    nothing |= {
        f"{branch}_{term}": 0.0 for branch in ("clip", "frame") for term in ("triplet", "nce")
    }
    with pytest.raises(ConfigError, match="variant 'no loss': .*nothing to train"):
        runs.check(expand(_sweep({"no loss": {"loss": nothing}})), tmp_path)


# --- tables ------------------------------------------------------------------------------------


@pytest.fixture
def table(small, tmp_path):
    sweep, planned = small
    sums = {"full": (10.25, 11.5), "w/ a|b": (9.0,), "bad": ()}
    for run in planned:
        if run.seed < len(sums[run.variant]):
            result = _result(run, sums[run.variant][run.seed])
            files.write_json(tmp_path / run.directory / "result.json", result)
    return publish.write(sweep, planned, tmp_path)


def test_the_table_has_mean_and_sample_deviation(table, tmp_path):
    full, other, bad = table["variants"]
    assert full["mean"]["SumR"] == np.mean([10.25, 11.5])
    assert full["std"]["SumR"] == np.std([10.25, 11.5], ddof=1)
    assert full["std"]["R@1"] == 0
    assert other["mean"]["SumR"] == 9.0
    assert other["std"]["SumR"] is None
    assert bad["mean"]["SumR"] is None
    assert full["published"]["R@100"] == 4.0
    assert full["parameters"] == 1234567
    assert [run["metrics"]["SumR"] for run in full["runs"]] == [10.25, 11.5]
    assert full["runs"][0]["versions"] == {"jax": "0"}
    assert other["missing_seeds"] == [1]
    assert json.loads((tmp_path / "table.json").read_text()) == json.loads(json.dumps(table))


def test_markdown_keeps_its_columns_whatever_a_name_has(table, tmp_path):
    lines = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == r"# a \| title"
    rows = [line.replace(r"\|", "") for line in lines if line.startswith("|")]
    assert len(rows) == 5
    assert {row.count("|") for row in rows} == {13}
    assert r"| w/ a\|b | 1.00 |" in "\n".join(lines)
    assert "10.88 ± 0.88 | 10.0 | 2 | 1,234,567 | 2.500 | 1.50 | 1.5 |" in lines[4]
    assert lines[-1] == "- 3 of 6 runs are not finished"


def test_the_table_says_which_settings_are_not_the_files(small, tmp_path):
    sweep, planned = small
    assert publish.write(sweep, planned, tmp_path)["changed"] == {}
    with sweep.unlocked():
        sweep.base.train.epochs = 7
        sweep.base.data.data_dir = "anywhere"
    assert publish.write(sweep, planned, tmp_path)["changed"] == {"train.epochs": 7}
    assert "settings than the published ones: train.epochs = 7" in (
        (tmp_path / "table.md").read_text(encoding="utf-8")
    )


def test_a_sweep_of_another_family_shows_its_own_metrics(tmp_path, capsys):
    names = ("t2v/R@1", "v2t/R@1", "mean")
    sweep = _sweep({"full": {}}, metrics=names, published={"full": {"mean": 6.0}}, seeds=(0,))
    planned = expand(sweep)
    result = _result(planned[0], 10.0) | {"metrics": dict(zip(names, (4.0, 6.0, 5.0), strict=True))}
    files.write_json(tmp_path / planned[0].directory / "result.json", result)
    table = publish.write(sweep, planned, tmp_path)
    assert plots.sweep_figure(table).axes[0].get_xlabel().startswith("test mean")
    tables.show(table)
    out = capsys.readouterr().out
    assert "SumR" not in out and "published mean" in out and "v2t/R@1" in out
    assert "| full | 4.00 | 6.00 | 5.00 | 6.0 |" in (tmp_path / "table.md").read_text()
    [row] = csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text()))
    assert (row["t2v/R@1_mean"], row["mean_published"]) == ("4.0", "6.0")


def test_a_result_without_a_metric_of_the_sweep_is_named(small, tmp_path):
    sweep, planned = small
    result = _result(planned[0], 10.0)
    del result["metrics"]["R@5"]
    files.write_json(tmp_path / planned[0].directory / "result.json", result)
    with pytest.raises(ConfigError, match="full/seed0 has no R@5, but R@1, R@10"):
        tables.collect(sweep, planned, tmp_path)


def test_csv_is_numbers(table, tmp_path):
    full, other, bad = csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text()))
    assert float(full["SumR_mean"]) == np.mean([10.25, 11.5])
    assert float(full["SumR_std"]) == np.std([10.25, 11.5], ddof=1)
    assert float(full["SumR_published"]) == 10
    assert (other["variant"], other["SumR_std"], other["seeds"]) == ("w/ a|b", "", "1")
    assert (bad["SumR_mean"], bad["SumR_published"], bad["missing"]) == ("", "9.0", "2")


def test_the_printed_table_has_every_column_where_it_is_no_terminal(table, capsys):
    tables.show(table)
    out = capsys.readouterr().out
    assert all(word in out for word in ("R@100", "s/epoch", "w/ a|b", "10.88 ± 0.88", "3 of 6"))


def test_a_task_that_was_overtaken_writes_the_complete_table(small, tmp_path, monkeypatch):
    sweep, planned = small
    write = tables.write

    def overtaken(table, root):
        write(table, root)
        if table["finished"] == 0:  # meanwhile another task ends
            files.write_json(root / planned[0].directory / "result.json", _result(planned[0], 8.0))

    monkeypatch.setattr(tables, "write", overtaken)
    assert publish.write(sweep, planned, tmp_path)["finished"] == 1
    assert json.loads((tmp_path / "table.json").read_text())["finished"] == 1


# --- as a person runs it -----------------------------------------------------------------------


def _environment(**more):
    return os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | more


def _command(*arguments):
    return [sys.executable, "-m", "hlformer_jax.sweep", *map(str, arguments)]


WINDOW = "--config=configs/sweeps/lorentz_window.py"
CASES = {
    "nothing": ((), "--config is missing"),
    "no sweep": (("--config=configs/anet.py",), "no sweep"),
    "no file": (("--config=configs/sweeps/nowhere.py",), "nowhere.py"),
    "no variant": ((f"{WINDOW}:fast",), "no variant 'fast'"),
    "a task alone": ((WINDOW, "--task=1"), "go together"),
    "parts of seeds": ((WINDOW, "--config.seeds=(0.5,)"), "whole numbers"),
    "no task": ((WINDOW, "--task=3", "--tasks=3"), "--task=3"),
    "unknown section": ((WINDOW, "--config.base.modl.x=3"), "did you mean 'model'?"),
    "choice": ((WINDOW, "--config.base.dtype=x"), "config.dtype"),
    "no data": (
        (WINDOW, "--config.base.data.manual_dir=nowhere", "--config.base.data.data_dir=prepared"),
        "nowhere/activitynet",
    ),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sweep")
    (directory / "configs").symlink_to(ROOT / "configs")
    results = calls("hlformer_jax.sweep", [given for given, _ in CASES.values()], directory)
    assert not list(directory.rglob("seed0"))
    return dict(zip(CASES, results, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_command_is_one_clear_line(case, done):
    status, stderr = done[case]
    assert status == 1
    assert "Traceback" not in stderr
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and errors == stderr.strip().splitlines()[-1:]
    assert CASES[case][1] in errors[0]


EPOCHS = 24  # enough to be stopped before the last
SWEEP = """
from hlformer_jax.sweep.definition import define

def get_config(name=""):
    variants = {"w/ MAIM": {}, "w/ MP": {"model": {"fusion": "mean"}}}
    return define(
        __file__, name, title="tiny", base="base.py", variants=variants, seeds=(0,),
        published={"w/ MAIM": {"SumR": 300.0}},
    )
"""


def test_a_sweep_that_is_stopped_goes_on_and_ends_with_its_table(tmp_path):
    config = debug(default())
    config.data.update(
        data_dir=str(tmp_path / "data"), visual_dim=8, text_dim=8, synthetic_videos=(10, 4, 5),
        max_frames=8, max_clips=4, max_words=6,
    )  # fmt: skip
    # As little to compile as there can be.
    config.model.update(hidden_size=8, euclidean_blocks=1, lorentz_blocks=0, gaze=False)
    config.loss.update(partial_order=0.0, query_diversity=0.0)
    config.train.update(batch_size=4, epochs=EPOCHS, patience=99, log_every=2)
    config.train.checkpoint_seconds = 0.0  # what is waited for below
    (tmp_path / "base.py").write_text(
        "from ml_collections import ConfigDict\n\n\ndef get_config(name):\n"
        f"    return ConfigDict({config.to_dict()!r})\n"
    )
    (tmp_path / "sweep.py").write_text(SWEEP)
    root = tmp_path / "sweep"
    line = _command(f"--config={tmp_path / 'sweep.py'}", f"--workdir={root}")
    environment = _environment(
        JAX_COMPILATION_CACHE_DIR=str(tmp_path / "cache"),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_DISABLE_MOST_OPTIMIZATIONS="1",
    )
    first, second = root / "w-MAIM" / "seed0", root / "w-MP" / "seed0"
    process = subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(second.glob("checkpoints/newest/[0-9]*")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 143, told
    assert "run 2 of 2: w/ MP, seed 0" in told
    assert "resumes from there" in told.splitlines()[-1]
    result = (first / "result.json").read_bytes()
    assert not (second / "result.json").exists()
    assert json.loads((root / "table.json").read_text())["finished"] == 1

    done = subprocess.run(
        line, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 of 2 runs are finished already" in done.stderr
    assert (first / "result.json").read_bytes() == result
    lines = [json.loads(x) for x in (second / "metrics.jsonl").read_text().splitlines()]
    assert [x["epoch"] for x in lines if "validation/SumR" in x] == list(range(EPOCHS))
    assert all(set(x) >= {"loss/clip_nce", "loss"} for x in lines if "loss" in x)
    full, other = json.loads((root / "table.json").read_text())["variants"]
    for row, path in ((full, first), (other, second)):
        test = json.loads((path / "test_metrics.json").read_text())
        assert row["mean"] == {name: test[name] for name in METRICS}
        assert row["seconds_per_epoch"] > 0
        assert row["flops_video"] > 0 and row["flops_caption"] > 0
        assert (path / "curves.svg").exists()
    assert full["parameters"] > other["parameters"]
    assert (root / "sweep.png").exists()
    assert done.stdout.splitlines()[-2].split()[:2] == ["w/", "MP"]
