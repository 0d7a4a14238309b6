import pytest

from hlformer_jax import encoders
from hlformer_jax.encoders import EncoderError, config


def test_defaults_of_a_clip():
    found = config.read({"model_type": "clip"}, "f")
    assert found.width == 512
    assert found.text == config.Text(512, 2048, 12, 8, "quick_gelu", 1e-5, 49408, 77, 49407, 1)
    assert found.vision == config.Vision(768, 3072, 12, 12, "quick_gelu", 1e-5, 224, 32)
    assert found.vision.grid == 7


def test_defaults_of_a_siglip():
    found = config.read({"model_type": "siglip", "text_config": {}, "vision_config": None}, "f")
    assert found.width == 768
    assert found.text == config.Text(768, 3072, 12, 12, "gelu_pytorch_tanh", 1e-6, 32000, 64, 0, 1)
    assert found.vision == config.Vision(768, 3072, 12, 12, "gelu_pytorch_tanh", 1e-6, 224, 16)


def test_an_old_dict_overrides_with_its_defaults():
    found = config.read(
        {
            "model_type": "clip",
            "text_config": {"hidden_size": 640, "num_hidden_layers": 3},
            "text_config_dict": {"hidden_size": 256, "eos_token_id": 2},
            "vision_config": {"num_hidden_layers": 4},
        },
        "f",
    )
    assert (found.text.width, found.text.layers, found.text.eos) == (256, 12, config.LARGEST_ID)
    assert found.vision.layers == 4


def test_patches_that_do_not_fill_the_image():
    sizes = {"image_size": 384, "patch_size": 14, "hidden_size": 768}
    assert config.read({"model_type": "siglip", "vision_config": sizes}, "f").vision.grid == 27


@pytest.mark.parametrize("kind", ["siglip", "siglip2"])
def test_written_and_read_again(encoder):
    assert config.read(config.write(encoder.config), "f") == encoder.config


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({}, "model_type is None, not that of an image-text encoder"),
        ({"model_type": "bert"}, "'bert'"),
        ({"model_type": "clip_vision_model"}, "not that of an image-text encoder"),
        ({"model_type": "siglib"}, "did you mean 'siglip'"),
        ({"model_type": "siglip2"}, "NaFlex"),
        ({"model_type": "clip", "projection_dim": "512"}, "projection_dim: '512'"),
        ({"model_type": "clip", "text_config": []}, "text_config is not an object"),
        ({"model_type": "clip", "text_config": {"hidden_size": 500}}, "no multiple of 8 heads"),
        ({"model_type": "clip", "text_config": {"hidden_act": "geluu"}}, "did you mean 'gelu'"),
        ({"model_type": "clip", "text_config": {"layer_norm_eps": "x"}}, "layer_norm_eps"),
        ({"model_type": "clip", "text_config": {"eos_token_id": -1}}, "no token's id"),
        ({"model_type": "clip", "vision_config": {"num_hidden_layers": 0}}, "no positive whole"),
        ({"model_type": "clip", "vision_config": {"patch_size": 300}}, "larger than image_size"),
        ({"model_type": "clip", "vision_config": {"num_channels": 1}}, "num_channels"),
        ({"model_type": "siglip", "vision_config": {"vision_use_head": False}}, "use_head"),
        ({"model_type": "siglip", "text_config": {"projection_size": 512}}, "are the same"),
    ],
)
def test_values_that_make_no_sense_are_one_line(content, part):
    with pytest.raises(EncoderError, match=part) as caught:
        config.read(content, "f/config.json")
    assert str(caught.value).startswith("f/config.json") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe{}", "no JSON"),
        (b"{", "no JSON"),
        (b'"a"', "no object"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_a_damaged_configuration_is_one_line_that_names_it(copy, content, part):
    for kind, name in (("siglip", "config.json"), ("siglip2", "preprocessor_config.json")):
        path = copy(kind) / name
        path.write_bytes(content)
        with pytest.raises(EncoderError, match=part) as caught:
            encoders.load(path.parent)
        assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
