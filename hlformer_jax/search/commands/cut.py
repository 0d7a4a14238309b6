"""`cut VIDEO --start=… --end=… --index=DIR`: a clip of a video of the index."""

import argparse
import hashlib
import os
from pathlib import Path

from hlformer_jax import files
from hlformer_jax.search import encoding
from hlformer_jax.search.commands import options as shared
from hlformer_jax.search.errors import SearchError, legible, printable
from hlformer_jax.search.index import Index

HELP = "cut a moment out of a video, with margins"

_MAX_NAME = 200
"""Bytes of a video's path that fit into a clip's name, which may have 255 with its draft's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("video", metavar="VIDEO", help="path or id, as the index has it")
    shared.add_index(parser)
    parser.add_argument("--start", required=True, metavar="TIME", help="seconds, M:SS or H:MM:SS")
    parser.add_argument("--end", required=True, metavar="TIME", help="likewise")
    parser.add_argument("--margin", type=float, default=0.0, help="seconds more at both ends")
    parser.add_argument(
        "--out", type=files.given_path, metavar="FILE",
        help="the clip; .mp4, .m4v, .mov or .mkv; default VIDEO_START-END.mp4 here",
    )  # fmt: skip
    shared.add_overwrite(parser)


def run(options: argparse.Namespace) -> int:
    """Cuts the clip and prints its path; returns the exit status."""
    index = Index.open(options.index)
    name = index.name_of(options.video)
    start, end = shared.seconds(options.start), shared.seconds(options.end)
    if end <= start:
        raise SearchError(f"--end={options.end} is not after --start={options.start}")
    if not options.margin >= 0:
        raise SearchError(f"--margin={options.margin}: give seconds of at least 0")
    out = options.out or Path(clip_name(legible(name), start, end))
    real = Path(os.path.realpath(out))
    if real.is_relative_to(index.root) and real.relative_to(index.root).as_posix() in (
        index.manifest.videos
    ):
        raise SearchError(f"--out={out} is a video of the index: choose another name")
    replace = files.replacing(options.overwrite)
    cutting = encoding.extra("video")
    cutting.cut(index.root / name, start, end, out, options.margin, replace=replace)
    print(printable(str(out)))
    return 0


def clip_name(video: str, start: float, end: float) -> str:
    """The name of a clip, another one for every video and every part of it.

    Args:
      video: the video's path below the indexed folder; its slashes are written %2F.
      start: seconds.
      end: seconds.
    """
    times = "-".join(f"{time:.6f}".rstrip("0").rstrip(".") for time in (start, end))
    name = video.replace("%", "%25").replace("/", "%2F")
    if len(os.fsencode(name)) > _MAX_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:16] + Path(video).suffix
    return f"{name}_{times}.mp4"
