"""`add FILE … --index=DIR`: indexes files of the folder, and leaves the others alone."""

import argparse
from pathlib import Path

from hlformer_jax import files
from hlformer_jax.search import encoding
from hlformer_jax.search.commands import index as indexing
from hlformer_jax.search.commands import options as shared
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.extract import real_video

HELP = "index files of the folder, removed ones too, and leave the others alone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument(
        "paths", type=files.given_path, nargs="+", metavar="PATH", help="files, or folders"
    )
    shared.add_index(parser)
    shared.add_encoder(parser, "where the encoder of the index is, where it has moved")
    indexing.add_work(parser)


def run(options: argparse.Namespace) -> int:
    """Indexes the files; returns the exit status."""
    index = shared.opened(options.index)
    video = real_video()
    files: list[Path] = []
    for given in options.paths:
        # Not resolved at its end: a link in the folder is a path of the folder.
        path = given.parent.resolve() / given.name if given.name else given.resolve()
        if not path.exists():
            raise SearchError(f"{given} is not there: give files of {index.root}")
        if not path.is_relative_to(index.root):
            raise SearchError(
                f"{given} is not in {index.root}, the folder of this index: move it there, or index"
                " its own folder by another --index"
            )
        files += video.find(path, indexing.tell) if path.is_dir() else [path]
    encoder = encoding.reload(index.manifest.encoder, options.encoder)
    indexing.report(indexing.perform(index, encoder, options, files), index)
    return 0
