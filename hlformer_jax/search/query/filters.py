"""Filters of a query: by folder, tags, length and date."""

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
    for part in _masks(videos, query).values():
        mask &= part
    return mask


def explain(videos: Sequence[Entry], query: Query) -> str:
    """Return which filter of a query no video passes, or that only all together leave none."""
    for reason, mask in _masks(videos, query).items():
        if not mask.any():
            return reason
    return "no video passes all filters, though some videos pass each of them"


def _masks(videos: Sequence[Entry], query: Query) -> dict[str, Bool[np.ndarray, " V"]]:
    """Return which videos pass each filter, by the line that no video does."""
    masks = {f"no video has the tag {tag!r}": _tagged(videos, tag) for tag in query.tags}
    if query.folder:
        masks[f"no video is in {query.folder!r}"] = _inside(videos, query.folder)
    lengths = np.asarray([video.duration for video in videos], np.float64)
    if query.longer is not None:
        masks[f"no video is {query.longer:g} s long or longer"] = lengths >= query.longer
    if query.shorter is not None:
        masks[f"no video is {query.shorter:g} s long or shorter"] = lengths <= query.shorter
    dates = np.asarray([video.date for video in videos], np.float64)
    if query.since is not None:
        masks[f"no video is of {query.since} or later"] = dates >= date_span(query.since)[0]
    if query.until is not None:
        masks[f"no video is of {query.until} or earlier"] = dates < date_span(query.until)[1]
    return masks


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
    folders = {video.folder: legible(video.folder) for video in videos}
    shown_parts = {path: PurePosixPath(caseless(shown)).parts for path, shown in folders.items()}
    mask = np.asarray([shown_parts[video.folder][: len(parts)] == parts for video in videos], bool)
    if not mask.any():
        hint = suggestion(folder, folders.values())
        raise QueryError(
            "the index has no videos in a folder {value!r}{hint}",
            field="folder", value=folder, hint=hint,
        )  # fmt: skip
    return mask
