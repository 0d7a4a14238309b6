"""`query "a sentence" --index=DIR`: videos and moments of a sentence, as a table or JSON."""

import argparse
import json
import sys
from collections.abc import Sequence

from hlformer_jax.search import filters
from hlformer_jax.search.commands import options as shared
from hlformer_jax.search.errors import legible, printable
from hlformer_jax.search.library import Hit

HELP = "find the videos and moments of a sentence"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("sentence", metavar="SENTENCE", help="what is looked for")
    shared.add_index(parser)
    parser.add_argument("--k", type=int, default=10, help="videos at most; default 10")
    parser.add_argument("--moments", type=int, default=3, help="of each video at most; default 3")
    parser.add_argument("--folder", help="only videos in this folder of the archive, and below")
    parser.add_argument(
        "--since", metavar="DATE", help="only videos of that year, month, day or time, or later"
    )
    parser.add_argument("--until", metavar="DATE", help="likewise, or before")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    shared.add_ranker(parser)


def run(options: argparse.Namespace) -> int:
    """Searches and prints the hits; returns the exit status."""
    hits = shared.library(options).query(
        options.sentence,
        options.k,
        options.folder,
        options.since,
        options.until,
        options.moments,
    )
    for line in hits.warnings:
        print(printable(line), file=sys.stderr)
    if options.json:
        print(json.dumps(as_json(hits), indent=2))
    else:
        show(hits)
    return 0


def as_json(hits: Sequence[Hit]) -> list[dict[str, object]]:
    """Hits as programs read them; times in seconds, rounded to milliseconds."""
    return [
        {
            "id": hit.id,
            "video": legible(hit.video),
            "date": filters.iso(hit.date),
            "date_of": hit.date_of,
            "score": float(hit.score),
            "moments": [
                {
                    "start": round(moment.start, 3),
                    "end": round(moment.end, 3),
                    "peak": round(moment.peak, 3),
                    "score": float(moment.score),
                }
                for moment in hit.moments
            ],
        }
        for hit in hits
    ]


def show(hits: Sequence[Hit]) -> None:
    """Prints hits as a table: rank, score, the best moment, the date and whose, and the file."""
    if not hits:
        print("nothing was found: no video passes the filters")
        return
    rows = [("rank", "score", "moment", "date", "file")]
    for rank, hit in enumerate(hits, 1):
        moment = hit.moments[0]
        # Ends are rounded up: a moment of a second is not from 0:07 to 0:07.
        span = f"{shared.clock(moment.start)}–{shared.clock(-(-moment.end // 1))}"
        date = f"{filters.iso(hit.date)[:10]} ({hit.date_of})"
        rows.append((str(rank), f"{hit.score:.3f}", span, date, printable(hit.video)))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for rank_, score, span, date, video in rows:
        cells = rank_.rjust(widths[0]), score.rjust(widths[1]), span.ljust(widths[2])
        print("  ".join((*cells, date.ljust(widths[3]), video)))
