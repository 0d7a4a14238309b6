"""Commands that fill an index: index, add, watch, transcribe."""

import contextlib
import functools
import os
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

from hlformer_jax import terminal
from hlformer_jax.cli import command_line
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import DamagedError, SearchError
from hlformer_jax.lazy import optional
from hlformer_jax.search.cli import console
from hlformer_jax.search.cli.options import (
    ENCODER,
    EVERY_FRAME,
    FPS,
    INDEX,
    NEW_ENCODER,
    OPTIONAL_INDEX,
    PRECISION,
    TIMEOUT,
    WORK,
    WORKERS,
    Options,
    command,
    flag,
    option,
    path,
)
from hlformer_jax.search.encoder import DEFAULT_ENCODER, load_encoder, reload_encoder
from hlformer_jax.search.index import Index
from hlformer_jax.search.index.directory import (
    check_place,
    check_unlocked,
    check_writable,
    has_index_files,
    has_only_mark,
)
from hlformer_jax.search.index.records import EncoderFacts, check_rate
from hlformer_jax.search.ingest import watch as watch_folders
from hlformer_jax.search.ingest.decoding import update_transcripts
from hlformer_jax.search.ingest.extract import (
    Progress,
    default_workers,
    format_counts,
    index_folder,
    real_video,
    resolve_additions,
)
from hlformer_jax.search.ingest.precision import (
    check_precision,
    resolve_precision,
    set_precision,
)
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.signals import update_all
from hlformer_jax.search.signals.transcript import recognition
from hlformer_jax.search.times import format_clock
from hlformer_jax.text import printable


@command(
    path("folder", "folder of videos, searched recursively (optional if --index names an existing"
         " index)", nargs="?", metavar="FOLDER"),
    OPTIONAL_INDEX, NEW_ENCODER, FPS, EVERY_FRAME,
    path("--checkpoint", "rank this index by a trained model from now on: the directory of its run;"
         " without --encoder, a new index has the encoder of its features", metavar="RUN"),
    flag("--move-root", "the missing folder of the index has moved to FOLDER (refused while the old"
         " folder exists)"),
    *WORK, compiles=True, continues=True,
)  # fmt: skip
def index(options: Options) -> None:
    """Index a folder of videos, or update an index with all its folders."""
    if options.folder is None and options.index is None:
        raise SearchError(
            "FOLDER is missing: give a folder of videos, or --index of an existing index"
        )
    directory = options.index or options.folder / ".hlformer-search"
    _check_work(options)
    if options.move_root and options.folder is None:
        raise SearchError("--move-root needs FOLDER, the new path of the missing folder")
    folder = options.folder or _available_root(directory)
    index, encoder = prepare_index(
        directory, folder, options.encoder, options.fps, options.move_root, options.checkpoint,
        options.every_frame, options.precision,
    )  # fmt: skip
    if options.checkpoint is not None:
        _check_model(options.checkpoint, index.encoder)
        with index.writing() as writer:
            writer.set_checkpoint(options.checkpoint.resolve())
    extract_videos(index, encoder, options)
    if index.contents():
        Library(directory, encoder=encoder).ranked()  # prepare for the first query


@command(
    path("paths", "files or folders to index", nargs="+", metavar="PATH"),
    INDEX, ENCODER, *WORK, compiles=True, continues=True,
)  # fmt: skip
def add(options: Options) -> None:
    """Add files (also removed ones) or another folder to an index; other videos are not checked."""
    index = console.open_index_to_change(options.index)
    _check_work(options)
    videos, roots = resolve_additions(index, options.paths, terminal.warn)
    check_unlocked(options.index)
    encoder = reload_encoder(index.encoder, options.encoder)
    extract_videos(index, encoder, options, videos, roots)


@command(
    INDEX, ENCODER,
    option("--settle", "index a file once it has not changed for this many seconds"
           f" (default: {watch_folders.SETTLE_SECONDS:g})",
           type=float, default=watch_folders.SETTLE_SECONDS, metavar="SECONDS"),
    WORKERS, PRECISION, TIMEOUT, compiles=True,
)  # fmt: skip
def watch(options: Options) -> None:
    """Keep an index up to date with its folders until Ctrl-C, and print each change."""
    _check_work(options)
    if not 0 < options.settle < float("inf"):
        raise SearchError(f"--settle={options.settle:g}: give seconds above 0")
    optional("watchfiles", "search")
    index = console.open_index_to_change(options.index)
    encoder = reload_encoder(index.encoder, options.encoder)
    index.check_encoder(encoder)
    precision = _choose_precision(index, encoder, options)
    for root in index.roots.values():
        terminal.show(f"watching {root} (Ctrl-C ends it)")
    with contextlib.suppress(KeyboardInterrupt):
        watch_folders.follow(
            options.index, encoder, options.settle, terminal.show, workers=options.workers,
            precision=precision, timeout=options.timeout,
        )  # fmt: skip
    terminal.show("stopped")


def prepare_index(
    directory: Path,
    folder: Path,
    encoder_place: str | None,
    fps: float | None,
    move_root: bool = False,
    checkpoint: Path | None = None,
    every_frame: bool = False,
    precision: str | None = None,
) -> tuple[Index, Any]:  # the encoders of indexes also encode tokens
    """Open the index of a folder, or create it if the folder has a video, and load its encoder.

    Args:
      directory: the directory of the index.
      folder: the folder of videos.
      encoder_place: hub id or folder of the encoder; None: the encoder of the index, or for a new
        index that of `checkpoint`, or else `DEFAULT_ENCODER`.
      fps: frames per second; None: the rate of the index, or 1 for a new index.
      move_root: whether the missing root of the index has moved to `folder`.
      checkpoint: run of a trained model that must fit the encoder of a new index.
      every_frame: whether to encode still frames too. If False, an existing index keeps its
        setting.
      precision: precision of images, which the encoder of a new index must offer.

    Returns:
      The index and its encoder.

    Raises:
      SearchError: if `folder` is not a folder, or a new index would have no videos; or if the index
        is of another folder, rate or encoder, or its still frames share embeddings and
        `every_frame` is True; or if another process is indexing.
    """
    if not folder.is_dir():
        raise SearchError(f"{folder} is not a folder: give the folder of the videos")
    if fps is not None:
        check_rate(fps)
    index = _open_existing(directory)
    check_writable(directory)
    if index is None and move_root:
        raise SearchError(f"--move-root: {directory} holds no index: give its directory as --index")
    if index is None:
        return _create(directory, folder, encoder_place, fps, checkpoint, every_frame, precision)
    for note in index.notes:
        terminal.warn(note)
    if fps is not None and fps != index.fps:
        raise SearchError(
            f"--fps={fps:g}: {directory} has {index.fps:g} frames a second; leave out"
            " --fps, or create another index with --index"
        )
    if every_frame and not index.every_frame:
        raise SearchError(
            f"--every-frame: still frames in {directory} share embeddings; leave out --every-frame,"
            " or create another index with --index"
        )
    root, roots = folder.resolve(), index.roots
    moved = _root_to_move(index, root, move_root)
    check_unlocked(directory)
    encoder = reload_encoder(index.encoder, encoder_place)
    index.check_encoder(encoder)
    if root not in roots.values():
        with index.writing() as writer:
            writer.move_root(moved, root)
    return index, encoder


def _open_existing(directory: Path) -> Index | None:
    """Open an index; None if the directory is new or empty."""
    try:
        return Index.open(directory)
    except SearchError as error:
        check_place(directory)
        if type(error) is DamagedError:  # not unreadable at the moment, but lost
            if not has_only_mark(directory):  # as a full disk leaves it
                terminal.warn(f"{error}: it will be made anew, without tags and recognised speech")
        elif has_index_files(directory):
            raise
        return None


def _create(
    directory: Path,
    folder: Path,
    encoder_place: str | None,
    fps: float | None,
    checkpoint: Path | None,
    every_frame: bool,
    precision: str | None,
) -> tuple[Index, Encoder]:
    """Create the index of a folder.

    Raises:
      SearchError: if the folder has no video outside of the index.
    """
    unlisted: list[str] = []  # the indexing run reports them
    videos = real_video().find(folder, unlisted.append, lambda: None)
    if all(directory.resolve() in path.resolve().parents for path in videos):
        for line in unlisted:
            terminal.warn(line)
        raise SearchError(f"{folder} has no video that FFmpeg can read")
    if checkpoint is not None and encoder_place is None:
        encoder_place = _place_of_encoder(checkpoint)
    encoder, places = load_encoder(encoder_place or DEFAULT_ENCODER)
    if checkpoint is not None:
        _check_model(checkpoint, EncoderFacts.from_encoder(encoder))
    if precision is not None:
        check_precision(encoder, precision)
    rate = 1.0 if fps is None else fps
    return Index.create(directory, folder, encoder, rate, places, every_frame), encoder


def _root_to_move(index: Index, root: Path, move_root: bool) -> str:
    """Return the name of the root that has moved to `root`.

    It is "" for the first root, and if `root` is already a root of the index.

    Raises:
      SearchError: if `root` is not a root of the index, and `move_root` is False or the number of
        missing roots is not 1.
    """
    roots = index.roots
    if root in roots.values():
        return ""
    add_command = command_line("search", "add", root, f"--index={index.directory}")
    if not move_root:
        raise SearchError(
            f"{index.directory} indexes {' and '.join(map(str, roots.values()))}, not"
            f" {root}: give an indexed folder, another --index, or --move-root if the folder"
            f" has moved; to add {root}, run {add_command}"
        )
    missing = [name for name in roots if roots.is_missing(name)]
    if len(missing) != 1:
        listed = " and ".join(str(roots[name]) for name in (missing or roots))
        state = "missing: mount the others" if missing else "available: move or unmount one of them"
        raise SearchError(
            f"--move-root needs exactly one missing folder in {index.directory}, but"
            f" {listed} are {state} first; to add a folder, run {add_command}"
        )
    name = missing[0] if len(roots) > 1 else ""
    roots.check_apart(root, instead_of=name)
    terminal.warn(f"{roots[name]} is now {root}")
    return name


def _available_root(directory: Path) -> Path:
    """Return a root of an index that exists, or else the first."""
    roots = list(Index.open(directory).roots.values())  # `prepare_index` reports damage
    return next((root for root in roots if os.path.isdir(root)), roots[0])


def _place_of_encoder(run: Path) -> str | None:
    """Return the place of the encoder of a trained model, and print it; None if not recorded."""
    from hlformer_jax.search.signals import trained

    place = trained.place_of_encoder(run)
    if place is not None:
        terminal.report(f"encoder of {run}: {place}")
    return place


def _check_model(run: Path, facts: EncoderFacts) -> None:
    """Refuse a directory without a trained model, or a model of another encoder."""
    from hlformer_jax.search.signals import trained

    trained.check_encoder(trained.read_config(run), run, facts)


def _check_work(options: Options) -> None:
    """Refuse values of `WORK` that are out of range."""
    if options.workers is not None and options.workers < 0:
        raise SearchError(f"--workers={options.workers}: give 0 or more")
    if options.timeout is not None and not options.timeout > 0:
        raise SearchError(f"--timeout={options.timeout:g}: give seconds above 0")


def extract_videos(
    index: Index,
    encoder: Encoder,
    options: Options,
    only: Iterable[Path] | None = None,
    further: Iterable[Path] = (),
) -> None:
    """Index videos with a progress bar, and print the counts.

    Args:
      index: the index.
      encoder: the encoder of the index.
      options: the parsed options of a command that has `WORK` and --encoder.
      only: files to index; by default all files of all roots.
      further: folders to add to the index as roots.
    """
    _check_work(options)
    precision = _choose_precision(index, encoder, options)
    source = None
    if options.ray is not None:
        from hlformer_jax.search.ingest import cluster

        place = options.encoder
        if place is not None and os.path.isdir(place):
            place = os.path.abspath(place)
        load = functools.partial(reload_encoder, index.encoder, place, precision or "")
        source = cluster.source(options.ray, index, load, options.workers)
    with terminal.bar("video", bar_format=terminal.FRACTIONS) as bar:

        def show(state: Progress) -> None:
            bar.total, bar.n = state.total, state.done
            if state.duration:
                bar.n += min(1.0, state.position / state.duration)
            times = f"{format_clock(state.position)}/{format_clock(state.duration)}"
            bar.set_postfix_str(
                f"{state.done}/{state.total} videos, {state.speed:.1f}x real time,"
                f" {printable(PurePath(state.video).name[-40:])} {times}"
            )

        done = index_folder(
            index, encoder, workers=options.workers, retry=options.retry, timeout=options.timeout,
            only=only, further=further, source=source, precision=precision, progress=show,
            report=terminal.warn,
        )  # fmt: skip
    terminal.show(format_counts(index.directory, done.counts))
    if done.seconds:
        lengths = f"{format_clock(done.seconds)} of video in {format_clock(done.elapsed)}"
        terminal.show(f"{lengths}, {done.speed:.1f}x real time")
    if done.still:
        terminal.show(f"{done.still} of {done.frames} frames were still and share an embedding")


def _choose_precision(index: Index, encoder: Encoder, options: Options) -> str | None:
    """Set and print the precision of images, and return it; None if there is no choice."""
    precision = resolve_precision(index, encoder, options.precision)
    if precision:
        terminal.report(set_precision(encoder, precision))
    return precision or None


@command(
    INDEX,
    option("--speech", "recognise speech in videos without subtitles with this faster-whisper"
           " model: a size such as small or large-v3, or a folder", metavar="MODEL"),
    option("--language", "language code of the speech, such as de; also chooses the audio track"
           " (default: detect the language of each video)", metavar="CODE"),
    option("--audio", "audio tracks to recognise: default (the one that a player chooses), or"
           " all (default: default)", choices=("default", "all"), default="default"),
    flag("--ocr", "recognise text in the picture (OCR)"),
    ENCODER, compiles=True, continues=True,
)  # fmt: skip
def transcribe(options: Options) -> None:
    """Recognise speech, or text in the picture, and search it like subtitles."""
    if not options.speech and not options.ocr:
        raise SearchError("pass --speech=MODEL (for example small), --ocr, or both")
    if not options.speech and (options.language or options.audio != "default"):
        raise SearchError("--language and --audio are for --speech: add it, or leave them out")
    index = console.open_index_to_change(options.index)
    check_unlocked(options.index)
    recognisers = recognition.load_all(
        options.ocr, options.speech, options.language or "", options.audio, terminal.warn
    )
    encoder = reload_encoder(index.encoder, options.encoder)
    index.check_encoder(encoder)
    with index.running():
        update_transcripts(index, real_video(), terminal.warn, workers=default_workers())
        for recogniser in recognisers:
            with terminal.bar("video", bar_format=terminal.FRACTIONS) as bar:
                show = recognition.progress_of(bar)
                counts = recognition.recognise(index, recogniser, terminal.warn, show)
            terminal.show(format_counts(recogniser.name, counts))
        update_all(index, encoder, terminal.warn)
