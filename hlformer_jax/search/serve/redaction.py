"""Removal of paths and passwords from lines that other machines may see."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from hlformer_jax.text import without_passwords

_QUOTED_PATH = re.compile(r"""(['"])/(?:[^'"]*/)?([^/'"]*)\1""")

_PATH = re.compile(r"""(?<![\w/:.])/(?:[^\s/'"]+/)*([^\s/'"]+)""")


def without_paths(line: str, summary: Mapping[str, Any]) -> str:
    """Return a line with each absolute path replaced by its last part.

    Args:
      line: the line; passwords in its addresses are hidden too.
      summary: state of the index (`Library.status`). Its paths are replaced even if they contain
        spaces or quotes.
    """
    paths = {str(value) for value in summary.values() if base_name(value) != value}
    paths |= {*summary.get("folders", {}).values()}
    for path in sorted(paths, key=len, reverse=True):
        line = line.replace(f"{path}/", "").replace(path, PurePath(path).name)
    line = _QUOTED_PATH.sub(r"\1\2\1", without_passwords(line))
    return _PATH.sub(r"\1", line)


def base_name(value: Any) -> Any:
    """Return the last part of an absolute path; any other value unchanged."""
    is_path = isinstance(value, str | Path) and PurePath(value).is_absolute()
    return PurePath(value).name if is_path else value
