"""A moment of a result as it is exported, and the name of its clip."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from hlformer_jax.retrieval.moments import Moment
from hlformer_jax.search.query.results import Result
from hlformer_jax.text import legible


class Part(NamedTuple):
    """A moment of a result."""

    rank: int
    result: Result
    moment: Moment

    @property
    def title(self) -> str:
        """Its video's name on one line."""
        return " ".join(legible(self.result.path.name).split())


MAX_NAME = 200
"""Bytes of a video's path that fit into a clip's name, which may have 255 with its draft's."""


def clip_name(video: str, start: float, end: float) -> str:
    """The name of a clip: another for every video (its slashes written %2F) and part of it."""
    times = "-".join(f"{time:.6f}".rstrip("0").rstrip(".") for time in (start, end))
    name = video.replace("%", "%25").replace("/", "%2F")
    if legible(name) != name or len(os.fsencode(name)) > MAX_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:16] + legible(Path(video).suffix)
    return f"{name}_{times}.mp4"
