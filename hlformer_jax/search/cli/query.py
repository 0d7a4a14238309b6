"""Commands that find moments and cut them out: query, cut."""

import json
from pathlib import Path

from hlformer_jax import files
from hlformer_jax.errors import SearchError, UserError
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
from hlformer_jax.search.signals import SIGNALS, Visual
from hlformer_jax.search.times import format_clock, format_date, parse_moment, parse_seconds
from hlformer_jax.text import printable


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
        export.check(options.export)
        console.check_place(options.export, "--export", Index.open(options.index))
        files.check_output(options.export, replace)
    results = console.open_library(options).query(_parse_query(options))
    for line in results.warnings:
        console.report(printable(line))
    if options.export:
        probe = optional("hlformer_jax.video", "search").probe
        title = options.sentences[0] if options.sentences else "moments"
        count = export.write(options.export, title, results, probe, replace)
        console.report(printable(f"{options.export}: {count} moments"))
    if options.json:
        print(json.dumps([result.as_json() for result in results], indent=2))
        return
    if not results:
        why = "has that score" if options.min_score is not None else "passes the filters"
        print("nothing more was found" if options.offset else f"nothing was found: no video {why}")
        return
    if results.verdict and not options.offset:
        console.report(results.verdict)
    _print_results(results, options.offset)


def _parse_query(options: Options) -> Query:
    """Return the query of the options of `query`."""

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
    has_signals = any(set(result.signals) - {Visual.name} for result in results)
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
        asked = export.read_csv(options.table)
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
            console.report(str(error))
            failed.append(one)
            continue
        out = Path(export.clip_name(name, start, end))
        if options.out:
            out = options.out / out if options.table else options.out
        console.check_place(out, "--out", index)
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
            console.report(str(error))
            failed.append(out.name)
            continue
        console.say(printable(str(out)))
        if options.copy:
            asked_start = max(start - options.margin, 0)
            earlier = asked_start - real[0]
            console.report(
                f"from {real[0]:.3f} s on, {earlier:.3f} s earlier than asked, to {real[1]:.3f} s"
            )
    if failed:
        raise SearchError(f"{len(failed)} of {total} clips could not be made: {', '.join(failed)}")
