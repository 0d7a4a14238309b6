"""The files that the page is given: found by the ids of the index, never by a name in a request."""

import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any

from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from hlformer_jax.errors import UserError
from hlformer_jax.search.page.answers import Library

MEDIA_TYPES = {
    ".avi": "video/x-msvideo",
    ".m4v": "video/mp4",
    ".mkv": "video/x-matroska",
    ".mov": "video/quicktime",
    ".mp4": "video/mp4",
    ".mpeg": "video/mpeg",
    ".mpg": "video/mpeg",
    ".ogv": "video/ogg",
    ".ts": "video/mp2t",
    ".webm": "video/webm",
}
"""What a browser is told of a file, by its suffix; it looks into any other itself. Never HTML."""


def find(library: Library, id: str) -> tuple[Any, os.stat_result]:
    """The entry of an id, and what its file is.

    Args:
      library: the index.
      id: an id of its entries, as a request gives it.

    Raises:
      HTTPException: 404 for an unknown id, 410 for a file that is gone, 403 for one that may not be
        read.
    """
    try:
        entry = library.entry(id)
    except (LookupError, UserError):  # whatever the library says, a path in it is not told
        line = f"there is no video {id[:80]!r} in this index: search again"
        raise HTTPException(404, line) from None
    try:
        found = os.stat(entry.path)
        os.close(os.open(entry.path, os.O_RDONLY | os.O_NONBLOCK))
    except PermissionError:
        raise HTTPException(403, f"{entry.video} may not be read: change its rights") from None
    except (OSError, ValueError):
        found = None
    if found is None or not stat.S_ISREG(found.st_mode):
        line = f"{entry.video} was deleted or moved since it was indexed: index the folder again"
        raise HTTPException(410, line)
    return entry, found


def media_type(video: str) -> str:
    """What a browser is told of a video's file."""
    return MEDIA_TYPES.get(PurePosixPath(video).suffix.lower(), "application/octet-stream")


class Passing(FileResponse):
    """A file that is deleted once it has been sent, or could not be."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            Path(self.path).unlink(missing_ok=True)
