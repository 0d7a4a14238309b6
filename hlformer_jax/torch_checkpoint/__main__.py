"""Command line of the converter; see `convert`."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import app

from hlformer_jax.torch_checkpoint.convert import config_file, convert


def main(argv: Sequence[str]) -> int:
    """Runs the command."""
    if len(argv) != 3:
        print("usage: python -m hlformer_jax.torch_checkpoint best.ckpt OUT", file=sys.stderr)
        return 2
    try:
        info = convert(Path(argv[1]), Path(argv[2]))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{argv[2]}: converted from {argv[1]}")
    fields = {f"config.{name}": value for name, value in info.items() if "." in name}
    fields["config.model.euclidean_widths"] = tuple(info.get("model.euclidean_widths", ()))
    options = " ".join(shlex.quote(f"--{name}={value}") for name, value in fields.items())
    print(
        f"evaluate with --config={config_file(info)}, or that of the data set it was trained on,"
        f" --mode=evaluate --checkpoint={shlex.quote(argv[2])} {options}"
    )
    return 0


if __name__ == "__main__":
    app.run(main)
