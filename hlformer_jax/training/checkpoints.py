"""Checkpoints of a run or of released weights. The only file that imports orbax.

    checkpoints/newest/STEP   the whole training state, and the progress of the run as JSON
    checkpoints/best/STEP     the parameters of the best epoch, and facts about it as JSON

`best` also keeps the previous best epoch, to which the newest state refers until a newer state is
saved. A converted checkpoint is a directory like `best`. Orbax writes under a temporary name and
renames at the end, so that the previous checkpoint remains if a save is killed. STEP/SHA256SUMS has
the digests of the files, in the format of `sha256sum --check`. Until it is written, `.saving`
beside STEP has the number of the step: a step without digests is accepted only after a killed save.
"""

import contextlib
import errno
import functools
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from hlformer_jax import files
from hlformer_jax.errors import UserError
from hlformer_jax.retrieval import ranking
from hlformer_jax.runtime import devices, processes
from hlformer_jax.training.step import TrainState

_SUMS = "SHA256SUMS"
SAVING = ".saving"
"""File beside the steps with the number of the step that is being saved."""
_SUMS_LINE = re.compile(r"([0-9a-f]{64})  (.+)\n")


class CheckpointError(UserError, ValueError):
    """A checkpoint is missing, damaged or of another model."""


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
                self._directory(step).with_name(SAVING).unlink()

    def announce(self, step: int) -> None:
        """Record that a save has begun; `save` removes the record when it is complete.

        The record replaces that of a killed save, whose checkpoint then needs its digests.
        """
        if jax.process_index() == 0:
            latest = self.latest()
            if latest is not None and not (self._directory(latest) / _SUMS).exists():
                _write_sums(self._directory(latest))
            self._directory(step).with_name(SAVING).write_text(str(step), encoding="utf-8")

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
                if directory.name == "best" and has_steps(newest)
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
    if not has_steps(directory):
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
        saving = directory.with_name(SAVING).read_bytes()
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


def has_steps(series: Path) -> bool:
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
