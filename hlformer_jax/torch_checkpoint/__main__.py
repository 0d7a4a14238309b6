"""The command `python -m hlformer_jax.torch_checkpoint best.ckpt OUT`.

Converts the authors' checkpoint best.ckpt to the directory OUT, and prints the command that
evaluates it. --checkpoint and --init of hlformer_jax.main take OUT.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from hlformer_jax import cli
from hlformer_jax.errors import UserError, describe
from hlformer_jax.torch_checkpoint.convert import (
    config_file,
    convert,
    differing_blocks,
    evaluation_command,
    undetermined_fields,
)
from hlformer_jax.training.checkpoints import summary


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    if len(argv) != 3:
        print("usage: python -m hlformer_jax.torch_checkpoint best.ckpt OUT", file=sys.stderr)
        return 2
    notes: list[str] = []
    try:
        info = convert(Path(argv[1]), Path(argv[2]), notes.append)
    except (UserError, OSError) as error:
        return cli.fail(describe(error))
    print(f"{argv[2]}: {info['model.name']} ({summary(info)})")
    if "collection" not in info:
        print(
            "The file does not name the collection of its training data. If that is not the"
            f" collection of {config_file(info)}, replace the configuration in the command below."
        )
    for difference in differing_blocks(info):
        print(f"Warning: {difference}. The file may be incomplete.")
    for note in notes:
        print(f"Note: {note}.")
    if fields := undetermined_fields(info):
        listed = ", ".join(f"{name}={value}" for name, value in fields.items())
        print(
            f"The file does not determine {listed}: these are the values of {config_file(info)}."
            " If the model was trained with others, add them to the command below."
        )
    print("To evaluate it, with PATH the directory of the released features:")
    print(evaluation_command(info, argv[2]))
    return 0


if __name__ == "__main__":
    cli.run_program(main)
