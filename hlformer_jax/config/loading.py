"""Configuration files: finding them, executing them, and reporting their errors."""

import importlib.util
import inspect
import os
import traceback
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from hlformer_jax import files
from hlformer_jax.errors import ConfigError, UserError
from hlformer_jax.text import suggestion

CONFIGS = Path(__file__).parents[1] / "configs"
"""The configuration files of the package; in a checkout a link to configs/."""


def locate(file: str | os.PathLike[str]) -> Path:
    """Return the path of a configuration file.

    Args:
      file: a path, or the name of a file of the package, such as `anet` or `sweeps/robust`. An
        existing path wins.
    """
    path = files.expand(file)
    packaged = CONFIGS.joinpath(*path.parts[path.parts[:1] == ("configs",) :])
    if path.is_file() or path.is_absolute() or packaged == CONFIGS:
        return path
    if packaged.suffix != ".py":
        packaged = packaged.with_name(f"{packaged.name}.py")
    return packaged if packaged.is_file() else path


def config_names() -> list[str]:
    """Return the names of the package's configuration files, such as sweeps/robust, sorted."""
    paths = CONFIGS.rglob("[!_]*.py")
    return sorted(str(path.relative_to(CONFIGS).with_suffix("")) for path in paths)


def load(file: str | os.PathLike[str], name: str = "") -> ConfigDict:
    """Execute a configuration file and return its configuration.

    Args:
      file: a path, or the name of a file of the package (`locate`).
      name: the name after the colon on the command line, for example "debug".

    Raises:
      ConfigError: if the file is missing or fails; names the line that failed.
    """
    path = locate(file)
    if not path.is_file():
        similar = suggestion(path.with_suffix(""), config_names())
        raise ConfigError(f"{path}: there is no such configuration file{similar}")
    spec: Any = importlib.util.spec_from_file_location(f"hlformer_config_{path.stem}", path)
    if spec is None:
        raise ConfigError(f"{path}: a configuration file must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise ConfigError("it must define the function get_config")
        takes_name = bool(inspect.signature(module.get_config).parameters)
        if name and not takes_name:
            raise ConfigError(f"it has no variant {name!r}: its get_config takes no argument")
        config: ConfigDict = module.get_config(name) if takes_name else module.get_config()
    except UserError as error:
        raise ConfigError(f"{path}: {error}") from error
    except Exception as error:  # the file may fail with any error
        raise ConfigError(fault(path, error)) from error
    return config


def fault(path: Path, error: Exception) -> str:
    """Return the line of a Python file that failed, and the first 200 characters of its error."""
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {kind}: {error.msg}"
    # ml_collections puts an error into another, and lists all fields. A KeyError quotes its text.
    cause = next((x for x in error.args if isinstance(x, Exception)), error)
    text = str(cause.args[0] if isinstance(cause, KeyError) and cause.args else cause)
    reason = " ".join(text.split()).partition(" Other fields present")[0][:200] or kind
    lines = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    if not lines:
        return f"{path}: {reason} ({kind})"
    return f"{path}:{lines[-1].lineno}: {lines[-1].line}: {reason} ({kind})"
