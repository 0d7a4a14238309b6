"""Removal of paths and passwords from lines that other machines may see."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from hlformer_jax.search.query.library import Library
from hlformer_jax.text import without_passwords

_QUOTED_PATH = re.compile(r"""(['"])/(?:[^'"]*/)?([^/'"]*)\1""")

_BEGINNING = r"""(?<![^\s'"`‘“=(\[{<>|,:;])"""
"""Place in a line where a path may begin; a slash elsewhere is inside the path of a video."""

_PATH = re.compile(_BEGINNING + r"""/(?:[^\s/'"]+/)*([^\s/'"]+)""")

PATH_FIELDS = "index", "folder", "checkpoint", "ranker", "clips"
"""Fields of a summary whose values may be paths relative to the server's directory."""


def summarise(library: Library, **paths: Path | None) -> dict[str, Any]:
    """Return the state of an index for `without_paths`; if it is damaged, only its directory.

    Args:
      library: the archive.
      **paths: further paths to remove, by names of `PATH_FIELDS`.
    """
    summary: dict[str, Any] = {**paths}
    with suppress(Exception):
        summary["index"] = library.directory
    with suppress(Exception):
        summary |= library.status()
    return summary


def without_paths(line: str, summary: Mapping[str, Any]) -> str:
    """Return a line with each path replaced by its last part.

    Args:
      line: the line; passwords in its addresses are hidden too.
      summary: state of the index (`summarise`). Its paths are replaced even if they are relative,
        or contain spaces or quotes.
    """
    paths = {str(value) for field, value in summary.items() if base_name(field, value) != value}
    paths |= {*summary.get("folders", {}).values()}
    for path in sorted(paths, key=len, reverse=True):
        name = base_name("index", path).replace("\\", r"\\")
        place = _BEGINNING + re.escape(path)
        line = re.sub(rf"{place}(?![\w/-]|\.\w)", name, re.sub(f"{place}/", "", line))
    line = _QUOTED_PATH.sub(r"\1\2\1", without_passwords(line))
    return _PATH.sub(r"\1", line)


def base_name(field: str, value: Any) -> Any:
    """Return the last part of a path; a value of a summary that is not a path unchanged.

    Args:
      field: the field of the summary; only those of `PATH_FIELDS` may be relative paths.
      value: its value.
    """
    if not isinstance(value, str | Path):
        return value
    is_relative = field in PATH_FIELDS and len(PurePath(value).parts) > 1
    return (
        os.path.basename(os.path.abspath(value)) if is_relative or os.path.isabs(value) else value
    )
