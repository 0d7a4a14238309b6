"""HOVER: nodes of action trees as points of a Poincaré ball, a hyperboloid or Euclidean space.

A node has two features. The feature of its frames is the mean of their unit vectors after an LSTM
with a residual connection (CLIP4Clip's "seqLSTM"). The feature of its text is the sentence vector,
or is computed from the words.

`Lift` maps features to points with n coordinates: coordinates of the ball, space components of the
hyperboloid (which determine the time component), or coordinates of Euclidean space. In each space
the zero vector is the origin, rotations of the coordinates are isometries, and angles at the origin
are angles of the coordinates. Ball and hyperboloid are two models of the same space: stereographic
projection maps `Space.lift` of the hyperboloid to `Space.lift` of the ball.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Bool, Float
from ml_collections import ConfigDict, FrozenConfigDict

from hlformer_jax.nn import blocks, layers
from hlformer_jax.nn.blocks import AttentionPooling, BlockOptions
from hlformer_jax.ops import cones, lorentz, poincare
from hlformer_jax.ops.arguments import as_float, per_batch
from hlformer_jax.ops.dropout import derive_key
from hlformer_jax.ops.numerics import along_and_across, dot, safe_atan2, safe_norm, unit
from hlformer_jax.runtime import compiler
from hlformer_jax.typing import Array, Nodes

PRECISION = "highest"
"""Precision of products that are compared; by default a GPU may round float32 to fewer bits."""

MAX_LOG_LENGTH = 0.8
"""Bound of the logarithm of a lifted feature's length ("radius"): lengths from 0.45 to 2.2."""

MAX_SCALE = 100.0
"""Largest scale of the similarities, as in CLIP."""


@dataclasses.dataclass(frozen=True)
class Space:
    """A space and its similarity.

    Attributes:
      geometry: "poincare", "lorentz" or "euclidean".
      metric: "distance", or, in Euclidean space only, "cosine" of unit vectors.
      curvature: c; the curvature of the space is −c.
      max_radius: upper bound of √c |x| for points x of the ball; 1: the limit of floating point.
    """

    geometry: str
    metric: str = "distance"
    curvature: float = 1.0
    max_radius: float = 1.0

    @property
    def is_hyperbolic(self) -> bool:
        """True for the ball and the hyperboloid."""
        return self.geometry != "euclidean"

    def lift(
        self, tangent: Float[Array, "*#batch n"], bias: Float[Array, "*#batch n"]
    ) -> Float[Array, "*#batch n"]:
        """Map tangent vectors at the origin to points: exp_0(tangent) ⊕ exp_0(bias).

        This is the part of a hyperbolic linear layer that follows the matrix product. In Euclidean
        space it is tangent + bias, normalised for the metric "cosine".

        Args:
          tangent: tangent vectors at the origin.
          bias: tangent vectors at the origin, the bias of the layer.

        Returns:
          Coordinates in the ball or in Euclidean space; space components on the hyperboloid.

        References:
          HOVER, eq. 2 and section 4.2; Ganea, Bécigneul and Hofmann, 2018, section 3.2.
        """
        c = self.curvature
        if self.geometry == "euclidean":
            moved = tangent + bias
            return unit(moved) if self.metric == "cosine" else moved
        if self.geometry == "poincare":
            moved = poincare.mobius_add(
                poincare.exp_map0(tangent, c), poincare.exp_map0(bias, c), c
            )
            return moved if self.max_radius == 1 else poincare.project(moved, c, self.max_radius)
        # x ⊕ exp_0(b) is the end of the geodesic from x in the direction of b, transported from the
        # origin to x. The ball's exponential map of a vector reaches twice as far as the
        # hyperboloid's, hence the factors of 2.
        start = lorentz.exp_map0(2 * tangent, c)
        moved = lorentz.exp_map(start, lorentz.transport0(start, 2 * bias, c), c)
        if self.max_radius != 1:
            ball = poincare.project(poincare.from_lorentz(moved, c), c, self.max_radius)
            moved = poincare.to_lorentz(ball, c)
        return moved[..., 1:]

    def similarities(self, x: Float[Array, "M n"], y: Float[Array, "N n"]) -> Float[Array, "M N"]:
        """Return the cosines or the negative distances of all pairs of points from `lift`."""
        c = self.curvature
        if self.geometry == "poincare":
            return -poincare.pairwise_distance(x, y, c)
        if self.geometry == "lorentz":
            return -lorentz.pairwise_distance(lorentz.from_space(x, c), lorentz.from_space(y, c), c)
        if self.metric == "cosine":
            return jnp.matmul(x, y.T, precision=PRECISION)
        return -safe_norm(x[:, None] - y[None])

    def norm(self, x: Float[Array, "*#batch n"]) -> Float[Array, "*#batch"]:
        """Return the norms of points, with gradient 0 at the origin.

        Points of the hyperboloid are mapped to the ball first.
        """
        c = self.curvature
        if self.geometry == "lorentz":
            x = poincare.from_lorentz(lorentz.from_space(x, c), c)
        return safe_norm(x)

    def outside_cone(
        self,
        x: Float[Array, "*#batch n"],
        y: Float[Array, "*#batch n"],
        min_radius: ArrayLike,
    ) -> Float[Array, "*#batch"]:
        """Return the angle by which y lies outside the entailment cone of x.

        It is max(0, exterior angle − half aperture).

        Args:
          x: apexes of the cones.
          y: points.
          min_radius: K; a cone whose apex is nearer to the origin is about a half-space.

        Returns:
          Angles in radians, in [0, π]. The angle is 0, with gradient 0, inside of the cone, at the
          apex, and for an apex at the origin, whose cone is the whole space.

        References:
          Ganea, Bécigneul and Hofmann, Hyperbolic entailment cones for learning hierarchical
          embeddings, ICML 2018: section 3 for the ball, appendix for Euclidean space.
        """
        c = self.curvature
        if self.geometry == "poincare":
            return cones.poincare_energy(x, y, c, min_radius)
        if self.geometry == "lorentz":
            return cones.energy(lorentz.from_space(x, c), lorentz.from_space(y, c), c, min_radius)
        return _outside_flat_cone(x, y, min_radius)

    def search_vectors(
        self, queries: Float[Array, "M n"], candidates: Float[Array, "N n"]
    ) -> tuple[Float[Array, "M width"], Float[Array, "N width"]]:
        """Return vectors whose inner products rank the candidates of a query like `similarities`.

        The products are −cosh(√c d) / c for a hyperbolic distance d, and −d²/2 for a Euclidean
        distance, up to a term that depends only on the query. For "cosine" they are the cosines.

        Args:
          queries: points from `lift`.
          candidates: points from `lift`.
        """
        c = self.curvature
        if self.is_hyperbolic:
            if self.geometry == "poincare":
                queries, candidates = (poincare.to_lorentz(x, c) for x in (queries, candidates))
            else:
                queries, candidates = (lorentz.from_space(x, c) for x in (queries, candidates))
            signs = jnp.ones(candidates.shape[-1], candidates.dtype).at[0].set(-1)
            return queries, candidates * signs[None]
        if self.metric == "cosine":
            return queries, candidates
        unit_column = jnp.ones((len(queries), 1), queries.dtype)
        half_squares = dot(candidates, candidates)[:, None] / 2
        candidates = jnp.concatenate([candidates, -half_squares], -1)
        return jnp.concatenate([queries, unit_column], -1), candidates


def _outside_flat_cone(x: Array, y: Array, min_radius: ArrayLike) -> Array:
    """Return `Space.outside_cone` in Euclidean space, the limit of the ball near its origin."""
    radius, along, across = along_and_across(x, y)
    half_aperture = cones.aperture(radius, per_batch(min_radius, x, "min_radius"))
    return jax.nn.relu(safe_atan2(across, along) - half_aperture)


def angles(
    x: Float[Array, "*#batch n"], direction: Float[Array, " n"], base: str = "unit"
) -> Float[Array, "*#batch"]:
    """Return the cosines θ of points and the direction j of time, at the origin (HOVER, eq. 4).

    They are 0, with gradient 0, for a point at the origin.

    Args:
      x: points.
      direction: j, of any length.
      base: "unit" for cosines; "released" for products of unit vectors with j itself.
    """
    toward = direction if base == "released" else unit(direction)
    return jnp.matmul(unit(x), toward, precision=PRECISION)


def options_of(config: ConfigDict) -> FrozenConfigDict:
    """Return the fields of `config.model`, its `Space`, and other fields that shape the model."""
    model = config.model
    return FrozenConfigDict(
        {
            **model,
            "space": Space(model.geometry, model.metric, model.curvature, model.max_radius),
            "max_words": config.data.max_words,
            "order_base": config.loss.order_base,
            "dtype": jnp.dtype(config.dtype),
            "precision": compiler.precision(config),
        }
    )


def masked_mean(
    x: Float[Array, "*batch L H"], mask: Bool[Array, "*batch L"]
) -> Float[Array, "*batch H"]:
    """Average over real positions; 0 without a real position."""
    count = jnp.maximum(jnp.sum(mask, axis=-1, dtype=x.dtype), 1)
    masked = jnp.where(mask[..., None], x, jnp.zeros((), x.dtype))
    return jnp.sum(masked, axis=-2) / count[..., None]


def _dense(options: FrozenConfigDict, name: str) -> layers.Dense:
    """Return a linear layer with Flax's initialiser, which roughly preserves lengths.

    Before training the mapped frames are therefore longer than the LSTM's outputs, which are added.
    """
    start = nn.initializers.lecun_normal()
    return layers.Dense(options.hidden_size, options.dtype, kernel_init=start, name=name)


def _uniform(bound: float) -> nn.initializers.Initializer:
    """Return an initialiser that is uniform over [-bound, bound)."""
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(
        key, shape, dtype, -bound, bound
    )


class VideoEncoder(nn.Module):
    """Encoder of frames: the mean of unit vectors after an LSTM with a residual connection.

    A linear layer comes first if D is not H. Real frames come first; later frames are masked.
    """

    options: FrozenConfigDict

    @nn.compact
    def __call__(
        self, frames: Float[Array, "U F D"], mask: Bool[Array, "U F"]
    ) -> Float[Array, "U H"]:
        options = self.options
        x = frames.astype(options.dtype)
        if x.shape[-1] != options.hidden_size:
            x = _dense(options, "input")(x)
        x = as_float(x)
        # Parameters are drawn uniformly from ±1/√H, as in PyTorch, whose two biases are one here.
        start = _uniform(1 / math.sqrt(options.hidden_size))
        cell = nn.OptimizedLSTMCell(
            options.hidden_size,
            kernel_init=start,
            recurrent_kernel_init=start,
            param_dtype=float,
            bias_init=start,
            name="recurrent",
        )
        states: Any = nn.RNN(cell)(jnp.asarray(x), seq_lengths=jnp.sum(mask, axis=-1))
        return masked_mean(unit(x + states), mask)


class TextEncoder(nn.Module):
    """Encoder of texts: sentence vectors unchanged, or the mean of words, or attention over words.

    `config.model.text_encoder` selects it. Sentence vectors of another width than H are mapped by a
    linear layer.
    """

    options: FrozenConfigDict

    @nn.compact
    def __call__(
        self, words: Float[Array, "U W E"], mask: Bool[Array, "U W"]
    ) -> Float[Array, "U H"]:
        options = self.options
        x, size = words.astype(options.dtype), options.hidden_size
        if options.text_encoder == "given":
            x = masked_mean(as_float(x), mask)
            if x.shape[-1] == size:
                return x
            return as_float(_dense(options, "input")(x.astype(options.dtype)))
        x = layers.InputProjection(size, 0.0, options.dtype, name="input")(x, train=False)
        if options.text_encoder == "mean":
            return masked_mean(as_float(x), mask)
        x = layers.PositionEmbedding(options.max_words, 0.0, options.dtype, name="position")(
            x, train=False
        )
        block = BlockOptions(num_heads=options.num_heads, dropout=0.0, dtype=options.dtype)
        x = blocks.EuclideanBlock(block, name="block")(x, x, None, mask, train=False)
        return AttentionPooling(name="pooling")(x, mask)


class Points(NamedTuple):
    """Embedded nodes: the points of their frames and the points of their texts."""

    video: Float[Array, "U n"]
    text: Float[Array, "U n"]


class HyperbolicLinear(nn.Module):
    """A hyperbolic linear layer on features of the tangent space at the origin.

    It computes M ⊗ exp_0(f) ⊕ exp_0(b) = exp_0(M f) ⊕ exp_0(b). Its parameters are Euclidean.

    Attributes:
      features: dimension n of the points.
      space: the space.
      start: "identity" for the identity without bias, "kaiming" for numbers that are uniform in
        ±1/√H.
    """

    features: int
    space: Space
    start: str = "identity"

    @nn.compact
    def __call__(self, x: Float[Array, "*batch H"]) -> Float[Array, "*batch n"]:
        size = x.shape[-1]
        init_matrix = init_bias = _uniform(1 / math.sqrt(size))
        if self.start == "identity":
            init_matrix, init_bias = layers.identity, nn.initializers.zeros
        matrix = self.param("matrix", init_matrix, (self.features, size))
        bias = self.param("bias", init_bias, (self.features,)).astype(x.dtype)
        # The bias stays a single point. With a copy for each feature, XLA would move the broadcast
        # back and forth, with a warning.
        bias = bias.reshape((1,) * (x.ndim - 1) + bias.shape)
        return self.space.lift(x @ matrix.T.astype(x.dtype), bias)


class Lift(nn.Module):
    """Map from features to points: sets the length of a feature, then a hyperbolic linear layer.

    The length is 1 (`config.model.lift` "unit"), or is learned from the feature ("radius").
    """

    options: FrozenConfigDict

    @nn.compact
    def __call__(self, feature: Float[Array, "*batch H"]) -> Float[Array, "*batch n"]:
        options = self.options
        x = unit(feature)
        if options.lift == "radius":
            length = 1 + jnp.log(jnp.maximum(safe_norm(feature), 1e-6))
            inputs = jnp.concatenate([feature, length[..., None]], axis=-1)
            weights = self.param("radius", nn.initializers.zeros, (inputs.shape[-1],))
            x = x * jnp.exp(MAX_LOG_LENGTH * jnp.tanh(inputs @ weights.astype(x.dtype)))[..., None]
        if options.riemannian_factor and options.space.is_hyperbolic:
            x = as_parameter_of_the_ball(x, options.space.curvature)
        layer = HyperbolicLinear(
            options.hyperbolic_dim, options.space, options.hyperbolic_init, name="hyperbolic"
        )
        points: Array = layer(x)
        return points


def as_parameter_of_the_ball(x: Float[Array, "*batch n"], c: float) -> Float[Array, "*batch n"]:
    """Return the vectors unchanged, with gradients scaled by ((1 − c |exp_0(x)|²) / 2)².

    A Riemannian optimiser scales the gradients of parameters on the ball by this factor. The
    released code also applies it to features, which are not parameters.

    Args:
      x: tangent vectors at the origin.
      c: curvature; the curvature of the ball is −c.
    """
    ball = poincare.exp_map0(jax.lax.stop_gradient(x), c)
    factor = jnp.square((1 - c * dot(ball, ball)) / 2)[..., None]
    constant = jax.lax.stop_gradient(x)
    return constant + factor * (x - constant)


class Hover(nn.Module):
    """HOVER.

    Attributes:
      options: the result of `options_of`.
    """

    options: FrozenConfigDict

    stacked: ClassVar[tuple[str, ...]] = ()
    undecayed: ClassVar[tuple[str, ...]] = layers.UNDECAYED
    rates: ClassVar[Mapping[str, str]] = {
        "hyperbolic": "hyperbolic_rate",
        "log_scale": "scale_rate",
    }
    """Declarations for the optimiser, see `TwoBranch`."""

    def setup(self) -> None:
        """Build the encoders, a lift for each, the scale and the direction of time."""
        options = self.options
        self.video_encoder, self.text_encoder = VideoEncoder(options), TextEncoder(options)
        self.video_lift, self.text_lift = Lift(options), Lift(options)
        if options.learned_scale:
            start = nn.initializers.constant(math.log(options.scale))
            self.log_scale = self.param("log_scale", start, ())
        start = nn.initializers.normal(1.0)
        if options.order_base == "released":
            start = nn.initializers.ones
        self.direction = self.param("direction", start, (options.hyperbolic_dim,))

    def __call__(self, nodes: Nodes) -> Points:
        """Return the points of the nodes' frames and texts, float32 at least."""
        return Points(self.encode_video(nodes), self.encode_text(nodes))

    def encode_video(self, nodes: Nodes) -> Float[Array, "U n"]:
        """Return the points of the nodes' frames."""
        with jax.default_matmul_precision(self.options.precision):
            points: Array = self.video_lift(self.video_encoder(nodes.frames, nodes.frame_mask))
        return points

    def encode_text(self, nodes: Nodes) -> Float[Array, "U n"]:
        """Return the points of the nodes' texts."""
        with jax.default_matmul_precision(self.options.precision):
            points: Array = self.text_lift(self.text_encoder(nodes.words, nodes.word_mask))
        return points

    def scale(self) -> Float[Array, ""]:
        """Return the factor s of similarities."""
        if self.options.learned_scale:
            return jnp.exp(self.log_scale)
        return jnp.asarray(self.options.scale, jnp.float32)

    def time_direction(self) -> Float[Array, " n"]:
        """Return the direction j of time: the angle of a point to it grows with time."""
        return jnp.asarray(self.direction)


def build(config: ConfigDict) -> Hover:
    """Return the model of a configuration."""
    return Hover(options_of(config))


def zero_nodes(config: ConfigDict) -> Nodes:
    """Return a node of zeros without padding, to initialise or compile with."""
    data, frames = config.data, config.trees.node_frames
    return Nodes(
        jnp.zeros((1, frames, data.visual_dim)),
        jnp.ones((1, frames), bool),
        jnp.zeros((1, data.max_words, data.text_dim)),
        jnp.ones((1, data.max_words), bool),
        jnp.ones(1, bool),
    )


def init_params(config: ConfigDict) -> Any:
    """Return initial parameters, which depend only on the configuration and JAX's precision.

    They are float32, or with JAX_ENABLE_X64 float64 and drawn from other random numbers.
    """
    key = derive_key(config.seed, "params")
    return _draw_params(build(config), key, zero_nodes(config))


@functools.partial(jax.jit, static_argnums=0)
def _draw_params(model: Hover, key: jax.Array, nodes: Any) -> Any:
    return model.init(key, nodes)["params"]


def project(params: dict[str, Any]) -> dict[str, Any]:
    """Clamp the logarithm of a learned scale to its upper bound, as released."""
    if "log_scale" not in params:
        return params
    return params | {"log_scale": jnp.minimum(params["log_scale"], math.log(MAX_SCALE))}
