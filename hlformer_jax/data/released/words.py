"""An HDF5 file of features: a dataset [rows, width] of floating point for each id.

So the words of captions are published, a row each, and a teacher's vectors of captions and of the
frames of videos.

A file can declare what it does not hold: datasets of any size, or that lie in other files, some of
which never end. What a caption's features need is known, and bounded, before they are read.
"""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from hlformer_jax.data.source import DataError

MOST_WORDS = 10_000
"""Words that a caption may have: far beyond any sentence, far below what memory holds."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a file holds, as messages call it.

    Attributes:
      item: what has an id.
      rows: what its rows are, in the plural.
      features: what the features are of.
      field: the field of the configuration that has their width.
      most: rows that an item may have.
      single: whether an item with one row may be a vector, without an axis of rows.
    """

    item: str = "caption"
    rows: str = "words"
    features: str = "text"
    field: str = "data.text_dim"
    most: int = MOST_WORDS
    single: bool = False


WORDS = Kind()


class WordFeatures:
    """The file, open.

    Attributes:
      path: where it lies.
      width: E, the width of its features.
      kind: what it holds.
    """

    def __init__(self, path: Path, width: int, kind: Kind = WORDS) -> None:
        self.path, self.width, self.kind = path, width, kind
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read as HDF5 ({error}); download it again"
            ) from None

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __contains__(self, name: str) -> bool:
        """Returns whether the file has something of that name."""
        return bool(self._file.id.links.exists(name.encode()))

    def count(self, caption: str, listed: str) -> int:
        """Counts the words of a caption, and checks that they can be read.

        Args:
          caption: its id.
          listed: where the caption is listed, for messages.

        Returns:
          The number of its words.

        Raises:
          DataError: if the file has no such features, or they are not as they should be.
        """
        try:
            return self._count(caption, listed)
        except (RuntimeError, OSError, TypeError) as error:  # HDF5's, and h5py's of odd types
            raise DataError(
                f"{self.path}: is damaged at {self.kind.item} {caption!r} ({error}); download it "
                f"again"
            ) from None

    def read(self, caption: str, words: int) -> np.ndarray:
        """Reads the features of a caption whose words were counted, float32 [words, E]."""
        features = np.empty((words, self.width), np.float32)
        try:
            dataset = h5py.h5d.open(self._file.id, caption.encode())
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, features)
        except (RuntimeError, OSError, KeyError) as error:
            raise DataError(
                f"{self.path}: the features of {self.kind.item} {caption!r} cannot be read "
                f"({error}); download it again"
            ) from None
        return features

    def _count(self, caption: str, listed: str) -> int:
        name = caption.encode()
        named = f"{self.path}: the features of {self.kind.item} {caption!r}"
        links = self._file.id.links
        if not links.exists(name):
            raise self._absent(caption, listed)
        if links.get_info(name).type != h5py.h5l.TYPE_HARD:
            # It may lead to another file, which opening it would open, whatever that is.
            raise DataError(
                f"{named} are a link; they must lie in the file itself, download it again"
            )
        try:
            # The low-level call is several times faster than File.__getitem__.
            dataset = h5py.h5d.open(self._file.id, name)
        except KeyError:
            raise DataError(
                f"{self.path}: {caption!r} is a group or a type; its features must be a dataset at "
                f"the top level, download it again"
            ) from None
        shape, dtype = dataset.shape, dataset.dtype
        if dtype.kind != "f":
            raise DataError(f"{named} are {dtype}, not floating point; download them again")
        if self.kind.single and shape is not None and len(shape) == 1:
            shape = (1, *shape)
        rows = self.kind.rows
        if shape is None or len(shape) != 2:
            raise DataError(f"{named} have shape {shape}, not ({rows}, width); download them again")
        words, width = shape
        if width != self.width:
            raise DataError(
                f"{named} are {width} wide, the configuration says {self.width}; set "
                f"{self.kind.field} to {width}, or use the {self.kind.features} features that "
                f"belong to it"
            )
        if words == 0:
            raise DataError(f"{named} have no {rows}; remove the {self.kind.item}")
        if words > self.kind.most:
            raise DataError(
                f"{named} are said to be of {words} {rows}, more than {self.kind.most}; the file "
                f"is damaged, download it again"
            )
        if dataset.get_offset() is None:  # None but for plain values inside of this file
            self._check_storage(dataset, named)
        return int(words)

    def _check_storage(self, dataset: h5py.h5d.DatasetID, named: str) -> None:
        properties = dataset.get_create_plist()
        kind = properties.get_layout()
        if kind == h5py.h5d.VIRTUAL or properties.get_external_count():
            raise DataError(
                f"{named} lie in another file; they must lie in the file itself, download it again"
            )
        if dataset.get_space_status() != h5py.h5d.SPACE_STATUS_ALLOCATED:
            raise DataError(
                f"{named} were never written, or in part, and would be read as zeros; download "
                f"them again"
            )
        if kind == h5py.h5d.CHUNKED:
            chunk = properties.get_chunk()  # a whole one is read, however few of its values are
            if math.prod(chunk) > self.kind.most * self.width:
                raise DataError(
                    f"{named} are stored in chunks of {chunk} values; the file is damaged, "
                    f"download it again"
                )

    def _absent(self, caption: str, listed: str) -> DataError:
        """The error for a name that the file does not have."""
        group = next(self._groups(), None)
        hint = f"; {self.path} nests them in groups such as {group!r}" if group else ""
        return DataError(
            f"{listed}: {self.kind.item} {caption!r} has no features in {self.path}{hint}; they "
            f"must be a dataset of that name at the top level, correct the id or download both "
            f"again"
        )

    def _groups(self) -> Iterator[str]:
        """Groups among the first hundred names of the file."""
        for name, _ in zip(self._file, range(100), strict=False):
            if self._file.id.links.get_info(name.encode()).type == h5py.h5l.TYPE_HARD:
                if self._file.get(name, getclass=True) is h5py.Group:
                    yield name
