"""The directory of a run: who may use it.

From its first checkpoint on it belongs to one configuration and one data source. Until then nothing
in it is worth keeping: what could not start is started again with what was wrong put right.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from hlformer_jax.errors import UserError
from hlformer_jax.run import lock
from hlformer_jax.run.files import write_json

MOVABLE = (
    "data.manual_dir",
    "data.data_dir",
    "data.cache_gib",
    "data.resident",
    "train.checkpoint_seconds",
)
"""Fields that may differ when a run resumes: where things lie and fit, not what they are."""

RETIRED = ("kernels",)
"""Fields that earlier versions recorded with a run, and that changed no result."""


class WorkdirError(UserError, ValueError):
    """The directory holds another run; the message names the difference."""


class OccupiedError(WorkdirError):
    """The run of the directory is under way."""


def claim(
    workdir: Path, config: ConfigDict, fingerprint: str, writes: bool = True
) -> contextlib.ExitStack:
    """Makes the directory this run's, or finds that it is; saves the resolved configuration.

    Args:
      workdir: the run's directory.
      config: the resolved configuration.
      fingerprint: fingerprint of the data source.
      writes: whether it is this one, of several processes of a run, that writes there; the others
        find out whether that one's configuration and data are theirs.

    Returns:
      What keeps other processes out of the directory until it is closed.

    Raises:
      WorkdirError: when a run with another configuration or other data was started there.
      OccupiedError: when it is under way.
    """
    if not writes:
        _compare(workdir, config, fingerprint)
        return contextlib.ExitStack()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.hold(workdir))
        except BlockingIOError:
            raise OccupiedError(
                f"a run is under way in {workdir}: wait for it, or choose another --workdir"
            ) from None
        check(workdir, config, fingerprint)
        write_json(workdir / "config.json", _wanted(config, fingerprint))
        return stack.pop_all()


def check(workdir: Path, config: ConfigDict, fingerprint: str | None = None) -> None:
    """Finds whether the directory is free, without a checkpoint, or this run's; changes nothing.

    Args:
      workdir: the run's directory.
      config: the resolved configuration.
      fingerprint: fingerprint of the data source; None where any will do.

    Raises:
      WorkdirError: when a run with another configuration or other data was started there.
    """
    results = (workdir / "test_metrics.json").exists()  # of a run without its checkpoints, even
    if results or any(child.name.isdigit() for child in (workdir / "checkpoints").glob("*/*")):
        _compare(workdir, config, fingerprint)


def check_data(workdir: Path, fingerprint: str) -> None:
    """Refuses to mix results on other data with those of the directory's run, if it has one.

    Raises:
      WorkdirError: when the run of the directory was started on other data.
    """
    found = _recorded(workdir)
    if found is not None and found.get("data_fingerprint") != fingerprint:
        raise WorkdirError(
            f"{workdir} holds a run on other data (other files, or their times changed in a copy):"
            " correct config.data, or give the checkpoint by --checkpoint and another --workdir"
        )


def _compare(workdir: Path, config: ConfigDict, fingerprint: str | None) -> None:
    found = _recorded(workdir)
    if found is None:
        return
    there = found.get("data_fingerprint")
    fingerprint = there if fingerprint is None else fingerprint
    differences = _differences(_flat(found), _flat(_wanted(config, fingerprint)))
    if differences:
        hint = (
            " (the data's files are others, or their times changed in a copy: cp -a keeps them)"
            if there != fingerprint
            else ""
        )
        raise WorkdirError(
            f"{workdir} holds a run that differs in {'; '.join(differences)}{hint}: choose"
            " another --workdir, or give what it was started with to resume it"
        )


def _recorded(workdir: Path) -> dict[str, Any] | None:
    """The config.json of a directory; None where there is none."""
    path = workdir / "config.json"
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise WorkdirError(f"{path} is not JSON: remove {workdir} or choose another") from None
    return found


def _wanted(config: ConfigDict, fingerprint: str | None) -> dict[str, Any]:
    return {"config": json.loads(config.to_json()), "data_fingerprint": fingerprint}


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {
        name: value
        for key, child in tree.items()
        for name, value in _flat(child, f"{prefix}.{key}" if prefix else key).items()
    }


def _differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    movable = {f"config.{field}" for field in (*MOVABLE, *RETIRED)}
    return [
        f"{name} ({found.get(name, 'absent')} there, {wanted.get(name, 'absent')} now)"
        for name in sorted(found.keys() | wanted.keys())
        if name not in movable and found.get(name) != wanted.get(name)
    ]
