"""The sentence encoders of CLIP and SigLIP as pure functions."""

import jax.numpy as jnp
from jaxtyping import Float, Int

from hlformer_jax.encoders.config import LARGEST_ID, Config
from hlformer_jax.encoders.layers import Params, linear, norm, transformer, unit
from hlformer_jax.typing import Array


def states(params: Params, config: Config, ids: Int[Array, "Q W"]) -> Float[Array, "Q W I"]:
    """The last hidden states of every token, padding included.

    CLIP's tokens read those before them. SigLIP's read all, padding too: it was trained so.

    Args:
      params: the tree's part "text".
      config: sizes and options.
      ids: tokens, padded to the number of positions.
    """
    text = config.text
    x = params["tokens"][ids].astype(jnp.float32) + params["positions"][None, : ids.shape[1]]
    before = jnp.tril(jnp.ones((ids.shape[1],) * 2, bool)) if config.family == "clip" else None
    x = transformer(params["layers"], x, text, before)
    return norm(params["final_norm"], x, text.epsilon)


def pool(
    params: Params, config: Config, hidden: Float[Array, "Q W I"], ids: Int[Array, "Q W"]
) -> Float[Array, "Q d"]:
    """The embedding of sentences in the joint space, of any norm.

    CLIP pools at the first end of a sentence, or (eos 2, OpenAI's) at the largest id; SigLIP at the
    last position, which is padding for all but the longest sentences.

    Args:
      params: the tree's part "text".
      config: sizes and options.
      hidden: the last hidden states.
      ids: the tokens.
    """
    if config.family == "clip":
        eos = config.text.eos
        ranked = ids if eos == LARGEST_ID else (ids == eos).astype(jnp.int32)
        at = jnp.argmax(ranked, axis=1)
        return linear(params["head"], jnp.take_along_axis(hidden, at[:, None, None], axis=1)[:, 0])
    return linear(params["head"], hidden[:, -1])


def encode(
    params: Params, config: Config, ids: Int[Array, "Q W"]
) -> tuple[Float[Array, "Q d"], Float[Array, "Q W I"]]:
    """Unit vectors of sentences, and the last hidden states of their tokens."""
    hidden = states(params, config, ids)
    return unit(pool(params, config, hidden, ids)), hidden
