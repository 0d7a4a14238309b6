"""The JSON files of an encoder's folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hlformer_jax.encoders.errors import EncoderError


def read(path: Path) -> Mapping[str, Any]:
    """The object that a file holds.

    Raises:
      EncoderError: when it holds no JSON, or no object.
      OSError: when it cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EncoderError(f"{path}: no JSON ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise EncoderError(f"{path}: no object; fetch it again")
    return content
