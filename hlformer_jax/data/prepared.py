"""Prepared sets: array_record files written by TFDS, one record per video, made from any source.

A set is in ``{data_dir}/prvr/{name}_{feature}_{D}x{E}_{storage}_{fingerprint}/``, so that another
source, a changed source or another storage dtype makes another set. If there is a teacher, its
width follows D and E. A set is made atomically: its directory gets its name after the last write,
and processes that need the same set at the same time wait for the first one.
``index.json`` names the source and has the sizes of the files, videos and captions, so that all
sizes are known before a record is read.

Records are in the order of the source's splits. Each is written as soon as it is read, without the
shuffle of TFDS, which would keep a whole split in memory. Splits, shapes and values are checked
before they are written. No other module uses TFDS.
"""

import contextlib
import fnmatch
import functools
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from absl import logging
from array_record.python.array_record_module import ArrayRecordWriter

from hlformer_jax import files, terminal
from hlformer_jax.data.sources.protocol import (
    MAX_MAGNITUDE,
    SPLITS,
    TAUGHT_SPLIT,
    Caption,
    Captions,
    DataError,
    MissingDataError,
    MissingSourceError,
    Reader,
    Source,
    check_memory,
    teacher_width,
)
from hlformer_jax.data.split import PreparedVideos, explained_damage
from hlformer_jax.text import shown

MAX_ZERO_ROWS = 0.25
"""Largest share of frames, or of words, that may be zero; some features have zeros as padding."""

MAX_ZERO_ITEMS = 0.01
"""Largest share of videos, or of captions, that may have only zero rows; real ones have some. One
may have in a data set of any size."""

MAX_UNDERFLOWS = 0.001
"""Largest share of values that float16 may store as 0 without a warning."""

_NAME = "prvr"  # of the folder of all sets, and the beginning of the names of files
_VERSION = "1.0.0"  # of the records
_COPIES = 3  # copies of a record's features in memory: as read, as stored and as serialised
_SHARD_BYTES = 1 << 30
# Features hardly compress, and with TFDS's default, zstd, reading would be five times slower.
_WRITER_OPTIONS = "group_size:1,uncompressed"
_INDEX = "index.json"
_FILES = re.compile(r"index\.json|dataset_info\.json|features\.json|prvr-.+\.array_record.*")


# Sets


class Prepared:
    """A prepared set: the folder of its files, and the source's fingerprint when it was made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._index = _read_index(directory)
        self.fingerprint: str = self._index["fingerprint"]
        with explained_damage(directory):
            self._builder = tfds.builder_from_directory(directory)

    def split(self, name: str) -> PreparedVideos:
        """Return the videos of the split train, val or test."""
        return PreparedVideos(self._builder, name, self._index["splits"][name])


def prepare(source: Source, data_dir: str | Path = "", storage: str = "float32") -> Prepared:
    """Return the prepared set of a source, made on first use with a progress bar.

    Args:
      source: the data set. If it is missing, a set is used that was prepared from a source with its
        name, feature and widths, in the same storage dtype, if there is exactly one.
      data_dir: folder of the prepared sets; empty for TFDS's default, TFDS_DATA_DIR or
        ~/tensorflow_datasets.
      storage: dtype of the stored features, float32 or float16.

    Raises:
      ValueError: for another storage dtype.
      DataError: if the source is faulty, or is missing and there is not exactly one such set, or
        if `dataset_info.json` or `features.json` of the set is damaged.
      OutputError: if the folder of a damaged set holds other files.
      OSError: if the disk is full.
    """
    if storage not in ("float32", "float16"):
        raise ValueError(f"data.storage is {storage!r}; it must be float32 or float16")
    root = files.expand(data_dir or tfds.core.constants.DATA_DIR)
    try:
        fingerprint = source.fingerprint()
    except MissingSourceError as error:
        return _only_prepared(source, root, storage, error)
    if not (isinstance(fingerprint, str) and re.fullmatch("[0-9A-Za-z]{1,64}", fingerprint)):
        raise DataError(
            f"{source.name}/{source.feature}: its fingerprint is {shown(fingerprint)}; it must be"
            f" up to 64 digits and letters, as source.digest gives them"
        )
    directory = root / _NAME / _directory_name(source, storage, fingerprint) / _VERSION
    if not _is_complete(directory):
        busy = "Waiting for another process that prepares %s"
        waiting = functools.partial(logging.info, busy, directory.parent)
        with files.lock(directory.parent, waiting) as alone:
            if not _is_complete(directory):  # another process may have made it meanwhile
                _clear(directory, alone)
                title = f"{source.name}/{source.feature}"
                logging.info("Preparing %s in %s, once", title, directory)
                _write(directory, source, storage, fingerprint)
    return Prepared(directory)


def _clear(directory: Path, alone: bool) -> None:
    """Remove a damaged set and drafts of killed processes; an OutputError for other files."""
    if os.path.lexists(directory):
        logging.warning(
            "%s is damaged (files missing or cut short) and is prepared again", directory
        )
        _remove(directory)
    if alone:
        # No other process works while this one holds the lock, so drafts are of killed processes.
        for stale in directory.parent.glob(f"incomplete.*_{_VERSION}"):
            with contextlib.suppress(OSError):
                _remove(stale)
                logging.warning("%s was left by a killed process; removing it", stale)


def _remove(directory: Path) -> None:
    """Remove the folder of a set; an OutputError if it holds other files."""
    files.check_directory(directory)
    for path in (paths := list(directory.iterdir())):
        if path.is_symlink() or not path.is_file() or not _FILES.fullmatch(path.name):
            raise files.OutputError(f"{path} is not a file of a prepared set: move it away")
    for path in paths:
        path.unlink()
    directory.rmdir()


def _only_prepared(
    source: Source, root: Path, storage: str, missing: MissingSourceError
) -> Prepared:
    pattern = _directory_name(source, storage, "*")
    sets = [
        path
        for path in sorted((root / _NAME).glob(f"{pattern}/{_VERSION}"))
        if _is_complete(path) and _is_of(_read_index(path), source)
    ]
    if not sets:
        remedy = f"{missing.remedy} ({root} has no prepared set either)"
        raise MissingDataError(missing.what, remedy)
    if len(sets) > 1:
        listed = ", ".join(str(path.parent) for path in sets)
        raise DataError(
            f"{source.name}/{source.feature} is missing, and several prepared sets match it:"
            f" {listed}; set data.manual_dir to the source, or remove all sets but one"
        )
    # A folder that the user named may be misspelt, which deserves a warning.
    log = logging.warning if missing.expected else logging.info
    log("%s: using the set prepared in %s", missing.what, sets[0])
    return Prepared(sets[0])


def _is_of(index: dict[str, Any], source: Source) -> bool:
    # The name of the directory is ambiguous: names may contain "_", and characters are replaced.
    return (index["collection"], index["feature"]) == (source.name, source.feature)


def _directory_name(source: Source, storage: str, fingerprint: str) -> str:
    names = [re.sub(r"[^A-Za-z0-9_-]", "-", name) for name in (source.name, source.feature)]
    teacher = teacher_width(source)
    widths = f"{source.visual_dim}x{source.text_dim}" + (f"x{teacher}" if teacher else "")
    return "_".join([*names, widths, storage, fingerprint])


def _read_index(directory: Path) -> dict[str, Any]:
    return json.loads((directory / _INDEX).read_text(encoding="utf-8"))


def _file_sizes(directory: Path) -> dict[str, int]:
    # `glob` would treat a folder that cannot be listed as an empty one.
    names = fnmatch.filter(sorted(os.listdir(directory)), "*.array_record*")
    return {name: (directory / name).stat().st_size for name in names}


def _is_complete(directory: Path) -> bool:
    """Return whether all files of a set have their full size.

    An interrupted copy or a power cut can leave an incomplete set.

    Raises:
      OSError: if the set cannot be read, so that its state is unknown.
    """
    try:
        return _read_index(directory)["files"] == _file_sizes(directory)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, RecursionError):
        return False


# Writing with TFDS


def _write(directory: Path, source: Source, storage: str, fingerprint: str) -> None:
    """Write the set of a source; its directory gets its name after the last write."""
    try:
        with tfds.core.utils.incomplete_dir(directory) as draft:
            _write_files(Path(draft), source, storage, fingerprint)
    except RuntimeError as error:  # array_record reports a full disk or quota by a RuntimeError
        if "() failed: " not in str(error):
            raise
        raise OSError(f"{directory}: {str(error).splitlines()[0]}") from error
    except OSError:
        # Some network disks have no locks: another process may have made the set in the meantime.
        if not _is_complete(directory):
            raise


def _write_files(directory: Path, source: Source, storage: str, fingerprint: str) -> None:
    with source.open() as reader:
        records = Records(source, reader, storage)
        total = sum(map(sum, records.sizes.values()))
        _check_space(directory, total, storage)
        bar = terminal.bar(
            "B",
            total,
            desc=f"Preparing {source.name}/{source.feature}",
            unit_scale=True,
            leave=True,
            disable=False,
            # Seldom, if the output is not a terminal, on which the bar overwrites itself.
            mininterval=0.2 if sys.stderr.isatty() else 15.0,
        )
        features = _features(source, storage)
        with bar:
            infos = [_write_split(directory, features, records, split, bar) for split in SPLITS]
        records.warn_of_zeros()
    if source.fingerprint() != fingerprint:
        raise DataError(
            f"{source.name}/{source.feature}: changed while it was read; start again"
            " when no program writes to it"
        )
    tfds.folder_dataset.write_metadata(
        data_dir=directory,
        features=features,
        split_infos=infos,
        version=_VERSION,
        check_data=False,
        description="Videos and captions of partially relevant video retrieval, as features.",
        disable_shuffling=True,
    )
    teacher = teacher_width(source)
    index = {
        "collection": source.name,
        "feature": source.feature,
        "visual_dim": source.visual_dim,
        "text_dim": source.text_dim,
        "storage": storage,
        "fingerprint": fingerprint,
        **({"teacher_dim": teacher} if teacher else {}),
        "splits": records.indices,
        "files": _file_sizes(directory),
    }
    (directory / _INDEX).write_text(json.dumps(index), encoding="utf-8")


def _features(source: Source, storage: str) -> tfds.features.FeaturesDict:
    """Return the structure of a record, which `Records.make` returns."""
    dtype, teacher = np.dtype(storage), teacher_width(source)

    def rows(width: int) -> tfds.features.Tensor:
        return tfds.features.Tensor(shape=(None, width), dtype=dtype, encoding="bytes")

    taught = ("teacher_frames", "teacher_captions") if teacher else ()
    return tfds.features.FeaturesDict(
        {
            "video_id": tfds.features.Text(),
            "frames": rows(source.visual_dim),
            "caption_ids": tfds.features.Sequence(tfds.features.Text()),
            "sentences": tfds.features.Sequence(tfds.features.Text()),
            "words": rows(source.text_dim),
            "word_counts": tfds.features.Tensor(shape=(None,), dtype=np.int32),
            **{name: rows(teacher) for name in taught},
        }
    )


def _write_split(
    directory: Path, features: tfds.features.FeaturesDict, records: "Records", split: str, bar: Any
) -> tfds.core.SplitInfo:
    template = tfds.core.ShardedFileTemplate(
        data_dir=directory, dataset_name=_NAME, split=split, filetype_suffix="array_record"
    )
    serializer = tfds.core.ExampleSerializer(features.get_serialized_info())
    sizes = records.sizes[split]
    lengths = shard_lengths(sizes, _SHARD_BYTES)
    videos = iter(zip(records.splits[split], sizes, strict=True))
    written = 0
    with ThreadPoolExecutor(max_workers=1) as background:  # writes while the next is read
        for shard, length in enumerate(lengths):
            path = template.sharded_filepath(shard_index=shard, num_shards=len(lengths))
            writer = ArrayRecordWriter(os.fspath(path), _WRITER_OPTIONS)
            writing = background.submit(bool)
            for video, size in itertools.islice(videos, length):
                record = records.make(split, video)
                data = serializer.serialize_example(features.encode_example(record))
                writing.result()
                writing = background.submit(writer.write, data)
                written += len(data)
                bar.update(size)
            writing.result()
            writer.close()
    return tfds.core.SplitInfo(
        name=split, shard_lengths=lengths, num_bytes=written, filename_template=template
    )


def shard_lengths(sizes: list[int], largest: int) -> list[int]:
    """Cut a list of records into shards of consecutive records.

    Args:
      sizes: the bytes of each record.
      largest: the most bytes of a shard; a single larger record is a shard of its own.

    Returns:
      The number of records of each shard.
    """
    lengths, filled = [0], 0
    for size in sizes:
        if lengths[-1] and filled + size > largest:
            lengths.append(0)
            filled = 0
        lengths[-1] += 1
        filled += size
    return lengths


def _check_space(directory: Path, values: int, storage: str) -> None:
    """Raise an OSError if the disk has no room for features of `values` bytes in float32."""
    needed = values * np.dtype(storage).itemsize // 4
    free = shutil.disk_usage(directory).free
    if free < needed:
        remedies = ["free some", "set data.data_dir to another disk"]
        if storage == "float32":
            remedies.append("halve the need with data.storage = 'float16'")
        raise OSError(
            f"{directory.parent}: {needed / 1e6:,.1f} MB are needed for the prepared features and "
            f"{free / 1e6:,.1f} MB are free; {', or '.join(remedies)}"
        )


# Records, checked as they are read


class Records:
    """The records of an open source, checked as they are made.

    The constructor asks for all sizes and reads no features. It raises a DataError if a split is
    faulty, or a record is larger than the memory.

    Attributes:
      splits: the reader's splits, which may be a property that makes them anew at each access.
      sizes: for each split, the bytes of each record with features in float32.
      indices: for each split, ids, sizes and annotations of its videos, for the index of the set.
    """

    def __init__(self, source: Source, reader: Reader, storage: str) -> None:
        self._reader, self._storage = reader, np.dtype(storage)
        self._widths = source.visual_dim, source.text_dim
        self._teacher_dim = teacher_width(source)
        self.splits = reader.splits
        _check_splits(self.splits, reader, source.name)
        self.sizes = {
            split: [self._input_bytes(split, video) for video in self.splits[split]]
            for split in SPLITS
        }
        self.indices = {split: self._index(split) for split in SPLITS}
        json.dumps(self.indices)  # other types than JSON's fail before features are read
        captions, frames, words = (
            sum(sum(index[f"{key}_per_video"]) for index in self.indices.values())
            for key in ("captions", "frames", "words")
        )
        videos = sum(map(len, self.sizes.values()))
        self._zero_frames = _ZeroRows("frames", "videos", videos, frames)
        self._zero_words = _ZeroRows("words", "captions", captions, words)
        self._num_nonzero = self._num_underflows = 0

    def make(self, split: str, video: str) -> dict[str, Any]:
        """Read a video and its captions in a split, and return them as a TFDS example.

        The words of all captions are one array, beside the number of words of each caption,
        because TFDS cannot read a doubly ragged feature without TensorFlow.

        Raises:
          DataError: if a value is not finite or too large for the storage dtype, all values of a
            row are too small for it, or too many rows are zero.
        """
        reader = self._reader
        captions = self.splits[split][video]
        words = []
        for name in (caption.caption_id for caption in captions):
            shape = self._num_words(name), self._widths[1]
            # An error names the caption, not one of its words.
            describe = functools.partial(lambda name, row: reader.describe_caption(name), name)
            words.append(self._checked(reader.read_words(name), shape, describe, self._zero_words))
        describe = functools.partial(reader.describe_frame, video)
        shape = self._num_frames(video), self._widths[0]
        return {
            "video_id": video,
            "frames": self._checked(reader.read_frames(video), shape, describe, self._zero_frames),
            "caption_ids": [caption.caption_id for caption in captions],
            "sentences": [caption.sentence for caption in captions],
            "words": np.concatenate(words),
            "word_counts": np.asarray([len(w) for w in words], np.int32),
            **self._teacher(split, video),
        }

    def _index(self, split: str) -> dict[str, Any]:
        videos = self.splits[split]
        annotations = self._reader.annotations(split)
        taught = self._teacher_dim if split == TAUGHT_SPLIT else 0
        return {
            **({} if annotations is None else {"annotations": annotations}),
            **({"teacher_dim": taught} if taught else {}),
            "video_ids": list(videos),
            "frames_per_video": [self._num_frames(video) for video in videos],
            "captions_per_video": [len(captions) for captions in videos.values()],
            "words_per_video": [
                sum(self._num_words(c.caption_id) for c in cs) for cs in videos.values()
            ],
        }

    def warn_of_zeros(self) -> None:
        """Warn of zero rows in the records that were made, and of many values stored as 0."""
        self._zero_frames.warn()
        self._zero_words.warn()
        if self._num_underflows > MAX_UNDERFLOWS * self._num_nonzero:
            share = self._num_underflows / self._num_nonzero
            logging.warning(
                "%d (%.1f%%) of %d values are too small for %s and are stored as 0; to keep them,"
                " prepare with data.storage = 'float32'",
                *(self._num_underflows, 100 * share, self._num_nonzero, self._storage),
            )

    def _num_frames(self, video: str) -> int:
        return int(self._reader.num_frames(video))  # JSON has no numbers of NumPy

    def _num_words(self, caption_id: str) -> int:
        return int(self._reader.num_words(caption_id))

    def _input_bytes(self, split: str, video: str) -> int:
        captions = self.splits[split][video]
        words = sum(self._num_words(caption.caption_id) for caption in captions)
        visual_dim, text_dim = self._widths
        frames = self._num_frames(video)
        size = 4 * (frames * visual_dim + words * text_dim)
        if split == TAUGHT_SPLIT:  # an estimate: the teacher may have another number of frames
            size += 4 * (frames + len(captions)) * self._teacher_dim
        check_memory(_COPIES * size, f"video {video!r}", "leave it out, or give it fewer frames")
        return size

    def _teacher(self, split: str, video: str) -> dict[str, np.ndarray]:
        """Return the teacher's vectors of a video; arrays without rows except in `TAUGHT_SPLIT`."""
        if not self._teacher_dim:
            return {}
        if split != TAUGHT_SPLIT:
            nothing = np.zeros((0, self._teacher_dim), self._storage)
            return {"teacher_frames": nothing, "teacher_captions": nothing}
        ids = [caption.caption_id for caption in self.splits[split][video]]
        teacher = self._reader.read_teacher(video, ids)
        record = {}
        for name, values, rows in (
            ("frames", teacher.frames, max(len(teacher.frames), 1)),
            ("captions", teacher.captions, len(ids)),
        ):
            part = self._reader.describe_teacher(video, name)
            describe = functools.partial("{}: row {}".format, part)
            record[f"teacher_{name}"] = self._checked(values, (rows, self._teacher_dim), describe)
            if not values.any():
                raise DataError(
                    f"{part}: all values are zero, so they were never written; download them again"
                )
        return record

    def _checked(
        self,
        values: Any,
        shape: tuple[int, int],
        describe: Callable[[int], str],
        zeros: "_ZeroRows | None" = None,
    ) -> np.ndarray:
        """Return checked features in the storage dtype; `describe` names a row in errors."""
        is_array = hasattr(values, "dtype") and hasattr(values, "shape")
        if not is_array or values.dtype != np.float32 or values.shape != shape:
            gave = f"{values.dtype} of shape {values.shape}" if is_array else shown(values)
            raise DataError(
                f"{describe(0)}: the source gave {gave}; it must be an array of float32 of shape"
                f" {shape}"
            )
        limits = {
            MAX_MAGNITUDE: (
                f"but features are numbers from {-MAX_MAGNITUDE:g} to {MAX_MAGNITUDE:g}; the file"
                " is damaged: make or download it again"
            ),
            float(np.finfo(self._storage).max): (
                f"which does not fit into {self._storage}; prepare with data.storage = 'float32'"
            ),
        }
        with np.errstate(invalid="ignore"):  # NumPy warns of some NaNs, which are refused below
            # min and max return NaN if there is one: two passes suffice, without a temporary array.
            largest, least = values.max(), values.min()
            for limit, wrong in limits.items():
                if not (largest <= limit and least >= -limit):
                    row, column = np.argwhere(~(np.abs(values) <= limit))[0]
                    raise DataError(f"{describe(int(row))} holds {values[row, column]:g}, {wrong}")
        if zeros is not None:
            zeros.add(values, describe)
        stored: np.ndarray = values.astype(self._storage, copy=False)
        if stored.dtype != values.dtype:
            self._count_underflows(values, stored, describe)
        return stored

    def _count_underflows(
        self, values: np.ndarray, stored: np.ndarray, describe: Callable[[int], str]
    ) -> None:
        """Count the values that are stored as 0; raise a DataError for a row of only such values.

        A few of them are normal: numbers that happen to be near 0, in a row of larger numbers.
        """
        lost = values.any(axis=1) & ~stored.any(axis=1)
        if lost.any():
            row = int(np.argmax(lost))
            raise DataError(
                f"{describe(row)} holds no value above {np.abs(values[row]).max():g}, and"
                f" {self._storage} stores such values as 0; prepare with data.storage = 'float32'"
            )
        num_nonzero = int(np.count_nonzero(values))
        self._num_nonzero += num_nonzero
        self._num_underflows += num_nonzero - int(np.count_nonzero(stored))


def _check_splits(splits: Mapping[str, Captions], reader: Reader, name: str) -> None:
    """Refuse missing and empty splits, videos and captions without rows, and duplicate ids."""
    if sorted(splits) != sorted(SPLITS):
        raise DataError(f"{name}: has the splits {sorted(splits)}; they must be {SPLITS}")
    for split in SPLITS:
        if not splits[split]:
            raise DataError(f"{name}: split {split!r} has no video; each split needs one")
        ids: set[str] = set()
        for video, captions in splits[split].items():
            if not captions or reader.num_frames(video) < 1:
                lacking = "frame" if captions else "caption"
                raise DataError(
                    f"{name}: video {video!r} of {split} has no {lacking}; leave it out"
                )
            for caption in captions:
                if not isinstance(caption, Caption):
                    raise DataError(
                        f"{name}: video {video!r} of {split} has the caption {shown(caption)};"
                        " captions must be objects of the class protocol.Caption"
                    )
                caption_id, wrong = caption.caption_id, None
                if reader.num_words(caption_id) < 1:
                    wrong = f"of {split} has no word; leave it out"
                elif caption_id in ids:
                    wrong = (
                        f"appears twice in {split}; ids must be unique in a split: rename one of"
                        " them"
                    )
                if wrong:
                    raise DataError(f"{name}: caption {caption_id!r} {wrong}")
                ids.add(caption_id)


class _ZeroRows:
    """Counter of zero rows in features, which interrupted downloads leave."""

    def __init__(self, rows: str, items: str, num_items: int, num_rows: int) -> None:
        self._names = rows, items  # such as frames and videos
        self._limits = MAX_ZERO_ROWS * num_rows, max(1.0, MAX_ZERO_ITEMS * num_items)
        self._read = np.zeros(2, np.int64)  # rows and items
        self._zero = np.zeros(2, np.int64)
        self._first = ""  # description of the first zero row

    def add(self, values: np.ndarray, describe: Callable[[int], str]) -> None:
        """Count the zero rows of one item; raise a DataError if there are too many."""
        nonzero = values.any(axis=1)
        self._read += len(values), 1
        if nonzero.all():
            return
        self._first = self._first or describe(int(np.argmin(nonzero)))
        self._zero += int(np.count_nonzero(~nonzero)), int(not nonzero.any())
        if np.any(self._zero > self._limits):
            raise DataError(
                f"{self._summary()} so far, as after an interrupted download or in data that"
                " were never written; download the file again"
            )

    def warn(self) -> None:
        """Warn of the zero rows, if there are any."""
        if self._first:
            logging.warning("%s; they are used unchanged", self._summary())

    def _summary(self) -> str:
        (rows, items), (zero_rows, zero_items) = self._names, self._zero
        return (
            f"{self._first}: this row is zero, as are {zero_rows}"
            f" ({zero_rows / self._read[0]:.1%}) of the {self._read[0]} {rows} and all"
            f" {rows} of {zero_items} ({zero_items / self._read[1]:.1%}) of the"
            f" {self._read[1]} {items} read"
        )
