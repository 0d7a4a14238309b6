"""A family of models that shares nothing with that of the paper: a tree in hyperbolic space.

Its batches are edges, its parameters points of the hyperboloid, its score their distance. Whatever
trains, resumes and reports it knows nothing of videos; and it compiles in a moment.
"""

from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from hlformer_jax.ops import lorentz
from hlformer_jax.parallel import devices
from hlformer_jax.retrieval.results import Result

PARENTS = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3, 4], np.int32)  # of nodes 1 to 10


class Edges(NamedTuple):
    child: Any
    parent: Any


class Chunk(NamedTuple):
    first: int
    num_steps: int
    features: Edges
    indices: Any


class EdgeFeed:
    """Edges of a schedule's steps; -1 pads a batch."""

    bytes_ahead = 0.0

    def __init__(self, groups, mesh, batch_size):
        self.mesh, self._groups, self._size = mesh, groups, batch_size
        self._longest = max(len(group.steps) for group in groups)

    def load(self):
        """All of it is at hand."""

    def close(self):
        """Nothing to give back."""

    def _features(self):
        return Edges(np.arange(1, len(PARENTS) + 1, dtype=np.int32), PARENTS)

    def chunks(self, first=0):
        for group in self._groups:
            if group.end > first:
                left = group.after(first)
                indices = np.full((self._longest, self._size), -1, np.int32)
                for row, edges in zip(indices, left.steps, strict=False):
                    row[: len(edges)] = edges
                arrays = devices.replicate(self.mesh, (self._features(), indices))
                yield Chunk(left.first, len(left.steps), *arrays)

    def shapes(self):
        indices = np.zeros((self._longest, self._size), np.int32)
        return devices.abstract(self.mesh, (self._features(), indices))

    def gather(self, features, indices, step):
        row = indices[step]
        pick = lambda nodes: jnp.where(row >= 0, nodes[row], 0)
        return jax.tree.map(pick, features)


@flax.struct.dataclass
class Attraction:
    """Pulls children to their parents and from a node drawn at each step."""

    seed: Any
    margin: Any
    terms: tuple[str, ...] = flax.struct.field(pytree_node=False, default=("near", "far"))

    def __call__(self, params, batch, step):
        points = lorentz.from_space(params["space"])
        key = jax.random.fold_in(jax.random.key(self.seed), step)
        other = jax.random.randint(key, batch.child.shape, 0, len(points))
        away = lambda nodes: lorentz.distance(points[batch.child], points[nodes])
        near, far = jnp.mean(away(batch.parent)), jnp.mean(jax.nn.relu(self.margin - away(other)))
        return near + far, {"near": near, "far": far}


class Tree:
    """The family."""

    fingerprint, num_examples = "a tree of 11 nodes", len(PARENTS)

    def __init__(self, config, mesh=None):
        self.config, self.mesh = config, mesh or devices.mesh()

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
        return EdgeFeed(groups, self.mesh, self.config.train.batch_size)

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
