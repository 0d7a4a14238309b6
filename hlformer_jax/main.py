"""Command line: `python -m hlformer_jax.main --config=configs/anet.py --workdir=DIR`.

Parses flags and dispatches to training, evaluation or a query.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from hlformer_jax import cli, terminal
from hlformer_jax.cli import command_line
from hlformer_jax.config import check
from hlformer_jax.errors import UserError, describe
from hlformer_jax.lazy import optional

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "Configuration file, for example configs/anet.py or configs/anet.py:debug."
)
MODE = flags.DEFINE_enum(
    "mode",
    "train",
    ["train", "evaluate", "query", "ensemble"],
    "train; evaluate a checkpoint on the test split; rank videos for a query; or rank the"
    " test split by the combined scores of several runs (ensemble).",
)
WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "Directory of the run (default: runs/NAME, after the configuration file). evaluate: directory"
    " for test_metrics.json (default: the directory of --checkpoint).",
)
CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    None,
    "evaluate, query: a run's directory or a converted checkpoint (default: --workdir).",
)
INIT = flags.DEFINE_string(
    "init",
    None,
    "train: start from the parameters of this run (its best epoch) or converted checkpoint,"
    " with a new optimiser, in a new --workdir.",
)
PROFILE = flags.DEFINE_bool(
    "profile",
    False,
    "train: write a trace of the second (or the only) chunk of steps to WORKDIR/profile.",
)
COORDINATOR = flags.DEFINE_string(
    "coordinator", "", "HOST:PORT of process 0, for several processes (not needed under Slurm)."
)
PROCESSES = flags.DEFINE_integer("processes", 1, "Number of processes of this run.")
PROCESS = flags.DEFINE_integer("process", 0, "Index of this process, from 0.")
QUERY = flags.DEFINE_multi_string(
    "query", [], "query: a sentence to rank videos for; needs --encoder"
)
CAPTION = flags.DEFINE_multi_string(
    "caption", [], "query: id of a caption of the split, to rank videos by its prepared features"
)
ENCODER = flags.DEFINE_string(
    "encoder", None, "query: hub id or folder of the encoder that made the captions' features."
)
SPLIT = flags.DEFINE_enum(
    "split", "test", ["train", "val", "test"], "query: the split whose videos are ranked."
)
TOP = flags.DEFINE_integer("top", 10, "query: number of videos to print.", lower_bound=1)
SCORES = flags.DEFINE_string("scores", None, "evaluate: write the test scores to this .npz file.")
EMBEDDINGS = flags.DEFINE_string(
    "embeddings", None, "evaluate: write the embeddings of the test split to this .npz file."
)
MEMBER = flags.DEFINE_multi_string(
    "member", [], "ensemble: a score file that --scores wrote (give two or more)"
)
OVERWRITE = flags.DEFINE_bool(
    "overwrite",
    False,
    "evaluate, ensemble: replace existing files, except the metrics of a run.",
)
flags.declare_key_flag("quiet")

_TRAIN, _EVALUATE = ("--mode=train",), ("--mode=evaluate",)
_QUERY, _ENSEMBLE = ("--mode=query",), ("--mode=ensemble",)

MODES = {
    "config": (*_TRAIN, *_EVALUATE, *_QUERY),
    "checkpoint": (*_EVALUATE, *_QUERY),
    "init": _TRAIN,
    "profile": _TRAIN,
    "coordinator": (*_TRAIN, *_EVALUATE),
    "processes": (*_TRAIN, *_EVALUATE),
    "process": (*_TRAIN, *_EVALUATE),
    "query": _QUERY,
    "caption": _QUERY,
    "encoder": _QUERY,
    "split": _QUERY,
    "top": _QUERY,
    "scores": _EVALUATE,
    "embeddings": _EVALUATE,
    "member": _ENSEMBLE,
    "overwrite": (*_EVALUATE, *_ENSEMBLE),
}
"""The modes of each flag; --workdir, --mode and --quiet go with every mode."""


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status: 1, with a line of error, for wrong input."""
    if len(argv) > 1:
        return cli.fail(f"unexpected argument {argv[1]!r}: options begin with --")
    if misplaced := cli.misplaced_flag(MODES, f"--mode={MODE.value}"):
        return cli.fail(misplaced)
    if MODE.value == "ensemble":
        return _rank_by_ensemble()
    run: str = CHECKPOINT.value or WORKDIR.value or ""
    if CONFIG.value is None and (MODE.value == "train" or not run):
        return cli.fail("--config is missing: for example --config=configs/synthetic.py")
    # Imported here so that flags are checked, and --help answers, without loading JAX.
    from hlformer_jax.runtime import compiler, processes
    from hlformer_jax.training import loaded_run, loop

    try:
        config = loaded_run.read_config(Path(run)) if CONFIG.value is None else CONFIG.value
    except UserError as error:
        return cli.fail(f"--config is missing, and {error}")
    try:
        config.to_dict()  # a file that could not be read is reported at its first use
    except OSError as error:
        return cli.fail(f"the configuration file cannot be read: {cli.last_line(error)}")
    if "variants" in config:
        file = getattr(flags.FLAGS["config"], "config_filename")  # noqa: B009 - untyped
        sweep = command_line("sweep", f"--config={file}")
        return cli.fail(f"--config is a sweep: run it with {sweep}")
    try:
        check(config)
        processes.join_processes(COORDINATOR.value, PROCESSES.value, PROCESS.value)
        compiler.configure(config)
        if MODE.value == "train":
            directory = Path(WORKDIR.value or cli.default_workdir())
            init = Path(INIT.value) if INIT.value else None
            loop.train(config, directory, PROFILE.value, init=init)
        elif MODE.value == "query":
            _answer(config, Path(run or cli.default_workdir()))
        else:
            _evaluate(config, Path(run or cli.default_workdir()))
        return 0
    except loop.Stopped as stopped:
        print(stopped, file=sys.stderr)
        return stopped.status
    except KeyboardInterrupt:
        return cli.interrupted()
    except (UserError, OSError) as error:
        return cli.fail(describe(error))


def _evaluate(config: Any, source: Path) -> None:
    """Evaluate a run or a converted checkpoint on the test split; print the metrics."""
    from hlformer_jax.retrieval import ranking
    from hlformer_jax.runtime import processes
    from hlformer_jax.training import loaded_run

    directory = Path(WORKDIR.value or source)
    scores, embeddings = (Path(x) if x else None for x in (SCORES.value, EMBEDDINGS.value))
    result = loaded_run.evaluate_checkpoint(
        config, source, scores, print, directory, OVERWRITE.value, embeddings
    )
    if not processes.is_first():
        return
    title = f"Test split: {result.counts()}"
    ranking.print_table(title, {"checkpoint": result.metrics})
    print(f"metrics: {directory / ranking.METRICS_FILE}")
    for name, path in (("scores", scores), ("embeddings", embeddings)):
        if path is not None:
            print(f"{name}: {path}")


def _rank_by_ensemble() -> int:
    """Evaluate an ensemble of score files, and return the exit status."""
    from hlformer_jax.retrieval import ensemble, ranking

    workdir = Path(WORKDIR.value) if WORKDIR.value else None
    members = [Path(member) for member in MEMBER.value]
    try:
        results = ensemble.evaluate(members, workdir, OVERWRITE.value)
    except (UserError, OSError) as error:
        return cli.fail(describe(error))
    last = results["ensemble"]
    title = f"Test split: {last.counts()}"
    ranking.print_table(title, {name: result.metrics for name, result in results.items()})
    if workdir is not None:
        print(f"metrics: {workdir / ranking.METRICS_FILE}")
    return 0


def _answer(config: Any, source: Path) -> None:
    """Print the videos that a run or a converted checkpoint finds for a query."""
    from hlformer_jax.training import loaded_run

    encoder = None
    if ENCODER.value and QUERY.value:
        encoder = optional("hlformer_jax.encoders.hub", "search").load_text(
            ENCODER.value, report=terminal.report
        )
    queries = QUERY.value, CAPTION.value
    loaded_run.answer(config, source, *queries, encoder, SPLIT.value, TOP.value, warn=terminal.warn)


def program() -> None:
    """Run the console command hlformer-train."""
    cli.run_program(main)


if __name__ == "__main__":
    program()
