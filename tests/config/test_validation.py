"""What no run could mean is refused by the name of its field."""

import math

import pytest
from ml_collections import ConfigDict

from hlformer_jax.config import WEIGHTS, ConfigError, check, default

REFUSED = {
    "a flag": (("model.gaze", "compile_fast"), (1, 0, 1.0, "True")),
    "a size": (("data.visual_dim", "data.max_frames"), (0, -1, 10**8, 1.0, True, "64")),
    "a number of blocks": (("model.lorentz_blocks",), (-1, 100_000, 2.0, True)),
    "a number that is large": (("seed",), (-1, 2**31, 10**5000, False)),
    "a weight": (tuple(f"loss.{name}" for name in WEIGHTS), (-1e-9, True, "1")),
    "a share": (("model.dropout", "optim.beta1", "optim.beta2", "optim.warmup"), (-0.1, 1.0, 2)),
    "a positive number": (("optim.epsilon", "optim.learning_rate", "model.temperature"), (0, -1.0)),
    "the scale": (("loss.diversity_scale",), (-32.0, 0.0)),
    "the radius": (("loss.min_radius",), (10.0, 0.0, 1e-30)),
    "a curvature": (("model.curvature", "model.block_curvature_start"), (1e30, 1e-30, 0, -1.0)),
    "the cache": (("data.cache_gib",), (-1.0, 1e300)),
    "a folder": (
        ("data.collection", "data.feature"),
        ("../../x", "..", ".", "a/b", "a\\b", "~x", "", " ", "a\nb", "a\0b", 3),
    ),
    "a path": (("data.manual_dir", "data.data_dir"), ("a\nb", "a\0b", 3)),
    "a choice": (("dtype", "model.window", "loss.diversity_form"), ("words", "", 0)),
    "a metric": (("eval.select",), ("", " ", 1)),
    "widths": (("model.euclidean_widths",), ((-1.0,), ("wide",), (math.nan,), (True,), 3.0, "12")),
    "sizes of splits": (
        ("data.synthetic_videos",),
        ((1, 0, 1), (1.5, 2.5, 3.5), ("a", "b", "c"), (1, 2), 3, (1, 2, 10**9), (-1, 1, 1)),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_value_that_means_nothing_is_refused_by_name(what):
    names, values = REFUSED[what]
    for name in names:
        for value in values:
            # Made anew, as a file could: assigned, some values would change their type.
            content = default().to_dict()
            section, _, key = name.rpartition(".")
            (content[section] if section else content)[key] = value
            with pytest.raises(ConfigError) as caught:
                check(ConfigDict(content))
            message = str(caught.value)
            assert message.startswith(f"config.{name} is ") and "it must be" in message
            assert "\n" not in message and len(message) < 300


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


def test_a_field_that_is_missing_or_unknown_is_named():
    config = default().unlock()
    config.model.hiden_size = 3
    with pytest.raises(ConfigError, match="model.hiden_size: .* mean 'model.hidden_size'"):
        check(config)
    config = default().unlock()
    del config.eval.select
    with pytest.raises(ConfigError, match="config.eval.select is missing"):
        check(config)
