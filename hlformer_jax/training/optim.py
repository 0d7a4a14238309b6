"""The released optimiser as an optax chain: BERT's Adam.

Gradients are clipped per parameter tensor to norm 1; Adam has no bias correction and its epsilon
stands outside the root; decay is decoupled and follows the learning rate; the rate warms up
linearly and falls linearly to 0, and is 0 at step 0.

A bank of blocks keeps the parameters of its K blocks in one array. Where the released code treats
a tensor on its own (clipping), each block's slice is treated on its own here. Which parameters
these are, which do not decay, and which have a rate of their own, is declared by the model.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from hlformer_jax.training.rows import Rows

Params = Any

TORCH_CLIP_EPSILON = 1e-6
"""Added to the norm by PyTorch's clip_grad_norm_."""


class BertAdamState(NamedTuple):
    """First and second moments of the gradient."""

    first: Params
    second: Params


def schedule(form: str, learning_rate: float, warmup: float, total_steps: int) -> optax.Schedule:
    """A rate that rises linearly over the share `warmup` of all steps, and then falls to 0.

    As "linear", or "warmup_cosine". The cosine is of the share of all steps, as in CLIP4Clip: where
    the warm-up ends the rate jumps from its peak to (1 + cos(π warmup)) / 2 of it.
    """

    def rate(step: int | jax.Array) -> jax.Array:
        progress = jnp.asarray(step, jnp.result_type(float)) / total_steps
        rising = progress / warmup if warmup > 0 else jnp.ones_like(progress)
        if form == "linear":
            falling = jnp.maximum((1 - progress) / (1 - warmup), 0)
        else:
            falling = (1 + jnp.cos(jnp.pi * jnp.minimum(progress, 1))) / 2
        return learning_rate * jnp.where(progress < warmup, rising, falling)

    return rate


class RowWise(optax.GradientTransformation):
    """One that takes trees, and the same as `Rows`."""


def scale_by_name(factors: Mapping[str, float]) -> optax.GradientTransformation:
    """Scales the updates of parameters that have, or are in a module that has, one of the names."""

    def factor(path: tuple) -> float:
        return next((factors[name] for name in _names(path) if name in factors), 1.0)

    def update(updates: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
        del params
        return _scaled(updates, factor), state

    return RowWise(lambda params: optax.EmptyState(), update)


def add_decayed_weights(rate: float, undecayed: Collection[str]) -> optax.GradientTransformation:
    """Adds `rate` times the parameters that decay, see `decay_mask`."""
    plain = optax.add_decayed_weights(rate, mask=lambda params: decay_mask(params, undecayed))

    def update(updates: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
        if not isinstance(updates, Rows):
            return plain.update(updates, state, params)
        share = lambda path: 0.0 if _any_name(path, undecayed) else rate
        return jax.tree.map(jnp.add, updates, _scaled(params, share)), state

    return RowWise(plain.init, update)


def _scaled(tree: Params, factor: Callable[[tuple], float]) -> Params:
    """A tree times a number for each path."""
    scale = lambda array, by: array * jnp.asarray(by, array.dtype)
    if isinstance(tree, Rows):
        return tree.map(scale, tree.of_rows(factor))
    return jax.tree_util.tree_map_with_path(lambda path, x: scale(x, factor(path)), tree)


def clip_by_tensor_norm(
    max_norm: float, stacked: Collection[str] = ()
) -> optax.GradientTransformation:
    """Scales each released tensor's gradient to a norm of at most `max_norm`."""

    def clip(gradient: jax.Array, norm: jax.Array) -> jax.Array:
        return gradient * jnp.minimum(max_norm / (norm + TORCH_CLIP_EPSILON), 1)

    def clip_tensor(path: tuple, gradient: jax.Array) -> jax.Array:
        first = 1 if _any_name(path, stacked) else 0
        axes = tuple(range(first, gradient.ndim))
        return clip(gradient, jnp.sqrt(jnp.sum(jnp.square(gradient), axis=axes, keepdims=True)))

    def update(updates: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
        del params
        if isinstance(updates, Rows):
            return updates.map(clip, updates.norms(lambda path: _any_name(path, stacked))), state
        return jax.tree_util.tree_map_with_path(clip_tensor, updates), state

    return RowWise(lambda params: optax.EmptyState(), update)


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


def decay_mask(params: Params, undecayed: Collection[str]) -> Params:
    """True for parameters that decay; see `TwoBranch.undecayed`."""
    decays = lambda path, _: not _any_name(path, undecayed)
    return jax.tree_util.tree_map_with_path(decays, params)


def _any_name(path: tuple, names: Collection[str]) -> bool:
    return any(name in names for name in _names(path))


def _names(path: tuple) -> list[str]:
    return [str(entry.key) for entry in path if hasattr(entry, "key")]


def build(fields: ConfigDict, module: Any, total_steps: int) -> optax.GradientTransformation:
    """The optimiser of `config.optim` for a model.

    With `global_clip` (HOVER) all gradients are clipped together first.
    """
    form = fields.get("schedule", "linear")
    rate = schedule(form, fields.learning_rate, fields.warmup, total_steps)
    chain = [
        clip_by_tensor_norm(fields.clip_norm, module.stacked),
        scale_by_bert_adam(fields.beta1, fields.beta2, fields.epsilon),
        add_decayed_weights(fields.weight_decay, module.undecayed),
        optax.scale_by_learning_rate(rate),
    ]
    if "global_clip" in fields:
        chain.insert(0, optax.clip_by_global_norm(fields.global_clip))
    if module.rates:
        rates = {name: fields[field] for name, field in module.rates.items()}
        chain.append(scale_by_name({n: x / fields.learning_rate for n, x in rates.items()}))
    return RowWise(*optax.chain(*chain))
