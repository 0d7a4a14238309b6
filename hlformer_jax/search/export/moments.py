"""A moment of a result as an exported file has it, and names for clips."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from hlformer_jax.retrieval.moments import Moment
from hlformer_jax.search.query.results import Result
from hlformer_jax.text import visible


class ExportedMoment(NamedTuple):
    """A moment with its result and the rank of that result."""

    rank: int
    result: Result
    moment: Moment

    @property
    def title(self) -> str:
        """File name of the video, on one line."""
        return visible(" ".join(self.result.path.name.split()))


MAX_NAME_BYTES = 200
"""Longest video path, in bytes, in the name of a clip. A draft of the clip has a longer name, and
file systems allow 255 bytes."""


def clip_name(video: str, start: float, end: float) -> str:
    """Return a file name for a clip that differs between videos and between times.

    Slashes of the video's path become %2F. A long path, or one that is not `visible`, becomes a
    digest.
    """
    times = "-".join(f"{time:.6f}".rstrip("0").rstrip(".") for time in (start, end))
    name = video.replace("%", "%25").replace("/", "%2F")
    if visible(name) != name or len(os.fsencode(name)) > MAX_NAME_BYTES:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:16] + visible(Path(video).suffix)
    return f"{name}_{times}.mp4"
