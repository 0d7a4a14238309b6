"""Hyperbolic spaces as pytrees, and optimisers of parameters that are points of them.

A space is a frozen dataclass whose curvature is a leaf: an argument of functions under `jax.jit`,
`jax.vmap` and `jax.grad`, which gives the gradient in the curvature, and a parameter of a model.
Its functions are those of `lorentz` and `poincare`. Beside them stands an orthonormal frame of each
tangent space, the one that parallel transport brings from the origin, in whose coordinates lengths
are Euclidean.

Updating coordinates leaves the manifold, and near the rim of the ball, or far out on the
hyperboloid, equal steps in them are unequal ones in the space. `riemannian` gives an optimiser
Riemannian gradients in the frame of each point; its update, in the same frame, is followed along a
geodesic; and the vectors that it remembers are transported to where the point has gone.

References:
  Bonnabel, Stochastic gradient descent on Riemannian manifolds, 2013. Bécigneul and Ganea,
  Riemannian adaptive optimization methods, ICLR 2019.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey, tree_flatten_with_path
from jaxtyping import Float

from hlformer_jax.errors import UserError
from hlformer_jax.ops import lorentz, poincare
from hlformer_jax.typing import Array

Points = Float[Array, "*#batch coordinates"]
Frame = Float[Array, "*#batch n"]
Params = Any
KeyPath = tuple[Any, ...]

VECTORS = frozenset(
    ("mu", "trace", "ema", "acc_grads", "grad_acc", "previous_gradient", "prev_updates")
) | {
    *("ScaleByAdanState.m", "ScaleByAdanState.v", "ScaleByAdanState.g", "ScaleBySM3State.nu"),
    *("ScaleByAdemamixState.m1", "ScaleByAdemamixState.m2", "ScaleBySimplifiedAdEMAMixState.m"),
}
"""Fields of optax's states that hold tangent vectors: first moments, momentum, gradients."""

MAGNITUDES = frozenset(
    ("nu", "nu_max", "sum_of_squares", "e_g", "e_x", "step_sizes", "v_row", "v_col", "hyperparams")
) | {
    *("FactoredState.v", "ScaleByAdanState.n", "ScaleBySM3State.mu", "MuonState.ns_coeffs"),
    "ScaleBySimplifiedAdEMAMixState.n",
}
"""Fields of optax's states that stay as they are: second moments, step sizes, hyperparameters."""

READ_POINTS = frozenset(
    ("LookaheadState", "SAMState")
    + ("ScaleByBacktrackingLinesearchState", "ScaleByZoomLinesearchState")
)
"""States of optax's wrappers that compute with the coordinates of the parameters."""


class ManifoldError(UserError, ValueError):
    """A parameter that cannot be a point, or an optimiser that cannot be made Riemannian."""


@runtime_checkable
class Manifold(Protocol):
    """What `riemannian` needs; points and tangent vectors are arrays of coordinates."""

    def project(self, x: Points) -> Points:
        """The point for coordinates that rounding or an update has moved off the manifold."""

    def exp_map(self, x: Points, v: Points) -> Points:
        """The point at the end of the geodesic that starts at x as the tangent vector v."""

    def retract(self, x: Points, v: Points) -> Points:
        """A cheaper map that agrees with `exp_map` to first order in v."""

    def transport(self, x: Points, y: Points, v: Points) -> Points:
        """The tangent vector v at x, transported along the geodesic to y."""

    def egrad_to_rgrad(self, x: Points, gradient: Points) -> Points:
        """Riemannian gradient of a function at x, from its gradient in the coordinates."""

    def gradient_in_frame(self, x: Points, gradient: Points) -> Frame:
        """The Riemannian gradient in the orthonormal frame at x."""

    def from_frame(self, x: Points, u: Frame) -> Points:
        """The tangent vector at x with these coordinates in the frame."""

    def transport_in_frame(self, x: Points, y: Points, u: Frame) -> Frame:
        """Coordinates at y of the vector with coordinates u at x, transported: a rotation."""


class _Hyperbolic:
    """The functions of `lorentz` or `poincare` at one curvature, by their names there."""

    functions: ClassVar[ModuleType]
    c: Any

    def project(self, x: Points) -> Points:
        return self.functions.project(x, self.c)

    def exp_map0(self, u: Frame) -> Points:
        return self.functions.exp_map0(u, self.c)

    def log_map0(self, x: Points) -> Frame:
        return self.functions.log_map0(x, self.c)

    def exp_map(self, x: Points, v: Points) -> Points:
        return self.functions.exp_map(x, v, self.c)

    def log_map(self, x: Points, y: Points) -> Points:
        return self.functions.log_map(x, y, self.c)

    def distance(self, x: Points, y: Points) -> Float[Array, "*#batch"]:
        return self.functions.distance(x, y, self.c)

    def retract(self, x: Points, v: Points) -> Points:
        return self.functions.retract(x, v, self.c)

    def transport(self, x: Points, y: Points, v: Points) -> Points:
        return self.functions.parallel_transport(x, y, v, self.c)

    def egrad_to_rgrad(self, x: Points, gradient: Points) -> Points:
        return self.functions.egrad_to_rgrad(x, gradient, self.c)


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

    def gradient_in_frame(self, x: Points, gradient: Points) -> Frame:
        """The gradient over λ_x."""
        return poincare.transport0(x, gradient, self.c) / 2

    def from_frame(self, x: Points, u: Frame) -> Points:
        """The tangent vector u / λ_x."""
        return poincare.transport0(x, u, self.c) / 2

    def transport_in_frame(self, x: Points, y: Points, u: Frame) -> Frame:
        """The gyration by y and −x."""
        return poincare.gyration(y, poincare.antipode(x), u, self.c)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lorentz(_Hyperbolic):
    """The Lorentz model of curvature −c; points have their time component first.

    Attributes:
      c: curvature, as in `Poincare`.
    """

    functions: ClassVar[ModuleType] = lorentz
    c: Any = 1.0

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


def riemannian(
    optimizer: optax.GradientTransformation | optax.MultiSteps,
    manifold: Manifold,
    mask: Any | Callable[[Params], Any] | None = None,
    vectors: Collection[str] = (),
    magnitudes: Collection[str] = (),
    retract: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """An optimiser of points: Riemannian gradients, steps along geodesics, transported moments.

    What it returns are differences of coordinates, so that `optax.apply_updates` gives the points.
    Weight decay and what else reads parameters sees zeros for points: it has no meaning for them.

    Moments are looked for wherever optax's wrappers keep them. A field of the state that is not
    known to be a vector or a magnitude is refused, and so are wrappers that compute with the
    coordinates of points (lookahead, SAM, line searches, schedule-free optimisers).

    Args:
      optimizer: an optax optimiser, learning rate included, in any of its wrappers. For points its
        arithmetic is that of vectors of the frame; `scale_by_length_adam` is the Adam that no
        choice of frame changes.
      manifold: the space, `Poincare(c)` or `Lorentz(c)`.
      mask: which parameters are points, a tree of True and False (or its prefix) or a function of
        the parameters that gives it, as in `optax.masked`. The others are optimised as ever. None:
        all are points.
      vectors: fields of the optimiser's own states that hold tangent vectors, to be transported,
        beside `VECTORS`: "field" or "State.field".
      magnitudes: fields that stay as they are, beside `MAGNITUDES`.
      retract: whether steps are taken by the manifold's retraction, not along geodesics.

    Returns:
      The transformation; its ``update`` needs the parameters.

    Raises:
      ManifoldError: in ``init``, for an optimiser whose state cannot be transported; in ``update``,
        without parameters.
    """
    optimizer = optax.with_extra_args_support(optimizer)
    step = manifold.retract if retract else manifold.exp_map
    known = dict.fromkeys(VECTORS, True) | dict.fromkeys(MAGNITUDES, False)
    known |= dict.fromkeys(vectors, True) | dict.fromkeys(magnitudes, False)

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

    def places(state: optax.OptState, chosen: Any, seen: Params) -> list[KeyPath | None]:
        is_point = jax.tree.leaves(chosen)
        shapes = {
            path: x.shape if point else None
            for point, (path, x) in zip(is_point, tree_flatten_with_path(seen)[0], strict=True)
        }
        return _points_of_vectors(state, shapes, known)

    def init(params: Params) -> optax.OptState:
        chosen = points(params)
        seen = frames(chosen, params, zeros, params)
        state = optimizer.init(seen)
        places(state, chosen, seen)
        return state

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
        steps, state = optimizer.update(scaled, state, seen, **extra)
        moved = frames(
            chosen, params, lambda x, u: step(x, manifold.from_frame(x, u)).astype(x.dtype), steps
        )
        start, end = (dict(tree_flatten_with_path(tree)[0]) for tree in (params, moved))
        leaves, structure = jax.tree.flatten(state)
        transported = [
            u if at is None else manifold.transport_in_frame(start[at], end[at], u).astype(u.dtype)
            for u, at in zip(leaves, places(state, chosen, seen), strict=True)
        ]
        state = jax.tree.unflatten(structure, transported)
        return frames(chosen, params, lambda x, y: y - x, moved), state

    return optax.GradientTransformationExtraArgs(init, update)


def _points_of_vectors(
    state: optax.OptState,
    params: Mapping[KeyPath, tuple[int, ...] | None],
    known: Mapping[str, bool],
) -> list[KeyPath | None]:
    """For each leaf of a state the point at which it is a tangent vector, or None if it is none.

    Args:
      state: state of an optimiser.
      params: paths of the parameters, with the shapes of their frames; None of what is no point.
      known: of fields whether they hold tangent vectors.
    """
    at: list[KeyPath | None] = []
    for path, leaf in tree_flatten_with_path(state)[0]:
        named = max((i for i, key in enumerate(path) if isinstance(key, GetAttrKey)), default=-1)
        # A parameter's path follows the last field, and may lead to a list of a moment's parts.
        ends = [
            (stop - start, start)
            for start in range(len(path) + 1)
            for stop in range(max(start, named + 1), len(path) + 1)
            if path[start:stop] in params
        ]
        size, start = max(ends, default=(0, len(path)))
        param = path[start : start + size]
        field = _field(state, path[:start])
        at.append(None)
        numbers = jnp.ndim(leaf) > 0 and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        if not numbers or (ends and params[param] is None):
            continue
        vector = known.get(field, known.get(field.rpartition(".")[-1]))
        if vector is None or (vector and (not ends or jnp.shape(leaf) != params[param])):
            raise ManifoldError(
                f"riemannian: {field or 'an unnamed part'} of the optimiser's state, of the shape"
                f" {jnp.shape(leaf)}, is not known to be one tangent vector for each point, which"
                " would be transported: name the field in `vectors` or `magnitudes`"
            )
        if vector:
            at[-1] = param
    return at


def _field(state: Any, path: KeyPath) -> str:
    """The innermost named field of a path, "State.field"; refuses states that read points."""
    field = ""
    for key in path:
        if isinstance(key, GetAttrKey):
            owner = type(state).__name__
            if owner in READ_POINTS:
                raise ManifoldError(f"riemannian: {owner} computes with the coordinates of points")
            field, state = f"{owner}.{key.name}", getattr(state, key.name)
        elif isinstance(key, DictKey):
            state = state[key.key]
        elif isinstance(key, SequenceKey):
            state = state[key.idx]
        else:  # of a node that does not name its parts
            break
    return field


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
