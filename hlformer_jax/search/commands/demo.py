"""`demo --out=DIR`: renders videos, trains an encoder on such scenes, and indexes them."""

import argparse

from hlformer_jax import files
from hlformer_jax.errors import command_line
from hlformer_jax.search.encoding import extra

HELP = "make an archive to try the search on, without any video or download"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument(
        "--out", type=files.given_path, required=True, metavar="DIR",
        help="gets videos/, captions.jsonl, encoder/ and index/",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="equal seeds make equal videos")
    parser.add_argument(
        "--training", action="store_true",
        help="also render captioned videos to train a model on, in DIR/training",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Makes what is not there yet; returns the exit status."""
    demo = extra("search.demo")
    tell = lambda line: print(line, flush=True)
    demo.make(options.out, options.seed, tell)
    if options.training:
        demo.render_training(options.out, options.seed, tell)
    index = f"--index={options.out / 'index'}"
    print(f"ask it: {command_line('search', 'query', 'a red circle', index)}")
    return 0
