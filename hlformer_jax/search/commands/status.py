"""`status --index=DIR`: what an index holds, and what failed."""

import argparse
import json
from typing import Any

from hlformer_jax.search.commands import options as shared
from hlformer_jax.search.errors import jsonable, printable

HELP = "show what an index holds and what failed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    shared.add_index(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Prints the status; returns the exit status."""
    index = shared.opened(options.index)
    summary = index.summary()
    noted = [entry for entry in index.entries() if entry.reason]
    if options.json:
        told: dict[str, Any] = {"failures": [], "warnings": [], "notes": index.notes}
        for entry in noted:
            kind = "failures" if entry.state == "failed" else "warnings"
            told[kind].append({"id": entry.id, "video": entry.video, "reason": entry.reason})
        print(json.dumps(jsonable(summary | told), indent=2))
        return 0
    print(f"index     {printable(summary['index'])}")
    print(f"folder    {printable(summary['folder'])}")
    print(f"encoder   {summary['encoder']}, {summary['fps']:g} frames a second")
    if summary["checkpoint"]:
        print(f"ranker    {summary['checkpoint']}")
    size = summary["bytes"] / 1e6
    print(
        f"videos    {summary['videos']}, {shared.clock(summary['seconds'])} long,"
        f" {summary['frames']} frames, {size:.1f} MB"
    )
    if summary["offline"]:
        print(f"offline   {summary['offline']} of them (kept; prune lists and drops them)")
    if summary["removed"]:
        print(f"removed   {summary['removed']} (add brings one back)")
    if summary["failed"]:
        print(f"failed    {summary['failed']} (index --retry tries them again)")
    for entry in noted:
        kind = "failed" if entry.state == "failed" else "warning"
        print(f"  {kind}: {printable(entry.video)}: {printable(entry.reason)} (id {entry.id})")
    return 0
