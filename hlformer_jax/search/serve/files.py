"""Files of indexed videos, opened by their ids and sent in responses."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import FileResponse, Response
from starlette.datastructures import Headers
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Receive, Scope, Send

from hlformer_jax.errors import SearchError, UserError
from hlformer_jax.search.index import MissingIndexError
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
"""Media types by suffix.

Other files are sent as application/octet-stream, so no file is ever served as HTML.
"""


class VideoFile:
    """The file of an indexed video, open for the lifetime of this object."""

    def __init__(self, entry: Any, descriptor: int) -> None:
        self.entry, self.status = entry, os.fstat(descriptor)
        # It stays the path of the open file when another file replaces the video.
        self.path = Path(f"/dev/fd/{descriptor}")
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    @property
    def media_type(self) -> str:
        """Media type of the file."""
        suffix = PurePosixPath(self.entry.video).suffix.lower()
        return MEDIA_TYPES.get(suffix, "application/octet-stream")

    def apply(self, work: Callable[[Path], Result]) -> Result:
        """Apply a function to the file, and name the video in its errors.

        Args:
          work: function that takes the path of the file, such as `video.thumbnail`.

        Returns:
          The result of `work`.

        Raises:
          SearchError: if `work` raises a `UserError`, with the same line for the video's path in
            the index.
        """
        try:
            return work(self.path)
        except UserError as error:
            line = str(error).replace(str(self.path), legible(self.entry.video))
            raise SearchError(line) from None


def find_entry(library: Library, id: str) -> Any:
    """Return the entry of an indexed or failed video.

    Args:
      library: the archive.
      id: the id of the video in the index.

    Raises:
      Refusal: 404 if the index has no video with this id.
      MissingIndexError: if the index was deleted or moved.
    """
    try:
        return library.entry(id)
    except MissingIndexError:
        raise
    except (LookupError, UserError):  # the error may contain paths of this machine
        raise Refusal("video.unknown") from None


def find_indexed(library: Library, id: str) -> Any:
    """Return the entry of an indexed video; see `find_entry`. Refuse failed ones as unknown."""
    entry = find_entry(library, id)
    if entry.state == "failed":
        raise Refusal("video.unknown")
    return entry


def open_video(library: Library, id: str) -> VideoFile:
    """Open the file of an indexed video, if it is still the file that was indexed.

    Links are followed if their targets are in the indexed folder.

    Args:
      library: the archive.
      id: the id of the video in the index.

    Raises:
      Refusal: 404 for an unknown id or a video that is not indexed, 403 for a file that this
        process may not read or a link out of the folder, 410 for a missing or changed file, 422
        for a file that cannot be read for another reason, such as a disk error.
    """
    entry = find_indexed(library, id)
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
    """Open the file of an entry, and return its descriptor.

    Links are resolved and checked first. Then each folder is opened below the previous one without
    following links, so that a link that replaces a folder in the meantime is not followed.

    Raises:
      _LinkOutside: if a link leads out of the root.
      OSError: if the file is missing or cannot be opened.
    """
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
        return os.open(name, flags | os.O_NONBLOCK, dir_fd=parent)  # opening a pipe does not wait
    finally:
        os.close(parent)


def unless_current(request: Request, response: Response) -> Response:
    """Return a response, or 304 without a body if the client already has its content.

    Args:
      request: the request, whose headers If-None-Match and If-Modified-Since are compared.
      response: the response with the content; it has the header ETag.
    """
    is_current = StaticFiles().is_not_modified(response.headers, request.headers)
    return NotModifiedResponse(response.headers) if is_current else response


class OpenFileResponse(FileResponse):
    """A response with a video's file, or ranges of it, read from the open descriptor."""

    def __init__(self, file: VideoFile) -> None:
        super().__init__(file.path, media_type=file.media_type, stat_result=file.status)
        self._file = file  # keeps the descriptor open until the response is sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, or the ranges of bytes that a GET asks for.

        Other ranges are ignored, as HTTP requires (RFC 9110, 14.2); Starlette would refuse them.
        """
        unit = Headers(scope=scope).get("range", "").partition("=")[0].strip().lower()
        if scope["method"] != "GET" or unit != "bytes":
            headers = [header for header in scope["headers"] if header[0] != b"range"]
            scope = {**scope, "headers": headers}
        await super().__call__(scope, receive, send)


class TemporaryFileResponse(FileResponse):
    """A response with a file that is deleted after sending, even if sending fails."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, and delete it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            Path(self.path).unlink(missing_ok=True)
