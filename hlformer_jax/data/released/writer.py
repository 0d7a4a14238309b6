"""Writes the synthetic corpus as released files: for tests, and to time what reads such files."""

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hlformer_jax.data.released.collection import Collection
from hlformer_jax.data.source import SPLITS
from hlformer_jax.data.synthetic import Corpus, SyntheticReader, SyntheticSource


def write_corpus(directory: str | Path, corpus: Corpus | None = None) -> Collection:
    """Writes a corpus, or finds it written.

    Args:
      directory: the manual_dir; the corpus goes into ``synthetic/`` below it, complete or not at
        all. Beside the released files, ``moments.json`` has the frames [start, end) of every
        caption's moment, and ``meta.json`` the fields of `corpus`.
      corpus: what it is made of; None for the defaults.

    Returns:
      The collection, named synthetic, with feature planted.

    Raises:
      FileExistsError: if another corpus, or something else, is there.
    """
    corpus = corpus or Corpus()
    directory = Path(directory).expanduser()
    source = SyntheticSource(corpus)
    widths = source.visual_dim, source.text_dim
    collection = Collection(directory, source.name, source.feature, *widths)
    if not _is_written(collection, corpus):
        directory.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".synthetic-", dir=directory))
        try:
            with source.open() as reader:
                _write(dataclasses.replace(collection, manual_dir=draft), corpus, reader)
            # Equal corpora have equal times: they are the same source, wherever they were written.
            for path in (draft / source.name).rglob("*"):
                os.utime(path, (0, 0))
            with contextlib.suppress(OSError):  # another process was faster: _is_written decides
                os.rename(draft / source.name, collection.root)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        if not _is_written(collection, corpus):
            raise OSError(f"{collection.root}: could not be written")
    return collection


def _is_written(collection: Collection, corpus: Corpus) -> bool:
    if not collection.root.exists():
        return False
    try:
        stored = json.loads((collection.root / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stored = None
    if stored != _meta(corpus):
        raise FileExistsError(
            f"{collection.root}: holds something else than the corpus asked for (meta.json: "
            f"{stored}; asked for: {_meta(corpus)}); remove it or choose another directory"
        )
    return True


def _meta(corpus: Corpus) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(corpus)))


def _write(collection: Collection, corpus: Corpus, reader: SyntheticReader) -> None:
    collection.feature_dir.mkdir(parents=True)
    collection.text_features.parent.mkdir(parents=True)
    with h5py.File(collection.text_features, "w") as text:
        for split, videos in reader.splits.items():
            captions = [caption for group in videos.values() for caption in group]
            for caption in captions:
                text[caption.caption_id] = reader.read_words(caption.caption_id)
            lines = [f"{caption.caption_id} {caption.sentence}\n" for caption in captions]
            collection.captions(split).write_text("".join(lines), encoding="utf-8")
    _write_features(collection, corpus, reader)
    moments = json.dumps(reader.moments)
    (collection.root / "moments.json").write_text(moments, encoding="utf-8")
    (collection.root / "meta.json").write_text(json.dumps(_meta(corpus)), encoding="utf-8")


def _write_features(collection: Collection, corpus: Corpus, reader: SyntheticReader) -> None:
    videos = [video for split in SPLITS for video in reader.splits[split]]
    lists = {video: [f"{video}_{k}" for k in range(reader.num_frames(video))] for video in videos}
    names = [name for names in lists.values() for name in names]
    # As in the published files, rows are in no particular order: only the lists give the time.
    order = corpus.generator(len(SPLITS)).permutation(len(names))
    rows = np.concatenate([reader.read_frames(video) for video in videos])[order]
    rows.astype("<f4").tofile(collection.feature_dir / "feature.bin")
    texts = {
        "id.txt": " ".join(names[row] for row in order),
        "shape.txt": f"{len(rows)} {corpus.visual_dim}\n",
        "video2frames.txt": repr(lists),
    }
    for name, text in texts.items():
        (collection.feature_dir / name).write_text(text, encoding="utf-8")
