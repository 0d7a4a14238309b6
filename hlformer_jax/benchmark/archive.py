"""Archives of simulated vectors, as large as real ones, and encoders of random parameters.

A video has ten minutes of a frame a second, in scenes of ten seconds. A frame's vector is the unit
of its scene's random vector and as much noise: frames of a scene have a cosine of about 0.5, others
of 0. A query is a unit vector with a cosine of about a quarter with the frames of one scene. Every
video is made of its own seed, so nothing larger than a video is ever kept.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from hlformer_jax.search import encoding
from hlformer_jax.search.arrays import VideoArrays
from hlformer_jax.search.fingerprint import Stamp
from hlformer_jax.search.index import Index

SECONDS, SCENE = 600, 10
"""Of a video and of a scene; a frame a second."""

INTERVAL = 3
"""Seconds of an interval of the ranker `segments`: simulated and real videos have about so many."""

_TOWARDS = 0.37
"""Of a query's length, what points to its scene; a frame does with 1 / sqrt(2) of its own."""

BEST = 10
"""How many of the best are asked for."""


class Archive:
    """Simulated vectors of so many hours.

    Attributes:
      videos: number of videos.
      width: d, of a vector.
    """

    def __init__(self, hours: float, width: int) -> None:
        """At least two videos."""
        self.videos = max(round(hours * 3600 / SECONDS), 2)
        self.width = width

    @property
    def frames(self) -> int:
        """Number of frames of all videos."""
        return self.videos * SECONDS

    def vectors(self, video: int) -> Float[np.ndarray, "F d"]:
        """Unit vectors of the frames of a video, float32."""
        scenes, random = self._scenes(video)
        found = random.standard_normal((SECONDS, self.width), np.float32)
        found += scenes.repeat(SCENE, axis=0)
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        return found

    def queries(self, count: int) -> Float[np.ndarray, "Q d"]:
        """Queries, each of which a scene answers, of videos spread over the archive."""
        noise = np.random.default_rng(0).standard_normal((count, self.width))
        found = []
        for i in range(count):
            scenes, _ = self._scenes(i * self.videos // count)
            one, other = (x / np.linalg.norm(x) for x in (scenes[i % len(scenes)], noise[i]))
            found.append(_TOWARDS * one + np.sqrt(1 - _TOWARDS**2) * other)
        return (np.stack(found) / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)

    def write(
        self, directory: Path, encoder: Any, places: tuple[str, ...], queries: np.ndarray
    ) -> tuple[Index, Int[np.ndarray, "Q best"]]:
        """Writes the archive as the index of an encoder.

        Args:
          directory: a new directory.
          encoder: the encoder that the vectors are said to be of.
          places: where it can be loaded from.
          queries: queries, [Q, d].

        Returns:
          The index, and the best frames for each query by their float32 vectors.
        """
        root = directory.with_name(f"{directory.name}-videos")
        index = Index.create(directory, root, encoder, places=places)
        scores = np.full((len(queries), 0), 0, np.float32)
        frames = np.zeros((len(queries), 0), np.int64)
        with index.writing():
            for video in range(self.videos):
                vectors = self.vectors(video)
                put(index, video, vectors)
                scores = np.concatenate([scores, queries @ vectors.T], axis=1)
                own = np.broadcast_to(video * SECONDS + np.arange(SECONDS), (len(queries), SECONDS))
                frames = np.concatenate([frames, own], axis=1)
                first = np.argpartition(-scores, BEST, axis=1)[:, :BEST]
                scores = np.take_along_axis(scores, first, axis=1)
                frames = np.take_along_axis(frames, first, axis=1)
        return index, frames

    def _scenes(self, video: int) -> tuple[Float[np.ndarray, "scenes d"], np.random.Generator]:
        random = np.random.default_rng((video, 1))
        return random.standard_normal((SECONDS // SCENE, self.width), np.float32), random


def put(index: Index, video: int, vectors: Float[np.ndarray, "F d"]) -> None:
    """Writes a video into an index that is held for writing; rows follow the videos' numbers."""
    times = np.arange(SECONDS, dtype=np.float64)
    edges = np.append(times[::INTERVAL], float(SECONDS))
    spans = np.stack([edges[:-1], edges[1:]], axis=-1)
    means = np.add.reduceat(vectors, np.arange(0, SECONDS, INTERVAL), axis=0) / INTERVAL
    kept = vectors.astype(np.float16)
    found = VideoArrays(times, kept, spans, means, np.asarray(float(SECONDS)))
    content = f"{video:08x}" + hashlib.sha256(b"%d" % video).hexdigest()[:56]
    name = f"{video // 100:03}/{video:06}.mp4"
    (index.root / name).parent.mkdir(parents=True, exist_ok=True)
    (index.root / name).touch()  # a search leaves out what is not there
    index.keep(content, found, {name: Stamp(0, 1, 1)})


def prepared_encoder(given: str, folder: Path) -> tuple[Any, tuple[str, ...]]:
    """An encoder that is measured with.

    Args:
      given: "base", as large as SigLIP base/16 at 224 pixels, or "tiny", as the demo's; both of
        random parameters. Or a folder, or a hub id.
      folder: a new directory, into which an encoder of random parameters is written.

    Returns:
      The encoder, and where it can be loaded from again.

    Raises:
      UserError: when there is none, or it cannot be read.
    """
    if given not in ("base", "tiny"):
        return encoding.load(given)
    train, encoders = encoding.extra("encoders.train"), encoding.extra("encoders")
    if given == "tiny":
        pixels, size = 48, train.Size(patch=12, tokens=12)
    else:
        pixels, size = 224, train.Size(768, 12, 12, 4, 16, 64, 32_000)
    words = "a person opens the fridge " + " ".join(f"word{i}" for i in range(size.vocabulary))
    encoders.save(train.untrained(pixels, [words], size=size, name=given), folder)
    return encoding.load(folder)
