"""The released optimiser as an optax chain: BERT's Adam.

Gradients are clipped per parameter tensor to norm 1; Adam has no bias correction and its epsilon
stands outside the root; decay is decoupled and follows the learning rate; the rate warms up
linearly and falls linearly to 0, and is 0 at step 0.

A bank of blocks keeps the parameters of its K blocks in one array. Where the released code treats
a tensor on its own (clipping), each block's slice is treated on its own here.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

Params = Any

TORCH_CLIP_EPSILON = 1e-6
"""Added to the norm by PyTorch's clip_grad_norm_."""


class BertAdamState(NamedTuple):
    """First and second moments of the gradient."""

    first: Params
    second: Params


def linear_warmup(learning_rate: float, warmup: float, total_steps: int) -> optax.Schedule:
    """Learning rate that rises linearly over a share of all steps, then falls linearly to 0.

    Args:
      learning_rate: the rate at the peak.
      warmup: share of all steps, in [0, 1).
      total_steps: number of steps of the whole run.

    Returns:
      The rate as a function of the step, from 0; 0 at step 0 when `warmup` > 0.
    """

    def schedule(step: int | jax.Array) -> jax.Array:
        progress = jnp.asarray(step, jnp.result_type(float)) / total_steps
        rising = progress / warmup if warmup > 0 else jnp.ones_like(progress)
        falling = jnp.maximum((1 - progress) / (1 - warmup), 0)
        return learning_rate * jnp.where(progress < warmup, rising, falling)

    return schedule


def warmup_cosine(learning_rate: float, warmup: float, total_steps: int) -> optax.Schedule:
    """Learning rate that rises linearly over a share of all steps, then falls as a cosine to 0.

    Arguments as of `linear_warmup`. The cosine is of the share of all steps, as in CLIP4Clip: where
    the warm-up ends the rate jumps from its peak to (1 + cos(π warmup)) / 2 of it.
    """

    def schedule(step: int | jax.Array) -> jax.Array:
        progress = jnp.asarray(step, jnp.result_type(float)) / total_steps
        rising = progress / warmup if warmup > 0 else jnp.ones_like(progress)
        falling = (1 + jnp.cos(jnp.pi * jnp.minimum(progress, 1))) / 2
        return learning_rate * jnp.where(progress < warmup, rising, falling)

    return schedule


SCHEDULES = {"linear": linear_warmup, "warmup_cosine": warmup_cosine}
"""Schedules by the name that `config.optim.schedule` has, where a family has the field."""


def scale_by_factor(factor: Callable[[tuple[str, ...]], float]) -> optax.GradientTransformation:
    """Scales the update of each parameter by a factor of its own.

    Args:
      factor: takes the names on the way to a parameter.
    """

    def update(updates: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
        del params
        scale = lambda path, x: x * jnp.asarray(factor(tuple(_names(path))), x.dtype)
        return jax.tree_util.tree_map_with_path(scale, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def clip_by_tensor_norm(max_norm: float) -> optax.GradientTransformation:
    """Scales each released parameter tensor's gradient to a norm of at most `max_norm`."""

    def clip(path: tuple, gradient: jax.Array) -> jax.Array:
        axes = tuple(range(1 if is_stacked(path) else 0, gradient.ndim))
        norm = jnp.sqrt(jnp.sum(jnp.square(gradient), axis=axes, keepdims=True))
        return gradient * jnp.minimum(max_norm / (norm + TORCH_CLIP_EPSILON), 1)

    def update(updates: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
        del params
        return jax.tree_util.tree_map_with_path(clip, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def scale_by_bert_adam(beta1: float, beta2: float, epsilon: float) -> optax.GradientTransformation:
    """Adam without bias correction; epsilon outside the root."""

    def init(params: Params) -> BertAdamState:
        return BertAdamState(optax.tree.zeros_like(params), optax.tree.zeros_like(params))

    def update(
        updates: Params, state: BertAdamState, params: Any = None
    ) -> tuple[Params, BertAdamState]:
        del params
        first = optax.tree.update_moment(updates, state.first, beta1, 1)
        second = optax.tree.update_moment(updates, state.second, beta2, 2)
        scaled = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), first, second)
        return scaled, BertAdamState(first, second)

    return optax.GradientTransformation(init, update)


def decay_mask(params: Params) -> Params:
    """True where the released code decays: not `bias`, not the scale of an input `LayerNorm`.

    The scales of the blocks' norm1 and norm2, curvature, alphas and scales are decayed; the
    attention's scalar `bias` is not.
    """

    def decays(path: tuple, _: Any) -> bool:
        names = _names(path)
        return names[-1] != "bias" and "LayerNorm" not in names

    return jax.tree_util.tree_map_with_path(decays, params)


def is_stacked(path: tuple) -> bool:
    """Whether the leaf at that path carries a leading axis of blocks, those of a layer's bank."""
    return any(re.fullmatch(r"bank(_\d+)?", name) for name in _names(path))


def _names(path: tuple) -> list[str]:
    return [str(entry.key) for entry in path if hasattr(entry, "key")]


def build(config: ConfigDict, total_steps: int) -> optax.GradientTransformation:
    """Returns the optimiser of `config.optim` for a run of `total_steps` steps."""
    optim = config.optim
    schedule = linear_warmup(optim.learning_rate, optim.warmup, total_steps)
    return optax.chain(
        clip_by_tensor_norm(optim.clip_norm),
        scale_by_bert_adam(optim.beta1, optim.beta2, optim.epsilon),
        optax.add_decayed_weights(optim.weight_decay, mask=decay_mask),
        optax.scale_by_learning_rate(schedule),
    )
