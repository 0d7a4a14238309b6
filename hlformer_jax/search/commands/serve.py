"""`serve --index=DIR`: the page on which one searches."""

import argparse
from pathlib import Path

from hlformer_jax.search import encoding
from hlformer_jax.search.commands import options as shared

HELP = "serve the page at a local address"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    shared.add_index(parser)
    parser.add_argument("--port", type=int, default=8000, help="default 8000; 0: one that is free")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS",
        help="address to listen on; default this machine alone, 0.0.0.0: everybody with the token",
    )  # fmt: skip
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="a name under which it is reached too, such as nas.local; any number of times",
    )  # fmt: skip
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE",
        help="a file that holds the token; default one is made where other machines reach it",
    )  # fmt: skip
    parser.add_argument(
        "--no-token", action="store_true", help="let everybody who reaches it watch the videos"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    shared.add_ranker(parser)


def run(options: argparse.Namespace) -> int:
    """Serves until Ctrl-C; returns the exit status."""
    library = shared.library(options)
    server = encoding.extra("search.page.server")
    server.serve(
        library,
        options.port,
        options.host,
        options.open,
        token_file=options.token_file,
        no_token=options.no_token,
        allow_hosts=options.allow_host,
    )
    return 0
