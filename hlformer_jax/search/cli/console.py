"""What commands share: the index and library of their options, progress bars and printed lines."""

import os
import sys
from pathlib import Path
from typing import Any

from hlformer_jax.errors import SearchError
from hlformer_jax.search.cli.options import Options
from hlformer_jax.search.index import Index, database
from hlformer_jax.search.query.library import Library


def check_place(out: Path, flag: str, index: Index | None = None) -> None:
    """Refuse an output that lies in the directory of an index, or is a video of `index`."""
    real = Path(os.path.realpath(out))
    inside = database.index_around(out)
    if inside is None and index is not None and real.is_relative_to(index.directory.resolve()):
        inside = index.directory
    if inside is not None:
        raise SearchError(f"{flag}={out} lies in the index {inside}: choose another place")
    if index is not None and index.name_below(real) in index.videos:
        raise SearchError(f"{flag}={out} is a video of the index: choose another name")


def open_index(directory: Path) -> Index:
    """The index of --index; says on standard error what of it is damaged."""
    index = Index.open(directory)
    for note in index.notes:
        report(note)
    return index


def open_library(options: Options) -> Library:
    """The library of --index and the options of `RANKER`."""
    return Library(
        options.index, options.checkpoint, options.ranker, options.encoder, options.store,
        options.normalise,
    )  # fmt: skip


def progress_bar(unit: str, total: int | None = None) -> Any:
    """A progress bar on standard error, where that is a terminal."""
    import tqdm

    return tqdm.tqdm(
        total=total, unit=unit, file=sys.stderr, disable=None, dynamic_ncols=True, leave=False
    )


def say(line: str) -> None:
    """Print a line on standard output, at once."""
    print(line, flush=True)


def report(line: str) -> None:
    """Print a line on standard error, at once."""
    print(line, file=sys.stderr, flush=True)
