"""Commands that run a server: serve, mcp."""

from hlformer_jax.lazy import optional
from hlformer_jax.search.cli import console
from hlformer_jax.search.cli.options import (
    INDEX,
    RANKER,
    Options,
    Switch,
    command,
    flag,
    option,
    path,
    repeated,
)


@command(
    INDEX,
    option("--port", "port to listen on; 0 chooses a free one (default: 8000)", type=int,
           default=8000),
    option("--host", "address to listen on; 0.0.0.0 lets other machines connect, with a token"
           " (default: 127.0.0.1, this machine only)", default="127.0.0.1", metavar="ADDRESS"),
    repeated("--allow-host", "also accept requests for this host name, such as nas.local (may be"
             " repeated)", metavar="NAME"),
    path("--token-file", "file with the token (default: a random token if other machines can"
         " connect)", metavar="FILE"),
    flag("--no-token", "let everyone who can connect watch the videos, without a token"),
    option("--manage", "let the page add folders of this machine, remove videos and index again"
           " (default: only if other machines cannot connect)",
           action=Switch),
    flag("--open", "open the page in a browser"),
    *RANKER, compiles=True,
)  # fmt: skip
def serve(options: Options) -> None:
    """Serve the search page until Ctrl-C."""
    server = optional("hlformer_jax.search.serve.server", "search")
    server.serve(
        console.open_library(options), options.port, options.host, options.open,
        manage=options.manage, token_file=options.token_file, no_token=options.no_token,
        allow_hosts=options.allow_host,
    )  # fmt: skip


@command(
    INDEX,
    path("--out", "folder for clips (default: no clips can be cut)", metavar="DIR"),
    *RANKER, compiles=True,
)  # fmt: skip
def mcp(options: Options) -> None:
    """Serve AI agents over stdin and stdout, by the Model Context Protocol."""
    agents = optional("hlformer_jax.search.serve.mcp", "search")
    agents.run(agents.build_server(console.open_library(options), options.out))
