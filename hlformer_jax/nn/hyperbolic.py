"""Layers of hyperbolic space, in the Lorentz model and in the Poincaré ball.

A layer is a pure function of a space (`manifolds.Lorentz` or `Poincare` with a scalar c), of points
of that space and of parameters. The Linen module of the same name owns the parameters and calls the
function. `flax.nnx.bridge.ToNNX(Linear(8, space), rngs)` makes an NNX module of it.

Each layer is defined on the space components s of points x = [√(1/c + |s|²), s] of the hyperboloid.
An isometry maps points of the ball there and back, so that both models compute the same (except
`concatenate`). As c → 0 a layer becomes the Euclidean layer of its name. Computations and results
are in float32 at least. Values and gradients are finite at the origin, at zero parameters and for
the farthest points.

The curvature may be learned: a parent module makes the space from a `Curvature`, or from a
parameter, and passes it to its layers. Any optimiser may train the parameters, except the points of
`Embedding`, which need `optim.riemannian`.

References:
  Ganea, Bécigneul and Hofmann, Hyperbolic neural networks, NeurIPS 2018. Shimizu, Mukuta and
  Harada, Hyperbolic neural networks++, ICLR 2021. Chen et al., Fully hyperbolic neural networks,
  ACL 2022. Bdeir, Schwethelm and Landwehr, Fully hyperbolic convolutional neural networks, ICLR
  2024.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Bool, Float, Int

from hlformer_jax.ops import lorentz, poincare
from hlformer_jax.ops.arguments import as_float, check_positive, check_shape, per_batch, same_length
from hlformer_jax.ops.attention import check_heads, check_mask
from hlformer_jax.ops.manifolds import (
    Euclidean,
    Lorentz,
    Poincare,
    Product,
    Sphere,
    bounded_curvature,
    curvature_parameter,
)
from hlformer_jax.ops.numerics import limit_norm, max_hyperbolic_norm, scaled_sinh
from hlformer_jax.typing import Array

Space: TypeAlias = Lorentz | Poincare


def linear(
    space: Space,
    x: Float[Array, "*batch n"],
    normals: Float[Array, "features m"],
    offsets: Float[Array, " features"],
) -> Float[Array, "*batch k"]:
    """Return points whose signed distances from the coordinate hyperplanes are logits of `mlr`.

    Args:
      space: the space.
      x: points of dimension m.
      normals: normals of hyperplanes, one per feature, see `mlr`; they take the part of the rows
        of a weight matrix.
      offsets: signed distances of the hyperplanes from the origin; they take the part of a bias.

    Returns:
      Points of dimension ``features`` with space components sinh(√c v) / √c for logits v. Vectors v
      longer than `max_hyperbolic_norm` / √c are shortened to that length.

    References:
      Shimizu, Mukuta and Harada, 2021, eq. 7, with normals of half the length.
    """
    v = mlr(space, x, normals, offsets)
    c = per_batch(space.c, v)
    v = limit_norm(v, max_hyperbolic_norm(v.dtype) / jnp.sqrt(c))
    return _from_space(space, scaled_sinh(v, c[..., None]))


def mlr(
    space: Space,
    x: Float[Array, "*batch n"],
    normals: Float[Array, "classes m"],
    offsets: Float[Array, " classes"],
) -> Float[Array, "*batch classes"]:
    """Return the logits of multinomial logistic regression, by `lorentz.mlr` in both models.

    Args:
      space: the space.
      x: points of dimension m.
      normals: normals of the hyperplanes of the classes, tangent at the origin; |z| times the
        signed distance is the logit.
      offsets: signed distances of the hyperplanes from the origin.

    Returns:
      Logits, float32 at least.

    Raises:
      TypeError: for a space other than `Lorentz` and `Poincare`.
      ValueError: for another number of offsets than normals, and for vectors of another length.
    """
    check_space(space)
    if isinstance(space, Poincare):
        return poincare.mlr(x, as_float(normals) / 2, offsets, space.c)
    return lorentz.mlr(x, normals, offsets, space.c)


def attention(
    space: Space,
    query: Float[Array, "*#batch M n"],
    key: Float[Array, "*#batch L n"],
    value: Float[Array, "*#batch L k"],
    scale: ArrayLike,
    mask: Bool[Array, "*masked L"] | None = None,
) -> Float[Array, "*batch M k"]:
    """Return centroids of values with attention weights from squared Lorentzian distances.

    The weights are the softmax over keys of minus the squared distances of query and key, divided
    by ``scale``.

    Args:
      space: the space.
      query: points at M positions.
      key: points at L positions.
      value: points at L positions, of any dimension.
      scale: a number, positive.
      mask: True for real keys, [*batch, L]; if no key is real, all have the same weight.

    Returns:
      One point per query, computed by `lorentz.centroid` with ``exact=False``.

    Raises:
      TypeError: for a mask of floating numbers, and for a space of another kind.
      ValueError: for a scale that is not one positive number, and for a mask that does not
        broadcast to [*batch, L].

    References:
      Chen et al., 2022. HLFormer, eq. 15, at c = 1; see `ops.attention.lorentz_attention`.
    """
    check_space(space)
    check_shape("scale", jnp.asarray(scale), ())
    check_positive("scale", scale)
    query, key, value = map(space.to_lorentz, (query, key, value))
    logits = -lorentz.pairwise_squared_distance(query, key, space.c) / scale
    if mask is not None:
        check_mask(mask, (*logits.shape[:-2], logits.shape[-1]), "[*batch, M, n]", query.shape)
        mask = mask.reshape((1,) * (logits.ndim - 1 - mask.ndim) + mask.shape)
        logits = jnp.where(mask[..., None, :], logits, float(jnp.finfo(logits.dtype).min) / 2)
    weights = jax.nn.softmax(logits, axis=-1)
    return space.from_lorentz(lorentz.centroid(value, weights, space.c, exact=False))


def layer_norm(
    space: Space,
    x: Float[Array, "*batch n"],
    scale: Float[Array, " m"],
    bias: Float[Array, " m"],
    epsilon: float = 1e-5,
) -> Float[Array, "*batch n"]:
    """Layer norm of the space components.

    Args:
      space: the space.
      x: points of dimension m.
      scale: factors of the normalised components.
      bias: added to the scaled components.
      epsilon: added to the variance of the components.

    Returns:
      The points with the normalised space components, float32 at least.

    Raises:
      ValueError: for a scale or a bias that is neither one number nor m numbers.
    """
    check_space(space)
    s = space.to_lorentz(x)[..., 1:]
    # Rescaled, since the squares of far points overflow.
    largest = jax.lax.stop_gradient(jnp.maximum(jnp.max(jnp.abs(s), axis=-1, keepdims=True), 1))
    s = s / largest
    s = s - jnp.mean(s, axis=-1, keepdims=True)
    variance = jnp.mean(s * s, axis=-1, keepdims=True)
    s = s * jax.lax.rsqrt(variance + epsilon / largest / largest)
    for name, value in (("scale", scale), ("bias", bias)):
        if jnp.ndim(value):
            check_shape(name, jnp.asarray(value), s.shape[-1:])
    factor, shift = (jnp.broadcast_to(jnp.asarray(v, s.dtype), s.shape) for v in (scale, bias))
    return _from_space(space, s * factor + shift)


def residual(
    space: Space,
    x: Float[Array, "*#batch n"],
    y: Float[Array, "*#batch n"],
    weight: ArrayLike = 1.0,
) -> Float[Array, "*#batch n"]:
    """Add points: return the points with the space components of x + weight times those of y.

    With weight 1 the addition is commutative, and over many layers the distance from the origin
    grows with the logarithm of their number. `lorentz.boost` and `poincare.mobius_add` are the
    isometric alternatives.

    Args:
      space: the space.
      x: points.
      y: points of the same dimension.
      weight: factor of the space components of ``y``, one number.

    Returns:
      Points, float32 at least.

    Raises:
      ValueError: for points of different dimensions, and for more than one weight.

    References:
      Bdeir, Schwethelm and Landwehr, 2024, for the weight 1.
    """
    check_space(space)
    check_shape("weight", jnp.asarray(weight), ())
    x, y = space.to_lorentz(x)[..., 1:], space.to_lorentz(y)[..., 1:]
    same_length(x, y)
    return _from_space(space, x + jnp.asarray(weight, y.dtype) * y)


def embed(
    space: Space, table: Float[Array, "entries n"], index: Int[Array, "*batch"]
) -> Float[Array, "*batch n"]:
    """Return the rows of a table of points at the given indices, projected onto the manifold.

    Args:
      space: the space.
      table: points.
      index: row numbers.

    Returns:
      One point for each index.

    Raises:
      ValueError: for a table of another shape, and for a table without entries.
    """
    if jnp.ndim(table) != 2 or not len(table):
        raise ValueError(
            "table must have shape [entries, n] with at least one entry, got the shape"
            f" {jnp.shape(table)}"
        )
    return space.project(jnp.take(table, index, axis=0))


def concatenate(space: Space, points: Sequence[Float[Array, "..."]]) -> Float[Array, "..."]:
    """Concatenate points to points of a larger space.

    The results in the two models are not isometric: `lorentz.concatenate` concatenates space
    components, `poincare.concatenate` rescaled tangent vectors at the origin.

    Args:
      space: the space.
      points: points with the same batch axes, of any dimensions.

    Returns:
      Points whose dimension is the sum of the dimensions.
    """
    check_space(space)
    return space.functions.concatenate(points, space.c)


def _from_space(space: Space, s: Float[Array, "*batch n"]) -> Float[Array, "*batch d"]:
    return space.from_lorentz(lorentz.from_space(s, space.c))


def check_space(space: Any) -> None:
    """Raise TypeError for a space other than `Lorentz` and `Poincare`, in which layers compute."""
    if not isinstance(space, Lorentz | Poincare):
        raise TypeError(f"space must be a Lorentz or a Poincare, got {space!r}")


def _dimension(space: Space, x: Array) -> int:
    check_space(space)
    return x.shape[-1] - isinstance(space, Lorentz)


class Curvature(nn.Module):
    """A learned curvature c between ``low`` and ``high``; see `manifolds.bounded_curvature`.

    A parent module calls it once and passes `Lorentz(c)` or `Poincare(c)` to its layers.

    Attributes:
      initial: the curvature before training, between the bounds.
      low: lower bound, positive.
      high: upper bound.
    """

    initial: float = 1.0
    low: float = 0.1
    high: float = 10.0

    @nn.compact
    def __call__(self) -> Float[Array, ""]:
        start = curvature_parameter(self.initial, self.low, self.high)
        parameter = self.param("parameter", nn.initializers.constant(start), ())
        return bounded_curvature(parameter, self.low, self.high)


class _Hyperplanes(nn.Module):
    """The normals and offsets of hyperplanes in a space of dimension n."""

    count: int

    @nn.compact
    def __call__(self, n: int) -> tuple[Array, Array]:
        initialiser = nn.initializers.lecun_normal(in_axis=-1, out_axis=-2)
        normals = self.param("normals", initialiser, (self.count, n))
        return normals, self.param("offsets", nn.initializers.zeros, (self.count,))


class Linear(nn.Module):
    """Linen module of `linear`.

    Attributes:
      features: dimension of the points returned.
      space: the space.
    """

    features: int
    space: Space

    @nn.compact
    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch k"]:
        planes = _Hyperplanes(self.features, name="hyperplanes")(_dimension(self.space, x))
        return linear(self.space, x, *planes)


class MLR(nn.Module):
    """Linen module of `mlr`.

    Attributes:
      classes: number of logits.
      space: the space.
    """

    classes: int
    space: Space

    @nn.compact
    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch classes"]:
        planes = _Hyperplanes(self.classes, name="hyperplanes")(_dimension(self.space, x))
        return mlr(self.space, x, *planes)


class Attention(nn.Module):
    """Multi-head `attention` between `Linear` maps.

    The space components of a point are divided among the heads and concatenated afterwards. Called
    with points that attend, the points to attend to (None: the same points), and a mask that is
    True for real points of the second kind.

    Attributes:
      features: dimension of the points returned, divisible by the number of heads.
      num_heads: number of heads.
      space: the space.
    """

    features: int
    num_heads: int
    space: Space

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch M n"],
        context: Float[Array, "*batch L n"] | None = None,
        mask: Bool[Array, "*batch L"] | None = None,
    ) -> Float[Array, "*batch M k"]:
        check_space(self.space)
        check_heads(self.features, self.num_heads)
        context = x if context is None else context
        hyperboloid, width = Lorentz(self.space.c), self.features // self.num_heads

        def heads(name: str, points: Array) -> Array:
            points = self.space.to_lorentz(points)
            space = Linear(self.features, hyperboloid, name=name)(points)[..., 1:]
            space = space.reshape(*space.shape[:-1], self.num_heads, width)
            return _from_space(hyperboloid, jnp.moveaxis(space, -2, -3))

        log_scale = self.param("log_scale", nn.initializers.zeros, ())
        attended = attention(
            hyperboloid,
            heads("query", x),
            heads("key", context),
            heads("value", context),
            jnp.exp(log_scale) * width**0.5,
            None if mask is None else mask[..., None, :],
        )
        merged = jnp.moveaxis(attended[..., 1:], -3, -2).reshape(*x.shape[:-1], self.features)
        return Linear(self.features, self.space, name="out")(_from_space(self.space, merged))


class LayerNorm(nn.Module):
    """Linen module of `layer_norm`.

    Attributes:
      space: the space.
      epsilon: added to the variance of the components.
    """

    space: Space
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        shape = (_dimension(self.space, x),)
        scale = self.param("scale", nn.initializers.ones, shape)
        return layer_norm(
            self.space, x, scale, self.param("bias", nn.initializers.zeros, shape), self.epsilon
        )


class Embedding(nn.Module):
    """Linen module of `embed`, with a learned table of points.

    Attributes:
      entries: number of points in the table.
      features: dimension of the points.
      space: the space.
      deviation: standard deviation of the initial tangent vectors at the origin.
    """

    entries: int
    features: int
    space: Space
    deviation: float = 0.01

    @nn.compact
    def __call__(self, index: Int[Array, "*batch"]) -> Float[Array, "*batch n"]:
        draw = nn.initializers.normal(self.deviation)

        def init_points(key: jax.Array) -> Array:
            return self.space.exp_map0(draw(key, (self.entries, self.features)))

        return embed(self.space, self.param("embedding", init_points), index)


class Residual(nn.Module):
    """Linen module of `residual`: points plus a layer's output for them, with a learned weight.

    Attributes:
      layer: a module from points to points of the same dimension.
      space: the space.
    """

    layer: nn.Module
    space: Space

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch n"], *args: Any, **kwargs: Any
    ) -> Float[Array, "*batch n"]:
        y = self.layer(x, *args, **kwargs)
        return residual(self.space, x, y, self.param("weight", nn.initializers.ones, ()))


class Concatenate(nn.Module):
    """Linen module of `concatenate`; it has no parameters."""

    space: Space

    def __call__(self, points: Sequence[Float[Array, "..."]]) -> Float[Array, "..."]:
        return concatenate(self.space, points)


def _to_state_dict(space: Any) -> dict[str, Any]:
    fields = dataclasses.fields(space)
    return {f.name: flax.serialization.to_state_dict(getattr(space, f.name)) for f in fields}


def _from_state_dict(space: Any, state: dict[str, Any]) -> Any:
    names = {field.name for field in dataclasses.fields(space)}
    if names != state.keys():
        raise ValueError(
            f"the state of a {type(space).__name__} must have the fields {sorted(names)},"
            f" got {sorted(state)}"
        )
    values = {
        name: flax.serialization.from_state_dict(getattr(space, name), state[name], name=name)
        for name in names
    }
    return dataclasses.replace(space, **values)


# For flax.serialization.to_bytes and from_bytes; orbax and pickle need no registration. The spaces
# are registered here because `ops`, which defines them, does not import Flax.
for _space in (Poincare, Lorentz, Euclidean, Sphere, Product):
    flax.serialization.register_serialization_state(_space, _to_state_dict, _from_state_dict)
