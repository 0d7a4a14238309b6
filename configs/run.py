"""The configuration of an existing run.

    python -m hlformer_jax.main --config=configs/run.py:RUN --mode=evaluate --workdir=DIR \
        --checkpoint=RUN --config.eval.corpus=int8

RUN is the directory of the run. Further options change fields; a run with other fields needs a
directory of its own. `--mode=evaluate --workdir=RUN` without `--config` evaluates a run unchanged.
"""

from pathlib import Path

from ml_collections import ConfigDict

from hlformer_jax.config import ConfigError


def get_config(name: str = "") -> ConfigDict:
    """Return the configuration of a run's directory."""
    from hlformer_jax.training.loaded_run import read_config  # here: it loads JAX

    if not name:
        raise ConfigError("name the directory of a run: --config=configs/run.py:RUN")
    return read_config(Path(name))
