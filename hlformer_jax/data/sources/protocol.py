"""The protocols of a data set, `Source` and `Reader`, and their errors.

A `Source` identifies a data set. It is cheap to make and reads no features. The files of the data
set may even be missing if it was prepared before. A `Reader` is the opened data set: the
preparation asks it for all sizes first, then for the features of each video, in the order of its
splits. docs/research.md shows how to write both.

A data set may also have a teacher, a model that compares sentences with frames. A loss distils the
teacher's features of the training split. The source then has `teacher_dim`, the width of the
teacher's vectors, and the reader has `read_teacher`.
"""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
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

    Attributes:
      expected: whether the user named the place of the source; then its absence causes a warning.
    """

    def __init__(self, what: str, remedy: str, expected: bool = True) -> None:
        super().__init__(what, remedy)
        self.expected = expected


@dataclasses.dataclass(frozen=True)
class Caption:
    """A caption of a video."""

    caption_id: str  # key of its word features, unique in its split
    sentence: str
    start: float | None = None  # second at which its moment begins; None if not known
    end: float | None = None
    line: int = 0  # in the file that lists it, from 1; 0 where there is none


Captions: TypeAlias = Mapping[str, Sequence[Caption]]
"""The captions of every video of a split, by the video's id; both in the order of the source."""


class Teacher(NamedTuple):
    """A teacher's vectors of a video's frames, in time order, and captions; float32, of any norm.

    The video's features may have another number of frames.
    """

    frames: Float[np.ndarray, "T D"]
    captions: Float[np.ndarray, "M D"]


@runtime_checkable
class Reader(Protocol):
    """A data set that is open. It is read by one thread at a time.

    A class with `Reader` as its base class inherits the methods that have a body.

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
        """Return the number of frames of a video, at least 1; called before features are read."""
        ...

    def num_words(self, caption_id: str) -> int:
        """Return the number of words of a caption, at least 1; called before features are read."""
        ...

    def read_frames(self, video: str) -> Float[np.ndarray, "T D"]:
        """Read the features of a video's frames in time order, neither pooled nor normalised.

        The caller checks that they are finite, at most `MAX_MAGNITUDE` and not mostly zero.

        Returns:
          The features, float32; T is `num_frames(video)`.

        Raises:
          DataError: if they cannot be read.
        """
        ...

    def read_words(self, caption_id: str) -> Float[np.ndarray, "T E"]:
        """Read the features of a caption's words, float32; otherwise as `read_frames`."""
        ...

    def read_teacher(self, video: str, caption_ids: list[str]) -> Teacher:
        """Read a teacher's vectors of a video of `TAUGHT_SPLIT` and of its captions.

        Args:
          video: id of the video.
          caption_ids: ids of the video's captions; the result has their vectors in this order.

        Raises:
          DataError: if the data set has no teacher, or the vectors cannot be read.
        """
        raise DataError(f"video {video!r} has no features of a teacher: set data.teacher_dim to 0")

    def annotations(self, split: str) -> Any:
        """Return further facts about a split, such as times of moments, or None.

        Returns:
          A value of JSON types. The prepared set stores it unchanged, and gives it back as
          `PreparedVideos.annotations`.
        """
        return None

    def describe_frame(self, video: str, index: int) -> str:
        """Return the description of a frame in errors: its file, and its name in the file."""
        return f"frame {index} of video {video!r}"

    def describe_caption(self, caption_id: str) -> str:
        """Return the description of a caption in errors: the file of its features, and its id."""
        return f"caption {caption_id!r}"

    def describe_teacher(self, video: str, part: str) -> str:
        """Return the description in errors of a teacher's "frames" or "captions" of a video."""
        return f"the teacher's {part} of video {video!r}"


@runtime_checkable
class Source(Protocol):
    """A data set that can be opened.

    Name, feature, widths and fingerprint are parts of the name of the prepared set's directory.
    Each attribute may be a property.

    Attributes:
      name: the data set, such as activitynet.
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
        """Return a text that identifies the content of the data set.

        It must be cheap: it is called at every start, and before and after a preparation.

        Returns:
          1 to 64 digits and letters (see `digest`), which differ if the content differs.

        Raises:
          MissingSourceError: if the source is missing. Then a set is used that was prepared from a
            source with this name, feature and widths, in the same storage dtype, if there is
            exactly one.
          DataError: if a part of the source is missing.
        """
        ...

    def open(self) -> AbstractContextManager[Reader]:
        """Return a context manager that opens the data set, once for each preparation.

        Raises:
          DataError: if one of the checks fails that need no features.
        """
        ...


def teacher_width(source: Source) -> int:
    """Return the width of the vectors of a source's teacher; 0 without a teacher."""
    return int(getattr(source, "teacher_dim", 0))


def digest(*parts: object) -> str:
    """Return a fingerprint, twelve hexadecimal digits, of the parts that identify a source."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


def stamps(files: Iterable[Any]) -> list[object]:
    """Return name, size and time of files, given as paths or `os.DirEntry`, for a fingerprint."""
    stats = [(file.name, file.stat()) for file in files]
    return [part for name, stat in stats for part in (name, stat.st_size, stat.st_mtime_ns)]


def check_fits(features: np.ndarray, describe: Callable[[int], str]) -> None:
    """Check that float32 can hold features, before they are rounded to it.

    Args:
      features: the features as they are stored, [rows, D].
      describe: function that names a row in errors.

    Raises:
      DataError: if it would round a finite number to infinity.
    """
    with np.errstate(over="ignore"):
        lost = np.isfinite(features) & np.isinf(features.astype(np.float32))
    if lost.any():
        row, column = np.argwhere(lost)[0]
        raise DataError(
            f"{describe(int(row))} holds {features[row, column]:g}, which is beyond the numbers of"
            " float32; the file is damaged: make or download it again"
        )


def check_memory(needed: float, what: str, remedy: str) -> None:
    """Refuse to allocate more bytes than the machine's memory.

    Args:
      needed: the bytes.
      what: the cause of the allocation, for the message.
      remedy: what to do, for the message.

    Raises:
      DataError: if the machine has less memory.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > total:
        raise DataError(
            f"{what} would take {needed / 1e9:.1f} GB of memory, and this machine has "
            f"{total / 1e9:.1f} GB; {remedy}"
        )
