"""The interface of an architecture: the content of an encoder's files, and its computation."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, UInt8

from hlformer_jax.encoders.config import Config, EncoderError, TextConfig
from hlformer_jax.encoders.images import Preprocessing
from hlformer_jax.encoders.tokenizer import Tokenizer
from hlformer_jax.encoders.transformer import Params, norm, transformer, unit
from hlformer_jax.encoders.weights import Leaf, Place
from hlformer_jax.typing import Array


class TextFamily(ABC):
    """An architecture of text encoders; its instances have no state.

    Attributes:
      name: the `model_type` of its `config.json`.
      prefix: an optional beginning of the names of all tensors in a file.
      unread: beginnings of the names of tensors that a file may hold and that are not read.
      needs_tokenizer_settings: whether its texts depend on a `tokenizer_config.json`.
    """

    name: ClassVar[str]
    prefix: ClassVar[str] = ""
    unread: ClassVar[tuple[str, ...]] = ()
    needs_tokenizer_settings: ClassVar[bool] = False

    def kind(self, tokenizer: Tokenizer) -> str:
        """Return the name of an encoder's architecture, which may depend on its tokenizer."""
        return self.name

    @abstractmethod
    def read_config(self, content: Mapping[str, Any], where: str) -> TextConfig:
        """Read the content of a `config.json`.

        Raises:
          EncoderError: if a value is invalid; the message names the file (`where`).
        """

    @abstractmethod
    def leaves(self, config: Any) -> dict[Place, Leaf]:
        """Return every parameter by its path in the tree; tensors' names begin with `prefix`."""

    @abstractmethod
    def token_states(
        self,
        params: Params,
        config: Any,
        ids: Int[Array, "Q W"],
        real: Bool[Array, "Q W"] | None = None,
    ) -> Float[Array, "Q W I"]:
        """Return the last hidden states of all tokens, including padding.

        Args:
          params: the part "text" of the parameter tree.
          config: the encoder's configuration.
          ids: tokens of each text.
          real: False for padding; None: padding is recognised by its id.
        """


class ImageTextFamily(TextFamily):
    """An architecture of image-text encoders.

    Attributes:
      image_settings: defaults of a `preprocessor_config.json`.
      is_causal: whether a token attends only to itself and the tokens before it.
    """

    image_settings: ClassVar[Mapping[str, Any]]
    is_causal: ClassVar[bool] = False

    @abstractmethod
    def image_states(
        self, params: Params, config: Config, pixels: Float[Array, "V S S 3"]
    ) -> Float[Array, "V L I"]:
        """Return the last hidden states of normalised images.

        Args:
          params: the part "vision" of the parameter tree.
          config: the encoder's configuration.
          pixels: images, already resized, cropped and normalised.
        """

    @abstractmethod
    def pool_images(
        self, params: Params, config: Config, states: Float[Array, "V L I"]
    ) -> Float[Array, "V d"]:
        """Return vectors of images in the joint space, of any norm."""

    def token_states(
        self,
        params: Params,
        config: Config,
        ids: Int[Array, "Q W"],
        real: Bool[Array, "Q W"] | None = None,
    ) -> Float[Array, "Q W I"]:
        """Return the last hidden states; tokens attend to padding too, as in training."""
        mask = jnp.tril(jnp.ones((1, *ids.shape[1:] * 2), bool)) if self.is_causal else None
        x = params["tokens"][ids].astype(jnp.float32)
        x = x + params["positions"][None, : ids.shape[1]]
        x = transformer(params["layers"], x, config.text, mask)
        return norm(params["final_norm"], x, config.text.epsilon)

    @abstractmethod
    def pool_texts(
        self,
        params: Params,
        config: Config,
        states: Float[Array, "Q W I"],
        ids: Int[Array, "Q W"],
    ) -> Float[Array, "Q d"]:
        """Return vectors of texts in the joint space, of any norm."""

    def encode_images(
        self,
        params: Params,
        config: Config,
        preprocessing: Preprocessing,
        pixels: UInt8[Array, "V S S 3"],
    ) -> Float[Array, "V d"]:
        """Return unit vectors of images that have been resized and cropped."""
        shift, scale = map(_channels, (preprocessing.shift, preprocessing.scale))
        normal = (pixels.astype(jnp.float32) - shift) * scale
        return unit(self.pool_images(params, config, self.image_states(params, config, normal)))

    def encode_texts(
        self, params: Params, config: Config, ids: Int[Array, "Q W"]
    ) -> tuple[Float[Array, "Q d"], Float[Array, "Q W I"]]:
        """Return unit vectors of texts, and the last hidden states of their tokens."""
        states = self.token_states(params, config, ids)
        return unit(self.pool_texts(params, config, states, ids)), states

    def probability(self, cosines: Any, scale: float, bias: float) -> Any:
        """Return probabilities as the trained loss defines them, None if it defines none."""
        return None

    def write_config(self, config: Config) -> dict[str, Any]:
        """Return the content of a `config.json`.

        Raises:
          EncoderError: if encoders of this architecture cannot be saved.
        """
        raise EncoderError(f"an encoder of the architecture {self.name} cannot be saved")


def _channels(values: tuple[float, ...]) -> Float[Array, "1 1 1 3"]:
    return jnp.asarray(values, jnp.float32).reshape(1, 1, 1, 3)
