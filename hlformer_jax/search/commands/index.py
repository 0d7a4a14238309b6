"""`index FOLDER --index=DIR`: brings an index up to date with a folder, or makes it."""

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hlformer_jax import files
from hlformer_jax.search import encoding, manifest
from hlformer_jax.search.commands import options as shared
from hlformer_jax.search.errors import DamagedError, SearchError
from hlformer_jax.search.extract import index_folder, real_video
from hlformer_jax.search.index import Index, check_rate
from hlformer_jax.search.library import Library
from hlformer_jax.search.manifest import EncoderFacts
from hlformer_jax.search.report import Progress, Report

HELP = "index a folder of videos, or bring its index up to date"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument(
        "folder", type=files.given_path, metavar="FOLDER", help="the videos, in it and below"
    )
    parser.add_argument(
        "--index",
        type=files.given_path,
        metavar="DIR",
        help="the index; default FOLDER/.hlformer-search",
    )
    shared.add_encoder(
        parser, f"hub id or folder of the encoder; default that of the index, or {encoding.DEFAULT}"
    )
    parser.add_argument("--fps", type=float, help="frames a second; default 1")
    parser.add_argument(
        "--checkpoint",
        type=files.given_path,
        metavar="RUN",
        help="a trained model that ranks from now on",
    )
    parser.add_argument(
        "--move-root", action="store_true",
        help="the index of another folder is that of this one from now on",
    )  # fmt: skip
    add_work(parser)


def add_work(parser: argparse.ArgumentParser) -> None:
    """Adds the options on how it is done."""
    parser.add_argument("--workers", type=int, help="decoding processes; default half the cores")
    parser.add_argument("--retry", action="store_true", help="try again what failed before")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS",
        help="for decoding one video; default two minutes and ten times its length",
    )  # fmt: skip
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="extract on a Ray cluster; local: Ray on this machine"
    )


def run(options: argparse.Namespace) -> int:
    """Indexes; returns the exit status."""
    folder, directory = options.folder, options.index
    check_work(options)
    if directory is None:
        directory = folder / ".hlformer-search"
    index, encoder = prepare(
        directory, folder, options.encoder, options.fps, options.move_root, options.checkpoint
    )
    if options.checkpoint is not None:
        check_model(options.checkpoint, index.manifest.encoder)
        with index.writing():
            index.manifest.checkpoint = str(options.checkpoint.resolve())
    report(perform(index, encoder, options), index)
    if any(one.indexed for one in index.manifest.videos.values()):
        Library(directory, encoder=encoder).ranked()  # so that the first question need not wait
    return 0


def prepare(
    directory: Path,
    folder: Path,
    given: str | None,
    fps: float | None,
    move_root: bool = False,
    checkpoint: Path | None = None,
) -> tuple[Index, Any]:
    """Opens the index of a folder, or makes it, and loads its encoder.

    Args:
      directory: the directory of the index.
      folder: the folder of the videos.
      given: the encoder that was asked for; None: that of the index, or the default.
      fps: the rate that was asked for; None: that of the index, or 1.
      move_root: whether an index of another folder becomes that of this one.
      checkpoint: a trained model, which is checked before anything is made.

    Raises:
      SearchError: when the index is of another folder, rate or encoder, the directory holds
        something else, or there is no video to make an index of.
    """
    if not folder.is_dir():
        raise SearchError(f"{folder} is no folder: give the folder of the videos")
    if fps is not None:
        check_rate(fps)
    index = None
    try:
        index = Index.open(directory)
    except DamagedError:  # of which nothing is left
        manifest.check_place(directory)
    except SearchError:
        manifest.check_place(directory)
        if any((directory / name).exists() for name in (manifest.NAME, manifest.MARK)):
            raise
    if index is None:
        inside = directory.resolve()
        found = real_video().find(folder, tell)
        if not any(inside not in path.resolve().parents for path in found):
            raise SearchError(f"{folder} holds no video that FFmpeg reads")
        encoder, places = encoding.load(given or encoding.DEFAULT)
        if checkpoint is not None:
            check_model(checkpoint, EncoderFacts.of(encoder))
        return Index.create(
            directory, folder, encoder, 1.0 if fps is None else fps, places
        ), encoder
    for note in index.notes:
        tell(note)
    if fps is not None and fps != index.manifest.fps:
        raise SearchError(
            f"{directory} has {index.manifest.fps:g} frames a second and --fps={fps:g} asks for"
            " others: leave --fps out, or make a new index by --index"
        )
    root = str(folder.resolve())
    if move_root and root != index.manifest.root:
        tell(f"{index.root} is now {root}")
    elif index.manifest.root not in (root, ""):
        raise SearchError(
            f"{directory} is the index of {index.root}: give that folder, another --index, or"
            f" --move-root where it is now {root}"
        )
    encoder = encoding.reload(index.manifest.encoder, given)
    index.check_encoder(encoder)
    if root != index.manifest.root:
        with index.writing():
            index.manifest.root = root
    return index, encoder


def check_model(run: Path, facts: EncoderFacts) -> None:
    """Refuses a trained model that is none, or of another encoder.

    Raises:
      UserError: saying why.
    """
    from hlformer_jax.search import model

    model.check_encoder(model.read_config(run), run, facts)


def check_work(options: argparse.Namespace) -> None:
    """Refuses options of `add_work` that mean nothing.

    Raises:
      SearchError: saying which.
    """
    if options.workers is not None and options.workers < 0:
        raise SearchError(f"--workers={options.workers}: give 0 or more")
    if options.timeout is not None and not options.timeout > 0:
        raise SearchError(f"--timeout={options.timeout:g}: give seconds above 0")


def perform(
    index: Index,
    encoder: Any,
    options: argparse.Namespace,
    only: Iterable[Path] | None = None,
) -> Report:
    """Indexes with a progress bar on standard error, where that is a terminal."""
    import tqdm

    check_work(options)
    source = None
    if options.ray is not None:
        from hlformer_jax.search import cluster

        given = options.encoder
        if given is not None and os.path.isdir(given):
            given = os.path.abspath(given)
        load = functools.partial(encoding.reload, index.manifest.encoder, given)
        source = cluster.source(options.ray, index, load, options.workers)
    with tqdm.tqdm(
        unit="video", file=sys.stderr, disable=None, dynamic_ncols=True, leave=False
    ) as bar:
        return index_folder(
            index,
            encoder,
            workers=options.workers,
            retry=options.retry,
            timeout=options.timeout,
            only=only,
            source=source,
            tell=lambda line: bar.write(line, file=sys.stderr),
            progress=_shown(bar),
        )


def _shown(bar: Any) -> Callable[[Progress], None]:
    def show(progress: Progress) -> None:
        bar.total, bar.n = progress.total, progress.done
        times = f"{shared.clock(progress.position)}/{shared.clock(progress.duration)}"
        bar.set_postfix_str(f"{progress.speed:.1f}x real time, {progress.video[-40:]!r} {times}")

    return show


def report(done: Report, index: Index) -> None:
    """Prints what was done."""
    parts = [
        f"{count} {what}"
        for count, what in (
            (done.indexed, "indexed"),
            (done.known, "found again by their content"),
            (done.unchanged, "unchanged"),
            (done.offline, "offline (kept; prune drops what will not come back)"),
            (done.unreadable, "not to be read (kept)"),
            (done.gone, "gone"),
            (done.failed, "failed"),
            (done.skipped, "failed before (--retry tries them again)"),
        )
        if count
    ]
    print(f"{index.directory}: {', '.join(parts) or 'no video'}")
    if done.seconds:
        print(
            f"{shared.clock(done.seconds)} of video in {shared.clock(done.elapsed)},"
            f" {done.speed:.1f}x real time"
        )


def tell(line: str) -> None:
    """Prints a line beside the results."""
    print(line, file=sys.stderr, flush=True)
