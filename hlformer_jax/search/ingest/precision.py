"""The precision in which an index encodes images."""

from typing import Any

from hlformer_jax import terminal
from hlformer_jax.errors import QueryError
from hlformer_jax.lazy import install_command
from hlformer_jax.search.index import Index


def resolve_precision(index: Index, encoder: Any, precision: str | None = None) -> str:
    """Return the precision in which an index encodes its next images.

    Args:
      index: the index; its latest precision is the default, and float32 if it recorded none.
      encoder: its encoder.
      precision: the user's choice, or None.

    Returns:
      "float32" or "bfloat16"; "" if the encoder offers no choice.

    Raises:
      QueryError: if a precision is given and the encoder offers no choice.
    """
    if not hasattr(encoder, "set_image_precision"):
        if precision:
            raise QueryError(
                "{precision}={value}: the encoder {name!r} has one precision; leave out"
                " {precision}",
                field="precision",
                value=precision,
                name=encoder.name,
            )
        return ""
    if precision or encoder.dtype != "float32":
        return precision or encoder.dtype
    return (index.precisions or ("float32",))[-1]


def set_precision(encoder: Any, precision: str) -> str:
    """Let an encoder encode images in a precision; return a line that describes how it does."""
    encoder.set_image_precision(precision, terminal.warn)
    backend = encoder.image_backend
    hint = f" (faster by OpenVINO: {install_command('cpu')})" if encoder.lacks_openvino else ""
    return f"images are encoded in {precision} by {backend}{hint}"
