"""Embeddings of a video's intervals, for the ranker `segments`.

Intervals are computed from the frame embeddings (`retrieval.segments.segments`, TF-PRVR's
algorithm) when the ranker is first used. The matrix of all intervals is then stored in the index's
directory.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from hlformer_jax.errors import DamagedError
from hlformer_jax.retrieval import segments
from hlformer_jax.search.index import Index, packed
from hlformer_jax.search.index.records import VideoArrays


class Intervals(NamedTuple):
    """The intervals of one video, in order and without gaps."""

    starts: Float[np.ndarray, " I"]
    """Seconds at which they begin."""
    embeddings: Float[np.ndarray, "I d"]
    """Their embeddings, float32, with norms below 1."""

    def over_time(
        self, times: Float[np.ndarray, " F"], query: Float[np.ndarray, " d"]
    ) -> Float[np.ndarray, " F"]:
        """Return for each frame the product of a query and the interval that contains the frame.

        Args:
          times: seconds of the frames, rising.
          query: the embedding of the query, float32.
        """
        holder = np.searchsorted(self.starts, times, side="right") - 1
        return packed.multiply(self.embeddings, query)[np.maximum(holder, 0)]


def compute(arrays: VideoArrays) -> Intervals:
    """Compute the intervals of a video."""
    spans, embeddings = segments.segments(arrays.vectors, arrays.times)
    return Intervals(spans[:, 0], embeddings)


def rows(index: Index, contents: Sequence[str]) -> tuple[np.ndarray, list[int], Path]:
    """Return the embeddings of all intervals, one content after the other.

    Args:
      index: the index.
      contents: the hashes of the contents, in order.

    Returns:
      The float32 matrix, mapped from its file if that can be written; the number of rows of each
      content; and the path of the file.

    Raises:
      DamagedError: if frame embeddings are missing or damaged; it names all such contents.
    """
    digest = hashlib.sha256("\0".join([index.key, *contents]).encode()).hexdigest()[:32]
    path = index.directory / "packed" / f"segments-{digest}.npy"
    counts_path = path.with_suffix(".counts.npy")
    width = index.encoder.width
    stored = packed.load_matrix(counts_path, (1, len(contents)), "float32")
    if stored is not None:
        counts = stored[0].astype(int).tolist()
        if (matrix := packed.load_matrix(path, (sum(counts), width), "float32")) is not None:
            return matrix, counts, path
    parts: list[np.ndarray] = []
    damaged: dict[str, str] = {}
    for content in contents:
        try:
            parts.append(compute(index.read(content)).embeddings)
        except DamagedError as error:
            damaged |= error.contents
    if damaged:
        raise DamagedError.from_contents(damaged)
    counts = [len(part) for part in parts]
    packed.discard_outdated(index.directory, "segments-", path)
    matrix = packed.load_or_compute(path, (sum(counts), width), lambda: np.concatenate(parts))
    packed.load_or_compute(counts_path, (1, len(counts)), lambda: np.asarray([counts], np.float32))
    return matrix, counts, path
