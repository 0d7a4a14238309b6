"""Command line of the converter; see `convert`."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app

from hlformer_jax.errors import UserError
from hlformer_jax.torch_checkpoint.convert import config_file, convert


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit status."""
    if len(argv) != 3:
        print("usage: python -m hlformer_jax.torch_checkpoint best.ckpt OUT", file=sys.stderr)
        return 2
    try:
        info = convert(Path(argv[1]), Path(argv[2]))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    described = ", ".join(f"{key} {value}" for key, value in info.items() if "." not in key)
    print(f"{argv[2]}: {info['model.name']} ({described})")
    if "collection" not in info:
        print(
            "The file does not say which collection it was trained on. Where it is not that of"
            f" {config_file(info)}, give the configuration of the other one: anet, tvr, charades."
        )
    print("To evaluate it, with PATH the directory of the released features:")
    print(evaluation_command(info, argv[2]))
    return 0


def evaluation_command(info: Mapping[str, Any], out: str) -> str:
    """The command line that evaluates a converted checkpoint.

    Args:
      info: the result of `convert`.
      out: the converted checkpoint.

    Returns:
      One line for a shell; PATH in it stands for the directory of the released features.
    """
    fields = {
        f"config.{name}": tuple(value) if isinstance(value, list) else value
        for name, value in info.items()
        if "." in name
    }
    options = {
        "config": config_file(info),
        "mode": "evaluate",
        "checkpoint": out,
        **fields,
        "config.data.manual_dir": "PATH",
    }
    flags = (shlex.quote(f"--{name}={value}") for name, value in options.items())
    return " ".join(["python -m hlformer_jax.main", *flags])


if __name__ == "__main__":
    app.run(main)
