"""Values that an index stores: stamps, records of videos, facts of the encoder, thresholds.

Embeddings and records are checked before they are written (`check_arrays`, `check_record`).
"""

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import QueryError, SearchError

MAX_TIME_NS = 2**63 - 1
"""Largest time of a file, in nanoseconds since the epoch: 11 April 2262."""

MAX_FILE_BYTES = 2**48 - 1
"""Largest size of a file: 256 TiB."""

MAX_SECONDS = 2**40
"""Lengths of videos and dates of recordings are below this number of seconds."""

DTYPE = "float16"
"""Dtype of the frame embeddings on the disk."""

STILL_FRAMES_SHARE = "still frames share embeddings"
"""Part of the key of an index whose still frames share embeddings."""

INDEXED, FAILED = "indexed", "failed"
"""States of a record."""

MAX_FPS = 1000
"""Largest number of frames a second that an index may have."""

CONTENT_HASH = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{16}")


class Stamp(NamedTuple):
    """Size and times of a file; an equal stamp means that the content has not changed.

    Times are in nanoseconds since the epoch. Users and copying programs can set `modified_ns`; a
    time beyond `MAX_TIME_NS` is stored as `MAX_TIME_NS`. The disk sets `changed_ns` at every
    change; a larger value wraps around, so that two changes still differ.
    """

    size: int
    modified_ns: int
    changed_ns: int  # last change of the content, the name or the rights

    @classmethod
    def from_status(cls, status: os.stat_result) -> "Stamp":
        """Return the stamp of a file from its status."""
        changed_ns = (status.st_ctime_ns + 2**63) % 2**64 - 2**63
        return cls(status.st_size, status.st_mtime_ns, changed_ns).clipped()

    def clipped(self) -> "Stamp":
        """Return the stamp with both times limited to `MAX_TIME_NS` before and after the epoch."""
        times = (max(-MAX_TIME_NS, min(time, MAX_TIME_NS)) for time in self[1:])
        return Stamp(self.size, *times)


UNKNOWN_STAMP = Stamp(0, 0, 0)
"""Stamp of a file that must be read again."""


class Exclusion(NamedTuple):
    """The removed file of a path; other content at the path is not removed."""

    content: str  # content hash; "" if it is unknown, and any file at the path is removed
    stamp: Stamp  # `UNKNOWN_STAMP` in an index of an earlier version

    def covers(self, stamp: Stamp) -> bool:
        """Return whether a file at the path is the removed one, without reading it."""
        return not self.content or stamp == self.stamp


class ArraysError(SearchError):
    """Error for embeddings that cannot be stored, for example because they are not finite."""


def equal_fields(first: tuple, second: object) -> bool:
    """Return whether two named tuples have one type and equal fields, arrays by their elements."""
    if not isinstance(second, type(first)):
        return False
    pairs = zip(first, second, strict=True)
    return all(np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y for x, y in pairs)


class VideoArrays(NamedTuple):
    """The frame embeddings of one video; times in seconds from its start."""

    times: Float[np.ndarray, " F"]  # of the frames, float64, rising
    vectors: Float[np.ndarray, "F d"]  # unit vectors of the frames, float16
    duration: float  # of the video, in seconds
    warning: str = ""  # a line about parts of the video that could not be used
    recorded: float = 0.0  # time of recording, seconds since the epoch; 0 if unknown

    def __eq__(self, value: object) -> bool:
        """Return whether all fields are equal, arrays element by element."""
        return equal_fields(self, value)

    def __ne__(self, value: object) -> bool:
        """Return whether a field differs."""
        return not self == value


@dataclasses.dataclass(frozen=True)
class EncoderFacts:
    """The identity of an encoder."""

    name: str  # a hub id, or the base name of a folder
    fingerprint: str  # of its weights, tokenizer and preprocessing
    preprocessing: str  # how an image is scaled to the encoder's size
    width: int  # number of coordinates d of an embedding
    places: tuple[str, ...] = ()  # hub id or folders to load it from; the first that exists is used

    @classmethod
    def from_encoder(cls, encoder: Encoder, places: tuple[str, ...] = ()) -> "EncoderFacts":
        """Return the facts of an encoder of `hlformer_jax.encoders`."""
        facts = encoder.name, encoder.fingerprint, encoder.preprocessing, int(encoder.width)
        return cls(*facts, places)

    def key(self, fps: float, every_frame: bool) -> str:
        """Return a digest of everything that determines embeddings.

        That is the encoder, the rate, the dtype, and whether still frames share embeddings.
        """
        parts: tuple[Any, ...] = (self.fingerprint, self.preprocessing, self.width, fps, DTYPE)
        parts += () if every_frame else (STILL_FRAMES_SHARE,)
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()

    def check(self, encoder: Encoder, directory: Path) -> None:
        """Check that an encoder has these facts.

        Args:
          encoder: the encoder.
          directory: the directory of the index with these facts, for the error.

        Raises:
          QueryError: if the fingerprint, the preprocessing or the width differs.
        """
        candidate = EncoderFacts.from_encoder(encoder)
        expected, label = self.name, repr(candidate.name)
        if self.name == candidate.name:  # as the names of folders may be
            expected, label = (*self.places, self.name)[0], "the given encoder of the same name"
        for field in ("fingerprint", "preprocessing", "width"):
            if getattr(self, field) != getattr(candidate, field):
                raise QueryError(
                    "{directory} was made by the encoder {expected!r}, and {label} has another"
                    " {difference}: give {encoder}={expected}, or a new {index}",
                    field="encoder", directory=directory, expected=expected, label=label,
                    difference=field,
                )  # fmt: skip


def present_places(places: Iterable[str]) -> list[str]:
    """Return the places of an encoder that are hub ids or folders that exist."""
    return [place for place in places if not os.path.isabs(place) or os.path.isdir(place)]


@dataclasses.dataclass(frozen=True)
class Record:
    """The record of one path.

    The last fields describe its content; they have their defaults if indexing failed.
    """

    id: str  # 16 hexadecimal digits, unique in the index
    content: str  # content hash; "" if the file could not be read
    size: int
    modified_ns: int
    changed_ns: int
    state: str  # `INDEXED` or `FAILED`
    reason: str = ""  # why it failed, or a warning about parts that could not be used
    duration: float = 0.0  # seconds
    frames: int = 0
    recorded: float = 0.0  # time of recording, seconds since the epoch; 0 if unknown

    @property
    def indexed(self) -> bool:
        """True if there are embeddings."""
        return self.state == INDEXED

    @property
    def stamp(self) -> Stamp:
        """The stamp of the file."""
        return Stamp(self.size, self.modified_ns, self.changed_ns)


@dataclasses.dataclass(frozen=True)
class Threshold:
    """A match threshold, calibrated by captions; see `search.evaluate.threshold`."""

    margin: float  # distance of the threshold from the baseline of a query
    false_alarms: float  # percent of absent things whose score reaches the threshold
    captions: int  # number of captions
    frames: int  # number of frames of the archive at the time of calibration


class Entry(NamedTuple):
    """A video of an index, as queries and listings show it."""

    id: str  # 16 hexadecimal digits
    video: str  # its name (`split_name`): the path below its root, with slashes
    folder: str  # the part of `video` before its file name; "" for the first root itself
    path: Path  # absolute
    size: int  # bytes
    modified: float  # time of its last modification, seconds since the epoch
    duration: float  # seconds; 0 if it failed
    frames: int  # number of frames in the index; still frames count too
    state: str  # "indexed", "failed", or "offline" if its file cannot be reached
    reason: str  # why it failed, or which parts could not be used; else ""
    recorded: float = 0.0  # seconds since the epoch; 0 if unknown
    tags: tuple[str, ...] = ()  # sorted; FAVOURITE may be one of them
    content: str = ""  # content hash; "" if the file could not be read

    @property
    def date(self) -> float:
        """Time of the recording, or else of the last modification, in seconds since the epoch."""
        return self.recorded or self.modified

    @property
    def date_of(self) -> str:
        """The kind of `date`: "recording", or "file" for the last modification."""
        return "recording" if self.recorded else "file"


def split_name(video: str) -> tuple[str, str]:
    """Split the name of a video into the name of its root and the path below the root.

    The name of a video in the first root is its path below the root. In a further root it begins
    with the name of the root and two slashes, which no path contains.
    """
    root, _, path = video.rpartition("//")
    return root, path


def join_name(root: str, path: str) -> str:
    """Return the name of a video; see `split_name`."""
    return f"{root}//{path}" if root else path


def check_arrays(arrays: VideoArrays, width: int) -> None:
    """Check that arrays can be the embeddings of a video.

    Raises:
      ArraysError: if they cannot; the error names the first wrong field.
    """
    frames = len(arrays.times)
    shapes = {"times": (np.float64, (frames,)), "vectors": (np.float16, (frames, width))}
    for name, (dtype, shape) in shapes.items():
        array = getattr(arrays, name)
        if array.dtype != dtype or array.shape != shape:
            raise ArraysError(
                f"its {name} must be {np.dtype(dtype)} of shape {shape}, got {array.dtype} of shape"
                f" {array.shape}"
            )
        if wrong := np.count_nonzero(~np.isfinite(array)):
            raise ArraysError(f"{wrong} of the {array.size} numbers of its {name} are not finite")
    if not frames:
        raise ArraysError("it has no frames")
    if not 0 <= arrays.duration < MAX_SECONDS:
        raise ArraysError(
            f"its duration must be at least 0 and below {MAX_SECONDS} seconds, got"
            f" {arrays.duration}"
        )
    if not abs(arrays.recorded) < MAX_SECONDS:
        raise ArraysError(
            f"its date of recording must be within {MAX_SECONDS} seconds of 1970, got"
            f" {arrays.recorded}"
        )


def check_record(name: str, record: Record) -> None:
    """Check that a record can be written.

    Raises:
      ValueError: if it cannot; the error names the video and the first wrong field, with its value
        and its allowed values.
    """
    path = PurePosixPath(name)
    is_name = name not in ("", ".") and "\0" not in name and ".." not in path.parts
    is_name = is_name and not path.is_absolute()
    is_content = CONTENT_HASH.fullmatch(record.content) or not (record.content or record.indexed)
    clipped = record.stamp.clipped()
    counts = f"from 0 to {MAX_FILE_BYTES}"
    fields = {
        "name": (is_name, "the relative path of a file, without '..' and '\\0'"),
        "id": (_ID.fullmatch(record.id), "16 hexadecimal digits"),
        "content": (is_content, "64 hexadecimal digits, or nothing for a failed video"),
        "state": (record.state in (INDEXED, FAILED), f"{INDEXED!r} or {FAILED!r}"),
        "size": (0 <= record.size <= MAX_FILE_BYTES, counts),
        "frames": (0 <= record.frames <= MAX_FILE_BYTES, counts),
        "duration": (
            0 <= record.duration < MAX_SECONDS,
            f"at least 0 and below {MAX_SECONDS} seconds",
        ),
        "recorded": (abs(record.recorded) < MAX_SECONDS, f"within {MAX_SECONDS} seconds of 1970"),
        "stamp": (record.stamp == clipped, clipped),
    }
    for field, (is_valid, allowed) in fields.items():
        if not is_valid:
            value = name if field == "name" else getattr(record, field)
            raise ValueError(
                f"the record of {name[:80]!r} cannot be written: its {field} is"
                f" {str(value)[:80]!r}, allowed: {allowed}"
            )


def check_rate(fps: float) -> None:
    """Check that a rate is above 0 and at most `MAX_FPS` frames a second.

    Raises:
      QueryError: if it is not.
    """
    if not 0 < fps <= MAX_FPS:
        raise QueryError(
            "{fps}={value:g}: give a number of frames a second above 0 and up to {maximum}, such"
            " as 1",
            field="fps", value=fps, maximum=MAX_FPS,
        )  # fmt: skip
