"""The directory of a run: its owner and its checkpoints. The only file that imports orbax.

    config.json               the configuration and the data of the run
    checkpoints/newest/STEP   the whole training state, and the progress of the run as JSON
    checkpoints/best/STEP     the parameters of the best epoch, and facts about it as JSON

From its first checkpoint on, a directory belongs to one configuration and one data source. `best`
also keeps the previous best epoch, to which the newest state refers until a newer state is saved. A
converted checkpoint is a directory like `best`. Orbax writes under a temporary name and renames at
the end, so that the previous checkpoint remains if a save is killed. STEP/SHA256SUMS has the
digests of the files, in the format of `sha256sum --check`. Until it is written, `.saving` beside
STEP has the number of the step: a step without digests is accepted only after a killed save.
"""

import contextlib
import errno
import functools
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from ml_collections import ConfigDict

from hlformer_jax import files
from hlformer_jax.config import family_of, flat, leaves
from hlformer_jax.errors import UserError
from hlformer_jax.retrieval import ranking
from hlformer_jax.retrieval.moments import needs_moments
from hlformer_jax.runtime import devices, environment, processes
from hlformer_jax.training.step import TrainState

_SUMS = "SHA256SUMS"
_SAVING = ".saving"
_SUMS_LINE = re.compile(r"([0-9a-f]{64})  (.+)\n")

WRITTEN = ("checkpoints", "metrics.jsonl", ranking.METRICS_FILE, ranking.QUERIES_FILE)
"""Names of the files of a run, in addition to config.json, which marks a run's directory."""

EVALUATION_FILE = "evaluation.json"
"""File beside metrics outside of a run's directory: their configuration, data and checkpoint."""

PLACES = ("data.manual_dir", "data.data_dir", "data.cache_gib", "data.resident")
"""Fields about where the data is stored or kept, not about its content."""

MOVABLE = (
    *PLACES,
    "train.checkpoint_seconds",
    "train.log_every",
    "train.baseline",
    "eval.moments",
    "eval.video_batch",
    "eval.query_batch",
    "eval.node_batch",
)
"""Fields that may differ when a run resumes: they change no parameter of any step.

`train.patience` may also be larger: the run then ends as if it had started with this value. A
smaller value could have ended it before its best epoch. `eval.moments` may not differ if
`eval.select` is a metric of moments: it would choose the best epoch.
"""

_METRIC_FIELDS = ("eval.moments",)
"""Fields of `MOVABLE` that change metrics, so that they may not differ in a finished run."""


_MOMENTS, _SUBSET = "moments_fingerprint", "subset_fingerprint"
"""Entries of config.json and evaluation.json: if the metrics depend on times of moments, and if a
file lists the training trees."""


class Fingerprints(NamedTuple):
    """Identifiers of a run's data, times of moments, and listed training trees; None: unknown."""

    data: str | None = None
    moments: str | None = None  # also None without times
    subset: str | None = None  # also None without a file in `trees.train_subset`

    @classmethod
    def from_family(cls, family: Any) -> "Fingerprints":
        """Return the fingerprints of a `Family`; opens its data."""
        optional = (getattr(family, name, None) for name in (_MOMENTS, _SUBSET))
        return cls(family.fingerprint, *optional)


UNKNOWN = Fingerprints()
"""The fingerprints before the data is open, and of a directory without a record."""


class CheckpointError(UserError, ValueError):
    """A checkpoint is missing, damaged or of another model."""


class WorkdirError(UserError, ValueError):
    """The directory holds another run; the message names the difference."""


class OccupiedError(WorkdirError):
    """Another process is training the run of the directory."""


# Checkpoints


class Series:
    """Checkpoints in one directory, each a tree of arrays and JSON; only the latest is read."""

    def __init__(self, directory: Path, clean: bool = False, keep: int = 1) -> None:
        """Open a directory.

        Args:
          directory: the directory.
          clean: whether to remove the temporary files of a killed save; only for the process that
            writes.
          keep: number of checkpoints to keep.
        """
        # Orbax logs every save; a run has its own log.
        logging.get_absl_logger().addFilter(_is_worth_logging)
        self._manager = ocp.CheckpointManager(
            Path(directory).absolute(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep,
                enable_async_checkpointing=False,
                create=True,
                cleanup_tmp_directories=clean,
            ),
            item_handlers={
                "tree": ocp.StandardCheckpointHandler(),
                "info": ocp.JsonCheckpointHandler(),
            },
        )

    def latest(self) -> int | None:
        """Return the step of the latest complete checkpoint; None if there is none."""
        return self._manager.latest_step()

    def save(self, step: int, tree: Any, info: Mapping[str, Any]) -> None:
        """Save a checkpoint, unless a checkpoint of this step or a later step exists.

        A run that was killed between two saves repeats its steps with the same results, so that an
        existing checkpoint equals the new checkpoint. If writing fails, the previous checkpoint
        remains.

        Args:
          step: the step.
          tree: arrays.
          info: facts about the checkpoint, as JSON.

        Raises:
          CheckpointError: if the checkpoint cannot be written.
        """
        latest = self.latest()
        if latest is not None and latest >= step:
            return
        args = ocp.args.Composite(
            tree=ocp.args.StandardSave(tree), info=ocp.args.JsonSave(dict(info))
        )
        with self._explain(f"step {step} cannot be written", "make room there and resume"):
            self.announce(step)
            _check_room(Path(self._manager.directory), tree)
            self._manager.save(step, args=args)
            self._manager.wait_until_finished()
            if jax.process_index() == 0:
                _write_sums(self._directory(step))
                self._directory(step).with_name(_SAVING).unlink()

    def announce(self, step: int) -> None:
        """Record that a save has begun; `save` removes the record when it is complete.

        The record replaces that of a killed save, whose checkpoint then needs its digests.
        """
        if jax.process_index() == 0:
            latest = self.latest()
            if latest is not None and not (self._directory(latest) / _SUMS).exists():
                _write_sums(self._directory(latest))
            self._directory(step).with_name(_SAVING).write_text(str(step), encoding="utf-8")

    def info(self) -> dict[str, Any]:
        """Read the JSON of the latest checkpoint.

        Raises:
          CheckpointError: if there is no checkpoint or it is damaged.
        """
        args = ocp.args.Composite(info=ocp.args.JsonRestore())
        return self._read(lambda step: self._manager.restore(step, args=args)["info"])

    def restore(self, like: Any) -> Any:
        """Read the arrays of the latest checkpoint.

        Args:
          like: a tree of arrays or shapes that the checkpoint must match.

        Raises:
          CheckpointError: if there is no checkpoint, it is damaged, or its shapes differ.
        """
        self.check()
        self._check_shapes(self._read(lambda step: self._manager.item_metadata(step)["tree"]), like)
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        args = ocp.args.Composite(tree=ocp.args.StandardRestore(abstract))
        return self._read(lambda step: self._manager.restore(step, args=args)["tree"])

    def check(self) -> None:
        """Check the digests of the latest checkpoint.

        Raises:
          CheckpointError: if there is no checkpoint, or a file has changed.
        """
        self._read(lambda step: _check_sums(self._directory(step)))

    def forget_after(self, step: int | None) -> None:
        """Remove the checkpoints of later steps than `step`; all checkpoints for None."""
        for saved in self._manager.all_steps():
            if step is None or saved > step:
                self._manager.delete(saved)

    def _directory(self, step: int) -> Path:
        return Path(self._manager.directory, str(step))

    def _read(self, read: Callable[[int], Any]) -> Any:
        step = self.latest()
        if step is None:
            directory = Path(self._manager.directory)
            newest = directory.parent / "newest"
            hint = (
                f" ({newest} has the state of the last epoch: put a copy of {directory.name} back)"
                if directory.name == "best" and _has_steps(newest)
                else ""
            )
            raise CheckpointError(f"{directory} holds no checkpoint{hint}")
        with self._explain(
            f"step {step} is damaged", "restore it from a copy, or start again in a new `workdir`"
        ):
            return read(step)

    @contextlib.contextmanager
    def _explain(self, problem: str, hint: str) -> Iterator[None]:
        """Convert errors of orbax, for example on a full disk, to a CheckpointError of one line."""
        try:
            yield
        except (OSError, ValueError, KeyError) as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            if (full := os.strerror(errno.ENOSPC)) in reason:
                reason = full
            start = f"{self._manager.directory}: the checkpoint of {problem}"
            raise CheckpointError(f"{start} ({reason[:200]}): {hint}") from error

    def _check_shapes(self, metadata: Any, like: Any) -> None:
        saved, expected = _shapes(metadata), _shapes(like)
        if differing := sorted(
            name for name in saved.keys() | expected.keys() if saved.get(name) != expected.get(name)
        ):
            name = differing[0]
            start = (
                f"{self._manager.directory}: {name} has shape {saved.get(name, 'none')} in the"
                f" checkpoint but {expected.get(name, 'none')}"
            )
            if all(name.startswith("optimiser.") for name in differing):
                raise CheckpointError(
                    f"{start} now: the run was trained with another optimiser; resume it with the"
                    " program that started it"
                )
            raise CheckpointError(
                f"{start} in the configured model ({len(differing)} of {len(expected)} parameters"
                " differ); set config.model (hidden_size, lorentz_dim, blocks …) and config.data"
                " (visual_dim, text_dim) to those it was trained with"
            )

    def close(self) -> None:
        """Stop orbax's background work."""
        self._manager.close()


def summary(info: Mapping[str, Any]) -> str:
    """Return the facts about a checkpoint, without those of its model, for a message.

    Args:
      info: the facts (`Series.info`). Epochs count from 0 there, and from 1 in the message.
    """
    parts = []
    for name, value in info.items():
        if "." in name or name == f"validation_{ranking.LAST}":
            continue
        value = value + 1 if name == "epoch" else value
        value = f"{value:.4g}" if isinstance(value, float) else value
        parts.append(f"{name.replace('_', ' ')} {value}")
    return ", ".join(parts)


def newest(workdir: Path) -> Series:
    """Open the series of a run's whole training state."""
    return Series(Path(workdir) / "checkpoints" / "newest", clean=True)


def describe_unfinished(workdir: Path) -> str:
    """Return how far an unfinished run has come, such as "epoch 3 of 100"; "" for anything else.

    A run whose newest state was removed, or cannot be read, counts as finished.
    """
    directory, recorded = Path(workdir) / "checkpoints" / "newest", _read_settings(Path(workdir))
    if recorded is None or not _has_steps(directory):
        return ""
    with contextlib.closing(Series(directory)) as saved, contextlib.suppress(CheckpointError):
        progress, train = Progress(**saved.info()), recorded["config"]["train"]
        if progress.epochs < train["epochs"] and not progress.is_over(train["patience"]):
            return f"epoch {progress.epochs} of {train['epochs']}"
    return ""


def best(workdir: Path) -> Series:
    """Open the series of the parameters of a run's best epochs."""
    return Series(Path(workdir) / "checkpoints" / "best", clean=True, keep=2)


def check_new(directory: Path) -> None:
    """Check that a directory for `save_params` does not exist or is empty, and is not a link.

    Raises:
      CheckpointError: if the directory is not empty.
    """
    files.check_directory(directory)
    if directory.exists() and any(directory.iterdir()):
        raise CheckpointError(f"{directory} exists and is not empty: choose a new directory")


def save_params(directory: Path, params: Any, info: Mapping[str, Any]) -> None:
    """Write parameters into a new directory.

    Args:
      directory: the directory, which must not exist or be empty.
      params: the parameters.
      info: facts about the parameters, as JSON; "step" is the step of the checkpoint.

    Raises:
      CheckpointError: if the directory is not empty.
    """
    directory = Path(directory)
    check_new(directory)
    series = Series(directory)
    series.save(int(info.get("step", 0)), params, info)
    series.close()


def open_params(path: Path) -> Series:
    """Open a directory of `save_params`, or the best epoch of a run's directory.

    Raises:
      CheckpointError: if the path holds no checkpoint.
    """
    path = Path(path)
    directory = path / "checkpoints" / "best" if (path / "checkpoints").is_dir() else path
    if not _has_steps(directory):
        raise CheckpointError(
            f"{path} holds no checkpoint: give the directory of a run (`workdir` of the training)"
            " or of a converted checkpoint (OUT of hlformer_jax.torch_checkpoint)"
        )
    return Series(directory)


class Progress(NamedTuple):
    """The progress of a run, saved beside its state."""

    best_epoch: int = -1  # -1 before the first validation
    best_metric: float | None = None  # value of `config.eval.select`
    epochs: int = 0  # number of validated epochs
    log_position: int = 0  # bytes of metrics.jsonl
    log_digest: str = ""  # SHA-256 of these bytes; "" in a run that did not record it
    seconds: float = 0.0  # training time; nothing else depends on the clock

    def validated(self, epoch: int, metric: float) -> "Progress":
        """Return the progress after a validation; of equally good epochs the first is the best."""
        progress = self._replace(epochs=epoch + 1)
        if self.best_metric is None or metric > self.best_metric:
            progress = progress._replace(best_epoch=epoch, best_metric=metric)
        return progress

    def is_over(self, patience: int) -> bool:
        """Return whether `patience` epochs have passed without an improvement."""
        return self.epochs - 1 - self.best_epoch >= patience


class RunCheckpoints:
    """Both series of a run's directory, and the time of the next save."""

    def __init__(self, directory: Path, seconds: float) -> None:
        self.newest, self.best = newest(directory), best(directory)
        self._seconds, self._saved = seconds, time.monotonic()
        self._unsaved_best: tuple[int, Any, dict[str, Any]] | None = None
        # Best epochs after the newest state are removed: when the run repeats these steps, rounding
        # may differ, for example on other devices, and another epoch may be the best.
        self.best.forget_after(self.newest.latest())

    def restore(self, template: TrainState) -> tuple[TrainState, Progress] | None:
        """Read the newest state and its progress; None if there is none."""
        if self.newest.latest() is None:
            return None
        state: TrainState = self.newest.restore(template)
        progress = Progress(**self.newest.info())
        if progress.best_epoch >= 0:
            self.best.check()  # before the long training
        return state, progress

    def keep_best(self, step: int, params: Any, info: dict[str, Any]) -> None:
        """Keep the parameters of the best epoch in memory; the next `save` writes them.

        Args:
          step: number of finished steps.
          params: the parameters.
          info: facts about the epoch, as JSON.
        """
        # A copy, because the following steps reuse the buffers of the state.
        self._unsaved_best = step, jax.tree.map(jnp.copy, params), info

    def is_due(self) -> bool:
        """Return whether it is time to save, in any of the processes."""
        return processes.any_process(time.monotonic() - self._saved >= self._seconds)

    def save(self, state: TrainState, progress: Progress) -> None:
        """Save the best epoch and then the newest state, which refers to it."""
        if self._unsaved_best is not None:
            self.newest.announce(int(state.step))
            self.best.save(*self._unsaved_best)
            self._unsaved_best = None
        self.newest.save(int(state.step), state, progress._asdict())
        self._saved = time.monotonic()


CHECKPOINT_OVERHEAD_BYTES = 2**16
"""Largest number of bytes of a checkpoint in addition to its arrays: indices, JSON and digests."""


def _check_room(directory: Path, tree: Any) -> None:
    """Raise OSError if the disk has no room for a checkpoint of a tree.

    Without this check, orbax would report a full disk with tracebacks from several threads.
    """
    needed = devices.nbytes(tree) + CHECKPOINT_OVERHEAD_BYTES
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(f"{needed / 1e6:.1f} MB are needed, but {free / 1e6:.1f} MB are free")


def _write_sums(directory: Path) -> None:
    lines = [f"{files.digest(directory / name)}  {name}\n" for name in sorted(_names(directory))]
    files.write_bytes(directory / _SUMS, "".join(lines).encode())


def _check_sums(directory: Path) -> None:
    """Raise ValueError if a file has changed, or if the list of digests is not complete.

    Orbax checks the lists of arrays, but not their numbers. If an array cannot be read, orbax
    prints a traceback for each array that is still being read.
    """
    sums, saving = directory / _SUMS, b""
    with contextlib.suppress(FileNotFoundError):  # read first: it is removed after `sums` is there
        saving = directory.with_name(_SAVING).read_bytes()
    if not sums.exists():
        if saving.decode() == directory.name:
            return  # the save was killed before its last file
        raise ValueError(f"{_SUMS} is missing")
    lines = sums.read_text(encoding="utf-8").splitlines(keepends=True)
    matches = [_SUMS_LINE.fullmatch(line) for line in lines]
    written = {match[2]: match[1] for match in matches if match}
    if not lines or not all(matches):
        raise ValueError(f"{_SUMS} is damaged")
    if unlisted := _names(directory) - written.keys():
        raise ValueError(f"{_SUMS} does not list {min(unlisted)}")
    for name, digest in written.items():
        if files.digest(directory / name) != digest:
            raise ValueError(f"{name} has changed since it was written")


def _has_steps(series: Path) -> bool:
    """Return whether a directory has a checkpoint; an OSError if it cannot be listed."""
    try:
        return any(map(str.isdigit, os.listdir(series)))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _names(directory: Path) -> set[str]:
    """Return the paths of a checkpoint's files, other than hidden files and the list of digests."""
    paths = (path for path in directory.rglob("*") if path.is_file())
    names = {path.relative_to(directory).as_posix() for path in paths if path.name[0] != "."}
    return names - {_SUMS}


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    name = functools.partial(jax.tree_util.keystr, simple=True, separator=".")
    return {name(path): np.shape(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _is_worth_logging(record: Any) -> bool:
    """Return False for orbax's reports of saves and of errors.

    A run has its own log, and orbax also raises the errors that it reports.
    """
    return "orbax" not in record.pathname or record.levelname == "WARNING"


# The directory


def claim_workdir(
    workdir: Path,
    config: ConfigDict,
    inputs: Fingerprints,
    writes: bool = True,
    init: Path | None = None,
    movable: Sequence[str] = (),
) -> contextlib.ExitStack:
    """Claim a directory for a run, and save the resolved configuration.

    Args:
      workdir: the directory.
      config: the configuration of the run.
      inputs: the fingerprints of the run's data.
      writes: whether this process writes the files of the run other than checkpoints.
      init: run or checkpoint whose parameters the run starts from; None for the recorded path.
      movable: fields, in addition to `MOVABLE`, that may differ when the run resumes.

    Returns:
      A context that keeps other processes out of the directory until it is closed.

    Raises:
      WorkdirError: if the directory holds another run.
      OccupiedError: if another process is training in the directory.
    """
    if not writes:
        if (recorded := _read_settings(workdir)) is not None:
            _check_same_settings(recorded, workdir, config, inputs, init, movable)
        return contextlib.ExitStack()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(files.lock(workdir))
        except BlockingIOError:
            raise OccupiedError(
                f"another process trains in {workdir}: wait for it, or choose another `workdir`"
            ) from None
        has_begun = check_workdir(workdir, config, inputs, init, movable)
        ranking.check_place(workdir)
        content = _settings(config, inputs.data) | _optional_entries(inputs)
        if has_begun and init is None:
            init = recorded_init(workdir)
        if init is not None:
            content["init"] = str(init)
        files.write_json(workdir / "config.json", content | environment.describe())
        return stack.pop_all()


def recorded_init(workdir: Path) -> Path | None:
    """Return the run or checkpoint whose parameters a run started from, or None."""
    recorded = _read_settings(workdir) or {}
    return Path(recorded["init"]) if "init" in recorded else None


def recorded_inputs(workdir: Path) -> Fingerprints:
    """Return the fingerprints of the run in a directory; `UNKNOWN` without a record.

    Raises:
      WorkdirError: if the record is damaged.
    """
    return _inputs(_read_settings(workdir) or {})


def _inputs(recorded: Mapping[str, Any]) -> Fingerprints:
    return Fingerprints(*map(recorded.get, ("data_fingerprint", _MOMENTS, _SUBSET)))


def check_workdir(
    workdir: Path,
    config: ConfigDict,
    inputs: Fingerprints = UNKNOWN,
    init: Path | None = None,
    movable: Sequence[str] = (),
) -> bool:
    """Check that a run may use a directory, without changing anything.

    The directory must be new, have no checkpoint and no test metrics yet, or belong to this run.

    Args:
      workdir: the directory.
      config: the configuration of the run.
      inputs: the fingerprints of the run's data.
      init: run or checkpoint whose parameters the run starts from.
      movable: fields, in addition to `MOVABLE`, that may differ when the run resumes.

    Returns:
      Whether the run has begun in the directory.

    Raises:
      WorkdirError: if the directory holds another run, or files that no run wrote.
    """
    files.check_replaced(workdir / "config.json")  # refuses a link
    recorded = _read_settings(workdir)
    existing = [name for name in WRITTEN if os.path.lexists(workdir / name)]
    if existing and recorded is None:
        raise WorkdirError(
            f"{workdir} holds {existing[0]}, but no config.json, so its run is unknown: restore"
            " config.json, or choose another `workdir`"
        )
    newest, best = (workdir / "checkpoints" / name for name in ("newest", "best"))
    has_newest, has_best = _has_steps(newest), _has_steps(best)
    is_tested = (workdir / ranking.METRICS_FILE).exists()  # even if its checkpoints were removed
    has_begun = has_newest or has_best or is_tested
    if has_begun and recorded is not None:
        _check_same_settings(recorded, workdir, config, inputs, init, movable)
    # A run that was killed in its first save has no newest state either, and begins again.
    if has_best and not has_newest and not (newest / _SAVING).exists():
        raise WorkdirError(
            f"{newest} has no state to resume from, but {best} has the best parameters of the run:"
            " evaluate them (`mode`=evaluate), or choose another `workdir` to train again"
        )
    return has_begun


def check_finished(workdir: Path, config: ConfigDict) -> Fingerprints:
    """Check that the finished run of a directory has the settings of a configuration.

    Returns:
      The fingerprints of the run; `UNKNOWN` without a record.

    Raises:
      WorkdirError: if settings differ; names the settings.
    """
    recorded = _read_settings(workdir)
    if recorded is None:
        return UNKNOWN
    _check_same_settings(recorded, workdir, config, UNKNOWN, is_finished=True)
    return _inputs(recorded)


def check_evaluation(
    directory: Path,
    checkpoint: Path,
    config: ConfigDict,
    inputs: Fingerprints = UNKNOWN,
    overwrite: bool = False,
) -> None:
    """Check that an evaluation may write its metrics into a directory, without changing anything.

    A run's directory accepts only metrics of the run's checkpoint with the run's settings, so that
    test_metrics.json always agrees with config.json. In another directory, metrics of other
    settings are replaced only with `overwrite`.

    Args:
      directory: the directory for the metrics.
      checkpoint: the evaluated run or converted checkpoint.
      config: the configuration of the evaluation.
      inputs: the fingerprints of the data.
      overwrite: whether metrics of other settings may be replaced.

    Raises:
      WorkdirError: if settings differ; names the settings.
    """
    run_record = _read_settings(directory)
    if run_record is None:
        files.check_replaced(directory / EVALUATION_FILE)  # refuses a link
    recorded = run_record or _read_settings(directory, EVALUATION_FILE)
    if recorded is None:
        return
    if run_record is not None and directory.resolve() != checkpoint.resolve():
        raise WorkdirError(
            f"{directory} holds another run, whose metrics are not replaced: give another `workdir`"
        )
    if run_record is None and overwrite:
        return
    before = _inputs(recorded)
    if inputs.data not in (None, before.data):
        raise WorkdirError(
            f"{directory} holds metrics of other data (other files, or files whose times"
            " changed when copied): correct config.data, or give the checkpoint by"
            " `checkpoint` and another `workdir`"
        )
    if _have_changed(before.moments, inputs.moments):
        raise WorkdirError(
            f"{directory} holds metrics of other times of moments: the file of"
            f" config.eval.moments ({config.eval.moments}) was replaced; restore it, or give the"
            " checkpoint by `checkpoint` and another `workdir`"
        )
    differences = [
        difference
        for name, difference in _differences(
            flat(_without_inputs(recorded)),
            flat(_settings(config, before.data) | {"checkpoint": str(checkpoint)}),
            PLACES,
        )
        if _changes_metrics(name) and (run_record is None or name != "checkpoint")
    ]
    if differences:
        listed = "; ".join(differences)
        if run_record is None:
            raise WorkdirError(
                f"{directory} holds metrics that differ in {listed}: give another `workdir`, or"
                " `overwrite`"
            )
        raise WorkdirError(
            f"{directory} holds a run that differs in {listed}: leave `config` out to evaluate it"
            f" with its own settings, or give `checkpoint`={directory} and another `workdir`"
        )


def record_evaluation(
    directory: Path,
    checkpoint: Path,
    config: ConfigDict,
    inputs: Fingerprints,
) -> None:
    """Write the settings of metrics into their directory, unless it is a run's directory.

    Args:
      directory: the directory of the metrics.
      checkpoint: the evaluated run or converted checkpoint.
      config: the configuration of the evaluation.
      inputs: the fingerprints of the data.
    """
    if _read_settings(directory) is None:
        content = _settings(config, inputs.data) | {"checkpoint": str(checkpoint)}
        content |= environment.describe()
        files.write_json(directory / EVALUATION_FILE, content | _optional_entries(inputs))


def _changes_metrics(name: str) -> bool:
    """Return whether a field of a configuration, by its full name, changes test metrics."""
    name = name.removeprefix("config.")
    section = name.partition(".")[0]
    if section in ("optim", "train") or name in ("seed", "compile_fast", "data_fingerprint"):
        return False
    if section == "loss":
        return name in ("loss.min_radius", "loss.order")
    return name not in (
        "eval.select",
        "eval.video_batch",
        "eval.query_batch",
        "eval.node_batch",
        "trees.train_leaves",
        "trees.train_subset",
        "trees.validation",
    )


def _check_same_settings(
    recorded: Mapping[str, Any],
    workdir: Path,
    config: ConfigDict,
    inputs: Fingerprints,
    init: Path | None = None,
    movable: Sequence[str] = (),
    is_finished: bool = False,
) -> None:
    """Raise a `WorkdirError` if a recorded run differs in fields that may not change."""
    before = _inputs(recorded)
    chooses_epoch = needs_moments(config.eval.select)  # otherwise the moments change no step
    if chooses_epoch and _have_changed(before.moments, inputs.moments):
        raise WorkdirError(
            f"{workdir} chose its best epoch so far by other times of moments: the file of"
            f" config.eval.moments ({config.eval.moments}) was replaced; restore it, or choose"
            " another `workdir`"
        )
    recorded_init = recorded.get("init")
    if init is not None and recorded_init != str(init):
        start = recorded_init or "random initial parameters"
        raise WorkdirError(
            f"{workdir} holds a run that started from {start}, but `init` is {init}: choose"
            " another `workdir`, or leave out `init` to resume it"
        )
    fingerprint = before.data if inputs.data is None else inputs.data
    allowed = MOVABLE if is_finished else (*MOVABLE, *movable, *_raised_patience(recorded, config))
    # `eval.select` may name a metric that the moments determine.
    are_fixed = is_finished or chooses_epoch
    ignored = [name for name in allowed if not (are_fixed and name in _METRIC_FIELDS)]
    compared = flat(_without_inputs(recorded)), flat(_settings(config, fingerprint)), ignored
    if differences := [difference for _, difference in _differences(*compared)]:
        hint = ""
        if before.data != fingerprint:
            hint = (
                " (the data has other files, or files whose times changed when copied: cp -a keeps"
                " the times)"
            )
        raise WorkdirError(
            f"{workdir} holds a run that differs in {'; '.join(differences)}{hint}: choose"
            f" another `workdir` (with `init`={workdir} to start from its parameters), or give"
            " the settings that it was started with to resume it"
        )
    if _have_changed(before.subset, inputs.subset):
        raise WorkdirError(
            f"{workdir} holds a run with other training trees: config.trees.train_subset"
            f" ({config.trees.train_subset}) was edited; restore it, or choose another `workdir`"
        )


def _have_changed(before: str | None, current: str | None) -> bool:
    """Return whether two fingerprints are known and differ."""
    return None not in (before, current) and before != current


def _without_inputs(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a record that `_settings` has, and an evaluation's checkpoint.

    The environment is left out, because a run may resume in another.
    """
    left_out = ("init", _MOMENTS, _SUBSET, "device", "versions")
    return {name: value for name, value in recorded.items() if name not in left_out}


def _raised_patience(recorded: Mapping[str, Any], config: ConfigDict) -> tuple[str, ...]:
    """Return the name of the patience if it is larger than the recorded one."""
    before = recorded["config"].get("train", {}).get("patience", config.train.patience)
    return ("train.patience",) if config.train.patience > before else ()


def _read_settings(workdir: Path, file: str = "config.json") -> dict[str, Any] | None:
    """Read the recorded settings of a directory; None without a record."""
    path = workdir / file
    if not os.path.lexists(path):
        return None
    return read_record(path, ("config", "data_fingerprint"))


def read_record(
    path: Path, required: Collection[str], remedy: str = "choose another `workdir`"
) -> dict[str, Any]:
    """Read a file of recorded settings, such as the config.json of a run.

    Args:
      path: the file.
      required: entries that the file must have, among them "config".
      remedy: advice for a directory that holds no run.

    Raises:
      WorkdirError: if the file is damaged, or was not written by a run.
      OSError: if the file cannot be read.
    """
    content = path.read_bytes()
    try:
        record = files.parse_json(content)
    except ValueError:
        record, is_json = None, False
        problem = "it is not JSON" if content.strip() else "it is empty"
    else:
        is_json = True
        entries = record if isinstance(record, dict) else {}
        missing = [name for name in required if name not in entries]
        if not missing and isinstance(entries["config"], dict):
            return entries
        problem = (
            f"it has no entry {missing[0]!r}" if missing else "its entry 'config' is not an object"
        )
    best_epoch = path.parent / "checkpoints" / "best"
    if best_epoch.is_dir():
        raise WorkdirError(
            f"{path} is damaged ({problem}): restore it from a copy; to evaluate the best epoch"
            f" without it, give `config`, `checkpoint`={best_epoch} and another `workdir`"
        )
    if is_json and not best_epoch.parent.is_dir():
        raise WorkdirError(f"{path} was not written by a run ({problem}): {remedy}")
    raise WorkdirError(f"{path} is damaged ({problem}): restore it from a copy, or {remedy}")


def _settings(config: ConfigDict, fingerprint: str | None) -> dict[str, Any]:
    return {"config": json.loads(config.to_json()), "data_fingerprint": fingerprint}


def _optional_entries(inputs: Fingerprints) -> dict[str, str]:
    """Return the record of the times of moments and of listed training trees, as far as known."""
    entries = {_MOMENTS: inputs.moments, _SUBSET: inputs.subset}
    return {name: value for name, value in entries.items() if value is not None}


def _defaults(current: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of the family of a configuration, as JSON, by their full names."""
    family = family_of(ConfigDict({"model": {"name": current.get("config.model.name")}}))
    fields = json.loads(json.dumps({name: field.default for name, field in leaves(family)}))
    return {f"config.{name}": value for name, value in fields.items()}


def _differences(
    recorded: dict[str, Any], current: dict[str, Any], ignored: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the full names of fields that differ, each with a text that shows both values."""
    movable = {f"config.{field}" for field in ignored}
    # A field that is newer than the run has its default value.
    added = {name: value for name, value in _defaults(current).items() if name in current}
    recorded = added | recorded
    return [
        (name, f"{name} ({recorded.get(name, 'absent')} there, {current.get(name, 'absent')} now)")
        for name in sorted(recorded.keys() | current.keys())
        if name not in movable and recorded.get(name) != current.get(name)
    ]
