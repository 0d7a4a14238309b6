"""Converts annotated moments into the files that trees are made from, and counts the trees.

    python -m hlformer_jax.data.moments FILE --out=MOMENTS.jsonl

FILE is ActivityNet Captions' JSON, TVR's JSON lines or Charades-STA's text, recognised by its
content (`published.read_published`). The command prints the numbers of videos, moments, trees,
nodes and training items; with --out it also writes the moments. Training reads them from
{manual_dir}/{collection}/Trees/{train,val,test}.moments.jsonl.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from hlformer_jax import cli, files
from hlformer_jax.data import trees
from hlformer_jax.data.annotations.captions import read_captions
from hlformer_jax.data.annotations.moments import write_moments
from hlformer_jax.data.annotations.published import Annotations, read_published
from hlformer_jax.data.sources.protocol import DataError
from hlformer_jax.data.trees import Tree
from hlformer_jax.errors import UserError, describe

GROUPS = ("1", "2", "3", "4", "5+")
"""Numbers of leaves; the report has a line for the trees of each."""


def count(built: Sequence[Tree]) -> dict[str, tuple[int, int, int]]:
    """Count trees, nodes and training items for each of `GROUPS`, and for "all"."""
    counts = {group: (0, 0, 0) for group in (*GROUPS, "all")}
    for tree in built:
        for group in (GROUPS[min(len(tree.leaves), len(GROUPS)) - 1], "all"):
            num_trees, nodes, items = counts[group]
            counts[group] = num_trees + 1, nodes + len(tree.nodes), items + len(tree.items)
    return counts


def select_listed(read: Annotations, captions: str | Path) -> Annotations:
    """Return the annotations of the videos of a released caption list, in the list's order.

    Raises:
      DataError: if a listed video has no annotations, or the file is not a caption list.
    """
    by_name = {video.video: video for video in read.videos}
    captioned = read_captions(captions)
    for name, video_captions in captioned.items():
        if name not in by_name:
            raise DataError(
                f"{captions}:{video_captions[0].line}: video {name!r} has no annotation;"
                " give the annotation file that has it"
            )
    return read._replace(videos=tuple(by_name[name] for name in captioned))


def tag_moments(read: Annotations, tag: str) -> Annotations:
    """Return annotations whose moments have the ids VIDEO#TAG#K in place of VIDEO#enc#K.

    Without a tag, two annotation files of the same videos, such as val_1 and val_2 of ActivityNet
    Captions, would give the same id to different sentences.
    """
    videos = tuple(
        video._replace(
            moments=tuple(
                moment._replace(moment_id=re.sub(r"enc(?=#\d+$)", tag, moment.moment_id))
                for moment in video.moments
            )
        )
        for video in read.videos
    )
    return read._replace(videos=videos)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m hlformer_jax.data.moments", description=__doc__.splitlines()[0]
    )
    place = cli.path_argument
    parser.add_argument("file", type=place, metavar="FILE", help="file of published annotations")
    parser.add_argument(
        "--out", type=place, metavar="MOMENTS.jsonl", help="also write the moments to this file"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--durations", type=place, action="append", default=[], metavar="CSV",
        help="CSV file with the lengths of Charades' videos, Charades_v1_*.csv (may be repeated)",
    )  # fmt: skip
    parser.add_argument(
        "--captions", type=place, metavar="LIST",
        help="use only the videos of this caption list, {collection}{split}.caption.txt",
    )  # fmt: skip
    parser.add_argument(
        "--tag", default="enc",
        help="middle part of the moments' ids, VIDEO#TAG#K (default: enc, as in the published"
        " features); give another tag if two splits describe the same videos",
    )  # fmt: skip
    parser.add_argument(
        "--form",
        choices=tuple(trees.FORMS),
        default="released",
        help="rule that composes leaves into trees (default: released)",
    )
    options = parser.parse_args(argv)
    replace = files.replacing(options.overwrite)
    try:
        if options.out is not None:
            inputs = [options.file, *options.durations, *filter(None, [options.captions])]
            for path in inputs:
                if options.out.exists() and path.exists() and options.out.samefile(path):
                    raise files.OutputError(
                        f"--out={options.out} is an input file: choose another path"
                    )
        read = read_published(options.file, options.durations)
        if options.captions is not None:
            read = select_listed(read, options.captions)
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", options.tag):
            raise DataError(f"--tag={options.tag}: use only letters, digits, _, . and -")
        read = tag_moments(read, options.tag)
        built = list(trees.build_all(read.videos, options.form, read.collection))
        if options.out is not None:
            write_moments(options.out, read.videos, replace)
    except (UserError, OSError) as error:
        return cli.fail(describe(error))
    report(read, built)
    return 0


def report(read: Annotations, built: Sequence[Tree]) -> None:
    """Print the numbers of videos and moments, and of trees, nodes and items by leaves."""
    moments = sum(len(video.moments) for video in read.videos)
    print(f"{read.collection}: {len(read.videos)} videos, {moments} moments")
    if read.left_out:
        print(f"{read.left_out} moments do not end after their start and are left out")
    print(f"{len(read.videos) - len(built)} videos have no moments that make a tree")
    print(f"{'leaves':>6}  {'trees':>7}  {'nodes':>7}  {'items':>7}")
    for group, (num_trees, nodes, items) in count(built).items():
        print(f"{group:>6}  {num_trees:>7}  {nodes:>7}  {items:>7}")


if __name__ == "__main__":
    sys.exit(main())
