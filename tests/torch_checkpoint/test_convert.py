"""Conversion of the authors' checkpoints: what is read from the file, and what is refused."""

import math

import ml_dtypes
import numpy as np
import pytest
import released

from hlformer_jax.torch_checkpoint import convert, pickle_reader
from hlformer_jax.torch_checkpoint.errors import ConversionError
from hlformer_jax.training import checkpoints

RUN = released.GOLDEN / "released_run"
FILE = RUN / "gmmformer.ckpt"


@pytest.fixture
def content(monkeypatch):
    """What the reader gives for the file, to be changed by a test."""
    content = pickle_reader.load(FILE)
    monkeypatch.setattr(pickle_reader, "load", lambda path: content)
    return content


@pytest.fixture
def saved(monkeypatch):
    """What would be written: parameters and information."""
    saved = []
    monkeypatch.setattr(checkpoints, "save_params", lambda *arguments: saved.extend(arguments))
    return saved


def test_sizes_options_and_progress_are_those_of_the_file(saved, tmp_path):
    info = convert.convert(FILE, tmp_path / "out")
    assert info == {
        "source": "gmmformer.ckpt",
        "epoch": 0,
        "validation_SumR": 237.83783783783784,
        "collection": "activitynet",
        "model.name": "gmmformer",
        "model.fusion": "mean",
        "model.window": "released",
        "model.video_level": True,
        "model.euclidean_widths": [0.0, 0.5, 1.0, 5.0],
        "model.lorentz_widths": [],
        "model.lorentz_blocks": 0,
        "model.hidden_size": 8,
        "data.text_dim": 20,
        "data.visual_dim": 24,
        "data.max_frames": 128,
        "data.max_words": 30,
        "model.euclidean_blocks": 4,
        "model.num_heads": 2,
        "data.max_clips": 32,
        "model.clip_weight": 0.7,
        "model.frame_weight": 0.3,
    }
    assert saved[2] == info


def test_the_weights_and_the_collection_are_read_from_the_options(content, saved, tmp_path):
    content["config"] |= {"clip_scale_w": 0.5, "frame_scale_w": 0.5, "collection": "charades"}
    info = convert.convert(FILE, tmp_path / "out")
    assert (info["model.clip_weight"], info["model.frame_weight"]) == (0.5, 0.5)
    assert convert.config_file(info) == "configs/gmmformer.py:charades"


@pytest.mark.parametrize(
    ("info", "file"),
    [
        ({"model.name": "hlformer", "collection": "charades"}, "configs/charades.py"),
        ({"model.name": "hlformer", "collection": "activitynet"}, "configs/anet.py"),
        ({"model.name": "ms_sl", "data.visual_dim": 3072}, "configs/ms_sl.py:tvr"),
        ({"model.name": "ms_sl", "data.visual_dim": 1024}, "configs/ms_sl.py:anet"),
        ({"model.name": "dl_dkd", "data.visual_dim": 3072}, "configs/dl_dkd.py:tvr"),
    ],
)
def test_the_configuration_is_that_of_the_collection(info, file):
    assert convert.config_file({"data.visual_dim": 1024, **info}) == file


@pytest.mark.parametrize(
    ("metrics", "sum_recall"),
    [
        ([1.0, 2.0, 3.0, 4.0, 10.0], 10.0),
        (140.0, 140.0),
        (np.float32(140.0).reshape(1), 140.0),
        ([], None),
        ([math.nan], None),
        (math.inf, None),
        (2**2000, None),
        ("high", None),
    ],
)
def test_the_validation_metric_is_read_where_it_is_one(
    content, saved, tmp_path, metrics, sum_recall
):
    content["model_val"] = metrics
    assert convert.convert(FILE, tmp_path / "out").get("validation_SumR") == sum_recall


@pytest.mark.parametrize("option", convert.OPTIONS)
@pytest.mark.parametrize("value", [math.inf, math.nan, 1e300, 2**2000, -1, "4\n", True, [4]])
def test_an_option_that_no_model_can_have_is_refused(content, saved, tmp_path, option, value):
    content["config"][option] = value
    with pytest.raises(ConversionError, match=f"its option {option} is ") as caught:
        convert.convert(FILE, tmp_path / "out")
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


@pytest.mark.parametrize("what", ["missing", "without axes", "with three axes"])
def test_a_tensor_that_is_not_as_released_is_refused_or_written_but_no_traceback(
    content, saved, tmp_path, what
):
    state = dict(content["state_dict"])
    refused = 0
    for name, value in list(state.items())[::6]:
        changed = {"without axes": value.ravel()[0:1].reshape(()), "with three axes": value[None]}
        content["state_dict"] = {**state, name: changed[what]} if what in changed else dict(state)
        if what == "missing":
            del content["state_dict"][name]
        try:
            convert.convert(FILE, tmp_path / "out")  # the shapes are compared where it is restored
        except ConversionError as error:
            refused += 1
            assert len(str(error).splitlines()) == 1
    assert refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({7: np.zeros(1)}, "has the key '7', which is not a name"),
        ({"a\n\x1b[31m": 3}, r"state_dict\['a\\n\\x1b\[31m'\] is not a tensor"),
        ({"curv": np.full(1, np.nan)}, "'curv' holds NaN or infinite values"),
        ({"curv": np.full(1, 1e300)}, "'curv' holds NaN or infinite values"),
        ({"curv": np.full(1, np.inf, ml_dtypes.bfloat16)}, "'curv' holds NaN or infinite values"),
        ({"curv": np.zeros((0, 3))}, r"'curv' has no elements: its shape is \(0, 3\)"),
        ({"a" * 10_000: np.zeros(1)}, "aaa…' is not the name of a parameter"),
        ({f"a{i}": np.broadcast_to(np.zeros(1), 1000) for i in range(1000)}, "larger than the fil"),
    ],
    ids=range(8),
)
def test_a_state_that_is_not_of_parameters_is_refused_in_a_line(
    content, saved, tmp_path, changes, message
):
    content["state_dict"] |= changes
    with pytest.raises(ConversionError, match=message) as caught:
        convert.convert(FILE, tmp_path / "out")
    assert str(caught.value).isprintable() and str(FILE) in str(caught.value)


def test_the_checkpoint_of_another_model_is_refused(content, saved, tmp_path):
    content["state_dict"] = {
        name: value for name, value in content["state_dict"].items() if "clip_encoder" not in name
    }
    with pytest.raises(ConversionError, match="is no checkpoint of HLFormer, GMMFormer"):
        convert.convert(FILE, tmp_path / "out")


def test_an_existing_directory_is_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    with pytest.raises(checkpoints.CheckpointError, match="not empty"):
        convert.convert(FILE, tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "precious"
