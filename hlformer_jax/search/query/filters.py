"""Filters of a query: by folder, tags, length and date."""

import math
from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np
from jaxtyping import Bool

from hlformer_jax.errors import QueryError
from hlformer_jax.search.index import Entry, tag_key
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.times import date_span
from hlformer_jax.text import caseless, legible, suggestion


def passing(videos: Sequence[Entry], query: Query) -> Bool[np.ndarray, " V"]:
    """Return which videos pass the filters of a query.

    Args:
      videos: all videos of the index.
      query: the query.

    Returns:
      A mask of the videos.

    Raises:
      QueryError: if no video of the index has one of the tags, or none is in the folder.
    """
    mask = np.ones(len(videos), bool)
    for tag in query.tags:
        mask &= _tagged(videos, tag)
    lengths = np.asarray([video.duration for video in videos], np.float64)
    mask &= lengths >= (query.longer or 0)
    mask &= lengths <= (math.inf if query.shorter is None else query.shorter)
    if query.folder:
        mask &= _inside(videos, query.folder)
    dates = np.asarray([video.date for video in videos], np.float64)
    if query.since is not None:
        mask &= dates >= date_span(query.since)[0]
    if query.until is not None:
        mask &= dates < date_span(query.until)[1]
    return mask


def _tagged(videos: Sequence[Entry], tag: str) -> Bool[np.ndarray, " V"]:
    key = tag_key(tag)
    mask = np.asarray([key in map(tag_key, video.tags) for video in videos], bool)
    if not mask.any():
        hint = suggestion(tag, {used for video in videos for used in video.tags})
        raise QueryError(
            "no video of the index has the tag {value!r}{hint}", field="tags", value=tag, hint=hint
        )
    return mask


def _inside(videos: Sequence[Entry], folder: str) -> Bool[np.ndarray, " V"]:
    """Return which videos are in a folder or below it, without case and forms of accents.

    Raises:
      QueryError: if no video is.
    """
    folder = legible(folder)  # as folders are shown: a user cannot type bytes that are not text
    parts = PurePosixPath(caseless(folder.strip("/"))).parts
    if not parts:
        return np.ones(len(videos), bool)
    folders = [PurePosixPath(caseless(legible(video.folder))).parts for video in videos]
    mask = np.asarray([path[: len(parts)] == parts for path in folders], bool)
    if not mask.any():
        hint = suggestion(folder, {legible(video.folder) for video in videos})
        raise QueryError(
            "the index has no videos in a folder {value!r}{hint}",
            field="folder", value=folder, hint=hint,
        )  # fmt: skip
    return mask
