"""Spaces as pytrees: hyperbolic space in two models, Euclidean space, spheres, and their products.

A space is a frozen dataclass whose curvature is a leaf: an argument of functions under `jax.jit`,
`jax.vmap` and `jax.grad`, which gives the gradient in the curvature, and a parameter of a model.
Those of hyperbolic space have the functions of `lorentz` and `poincare`, whose rules for shapes,
dtypes and c all the others follow too. A point of a `Product` is a tuple of points.

Beside them stand coordinates of tangent vectors in which lengths and angles are Euclidean, and
which `optim.riemannian` gives to an optimiser: those in the orthonormal frame that parallel
transport brings from the origin, or, on a sphere, where no such frame is smooth everywhere, those
of the space around it.
"""

import dataclasses
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Float

from hlformer_jax.ops import lorentz, poincare
from hlformer_jax.ops.numerics import (
    align,
    as_float,
    asinhc_sqrt,
    common_batch,
    cosh_sqrt,
    dot,
    per_batch,
    safe_atan2,
    safe_norm,
    safe_normalize,
    sinhc_sqrt,
    unit,
)
from hlformer_jax.typing import Array

Points = Any
"""Coordinates [*batch, d]; of a product a tuple of points."""
Distances = Float[Array, "*#batch"]


@runtime_checkable
class Manifold(Protocol):
    """What a space has; points and tangent vectors are arrays of coordinates, or tuples of them."""

    def project(self, x: Points) -> Points:
        """The point for coordinates that rounding or an update has moved off the manifold."""

    def exp_map0(self, u: Points) -> Points:
        """The point that a tangent vector at the origin, of n coordinates, leads to."""

    def log_map0(self, x: Points) -> Points:
        """The inverse of `exp_map0`."""

    def exp_map(self, x: Points, v: Points) -> Points:
        """The point at the end of the geodesic that starts at x as the tangent vector v."""

    def log_map(self, x: Points, y: Points) -> Points:
        """The tangent vector at x that leads to y, as long as their distance."""

    def distance(self, x: Points, y: Points) -> Distances:
        """Geodesic distance; its gradient is 0 where it has none."""

    def retract(self, x: Points, v: Points) -> Points:
        """A cheaper map that agrees with `exp_map` to first order in v."""

    def transport(self, x: Points, y: Points, v: Points) -> Points:
        """The tangent vector v at x, transported along the geodesic to y."""

    def egrad_to_rgrad(self, x: Points, gradient: Points) -> Points:
        """Riemannian gradient of a function at x, from its gradient in the coordinates."""

    def gradient_in_frame(self, x: Points, gradient: Points) -> Points:
        """The Riemannian gradient in the frame at x."""

    def from_frame(self, x: Points, u: Points) -> Points:
        """The tangent vector at x with these coordinates in the frame."""

    def transport_in_frame(self, x: Points, y: Points, u: Points) -> Points:
        """Coordinates at y of the vector with coordinates u at x, transported: a rotation."""

    def position_in_frame(self, x: Points) -> Points:
        """The vector from the origin to x in the frame at x, as long as their distance."""


def _at_curvature(name: str, method: str | None = None) -> Callable[..., Any]:
    """The function of `lorentz` or `poincare` of this name, at the space's curvature."""

    @functools.wraps(getattr(Manifold, method or name))
    def call(self: Any, *points: Points) -> Points:
        return getattr(self.functions, name)(*points, self.c)

    return call


class _Hyperbolic:
    """The functions of `lorentz` or `poincare` at one curvature, by their names there."""

    functions: ClassVar[ModuleType]
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Poincare(_Hyperbolic):
    """The Poincaré ball of curvature −c.

    Attributes:
      c: curvature, positive; a number or array that broadcasts to the batch of the points. (As a
        leaf of a pytree it may stand for anything, such as an axis to `jax.vmap`.)
    """

    functions: ClassVar[ModuleType] = poincare
    c: Any = 1.0

    def to_lorentz(self, x: Points) -> Points:
        """The same points in the Lorentz model."""
        return poincare.to_lorentz(x, self.c)

    def from_lorentz(self, x: Points) -> Points:
        """The inverse of `to_lorentz`."""
        return poincare.from_lorentz(x, self.c)

    def gradient_in_frame(self, x: Points, gradient: Points) -> Points:
        """The gradient over λ_x."""
        return poincare.transport0(x, gradient, self.c) / 2

    def from_frame(self, x: Points, u: Points) -> Points:
        """The tangent vector u / λ_x."""
        return poincare.transport0(x, u, self.c) / 2

    def transport_in_frame(self, x: Points, y: Points, u: Points) -> Points:
        """The gyration by y and −x."""
        return poincare.gyration(y, poincare.antipode(x), u, self.c)

    def position_in_frame(self, x: Points) -> Points:
        """Twice `log_map0`: transport along the ray from the origin leaves it as it is."""
        return 2 * self.log_map0(x)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lorentz(_Hyperbolic):
    """The Lorentz model of curvature −c; points have their time component first.

    Attributes:
      c: curvature, as in `Poincare`.
    """

    functions: ClassVar[ModuleType] = lorentz
    c: Any = 1.0

    def to_lorentz(self, x: Points) -> Points:
        """The points, their time components set; see `Poincare.to_lorentz`."""
        return self.project(x)

    from_lorentz = to_lorentz

    def gradient_in_frame(self, x: Points, gradient: Points) -> Points:
        """Derivatives along the frame; `lorentz.egrad_to_rgrad` transported to the origin."""
        return lorentz.gradient_in_frame(x, gradient, self.c)

    def from_frame(self, x: Points, u: Points) -> Points:
        """See `lorentz.transport0`."""
        return lorentz.transport0(x, u, self.c)

    def transport_in_frame(self, x: Points, y: Points, u: Points) -> Points:
        """The gyration by the points of the ball that stand for y and −x."""
        p, q = poincare.from_lorentz(x, self.c), poincare.from_lorentz(y, self.c)
        return poincare.gyration(q, poincare.antipode(p), u, self.c)

    position_in_frame = _at_curvature("log_map0")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Euclidean:
    """Euclidean space, a pytree without leaves, whose points any optimiser updates."""

    def project(self, x: Points) -> Points:
        """The coordinates themselves."""
        return as_float(x)

    exp_map0 = log_map0 = position_in_frame = project

    def exp_map(self, x: Points, v: Points) -> Points:
        """The sum x + v."""
        x, v = common_batch(x, v)
        return x + v

    retract = exp_map

    def log_map(self, x: Points, y: Points) -> Points:
        """The difference y − x."""
        return self.exp_map(-x, y)

    def distance(self, x: Points, y: Points) -> Distances:
        """The length |y − x|."""
        return safe_norm(self.log_map(x, y))

    def transport(self, x: Points, y: Points, v: Points) -> Points:
        """The vector v."""
        return common_batch(x, y, v)[-1]

    transport_in_frame = transport

    def egrad_to_rgrad(self, x: Points, gradient: Points) -> Points:
        """The gradient."""
        return common_batch(x, gradient)[-1]

    gradient_in_frame = from_frame = egrad_to_rgrad


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sphere:
    """The sphere |x| = 1/√c of R^{n+1}, of curvature +c; its origin is [1/√c, 0, …, 0].

    At the antipode −x of a point, to which all geodesics from x lead, the logarithm is 0, a vector
    is transported as it is, and their gradients and that of the distance are 0; near it errors are
    relative to eps over the angle that is missing. All is finite, and elsewhere, as at y = x,
    errors are those of `lorentz`.

    Attributes:
      c: curvature, as in `Poincare`.
    """

    c: Any = 1.0

    def project(self, x: Points) -> Points:
        """The point x / (√c |x|); the origin for 0."""
        x = as_float(x)
        direction, size = safe_normalize(x)
        origin = jnp.zeros_like(x).at[..., 0].set(1)
        direction = jnp.where((size == 0)[..., None], origin, direction)
        return direction / jnp.sqrt(per_batch(self.c, x))[..., None]

    def exp_map0(self, u: Points) -> Points:
        """`exp_map` at the origin, where the first coordinate of a tangent vector is 0."""
        v = _with_zero(as_float(u))
        return self.exp_map(self.project(jnp.zeros_like(v)), v)

    def log_map0(self, x: Points) -> Points:
        """`log_map` at the origin, without the first coordinate, which is 0."""
        x = as_float(x)
        return self.log_map(self.project(jnp.zeros_like(x)), x)[..., 1:]

    def exp_map(self, x: Points, v: Points) -> Points:
        """cos(√c |v|) x + sin(√c |v|) v / (√c |v|)."""
        c, (x, v) = align(self.c, x, v)
        z = c * dot(v, v)
        # Below 1 the series of cosh and sinh, with alternating signs.
        small = z < 1
        near, angle = jnp.where(small, -z, 0), jnp.sqrt(jnp.where(small, 1, z))
        along = jnp.where(small, cosh_sqrt(near), jnp.cos(angle))
        across = jnp.where(small, sinhc_sqrt(near), jnp.sin(angle) / angle)
        return self.project(along[..., None] * x + across[..., None] * v)

    def log_map(self, x: Points, y: Points) -> Points:
        """The part of y across x, as long as the distance; smooth at y = x."""
        c, (x, y) = align(self.c, x, y)
        # From x − y or x + y, whichever is shorter and so exact.
        difference, total = y - x, x + y
        short, long = c * dot(difference, difference) / 2, c * dot(total, total) / 2
        near = (short <= long)[..., None]
        across = jnp.where(near, difference + short[..., None] * x, total - long[..., None] * x)
        # asin √z / √(z (1 − z)) for the sine √z of half the angle.
        small = short < 0.0625
        z = jnp.where(small, short / 2, 0)
        stretch = asinhc_sqrt(-z) / jnp.sqrt(1 - z)
        far = unit(jnp.where(small[..., None], 1, across)) * self.distance(x, y)[..., None]
        return jnp.where(small[..., None], stretch[..., None] * across, far)

    def distance(self, x: Points, y: Points) -> Distances:
        """(2/√c) atan(|x − y| / |x + y|); its gradient is 0 at y = x and at y = −x."""
        c, (x, y) = align(self.c, x, y)
        return 2 * safe_atan2(safe_norm(x - y), safe_norm(x + y)) / jnp.sqrt(c)

    def retract(self, x: Points, v: Points) -> Points:
        """The projection of x + v."""
        x, v = common_batch(x, v)
        return self.project(x + v)

    def transport(self, x: Points, y: Points, v: Points) -> Points:
        """The vector v − 2 (s · v) s, with the unit vector s along x + y: a reflection."""
        x, y, v = common_batch(x, y, v)
        between = unit(x + y)
        return v - 2 * dot(between, v)[..., None] * between

    def egrad_to_rgrad(self, x: Points, gradient: Points) -> Points:
        """The part of the gradient across x."""
        x, gradient = common_batch(x, gradient)
        x = unit(x)
        return gradient - dot(x, gradient)[..., None] * x

    gradient_in_frame = from_frame = egrad_to_rgrad
    transport_in_frame = transport

    def position_in_frame(self, x: Points) -> Points:
        """The point itself, which `from_frame` maps to 0: on a sphere no point is the middle."""
        return as_float(x)


def _with_zero(u: Float[Array, "*batch n"]) -> Float[Array, "*batch n1"]:
    return jnp.concatenate([jnp.zeros_like(u[..., :1]), u], axis=-1)


def _of_each(name: str) -> Callable[..., Any]:
    """The function of this name of each factor, of its parts of points."""

    @functools.wraps(getattr(Manifold, name))
    def call(self: Any, *points: Points) -> Points:
        parts = zip(self.factors, *points, strict=True)
        return tuple(getattr(space, name)(*each) for space, *each in parts)

    return call


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Product:
    """The product of some spaces: its points and tangent vectors are tuples of theirs.

    Its distance is the root of the sum of their squared distances; all else is done in each.

    Attributes:
      factors: the spaces.
    """

    factors: tuple[Manifold, ...]
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

    def distance(self, x: Points, y: Points) -> Distances:
        """The root of the sum of squared distances."""
        parts = _of_each("distance")(self, x, y)
        return safe_norm(jnp.stack(jnp.broadcast_arrays(*parts), axis=-1))
