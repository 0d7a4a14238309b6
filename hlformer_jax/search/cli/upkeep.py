"""Commands that look after an index: status, remove, tag, prune, verify, upload."""

import contextlib
import json
import os
from typing import Any

from hlformer_jax import files
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
from hlformer_jax.search.ingest.extract import counted
from hlformer_jax.search.signals import rankers
from hlformer_jax.search.signals.transcript import said, transcripts
from hlformer_jax.search.times import format_clock
from hlformer_jax.text import printable


@command(INDEX, JSON)
def status(options: Options) -> None:
    """Show what an index holds and what failed."""
    index = console.open_index(options.index)
    of = index.summary()
    noted = [entry for entry in index.entries() if entry.reason]
    left_out = transcripts.problems(index)
    if options.json:
        lists: dict[str, Any] = {"failures": [], "warnings": [], "notes": index.notes}
        for entry in noted:
            kind = "failures" if entry.state == "failed" else "warnings"
            lists[kind].append({"id": entry.id, "video": entry.video, "reason": entry.reason})
        lists["subtitles"] = [problem._asdict() for problem in left_out]
        print(json.dumps(files.jsonable(of | lists), indent=2))
        return
    level = index.thresholds.get(rankers.DEFAULT)
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


@command(
    option("videos",
           "paths, or ids, as the index has them; or a further folder, with all its videos",
           nargs="+", metavar="VIDEO"),
    INDEX,
)  # fmt: skip
def remove(options: Options) -> None:
    """Take videos out of an index, until they are added again; the files stay."""
    index = console.open_index(options.index)
    count = index.remove(options.videos)
    print(f"removed {count} of {count + len(index.videos)} videos")


@command(
    option("videos", "paths, or ids, as the index has them; default all that have tags", nargs="*",
           metavar="VIDEO"),
    INDEX,
    repeated("--add", "a tag to give; repeatable", metavar="TAG"),
    repeated("--drop", "a tag to take; repeatable", metavar="TAG"),
)  # fmt: skip
def tag(options: Options) -> None:
    """Give videos tags, such as favourite, or take them; list the videos with their tags."""
    index = console.open_index(options.index)
    if options.add or options.drop:
        if not options.videos:
            raise SearchError("which videos? Give their paths or ids")
        with index.writing() as writer:
            writer.tag({index.name_of(one) for one in options.videos}, options.add, options.drop)
    names = {index.name_of(one) for one in options.videos}
    for entry in index.entries():
        if entry.video in names or entry.tags and not names:
            print(printable(entry.video) + ": " + (", ".join(entry.tags) or "no tag"))


@command(INDEX, flag("--yes", "drop them"))
def prune(options: Options) -> None:
    """List the videos that are offline; with --yes, drop them and their vectors."""
    index = console.open_index(options.index)
    away = {name: root for name, root in index.roots.items() if not index.is_there(name)}
    if len(away) == len(index.roots):
        raise SearchError(f"{index.root} is not there: is its disk mounted? Nothing is dropped")
    for root in away.values():
        console.report(f"{root} is not there: is its disk mounted? Nothing of it is dropped")
    offline = [one for one in index.offline() if split_name(one)[0] not in away]
    names = [one for one in offline if files.is_gone(index.path(one), follow=True)]
    if kept := len(offline) - len(names):
        first = next(one for one in offline if one not in names)
        console.report(printable(f"{kept} videos cannot be looked at ({first}): they are kept"))
    for name in names:
        print(printable(name))
    if not options.yes:
        print(f"{len(names)} videos are offline" + ("; --yes drops them" if names else ""))
        return
    with index.writing() as writer:
        gone = set(index.offline()) & set(names)
        writer.forget(gone)
    print(f"dropped {len(gone)} videos, {len(index.videos)} are left")


@command(INDEX)
def verify(options: Options) -> None:
    """Read an index through, and name what is damaged."""
    index = Index.open(options.index)
    wrong = index.verify() | packed.damaged(index.directory) | said.damaged(index)
    for line in wrong.values():
        print(printable(line))
    contents = index.contents()
    total = len(contents) + sum(os.path.lexists(index.text_vectors(one)) for one in contents)
    total += 3  # the database, its copy, and the rounded rows
    with contextlib.suppress(OSError):  # which `packed.damaged` has told
        total += len(packed.own_files(index.directory))
    if wrong:
        again = command_line("search", "index", index.root, f"--index={options.index}")
        raise DamagedError(f"{len(wrong)} of {total} parts are damaged: {again} makes them anew")
    print(f"{total} parts are whole")


@command(INDEX, *RANKER)
def upload(options: Options) -> None:
    """Bring a PostgreSQL database up to date with an index, to search there by --store."""
    library = console.open_library(options)
    with console.progress_bar("video") as bar:

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
