"""The commands of the search: what each takes, and what it does. `COMMANDS` lists them.

A command is a function of its parsed options that returns nothing; its docstring is its help. What
is wrong is raised as a `UserError`, which `__main__` prints as one line.
"""

import argparse
import contextlib
import functools
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hlformer_jax import files
from hlformer_jax.errors import (
    DamagedError,
    SearchError,
    UserError,
    command_line,
    optional,
    printable,
)
from hlformer_jax.search import evaluation, exports
from hlformer_jax.search.cli.options import (
    COMMANDS,
    ENCODER,
    FOLDER,
    FPS,
    INDEX,
    JSON,
    NEW_ENCODER,
    NORMALISE,
    OVERWRITE,
    OWN_INDEX,
    RANKER,
    TIME,
    WORK,
    Options,
    command,
    flag,
    option,
    path,
    repeated,
)
from hlformer_jax.search.index import packed, storage
from hlformer_jax.search.index.database import (
    DEFAULT_ENCODER,
    WAIT_SECONDS,
    Index,
    check_rate,
    load_encoder,
    reload_encoder,
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
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.query.results import Results
from hlformer_jax.search.signals import SIGNALS, rankers, update_all
from hlformer_jax.search.signals.transcript import recognition, said, transcripts
from hlformer_jax.search.times import format_clock, format_date, parse_moment, parse_seconds

__all__ = ["COMMANDS"]  # complete once this module is imported

DEFAULT_TEXT_ENCODER = "FacebookAI/roberta-large"
"""Of the width of ActivityNet's and Charades-STA's published text features."""

# Indexing


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
    index, encoder = _prepared(
        directory, folder, options.encoder, options.fps, options.move_root, options.checkpoint
    )
    if options.checkpoint is not None:
        _check_model(options.checkpoint, index.manifest.encoder)
        with index.writing():
            index.manifest.checkpoint = str(options.checkpoint.resolve())
    _extract(index, encoder, options)
    if any(one.indexed for one in index.manifest.videos.values()):
        Library(directory, encoder=encoder).ranked()  # so that the first question need not wait


@command(
    path("paths", "files, or folders", nargs="+", metavar="PATH"),
    INDEX, ENCODER, *WORK, compiles=True,
)  # fmt: skip
def add(options: Options) -> None:
    """Index files, removed ones too, or a further folder, and leave all others alone."""
    index = _opened(options.index)
    _check_work(options)
    chosen, further = to_add(index, options.paths, _report)
    encoder = reload_encoder(index.manifest.encoder, options.encoder)
    _extract(index, encoder, options, chosen, further)


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
    index = _opened(options.index)
    encoder = reload_encoder(index.manifest.encoder, options.encoder)
    index.check_encoder(encoder)
    for root in index.roots.values():
        _say(f"watching {root} (Ctrl-C ends it)")
    try:
        watch_folders.follow(
            options.index, encoder, options.settle, _say, workers=options.workers,
            timeout=options.timeout,
        )  # fmt: skip
    except KeyboardInterrupt:
        _say("stopped")


def _prepared(
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
        videos = real_video().find(folder, _report, lambda: None)
        if all(inside in path.resolve().parents for path in videos):
            raise SearchError(f"{folder} holds no video that FFmpeg reads")
        encoder, places = load_encoder(given or DEFAULT_ENCODER)
        if checkpoint is not None:
            _check_model(checkpoint, EncoderFacts.of(encoder))
        rate = 1.0 if fps is None else fps
        return Index.create(directory, folder, encoder, rate, places), encoder
    for note in index.notes:
        _report(note)
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
        _report(f"{known[moved]} is now {root}")
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
    roots = list(_opened(directory).roots.values())
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


def _extract(
    index: Index,
    encoder: Any,
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
    with _bar("video") as bar:

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


# Asking


@command(
    option("sentences", "what is looked for; of several, a video has all", nargs="*",
           metavar="SENTENCE"),
    INDEX,
    path("--image", "look for what resembles the picture in a file, and is as SENTENCE says",
         metavar="FILE"),
    option("--like", "likewise, that of a video of the index at a time", metavar="VIDEO@TIME"),
    repeated("--then", "and after that this, in order; repeatable", metavar="SENTENCE"),
    option("--within", "from one to the next at most; default 60s", default="60s", metavar="TIME"),
    repeated("--not", "but not this in the same frames; repeatable", metavar="SENTENCE",
             dest="without"),
    option("--k", "videos at most; default 10", type=int, default=10),
    option("--offset", "of the best, so many are left out; default 0", type=int, default=0),
    option("--min-score", "leave out what scores less", type=float, metavar="SCORE"),
    option("--signals", f"search by these signals alone, of {', '.join(SIGNALS)}, separated by"
           " commas (default: all that accept the query)", metavar="NAMES"),
    option("--moments", "of each video at most; default 3", type=int, default=3),
    option("--folder", "only videos in this folder of the archive, and below"),
    option("--longer", "only videos of that length or more", metavar="TIME"),
    option("--shorter", "only videos of that length or less", metavar="TIME"),
    repeated("--tag", "only videos with that tag; repeatable", metavar="TAG"),
    option("--since", "only videos of that year, month, day or time, or later", metavar="DATE"),
    option("--until", "likewise, or before", metavar="DATE"),
    path("--export", "also write all moments, as .csv, .m3u, .m3u8, .edl, .otio or .fcpxml",
         metavar="FILE"),
    OVERWRITE, JSON, *RANKER, compiles=True,
)  # fmt: skip
def query(options: Options) -> None:
    """Find the videos and moments of sentences, a picture, or both."""
    replace = files.replacing(options.overwrite)
    if options.export:
        exports.check(options.export)
        _check_place(options.export, "--export", Index.open(options.index))
        files.check_output(options.export, replace)
    results = _library(options).query(_query(options))
    for line in results.warnings:
        _report(printable(line))
    if options.export:
        probe = optional("hlformer_jax.video", "search").probe
        title = options.sentences[0] if options.sentences else "moments"
        count = exports.write(options.export, title, results, probe, replace)
        _report(printable(f"{options.export}: {count} moments"))
    if options.json:
        print(json.dumps([result.as_json() for result in results], indent=2))
        return
    if not results:
        why = "has that score" if options.min_score is not None else "passes the filters"
        print("nothing more was found" if options.offset else f"nothing was found: no video {why}")
        return
    if results.verdict and not options.offset:
        _report(results.verdict)
    _print_results(results, options.offset)


def _query(options: Options) -> Query:
    """The query of the options of `query`."""

    def seconds(text: str | None) -> float | None:
        return None if text is None else parse_seconds(text)

    return Query(
        options.sentences, k=options.k, folder=options.folder, since=options.since,
        until=options.until, moments=options.moments, image=options.image,
        like=parse_moment(options.like) if options.like else None, then=options.then,
        within=parse_seconds(options.within), without=options.without,
        min_score=options.min_score, offset=options.offset, signals=options.signals,
        longer=seconds(options.longer), shorter=seconds(options.shorter), tags=options.tag,
    )  # fmt: skip


def _print_results(results: Results, offset: int) -> None:
    """Print a table of results, ranked from `offset` on, with the passages that match."""
    has_signals = any(set(result.signals) - {"visual"} for result in results)
    rows = [("rank", "score", "moment", *["by"] * has_signals, "date", "file")]
    for rank, result in enumerate(results, offset + 1):
        moment = result.moments[0]
        # Ends are rounded up: a moment of a second is not from 0:07 to 0:07.
        span = f"{format_clock(moment.start)}–{format_clock(-(-moment.end // 1))}"
        date = f"{format_date(result.date)[:10]} ({result.date_of})"
        copies = f" (and {len(result.copies)} of the same content)" if result.copies else ""
        score = "–" if result.score is None else f"{result.score:.3f}"
        signals = [" and ".join(result.signals) or "–"] * has_signals
        rows.append((str(rank), score, span, *signals, date, printable(result.video) + copies))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, result in zip(rows, [None, *results], strict=True):
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        cells[:2] = (text.rjust(width) for text, width in zip(row[:2], widths, strict=False))
        print("  ".join(cells).rstrip())
        if result and result.passages:
            first = result.passages[0]
            print(f"      {format_clock(first.start)} “{printable(first.text)}”")


@command(
    INDEX,
    option("--port", "default 8000; 0: one that is free", type=int, default=8000),
    option("--host", "address to listen on; default this machine alone, 0.0.0.0: everybody with the"
           " token", default="127.0.0.1", metavar="ADDRESS"),
    repeated("--allow-host", "a name under which it is reached too, such as nas.local; repeatable",
             metavar="NAME"),
    path("--token-file", "a file that holds the token; default one is made where other machines"
         " reach it", metavar="FILE"),
    flag("--no-token", "let everybody who reaches it watch the videos"),
    option("--manage", "let the page add folders of this machine, remove and index again; default"
           " where it alone reaches the page", action=argparse.BooleanOptionalAction),
    flag("--open", "open the page in a browser"),
    *RANKER, compiles=True,
)  # fmt: skip
def serve(options: Options) -> None:
    """Serve the page at a local address, until Ctrl-C."""
    optional("hlformer_jax.search.serve.server", "search").serve(
        _library(options), options.port, options.host, options.open, manage=options.manage,
        token_file=options.token_file, no_token=options.no_token, allow_hosts=options.allow_host,
    )  # fmt: skip


@command(
    INDEX,
    path("--out", "the folder that clips are written into; without it none are", metavar="DIR"),
    *RANKER, compiles=True,
)  # fmt: skip
def mcp(options: Options) -> None:
    """Serve programs that speak the Model Context Protocol, over stdin and stdout."""
    agents = optional("hlformer_jax.search.serve.agents", "search")
    agents.run(agents.server(_library(options), options.out))


@command(INDEX, JSON)
def status(options: Options) -> None:
    """Show what an index holds and what failed."""
    index = _opened(options.index)
    of = index.summary()
    noted = [entry for entry in index.entries() if entry.reason]
    damaged = [one.line for one in transcripts.damaged(index).values()]
    left_out: list[transcripts.Problem] = []
    with contextlib.suppress(DamagedError):  # of which `damaged` has a line
        left_out = transcripts.problems(index)
    if options.json:
        lists: dict[str, Any] = {"failures": [], "warnings": [], "notes": index.notes}
        for entry in noted:
            kind = "failures" if entry.state == "failed" else "warnings"
            lists[kind].append({"id": entry.id, "video": entry.video, "reason": entry.reason})
        lists["subtitles"] = [problem._asdict() for problem in left_out]
        lists["transcripts"] = damaged
        print(json.dumps(files.jsonable(of | lists), indent=2))
        return
    level = index.manifest.levels.get(rankers.DEFAULT)
    length = (
        f"{format_clock(of['seconds'])} long, {of['frames']} frames, {of['bytes'] / 1e6:.1f} MB"
    )
    rows = {
        "index": printable(of["index"]),
        "folder": printable(of["folder"]),
        **{f"folder {name!r}": printable(root) for name, root in of["folders"].items()},
        "encoder": f"{of['encoder']}, {of['fps']:g} frames a second",
        "ranker": of["checkpoint"],
        "videos": f"{of['videos']}, {length}",
        "offline": of["offline"] and f"{of['offline']} of them (kept; prune lists and drops them)",
        "removed": of["removed"] and f"{of['removed']} (add brings one back)",
        "level": level
        and f"{level.false_alarms:g} % of what is absent pass ({level.captions} captions)",
        "failed": of["failed"] and f"{of['failed']} (index --retry tries them again)",
        "subtitles": left_out and f"{len(left_out)} files of which nothing or not all is searched",
    }
    for name, text in rows.items():
        if text:
            print(f"{name:<9} {text}")
    for entry in noted:
        kind = "failed" if entry.state == "failed" else "warning"
        print(f"  {kind}: {printable(entry.video)}: {printable(entry.reason)} (id {entry.id})")
    for problem in left_out:
        print(f"  subtitles: {printable(problem.file)}: {printable(problem.reason)}")
    for line in damaged:
        print(f"  damaged: {printable(line)}")


@command(
    option("videos",
           "paths, or ids, as the index has them; or a further folder, with all its videos",
           nargs="+", metavar="VIDEO"),
    INDEX,
)  # fmt: skip
def remove(options: Options) -> None:
    """Take videos out of an index, until they are added again; the files stay."""
    index = _opened(options.index)
    count = index.remove(options.videos)
    print(f"removed {count} of {count + len(index.manifest.videos)} videos")


@command(
    option("videos", "paths, or ids, as the index has them; default all that have tags", nargs="*",
           metavar="VIDEO"),
    INDEX,
    repeated("--add", "a tag to give; repeatable", metavar="TAG"),
    repeated("--drop", "a tag to take; repeatable", metavar="TAG"),
)  # fmt: skip
def tag(options: Options) -> None:
    """Give videos tags, such as favourite, or take them; list the videos with their tags."""
    index = _opened(options.index)
    if options.add or options.drop:
        if not options.videos:
            raise SearchError("which videos? Give their paths or ids")
        with index.writing(wait=WAIT_SECONDS):
            index.tag({index.name_of(one) for one in options.videos}, options.add, options.drop)
    names = {index.name_of(one) for one in options.videos}
    for entry in index.entries():
        if entry.video in names or entry.tags and not names:
            print(printable(entry.video) + ": " + (", ".join(entry.tags) or "no tag"))


@command(
    INDEX,
    option("--speech", "recognise speech in videos without subtitles by this faster-whisper model:"
           " a size, such as small or large-v3, or a folder", metavar="MODEL"),
    option("--language", "code of the language spoken, such as de, and of the audio track to hear"
           " (default: detect the language of each video)", default="", metavar="CODE"),
    option("--audio", "audio tracks to hear: the one that a player takes (default), or all",
           choices=("default", "all"), default="default"),
    flag("--ocr", "recognise text in the pictures (OCR)"),
    ENCODER, compiles=True,
)  # fmt: skip
def transcribe(options: Options) -> None:
    """Recognise speech or text in videos, to search it as subtitles are searched."""
    if not options.speech and not options.ocr:
        raise SearchError("pass --speech=MODEL (for example small), --ocr, or both")
    index = _opened(options.index)
    recognisers = recognition.load_all(
        options.ocr, options.speech, options.language, options.audio, _report
    )
    encoder = reload_encoder(index.manifest.encoder, options.encoder)
    index.check_encoder(encoder)
    with index.writing():
        update_transcripts(index, real_video(), _report, workers=default_workers())
        for recogniser in recognisers:
            with _bar("video") as bar:
                report = functools.partial(bar.write, file=sys.stderr)
                show = recognition.progress_of(bar)
                counts = recognition.recognise(index, recogniser, report, show)
            print(counted(recogniser.name, counts))
        update_all(index, encoder, _report)


@command(INDEX, flag("--yes", "drop them"))
def prune(options: Options) -> None:
    """List the videos that are offline; with --yes, drop them and their vectors."""
    index = _opened(options.index)
    away = {name: root for name, root in index.roots.items() if not index.is_there(name)}
    if len(away) == len(index.roots):
        raise SearchError(f"{index.root} is not there: is its disk mounted? Nothing is dropped")
    for root in away.values():
        _report(f"{root} is not there: is its disk mounted? Nothing of it is dropped")
    offline = [one for one in index.offline() if storage.split_name(one)[0] not in away]
    names = [one for one in offline if files.is_gone(index.path(one), follow=True)]
    if kept := len(offline) - len(names):
        first = next(one for one in offline if one not in names)
        _report(printable(f"{kept} videos cannot be looked at ({first}): they are kept"))
    for name in names:
        print(printable(name))
    if not options.yes:
        print(f"{len(names)} videos are offline" + ("; --yes drops them" if names else ""))
        return
    with index.writing(wait=WAIT_SECONDS):
        gone = set(index.offline()) & set(names)
        index.forget(gone)
    print(f"dropped {len(gone)} videos, {len(index.manifest.videos)} are left")


@command(INDEX)
def verify(options: Options) -> None:
    """Read an index through, and name what is damaged."""
    index = Index.open(options.index)
    wrong = index.verify() | packed.damaged(index.directory)
    wrong |= {f"manifest {i}": note for i, note in enumerate(index.notes)}
    texts = said.damaged(index)
    for line in (*wrong.values(), *(damage.line for damage in texts.values())):
        print(printable(line))
    contents = index.contents()
    paths = (index.text, index.text_copy, index.text_vectors)
    total = len(contents) + sum(os.path.lexists(path(one)) for one in contents for path in paths)
    with contextlib.suppress(OSError):  # which `packed.damaged` has told
        total += len(packed.own_files(index.directory))
    if wrong or texts:
        again = command_line("search", "index", index.root, f"--index={options.index}")
        count = len(wrong) + len(texts)
        mended = len(wrong) + sum(damage.is_mended for damage in texts.values())
        remedy = f"{again} makes them anew"
        if mended < count:
            remedy = f"{again} makes {mended} anew; the lines above say what the others need"
        raise DamagedError(f"{count} of {total} files are damaged: {remedy}")
    print(f"{total} files are whole")


@command(
    option("video", "path or id, as the index has it", nargs="?", metavar="VIDEO"),
    INDEX,
    TIME("--start", "seconds, M:SS or H:MM:SS"),
    TIME("--end", "likewise"),
    path("--from", "in place of the three: every row of what query --export=FILE.csv wrote",
         dest="table", metavar="CSV"),
    option("--margin", "seconds more at both ends", type=float, default=0.0),
    path("--out", "the clip; .mp4, .m4v, .mov or .mkv; default VIDEO_START-END.mp4 here; with"
         " --from the folder of all clips, default here", metavar="FILE"),
    flag("--copy", "as the file has it, without a loss, from the keyframe before the start on"),
    OVERWRITE,
)  # fmt: skip
def cut(options: Options) -> None:
    """Cut moments out of videos, with margins, and print the clips' paths."""
    index = Index.open(options.index)
    given = options.video, options.start, options.end
    if options.table is None and None in given or options.table and given != (None, None, None):
        raise SearchError("give VIDEO, --start and --end, or --from=CSV alone")
    if not options.margin >= 0:
        raise SearchError(f"--margin={options.margin}: give seconds of at least 0")
    if options.table:
        asked = exports.read_csv(options.table)
    else:
        asked = [(options.video, parse_seconds(options.start), parse_seconds(options.end))]
        if asked[0][2] <= asked[0][1]:
            raise SearchError(f"--end={options.end} is not after --start={options.start}")
    replace = files.replacing(options.overwrite)
    clips: dict[Path, tuple[str, float, float]] = {}
    failed: list[str] = []
    for one, start, end in asked:
        try:
            name = index.name_of(one)
        except SearchError as error:
            if not options.table:
                raise
            _report(str(error))
            failed.append(one)
            continue
        out = Path(exports.clip_name(name, start, end))
        if options.out:
            out = options.out / out if options.table else options.out
        _check_place(out, "--out", index)
        clips[out] = name, start, end
    for out in clips if options.table else ():  # all of them, before the first is made
        files.check_output(out, replace)
    total = len(clips) + len(failed)
    video = optional("hlformer_jax.video", "search")
    for out, (name, start, end) in clips.items():
        write = video.copy if options.copy else video.cut
        try:
            real = write(index.path(name), start, end, out, options.margin, replace=replace)
        except (UserError, OSError) as error:
            if not options.table:
                raise
            _report(str(error))
            failed.append(out.name)
            continue
        _say(printable(str(out)))
        if options.copy:
            asked_start = max(start - options.margin, 0)
            _report(f"from {real[0]:.3f} s on, {asked_start - real[0]:.3f} s earlier than asked,"
                    f" to {real[1]:.3f} s")  # fmt: skip
    if failed:
        raise SearchError(f"{len(failed)} of {total} clips could not be made: {', '.join(failed)}")


def _check_place(out: Path, flag: str, index: Index | None = None) -> None:
    """Refuse an output that lies in the directory of an index, or is a video of `index`."""
    real = Path(os.path.realpath(out))
    inside = storage.index_around(out)
    if inside is None and index is not None and real.is_relative_to(index.directory.resolve()):
        inside = index.directory
    if inside is not None:
        raise SearchError(f"{flag}={out} lies in the index {inside}: choose another place")
    if index is not None and index.name_below(real) in index.manifest.videos:
        raise SearchError(f"{flag}={out} is a video of the index: choose another name")


# With captions


@command(
    INDEX,
    path("--captions", 'lines {"video": …, "sentence": …, "start": …, "end": …}, times optional',
         required=True, metavar="FILE"),
    option("--split", "only captions of that split", choices=evaluation.SPLITS),
    path("--checkpoint", "a trained model as well; repeatable", action="append", default=[],
         metavar="RUN"),
    ENCODER, NORMALISE,
    option("--calibrate", "keep the level of a good match that calls so many percent of absent"
           " things good; 0: forget it", type=float, metavar="PERCENT"),
    path("--json", "also write the figures there", metavar="FILE"),
    OVERWRITE, compiles=True,
)  # fmt: skip
def evaluate(options: Options) -> None:
    """Report on captions: recalls and moments of each ranker, levels of a good match, by kind."""
    replace = files.replacing(options.overwrite)
    if options.json:
        _check_place(options.json, "--json", Index.open(options.index))
        files.check_output(options.json, replace)
        if options.json.exists() and options.json.samefile(options.captions):
            raise SearchError(f"--json={options.json} is the file of the captions: name another")
    if options.calibrate and not 0.01 <= options.calibrate < 100:
        raise SearchError(f"--calibrate={options.calibrate:g}: give percent from 0.01 to 100, or 0")
    asked = evaluation.read(options.captions, options.split)
    # Loaded once: all rankers ask the same encoder.
    encoder = Library(options.index, encoder=options.encoder).encoder
    libraries = [
        Library(options.index, ranker=name, encoder=encoder, normalise=options.normalise)
        for name in rankers.RANKERS
    ]
    libraries += [Library(options.index, run, encoder=encoder) for run in options.checkpoint]
    total = len(asked) + sum(one.single for one in asked) * len(libraries)
    known = any(one.single and one.video for one in asked)
    with _bar("caption", total) as bar:
        done = {
            one.ranker_name: evaluation.evaluate(one, asked, bar.update)
            for one in libraries if known
        }  # fmt: skip
        try:  # before questions by kind, whose good matches are those of the level
            if options.calibrate is not None:
                separations = {name: apart for name, (_, apart) in done.items()}
                evaluation.calibrate(_opened(options.index), separations, options.calibrate)
        finally:  # figures take long, and stay right where the level cannot be kept
            figures = evaluation.report(libraries[0], done, asked, bar.update)
            bar.close()
            evaluation.print_report(figures)
            if options.json:
                files.write_json(options.json, figures, replace)


@command(
    FOLDER,
    path("--captions", 'lines {"video": …, "sentence": …}, with "start", "end" and "split" where'
         ' known; with --text-only lines CAPTION_ID SENTENCE, or a file of moments; default all'
         ' of the collection',
         metavar="FILE"),
    path("--out", "where to write; with --text-only the file of the collection", metavar="DIR"),
    flag("--text-only",
         "only features of captions, in the released layout (docs/data.md): FOLDER is"
         f" the collection, such as PATH/charades, and the encoder {DEFAULT_TEXT_ENCODER} unless"
         " given"),
    OWN_INDEX, NEW_ENCODER, FPS,
    option("--seed", "of the splits, where the captions name none", type=int, default=0),
    OVERWRITE, *WORK, compiles=True,
)  # fmt: skip
def features(options: Options) -> None:
    """Make features of captioned videos, to train a model on (configs/own.py)."""
    from hlformer_jax.data import extracted

    if options.out is not None:
        _check_place(options.out, "--out")
    if options.text_only:
        return _text_features(options)
    for name in ("captions", "out"):
        if getattr(options, name) is None:
            raise SearchError(f"--{name} is missing (only --text-only has a default for it)")
    if not options.folder.is_dir():
        raise SearchError(f"{options.folder} is no folder: give the folder of the videos")
    extracted.check_place(options.out, options.overwrite)
    asked = evaluation.read(options.captions)
    directory = options.index or options.folder / ".hlformer-search"
    index, encoder = _prepared(directory, options.folder, options.encoder, options.fps)
    _extract(index, encoder, options)
    counts = evaluation.write_features(
        index, encoder, asked, options.out, options.seed, _report, options.overwrite
    )
    listed = ", ".join(f"{count} of {split}" for split, count in counts.items())
    print(f"{options.out}: captions {listed}")
    print(f"train on it: {command_line('main', f'--config=configs/own.py:{options.out}')}")


def _text_features(options: Options) -> None:
    """Writes the features of a released collection's captions."""
    from hlformer_jax.data import annotations, released, source

    folder = options.folder.resolve()
    collection = released.Collection(folder.parent, folder.name, "-", 0, 0)
    moments = released.MomentCollection(folder.parent, folder.name, "-", 0, 0)
    lists = [options.captions] if options.captions else [
        path for kind in (collection, moments) for path in map(kind.captions, source.SPLITS)
        if path.is_file()
    ]  # fmt: skip
    if not lists:
        raise SearchError(f"{collection.captions('train')} is not there: give lists of captions")
    out, replace = options.out or collection.text_features, files.replacing(options.overwrite)
    _check_place(out, "--out")
    files.check_output(out, replace)
    sentences = annotations.read_sentences(lists)
    load = optional("hlformer_jax.encoders", "search").load_text
    encoder = load(options.encoder or DEFAULT_TEXT_ENCODER, report=_report)
    with _bar("caption", len(sentences)) as bar:
        features = evaluation.tokens(encoder, sentences, bar.update)
        released.write_words(out, (encoder.name, encoder.fingerprint), features, replace)
    print(f"{out}: {len(sentences)} captions, features of width {encoder.token_width}")


@command(INDEX, *RANKER)
def upload(options: Options) -> None:
    """Bring a PostgreSQL database up to date with an index, to search there by --store."""
    library = _library(options)
    with _bar("video") as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        count = library.upload(show)
    print(counted("videos (equal ones count once)", {
        "uploaded": count.sent,
        "there already": count.kept,
        "deleted": count.removed,
        "damaged and not sent (index makes them anew)": count.damaged,
    }))  # fmt: skip


@command(
    path("--out", "gets videos, captions, encoder, index, kinds", required=True, metavar="DIR"),
    option("--seed", "equal seeds make equal videos", type=int, default=0),
    flag("--training", "also render captioned videos to train on, in DIR/training"),
    compiles=True,
)
def demo(options: Options) -> None:
    """Make an archive to try the search on, without any video or download."""
    _check_place(options.out, "--out")
    demo = optional("hlformer_jax.search.demo", "search")
    demo.make(options.out, options.seed, _say)
    demo.make_kinds(options.out, options.seed, _say)
    if options.training:
        demo.render_training(options.out, options.seed, _say)
    index = f"--index={options.out / 'index'}"
    print(f"ask it: {command_line('search', 'query', 'a red circle', index)}")


# What commands share


def _opened(directory: Path) -> Index:
    """The index of --index; says on standard error what of it is damaged."""
    index = Index.open(directory)
    for note in index.notes:
        _report(note)
    return index


def _library(options: Options) -> Library:
    """The library of --index and the options of `RANKER`."""
    return Library(
        options.index, options.checkpoint, options.ranker, options.encoder, options.store,
        options.normalise,
    )  # fmt: skip


def _bar(unit: str, total: int | None = None) -> Any:
    """A progress bar on standard error, where that is a terminal."""
    import tqdm

    return tqdm.tqdm(
        total=total, unit=unit, file=sys.stderr, disable=None, dynamic_ncols=True, leave=False
    )


def _say(line: str) -> None:
    print(line, flush=True)


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
