"""Command line of plots: see the package's docstring."""

import sys
from collections.abc import Sequence
from pathlib import Path

from hlformer_jax import command
from hlformer_jax.errors import UserError
from hlformer_jax.plots.runs import draw_run, parse
from hlformer_jax.plots.sweeps import draw_sweep


def main(argv: Sequence[str]) -> int:
    """Draws the plots of the directory that is given; a wrong one is one line."""
    if len(argv) != 2:
        return command.fail("give one directory, of a run or of a sweep")
    directory = Path(argv[1])
    try:
        table = directory / "table.json"
        if not table.exists():
            if draw_run(directory):
                return 0
            return command.fail(f"{directory} holds neither table.json nor a metrics.jsonl to draw")
        content = parse(table.read_text(encoding="utf-8"), str(table))
        draw_sweep(content, directory)
        for row in content["variants"]:
            for run in row["runs"]:
                draw_run(directory / run["directory"], run.get("title", run["directory"]))
    except (UserError, OSError) as error:
        return command.fail(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
