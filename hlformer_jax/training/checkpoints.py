"""The directory of a run: whose it is, and its checkpoints. The only file that knows orbax.

    config.json               the configuration and the data that the run belongs to
    checkpoints/newest/STEP   the whole training state, and the progress of the run as JSON
    checkpoints/best/STEP     the parameters of the best epoch, and what is known of it as JSON

From its first checkpoint on a directory belongs to one configuration and one data source. Until
then nothing in it is worth keeping: what could not start is started again, put right.

Of the best epoch the one before is kept too: it is what `newest` knows of until that is saved. A
parameter checkpoint elsewhere (a converted one) is a directory like `best`. Orbax writes under a
temporary name and renames when all is on disk, so that a save that is killed leaves the one before.
STEP/SHA256SUMS, which `sha256sum --check` reads too, says what the files were when written.
"""

import contextlib
import errno
import functools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from hlformer_jax.runtime import devices, processes
from hlformer_jax.training.step import TrainState

_SUMS = "SHA256SUMS"

WRITTEN = ("checkpoints", "metrics.jsonl", ranking.METRICS_FILE, ranking.QUERIES_FILE)
"""Names in a run's directory, beside config.json, which marks it as one."""

EVALUATION_FILE = "evaluation.json"
"""Settings of the metrics in a directory that is not a run's: configuration, data, checkpoint."""

PLACES = ("data.manual_dir", "data.data_dir", "data.cache_gib", "data.resident")
"""Fields that say where data lies and fits, not what it is."""

MOVABLE = (
    *PLACES,
    "train.checkpoint_seconds",
    "train.patience",
    "train.log_every",
    "train.baseline",
    "eval.moments",
    "eval.video_batch",
    "eval.query_batch",
    "eval.node_batch",
)
"""Fields that may differ when a run resumes: they change no parameter of any step."""

RETIRED = {
    "kernels": ...,
    "model.block_curvature_start": 1.0,
    "loss.distillation_decay": "exponential",
    "loss.align_over": "slots",
    "loss.tree_anchor": "parent",
    "loss.tree_edges": "direct",
    "loss.chain_edges": "all",
    "loss.chain_norm": "ball",
    "loss.order_pairs": "siblings",
    "loss.encode_twice": False,
    "optim.schedule": "warmup_cosine",
    "eval.pool": "all",
    "trees.parent_text": "released",
    "trees.shared_concepts": 0,
}
"""Fields that earlier versions recorded with a run, and the value that still is so; … for any."""


class CheckpointError(UserError, ValueError):
    """A checkpoint is missing, or not what the run expects; the message says what to do."""


class WorkdirError(UserError, ValueError):
    """The directory holds another run; the message names the difference."""


class OccupiedError(WorkdirError):
    """The run of the directory is under way."""


# Checkpoints


class Series:
    """Checkpoints in one directory, each a tree of arrays and a JSON; the latest is what counts."""

    def __init__(self, directory: Path, clean: bool = False, keep: int = 1) -> None:
        """Opens a directory of which the last `keep` are kept.

        `clean` removes the temporary files of a killed save; for the process that writes.
        """
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
        """Step of the latest complete checkpoint, None when there is none."""
        return self._manager.latest_step()

    def save(self, step: int, tree: Any, info: Mapping[str, Any]) -> None:
        """Saves, unless there is a checkpoint of that step or a later one.

        A run that was killed between two saves repeats its steps with the same results, so what is
        there is what would be written. Where writing fails the checkpoint before is still there.
        """
        latest = self.latest()
        if latest is not None and latest >= step:
            return
        args = ocp.args.Composite(
            tree=ocp.args.StandardSave(tree), info=ocp.args.JsonSave(dict(info))
        )
        with self._explained(f"step {step} cannot be written", "make room there and resume"):
            _check_room(Path(self._manager.directory), tree)
            self._manager.save(step, args=args)
            self._manager.wait_until_finished()
            if jax.process_index() == 0:
                _write_sums(self._directory(step))

    def info(self) -> dict[str, Any]:
        """The JSON of the latest checkpoint."""
        args = ocp.args.Composite(info=ocp.args.JsonRestore())
        return self._read(lambda step: self._manager.restore(step, args=args)["info"])

    def restore(self, like: Any) -> Any:
        """The arrays of the latest checkpoint, which must have the shapes of `like`."""
        self.check()
        self._check_shapes(self._read(lambda step: self._manager.item_metadata(step)["tree"]), like)
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        args = ocp.args.Composite(tree=ocp.args.StandardRestore(abstract))
        return self._read(lambda step: self._manager.restore(step, args=args)["tree"])

    def check(self) -> None:
        """Reads the latest checkpoint through."""
        self._read(lambda step: _check_sums(self._directory(step)))

    def forget_after(self, step: int | None) -> None:
        """Removes the checkpoints of later steps; of all, where it is None."""
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
                if directory.name == "best" and newest.is_dir() and any(newest.glob("[0-9]*"))
                else ""
            )
            raise CheckpointError(f"{directory} holds no checkpoint{hint}")
        with self._explained(f"step {step} is damaged", "put a copy of it there or start anew"):
            return read(step)

    @contextlib.contextmanager
    def _explained(self, what: str, hint: str) -> Iterator[None]:
        """Turns what orbax and its stores raise, on a full disk say, into one line."""
        try:
            yield
        except (OSError, ValueError, KeyError) as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            if (full := os.strerror(errno.ENOSPC)) in reason:
                reason = full
            where = f"{self._manager.directory}: the checkpoint of {what}"
            raise CheckpointError(f"{where} ({reason[:200]}): {hint}") from error

    def _check_shapes(self, metadata: Any, like: Any) -> None:
        saved, wanted = _shapes(metadata), _shapes(like)
        if differing := sorted(
            name for name in saved.keys() | wanted.keys() if saved.get(name) != wanted.get(name)
        ):
            name = differing[0]
            if all(name.startswith("optimiser.") for name in differing):
                raise CheckpointError(
                    f"{self._manager.directory}: {name} has shape {saved.get(name, 'none')} in the"
                    f" checkpoint and {wanted.get(name, 'none')} now: the run was trained with"
                    " another optimiser; resume it with the program that started it"
                )
            raise CheckpointError(
                f"{self._manager.directory}: {name} has shape {saved.get(name, 'none')} in the"
                f" checkpoint and {wanted.get(name, 'none')} in the configured model"
                f" ({len(differing)} of {len(wanted)} parameters differ); set config.model"
                " (hidden_size, lorentz_dim, blocks …) and config.data (visual_dim, text_dim) to"
                " those it was trained with"
            )

    def close(self) -> None:
        """Ends what orbax has running."""
        self._manager.close()


def newest(workdir: Path) -> Series:
    """The whole training state of a run."""
    return Series(Path(workdir) / "checkpoints" / "newest", clean=True)


def best(workdir: Path) -> Series:
    """The parameters of a run's best epoch."""
    return Series(Path(workdir) / "checkpoints" / "best", clean=True, keep=2)


def check_new(directory: Path) -> None:
    """Refuses a directory for `save_params` that holds something already, or is a link."""
    files.check_directory(directory)
    if directory.exists() and any(directory.iterdir()):
        raise CheckpointError(f"{directory} exists and is not empty: choose a new directory")


def save_params(directory: Path, params: Any, info: Mapping[str, Any]) -> None:
    """Writes parameters alone into a new directory."""
    directory = Path(directory)
    check_new(directory)
    series = Series(directory)
    series.save(int(info.get("step", 0)), params, info)
    series.close()


def open_params(path: Path) -> Series:
    """Opens a directory of `save_params`, or a run's, of which it is the best epoch."""
    path = Path(path)
    directory = path / "checkpoints" / "best" if (path / "checkpoints").is_dir() else path
    if not directory.is_dir() or not any(child.name.isdigit() for child in directory.iterdir()):
        raise CheckpointError(
            f"{path} holds no checkpoint: give the directory of a run (--workdir of the training)"
            " or of a converted checkpoint (OUT of hlformer_jax.torch_checkpoint)"
        )
    return Series(directory)


class Progress(NamedTuple):
    """The progress of a run, saved beside its state."""

    best_epoch: int = -1  # before the first validation
    best_metric: float | None = None  # of `config.eval.select`
    epochs: int = 0  # that were validated
    log_position: int = 0  # bytes of metrics.jsonl
    seconds: float = 0.0  # of training alone; nothing else depends on the clock

    def validated(self, epoch: int, metric: float) -> "Progress":
        """The progress after the validation of an epoch; the first of equal ones stays the best."""
        progress = self._replace(epochs=epoch + 1)
        if self.best_metric is None or metric > self.best_metric:
            progress = progress._replace(best_epoch=epoch, best_metric=metric)
        return progress

    def is_over(self, patience: int) -> bool:
        """Whether `patience` epochs have passed without a better one."""
        return self.epochs > 0 and self.epochs - 1 - self.best_epoch >= patience


class RunCheckpoints:
    """Both series of a run's directory, saved every so many seconds."""

    def __init__(self, directory: Path, seconds: float) -> None:
        self.newest, self.best = newest(directory), best(directory)
        self._seconds, self._saved = seconds, time.monotonic()
        self._unsaved_best: tuple[int, Any, dict[str, Any]] | None = None
        # A run that was killed before its newest state was saved need not come to the same best
        # epoch again where rounding differs, with other devices say.
        self.best.forget_after(self.newest.latest())

    def restore(self, template: TrainState) -> tuple[TrainState, Progress] | None:
        """The newest state and its progress; None for a run that has none."""
        if self.newest.latest() is None:
            return None
        state: TrainState = self.newest.restore(template)
        progress = Progress(**self.newest.info())
        if progress.best_epoch >= 0:
            self.best.check()  # now, and not when all is trained
        return state, progress

    def keep_best(self, step: int, params: Any, info: dict[str, Any]) -> None:
        """Takes parameters as those of the best epoch; they are saved with the next state."""
        # A copy, since the state is donated to the steps that follow.
        self._unsaved_best = step, jax.tree.map(jnp.copy, params), info

    def due(self) -> bool:
        """Whether it is time to save, in every process when in one."""
        return processes.any_process(time.monotonic() - self._saved >= self._seconds)

    def save(self, state: TrainState, progress: Progress) -> None:
        """Saves the best epoch first: what the newest state says of it is then there."""
        if self._unsaved_best is not None:
            self.best.save(*self._unsaved_best)
            self._unsaved_best = None
        self.newest.save(int(state.step), state, progress._asdict())
        self._saved = time.monotonic()


CHECKPOINT_OVERHEAD_BYTES = 2**16
"""Bytes of a checkpoint beside its arrays, at most: indices, JSON and checksums."""


def _check_room(directory: Path, tree: Any) -> None:
    """Raise OSError where the disk has no room for a checkpoint of a tree.

    Orbax reports a full disk from several threads, each with tracebacks.
    """
    needed = devices.nbytes(tree) + CHECKPOINT_OVERHEAD_BYTES
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(f"{needed / 1e6:.1f} MB are needed and {free / 1e6:.1f} MB are free")


def _write_sums(directory: Path) -> None:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    lines = [f"{files.digest(path)}  {path.relative_to(directory).as_posix()}\n" for path in paths]
    draft = directory / f".{_SUMS}"
    draft.write_text("".join(lines), encoding="utf-8")
    draft.replace(directory / _SUMS)


def _check_sums(directory: Path) -> None:
    """Raises an error when a file is not what was written.

    The stores below check the lists of what they hold, but not the numbers themselves; and when one
    array cannot be read, orbax does not wait for the others, each of which then prints a traceback.
    """
    sums = directory / _SUMS
    if not sums.exists():  # a save that was killed when all but these were written
        return
    for line in sums.read_text(encoding="utf-8").splitlines():
        written, _, name = line.partition("  ")
        if files.digest(directory / name) != written:
            raise ValueError(f"{name} is not as it was written")


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    name = functools.partial(jax.tree_util.keystr, simple=True, separator=".")
    return {name(path): np.shape(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _is_worth_logging(record: Any) -> bool:
    """Return False for orbax's reports of saves and of errors.

    A run has its own log, and orbax raises an error beside the tracebacks of its threads.
    """
    return "orbax" not in record.pathname or record.levelname == "WARNING"


# The directory


def claim_workdir(
    workdir: Path,
    config: ConfigDict,
    fingerprint: str,
    writes: bool = True,
    init: Path | None = None,
    movable: Sequence[str] = (),
) -> contextlib.ExitStack:
    """Make the directory this run's, or find that it is; save the resolved configuration.

    Args:
      workdir: the directory.
      config: the configuration of the run.
      fingerprint: that of its data.
      writes: whether this process writes what a run leaves outside of checkpoints.
      init: run or checkpoint whose parameters the run starts from; None: the recorded one.
      movable: fields beside `MOVABLE` that may differ when the run resumes.

    Returns:
      A context that keeps other processes out of the directory until it is closed.

    Raises:
      WorkdirError: when the directory holds another run.
    """
    if not writes:
        _compare(workdir, config, fingerprint, init, movable)
        return contextlib.ExitStack()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(files.lock(workdir))
        except BlockingIOError:
            raise OccupiedError(
                f"a run is under way in {workdir}: wait for it, or choose another --workdir"
            ) from None
        begun = check_workdir(workdir, config, fingerprint, init, movable)
        ranking.check_place(workdir)
        content = _wanted(config, fingerprint)
        if begun and init is None:
            init = recorded_init(workdir)
        if init is not None:
            content["init"] = str(init)
        files.write_json(workdir / "config.json", content)
        return stack.pop_all()


def recorded_init(workdir: Path) -> Path | None:
    """Return the run or checkpoint whose parameters a run started from; None for none."""
    recorded = _recorded(workdir) or {}
    return Path(recorded["init"]) if "init" in recorded else None


def check_workdir(
    workdir: Path,
    config: ConfigDict,
    fingerprint: str | None = None,
    init: Path | None = None,
    movable: Sequence[str] = (),
) -> bool:
    """Check that the directory is free, without a checkpoint, or this run's; change nothing.

    Returns:
      Whether the run has begun there.
    """
    recorded = _recorded(workdir)
    theirs = [name for name in WRITTEN if os.path.lexists(workdir / name)]
    if theirs and recorded is None:
        raise WorkdirError(
            f"{workdir} holds a {theirs[0]} that is not of a run begun there: choose another"
            " --workdir"
        )
    tested = (workdir / ranking.METRICS_FILE).exists()  # of a run without its checkpoints, even
    begun = tested or any(child.name.isdigit() for child in (workdir / "checkpoints").glob("*/*"))
    if begun:
        _compare(workdir, config, fingerprint, init, movable)
    return begun


def check_evaluation(
    directory: Path,
    checkpoint: Path,
    config: ConfigDict,
    fingerprint: str | None = None,
    overwrite: bool = False,
) -> None:
    """Check that an evaluation may write its metrics into a directory; change nothing.

    A run's directory takes the metrics of its own checkpoint with its own settings alone, so that
    test_metrics.json always agrees with config.json. Elsewhere the metrics of other settings are
    replaced with `overwrite` alone.

    Args:
      directory: where the metrics are to be written.
      checkpoint: the run or converted checkpoint that is evaluated.
      config: the configuration of the evaluation.
      fingerprint: that of the data; None where the data is not open yet.
      overwrite: whether metrics of other settings may be replaced.

    Raises:
      WorkdirError: naming the settings that differ.
    """
    run_record = _recorded(directory)
    recorded = run_record or _recorded(directory, EVALUATION_FILE)
    if recorded is None:
        return
    if run_record is not None and directory.resolve() != checkpoint.resolve():
        raise WorkdirError(
            f"{directory} holds a run of its own, whose metrics stay: give another --workdir"
        )
    if run_record is None and overwrite:
        return
    recorded.pop("init", None)
    recorded_fingerprint = recorded.get("data_fingerprint")
    if fingerprint is not None and recorded_fingerprint != fingerprint:
        raise WorkdirError(
            f"{directory} holds metrics of other data (other files, or their times changed in a"
            " copy): correct config.data, or give the checkpoint by --checkpoint and another"
            " --workdir"
        )
    differences = [
        difference
        for name, difference in _differences(
            flat(recorded),
            flat(_wanted(config, recorded_fingerprint) | {"checkpoint": str(checkpoint)}),
            PLACES,
        )
        if _changes_metrics(name) and (run_record is None or name != "checkpoint")
    ]
    if differences:
        listed = "; ".join(differences)
        if run_record is None:
            raise WorkdirError(
                f"{directory} holds metrics that differ in {listed}: give another --workdir, or"
                " --overwrite"
            )
        raise WorkdirError(
            f"{directory} holds a run that differs in {listed}: leave --config out to evaluate it"
            f" with its own settings, or give --checkpoint={directory} and another --workdir"
        )


def record_evaluation(
    directory: Path, checkpoint: Path, config: ConfigDict, fingerprint: str
) -> None:
    """Write what metrics in a directory are of, unless a run there says it already."""
    if _recorded(directory) is None:
        content = _wanted(config, fingerprint) | {"checkpoint": str(checkpoint)}
        files.write_json(directory / EVALUATION_FILE, content)


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


def _compare(
    workdir: Path,
    config: ConfigDict,
    fingerprint: str | None,
    init: Path | None = None,
    movable: Sequence[str] = (),
) -> None:
    recorded = _recorded(workdir)
    if recorded is None:
        return
    theirs = recorded.pop("init", None)
    if init is not None and theirs != str(init):
        raise WorkdirError(
            f"{workdir} holds a run that started from {theirs or 'its own initial parameters'},"
            f" and --init is {init}: choose another --workdir, or leave --init out to resume it"
        )
    there = recorded.get("data_fingerprint")
    fingerprint = there if fingerprint is None else fingerprint
    differences = [
        difference
        for name, difference in _differences(flat(recorded), flat(_wanted(config, fingerprint)))
        if name.removeprefix("config.") not in movable
    ]
    if differences:
        hint = (
            " (the data's files are others, or their times changed in a copy: cp -a keeps them)"
            if there != fingerprint
            else ""
        )
        raise WorkdirError(
            f"{workdir} holds a run that differs in {'; '.join(differences)}{hint}: choose"
            f" another --workdir (with --init={workdir} to start from its parameters), or give"
            " what it was started with to resume it"
        )


def _recorded(workdir: Path, file: str = "config.json") -> dict[str, Any] | None:
    """Read the record of a directory's settings; None where there is none."""
    path = workdir / file
    if not os.path.lexists(path):
        return None
    files.check_output(path, files.Replace.ANY)  # refuses a link
    try:
        recorded: dict[str, Any] = files.parse_json(path.read_text(encoding="utf-8"))
    except ValueError:
        raise WorkdirError(f"{path} is not JSON: remove {workdir} or choose another") from None
    if not isinstance(recorded, dict) or not {"config", "data_fingerprint"} <= recorded.keys():
        raise WorkdirError(f"{path} is not of a run: choose another --workdir")
    return recorded | {"config": without_retired(recorded["config"])}


def without_retired(config: Any, prefix: str = "") -> Any:
    """A recorded configuration without the fields whose only value this version has."""
    if not isinstance(config, dict):
        return config
    return {
        key: without_retired(value, f"{prefix}{key}.")
        for key, value in config.items()
        if (name := f"{prefix}{key}") not in RETIRED or RETIRED[name] not in (..., value)
    }


def _wanted(config: ConfigDict, fingerprint: str | None) -> dict[str, Any]:
    return {"config": json.loads(config.to_json()), "data_fingerprint": fingerprint}


def _defaults(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of the family of a configuration, as JSON, by their full names."""
    family = family_of(ConfigDict({"model": {"name": wanted.get("config.model.name")}}))
    fields = json.loads(json.dumps({name: field.default for name, field in leaves(family)}))
    return {f"config.{name}": value for name, value in fields.items()}


def _differences(
    recorded: dict[str, Any], wanted: dict[str, Any], ignored: Sequence[str] = MOVABLE
) -> list[tuple[str, str]]:
    """Return the names of fields that differ, each with both of its values in words."""
    movable = {f"config.{field}" for field in ignored}
    # A field that the package did not have when the run began stands for its default.
    added = {name: value for name, value in _defaults(wanted).items() if name in wanted}
    recorded = added | recorded
    return [
        (name, f"{name} ({recorded.get(name, 'absent')} there, {wanted.get(name, 'absent')} now)")
        for name in sorted(recorded.keys() | wanted.keys())
        if name not in movable and recorded.get(name) != wanted.get(name)
    ]
