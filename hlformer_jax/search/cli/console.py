"""Shared parts of commands: opening the index, output paths, printed lines and tables."""

import os
import textwrap
from pathlib import Path

from hlformer_jax import terminal
from hlformer_jax.errors import SearchError
from hlformer_jax.lazy import optional
from hlformer_jax.search.cli.options import Options
from hlformer_jax.search.index import Index
from hlformer_jax.search.index.directory import check_writable, find_enclosing_index
from hlformer_jax.search.query.library import Library


def check_place(out: Path, flag: str, index: Index | None = None) -> None:
    """Check that an output path is neither inside an index nor a video in a folder of the index.

    Otherwise --overwrite could replace a video that was copied into the folder and is not indexed
    yet. A clip that an earlier command wrote there is such a video, too.

    Args:
      out: the output path.
      flag: the flag with which the user gave it, for the error.
      index: the index of the command, if it has one.

    Raises:
      SearchError: if the path is inside an index, or is a video in a folder of the index.
    """
    real = Path(os.path.realpath(out))
    directory = find_enclosing_index(out)
    if directory is None and index is not None and real.is_relative_to(index.directory.resolve()):
        directory = index.directory
    if directory is not None:
        raise SearchError(f"{flag}={out} is inside the index {directory}: choose another path")
    name = None if index is None else index.roots.name_below(real)
    if index is None or name is None:
        return
    if name in index.videos:
        raise SearchError(f"{flag}={out} is a video of the index: choose another name")
    if real.exists() and optional("hlformer_jax.video.listing", "search").is_video(real):
        raise SearchError(
            f"{flag}={out} is a video in a folder of the index, where none is replaced: choose"
            " another name, or a folder outside of it"
        )


def open_index(directory: Path) -> Index:
    """Open an index, and report its damaged files on standard error."""
    index = Index.open(directory)
    for note in index.notes:
        terminal.warn(note)
    return index


def open_index_to_change(directory: Path) -> Index:
    """Open an index as `open_index`, and check that it can be written before an encoder loads."""
    index = open_index(directory)
    check_writable(directory)
    return index


def open_library(options: Options) -> Library:
    """Open the library of --index for a command that has the options `RANKER`."""
    return Library(
        options.index, options.checkpoint, options.ranker, options.encoder, options.store,
        options.normalise,
    )  # fmt: skip


def print_indented(text: str, columns: int | None) -> None:
    """Print an indented text below a row of a table.

    Args:
      text: the text.
      columns: largest number of characters of a line; None prints the text on one line.
    """
    indent = " " * 6
    if columns is None:
        terminal.show(indent + text)
        return
    for line in textwrap.wrap(
        text, columns, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    ):
        terminal.show(line)
