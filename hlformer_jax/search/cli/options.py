"""Declarations of commands and of the options that several share."""

import argparse
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from hlformer_jax import files
from hlformer_jax.search.encoder import DEFAULT_ENCODER
from hlformer_jax.search.signals import rankers

Options = argparse.Namespace

Option = tuple[str, dict[str, Any]]
"""The name of an option or argument, and its settings, as argparse takes them."""


class Command(NamedTuple):
    """A command: its name, its function and its options. The function's docstring is its help."""

    name: str
    run: Callable[[Options], None]
    options: tuple[Option, ...]
    compiles: bool  # runs an encoder or a model, whose programs are kept for the next process


def command(
    *options: Option, compiles: bool = False
) -> Callable[[Callable[[Options], None]], Command]:
    """Return a decorator that makes a `Command` of a function, under the function's name."""
    return lambda run: Command(run.__name__, run, options, compiles)


def option(name: str, help: str, **settings: Any) -> Option:
    """Declare an option or argument by its name, help text and settings of argparse."""
    return name, {"help": help, **settings}


path = functools.partial(option, type=files.given_path)
flag = functools.partial(option, action="store_true")
repeated = functools.partial(option, action="append", default=[])

FOLDER = path("folder", "the videos, in it and below", metavar="FOLDER")
INDEX = path("--index", "directory of the index", metavar="DIR", required=True)
OWN_INDEX = path("--index", "the index; default FOLDER/.hlformer-search", metavar="DIR")
ENCODER = option("--encoder", "where the encoder of the index is, if it moved", metavar="ID|PATH")
NEW_ENCODER = option(
    "--encoder",
    f"hub id or folder of the encoder; default that of the index, or {DEFAULT_ENCODER}",
    metavar="ID|PATH",
)
FPS = option("--fps", "frames a second; default 1", type=float)
CHECKPOINT = path("--checkpoint", "a trained model: the directory of its run", metavar="RUN")
OVERWRITE = flag("--overwrite", "replace what is there")
JSON = flag("--json", "print JSON")
NORMALISE = flag("--normalise", "subtract from each video's score its usual score for other texts")
FIELD_FLAGS = {
    "ranker": "--ranker",
    "checkpoint": "--checkpoint",
    "normalise": "--normalise",
    "store": "--store",
    "encoder": "--encoder",
}
"""The flag of each field that an error of the library may name."""

RANKER = (
    option("--ranker", f"ranker without training: {', '.join(rankers.RANKERS)}"
           f" (default: {rankers.DEFAULT})", metavar="NAME"),
    NORMALISE,
    CHECKPOINT,
    ENCODER,
    option("--store",
           "a PostgreSQL database that ranks: postgresql://USER@HOST/DATABASE?schema=NAME",
           metavar="URL"),
)  # fmt: skip
WORK = (
    option("--workers", "decoding processes; default half the cores", type=int),
    flag("--retry", "try again what failed before"),
    option("--timeout", "for decoding one video; default two minutes and ten times its length",
           type=float, metavar="SECONDS"),
    option("--ray", "extract on a Ray cluster; local: Ray on this machine", metavar="ADDRESS"),
)  # fmt: skip
TIME = functools.partial(option, metavar="TIME")
