"""The space of the embeddings: a Poincaré ball, a hyperboloid, or Euclidean space.

Points have n coordinates: those of the ball; the space components of the hyperboloid, of which the
time component is a function; or any vector. In each the zero vector is the origin, the same
rotations are isometries, and the angle at the origin is that of the coordinates. The ball and the
hyperboloid hold the same points: `lift` of one is that of the other by stereographic projection.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import cones, lorentz, poincare
from hlformer_jax.ops.numerics import (
    along_and_across,
    dot,
    per_batch,
    safe_atan2,
    safe_norm,
    unit,
)
from hlformer_jax.typing import Array

PRECISION = "highest"
"""Of products that are compared: a GPU may round float32 factors to fewer bits."""


@dataclasses.dataclass(frozen=True)
class Space:
    """A space, and what is compared in it.

    Attributes:
      geometry: "poincare", "lorentz" or "euclidean".
      metric: "distance", or, of Euclidean space, "cosine", of which points are unit vectors.
      curvature: c; the curvature is −c. Of no meaning in Euclidean space.
      max_radius: largest √c |x| of a point of the ball; 1 for as far as floating point goes.
    """

    geometry: str
    metric: str = "distance"
    curvature: float = 1.0
    max_radius: float = 1.0

    @property
    def is_hyperbolic(self) -> bool:
        """Whether the space is curved."""
        return self.geometry != "euclidean"

    def lift(
        self, tangent: Float[Array, "*#batch n"], bias: Float[Array, "*#batch n"]
    ) -> Float[Array, "*#batch n"]:
        """The hyperbolic linear layer after its matrix: exp_0(tangent) ⊕ exp_0(bias).

        Args:
          tangent: tangent vectors at the origin, M f.
          bias: tangent vectors at the origin.

        Returns:
          Points; in Euclidean space tangent + bias, of unit length for cosines.

        References:
          HOVER, eq. 2 and section 4.1; Ganea, Bécigneul and Hofmann, 2018, section 3.2.
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
        # x ⊕ exp_0(b) is where the geodesic leads that starts at x as b does at the origin. The
        # exponential map of the ball goes twice as far.
        start = lorentz.exp_map0(2 * tangent, c)
        moved = lorentz.exp_map(start, lorentz.transport0(start, 2 * bias, c), c)
        if self.max_radius != 1:
            ball = poincare.project(poincare.from_lorentz(moved, c), c, self.max_radius)
            moved = poincare.to_lorentz(ball, c)
        return moved[..., 1:]

    def similarities(self, x: Float[Array, "M n"], y: Float[Array, "N n"]) -> Float[Array, "M N"]:
        """Cosines, or distances with the sign changed, of all pairs."""
        c = self.curvature
        if self.geometry == "poincare":
            return -poincare.pairwise_distance(x, y, c)
        if self.geometry == "lorentz":
            return -lorentz.pairwise_distance(lorentz.from_space(x, c), lorentz.from_space(y, c), c)
        if self.metric == "cosine":
            return jnp.matmul(x, y.T, precision=PRECISION)
        return -safe_norm(x[:, None] - y[None])

    def norm(self, x: Float[Array, "*#batch n"], kind: str = "ball") -> Float[Array, "*#batch"]:
        """Norms of points; gradient 0 at the origin.

        Args:
          x: points.
          kind: "ball", the norm of the coordinates in the ball, or "distance", the distance from
            the origin. In Euclidean space both are the norm.
        """
        c = self.curvature
        if not self.is_hyperbolic:
            return safe_norm(x)
        if self.geometry == "lorentz":
            x = poincare.from_lorentz(lorentz.from_space(x, c), c)
        return poincare.distance0(x, c) if kind == "distance" else safe_norm(x)

    def outside_cone(
        self,
        x: Float[Array, "*#batch n"],
        y: Float[Array, "*#batch n"],
        min_radius: ArrayLike,
    ) -> Float[Array, "*#batch"]:
        """How far y lies outside the entailment cone of x, max(0, exterior angle − half aperture).

        Args:
          x: the apexes.
          y: points.
          min_radius: K; a cone whose apex is nearer to the origin is a half-space, about.

        Returns:
          Angles in [0, π]; 0, with gradient 0, inside of the cone, to which its apex belongs, and
          for an apex at the origin, whose cone is all of the space.

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
        """Vectors whose inner products order the candidates of a query as `similarities` does.

        For a hyperbolic distance d they have the product −cosh(√c d) / c; for a Euclidean one
        −d²/2, up to a term of the query alone.
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
        one = jnp.ones((len(queries), 1), queries.dtype)
        half = dot(candidates, candidates)[:, None] / 2
        return jnp.concatenate([queries, one], -1), jnp.concatenate([candidates, -half], -1)


def _outside_flat_cone(x: Array, y: Array, min_radius: ArrayLike) -> Array:
    """`Space.outside_cone` of Euclidean space, the limit of that of the ball near its origin."""
    radius, along, across = along_and_across(x, y - x)
    half_aperture = cones.aperture(radius, per_batch(min_radius, x, "min_radius"))
    return jax.nn.relu(safe_atan2(across, along) - half_aperture)


def angles(
    x: Float[Array, "*#batch n"], direction: Float[Array, " n"], base: str = "unit"
) -> Float[Array, "*#batch"]:
    """Cosines θ of points and the direction of time, at the origin.

    Args:
      x: points.
      direction: the direction j.
      base: "unit" for cosines; "released" for products of j itself and unit vectors.

    Returns:
      The cosines; 0 with gradient 0 where a point is the origin.

    References:
      HOVER, eq. 4.
    """
    toward = direction if base == "released" else unit(direction)
    return jnp.matmul(unit(x), toward, precision=PRECISION)
