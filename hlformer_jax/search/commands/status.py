"""`status --index=DIR`: what an index holds, and what failed."""

import argparse
import json

from hlformer_jax.search.commands import options as shared

HELP = "show what an index holds and what failed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    shared.add_index(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Prints the status; returns the exit status."""
    index = shared.opened(options.index)
    summary = index.summary()
    noted = {entry.video: entry.reason for entry in index.entries() if entry.reason}
    failed = {entry.video for entry in index.entries() if entry.state == "failed"}
    if options.json:
        failures = [{"video": name, "reason": noted[name]} for name in noted if name in failed]
        warnings = [{"video": name, "reason": noted[name]} for name in noted if name not in failed]
        noted_too = {"failures": failures, "warnings": warnings, "notes": index.notes}
        print(json.dumps(summary | noted_too, indent=2))
        return 0
    print(f"index     {summary['index']}")
    print(f"folder    {summary['folder']}")
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
    for name, reason in noted.items():
        kind = "failed" if name in failed else "warning"
        print(f"  {kind}: {name if name.isprintable() else repr(name)}: {reason}")
    return 0
