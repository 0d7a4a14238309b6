"""The algebra of the Poincaré ball: Möbius addition, products, gyration; `poincare` is its front.

Textbook formulas subtract squares that are nearly equal near the rim of the ball. With

    γ_p = 1 − c |p|²  (`gap`),    D = p + q,    den = 1 + 2 c p · q + c² |p|² |q|²

they are sums of positive terms, or of terms not larger than a few times the result:

    den = c |D|² + γ_p γ_q,    1 + c p · q = (γ_p + γ_q + c |D|²) / 2,
    p ⊕ q = (γ_p D + c |D|² p) / den,    1 − c |p ⊕ q|² = γ_p γ_q / den.

D is exact where q is near −p, so (−p) ⊕ q is as exact as the difference of near points. What is
left is the error of γ itself, some eps / γ in relative terms: that of rounding p.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops.hyperbolic_functions import artanhc_sqrt, tanhc_sqrt
from hlformer_jax.ops.numerics import (
    as_float,
    common_batch,
    dot,
    limit_norm,
    max_hyperbolic_norm,
    per_batch,
    same_length,
)
from hlformer_jax.typing import Array

Ball = Float[Array, "*#batch n"]
Scalar = Float[Array, "*#batch"]


def project(p: Ball, c: ArrayLike = 1.0, max_radius: ArrayLike | None = None) -> Ball:
    """Moves what lies outside √c |p| = max_radius radially onto that sphere.

    Args:
      p: vectors, anywhere.
      c: curvature, positive.
      max_radius: largest √c |p|, below 1; a number or array that broadcasts to ``*batch``. None:
        1 − 4 eps.

    Returns:
      Points of the ball. By default √c times their distance from the origin is at most
      log(1 / (2 eps)) (15.2 in float32, 35.4 in float64) where their coordinates are exact, and
      less than 16.0 and 36.1 as they are rounded. The gradient of a point that was moved is
      tangential.
    """
    p = as_float(p)
    if max_radius is None:
        max_radius = 1 - 4 * float(jnp.finfo(p.dtype).eps)
    radius = per_batch(max_radius, p, "max_radius")
    return limit_norm(p, radius / jnp.sqrt(per_batch(c, p)))


def align(c: ArrayLike, *vectors: Ball) -> tuple[Scalar, Sequence[Ball]]:
    """The curvature and vectors with the same batch axes, in the dtype to compute in.

    Raises:
      ValueError: for vectors of different lengths, which arithmetic would broadcast; for batch axes
        that do not broadcast; for a curvature that has others.
    """
    floats = common_batch(*vectors)
    return per_batch(c, floats[0]), floats


def inside(p: Ball, c: Scalar) -> Ball:
    """Points of the ball, moved to √c |p| = 1 − 2 eps where they are farther out.

    What `project` returns stays as it is: it may be rounded outwards, but not by so much.
    """
    return project(p, c, 1 - 2 * float(jnp.finfo(p.dtype).eps))


def square(p: Ball, c: Scalar) -> Scalar:
    """The value of c |p|², for points `inside` below 1 even if the sum is rounded upwards."""
    z = c * dot(p, p)
    most = 1 - 2 * float(jnp.finfo(p.dtype).eps)
    return z - jax.lax.stop_gradient(jnp.maximum(z - most, 0))


def gap(p: Ball, c: Scalar) -> Scalar:
    """The value of 1 − c |p|² of points `inside`, positive: 2 / λ for the conformal factor λ."""
    return 1 - square(p, c)


def exp_map0(v: Ball, c: ArrayLike = 1.0) -> Ball:
    """Exponential map at the origin.

    The conformal factor there is 2: the point is at twice the distance |v| from the origin, and
    `exp_map0(v, c)` is `from_lorentz(lorentz.exp_map0(2 v, c), c)`.

    Args:
      v: tangent vectors at the origin.
      c: curvature, positive.

    Returns:
      Points tanh(√c |v|) v / (√c |v|), moved inside by `project`.

    References:
      HOVER, eq. 2. Ganea, Bécigneul and Hofmann, Hyperbolic neural networks, NeurIPS 2018.
    """
    v = as_float(v)
    curvature = per_batch(c, v)
    v = limit_norm(v, max_hyperbolic_norm(v.dtype) / jnp.sqrt(curvature))
    return project(v * tanhc_sqrt(curvature * dot(v, v))[..., None], curvature)


def log_map0(p: Ball, c: ArrayLike = 1.0) -> Ball:
    """Logarithmic map at the origin, the inverse of `exp_map0`.

    Args:
      p: points.
      c: curvature, positive.

    Returns:
      Tangent vectors artanh(√c |p|) p / (√c |p|) at the origin, half as long as the distance.

    References:
      Ganea, Bécigneul and Hofmann, 2018.
    """
    p = as_float(p)
    curvature = per_batch(c, p)
    p = inside(p, curvature)
    return p * artanhc_sqrt(square(p, curvature))[..., None]


def mobius_add(p: Ball, q: Ball, c: ArrayLike = 1.0) -> Ball:
    """Möbius addition p ⊕ q, the translation by p along geodesics; it does not commute.

    Args:
      p: points.
      q: points.
      c: curvature, positive.

    Returns:
      ((1 + 2c p·q + c|q|²) p + (1 − c|p|²) q) / (1 + 2c p·q + c²|p|²|q|²), moved inside by
      `project`.

    References:
      Ungar, A gyrovector space approach to hyperbolic geometry, 2009. Ganea, Bécigneul and Hofmann,
      2018.
    """
    curvature, (p, q) = align(c, p, q)
    p, q = inside(p, curvature), inside(q, curvature)
    total, gap_p = p + q, gap(p, curvature)
    total2 = curvature * dot(total, total)
    above = gap_p[..., None] * total + total2[..., None] * p
    return project(above / (total2 + gap_p * gap(q, curvature))[..., None], curvature)


def mobius_scalar_mul(r: ArrayLike, p: Ball, c: ArrayLike = 1.0) -> Ball:
    """Möbius product r ⊗ p with a number: the point at r times the distance from the origin.

    Args:
      r: factors; a number or array that broadcasts to ``*batch``.
      p: points.
      c: curvature, positive.

    Returns:
      Points exp_map0(r log_map0(p)).

    References:
      Ganea, Bécigneul and Hofmann, 2018.
    """
    p = as_float(p)
    return exp_map0(per_batch(r, p, "r")[..., None] * log_map0(p, c), c)


def mobius_matvec(
    matrix: Float[Array, "m n"], p: Float[Array, "*#batch n"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch m"]:
    """Möbius product with a matrix: the linear map of the tangent space at the origin.

    Args:
      matrix: the matrix, the same for all points.
      p: points.
      c: curvature, positive; the same before and after.

    Returns:
      Points exp_map0(matrix log_map0(p)) of dimension m.

    References:
      Ganea, Bécigneul and Hofmann, 2018.
    """
    matrix, p = as_float(matrix), as_float(p)
    same_length(matrix, p)
    return exp_map0(jnp.matmul(log_map0(p, c), matrix.T, precision=jax.lax.Precision.HIGHEST), c)


def gyration(p: Ball, q: Ball, v: Ball, c: ArrayLike = 1.0) -> Ball:
    """Gyration gyr[p, q] v: the rotation by which Möbius addition fails to be associative.

    With W v = (q · v) p − (p · v) q and α = 1 + c p · q it is v + 2 c (α W v + c W² v) / den.

    Args:
      p: points.
      q: points.
      v: vectors of any length.
      c: curvature, positive.

    Returns:
      ⊖(p ⊕ q) ⊕ (p ⊕ (q ⊕ v)), which is linear in v and keeps its length.

    References:
      Ungar, 2009.
    """
    curvature, (p, q, v) = align(c, p, q, v)
    p, q = inside(p, curvature), inside(q, curvature)
    return rotate(p, q, v, curvature)


def rotate(p: Ball, q: Ball, v: Ball, c: Scalar) -> Ball:
    """`gyration` by points `inside`, all of the same batch axes."""
    total, gap_p, gap_q = p + q, gap(p, c), gap(q, c)
    total2 = c * dot(total, total)
    # Of p and p + q: their wedge product is that of p and q.
    turn = lambda w: p * dot(total, w)[..., None] - total * dot(p, w)[..., None]
    once = turn(v)
    alpha = (gap_p + gap_q + total2) / 2
    way = alpha[..., None] * once + c[..., None] * turn(once)
    return v + (2 * c / (total2 + gap_p * gap_q))[..., None] * way
