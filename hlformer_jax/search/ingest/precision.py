"""The precision in which the images of an index are encoded."""

from typing import Any

from hlformer_jax import terminal
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
      QueryError: if a precision is given and the encoder offers no choice.
    """
    if not hasattr(encoder, "set_image_precision"):
        if precision:
            raise QueryError(
                "{precision}={value}: the encoder {name!r} has only one precision; leave out"
                " {precision}",
                field="precision",
                value=precision,
                name=encoder.name,
            )
        return ""
    if precision or encoder.dtype != "float32":
        return precision or encoder.dtype
    if index.precisions:
        return index.precisions[-1]
    return "float32" if index.contents() else encoder.preferred_precision


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
    return f"images are encoded in {precision} by {backend}{hint}"
