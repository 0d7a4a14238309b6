"""The fields of `config.model` as options of a model, checked, and its hyperparameters.

Options shape a model's program. Hyperparameters are arguments of it: models that differ in these
alone share a program, so that a sweep over them compiles once.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Float
from ml_collections import ConfigDict

from hlformer_jax.config import ConfigError
from hlformer_jax.nn import blocks, fusion
from hlformer_jax.nn.bank import BankOptions, Windows, make_windows
from hlformer_jax.nn.blocks import BlockOptions, LorentzOptions
from hlformer_jax.ops import windows
from hlformer_jax.ops.numerics import wide
from hlformer_jax.typing import Array

BLOCK_CURVATURES = ("fixed", "shared", "block")


@dataclasses.dataclass(frozen=True)
class TwoBranchOptions:
    """Options of a `two_branch.TwoBranch`; the fields of `config.model`, see config/fields.py.

    Attributes:
      hidden_size: width H of every encoding.
      max_frames: number of rows of a branch's position embedding.
      max_words: number of rows of the query encoder's position embedding.
      bank: options of the banks of both branches, and of the query encoder's block.
      fusion: a key of `nn.fusion.FUSIONS`.
      input_dropout: rate of the dropout before the blocks.
      gaze: whether there is a frame branch.
      glance: whether there is a clip branch.
      video_level: whether frames are pooled to one vector a video.
      shared_curvature: initial curvature that all Lorentz blocks learn together, or None.
    """

    hidden_size: int
    max_frames: int
    max_words: int
    bank: BankOptions
    fusion: str
    input_dropout: float
    gaze: bool
    glance: bool
    video_level: bool
    shared_curvature: float | None


class Hyperparameters(NamedTuple):
    """Numbers of a model that are arguments of its programs: changing them does not recompile.

    Attributes:
      temperature: tau of the fusion weights.
      clip_windows: windows of the clip branch.
      frame_windows: windows of the frame branch.
    """

    temperature: Float[Array, ""]
    clip_windows: Windows
    frame_windows: Windows


def default_widths(blocks: int) -> tuple[float, ...]:
    """No window, then 2, 4, 8, … (HLFormer's variances 2^1 … 2^(N-1) and infinity)."""
    return tuple(0.0 if k == 0 else 2.0**k for k in range(blocks))


def bank_widths(config: ConfigDict) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The window widths of the Euclidean and of the Lorentz blocks; 0 is no window.

    Raises:
      ConfigError: when there are not as many window widths as blocks.
    """
    model = config.model
    return (
        _widths("euclidean_widths", model.euclidean_widths, model.euclidean_blocks),
        _widths("lorentz_widths", model.lorentz_widths, model.lorentz_blocks),
    )


def hyperparameters(config: ConfigDict) -> Hyperparameters:
    """The hyperparameters that a configuration gives its model.

    Raises:
      ConfigError: when there are not as many window widths as blocks.
    """
    dtype = wide(jnp.dtype(config.dtype))
    both = bank_widths(config)
    of_length = lambda length: make_windows(*both, length, config.model.window, dtype)
    return Hyperparameters(
        jnp.asarray(config.model.temperature, dtype),
        of_length(config.data.max_clips),
        of_length(config.data.max_frames),
    )


def from_config(config: ConfigDict, expansion: int) -> TwoBranchOptions:
    """The options that a configuration stands for.

    Args:
      config: the whole configuration.
      expansion: width of the blocks' feed-forward network over H.

    Raises:
      ConfigError: for options that are unknown or make no sense together.
    """
    model = config.model
    _check(config)
    start, learned = model.block_curvature_start, model.block_curvature
    return TwoBranchOptions(
        hidden_size=model.hidden_size,
        max_frames=config.data.max_frames,
        max_words=config.data.max_words,
        bank=BankOptions(
            block=BlockOptions(
                num_heads=model.num_heads,
                dropout=model.dropout,
                expansion=expansion,
                dtype=jnp.dtype(config.dtype),
            ),
            lorentz=LorentzOptions(model.lorentz_dim, model.lorentz_window, model.head_merge),
            euclidean_blocks=model.euclidean_blocks,
            lorentz_blocks=model.lorentz_blocks,
            curvature=start if learned == "block" else None,
        ),
        fusion=model.fusion,
        input_dropout=model.input_dropout,
        gaze=model.gaze,
        glance=model.glance,
        video_level=model.video_level,
        shared_curvature=start if learned == "shared" else None,
    )


def _check(config: ConfigDict) -> None:
    model = config.model
    _choice("model.window", model.window, windows.KINDS)
    _choice("model.lorentz_window", model.lorentz_window, blocks.LORENTZ_WINDOWS)
    _choice("model.head_merge", model.head_merge, blocks.HEAD_MERGES)
    _choice("model.fusion", model.fusion, fusion.FUSIONS)
    _choice("model.block_curvature", model.block_curvature, BLOCK_CURVATURES)
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
