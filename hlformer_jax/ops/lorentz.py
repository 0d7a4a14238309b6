"""The Lorentz model of hyperbolic space: points, distances, maps, transport, centroid.

Convention: the curvature is −c with c > 0. A point is x = [x_time, x_space] in R^{n+1}, time first,

    ⟨x, y⟩ = −x_time y_time + x_space · y_space,    ⟨x, x⟩ = −1/c,    x_time = √(1/c + |x_space|²),

and a tangent vector v at x has ⟨x, v⟩ = 0. So either is determined by its space components, and
far from the origin its time component has lost to rounding what tells near points apart. Every
function here but `inner`, `pairwise_inner` and `centroid` with ``exact=False`` therefore reads the
space components of points only, and of tangent vectors too: they must lie on the hyperboloid and in
the tangent space, and gradients reach the space components alone (that of a time component is 0).
An optimiser that updates whole points leaves their time components behind, which those functions
and Lorentz attention use and the others do not see: optimise tangent vectors or space components,
or apply `project` after each update. `time_error` measures what has become of them.

Shapes: all functions take any number of leading axes, ``*batch``, the same number in all arguments,
in which axes of length 1 broadcast. ``c`` is a number or an array that broadcasts to ``*batch``: it
has no more axes than that, is aligned with the last of them, never with the coordinates, and does
not lengthen any. For points [N, n+1] it is [], [1] or [N]; [N, 1] is an error. It is the same rule
in `cones` and `poincare`.

Points are arrays, not lists. Arrays narrower than float32 are computed, and returned, in float32;
so are integers, those of 64 bits (JAX's x64 mode) in float64; complex numbers are refused.

Relative errors, in the norm of a result that is a vector, are below 1e-12 in float64 and 2e-5 in
float32 for √c · norm up to 25, unless a docstring says otherwise. Values and gradients are finite
for points as far out as the exponential maps go, √c times the distance from the origin 31.9 in
float32 and 72.1 in float64, and, in float32, for c from 1e-22 to 1e18, where they can be
represented (the gradient in c of a squared distance m is of the size of m / c). Distances below
1e-19 (float32; 1e-154 in float64) times the smaller of 1 and the largest coordinate of the two
points come out as 0.

References:
  HLFormer, section 3.1, eqs. 1-6. Law, Liao, Snell and Zemel, Lorentzian distance learning for
  hyperbolic representations, ICML 2019, for the centroid.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import geodesic as paths
from hlformer_jax.ops import hyperboloid
from hlformer_jax.ops.centroid import centroid as centroid
from hlformer_jax.ops.hyperbolic_functions import asinhc_sqrt, sinhc_sqrt
from hlformer_jax.ops.hyperboloid import Scalar, Space
from hlformer_jax.ops.lorentz_isometries import boost as boost
from hlformer_jax.ops.lorentz_isometries import rotate as rotate
from hlformer_jax.ops.lorentz_maps import egrad_to_rgrad as egrad_to_rgrad
from hlformer_jax.ops.lorentz_maps import exp_map as exp_map
from hlformer_jax.ops.lorentz_maps import exp_map0 as exp_map0
from hlformer_jax.ops.lorentz_maps import geodesic as geodesic
from hlformer_jax.ops.lorentz_maps import geodesic_unit as geodesic_unit
from hlformer_jax.ops.lorentz_maps import gradient_in_frame as gradient_in_frame
from hlformer_jax.ops.lorentz_maps import log_map as log_map
from hlformer_jax.ops.lorentz_maps import log_map0 as log_map0
from hlformer_jax.ops.lorentz_maps import parallel_transport as parallel_transport
from hlformer_jax.ops.lorentz_maps import rescaled, spaces, with_tangent_time
from hlformer_jax.ops.lorentz_maps import retract as retract
from hlformer_jax.ops.lorentz_maps import transport0 as transport0
from hlformer_jax.ops.numerics import (
    as_float,
    common_batch,
    dot,
    largest_coordinate,
    limit_norm,
    per_batch,
    safe_norm,
    shortest_direction,
)
from hlformer_jax.ops.pairwise import pairwise_distance as pairwise_distance
from hlformer_jax.ops.pairwise import pairwise_inner as pairwise_inner
from hlformer_jax.ops.pairwise import pairwise_squared_distance as pairwise_squared_distance
from hlformer_jax.typing import Array

Point = Float[Array, "*#batch n1"]


def inner(x: Point, y: Point) -> Scalar:
    """Lorentzian inner product −x_time y_time + x_space · y_space, of the given coordinates.

    It cancels: its error is relative to x_time y_time, not to the result.

    Args:
      x: vectors of R^{n+1}.
      y: vectors of R^{n+1}.

    Returns:
      ⟨x, y⟩.

    References:
      HLFormer, eq. 2.
    """
    x, y = as_float(x), as_float(y)
    return dot(x[..., 1:], y[..., 1:]) - x[..., 0] * y[..., 0]


def time(space: Space, c: ArrayLike = 1.0) -> Scalar:
    """Time component √(1/c + |space|²) of the point with these space components.

    Args:
      space: space components.
      c: curvature, positive.

    Returns:
      The time components.

    References:
      HLFormer, eq. 1.
    """
    space = as_float(space)
    return hyperboloid.time(space, per_batch(c, space))


def from_space(space: Space, c: ArrayLike = 1.0) -> Point:
    """The point of the hyperboloid with these space components; see `time`."""
    space = as_float(space)
    return hyperboloid.from_space(space, per_batch(c, space))


def project(x: Point, c: ArrayLike = 1.0) -> Point:
    """Replaces the time component by the one that puts the point on the hyperboloid."""
    return from_space(as_float(x)[..., 1:], c)


def time_error(x: Point, c: ArrayLike = 1.0) -> Scalar:
    """How far a point is off the hyperboloid: |x_time − time(x_space)| / time(x_space).

    Args:
      x: points, time components included.
      c: curvature, positive.

    Returns:
      Relative errors of the time components, a few eps for points of the hyperboloid.
    """
    x = as_float(x)
    want = time(x[..., 1:], c)
    return jnp.abs(x[..., 0] - want) / want


def origin(n: int, c: ArrayLike = 1.0, dtype: DTypeLike | None = None) -> Point:
    """The point [1/√c, 0, …, 0].

    Args:
      n: dimension of the hyperboloid; the point has n + 1 coordinates.
      c: curvature, positive; its shape is the batch.
      dtype: dtype of the result, float32 for what is narrower; None: that of ``c`` as a JAX array
        if it is one, else JAX's default (float64 in x64 mode).

    Returns:
      The origin, once for each entry of ``c``.
    """
    if dtype is None:
        dtype = jnp.asarray(c).dtype if isinstance(c, jax.Array | np.ndarray) else float
    return from_space(as_float(jnp.zeros((*jnp.shape(c), n), dtype)), c)


def tangent_norm(x: Point, v: Point, c: ArrayLike = 1.0) -> Scalar:
    """Length √⟨v, v⟩ of a tangent vector at x; gradient 0 at v = 0.

    Args:
      x: points.
      v: tangent vectors at ``x``.
      c: curvature, positive.

    Returns:
      The norms.
    """
    x, v = spaces(x, v)
    return hyperboloid.tangent_norm(x, v, per_batch(c, x))


def project_tangent(x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Projects a vector of R^{n+1} onto the tangent space at x: v + c ⟨x, v⟩ x.

    Its error is relative to c x_time² |v|, not to the result: the two may cancel, and then the
    rounding of v's own coordinates has as large an effect. What is too large to be represented is
    infinite, with its sign.

    Args:
      x: points.
      v: vectors of R^{n+1}.
      c: curvature, positive.

    Returns:
      Tangent vectors at ``x``.

    References:
      HLFormer, eq. 3.
    """
    x, v = common_batch(x, v)
    x = project(x, c)
    # It is linear in v, of which a long one would overflow halfway: infinity less infinity.
    scale = jnp.maximum(largest_coordinate(v), 1)
    v = v / scale
    factor = per_batch(c, x) * inner(x, v)
    return with_tangent_time(x[..., 1:], v[..., 1:] + factor[..., None] * x[..., 1:], c) * scale


def direction(x: Point, y: Point, c: ArrayLike = 1.0) -> tuple[Scalar, Space]:
    """The way from x to y, split at x into radial and transverse: polar coordinates of a cone.

    y + c ⟨x, y⟩ x is the tangent vector at x that points to y, of length sinh(√c d) / √c. Its
    radial component is along the unit tangent vector that points away from the origin. Errors are
    relative to the length of the whole: either component may vanish where the other does not.

    Args:
      x: points. At the origin, where no direction is radial, the radial component is 0, with
        gradient 0, and all of ``y`` is transverse. Points nearer to it than 1e-18 (float32; 2e-153
        in float64) count as the origin, for the second derivatives there are beyond the numbers.
      y: points.
      c: curvature, positive.

    Returns:
      The radial component τ_x p − τ_y r, and the transverse one, which is the part of y_space
      orthogonal to x_space. Both are 0 at y = x.
    """
    scale, x, y, difference, c = rescaled(x, y, c)
    negligible = shortest_direction(x.dtype) / scale
    _, _, radial, across = hyperboloid.components(x, y, difference, c, negligible)
    return radial * jnp.squeeze(scale, -1), across * scale


def squared_distance(x: Point, y: Point, c: ArrayLike = 1.0) -> Scalar:
    """Squared Lorentzian distance ⟨x − y, x − y⟩ = −2/c − 2⟨x, y⟩; smooth everywhere.

    Args:
      x: points.
      y: points.
      c: curvature, positive.

    Returns:
      (4/c) sinh²(√c d / 2) for the geodesic distance d.

    References:
      HLFormer, below eq. 15.
    """
    scale, *pair = rescaled(x, y, c)
    return hyperboloid.squared_chord(*pair) * jnp.squeeze(scale, -1) ** 2


def distance(x: Point, y: Point, c: ArrayLike = 1.0) -> Scalar:
    """Geodesic distance.

    Args:
      x: points.
      y: points. At y = x, where the distance has no derivative, the gradient is 0.
      c: curvature, positive.

    Returns:
      arcosh(−c ⟨x, y⟩) / √c.
    """
    x, y = spaces(x, y)
    return paths.distance(x, y, jnp.broadcast_to(per_batch(c, x), x.shape[:-1]))


def distance0(x: Point, c: ArrayLike = 1.0) -> Scalar:
    """Geodesic distance from the origin; gradient 0 there.

    Args:
      x: points.
      c: curvature, positive.

    Returns:
      arsinh(√c |x_space|) / √c.
    """
    space = as_float(x)[..., 1:]
    return safe_norm(space) * asinhc_sqrt(per_batch(c, space) * dot(space, space))


def limit_distance0(x: Point, limit: ArrayLike, c: ArrayLike = 1.0) -> Point:
    """Moves points farther than a distance from the origin radially to that distance.

    Args:
      x: points.
      limit: largest distance from the origin, positive; a number or array that broadcasts to
        ``*batch``.
      c: curvature, positive.

    Returns:
      ``x`` where it is near enough, space components bit for bit; the gradient of a point that was
      moved is tangential.
    """
    space = as_float(x)[..., 1:]
    limit, c = per_batch(limit, space, "limit"), per_batch(c, space)
    return hyperboloid.from_space(limit_norm(space, limit * sinhc_sqrt(c * limit * limit)), c)


def antipode(x: Point, c: ArrayLike = 1.0) -> Point:
    """The point as far from the origin on the other side: the space components are negated."""
    return from_space(-as_float(x)[..., 1:], c)


def concatenate(points: Sequence[Float[Array, "..."]], c: ArrayLike = 1.0) -> Point:
    """The point with the space components of several: a point of a larger space.

    Args:
      points: points of any dimensions, with the same batch axes.
      c: curvature, positive; the same for all.

    Returns:
      Points of the sum of the dimensions.

    References:
      Qu and Zou, Autoencoding hyperbolic representation for adversarial generation, 2022.
    """
    return from_space(jnp.concatenate([as_float(x)[..., 1:] for x in points], axis=-1), c)


def split(x: Point, dims: Sequence[int], c: ArrayLike = 1.0) -> list[Float[Array, "..."]]:
    """Points with consecutive space components each, the inverse of `concatenate`.

    Args:
      x: points.
      dims: dimensions, whose sum is that of ``x``.
      c: curvature, positive.

    Returns:
      Points of those dimensions.

    Raises:
      ValueError: if the dimensions have another sum.
    """
    space = as_float(x)[..., 1:]
    if sum(dims) != space.shape[-1]:
        raise ValueError(f"dimensions {tuple(dims)} of a point of dimension {space.shape[-1]}")
    ends = [sum(dims[: k + 1]) for k in range(len(dims) - 1)]
    return [from_space(part, c) for part in jnp.split(space, ends, axis=-1)]
