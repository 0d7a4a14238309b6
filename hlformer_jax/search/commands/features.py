"""`features FOLDER --captions=FILE --out=DIR`: captioned videos into a data set to train on."""

import argparse

from hlformer_jax import files
from hlformer_jax.errors import command_line
from hlformer_jax.search import captions, encoding
from hlformer_jax.search.commands import index as indexing
from hlformer_jax.search.commands import options as shared
from hlformer_jax.search.errors import SearchError

HELP = "make features of captioned videos, to train a model on (configs/own.py)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument(
        "folder", type=files.given_path, metavar="FOLDER", help="the videos, in it and below"
    )
    parser.add_argument(
        "--captions", type=files.given_path, required=True, metavar="FILE",
        help='lines {"video": …, "sentence": …}, with "start", "end" and "split" where known',
    )  # fmt: skip
    parser.add_argument(
        "--out", type=files.given_path, required=True, metavar="DIR", help="where to write"
    )
    parser.add_argument(
        "--index", type=files.given_path, metavar="DIR", help="the index; default that of FOLDER"
    )
    shared.add_encoder(
        parser, f"hub id or folder of the encoder; default that of the index, or {encoding.DEFAULT}"
    )
    parser.add_argument("--fps", type=float, help="frames a second; default 1")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the splits, where the captions name none"
    )
    shared.add_overwrite(parser, "replace the features that are there")
    indexing.add_work(parser)


def run(options: argparse.Namespace) -> int:
    """Indexes what is not indexed yet, and writes the features; returns the exit status."""
    from hlformer_jax.data import extracted
    from hlformer_jax.search import features

    if not options.folder.is_dir():
        raise SearchError(f"{options.folder} is no folder: give the folder of the videos")
    extracted.check_place(options.out, options.overwrite)
    asked = captions.read(options.captions)
    directory = options.index or options.folder / ".hlformer-search"
    index, encoder = indexing.prepare(directory, options.folder, options.encoder, options.fps)
    indexing.report(indexing.perform(index, encoder, options), index)
    counts = features.write(
        index, encoder, asked, options.out, options.seed, indexing.tell, options.overwrite
    )
    listed = ", ".join(f"{count} of {split}" for split, count in counts.items())
    print(f"{options.out}: captions {listed}")
    print(f"train on it: {command_line('main', f'--config=configs/own.py:{options.out}')}")
    return 0
