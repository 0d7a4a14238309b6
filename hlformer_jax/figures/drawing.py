"""A figure with the numbers that it shows, and what it is drawn from."""

import csv
import dataclasses
import functools
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hlformer_jax import files
from hlformer_jax.errors import UserError
from hlformer_jax.figures.encoding import Encoder
from hlformer_jax.plots import style
from hlformer_jax.plots.style import Figure
from hlformer_jax.training.finished import Finished

NAMES = {
    "hlformer": "HLFormer",
    "gmmformer_v2": "GMMFormer v2",
    "gmmformer": "GMMFormer",
    "ms_sl": "MS-SL",
    "dl_dkd": "DL-DKD",
    "hover": "HOVER",
}
"""The models as figures call them, by their names in `config.model.name`."""


class NotApplicable(UserError, ValueError):
    """A figure that a run has nothing to show for; the message says why."""


class Drawing(NamedTuple):
    """A figure.

    Attributes:
      figure: what is drawn.
      table: the numbers that are drawn, columns of equal length by name.
      shows: one or two sentences on what is to be seen.
    """

    figure: Figure
    table: Mapping[str, Sequence[Any] | np.ndarray]
    shows: str


class Options(NamedTuple):
    """What a figure may be asked for.

    Attributes:
      videos: ids of the videos to show; none for the figure's own choice.
      split: name of the split whose videos are shown.
      seed: seed of samples and of projections.
    """

    videos: tuple[str, ...] = ()
    split: str = "test"
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Subject:
    """A run that is drawn.

    Attributes:
      label: the name of its model; with its directory where several runs have that model.
      run: the run.
    """

    label: str
    run: Finished

    @functools.cached_property
    def encoder(self) -> Encoder:
        """What encodes videos and captions with its model.

        Raises:
          NotApplicable: for a model of another family.
        """
        if self.run.config.model.name == "hover":
            raise NotApplicable(
                f"{self.label} embeds nodes of action trees, and not videos and captions"
            )
        return Encoder(self.run)

    def split(self, options: Options) -> Any:
        """The split that is asked for."""
        return getattr(self.run.family.data, options.split)


def subjects(runs: Sequence[Finished]) -> list[Subject]:
    """The runs with a label each: equal ones only for a run that is given twice."""
    names = [NAMES.get(run.config.model.name, run.config.model.name) for run in runs]
    places = [run.directory.resolve().parts for run in runs]
    labels = []
    for name, place in zip(names, places, strict=True):
        others = {other for own, other in zip(names, places, strict=True) if own == name}
        # As many of the innermost folders as tell it from every other run of the model.
        depth = next(
            depth
            for depth in range(1, len(place) + 1)
            if all(other == place or other[-depth:] != place[-depth:] for other in others)
        )
        alone = names.count(name) == 1
        labels.append(name if alone else f"{name} ({'/'.join(place[-depth:])})")
    return [Subject(label, run) for label, run in zip(labels, runs, strict=True)]


def applicable(
    subjects: Sequence[Subject], measure: Callable[[Subject], Any]
) -> tuple[list[tuple[Subject, Any]], str]:
    """The runs that a figure applies to, with what it measures of them.

    Args:
      subjects: the runs.
      measure: what is measured of one; raises `NotApplicable` where there is nothing.

    Returns:
      The runs with their measures, and a sentence on those left out; "" where none is.

    Raises:
      NotApplicable: when the figure applies to none; the reasons.
    """
    measured, reasons = [], []
    for subject in subjects:
        try:
            measured.append((subject, measure(subject)))
        except NotApplicable as reason:
            reasons.append(str(reason))
    said = "; ".join(dict.fromkeys(reasons))
    if not measured:
        raise NotApplicable(said)
    return measured, f" Left out: {said}." if reasons else ""


def write(drawing: Drawing, path: Path) -> None:
    """Writes PATH.png, PATH.svg and PATH.csv, each whole or not at all; equal data, equal bytes."""
    with style.applied():
        style.write(drawing.figure, path)
    files.write_bytes(path.with_name(f"{path.name}.csv"), as_csv(drawing.table).encode())


def as_csv(table: Mapping[str, Sequence[Any] | np.ndarray]) -> str:
    """Columns as CSV, numbers with nine digits; what there is none of is empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table)
    for row in zip(*table.values(), strict=True):
        writer.writerow([_cell(value) for value in row])
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return ""
    return f"{float(value):.9g}" if isinstance(value, float | np.floating) else value


class Columns:
    """A table that grows by rows.

    Attributes:
      columns: its columns by name.
    """

    def __init__(self, *names: str) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in names}

    def add(self, *values: Any) -> None:
        """Adds rows: a value for each column, of which sequences give a row for each entry.

        Raises:
          ValueError: when the sequences differ in length.
        """
        alone = [value is None or np.isscalar(value) for value in values]
        lengths = {len(value) for value, one in zip(values, alone, strict=True) if not one}
        if len(lengths) > 1:
            raise ValueError(f"columns of {sorted(lengths)} rows")
        count = lengths.pop() if lengths else 1
        for column, value, one in zip(self.columns.values(), values, alone, strict=True):
            column += [value] * count if one else list(value)
