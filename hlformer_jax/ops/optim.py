"""Riemannian optimisers: optax optimisers of parameters that are points of manifolds.

A step that is added to coordinates leaves the manifold. Moreover, near the rim of the ball or far
out on the hyperboloid, equal steps in coordinates are unequal steps in the space. `riemannian`
therefore wraps an optimiser: it passes it the Riemannian gradient in an orthonormal frame at each
point (see `manifolds`), follows the returned step, a vector in the same frame, along a geodesic,
and transports the vectors in the optimiser's state to the new point.

References:
  Bonnabel, Stochastic gradient descent on Riemannian manifolds, 2013. Bécigneul and Ganea,
  Riemannian adaptive optimization methods, ICLR 2019.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import (
    DictKey,
    GetAttrKey,
    SequenceKey,
    keystr,
    tree_flatten_with_path,
    tree_map_with_path,
)

from hlformer_jax.errors import UserError
from hlformer_jax.ops.manifolds import Euclidean, Manifold, Product
from hlformer_jax.ops.numerics import wide
from hlformer_jax.typing import Array

Params = Any
KeyPath = tuple[Any, ...]

VECTORS = frozenset(
    ("mu", "trace", "ema", "acc_grads", "grad_acc", "previous_gradient", "prev_updates")
) | {
    *("ScaleByAdanState.m", "ScaleByAdanState.v", "ScaleByAdanState.g", "ScaleBySM3State.nu"),
    *("ScaleByAdemamixState.m1", "ScaleByAdemamixState.m2", "ScaleBySimplifiedAdEMAMixState.m"),
}
"""Fields of optax states that hold tangent vectors: first moments, momentum, gradients."""

MAGNITUDES = frozenset(
    ("nu", "nu_max", "sum_of_squares", "e_g", "e_x", "step_sizes", "v_row", "v_col", "hyperparams")
) | {
    *("FactoredState.v", "ScaleByAdanState.n", "ScaleBySM3State.mu", "MuonState.ns_coeffs"),
    "ScaleBySimplifiedAdEMAMixState.n",
}
"""Fields of optax states that are not transported: second moments, step sizes, hyperparameters."""

COORDINATE_STATES = frozenset(
    ("LookaheadState", "SAMState", "HutchinsonState", "SophiaState")
    + ("ScaleByBacktrackingLinesearchState", "ScaleByZoomLinesearchState")
)
"""States of optax transformations that compute with the coordinates of parameters: refused."""


class ManifoldError(UserError, ValueError):
    """Raised for a parameter that is not a point, or an optimiser that cannot be Riemannian."""


def riemannian(
    optimizer: optax.GradientTransformation | optax.MultiSteps,
    manifold: Any | Callable[[Params], Any],
    vectors: Collection[str] = (),
    magnitudes: Collection[str] = (),
    retract: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Make an optimiser Riemannian: gradients in frames, geodesic steps, transported moments.

    The updates are differences of coordinates, so `optax.apply_updates` gives the new points.

    The optimiser does not receive the coordinates of a point, but the vector from the origin to the
    point: in the frame at the point, and as long as their distance (`Manifold.position_in_frame`).
    For a point of a sphere it does receive the coordinates. So transformations that scale by the
    size of a parameter (`optax.adaptive_grad_clip`, `fromage`, `lamb`, `lars`, `adafactor`) scale
    by the distance from the origin, and weight decay moves points along geodesics towards the
    origin (on a sphere it does nothing). As in Euclidean space, the result depends on the choice of
    the origin.

    For points in bfloat16 or float16 the optimiser receives float32 vectors, so its moments are
    float32. The points themselves are rounded to their dtype after every step, and steps below half
    of its spacing are lost: keep points in float32.

    Moments are found in every wrapper of optax. Two kinds of optimisers are refused: those whose
    state has a field that is not known to be a vector or a magnitude, and wrappers that compute
    with the coordinates of points (lookahead, SAM, line searches, schedule-free optimisers).
    `optax.keep_params_nonnegative`, which a state does not show, has no meaning for points.

    Args:
      optimizer: an optax optimiser, wrapped or not, with its learning rate. For points it computes
        with vectors of the frame. Elementwise moments depend on the choice of the frame; the
        moments of `scale_by_length_adam` do not.
      manifold: the space of all parameters, such as `Lorentz(c)`; or a tree of spaces that is a
        prefix of the parameters, as in `optax.masked`; or, for a curvature that is a parameter, a
        function of the parameters that returns either. Parameters of a `Euclidean` space are
        optimised as without this function. So are the curvatures of spaces among the parameters,
        such as the space that an Equinox or NNX module holds.
      vectors: fields of the optimiser's state that hold tangent vectors and must be transported,
        in addition to `VECTORS`; "field" or "State.field".
      magnitudes: fields that must not be transported, in addition to `MAGNITUDES`.
      retract: whether to step by the manifold's retraction instead of along geodesics.

    Returns:
      The transformation; its ``update`` needs the parameters.

    Raises:
      ManifoldError: in ``init``, for an optimiser whose state cannot be transported and for a
        parameter that is not an array of points of its space; in ``update``, without parameters.
    """
    optimizer = optax.with_extra_args_support(optimizer)
    transported = dict.fromkeys(VECTORS, True) | dict.fromkeys(MAGNITUDES, False)
    transported |= dict.fromkeys(vectors, True) | dict.fromkeys(magnitudes, False)

    # A tree of spaces may be callable, for example an Equinox module.
    is_tree = any(map(_is_space, jax.tree.leaves(manifold, is_leaf=_is_space)))

    def spaces_of(params: Params) -> list[Manifold | None]:
        is_function = callable(manifold) and not is_tree
        return _space_of_each(manifold(params) if is_function else manifold, params)

    def map_points(
        function: Callable[..., Array], spaces: list[Manifold | None], *trees: Params
    ) -> Params:
        """Map each space and its leaves; Euclidean leaves come from the last tree."""
        paths, structure = tree_flatten_with_path(trees[0])
        rows = zip(spaces, paths, *map(jax.tree.leaves, trees), strict=True)
        mapped = []
        for space, (path, _), *leaves in rows:
            try:
                mapped.append(leaves[-1] if space is None else function(space, *leaves))
            except (TypeError, ValueError) as error:
                raise ManifoldError(f"riemannian: parameter {_name(path)}: {error}") from error
        return jax.tree.unflatten(structure, mapped)

    # Vectors in frames are at least float32, and so are the optimiser's moments of them.
    def position(space: Manifold, x: Array) -> Array:
        return space.position_in_frame(x).astype(wide(x.dtype))

    def to_frame(space: Manifold, x: Array, gradient: Array) -> Array:
        return space.gradient_in_frame(x, gradient).astype(wide(x.dtype))

    def move(space: Manifold, x: Array, u: Array) -> Array:
        step = space.retract if retract else space.exp_map
        return step(x, space.from_frame(x, u)).astype(x.dtype)

    def subtract(_: Manifold, x: Array, y: Array) -> Array:
        return y - x

    def init(params: Params) -> optax.OptState:
        spaces = spaces_of(params)
        positions = map_points(position, spaces, params)
        state = optimizer.init(positions)
        _points_of_vectors(state, spaces, positions, transported)
        return state

    def update(
        gradients: Params, state: optax.OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Params, optax.OptState]:
        if params is None:
            raise ManifoldError(
                "riemannian: update needs the parameters: call update(gradients, state, params)"
            )
        spaces = spaces_of(params)
        in_frames = map_points(to_frame, spaces, params, gradients)
        positions = map_points(position, spaces, params)
        steps, state = optimizer.update(in_frames, state, positions, **extra)
        moved = map_points(move, spaces, params, steps)
        moves = list(zip(spaces, jax.tree.leaves(params), jax.tree.leaves(moved), strict=True))

        def transport(point: int | None, vector: Any) -> Any:
            if point is None:
                return vector
            space, x, y = moves[point]
            assert space is not None
            return space.transport_in_frame(x, y, vector).astype(vector.dtype)

        leaves, structure = jax.tree.flatten(state)
        points = _points_of_vectors(state, spaces, positions, transported)
        state = jax.tree.unflatten(structure, map(transport, points, leaves))
        return map_points(subtract, spaces, params, moved), state

    return optax.GradientTransformationExtraArgs(init, update)


def _is_space(node: Any) -> bool:
    # Check the type, because an NNX variable also has the attributes of its value.
    return issubclass(type(node), Manifold)


def _name(path: KeyPath) -> str:
    """Return the path of a parameter for messages; a single array has no path."""
    return keystr(path) or "(the only one)"


def _space_of_each(spaces: Any, params: Params) -> list[Manifold | None]:
    """Return the space of each leaf of the parameters; None for Euclidean leaves.

    Spaces may be among the parameters. Their leaves are curvatures, which are Euclidean.

    Args:
      spaces: a tree of spaces that is a prefix of the parameters.
      params: parameters.

    Raises:
      ManifoldError: for a prefix that does not fit, a leaf in it that is not a space, a parameter
        that cannot be an array of points.
    """
    space_of_leaf: list[Manifold | None] = []

    def add(path: KeyPath, space: Any, part: Params) -> None:
        if not _is_space(space):
            raise ManifoldError(
                f"riemannian: expected a manifold, such as Euclidean(), got {space!r}"
            )
        if _is_space(part):
            space_of_leaf.extend([None] * len(jax.tree.leaves(part)))
            return
        if isinstance(space, Product) and jax.tree.leaves(part):
            # A part without leaves has been masked by `optax.partition`.
            if not isinstance(part, tuple) or len(part) != len(space.factors):
                raise ManifoldError(
                    f"riemannian: parameter {_name(path)} must be a tuple of"
                    f" {len(space.factors)}, one for each factor of its Product, got the type"
                    f" {type(part).__name__}"
                )
            for k, (factor, component) in enumerate(zip(space.factors, part, strict=True)):
                add((*path, SequenceKey(k)), factor, component)
            return
        for rest, node in tree_flatten_with_path(part, is_leaf=_is_space)[0]:
            if _is_space(node):
                space_of_leaf.extend([None] * len(jax.tree.leaves(node)))
            elif isinstance(space, Euclidean):
                space_of_leaf.append(None)
            else:
                _check_points((*path, *rest), space, node)
                space_of_leaf.append(space)

    try:
        tree_map_with_path(add, spaces, params, is_leaf=_is_space)
    except ManifoldError:
        raise
    except ValueError as error:
        raise ManifoldError(
            f"riemannian: the tree of spaces must be a prefix of the tree of parameters: {error}"
        ) from error
    return space_of_leaf


def _check_points(path: KeyPath, space: Manifold, leaf: Any) -> None:
    """Refuse a parameter that cannot be an array of points.

    Raises:
      ManifoldError: for a scalar, for an array without a real floating dtype, and for a space whose
        curvature is None.
    """
    if getattr(space, "c", 1.0) is None:
        raise ManifoldError(
            f"riemannian: the space of parameter {_name(path)} has the curvature None, as"
            " after filtering the parameters: take the space from the whole model"
        )
    shape, dtype = getattr(leaf, "shape", ()), getattr(leaf, "dtype", None)
    is_floating = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
    if len(shape) == 0 or not is_floating:
        raise ManifoldError(
            f"riemannian: parameter {_name(path)} must be an array of points of"
            f" {type(space).__name__}, floating and with coordinates along the last axis,"
            f" got shape {shape} and dtype {dtype or type(leaf).__name__}; for parameters"
            " that are not points pass Euclidean()"
        )


def _points_of_vectors(
    state: optax.OptState,
    spaces: Sequence[Manifold | None],
    positions: Params,
    transported: Mapping[str, bool],
) -> list[int | None]:
    """Return for each leaf of a state which parameter it is a tangent vector at, or None.

    Args:
      state: state of an optimiser.
      spaces: the space of each parameter; None for Euclidean ones.
      positions: the parameters as the optimiser receives them, as vectors in frames.
      transported: whether a field of this name holds tangent vectors.

    Raises:
      ManifoldError: for a state that cannot be transported.
    """
    _refuse_coordinate_states(state)
    params = tree_flatten_with_path(positions)[0]
    number_of = {path: number for number, (path, _) in enumerate(params)}
    points: list[int | None] = []
    for path, leaf in tree_flatten_with_path(state)[0]:
        last_name = max(
            (i for i, key in enumerate(path) if isinstance(key, GetAttrKey)), default=-1
        )
        # The path of a parameter ends after the last named field; more keys may follow it, if the
        # state keeps a moment as several parts.
        ends = [
            (stop - start, start)
            for start in range(len(path) + 1)
            for stop in range(max(start, last_name + 1), len(path) + 1)
            if path[start:stop] in number_of
        ]
        size, start = max(ends, default=(0, len(path)))
        number = number_of.get(path[start : start + size])
        field = _field(state, path[:start])
        points.append(None)
        is_array = jnp.ndim(leaf) > 0 and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        if not is_array or (number is not None and spaces[number] is None):
            continue
        if field == "ScheduleFreeState.z":
            raise _coordinate_error("ScheduleFreeState")
        is_vector = transported.get(field, transported.get(field.rpartition(".")[-1]))
        fits = number is not None and jnp.shape(leaf) == jnp.shape(params[number][1])
        if is_vector is None or (is_vector and not fits):
            raise ManifoldError(
                f"riemannian: cannot tell whether {field or 'an unnamed part'} of the"
                f" optimiser's state, of shape {jnp.shape(leaf)}, holds one tangent vector"
                " for each point, to be transported: name the field in `vectors` or"
                " `magnitudes`"
            )
        if is_vector:
            points[-1] = number
    return points


def _refuse_coordinate_states(state: optax.OptState) -> None:
    """Refuse transformations that compute with the coordinates of points.

    Raises:
      ManifoldError: for a state in `COORDINATE_STATES`.
    """

    def is_refused(node: Any) -> bool:
        return type(node).__name__ in COORDINATE_STATES

    for node in jax.tree.leaves(state, is_leaf=is_refused):
        if is_refused(node):
            raise _coordinate_error(type(node).__name__)


def _coordinate_error(state: str) -> ManifoldError:
    """Return the error for a state that computes with the coordinates of points."""
    return ManifoldError(
        f"riemannian: {state} is not supported, because it computes with the coordinates of points"
    )


def _field(state: Any, path: KeyPath) -> str:
    """Return the innermost named field of a path, as "State.field", or "" if there is none."""
    field = ""
    for key in path:
        if isinstance(key, GetAttrKey):
            field = f"{type(state).__name__}.{key.name}"
            state = getattr(state, key.name)
        elif isinstance(key, DictKey):
            state = state[key.key]
        elif isinstance(key, SequenceKey):
            state = state[key.idx]
        else:  # a key of a node that does not name its parts
            break
    return field


class LengthAdamState(NamedTuple):
    """State of `scale_by_length_adam`.

    Attributes:
      steps: number of steps taken.
      mu: first moments, in at least float32.
      nu: second moments, one for each vector, in at least float32.
      nu_max: with ``amsgrad`` the largest second moments so far, else None.
    """

    steps: jax.Array
    mu: Params
    nu: Params
    nu_max: Params | None = None


def scale_by_length_adam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    amsgrad: bool = False,
    per_coordinate: bool = True,
) -> optax.GradientTransformation:
    """Scale by Adam with a single second moment for each vector: that of its length.

    If all gradients of a vector are rotated, its updates are rotated in the same way. So in
    `riemannian` the updates do not depend on the choice of frames. This is the adaptive method of
    Bécigneul and Ganea for a product of manifolds, in which each point has its own manifold.

    With ``per_coordinate`` the second moment is the mean of the squared coordinates, as in
    `optax.adam`, and a vector of n coordinates moves by up to about √n times the learning rate.
    Without it, the second moment is their sum, as in geoopt and hyperbolix, and a vector moves by
    up to about the learning rate. Learning rates for geoopt can then be used unchanged.

    Args:
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      amsgrad: whether to divide by the root of the largest second moment so far (Reddi, Kale and
        Kumar, ICLR 2018). The bias correction is that in PyTorch and geoopt, after the maximum.
        `optax.amsgrad` corrects before the maximum, so a large first gradient counts for ever.
      per_coordinate: whether the second moment is the mean, not the sum, of squared coordinates.

    Returns:
      The transformation, for floating arrays [*batch, n] with vectors along the last axis; a scalar
      is a vector of one coordinate. Updates have the dtype of the gradients.
    """
    reduce = jnp.mean if per_coordinate else jnp.sum

    def init(params: Params) -> LengthAdamState:
        mu = jax.tree.map(lambda x: jnp.zeros_like(x, wide(x.dtype)), params)
        nu = jax.tree.map(lambda m: jnp.zeros_like(m[..., :1] if m.ndim else m), mu)
        # Arrays of their own, because a program to which a state is donated refuses shared ones.
        nu_max = jax.tree.map(jnp.zeros_like, nu) if amsgrad else None
        return LengthAdamState(jnp.zeros([], jnp.int32), mu, nu, nu_max)

    def update(
        gradients: Params, state: LengthAdamState, params: Params | None = None
    ) -> tuple[Params, LengthAdamState]:
        del params
        steps = state.steps + 1

        def first_moment(m: Array, g: Array) -> Array:
            return _moving_average(b1, m, g.astype(m.dtype))

        def second_moment(v: Array, g: Array) -> Array:
            square = jnp.square(g.astype(v.dtype))
            if square.ndim:
                square = reduce(square, axis=-1, keepdims=True)
            return _moving_average(b2, v, square)

        def scale(m: Array, v: Array, g: Array) -> Array:
            first, second = (_bias_correction(b, steps, m.dtype) for b in (b1, b2))
            root = jnp.sqrt(v / second) + _as_dtype(eps, v.dtype)
            return (m / first / root).astype(g.dtype)

        mu = jax.tree.map(first_moment, state.mu, gradients)
        nu = jax.tree.map(second_moment, state.nu, gradients)
        nu_max = jax.tree.map(jnp.maximum, state.nu_max, nu) if amsgrad else None
        updates = jax.tree.map(scale, mu, nu_max if amsgrad else nu, gradients)
        return updates, LengthAdamState(steps, mu, nu, nu_max)

    return optax.GradientTransformation(init, update)


def _as_dtype(number: Any, dtype: Any) -> Any:
    """Cast a hyperparameter to a dtype, except for numbers of Python, which have no dtype."""
    return number if isinstance(number, int | float) else jnp.asarray(number, dtype)


def _moving_average(decay: Any, average: Array, value: Array) -> Array:
    """Return decay · average + (1 − decay) · value in the dtype of the average."""
    decay = _as_dtype(decay, average.dtype)
    return decay * average + (1 - decay) * value


def _bias_correction(decay: Any, steps: jax.Array, dtype: Any) -> jax.Array:
    """Return 1 − decay^steps by expm1: the plain difference has few digits for a decay near 1."""
    is_known = isinstance(decay, float) and decay > 0
    log_decay = math.log(decay) if is_known else jnp.log(jnp.asarray(decay, dtype))
    return -jnp.expm1(steps.astype(dtype) * jnp.asarray(log_decay, dtype))
