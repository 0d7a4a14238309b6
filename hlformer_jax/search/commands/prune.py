"""`prune --index=DIR`: lists the videos that are offline; with --yes, drops them for good."""

import argparse

from hlformer_jax.search.commands import options as shared
from hlformer_jax.search.errors import SearchError, printable

HELP = "list the videos that are offline; with --yes, drop them and their vectors for good"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    shared.add_index(parser)
    parser.add_argument("--yes", action="store_true", help="drop them")


def run(options: argparse.Namespace) -> int:
    """Lists, or drops; returns the exit status."""
    index = shared.opened(options.index)
    if not index.root.is_dir():
        raise SearchError(f"{index.root} is not there: is its disk mounted? Nothing is dropped")
    names = index.offline()
    for name in names:
        print(printable(name))
    if not options.yes:
        print(f"{len(names)} videos are offline" + ("; --yes drops them" if names else ""))
        return 0
    with index.writing():
        away = set(index.offline()) & set(names)
        contents = {index.manifest.videos[name].content for name in away}
        for name in away:
            index.drop(name)
        index.discard_unused(contents)
    print(f"dropped {len(away)} videos, {len(index.manifest.videos)} are left")
    return 0
