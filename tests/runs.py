"""Runs that are short enough to be made many times, and what is compared of them."""

import json
import os
import signal

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import toy

from hlformer_jax.config import check, debug, default
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
    """The configuration of a run of `toy.Tree`."""
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


def program_fields(config):
    """What of a configuration the compiled steps depend on."""
    fields = json.loads(config.to_json())
    for section, name in (
        ("train", "checkpoint_seconds"),
        ("train", "patience"),
        ("train", "baseline"),
        ("eval", "select"),
        ("data", "data_dir"),
    ):
        fields[section].pop(name, None)  # not every family has every field
    return json.dumps(fields)


def start(config, directory):
    """The trainer of a tree, while its directory is claimed."""
    return loop.start(config, directory, family=toy.Tree(config))


def train(config, directory):
    """Trains a tree and tests it."""
    return loop.train(config, directory, family=toy.Tree(config))


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
