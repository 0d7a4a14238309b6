"""Values that an index stores: stamps, records of videos, facts of the encoder, thresholds.

Every value is checked before it is written, by the rules that its reader applies.
"""

import dataclasses
import hashlib
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import SearchError

MAX_TIME_NS = 2**63 - 1
"""Largest time of a file, in nanoseconds since the epoch: 11 April 2262."""

MAX_FILE_BYTES = 2**48 - 1
"""Largest size of a file: 256 TiB."""

MAX_SECONDS = 2**40
"""Lengths and dates of recordings are below, in seconds."""

DTYPE = "float16"
"""Dtype of the frame embeddings on the disk."""

STILL_FRAMES_SHARE = "still frames share embeddings"
"""Part of the key of an index in which they do."""

INDEXED, FAILED = "indexed", "failed"
"""States of a record."""

CONTENT_HASH = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{16}")


class Stamp(NamedTuple):
    """Size and times of a file; an equal stamp means that the content has not changed.

    Times are in nanoseconds. `modified_ns` is what a user or a copy has set, and beyond
    `MAX_TIME_NS` it is kept as that. `changed_ns` is the clock of the disk at the last change, and
    beyond that it wraps around, so that two changes differ.
    """

    size: int
    modified_ns: int
    changed_ns: int  # of its content, its name or its rights

    @classmethod
    def from_status(cls, status: os.stat_result) -> "Stamp":
        """Return the stamp of a file from its status."""
        changed_ns = (status.st_ctime_ns + 2**63) % 2**64 - 2**63
        return cls(status.st_size, status.st_mtime_ns, changed_ns).clipped()

    def clipped(self) -> "Stamp":
        """Return the stamp with both times within `MAX_TIME_NS` of the epoch."""
        times = (max(-MAX_TIME_NS, min(time, MAX_TIME_NS)) for time in self[1:])
        return Stamp(self.size, *times)


UNKNOWN_STAMP = Stamp(0, 0, 0)
"""Stamp of a file that must be read again."""


class ArraysError(SearchError):
    """Embeddings are not finite or have a wrong shape."""


class VideoArrays(NamedTuple):
    """The frame embeddings of one video; times in seconds from its start."""

    times: Float[np.ndarray, " F"]  # of the frames, float64, rising
    vectors: Float[np.ndarray, "F d"]  # unit vectors of the frames, float16
    duration: float  # of the video, in seconds
    warning: str = ""  # a line about parts of the video that could not be used
    recorded: float = 0.0  # time of recording, seconds since the epoch; 0 if unknown


@dataclasses.dataclass(frozen=True)
class EncoderFacts:
    """The identity of an encoder."""

    name: str  # a hub id, or the base name of a folder
    fingerprint: str  # of its weights, tokenizer and preprocessing
    preprocessing: str  # how an image is brought to its size
    width: int  # d, of its embeddings
    places: tuple[str, ...] = ()  # hub id or folders; the first that exists is loaded

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
    """A match threshold that captions have calibrated; see `search.evaluate.threshold`."""

    margin: float  # the score, above the baseline of a query
    false_alarms: float  # percent
    captions: int
    frames: int  # of the archive at the time of calibration


class Entry(NamedTuple):
    """A video of an index, as queries and listings show it."""

    id: str  # 16 hexadecimal digits
    video: str  # its name (`split_name`): the path below its root, with slashes
    folder: str  # of `video`; "" for the first root itself
    path: Path  # absolute
    size: int  # bytes
    modified: float  # time of its last modification, seconds since the epoch
    duration: float  # seconds; 0 if it failed
    frames: int  # that were encoded
    state: str  # "indexed", "failed", or "offline" if its file cannot be reached
    reason: str  # why it failed, or which parts could not be used; else ""
    recorded: float = 0.0  # seconds since the epoch; 0 if unknown
    tags: tuple[str, ...] = ()  # sorted; FAVOURITE is one
    content: str = ""  # content hash; "" if it could not be read

    @property
    def date(self) -> float:
        """Time of its recording, or else of its last modification, in seconds since the epoch."""
        return self.recorded or self.modified

    @property
    def date_of(self) -> str:
        """The kind of `date`: "recording", or "file" for the last modification."""
        return "recording" if self.recorded else "file"


def split_name(video: str) -> tuple[str, str]:
    """Split the name of a video into its root and the path below that.

    The name of a video is its path below its root. For a further root, it begins with the name of
    the root and two slashes, which no path contains.
    """
    root, _, path = video.rpartition("//")
    return root, path


def join_name(root: str, path: str) -> str:
    """Return the name of a video; see `split_name`."""
    return f"{root}//{path}" if root else path


def check_arrays(arrays: VideoArrays, width: int) -> None:
    """Check that arrays can be the embeddings of a video.

    Raises:
      ArraysError: if they cannot; it names the first wrong field.
    """
    frames = len(arrays.times)
    shapes = {"times": (np.float64, (frames,)), "vectors": (np.float16, (frames, width))}
    for name, (dtype, shape) in shapes.items():
        array = getattr(arrays, name)
        if array.dtype != dtype or array.shape != shape or not np.isfinite(array).all():
            raise ArraysError(f"its {name} cannot be stored: not finite, or of a wrong shape")
    if not frames:
        raise ArraysError("it has no frames")
    if not 0 <= arrays.duration < MAX_SECONDS:
        raise ArraysError(f"its duration cannot be stored: {arrays.duration} seconds")
    if not abs(arrays.recorded) < MAX_SECONDS:
        raise ArraysError(f"its date of recording cannot be stored: {arrays.recorded}")


def check_record(name: str, record: Record) -> None:
    """Check that a record can be written.

    Raises:
      ValueError: if it cannot; it names the video.
    """
    path = PurePosixPath(name)
    counts = record.size, record.frames
    is_valid = (
        name not in ("", ".") and "\0" not in name and not path.is_absolute()
        and ".." not in path.parts
        and _ID.fullmatch(record.id)
        and (not record.content or CONTENT_HASH.fullmatch(record.content))
        and record.state in (INDEXED, FAILED)
        and min(counts) >= 0 and max(counts) <= MAX_FILE_BYTES
        and 0 <= record.duration < MAX_SECONDS and abs(record.recorded) < MAX_SECONDS
        and record.stamp == record.stamp.clipped()
        and (not record.indexed or record.content)
    )  # fmt: skip
    if not is_valid:
        raise ValueError(f"the record of {name[:80]!r}")
