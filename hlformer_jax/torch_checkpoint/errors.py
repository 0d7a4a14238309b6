"""Errors about a PyTorch file, and how strings of the file are quoted in them."""

from hlformer_jax.errors import UserError

_LONGEST_QUOTE = 80


class TorchFileError(UserError, ValueError):
    """The file is not a whole PyTorch zip checkpoint."""


class UnsafeTorchFileError(TorchFileError):
    """The file asks for something else than tensors and plain containers."""


class ConversionError(UserError, ValueError):
    """The file is no checkpoint of a released model; the message says why."""


def quoted(text: object) -> str:
    """A string of the file, fit for one line of a terminal: escaped and shortened."""
    text = str(text)
    return repr(text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 1] + "…")
