"""The precision in which the images of an index are encoded."""

from typing import Any

from hlformer_jax import terminal
from hlformer_jax.encoders.config import EncoderError
from hlformer_jax.errors import QueryError
from hlformer_jax.lazy import install_command
from hlformer_jax.search.index import Index


def resolve_precision(index: Index, encoder: Any, precision: str | None = None) -> str:
    """Return the precision in which the next images of an index are encoded.

    Args:
      index: the index.
      encoder: the encoder of the index.
      precision: the user's choice. None: bfloat16 if the encoder was loaded in it, otherwise the
        last precision that the index has recorded. An index that has recorded none takes float32
        if it has embeddings, otherwise the encoder's preferred precision.

    Returns:
      One of `IMAGE_PRECISIONS`; "" if the encoder offers no choice.

    Raises:
      QueryError: if a precision is given and the encoder offers no choice, or if none is given and
        the recorded one cannot be computed here.
    """
    if precision:
        check_precision(encoder, precision)
    if not hasattr(encoder, "set_image_precision"):
        return ""
    if precision or encoder.dtype != "float32":
        return precision or encoder.dtype
    if index.precisions:
        return _check_recorded(index.precisions[-1], encoder)
    return "float32" if index.contents() else encoder.preferred_precision


def check_precision(encoder: Any, precision: str) -> None:
    """Check that an encoder offers a precision of images.

    Args:
      encoder: the encoder.
      precision: the user's choice.

    Raises:
      QueryError: if the encoder offers no choice.
      EncoderError: if it offers a choice, but not this precision.
    """
    if not hasattr(encoder, "set_image_precision"):
        raise QueryError(
            "{precision}={value}: the encoder {name!r} has only one precision; leave out"
            " {precision}",
            field="precision",
            value=precision,
            name=encoder.name,
        )
    encoder.check_image_precision(precision)


def _check_recorded(precision: str, encoder: Any) -> str:
    """Return the precision that an index has recorded, if the encoder can compute it here."""
    try:
        encoder.check_image_precision(precision)
    except EncoderError as error:
        raise QueryError(
            "{error}. The latest images of the index were encoded in {value}: continue it in"
            " another by {precision}",
            field="precision",
            value=precision,
            error=str(error),
        ) from error
    return precision


def set_precision(encoder: Any, precision: str) -> str:
    """Set the precision in which an encoder encodes images.

    Args:
      encoder: an encoder that offers a choice, such as `ImageTextEncoder`.
      precision: one of `IMAGE_PRECISIONS`.

    Returns:
      A line for users, with the precision and the compiler.

    Raises:
      EncoderError: if the encoder does not offer this precision.
    """
    encoder.set_image_precision(precision, terminal.warn)
    backend = encoder.image_backend
    hint = f" (OpenVINO is faster: {install_command('cpu')})" if encoder.lacks_openvino else ""
    return f"new images are encoded in {precision} by {backend}{hint}"
