"""Optimisers of parameters that are points of a hyperbolic space, made of optax optimisers.

Coordinates are no place for an optimiser: near the rim of the ball, or far out on the hyperboloid,
equal steps in them are unequal ones in the space, and a sum of coordinates leaves the manifold.
Here the optimiser is given Riemannian gradients in an orthonormal frame of each tangent space (see
`manifold`), where lengths are Euclidean; its update, in the same frame, is followed along a
geodesic; and the vectors that it remembers are transported to where the point has gone.

References:
  Bonnabel, Stochastic gradient descent on Riemannian manifolds, 2013. Bécigneul and Ganea,
  Riemannian adaptive optimization methods, ICLR 2019.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hlformer_jax.errors import UserError
from hlformer_jax.manifolds.manifold import Manifold
from hlformer_jax.typing import Array

Params = Any


class ManifoldError(UserError, ValueError):
    """A parameter that cannot be a point."""


def riemannian(
    optimizer: optax.GradientTransformation,
    manifold: Manifold,
    mask: Any | Callable[[Params], Any] | None = None,
    vectors: Collection[str] = ("mu", "trace"),
    retract: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """An optimiser of points: Riemannian gradients, steps along geodesics, transported moments.

    What it returns are differences of coordinates, so that `optax.apply_updates` gives the points.
    Weight decay and what else reads parameters sees zeros for points: it has no meaning for them.

    Args:
      optimizer: any optax optimiser, learning rate included. For points its arithmetic is that of
        vectors of the frame; `scale_by_length_adam` is the Adam that no choice of frame changes.
      manifold: the space, `Poincare(c)` or `Lorentz(c)`.
      mask: which parameters are points, a tree of True and False (or its prefix) or a function of
        the parameters that gives it, as in `optax.masked`. The others are optimised as ever. None:
        all are points.
      vectors: fields of the optimiser's state that hold tangent vectors, to be transported: the
        first moments of Adam, the momentum of SGD. Second moments stay as they are.
      retract: whether steps are taken by the manifold's retraction, not along geodesics.

    Returns:
      The transformation; its ``update`` needs the parameters.

    Raises:
      ManifoldError: in ``update``, without parameters.
    """
    optimizer = optax.with_extra_args_support(optimizer)
    step = manifold.retract if retract else manifold.exp_map

    def points(params: Params) -> Any:
        chosen = True if mask is None else mask(params) if callable(mask) else mask
        return jax.tree.broadcast(chosen, params)

    def frames(chosen: Any, params: Params, of: Callable[..., Array], *more: Params) -> Params:
        """Applies a function of parameter and more to points, leaving the last of others."""
        return jax.tree.map(
            lambda point, x, *rest: of(x, *rest) if point else rest[-1], chosen, params, *more
        )

    def zeros(x: Array, _: Array) -> Array:
        return jnp.zeros_like(manifold.gradient_in_frame(x, x))

    def init(params: Params) -> optax.OptState:
        return optimizer.init(frames(points(params), params, zeros, params))

    def update(
        gradients: Params, state: optax.OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Params, optax.OptState]:
        if params is None:
            raise ManifoldError("riemannian: update(gradients, state, params) needs the params")
        chosen = points(params)
        scaled = frames(
            chosen,
            params,
            lambda x, g: manifold.gradient_in_frame(x, g).astype(x.dtype),
            gradients,
        )
        seen = frames(chosen, params, zeros, params)
        ways, state = optimizer.update(scaled, state, seen, **extra)
        moved = frames(
            chosen, params, lambda x, u: step(x, manifold.from_frame(x, u)).astype(x.dtype), ways
        )

        def transported(x: Array, y: Array, u: Array) -> Array:
            return manifold.transport_in_frame(x, y, u).astype(u.dtype)

        state = _at_fields(
            state, vectors, lambda moment: frames(chosen, params, transported, moved, moment)
        )
        updates = frames(chosen, params, lambda x, y: y - x, moved)
        return updates, state

    return optax.GradientTransformationExtraArgs(init, update)


def _at_fields(state: Any, names: Collection[str], function: Callable[[Any], Any]) -> Any:
    """Applies a function to all fields of these names in the NamedTuples of a state."""
    if isinstance(state, tuple):
        if hasattr(state, "_fields"):
            values = {
                name: function(value) if name in names else _at_fields(value, names, function)
                for name, value in zip(state._fields, state, strict=True)
            }
            return type(state)(**values)
        return tuple(_at_fields(value, names, function) for value in state)
    return state


class LengthAdamState(NamedTuple):
    """Steps taken, first moments, and second moments of the length, one for each vector."""

    steps: jax.Array
    mu: Params
    nu: Params


def scale_by_length_adam(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Adam with one second moment for each vector, that of its length per √n.

    Rotating all gradients of a vector rotates its updates, so that in `riemannian` no choice of
    frame changes them: the adaptive method of Bécigneul and Ganea for a product of manifolds, one
    for each point.

    Args:
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root.

    Returns:
      The transformation; vectors lie along the last axis.
    """

    def init(params: Params) -> LengthAdamState:
        nu = jax.tree.map(lambda x: jnp.zeros_like(x[..., :1]), params)
        return LengthAdamState(jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, params), nu)

    def update(
        gradients: Params, state: LengthAdamState, params: Params | None = None
    ) -> tuple[Params, LengthAdamState]:
        del params
        steps = state.steps + 1
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, gradients)
        mean = lambda g: jnp.mean(jnp.square(g), axis=-1, keepdims=True)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * mean(g), state.nu, gradients)
        first, second = (1 - b ** steps.astype(jnp.float32) for b in (b1, b2))
        updates = jax.tree.map(
            lambda m, v: (m / first.astype(m.dtype)) / (jnp.sqrt(v / second.astype(v.dtype)) + eps),
            mu,
            nu,
        )
        return updates, LengthAdamState(steps, mu, nu)

    return optax.GradientTransformation(init, update)
