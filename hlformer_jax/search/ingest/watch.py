"""An index that follows its folders, until it is stopped.

A change that the system tells only says when to look. A look compares the stamps of all files with
their records: so what happened while nothing watched, or on a disk that tells nothing, is found as
well, at the start and every `RESCAN` seconds. A file is read once its stamp has been the same for
some seconds, which one that is still copied has not, and all that are ready are indexed together.

The lock of the index is held while that is done and not between: others may write then, and a kill
at any moment costs what `extract` says.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import SearchError, UserError
from hlformer_jax.lazy import optional
from hlformer_jax.search.index import storage
from hlformer_jax.search.index.database import Index, LockedError, absent
from hlformer_jax.search.index.storage import Record, Stamp
from hlformer_jax.search.ingest.decoding import Video
from hlformer_jax.search.ingest.extract import index_folder, real_video
from hlformer_jax.text import printable

SETTLE = 5.0
"""Seconds for which a file must not have changed."""

RESCAN = 600.0
"""Seconds between two scans of the folders where the system reports no change."""

POLL = 10_000
"""Milliseconds between two looks at all files where the system tells of no change."""

TICK = 1000  # milliseconds between two looks at the clock, and for folders that come and go


def watched(
    directory: Path, say: Callable[[str], None] = lambda line: None
) -> Iterator[Collection[str]]:
    """Paths that have changed in the folders of an index: every second, then often none.

    Where the system has no watch left to give, all files are looked at every `POLL` milliseconds,
    and `say` takes a line about it.

    Raises:
      MissingExtra: without the package `watchfiles`.
      SearchError: when the index is deleted.
    """
    watchfiles = optional("watchfiles", "search")
    own = directory.resolve()
    outside = lambda change, path: own not in Path(path).parents
    read = functools.lru_cache(1)(lambda stamp: Index.open(directory))
    polls = False

    def now() -> dict[str, Path]:
        try:
            stamp = Stamp.of((directory / storage.MANIFEST).stat())
        except FileNotFoundError:
            raise SearchError(
                f"{directory} is no index any more: it was deleted or moved"
            ) from None
        return _there(read(stamp))

    while True:
        there = now()
        if not there:  # nothing tells when one comes
            yield [str(directory)]
            time.sleep(TICK / 1000)
            continue
        changes_of = watchfiles.watch(
            *there.values(), watch_filter=outside, rust_timeout=TICK, yield_on_timeout=True,
            ignore_permission_denied=True, force_polling=polls or None, poll_delay_ms=POLL,
        )  # fmt: skip
        number = 0
        while True:
            try:
                changes = next(changes_of)
            except FileNotFoundError:  # a folder went away meanwhile
                break
            except (OSError, RuntimeError) as error:  # watchfiles' own is a RuntimeError
                if polls or number:
                    raise
                polls = True
                reason = " ".join(str(error).split())
                say(
                    f"the system gives no more watches ({reason}): files are looked at every"
                    f" {POLL / 1000:g} s; raise fs.inotify.max_user_instances and max_user_watches"
                )
                break
            # At first it is not known what changed before it was watched.
            yield [path for _, path in changes] or [str(directory)] * (number == 0)
            number += 1
            if now() != there:
                break


def follow(
    directory: Path,
    encoder: Encoder,
    settle: float = SETTLE,
    say: Callable[[str], None] = print,
    video: Video | None = None,
    changes: Iterable[Collection[str]] | None = None,
    **options: Any,
) -> None:
    """Keeps an index up to date until `changes` end, which those of `watched` never do.

    Args:
      directory: that of the index.
      encoder: the encoder of the index.
      settle: seconds for which a file must not have changed before it is read.
      say: takes a line for each video that is indexed, moved, gone, back, or not to be read, and
        where another process writes, which is waited for.
      video: the functions that read videos; those of `hlformer_jax.video` by default.
      changes: paths that have changed; empty where none has.
      options: of `extract.index_folder`.

    Raises:
      SearchError: when the encoder is another one, or the disk is full.
      DamagedError: when the manifest is damaged.
    """
    video = video or real_video()
    suffixes = frozenset(video.texts.suffixes if video.texts else ())
    seen: dict[str, tuple[Stamp, float]] = {}  # what differs from its record, and since when
    tried: dict[str, Stamp] = {}  # what was indexed, or failed, here
    texts: set[str] = set()
    gone: set[str] | None = None
    away: set[str] = set()
    due, begun, waiting = 0.0, False, False
    for changed in watched(directory, say) if changes is None else changes:
        now = time.monotonic()
        texts |= {path for path in changed if Path(path).suffix.lower() in suffixes}
        due = min(due, now + settle) if changed else due
        if now < due:
            continue
        index = Index.open(directory)
        stamps = _differing(index, video, tried)
        seen = {
            name: seen[name] if name in seen and seen[name][0] == stamp else (stamp, now)
            for name, stamp in stamps.items()
        }
        old = time.time() - settle
        ready = {
            name: stamp
            for name, (stamp, since) in seen.items()
            if stamp.changed_ns / 1e9 <= old or now - since >= settle
        }
        if ready or texts or not begun:
            before = dict(index.manifest.videos)
            paths = [index.path(name) for name in ready]
            try:
                index_folder(
                    index, encoder, only=paths, restore=False, video=video, report=say, **options
                )
            except LockedError as error:
                if not waiting:
                    say(f"{error}; this goes on then")
                due, waiting = now + settle, True
                continue
            for line in _news(before, index.manifest.videos):
                say(line)
            for path in sorted(texts):
                say(f"subtitles {printable(path)}")
        begun, waiting = True, False
        tried |= ready
        texts.clear()
        due = now + (RESCAN if len(ready) == len(seen) else settle)
        roots = index.roots
        now_away = {name for name in roots if not index.is_there(name)}
        for name in sorted(now_away ^ away):
            ends = "is not there: its videos are kept" if name in now_away else "is there again"
            say(f"{roots.get(name, name)} {ends}")
        away = now_away
        if len(ready) == len(seen):  # what is missing may be what comes under another name
            missing = _missing(index, away)
            if gone is None:
                gone = missing
                say(f"{len(gone)} videos are offline (kept until prune)") if gone else None
            for name in sorted(missing - gone):
                say(f"gone {printable(name)} (kept until prune)")
            back = {name for name in gone - missing if storage.split_name(name)[0] not in away}
            for name in sorted(back & index.manifest.videos.keys()):
                say(f"back {printable(name)}")
            gone = (gone | missing) - back


def _there(index: Index) -> dict[str, Path]:
    return {name: root for name, root in index.roots.items() if index.is_there(name)}


def _differing(index: Index, video: Video, tried: Mapping[str, Stamp]) -> dict[str, Stamp]:
    """The stamps of files that are not as their records say, but for those that were tried."""
    known, inside = index.manifest, index.directory.resolve()
    found = {}
    for root in _there(index).values():
        with contextlib.suppress(UserError, OSError):  # it went away meanwhile
            for path in video.find(root, lambda line: None, lambda: None):
                name = index.name_below(path)
                if name is None or name in known.excluded or inside in path.parents:
                    continue
                with contextlib.suppress(OSError):
                    stamp = Stamp.of(path.stat())
                    record = known.videos.get(name)
                    if stamp != tried.get(name) and (record is None or record.stamp != stamp):
                        found[name] = stamp
    return found


def _missing(index: Index, away: Collection[str]) -> set[str]:
    """Videos that are not at their paths, in folders that are there."""
    videos = index.manifest.videos.items()
    names = [
        name for name, one in videos if one.indexed and storage.split_name(name)[0] not in away
    ]
    return absent({name: index.path(name) for name in names})


def _news(before: Mapping[str, Record], after: Mapping[str, Record]) -> Iterator[str]:
    """A line for each video that was indexed, or has another path."""
    left = {one.id: name for name, one in before.items() if name not in after}
    for name, one in sorted(after.items()):
        old = before.get(name)
        if one.indexed and (old is None or not old.indexed or old.content != one.content):
            if one.id in left:
                yield f"moved {printable(left[one.id])} to {printable(name)}"
            else:
                yield f"indexed {printable(name)} ({one.duration:.0f} s)"
