"""The model: nodes to points, the scale of their similarities, the direction of time."""

import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from hlformer_jax.models.hover.encoders import TextEncoder, VideoEncoder
from hlformer_jax.models.hover.options import HoverOptions
from hlformer_jax.models.hover.space import Space
from hlformer_jax.ops import poincare
from hlformer_jax.ops.numerics import dot, safe_norm, unit
from hlformer_jax.typing import Array, Nodes

LONGEST = 0.8
"""Of the logarithm of a lifted feature's length, for the lift "radius": between 0.45 and 2.2."""


class Points(NamedTuple):
    """Embedded nodes.

    Attributes:
      video: points of the nodes' frames.
      text: points of the nodes' texts.
    """

    video: Float[Array, "U n"]
    text: Float[Array, "U n"]


class HyperbolicLinear(nn.Module):
    """A hyperbolic linear layer on features of the tangent space at the origin.

    M ⊗ exp_0(f) = exp_0(M f), so that it is exp_0(M f) ⊕ exp_0(b); its parameters are Euclidean.

    Attributes:
      features: coordinates n of the points.
      space: the space of the points.
      start: "identity", without bias, or "kaiming", uniform from ±1/√H.
    """

    features: int
    space: Space
    start: str = "identity"

    @nn.compact
    def __call__(self, x: Float[Array, "*batch H"]) -> Float[Array, "*batch n"]:
        size = x.shape[-1]
        bound = 1 / math.sqrt(size)

        def matrix_start(key: Array, shape: tuple[int, int]) -> Array:
            if self.start == "identity":
                return jnp.eye(*shape)
            return jax.random.uniform(key, shape, minval=-bound, maxval=bound)

        def bias_start(key: Array, shape: tuple[int]) -> Array:
            drawn = jax.random.uniform(key, shape, minval=-bound, maxval=bound)
            return jnp.zeros(shape) if self.start == "identity" else drawn

        matrix = self.param("matrix", matrix_start, (self.features, size))
        bias = self.param("bias", bias_start, (self.features,)).astype(x.dtype)
        # One point for the batch: of copies XLA moves the broadcast to and fro, and says so.
        bias = bias.reshape((1,) * (x.ndim - 1) + bias.shape)
        return self.space.lift(x @ matrix.T.astype(x.dtype), bias)


class Lift(nn.Module):
    """A feature to a point: its length, then the hyperbolic linear layer.

    Attributes:
      options: options of the model.
    """

    options: HoverOptions

    @nn.compact
    def __call__(self, feature: Float[Array, "*batch H"]) -> Float[Array, "*batch n"]:
        options = self.options
        x = feature if options.lift == "mean" else unit(feature)
        if options.lift == "radius":
            length = 1 + jnp.log(jnp.maximum(safe_norm(feature), 1e-6))
            seen = jnp.concatenate([feature, length[..., None]], axis=-1)
            weights = self.param("radius", nn.initializers.zeros, (seen.shape[-1],))
            x = x * jnp.exp(LONGEST * jnp.tanh(seen @ weights.astype(x.dtype)))[..., None]
        if options.riemannian_factor and options.space.is_hyperbolic:
            x = as_parameter_of_the_ball(x, options.space.curvature)
        layer = HyperbolicLinear(
            options.hyperbolic_dim, options.space, options.hyperbolic_init, name="hyperbolic"
        )
        points: Array = layer(x)
        return points


def as_parameter_of_the_ball(x: Float[Array, "*batch n"], c: float) -> Float[Array, "*batch n"]:
    """The same vectors, whose gradients are scaled by ((1 − c |exp_0(x)|²) / 2)².

    It is how the gradient of a parameter on the ball would be scaled, which a feature is not; the
    released code does so.
    """
    ball = poincare.exp_map0(jax.lax.stop_gradient(x), c)
    factor = jnp.square((1 - c * dot(ball, ball)) / 2)[..., None]
    still = jax.lax.stop_gradient(x)
    return still + factor * (x - still)


class Hover(nn.Module):
    """The model of HOVER.

    Attributes:
      options: its options.
    """

    options: HoverOptions

    def setup(self) -> None:
        """Builds the encoders, a lift for each, and the two parameters beside them."""
        options = self.options
        self.video_encoder, self.text_encoder = VideoEncoder(options), TextEncoder(options)
        self.video_lift, self.text_lift = Lift(options), Lift(options)
        if options.learned_scale:
            start = nn.initializers.constant(math.log(options.scale))
            self.log_scale = self.param("log_scale", start, ())
        ones = options.order_base == "released"
        start = nn.initializers.ones if ones else nn.initializers.normal(1.0)
        self.direction = self.param("direction", start, (options.hyperbolic_dim,))

    def __call__(self, nodes: Nodes) -> Points:
        """The points of nodes: of their frames, and of their texts; float32 at least."""
        return Points(self.encode_video(nodes), self.encode_text(nodes))

    def encode_video(self, nodes: Nodes) -> Float[Array, "U n"]:
        """The points of nodes' frames."""
        points: Array = self.video_lift(self.video_encoder(nodes.frames, nodes.frame_mask))
        return points

    def encode_text(self, nodes: Nodes) -> Float[Array, "U n"]:
        """The points of nodes' texts."""
        points: Array = self.text_lift(self.text_encoder(nodes.words, nodes.word_mask))
        return points

    def scale(self) -> Float[Array, ""]:
        """The factor s of similarities."""
        if self.options.learned_scale:
            return jnp.exp(self.log_scale)
        return jnp.asarray(self.options.scale, jnp.float32)

    def time_direction(self) -> Float[Array, " n"]:
        """The direction j, which order in time turns away from."""
        return jnp.asarray(self.direction)
