"""The frames and words of a node: which rows of its video's features it reads.

A node spans the shares [a, b] of its video. Of the video's L feature rows they are those from
``first = ⌊a L⌋`` to ``last = min(⌊b L⌋, L − 1)``. An evaluation reads F of them at equal distances
(repeated where there are fewer); a training step draws one from each of F intervals that meet at
their ends. The draws are functions of (seed, step, node), so that a run that resumes makes the
same ones, on however many devices.
"""

import zlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from hlformer_jax.typing import Array

SHORT_VIDEOS = ("span", "whole")
"""How the frames of a node are chosen in a video of at most F rows: within its span, or, as
released, all rows of the video, whatever the span."""


def row_range(
    span: Float[np.ndarray, "U 2"],
    duration: Float[np.ndarray, " U"],
    num_rows: Int[np.ndarray, " U"],
) -> Int[np.ndarray, "U 2"]:
    """The first and the last feature row of nodes.

    Args:
      span: seconds at which each begins and ends, inside of its video.
      duration: length of each one's video in seconds.
      num_rows: feature rows of each one's video, at least 1.

    Returns:
      Rows of the videos, int32; the first is not after the last.
    """
    ends = np.stack([span[:, 0], span.max(axis=1)], axis=1)  # a few end before they start
    # The product first: a second at a frame a second is then its frame, and not the one before.
    rows = np.floor(ends * num_rows[:, None] / duration[:, None]).astype(np.int32)
    return np.clip(rows, 0, num_rows[:, None].astype(np.int32) - 1)


def evaluation_rows(
    rows: Int[np.ndarray, "U 2"],
    num_rows: Int[np.ndarray, " U"],
    num_frames: int,
    short_video: str = "span",
) -> Int[np.ndarray, "U F"]:
    """The rows that an evaluation reads of nodes: F at equal distances, rounded down.

    Args:
      rows: the first and the last row of each; see `row_range`.
      num_rows: feature rows of each one's video.
      num_frames: F.
      short_video: one of `SHORT_VIDEOS`.

    Returns:
      Rows of the videos, int32; -1 where padded.
    """
    places = np.linspace(rows[:, 0], rows[:, 1], num_frames, axis=1).astype(np.int32)
    return _short(places, num_rows, short_video)


def training_intervals(
    rows: Int[np.ndarray, "U 2"],
    num_rows: Int[np.ndarray, " U"],
    num_frames: int,
    short_video: str = "span",
) -> tuple[Int[np.ndarray, "U F"], Int[np.ndarray, "U F"]]:
    """The intervals from each of which a training step draws one row; arguments as above.

    Returns:
      The first row of each interval, int32, -1 where padded, and its number of rows, at least 1.
    """
    bounds = np.linspace(rows[:, 0], rows[:, 1], num_frames + 1, axis=1).astype(np.int32)
    low = _short(bounds[:, :-1], num_rows, short_video)
    whole = (num_rows <= num_frames)[:, None] & (short_video == "whole")
    return low, np.where(whole, 1, bounds[:, 1:] - bounds[:, :-1] + 1).astype(np.int32)


def draw(
    seed: int,
    step: Int[Array, ""],
    nodes: Int[Array, " U"],
    count: Int[Array, "U F"],
) -> Int[Array, "U F"]:
    """Draws one row of each interval (inside of jit).

    Args:
      seed: seed of the run.
      step: index of the step in the run.
      nodes: numbers of the nodes in their split, at least 0.
      count: rows of each interval.

    Returns:
      Numbers from 0 to below `count`, uniform, int32; a function of (seed, step, node) for each
      node.
    """
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(b"frames of a node"))
    key = jax.random.fold_in(key, step)
    one = lambda node, most: jax.random.randint(
        jax.random.fold_in(key, node), most.shape, 0, most, jnp.int32
    )
    return jax.vmap(one)(jnp.asarray(nodes), jnp.asarray(count))


def word_rows(
    moments: Sequence[Sequence[int]], counts: Int[np.ndarray, " captions"], max_words: int
) -> Int[np.ndarray, "U W"]:
    """The rows that nodes of one video read of its word features.

    Args:
      moments: for each node, the numbers of its moments.
      counts: rows of each moment of the video; they lie one after another.
      max_words: W; the words of a node are cut to it.

    Returns:
      Rows of the video's words, int32, those of a node's moments one after another; -1 where
      padded.
    """
    starts = np.cumsum(counts) - counts
    found = np.full((len(moments), max_words), -1, np.int32)
    for row, own in zip(found, moments, strict=True):
        words = [starts[k] + np.arange(counts[k]) for k in own]
        told = np.concatenate(words)[:max_words]
        row[: len(told)] = told
    return found


def _short(
    places: Int[np.ndarray, "U F"], num_rows: Int[np.ndarray, " U"], short_video: str
) -> Int[np.ndarray, "U F"]:
    if short_video != "whole":
        return places
    num_frames = places.shape[1]
    every = np.arange(num_frames, dtype=np.int32)
    whole = np.where(every[None] < num_rows[:, None], every[None], np.int32(-1))
    return np.where((num_rows <= num_frames)[:, None], whole, places)
