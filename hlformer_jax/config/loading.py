"""Configuration files, such as ``configs/anet.py``: executed, with faults reported by line."""

import importlib.util
import inspect
import os
import traceback
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from hlformer_jax.config.rules import ConfigError


def load(file: str | os.PathLike[str], name: str = "") -> ConfigDict:
    """Returns the configuration of a file such as ``configs/anet.py``, which is executed.

    Args:
      file: defines `get_config`, which takes a name or has none to take.
      name: what would stand behind a colon on the command line, for example "debug".

    Raises:
      ConfigError: when there is no such file, it has no configuration of that name, or it fails;
        then the message has the line.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such configuration file")
    spec: Any = importlib.util.spec_from_file_location(f"hlformer_config_{path.stem}", path)
    if spec is None:
        raise ConfigError(f"{path}: a configuration file is a .py file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise ConfigError("it is no configuration file: it does not define get_config")
        takes_name = bool(inspect.signature(module.get_config).parameters)
        if name and not takes_name:
            raise ConfigError(f"it has no variant {name!r}: its get_config takes no name")
        config: ConfigDict = module.get_config(name) if takes_name else module.get_config()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except Exception as error:  # whatever a file does wrong, its line says it best
        raise ConfigError(_fault(path, error)) from error
    return config


def _fault(path: Path, error: Exception) -> str:
    """Where a configuration file failed, what stands there, and the first line of the error."""
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {kind}: {error.msg}"
    # ml_collections quotes an error within an error, and lists all fields that there are.
    reason = (str(error).strip().splitlines() or [kind])[0]
    reason = reason.partition(" Other fields present")[0].strip("\"'")[:200]
    lines = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    if not lines:
        return f"{path}: {reason} ({kind})"
    return f"{path}:{lines[-1].lineno}: {lines[-1].line}: {reason} ({kind})"
