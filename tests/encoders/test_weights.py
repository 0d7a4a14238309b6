import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from hlformer_jax import encoders
from hlformer_jax.encoders import EncoderError, weights


def change(path, **changed):
    """A copy of the tensors with some replaced, added, or (None) removed."""
    tensors = safetensors.numpy.load_file(path) | changed
    kept = {name: value for name, value in tensors.items() if value is not None}
    safetensors.numpy.save_file(kept, path)


def test_bytes_of_parameters_read_back_are_those_of_the_file(loaded, golden):
    encoder = loaded("siglip")
    content = weights.to_bytes(encoder.params, encoder.config)
    theirs = safetensors.numpy.load_file(golden / "siglip" / "model.safetensors")
    ours = safetensors.numpy.load(content)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)
    assert weights.to_bytes(encoder.params, encoder.config) == content


def test_every_kernel_and_no_norm_is_kept_in_bfloat16(loaded):
    encoder = loaded("siglip", "bfloat16")
    for path, leaf in weights.leaves(encoder.config).items():
        value = encoder.params
        for name in path:
            value = value[name]
        small = path[-1] == "kernel" or path == ("text", "tokens")
        assert value.dtype == (ml_dtypes.bfloat16 if small else np.float32), path
        assert leaf.matrix == small


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
        ({"text_model.head.bias": np.zeros(24, np.int8)}, "is I8, none of"),
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
    ["{}", "[]", "no JSON", json.dumps({"weight_map": {"a": "../../secret.safetensors"}})],
)
def test_a_damaged_list_of_files_is_one_line(copy, content):
    path = copy("new_clip") / "model.safetensors.index.json"
    path.write_text(content)
    with pytest.raises(EncoderError, match="index.json") as caught:
        encoders.load(path.parent)
    assert "\n" not in str(caught.value)
