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


def test_defaults_of_clip():
    read = families.read_config({"model_type": "clip"}, "f")
    assert read.width == 512
    assert read.text == config.Text(512, 2048, 12, 8, "quick_gelu", 1e-5, 49408, 77, 49407, 1)
    assert read.vision == config.Vision(768, 3072, 12, 12, "quick_gelu", 1e-5, 224, 32)
    assert read.vision.grid == 7


def test_defaults_of_siglip():
    read = families.read_config(
        {"model_type": "siglip", "text_config": {}, "vision_config": None}, "f"
    )
    assert read.width == 768
    assert read.text == config.Text(768, 3072, 12, 12, "gelu_pytorch_tanh", 1e-6, 32000, 64, 0, 1)
    assert read.vision == config.Vision(768, 3072, 12, 12, "gelu_pytorch_tanh", 1e-6, 224, 16)


def test_second_section_of_an_old_file_overrides():
    read = families.read_config(
        {
            "model_type": "clip",
            "text_config": {"hidden_size": 640, "num_hidden_layers": 3},
            "text_config_dict": {"hidden_size": 256, "eos_token_id": 2},
            "vision_config": {"num_hidden_layers": 4},
        },
        "f",
    )
    assert (read.text.width, read.text.layers, read.text.eos) == (256, 12, LARGEST_ID)
    assert read.vision.layers == 4


def test_grid_drops_incomplete_patches():
    sizes = {"image_size": 384, "patch_size": 14, "hidden_size": 768}
    assert (
        families.read_config({"model_type": "siglip", "vision_config": sizes}, "f").vision.grid
        == 27
    )


def test_every_family_has_a_recorded_encoder(golden):
    configs = [json.loads(path.read_text()) for path in golden.glob("*/config.json")]
    assert {config["model_type"] for config in configs} == {*families.FAMILIES}


@pytest.mark.parametrize("kind", ["siglip", "siglip2"])
def test_configuration_is_written_and_read_again(encoder):
    assert families.read_config(SIGLIP.write_config(encoder.config), "f") == encoder.config


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({"model_type": "siglib"}, "did you mean 'siglip'"),
        ({"model_type": "siglip2"}, "NaFlex"),
        ({"model_type": "clip", "text_config": []}, "text_config"),
        ({"model_type": "clip", "vision_config": {"num_channels": 4}}, "num_channels: 4"),
        ({"model_type": "clip", "vision_config": {"num_hidden_layers": 0}}, "num_hidden_layers: 0"),
        ({"model_type": "clip", "text_config": {"hidden_act": "geluu"}}, "did you mean 'gelu'"),
        ({"model_type": "siglip", "text_config": {"projection_size": 512}}, "512"),
    ],
)
def test_invalid_value_is_named(content, name):
    with pytest.raises(EncoderError, match=name) as caught:
        families.read_config(content, "f/config.json")
    assert str(caught.value).startswith("f/config.json")


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000, b'"a"'])
def test_damaged_configuration_is_named(copy, content):
    for kind, name in (("siglip", "config.json"), ("siglip2", "preprocessor_config.json")):
        path = copy(kind) / name
        path.write_bytes(content)
        with pytest.raises(EncoderError, match=f"^{path}: .* JSON"):
            encoders.load(path.parent)


# Weights


def change(path, **replacements):
    """Replace or add tensors of a file; None removes one."""
    tensors = safetensors.numpy.load_file(path) | replacements
    tensors = {name: value for name, value in tensors.items() if value is not None}
    safetensors.numpy.save_file(tensors, path)


def test_parameters_are_written_as_read(loaded, golden):
    encoder = loaded("siglip")
    content = weights.to_bytes(encoder.params, SIGLIP.leaves(encoder.config))
    expected = safetensors.numpy.load_file(golden / "siglip" / "model.safetensors")
    actual = safetensors.numpy.load(content)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)
    assert weights.to_bytes(encoder.params, SIGLIP.leaves(encoder.config)) == content


def test_bfloat16_is_used_for_kernels_only(loaded):
    encoder = loaded("siglip", "bfloat16")
    for path, leaf in SIGLIP.leaves(encoder.config).items():
        value = encoder.params
        for name in path:
            value = value[name]
        small = path[-1] == "kernel" or path == ("text", "tokens")
        assert value.dtype == (ml_dtypes.bfloat16 if small else np.float32), path
        assert leaf.is_matrix == small


def test_scale_may_be_a_scalar(copy, loaded):
    folder = copy("siglip")
    change(folder / "model.safetensors", logit_scale=np.array(1.7, np.float32))
    assert encoders.load(folder).scale == loaded("siglip").scale


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"text_model.head.bias": None}, "lacks the tensor text_model.head.bias"),
        ({"classifier.weight": np.zeros(3, np.float32)}, "unknown tensor classifier.weight"),
        ({"text_model.head.bias": np.zeros(23, np.float32)}, r"text_model.head.bias .* \(23,\)"),
        ({"text_model.head.bias": np.zeros(24, np.int8)}, "text_model.head.bias is I8"),
    ],
)
def test_misfitting_tensor_is_named(copy, changed, name):
    folder = copy("siglip")
    change(folder / "model.safetensors", **changed)
    with pytest.raises(EncoderError, match=f"^{folder}.*{name}"):
        encoders.load(folder)


def test_truncated_file_is_named(copy):
    path = copy("siglip") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(EncoderError, match=f"^{path}"):
        encoders.load(path.parent)


@pytest.mark.parametrize("names", [{}, {"weight_map": {"a": "../../secret.safetensors"}}])
def test_damaged_list_of_files_is_named(copy, names):
    path = copy("new_clip") / "model.safetensors.index.json"
    path.write_text(json.dumps(names))
    with pytest.raises(EncoderError, match=f"^{path}"):
        encoders.load(path.parent)
