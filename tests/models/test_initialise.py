"""Initial parameters, as released."""

import numpy as np
import tiny

from hlformer_jax import models


def test_blocks_of_a_bank_start_different():
    config = tiny.config(**{"model.gaze": False, "model.lorentz_blocks": 0})
    bank = models.init_params(models.build(config), config)["clip_branch"]["bank"]
    kernel = bank["euclidean"]["attention"]["query"]["kernel"]
    assert not np.array_equal(kernel[0], kernel[1])
    # N(0, 0.02), as released.
    everything = bank["euclidean"]["output"]["layer1"]["kernel"]
    assert 0.015 < np.std(everything) < 0.025
