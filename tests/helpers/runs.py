"""Training runs that take seconds, and comparisons of their files.

`Tree` is a family of models that shares no code with the models of the papers. It embeds a tree in
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
"""Steps of a run: 3 epochs of 10 examples in batches of 4."""

CHUNKS = (2, 3, 4, 6, 8, 9)
"""Step after the last of each chunk: chunks end with an epoch and before a multiple of two."""


def config(**options):
    """Return the configuration that the runs of `Tree` and of retrieval share."""
    config = debug(default())
    config.train.update(batch_size=4, epochs=3, log_every=2, checkpoint_seconds=0.0)
    config.update_from_flattened_dict(options)
    return config


def tree(**options):
    """Return the configuration of a run of `Tree`."""
    return config(**{"eval.select": "nearest", "optim.learning_rate": 0.1, **options})


def retrieval(data_dir, **options):
    """Return the configuration of a run of retrieval: one block, one branch."""
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
    """Return the configuration of a run of HOVER on synthetic trees."""
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
    """Write a configuration to a file that a command reads."""
    path.write_text(
        "from ml_collections import ConfigDict\n\n\n"
        f"def get_config():\n    return ConfigDict({config.to_dict()!r})\n"
    )


def program_fields(config, excluded=()):
    """Return the fields that the compiled steps depend on, without the excluded ones."""
    fields = json.loads(config.to_json())
    unused = ("train.checkpoint_seconds", "train.patience", "train.baseline")
    for field in (*unused, "eval.select", "data.data_dir", *excluded):
        section, _, name = field.partition(".")
        fields[section].pop(name, None)  # not every family has every field
    return json.dumps(fields)


def start(config, directory):
    """Return the trainer of a tree; its directory is claimed while the context lasts."""
    return loop.start(config, directory, family=Tree(config))


def train(config, directory):
    """Train a tree and test it."""
    return loop.train(config, directory, family=Tree(config))


def signal_before(trainer, last, *numbers):
    """Send signals to this process before the chunk that ends with the step `last`."""
    steps = trainer.steps

    def stop(state, chunk):
        if chunk.first + chunk.num_steps == last:
            for number in numbers:
                os.kill(os.getpid(), number)
        return steps(state, chunk)

    trainer.steps = stop


def train_stopped(config, directory, last):
    """Train a family of the package until SIGTERM in the chunk that ends with the step `last`."""
    stops = pytest.raises(loop.Stopped, match=f"saved step {last}")
    with stops, loop.start(config, directory) as trainer:
        signal_before(trainer, last, signal.SIGTERM)
        trainer.run()


def records(directory):
    """Return the records in metrics.jsonl."""
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def _newest(directory):
    """Return the arrays of the newest state of a run, as NumPy."""
    series = directory / "checkpoints" / "newest"
    [step] = [path for path in series.iterdir() if path.name.isdigit()]
    return jax.tree.leaves(ocp.StandardCheckpointer().restore((step / "tree").absolute()))


def assert_same(directory, finished):
    """Assert that two runs have the same records, metrics and state, bit for bit."""
    for name in ("metrics.jsonl", "test_metrics.json"):
        assert (directory / name).read_bytes() == (finished / name).read_bytes(), name
    for array, expected in zip(_newest(directory), _newest(finished), strict=True):
        np.testing.assert_array_equal(array, expected)


PARENTS = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3, 4], np.int32)  # of nodes 1 to 10


class ExampleBatch(NamedTuple):
    """Rows of the arrays; `mask` is False for padding, which repeats the first example."""

    examples: Any
    mask: Any


@dataclasses.dataclass
class ExampleFeed:
    """Feed of a few arrays, which every device holds; a batch is a selection of their rows."""

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
            indices = np.full(self._shape, -1, np.int32)  # -1 marks padding
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
    """Loss that pulls children to their parents and away from a node drawn at each step."""

    seed: Any
    margin: Any
    terms: tuple[str, ...] = dataclasses.field(metadata=STATIC, default=("attraction", "repulsion"))

    def __call__(self, params, batch, step):
        points, (edges, real) = lorentz.from_space(params["space"]), batch
        child, parent = (jnp.where(real, nodes, 0) for nodes in edges)
        key = jax.random.fold_in(jax.random.key(self.seed), step)
        drawn = jax.random.randint(key, child.shape, 0, len(points))
        # One call for both distances, because tracing a distance takes a second.
        to_parent, to_drawn = lorentz.distance(points[child], points[jnp.stack([parent, drawn])])
        attraction, repulsion = jnp.mean(to_parent), jnp.mean(jax.nn.relu(self.margin - to_drawn))
        return attraction + repulsion, {"attraction": attraction, "repulsion": repulsion}


class Tree:
    """Family of models that embeds a tree of 11 nodes."""

    fingerprint, num_examples = "a tree of 11 nodes", len(PARENTS)

    def __init__(self, config, mesh=None):
        self.config, self.mesh = config, mesh or devices.mesh()

    def check_trainable(self):
        """Accept every configuration."""

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
        """Do nothing: a tree holds no resources."""


@jax.jit
def _distances(space):
    points = lorentz.from_space(space)
    return lorentz.distance(points[:, None], points[None])
