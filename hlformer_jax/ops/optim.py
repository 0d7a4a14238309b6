"""Optimisers of parameters that are points of manifolds.

Updating coordinates leaves a manifold, and near the rim of the ball, or far out on the hyperboloid,
equal steps in them are unequal ones in the space. `riemannian` gives an optimiser Riemannian
gradients in the frame of each point (see `manifolds`); its update, in the same frame, is followed
along a geodesic; and the vectors that it remembers are transported to where the point has gone.

References:
  Bonnabel, Stochastic gradient descent on Riemannian manifolds, 2013. Bécigneul and Ganea,
  Riemannian adaptive optimization methods, ICLR 2019.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey, tree_flatten_with_path

from hlformer_jax.errors import UserError
from hlformer_jax.ops.manifolds import Euclidean, Manifold, Product
from hlformer_jax.typing import Array

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


def riemannian(
    optimizer: optax.GradientTransformation | optax.MultiSteps,
    manifold: Any | Callable[[Params], Any],
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
      manifold: the space of all parameters, such as `Lorentz(c)`; or a tree of spaces that is a
        prefix of theirs, as in `optax.masked`; or a function of the parameters that gives either,
        for spaces whose curvature is a parameter. What is `Euclidean` is optimised as ever.
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
    known = dict.fromkeys(VECTORS, True) | dict.fromkeys(MAGNITUDES, False)
    known |= dict.fromkeys(vectors, True) | dict.fromkeys(magnitudes, False)

    def spaces(params: Params) -> list[Manifold | None]:
        return _space_of_each(manifold(params) if callable(manifold) else manifold, params)

    def frames(
        of: Callable[..., Array], each: list[Manifold | None], params: Params, *more: Params
    ) -> Params:
        """A function of space, parameter and more at points; the last of what is none."""
        rows = zip(each, *map(jax.tree.leaves, (params, *more)), strict=True)
        return jax.tree.unflatten(
            jax.tree.structure(params),
            [row[-1] if space is None else of(space, *row) for space, *row in rows],
        )

    def zeros(space: Manifold, x: Array) -> Array:
        return jnp.zeros_like(space.gradient_in_frame(x, x))

    def scale(space: Manifold, x: Array, gradient: Array) -> Array:
        return space.gradient_in_frame(x, gradient).astype(x.dtype)

    def move(space: Manifold, x: Array, u: Array) -> Array:
        step = space.retract if retract else space.exp_map
        return step(x, space.from_frame(x, u)).astype(x.dtype)

    def carry(way: tuple[Any, Array, Array], u: Array) -> Array:
        space, x, y = way
        return space.transport_in_frame(x, y, u).astype(u.dtype)

    def places(
        state: optax.OptState, each: list[Manifold | None], seen: Params
    ) -> list[KeyPath | None]:
        shapes = {
            path: None if space is None else x.shape
            for space, (path, x) in zip(each, tree_flatten_with_path(seen)[0], strict=True)
        }
        return _points_of_vectors(state, shapes, known)

    def init(params: Params) -> optax.OptState:
        each = spaces(params)
        seen = frames(zeros, each, params)
        state = optimizer.init(seen)
        places(state, each, seen)
        return state

    def update(
        gradients: Params, state: optax.OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Params, optax.OptState]:
        if params is None:
            raise ManifoldError("riemannian: update(gradients, state, params) needs the params")
        each = spaces(params)
        scaled = frames(scale, each, params, gradients)
        seen = frames(zeros, each, params)
        steps, state = optimizer.update(scaled, state, seen, **extra)
        moved = frames(move, each, params, steps)
        ways: dict[KeyPath, Any] = {
            path: (space, x, y)
            for space, (path, x), y in zip(
                each, tree_flatten_with_path(params)[0], jax.tree.leaves(moved), strict=True
            )
        }
        leaves, structure = jax.tree.flatten(state)
        transported = [
            u if at is None else carry(ways[at], u)
            for u, at in zip(leaves, places(state, each, seen), strict=True)
        ]
        state = jax.tree.unflatten(structure, transported)
        return frames(lambda _, x, y: y - x, each, params, moved), state

    return optax.GradientTransformationExtraArgs(init, update)


def _space_of_each(spaces: Any, params: Params) -> list[Manifold | None]:
    """The space of each leaf of the parameters, given by a prefix; None where it is Euclidean.

    Raises:
      ManifoldError: where something else stands for a space.
    """
    is_space = lambda node: isinstance(node, Manifold)
    each: list[Manifold | None] = []

    def add(space: Any, part: Params) -> None:
        if not is_space(space):
            raise ManifoldError(f"riemannian: {space!r} is no manifold: give, say, Euclidean()")
        leaves = jax.tree.leaves(part)
        if isinstance(space, Product) and leaves:  # none where `optax.partition` masks them
            jax.tree.map(add, space.factors, part, is_leaf=is_space)
        else:
            each.extend([None if isinstance(space, Euclidean) else space] * len(leaves))

    jax.tree.map(add, spaces, params, is_leaf=is_space)
    return each


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
