"""JSON files that begin with the SHA-256 of all behind it, by which damage is known."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from hlformer_jax import files

_SEAL = re.compile(rb'\{\n  "digest": "([0-9a-f]{64})",')


def seal(content: Mapping[str, Any]) -> bytes:
    """Return the text of a JSON object whose first field is the SHA-256 of all behind it."""
    rest = json.dumps(content, indent=2, allow_nan=False).encode()[1:] + b"\n"
    return b'{\n  "digest": "' + hashlib.sha256(rest).hexdigest().encode() + b'",' + rest


def unseal(text: bytes) -> dict[str, Any]:
    """Return the object of a text that `seal` made.

    Raises:
      ValueError: if it is damaged; says how.
    """
    content: dict[str, Any] = files.parse_json(b"{" + check_seal(text), finite=True)
    return content


def check_seal(text: bytes) -> bytes:
    """Check a text that `seal` made, and return its text behind the digest.

    Raises:
      ValueError: if it is damaged; says how.
    """
    if not text.strip(b"\0 \n"):
        raise ValueError("it is empty")
    match = _SEAL.match(text)
    if match is None:
        raise ValueError("it has no digest")
    rest = text[match.end() :]
    if hashlib.sha256(rest).hexdigest().encode() != match[1]:
        raise ValueError("its digest is another")
    return rest
