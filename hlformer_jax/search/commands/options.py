"""Options that several commands have, and how a time is written."""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from hlformer_jax import files
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.library import Library


def add_overwrite(
    parser: argparse.ArgumentParser, meaning: str = "replace a file that is there"
) -> None:
    """The option --overwrite of a command that writes where a person says."""
    parser.add_argument("--overwrite", action="store_true", help=meaning)


def add_index(parser: argparse.ArgumentParser) -> None:
    """The option --index of a command that reads an index."""
    parser.add_argument(
        "--index",
        type=files.given_path,
        required=True,
        metavar="DIR",
        help="directory of the index",
    )


def add_ranker(parser: argparse.ArgumentParser) -> None:
    """The options that choose what ranks, and where the encoder is."""
    parser.add_argument(
        "--ranker", metavar="NAME", help="segments (the default) or best_frame, without training"
    )
    parser.add_argument(
        "--checkpoint",
        type=files.given_path,
        metavar="RUN",
        help="a trained model: the directory of its run",
    )
    add_encoder(parser, "where the encoder of the index is, where it has moved")
    parser.add_argument(
        "--store", metavar="URL", help="a Qdrant server that ranks: http://HOST:6333/COLLECTION"
    )


def add_encoder(parser: argparse.ArgumentParser, meaning: str) -> None:
    """The option --encoder."""
    parser.add_argument("--encoder", metavar="ID|PATH", help=meaning)


def opened(directory: Path) -> Index:
    """The index of --index; says on standard error what of it is damaged."""
    index = Index.open(directory)
    for note in index.notes:
        print(note, file=sys.stderr)
    return index


def library(options: argparse.Namespace, encoder: Any = None) -> Library:
    """The library of --index, --ranker, --checkpoint, --encoder and --store."""
    return Library(
        options.index,
        options.checkpoint,
        options.ranker,
        encoder or options.encoder,
        options.store,
    )


def clock(seconds: float) -> str:
    """A time as a person reads it: 7:05 or 1:07:05, seconds rounded down."""
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def seconds(text: str) -> float:
    """A time of an option: seconds, M:SS or H:MM:SS, each with decimals where wanted.

    Raises:
      SearchError: when it is none.
    """
    if not re.fullmatch(r"(?:(?:\d+:)?\d+:)?\d+(?:\.\d*)?", text):
        raise SearchError(f"{text!r} is no time: write seconds, M:SS or H:MM:SS")
    total = 0.0
    for part in text.split(":"):
        total = 60 * total + float(part)
    return total
