"""The authors' checkpoint: conversion, evaluation, and what is refused."""

import ast
import json
import shlex
import shutil

import jax
import numpy as np
import pytest
import released

from hlformer_jax import models
from hlformer_jax.config import default, load
from hlformer_jax.retrieval import evaluate
from hlformer_jax.run import checkpoint
from hlformer_jax.torch_checkpoint import __main__ as torch_checkpoint
from hlformer_jax.torch_checkpoint import convert, names

RUN = released.GOLDEN / "released_run"


def _config(tmp_path):
    config = default()
    config.data.update(
        manual_dir=str(RUN), data_dir=str(tmp_path / "prepared"), visual_dim=24, text_dim=20
    )
    config.model.update(hidden_size=32, lorentz_dim=15)
    return config


# In 16 bit the features of both sides of a cosine are rounded, by 2^-12 of their size each.
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float16", 2**-11)])
def test_a_converted_checkpoint_gives_the_recorded_scores_and_metrics(tmp_path, dtype, tolerance):
    out = tmp_path / "out"
    info = convert.convert(RUN / "best.ckpt", out)
    assert info["model.hidden_size"] == 32
    assert (info["model.euclidean_blocks"], info["model.lorentz_blocks"]) == (4, 4)
    said = []
    scores_file = tmp_path / "scores.npz"
    config = _config(tmp_path)
    config.data.dtype = dtype
    result = evaluate.evaluate_checkpoint(config, out, scores_file, said.append)
    assert "best.ckpt" in said[0]
    with np.load(scores_file) as ours, np.load(RUN / "expected.npz") as theirs:
        query = {name: row for row, name in enumerate(ours["queries"])}
        video = {name: row for row, name in enumerate(ours["videos"])}
        rows = [query[name] for name in theirs["queries"]]
        columns = [video[name] for name in theirs["videos"]]
        assert len(set(rows)) == ours["scores"].shape[0] == len(theirs["queries"])
        found = ours["scores"][rows][:, columns]
        np.testing.assert_allclose(found, theirs["scores"], rtol=0, atol=tolerance)
    expected = json.loads((RUN / "expected.json").read_text())["R"]
    # Ranks are equal; how Python adds their shares up has changed with version 3.12.
    np.testing.assert_allclose(list(result.metrics.values()), expected, rtol=1e-14)
    assert (result.queries, result.videos) == (133, 44)


@pytest.mark.parametrize("model", ["hlformer", "gmmformer_v2", "gmmformer", "ms_sl"])
def test_the_printed_command_gives_the_recorded_scores(tmp_path, model, capsys):
    source = RUN / ("best.ckpt" if model == "hlformer" else f"{model}.ckpt")
    out, scores_file = tmp_path / "out", tmp_path / "scores.npz"
    assert torch_checkpoint.main(["convert", str(source), str(out)]) == 0
    _, line = capsys.readouterr().out.strip().splitlines()
    printed = [word for word in shlex.split(line.replace(",", "", 1)) if word.startswith("--")]
    fields = dict(word.removeprefix("--").split("=", 1) for word in printed)
    config = load(released.GOLDEN.parents[1] / fields.pop("config").rstrip(","))
    fields = {name: text for name, text in fields.items() if name.startswith("config.")}
    assert fields.pop("config.model.name") == config.model.name == model
    for name, text in fields.items():
        section, field = name.removeprefix("config.").split(".")
        own = config[section][field]
        config[section][field] = text if isinstance(own, str) else ast.literal_eval(text)
    config.data.update(manual_dir=str(RUN), data_dir=str(tmp_path / "prepared"), dtype="float32")
    result = evaluate.evaluate_checkpoint(config, out, scores_file, lambda line: None)
    with (
        np.load(scores_file) as ours,
        np.load(RUN / "expected.npz") as order,
        np.load(RUN / "expected_family.npz") as family,
    ):
        rows = [list(ours["queries"]).index(name) for name in order["queries"]]
        columns = [list(ours["videos"]).index(name) for name in order["videos"]]
        own = model == "hlformer"
        expected = order["scores"] if own else family[f"{model}/scores"]
        recalls = json.loads((RUN / "expected.json").read_text())["R"]
        np.testing.assert_allclose(ours["scores"][rows][:, columns], expected, rtol=0, atol=2e-5)
        np.testing.assert_allclose(
            list(result.metrics.values()), recalls if own else family[f"{model}/R"], rtol=1e-6
        )


def test_every_tensor_of_the_checkpoint_has_its_place(tmp_path):
    from hlformer_jax.torch_checkpoint import pickle_reader

    state = pickle_reader.load(RUN / "best.ckpt")["state_dict"]
    model = models.build(_config(tmp_path))
    config = _config(tmp_path)
    ours = jax.eval_shape(lambda: models.init_params(model, config))
    converted = names.to_params(state)
    assert jax.tree.map(np.shape, converted) == jax.tree.map(lambda x: x.shape, ours)
    for name, value in state.items():
        if not names.NOT_PARAMETERS.search(name):
            np.testing.assert_array_equal(
                names.lookup(converted, name),
                np.asarray(value).reshape(np.shape(names.lookup(converted, name))),
            )


def test_another_size_is_refused_with_the_fields_to_set(tmp_path):
    convert.convert(RUN / "best.ckpt", tmp_path / "out")
    config = _config(tmp_path)
    config.model.hidden_size = 64
    with pytest.raises(checkpoint.CheckpointError, match="hidden_size"):
        evaluate.evaluate_checkpoint(config, tmp_path / "out", None, print)


def test_an_existing_directory_is_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    with pytest.raises(checkpoint.CheckpointError, match="not empty"):
        convert.convert(RUN / "best.ckpt", tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "precious"


@pytest.mark.parametrize("damage", ["absent", "cut", "text"])
def test_the_command_says_in_one_line_what_is_wrong(tmp_path, damage, capsys):
    path = tmp_path / "best.ckpt"
    if damage == "cut":
        content = (RUN / "best.ckpt").read_bytes()
        path.write_bytes(content[: len(content) // 2])
    elif damage == "text":
        shutil.copy(RUN / "expected.json", path)
    assert torch_checkpoint.main(["convert", str(path), str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.strip().splitlines()) == 1
    assert "best.ckpt" in error
    assert not (tmp_path / "out").exists()


def test_the_checkpoint_of_another_model_is_refused(tmp_path, monkeypatch):
    from hlformer_jax.torch_checkpoint import pickle_reader

    content = pickle_reader.load(RUN / "best.ckpt")
    # GMMFormer v2 has `attn0 …` where HLFormer has e_attns and h_attns.
    content["state_dict"] = {
        name.replace("e_attns.", "attn"): value
        for name, value in content["state_dict"].items()
        if "h_attns" not in name
    }
    monkeypatch.setattr(pickle_reader, "load", lambda path: content)
    with pytest.raises(convert.ConversionError, match="is no checkpoint of HLFormer, GMMFormer"):
        convert.convert(RUN / "best.ckpt", tmp_path / "out")
