"""Interfaces of encoders, which search and training use.

    Encoder         images and texts → unit vectors of one space
    TokenEncoder    texts → a feature of each token
    LimitsTexts     text → its end, if it is too long

`hlformer_jax.encoders.load` returns an object with all of them. Any other object with these
attributes can be used instead: a client of a service, another library's model, a fake in a test.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, UInt8

from hlformer_jax.encoders.config import EncoderError

Preprocess = Callable[
    [UInt8[np.ndarray, "height width 3"]], UInt8[np.ndarray, "image_size image_size 3"]
]
"""Type of functions from an image of any size to an encoder's input, both RGB from 0 to 255."""


@runtime_checkable
class Encoder(Protocol):
    """Maps images and texts into one space of unit vectors, where cosines compare them."""

    @property
    def name(self) -> str:
        """Return the name that users see: an id of the hub, or the name of a folder."""

    @property
    def fingerprint(self) -> str:
        """Return 64 hexadecimal digits; encoders with equal fingerprints give equal vectors."""

    @property
    def width(self) -> int:
        """Return the number of coordinates of a unit vector."""

    @property
    def image_size(self) -> int:
        """Return the height and width of an input image, in pixels."""

    @property
    def preprocessing(self) -> str:
        """Return a description of `preprocess` that changes whenever its results do."""

    @property
    def preprocess(self) -> Preprocess:
        """Return the function that resizes and crops an image.

        It is pickled and sent to the processes that decode videos, so it should not refer to
        weights.
        """

    def encode_images(
        self, pixels: UInt8[np.ndarray, "V image_size image_size 3"]
    ) -> Float[np.ndarray, "V d"]:
        """Return float32 unit vectors of any number of images that `preprocess` returned."""

    def encode_texts(self, texts: Sequence[str]) -> Float[np.ndarray, "Q d"]:
        """Return float32 unit vectors of any number of texts, each of any length."""

    def probability(self, cosines: Any) -> Any:
        """Return the probabilities that images and texts with these cosines belong together.

        Args:
          cosines: a number or an array of cosines.

        Returns:
          Probabilities in [0, 1] of the same shape; None if cosines of the encoder can only rank.
        """


NORM_TOLERANCE = 0.01
"""Largest difference from 1 of the norm of an embedding of a query."""


def single_embedding(encoder: Encoder, vectors: Any) -> Float[np.ndarray, " d"]:
    """Return the only embedding that an encoder has returned, as float32.

    Args:
      encoder: the encoder.
      vectors: what it returned for one text or image, [1, d].

    Raises:
      EncoderError: if it is not a unit vector of the encoder's width.
    """
    array = np.asarray(vectors, np.float32)
    if array.shape != (1, encoder.width):
        raise EncoderError(
            f"the encoder {encoder.name!r} returned an array of shape {array.shape} for one text"
            f" or image: it should be (1, {encoder.width})"
        )
    norm = float(np.linalg.norm(array))
    if not abs(norm - 1) <= NORM_TOLERANCE:
        raise EncoderError(
            f"the encoder {encoder.name!r} returned an embedding of norm {norm:.4g}: it should be 1"
        )
    return array[0]


@runtime_checkable
class TokenEncoder(Protocol):
    """Maps texts to features of their tokens, which trained models read."""

    @property
    def name(self) -> str:
        """Return the name that users see: an id of the hub, or the name of a folder."""

    @property
    def fingerprint(self) -> str:
        """Return 64 hexadecimal digits; encoders with equal fingerprints give equal features."""

    @property
    def token_width(self) -> int:
        """Return the number of coordinates of a feature."""

    def encode_tokens(self, texts: Sequence[str]) -> list[Float[np.ndarray, "W I"]]:
        """Return the float32 features of each text's tokens, in order and without padding."""


@runtime_checkable
class LimitsTexts(Protocol):
    """Says which part of a text is too long to be encoded; an encoder need not have it."""

    def rest(self, text: str) -> str:
        """Return the part of a text that is not encoded, "" if all of it is."""
