"""Files of indexed videos, opened by their ids."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from hlformer_jax.errors import SearchError, UserError
from hlformer_jax.search.index.storage import Stamp, split_name
from hlformer_jax.search.query.library import Library
from hlformer_jax.text import legible

Result = TypeVar("Result")

MAX_CUT_SECONDS = 1800.0
"""Length of a clip without its margins."""

MEDIA_TYPES = {
    ".avi": "video/x-msvideo", ".m4v": "video/mp4", ".mkv": "video/x-matroska",
    ".mov": "video/quicktime", ".mp4": "video/mp4", ".mpeg": "video/mpeg", ".mpg": "video/mpeg",
    ".ogv": "video/ogg", ".ts": "video/mp2t", ".webm": "video/webm",
}  # fmt: skip
"""Media types by suffix. A browser inspects any other file itself. Never HTML."""


class VideoFile:
    """An indexed video's file, open as long as this object is referred to."""

    def __init__(self, entry: Any, descriptor: int) -> None:
        self.entry, self.status = entry, os.fstat(descriptor)
        self.path = Path(f"/dev/fd/{descriptor}")  # of the open file, not of what has its name now
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    @property
    def media_type(self) -> str:
        """Its media type."""
        suffix = PurePosixPath(self.entry.video).suffix.lower()
        return MEDIA_TYPES.get(suffix, "application/octet-stream")


def indexed(library: Library, id: str) -> Any:
    """The indexed video of an id; an HTTPException, 404, where there is none."""
    with contextlib.suppress(LookupError, UserError):  # whatever it says, a path in it is not told
        entry = library.entry(id)
        if entry.state != "failed":
            return entry
    raise HTTPException(404, "there is no such video in this index: search again")


def open_video(library: Library, id: str) -> VideoFile:
    """Opens the file of an indexed video: the very one that was indexed, and no other.

    Links are followed within the indexed folder and not out of it.

    Raises:
      HTTPException: 404 for an id that is unknown or of a video that is not indexed, 403 for a file
        that may not be read or that a link leads out of the folder to, 410 for one that is gone or
        is not what was indexed.
    """
    entry = indexed(library, id)
    try:
        file = VideoFile(entry, _open_below(entry))
    except PermissionError:
        raise HTTPException(403, f"{entry.video} may not be read: change its rights") from None
    except _LinkOutside:
        line = f"{entry.video} is now a link out of the indexed folder, and not followed"
        raise HTTPException(403, line) from None
    except (OSError, ValueError) as error:
        known = FileNotFoundError, NotADirectoryError, ValueError
        if isinstance(error, known) or error.errno == errno.ELOOP:  # a link has its place
            line = (
                f"{entry.video} was deleted or moved since it was indexed: index the folder again"
            )
            raise HTTPException(410, line) from None
        line = f"{entry.video} cannot be read ({error.strerror}): is its disk failing?"
        raise HTTPException(422, line) from None
    now = file.status
    stamp = Stamp.of(now)
    recorded = entry.size, entry.modified
    if not stat.S_ISREG(now.st_mode) or recorded != (stamp.size, stamp.modified_ns / 1e9):
        line = f"{entry.video} has changed since it was indexed: index the folder again"
        raise HTTPException(410, line)
    return file


class _LinkOutside(Exception):
    pass


def _open_below(entry: Any) -> int:
    """Descriptor of an entry's file, opened from its root name by name, none of them a link."""
    path, below = Path(entry.path), split_name(entry.video)[1]
    depth = len(PurePosixPath(below).parts)
    root = Path(os.path.realpath(path.parents[depth - 1], strict=True))
    resolved = Path(os.path.realpath(path, strict=True))
    if not resolved.is_relative_to(root) or resolved == root:
        raise _LinkOutside
    *folders, name = resolved.relative_to(root).parts
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    place = os.open(root, flags | os.O_DIRECTORY)
    try:
        for folder in folders:
            above, place = place, os.open(folder, flags | os.O_DIRECTORY, dir_fd=place)
            os.close(above)
        return os.open(name, flags | os.O_NONBLOCK, dir_fd=place)  # a pipe does not wait
    finally:
        os.close(place)


def reading(file: VideoFile, work: Callable[[Path], Result]) -> Result:
    """The result of a work on an open file, whose errors name the video."""
    try:
        return work(file.path)
    except UserError as error:
        line = str(error).replace(str(file.path), legible(file.entry.video))
        raise SearchError(line) from None


class OpenFileResponse(FileResponse):
    """A video's file, whole or in ranges, from the descriptor that was checked."""

    def __init__(self, file: VideoFile) -> None:
        super().__init__(file.path, media_type=file.media_type, stat_result=file.status)
        self._file = file  # stays open


class TemporaryFileResponse(FileResponse):
    """A file that is deleted once it has been sent, or could not be."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            Path(self.path).unlink(missing_ok=True)
