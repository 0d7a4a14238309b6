"""An index on the disk: a manifest, and one file for each content that was seen.

    DIR/manifest.json       what made the vectors, and the record of every path (`storage`)
    DIR/videos/DIGEST.npz   the vectors of one content, named by its digest
    DIR/texts/              what is said in it, and vectors of that (`said`)
    DIR/packed/             matrices that searches map into memory (`packed`); made anew at need
    DIR/.lock               held by the process that writes

Without its mark nothing in a directory is touched. Every file is written beside its place, brought
to the disk and renamed; a reader needs no lock. Nothing but files of these full names, and drafts
of them, is ever written or deleted.

Paths of equal content have a record each and share the file. The id of a record is the beginning of
its content's digest; a second path of the same content has an id made of both. An id stays while
its path or its content does.

A video that is not where it was is offline: its record and its vectors stay until `prune`.
"""

import contextlib
import errno
import hashlib
import itertools
import os
import time
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hlformer_jax import files
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import DamagedError, SearchError, UnreadableError
from hlformer_jax.search.index import storage
from hlformer_jax.search.index.storage import (
    EncoderFacts,
    Manifest,
    Record,
    Stamp,
    VectorFile,
    VideoArrays,
)
from hlformer_jax.text import suggestion

WAIT_SECONDS = 5.0
"""How long short changes, as of tags, wait for another writer."""

LOCK_POLL_SECONDS = 0.02
"""Time between two tries of a lock that another holds."""


class LockedError(SearchError):
    """Another process writes to an index."""


class Entry(NamedTuple):
    """A video of an index."""

    id: str  # 16 hexadecimal digits, of the content's fingerprint
    video: str  # its name (`storage.Manifest`): the path below the indexed folder, with slashes
    folder: str  # of `video`; "" for the indexed folder itself
    path: Path  # absolute
    size: int  # bytes
    modified: float  # time of its last modification, seconds since the epoch
    duration: float  # seconds; 0 where it failed
    frames: int  # that were encoded
    state: str  # "indexed", "failed", or "offline" where its file is not there now
    reason: str  # why it failed, or what of it could not be used; "" where all is well
    recorded: float = 0.0  # seconds since the epoch; 0 where the file does not say
    tags: tuple[str, ...] = ()  # that it was given, sorted; FAVOURITE is one
    content: str = ""  # the SHA-256 of all its bytes; "" where it could not be read

    @property
    def date(self) -> float:
        """When it was recorded or else last modified, seconds since the epoch."""
        return self.recorded or self.modified

    @property
    def date_of(self) -> str:
        """What `date` is: "recording", or "file" for that of its last modification."""
        return "recording" if self.recorded else "file"


class Index:
    """An index: its directory, and what it knows."""

    def __init__(self, directory: Path, known: Manifest, note: str = "") -> None:
        self.directory, self.manifest = directory, known
        self.notes = [note] if note else []  # what of it is damaged, and what stands in for that
        self._written = False  # whether the manifest on the disk is to be read before a change
        self._newest = False  # whether that one is whole
        # For the one who writes: paths by id and by content, and contents whose files name others.
        self._owners: dict[str, str] = {}
        self._sharing: dict[str, set[str]] = {}
        self._renamed: set[str] = set()
        self._forgotten: set[str] = set()  # contents whose vectors may go once that is saved

    @classmethod
    def create(
        cls,
        directory: Path,
        root: Path,
        encoder: Encoder,
        fps: float = 1.0,
        places: tuple[str, ...] = (),
    ) -> "Index":
        """Makes an index without videos.

        Args:
          directory: a new or empty directory, or an index of which nothing is known any more.
          root: the folder of the videos.
          encoder: the encoder (`hlformer_jax.encoders`).
          fps: frames a second.
          places: where the encoder can be loaded from.

        Raises:
          SearchError: when the directory holds something else, or the rate is no positive number.
          OSError: when it cannot be written.
        """
        check_rate(fps)
        directory = Path(directory)
        storage.check_place(directory)
        known = Manifest(str(root.resolve()), EncoderFacts.of(encoder, places), float(fps))
        index = cls(directory, known)
        with index.writing():
            return index

    @classmethod
    def open(cls, directory: Path) -> "Index":
        """Opens an index; reads the manifest alone, unless that is damaged.

        Then `storage.read_manifest` says what stands in for it, and videos whose vectors it does
        not name get records; `notes` says so.

        Raises:
          SearchError: when there is none, or it is of another format.
          DamagedError: when nothing is known of what the index was.
        """
        directory = Path(directory)
        index = cls(directory, *storage.read_manifest(directory))
        index._written, index._newest = True, not index.notes
        if index.notes:
            index._take_stock()
        return index

    @property
    def root(self) -> Path:
        """The folder of the videos."""
        return Path(self.manifest.root)

    @property
    def roots(self) -> dict[str, Path]:
        """All folders of videos by their names; that of the first is empty."""
        further = {name: Path(root) for name, root in self.manifest.roots.items()}
        return {"": self.root} | further

    def path(self, name: str) -> Path:
        """The absolute path of a video; of a folder that is not known any more, one of nothing."""
        root, own = storage.split_name(name)
        return self.roots.get(root, self.directory / "unknown folder" / root) / own

    def name_below(self, path: Path) -> str | None:
        """The name of a file by its absolute path; None outside of all folders."""
        for name, root in self.roots.items():
            if path.is_relative_to(root):
                own = path.relative_to(root).as_posix()
                return f"{name}//{own}" if name else own
        return None

    def is_there(self, root: str) -> bool:
        """Whether a folder is; of a disk that is not mounted, none or an empty one is left."""
        place = self.roots.get(root, Path())
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            return place != Path() and next(entries, None) is not None
        return False

    def is_missing(self, root: str) -> bool:
        """Whether a folder is known to be gone, or is empty; not where it cannot be read."""
        place = self.roots.get(root, Path())
        try:
            with os.scandir(place) as entries:
                return next(entries, None) is None
        except OSError:
            return files.is_gone(place, follow=True)

    def add_root(self, folder: Path) -> str:
        """Records a further folder, of an absolute path; returns its name. Under the lock."""
        self.check_root(folder)
        name = wanted = folder.name or "root"
        taken = self.manifest.roots
        for number in itertools.count(2):
            if name not in taken and not os.path.lexists(self.root / name):
                break
            name = f"{wanted}-{number}"
        taken[name] = str(folder)
        return name

    def check_root(self, folder: Path, instead_of: str | None = None) -> None:
        """Refuses a folder that holds one of the index, or lies in one: no video is there twice."""
        for name, root in self.roots.items():
            if name != instead_of and (root.is_relative_to(folder) or folder.is_relative_to(root)):
                raise SearchError(
                    f"{folder} and {root}, a folder of this index, hold the same files: name a"
                    " folder beside it"
                )

    @property
    def period(self) -> float:
        """Seconds between two frames."""
        return 1 / self.manifest.fps

    def check_encoder(self, encoder: Encoder) -> None:
        """Refuses an encoder that is not the one of the index."""
        ours, theirs = self.manifest.encoder, EncoderFacts.of(encoder)
        for field in ("fingerprint", "preprocessing", "width"):
            if getattr(ours, field) != getattr(theirs, field):
                raise SearchError(
                    f"{self.directory} was made by the encoder {ours.name!r}, and {theirs.name!r}"
                    f" has another {field}: give --encoder={ours.name}, or a new --index"
                )

    def entries(self) -> list[Entry]:
        """All videos, in the order of their paths; looks which of them are there."""
        paths = {name: self.path(name) for name in sorted(self.manifest.videos)}
        entries, away = [], absent(paths)
        for name, path in paths.items():
            one = self.manifest.videos[name]
            entries.append(Entry(
                one.id, name, name.rpartition("/")[0].rstrip("/"), path, one.size,
                one.modified_ns / 1e9, one.duration, one.frames,
                "offline" if name in away and one.indexed else one.state, one.reason, one.recorded,
                tuple(self.manifest.tags.get(one.content, ())), one.content,
            ))  # fmt: skip
        return entries

    def name_of(self, video: str) -> str:
        """The path, as a record names it, of a video of that path, absolute or not, or id."""
        known = self.manifest.videos
        for name in (video, self.name_below(Path(os.path.abspath(video))) or ""):
            if name in known:
                return name
        for name, record in known.items():
            if record.id == video:
                return name
        raise SearchError(f"{self.directory} holds no video {video!r}{suggestion(video, known)}")

    def offline(self) -> list[str]:
        """The paths of videos that have vectors and are not there now, sorted."""
        return [entry.video for entry in self.entries() if entry.state == "offline"]

    def summary(self) -> dict[str, Any]:
        """What the index holds: counts, seconds and bytes, and what made it."""
        records = self.manifest.videos.values()
        indexed = [record for record in records if record.indexed]
        return {
            "index": str(self.directory),
            "folder": self.manifest.root,
            "folders": self.manifest.roots,
            "encoder": self.manifest.encoder.name,
            "fps": self.manifest.fps,
            "checkpoint": self.manifest.checkpoint,
            "videos": len(indexed),
            "offline": len(self.offline()),
            "failed": len(records) - len(indexed),
            "removed": len(self.manifest.excluded),
            "frames": sum(record.frames for record in indexed),
            "seconds": sum(record.duration for record in indexed),
            "bytes": sum(record.bytes for record in self.records().values()),
        }

    def records(self) -> dict[str, Record]:
        """A record of each content that is indexed, in the order of the contents."""
        indexed = (one for one in self.manifest.videos.values() if one.indexed)
        return dict(sorted({one.content: one for one in indexed}.items()))

    def contents(self) -> list[str]:
        """The contents that are indexed, sorted."""
        return list(self.records())

    def file(self, content: str) -> Path:
        """Where the vectors of a content lie."""
        return self.directory / "videos" / f"{content}.npz"

    def text(self, content: str) -> Path:
        """Where what is said in a content lies (`said`)."""
        return self.directory / "texts" / f"{content}.json"

    def text_vectors(self, content: str) -> Path:
        """Where the vectors of what is said in a content lie."""
        return self.text(content).with_suffix(".vectors")

    def partial_text(self, content: str) -> Path:
        """Return where the part of a content lies that was recognised so far (`recognition`)."""
        return self.text(content).with_suffix(".partial")

    def text_copy(self, content: str) -> Path:
        """Return the place of the copy of a transcript in which something was recognised."""
        return self.text(content).with_suffix(".copy.json")

    def load(self, content: str) -> VectorFile:
        """The file of a content's vectors.

        Raises:
          DamagedError: when it is missing, damaged, or of another content, encoder or rate.
        """
        path = self.file(content)
        try:
            whole = storage.read_vectors(path)
            if whole.facts.get("content") != content or not storage.same_maker(
                self.manifest, whole.facts
            ):
                raise DamagedError(f"{path} is not of this index")
            return whole
        except DamagedError as error:
            line = f"{error}: index the folder again to make it anew"
            raise type(error).of({content: line}) from None

    def read(self, content: str) -> VideoArrays:
        """The vectors of a content; raises as `load`."""
        return self.load(content).arrays

    def check(self, contents: Iterable[str]) -> None:
        """Reads the vectors of contents through; the DamagedError names all that are damaged."""
        wrong: dict[str, str] = {}
        for content in contents:
            try:
                self.load(content)
            except DamagedError as error:
                wrong |= error.contents
        if wrong:
            raise DamagedError.of(wrong)

    @contextlib.contextmanager
    def writing(self, partial: bool = False, wait: float = 0.0) -> Iterator[None]:
        """Keeps other writers out, and saves the manifest at the end of the block.

        An error in the block, or in saving, leaves the manifest as it was. With `partial` what was
        changed before the error is saved: for runs each of whose steps is whole by itself.
        Vectors that no record names, as after a killed run or with an older manifest, get records.

        Args:
          partial: whether to save after an error too.
          wait: seconds to wait for another writer.

        Raises:
          LockedError: when another process writes.
          SearchError: when the disk is full, or read-only.
          DamagedError: when the manifest has been damaged since the index was opened.
        """
        try:
            with contextlib.ExitStack() as stack:
                self._lock(stack, wait)
                storage.check_readable(self.directory)
                if self._written:
                    now = Index.open(self.directory)
                    now.manifest.root = now.manifest.root or self.manifest.root
                    self.manifest, self._newest = now.manifest, now._newest
                if not self._newest:
                    storage.check_replaced(self.directory)
                self._clear_drafts()
                self._take_stock()
                self._renamed.clear()
                self._forgotten.clear()
                before = self.manifest.copy()
                try:
                    yield
                    self._rename()
                    self.save()
                except BaseException:
                    if partial:
                        self.save()
                    else:
                        self.manifest = before
                    raise
                # A manifest never names what is not there.
                self._discard(self._forgotten)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                why = "is full: make room, and the same command goes on"
            elif error.errno == errno.EROFS:
                why = "is read-only: make it writable, or copy the index to another disk"
            else:
                raise
            raise SearchError(f"the disk of {self.directory} {why}") from None

    def _lock(self, stack: contextlib.ExitStack, wait: float) -> None:
        """Hold the lock of the directory until the stack is closed.

        Raises:
          LockedError: when another process still has it after so many seconds.
        """
        deadline = time.monotonic() + wait
        while True:
            try:
                stack.enter_context(files.lock(self.directory))
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise LockedError(
                        f"another process is writing to {self.directory}: wait until it has ended"
                    ) from None
            time.sleep(LOCK_POLL_SECONDS)

    def save(self) -> None:
        """Writes the manifest; under the lock of `writing`."""
        self.manifest.write(self.directory, keep=self._newest)
        self._written = self._newest = True

    def keep(self, content: str, arrays: VideoArrays, paths: Mapping[str, Stamp]) -> None:
        """Writes the vectors of a content, then records its paths; under the lock of `writing`."""
        records = {name: self.manifest.videos[name] for name in self._sharing.get(content, ())}
        taken: set[str] = set()
        for name, stamp in paths.items():
            if name not in records:
                identity = self._id(name, content, taken)
                records[name] = Record(identity, content, *stamp, "failed")
                taken.add(identity)
        self._write(content, arrays, records, paths)
        self._renamed.discard(content)

    def _write(
        self,
        content: str,
        arrays: VideoArrays,
        records: Mapping[str, Record],
        stamps: Mapping[str, Stamp],
    ) -> None:
        facts = self.manifest.facts(content, records)
        file = storage.write_vectors(self.file(content), arrays, facts)
        for name, record in records.items():
            stamp = stamps.get(name, record.stamp)
            self._put(name, Record(record.id, content, *stamp, "indexed", **file.about))

    def record(self, name: str, content: str, stamp: Stamp, about: Mapping[str, Any]) -> None:
        """Records a path whose vectors are on the disk (`VectorFile.about`)."""
        self._put(name, Record(self._id(name, content), content, *stamp, "indexed", **about))

    def record_failure(self, name: str, content: str, stamp: Stamp, reason: str) -> None:
        """Records why a path could not be indexed."""
        self._put(name, Record(self._id(name, content), content, *stamp, "failed", reason))

    def move(self, name: str, to: str) -> None:
        """Records that a video has another path now; its id stays."""
        record = self.manifest.videos[name]
        storage.check_record(to, record)
        self.drop(name)
        self._put(to, record)

    def paths(self, content: str) -> set[str]:
        """The paths of a content; under the lock of `writing`."""
        return set(self._sharing.get(content, ())) if content else set()

    def drop(self, name: str) -> None:
        """Forgets a path; its vectors stay until `discard_unused`."""
        self._renamed.add(self._pop(name).content)

    def forget(self, names: Collection[str]) -> None:
        """Forgets paths, and the vectors that no other has; under the lock of `writing`.

        The vectors are deleted once the manifest without them is saved.
        """
        for name in names:
            self._forgotten.add(self.manifest.videos[name].content)
            self.drop(name)

    def remove(self, videos: Collection[str]) -> int:
        """Takes videos out until they are added again, and further folders; the files stay.

        A video stays out under its path, and under any other that its content is moved to.

        Args:
          videos: paths or ids of videos, or the paths of further folders.

        Returns:
          How many videos that were.

        Raises:
          SearchError: when one is not in the index, or another process writes.
        """
        with self.writing(wait=WAIT_SECONDS):
            known, given = self.manifest, {one: os.path.abspath(one) for one in videos}
            folders = {name for name, root in known.roots.items() if root in given.values()}
            roots = set(known.roots.values())
            names = {self.name_of(one) for one, place in given.items() if place not in roots}
            for name in names:
                self.exclude(name, known.videos[name].content)
            names |= {one for one in known.videos if storage.split_name(one)[0] in folders}
            self.forget(names)
            for folder in folders:
                del known.roots[folder]
            for name in [x for x in known.excluded if storage.split_name(x)[0] in folders]:
                known.excluded.discard(name)
                known.excluded_contents.pop(name, None)
            return len(names)

    def exclude(self, name: str, content: str) -> None:
        """Records that a path, and its content unless "", was removed; under the lock."""
        self.manifest.excluded.add(name)
        if content:
            self.manifest.excluded_contents[name] = content

    def include(self, name: str, content: str = "") -> None:
        """Forgets that a path was removed, and its content where that has gone; under the lock."""
        removed = self.manifest.excluded_contents
        content = content or removed.get(name, "")
        same = [other for other, own in removed.items() if content and own == content]
        gone = [other for other in same if files.is_gone(self.path(other))]
        for other in {name, *gone}:
            self.manifest.excluded.discard(other)
            removed.pop(other, None)

    def is_removed(self, name: str, content: str) -> bool:
        """Whether the content of a path was removed before; then the path is too. Under the lock.

        A copy of a removed video is not, where another path of that content is in the index.
        """
        removed = self.manifest.excluded_contents
        same = [other for other, own in removed.items() if own == content]
        record = self.manifest.videos.get(name)
        if not same or record is not None and record.content == content:
            return False
        moved = [
            other for other in same
            if self.is_there(storage.split_name(other)[0])
            and files.is_gone(self.path(other))
        ]  # fmt: skip
        if not moved and self.paths(content):
            return False
        if record is not None:
            self.forget([name])
        self.exclude(name, content)
        for other in moved:
            self.manifest.excluded.discard(other)
            removed.pop(other, None)
        return True

    def _pop(self, name: str) -> Record:
        record = self.manifest.videos.pop(name)
        self._owners.pop(record.id, None)
        self._sharing[record.content].discard(name)
        return record

    def tag(self, names: Iterable[str], add: Iterable[str] = (), drop: Iterable[str] = ()) -> None:
        """Gives tags to videos and takes others from them; under the lock of `writing`.

        Videos of equal content share their tags, in which no letter's case counts. They stay when a
        video moves, is replaced at its path, or is removed and added again.
        """
        new = {tag_key(text): _tag(text) for text in add}
        dropped = {tag_key(_tag(text)) for text in drop}
        contents = {name: self.manifest.videos[name].content for name in names}
        for name, content in contents.items():
            if not content:
                raise SearchError(f"{name} could not be read, and is not tagged")
        for content in contents.values():
            own = {tag_key(tag): tag for tag in self.manifest.tags.get(content, ())} | new
            kept = sorted(tag for key, tag in own.items() if key not in dropped)
            self.manifest.tags |= {content: kept}
            if not kept:
                del self.manifest.tags[content]

    def verify(self) -> dict[str, str]:
        """Reads all vectors through; what is wrong, by the name of the damaged file."""
        wrong: dict[str, str] = {}
        for content, record in self.records().items():
            try:
                if not matches(record, self.load(content).about):
                    line = f"{self.file(content)} is not what the manifest says: index again"
                    wrong[self.file(content).name] = line
            except DamagedError as error:
                wrong[self.file(content).name] = str(error)
        return wrong

    def discard_unused(self, contents: Collection[str] | None = None) -> None:
        """Removes vectors, of these contents or of all, that no record names; under the lock."""
        some = storage.contents(self.directory) if contents is None else contents
        unused = set(some) - {*self.contents(), ""}
        if contents is None:  # they may be whole, and have lost their records
            unused -= {content for content in unused if self._is_unreadable(content)}
        if unused:
            self.save()  # a manifest never names what is not there
        self._discard(unused)

    def _is_unreadable(self, content: str) -> bool:
        """Return whether the vectors of a content cannot be read now."""
        try:
            self.load(content)
        except UnreadableError:
            return True
        except DamagedError:
            pass
        return False

    def _discard(self, contents: Iterable[str]) -> None:
        """Delete the files of those contents that no record names."""
        for content in set(contents) - {*self.contents(), ""}:
            files.discard(self.file(content))
            files.discard(self.text(content))
            files.discard(self.text_copy(content))
            files.discard(self.text_vectors(content))
            files.discard(self.partial_text(content))

    def _take_stock(self) -> None:
        """Makes records of vectors that no record names."""
        self._owners = {one.id: name for name, one in self.manifest.videos.items()}
        self._sharing = {}
        for name, one in self.manifest.videos.items():
            self._sharing.setdefault(one.content, set()).add(name)
        for content in sorted({*storage.contents(self.directory)} - {*self.contents()}):
            try:
                file = self.load(content)
            except DamagedError:
                continue
            for name, (identity, stamp) in storage.paths_of(file.facts).items():
                record = self.manifest.videos.get(name)
                # Of two that say they are of one path, that of the later file is.
                latest = stamp.changed_ns, True
                older = record is None or (record.changed_ns, record.indexed) < latest
                if name not in self.manifest.excluded and older:
                    if record is not None or self._owners.get(identity, name) != name:
                        identity = self._id(name, content)
                    self._put(name, Record(identity, content, *stamp, "indexed", **file.about))

    def _rename(self) -> None:
        """Brings the paths that files of vectors name up to date."""
        for content in sorted(self._renamed):
            known = {name: self.manifest.videos[name] for name in self.paths(content)}
            known = {name: one for name, one in known.items() if one.indexed}
            # OutputError: it is a link of a person.
            with contextlib.suppress(DamagedError, files.OutputError):
                if known and (file := self.load(content)).facts["paths"].keys() != known.keys():
                    self._write(content, file.arrays, known, {})
        self._renamed.clear()

    def _clear_drafts(self) -> None:
        """Removes what killed writers left; there is no other writer now."""
        for folder, own in storage.OWN.items():
            with contextlib.suppress(OSError):
                for name in os.listdir(self.directory / folder):
                    of = files.draft_target(name)
                    path = self.directory / folder / name
                    if of is not None and own.fullmatch(of) and path.is_file():
                        path.unlink(missing_ok=True)

    def _put(self, name: str, record: Record) -> None:
        """Record a video: all that the manifest says of it, in one step."""
        storage.check_record(name, record)
        before = self.manifest.videos[name].content if name in self.manifest.videos else None
        if before != record.content:
            self._renamed |= {record.content} | ({before} if before is not None else set())
            if record.content and before in self.manifest.tags:
                self.manifest.tags.setdefault(record.content, self.manifest.tags[before])
        if before is not None:
            self._pop(name)
        self.manifest.videos[name] = record
        self._owners[record.id] = name
        self._sharing.setdefault(record.content, set()).add(name)

    def _id(self, name: str, content: str, taken: Collection[str] = ()) -> str:
        """The id of a path: its content's, or where that is taken, one of both."""
        before = self.manifest.videos.get(name)
        if before is not None and content and before.content == content:
            return before.id
        identity = content[:16]
        text = f"{content}\0".encode() + name.encode(errors="surrogateescape")
        while not identity or identity in taken or self._owners.get(identity, name) != name:
            text = hashlib.sha256(text).hexdigest().encode()
            identity = text[:16].decode()
        return identity


def check_rate(fps: float) -> None:
    """Refuses what is no positive number of frames a second, or a very large one."""
    if not 0 < fps <= 1000:
        raise SearchError(f"--fps={fps}: give a number of frames a second above 0, such as 1")


FAVOURITE = "favourite"
"""The tag that the page's star gives."""


def _tag(text: str) -> str:
    """A tag as it is kept: one line, single spaces, letters and accents as one."""
    tag = unicodedata.normalize("NFC", " ".join(text.split()))
    if not (tag.isprintable() and 0 < len(tag) <= 100):
        raise SearchError(f"{text[:100]!r} is no tag: give 1 to 100 letters")
    return tag


def tag_key(tag: str) -> str:
    """Return the form by which tags are compared: without case, letters and accents as one."""
    folded = unicodedata.normalize("NFC", " ".join(tag.split())).casefold()
    return unicodedata.normalize("NFC", folded)


def matches(record: Record, about: Mapping[str, Any]) -> bool:
    """Whether a record says of a file of vectors what the file is."""
    return about.items() <= vars(record).items()


def absent(paths: Mapping[str, Path]) -> set[str]:
    """Which videos are not at their paths: deleted, moved, or on a disk that is away.

    Each folder is listed once, which takes less than a look at every file.
    """
    there: dict[str, set[str]] = {}
    missing = set()
    for name, path in paths.items():
        folder, _, own = name.rpartition("/")
        if folder not in there:
            there[folder] = set()
            with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # a link in a circle
                        if entry.is_file():
                            there[folder].add(entry.name)
        if own not in there[folder]:
            missing.add(name)
    return missing
