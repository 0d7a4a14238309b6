"""Commands that maintain an index: status, remove, tag, prune, verify, upload."""

import contextlib
import json
import os
from typing import Any

from hlformer_jax import files, terminal
from hlformer_jax.cli import command_line
from hlformer_jax.errors import DamagedError, SearchError
from hlformer_jax.search.cli import console
from hlformer_jax.search.cli.options import (
    INDEX,
    JSON,
    RANKER,
    Options,
    command,
    flag,
    option,
    repeated,
)
from hlformer_jax.search.index import Index, packed, split_name
from hlformer_jax.search.ingest.extract import format_counts, remove_videos
from hlformer_jax.search.signals import rankers
from hlformer_jax.search.signals.transcript import passages, transcripts
from hlformer_jax.search.times import format_clock
from hlformer_jax.text import counted


@command(INDEX, JSON)
def status(options: Options) -> None:
    """Show the contents of an index, and files that failed."""
    index = console.open_index(options.index)
    summary = index.summary()
    noted = [entry for entry in index.entries() if entry.reason]
    problems = transcripts.problems(index)
    if options.json:
        lists: dict[str, Any] = {"failures": [], "warnings": [], "notes": index.notes}
        for entry in noted:
            kind = "failures" if entry.state == "failed" else "warnings"
            lists[kind].append({"id": entry.id, "video": entry.video, "reason": entry.reason})
        lists["subtitles"] = [problem._asdict() for problem in problems]
        lists["unlisted"] = index.unlisted
        print(json.dumps(files.jsonable(summary | lists), indent=2))
        return
    threshold = index.thresholds.get(rankers.DEFAULT)
    still = f" ({summary['still']} still)" if summary["still"] else ""
    counts = f"{summary['frames']} frames{still}, {summary['bytes'] / 1e6:.1f} MB"
    precisions = f", {' and '.join(summary['precisions'])}" if summary["precisions"] else ""
    rows = {
        "index": summary["index"],
        "folder": summary["folder"],
        **{f"folder {name!r}": root for name, root in summary["folders"].items()},
        "encoder": f"{summary['encoder']}, {summary['fps']:g} frames per second{precisions}",
        "ranker": summary["checkpoint"],
        "videos": f"{summary['videos']}, {format_clock(summary['seconds'])} long, {counts}",
        "offline": summary["offline"]
        and f"{counted(summary['offline'], 'video')} (prune lists and drops them)",
        "not read": summary["unreadable"]
        and f"{counted(summary['unreadable'], 'video')} (kept: check the rights of their folders)",
        "removed": summary["removed"] and f"{summary['removed']} (add brings one back)",
        "threshold": threshold
        and f"calibrated for {threshold.false_alarms:g} % false alarms"
        f" on {threshold.captions} captions",
        "failed": summary["failed"] and f"{summary['failed']} (index --retry tries them again)",
        "unlisted": index.unlisted
        and f"{len(index.unlisted)} folders or groups of files (index tries them again)",
        "subtitles": problems and f"{counted(len(problems), 'file')} not searched, or not fully",
    }
    for name, text in rows.items():
        if text:
            terminal.show(f"{name:<9} {text}")
    for entry in noted:
        kind = "failed" if entry.state == "failed" else "warning"
        terminal.show(f"  {kind}: {entry.video}: {entry.reason} (id {entry.id})")
    for line in index.unlisted:
        terminal.show(f"  not listed: {line}")
    for problem in problems:
        terminal.show(f"  subtitles: {problem.file}: {problem.reason}")


@command(
    option("videos",
           "paths in the index, or ids; or the path of an added folder, with all its videos",
           nargs="+", metavar="VIDEO"),
    INDEX,
)  # fmt: skip
def remove(options: Options) -> None:
    """Remove videos from an index until they are added again; their files are kept."""
    index = console.open_index(options.index)
    terminal.show(remove_videos(index, options.videos))


@command(
    option("videos", "paths in the index, or ids (default: list all videos with tags)", nargs="*",
           metavar="VIDEO"),
    INDEX,
    repeated("--add", "add this tag (may be repeated)", metavar="TAG"),
    repeated("--drop", "remove this tag (may be repeated)", metavar="TAG"),
)  # fmt: skip
def tag(options: Options) -> None:
    """Add tags to videos, or remove them, and list videos with their tags."""
    index = console.open_index(options.index)
    if options.add or options.drop:
        if not options.videos:
            raise SearchError("VIDEO is missing: name the videos to tag by their paths or ids")
        with index.writing() as writer:
            writer.tag(set(map(index.name_of, options.videos)), options.add, options.drop)
    names = set(map(index.name_of, options.videos))
    for entry in index.entries():
        if entry.video in names or entry.tags and not names:
            tags = [repr(tag) if "," in tag else tag for tag in entry.tags]
            terminal.show(entry.video + ": " + (", ".join(tags) or "no tag"))


@command(INDEX, flag("--yes", "drop the listed videos (default: only list them)"))
def prune(options: Options) -> None:
    """List videos whose files are missing; with --yes, drop them from the index."""
    index = console.open_index(options.index)
    roots = index.roots
    missing_roots = roots.offline()
    if len(missing_roots) == len(roots):
        raise SearchError(f"{index.root} is missing, so nothing is dropped: mount its disk")
    for name in missing_roots:
        terminal.warn(f"{roots[name]} is missing, so its videos are kept: mount its disk")
    offline = [video for video in index.offline() if split_name(video)[0] not in missing_roots]
    names = [video for video in offline if roots.is_deleted(video, follow=True)]
    if unreadable := sorted(set(offline) - set(names)):
        count, first = len(unreadable), unreadable[0]
        terminal.warn(f"cannot read {counted(count, 'video')}, kept; first {first}")
    for name in names:
        terminal.show(name)
    if not options.yes:
        advice = "; add --yes to drop them" if names else ""
        terminal.show(f"missing: {counted(len(names), 'video')}{advice}")
        return
    with index.writing() as writer:
        indexed = {name for name, record in index.videos.items() if record.indexed}
        roots = index.roots
        missing = {name for name in indexed & {*names} if roots.is_deleted(name, follow=True)}
        writer.forget(missing)
    remaining = sum(record.indexed for record in index.videos.values())
    terminal.show(f"dropped {counted(len(missing), 'video')}; left: {remaining}")


@command(INDEX)
def verify(options: Options) -> None:
    """Check all files of an index, and name the damaged ones."""
    index = Index.open(options.index)
    transcripts.problems(index)  # if they cannot be decoded, the database is damaged
    caches = packed.find_damaged(index.directory) | passages.find_damaged(index)
    with terminal.bar("video", len(index.contents())) as bar:
        damaged = index.verify(bar.update) | caches
    for line in damaged.values():
        terminal.show(line)
    contents = index.contents()
    total = 3 + len(contents)  # with the database, its copy, and the quantised embeddings
    total += sum(os.path.lexists(index.text_vectors(content)) for content in contents)
    with contextlib.suppress(OSError):  # listed by `packed.find_damaged`
        total += len(packed.list_files(index.directory))
    if damaged:
        repair = command_line("search", "index", index.root, f"--index={options.index}")
        raise DamagedError(
            f"{len(damaged)} of {total} parts are damaged or cannot be read: {repair} restores all"
            " that a search does not"
        )
    terminal.show(f"{total} parts are intact")


@command(INDEX, *RANKER, continues=True)
def upload(options: Options) -> None:
    """Copy the embeddings of an index to a PostgreSQL database, to rank there with --store."""
    library = console.open_library(options)
    with terminal.bar("video") as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        count = library.upload(show)
    terminal.show(format_counts("videos (copies count once)", {
        "uploaded": count.sent,
        "already there": count.unchanged,
        "deleted": count.removed,
        "damaged and not sent (index computes them again)": count.damaged,
    }))  # fmt: skip
