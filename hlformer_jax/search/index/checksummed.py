"""JSON files that begin with the SHA-256 checksum of the rest of the file."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from hlformer_jax import files

_CHECKSUM = re.compile(rb'\{\n  "digest": "([0-9a-f]{64})",')


def dump(content: Mapping[str, Any]) -> bytes:
    """Return a JSON object as UTF-8 text, with the SHA-256 of the rest as its first field.

    Raises:
      ValueError: if the content has NaN or an infinite number.
    """
    rest = json.dumps(content, indent=2, allow_nan=False).encode()[1:] + b"\n"
    return b'{\n  "digest": "' + hashlib.sha256(rest).hexdigest().encode() + b'",' + rest


def load(text: bytes) -> dict[str, Any]:
    """Return the object of a text that `dump` made.

    Raises:
      ValueError: if the text is damaged.
    """
    content: dict[str, Any] = files.parse_json(b"{" + verify(text), finite=True)
    return content


def verify(text: bytes) -> bytes:
    """Verify the checksum of a text that `dump` made, and return the rest of the text.

    Raises:
      ValueError: if the text is damaged.
    """
    if not text.strip(b"\0 \n"):
        raise ValueError("it is empty")
    match = _CHECKSUM.match(text)
    if match is None:
        raise ValueError("it has no digest")
    rest = text[match.end() :]
    if hashlib.sha256(rest).hexdigest().encode() != match[1]:
        raise ValueError("its digest does not match")
    return rest
