"""Runs of trained models, without training, on features of the films' encoder."""

import json

import archive
import tiny

from hlformer_jax.data import extracted
from hlformer_jax.training import checkpoints


def write_run(path, config, fingerprint="f" * 64):
    config.data.manual_dir = str(path / "features")
    checkpoints.save_params(path / "checkpoints" / "best", tiny.params(config), {"epoch": 1})
    (path / "config.json").write_text(json.dumps({"config": json.loads(config.to_json())}))
    (path / "features").mkdir()
    facts = {"name": "colours", "fingerprint": fingerprint}
    (path / "features" / extracted.ENCODER).write_text(json.dumps(facts))
    return path


def configuration(name, **options):
    config = tiny.config(**{"model.name": name, **options})
    config.model.euclidean_blocks = 1
    config.data.update(visual_dim=archive.WIDTH, text_dim=archive.WIDTH, dtype="float32")
    config.eval.video_batch = 2
    if name != "hlformer":
        config.model.update(lorentz_blocks=0, fusion="mean")
    return config
