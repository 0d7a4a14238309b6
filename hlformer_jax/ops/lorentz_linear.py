"""The last step of a fully Lorentzian linear map: any vector becomes a point of the hyperboloid."""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from hlformer_jax.typing import Array


def rescale(z: Float[Array, "*#batch d"], scale: Float[Array, ""]) -> Float[Array, "*#batch d"]:
    """Moves z onto the hyperboloid of curvature -1 at the time that its first coordinate asks for.

    Args:
      z: coordinates, the first for the time.
      scale: logarithm of the range of the time.

    Returns:
      [time, space] with time = sigmoid(z_0) exp(scale) + 1.1 and space along z_1.., |space|^2 =
      time^2 - 1; the origin where z_1.. is zero. The dtype is that of ``z``, which a layer chooses.

    References:
      HLFormer eq. 13, 14, as in the released code.
    """
    time = jax.nn.sigmoid(z[..., :1]) * jnp.exp(scale).astype(z.dtype) + 1.1
    squared_norm = jnp.sum(jnp.square(z[..., 1:]), axis=-1, keepdims=True)
    directed = squared_norm > jnp.finfo(z.dtype).tiny
    radius = jnp.sqrt((time - 1) * (time + 1))
    space = z[..., 1:] * (radius * jax.lax.rsqrt(jnp.where(directed, squared_norm, 1.0)))
    space = jnp.where(directed, space, 0.0)
    return jnp.concatenate([jnp.where(directed, time, 1.0), space], axis=-1)
