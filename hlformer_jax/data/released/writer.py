"""Writes the synthetic corpus as released files: for tests, and to time what reads such files."""

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np

from hlformer_jax.data.released.collection import Collection
from hlformer_jax.data.released.layout import Layout
from hlformer_jax.data.source import SPLITS, Reader
from hlformer_jax.data.synthetic import Corpus, SyntheticReader, SyntheticSource

L = TypeVar("L", bound=Layout)
R = TypeVar("R", bound=Reader)


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
    source = SyntheticSource(corpus)
    widths = source.visual_dim, source.text_dim
    collection = Collection(Path(directory).expanduser(), source.name, source.feature, *widths)
    write_layout(collection, corpus, source.open, _write_captions)
    return collection


def write_layout(
    layout: L,
    corpus: Any,
    open_reader: Callable[[], AbstractContextManager[R]],
    write_text: Callable[[L, R], None],
) -> None:
    """Writes a synthetic corpus as released files, or finds it written.

    Args:
      layout: where; the collection's folder is written complete or not at all.
      corpus: the dataclass that it is made of; ``meta.json`` has its fields.
      open_reader: makes the corpus.
      write_text: writes the sentences, and what stands beside the released files.

    Raises:
      FileExistsError: if another corpus, or something else, is there.
    """
    if _is_written(layout, corpus):
        return
    directory = Path(layout.manual_dir)
    directory.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".synthetic-", dir=directory))
    try:
        with open_reader() as reader:
            there = dataclasses.replace(layout, manual_dir=draft)
            there.feature_dir.mkdir(parents=True)
            there.text_features.parent.mkdir(parents=True)
            _write_words(there, reader)
            write_text(there, reader)
            _write_features(there, reader, np.random.default_rng((corpus.seed, len(SPLITS))))
        (there.root / "meta.json").write_text(json.dumps(_meta(corpus)), encoding="utf-8")
        # Equal corpora have equal times: they are the same source, wherever they were written.
        for path in there.root.rglob("*"):
            os.utime(path, (0, 0))
        with contextlib.suppress(OSError):  # another process was faster: _is_written decides
            os.rename(there.root, layout.root)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if not _is_written(layout, corpus):
        raise OSError(f"{layout.root}: could not be written")


def _write_captions(layout: Layout, reader: SyntheticReader) -> None:
    """Writes the caption lists of a corpus, and the moments of its captions."""
    for split, videos in reader.splits.items():
        captions = [caption for group in videos.values() for caption in group]
        lines = [f"{caption.caption_id} {caption.sentence}\n" for caption in captions]
        layout.captions(split).write_text("".join(lines), encoding="utf-8")
    (layout.root / "moments.json").write_text(json.dumps(reader.moments), encoding="utf-8")


def _is_written(layout: Layout, corpus: Any) -> bool:
    if not layout.root.exists():
        return False
    try:
        stored = json.loads((layout.root / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stored = None
    if stored != _meta(corpus):
        raise FileExistsError(
            f"{layout.root}: holds something else than the corpus asked for (meta.json: "
            f"{stored}; asked for: {_meta(corpus)}); remove it or choose another directory"
        )
    return True


def _meta(corpus: Any) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(corpus)))


def _write_words(layout: Layout, reader: Reader) -> None:
    with h5py.File(layout.text_features, "w") as text:
        for videos in reader.splits.values():
            for captions in videos.values():
                for caption in captions:
                    text[caption.caption_id] = reader.read_words(caption.caption_id)


def _write_features(layout: Layout, reader: Reader, rng: np.random.Generator) -> None:
    videos = [video for split in SPLITS for video in reader.splits[split]]
    lists = {video: [f"{video}_{k}" for k in range(reader.num_frames(video))] for video in videos}
    names = [name for names in lists.values() for name in names]
    # As in the published files, rows are in no particular order: only the lists give the time.
    order = rng.permutation(len(names))
    rows = np.concatenate([reader.read_frames(video) for video in videos])[order]
    rows.astype("<f4").tofile(layout.feature_dir / "feature.bin")
    texts = {
        "id.txt": " ".join(names[row] for row in order),
        "shape.txt": f"{len(rows)} {rows.shape[1]}\n",
        "video2frames.txt": repr(lists),
    }
    for name, text in texts.items():
        (layout.feature_dir / name).write_text(text, encoding="utf-8")
