"""`verify --index=DIR`: reads an index through."""

import argparse

from hlformer_jax.errors import command_line
from hlformer_jax.search import packed
from hlformer_jax.search.commands import options as shared
from hlformer_jax.search.errors import DamagedError
from hlformer_jax.search.index import Index

HELP = "read an index through, and name what is damaged"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    shared.add_index(parser)


def run(options: argparse.Namespace) -> int:
    """Prints what is damaged; returns 1 where something is."""
    index = Index.open(options.index)
    wrong = index.verify() | packed.damaged(index.directory)
    wrong |= {f"manifest {i}": note for i, note in enumerate(index.notes)}
    for line in wrong.values():
        print(line)
    total = len({one.content for one in index.manifest.videos.values() if one.indexed})
    total += len(packed.own_files(index.directory))
    if wrong:
        raise DamagedError(
            f"{len(wrong)} of {total} files are damaged:"
            f" {command_line('search', 'index', index.root, f'--index={options.index}')}"
            " makes them anew"
        )
    print(f"{total} files are whole")
    return 0
