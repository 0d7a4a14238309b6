"""The configuration: made from published values, loaded from a file, and checked.

    fields       every field: its default, what it may be, and its meaning
    published    the values that define each model, data set and form

A file in ``configs/`` starts from `of_model` or `default` and sets what its result needs; nothing
else has defaults. Nothing here loads JAX, so that a wrong command is answered at once.
"""

import importlib.util
import inspect
import os
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from hlformer_jax.config.fields import FIELDS, Field, conflicts, leaves
from hlformer_jax.config.published import DATA_SETS, DEBUG, DEFINITIONS, PRESETS
from hlformer_jax.errors import UserError, suggestion

__all__ = [
    "ConfigError", "check", "check_values", "debug", "default", "family_of", "flat", "leaves",
    "load", "of_model", "on_data_set", "parts_of", "preset", "variant",
]  # fmt: skip


class ConfigError(UserError, ValueError):
    """A field has a value that is unknown or makes no sense; the message names the field."""


def default(family: str = "prvr") -> ConfigDict:
    """Returns the complete configuration of a family, locked: an unknown field is an error."""
    values = {
        name: field.default
        if isinstance(field, Field)
        else {key: inner.default for key, inner in field.items()}
        for name, field in _known("family of models", family, FIELDS).items()
    }
    return ConfigDict(values).lock()


def of_model(name: str) -> ConfigDict:
    """Returns the default configuration with the fields that define a model."""
    config = _updated(default(), _known("model", name, DEFINITIONS))
    config.model.name = name
    return config


def on_data_set(config: ConfigDict, data_set: str) -> ConfigDict:
    """Sets the fields that say which of the released features, of `DATA_SETS`, a run is on."""
    return _updated(config, {"data": DATA_SETS[data_set]})


def preset(config: ConfigDict, name: str) -> ConfigDict:
    """Sets the fields of a form of HOVER, of `published.PRESETS`; returns the configuration."""
    return _updated(config, _known("form of HOVER", name, PRESETS))


def debug(config: ConfigDict) -> ConfigDict:
    """Shrinks a configuration until it runs in seconds on a CPU, without any features.

    What makes the result is kept (losses, weights, optimiser, options of the model); sizes,
    epochs and the number of blocks are not. Without `manual_dir` the data is synthetic, with the
    widths that the configuration has, so that released features work as well.
    """
    family = family_of(config)
    config.update_from_flattened_dict(DEBUG[family])
    if family == "prvr":
        for geometry in ("euclidean", "lorentz"):
            blocks = min(config.model[f"{geometry}_blocks"], 2)
            config.model[f"{geometry}_blocks"] = blocks
            config.model[f"{geometry}_widths"] = tuple(config.model[f"{geometry}_widths"])[:blocks]
    return config


def variant(config: ConfigDict, name: str) -> ConfigDict:
    """The variant of a configuration that stands behind the colon of `configs/x.py:NAME`."""
    if name not in ("", "debug"):
        raise ConfigError(f"there is no variant {name!r} of the configuration: only 'debug'")
    return debug(config) if name else config


def parts_of(name: str, data_sets: Sequence[str] = tuple(DATA_SETS)) -> tuple[str, str]:
    """What stands behind the colon of `configs/x.py:NAME`: the data set, and "debug" or "".

    The first of the data sets that a file has is its default.
    """
    known = {"": (data_sets[0], ""), "debug": (data_sets[0], "debug")}
    for data_set in data_sets:
        known |= {data_set: (data_set, ""), f"{data_set}-debug": (data_set, "debug")}
    return _known("variant", name, known)


def family_of(config: ConfigDict) -> str:
    """The name of the family that a configuration is of; "prvr" where its model is unknown."""
    section = config.get("model")
    name = section.get("name") if isinstance(section, ConfigDict) else None
    of_hover = dict(leaves("hover"))["model.name"].rule.holds(name)
    return "hover" if of_hover else "prvr"


def check(config: ConfigDict) -> None:
    """Refuses a configuration that no run could mean, naming the field, what it is and may be."""
    family = family_of(config)
    known, given = {name for name, _ in leaves(family)}, set(flat(config))
    for name in sorted(given - known):
        raise ConfigError(f"config.{name}: there is no such field{suggestion(name, known)}")
    for name in sorted(known - given):
        start = "" if family == "prvr" else repr(family)
        raise ConfigError(
            f"config.{name} is missing: start from hlformer_jax.config.default({start})"
        )
    if other := _owner_of_blocks(config):
        name = config.model.name
        file = {"hlformer": "anet"}.get(name, "clip" if "clip4clip" in name else name)
        raise ConfigError(
            f"config.model.name is {name!r}, but the blocks and their aggregation are those of"
            f" {other}: start from configs/{file}.py, in Python from config.of_model({name!r})"
        )
    check_values(config)


def check_values(config: ConfigDict, prefix: str = "") -> None:
    """Refuses values of the fields that begin with `prefix`, by their rules, then beside others."""
    family = family_of(config)
    for name, field in leaves(family):
        value = _value(config, name)
        if name.startswith(prefix) and not field.rule.holds(value):
            near = suggestion(value, field.rule.choices) if isinstance(value, str) else ""
            raise ConfigError(_refusal(config, name, field.rule.meaning) + near)
    for name, meaning in conflicts(config, family):
        if name.startswith(prefix):
            raise ConfigError(_refusal(config, name, meaning))


def _owner_of_blocks(config: ConfigDict) -> str | None:
    """The other model whose blocks and aggregation a configuration has, all of them.

    They are compared as they are published and as `debug` shrinks them. Where one of them differs,
    somebody chose the combination. One plain block, as of MS-SL and DL-DKD, is an ablation of any
    model.
    """
    if config.model.name not in DEFINITIONS:
        return None
    for name, fields in DEFINITIONS.items():
        if fields["model"]["euclidean_blocks"] == 1:
            continue
        for published in (of_model(name), debug(of_model(name))):
            if all(config.model[field] == published.model[field] for field in fields["model"]):
                return None if name == config.model.name else name
    return None


def _refusal(config: ConfigDict, name: str, meaning: str) -> str:
    try:
        shown = repr(_value(config, name))
    except ValueError:  # Python writes no whole number of thousands of digits
        shown = "a number of thousands of digits"
    shown = shown if len(shown) <= 80 else f"{shown[:79]}…"
    return f"config.{name} is {shown}: it must be {meaning}"


def _value(config: ConfigDict, name: str) -> Any:
    for part in name.split("."):
        config = config[part]
    return config


def flat(fields: Mapping[str, Any] | ConfigDict, section: str = "") -> dict[str, Any]:
    """Nested fields by their full names, such as "model.dropout"."""
    named: dict[str, Any] = {}
    for key, value in fields.items():
        inner = isinstance(value, Mapping | ConfigDict)
        named |= flat(value, f"{section}{key}.") if inner else {f"{section}{key}": value}
    return named


def _known(what: str, name: str, known: Any) -> Any:
    if name not in known:
        names = ", ".join(filter(None, known))
        raise ConfigError(f"there is no {what} {name!r}: use {names}{suggestion(name, known)}")
    return known[name]


def _updated(config: ConfigDict, values: Any) -> ConfigDict:
    config.update({section: dict(fields) for section, fields in values.items()})
    return config


CONFIGS = Path(__file__).parent.parent / "configs"
"""The configuration files of the package; in a checkout a link to configs/."""


def locate(file: str | os.PathLike[str]) -> Path:
    """A configuration file: of this path, else the package's, as `sweeps/robust`."""
    path = Path(file).expanduser()
    own = CONFIGS.joinpath(*path.parts[path.parts[:1] == ("configs",) :])
    if not path.is_file() and not path.is_absolute() and own != CONFIGS:
        own = own if own.suffix == ".py" else own.with_name(f"{own.name}.py")
        return own if own.is_file() else path
    return path


def load(file: str | os.PathLike[str], name: str = "") -> ConfigDict:
    """Returns the configuration of a file, as `locate` finds it, which is executed.

    `name` is what would stand behind a colon on the command line, for example "debug". What a file
    does wrong is a ConfigError that has its line.
    """
    path = locate(file)
    if not path.is_file():
        known = [str(own.relative_to(CONFIGS).with_suffix("")) for own in CONFIGS.rglob("*.py")]
        raise ConfigError(
            f"{path}: there is no such configuration file{suggestion(path.with_suffix(''), known)}"
        )
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
