"""An image-text encoder: images and sentences as unit vectors of one space."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int, UInt8

from hlformer_jax.encoders import transformer
from hlformer_jax.encoders.config import Config, EncoderError
from hlformer_jax.encoders.images import Preprocessing
from hlformer_jax.encoders.tokenizer import Tokenizer
from hlformer_jax.encoders.transformer import Params
from hlformer_jax.typing import Array

IMAGES_AT_ONCE = {"cpu": 16}
"""Images of a batch, by the kind of device; elsewhere `MAX_IMAGES_AT_ONCE`."""

MAX_IMAGES_AT_ONCE = 128
SENTENCES_AT_ONCE = 32
"""Sentences of a batch; a single one, which someone waits for, is a batch of its own."""


class Encoder:
    """An image-text encoder.

    Batches have fixed sizes and are filled up, so that images compile once, and sentences twice:
    for one and for many. What fills up does not change a result.

    Attributes:
      name: id of the hub, or name of the folder.
      config: sizes and options.
      kind: "clip", "siglip" or "siglip2".
      dtype: dtype of the operands of matrix products, "float32" or "bfloat16".
      width: coordinates of a unit vector.
      token_width: coordinates of a token's feature.
      max_tokens: tokens of a sentence at most, its marks included.
      image_size: height and width of an input, in pixels.
      scale: what a cosine is multiplied by, of the trained loss.
      bias: what is added then; 0 for CLIP.
      preprocessing: how images are prepared, in a few words.
    """

    def __init__(
        self,
        config: Config,
        params: Params,
        tokenizer: Tokenizer,
        preparation: Preprocessing,
        *,
        name: str,
        digest: Callable[[], str],
        dtype: str = "float32",
    ) -> None:
        """An encoder of parts; `hlformer_jax.encoders.load` reads one from a folder.

        Args:
          config: sizes and options.
          params: the parameter tree.
          tokenizer: sentences → ids.
          preparation: images → inputs.
          name: id or name.
          digest: hexadecimal SHA-256 of the weights' file, computed when it is asked for.
          dtype: dtype of the kernels.
        """
        self.name = name
        self.config = config
        self.dtype = dtype
        self.kind = "siglip2" if config.family == "siglip" and tokenizer.gemma else config.family
        self.width = config.width
        self.token_width = config.text.width
        self.max_tokens = config.text.positions
        self.image_size = config.vision.image_size
        self.scale = float(np.exp(np.asarray(params["scale"], np.float64)))
        self.bias = float(np.asarray(params["bias"])) if "bias" in params else 0.0
        self.preprocessing = str(preparation)
        self.params = jax.device_put(params)
        self.tokenizer = tokenizer
        self.preparation = preparation
        self._digest = digest

    @cached_property
    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 of all that decides a float32 result: weights, sizes, preparation."""
        parts = {
            "weights": self._digest(),
            "config": asdict(self.config),
            "tokenizer": hashlib.sha256(self.tokenizer.content).hexdigest(),
            "kind": [self.kind, self.tokenizer.name, self.tokenizer.settings.get("do_lower_case")],
            "padding": self.tokenizer.backend.padding,
            "truncation": self.tokenizer.backend.truncation,
            "preprocessing": [str(self.preparation), asdict(self.preparation)],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def preprocess(self, image: UInt8[np.ndarray, "height width 3"]) -> UInt8[np.ndarray, "S S 3"]:
        """An image resized and cropped to the encoder's input.

        Args:
          image: red, green and blue of 0 to 255, of any size.

        Raises:
          EncoderError: when it is no such array.
        """
        return self.preparation.apply(image)

    def images(self, pixels: UInt8[np.ndarray, "V S S 3"]) -> Float[np.ndarray, "V d"]:
        """Unit vectors of images.

        Args:
          pixels: images as `preprocess` returns them, any number.

        Raises:
          EncoderError: when their shape or dtype is another.
        """
        pixels = np.asarray(pixels)
        size = self.image_size
        if pixels.dtype != np.uint8 or pixels.shape[1:] != (size, size, 3):
            raise EncoderError(
                f"{self.name}: images are an array [N, {size}, {size}, 3] of uint8, not"
                f" {list(pixels.shape)} of {pixels.dtype}; preprocess them first"
            )
        at_once = IMAGES_AT_ONCE.get(jax.default_backend(), MAX_IMAGES_AT_ONCE)
        program = partial(_images, self.params["vision"], self.config, self.preparation)
        batches = list(_in_batches(program, pixels, at_once))
        return np.concatenate(batches) if batches else np.zeros((0, self.width), np.float32)

    def sentences(self, texts: Sequence[str]) -> Float[np.ndarray, "Q d"]:
        """Unit vectors of sentences.

        Args:
          texts: sentences of any length; the empty one too; what is beyond `max_tokens` is cut off.

        Raises:
          EncoderError: when one is no string.
        """
        batches = [vectors for _, (vectors, _) in self._texts(texts)]
        return np.concatenate(batches) if batches else np.zeros((0, self.width), np.float32)

    def tokens(self, texts: Sequence[str]) -> list[Float[np.ndarray, "W I"]]:
        """Last hidden states of the real tokens of each sentence, its marks included.

        They are what HLFormer's query encoder reads.

        Args:
          texts: sentences, as for `sentences`.

        Raises:
          EncoderError: when one is no string.
        """
        return [
            states[real]
            for reals, (_, hidden) in self._texts(texts)
            for real, states in zip(reals, hidden, strict=True)
        ]

    def probability(self, cosine: Any) -> Any:
        """The probability that an image and a sentence belong together, by the trained loss.

        Args:
          cosine: a number or an array, of their unit vectors' inner products.

        Returns:
          As many numbers between 0 and 1; None for CLIP, whose cosines rank and no more.
        """
        if self.config.family == "clip":
            return None
        # A sigmoid that does not overflow.
        return 0.5 * (1 + np.tanh((self.scale * np.asarray(cosine) + self.bias) / 2))

    def _texts(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, tuple]]:
        """Masks of real tokens of each batch, and its vectors and states."""
        if isinstance(texts, str):
            raise EncoderError(f"{self.name}: give a list of sentences, not one string")
        at_once = 1 if len(texts) == 1 else SENTENCES_AT_ONCE
        program = partial(_sentences, self.params["text"], self.config)
        for start in range(0, len(texts), at_once):
            ids, real = self.tokenizer(texts[start : start + at_once])
            yield real, next(iter(_in_batches(program, ids, at_once)))


def _in_batches(
    program: Callable[[np.ndarray], Any], inputs: np.ndarray, at_once: int
) -> Iterator[Any]:
    """Results of a program of one batch size, without those of what fills the last batch up.

    The next batch is under way while the one before it is taken back.
    """
    waiting: tuple[Any, int] | None = None
    taken = lambda result, count: jax.tree.map(lambda x: np.asarray(x)[:count], result)
    for start in range(0, len(inputs), at_once):
        rows = inputs[start : start + at_once]
        filled = np.zeros((at_once, *inputs.shape[1:]), inputs.dtype)
        filled[: len(rows)] = rows
        under_way = (program(filled), len(rows))
        if waiting is not None:
            yield taken(*waiting)
        waiting = under_way
    if waiting is not None:
        yield taken(*waiting)


@partial(jax.jit, static_argnums=(1, 2))
def _images(
    params: Params, config: Config, preparation: Preprocessing, pixels: UInt8[Array, "V S S 3"]
) -> Float[Array, "V d"]:
    return transformer.encode_images(params, config, pixels, preparation.shift, preparation.scale)


@partial(jax.jit, static_argnums=1)
def _sentences(
    params: Params, config: Config, ids: Int[Array, "Q W"]
) -> tuple[Float[Array, "Q d"], Float[Array, "Q W I"]]:
    return transformer.encode_sentences(params, config, ids)
