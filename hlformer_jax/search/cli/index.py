"""Commands that fill an index: index, add, watch, transcribe."""

import functools
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import DamagedError, SearchError, command_line, optional
from hlformer_jax.search.cli import console
from hlformer_jax.search.cli.options import (
    ENCODER,
    FPS,
    INDEX,
    NEW_ENCODER,
    OWN_INDEX,
    WORK,
    Options,
    command,
    flag,
    option,
    path,
)
from hlformer_jax.search.encoder import DEFAULT_ENCODER, load_encoder, reload_encoder
from hlformer_jax.search.index import storage
from hlformer_jax.search.index.database import (
    Index,
    check_rate,
)
from hlformer_jax.search.index.storage import EncoderFacts
from hlformer_jax.search.ingest import watch as watch_folders
from hlformer_jax.search.ingest.decoding import update_transcripts
from hlformer_jax.search.ingest.extract import (
    Progress,
    counted,
    default_workers,
    index_folder,
    real_video,
    to_add,
)
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.signals.transcript import recognition, said
from hlformer_jax.search.times import format_clock


@command(
    path("folder", "the videos, in it and below; needs not be named again with --index", nargs="?",
         metavar="FOLDER"),
    OWN_INDEX, NEW_ENCODER, FPS,
    path("--checkpoint", "a trained model that ranks from now on", metavar="RUN"),
    flag("--move-root", "the missing folder of the index has moved to FOLDER; refused while the old"
         " one is there"),
    *WORK, compiles=True,
)  # fmt: skip
def index(options: Options) -> None:
    """Index a folder of videos, or bring an index up to date, with all its folders."""
    if options.folder is None and options.index is None:
        raise SearchError("give FOLDER, or --index of an index that is there")
    directory = options.index or options.folder / ".hlformer-search"
    _check_work(options)
    folder = options.folder or _any_root(directory)
    index, encoder = prepare_index(
        directory, folder, options.encoder, options.fps, options.move_root, options.checkpoint
    )
    if options.checkpoint is not None:
        _check_model(options.checkpoint, index.manifest.encoder)
        with index.writing():
            index.manifest.checkpoint = str(options.checkpoint.resolve())
    extract_videos(index, encoder, options)
    if any(one.indexed for one in index.manifest.videos.values()):
        Library(directory, encoder=encoder).ranked()  # so that the first question need not wait


@command(
    path("paths", "files, or folders", nargs="+", metavar="PATH"),
    INDEX, ENCODER, *WORK, compiles=True,
)  # fmt: skip
def add(options: Options) -> None:
    """Index files, removed ones too, or a further folder, and leave all others alone."""
    index = console.open_index(options.index)
    _check_work(options)
    chosen, further = to_add(index, options.paths, console.report)
    encoder = reload_encoder(index.manifest.encoder, options.encoder)
    extract_videos(index, encoder, options, chosen, further)


@command(
    INDEX, ENCODER,
    option("--settle", "for which a file must not have changed before it is read; default 5",
           type=float, default=watch_folders.SETTLE, metavar="SECONDS"),
    WORK[0], WORK[2], compiles=True,
)  # fmt: skip
def watch(options: Options) -> None:
    """Keep an index up to date with its folders, until Ctrl-C; a line for each change."""
    _check_work(options)
    if not 0 < options.settle < float("inf"):
        raise SearchError(f"--settle={options.settle:g}: give seconds above 0")
    optional("watchfiles", "search")
    index = console.open_index(options.index)
    encoder = reload_encoder(index.manifest.encoder, options.encoder)
    index.check_encoder(encoder)
    for root in index.roots.values():
        console.say(f"watching {root} (Ctrl-C ends it)")
    try:
        watch_folders.follow(
            options.index, encoder, options.settle, console.say, workers=options.workers,
            timeout=options.timeout,
        )  # fmt: skip
    except KeyboardInterrupt:
        console.say("stopped")


def prepare_index(
    directory: Path,
    folder: Path,
    given: str | None,
    fps: float | None,
    move_root: bool = False,
    checkpoint: Path | None = None,
) -> tuple[Index, Any]:
    """Opens the index of a folder, or makes it where there is a video, and loads its encoder."""
    if not folder.is_dir():
        raise SearchError(f"{folder} is no folder: give the folder of the videos")
    if fps is not None:
        check_rate(fps)
    index = None
    try:
        index = Index.open(directory)
    except DamagedError:  # of which nothing is left
        storage.check_place(directory)
    except SearchError:
        storage.check_place(directory)
        if any((directory / name).exists() for name in (storage.MANIFEST, storage.MARK)):
            raise
    if index is None:
        inside = directory.resolve()
        videos = real_video().find(folder, console.report, lambda: None)
        if all(inside in path.resolve().parents for path in videos):
            raise SearchError(f"{folder} holds no video that FFmpeg reads")
        encoder, places = load_encoder(given or DEFAULT_ENCODER)
        if checkpoint is not None:
            _check_model(checkpoint, EncoderFacts.of(encoder))
        rate = 1.0 if fps is None else fps
        return Index.create(directory, folder, encoder, rate, places), encoder
    for note in index.notes:
        console.report(note)
    if fps is not None and fps != index.manifest.fps:
        raise SearchError(
            f"{directory} has {index.manifest.fps:g} frames a second and --fps={fps:g} asks for"
            " others: leave --fps out, or make a new index by --index"
        )
    root, known = folder.resolve(), index.roots
    moved = "" if root in known.values() or not index.manifest.root else None
    if moved is None and move_root:
        away = [name for name in known if index.is_missing(name)]
        if len(away) != 1:
            listed = " and ".join(str(known[name]) for name in (away or known))
            what = "missing: mount the others" if away else "still there: move or unmount it"
            raise SearchError(
                f"--move-root needs one folder of {directory} that is missing, and {listed} are"
                f" {what} first, or index {root} as a further folder by"
                f" {command_line('search', 'add', root, f'--index={directory}')}"
            )
        moved = away[0] if len(known) > 1 else ""
        index.check_root(root, instead_of=moved)
        console.report(f"{known[moved]} is now {root}")
    elif moved is None:
        listed = " and ".join(map(str, known.values()))
        raise SearchError(
            f"{directory} is the index of {listed}: give that folder, another --index, --move-root"
            f" where it is now {root}, or, for a further folder,"
            f" {command_line('search', 'add', root, f'--index={directory}')}"
        )
    encoder = reload_encoder(index.manifest.encoder, given)
    index.check_encoder(encoder)
    if root not in known.values():
        with index.writing():
            if moved:
                index.manifest.roots[moved] = str(root)
            else:
                index.manifest.root = str(root)
    return index, encoder


def _any_root(directory: Path) -> Path:
    """A folder of an index that is there, or its first."""
    roots = list(console.open_index(directory).roots.values())
    return next((root for root in roots if root.is_dir()), roots[0])


def _check_model(run: Path, facts: EncoderFacts) -> None:
    """Refuses a trained model that is none, or of another encoder."""
    from hlformer_jax.search.signals import trained

    trained.check_encoder(trained.read_config(run), run, facts)


def _check_work(options: Options) -> None:
    """Refuses options of `WORK` that mean nothing."""
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
    """Indexes with a progress bar, and prints what that did."""
    _check_work(options)
    source = None
    if options.ray is not None:
        from hlformer_jax.search.ingest import cluster

        given = options.encoder
        if given is not None and os.path.isdir(given):
            given = os.path.abspath(given)
        load = functools.partial(reload_encoder, index.manifest.encoder, given)
        source = cluster.source(options.ray, index, load, options.workers)
    with console.progress_bar("video") as bar:

        def show(progress: Progress) -> None:
            bar.total, bar.n = progress.total, progress.done
            times = f"{format_clock(progress.position)}/{format_clock(progress.duration)}"
            bar.set_postfix_str(
                f"{progress.speed:.1f}x real time, {progress.video[-40:]!r} {times}"
            )

        done = index_folder(
            index, encoder, workers=options.workers, retry=options.retry, timeout=options.timeout,
            only=only, further=further, source=source, progress=show,
            report=lambda line: bar.write(line, file=sys.stderr),
        )  # fmt: skip
    print(counted(index.directory, done.counts))
    if done.seconds:
        taken = f"{format_clock(done.seconds)} of video in {format_clock(done.elapsed)}"
        print(f"{taken}, {done.speed:.1f}x real time")


@command(
    INDEX,
    option("--speech", "recognise speech in videos without subtitles by this faster-whisper model:"
           " a size, such as small or large-v3, or a folder", metavar="MODEL"),
    option("--language", "code of the language spoken, such as de, and of the audio track to hear"
           " (default: detect the language of each video)", default="", metavar="CODE"),
    option("--audio", "audio tracks to hear: the one that a player takes (default), or all",
           choices=("default", "all"), default="default"),
    flag("--writing", "recognise text in the pictures"),
    ENCODER, compiles=True,
)  # fmt: skip
def transcribe(options: Options) -> None:
    """Recognise speech or text in videos, to search it as subtitles are searched."""
    if not options.speech and not options.writing:
        raise SearchError("pass --speech=MODEL (for example small), --writing, or both")
    index = console.open_index(options.index)
    recognisers = recognition.load_all(
        options.writing, options.speech, options.language, options.audio, console.report
    )
    encoder = reload_encoder(index.manifest.encoder, options.encoder)
    index.check_encoder(encoder)
    with index.writing():
        update_transcripts(index, real_video(), console.report, workers=default_workers())
        for recogniser in recognisers:
            with console.progress_bar("video") as bar:
                report = functools.partial(bar.write, file=sys.stderr)
                show = recognition.progress_of(bar)
                counts = recognition.recognise(index, recogniser, report, show)
            print(counted(recogniser.name, counts))
        said.embed(index, encoder, console.report)
