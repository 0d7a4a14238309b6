"""What holds for the stored scalars after every step."""

import jax.numpy as jnp
import numpy as np
import tiny

from hlformer_jax import models


def test_curvatures_stay_within_ten_times_their_start():
    config = tiny.config(**{"model.block_curvature": "block", "model.block_curvature_start": 2.0})
    params = {"clip_branch": {"bank": {"attention_curv": jnp.asarray([-9.0, 0.1, 9.0])}}}
    found = models.project(params, config)["clip_branch"]["bank"]["attention_curv"]
    np.testing.assert_allclose(np.exp(found), [0.2, np.exp(0.1), 20.0], rtol=1e-5)


def test_projection_clamps_what_the_released_model_clamps():
    params = {"curv": jnp.asarray(9.0), "a": {"scale_alpha": jnp.array([-1.0, 0.5])}, "b": 2.0}
    config = tiny.config(**{"model.curvature": 2.0})
    projected = models.project(params, config)
    np.testing.assert_allclose(projected["curv"], np.log(20.0), rtol=1e-6)
    np.testing.assert_array_equal(projected["a"]["scale_alpha"], [-1.0, 0.0])
    assert projected["b"] == 2.0
