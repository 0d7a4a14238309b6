"""Features in HDF5 files: a dataset for each caption or video, checked before it is read.

A file can declare datasets of any size, or data in other files, so that reading might never end.
Therefore sizes and storage are checked before anything is read.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Float

from hlformer_jax import files
from hlformer_jax.data.sources.protocol import DataError, check_fits

MAX_WORDS = 10_000
"""Largest number of words of a caption: far above any sentence, far below the memory."""

MAX_FRAMES = 1_000_000
"""Largest number of frames of a video: 11 hours at 25 frames per second."""


@dataclasses.dataclass(frozen=True)
class FeatureKind:
    """The kind of features in an HDF5 file: limits, and words for error messages."""

    item: str = "caption"  # noun of an item, which has an id and a dataset
    rows: str = "words"  # noun of the rows of a dataset
    features: str = "text"  # adjective of the features
    field: str = "data.text_dim"  # field of the configuration that has their width
    max_rows: int = MAX_WORDS  # largest number of rows of an item
    single: bool = False  # whether an item with one row may be a vector
    short: bool = False  # whether the caption video#enc#0 of the lists may be video#0 in the file


WORDS = FeatureKind()
ENCODER_ATTRIBUTES = ("encoder", "encoder_fingerprint")
"""Attributes of the files of word features that this package writes."""
VIDEO_FRAMES = FeatureKind("video", "frames", "video", "data.visual_dim", MAX_FRAMES)
TEACHER_FRAMES = FeatureKind("video", "frames", "teacher's", "data.teacher_dim", MAX_FRAMES)
SENTENCES = FeatureKind(rows="vectors", max_rows=1, single=True, short=True)
CLIP_WORDS = FeatureKind(short=True)
TEACHER_CAPTIONS = dataclasses.replace(SENTENCES, features="teacher's", field="data.teacher_dim")


class FeatureFile:
    """An open HDF5 file of features.

    Args:
      path: the file.
      width: width of the features in the configuration.
      kind: the kind of features.

    Raises:
      DataError: if the file cannot be read as HDF5.
    """

    def __init__(self, path: Path, width: int, kind: FeatureKind) -> None:
        self.path, self.width, self.kind = path, width, kind
        self._first_counted = ""  # first item of the right width
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read as HDF5 ({error}); download it again"
            ) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _stored(self, item: str) -> str:
        """Return the name of a caption or video in the file."""
        short = item.replace("#enc#", "#") if self.kind.short else item
        return item if short == item or self._file.id.links.exists(item.encode()) else short

    def count(self, item: str, listed: str) -> int:
        """Return the number of rows of a caption or video.

        Args:
          item: id of the caption or video.
          listed: place of the line that lists it, for messages.

        Raises:
          DataError: if the features are missing or damaged, have another width or dtype, are too
            large, or are stored in another file.
        """
        item = self._stored(item)
        try:
            return self._count(item, listed)
        except (RuntimeError, OSError, TypeError) as error:  # HDF5's, and h5py's of odd types
            raise self._fault(item, f"are damaged ({error})") from None

    def counts(self, places: Mapping[str, str]) -> dict[str, int]:
        """Check items, given with the places that list them; return the rows of each (`count`)."""
        return {item: self.count(item, place) for item, place in places.items()}

    def read(self, item: str, rows: int) -> np.ndarray:
        """Read the features of an item, float32 [rows, E]; `rows` is the result of `count`.

        Raises:
          DataError: if they cannot be read, or hold a number that float32 cannot.
        """
        item = self._stored(item)
        features = np.empty((rows, self.width), np.float32)
        try:
            dataset = h5py.h5d.open(self._file.id, item.encode())
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, features)
            if dataset.dtype.itemsize > features.itemsize and np.isinf(features).any():
                exact = np.empty(features.shape, dataset.dtype)  # HDF5 rounds to infinity
                dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, exact)
                check_fits(exact, lambda row: f"{self.path}: {self._describe(item, row)}")
        except (RuntimeError, OSError, KeyError) as error:
            raise self._fault(item, f"cannot be read ({error})") from None
        return features

    def _describe(self, item: str, row: int) -> str:
        return f"{self.kind.rows.removesuffix('s')} {row} of {self.kind.item} {item!r}"

    def _fault(self, item: str, what: str, remedy: str = "download the file again") -> DataError:
        return DataError(f"{self.path}: the features of {self.kind.item} {item!r} {what}; {remedy}")

    def _count(self, item: str, listed: str) -> int:
        name, kind, links = item.encode(), self.kind, self._file.id.links
        if not links.exists(name):
            raise DataError(
                f"{listed}: {kind.item} {item!r} has no features in {self.path}; expected a"
                " dataset of that name at the top level: correct the id, or download both"
                " files again"
            )
        if links.get_info(name).type != h5py.h5l.TYPE_HARD:
            # A link may lead to another file, which opening the dataset would open.
            raise self._fault(item, "are a link, but must lie in the file itself")
        try:
            # The low-level call is several times faster than File.__getitem__.
            dataset = h5py.h5d.open(self._file.id, name)
        except KeyError:
            what = "are a group or a type, but must be a dataset at the top level"
            raise self._fault(item, what) from None
        shape, dtype = dataset.shape, dataset.dtype
        if dtype.kind != "f":
            raise self._fault(item, f"are {dtype}, not floating point")
        if kind.single and shape is not None and len(shape) == 1:
            shape = (1, *shape)
        if shape is None or len(shape) != 2:
            raise self._fault(item, f"have shape {shape}, not ({kind.rows}, width)")
        rows, width = shape
        if width != self.width:
            remedy = f"set {kind.field} to {width}, or use the {kind.features} features that fit"
            if self._first_counted:  # no width fits both items
                remedy = (
                    f"those of {self._first_counted!r} are {self.width} wide: make or download"
                    f" the features of {item!r} again"
                )
            what = f"are {width} wide, but the configuration says {self.width}"
            raise self._fault(item, what, remedy)
        if rows == 0:
            raise self._fault(item, f"have no {kind.rows}", f"remove the {kind.item}")
        if rows > kind.max_rows:
            raise self._fault(
                item, f"have {rows} {kind.rows}, more than the limit of {kind.max_rows}"
            )
        if dataset.get_offset() is None:  # not None only for contiguous values in this file
            self._check_storage(item, dataset)
        self._first_counted = self._first_counted or item
        return int(rows)

    def _check_storage(self, item: str, dataset: h5py.h5d.DatasetID) -> None:
        properties = dataset.get_create_plist()
        layout = properties.get_layout()
        if layout == h5py.h5d.VIRTUAL or properties.get_external_count():
            raise self._fault(item, "lie in another file, but must lie in the file itself")
        if dataset.get_space_status() != h5py.h5d.SPACE_STATUS_ALLOCATED:
            what = "were never, or only partly, written, and would be read as zeros"
            raise self._fault(item, what)
        if layout == h5py.h5d.CHUNKED:
            chunk = properties.get_chunk()  # HDF5 always reads whole chunks
            if math.prod(chunk) > self.kind.max_rows * self.width:
                raise self._fault(item, f"are stored in chunks of {chunk} values")


def write_words(
    path: Path,
    encoder: tuple[str, str],
    features: Iterable[tuple[str, Float[np.ndarray, "T E"]]],
    replace: files.Replace = files.Replace.NOTHING,
) -> None:
    """Write word features, in float32, as `ReleasedReader` reads them; the write is atomic.

    Args:
      path: the file, such as `Collection.text_features`.
      encoder: name and fingerprint of the encoder.
      features: ids of captions with their word features; each is written at once.
      replace: the existing files that may be replaced.
    """
    with files.atomic_write(path, replace) as draft, h5py.File(draft, "w") as file:
        file.attrs.update(zip(ENCODER_ATTRIBUTES, encoder, strict=True))
        for name, rows in features:
            file[name] = rows.astype(np.float32)
