"""Command line of sweeps.

    python -m hlformer_jax.sweep --config=configs/sweeps/hlformer_table2.py --workdir=DIR
        --config.base.data.manual_dir=PATH

Trains every variant with every seed, each in DIR/VARIANT/seedN, and writes DIR/table.md, .csv,
.json and DIR/sweep.png, .svg from all results so far. The same command resumes an interrupted sweep
and repeats failed runs. `--only=NAME` and `--except=NAME`, which may be repeated, choose variants.
A variant whose data is missing is skipped with a message and marked in the table.
`--task=I --tasks=N` trains every N-th run, so that several processes can share a sweep; the process
that finishes last writes the complete table.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict, config_flags

from hlformer_jax import cli, terminal
from hlformer_jax.errors import UserError, describe
from hlformer_jax.sweep import Run, choose, expand, mark_given, share, task_of_array
from hlformer_jax.text import counted

CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "Configuration of a sweep, for example configs/sweeps/hlformer_table2.py; with :debug it"
    " takes minutes.",
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Directory of the sweep (default: runs/NAME, after the file of --config)."
)
OVERWRITE = flags.DEFINE_bool(
    "overwrite", False, "Replace existing tables and plots, even if the sweep did not write them."
)
ONLY = flags.DEFINE_multi_string("only", [], "Train only this variant, by its name in the table")
EXCEPT = flags.DEFINE_multi_string("except", [], "Leave out this variant, by its name in the table")
TASK = flags.DEFINE_integer("task", None, "Index of this task, from 0 (default: from Slurm).")
TASKS = flags.DEFINE_integer(
    "tasks", None, "Number of tasks that share the sweep (default: from Slurm)."
)
flags.declare_key_flag("quiet")


def main(argv: Sequence[str]) -> int:
    """Run the sweep and return the exit status; wrong input is reported in one line, status 1."""
    if len(argv) > 1:
        return cli.fail(f"unexpected argument {argv[1]!r}: options begin with --")
    if CONFIG.value is None:
        return cli.fail("--config is missing: for example configs/sweeps/hlformer_table2.py")
    if (TASK.value is None) != (TASKS.value is None):
        return cli.fail("--task and --tasks go together (launch/sweep.sh --tasks=N passes both)")
    sweep: ConfigDict = CONFIG.value
    task, tasks = TASK.value, TASKS.value
    try:
        if "variants" not in sweep:
            return cli.fail(
                "--config is not a sweep: give a file of configs/sweeps, or train with"
                " hlformer_jax.main"
            )
        mark_given(sweep, config_flags.get_override_values(flags.FLAGS[CONFIG.name]))
        planned = expand(sweep)
        if task is None or tasks is None:
            task, tasks = task_of_array(os.environ)
        selection = choose(planned, ONLY.value, EXCEPT.value)
        mine = share(selection, task, tasks)
    except OSError as error:  # a file that could not be read is reported at its first use
        return cli.fail(f"the configuration file cannot be read: {cli.last_line(error)}")
    except UserError as error:
        return cli.fail(describe(error))
    if tasks > 1:
        terminal.report(f"task {task} of {tasks}: {len(mine)} of {len(selection)} runs")
    root = Path(WORKDIR.value or cli.default_workdir())
    return perform(sweep, planned, selection, mine, root, OVERWRITE.value)


def perform(
    sweep: ConfigDict,
    planned: Sequence[Run],
    selection: Sequence[Run],
    mine: Sequence[Run],
    root: Path,
    overwrite: bool = False,
) -> int:
    """Train the runs of this task and print the table of all runs; return the exit status.

    Args:
      sweep: the sweep's configuration.
      planned: all runs of the sweep, which the tables show.
      selection: the runs of the variants that --only and --except select.
      mine: the runs of `selection` that this task trains.
      root: the directory of the sweep.
      overwrite: whether to replace tables and plots that the sweep did not write.
    """
    # Imported here, so that checks of the command line and --help do not load JAX.
    from hlformer_jax import files
    from hlformer_jax.figures import curves
    from hlformer_jax.sweep import runs, tables
    from hlformer_jax.training.loop import Stopped

    def after(run: Run) -> None:
        try:
            curves.draw_run(root / run.directory, run.title, replace)
        except Exception as error:  # a failing picture must not end the sweep
            terminal.warn(f"no curves of {run.title}: {error}")
        tables.publish(sweep, planned, root, replace, selection)

    replace = files.replacing(overwrite, listed=True)
    try:
        tables.check_place(root, replace)
        runs.check(selection, root)
        may_skip_all = len(mine) < len(selection)
        ready = runs.open_data(mine, root, terminal.warn, may_skip_all, planned)
        failures = runs.perform(ready, root, terminal.report, terminal.warn, after)
        tables.show(tables.publish(sweep, planned, root, replace, selection))
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return stopped.status
    except KeyboardInterrupt:
        return cli.interrupted()
    except (UserError, OSError) as error:
        return cli.fail(describe(error))
    if failures:
        count = f"{counted(len(failures), 'run')} of {len(mine)}"
        return cli.fail(f"{count} failed; run the same command to try them again")
    return 0


def program() -> None:
    """Run the console command hlformer-sweep."""
    cli.run_program(main)


if __name__ == "__main__":
    program()
