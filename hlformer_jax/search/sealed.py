"""JSON that carries a digest of itself, and JSON that is read strictly."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

_SEAL = re.compile(rb'\{\n  "digest": "([0-9a-f]{64})",')


def seal(content: Mapping[str, Any]) -> bytes:
    """The text of a JSON object whose first field is the SHA-256 of all behind it."""
    rest = json.dumps(content, indent=2, allow_nan=False).encode()[1:] + b"\n"
    return b'{\n  "digest": "' + hashlib.sha256(rest).hexdigest().encode() + b'",' + rest


def unseal(text: bytes) -> dict[str, Any]:
    """The object of a text that `seal` made.

    Raises:
      ValueError: saying what is wrong, where it is not what was written.
    """
    if not text.strip(b"\0 \n"):
        raise ValueError("it is empty")
    found = _SEAL.match(text)
    if found is None:
        raise ValueError("it has no digest")
    rest = text[found.end() :]
    if hashlib.sha256(rest).hexdigest().encode() != found[1]:
        raise ValueError("its digest is another")
    content = parse(b"{" + rest)
    if not isinstance(content, dict):
        raise ValueError("it is no object")
    return content


def parse(text: str | bytes) -> Any:
    """JSON, whose numbers are finite.

    Raises:
      ValueError: when it is none.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"it holds {name}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it holds {text[:20]}")
    return value
