"""Training of the runs of a sweep, one after another, each in its own directory.

    DIR/VARIANT/seedN/     the files of a training run, and
        result.json        metrics, cost and versions of a finished run
        failure.json       the reason why the last attempt failed, or which data is missing

Both files are written atomically. A run with a result is not repeated; other runs start, or resume
from their newest checkpoint. So a sweep can be killed at any moment, and several tasks can share
the runs of a sweep.
"""

import gc
import statistics
import timeit
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from hlformer_jax import files, models, terminal, training
from hlformer_jax.config import ConfigError, describe_data
from hlformer_jax.data.dataset import TreeSplit
from hlformer_jax.data.sources.protocol import SPLITS, MissingDataError
from hlformer_jax.errors import UserError
from hlformer_jax.retrieval import corpus
from hlformer_jax.runtime import compiler, devices, environment
from hlformer_jax.sweep import Run
from hlformer_jax.sweep.provenance import check_same_data, describe_unrecorded
from hlformer_jax.training import loop, run_directory
from hlformer_jax.training.run_directory import Fingerprints

RESULT, FAILURE = "result.json", "failure.json"


def check(runs: Sequence[Run], root: Path) -> None:
    """Check that every run of a sweep can start, before the first run starts.

    Args:
      runs: the runs.
      root: the directory of the sweep.

    Raises:
      ConfigError: if a variant cannot be trained; the message names the variant.
      WorkdirError: if a run's directory holds a run of another configuration.
    """
    for run in {run.variant: run for run in runs}.values():
        try:
            training.build(run.config).check_trainable()
        except ConfigError as error:
            raise ConfigError(f"variant {run.variant!r}: {error}") from None
    for run in runs:
        run_directory.check_workdir(root / run.directory, run.config)


def is_finished(run: Run, root: Path) -> bool:
    """Return whether a run has written its result.

    Args:
      run: the run.
      root: the directory of the sweep.
    """
    return (root / run.directory / RESULT).exists()


def perform(
    runs: Sequence[Run],
    root: Path,
    report: Callable[[str], None],
    warn: Callable[[str], None],
    after: Callable[[Run], None] = lambda run: None,
) -> dict[Path, str]:
    """Train a task's unfinished runs; a run that fails does not stop the following ones.

    Args:
      runs: the runs of the task.
      root: the directory of the sweep.
      report: receives lines about the progress.
      warn: receives a line with the reason for each run that fails.
      after: called with each run after it has finished or failed.

    Returns:
      The reason in one line for each run that failed, by its directory.

    Raises:
      Stopped: if a signal ended a run; its state has been saved.
    """
    time_left = terminal.TimeLeft()
    if done := sum(is_finished(run, root) for run in runs):
        report(f"{done} of {len(runs)} runs are already finished")
    failures: dict[Path, str] = {}

    def count_unfinished(index: int) -> int:
        return sum(not is_finished(run, root) for run in runs[index - 1 :])

    for index, run in enumerate(runs, 1):
        if is_finished(run, root):  # checked again, because another process may have trained it
            continue
        remaining = time_left.text(count_unfinished(index))
        report(f"run {index} of {len(runs)}: {run.title}{remaining}")
        directory = root / run.directory
        try:
            result = train(run, directory)
        except loop.Stopped:
            raise
        except run_directory.OccupiedError:
            report(f"skipped, because another process is training it: {run.title}")
            continue
        except Exception as error:  # the other runs do not depend on this one
            failures[run.directory] = reason = _reason(error)
            trace = traceback.format_exc()
            failure = {**_identity(run), "reason": reason}
            files.write_json(directory / FAILURE, failure | {"traceback": trace}, files.Replace.OWN)
            warn(f"failed: {run.title}: {reason}")
        else:
            time_left.add()
            files.write_json(directory / RESULT, result, files.Replace.OWN)
            files.discard_own(directory / FAILURE)
        # Free the memory of the devices for the next run. If both runs need the same program, it
        # comes from the cache on disk: variants that differ only in hyperparameters share a program
        # (step.Loss). Short runs are small, and share compiled programs in memory
        # (step.compile_steps).
        gc.collect()
        if not run.config.compile_fast:
            jax.clear_caches()
        after(run)
    return failures


def open_data(
    runs: Sequence[Run],
    root: Path,
    report: Callable[[str], None],
    may_skip_all: bool = False,
    planned: Sequence[Run] | None = None,
) -> list[Run]:
    """Prepare the data of the runs that are not finished; skip those whose data is missing.

    If the data of a variant is missing, it is reported in one line, and the reason is written to
    `failure.json` of each of its runs, for the tables. Of a finished run only the recorded
    fingerprint is compared; a finished run without one is reported.

    Args:
      runs: the runs of a task.
      root: the directory of the sweep.
      report: receives a line for each skipped variant.
      may_skip_all: whether all of these runs may be skipped, because other tasks have other runs.
      planned: all runs of the sweep; None for `runs`.

    Returns:
      The finished runs, and the runs whose data exists.

    Raises:
      MissingDataError: if all runs would be skipped, unless `may_skip_all` is True.
      DataError: if data is damaged or cannot be read.
      WorkdirError: if a run was started with other data, or a finished run of the sweep had other
        settings.
      MixedDataError: if a finished run of the sweep had other data.
    """
    fingerprints: dict[str, Fingerprints | MissingDataError] = {}
    ready, skipped = [], []
    opened: dict[Path, Fingerprints] = {}
    for run in runs:
        if is_finished(run, root):
            ready.append(run)
            continue
        sections = [run.config[name] for name in ("data", "trees", "eval") if name in run.config]
        key = "".join(section.to_json() for section in sections)
        if key not in fingerprints:
            try:
                fingerprints[key] = Fingerprints.of(training.build(run.config))
            except MissingDataError as error:
                fingerprints[key] = error
        inputs = fingerprints[key]
        if isinstance(inputs, MissingDataError):
            skipped.append((run, inputs))
            continue
        run_directory.check_workdir(root / run.directory, run.config, inputs)
        opened[run.directory] = inputs
        failure = read_result(root / run.directory / FAILURE)
        if failure is not None and failure.get("skipped"):
            files.discard_own(root / run.directory / FAILURE)
        ready.append(run)
    planned = runs if planned is None else planned
    finished = [run for run in planned if is_finished(run, root)]
    for line in describe_unrecorded(check_same_data(planned, finished, root, opened)):
        report(line)
    if skipped and not ready and not may_skip_all:
        raise skipped[0][1]
    reported = set()
    for run, missing in skipped:
        failure = {**_identity(run), "skipped": True, "reason": missing.what}
        files.write_json(root / run.directory / FAILURE, failure, files.Replace.OWN)
        where = f"{run.variant}, corpus {run.corpus}" if run.corpus else run.variant
        if where not in reported:
            reported.add(where)
            report(f"skipped: {where}: its data is missing: {missing.what}")
    return ready


def train(run: Run, directory: Path) -> dict[str, Any]:
    """Train a run in a directory, and return the content of its result.json."""
    with compiler.configured(run.config):
        outcome = loop.train(run.config, directory)
        costs = training.build(run.config).cost()._asdict()
        if run.timed:
            costs |= _query_costs(run.config)
    progress = outcome.progress
    best = next(iter(outcome.results.values()))
    references = {name: outcome.results[name].metrics for name in outcome.references}
    return {
        **_identity(run),
        "metrics": best.metrics,
        "references": references,
        "queries": best.queries,
        "timed_queries": best.timed_queries,
        "videos": best.videos,
        "data": measure_data(run.config),
        "best_epoch": progress.best_epoch,
        "epochs": progress.epochs,
        f"validation_{run.config.eval.select}": progress.best_metric,
        "seconds_per_epoch": progress.seconds / progress.epochs,
        **costs,
        **environment.describe(),
    }


def measure_data(config: ConfigDict) -> dict[str, Any]:
    """Describe the data of a run, and count the elements of each split.

    Args:
      config: the configuration of the run.

    Returns:
      The entries of `config.describe_data`, and "splits": for train, val and test the numbers of
      videos and captions, or for action trees the numbers of videos, trees and nodes.
    """
    family: Any = training.build(config)
    described: dict[str, Any] = {**describe_data(config), "splits": {}}
    for name in SPLITS:
        split = getattr(family.data, name)
        if isinstance(split, TreeSplit):
            sizes = {
                "videos": len(set(split.video.tolist())),
                "trees": len(split.pool.videos),
                "nodes": split.num_nodes,
            }
        else:
            sizes = {"videos": len(split), "captions": int(split.captions_per_video.sum())}
        described["splits"][name] = sizes
    return described


def _query_costs(config: ConfigDict) -> dict[str, float]:
    """Measure the time of a query in float32, and the size of a corpus in bytes.

    The time is for encoding a query and searching the corpus; it is the median of 20 measurements.
    The corpus has random vectors, and the encoder has its initial parameters.
    """
    model = models.build(config)
    params = models.init_params(model, config)
    stored = corpus.random(config, corpus.SEARCHED_VIDEOS, "float32")
    captions = models.zero_batch(config).captions
    encode = jax.jit(lambda params, captions: models.encode_query(model, params, captions))

    def search() -> None:
        jax.block_until_ready(corpus.search(stored, encode(params, captions), 10))

    search()
    share = corpus.SEARCHED_VIDEOS / stored.mask.size  # the last block is padded
    return {
        "seconds_query": statistics.median(timeit.repeat(search, number=1, repeat=20)),
        "bytes_corpus": share * devices.nbytes(stored.stored),
    }


def _identity(run: Run) -> dict[str, Any]:
    """Return the variant, corpus and seed that identify a run's result."""
    return {"variant": run.variant, "corpus": run.corpus, "seed": run.seed}


def read_result(path: Path) -> dict[str, Any] | None:
    """Read result.json or failure.json.

    Args:
      path: the file.

    Returns:
      Its content; None if the file does not exist.

    Raises:
      UserError: if the file is not JSON.
    """
    try:
        content: dict[str, Any] = files.parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): delete it to repeat the run") from None
    return content


def _reason(error: Exception) -> str:
    """Return the type and the first line of an error, in at most 300 characters."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
    return text if len(text) <= 300 else f"{text[:299]}…"
