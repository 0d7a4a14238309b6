"""Evaluation of checkpoints: metrics always agree with the settings recorded beside them."""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import termios

import jax
import numpy as np
import processes
import pytest
import runs

from hlformer_jax import files, terminal, training
from hlformer_jax.config import load
from hlformer_jax.retrieval.ranking import ScoreError
from hlformer_jax.training import checkpoints, loaded_run, loop, run_directory
from hlformer_jax.training.loaded_run import evaluate_checkpoint
from hlformer_jax.training.prvr import PRVR
from hlformer_jax.training.run_directory import WorkdirError


def _quiet(line):
    """Ignore a line of a report."""


@pytest.fixture
def run(retrieval, tmp_path):
    """A copy of a finished run."""
    return shutil.copytree(retrieval.path, tmp_path / "run")


def _metrics(directory):
    return (directory / "test_metrics.json").read_bytes()


@pytest.mark.slow  # it takes seconds
def test_metrics_of_an_unfinished_run_are_marked(data_dir, tmp_path):
    config, run, lines = runs.retrieval(data_dir), tmp_path / "run", []
    runs.train_stopped(config, run, 4)
    evaluate_checkpoint(config, str(run), None, lines.append, str(run))
    assert f"{run} is not finished (epoch 1 of 3): its best epoch so far is evaluated" in lines
    assert json.loads(_metrics(run))["unfinished"] == "epoch 1 of 3"
    lines.clear()
    loop.train(config, run)
    evaluate_checkpoint(config, run, None, lines.append, run)
    assert "unfinished" not in json.loads(_metrics(run))
    assert not any("not finished" in line for line in lines)


@pytest.mark.parametrize(
    "options",
    [
        {"eval.corpus": "int8"},
        {"model.frame_weight": 0.9, "model.clip_weight": 0.1},
        {"data.dtype": "float32"},
        {"eval.moments": "data"},
        {"loss.min_radius": 0.2},
    ],
    ids=lambda options: next(iter(options)),
)
def test_metrics_of_other_settings_do_not_replace_a_runs(run, data_dir, options):
    before = _metrics(run)
    for overwrite in (False, True):
        with pytest.raises(WorkdirError, match=next(iter(options)).replace(".", r"\.")):
            evaluate_checkpoint(
                runs.retrieval(data_dir, **options), run, None, _quiet, run, overwrite
            )
    assert _metrics(run) == before


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_long_evaluation_is_announced(seconds, run, data_dir, capsys, monkeypatch):
    monkeypatch.setattr(terminal, "SLOW_SECONDS", seconds)
    evaluate_checkpoint(runs.retrieval(data_dir), run, None, _quiet)
    assert capsys.readouterr().err.startswith("evaluating") == (not seconds)


def test_parameters_without_finite_scores_get_no_metrics(run, data_dir, tmp_path):
    with contextlib.closing(checkpoints.open_params(run)) as best:
        params = jax.eval_shape(training.build(runs.retrieval(data_dir)).init_params)
        params = best.restore(params)
    huge = jax.tree.map(lambda x: np.full_like(x, 3e38), params)
    checkpoints.save_params(tmp_path / "huge", huge, {})
    outputs = [tmp_path / name for name in ("scores.npz", "embeddings.npz")]
    with pytest.raises(ScoreError, match=r"(\d+) of \1 captions have scores that are not finite"):
        evaluate_checkpoint(
            runs.retrieval(data_dir), tmp_path / "huge", outputs[0], _quiet, tmp_path / "metrics",
            embeddings_file=outputs[1],
        )  # fmt: skip
    assert not any(path.exists() for path in (*outputs, tmp_path / "metrics"))


@pytest.mark.parametrize(
    ("scores", "embeddings", "message"),
    [
        ("x.npz", "x.npz", r"`scores`=\S+ and `embeddings`=\S+ are the same file"),
        ("x.npz", "run/../x.npz", "are the same file"),
        ("run/test_queries.npz", None, r"another name, such as \S+run/scores\.npz"),
        (None, "run/config.json", r"another name, such as \S+run/embeddings\.npz"),
        ("run/checkpoints/best/a.npz", None, "is a file that a run or an evaluation writes"),
        ("out/test_queries.npz", None, "is a file that a run or an evaluation writes"),
        ("run_2/test_metrics.json", None, "is a file that a run or an evaluation writes"),
    ],
)
def test_outputs_replace_neither_each_other_nor_files_of_a_run(
    run, data_dir, tmp_path, scores, embeddings, message
):
    files.write_json(tmp_path / "run_2" / "config.json", {})
    before = (run / "test_queries.npz").read_bytes()
    outputs = [tmp_path / name if name else None for name in (scores, embeddings)]
    with pytest.raises(files.OutputError, match=message):
        evaluate_checkpoint(
            runs.retrieval(data_dir), run, outputs[0], _quiet, tmp_path / "out", True, outputs[1]
        )
    assert (run / "test_queries.npz").read_bytes() == before
    assert not (tmp_path / "x.npz").exists()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_unwritable_disk_needs_another_workdir(run, data_dir, monkeypatch, number):
    def fail(dir):
        raise OSError(number, os.strerror(number), f"{dir}/tmpofcanjts")

    monkeypatch.setattr(files.tempfile, "TemporaryFile", fail)
    message = rf"run cannot be written \({os.strerror(number)}\): give another `workdir` for"
    with pytest.raises(files.OutputError, match=message):
        evaluate_checkpoint(runs.retrieval(data_dir), run, None, _quiet, run)
    with pytest.raises(OSError, match=rf"{os.strerror(number)}: '{run}'"):
        files.check_output(run / "scores.npz")


def test_fields_without_influence_on_metrics_may_differ(run, data_dir, tmp_path):
    before = _metrics(run)
    config = runs.retrieval(data_dir, **{"optim.learning_rate": 3.0, "train.epochs": 77})
    config.loss.margin, config.eval.query_batch = 0.7, 3
    outputs = [tmp_path / name for name in ("scores.npz", "embeddings.npz")]
    (run / "test_metrics.json").unlink()
    result = evaluate_checkpoint(config, run, outputs[0], _quiet, run, embeddings_file=outputs[1])
    assert _metrics(run) == before
    with np.load(outputs[0]) as scores, np.load(outputs[1]) as embeddings:
        assert np.mean(scores["scores"].argmax(1) == scores["relevant"]) == pytest.approx(
            result.metrics["R@1"] / 100
        )
        assert len(embeddings["queries"]) == result.queries
    with pytest.raises(files.OutputError, match=r"scores\.npz"):
        evaluate_checkpoint(config, run, outputs[0], _quiet)


def test_evaluation_beside_a_run_is_recorded(run, data_dir, tmp_path, monkeypatch):
    beside, lines = tmp_path / "beside", []
    monkeypatch.setattr(run_directory, "describe_unfinished", lambda path: "epoch 1 of 3")
    monkeypatch.setattr(PRVR, "notes", lambda family: ["a remark"])
    config = runs.retrieval(data_dir)
    result = evaluate_checkpoint(config, run, None, lines.append, beside)
    assert json.loads(_metrics(beside)) == result.as_json()
    assert result.as_json() == json.loads(_metrics(run)) | {"unfinished": "epoch 1 of 3"}
    assert json.loads((beside / "evaluation.json").read_text())["checkpoint"] == str(run)
    info = checkpoints.best(run).info()
    facts = f"epoch {info['epoch'] + 1}, step {info['step']}, validation SumR"
    assert lines[:2] == [
        f"{run} is not finished (epoch 1 of 3): its best epoch so far is evaluated",
        f"checkpoint {run} ({facts} {info['validation_SumR']:.4g})",
    ]
    assert lines[-1] == "a remark"
    config.eval.corpus = "int8"
    with pytest.raises(WorkdirError, match=r"eval\.corpus \(float32 there, int8 now\)"):
        evaluate_checkpoint(config, run, None, _quiet, beside)


@pytest.mark.slow  # it takes seconds
def test_other_settings_are_recorded_in_another_directory(run, data_dir, tmp_path):
    beside = tmp_path / "beside"
    coarse = runs.retrieval(data_dir, **{"eval.corpus": "int8"})
    result = evaluate_checkpoint(coarse, run, None, _quiet, beside)
    assert json.loads(_metrics(beside)) == result.as_json()
    record = json.loads((beside / "evaluation.json").read_text())
    assert record["config"]["eval"]["corpus"] == "int8" and record["checkpoint"] == str(run)
    with pytest.raises(WorkdirError, match=r"eval\.corpus \(int8 there, float32 now\)"):
        evaluate_checkpoint(runs.retrieval(data_dir), run, None, _quiet, beside)
    evaluate_checkpoint(runs.retrieval(data_dir), run, None, _quiet, beside, overwrite=True)
    record = json.loads((beside / "evaluation.json").read_text())
    assert record["config"]["eval"]["corpus"] == "float32"


def test_metrics_of_another_run_do_not_replace_a_runs(run, retrieval, data_dir):
    with pytest.raises(WorkdirError, match="holds another run"):
        evaluate_checkpoint(runs.retrieval(data_dir), retrieval.path, None, _quiet, run)


@pytest.mark.slow  # it takes seconds
def test_best_epoch_is_evaluated_beside_a_damaged_record(run, data_dir, tmp_path):
    out, best = tmp_path / "out", run / "checkpoints" / "best"
    (run / "config.json").write_text("{")
    evaluate_checkpoint(runs.retrieval(data_dir), best, None, _quiet, out)
    assert _metrics(out) == _metrics(run)


@pytest.mark.slow  # it takes seconds
def test_command_evaluates_a_run_or_a_checkpoint(run, data_dir, tmp_path):
    before = _metrics(run)
    scores, embeddings = tmp_path / "scores.npz", tmp_path / "embeddings.npz"
    evaluate = ("--mode=evaluate", f"--workdir={run}")
    files = f"--scores={scores}", f"--embeddings={embeddings}"
    changed = f"--config=run:{run}", "--config.eval.corpus=int8"
    runs.write(runs.retrieval(data_dir), tmp_path / "config.py")
    beside = "--config=config.py", f"--checkpoint={run}", "--workdir=beside"
    calls = [
        (*evaluate, *files),
        ("--mode=evaluate", *beside),
        (*evaluate, *changed),
        ("--mode=evaluate", "--workdir=nowhere"),
    ]
    right, checkpoint, wrong, missing = processes.calls("hlformer_jax.main", calls, tmp_path)
    assert right.status == 0 and _metrics(run) == before, right.stderr
    assert re.search(rf"queries, 5 videos(.*\n)*scores: {scores}\n", right.stderr)
    assert checkpoint.status == 0, checkpoint.stderr
    assert _metrics(tmp_path / "beside") == before
    assert wrong.status == 1 and "config.eval.corpus (float32 there, int8 now)" in wrong.stderr
    assert missing.status == 1 and "nowhere has no config.json" in missing.stderr
    with np.load(scores) as first, np.load(embeddings) as second:
        assert list(first["queries"]) == list(second["query_ids"])
        np.testing.assert_array_equal(first["relevant"], second["relevant"])
        recorded = json.loads((run / "config.json").read_text())
        assert first["data"] == recorded["data_fingerprint"]
        assert len(set(first["sentences"])) > 1
        # The scores follow from the exported vectors.
        total = sum(
            weight * np.einsum("qh,vlh->qvl", second["queries"], second[name]).max(-1)
            for name, weight in zip(second["branches"], second["weights"], strict=True)
        )
        np.testing.assert_allclose(total, first["scores"], atol=1e-5)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(("options", "has_bar"), [((), True), (("--quiet",), False)])
def test_terminal_shows_the_progress_of_encoding(run, options, has_bar):
    reader, writer = os.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    with os.fdopen(reader, "rb", buffering=0) as screen, os.fdopen(writer, "wb") as terminal:
        process = subprocess.run(
            processes.command("main", "--mode=evaluate", f"--workdir={run}", *options),
            env=processes.environment() | {"TQDM_MININTERVAL": "0", "TERM": "xterm"},
            stdout=subprocess.PIPE, stderr=terminal, check=True,
        )  # fmt: skip
        terminal.write(b"END")
        terminal.flush()
        frames = screen.read(65536).decode()
    assert b"SumR" in process.stdout
    assert bool(re.search(r"Encoding: 100%.* 5/5 \[.*video/s\]", frames)) == has_bar, frames


def test_run_is_a_configuration(retrieval):
    assert load("run", str(retrieval.path)) == loaded_run.read_config(retrieval.path)
