"""The released optimiser as an optax chain: BERT's Adam.

Gradients are clipped per parameter tensor to norm 1; Adam has no bias correction and its epsilon
stands outside the root; decay is decoupled and follows the learning rate; the rate warms up
linearly and falls linearly to 0, and is 0 at step 0.

A bank of blocks keeps the parameters of its K blocks in one array. Where the released code treats
a tensor on its own (clipping), each block's slice is treated on its own here. Which parameters
these are, which do not decay, and which have a rate of their own, is declared by the model.

A model has some 150 arrays. Kernels for the norm and the update of each would number hundreds, and
a GPU would spend more time on starting them than on their work. So `Rows` has the arrays of a tree
below one another in matrices of rows of `WIDTH`: what is done to all elements alike is one kernel a
matrix. Each array, or slice of one with few slices along its first axis, begins a row, and zeros
fill its last: what is done to an array as a whole is done to rows.
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
    """A rate that rises linearly over the share `warmup` of all steps, and then falls to 0.

    As "linear", or "warmup_cosine". The cosine is of the share of all steps, as in CLIP4Clip: where
    the warm-up ends the rate jumps from its peak to (1 + cos(π warmup)) / 2 of it.
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
    """A transformation whose updates and parameters may be `Rows` in place of trees."""


def scale_by_name(factors: Mapping[str, float]) -> optax.GradientTransformation:
    """Scales the updates of parameters that have, or are in a module that has, one of the names."""

    def factor(path: tuple) -> float:
        return next((factors[name] for name in _names(path) if name in factors), 1.0)

    def update(updates: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
        del params
        return _scaled(updates, factor), state

    return RowWise(lambda params: optax.EmptyState(), update)


def add_decayed_weights(rate: float, undecayed: Collection[str]) -> optax.GradientTransformation:
    """Adds `rate` times the parameters that decay, see `decay_mask`."""
    plain = optax.add_decayed_weights(rate, mask=lambda params: decay_mask(params, undecayed))

    def update(updates: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
        if not isinstance(updates, Rows):
            return plain.update(updates, state, params)
        share = lambda path: 0.0 if _any_name(path, undecayed) else rate
        return jax.tree.map(jnp.add, updates, _scaled(params, share)), state

    return RowWise(plain.init, update)


def _scaled(tree: Params, factor: Callable[[tuple], float]) -> Params:
    """A tree times a number for each path."""
    scale = lambda array, by: array * jnp.asarray(by, array.dtype)
    if isinstance(tree, Rows):
        return tree.map(scale, tree.of_rows(factor))
    return jax.tree_util.tree_map_with_path(lambda path, x: scale(x, factor(path)), tree)


def clip_by_tensor_norm(
    max_norm: float, stacked: Collection[str] = ()
) -> optax.GradientTransformation:
    """Scales each released tensor's gradient to a norm of at most `max_norm`."""

    def clip(gradient: jax.Array, norm: jax.Array) -> jax.Array:
        return gradient * jnp.minimum(max_norm / (norm + TORCH_CLIP_EPSILON), 1)

    def clip_tensor(path: tuple, gradient: jax.Array) -> jax.Array:
        first = 1 if _any_name(path, stacked) else 0
        axes = tuple(range(first, gradient.ndim))
        return clip(gradient, jnp.sqrt(jnp.sum(jnp.square(gradient), axis=axes, keepdims=True)))

    def update(updates: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
        del params
        if isinstance(updates, Rows):
            return updates.map(clip, updates.norms(lambda path: _any_name(path, stacked))), state
        return jax.tree_util.tree_map_with_path(clip_tensor, updates), state

    return RowWise(lambda params: optax.EmptyState(), update)


def scale_by_bert_adam(beta1: float, beta2: float, epsilon: float) -> optax.GradientTransformation:
    """Adam without bias correction; epsilon outside the root."""

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
    """True for parameters that decay; see `TwoBranch.undecayed`."""
    decays = lambda path, _: not _any_name(path, undecayed)
    return jax.tree_util.tree_map_with_path(decays, params)


def _any_name(path: tuple, names: Collection[str]) -> bool:
    return any(name in names for name in _names(path))


def _names(path: tuple) -> list[str]:
    return [str(entry.key) for entry in path if hasattr(entry, "key")]


def learning_rate(fields: ConfigDict, total_steps: int) -> optax.Schedule:
    """Return the learning rate of `config.optim` at every step of a run of so many steps."""
    form = "warmup_cosine" if "global_clip" in fields else "linear"
    return schedule(form, fields.learning_rate, fields.warmup, total_steps)


def build(fields: ConfigDict, module: Any, total_steps: int) -> optax.GradientTransformation:
    """The optimiser of `config.optim` for a model.

    With `global_clip` (HOVER) all gradients are clipped together first, and the rate falls by a
    cosine instead of linearly.
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


# Parameters as a few matrices

WIDTH = 1024

MAX_SLICES = 64
"""Slices along the first axis, at most; an array with more is not divided."""

ARRAYS = 48
"""Arrays in a matrix, at most: XLA joins them in one kernel where it has fewer than 96 operands."""


class Place(NamedTuple):
    """Where an array stands.

    Attributes:
      path: its path in the tree.
      shape: its shape.
      slices: number of its slices.
      matrix: index of its matrix.
      start: its first row there.
      rows: rows of a slice.
    """

    path: tuple
    shape: tuple[int, ...]
    slices: int
    matrix: int
    start: int
    rows: int

    @property
    def stop(self) -> int:
        """The row after its last."""
        return self.start + self.slices * self.rows


@jax.tree_util.register_pytree_node_class
class Rows:
    """A tree as matrices; a pytree, with whose matrices optax computes as with any arrays."""

    def __init__(self, matrices: tuple[Any, ...], structure: Any, places: tuple[Place, ...]):
        self.matrices, self._structure, self.places = matrices, structure, places

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """For JAX."""
        return self.matrices, (self._structure, self.places)

    @classmethod
    def tree_unflatten(cls, rest: Any, matrices: Any) -> "Rows":
        """For JAX."""
        return cls(tuple(matrices), *rest)

    @classmethod
    def of(cls, tree: Any) -> "Rows":
        """The arrays of a tree, all of one dtype."""
        leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
        places: list[Place] = []
        start = 0
        for index, (path, leaf) in enumerate(leaves):
            start = start if index % ARRAYS else 0
            slices = leaf.shape[0] if leaf.ndim and leaf.shape[0] <= MAX_SLICES else 1
            rows = -(-max(leaf.size, 1) // (slices * WIDTH))
            places.append(Place(path, leaf.shape, slices, index // ARRAYS, start, rows))
            start = places[-1].stop
        rows = Rows((), structure, tuple(places))
        return rows.like(tree)

    def like(self, tree: Any) -> "Rows":
        """Another tree of these shapes, in the same places."""
        blocks: dict[int, list[Array]] = {}
        for place, leaf in zip(self.places, jax.tree.leaves(tree), strict=True):
            blocks.setdefault(place.matrix, []).append(_block(place, leaf))
        matrices = tuple(jnp.concatenate(parts) for parts in blocks.values())
        return Rows(matrices, self._structure, self.places)

    def tree(self) -> Any:
        """The tree."""
        return jax.tree.unflatten(self._structure, [self._leaf(place) for place in self.places])

    def _leaf(self, place: Place) -> Array:
        block = self.matrices[place.matrix][place.start : place.stop]
        size = math.prod(place.shape) // place.slices
        return block.reshape(place.slices, -1)[:, :size].reshape(place.shape)

    def apply(self, function: Callable[[Any], Any]) -> "Rows":
        """A function of the tree that changes few of its arrays: the others stay where they are."""
        tree = self.tree()
        matrices = list(self.matrices)
        pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(function(tree)), strict=True)
        for place, (before, after) in zip(self.places, pairs, strict=True):
            if after is not before:
                block, matrix = _block(place, after), matrices[place.matrix]
                matrices[place.matrix] = matrix.at[place.start : place.stop].set(block)
        return Rows(tuple(matrices), self._structure, self.places)

    def map(self, function: Callable[[Any, Any], Any], columns: list[Any]) -> "Rows":
        """A function of each matrix and a column of a number for each of its rows."""
        matrices = tuple(map(function, self.matrices, columns))
        return Rows(matrices, self._structure, self.places)

    def of_rows(self, value: Callable[[tuple], float]) -> list[Float[np.ndarray, "R 1"]]:
        """A number for each array by its path, for each of its rows: a column for each matrix."""
        columns = [np.zeros((len(matrix), 1)) for matrix in self.matrices]
        for place in self.places:
            columns[place.matrix][place.start : place.stop] = value(place.path)
        return columns

    def squares(self) -> list[Float[Array, " R"]]:
        """Sums of squares of the rows of each matrix."""
        return [jnp.sum(jnp.square(matrix), axis=1) for matrix in self.matrices]

    def norm(self) -> Array:
        """The norm of all arrays together."""
        return jnp.sqrt(functools.reduce(jnp.add, map(jnp.sum, self.squares())))

    def norms(self, stacked: Callable[[tuple], bool]) -> list[Array]:
        """Of each row, [R, 1]: the norm of its array, or of its slice where that is stacked."""
        columns: list[Array] = []
        for number, squares in enumerate(self.squares()):
            ranges = []
            for place in self.places:
                if place.matrix == number:
                    parts = place.shape[0] if stacked(place.path) else 1
                    if parts > MAX_SLICES:
                        raise ValueError(
                            f"{place.path}: a stack of {parts}, of {MAX_SLICES} at most"
                        )
                    ranges += np.split(np.arange(place.start, place.stop), parts)
            # A gather and a sum in place of a scatter, whose order would differ from run to run.
            longest = max(map(len, ranges))
            fill = len(squares)  # a zero
            table = np.stack(
                [np.pad(r, (0, longest - len(r)), constant_values=fill) for r in ranges]
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
