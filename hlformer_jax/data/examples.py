"""Brings examples to the devices that all fit there: a batch is some of their rows.

It is the feed of a family whose data is a few arrays: edges of a tree, labelled vectors, features
that are pooled already. Every device holds all of them. What does not fit, or has a varying number
of frames and captions, is what `feed` is made for.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Int

from hlformer_jax import parallel
from hlformer_jax.data.schedule import Group
from hlformer_jax.typing import Array


class ExampleBatch(NamedTuple):
    """Examples of one step, padded to the largest batch of the run.

    Attributes:
      examples: rows of the arrays, [B, ...]; those of the first example where padded.
      mask: True for real examples.
    """

    examples: Any
    mask: Bool[Array, " B"]


class ExampleChunk(NamedTuple):
    """What a group of steps reads.

    Attributes:
      first: index of the first step in the run.
      num_steps: number of steps.
      features: all examples, arrays of one leading axis.
      indices: rows of each step; -1 where padded.
    """

    first: int
    num_steps: int
    features: Any
    indices: Int[Array, "S B"]


@dataclasses.dataclass
class ExampleFeed:
    """Chunks of a run, as `training.step.Feed` wants them.

    Attributes:
      examples: a pytree of arrays with one leading axis, that of the examples.
      groups: the steps of a whole run.
      mesh: the devices; each holds all examples.
    """

    examples: Any
    groups: Sequence[Group]
    mesh: Mesh

    bytes_ahead = 0.0

    def __post_init__(self) -> None:
        longest = max(len(group.steps) for group in self.groups)
        largest = max(len(step) for group in self.groups for step in group.steps)
        self._shape = (longest, largest)
        self._resident: Any = None

    def load(self) -> None:
        """Puts the examples on the devices."""
        if self._resident is None:
            self._resident = parallel.replicate(self.mesh, self.examples)

    def chunks(self, first: int = 0) -> Iterator[ExampleChunk]:
        """Chunks of the steps from `first` on."""
        self.load()
        for group in (group.after(first) for group in self.groups if group.end > first):
            indices = np.full(self._shape, -1, np.int32)
            for row, step in zip(indices, group.steps, strict=False):
                row[: len(step)] = step
            indices = parallel.replicate(self.mesh, indices)
            yield ExampleChunk(group.first, len(group.steps), self._resident, indices)

    def shapes(self) -> tuple[Any, Any]:
        """Shapes of a chunk's examples and indices."""
        return parallel.abstract(self.mesh, (self.examples, np.zeros(self._shape, np.int32)))

    def gather(
        self, features: Any, indices: Int[Array, "S B"], step: Int[Array, ""]
    ) -> ExampleBatch:
        """The batch of a step of a chunk (inside of jit)."""
        row = jnp.asarray(indices)[step]
        examples = jax.tree.map(lambda x: jnp.asarray(x)[jnp.maximum(row, 0)], features)
        return ExampleBatch(examples, row >= 0)

    def close(self) -> None:
        """Gives the examples' memory back."""
        self._resident = None
