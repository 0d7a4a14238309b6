"""`upload --index=DIR --store=URL`: the vectors of an index into a Qdrant server."""

import argparse
import sys

from hlformer_jax.search.commands import options as shared
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.store import MEMORY

HELP = "bring a Qdrant server up to date with an index, to search there by --store"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    shared.add_index(parser)
    shared.add_ranker(parser)


def run(options: argparse.Namespace) -> int:
    """Uploads what is new, and deletes what is gone; returns the exit status."""
    import tqdm

    if options.store in (None, MEMORY):
        raise SearchError("give the server to upload to: --store=http://HOST:6333/COLLECTION")
    library = shared.library(options)
    with tqdm.tqdm(
        unit="video", file=sys.stderr, disable=None, dynamic_ncols=True, leave=False
    ) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        count = library.upload(show)
    parts = [
        f"{number} {what}"
        for number, what in (
            (count.sent, "uploaded"),
            (count.renamed, "moved or touched"),
            (count.kept, "there already"),
            (count.removed, "deleted"),
            (count.damaged, "damaged and not sent (index makes them anew)"),
        )
        if number
    ]
    print(f"{options.store}: {', '.join(parts) or 'no video'}")
    return 0
