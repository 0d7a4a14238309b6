"""`cut VIDEO --start=… --end=… --index=DIR`: a clip of a video of the index."""

import argparse
from pathlib import Path

from hlformer_jax.search import encoding
from hlformer_jax.search.commands import options as shared
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.index import Index

HELP = "cut a moment out of a video, with margins"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("video", metavar="VIDEO", help="path or id, as the index has it")
    shared.add_index(parser)
    parser.add_argument("--start", required=True, metavar="TIME", help="seconds, M:SS or H:MM:SS")
    parser.add_argument("--end", required=True, metavar="TIME", help="likewise")
    parser.add_argument("--margin", type=float, default=0.0, help="seconds more at both ends")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default VIDEO_START-END.mp4 here")


def run(options: argparse.Namespace) -> int:
    """Cuts the clip and prints its path; returns the exit status."""
    index = Index.open(options.index)
    path = index.root / index.name_of(options.video)
    start, end = shared.seconds(options.start), shared.seconds(options.end)
    if end <= start:
        raise SearchError(f"--end={options.end} is not after --start={options.start}")
    if not options.margin >= 0:
        raise SearchError(f"--margin={options.margin}: give seconds of at least 0")
    out = options.out or Path(f"{path.stem}_{start:g}-{end:g}.mp4")
    if out.exists() and out.samefile(path):
        raise SearchError(f"--out={out} is the video itself: choose another name")
    encoding.extra("video").cut(path, start, end, out, options.margin)
    print(out)
    return 0
