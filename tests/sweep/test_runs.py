"""Runs of a sweep that fail, stop, are finished or are refused, and the sweep's command."""

import json
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import processes
import pytest
import tiny

from hlformer_jax import files
from hlformer_jax.config import ConfigError, debug, default, load
from hlformer_jax.data.sources.protocol import DataError, MissingDataError
from hlformer_jax.sweep import METRICS, choose, expand, results, runs, tables
from hlformer_jax.sweep.provenance import MixedDataError
from hlformer_jax.training import loop, run_directory
from hlformer_jax.training.loop import NonFiniteLossError
from hlformer_jax.training.run_directory import Fingerprints, OccupiedError, WorkdirError


def _ignore(line):
    """Ignore a line of progress."""


def test_failed_run_does_not_stop_the_sweep_and_is_retried(
    result_of, small_sweep, tmp_path, monkeypatch
):
    sweep, planned = small_sweep
    directories, lines = [], []

    def train(run, directory):
        directories.append(directory.relative_to(tmp_path))
        assert directory == tmp_path / run.directory
        if run.variant == "bad" and run.seed == 1 and len(directories) <= len(planned):
            raise NonFiniteLossError("step 4: loss is not finite\nand more")
        content = {"config": json.loads(run.config.to_json()), "data_fingerprint": "abc"}
        files.write_json(directory / "config.json", content)
        return result_of(run, 10.0 + run.seed)

    monkeypatch.setattr(runs, "train", train)
    failures = runs.perform(planned, tmp_path, lines.append, lines.append)
    assert directories == [run.directory for run in planned]
    reason = "NonFiniteLossError: step 4: loss is not finite"
    assert failures == {Path("bad/seed1"): reason}
    assert lines[0] == "run 1 of 6: full, seed 0"
    assert lines[-1] == f"failed: bad, seed 1: {reason}"
    table = results.collect(sweep, planned, tmp_path)
    assert (table["finished"], table["total"]) == (5, 6)
    assert table["variants"][2]["failures"] == [{"title": "bad, seed 1", "reason": reason}]
    assert reason in tables.markdown(table)
    assert "Traceback" in json.loads((tmp_path / "bad/seed1/failure.json").read_text())["traceback"]

    assert runs.perform(planned, tmp_path, lines.append, lines.append) == {}
    assert directories[6:] == [Path("bad/seed1")]
    assert lines[-2:] == ["5 of 6 runs are already finished", "run 6 of 6: bad, seed 1"]
    assert not (tmp_path / "bad/seed1/failure.json").exists()
    assert tables.notes(results.collect(sweep, planned, tmp_path)) == []
    assert runs.perform(planned, tmp_path, lines.append, lines.append) == {}
    assert len(directories) == 7


def test_stopped_run_ends_the_sweep_without_a_record(small_sweep, tmp_path, monkeypatch):
    _, planned = small_sweep

    def train(run, directory):
        raise loop.Stopped("stopped", signal.SIGTERM)

    monkeypatch.setattr(runs, "train", train)
    with pytest.raises(loop.Stopped):
        runs.perform(planned, tmp_path, _ignore, _ignore)
    assert not list(tmp_path.rglob("*.json"))


def test_run_finished_by_another_process_is_skipped(small_sweep, tmp_path, monkeypatch):
    _, planned = small_sweep
    trained, lines, finished, cleared = [], [], [], []
    planned[0].config.compile_fast = True

    def train(run, directory):
        trained.append(run.directory)
        result = tmp_path / planned[1].directory / "result.json"
        result.parent.mkdir(parents=True, exist_ok=True)
        result.write_text("{}")
        return {}

    class TimeLeft:
        """Counts finished and remaining runs."""

        def __init__(self):
            self.finished = 0

        def add(self):
            self.finished += 1

        def text(self, parts):
            return f", {self.finished} done, {parts} left"

    monkeypatch.setattr(runs, "train", train)
    monkeypatch.setattr(runs.terminal, "TimeLeft", TimeLeft)
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(len(trained)))
    assert runs.perform(planned, tmp_path, lines.append, _ignore, finished.append) == {}
    assert trained == [planned[0].directory, *(run.directory for run in planned[2:])]
    assert finished == [planned[0], *planned[2:]]
    assert [line.partition(", ")[2] for line in lines] == [
        "seed 0, 0 done, 6 left", "seed 0, 1 done, 4 left", "seed 1, 2 done, 3 left",
        "seed 1, 3 done, 2 left", "seed 1, 4 done, 1 left",
    ]  # fmt: skip
    assert cleared == [2, 3, 4, 5]  # short runs share their programs


def test_reason_of_a_failure_is_one_short_line():
    assert runs._reason(ValueError("\n")) == "ValueError"
    assert runs._reason(ValueError("\n a \nb")) == "ValueError: a"
    assert runs._reason(ValueError("x" * 288)) == f"ValueError: {'x' * 288}"
    assert runs._reason(ValueError("x" * 289)) == f"ValueError: {'x' * 287}…"


class Captioned(list):
    """A split of videos with a number of captions each."""

    captions_per_video = np.asarray([2, 1, 4])


class Trees:
    """A split of two trees of one video, with seven nodes."""

    video, pool, num_nodes = np.zeros(2, int), SimpleNamespace(videos=[0, 0]), 7


def test_result_has_costs_and_sizes_of_the_data(small_sweep, tmp_path, monkeypatch):
    run = small_sweep[1][0]._replace(timed=True)
    data = SimpleNamespace(train=Captioned("abc"), val=Trees(), test=Trees())
    costs = SimpleNamespace(_asdict=lambda: {"parameters": 7})
    family = SimpleNamespace(cost=lambda: costs, data=data)

    def outcome_of(value):
        return SimpleNamespace(metrics={"SumR": value}, queries=9, timed_queries=5, videos=4)

    outcome = loop.Outcome(
        {"best": outcome_of(3.0), "last": outcome_of(2.0), "linear": outcome_of(1.0)},
        SimpleNamespace(best_epoch=2, epochs=4, best_metric=2.5, seconds=6.0), ("linear",),
    )  # fmt: skip
    trained = []
    monkeypatch.setattr(runs.loop, "train", lambda *arguments: trained.append(arguments) or outcome)
    monkeypatch.setattr(runs.training, "build", lambda config: family)
    monkeypatch.setattr(runs, "TreeSplit", Trees)
    monkeypatch.setattr(runs, "_query_costs", lambda config: {"seconds_query": 0.5})
    result = runs.train(run, tmp_path)
    assert trained == [(run.config, tmp_path)]
    trees = {"videos": 1, "trees": 2, "nodes": 7}
    splits = {"train": {"videos": 3, "captions": 7}, "val": trees, "test": trees}
    assert result["data"]["splits"] == splits
    for name, value in {
        "variant": "full", "seed": 0, "metrics": {"SumR": 3.0}, "queries": 9, "timed_queries": 5,
        "references": {"linear": {"SumR": 1.0}}, "videos": 4, "best_epoch": 2, "epochs": 4,
        "validation_SumR": 2.5, "seconds_per_epoch": 1.5, "parameters": 7, "seconds_query": 0.5,
    }.items():  # fmt: skip
        assert result[name] == value
    assert "seconds_query" not in runs.train(run._replace(timed=False), tmp_path)


@pytest.mark.slow  # it takes seconds
def test_query_is_timed_on_a_corpus_of_2500_videos(monkeypatch):
    searched = []
    search = runs.corpus.search
    monkeypatch.setattr(
        runs.corpus,
        "search",
        lambda *arguments: searched.append(arguments[2]) or search(*arguments),
    )
    costs = runs._query_costs(tiny.config())
    assert costs["bytes_corpus"] == 2500 * (tiny.CLIPS + tiny.FRAMES) * 8 * 4
    assert searched == 21 * [10] and costs["seconds_query"] > 0


def test_run_of_another_process_is_left_alone(result_of, small_sweep, tmp_path, monkeypatch):
    _, planned = small_sweep
    lines = []

    def train(run, directory):
        if run == planned[1]:
            raise OccupiedError("another process trains")
        return result_of(run, 10.0)

    monkeypatch.setattr(runs, "train", train)
    assert runs.perform(planned, tmp_path, lines.append, lines.append) == {}
    assert "another process is training it" in lines[2]
    assert not (tmp_path / planned[1].directory).exists()
    assert all(runs.is_finished(run, tmp_path) for run in planned if run != planned[1])


def test_changed_sweep_is_refused_in_an_older_workdir(small_sweep, tmp_path):
    sweep, planned = small_sweep
    directory = tmp_path / planned[1].directory
    content = {"config": json.loads(planned[1].config.to_json()), "data_fingerprint": "x"}
    files.write_json(directory / "config.json", content)
    checkpoint = directory / "checkpoints" / "newest" / "7"
    checkpoint.mkdir(parents=True)
    runs.check(planned, tmp_path)
    sweep.base.data.manual_dir = "moved"  # the place of the data may change
    runs.check(expand(sweep), tmp_path)
    sweep.base.optim.learning_rate = 0.5
    with pytest.raises(WorkdirError, match="w-a-b/seed0 .*learning_rate"):
        runs.check(expand(sweep), tmp_path)
    checkpoint.rename(checkpoint.with_name("7.part"))
    runs.check(expand(sweep), tmp_path)  # without a checkpoint there is nothing to mix up


def test_impossible_model_is_refused_before_any_run(sweep_of, tmp_path):
    sweep = sweep_of({"full": {}, "both off": {"model": {"gaze": False, "glance": False}}})
    with pytest.raises(ConfigError, match="'both off': .*model.gaze"):
        runs.check(expand(sweep), tmp_path)
    nothing = {name: 0.0 for name in ("query_diversity", "partial_order")}
    nothing |= {
        f"{branch}_{term}": 0.0 for branch in ("clip", "frame") for term in ("triplet", "nce")
    }
    with pytest.raises(ConfigError, match="'no loss': .*nothing to train"):
        runs.check(expand(sweep_of({"no loss": {"loss": nothing}})), tmp_path)


def test_variants_are_chosen_by_name(small_sweep):
    _, planned = small_sweep
    names = [run.variant for run in choose(planned, ["bad", "full"])]
    assert names == ["full", "bad", "full", "bad"]
    assert {run.variant for run in choose(planned, without=["w/ a|b"])} == {"full", "bad"}
    with pytest.raises(ConfigError, match="`only`=ful: .*did you mean 'full'.*'w/ a|b'"):
        choose(planned, ["ful"])
    with pytest.raises(ConfigError, match="`without`=bda: .*did you mean 'bad'"):
        choose(planned, without=["bda"])
    with pytest.raises(ConfigError, match="leave no variant"):
        choose(planned, ["full"], ["full"])


class FakeFamily:
    """A family whose data is missing if it needs a teacher's, and damaged if so named."""

    def __init__(self, config):
        self.data = config.data

    @property
    def fingerprint(self):
        if self.data.feature == "damaged":
            raise DataError("feature.bin cannot be read")
        if self.data.teacher_dim:
            raise MissingDataError("teacher.hdf5: no such file", "put it there")
        return "abc"


def test_variant_without_its_data_is_skipped_and_reported(sweep_of, tmp_path, monkeypatch):
    monkeypatch.setattr(runs.training, "build", FakeFamily)
    variants = {"plain": {}, "taught": {"data": {"teacher_dim": 512}}}
    planned = expand(sweep_of(variants, seeds=(0, 1)))
    lines = []
    ready = runs.open_data(planned, tmp_path, lines.append)
    assert [run.variant for run in ready] == ["plain", "plain"]
    assert lines == ["skipped: taught: its data is missing: teacher.hdf5: no such file"]
    failure = json.loads((tmp_path / "taught/seed1/failure.json").read_text())
    assert failure["skipped"] and failure["reason"] == "teacher.hdf5: no such file"
    # If nothing can be trained, the sweep ends with the reason and the remedy.
    with pytest.raises(MissingDataError, match="no such file: put it there"):
        runs.open_data(planned[1::2], tmp_path, lines.append)
    # With several tasks, a task may have no other runs.
    assert runs.open_data(planned[1::2], tmp_path, lines.append, may_skip_all=True) == []
    assert runs.open_data([], tmp_path, lines.append, planned=planned) == []
    # A finished run needs no data.
    files.write_json(tmp_path / planned[1].directory / "result.json", {})
    assert runs.open_data(planned[1::2], tmp_path, lines.append) == planned[1:2]
    (tmp_path / planned[1].directory / "result.json").unlink()
    # When the data exists, the marks of skipped runs are removed; other failures stay.
    failure = tmp_path / planned[0].directory / "failure.json"
    files.write_json(failure, {"reason": "killed"})
    monkeypatch.setattr(FakeFamily, "fingerprint", "abc")
    assert runs.open_data(planned, tmp_path, lines.append) == planned
    assert list(tmp_path.rglob("failure.json")) == [failure]


def test_skipped_variants_are_named_with_their_corpus(sweep_of, tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr(
        runs.training, "build", lambda config: built.append(config) or FakeFamily(config)
    )
    variants = {"plain": {}, "taught": {"data": {"teacher_dim": 512}}}
    settings = {"data": {"manual_dir": "/corpora"}}
    corpora = {"5": "five", "6": "six"}
    planned = expand(sweep_of(variants, seeds=(0, 1), corpora=corpora, settings=settings))
    lines = []
    assert len(runs.open_data(planned, tmp_path, lines.append)) == 4
    assert [line.split(": ")[1] for line in lines] == ["taught, corpus 5", "taught, corpus 6"]
    assert len(built) == 4  # seeds share the data, which is read once


def test_data_replaced_between_two_runs_is_refused(sweep_of, tmp_path, monkeypatch):
    monkeypatch.setattr(runs.training, "build", FakeFamily)
    planned = expand(sweep_of({"plain": {}}, seeds=(0, 1)))
    first = tmp_path / planned[0].directory
    files.write_json(first / "result.json", {})
    lines = []
    assert runs.open_data(planned, tmp_path, lines.append) == planned
    assert len(lines) == 1 and "seed0 does not say which data was used" in lines[0]
    content = {"config": json.loads(planned[0].config.to_json()), "data_fingerprint": "old"}
    files.write_json(first / "config.json", content)
    message = r"plain/seed0 .*'old', but .*plain/seed1 would have 'abc': .*`workdir`"
    for selection in (planned, planned[1:]):  # also if another task trained the first run
        with pytest.raises(MixedDataError, match=message):
            runs.open_data(selection, tmp_path, lines.append, planned=planned)
    files.write_json(first / "config.json", content | {"data_fingerprint": "abc"})
    assert runs.open_data(planned, tmp_path, lines.append) == planned
    assert len(lines) == 1


def test_edited_moments_are_refused_before_the_next_seed(
    sweep_of, result_of, tmp_path, monkeypatch
):
    monkeypatch.setattr(runs.training, "build", FakeFamily)
    monkeypatch.setattr(FakeFamily, "moments_fingerprint", "new", raising=False)
    sweep = sweep_of({"plain": {}}, seeds=(0, 1), settings={"eval": {"moments": "m.json"}})
    planned = expand(sweep)

    def finish(run, moments):
        files.write_json(tmp_path / run.directory / "result.json", result_of(run, 10.0))
        content = {"config": json.loads(run.config.to_json()), "data_fingerprint": "abc"}
        content["moments_fingerprint"] = moments
        files.write_json(tmp_path / run.directory / "config.json", content)

    finish(planned[0], "old")
    message = r"plain/seed0 has times of moments .*'old', but .*plain/seed1 would have 'new'"
    with pytest.raises(MixedDataError, match=message):
        runs.open_data(planned, tmp_path, print)
    finish(planned[1], "new")
    with pytest.raises(MixedDataError, match=r"config\.eval\.moments was edited or replaced"):
        results.collect(sweep, planned, tmp_path)
    finish(planned[0], "new")
    assert runs.open_data(planned, tmp_path, print) == planned
    assert results.collect(sweep, planned, tmp_path)["finished"] == 2
    reads = []
    read_text = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda p, **kw: reads.append(p) or read_text(p, **kw))
    results.collect(sweep, planned, tmp_path)
    assert sorted(reads) == sorted(x for x in reads if x.suffix == ".json") == sorted(set(reads))


def test_edited_training_trees_are_refused(sweep_of, result_of, tmp_path, monkeypatch):
    monkeypatch.setattr(runs.training, "build", FakeFamily)
    monkeypatch.setattr(FakeFamily, "subset_fingerprint", "new", raising=False)
    planned = expand(sweep_of({"plain": {}}, seeds=(0, 1)))
    first = planned[0]
    files.write_json(tmp_path / first.directory / "result.json", result_of(first, 10.0))
    content = {"config": json.loads(first.config.to_json()), "data_fingerprint": "abc"}
    content["subset_fingerprint"] = "old"
    files.write_json(tmp_path / first.directory / "config.json", content)
    message = r"seed0 has training trees .*'old', but .*seed1 would have 'new'.*train_subset was"
    with pytest.raises(MixedDataError, match=message):
        runs.open_data(planned, tmp_path, print)


def test_edited_moments_of_model_selection_are_refused(sweep_of, tmp_path, monkeypatch):
    monkeypatch.setattr(runs.training, "build", FakeFamily)
    monkeypatch.setattr(FakeFamily, "moments_fingerprint", "new", raising=False)
    settings = {"eval": {"moments": "m.json", "select": "mIoU"}}
    [run] = expand(sweep_of({"plain": {}}, seeds=(0,), settings=settings))
    directory = tmp_path / run.directory
    started = Fingerprints("abc", "old")
    run_directory.claim_workdir(directory, run.config, started).close()
    (directory / "checkpoints" / "newest" / "3").mkdir(parents=True)
    with pytest.raises(WorkdirError, match=r"best epoch .*eval\.moments \(m\.json\) was replaced"):
        runs.open_data([run], tmp_path, print)


def test_finished_run_with_other_settings_is_refused(sweep_of, result_of, tmp_path, monkeypatch):
    monkeypatch.setattr(runs.training, "build", FakeFamily)
    variants = {"low": {}, "high": {"optim": {"learning_rate": 0.5}}}
    sweep = sweep_of(variants, seeds=(0,))
    low, _ = expand(sweep)
    files.write_json(tmp_path / low.directory / "result.json", result_of(low, 10.0))
    content = {"config": json.loads(low.config.to_json()), "data_fingerprint": "abc"}
    files.write_json(tmp_path / low.directory / "config.json", content)
    sweep.base.train.epochs = 3
    planned = expand(sweep)
    selection = choose(planned, ["high"])  # the finished run is of the other variant
    with pytest.raises(WorkdirError, match=r"low/seed0 .*train\.epochs \(100 there, 3 now\)"):
        runs.open_data(selection, tmp_path, print, planned=planned)
    with pytest.raises(WorkdirError, match=r"train\.epochs"):
        tables.publish(sweep, planned, tmp_path, selection=selection)
    assert not (tmp_path / "table.json").exists()


def test_damaged_data_ends_the_sweep(sweep_of, tmp_path, monkeypatch):
    monkeypatch.setattr(runs.training, "build", FakeFamily)
    variants = {"plain": {}, "other": {"data": {"feature": "damaged"}}}
    with pytest.raises(DataError, match="cannot be read"):
        runs.open_data(expand(sweep_of(variants)), tmp_path, print)


WINDOW = "--config=configs/sweeps/lorentz_window.py"
CASES = {
    "nothing": ((), "--config is missing"),
    "no sweep": (("--config=configs/anet.py",), "not a sweep"),
    "no file": (("--config=configs/sweeps/nowhere.py",), "nowhere.py"),
    "no variant": ((f"{WINDOW}:fast",), "variant 'fast'"),
    "a task alone": ((WINDOW, "--task=1"), "go together"),
    "parts of seeds": ((WINDOW, "--config.seeds=(0.5,)"), "whole numbers"),
    "no task": ((WINDOW, "--task=3", "--tasks=3"), "--task=3"),
    "unknown variant": ((WINDOW, "--only=relaesed"), "did you mean 'released'?"),
    "no variant left": ((WINDOW, "--only=none", "--except=none"), "leave no variant"),
    "unknown section": ((WINDOW, "--config.base.modl.x=3"), "did you mean 'model'?"),
    "choice": ((WINDOW, "--config.base.dtype=x"), "config.dtype"),
    "a value of the first base for all": (
        ("--config=configs/sweeps/gmmformer_v2_table5.py", "--config.base.model.name=gmmformer_v2"),
        "variant 'GMMFormer, 4': config.model.name",
    ),
    "no data": (
        (WINDOW, "--config.base.data.manual_dir=nowhere", "--config.base.data.data_dir=prepared"),
        "nowhere/activitynet",
    ),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sweep")
    (directory / "configs").symlink_to(processes.ROOT / "configs")
    endings = processes.calls(
        "hlformer_jax.sweep", [words for words, _ in CASES.values()], directory
    )
    assert not list(directory.rglob("seed0"))
    return dict(zip(CASES, endings, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_wrong_command_prints_one_line(case, outcomes):
    processes.check_error(outcomes[case], CASES[case][1])


EPOCHS = 24  # enough for a stop before the last
SWEEP = """
from hlformer_jax.sweep import define

def get_config(name=""):
    variants = {"w/ MAIM": {}, "w/ MP": {"model": {"fusion": "mean"}}}
    return define(
        __file__, name, title="tiny", base="base.py", variants=variants, seeds=(0,),
        published={"w/ MAIM": {"SumR": 300.0}},
    )
"""


@pytest.mark.slow  # two processes that compile their programs
def test_stopped_sweep_resumes_and_writes_its_table(tmp_path):
    config = debug(default())
    config.data.update(
        data_dir=str(tmp_path / "data"), visual_dim=8, text_dim=8, synthetic_videos=(10, 4, 5),
        max_frames=8, max_clips=4, max_words=6,
    )  # fmt: skip
    # As little to compile as possible.
    config.model.update(hidden_size=8, euclidean_blocks=1, lorentz_blocks=0, gaze=False)
    config.loss.update(partial_order=0.0, query_diversity=0.0)
    config.train.update(batch_size=4, epochs=EPOCHS, patience=99, log_every=2)
    config.train.checkpoint_seconds = 0.0  # a checkpoint is waited for below
    (tmp_path / "base.py").write_text(
        "from ml_collections import ConfigDict\n\n\ndef get_config(name):\n"
        f"    return ConfigDict({config.to_dict()!r})\n"
    )
    (tmp_path / "sweep.py").write_text(SWEEP)
    root = tmp_path / "sweep"
    line = processes.command("sweep", f"--config={tmp_path / 'sweep.py'}", f"--workdir={root}")
    environment = processes.environment()
    first, second = root / "w-MAIM" / "seed0", root / "w-MP" / "seed0"
    process = subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(second.glob("checkpoints/newest/[0-9]*")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 143, stderr
    assert "run 2 of 2: w/ MP, seed 0" in stderr
    assert "resumes from there" in stderr.splitlines()[-1]
    result = (first / "result.json").read_bytes()
    assert not (second / "result.json").exists()
    assert json.loads((root / "table.json").read_text())["finished"] == 1

    done = subprocess.run(
        line, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 of 2 runs are already finished" in done.stderr
    assert (first / "result.json").read_bytes() == result
    lines = [json.loads(x) for x in (second / "metrics.jsonl").read_text().splitlines()]
    assert [x["epoch"] for x in lines if "validation/SumR" in x] == list(range(EPOCHS))
    assert all(set(x) >= {"loss/clip_nce", "loss"} for x in lines if "loss" in x)
    full, mean_pooling = json.loads((root / "table.json").read_text())["variants"]
    for row, path in ((full, first), (mean_pooling, second)):
        test = json.loads((path / "test_metrics.json").read_text())
        assert row["mean"] == {name: test[name] for name in METRICS}
        assert row["seconds_per_epoch"] > 0
        assert row["flops_video"] > 0 and row["flops_caption"] > 0
        assert (path / "curves.svg").exists()
    assert full["parameters"] > mean_pooling["parameters"]
    assert (root / "sweep.png").exists()
    assert "w/ MP" in done.stdout and "Measured on: synthetic captioned videos" in done.stdout


def test_missing_teacher_files_skip_only_their_variants(tmp_path):
    sweep = load(processes.ROOT / "configs" / "sweeps" / "main_comparison.py", "debug")
    released = processes.ROOT / "tests" / "golden" / "released_run"
    fields = {"manual_dir": str(released), "data_dir": str(tmp_path / "data")}
    sweep.base.data.update(fields, visual_dim=24, text_dim=20)
    lines = []
    planned = expand(sweep)
    ready = runs.open_data(planned, tmp_path, lines.append)
    taught = [run.variant for run in planned if run.config.data.teacher_dim]
    assert taught == [name for name in sweep.variants if name.startswith("DL-DKD")] != []
    assert [run.variant for run in ready] == [x for x in sweep.variants if x not in taught]
    assert len(lines) == len(taught) and all("new_clip_vit_32" in line for line in lines)
    rows = tables.sections(tables.publish(sweep, planned, tmp_path))[0].rows
    assert {row[0] for row in rows if row[-1] == "skipped"} == set(taught)
