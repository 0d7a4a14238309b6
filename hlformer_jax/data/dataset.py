"""Opens the data set of a configuration: chooses its source, prepares it once, transforms it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from hlformer_jax.data import extracted, spans
from hlformer_jax.data.prepared.preparation import prepare
from hlformer_jax.data.released.collection import Collection
from hlformer_jax.data.released.teacher import TaughtCollection
from hlformer_jax.data.source import SPLITS, DataError, Source, teacher_width
from hlformer_jax.data.split import Split
from hlformer_jax.data.synthetic import Corpus, SyntheticSource, is_synthetic
from hlformer_jax.data.taught import TaughtCorpus, TaughtSyntheticSource

SOURCES: dict[str, Callable[[ConfigDict], Source]] = {
    extracted.COLLECTION: lambda data: extracted.ExtractedSource(
        data.manual_dir, data.feature, data.visual_dim, data.text_dim
    )
}
"""Makes the source of a collection from `config.data`, by the name that `config.data.collection`
has. What is not listed is read in the released layout."""


class Data(NamedTuple):
    """The three splits of a data set.

    Attributes:
      train: the training split.
      val: the validation split.
      test: the test split.
      fingerprint: the fingerprint of their source.
    """

    train: Split
    val: Split
    test: Split
    fingerprint: str


def open_data(config: ConfigDict, source: Source | None = None) -> Data:
    """Opens the data set of a configuration; prepares it on first use, with a progress bar.

    Args:
      config: the whole configuration.
      source: what to open in place of the configuration's own source; it must have the widths of
        `config.data`, and a teacher where one is asked for.

    Returns:
      Its splits.

    Raises:
      DataError: when the source is missing or not as it should be.
      OSError: when the disk is full.
    """
    data = config.data
    source = choose_source(data) if source is None else source
    for field, width in (("visual_dim", source.visual_dim), ("text_dim", source.text_dim)):
        if data[field] != width:
            raise DataError(
                f"data.{field} is {data[field]} and the features of {source.name} are {width} "
                f"wide; set data.{field} to {width}"
            )
    if data.teacher_dim and not teacher_width(source):
        raise DataError(
            f"data.teacher_dim is {data.teacher_dim}, and {source.name} has no features of a "
            f"teacher, which loss.distillation needs; set both to 0, or take a data set that has "
            f"them: the published activitynet or tvr, or the synthetic corpus"
        )
    prepared = prepare(source, data.data_dir, data.storage)
    videos = [prepared.split(name) for name in SPLITS]
    timed = spans.of_splits(config, [split.annotations for split in videos])
    train, val, test = (Split(*split) for split in zip(videos, [data] * 3, timed, strict=True))
    for name, split in (("val", val), ("test", test)):
        split.check_spans(name)  # now, and not when a training has come to its evaluation
    return Data(train, val, test, prepared.fingerprint)


def choose_source(data: ConfigDict) -> Source:
    """The source that a configuration asks for.

    Args:
      data: `config.data`. Without `manual_dir` and with synthetic videos it is the synthetic
        corpus; otherwise it is what `SOURCES` has for its collection, or the released layout.

    Returns:
      The source; nothing of it is read.

    Raises:
      DataError: if collection or feature cannot be the name of a folder.
    """
    if is_synthetic(data):
        widths = {"visual_dim": data.visual_dim, "text_dim": data.text_dim}
        sizes: Any = {"videos": tuple(data.synthetic_videos), **widths}
        if data.teacher_dim:
            return TaughtSyntheticSource(TaughtCorpus(**sizes, teacher_dim=data.teacher_dim))
        return SyntheticSource(Corpus(**sizes))
    if data.collection in SOURCES:
        return SOURCES[data.collection](data)
    fields = data.manual_dir, data.collection, data.feature, data.visual_dim, data.text_dim
    if data.teacher_dim:
        return TaughtCollection(*fields, data.teacher_dim)
    return Collection(*fields)
