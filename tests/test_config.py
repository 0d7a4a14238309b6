"""What a configuration refuses, whatever its model."""

import math

import pytest

from hlformer_jax.config import WEIGHTS, ConfigError, check, default, load


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loss.margin", math.nan),
        ("loss.margin", -0.1),
        ("loss.query_diversity", -1.0),
        ("loss.diversity_gamma", -1.0),
        ("loss.diversity_form", "words"),
        ("loss.hard_negative_epoch", -1),
        ("optim.weight_decay", -0.01),
        ("optim.learning_rate", math.inf),
        ("model.block_curvature_start", math.inf),
        ("model.clip_weight", -0.7),
        ("model.dropout", 1.0),
        ("model.euclidean_widths", ("wide",)),
        ("model.euclidean_widths", (-1.0,)),
        ("data.synthetic_videos", (1, 0, 1)),
        ("seed", -1),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_name(field, value):
    config = default()
    config.update_from_flattened_dict({field: value})
    with pytest.raises(ConfigError, match=f"config.{field} is"):
        check(config)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model.clip_weight": 0.0, "model.frame_weight": 0.0}, "clip_weight is 0.0"),
        ({"loss.diversity_form": "captions", "loss.diversity_gamma": 2.0}, "no focal factor"),
        ({"data.max_clips": 200}, "max_frames is 128"),
    ],
)
def test_values_that_contradict_each_other_are_refused(fields, message):
    config = default()
    config.update_from_flattened_dict(fields)
    with pytest.raises(ConfigError, match=message):
        check(config)


def test_the_default_is_accepted_and_has_a_weight_for_every_term():
    check(default())
    assert all(isinstance(default().loss[name], float) for name in WEIGHTS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nowhere.py", None, "no such configuration file"),
        ("config.txt", "", "a .py file"),
        ("other.py", "x = 1", "does not define get_config"),
        ("alone.py", "get_config = lambda: {}", "no variant 'debug'"),
    ],
)
def test_what_is_no_configuration_file_is_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path / name, "debug")
    assert name in str(caught.value)


@pytest.mark.parametrize("takes", ["", "name", "name=''"])
def test_a_configuration_file_may_take_a_name(tmp_path, takes):
    (tmp_path / "config.py").write_text(f"get_config = lambda {takes}: {{'seed': 3}}")
    assert load(tmp_path / "config.py") == {"seed": 3}
