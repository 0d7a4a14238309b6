"""A family of models that shares nothing with that of the paper: a tree in hyperbolic space.

Its batches are edges, its parameters points of the hyperboloid, its score their distance. Whatever
trains, resumes and reports it knows nothing of videos; and it compiles in a moment.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from hlformer_jax import parallel
from hlformer_jax.data.feed import Chunk, Group
from hlformer_jax.ops import lorentz
from hlformer_jax.retrieval.ranking import Result

PARENTS = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3, 4], np.int32)  # of nodes 1 to 10


class ExampleBatch(NamedTuple):
    """Rows of the arrays, those of the first example where padded; `mask` is True for real ones."""

    examples: Any
    mask: Any


@dataclasses.dataclass
class ExampleFeed:
    """Chunks of a run whose data is a few arrays: every device holds all, a batch is some rows."""

    examples: Any
    groups: Sequence[Group]
    mesh: Mesh

    bytes_ahead = 0.0

    def __post_init__(self):
        longest = max(len(group.steps) for group in self.groups)
        largest = max(len(step) for group in self.groups for step in group.steps)
        self._shape = (longest, largest)
        self._resident = None

    def load(self):
        if self._resident is None:
            self._resident = parallel.replicate(self.mesh, self.examples)

    def chunks(self, first=0):
        self.load()
        for group in (group.after(first) for group in self.groups if group.end > first):
            indices = np.full(self._shape, -1, np.int32)  # of padding
            for row, step in zip(indices, group.steps, strict=False):
                row[: len(step)] = step
            indices = parallel.replicate(self.mesh, indices)
            yield Chunk(group.first, len(group.steps), self._resident, indices)

    def shapes(self):
        return parallel.abstract(self.mesh, (self.examples, np.zeros(self._shape, np.int32)))

    def gather(self, features, indices, step):
        row = jnp.asarray(indices)[step]
        examples = jax.tree.map(lambda x: jnp.asarray(x)[jnp.maximum(row, 0)], features)
        return ExampleBatch(examples, row >= 0)

    def close(self):
        self._resident = None


class Edges(NamedTuple):
    child: Any
    parent: Any


@flax.struct.dataclass
class Attraction:
    """Pulls children to their parents and from a node drawn at each step."""

    seed: Any
    margin: Any
    terms: tuple[str, ...] = flax.struct.field(pytree_node=False, default=("near", "far"))

    def __call__(self, params, batch, step):
        points, (edges, real) = lorentz.from_space(params["space"]), batch
        child, parent = (jnp.where(real, nodes, 0) for nodes in edges)
        key = jax.random.fold_in(jax.random.key(self.seed), step)
        other = jax.random.randint(key, child.shape, 0, len(points))
        away = lambda nodes: lorentz.distance(points[child], points[nodes])
        near, far = jnp.mean(away(parent)), jnp.mean(jax.nn.relu(self.margin - away(other)))
        return near + far, {"near": near, "far": far}


class Tree:
    """The family."""

    fingerprint, num_examples = "a tree of 11 nodes", len(PARENTS)

    def __init__(self, config, mesh=None):
        self.config, self.mesh = config, mesh or parallel.mesh()

    def check_trainable(self):
        """Whatever the configuration, a tree can be trained."""

    def init_params(self):
        points = np.random.default_rng(self.config.seed).normal(size=(len(PARENTS) + 1, 2))
        return {"space": jnp.asarray(0.1 * points, jnp.float32)}

    def project(self, params):
        return jax.tree.map(lambda space: jnp.clip(space, -2.0, 2.0), params)

    def loss(self, steps_per_epoch):
        return Attraction(np.int32(self.config.seed), np.float32(1))

    def optimiser(self, total_steps):
        return optax.sgd(self.config.optim.learning_rate, momentum=0.9)

    def feed(self, groups):
        edges = Edges(np.arange(1, len(PARENTS) + 1, dtype=np.int32), PARENTS)
        return ExampleFeed(edges, groups, self.mesh)

    def describe(self):
        return {"nodes": self.num_examples + 1}

    def validate(self, params):
        nodes = len(PARENTS) + 1
        distances = np.asarray(_distances(params["space"])) + np.diag(np.full(nodes, np.inf))
        found = np.mean(distances[1:].argmin(1) == PARENTS)
        return Result({"nearest": 100 * float(found)}, nodes - 1, nodes)

    test = validate

    def references(self):
        return {}

    def close(self):
        """Nothing to give back."""


@jax.jit
def _distances(space):
    points = lorentz.from_space(space)
    return lorentz.distance(points[:, None], points[None])
