"""Training runs that take seconds, and comparisons of their files.

`Tree` is a family of models that shares no code with the models of the papers: it embeds a tree in
hyperbolic space.
"""

import dataclasses
import json
import os
import signal
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh

from hlformer_jax.config import check, debug, default
from hlformer_jax.data.feed import Chunk, Group
from hlformer_jax.ops import lorentz
from hlformer_jax.pytrees import STATIC, register_dataclass
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.runtime import devices
from hlformer_jax.training import loop

STEPS = 9
"""Of a run: 3 epochs of 10 examples in batches of 4."""

CHUNKS = (2, 3, 4, 6, 8, 9)
"""The step after each chunk's last: chunks end with an epoch and before a multiple of two."""


def config(**options):
    """What the runs of both families have in common."""
    config = debug(default())
    config.train.update(batch_size=4, epochs=3, log_every=2, checkpoint_seconds=0.0)
    config.update_from_flattened_dict(options)
    return config


def tree(**options):
    """The configuration of a run of `Tree`."""
    return config(**{"eval.select": "nearest", "optim.learning_rate": 0.1, **options})


def retrieval(data_dir, **options):
    """The configuration of a run of a model of the family: one block, one branch."""
    small = config()
    small.data.update(data_dir=str(data_dir), visual_dim=8, text_dim=8, synthetic_videos=(10, 4, 5))
    small.data.update(max_frames=8, max_clips=4, max_words=6)
    small.model.update(name="gmmformer_v2", hidden_size=8, num_heads=2, glance=False)
    small.model.update(euclidean_blocks=1, lorentz_blocks=0, fusion="mean")
    small.model.update(dropout=0.1, input_dropout=0.1)
    small.loss.partial_order = 0.0
    small.update_from_flattened_dict(options)
    return small


def hover(data_dir, **options):
    """The configuration of a run of HOVER on synthetic trees."""
    config = debug(default("hover"))
    config.data.update(data_dir=str(data_dir), visual_dim=8, text_dim=6, synthetic_videos=(8, 4, 6))
    config.data.update(max_frames=64, max_clips=1)
    config.model.update(hidden_size=8, hyperbolic_dim=6, text_encoder="mean", lift="radius")
    config.train.update(batch_size=6, epochs=2, log_every=2, checkpoint_seconds=0.0)
    config.optim.update(learning_rate=0.01, hyperbolic_rate=0.01)
    config.update_from_flattened_dict(options)
    check(config)
    return config


def write(config, path):
    """Writes a configuration as a file that a command reads."""
    path.write_text(
        "from ml_collections import ConfigDict\n\n\n"
        f"def get_config():\n    return ConfigDict({config.to_dict()!r})\n"
    )


def program_fields(config, but=()):
    """What of a configuration the compiled steps depend on, but for some fields."""
    fields = json.loads(config.to_json())
    without = ("train.checkpoint_seconds", "train.patience", "train.baseline")
    for field in (*without, "eval.select", "data.data_dir", *but):
        section, _, name = field.partition(".")
        fields[section].pop(name, None)  # not every family has every field
    return json.dumps(fields)


def start(config, directory):
    """The trainer of a tree, while its directory is claimed."""
    return loop.start(config, directory, family=Tree(config))


def train(config, directory):
    """Trains a tree and tests it."""
    return loop.train(config, directory, family=Tree(config))


def signal_before(trainer, last, *numbers):
    """Makes the process receive signals before the chunk that ends with a step."""
    steps = trainer.steps

    def stop(state, chunk):
        if chunk.first + chunk.num_steps == last:
            for number in numbers:
                os.kill(os.getpid(), number)
        return steps(state, chunk)

    trainer.steps = stop


def train_stopped(config, directory, last):
    """Trains a family of the package until SIGTERM in the chunk that ends with a step."""
    stops = pytest.raises(loop.Stopped, match=f"saved step {last}")
    with stops, loop.start(config, directory) as trainer:
        signal_before(trainer, last, signal.SIGTERM)
        trainer.run()


def records(directory):
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def _newest(directory):
    """The newest state of a run, as NumPy."""
    series = directory / "checkpoints" / "newest"
    [step] = [path for path in series.iterdir() if path.name.isdigit()]
    return jax.tree.leaves(ocp.StandardCheckpointer().restore((step / "tree").absolute()))


def assert_same(directory, finished):
    """Two runs left the same bits: their records, their metrics and their state."""
    for name in ("metrics.jsonl", "test_metrics.json"):
        assert (directory / name).read_bytes() == (finished / name).read_bytes(), name
    for one, other in zip(_newest(directory), _newest(finished), strict=True):
        np.testing.assert_array_equal(one, other)


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
            self._resident = devices.replicate(self.mesh, self.examples)

    def chunks(self, first=0):
        self.load()
        for group in (group.after(first) for group in self.groups if group.end > first):
            indices = np.full(self._shape, -1, np.int32)  # of padding
            for row, step in zip(indices, group.steps, strict=False):
                row[: len(step)] = step
            indices = devices.replicate(self.mesh, indices)
            yield Chunk(group.first, len(group.steps), self._resident, indices)

    def shapes(self):
        return devices.abstract(self.mesh, (self.examples, np.zeros(self._shape, np.int32)))

    def gather(self, features, indices, step):
        row = jnp.asarray(indices)[step]
        examples = jax.tree.map(lambda x: jnp.asarray(x)[jnp.maximum(row, 0)], features)
        return ExampleBatch(examples, row >= 0)

    def close(self):
        self._resident = None


class Edges(NamedTuple):
    child: Any
    parent: Any


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Attraction:
    """Pulls children to their parents and from a node drawn at each step."""

    seed: Any
    margin: Any
    terms: tuple[str, ...] = dataclasses.field(metadata=STATIC, default=("near", "far"))

    def __call__(self, params, batch, step):
        points, (edges, real) = lorentz.from_space(params["space"]), batch
        child, parent = (jnp.where(real, nodes, 0) for nodes in edges)
        key = jax.random.fold_in(jax.random.key(self.seed), step)
        other = jax.random.randint(key, child.shape, 0, len(points))
        # At once, because a distance takes a second to trace.
        to_parent, to_other = lorentz.distance(points[child], points[jnp.stack([parent, other])])
        near, far = jnp.mean(to_parent), jnp.mean(jax.nn.relu(self.margin - to_other))
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
        edges = Edges(np.arange(1, len(PARENTS) + 1, dtype=np.int32), PARENTS)
        return ExampleFeed(edges, groups, self.mesh)

    def describe(self):
        return {"nodes": self.num_examples + 1}

    def validate(self, params):
        nodes = len(PARENTS) + 1
        distances = np.asarray(_distances(params["space"])) + np.diag(np.full(nodes, np.inf))
        accuracy = np.mean(distances[1:].argmin(1) == PARENTS)
        return Result({"nearest": 100 * float(accuracy)}, nodes - 1, nodes)

    test = validate

    def references(self):
        return {}

    def close(self):
        """Nothing to give back."""


@jax.jit
def _distances(space):
    points = lorentz.from_space(space)
    return lorentz.distance(points[:, None], points[None])
