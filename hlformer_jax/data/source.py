"""Data sources: what a configuration's data set is made from."""

import dataclasses
import hashlib
import json
from typing import NamedTuple

from ml_collections import ConfigDict

from hlformer_jax.data import synthetic
from hlformer_jax.data.prepared import builder
from hlformer_jax.data.released.layout import SPLITS, Collection
from hlformer_jax.data.split import Split


class Data(NamedTuple):
    """The three splits, and the fingerprint of the source they were made from."""

    train: Split
    val: Split
    test: Split
    fingerprint: str


def open_data(config: ConfigDict) -> Data:
    """Opens the data set of a configuration; prepares it on first use, with a progress bar.

    Without `manual_dir`, a configuration that asks for synthetic videos gets the synthetic corpus.

    Args:
      config: the whole configuration.

    Returns:
      Its splits.

    Raises:
      ReleasedDataError: when the released files are missing or not as they should be.
    """
    data = config.data
    if not data.manual_dir and any(data.synthetic_videos):
        collection = _synthetic(data)
    else:
        collection = Collection(
            data.manual_dir, data.collection, data.feature, data.visual_dim, data.text_dim
        )
    prepared = builder.prepare(collection, data.data_dir, data.storage)
    train, val, test = (Split(prepared.split(name), data) for name in SPLITS)
    return Data(train, val, test, prepared.fingerprint)


def _synthetic(data: ConfigDict) -> Collection:
    corpus = synthetic.Corpus(
        videos=tuple(data.synthetic_videos), visual_dim=data.visual_dim, text_dim=data.text_dim
    )
    described = json.dumps(dataclasses.asdict(corpus), sort_keys=True).encode()
    name = f"synthetic-{hashlib.sha256(described).hexdigest()[:8]}"
    return synthetic.write_corpus(builder.root_directory(data.data_dir) / name, corpus)
