"""An encoder's files: configurations, and tensors by their names."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from hlformer_jax import encoders
from hlformer_jax.encoders import EncoderError, config, families, weights
from hlformer_jax.encoders.families.clip import LARGEST_ID
from hlformer_jax.encoders.train import SIGLIP

# Configurations


def test_defaults_of_a_clip():
    found = families.read_config({"model_type": "clip"}, "f")
    assert found.width == 512
    assert found.text == config.Text(512, 2048, 12, 8, "quick_gelu", 1e-5, 49408, 77, 49407, 1)
    assert found.vision == config.Vision(768, 3072, 12, 12, "quick_gelu", 1e-5, 224, 32)
    assert found.vision.grid == 7


def test_defaults_of_a_siglip():
    found = families.read_config(
        {"model_type": "siglip", "text_config": {}, "vision_config": None}, "f"
    )
    assert found.width == 768
    assert found.text == config.Text(768, 3072, 12, 12, "gelu_pytorch_tanh", 1e-6, 32000, 64, 0, 1)
    assert found.vision == config.Vision(768, 3072, 12, 12, "gelu_pytorch_tanh", 1e-6, 224, 16)


def test_an_old_dict_overrides_with_its_defaults():
    found = families.read_config(
        {
            "model_type": "clip",
            "text_config": {"hidden_size": 640, "num_hidden_layers": 3},
            "text_config_dict": {"hidden_size": 256, "eos_token_id": 2},
            "vision_config": {"num_hidden_layers": 4},
        },
        "f",
    )
    assert (found.text.width, found.text.layers, found.text.eos) == (256, 12, LARGEST_ID)
    assert found.vision.layers == 4


def test_patches_that_do_not_fill_the_image():
    sizes = {"image_size": 384, "patch_size": 14, "hidden_size": 768}
    assert (
        families.read_config({"model_type": "siglip", "vision_config": sizes}, "f").vision.grid
        == 27
    )


@pytest.mark.parametrize("kind", ["siglip", "siglip2"])
def test_written_and_read_again(encoder):
    assert families.read_config(SIGLIP.write_config(encoder.config), "f") == encoder.config


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({}, "model_type is None, not an image-text encoder"),
        ({"model_type": "bert"}, "'bert'"),
        ({"model_type": "clip_vision_model"}, "not an image-text encoder"),
        ({"model_type": "siglib"}, "did you mean 'siglip'"),
        ({"model_type": "siglip2"}, "NaFlex"),
        ({"model_type": "clip", "projection_dim": "512"}, "projection_dim: '512'"),
        ({"model_type": "clip", "text_config": []}, "text_config is not an object"),
        ({"model_type": "clip", "text_config": {"hidden_size": 500}}, "not a multiple of 8 heads"),
        ({"model_type": "clip", "text_config": {"hidden_act": "geluu"}}, "did you mean 'gelu'"),
        ({"model_type": "clip", "text_config": {"layer_norm_eps": "x"}}, "layer_norm_eps"),
        ({"model_type": "clip", "text_config": {"eos_token_id": -1}}, "not a token's id"),
        ({"model_type": "clip", "vision_config": {"num_hidden_layers": 0}}, "not a positive"),
        ({"model_type": "clip", "vision_config": {"patch_size": 300}}, "larger than image_size"),
        ({"model_type": "clip", "vision_config": {"num_channels": 1}}, "num_channels"),
        ({"model_type": "siglip", "vision_config": {"vision_use_head": False}}, "use_head"),
        ({"model_type": "siglip", "text_config": {"projection_size": 512}}, "the same"),
    ],
)
def test_values_that_make_no_sense_are_one_line(content, part):
    with pytest.raises(EncoderError, match=part) as caught:
        families.read_config(content, "f/config.json")
    assert str(caught.value).startswith("f/config.json") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"{", "not JSON"),
        (b'"a"', "not a JSON object"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_damaged_configuration_is_one_line_that_names_it(copy, content, part):
    for kind, name in (("siglip", "config.json"), ("siglip2", "preprocessor_config.json")):
        path = copy(kind) / name
        path.write_bytes(content)
        with pytest.raises(EncoderError, match=part) as caught:
            encoders.load(path.parent)
        assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


# Weights


def change(path, **changed):
    """A copy of the tensors with some replaced, added, or (None) removed."""
    tensors = safetensors.numpy.load_file(path) | changed
    kept = {name: value for name, value in tensors.items() if value is not None}
    safetensors.numpy.save_file(kept, path)


def test_bytes_of_parameters_read_back_are_those_of_the_file(loaded, golden):
    encoder = loaded("siglip")
    content = weights.to_bytes(encoder.params, SIGLIP.leaves(encoder.config))
    theirs = safetensors.numpy.load_file(golden / "siglip" / "model.safetensors")
    ours = safetensors.numpy.load(content)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)
    assert weights.to_bytes(encoder.params, SIGLIP.leaves(encoder.config)) == content


def test_every_kernel_and_no_norm_is_kept_in_bfloat16(loaded):
    encoder = loaded("siglip", "bfloat16")
    for path, leaf in SIGLIP.leaves(encoder.config).items():
        value = encoder.params
        for name in path:
            value = value[name]
        small = path[-1] == "kernel" or path == ("text", "tokens")
        assert value.dtype == (ml_dtypes.bfloat16 if small else np.float32), path
        assert leaf.is_matrix == small


def test_a_scale_may_be_a_vector_of_one_or_none(copy, loaded):
    folder = copy("siglip")
    change(folder / "model.safetensors", logit_scale=np.array(1.7, np.float32))
    assert encoders.load(folder).scale == loaded("siglip").scale


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"text_model.head.bias": None}, "lacks the tensor text_model.head.bias;"),
        (
            {f"vision_model.encoder.layers.{i}.mlp.fc1.bias": None for i in (0, 1)},
            "fc1.bias and 1 more",
        ),
        ({"classifier.weight": np.zeros(3, np.float32)}, "unknown tensor classifier.weight"),
        (
            {"text_model.head.bias": np.zeros(23, np.float32)},
            r"text_model.head.bias has the shape \(23,\), but config.json says \(24,\)",
        ),
        ({"text_model.head.bias": np.zeros(24, np.int8)}, "is I8, not one of"),
        (
            {"text_model.head.bias": None, "text_model.head.bais": np.zeros(24, np.float32)},
            "it holds text_model.head.bais instead",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_one_line(copy, changed, part):
    folder = copy("siglip")
    change(folder / "model.safetensors", **changed)
    with pytest.raises(EncoderError, match=part) as caught:
        encoders.load(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [0, 5, 3000, -1])
def test_a_truncated_file_is_one_line(copy, kept):
    path = copy("siglip") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(EncoderError, match="safetensors") as caught:
        encoders.load(path.parent)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_shard_is_named(copy):
    folder = copy("new_clip")
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(EncoderError, match="model-00002-of-00003"):
        encoders.load(folder)


@pytest.mark.parametrize(
    "content",
    ["{}", "[]", "not JSON", json.dumps({"weight_map": {"a": "../../secret.safetensors"}})],
)
def test_a_damaged_list_of_files_is_one_line(copy, content):
    path = copy("new_clip") / "model.safetensors.index.json"
    path.write_text(content)
    with pytest.raises(EncoderError, match="index.json") as caught:
        encoders.load(path.parent)
    assert "\n" not in str(caught.value)
