"""The directory of a run: its owner, and the settings and data to which it belongs.

config.json has the configuration and the data of the run. From its first checkpoint on, a directory
belongs to one configuration and one data source.
"""

import contextlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from hlformer_jax import files
from hlformer_jax.config import family_of, flat, leaves
from hlformer_jax.errors import UserError
from hlformer_jax.retrieval import ranking
from hlformer_jax.retrieval.moments import needs_moments
from hlformer_jax.runtime import environment
from hlformer_jax.training import checkpoints

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
    def of(cls, family: Any) -> "Fingerprints":
        """Return the fingerprints of a `Family`; opens its data."""
        optional = (getattr(family, name, None) for name in (_MOMENTS, _SUBSET))
        return cls(family.fingerprint, *optional)


UNKNOWN = Fingerprints()
"""The fingerprints before the data is open, and of a directory without a record."""


class WorkdirError(UserError, ValueError):
    """The directory holds another run; the message names the difference."""


class OccupiedError(WorkdirError):
    """Another process is training the run of the directory."""


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
        if (recorded := _recorded(workdir)) is not None:
            _compare(recorded, workdir, config, inputs, init, movable)
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
    recorded = _recorded(workdir) or {}
    return Path(recorded["init"]) if "init" in recorded else None


def recorded_inputs(workdir: Path) -> Fingerprints:
    """Return the fingerprints of the run in a directory; `UNKNOWN` without a record.

    Raises:
      WorkdirError: if the record is damaged.
    """
    return _inputs(_recorded(workdir) or {})


def _inputs(recorded: Mapping[str, Any]) -> Fingerprints:
    return Fingerprints(*map(recorded.get, ("data_fingerprint", _MOMENTS, _SUBSET)))


def describe_unfinished(workdir: Path) -> str:
    """Return how far an unfinished run has come, such as "epoch 3 of 100"; "" for anything else.

    A run whose newest state was removed, or cannot be read, counts as finished.
    """
    directory, recorded = Path(workdir) / "checkpoints" / "newest", _recorded(Path(workdir))
    if recorded is None or not checkpoints.has_steps(directory):
        return ""
    with (
        contextlib.closing(checkpoints.Series(directory)) as saved,
        contextlib.suppress(checkpoints.CheckpointError),
    ):
        progress, train = checkpoints.Progress(**saved.info()), recorded["config"]["train"]
        if progress.epochs < train["epochs"] and not progress.is_over(train["patience"]):
            return f"epoch {progress.epochs} of {train['epochs']}"
    return ""


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
    recorded = _recorded(workdir)
    existing = [name for name in WRITTEN if os.path.lexists(workdir / name)]
    if existing and recorded is None:
        raise WorkdirError(
            f"{workdir} holds {existing[0]}, but no config.json, so its run is unknown: restore"
            " config.json, or choose another `workdir`"
        )
    newest, best = (workdir / "checkpoints" / name for name in ("newest", "best"))
    has_newest, has_best = checkpoints.has_steps(newest), checkpoints.has_steps(best)
    is_tested = (workdir / ranking.METRICS_FILE).exists()  # even if its checkpoints were removed
    has_begun = has_newest or has_best or is_tested
    if has_begun and recorded is not None:
        _compare(recorded, workdir, config, inputs, init, movable)
    # A run that was killed in its first save has no newest state either, and begins again.
    if has_best and not has_newest and not (newest / checkpoints.SAVING).exists():
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
    recorded = _recorded(workdir)
    if recorded is None:
        return UNKNOWN
    _compare(recorded, workdir, config, UNKNOWN, is_finished=True)
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
    run_record = _recorded(directory)
    if run_record is None:
        files.check_replaced(directory / EVALUATION_FILE)  # refuses a link
    recorded = run_record or _recorded(directory, EVALUATION_FILE)
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
    if _are_other(before.moments, inputs.moments):
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
    if _recorded(directory) is None:
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


def _compare(
    recorded: Mapping[str, Any],
    workdir: Path,
    config: ConfigDict,
    inputs: Fingerprints,
    init: Path | None = None,
    movable: Sequence[str] = (),
    is_finished: bool = False,
) -> None:
    before = _inputs(recorded)
    chooses_epoch = needs_moments(config.eval.select)  # otherwise the moments change no step
    if chooses_epoch and _are_other(before.moments, inputs.moments):
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
    if _are_other(before.subset, inputs.subset):
        raise WorkdirError(
            f"{workdir} holds a run with other training trees: config.trees.train_subset"
            f" ({config.trees.train_subset}) was edited; restore it, or choose another `workdir`"
        )


def _are_other(before: str | None, now: str | None) -> bool:
    """Return whether two fingerprints are known to differ."""
    return None not in (before, now) and before != now


def _without_inputs(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a record that `_settings` has, and an evaluation's checkpoint.

    The environment is left out, because a run may resume in another.
    """
    others = ("init", _MOMENTS, _SUBSET, "device", "versions")
    return {name: value for name, value in recorded.items() if name not in others}


def _raised_patience(recorded: Mapping[str, Any], config: ConfigDict) -> tuple[str, ...]:
    """Return the name of the patience if it is larger than the recorded one."""
    before = recorded["config"].get("train", {}).get("patience", config.train.patience)
    return ("train.patience",) if config.train.patience > before else ()


def _recorded(workdir: Path, file: str = "config.json") -> dict[str, Any] | None:
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
