"""The command: what it prints can be pasted, and gives the recorded scores."""

import contextlib
import json
import shlex
import shutil
import sys

import numpy as np
import pytest
import released
from absl import flags
from ml_collections import config_flags

from hlformer_jax.config import load
from hlformer_jax.torch_checkpoint import __main__ as command
from hlformer_jax.training import checkpoints, evaluate

RUN = released.GOLDEN / "released_run"
ROOT = released.GOLDEN.parents[1]
FILES = {
    "hlformer": "best.ckpt",
    "gmmformer_v2": "gmmformer_v2.ckpt",
    "gmmformer": "gmmformer.ckpt",
    "ms_sl": "ms_sl.ckpt",
    "dl_dkd": "dl_dkd.ckpt",
}


@pytest.fixture
def convert(tmp_path, capsys):
    def convert(model):
        """The converted checkpoint and the command line that is printed for it."""
        out = tmp_path / "o u't"
        assert command.main(["convert", str(RUN / FILES[model]), str(out)]) == 0
        return out, capsys.readouterr().out.strip().splitlines()[-1]

    return convert


def parse(line, monkeypatch):
    """The flags that `hlformer_jax.main` sees of a command line: its options, and the config."""
    words = shlex.split(line)
    assert words[:3] == ["python", "-m", "hlformer_jax.main"]
    values = flags.FlagValues()
    config = config_flags.DEFINE_config_file("config", flag_values=values)
    flags.DEFINE_string("mode", None, "", flag_values=values)
    flags.DEFINE_string("checkpoint", None, "", flag_values=values)
    monkeypatch.setattr(sys, "argv", words[2:])
    monkeypatch.chdir(ROOT)
    assert values(sys.argv) == sys.argv[:1] and values.mode == "evaluate"
    return values.checkpoint, config.value


# ml_collections loads a configuration file by a method that Python is to lose.
@pytest.mark.filterwarnings(r"ignore:the load_module\(\) method:DeprecationWarning")
# In 16 bit the features of both sides of a cosine are rounded, by 2^-12 of their size each.
@pytest.mark.parametrize(
    ("model", "dtype", "tolerance"),
    [
        ("hlformer", "float32", 2e-5),
        pytest.param("ms_sl", "float32", 2e-5, marks=pytest.mark.slow),
        pytest.param("dl_dkd", "float32", 2e-5, marks=pytest.mark.slow),
        pytest.param("gmmformer", "float32", 2e-5, marks=pytest.mark.slow),
        pytest.param("gmmformer_v2", "float16", 2**-11, marks=pytest.mark.slow),
    ],
)
def test_the_printed_command_gives_the_recorded_scores_and_metrics(
    tmp_path, monkeypatch, convert, model, dtype, tolerance
):
    out, line = convert(model)
    prepared, scores_file = tmp_path / "prepared", tmp_path / "scores.npz"
    line = line.replace("PATH", shlex.quote(str(RUN)))
    line += f" --config.data.data_dir={shlex.quote(str(prepared))} --config.data.dtype={dtype}"
    path, config = parse(line, monkeypatch)
    assert path == str(out)
    said = []
    result = evaluate.evaluate_checkpoint(config, out, scores_file, said.append)
    assert FILES[model] in said[0]
    with (
        np.load(scores_file) as ours,
        np.load(RUN / "expected.npz") as recorded,
        np.load(RUN / "expected_family.npz") as family,
    ):
        rows = [list(ours["queries"]).index(name) for name in recorded["queries"]]
        columns = [list(ours["videos"]).index(name) for name in recorded["videos"]]
        scores, recalls = recorded["scores"], json.loads((RUN / "expected.json").read_text())["R"]
        if model != "hlformer":
            scores, recalls = family[f"{model}/scores"], family[f"{model}/R"]
        assert len(set(rows)) == len(ours["scores"]) == len(scores)
        np.testing.assert_allclose(ours["scores"][rows][:, columns], scores, rtol=0, atol=tolerance)
    if dtype == "float32":
        # Ranks are equal; how Python adds their shares up has changed with version 3.12.
        exact = 1e-14 if model == "hlformer" else 1e-6
        np.testing.assert_allclose(list(result.metrics.values()), recalls, rtol=exact)
    assert (result.queries, result.videos) == (133, 44)


def test_options_are_compared_by_what_they_mean(tmp_path, convert):
    out, _ = convert("ms_sl")
    config = load(ROOT / "configs" / "anet.py")
    config.data.update(visual_dim=24, text_dim=20, manual_dir="nowhere")
    config.model.update(
        name="ms_sl", hidden_size=16, num_heads=2, fusion="mean", euclidean_blocks=1
    )
    config.model.update(lorentz_blocks=0, lorentz_dim=7)
    config.loss.partial_order = 0.0
    for widths in ((), (0.0,), (0,)):  # all of which the recorded [0.0] is
        config.model.euclidean_widths = widths
        with pytest.raises(ValueError, match="nowhere"), contextlib.redirect_stdout(None):
            evaluate.evaluate_checkpoint(config, out, None, print)  # refused for its data alone
    config.model.euclidean_widths = (2.0,)
    config.model.fusion = "maim"
    with pytest.raises(checkpoints.CheckpointError, match="config.model.fusion is maim") as caught:
        evaluate.evaluate_checkpoint(config, out, None, print)
    missing = "'--config.model.euclidean_widths=[0.0]' --config.model.fusion=mean"
    assert str(caught.value).endswith(f"to evaluate it add {missing}")


def test_the_command_says_where_the_file_does_not_name_its_collection(tmp_path, capsys):
    assert command.main(["convert", str(RUN / "ms_sl.ckpt"), str(tmp_path / "out")]) == 0
    assert "does not say which collection" in capsys.readouterr().out
    assert command.main(["convert", str(RUN / "gmmformer.ckpt"), str(tmp_path / "two")]) == 0
    assert "does not say which collection" not in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["absent", "cut", "text"])
def test_the_command_says_in_one_line_what_is_wrong(tmp_path, damage, capsys):
    path = tmp_path / "best.ckpt"
    if damage == "cut":
        content = (RUN / "best.ckpt").read_bytes()
        path.write_bytes(content[: len(content) // 2])
    elif damage == "text":
        shutil.copy(RUN / "expected.json", path)
    assert command.main(["convert", str(path), str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.strip().splitlines()) == 1
    assert "best.ckpt" in error
    assert not (tmp_path / "out").exists()
