"""Encoders of images and texts, which run an architecture's computation in batches."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from hlformer_jax.encoders import cpu, families
from hlformer_jax.encoders.config import IMAGE_PRECISIONS, Config, EncoderError, TextConfig
from hlformer_jax.encoders.images import Preprocessing
from hlformer_jax.encoders.tokenizer import Tokenizer
from hlformer_jax.encoders.transformer import Params
from hlformer_jax.lazy import install_command
from hlformer_jax.text import shown
from hlformer_jax.typing import Array

IMAGES_AT_ONCE = {"cpu": 16}
"""Number of images in a batch by the kind of device; on other devices it is `MAX_IMAGES_AT_ONCE`.

Fewer images are padded to a batch, so that a vector does not depend on the number of images.
"""

MAX_IMAGES_AT_ONCE = 128
TEXTS_AT_ONCE = 32
"""Number of texts in a batch; a single text is encoded without padding texts, which is faster."""


class TextEncoder:
    """A `TokenEncoder`; `hlformer_jax.encoders.load_text` returns one.

    Batches have fixed sizes and are padded, so that only two programs are compiled for texts: one
    for a single text and one for a batch. Padding does not change the results.

    Attributes:
      name: hub id, or name of the folder.
      kind: "clip", "siglip", "siglip2" or "roberta".
      dtype: dtype of the operands of matrix products, "float32" or "bfloat16".
      token_width: number of coordinates of a token's feature.
      max_tokens: largest number of tokens of a text, including special tokens.
    """

    def __init__(
        self,
        config: TextConfig,
        params: Params,
        tokenizer: Tokenizer,
        *,
        name: str,
        digest: Callable[[], str],
        dtype: str = "float32",
    ) -> None:
        """Create an encoder.

        Args:
          config: sizes of the encoder.
          params: parameter tree.
          tokenizer: tokenizer of its texts.
          name: the name that users see.
          digest: function that returns the checksum of the weights; called when the fingerprint is
            first needed.
          dtype: dtype of the operands of matrix products.
        """
        self.name = name
        self.config = config
        self.dtype = dtype
        self.kind = families.text_family(config).kind(tokenizer)
        self.token_width = config.text.width
        self.max_tokens = config.max_tokens
        self.params = jax.device_put(params)
        self.tokenizer = tokenizer
        self._digest = digest

    @cached_property
    def fingerprint(self) -> str:
        """The hexadecimal SHA-256 of weights, sizes, tokenizer and, for images, preprocessing."""
        return hashlib.sha256(json.dumps(self._identity(), sort_keys=True).encode()).hexdigest()

    def _identity(self) -> dict[str, Any]:
        """Return all facts that determine the results in float32, as values for JSON."""
        return {
            "weights": self._digest(),
            "config": asdict(self.config),
            "tokenizer": hashlib.sha256(self.tokenizer.content).hexdigest(),
            "kind": [self.kind, self.tokenizer.name, self.tokenizer.settings.get("do_lower_case")],
            "padding": self.tokenizer.backend.padding,
            "truncation": self.tokenizer.backend.truncation,
        }

    def encode_tokens(self, texts: Sequence[str]) -> list[Float[np.ndarray, "W I"]]:
        """Return the last hidden states of the tokens of each text, including special tokens.

        HLFormer's query encoder reads these states. Tokens beyond `max_tokens` are dropped.

        Args:
          texts: any number of texts.

        Returns:
          For each text the states of its W tokens, float32, without padding.

        Raises:
          EncoderError: if `texts` is one string, or has anything but strings.
        """
        return [
            states[real]
            for batch_real, (_, batch_states) in self._encode_batches(texts)
            for real, states in zip(batch_real, batch_states, strict=True)
        ]

    def rest(self, text: str) -> str:
        """Return the part of a text that is beyond `max_tokens` and not encoded, "" if none is."""
        return self.tokenizer.rest(text)

    def _encode_batches(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, tuple]]:
        """Yield the mask of the tokens of each batch, and a pair of vectors and token states.

        The vectors are None if the encoder has no joint space of images and texts.
        """
        if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
            raise EncoderError(f"{self.name}: give a list of texts, not {shown(texts)}")
        texts = list(texts)
        batch_size = 1 if len(texts) == 1 else TEXTS_AT_ONCE
        for start in range(0, len(texts), batch_size):
            ids, real = self.tokenizer(texts[start : start + batch_size])
            padded = (_pad_rows(rows, batch_size) for rows in (ids, real))
            results = _encode_texts(self.params["text"], self.config, *padded)
            yield real, _fetch_rows(results, len(ids))


class ImageTextEncoder(TextEncoder):
    """An `Encoder` and `TokenEncoder`; `hlformer_jax.encoders.load` returns one.

    One compiled program encodes any number of images.

    Attributes:
      config: sizes of the encoder.
      width: number of coordinates of a unit vector.
      image_size: height and width of an input image, in pixels.
      scale: factor of the cosines in the trained loss.
      bias: number that the trained loss adds to scale · cosine; 0 for CLIP.
      preprocessing: description of `preprocess`.
      preprocess: function that resizes and crops an image to the encoder's input.
      image_precision: precision of `encode_images`; it is `dtype` until `set_image_precision`
        changes it.
    """

    config: Config

    def __init__(
        self,
        config: Config,
        params: Params,
        tokenizer: Tokenizer,
        image_processor: Preprocessing,
        **options: Any,
    ) -> None:
        """Create an encoder.

        Args:
          config: sizes of the encoder.
          params: parameter tree.
          tokenizer: tokenizer of its texts.
          image_processor: settings of the preprocessing of images.
          **options: further arguments of `TextEncoder`.
        """
        super().__init__(config, params, tokenizer, **options)
        self.width = config.width
        self.image_size = config.vision.image_size
        self.scale = float(np.exp(np.asarray(params["scale"], np.float64)))
        self.bias = float(np.asarray(params["bias"])) if "bias" in params else 0.0
        self.image_processor = image_processor
        self.preprocessing = str(image_processor)
        self.preprocess = image_processor.apply
        self.image_precision = self.dtype
        self._report: Callable[[str], None] = print

    def set_image_precision(self, precision: str, report: Callable[[str], None] = print) -> None:
        """Set the precision of `encode_images`; the precision of texts stays the same.

        Vectors that were computed in different precisions can be compared with each other.

        Args:
          precision: "float32", "bfloat16", or "int8" (only with OpenVINO on a CPU).
          report: receives a line if OpenVINO is installed but cannot compile the encoder.

        Raises:
          EncoderError: if `precision` has another value, is not `dtype` while `dtype` is bfloat16,
            or is int8 without OpenVINO or on another device than a CPU.
        """
        self.check_image_precision(precision)
        self._report = report
        if precision != self.image_precision:
            self.image_precision = precision
            vars(self).pop("_encode_batch", None)

    def check_image_precision(self, precision: str) -> None:
        """Raise the error that `set_image_precision` would raise for a precision.

        Args:
          precision: the precision.

        Raises:
          EncoderError: see `set_image_precision`.
        """
        allowed = IMAGE_PRECISIONS if self.dtype == "float32" else (self.dtype,)
        if precision not in allowed:
            raise EncoderError(
                f"{self.name}: precision must be {' or '.join(allowed)}, got {precision!r}"
            )
        if precision != "int8":
            return
        if not _is_on_cpu():
            raise EncoderError(f"{self.name}: precision int8 needs a CPU: give another precision")
        try:
            cpu.check_usable()
        except ImportError as error:
            raise EncoderError(
                f"{self.name}: precision int8 needs OpenVINO, which cannot be imported ({error}):"
                f" {install_command('cpu')}, or give the precision float32 or bfloat16"
            ) from error

    @property
    def preferred_precision(self) -> str:
        """The precision to encode images in if none is given.

        It is bfloat16 if the weights were loaded in it, or if images are encoded on a CPU that has
        instructions for bfloat16, otherwise float32.
        """
        is_rounded = self.dtype == "bfloat16" or (_is_on_cpu() and cpu.has_bfloat16())
        return "bfloat16" if is_rounded else "float32"

    @property
    def image_backend(self) -> str:
        """The compiler of the program that encodes images: "OpenVINO" or "XLA"."""
        return "OpenVINO" if self._suits_openvino and cpu.is_installed() else "XLA"

    @property
    def lacks_openvino(self) -> bool:
        """True if OpenVINO would encode the images, but is not installed."""
        return self._suits_openvino and not cpu.is_installed()

    @property
    def _suits_openvino(self) -> bool:
        if not _is_on_cpu() or self.dtype != "float32":
            return False
        return self.image_precision != "bfloat16" or cpu.has_bfloat16()

    @cached_property
    def _encode_batch(self) -> Callable[[np.ndarray], Any]:
        """The program that encodes a full batch of images."""
        if self.image_backend == "XLA":
            return self._encode_by_xla
        size = (_images_at_once(), self.image_size, self.image_size, 3)
        try:
            return cpu.compile_program(
                partial(encode_images, self.params["vision"], self.config, self.image_processor),
                jax.ShapeDtypeStruct(size, np.uint8),
                self.image_precision,
            )
        except (ImportError, RuntimeError) as error:
            message, _, _ = str(error).partition("\n\nAt:\n")  # OpenVINO adds a traceback
            reason = (message.strip().splitlines() or [repr(error)])[-1]
            if self.image_precision == "int8":
                raise EncoderError(
                    f"{self.name}: OpenVINO cannot encode images in int8 ({reason}); set the"
                    " precision float32 or bfloat16"
                ) from error
            self._report(f"{self.name}: XLA encodes the images, because OpenVINO cannot ({reason})")
            return self._encode_by_xla

    def _encode_by_xla(self, pixels: np.ndarray) -> Any:
        params = self._rounded if self.image_precision != self.dtype else self.params["vision"]
        return encode_images(params, self.config, self.image_processor, pixels)

    @cached_property
    def _rounded(self) -> Params:
        """The parameters of the image encoder, with kernels in bfloat16."""

        def cast(path: tuple, leaf: Array) -> Array:
            return leaf.astype("bfloat16") if path[-1].key == "kernel" else leaf

        return jax.tree_util.tree_map_with_path(cast, self.params["vision"])

    def _identity(self) -> dict[str, Any]:
        preprocessing = [self.preprocessing, asdict(self.image_processor)]
        return super()._identity() | {"preprocessing": preprocessing}

    def encode_images(self, pixels: UInt8[np.ndarray, "V S S 3"]) -> Float[np.ndarray, "V d"]:
        """Return float32 unit vectors of any number of images that `preprocess` returned.

        Args:
          pixels: the images.

        Raises:
          EncoderError: if the images have another shape or dtype.
        """
        pixels = np.asarray(pixels)
        size = self.image_size
        if pixels.dtype != np.uint8 or pixels.shape[1:] != (size, size, 3):
            raise EncoderError(
                f"{self.name}: images are an array [N, {size}, {size}, 3] of uint8, not"
                f" {list(pixels.shape)} of {pixels.dtype}; preprocess them first"
            )
        if not len(pixels):
            return np.zeros((0, self.width), np.float32)
        return np.concatenate(list(_run_batches(self._encode_batch, _images_at_once(), pixels)))

    def encode_texts(self, texts: Sequence[str]) -> Float[np.ndarray, "Q d"]:
        """Return float32 unit vectors of texts.

        Tokens beyond `max_tokens` are dropped.

        Args:
          texts: any number of texts.

        Raises:
          EncoderError: if `texts` is one string, or has anything but strings.
        """
        batches = [vectors for _, (vectors, _) in self._encode_batches(texts)]
        return np.concatenate(batches) if batches else np.zeros((0, self.width), np.float32)

    def probability(self, cosines: Any) -> Any:
        """Return the probabilities that images and texts with these cosines belong together.

        Args:
          cosines: a number or an array of cosines.

        Returns:
          The probabilities that SigLIP's loss defines; None for CLIP, whose loss only compares the
          pairs of a batch.
        """
        family = families.image_text_family(self.config)
        return family.probability(cosines, self.scale, self.bias)


def _is_on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def _images_at_once() -> int:
    return IMAGES_AT_ONCE.get(jax.default_backend(), MAX_IMAGES_AT_ONCE)


def _run_batches(
    program: Callable[[np.ndarray], Any], batch_size: int, inputs: np.ndarray
) -> Iterator[np.ndarray]:
    """Run a program on batches of one size, and yield its results without the rows of padding.

    The next batch is started before the result of a batch is fetched.
    """
    previous: tuple[Any, int] | None = None
    for start in range(0, len(inputs), batch_size):
        rows = inputs[start : start + batch_size]
        current = (program(_pad_rows(rows, batch_size)), len(rows))
        if previous is not None:
            yield _fetch_rows(*previous)
        previous = current
    if previous is not None:
        yield _fetch_rows(*previous)


def _pad_rows(rows: np.ndarray, count: int) -> np.ndarray:
    padded = np.zeros((count, *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _fetch_rows(result: Any, count: int) -> Any:
    return jax.tree.map(lambda x: np.asarray(x)[:count], result)


@partial(jax.jit, static_argnums=(1, 2))
def encode_images(
    params: Params, config: Config, image_processor: Preprocessing, pixels: UInt8[Array, "V S S 3"]
) -> Float[Array, "V d"]:
    """Return unit vectors of images, float32; XLA compiles once for each batch size.

    Args:
      params: the part "vision" of the parameter tree.
      config: the encoder's sizes.
      image_processor: the settings of the normalisation.
      pixels: images that have been resized and cropped.
    """
    family = families.image_text_family(config)
    return family.encode_images(params, config, image_processor, pixels)


@partial(jax.jit, static_argnums=1)
def _encode_texts(
    params: Params, config: TextConfig, ids: Int[Array, "Q W"], real: Bool[Array, "Q W"]
) -> tuple[Float[Array, "Q d"] | None, Float[Array, "Q W I"]]:
    if isinstance(config, Config):
        return families.image_text_family(config).encode_texts(params, config, ids)
    return None, families.text_family(config).token_states(params, config, ids, real)
