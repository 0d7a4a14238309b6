"""Errors of video files, each with the fault and what the user can do about it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av

from hlformer_jax.errors import UserError, is_of_disk


class VideoError(UserError, ValueError):
    """Error for a video that cannot be read, or a clip that cannot be cut out of it."""


def fault(path: str | Path, what: str, advice: str) -> VideoError:
    """Return an error about a file, in one line.

    Args:
      path: the file.
      what: the fault, as a verb phrase, such as "is empty".
      advice: what the user can do.
    """
    return VideoError(f"{str(path)!r} {what}: {advice}")


@contextmanager
def name_errors(path: str | Path) -> Iterator[None]:
    """Convert errors of FFmpeg, the disk and the memory in the block to a `VideoError`.

    A `UserError` stays as it is, such as that of a clip which must not be replaced.
    """
    try:
        yield
    except UserError:
        raise
    except (av.FFmpegError, OSError, MemoryError) as error:
        raise fault(path, *explain(error)) from error


@contextmanager
def until_damage() -> Iterator[None]:
    """End the block at damage of the file that it reads; raise errors of the disk or network."""
    try:
        yield
    except (av.FFmpegError, OSError) as error:
        if is_of_disk(error):
            raise


def explain(error: BaseException) -> tuple[str, str]:
    """Return the fault and the advice (see `fault`) for an error of FFmpeg or of the disk."""
    for kinds, what, advice in _MEANINGS:
        if isinstance(error, kinds):
            return what, advice
    number = getattr(error, "errno", None)
    text = getattr(error, "strerror", None) or (os.strerror(number) if number else "")
    reason = " ".join((text or type(error).__name__).split())
    return f"cannot be read ({reason})", "try it in a player, or copy it again"


UNKNOWN_CODEC = "has a codec that FFmpeg cannot decode here", "convert it to H.264"
_WITHOUT_DECODER = (
    av.error.DecoderNotFoundError, av.error.PatchWelcomeError, NotImplementedError,
)  # fmt: skip
_MEANINGS = (
    (FileNotFoundError, "is not there any more", "was it moved, or its disk taken away?"),
    (PermissionError, "may not be read", "ask for permission, or leave it out"),
    (IsADirectoryError, "is a folder", "give a file"),
    (EOFError, "holds no frame", "copy it again"),
    (
        av.error.InvalidDataError, "is not a video that FFmpeg knows, or is damaged",
        "try it in a player, or copy it again; of a playlist, give the files",
    ),
    (_WITHOUT_DECODER, *UNKNOWN_CODEC),
    (MemoryError, "does not fit into memory", "convert it to a smaller picture"),
)  # fmt: skip
