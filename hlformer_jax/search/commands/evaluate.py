"""`evaluate --index=DIR --captions=FILE`: recalls of every ranker on captions."""

import argparse
import os
import sys
from collections.abc import Sequence

from hlformer_jax import files
from hlformer_jax.search import captions, rankers
from hlformer_jax.search.commands import options as shared
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.library import Library

HELP = "report recalls of videos and of moments on captions, for each ranker"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    shared.add_index(parser)
    parser.add_argument(
        "--captions", type=files.given_path, required=True, metavar="FILE",
        help='lines {"video": …, "sentence": …, "start": …, "end": …}, times optional',
    )  # fmt: skip
    parser.add_argument("--split", choices=captions.SPLITS, help="only captions of that split")
    parser.add_argument(
        "--checkpoint", type=files.given_path, action="append", default=[], metavar="RUN",
        help="a trained model as well; any number of times",
    )  # fmt: skip
    shared.add_encoder(parser, "where the encoder of the index is, where it has moved")
    parser.add_argument(
        "--json", type=files.given_path, metavar="FILE", help="also write the figures there"
    )
    shared.add_overwrite(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the table; returns the exit status."""
    import tqdm

    from hlformer_jax.retrieval import ranking
    from hlformer_jax.search.evaluation import evaluate

    replace = files.replacing(options.overwrite)
    if options.json:
        files.check_output(options.json, replace)
    asked = captions.read(options.captions)
    if options.split:
        asked = [caption for caption in asked if caption.split == options.split]
        if not asked:
            raise SearchError(f"{options.captions} has no caption of {options.split}")
    # Loaded once: all rankers ask the same encoder.
    first = Library(options.index, encoder=options.encoder)
    encoder = first.encoder
    libraries = [Library(options.index, ranker=name, encoder=encoder) for name in rankers.ROWS]
    libraries += [Library(options.index, path, encoder=encoder) for path in options.checkpoint]
    table = {}
    with tqdm.tqdm(
        total=len(asked) * len(libraries),
        unit="caption",
        file=sys.stderr,
        disable=None,
        leave=False,
    ) as bar:
        for library in libraries:
            table[library.ranker_name] = evaluate(library, asked, bar.update)
    count = len(first.ranked())
    shown = dict(zip(table, _shown(list(table)), strict=True))
    rows = {shown[name]: metrics for name, metrics in table.items()}
    ranking.print_table(f"{len(asked)} captions, {count} videos; percent", rows)
    if options.json:
        figures = {"captions": len(asked), "videos": count, "rankers": table}
        files.write_json(options.json, figures, replace)
    return 0


def _shown(names: Sequence[str]) -> list[str]:
    """Names for a table: of runs what tells them apart, from below the folder that they share."""
    runs = [os.path.abspath(name) for name in names if name not in rankers.ROWS]
    shared = os.path.commonpath([os.path.dirname(run) for run in runs]) if runs else ""
    return [
        name if name in rankers.ROWS else os.path.relpath(os.path.abspath(name), shared)
        for name in names
    ]
