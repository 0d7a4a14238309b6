"""A manifold as optimisers see it: gradients, steps and transport at points of one curvature.

The functions are those of `ops`. Beside them stands an orthonormal frame of each tangent space, the
one that parallel transport brings from the origin, in whose coordinates lengths are Euclidean.
"""

import dataclasses
from typing import Protocol, runtime_checkable

from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import lorentz, poincare
from hlformer_jax.typing import Array

Points = Float[Array, "*#batch coordinates"]
Frame = Float[Array, "*#batch n"]


@runtime_checkable
class Manifold(Protocol):
    """What `riemannian` needs; points and tangent vectors are arrays of coordinates."""

    def project(self, x: Points) -> Points:
        """The point for coordinates that rounding or an update has moved off the manifold."""

    def egrad_to_rgrad(self, x: Points, gradient: Points) -> Points:
        """Riemannian gradient of a function at x, from its gradient in the coordinates."""

    def exp_map(self, x: Points, v: Points) -> Points:
        """The point at the end of the geodesic that starts at x as the tangent vector v."""

    def retract(self, x: Points, v: Points) -> Points:
        """A cheaper map that agrees with `exp_map` to first order in v."""

    def transport(self, x: Points, y: Points, v: Points) -> Points:
        """The tangent vector v at x, transported along the geodesic to y."""

    def gradient_in_frame(self, x: Points, gradient: Points) -> Frame:
        """The Riemannian gradient in the orthonormal frame at x."""

    def from_frame(self, x: Points, u: Frame) -> Points:
        """The tangent vector at x with these coordinates in the frame."""

    def transport_in_frame(self, x: Points, y: Points, u: Frame) -> Frame:
        """Coordinates at y of the vector with coordinates u at x, transported: a rotation."""


@dataclasses.dataclass(frozen=True)
class Poincare:
    """The Poincaré ball of curvature −c.

    Attributes:
      c: curvature, positive; a number or array that broadcasts to the batch of the points.
    """

    c: ArrayLike = 1.0

    def project(self, x: Points) -> Points:
        """Moves points into the ball."""
        return poincare.project(x, self.c)

    def egrad_to_rgrad(self, x: Points, gradient: Points) -> Points:
        """See `poincare.egrad_to_rgrad`."""
        return poincare.egrad_to_rgrad(x, gradient, self.c)

    def exp_map(self, x: Points, v: Points) -> Points:
        """See `poincare.exp_map`."""
        return poincare.exp_map(x, v, self.c)

    def retract(self, x: Points, v: Points) -> Points:
        """See `poincare.retract`."""
        return poincare.retract(x, v, self.c)

    def transport(self, x: Points, y: Points, v: Points) -> Points:
        """See `poincare.parallel_transport`."""
        return poincare.parallel_transport(x, y, v, self.c)

    def gradient_in_frame(self, x: Points, gradient: Points) -> Frame:
        """The gradient over λ_x."""
        return poincare.transport0(x, gradient, self.c) / 2

    def from_frame(self, x: Points, u: Frame) -> Points:
        """The tangent vector u / λ_x."""
        return poincare.transport0(x, u, self.c) / 2

    def transport_in_frame(self, x: Points, y: Points, u: Frame) -> Frame:
        """The gyration by y and −x."""
        return poincare.gyration(y, poincare.antipode(x), u, self.c)


@dataclasses.dataclass(frozen=True)
class Lorentz:
    """The Lorentz model of curvature −c; points have their time component first.

    Attributes:
      c: curvature, positive; a number or array that broadcasts to the batch of the points.
    """

    c: ArrayLike = 1.0

    def project(self, x: Points) -> Points:
        """Replaces the time component, see `lorentz.project`."""
        return lorentz.project(x, self.c)

    def egrad_to_rgrad(self, x: Points, gradient: Points) -> Points:
        """See `lorentz.egrad_to_rgrad`."""
        return lorentz.egrad_to_rgrad(x, gradient, self.c)

    def exp_map(self, x: Points, v: Points) -> Points:
        """See `lorentz.exp_map`."""
        return lorentz.exp_map(x, v, self.c)

    def retract(self, x: Points, v: Points) -> Points:
        """See `lorentz.retract`."""
        return lorentz.retract(x, v, self.c)

    def transport(self, x: Points, y: Points, v: Points) -> Points:
        """See `lorentz.parallel_transport`."""
        return lorentz.parallel_transport(x, y, v, self.c)

    def gradient_in_frame(self, x: Points, gradient: Points) -> Frame:
        """Derivatives along the frame; `lorentz.egrad_to_rgrad` transported to the origin."""
        return lorentz.gradient_in_frame(x, gradient, self.c)

    def from_frame(self, x: Points, u: Frame) -> Points:
        """See `lorentz.transport0`."""
        return lorentz.transport0(x, u, self.c)

    def transport_in_frame(self, x: Points, y: Points, u: Frame) -> Frame:
        """The gyration by the points of the ball that stand for y and −x."""
        p, q = poincare.from_lorentz(x, self.c), poincare.from_lorentz(y, self.c)
        return poincare.gyration(q, poincare.antipode(p), u, self.c)
