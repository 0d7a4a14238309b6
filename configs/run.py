"""The configuration of an existing run.

    python -m hlformer_jax.main --config=configs/run.py:RUN --mode=evaluate --workdir=DIR \
        --checkpoint=RUN --config.eval.corpus=int8

RUN is the directory of the run. Further options change fields of its configuration; a run with
changed fields needs another directory. `--mode=evaluate --workdir=RUN` without `--config` evaluates
a run unchanged.
"""

from pathlib import Path

from ml_collections import ConfigDict

from hlformer_jax.config import ConfigError


def get_config(name: str = "") -> ConfigDict:
    """Return the configuration of a run's directory."""
    from hlformer_jax.training.loaded_run import read_config  # imported here because it loads JAX

    if not name:
        raise ConfigError("name the directory of a run: --config=configs/run.py:RUN")
    return read_config(Path(name))
