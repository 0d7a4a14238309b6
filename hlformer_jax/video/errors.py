"""The error about a video, and FFmpeg's reasons in words."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av

from hlformer_jax.errors import UserError


class VideoError(UserError, ValueError):
    """A video that cannot be read, or a clip that cannot be cut out of it; the message says why."""


def fault(path: str | Path, what: str, advice: str) -> VideoError:
    """An error about a file, in one line whatever the file is called.

    Args:
      path: the file; shown as Python quotes it, so that a name with a newline stays on the line.
      what: what is wrong with it.
      advice: what to do.
    """
    return VideoError(f"{str(path)!r} {what}: {advice}")


@contextmanager
def named(path: str | Path) -> Iterator[None]:
    """A block in which every error of FFmpeg and of the disk is turned into one about this file.

    Raises:
      VideoError: in place of any of those.
    """
    try:
        yield
    except (av.FFmpegError, OSError, MemoryError) as error:
        raise fault(path, *explained(error)) from error


def explained(error: BaseException) -> tuple[str, str]:
    """What an error of FFmpeg or of the disk means, and what to do about it."""
    for kinds, what, advice in _MEANINGS:
        if isinstance(error, kinds):
            return what, advice
    number = getattr(error, "errno", None)
    text = getattr(error, "strerror", None) or (os.strerror(number) if number else "")
    reason = " ".join((text or type(error).__name__).split())
    return f"cannot be read ({reason})", "try it in a player, or copy it again"


_MEANINGS = (
    (FileNotFoundError, "is not there any more", "was it moved, or its disk taken away?"),
    (PermissionError, "may not be read", "ask for permission, or leave it out"),
    (IsADirectoryError, "is a folder", "give a file"),
    (EOFError, "holds no frame", "copy it again, or delete it"),
    (
        av.error.InvalidDataError,
        "is no video that FFmpeg knows, or it is damaged",
        "try it in a player, or copy it again",
    ),
    (
        (av.error.DecoderNotFoundError, av.error.PatchWelcomeError, NotImplementedError),
        "has a codec that FFmpeg cannot decode here",
        "convert it to H.264",
    ),
    ((MemoryError,), "does not fit into memory", "convert it to a smaller picture"),
)
