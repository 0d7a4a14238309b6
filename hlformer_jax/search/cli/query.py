"""Commands that find moments and cut them out: query, cut."""

import functools
import json
from pathlib import Path

from hlformer_jax import files, terminal
from hlformer_jax.errors import SearchError, UserError, describe
from hlformer_jax.lazy import optional
from hlformer_jax.search import export
from hlformer_jax.search.cli import console
from hlformer_jax.search.cli.options import (
    INDEX,
    JSON,
    OVERWRITE,
    RANKER,
    TIME,
    Options,
    command,
    flag,
    option,
    path,
    repeated,
)
from hlformer_jax.search.index import Index
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.query.results import Results
from hlformer_jax.search.signals import SIGNALS, VisualSignal
from hlformer_jax.search.signals.protocol import DEFAULT_WITHIN
from hlformer_jax.search.times import (
    SECONDS_AFTER_END,
    format_clock,
    format_date,
    parse_moment,
    parse_seconds,
)
from hlformer_jax.text import counted, printable


@command(
    option("sentences", "text to search for; with several, a video must match all of them",
           nargs="*", metavar="SENTENCE"),
    INDEX,
    path("--image", "search by the picture in this file, or by the picture and SENTENCE",
         metavar="FILE"),
    option("--like", "search by a frame of an indexed video, such as trips/a.mp4@1:05",
           metavar="VIDEO@TIME"),
    repeated("--then", "an event that must follow SENTENCE (may be repeated, in order)",
             metavar="SENTENCE"),
    option("--within", "longest gap between SENTENCE and the events of --then (default:"
           f" {DEFAULT_WITHIN:g}s)", metavar="TIME"),
    repeated("--not", "exclude frames that show this (may be repeated)", metavar="SENTENCE",
             dest="without"),
    option("--k", "largest number of videos to show (default: 10)", type=int, default=10),
    option("--offset", "skip this many of the best results (default: 0)", type=int, default=0),
    option("--min-score", "leave out results with a lower score, except matches in the transcript"
           " (default: none)", type=float, metavar="SCORE"),
    option("--signals", f"search only by these signals, separated by commas: {', '.join(SIGNALS)}"
           " (default: all that accept the query)", metavar="NAMES"),
    option("--moments", "largest number of moments to find in each video (default: 3)", type=int,
           default=3),
    option("--folder", "only videos in this folder of the index, or below it"),
    option("--longer", "only videos of at least this length, such as 1:30", metavar="TIME"),
    option("--shorter", "only videos of at most this length, such as 1:30", metavar="TIME"),
    repeated("--tag", "only videos with this tag (may be repeated: all of them)", metavar="TAG"),
    option("--since", "only videos from this date or later: 2026, 2026-01, 2026-01-31 or a time",
           metavar="DATE"),
    option("--until", "only videos from this date or earlier, in the same forms", metavar="DATE"),
    path("--export", "also write all moments to this .csv, .m3u(8), .edl, .otio or .fcpxml file",
         metavar="FILE"),
    OVERWRITE, JSON, *RANKER, compiles=True,
)  # fmt: skip
def query(options: Options) -> None:
    """Find videos and moments by text, by a picture, or by both."""
    replace = files.replacing(options.overwrite)
    if options.export:
        export.check(options.export)
        console.check_place(options.export, "--export", Index.open(options.index))
        files.check_output(options.export, replace)
    results = console.open_library(options).query(_parse_query(options))
    for line in results.warnings:
        terminal.warn(line)
    if options.export:
        probe = optional("hlformer_jax.video", "search").probe
        title = options.sentences[0] if options.sentences else "moments"
        count = export.write(options.export, title, results, probe, replace)
        terminal.warn(f"{options.export}: {counted(count, 'moment')}")
    no_results = "" if results else f"no results: {results.reason}"
    if results and results.verdict and not options.offset:
        terminal.warn(results.verdict)
    if options.json:
        if no_results:
            terminal.warn(no_results)
        print(json.dumps([result.as_json() for result in results], indent=2))
        return
    if no_results:
        terminal.show(no_results)
        return
    _print_results(results, options.offset)


def _parse_query(options: Options) -> Query:
    """Return the query that the options of `query` describe."""

    def seconds(text: str | None) -> float | None:
        return None if text is None else parse_seconds(text)

    return Query(
        options.sentences, k=options.k, folder=options.folder, since=options.since,
        until=options.until, moments=options.moments, image=options.image,
        like=parse_moment(options.like) if options.like else None, then=options.then,
        within=seconds(options.within), without=options.without,
        min_score=options.min_score, offset=options.offset, signals=options.signals,
        longer=seconds(options.longer), shorter=seconds(options.shorter), tags=options.tag,
    )  # fmt: skip


def _print_results(results: Results, offset: int) -> None:
    """Print a table of results, ranked from `offset` on, with the passages that match."""
    has_signals = any(set(result.signals) - {VisualSignal.name} for result in results)
    rows = [("rank", "score", "moment", *["by"] * has_signals, "date", "file")]
    for rank, result in enumerate(results, offset + 1):
        moment = result.moments[0]
        # Ends are rounded up, so that a moment of a second is not shown as 0:07 to 0:07.
        span = f"{format_clock(moment.start)}–{format_clock(-(-moment.end // 1))}"
        date = f"{format_date(result.date)[:10]} ({result.date_of})"
        copies = f" (and {len(result.copies)} of the same content)" if result.copies else ""
        score = "–" if result.score is None else f"{result.score:.3f}"
        signals = [" and ".join(result.signals) or "–"] * has_signals
        rows.append((str(rank), score, span, *signals, date, printable(result.video) + copies))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    columns = terminal.width()
    # If the paths do not fit behind the other columns, each path is printed on the next line.
    is_narrow = columns is not None and sum(widths) + 2 * len(widths[1:]) > columns
    for row, result in zip(rows, [None, *results], strict=True):
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        cells[:2] = (text.rjust(width) for text, width in zip(row[:2], widths, strict=False))
        terminal.show("  ".join(cells[:-1] if is_narrow else cells).rstrip())
        if is_narrow:
            console.print_indented(row[-1], columns)
        if result and result.passages:
            first = result.passages[0]
            passage = f"{format_clock(first.start)} “{first.text}”"
            console.print_indented(passage, columns)


@command(
    option("video", "path in the index, or id", nargs="?", metavar="VIDEO"),
    INDEX,
    TIME("--start", "start of the clip, in seconds, M:SS or H:MM:SS"),
    TIME("--end", "end of the clip, in seconds, M:SS or H:MM:SS"),
    path("--from", "cut all moments in this table, which query --export=FILE.csv wrote; replaces"
         " VIDEO, --start and --end",
         dest="table", metavar="CSV"),
    option("--margin", "seconds to add at both ends (default: 0)", type=float, default=0.0),
    path("--out", "file of the clip: .mp4, .m4v, .mov or .mkv (default: VIDEO_START-END.mp4 in the"
         " current folder); with --from, the folder for the clips", metavar="FILE"),
    flag("--copy", "copy without encoding again, and so without loss; the clip begins at the"
         " keyframe before the start"),
    OVERWRITE,
)  # fmt: skip
def cut(options: Options) -> None:
    """Cut clips out of videos, and print the paths of the clips."""
    index = console.open_index(options.index)
    moments = _parse_moments(options)
    clips, failed = _name_clips(moments, index, options)
    replace = files.replacing(options.overwrite)
    for out in clips if options.table else ():  # refuse before the first clip is cut
        files.check_output(out, replace)
    total = len(clips) + len(failed)
    video, locate = optional("hlformer_jax.video", "search"), functools.cache(index.unchanged_path)
    write = video.copy if options.copy else video.cut
    for out, (name, start, end) in terminal.track(clips.items(), "clip"):
        try:
            span = write(locate(name), start, end, out, options.margin, replace=replace)
        except (UserError, OSError) as error:
            if not options.table:
                raise
            terminal.warn(describe(error))
            failed.append(out.name)
            continue
        terminal.show(str(out))
        record = index.record(name)
        if record and record.duration and end > record.duration + SECONDS_AFTER_END:
            length = f"{record.duration:.1f} s"
            terminal.warn(f"{name} ends at {length}, before the end of the part")
        if options.copy:
            earlier = max(start - options.margin, 0) - span[0]
            side = "before" if earlier >= 0 else "after"
            terminal.warn(
                f"from {span[0]:.3f} s, {abs(earlier):.3f} s {side} the start, to {span[1]:.3f} s"
            )
    if failed:
        raise SearchError(f"{len(failed)} of {total} clips could not be made: {', '.join(failed)}")


def _parse_moments(options: Options) -> list[tuple[str, float, float]]:
    """Return video, start and end of each clip that the options of `cut` describe."""
    arguments = options.video, options.start, options.end
    is_complete = arguments == (None, None, None) if options.table else None not in arguments
    if not is_complete:
        raise SearchError("give either VIDEO, --start and --end, or --from=CSV")
    if not options.margin >= 0:
        raise SearchError(f"--margin={options.margin:g}: give 0 or more seconds")
    if options.table:
        moments = export.read_csv(options.table)
        if not moments:
            terminal.warn(f"{options.table} has no rows, so no clips are cut")
        return moments
    start, end = parse_seconds(options.start), parse_seconds(options.end)
    if end <= start:
        raise SearchError(f"--end={options.end}: give a time after --start={options.start}")
    return [(options.video, start, end)]


def _name_clips(
    moments: list[tuple[str, float, float]], index: Index, options: Options
) -> tuple[dict[Path, tuple[str, float, float]], list[str]]:
    """Choose the file of each clip.

    Returns:
      Name of the video, start and end of each clip, by file; and the unknown videos of a table.
    """
    clips: dict[Path, tuple[str, float, float]] = {}
    unknown: list[str] = []
    for video_or_id, start, end in moments:
        try:
            name = index.name_of(video_or_id)
        except SearchError as error:
            if not options.table:
                raise
            terminal.warn(str(error))
            unknown.append(video_or_id)
            continue
        out = Path(export.clip_name(name, start, end))
        if options.out:
            out = options.out / out if options.table else options.out
        console.check_place(out, "--out", index)
        clips[out] = name, start, end
    return clips, unknown
