"""Proxies of videos and of their sets of captions, and the losses that compare them (RAL).

A video and the set of its captions are normal distributions (`nn.uncertainty`), of which proxies
are drawn. The proxies of a video are matched with those of its captions, and the distributions are
drawn to each other and to the standard normal.

References:
  Robust Alignment Learning (RAL), EMNLP Findings 2025, as in the released code.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from hlformer_jax.models import Normal
from hlformer_jax.typing import Array


class Proxies(NamedTuple):
    """Distributions and what was drawn of them.

    Attributes:
      videos: proxies of videos.
      captions: proxies of the set of a video's captions.
      video_log_sigma: logarithms of the standard deviations of videos.
      caption_log_sigma: those of the sets of captions.
      mask: True for real videos with captions.
    """

    videos: Float[Array, "V R H"]
    captions: Float[Array, "V R H"]
    video_log_sigma: Float[Array, "V H"]
    caption_log_sigma: Float[Array, "V H"]
    mask: Bool[Array, " V"]


def draw(
    key: Array | None, videos: Normal, captions: Normal, number: int, mask: Bool[Array, " V"]
) -> Proxies:
    """Draws proxies of both distributions.

    Args:
      key: random key; the proxies of row i depend on (key, i) alone, so that padding changes none.
        None: the mean stands for every proxy.
      videos: distributions of videos.
      captions: distributions of the sets of their captions.
      number: number R of proxies of each.
      mask: True for real videos with captions.
    """
    # Of padding nothing may reach a sum, not even with a weight of 0.
    videos, captions = (Normal(*(_real(x, mask) for x in normal)) for normal in (videos, captions))
    keys = (None, None) if key is None else jax.random.split(key)
    return Proxies(
        _draw(keys[0], videos, number),
        _draw(keys[1], captions, number),
        videos.log_sigma,
        captions.log_sigma,
        mask,
    )


def _draw(key: Array | None, normal: Normal, number: int) -> Float[Array, "V R H"]:
    mean = normal.mean[:, None]
    shape = (number, mean.shape[-1])
    if key is None:
        return jnp.broadcast_to(mean, (len(mean), *shape))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(mean), dtype=jnp.uint32))
    noise = jax.vmap(lambda row: jax.random.normal(row, shape, mean.dtype))(keys)
    return mean + jnp.exp(normal.log_sigma)[:, None] * noise


def proxy_matching(proxies: Proxies) -> Float[Array, ""]:
    """Contrastive loss on dot products of proxies: those of a video and of its own captions match.

    Returns:
      For each proxy, the mean over the R that match of -log softmax over the proxies of all videos
      of the other kind; mean over the proxies of both kinds.
    """
    videos, captions, mask = proxies.videos, proxies.captions, proxies.mask
    dots = jnp.einsum("vrh,wsh->vrws", videos, captions)
    # A finite filler keeps padded rows finite; their weight is 0.
    both = mask[:, None, None, None] & mask[None, None, :, None]
    dots = jnp.where(both, dots, jnp.finfo(dots.dtype).min / 2)
    matching = jnp.einsum("vh,vh->v", jnp.mean(videos, axis=1), jnp.mean(captions, axis=1))
    of_videos = jnp.mean(jax.nn.logsumexp(dots, axis=(2, 3)), axis=1)
    of_captions = jnp.mean(jax.nn.logsumexp(dots, axis=(0, 1)), axis=1)
    return _mean((of_videos + of_captions) / 2 - matching, mask)


def distribution_alignment(proxies: Proxies) -> Float[Array, ""]:
    """Divergences of both distributions from the standard normal, and of captions from videos.

    With m the mean of the proxies drawn and s = log sigma, sums over coordinates of

        (m² + e^s - s - 1) / 2    of each, and
        s_v - s_t + (e^(2 s_t) + (m_t - m_v)²) / (2 e^(2 s_v)) - 1/2,

    captions t and videos v; mean over videos. As released, the former takes e^s for the variance,
    where the latter and the draws take it for the standard deviation.
    """
    video_mean, caption_mean = jnp.mean(proxies.videos, axis=1), jnp.mean(proxies.captions, axis=1)
    video, caption = proxies.video_log_sigma, proxies.caption_log_sigma
    standard = (video_mean**2 + jnp.exp(video) - video - 1) / 2
    standard = standard + (caption_mean**2 + jnp.exp(caption) - caption - 1) / 2
    spread = jnp.exp(2 * (caption - video)) / 2
    distance = (caption_mean - video_mean) ** 2 * jnp.exp(-2 * video) / 2
    across = video - caption + spread + distance - 0.5
    return _mean(jnp.sum(standard + across, axis=-1), proxies.mask)


def _real(x: Float[Array, "V H"], mask: Bool[Array, " V"]) -> Float[Array, "V H"]:
    return jnp.where(mask[:, None], x, 0)


def _mean(values: Float[Array, " V"], mask: Bool[Array, " V"]) -> Float[Array, ""]:
    count = jnp.maximum(jnp.sum(mask, dtype=jnp.int32), 1)
    return jnp.sum(jnp.where(mask, values, 0)) / count.astype(values.dtype)
