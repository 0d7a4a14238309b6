"""`serve --index=DIR`: the page on which one searches."""

import argparse

from hlformer_jax.search import encoding
from hlformer_jax.search.commands import options as shared

HELP = "serve the page at a local address"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    shared.add_index(parser)
    parser.add_argument("--port", type=int, default=8000, help="default 8000; 0: one that is free")
    parser.add_argument("--host", default="127.0.0.1", help="default this machine alone")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    shared.add_ranker(parser)


def run(options: argparse.Namespace) -> int:
    """Serves until Ctrl-C; returns the exit status."""
    library = shared.library(options)
    server = encoding.extra("search.page.server")
    server.serve(library, options.port, options.host, options.open)
    return 0
