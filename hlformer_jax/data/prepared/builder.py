"""TFDS builder: the released layout → array_record, one record per video. Alone in knowing TFDS.

A prepared set lies in ``{data_dir}/prvr/{collection}_{feature}_{D}x{E}_{storage}_{fingerprint}/``,
so that another source, a changed one or another storage is another set. Records stand in the order
in which the caption list first names their videos. They are written as they are read, without the
shuffle of TFDS, which would hold a whole split in memory. The directory gets its name when it is
complete, and `prepared` reads it.
"""

import dataclasses
import functools
import itertools
import os
import re
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from absl import logging
from array_record.python.array_record_module import ArrayRecordWriter
from tqdm import tqdm

from hlformer_jax.data.prepared.records import (
    check_space,
    index_of,
    input_bytes,
    make_record,
    shard_lengths,
)
from hlformer_jax.data.prepared.source import Prepared, is_complete, read_index, write_index
from hlformer_jax.data.released.layout import SPLITS, Collection, ReleasedDataError
from hlformer_jax.data.released.reader import Released, open_collection
from hlformer_jax.run import lock

_STORAGES = ("float32", "float16")
_SHARD_BYTES = 1 << 30
# Features hardly compress, and zstd, TFDS's choice, would read them five times slower.
_WRITER_OPTIONS = "group_size:1,uncompressed"


@dataclasses.dataclass(eq=False)
class PrvrConfig(tfds.core.BuilderConfig):
    """What a prepared set is made of; see `Collection`."""

    collection: str = ""
    feature: str = ""
    visual_dim: int = 0
    text_dim: int = 0
    storage: str = "float32"
    fingerprint: str = ""


class _Info(tfds.core.DatasetInfo):
    def initialize_from_bucket(self) -> None:
        """Looks nowhere: none of these sets lies in TFDS's bucket, and no network is needed."""


class Prvr(tfds.core.DatasetBuilder):
    """Features of partially relevant video retrieval, one record per video."""

    VERSION = tfds.core.Version("1.0.0")  # of the records; another version is another directory
    MANUAL_DOWNLOAD_INSTRUCTIONS = "The features published with MS-SL, in the layout of `layout`."

    def _info(self) -> tfds.core.DatasetInfo:
        config: PrvrConfig = self.builder_config
        dtype = np.dtype(config.storage)

        def rows(width: int) -> tfds.features.Tensor:
            return tfds.features.Tensor(shape=(None, width), dtype=dtype, encoding="bytes")

        return _Info(
            builder=self,
            description="Videos and captions of partially relevant video retrieval, as features.",
            features=tfds.features.FeaturesDict(
                {
                    "video_id": tfds.features.Text(),
                    "frames": rows(config.visual_dim),
                    "caption_ids": tfds.features.Sequence(tfds.features.Text()),
                    "sentences": tfds.features.Sequence(tfds.features.Text()),
                    "words": rows(config.text_dim),
                    "word_counts": tfds.features.Tensor(shape=(None,), dtype=np.int32),
                }
            ),
            disable_shuffling=True,
        )

    def _download_and_prepare(self, dl_manager: Any, download_config: Any = None) -> None:
        config: PrvrConfig = self.builder_config
        collection = _collection(config, dl_manager.manual_dir)
        directory = Path(self.data_dir)  # TFDS's temporary one; it is renamed when all is written
        with open_collection(collection) as source:
            sizes = {
                split: [input_bytes(source, split, video) for video in source.splits[split]]
                for split in SPLITS
            }
            total = sum(map(sum, sizes.values()))
            check_space(directory, total * np.dtype(config.storage).itemsize // 4)
            with _progress_bar(f"Preparing {config.collection}/{config.feature}", total) as bar:
                infos = [self._write(source, split, sizes[split], bar) for split in SPLITS]
            index = {
                **{field: getattr(config, field) for field in _IDENTITY},
                "splits": {split: index_of(source, split) for split in SPLITS},
            }
            if collection.fingerprint() != config.fingerprint:
                raise ReleasedDataError(
                    f"{collection.root}: changed while it was read; start again when it is still"
                )
        self.info.set_splits(tfds.core.SplitDict(infos))
        write_index(directory, index)

    def _write(
        self, source: Released, split: str, sizes: list[int], bar: tqdm
    ) -> tfds.core.SplitInfo:
        template = tfds.core.ShardedFileTemplate(
            data_dir=self.data_dir,
            dataset_name=self.name,
            split=split,
            filetype_suffix="array_record",
        )
        features = self.info.features
        serializer = tfds.core.ExampleSerializer(features.get_serialized_info())
        lengths = shard_lengths(sizes, _SHARD_BYTES)
        videos = iter(zip(source.splits[split], sizes, strict=True))
        written = 0
        with ThreadPoolExecutor(max_workers=1) as background:  # writes while the next is read
            for shard, length in enumerate(lengths):
                path = template.sharded_filepath(shard_index=shard, num_shards=len(lengths))
                writer = ArrayRecordWriter(os.fspath(path), _WRITER_OPTIONS)
                writing = background.submit(bool)
                for video, size in itertools.islice(videos, length):
                    record = make_record(source, split, video, self.builder_config.storage)
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

    def _as_dataset(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("array_record is read by index: use as_data_source")

    # There is no download, hence no checksums beside the code to look for (a search that needs
    # importlib_resources, which TFDS does not install), and nothing to announce.
    code_path = None

    def _create_builder_config(self, builder_config: PrvrConfig, version: Any) -> PrvrConfig:
        return builder_config  # TFDS warns of every configuration that its class does not list

    def _log_download_bytes(self) -> None:
        pass

    def _log_download_done(self) -> None:
        pass


_IDENTITY = ("collection", "feature", "visual_dim", "text_dim", "storage", "fingerprint")


def root_directory(data_dir: str | Path = "") -> Path:
    """Where prepared sets lie: `data_dir`, or TFDS's default where it is empty."""
    return Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()


def prepare(
    collection: Collection, data_dir: str | Path = "", storage: str = "float32"
) -> Prepared:
    """Opens the prepared set of a collection; makes it on first use.

    Args:
      collection: what it is made of. Where its folder does not exist, the one set that was prepared
        of such a collection is taken.
      data_dir: where prepared sets lie; empty for TFDS's default, TFDS_DATA_DIR or
        ~/tensorflow_datasets.
      storage: dtype of the stored features, float32 or float16.

    Returns:
      The prepared set.

    Raises:
      ReleasedDataError: if the source is missing or is not as the layout says.
      OSError: if the disk has no room.
    """
    if storage not in _STORAGES:
        raise ValueError(f"data.storage is {storage!r}; it must be one of {_STORAGES}")
    root = root_directory(data_dir)
    if not collection.present():
        return _only_prepared(collection, root, storage)
    fingerprint = collection.fingerprint()
    name = _config_name(collection, storage, fingerprint)
    directory = root / Prvr.name / name / str(Prvr.VERSION)
    if not is_complete(directory):
        busy = "Another process prepares %s; waiting for it"
        waiting = functools.partial(logging.info, busy, directory.parent)
        with lock.hold(directory.parent, waiting) as alone:
            if not is_complete(directory):  # another process may have made it meanwhile
                _clear(directory, alone)
                logging.info("Preparing %s in %s, once", collection.root, directory)
                _make(_builder(collection, fingerprint, root, storage), collection)
    return Prepared(_builder(collection, fingerprint, root, storage))


def _clear(directory: Path, alone: bool) -> None:
    if directory.exists():
        logging.warning("%s is damaged (files missing or cut short); it is made anew", directory)
        shutil.rmtree(directory)
    if alone:
        # Whoever holds the lock is the only one at work here: what others left is from the dead.
        for stale in directory.parent.glob("incomplete.*"):
            logging.warning("%s was left by a killed process; it is removed", stale)
            shutil.rmtree(stale, ignore_errors=True)


def _make(builder: Prvr, collection: Collection) -> None:
    options = tfds.download.DownloadConfig(
        manual_dir=Path(collection.manual_dir).expanduser(), try_download_gcs=False
    )
    try:
        with tempfile.TemporaryDirectory() as nothing:  # TFDS makes a folder for downloads
            builder.download_and_prepare(
                download_dir=nothing, download_config=options, file_format="array_record"
            )
    except RuntimeError as error:  # so array_record reports a full disk
        if "space" not in str(error):
            raise
        raise OSError(f"{builder.data_dir}: {str(error).splitlines()[0]}") from error
    except OSError:
        # Without locks, as on some network disks, another process may have been the first.
        if not is_complete(Path(builder.data_dir)):
            raise


def _only_prepared(collection: Collection, root: Path, storage: str) -> Prepared:
    pattern = _config_name(collection, storage, "*")
    found = [
        path
        for path in sorted((root / Prvr.name).glob(f"{pattern}/{Prvr.VERSION}"))
        if is_complete(path) and _is_of(read_index(path), collection)
    ]
    if not found:
        raise ReleasedDataError(f"{collection.missing()} (nor is there a prepared set in {root})")
    if len(found) > 1:
        listed = ", ".join(str(path.parent) for path in found)
        raise ReleasedDataError(
            f"{collection.root} does not exist and several sets were prepared of such a "
            f"collection: {listed}; set data.manual_dir to the source, or remove all but one"
        )
    # What nobody named may be missing; a folder that somebody did may be misspelt.
    tell = logging.warning if str(collection.manual_dir) else logging.info
    tell("%s is not there: using the set prepared in %s", collection.root, found[0])
    return Prepared(_builder(collection, read_index(found[0])["fingerprint"], root, storage))


def _is_of(index: dict[str, Any], collection: Collection) -> bool:
    # The directory's name joins names that may hold its separator, or had characters replaced.
    found = (index["collection"], index["feature"])
    return found == (collection.name, collection.feature)


def _builder(collection: Collection, fingerprint: str, root: Path, storage: str) -> Prvr:
    config = PrvrConfig(
        name=_config_name(collection, storage, fingerprint),
        collection=collection.name,
        feature=collection.feature,
        visual_dim=collection.visual_dim,
        text_dim=collection.text_dim,
        storage=storage,
        fingerprint=fingerprint,
    )
    return Prvr(config=config, data_dir=root)


def _collection(config: PrvrConfig, manual_dir: Path) -> Collection:
    names = (config.collection, config.feature, config.visual_dim, config.text_dim)
    return Collection(Path(manual_dir), *names)


def _config_name(collection: Collection, storage: str, fingerprint: str) -> str:
    names = [re.sub(r"[^A-Za-z0-9_-]", "-", name) for name in (collection.name, collection.feature)]
    widths = f"{collection.visual_dim}x{collection.text_dim}"
    return "_".join([*names, widths, storage, fingerprint])


def _progress_bar(title: str, total: int) -> tqdm:
    """A bar with MB/s and time left, which writes rarely where it cannot overwrite itself."""
    return tqdm(
        total=total,
        desc=title,
        unit="B",
        unit_scale=True,
        mininterval=0.2 if sys.stderr.isatty() else 15.0,
    )
