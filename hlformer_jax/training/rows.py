"""A tree of parameters as a few matrices, for an optimiser of a few kernels.

A model has some 150 arrays. Kernels for the norm and the update of each would number hundreds, and
a GPU would spend more time on starting them than on their work. Here the arrays of a tree stand
below one another in matrices of rows of `WIDTH`, so that what is done to all elements alike is one
kernel a matrix. Each array, or slice of one with few slices along its first axis, begins a row, and
zeros fill its last: what is done to an array as a whole is done to rows.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from hlformer_jax.typing import Array

WIDTH = 1024

MAX_SLICES = 64
"""An array with more slices along its first axis is one."""

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
