"""The curves of a run: its loss terms and its validation metric over the epochs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hlformer_jax import files
from hlformer_jax.errors import UserError
from hlformer_jax.plots.style import COLOURS, GREY, MARKERS, Axes, Figure, applied, short, write


def draw_run(directory: Path, title: str = "") -> bool:
    """Draws the curves of a run into its directory, as curves.png and curves.svg.

    The validation metric is the one that chose its best epoch, by the run's config.json.

    Args:
      directory: a run's, with its metrics.jsonl.
      title: title of the figure; the directory's name by default.

    Returns:
      Whether there was anything to draw.
    """
    path = directory / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    if lines and not lines[-1].endswith("\n"):
        lines.pop()  # of a run that is just writing it, or was killed there
    if not lines:
        return False
    records = [parse(line, f"{path}, line {index}") for index, line in enumerate(lines, 1)]
    with applied():
        figure = curves_figure(records, title or directory.name, _selected(directory))
        write(figure, directory / "curves")
    return True


def _selected(directory: Path) -> str:
    """The metric that chooses the best epoch of a run; SumR where it does not say."""
    path = directory / "config.json"
    if not path.exists():
        return "SumR"
    content = parse(path.read_text(encoding="utf-8"), str(path))
    return str(content.get("config", {}).get("eval", {}).get("select", "SumR"))


def parse(text: str, where: str) -> Any:
    """The content of a JSON text.

    Args:
      text: the text.
      where: what it is, for the message.

    Raises:
      UserError: when it is no JSON.
    """
    try:
        return files.parse_json(text)
    except ValueError as error:
        raise UserError(f"{where} is no JSON ({error}): put a whole copy there") from error


def curves_figure(records: Sequence[Mapping[str, Any]], title: str, metric: str = "SumR") -> Figure:
    """Loss terms and a validation metric of a run over its epochs.

    Args:
      records: the lines of its metrics.jsonl.
      title: title of the figure.
      metric: name of the validation metric.
    """
    validations = [record for record in records if f"validation/{metric}" in record]
    steps = [record for record in records if "loss" in record]
    # A record has the index of its step, and the last step of an epoch ends it.
    length = (validations[0]["step"] + 1) / (validations[0]["epoch"] + 1) if validations else 1
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    losses, recalls = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    names = sorted({name for record in steps for name in record if name.startswith("loss/")})
    smallest, signed = math.inf, False
    for position, name in enumerate(("loss", *names)):
        points = [(record["step"] + 1, record[name]) for record in steps if name in record]
        x, y = np.array(points, float).reshape(-1, 2).T
        smallest = min([smallest, *np.abs(y[y != 0])])
        signed = signed or bool((y <= 0).any())
        _curve(losses, x / length, y, name, position)
    if signed:  # a logarithm cannot show these
        losses.set_yscale("symlog", linthresh=max(smallest, 1e-4))
    else:
        losses.set_yscale("log")
    losses.set_ylabel("loss terms, before weighting")
    losses.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    recalls.set_ylabel(f"validation {metric}")
    recalls.set_xlabel("epoch" if validations else "step")
    if validations:
        epochs = [record["epoch"] + 1 for record in validations]
        values = [record[f"validation/{metric}"] for record in validations]
        best = int(np.argmax(values))
        marker = "o" if len(epochs) <= 30 else ""
        recalls.plot(epochs, values, color=COLOURS[0], marker=marker, label=metric)
        star: dict[str, Any] = {"color": COLOURS[1], "markersize": 11}
        label = f"best: {short(values[best])}"
        recalls.plot(epochs[best], values[best], "*", label=label, **star)
        recalls.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        if len(epochs) <= 12:
            recalls.set_xticks(epochs)
    recalls.set_xlim(left=0)
    return figure


def _curve(axes: Axes, x: np.ndarray, y: np.ndarray, name: str, position: int) -> None:
    """One term: what was recorded, thin, and the mean of each epoch where there are several."""
    colour = GREY if name == "loss" else COLOURS[(position - 1) % len(COLOURS)]
    label = "loss, weighted sum" if name == "loss" else name.removeprefix("loss/").replace("_", " ")
    epochs = np.ceil(x - 1e-9)
    means = [float(np.mean(y[epochs == epoch])) for epoch in np.unique(epochs)]
    style: dict[str, Any] = {"color": colour, "linestyle": "--" if name == "loss" else "-"}
    if len(means) < 3:
        axes.plot(x, y, label=label, marker=MARKERS[position % len(MARKERS)], markersize=3, **style)
        return
    axes.plot(x, y, color=colour, alpha=0.3, linewidth=0.7)
    # In the middle of its epoch, which is what it is the mean of.
    axes.plot(np.unique(epochs) - 0.5, means, label=label, **style)
