"""The released optimiser as an optax chain: BERT's Adam.

The gradient of each parameter tensor is clipped to norm 1. Adam has no bias correction, and its
epsilon is added outside the root. Weight decay is decoupled and multiplied by the learning rate.
The rate rises linearly from 0 at step 0 and then falls linearly to 0.

A bank of blocks stores the parameters of its K blocks in one array. The released code clips the
tensors of each block separately; here each block's slice of the array is clipped separately. The
model declares which parameters are stacked, which do not decay, and which have another learning
rate.
"""

import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float
from ml_collections import ConfigDict

from hlformer_jax.typing import Array

Params = Any

TORCH_CLIP_EPSILON = 1e-6
"""Added to the norm by PyTorch's clip_grad_norm_."""


class BertAdamState(NamedTuple):
    """First and second moments of the gradient."""

    first: Params
    second: Params


def schedule(form: str, learning_rate: float, warmup: float, total_steps: int) -> optax.Schedule:
    """Return a rate that rises linearly over the share `warmup` of all steps, then falls to 0.

    Args:
      form: form of the decrease: "linear" or "warmup_cosine". The cosine runs over all steps, as in
        CLIP4Clip: at the end of the warm-up the rate jumps to (1 + cos(π warmup)) / 2 of its peak.
      learning_rate: the peak.
      warmup: share of the steps in which the rate rises.
      total_steps: number of steps.
    """

    def rate(step: int | jax.Array) -> jax.Array:
        progress = jnp.asarray(step, jnp.result_type(float)) / total_steps
        rising = progress / warmup if warmup > 0 else jnp.ones_like(progress)
        if form == "linear":
            falling = jnp.maximum((1 - progress) / (1 - warmup), 0)
        else:
            falling = (1 + jnp.cos(jnp.pi * jnp.minimum(progress, 1))) / 2
        return learning_rate * jnp.where(progress < warmup, rising, falling)

    return rate


class RowWise(optax.GradientTransformation):
    """A transformation that accepts updates and parameters as `Rows` or as trees."""


def scale_by_name(factors: Mapping[str, float]) -> optax.GradientTransformation:
    """Scale the updates of the named parameters, and of all parameters of named modules."""

    def factor(path: tuple) -> float:
        return next((factors[name] for name in _names(path) if name in factors), 1.0)

    def update(updates: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
        del params
        return _scale_leaves(updates, factor), state

    return RowWise(lambda params: optax.EmptyState(), update)


def add_decayed_weights(rate: float, undecayed: Collection[str]) -> optax.GradientTransformation:
    """Add `rate` times the parameters to the updates, for parameters that decay (`decay_mask`)."""
    plain = optax.add_decayed_weights(rate, mask=lambda params: decay_mask(params, undecayed))

    def update(updates: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
        if not isinstance(updates, Rows):
            return plain.update(updates, state, params)
        decay = _scale_leaves(params, lambda path: 0.0 if _has_name(path, undecayed) else rate)
        return jax.tree.map(jnp.add, updates, decay), state

    return RowWise(plain.init, update)


def _scale_leaves(tree: Params, factor: Callable[[tuple], float]) -> Params:
    """Multiply each array of a tree by the factor for its path."""

    def scale(array: Any, number: Any) -> Any:
        return array * jnp.asarray(number, array.dtype)

    if isinstance(tree, Rows):
        return tree.map(scale, tree.of_rows(factor))
    return jax.tree_util.tree_map_with_path(lambda path, x: scale(x, factor(path)), tree)


def clip_by_tensor_norm(
    max_norm: float, stacked: Collection[str] = ()
) -> optax.GradientTransformation:
    """Scale the gradient of each tensor of the released model to a norm of at most `max_norm`.

    Args:
      max_norm: the largest norm.
      stacked: names of modules whose arrays have a leading axis of tensors.
    """

    def clip(gradient: jax.Array, norm: jax.Array) -> jax.Array:
        return gradient * jnp.minimum(max_norm / (norm + TORCH_CLIP_EPSILON), 1)

    def clip_tensor(path: tuple, gradient: jax.Array) -> jax.Array:
        first = 1 if _has_name(path, stacked) else 0
        axes = tuple(range(first, gradient.ndim))
        return clip(gradient, jnp.sqrt(jnp.sum(jnp.square(gradient), axis=axes, keepdims=True)))

    def update(updates: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
        del params
        if isinstance(updates, Rows):
            return updates.map(clip, updates.norms(lambda path: _has_name(path, stacked))), state
        return jax.tree_util.tree_map_with_path(clip_tensor, updates), state

    return RowWise(lambda params: optax.EmptyState(), update)


def scale_by_bert_adam(beta1: float, beta2: float, epsilon: float) -> optax.GradientTransformation:
    """Scale by Adam without bias correction, with epsilon outside the root.

    Args:
      beta1: decay of the first moment.
      beta2: decay of the second moment.
      epsilon: added to the root of the second moment.
    """

    def init(params: Params) -> BertAdamState:
        return BertAdamState(optax.tree.zeros_like(params), optax.tree.zeros_like(params))

    def update(
        updates: Params, state: BertAdamState, params: Any = None
    ) -> tuple[Params, BertAdamState]:
        del params
        first = optax.tree.update_moment(updates, state.first, beta1, 1)
        second = optax.tree.update_moment(updates, state.second, beta2, 2)
        scaled = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), first, second)
        return scaled, BertAdamState(first, second)

    return optax.GradientTransformation(init, update)


def decay_mask(params: Params, undecayed: Collection[str]) -> Params:
    """Return a tree with True for the parameters that decay; see `TwoBranch.undecayed`."""
    return jax.tree_util.tree_map_with_path(lambda path, _: not _has_name(path, undecayed), params)


def _has_name(path: tuple, names: Collection[str]) -> bool:
    return any(name in names for name in _names(path))


def _names(path: tuple) -> list[str]:
    return [str(entry.key) for entry in path if hasattr(entry, "key")]


def learning_rate(fields: ConfigDict, total_steps: int) -> optax.Schedule:
    """Return the schedule of `config.optim` for a run of `total_steps` steps."""
    form = "warmup_cosine" if "global_clip" in fields else "linear"
    return schedule(form, fields.learning_rate, fields.warmup, total_steps)


def build(fields: ConfigDict, module: Any, total_steps: int) -> optax.GradientTransformation:
    """Return the optimiser of `config.optim` for a model.

    If `config.optim` has the field `global_clip` (HOVER), all gradients are first clipped together,
    and the rate falls by a cosine instead of linearly.

    Args:
      fields: the section `config.optim`.
      module: the module, which declares `stacked`, `undecayed` and `rates`, see `TwoBranch`.
      total_steps: number of steps of the run.
    """
    rate = learning_rate(fields, total_steps)
    chain = [
        clip_by_tensor_norm(fields.clip_norm, module.stacked),
        scale_by_bert_adam(fields.beta1, fields.beta2, fields.epsilon),
        add_decayed_weights(fields.weight_decay, module.undecayed),
        optax.scale_by_learning_rate(rate),
    ]
    if "global_clip" in fields:
        chain.insert(0, optax.clip_by_global_norm(fields.global_clip))
    if module.rates:
        rates = {name: fields[field] for name, field in module.rates.items()}
        chain.append(scale_by_name({n: x / fields.learning_rate for n, x in rates.items()}))
    return RowWise(*optax.chain(*chain))


# Parameters as a few matrices. A model has some 150 arrays. The norms and updates of all arrays
# would be hundreds of kernels, and a GPU would take more time to start them than to run them.
# `Rows` copies the arrays of a tree into a few matrices with rows of `WIDTH` elements, so that an
# elementwise operation is one kernel per matrix. Each array begins a new row, and zeros fill its
# last row, so that an operation on an array is an operation on rows. The same holds for each slice
# along the first axis, if an array has at most `MAX_SLICES` slices.

WIDTH = 1024
"""Number of elements in a row."""

MAX_SLICES = 64
"""Largest number of slices of an array; an array with more is stored as a single slice."""

MAX_ARRAYS = 48
"""Largest number of arrays in a matrix; XLA's limit for a single kernel is below 96 operands."""


class Place(NamedTuple):
    """The place of an array in the matrices.

    Attributes:
      path: path of the array in the tree.
      shape: shape of the array.
      slices: number of slices of the array.
      matrix: index of the matrix that contains the array.
      start: first row of the array in the matrix.
      rows: number of rows of a slice.
    """

    path: tuple
    shape: tuple[int, ...]
    slices: int
    matrix: int
    start: int
    rows: int

    @property
    def stop(self) -> int:
        """The index after the last row of the array."""
        return self.start + self.slices * self.rows


@jax.tree_util.register_pytree_node_class
class Rows:
    """A tree of arrays as matrices; a pytree, so that optax computes with the matrices."""

    def __init__(self, matrices: tuple[Any, ...], structure: Any, places: tuple[Place, ...]):
        self.matrices, self._structure, self.places = matrices, structure, places

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """Return the matrices and the static data, for JAX."""
        return self.matrices, (self._structure, self.places)

    @classmethod
    def tree_unflatten(cls, rest: Any, matrices: Any) -> "Rows":
        """Return the rows with other matrices, for JAX."""
        return cls(tuple(matrices), *rest)

    @classmethod
    def from_tree(cls, tree: Any) -> "Rows":
        """Convert a tree whose arrays all have the same dtype."""
        leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
        places: list[Place] = []
        start = 0
        for index, (path, leaf) in enumerate(leaves):
            start = start if index % MAX_ARRAYS else 0
            slices = leaf.shape[0] if leaf.ndim and leaf.shape[0] <= MAX_SLICES else 1
            rows = -(-max(leaf.size, 1) // (slices * WIDTH))
            places.append(Place(path, leaf.shape, slices, index // MAX_ARRAYS, start, rows))
            start = places[-1].stop
        rows = Rows((), structure, tuple(places))
        return rows.like(tree)

    def like(self, tree: Any) -> "Rows":
        """Convert another tree with the same shapes; its arrays have the same places."""
        blocks: dict[int, list[Array]] = {}
        for place, leaf in zip(self.places, jax.tree.leaves(tree), strict=True):
            blocks.setdefault(place.matrix, []).append(_block(place, leaf))
        matrices = tuple(jnp.concatenate(parts) for parts in blocks.values())
        return Rows(matrices, self._structure, self.places)

    def tree(self) -> Any:
        """Return the tree."""
        return jax.tree.unflatten(self._structure, [self._leaf(place) for place in self.places])

    def _leaf(self, place: Place) -> Array:
        block = self.matrices[place.matrix][place.start : place.stop]
        size = math.prod(place.shape) // place.slices
        return block.reshape(place.slices, -1)[:, :size].reshape(place.shape)

    def apply(self, function: Callable[[Any], Any]) -> "Rows":
        """Apply a function to the tree; only arrays that the function replaces are copied."""
        tree = self.tree()
        matrices = list(self.matrices)
        pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(function(tree)), strict=True)
        for place, (before, after) in zip(self.places, pairs, strict=True):
            if after is not before:
                block, matrix = _block(place, after), matrices[place.matrix]
                matrices[place.matrix] = matrix.at[place.start : place.stop].set(block)
        return Rows(tuple(matrices), self._structure, self.places)

    def map(self, function: Callable[[Any, Any], Any], columns: list[Any]) -> "Rows":
        """Apply a function to each matrix and its column, which has a number for each row."""
        matrices = tuple(map(function, self.matrices, columns))
        return Rows(matrices, self._structure, self.places)

    def of_rows(self, value: Callable[[tuple], float]) -> list[Float[np.ndarray, "R 1"]]:
        """Return a column for each matrix: for each row the value for the path of its array."""
        columns = [np.zeros((len(matrix), 1)) for matrix in self.matrices]
        for place in self.places:
            columns[place.matrix][place.start : place.stop] = value(place.path)
        return columns

    def squares(self) -> list[Float[Array, " R"]]:
        """Return the sums of squares of the rows of each matrix."""
        return [jnp.sum(jnp.square(matrix), axis=1) for matrix in self.matrices]

    def norm(self) -> Array:
        """Return the norm of all arrays together."""
        return jnp.sqrt(functools.reduce(jnp.add, map(jnp.sum, self.squares())))

    def norms(self, stacked: Callable[[tuple], bool]) -> list[Array]:
        """Return a column for each matrix: for each row the norm of its array, or of its slice.

        Args:
          stacked: returns whether the array at a path is a stack, whose slices have norms of their
            own.

        Raises:
          ValueError: for a stack with more than `MAX_SLICES` slices.
        """
        columns: list[Array] = []
        for number, squares in enumerate(self.squares()):
            ranges = []
            for place in self.places:
                if place.matrix == number:
                    parts = place.shape[0] if stacked(place.path) else 1
                    if parts > MAX_SLICES:
                        raise ValueError(
                            f"{place.path}: its stack has {parts} slices, more than the limit of"
                            f" {MAX_SLICES}"
                        )
                    ranges += np.split(np.arange(place.start, place.stop), parts)
            # A gather and a sum, because the order of additions in a scatter differs between runs.
            max_rows = max(map(len, ranges))
            fill = len(squares)  # index of the zero that pads `squares`
            table = np.stack(
                [np.pad(r, (0, max_rows - len(r)), constant_values=fill) for r in ranges]
            )
            padded = jnp.concatenate([squares, jnp.zeros(1, squares.dtype)])
            norms = jnp.sqrt(jnp.sum(padded[table.astype(np.int32)], axis=1))
            owner = np.repeat(np.arange(len(ranges), dtype=np.int32), [len(r) for r in ranges])
            columns.append(norms[owner][:, None])
        return columns


def _block(place: Place, leaf: Array) -> Float[Array, "R 1024"]:
    flat = leaf.reshape(place.slices, -1)
    rest = place.rows * WIDTH - flat.shape[1]
    flat = jnp.pad(flat, ((0, 0), (0, rest))) if rest else flat
    return flat.reshape(-1, WIDTH)
