"""An index on the disk: a manifest, and one file for each content that was seen.

    DIR/manifest.json       what made the vectors, and the record of every path (`manifest`)
    DIR/videos/CONTENT.npz  the vectors of one content (`arrays`), named by its fingerprint
    DIR/packed/             matrices that searches map into memory (`packed`); made anew at need
    DIR/.lock               held by the process that writes

Every file is written beside its place, brought to the disk and renamed; a reader needs no lock.
Paths of equal content have a record each and share the file. The id of a record is the beginning of
its content's fingerprint; a second path of the same content has an id made of both. An id stays
while its path or its content does.
"""

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hlformer_jax import files
from hlformer_jax.errors import suggestion
from hlformer_jax.search import arrays, manifest
from hlformer_jax.search.arrays import VideoArrays
from hlformer_jax.search.errors import DamagedError, SearchError
from hlformer_jax.search.manifest import EncoderFacts, Manifest, Record

_OWN = {manifest.NAME, "videos", "packed", ".lock"}


class Entry(NamedTuple):
    """A video of an index.

    Attributes:
      id: 16 hexadecimal digits, of the content's fingerprint.
      video: path relative to the indexed folder, with slashes.
      folder: the folder of `video`; "" for the indexed folder itself.
      path: absolute path.
      size: bytes.
      modified: time of its last modification, seconds since the epoch.
      duration: seconds; 0 where it failed.
      frames: number of frames that were encoded.
      state: "indexed" or "failed".
      reason: why it failed, or what of it could not be used; "" where all is well.
      recorded: when it was recorded, seconds since the epoch; 0 where the file does not say.
    """

    id: str
    video: str
    folder: str
    path: Path
    size: int
    modified: float
    duration: float
    frames: int
    state: str
    reason: str
    recorded: float = 0.0

    @property
    def date(self) -> float:
        """When it was recorded or else last modified, seconds since the epoch."""
        return self.recorded or self.modified

    @property
    def date_of(self) -> str:
        """What `date` is: "recording", or "file" for that of its last modification."""
        return "recording" if self.recorded else "file"


class Index:
    """An index.

    Attributes:
      directory: where it lies.
      manifest: what it knows.
    """

    def __init__(self, directory: Path, known: Manifest) -> None:
        self.directory, self.manifest = directory, known
        self._owners: dict[str, str] = {}  # paths by id, for the one who writes

    @classmethod
    def create(
        cls,
        directory: Path,
        root: Path,
        encoder: Any,
        fps: float = 1.0,
        places: tuple[str, ...] = (),
    ) -> "Index":
        """Makes an index without videos.

        Args:
          directory: a new or empty directory, or one whose manifest was lost; vectors that it holds
            are taken where they are of the same encoder and rate.
          root: the folder of the videos.
          encoder: the encoder (`hlformer_jax.encoders`).
          fps: frames a second.
          places: where the encoder can be loaded from.

        Raises:
          SearchError: when the directory holds something else, or the rate is no positive number.
          OSError: when it cannot be written.
        """
        if not 0 < fps <= 1000:
            raise SearchError(f"--fps={fps}: give a number of frames a second above 0, such as 1")
        directory = Path(directory)
        if directory.exists():
            foreign = [child for child in directory.iterdir() if child.name not in _OWN]
            if foreign and not (directory / "videos").is_dir():
                raise SearchError(
                    f"{directory} holds other things ({foreign[0].name}): choose another --index"
                )
        known = Manifest(str(root.resolve()), EncoderFacts.of(encoder, places), float(fps))
        index = cls(directory, known)
        with index.writing(fresh=True):
            pass
        return index

    @classmethod
    def open(cls, directory: Path) -> "Index":
        """Opens an index; reads the manifest alone.

        Raises:
          SearchError: when there is none, or it is of another format.
          DamagedError: when the manifest is damaged.
        """
        directory = Path(directory)
        return cls(directory, manifest.read(directory))

    @property
    def root(self) -> Path:
        """The folder of the videos."""
        return Path(self.manifest.root)

    @property
    def period(self) -> float:
        """Seconds between two frames."""
        return 1 / self.manifest.fps

    def check_encoder(self, encoder: Any) -> None:
        """Refuses an encoder that is not the one of the index.

        Raises:
          SearchError: saying what differs and what to do.
        """
        ours, theirs = self.manifest.encoder, EncoderFacts.of(encoder)
        for field in ("fingerprint", "preprocessing", "width"):
            if getattr(ours, field) != getattr(theirs, field):
                raise SearchError(
                    f"{self.directory} was made by the encoder {ours.name!r}, and {theirs.name!r}"
                    f" has another {field}: give --encoder={ours.name}, or a new --index"
                )

    def entries(self) -> list[Entry]:
        """All videos, in the order of their paths."""
        videos = self.manifest.videos
        return [self.describe(name, videos[name]) for name in sorted(videos)]

    def describe(self, name: str, record: Record) -> Entry:
        """The entry of a record."""
        folder = name.rpartition("/")[0]
        modified = record.modified_ns / 1e9
        sizes = record.size, modified, record.duration, record.frames
        state = record.state, record.reason, record.recorded
        return Entry(record.id, name, folder, self.root / name, *sizes, *state)

    def name_of(self, video: str) -> str:
        """The path, as a record names it, of a video that a person names.

        Args:
          video: that path, an absolute one, one from the working directory, or an id.

        Raises:
          SearchError: when the index has no such video.
        """
        known = self.manifest.videos
        absolute = os.path.abspath(video)
        for name in (video, os.path.relpath(absolute, self.root), absolute):
            if name in known:
                return name
        for name, record in known.items():
            if record.id == video:
                return name
        raise SearchError(f"{self.directory} holds no video {video!r}{suggestion(video, known)}")

    def summary(self) -> dict[str, Any]:
        """What the index holds: counts, seconds and bytes, and what made it."""
        records = self.manifest.videos.values()
        indexed = [record for record in records if record.indexed]
        stamps = {record.content: record.stamp for record in indexed}
        return {
            "index": str(self.directory),
            "folder": self.manifest.root,
            "encoder": self.manifest.encoder.name,
            "fps": self.manifest.fps,
            "checkpoint": self.manifest.checkpoint,
            "videos": len(indexed),
            "failed": len(records) - len(indexed),
            "removed": len(self.manifest.excluded),
            "frames": sum(record.frames for record in indexed),
            "seconds": sum(record.duration for record in indexed),
            "bytes": sum(size for size, _ in stamps.values()),
        }

    def file(self, content: str) -> Path:
        """Where the vectors of a content lie."""
        return self.directory / "videos" / f"{content}.npz"

    def read(self, content: str) -> VideoArrays:
        """The vectors of a content.

        Raises:
          DamagedError: when their file is missing or damaged; names it.
        """
        return arrays.read(self.file(content), content, self.manifest.key)

    @contextlib.contextmanager
    def writing(self, fresh: bool = False) -> Iterator[None]:
        """Keeps other writers out, and saves the manifest at the end, however the block ends.

        Args:
          fresh: whether to keep the manifest of this object, and not to read that on the disk.

        Raises:
          SearchError: when another process writes, or the disk is full.
        """
        try:
            with files.lock(self.directory):
                if not fresh:
                    self.manifest = manifest.read(self.directory)
                self._clear_drafts()
                self._owners = {one.id: name for name, one in self.manifest.videos.items()}
                try:
                    yield
                finally:
                    self.save()
        except BlockingIOError:
            raise SearchError(
                f"another process is writing to {self.directory}: wait until it has ended"
            ) from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise SearchError(
                    f"the disk of {self.directory} is full: make room, and the same command goes on"
                ) from None
            raise

    def save(self) -> None:
        """Writes the manifest; for the one who writes.

        Raises:
          OSError: when it cannot be written.
        """
        self.manifest.write(self.directory)

    def put(self, content: str, found: VideoArrays) -> None:
        """Writes the vectors of a content; for the one who writes."""
        arrays.write(self.file(content), found, content, self.manifest.key)

    def record(
        self,
        name: str,
        content: str,
        size: int,
        modified_ns: int,
        found: VideoArrays,
    ) -> None:
        """Records a path whose vectors are on the disk, and what of it could not be used."""
        self._put(name, Record(
            self._id(name, content), content, size, modified_ns, "indexed", found.warning,
            duration=float(found.duration), frames=len(found.times),
            intervals=len(found.spans), stamp=self.stamp(content), recorded=found.recorded,
        ))  # fmt: skip

    def record_failure(
        self, name: str, content: str, size: int, modified_ns: int, reason: str
    ) -> None:
        """Records why a path could not be indexed."""
        identity = self._id(name, content)
        self._put(name, Record(identity, content, size, modified_ns, "failed", reason))

    def drop(self, name: str) -> None:
        """Forgets a path; its vectors stay until `discard_unused`."""
        self._owners.pop(self.manifest.videos.pop(name).id, None)

    def stamp(self, content: str) -> tuple[int, int]:
        """Size and time of the file of a content's vectors; zeros where there is none."""
        try:
            status = self.file(content).stat()
        except OSError:
            return 0, 0
        return status.st_size, status.st_mtime_ns

    def verify(self) -> dict[str, str]:
        """Reads all vectors through.

        Returns:
          What is wrong, by the name of the damaged file.
        """
        wrong = {}
        for content in sorted(
            {one.content for one in self.manifest.videos.values() if one.indexed}
        ):
            try:
                self.read(content)
            except (DamagedError, OSError) as error:
                wrong[self.file(content).name] = str(error)
        return wrong

    def discard_unused(self) -> None:
        """Removes the vectors that no record names; for the one who writes."""
        used = {one.content for one in self.manifest.videos.values() if one.indexed}
        for path in (self.directory / "videos").glob("*.npz"):
            if path.stem not in used:
                path.unlink(missing_ok=True)

    def _clear_drafts(self) -> None:
        """Removes what killed writers left; there is no other writer now."""
        for folder in (self.directory, self.directory / "videos", self.directory / "packed"):
            for path in folder.glob(".*.*"):
                path.unlink(missing_ok=True)

    def _put(self, name: str, record: Record) -> None:
        if name in self.manifest.videos:
            self.drop(name)
        self.manifest.videos[name] = record
        self._owners[record.id] = name

    def _id(self, name: str, content: str) -> str:
        """The id of a path: its content's, or where that is taken, one of both."""
        before = self.manifest.videos.get(name)
        if before is not None and content and before.content == content:
            return before.id
        identity = content[:16]
        if not identity or self._owners.get(identity, name) != name:
            path = name.encode(errors="surrogateescape")
            identity = hashlib.sha256(f"{content}\0".encode() + path).hexdigest()[:16]
        return identity
