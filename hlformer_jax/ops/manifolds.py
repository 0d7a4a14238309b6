"""Spaces as pytrees: hyperbolic space in two models, Euclidean space, spheres, and their products.

A space is a frozen dataclass whose curvature is a leaf. So a space can be an argument of functions
under `jax.jit`, `jax.vmap` and `jax.grad` (which gives the gradient in the curvature), and a
parameter of a model. Hyperbolic spaces have the functions of `lorentz` and `poincare` as methods;
all spaces follow their rules for shapes, dtypes and c. A point of a `Product` is a tuple of points.
`bounded_curvature` keeps a learned curvature in a range.

Methods with "frame" in their names use coordinates of tangent vectors in which lengths and angles
are Euclidean; `optim.riemannian` passes these to an optimiser. They refer to the orthonormal frame
that is parallel transported from the origin. On a sphere no such frame is smooth everywhere, so
there they are the coordinates of the surrounding space.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import lorentz, poincare
from hlformer_jax.ops.arguments import (
    align,
    align_sets,
    as_float,
    as_sets,
    as_vectors,
    broadcast_number,
    check_positive,
    common_batch,
    per_batch,
)
from hlformer_jax.ops.lorentz.maps import transport_in_frame
from hlformer_jax.ops.numerics import (
    asinhc_sqrt,
    cosh_sqrt,
    dot,
    replace_near,
    safe_atan2,
    safe_norm,
    safe_normalize,
    safe_sqrt,
    sinhc_sqrt,
    squares_between,
    unit,
)
from hlformer_jax.pytrees import register_dataclass
from hlformer_jax.typing import Array

Points = Any
"""Coordinates [*batch, d]; for a product, a tuple of points."""
Distances = Float[Array, "*#batch"]


@runtime_checkable
class Manifold(Protocol):
    """Methods of every space; points and tangent vectors are arrays of coordinates, or tuples."""

    def project(self, x: Points) -> Points:
        """Return a point for coordinates that rounding or an update has moved off the manifold."""

    def exp_map0(self, u: Points) -> Points:
        """Return the point that a tangent vector at the origin, of n coordinates, leads to."""

    def log_map0(self, x: Points) -> Points:
        """Return the tangent vector at the origin that leads to x, the inverse of `exp_map0`."""

    def exp_map(self, x: Points, v: Points) -> Points:
        """Return the end of the geodesic that starts at x with the tangent vector v."""

    def log_map(self, x: Points, y: Points) -> Points:
        """Return the tangent vector at x that leads to y, as long as their distance."""

    def distance(self, x: Points, y: Points) -> Distances:
        """Return the geodesic distance; its gradient is 0 where it is not differentiable.

        So the second derivatives of its square are 0 at y = x; those of ``inner(x, v, v)`` with
        ``v = log_map(x, y)``, which is the same number, are right.
        """

    def retract(self, x: Points, v: Points) -> Points:
        """Apply a cheaper map that agrees with `exp_map` to first order in v."""

    def transport(self, x: Points, y: Points, v: Points) -> Points:
        """Transport the tangent vector v at x along the geodesic to y."""

    def egrad_to_rgrad(self, x: Points, gradient: Points) -> Points:
        """Return the Riemannian gradient of a function at x, from its gradient in coordinates."""

    def gradient_in_frame(self, x: Points, gradient: Points) -> Points:
        """Return the Riemannian gradient at x in the frame, from the gradient in coordinates."""

    def from_frame(self, x: Points, u: Points) -> Points:
        """Return the tangent vector at x that has the coordinates u in the frame."""

    def transport_in_frame(self, x: Points, y: Points, u: Points) -> Points:
        """Transport a vector from x to y, with coordinates in the frames at x and y: a rotation."""

    def position_in_frame(self, x: Points) -> Points:
        """Return the vector from the origin to x in the frame at x, as long as their distance."""

    def inner(self, x: Points, v: Points, w: Points) -> Distances:
        """Return the inner product of tangent vectors at x."""

    def norm(self, x: Points, v: Points) -> Distances:
        """Return the length of a tangent vector at x; its gradient is 0 at v = 0."""

    def geodesic(self, t: ArrayLike, x: Points, y: Points) -> Points:
        """Return the point at the fraction t of the way from x to y.

        ``t`` may have more axes than the batch; see `lorentz.geodesic`.
        """

    def pairwise_distance(self, x: Points, y: Points) -> Float[Array, "*#batch M N"]:
        """Return geodesic distances of all pairs of points [*batch, M, d] and [*batch, N, d]."""

    def origin(self, n: Any, dtype: DTypeLike | None = None) -> Points:
        """Return the origin of a space of dimension n, once for each entry of the curvature."""

    def random(self, key: Array, n: Any, shape: tuple[int, ...] = (), scale: float = 1.0) -> Points:
        """Draw points: exp_map0 of normal tangent vectors of standard deviation ``scale``.

        Args:
          key: a random key.
          n: dimension of the space; for a product, one dimension for all factors or a tuple.
          shape: batch axes of the points.
          scale: standard deviation of each coordinate of the tangent vectors, in lengths of the
            space, so that the same key gives the same points in both hyperbolic models.
        """


def _at_curvature(name: str, method: str | None = None) -> Callable[..., Any]:
    """Make a method from the function of `lorentz` or `poincare` of this name."""

    @functools.wraps(getattr(Manifold, method or name))
    def call(self: Any, *points: Points) -> Points:
        return getattr(self.functions, name)(*points, self.c)

    return call


def _normal(
    key: Array, like: Points, n: int, shape: tuple[int, ...], scale: float
) -> Float[Array, "*batch n"]:
    """Draw normal vectors of n coordinates, with axes ``shape`` before the batch of ``like``."""
    size = (*shape, *like.shape[:-1], n)
    return jnp.asarray(scale, like.dtype) * jax.random.normal(key, size, like.dtype)


def _equal(space: Any, other: Any) -> bool:
    """Return whether both spaces are of one kind, with curvatures of one shape and equal values."""
    if type(other) is not type(space):
        return NotImplemented
    c, other_c = space.c, other.c
    if c is other_c:
        return True
    if getattr(c, "shape", ()) != getattr(other_c, "shape", ()):
        return False
    equal = c == other_c
    return bool(equal.all() if hasattr(equal, "all") else equal)


class _Hyperbolic:
    """Methods that call the functions of `lorentz` or `poincare` at the space's curvature."""

    functions: ClassVar[ModuleType]
    _origin_factor: ClassVar[int]
    """Conformal factor at the origin: length of a tangent vector over the norm of coordinates."""
    c: Any

    project = _at_curvature("project")
    exp_map0 = _at_curvature("exp_map0")
    log_map0 = _at_curvature("log_map0")
    exp_map = _at_curvature("exp_map")
    log_map = _at_curvature("log_map")
    distance = _at_curvature("distance")
    retract = _at_curvature("retract")
    transport = _at_curvature("parallel_transport", "transport")
    egrad_to_rgrad = _at_curvature("egrad_to_rgrad")
    inner = _at_curvature("tangent_inner", "inner")
    norm = _at_curvature("tangent_norm", "norm")
    geodesic = _at_curvature("geodesic")
    pairwise_distance = _at_curvature("pairwise_distance")

    @functools.wraps(Manifold.origin)
    def origin(self, n: int, dtype: DTypeLike | None = None) -> Points:
        return self.functions.origin(n, self.c, dtype)

    @functools.wraps(Manifold.random)
    def random(self, key: Array, n: int, shape: tuple[int, ...] = (), scale: float = 1.0) -> Points:
        origin = self.functions.origin(n, self.c)
        u = _normal(key, origin, n, shape, scale)
        return self.functions.exp_map0(u / self._origin_factor, self.c)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Poincare(_Hyperbolic):
    """The Poincaré ball of curvature −c.

    Attributes:
      c: curvature, positive; a number or array that broadcasts to the batch of the points. (Because
        it is a leaf of a pytree, it may also be another object, such as an axis for `jax.vmap`.)
    """

    functions: ClassVar[ModuleType] = poincare
    _origin_factor: ClassVar[int] = 2
    c: Any = 1.0

    __eq__ = _equal

    def to_lorentz(self, x: Points) -> Points:
        """Return the same points in the Lorentz model."""
        return poincare.to_lorentz(x, self.c)

    def from_lorentz(self, x: Points) -> Points:
        """Return the points of the ball for points of the Lorentz model."""
        return poincare.from_lorentz(x, self.c)

    def gradient_in_frame(self, x: Points, gradient: Points) -> Points:
        """Return the gradient divided by the conformal factor λ_x."""
        return poincare.from_frame(x, gradient, self.c)

    def from_frame(self, x: Points, u: Points) -> Points:
        """Return the tangent vector u / λ_x."""
        return poincare.from_frame(x, u, self.c)

    def transport_in_frame(self, x: Points, y: Points, u: Points) -> Points:
        """Apply the gyration by y and −x."""
        return poincare.transport_in_frame(x, y, u, self.c)

    def position_in_frame(self, x: Points) -> Points:
        """Return twice `log_map0`; transport along the ray from the origin does not change it."""
        return 2 * self.log_map0(x)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Lorentz(_Hyperbolic):
    """The Lorentz model of curvature −c; points have their time component first.

    Attributes:
      c: curvature, as in `Poincare`.
    """

    functions: ClassVar[ModuleType] = lorentz
    _origin_factor: ClassVar[int] = 1
    c: Any = 1.0

    __eq__ = _equal

    def to_lorentz(self, x: Points) -> Points:
        """Return the points with corrected time components; see `Poincare.to_lorentz`."""
        return self.project(x)

    from_lorentz = to_lorentz

    def gradient_in_frame(self, x: Points, gradient: Points) -> Points:
        """Return the derivatives along the frame; see `lorentz.gradient_in_frame`."""
        return lorentz.gradient_in_frame(x, gradient, self.c)

    def from_frame(self, x: Points, u: Points) -> Points:
        """Return the tangent vector; see `lorentz.transport0`."""
        return lorentz.transport0(x, u, self.c)

    def transport_in_frame(self, x: Points, y: Points, u: Points) -> Points:
        """Apply a rotation; see `lorentz.maps.transport_in_frame`."""
        return transport_in_frame(x, y, u, self.c)

    position_in_frame = _at_curvature("log_map0")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Euclidean:
    """Euclidean space, a pytree without leaves; any optimiser can update its points."""

    def project(self, x: Points) -> Points:
        """Return the coordinates unchanged."""
        return as_float(x)

    exp_map0 = log_map0 = position_in_frame = project

    def exp_map(self, x: Points, v: Points) -> Points:
        """Return the sum x + v."""
        x, v = common_batch(x, v)
        return x + v

    retract = exp_map

    def log_map(self, x: Points, y: Points) -> Points:
        """Return the difference y − x."""
        return self.exp_map(-x, y)

    def distance(self, x: Points, y: Points) -> Distances:
        """Return the length |y − x|."""
        return safe_norm(self.log_map(x, y))

    def transport(self, x: Points, y: Points, v: Points) -> Points:
        """Return the vector v unchanged."""
        return common_batch(x, y, v)[-1]

    transport_in_frame = transport

    def egrad_to_rgrad(self, x: Points, gradient: Points) -> Points:
        """Return the gradient unchanged."""
        return common_batch(x, gradient)[-1]

    gradient_in_frame = from_frame = egrad_to_rgrad

    def inner(self, x: Points, v: Points, w: Points) -> Distances:
        """Return the product v · w."""
        _, v, w = common_batch(x, v, w)
        return dot(v, w)

    def norm(self, x: Points, v: Points) -> Distances:
        """Return the length |v|."""
        return safe_norm(common_batch(x, v)[1])

    def geodesic(self, t: ArrayLike, x: Points, y: Points) -> Points:
        """Return the point x + t (y − x)."""
        t, v, x = broadcast_number(t, self.log_map(x, y), as_vectors(x))
        return x + t * v

    def pairwise_distance(self, x: Points, y: Points) -> Float[Array, "*#batch M N"]:
        """Return lengths |y_j − x_i|, by one matrix product; for near points from differences."""
        x, y, c = align_sets(as_sets(x), as_sets(y), 1.0)
        squares, is_near = squares_between(x, y)
        by_product = safe_sqrt(jnp.where(is_near, 1, squares))
        return replace_near(by_product, is_near, x, y, c, lambda x, y, _: safe_norm(x - y))

    def origin(self, n: int, dtype: DTypeLike | None = None) -> Points:
        """Return the point 0."""
        return as_float(jnp.zeros(n, float if dtype is None else dtype))

    def random(self, key: Array, n: int, shape: tuple[int, ...] = (), scale: float = 1.0) -> Points:
        """Draw normal vectors; see `Manifold.random`."""
        return _normal(key, self.origin(n), n, shape, scale)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Sphere:
    """The sphere |x| = 1/√c of R^{n+1}, of curvature +c; its origin is [1/√c, 0, …, 0].

    All geodesics from x lead to its antipode −x. There the logarithm is 0, transport returns the
    vector unchanged, and the gradients of both and of the distance are 0. Near the antipode errors
    are about eps divided by the angle to it. All results are finite, and elsewhere, including at
    y = x, errors are as in `lorentz`.

    Attributes:
      c: curvature, as in `Poincare`.
    """

    c: Any = 1.0

    __eq__ = _equal

    def _align(self, *vectors: Points) -> tuple[Array, Any]:
        check_positive("c", self.c)
        return align(self.c, *vectors)

    def project(self, x: Points) -> Points:
        """Return the point x / (√c |x|), or the origin for x = 0."""
        x = as_vectors(x)
        check_positive("c", self.c)
        direction, size = safe_normalize(x)
        origin = jnp.zeros_like(x).at[..., 0].set(1)
        direction = jnp.where((size == 0)[..., None], origin, direction)
        return direction / jnp.sqrt(per_batch(self.c, x))[..., None]

    def exp_map0(self, u: Points) -> Points:
        """Apply `exp_map` at the origin to tangent vectors without their first coordinate, 0."""
        v = _with_zero(as_vectors(u))
        return self.exp_map(self.project(jnp.zeros_like(v)), v)

    def log_map0(self, x: Points) -> Points:
        """Apply `log_map` at the origin; the first coordinate, which is 0, is left out."""
        x = as_vectors(x)
        return self.log_map(self.project(jnp.zeros_like(x)), x)[..., 1:]

    def exp_map(self, x: Points, v: Points) -> Points:
        """Return cos(√c |v|) x + sin(√c |v|) v / (√c |v|)."""
        c, (x, v) = self._align(x, v)
        z = c * dot(v, v)
        # Below 1 use the series of cosh and sinh with alternating signs, for cos and sin.
        small = z < 1
        small_z, angle = jnp.where(small, -z, 0), jnp.sqrt(jnp.where(small, 1, z))
        along = jnp.where(small, cosh_sqrt(small_z), jnp.cos(angle))
        across = jnp.where(small, sinhc_sqrt(small_z), jnp.sin(angle) / angle)
        y = self.project(along[..., None] * x + across[..., None] * v)
        # A point that does not move is returned unchanged, bit for bit.
        still = jnp.where((z == 0)[..., None], x - y, 0)
        return y + jax.lax.stop_gradient(still)

    def log_map(self, x: Points, y: Points) -> Points:
        """Return the part of y orthogonal to x, as long as the distance; smooth at y = x."""
        c, (x, y) = self._align(x, y)
        # Use the shorter vector of x − y and x + y, which is exact.
        difference, total = y - x, x + y
        short, long = c * dot(difference, difference) / 2, c * dot(total, total) / 2
        is_acute = (short <= long)[..., None]
        across = jnp.where(is_acute, difference + short[..., None] * x, total - long[..., None] * x)
        # asin √z / √(z (1 − z)) for the sine √z of half the angle.
        small = short < 0.0625
        z = jnp.where(small, short / 2, 0)
        stretch = asinhc_sqrt(-z) / jnp.sqrt(1 - z)
        logarithm = unit(jnp.where(small[..., None], 1, across)) * self.distance(x, y)[..., None]
        return jnp.where(small[..., None], stretch[..., None] * across, logarithm)

    def distance(self, x: Points, y: Points) -> Distances:
        """Return (2/√c) atan(|x − y| / |x + y|); its gradient is 0 at y = x and at y = −x."""
        c, (x, y) = self._align(x, y)
        return 2 * safe_atan2(safe_norm(x - y), safe_norm(x + y)) / jnp.sqrt(c)

    def retract(self, x: Points, v: Points) -> Points:
        """Return the projection of x + v."""
        x, v = common_batch(x, v)
        return self.project(x + v)

    def transport(self, x: Points, y: Points, v: Points) -> Points:
        """Return v − 2 (s · v) s, with the unit vector s along x + y: a reflection."""
        x, y, v = common_batch(x, y, v)
        between = unit(x + y)
        return v - 2 * dot(between, v)[..., None] * between

    def egrad_to_rgrad(self, x: Points, gradient: Points) -> Points:
        """Return the part of the gradient orthogonal to x."""
        x, gradient = common_batch(x, gradient)
        x = unit(x)
        return gradient - dot(x, gradient)[..., None] * x

    gradient_in_frame = from_frame = egrad_to_rgrad
    transport_in_frame = transport

    def inner(self, x: Points, v: Points, w: Points) -> Distances:
        """Return the product v · w."""
        return Euclidean().inner(x, v, w)

    def norm(self, x: Points, v: Points) -> Distances:
        """Return the length |v|."""
        return Euclidean().norm(x, v)

    def geodesic(self, t: ArrayLike, x: Points, y: Points) -> Points:
        """Return exp_map(x, t log_map(x, y)), which is x if y is the antipode of x."""
        t, v, x = broadcast_number(t, self.log_map(x, y), as_vectors(x))
        return self.exp_map(x, t * v)

    def pairwise_distance(self, x: Points, y: Points) -> Float[Array, "*#batch M N"]:
        """Return distances of all pairs, by one matrix product.

        Pairs of near points or near antipodes are computed one by one. The points must be on the
        sphere, as `project` returns them.
        """
        check_positive("c", self.c)
        x, y, c = align_sets(as_sets(x), as_sets(y), self.c)
        squares, is_near = squares_between(x, y)
        together, opposite = squares_between(x, y, -1)
        is_near = is_near | opposite
        roots = (safe_sqrt(jnp.where(is_near, 1, square)) for square in (squares, together))
        by_product = 2 * jnp.arctan2(*roots) / jnp.sqrt(c)[..., None, None]
        return replace_near(by_product, is_near, x, y, c, lambda x, y, c: Sphere(c).distance(x, y))

    def origin(self, n: int, dtype: DTypeLike | None = None) -> Points:
        """Return the point [1/√c, 0, …, 0] with n + 1 coordinates."""
        check_positive("c", self.c)
        return self.project(lorentz.origin(n, self.c, dtype))

    def random(self, key: Array, n: int, shape: tuple[int, ...] = (), scale: float = 1.0) -> Points:
        """Draw points about the origin; see `Manifold.random`."""
        return self.exp_map0(_normal(key, self.origin(n), n, shape, scale))

    def position_in_frame(self, x: Points) -> Points:
        """Return the coordinates of x, which `from_frame` maps to 0: weight decay does nothing."""
        return as_vectors(x)


def _with_zero(u: Float[Array, "*batch n"]) -> Float[Array, "*batch n1"]:
    return jnp.concatenate([jnp.zeros_like(u[..., :1]), u], axis=-1)


def _of_each(name: str) -> Callable[..., Any]:
    """Make a method that calls the method of this name of each factor on its component."""

    @functools.wraps(getattr(Manifold, name))
    def call(self: Any, *points: Points) -> Points:
        parts = self._components(*points)
        return tuple(getattr(space, name)(*arguments) for space, *arguments in parts)

    return call


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Product:
    """Product of spaces; its points and tangent vectors are tuples with one entry per factor.

    Distances and norms are roots of sums of squares over the factors. All other methods act on each
    factor separately.

    Attributes:
      factors: a tuple of spaces. (As nodes of a pytree they may also be other objects.)
    """

    factors: tuple[Any, ...]
    project = _of_each("project")
    exp_map0 = _of_each("exp_map0")
    log_map0 = _of_each("log_map0")
    exp_map = _of_each("exp_map")
    log_map = _of_each("log_map")
    retract = _of_each("retract")
    transport = _of_each("transport")
    egrad_to_rgrad = _of_each("egrad_to_rgrad")
    gradient_in_frame = _of_each("gradient_in_frame")
    from_frame = _of_each("from_frame")
    transport_in_frame = _of_each("transport_in_frame")
    position_in_frame = _of_each("position_in_frame")

    def geodesic(self, t: ArrayLike, x: Points, y: Points) -> Points:
        """Return the point at the fraction t of the way in each factor."""
        parts = self._components(x, y)
        return tuple(space.geodesic(t, *pair) for space, *pair in parts)

    def inner(self, x: Points, v: Points, w: Points) -> Distances:
        """Return the sum of the inner products in the factors."""
        parts = jnp.broadcast_arrays(*_of_each("inner")(self, x, v, w))
        return jnp.sum(jnp.stack(parts, axis=-1), axis=-1)

    def norm(self, x: Points, v: Points) -> Distances:
        """Return the root of the sum of squared lengths in the factors."""
        return _root_sum_square(_of_each("norm")(self, x, v))

    def pairwise_distance(self, x: Points, y: Points) -> Float[Array, "*#batch M N"]:
        """Return distances of all pairs: roots of sums of squares over the factors."""
        return _root_sum_square(_of_each("pairwise_distance")(self, x, y))

    def origin(self, n: Any, dtype: DTypeLike | None = None) -> Points:
        """Return the origin of each factor; n is one dimension or a tuple with one per factor."""
        pairs = self._components(self._dimensions(n))
        return tuple(space.origin(m, dtype) for space, m in pairs)

    def random(self, key: Array, n: Any, shape: tuple[int, ...] = (), scale: float = 1.0) -> Points:
        """Draw points of each factor independently; see `Manifold.random`."""
        keys = jax.random.split(key, len(self.factors))
        parts = self._components(keys, self._dimensions(n))
        return tuple(space.random(k, m, shape, scale) for space, k, m in parts)

    def _dimensions(self, n: Any) -> Any:
        return n if isinstance(n, tuple) else (n,) * len(self.factors)

    def _components(self, *points: Points) -> Iterator[tuple[Any, ...]]:
        """Return each factor with its components; ValueError for too few or too many of them."""
        count = len(self.factors)
        for point in points:
            if len(point) != count:
                raise ValueError(
                    f"expected a tuple of {count}, one for each factor of the Product, got"
                    f" {len(point)}"
                )
        return zip(self.factors, *points, strict=True)

    def distance(self, x: Points, y: Points) -> Distances:
        """Return the root of the sum of squared distances in the factors."""
        return _root_sum_square(_of_each("distance")(self, x, y))


def _root_sum_square(parts: Sequence[Distances]) -> Distances:
    return safe_norm(jnp.stack(jnp.broadcast_arrays(*parts), axis=-1))


def bounded_curvature(
    parameter: ArrayLike, low: float = 0.1, high: float = 10.0
) -> Float[Array, "..."]:
    """Map any real parameter to a curvature c between ``low`` and ``high``.

    log c = log low + (log high − log low) sigmoid(parameter). The parameter 0 gives the geometric
    mean of the bounds, and an optimiser that trains the parameter never leaves the range.

    Args:
      parameter: a number or an array of any shape.
      low: lower bound, positive.
      high: upper bound, above ``low``.

    Returns:
      The curvature, of the parameter's shape, in at least float32.

    Raises:
      ValueError: unless 0 < low < high < inf.
    """
    _check_range(low, high)
    share = jax.nn.sigmoid(as_float(parameter))
    c = low * jnp.exp(math.log(high / low) * share)
    return jnp.clip(c, low, high)  # rounding might exceed the bounds


def curvature_parameter(c: ArrayLike, low: float = 0.1, high: float = 10.0) -> Float[Array, "..."]:
    """Return the parameter for which `bounded_curvature` gives c, as an initial value.

    Args:
      c: a curvature between the bounds, exclusive; a number or an array of any shape.
      low: lower bound, positive.
      high: upper bound, above ``low``.

    Returns:
      The parameter, of the shape of ``c``.

    Raises:
      ValueError: unless 0 < low < high < inf, and for a known curvature outside the bounds.
    """
    _check_range(low, high)
    check_positive(f"c - {low}", as_float(c) - low)
    check_positive(f"{high} - c", high - as_float(c))
    c = as_float(c)
    return jnp.log(jnp.log(c / low) / jnp.log(high / c))


def _check_range(low: float, high: float) -> None:
    if not 0 < low < high < math.inf:
        raise ValueError(
            f"curvature bounds must satisfy 0 < low < high, got low = {low} and high = {high}"
        )
