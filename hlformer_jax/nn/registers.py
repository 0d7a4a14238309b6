"""Registers: global tokens of a video, made by a short diffusion, that its positions may see.

A Gaussian over the hidden space stands for what the clips of a video have in common. The registers
begin at its mean, all alike, and a denoiser that is conditioned on the clips moves them in T steps
to where the video's captions would be: with the noise ε that it sees at level t,

    x_{t-1} = a_t clip(x_t / √ᾱ_t - √(1 / ᾱ_t - 1) ε, -1, 1) + b_t x_t + σ_t mean.

Every step adds the mean in place of noise, as released, so that nothing here is random. The cosine
schedule gives the levels: β_t = 1 - ᾱ_t / ᾱ_{t-1}, at most 0.999, of ᾱ_t = cos²(π/2 (t / T + s) /
(1 + s)), s = 0.008; a_t, b_t and σ_t are those of the posterior of the diffusion.

The Gaussian and the denoiser are computed in float32 whatever the blocks are: 1 / √ᾱ_t reaches 200.

References:
  DreamPRVR (arXiv 2604.03653) and its released code. Two things differ. The released pooling of
  sorted features takes its weights from a recurrent network over the ranks; as the number of clips
  is fixed, those are C numbers, which are learned here as such. The released sinusoids of the level
  are overwritten, as any embedding of that model, by noise that is never trained; here they are
  kept.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from hlformer_jax.nn.blocks import BlockOptions, EuclideanBlock
from hlformer_jax.nn.layers import INITIALISER, dense, layer_norm
from hlformer_jax.ops.numerics import as_float, unit
from hlformer_jax.typing import Array

NUM_LEVELS = 10
"""T, levels of noise of the diffusion."""

NUM_LAYERS = 2
"""Layers of the denoiser."""

RANK_TEMPERATURE = 0.1
"""Divides the logits of the ranks."""

SCHEDULE_OFFSET = 0.008
"""s of the cosine schedule."""

MAX_BETA = 0.999
"""Largest β_t of the schedule."""


class Latent(NamedTuple):
    """What the registers of a video are made of.

    Attributes:
      mean: of the Gaussian of the video, of norm 1.
      log_variance: logarithms of its variances.
      condition: what each register asked the clips, and was answered.
    """

    mean: Float[Array, "V H"]
    log_variance: Float[Array, "V H"]
    condition: Float[Array, "V R H"]


class Schedule(NamedTuple):
    """Coefficients of the diffusion at T levels of noise; see the module.

    Attributes:
      signal: √ᾱ_t, share of the clean signal.
      noise: √(1 - ᾱ_t), share of the noise.
      from_clean: a_t.
      from_noisy: b_t.
      spread: σ_t; 0 at the last step.
    """

    signal: Float[Array, " T"]
    noise: Float[Array, " T"]
    from_clean: Float[Array, " T"]
    from_noisy: Float[Array, " T"]
    spread: Float[Array, " T"]


def schedule(num_levels: int, dtype: Any = jnp.float32) -> Schedule:
    """The cosine schedule, computed in float64.

    Args:
      num_levels: T.
      dtype: dtype of the coefficients.

    References:
      Nichol and Dhariwal, Improved denoising diffusion probabilistic models, eq. 17.
    """
    time = np.linspace(0, 1, num_levels + 1)
    curve = np.square(np.cos((time + SCHEDULE_OFFSET) / (1 + SCHEDULE_OFFSET) * math.pi / 2))
    beta = np.clip(1 - curve[1:] / curve[:-1], 0, MAX_BETA)
    signal = np.cumprod(1 - beta)
    before = np.concatenate([[1.0], signal[:-1]])
    return Schedule(
        *(
            jnp.asarray(x, dtype)
            for x in (
                np.sqrt(signal),
                np.sqrt(1 - signal),
                beta * np.sqrt(before) / (1 - signal),
                (1 - before) * np.sqrt(1 - beta) / (1 - signal),
                np.sqrt(beta * (1 - before) / (1 - signal)),
            )
        )
    )


def sinusoids(num_levels: int, features: int) -> Float[np.ndarray, "T H"]:
    """Sine and cosine, in turn, of a level by H / 2 frequencies from 1 to nearly 1 / 10,000."""
    frequency = np.exp(-math.log(10_000) * np.arange(0, features, 2) / features)
    angle = np.arange(num_levels)[:, None] * frequency[None]
    both = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    return both.reshape(num_levels, -1)[:, :features]


class AdditivePooling(nn.Module):
    """Weighted sum over positions with weights softmax(w . tanh(W x))."""

    @nn.compact
    def __call__(self, x: Float[Array, "*batch L H"]) -> Float[Array, "*batch H"]:
        linear = lambda features, name: nn.Dense(
            features, use_bias=False, dtype=x.dtype, kernel_init=INITIALISER, name=name
        )
        hidden = jnp.tanh(linear(max(x.shape[-1] // 2, 1), "layer1")(x))
        weights = jax.nn.softmax(linear(1, "layer2")(hidden)[..., 0], axis=-1)
        return jnp.einsum("...l,...lh->...h", weights, x)


class RankPooling(nn.Module):
    """Sorts each feature over the positions, and sums with learned weights of the ranks."""

    @nn.compact
    def __call__(self, x: Float[Array, "*batch L H"]) -> Float[Array, "*batch H"]:
        logits = self.param("logits", nn.initializers.zeros, (x.shape[-2],))
        weights = jax.nn.softmax(logits / RANK_TEMPERATURE).astype(x.dtype)
        return jnp.einsum("l,...lh->...h", weights, jnp.sort(x, axis=-2, descending=True))


class VideoGaussian(nn.Module):
    """The Gaussian of a video: its mean, of norm 1, and the logarithms of its variances."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch L H"]
    ) -> tuple[Float[Array, "*batch H"], Float[Array, "*batch H"]]:
        linear = lambda name: dense(x.shape[-1], name, x.dtype)
        pooled = RankPooling(name="ranks")(x)
        attended = AdditivePooling(name="mean_pooling")(x)
        mean = pooled + nn.sigmoid(linear("mean_dense")(attended))
        attended = AdditivePooling(name="variance_pooling")(x)
        log_variance = linear("variance_dense")(attended) + linear("variance_pooled")(pooled)
        return unit(layer_norm("norm", x.dtype)(mean)), log_variance


class DenoiserLayer(nn.Module):
    """Residual network of a register, to which level and condition are added in the middle."""

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "S V R H"],
        level: Float[Array, "S 1 1 H"],
        condition: Float[Array, "1 V R H"],
    ) -> Float[Array, "S V R H"]:
        linear = lambda name: dense(x.shape[-1], name, x.dtype)
        hidden = linear("input")(nn.swish(layer_norm("norm1", x.dtype)(x)))
        hidden = hidden + linear("level")(nn.swish(level))
        hidden = hidden + linear("condition")(nn.swish(condition))
        hidden = nn.swish(layer_norm("norm2", x.dtype)(hidden))
        return linear("output")(hidden) + linear("shortcut")(x)


class Denoiser(nn.Module):
    """Predicts the noise in registers from their level of noise and their condition."""

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "S V R H"],
        levels: Int[Array, " S"],
        condition: Float[Array, "V R H"],
    ) -> Float[Array, "S V R H"]:
        linear = lambda name: dense(x.shape[-1], name, x.dtype)
        table = jnp.asarray(sinusoids(NUM_LEVELS, x.shape[-1]), x.dtype)
        level = linear("level2")(nn.swish(linear("level1")(table[levels])))[:, None, None]
        condition = linear("condition")(nn.relu(layer_norm("norm", x.dtype)(condition)))[None]
        hidden = x
        for layer in range(1, NUM_LAYERS + 1):
            hidden = DenoiserLayer(name=f"layer{layer}")(hidden, level, condition)
        return linear("output")(hidden + x)


class RegisterGenerator(nn.Module):
    """Makes the registers of videos from their clips.

    Attributes:
      num_registers: R.
      features: width H.
      options: options of the attention blocks.
    """

    num_registers: int
    features: int
    options: BlockOptions

    def setup(self) -> None:
        """Builds the block over the clips, the questions, the Gaussian and the denoiser."""
        shape = (self.num_registers, self.features)
        self.block = EuclideanBlock(self.options)
        self.tokens = self.param("tokens", nn.initializers.normal(1.0), shape)
        self.cross = EuclideanBlock(
            dataclasses.replace(self.options, expansion=1, implementation="xla")
        )
        self.gaussian = VideoGaussian()
        self.denoiser = Denoiser()

    def latent(self, clips: Float[Array, "V C H"], train: bool) -> Latent:
        """What the registers are made of.

        Args:
          clips: clips as the clip branch has them before its banks.
          train: whether dropout is on.
        """
        clips = self.block(clips, clips, None, None, train)
        shape = (len(clips), *self.tokens.shape)
        tokens = jnp.broadcast_to(self.tokens[None], shape).astype(clips.dtype)
        condition = self.cross(tokens, clips, None, None, train)
        return Latent(*self.gaussian(as_float(clips)), as_float(condition))

    def sample(self, latent: Latent) -> Float[Array, "V R H"]:
        """The registers: T steps of the diffusion, from the mean; nothing is drawn."""
        mean = jnp.broadcast_to(latent.mean[:, None], latent.condition.shape)
        coefficients = schedule(NUM_LEVELS, mean.dtype)

        def step(
            generator: RegisterGenerator, x: Array, level: tuple[Array, Schedule]
        ) -> tuple[Array, None]:
            index, at = level
            noise = generator.denoiser(x[None], index[None], latent.condition)[0]
            clean = jnp.clip((x - at.noise * noise) / at.signal, -1, 1)
            return at.from_clean * clean + at.from_noisy * x + at.spread * mean, None

        levels = jnp.arange(NUM_LEVELS, dtype=jnp.int32), coefficients
        shared: Any = {"variable_broadcast": "params", "split_rngs": {"params": False}}
        registers, _ = nn.scan(step, reverse=True, **shared)(self, mean, levels)
        return registers

    def predict_noise(
        self, latent: Latent, clean: Float[Array, "V R H"]
    ) -> Float[Array, "T V R H"]:
        """The noise that the denoiser sees at every level, where it is the mean, as released.

        Args:
          latent: of the videos.
          clean: what the registers should become.
        """
        at = schedule(NUM_LEVELS, clean.dtype)
        each = lambda x: x[:, None, None, None]
        noisy = each(at.signal) * clean[None] + each(at.noise) * latent.mean[None, :, None]
        levels = jnp.arange(NUM_LEVELS, dtype=jnp.int32)
        return self.denoiser(noisy, levels, latent.condition)
