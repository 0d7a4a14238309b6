"""TFDS builder: any source → array_record, one record per video. Alone in knowing TFDS.

Records stand in the order of the source's splits. They are written as they are read, without the
shuffle of TFDS, which would hold a whole split in memory. The directory gets its name when it is
complete.
"""

import dataclasses
import itertools
import os
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from tqdm import tqdm

from hlformer_jax.data.prepared.reader import is_complete, write_index
from hlformer_jax.data.prepared.records import Records, check_space, shard_lengths
from hlformer_jax.data.source import SPLITS, DataError, Source, teacher_width

_SHARD_BYTES = 1 << 30
# Features hardly compress, and zstd, TFDS's choice, would read them five times slower.
_WRITER_OPTIONS = "group_size:1,uncompressed"


@dataclasses.dataclass(eq=False)
class PrvrConfig(tfds.core.BuilderConfig):
    """What a prepared set is made of; see `source.Source`. A collection is its name."""

    collection: str = ""
    feature: str = ""
    visual_dim: int = 0
    text_dim: int = 0
    teacher_dim: int = 0
    storage: str = "float32"
    fingerprint: str = ""


class _Info(tfds.core.DatasetInfo):
    def initialize_from_bucket(self) -> None:
        """Looks nowhere: none of these sets lies in TFDS's bucket, and no network is needed."""


class Prvr(tfds.core.DatasetBuilder):
    """Features of partially relevant video retrieval, one record per video.

    Attributes:
      source: what the set is prepared from; None where it is only read.
    """

    source: Source | None = None

    VERSION = tfds.core.Version("1.0.0")  # of the records; another version is another directory

    def _info(self) -> tfds.core.DatasetInfo:
        config: PrvrConfig = self.builder_config
        dtype = np.dtype(config.storage)

        def rows(width: int) -> tfds.features.Tensor:
            return tfds.features.Tensor(shape=(None, width), dtype=dtype, encoding="bytes")

        taught = ("teacher_frames", "teacher_captions") if config.teacher_dim else ()
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
                    **{name: rows(config.teacher_dim) for name in taught},
                }
            ),
            disable_shuffling=True,
        )

    def _download_and_prepare(self, dl_manager: Any, download_config: Any = None) -> None:
        config, source = self.builder_config, self.source
        assert source is not None  # set by write
        directory = Path(self.data_dir)  # TFDS's temporary one; it is renamed when all is written
        with source.open() as reader:
            records = Records(source, reader, config.storage)
            total = sum(map(sum, records.sizes.values()))
            check_space(directory, total * np.dtype(config.storage).itemsize // 4)
            with _progress_bar(f"Preparing {source.name}/{source.feature}", total) as bar:
                infos = [self._write(records, split, reader.splits[split], bar) for split in SPLITS]
            records.warn_of_zeros()
            index = {
                **{field: getattr(config, field) for field in _IDENTITY},
                **({"teacher_dim": config.teacher_dim} if config.teacher_dim else {}),
                "splits": {split: records.index(split) for split in SPLITS},
            }
        if source.fingerprint() != config.fingerprint:
            raise DataError(
                f"{source.name}/{source.feature}: changed while it was read; start again when it "
                f"is still"
            )
        self.info.set_splits(tfds.core.SplitDict(infos))
        write_index(directory, index)

    def _write(
        self, records: Records, split: str, video_ids: Iterable[str], bar: tqdm
    ) -> tfds.core.SplitInfo:
        template = tfds.core.ShardedFileTemplate(
            data_dir=self.data_dir,
            dataset_name=self.name,
            split=split,
            filetype_suffix="array_record",
        )
        features = self.info.features
        serializer = tfds.core.ExampleSerializer(features.get_serialized_info())
        sizes = records.sizes[split]
        lengths = shard_lengths(sizes, _SHARD_BYTES)
        videos = iter(zip(video_ids, sizes, strict=True))
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


def make_builder(
    source: Source, name: str, fingerprint: str, storage: str, data_dir: str | Path
) -> Prvr:
    """The builder of a prepared set, to write or to read it.

    Args:
      source: the data set; it need not be there to read what was prepared from it.
      name: the directory of the prepared set.
      fingerprint: the source's when the set was or will be prepared.
      storage: float32 or float16.
      data_dir: the folder of all prepared sets.

    Returns:
      The builder.
    """
    config = PrvrConfig(
        name=name,
        collection=source.name,
        feature=source.feature,
        visual_dim=source.visual_dim,
        text_dim=source.text_dim,
        teacher_dim=teacher_width(source),
        storage=storage,
        fingerprint=fingerprint,
    )
    return Prvr(config=config, data_dir=data_dir)


def write(builder: Prvr, source: Source) -> None:
    """Writes a prepared set.

    Args:
      builder: the set.
      source: what it is prepared from.

    Raises:
      DataError: if the source is not as it should be.
      OSError: if the disk is full.
    """
    builder.source = source
    try:
        with tempfile.TemporaryDirectory() as nothing:  # TFDS makes a folder for downloads
            builder.download_and_prepare(
                download_dir=nothing,
                download_config=tfds.download.DownloadConfig(try_download_gcs=False),
                file_format="array_record",
            )
    except RuntimeError as error:  # so array_record reports a full disk
        if "space" not in str(error):
            raise
        raise OSError(f"{builder.data_dir}: {str(error).splitlines()[0]}") from error
    except OSError:
        # Without locks, as on some network disks, another process may have been the first.
        if not is_complete(Path(builder.data_dir)):
            raise
    finally:
        builder.source = None


def _progress_bar(title: str, total: int) -> tqdm:
    """A bar with MB/s and time left, which writes rarely where it cannot overwrite itself."""
    return tqdm(
        total=total,
        desc=title,
        unit="B",
        unit_scale=True,
        mininterval=0.2 if sys.stderr.isatty() else 15.0,
    )
