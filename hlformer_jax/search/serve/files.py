"""Files of indexed videos, opened by their ids and sent in responses."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from hlformer_jax.errors import SearchError, UserError
from hlformer_jax.search.index.records import Stamp, split_name
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.serve.refusals import Refusal
from hlformer_jax.text import legible

Result = TypeVar("Result")

MAX_CUT_SECONDS = 1800.0
"""Longest clip, in seconds, without its margins."""

MEDIA_TYPES = {
    ".avi": "video/x-msvideo", ".m4v": "video/mp4", ".mkv": "video/x-matroska",
    ".mov": "video/quicktime", ".mp4": "video/mp4", ".mpeg": "video/mpeg", ".mpg": "video/mpeg",
    ".ogv": "video/ogg", ".ts": "video/mp2t", ".webm": "video/webm",
}  # fmt: skip
"""Media types by suffix. A browser inspects other files itself. HTML is never served."""


class VideoFile:
    """The file of an indexed video, open for the lifetime of this object."""

    def __init__(self, entry: Any, descriptor: int) -> None:
        self.entry, self.status = entry, os.fstat(descriptor)
        self.path = Path(
            f"/dev/fd/{descriptor}"
        )  # the open file, even if another has its name by now
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    @property
    def media_type(self) -> str:
        """Media type of the file."""
        suffix = PurePosixPath(self.entry.video).suffix.lower()
        return MEDIA_TYPES.get(suffix, "application/octet-stream")


def indexed(library: Library, id: str) -> Any:
    """Return the indexed video of an id; a `Refusal` (404) if there is none."""
    with contextlib.suppress(LookupError, UserError):  # the error may have paths of this machine
        entry = library.entry(id)
        if entry.state != "failed":
            return entry
    raise Refusal("video.unknown")


def open_video(library: Library, id: str) -> VideoFile:
    """Open the file of an indexed video, if it is still the file that was indexed.

    Links are followed within the indexed folder, but not out of it.

    Raises:
      Refusal: 404 for an unknown id or a video that is not indexed, 403 for a file that may
        not be read or is outside of the folder, 410 for a missing or changed file, 422 for a file
        that cannot be read.
    """
    entry = indexed(library, id)
    try:
        file = VideoFile(entry, _open_below(entry))
    except PermissionError:
        raise Refusal("video.forbidden", video=entry.video) from None
    except _LinkOutside:
        raise Refusal("video.link", video=entry.video) from None
    except (OSError, ValueError) as error:
        missing = FileNotFoundError, NotADirectoryError, ValueError
        if isinstance(error, missing) or error.errno == errno.ELOOP:  # replaced by a link
            raise Refusal("video.missing", video=entry.video) from None
        reason = str(error.strerror)
        raise Refusal("video.unreadable", video=entry.video, reason=reason) from None
    stamp, recorded = Stamp.from_status(file.status), (entry.size, entry.modified)
    is_regular = stat.S_ISREG(file.status.st_mode)
    if not is_regular or recorded != (stamp.size, stamp.modified_ns / 1e9):
        raise Refusal("video.changed", video=entry.video)
    return file


class _LinkOutside(Exception):
    pass


def _open_below(entry: Any) -> int:
    """Open the file of an entry from its root, folder by folder and without links."""
    path, name = Path(entry.path), split_name(entry.video)[1]
    depth = len(PurePosixPath(name).parts)
    root = Path(os.path.realpath(path.parents[depth - 1], strict=True))
    resolved = Path(os.path.realpath(path, strict=True))
    if not resolved.is_relative_to(root) or resolved == root:
        raise _LinkOutside
    *folders, name = resolved.relative_to(root).parts
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    parent = os.open(root, flags | os.O_DIRECTORY)
    try:
        for folder in folders:
            child = os.open(folder, flags | os.O_DIRECTORY, dir_fd=parent)
            os.close(parent)
            parent = child
        return os.open(name, flags | os.O_NONBLOCK, dir_fd=parent)  # do not wait for a pipe
    finally:
        os.close(parent)


def reading(file: VideoFile, work: Callable[[Path], Result]) -> Result:
    """Return the result of a function of an open file; its errors name the video."""
    try:
        return work(file.path)
    except UserError as error:
        line = str(error).replace(str(file.path), legible(file.entry.video))
        raise SearchError(line) from None


class OpenFileResponse(FileResponse):
    """A response with a video's file, or ranges of it, from the checked descriptor."""

    def __init__(self, file: VideoFile) -> None:
        super().__init__(file.path, media_type=file.media_type, stat_result=file.status)
        self._file = file  # stays open


class TemporaryFileResponse(FileResponse):
    """A response with a file that is deleted afterwards, even after an error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, and delete it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            Path(self.path).unlink(missing_ok=True)
