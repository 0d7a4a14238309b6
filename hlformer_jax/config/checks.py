"""Checks of a whole configuration: its fields, their values, and contradictions between values."""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from hlformer_jax.config.definitions import debug, of_model
from hlformer_jax.config.fields import FIELDS, PRVR, family_of, flat, leaves
from hlformer_jax.config.models import DEFINITIONS
from hlformer_jax.config.names import field_suggestion
from hlformer_jax.errors import ConfigError
from hlformer_jax.text import suggestion


def check(config: ConfigDict) -> None:
    """Check that a configuration can be run.

    Raises:
      ConfigError: if a field is missing, unknown or wrong; names the field, its value and the
        allowed values.
    """
    family = family_of(config)
    expected, present = {name for name, _ in leaves(family)}, set(flat(config))
    for name in sorted(present - expected - set(FIELDS[family])):  # a section may be empty
        raise ConfigError(
            f"config.{name}: there is no such field{field_suggestion(name, expected)}"
        )
    for name in sorted(expected - present):
        start = "" if family == "prvr" else repr(family)
        raise ConfigError(
            f"config.{name} is missing: start from hlformer_jax.config.default({start}), and set"
            " single fields, such as config.train.epochs"
        )
    if owner := _owner_of_blocks(config):
        name = config.model.name
        file = {"hlformer": "anet"}.get(name, "clip" if "clip4clip" in name else name)
        raise ConfigError(
            f"config.model.name is {name!r}, but its blocks and their aggregation are {owner}'s:"
            f" start from configs/{file}.py, in Python from config.of_model({name!r})"
        )
    check_values(config)


def check_values(config: ConfigDict, prefix: str = "") -> None:
    """Check the values of the fields whose full names begin with `prefix`.

    Args:
      config: the configuration.
      prefix: start of the names, such as "model."; "" for all fields.

    Raises:
      ConfigError: if a value breaks its rule or contradicts another value.
    """
    family = family_of(config)
    for name, field in leaves(family):
        value = _value(config, name)
        if name.startswith(prefix) and not field.rule.holds(value):
            hint = suggestion(value, field.rule.choices) if isinstance(value, str) else ""
            raise ConfigError(_refusal(config, name, field.rule.meaning) + hint)
    for name, meaning in conflicts(config, family):
        if name.startswith(prefix):
            raise ConfigError(_refusal(config, name, meaning))


def conflicts(config: ConfigDict, family: str = "prvr") -> Iterator[tuple[str, str]]:
    """Yield the fields that contradict other fields.

    Args:
      config: the configuration.
      family: family of the configuration's model.

    Yields:
      The full name of a field, and the end of the sentence "it must be …".
    """
    yield from (_hover_conflicts if family == "hover" else _prvr_conflicts)(config)
    if config.data.max_clips > config.data.max_frames:
        yield (
            "data.max_frames",
            "at least config.data.max_clips, because each branch has data.max_frames positions",
        )


def _prvr_conflicts(config: ConfigDict) -> Iterator[tuple[str, str]]:
    model, loss = config.model, config.loss
    if not (model.gaze or model.glance):
        yield (
            "model.gaze",
            "True if config.model.glance is False: a model needs at least one branch",
        )
    if model.video_level and not model.gaze:
        yield (
            "model.video_level",
            "False if config.model.gaze is False, because it pools the frames",
        )
    if model.name.startswith("clip4clip") and (model.glance or not model.gaze):
        yield (
            "model.glance",
            "False for CLIP4Clip, and config.model.gaze True, because it has no clips",
        )
    if model.video_level and model.name in ("ms_sl", "dl_dkd"):
        yield "model.video_level", f"False for {model.name}, which scores every frame"
    if not (model.euclidean_blocks or model.lorentz_blocks):
        yield "model.euclidean_blocks", "at least 1 if config.model.lorentz_blocks is 0"
    for geometry in ("euclidean", "lorentz"):
        if len(model[f"{geometry}_widths"]) not in (0, 1, model[f"{geometry}_blocks"]):
            blocks = f"config.model.{geometry}_blocks ({model[f'{geometry}_blocks']})"
            yield (
                f"model.{geometry}_widths",
                f"one width for all blocks, or as many widths as {blocks}",
            )
    if not model.lorentz_blocks:
        for name in ("lorentz_window", "head_merge", "lorentz_divisor", "block_curvature"):
            default = PRVR["model"][name].default
            if model[name] != default:
                yield f"model.{name}", f"{default!r} without Lorentz blocks"
    elif (model.lorentz_dim + 1) % model.num_heads or model.lorentz_dim + 1 < 2 * model.num_heads:
        yield (
            "model.lorentz_dim",
            "a multiple of config.model.num_heads minus 1, and at least twice"
            " config.model.num_heads minus 1",
        )
    if model.hidden_size % model.num_heads:
        yield "model.hidden_size", f"a multiple of config.model.num_heads ({model.num_heads})"
    if model.clip_weight + model.frame_weight == 0:
        yield "model.clip_weight", "positive if config.model.frame_weight is 0"
    if loss.diversity_form == "captions" and loss.diversity_gamma != 1:
        yield (
            "loss.diversity_gamma",
            "1 if config.loss.diversity_form is 'captions', which has no focal factor",
        )


def _hover_conflicts(config: ConfigDict) -> Iterator[tuple[str, str]]:
    model, loss = config.model, config.loss
    if model.metric == "cosine" and model.geometry != "euclidean":
        yield "model.metric", "'distance' if config.model.geometry is not 'euclidean'"
    if model.text_encoder == "attention" and model.hidden_size % model.num_heads:
        yield "model.hidden_size", f"a multiple of config.model.num_heads ({model.num_heads})"
    if not (loss.align or loss.tree or loss.chain or loss.order):
        yield "loss.order", "positive if all other weights of config.loss are 0"
    if loss.chain_form == "cone" and loss.form != "corrected":
        yield (
            "loss.chain_form",
            "'norm' if config.loss.form is not 'corrected', because the paper has no cones",
        )
    if bool(config.eval.test_feature) != bool(config.eval.test_collection):
        yield (
            "eval.test_feature",
            "set together with config.eval.test_collection, or both must be empty",
        )


def _owner_of_blocks(config: ConfigDict) -> str | None:
    """Return the model with the same blocks and aggregation, if it is not the configured model.

    Published and debug values are compared. If any field differs, the combination is deliberate.
    Models with one plain block, such as MS-SL and DL-DKD, are ignored, because one plain block is
    an ablation of any model.
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
    except ValueError:  # Python does not write integers of thousands of digits
        shown = "a number of thousands of digits"
    shown = shown if len(shown) <= 80 else f"{shown[:79]}…"
    return f"config.{name} is {shown}: it must be {meaning}"


def _value(config: ConfigDict, name: str) -> Any:
    for part in name.split("."):
        config = config[part]
    return config
