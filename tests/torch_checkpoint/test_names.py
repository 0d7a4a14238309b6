"""Names of the released codes: where each tensor lives, and names that no released code has."""

import jax
import numpy as np
import pytest
import released

from hlformer_jax import models
from hlformer_jax.config import default
from hlformer_jax.torch_checkpoint import names, pickle_reader
from hlformer_jax.torch_checkpoint.errors import ConversionError

QUERY = "clip_encoder.e_attns.{}.self.query.bias"


def test_every_tensor_of_the_checkpoint_has_its_location():
    state = pickle_reader.load(released.GOLDEN / "released_run" / "best.ckpt")["state_dict"]
    config = default()
    config.data.update(visual_dim=24, text_dim=20)
    config.model.update(hidden_size=32, lorentz_dim=15)
    ours = jax.eval_shape(lambda: models.init_params(models.build(config), config))
    converted = names.to_params(state)
    assert jax.tree.map(np.shape, converted) == jax.tree.map(lambda x: x.shape, ours)
    for name, value in state.items():
        if not names.NOT_PARAMETERS.search(name):
            counterpart = names.lookup(converted, name)
            np.testing.assert_array_equal(counterpart, value.reshape(np.shape(counterpart)))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({QUERY.format(0): 1, QUERY.format(2): 1}, "do not count from 0"),
        ({QUERY.format(0): 1, QUERY.format("9" * 60): 1}, "do not count from 0"),
        ({QUERY.format(0): 1, QUERY.format(1): 2}, r"differ in shape: \(1,\) and \(2,\)"),
        ({QUERY.format(0): 1, QUERY.format("00"): 1}, "and another tensor are both clip_branch"),
        (
            {QUERY.format(0): 1, "clip_encoder_1.e_attns.0.self.query.bias": 1},
            "and another tensor are both clip_branch.bank",
        ),
        (
            {QUERY.format(0): 1, "clip_branch.bank.euclidean.attention.query.bias": 1},
            "do not count from 0",
        ),
        ({"a.b": 1, "a": 1}, "'a.b' lies within 'a'"),
        ({"a": 1, "a.b": 1}, "'a.b' lies within 'a'"),
        ({"a\n\x1b[31mb": 1}, r"'a\\n\\x1b\[31mb' is not the name"),
        ({"a..b": 1}, "is not the name"),
        ({"../a": 1}, "is not the name"),
        ({"": 1}, "is not the name"),
        ({QUERY.format("٣"): 1}, "is not the name"),
        ({QUERY.format("9" * 5000): 1}, "is not the name"),
        ({".".join("a" * 100_000): 1}, "is not the name"),
        (
            {"clip_encoder.h_attns.0.self.lorentz_multiattention.scale": 3},
            "has 3 elements instead of one",
        ),
    ],
    ids=range(16),
)
def test_names_that_no_released_code_has_are_refused_in_a_line(tensors, message):
    with pytest.raises(ConversionError, match=message) as caught:
        names.to_params({name: np.zeros(size, np.float32) for name, size in tensors.items()})
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300
