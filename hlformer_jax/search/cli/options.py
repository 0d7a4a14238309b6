"""Declarations of commands, and of the options that several commands share."""

import argparse
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from hlformer_jax import cli
from hlformer_jax.encoders.config import IMAGE_PRECISIONS
from hlformer_jax.search.encoder import DEFAULT_ENCODER
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.signals import rankers

Options = argparse.Namespace

Option = tuple[str, dict[str, Any]]
"""The name of an option or argument, and its keyword arguments for argparse."""


class Command(NamedTuple):
    """A command: its name, its function and its options. The function's docstring is its help."""

    name: str
    run: Callable[[Options], None]
    options: tuple[Option, ...]
    compiles: bool  # whether JAX compiles programs, which are then kept for the next process
    continues: bool  # whether a second run continues one that was interrupted


def command(
    *options: Option, compiles: bool = False, continues: bool = False
) -> Callable[[Callable[[Options], None]], Command]:
    """Return a decorator that turns a function into a `Command` of the same name.

    Args:
      *options: the options and arguments of the command.
      compiles: whether the command runs an encoder or a model.
      continues: whether a second run continues one that was interrupted.
    """
    return lambda run: Command(run.__name__, run, options, compiles, continues)


def option(name: str, help: str, **settings: Any) -> Option:
    """Declare an option or argument.

    Args:
      name: its name, such as "--index".
      help: its help text.
      **settings: further keyword arguments of argparse's `add_argument`.
    """
    if name.startswith("-") and not {"action", "choices"} & settings.keys():
        settings.setdefault("type", _text)
    return name, {"help": help, **settings}


def _text(value: str) -> str:
    """Parse the value of an option; refuse an empty one."""
    if not value:
        raise argparse.ArgumentTypeError("the value is empty: give one, or leave the option out")
    return value


class Switch(argparse.BooleanOptionalAction):
    """Action of an option --NAME and its opposite --no-NAME, of which only one may be given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: Options,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Set the value; see `argparse.Action`."""
        before = getattr(namespace, self.dest)
        super().__call__(parser, namespace, values, option_string)
        if before not in (None, getattr(namespace, self.dest)):
            parser.error(f"{' and '.join(self.option_strings)} contradict each other: give one")


def seed(value: str) -> int:
    """Parse a seed; refuse a negative one."""
    try:
        number = int(value)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{value!r}: give a whole number of 0 or more")
    return number


path = functools.partial(option, type=cli.path_argument)
flag = functools.partial(option, action="store_true")
repeated = functools.partial(option, action="append", default=[], type=_text)

FOLDER = path("folder", "folder of videos, searched recursively", metavar="FOLDER")
INDEX = path("--index", "directory of the index", metavar="DIR", required=True)
OPTIONAL_INDEX = path("--index", "directory of the index (default: FOLDER/.hlformer-search)",
                      metavar="DIR")  # fmt: skip
ENCODER = option("--encoder", "hub id or folder of the index's encoder (default: the place from"
                 " which it was loaded before)", metavar="ID|PATH")  # fmt: skip
NEW_ENCODER = option("--encoder", "hub id or folder of the encoder (default: the index's encoder;"
                     f" for a new index {DEFAULT_ENCODER})", metavar="ID|PATH")  # fmt: skip
FPS = option("--fps", "frames to encode per second of video (default: 1)", type=float)
EVERY_FRAME = flag("--every-frame", "encode still frames too (default: a frame without a visible"
                   " change shares the embedding of the last encoded one)")  # fmt: skip
CHECKPOINT = path("--checkpoint", "rank with a trained model: the directory of its run"
                  " (default: the index's model, if it has one)", metavar="RUN")  # fmt: skip
OVERWRITE = flag("--overwrite", "replace existing output files (default: refuse)")
QUIET = flag("--quiet", "print no progress, only results, warnings and errors")
JSON = flag("--json", "print JSON instead of a table")
NORMALISE = flag(
    "--normalise", "subtract from each video's score its typical score for other texts"
)
QUERY_FLAGS = {
    field.name: f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Query)
} | {"text": "SENTENCE", "without": "--not", "tags": "--tag"}
"""The flag of each field of a query."""

FIELD_FLAGS = (
    QUERY_FLAGS
    | {
        name: f"--{name.replace('_', '-')}"
        for name in "ranker checkpoint normalise store encoder fps index precision ray host manage"
        " token_file no_token".split()
    }
    | {"allow_hosts": "--allow-host"}
)
"""The flag of each field that a `QueryError` may name."""

RANKER = (
    option("--ranker", f"ranker that needs no training: {', '.join(rankers.RANKERS)}"
           f" (default: {rankers.DEFAULT})", metavar="NAME"),
    NORMALISE,
    CHECKPOINT,
    ENCODER,
    option("--store", "rank in a PostgreSQL database that upload filled:"
           " postgresql://USER@HOST/DATABASE?schema=NAME", metavar="URL"),
)  # fmt: skip
WORKERS = option(
    "--workers", "processes that decode videos (default: one per CPU core, at most 8)", type=int
)
TIMEOUT = option("--timeout", "time limit for decoding one video, in seconds (default: 120 plus ten"
                 " times its length)", type=float, metavar="SECONDS")  # fmt: skip
PRECISION = option("--precision", "precision in which images are encoded: float32, bfloat16 or int8"
                   " (default: the precision of the latest images; for a new index bfloat16 on"
                   " a CPU with bfloat16 instructions, otherwise float32)",
                   choices=IMAGE_PRECISIONS)  # fmt: skip
WORK = (
    WORKERS,
    PRECISION,
    flag("--retry", "also try the files that failed before"),
    TIMEOUT,
    option("--ray", "decode and encode on the Ray cluster at this address (local: start Ray on"
           " this machine)",
           metavar="ADDRESS"),
)  # fmt: skip
TIME = functools.partial(option, metavar="TIME")
