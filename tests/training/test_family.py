"""A family of another kind goes through the seams: other batches, other geometry, other score.

The toy learns points of the hyperboloid for classes, and a linear map of features to tangent
vectors, whose lifted points are to lie near the point of their class. It has nothing in common with
the package's models, and the trainer trains, evaluates and resumes it as it is.
"""

from typing import Any, NamedTuple

import flax.struct
import jax
import numpy as np
import optax
import pytest

from hlformer_jax import parallel
from hlformer_jax.config import debug, default
from hlformer_jax.data.feed import ExampleFeed
from hlformer_jax.ops import lorentz
from hlformer_jax.retrieval import corpus, ranking
from hlformer_jax.retrieval.results import Result
from hlformer_jax.training import loop


# --- the toy family: from here ------------------------------------------------------------------
class Labelled(NamedTuple):
    features: Any  # [B, D]
    labels: Any  # [B]


class Distance:
    """A scorer: nearer on the hyperboloid is better."""

    def store(self, points, dtype):
        return points

    def similarities_per_video(self, stored):
        return 1

    def width(self, stored):
        return stored.shape[-1]

    def scores(self, queries, stored):
        return -lorentz.distance(queries[:, None], stored[None])

    def locate(self, queries, stored):
        return {}


jax.tree_util.register_static(Distance)


@flax.struct.dataclass
class NearestClass:
    terms: tuple = flax.struct.field(pytree_node=False, default=("nearest",))

    def __call__(self, params, batch, step):
        scores = Distance().scores(queries(params, batch.examples.features), classes(params))
        value = optax.softmax_cross_entropy_with_integer_labels(
            scores, batch.examples.labels
        ).mean()
        return value, {"nearest": value}


queries = jax.jit(lambda params, features: lorentz.exp_map0(features @ params["map"]))
classes = jax.jit(lambda params: lorentz.exp_map0(params["classes"]))
ranks = jax.jit(lambda stored, x, own: ranking.ranks(corpus.scores(stored, x)[:, :4], own))


class Toy:
    fingerprint, num_examples = "toy", 24

    def __init__(self, mesh):
        self.mesh, rng = mesh, np.random.default_rng(0)
        labels = np.arange(24, dtype=np.int32) % 4
        noise = rng.normal(size=(24, 6))
        self.data = Labelled((np.eye(6)[labels] + 0.2 * noise).astype(np.float32), labels)

    def init_params(self):
        keys = jax.random.split(jax.random.key(0))
        shapes = {"map": (6, 2), "classes": (4, 2)}
        draw = lambda key, shape: 0.1 * jax.random.normal(key, shape)
        return {n: draw(key, s) for key, (n, s) in zip(keys, shapes.items(), strict=True)}

    def feed(self, groups):
        return ExampleFeed(self.data, groups, self.mesh)

    def validate(self, params):
        stored = corpus.build(classes(params), Distance(), "float32", mesh=self.mesh)
        rank = ranks(stored, queries(params, self.data.features), self.data.labels)
        return Result({"MRR": ranking.mean_reciprocal_rank(rank)}, 24, 4)

    test = validate
    loss = lambda self, steps_per_epoch: NearestClass()
    optimiser = lambda self, total_steps: optax.sgd(2.0)
    project = lambda self, params: params
    describe = references = lambda self: {}
    check_trainable = close = lambda self: None


# --- to here ------------------------------------------------------------------------------------


def _config():
    config = debug(default())
    config.train.update(epochs=3, batch_size=6, log_every=2, checkpoint_seconds=0.0)
    config.eval.select = "MRR"
    return config


@pytest.mark.slow  # test_loop.py trains another such family
def test_a_family_of_another_kind_trains_evaluates_and_resumes(tmp_path):
    mesh = parallel.mesh()
    before = Toy(mesh).test(Toy(mesh).init_params()).metrics["MRR"]
    outcome = loop.train(_config(), tmp_path / "whole", family=Toy(mesh))
    best = next(iter(outcome.results.values())).metrics["MRR"]
    assert before < 0.9 < best
    trainer = loop.Trainer(_config(), tmp_path / "stopped", family=Toy(mesh))
    steps = trainer.steps

    def die(state, chunk):
        if chunk.first >= 6:
            raise MemoryError
        return steps(state, chunk)

    trainer.steps = die
    try:
        trainer.run()
    except MemoryError:
        pass
    again = loop.train(_config(), tmp_path / "stopped", family=Toy(mesh))
    assert again.results == outcome.results
    for name in ("metrics.jsonl", "test_metrics.json"):
        both = [(tmp_path / run / name).read_bytes() for run in ("whole", "stopped")]
        assert both[0] == both[1]
