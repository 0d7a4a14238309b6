"""Check that the runs of a table have the sweep's settings and were trained on the same data.

A run records the fingerprint of its data in config.json. The finished runs of a sweep whose
configurations name the same data, so all seeds of a variant on a corpus, must have one fingerprint:
otherwise the files were replaced between two runs, and a mean or a comparison of these runs would
mix two data sets. Variants that name other data, such as other features, are compared among
themselves. The same applies to the annotated times of `eval.moments`, which change metrics only,
and to the list of training videos of `trees.train_subset`.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from hlformer_jax.errors import UserError
from hlformer_jax.sweep import Run
from hlformer_jax.training import run_directory

NAMING_FIELDS = (
    "data.manual_dir",
    "data.collection",
    "data.feature",
    "data.visual_dim",
    "data.text_dim",
    "data.teacher_dim",
    "data.synthetic_videos",
    "trees.precedence",
    "eval.test_collection",
    "eval.test_feature",
)
"""Fields that name the data of a run; the others change how it is read."""

_REPLACED = {
    "data": (
        "data",
        "its files were replaced, or their times changed when copied (cp -a keeps the times);"
        " restore the data",
    ),
    "moments": (
        "times of moments",
        "the file of config.eval.moments was edited or replaced; restore it",
    ),
    "subset": (
        "training trees",
        "the file of config.trees.train_subset was edited or replaced; restore it",
    ),
}
"""For each kind of fingerprint: its subject, and the cause and remedy of a difference."""


class MixedDataError(UserError, ValueError):
    """Error for runs that name the same data but were trained on different files."""


def name_data(config: ConfigDict) -> str:
    """Return the values of `NAMING_FIELDS`, which are equal for runs that name the same data."""
    values = []
    for field in NAMING_FIELDS:
        section, _, name = field.partition(".")
        values.append(config.get(section, {}).get(name))
    return json.dumps(values)


def check_same_data(
    runs: Sequence[Run],
    finished: Sequence[Run],
    root: Path,
    opened: Mapping[Path, run_directory.Fingerprints] | None = None,
) -> list[Run]:
    """Check that finished runs have the sweep's settings, and equally named data the same files.

    Args:
      runs: the runs of the sweep.
      finished: the runs with a result.
      root: the directory of the sweep.
      opened: what unfinished runs would be trained on, by directory.

    Returns:
      The finished runs whose data is unknown, because they have no recorded fingerprint.

    Raises:
      MixedDataError: if two runs differ; names both runs and both fingerprints.
      WorkdirError: if a finished run has other settings, or a record of a run is damaged.
    """
    opened = opened or {}
    done = {run.directory for run in finished}
    first: dict[tuple[str, ...], tuple[Path, str]] = {}
    unrecorded = []
    # Finished runs come first, so that an error names one of them before an unfinished run.
    for run in sorted(runs, key=lambda run: run.directory not in done):
        directory = root / run.directory
        if run.directory in done:
            inputs = run_directory.check_finished(directory, run.config)
            if inputs.data is None:
                unrecorded.append(run)
        else:
            inputs = opened.get(run.directory, run_directory.UNKNOWN)
        data_name = run.corpus, name_data(run.config)
        times = str(run.config.eval.get("moments"))
        subset = str(run.config.get("trees", {}).get("train_subset"))
        keys = (
            ("data", *data_name),
            ("moments", *data_name, times),
            ("subset", *data_name, subset),
        )
        for key, fingerprint in zip(keys, inputs, strict=True):
            if fingerprint is None:
                continue
            first_directory, expected = first.setdefault(key, (directory, fingerprint))
            if fingerprint != expected:
                verb = "has" if run.directory in done else "would have"
                what, remedy = _REPLACED[key[0]]
                raise MixedDataError(
                    f"{first_directory} has {what} with the fingerprint {expected!r}, but"
                    f" {directory} {verb} {fingerprint!r}: {remedy}, choose another `workdir`, or"
                    f" move away the runs of the other {what} to train them again"
                )
    return unrecorded


def describe_environments(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line if finished runs had other devices or versions; none otherwise.

    Args:
      results: the content of result.json of each run.
    """
    differing = []
    for name in ("device", "commit", "hlformer-jax", "jax", "jaxlib"):
        values = (result.get(name) or result.get("versions", {}).get(name) for result in results)
        counts = Counter(value for value in values if value)
        if len(counts) > 1:
            parts = [f"{x} in {count} run{'s' * (count > 1)}" for x, count in counts.items()]
            differing.append(f"{name} ({', '.join(parts)})")
    return [f"The runs differ in {'; '.join(differing)}"] if differing else []


def describe_unrecorded(runs: Sequence[Run]) -> list[str]:
    """Return a line that names finished runs whose data is unknown; none without such a run."""
    if not runs:
        return []
    names = ", ".join(str(run.directory) for run in runs[:3])
    more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    return [
        f"{names}{more} {'do' if len(runs) > 1 else 'does'} not say which data was used: check"
        " that it is the data of the other runs"
    ]
