"""Constraints that parameters satisfy after every step."""

import math
from typing import Any

import jax.numpy as jnp
from ml_collections import ConfigDict

MAX_CURVATURE_FACTOR = 10.0
"""A learned curvature stays within this factor of its initial value."""


def project(params: dict[str, Any], config: ConfigDict) -> dict[str, Any]:
    """Clamps the stored scalars, as the released HLFormer does before each forward.

    Learned curvatures within a factor of ten of their initial value; the logarithms of the scales
    before the exponential maps (`*_alpha`) at most 0. Any model with Lorentz blocks has some.

    Args:
      params: the model's parameters.
      config: the whole configuration; of it, the initial curvatures.

    Returns:
      Parameters that satisfy the constraints.
    """
    start = {
        "curv": config.model.curvature,
        "attention_curv": config.model.block_curvature_start,
    }

    def clamp(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clamp(key, child) for key, child in value.items()}
        if name in start:
            middle, reach = math.log(start[name]), math.log(MAX_CURVATURE_FACTOR)
            return jnp.clip(value, middle - reach, middle + reach)
        if name in ("video_alpha", "textual_alpha", "scale_alpha"):
            return jnp.minimum(value, 0.0)
        return value

    return clamp("", params)
