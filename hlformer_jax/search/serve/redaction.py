"""Lines for strangers: errors and warnings without paths of this machine."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from hlformer_jax.text import without_passwords

_QUOTED_PATH = re.compile(r"""(['"])/(?:[^'"]*/)?([^/'"]*)\1""")

_PATH = re.compile(r"""(?<![\w/:.])/(?:[^\s/'"]+/)*([^\s/'"]+)""")


def without_paths(line: str, summary: Mapping[str, Any]) -> str:
    """A line in which every absolute path, those of an index's state too, is its last name."""
    known = {str(value) for value in summary.values() if base_name(value) != value}
    known |= {*summary.get("folders", {}).values()}
    for place in sorted(known, key=len, reverse=True):
        line = line.replace(f"{place}/", "").replace(place, PurePath(place).name)
    line = _QUOTED_PATH.sub(r"\1\2\1", without_passwords(line))
    return _PATH.sub(r"\1", line)


def base_name(value: Any) -> Any:
    """Return the last name of an absolute path, and any other value as it is."""
    is_path = isinstance(value, str | Path) and PurePath(value).is_absolute()
    return PurePath(value).name if is_path else value
