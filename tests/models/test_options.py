"""Options of a model: their defaults, and what is refused with its field."""

import family
import pytest
import tiny

from hlformer_jax import models
from hlformer_jax.config import ConfigError
from hlformer_jax.models import options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model.video_level": True, "model.gaze": False}, "video_level pools the frames"),
        ({"model.block_curvature": "shared", "model.lorentz_blocks": 0}, "no Lorentz block"),
        ({"model.block_curvature": "x"}, "model.block_curvature"),
        ({"model.block_curvature_start": 5.0}, "the curvature is fixed at 1"),
        ({"model.lorentz_window": "corrected", "model.lorentz_blocks": 0}, "no Lorentz block"),
        (
            family.EUCLIDEAN | {"model.name": "ms_sl", "model.video_level": True},
            "video_level pools",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(options, message):
    with pytest.raises(ConfigError, match=message):
        models.build(tiny.config(**options))


def test_default_widths_are_the_released_ones():
    assert options.default_widths(4) == (0.0, 2.0, 4.0, 8.0)
    assert options.default_widths(1) == (0.0,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model.name": "clip"}, "model.name"),
        ({"model.gaze": False, "model.glance": False}, "keep one branch"),
        ({"model.euclidean_blocks": 0, "model.lorentz_blocks": 0}, "no attention block"),
        ({"model.hidden_size": 9}, "hidden_size 9 is not divisible"),
        ({"model.lorentz_dim": 8}, "lorentz_dim"),
        ({"model.window": "hann"}, "model.window"),
        ({"model.lorentz_window": "x"}, "model.lorentz_window"),
        ({"model.head_merge": "x"}, "model.head_merge"),
        ({"model.fusion": "x"}, "model.fusion"),
        ({"model.euclidean_widths": (1.0, 2.0, 3.0)}, "3 entries for 2 blocks"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_field_named(options, message):
    with pytest.raises(ConfigError, match=message):
        models.build(tiny.config(**options))
