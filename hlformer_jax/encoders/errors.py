"""The error of everything that can be wrong with an encoder's files."""

from hlformer_jax.errors import UserError


class EncoderError(UserError, ValueError):
    """A fault of an encoder's folder, name or input; its message says where and what to do."""
