"""The fields of `config.model` as the arguments of a model, checked."""

from collections.abc import Collection, Sequence
from typing import Any

import jax.numpy as jnp
from ml_collections import ConfigDict

from hlformer_jax.config import ConfigError
from hlformer_jax.nn import blocks, fusion
from hlformer_jax.ops import windows

BLOCK_CURVATURES = ("fixed", "shared", "block")


def default_widths(blocks: int) -> tuple[float, ...]:
    """No window, then 2, 4, 8, … (HLFormer's variances 2^1 … 2^(N-1) and infinity)."""
    return tuple(0.0 if k == 0 else 2.0**k for k in range(blocks))


def arguments(config: ConfigDict) -> dict[str, Any]:
    """Arguments of `two_branch.TwoBranch` that a configuration stands for.

    Raises:
      ConfigError: for options that are unknown or make no sense together.
    """
    model = config.model
    _check(config)
    shares = model.block_curvature == "shared"
    return {
        "hidden_size": model.hidden_size,
        "num_heads": model.num_heads,
        "max_frames": config.data.max_frames,
        "max_words": config.data.max_words,
        "bank": {
            "euclidean_widths": _widths(
                "euclidean_widths", model.euclidean_widths, model.euclidean_blocks
            ),
            "lorentz_widths": _widths("lorentz_widths", model.lorentz_widths, model.lorentz_blocks),
            "lorentz_dim": model.lorentz_dim,
            "window": model.window,
            "lorentz_window": model.lorentz_window,
            "head_merge": model.head_merge,
            "curvature": (
                model.block_curvature_start if model.block_curvature == "block" else None
            ),
        },
        "fusion": model.fusion,
        "temperature": model.temperature,
        "input_dropout": model.input_dropout,
        "dropout": model.dropout,
        "gaze": model.gaze,
        "glance": model.glance,
        "video_level": model.video_level,
        "shared_curvature": model.block_curvature_start if shares else None,
        "dtype": jnp.dtype(config.dtype),
        "kernels": config.kernels,
    }


def _check(config: ConfigDict) -> None:
    model = config.model
    _choice("model.window", model.window, windows.KINDS)
    _choice("model.lorentz_window", model.lorentz_window, blocks.LORENTZ_WINDOWS)
    _choice("model.head_merge", model.head_merge, blocks.HEAD_MERGES)
    _choice("model.fusion", model.fusion, fusion.KINDS)
    _choice("model.block_curvature", model.block_curvature, BLOCK_CURVATURES)
    _choice("kernels", config.kernels, blocks.KERNELS)
    if not (model.gaze or model.glance):
        raise ConfigError("config.model.gaze and config.model.glance are both off: keep one branch")
    if model.video_level and not model.gaze:
        raise ConfigError(
            "config.model.video_level pools the frames, but config.model.gaze is off: switch one"
        )
    if model.euclidean_blocks + model.lorentz_blocks < 1:
        raise ConfigError("config.model has no attention block: ask for a Euclidean or a Lorentz")
    if model.block_curvature != "fixed" and not model.lorentz_blocks:
        raise ConfigError(
            f"config.model.block_curvature is {model.block_curvature!r}, but there is no Lorentz"
            " block to learn it: set 'fixed'"
        )
    if model.block_curvature == "fixed" and model.block_curvature_start != 1:
        raise ConfigError(
            f"config.model.block_curvature_start is {model.block_curvature_start}, but the"
            " curvature is fixed at 1: set block_curvature to 'shared' or 'block' to learn it"
        )
    for field in ("lorentz_window", "head_merge"):
        if model[field] != "released" and not model.lorentz_blocks:
            raise ConfigError(
                f"config.model.{field} is {model[field]!r}, but there is no Lorentz block: set"
                " 'released', or ask for one"
            )
    if model.hidden_size % model.num_heads:
        raise ConfigError(
            f"config.model.hidden_size {model.hidden_size} is not divisible by"
            f" config.model.num_heads {model.num_heads}"
        )
    if model.lorentz_blocks and (model.lorentz_dim + 1) % model.num_heads:
        raise ConfigError(
            f"config.model.lorentz_dim + 1 = {model.lorentz_dim + 1} is not divisible by"
            f" config.model.num_heads {model.num_heads}"
        )
    if model.lorentz_blocks and (model.lorentz_dim + 1) // model.num_heads < 2:
        raise ConfigError("config.model.lorentz_dim leaves a head no space coordinate: enlarge it")


def _choice(field: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ConfigError(f"config.{field} {value!r} is unknown: use {', '.join(known)}")


def _widths(field: str, widths: Sequence[float], blocks: int) -> tuple[float, ...]:
    if not widths:
        return default_widths(blocks)
    if len(widths) == 1:
        return tuple(float(widths[0]) for _ in range(blocks))
    if len(widths) != blocks:
        raise ConfigError(
            f"config.model.{field} has {len(widths)} entries for {blocks} blocks: give one for"
            " all, or one each"
        )
    return tuple(float(width) for width in widths)
