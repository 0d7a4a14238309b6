"""Checkpoints of a run and of parameters alone. The only file that knows orbax.

Two series lie in a run's directory:

    checkpoints/newest/STEP   the whole training state, and the progress of the run as JSON
    checkpoints/best/STEP     the parameters of the best epoch, and what is known of it as JSON

Of the best epoch the one before is kept too: it is what `newest` knows of until that is saved.

A parameter checkpoint elsewhere (a converted one) is a directory like `best`. Orbax writes under a
temporary name and renames when all is on disk, so that a save that is killed leaves the one before.
STEP/SHA256SUMS, which `sha256sum --check` reads too, says what the files were when written.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from hlformer_jax.errors import UserError

_SUMS = "SHA256SUMS"


class CheckpointError(UserError, ValueError):
    """A checkpoint is missing, or not what the run expects; the message says what to do."""


class Series:
    """Checkpoints in one directory, each a tree of arrays and a JSON; the latest is what counts."""

    def __init__(self, directory: Path, clean: bool = False, keep: int = 1) -> None:
        """Opens a directory of which the last `keep` are kept.

        `clean` removes what a killed save left, for the one who writes.
        """
        # Orbax reports every save at the level of information; a run has its own log.
        logging.get_absl_logger().addFilter(_not_orbax)
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

        A run that was killed between a save and the next repeats its steps with the same results,
        so what is there is what would be written.

        Raises:
          CheckpointError: when it cannot be written; the one before is still there.
        """
        latest = self.latest()
        if latest is not None and latest >= step:
            return
        args = ocp.args.Composite(
            tree=ocp.args.StandardSave(tree), info=ocp.args.JsonSave(dict(info))
        )
        with self._explained(f"step {step} cannot be written", "make room there and resume"):
            self._manager.save(step, args=args)
            self._manager.wait_until_finished()
            if jax.process_index() == 0:
                _write_sums(self._directory(step))

    def info(self) -> dict[str, Any]:
        """The JSON of the latest checkpoint.

        Raises:
          CheckpointError: when there is none, or it is damaged.
        """
        args = ocp.args.Composite(info=ocp.args.JsonRestore())
        return self._read(lambda step: self._manager.restore(step, args=args)["info"])

    def restore(self, like: Any) -> Any:
        """The arrays of the latest checkpoint.

        Args:
          like: a tree of arrays or shapes that the checkpoint must have.

        Raises:
          CheckpointError: when there is none, it is damaged, or its structure or a shape differs.
        """
        self.check()
        self._check_shapes(self._read(lambda step: self._manager.item_metadata(step)["tree"]), like)
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        args = ocp.args.Composite(tree=ocp.args.StandardRestore(abstract))
        return self._read(lambda step: self._manager.restore(step, args=args)["tree"])

    def check(self) -> None:
        """Reads the latest checkpoint through.

        Raises:
          CheckpointError: when there is none, or it is damaged.
        """
        self._read(lambda step: _check_sums(self._directory(step)))

    def forget_after(self, step: int | None) -> None:
        """Removes the checkpoints of later steps; of all, where it is None."""
        for found in self._manager.all_steps():
            if step is None or found > step:
                self._manager.delete(found)

    def _directory(self, step: int) -> Path:
        return Path(self._manager.directory, str(step))

    def _read(self, read: Callable[[int], Any]) -> Any:
        step = self.latest()
        if step is None:
            raise CheckpointError(f"{self._manager.directory} holds no checkpoint")
        with self._explained(f"step {step} is damaged", "put a copy of it there or start anew"):
            return read(step)

    @contextlib.contextmanager
    def _explained(self, what: str, hint: str) -> Iterator[None]:
        """Turns what orbax and its stores raise, on a full disk say, into one line."""
        try:
            yield
        except (OSError, ValueError, KeyError) as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            where = f"{self._manager.directory}: the checkpoint of {what}"
            raise CheckpointError(f"{where} ({reason[:200]}): {hint}") from error

    def _check_shapes(self, metadata: Any, like: Any) -> None:
        found, wanted = _shapes(metadata), _shapes(like)
        if differing := sorted(
            name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)
        ):
            name = differing[0]
            raise CheckpointError(
                f"{self._manager.directory}: {name} has shape {found.get(name, 'none')} in the"
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


def save_params(directory: Path, params: Any, info: Mapping[str, Any]) -> None:
    """Writes parameters alone into a new directory.

    Raises:
      CheckpointError: when the directory holds something already.
    """
    directory = Path(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CheckpointError(f"{directory} exists and is not empty: choose a new directory")
    series = Series(directory)
    series.save(int(info.get("step", 0)), params, info)
    series.close()


def open_params(path: Path) -> Series:
    """Opens a checkpoint of parameters.

    Args:
      path: a directory of `save_params`, or a run's directory, whose best epoch is taken.

    Returns:
      The series, to restore from and to close.

    Raises:
      CheckpointError: when there is no checkpoint.
    """
    path = Path(path)
    directory = path / "checkpoints" / "best" if (path / "checkpoints").is_dir() else path
    if not directory.is_dir() or not any(child.name.isdigit() for child in directory.iterdir()):
        raise CheckpointError(
            f"{path} holds no checkpoint: give the directory of a run (--workdir of the training)"
            " or of a converted checkpoint (OUT of hlformer_jax.torch_checkpoint)"
        )
    return Series(directory)


def _write_sums(directory: Path) -> None:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    lines = [f"{_sum(path)}  {path.relative_to(directory).as_posix()}\n" for path in files]
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
        if _sum(directory / name) != written:
            raise ValueError(f"{name} is not as it was written")


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {".".join(_key(entry) for entry in path): np.shape(leaf) for path, leaf in leaves}


def _key(entry: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _not_orbax(record: Any) -> bool:
    return "orbax" not in record.pathname or record.levelname not in ("INFO", "DEBUG")
