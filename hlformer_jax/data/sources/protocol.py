"""The protocols of a data set, `Source` and `Reader`, and the errors of one.

`Source` names a data set. It is cheap to make, reads nothing and may even be missing: if the set
was prepared before, its name is enough. `Reader` is the opened data set: it is asked for sizes
first, then for the features of each video in the order of its splits. docs/data.md shows how to
write one.

A data set may have a teacher besides, a model that compares sentences with frames and whose
features of the training split a loss distils. Its source then has `teacher_dim`, the width of the
teacher's vectors, and its reader `read_teacher`.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float

from hlformer_jax.errors import UserError

SPLITS = ("train", "val", "test")

TAUGHT_SPLIT = "train"
"""The split whose teacher features are read."""

MAX_MAGNITUDE = 1e10
"""Largest magnitude of a feature's values; larger ones are damaged or decoded wrongly."""


class DataError(UserError, ValueError):
    """A data set is faulty; the message says what is wrong, where, and what to do."""


class MissingDataError(DataError):
    """A data set or a file of it does not exist; damaged or unreadable files are `DataError`s.

    Attributes:
      what: the missing file or folder.
      remedy: what to do; it ends the message.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what, self.remedy = what, remedy


class MissingSourceError(MissingDataError):
    """A source is missing; a set that was prepared from it may still exist.

    `expected` says whether the user named its place, so that its absence deserves a warning.
    """

    def __init__(self, what: str, remedy: str, expected: bool = True) -> None:
        super().__init__(what, remedy)
        self.expected = expected


@dataclasses.dataclass(frozen=True)
class Caption:
    """A caption of a video."""

    caption_id: str  # key of its word features, unique in its split
    sentence: str
    start: float | None = None  # second at which its moment begins; None where not known
    end: float | None = None
    line: int = 0  # in the file that lists it, from 1; 0 where there is none


Captions: TypeAlias = Mapping[str, Sequence[Caption]]
"""The captions of every video of a split, by the video's id; both orders are kept."""


class Teacher(NamedTuple):
    """A teacher's vectors of a video's frames, in time order, and captions; float32, of any norm.

    It need not have as many frames as the video's features.
    """

    frames: Float[np.ndarray, "T D"]
    captions: Float[np.ndarray, "M D"]


@runtime_checkable
class Reader(Protocol):
    """A data set that is open. It is read by one thread at a time.

    A class that names `Reader` as its base inherits the methods that have a body.

    Attributes:
      splits: the splits train, val and test, in the order in which their videos are prepared; an
        attribute or a property. Each has at least one video, and each video at least one caption.
        A video may be in several splits, with other captions or with the same.
    """

    if TYPE_CHECKING:

        @property
        def splits(self) -> Mapping[str, Captions]: ...  # noqa: D102

    else:  # a property here could not be set in the `__init__` of a subclass
        splits: Mapping[str, Captions]

    def num_frames(self, video: str) -> int:
        """The number of frames of a video, at least 1; asked before any feature is read."""
        ...

    def num_words(self, caption_id: str) -> int:
        """The number of words of a caption, at least 1; asked before any feature is read."""
        ...

    def read_frames(self, video: str) -> Float[np.ndarray, "T D"]:
        """Reads the features of a video's frames in time order, neither pooled nor normalised.

        They are float32. The caller checks that they are finite, below `MAX_MAGNITUDE` and not
        mostly zero. A DataError when they cannot be read.
        """
        ...

    def read_words(self, caption_id: str) -> Float[np.ndarray, "T E"]:
        """Reads the features of a caption's words, float32; as `read_frames`."""
        ...

    def read_teacher(self, video: str, caption_ids: list[str]) -> Teacher:
        """Reads a teacher's features of a video of `TAUGHT_SPLIT` and of captions of it there."""
        raise DataError(f"video {video!r} has no features of a teacher: set data.teacher_dim to 0")

    def annotations(self, split: str) -> Any:
        """Facts of a split beside its captions, in types of JSON; None for none.

        It is kept with the prepared set, whole, as `PreparedVideos.annotations`.
        """
        return None

    def describe_frame(self, video: str, index: int) -> str:
        """The name of a frame of a video in errors: its place, and its name there."""
        return f"frame {index} of video {video!r}"

    def describe_caption(self, caption_id: str) -> str:
        """The name of a caption in errors: the place of its features, and its id."""
        return f"caption {caption_id!r}"

    def describe_teacher(self, video: str, part: str) -> str:
        """The name in errors of a teacher's "frames" or "captions" of a video: their place."""
        return f"the teacher's {part} of video {video!r}"


@runtime_checkable
class Source(Protocol):
    """A data set that can be opened.

    Name, feature, widths and fingerprint together name the directory of the prepared set.

    Attributes:
      name: the data set, such as activitynet; an attribute or a property, as the others.
      feature: the extractor of its frames' features, such as i3d.
      visual_dim: D, the width of a frame's features.
      text_dim: E, the width of a word's features.
    """

    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...  # noqa: D102

        @property
        def feature(self) -> str: ...  # noqa: D102

        @property
        def visual_dim(self) -> int: ...  # noqa: D102

        @property
        def text_dim(self) -> int: ...  # noqa: D102

    else:  # properties here could not be set in the `__init__` of a subclass
        name: str
        feature: str
        visual_dim: int
        text_dim: int

    def fingerprint(self) -> str:
        """Identifies the content, cheaply: asked at every start, and before and after preparing.

        Returns:
          Digits and letters (see `digest`); another content, or a changed one, has others.

        Raises:
          MissingSourceError: if the source is missing. Then the only set that was prepared from a
            source with this name, feature and widths is used.
          DataError: when a part of it is missing.
        """
        ...

    def open(self) -> AbstractContextManager[Reader]:
        """A context manager that opens the data set, once for each preparation, and closes it.

        It makes the cheap checks, and raises a DataError if one of them fails.
        """
        ...


def teacher_width(source: Source) -> int:
    """Width of the vectors of a source's teacher; 0 where it has none."""
    return int(getattr(source, "teacher_dim", 0))


def digest(*parts: object) -> str:
    """Return a fingerprint of the parts that identify a source: twelve hexadecimal digits."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


def check_memory(needed: float, what: str, remedy: str) -> None:
    """Refuse to allocate more bytes than the machine's memory.

    The DataError names the cause of the allocation and the remedy.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > total:
        raise DataError(
            f"{what} would take {needed / 1e9:.1f} GB of memory, and this machine has "
            f"{total / 1e9:.1f} GB; {remedy}"
        )
