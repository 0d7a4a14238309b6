"""What a run tells: the results table, test_metrics.json, TensorBoard scalars and metrics.jsonl."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
import rich.console
import rich.table
from tensorboardX import SummaryWriter

from hlformer_jax.retrieval import RECALLS

COLUMNS = (*(f"R@{k}" for k in RECALLS), "SumR")


def results_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Prints metrics, one row a name, to standard output."""
    table = rich.table.Table(title=title, box=rich.box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for name, metrics in rows.items():
        table.add_row(name, *(f"{metrics[column]:.2f}" for column in COLUMNS))
    rich.console.Console(width=100).print(table)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file whole or not at all; NaN, which JSON lacks, as null."""
    text = json.dumps(_without_nan(content), indent=2, allow_nan=False)
    with _whole(path) as draft:
        draft.write_text(text + "\n", encoding="utf-8")


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(child) for child in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file of any kind whole or not at all."""
    with _whole(path) as draft:
        draft.write_bytes(content)


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Writes arrays as .npz, under exactly that name, whole or not at all."""
    with _whole(path) as draft, draft.open("wb") as file:
        content: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
        np.savez(file, **content)


def check_place(path: Path) -> None:
    """Refuses a place for a file where none can be written.

    Raises:
      OSError: saying why.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory: give the name of a file")
    with _whole(path.with_name(f"{path.name}.tried")) as draft:
        draft.touch()
    path.with_name(f"{path.name}.tried").unlink()


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


class ScalarLog:
    """Scalars of a run: metrics.jsonl, which is the record, and TensorBoard, which is a view of it.

    The JSON lines hold nothing that depends on the clock, and a run that goes on from a checkpoint
    first drops the lines written after it: an interrupted run leaves the same file as an
    uninterrupted one.
    """

    def __init__(self, workdir: Path, position: int, step: int, writes: bool = True) -> None:
        """Opens both where they stood; of several processes one `writes`."""
        self._file: Any = None
        if not writes:
            return
        path = workdir / "metrics.jsonl"
        path.touch()
        if path.stat().st_size < position:
            raise OSError(
                f"{path} is shorter than when the newest checkpoint was written: restore it, or"
                " choose another --workdir"
            )
        self._file = path.open("r+", encoding="utf-8")
        self._file.truncate(position)
        self._file.seek(position)
        self._board = SummaryWriter(str(workdir / "tensorboard"), purge_step=step)

    def write(self, step: int, scalars: Mapping[str, float], **where: int) -> None:
        """Records scalars at a step; `where` (the epoch) goes into the JSON line alone."""
        if self._file is None:
            return
        line = {"step": step, **where, **scalars}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self.board(step, scalars)

    def board(self, step: int, scalars: Mapping[str, float]) -> None:
        """Shows scalars in TensorBoard alone: rates, which no two runs share."""
        for name, value in scalars.items() if self._file else ():
            self._board.add_scalar(name.replace("@", "_"), value, step)  # it knows no @

    def position(self) -> int:
        """Length of the record so far, in bytes; what is before it is on disk."""
        if self._file is None:
            return 0
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Closes both."""
        if self._file is None:
            return
        self._file.close()
        self._board.close()
