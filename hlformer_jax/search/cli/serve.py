"""Commands that run a server: serve, mcp."""

import argparse

from hlformer_jax.lazy import optional
from hlformer_jax.search.cli import console
from hlformer_jax.search.cli.options import (
    INDEX,
    RANKER,
    Options,
    command,
    flag,
    option,
    path,
    repeated,
)


@command(
    INDEX,
    option("--port", "default 8000; 0: one that is free", type=int, default=8000),
    option("--host", "address to listen on; default this machine alone, 0.0.0.0: everybody with the"
           " token", default="127.0.0.1", metavar="ADDRESS"),
    repeated("--allow-host", "a name under which it is reached too, such as nas.local; repeatable",
             metavar="NAME"),
    path("--token-file", "a file that holds the token; default one is made where other machines"
         " reach it", metavar="FILE"),
    flag("--no-token", "let everybody who reaches it watch the videos"),
    option("--manage", "let the page add folders of this machine, remove and index again; default"
           " where it alone reaches the page", action=argparse.BooleanOptionalAction),
    flag("--open", "open the page in a browser"),
    *RANKER, compiles=True,
)  # fmt: skip
def serve(options: Options) -> None:
    """Serve the page at a local address, until Ctrl-C."""
    server = optional("hlformer_jax.search.serve.server", "search")
    server.serve(
        console.open_library(options), options.port, options.host, options.open,
        manage=options.manage, token_file=options.token_file, no_token=options.no_token,
        allow_hosts=options.allow_host,
    )  # fmt: skip


@command(
    INDEX,
    path("--out", "the folder that clips are written into; without it none are", metavar="DIR"),
    *RANKER, compiles=True,
)  # fmt: skip
def mcp(options: Options) -> None:
    """Serve programs that speak the Model Context Protocol, over stdin and stdout."""
    agents = optional("hlformer_jax.search.serve.mcp", "search")
    agents.run(agents.server(console.open_library(options), options.out))
