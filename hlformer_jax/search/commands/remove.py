"""`remove VIDEO … --index=DIR`: takes videos out of an index; their files stay."""

import argparse

from hlformer_jax.search.commands import options as shared

HELP = "take videos out of an index, until they are added again; the files stay"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument(
        "videos", nargs="+", metavar="VIDEO", help="paths, or ids, as the index has them"
    )
    shared.add_index(parser)


def run(options: argparse.Namespace) -> int:
    """Removes the videos, or none where one is unknown; returns the exit status."""
    index = shared.opened(options.index)
    with index.writing():
        names = dict.fromkeys(index.name_of(video) for video in options.videos)
        contents = {index.manifest.videos[name].content for name in names}
        for name in names:
            index.drop(name)
            index.manifest.excluded.add(name)
        index.discard_unused(contents)
    print(f"removed {len(names)} of {len(names) + len(index.manifest.videos)} videos")
    return 0
