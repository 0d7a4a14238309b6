"""Captioned videos into a data set: the vectors of an index, and token features of the sentences.

A model of the family that is trained on it (`configs/own.py`) reads what the index holds, so that
it can rank the index afterwards.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hlformer_jax.data import extracted, source
from hlformer_jax.search.captions import SPLITS, Caption
from hlformer_jax.search.errors import DamagedError, SearchError
from hlformer_jax.search.index import Index

SHARES = (0.8, 0.1)
"""Of the videos, what train and val get where the captions name no split; test gets the rest."""

_SENTENCES_AT_ONCE = 256


def write(
    index: Index,
    encoder: Any,
    captions: Sequence[Caption],
    out: Path,
    seed: int = 0,
    tell: Callable[[str], None] = print,
    overwrite: bool = False,
) -> dict[str, int]:
    """Writes a folder of features that `configs/own.py` trains on.

    Args:
      index: the videos, indexed.
      encoder: the encoder of the index.
      captions: sentences on these videos.
      out: the folder.
      seed: seed of the splits, where the captions name none.
      tell: takes a line about what is left out.
      overwrite: whether features that are there are replaced.

    Returns:
      The number of captions of each split.

    Raises:
      SearchError: when no video of the captions is indexed, or a split would be empty.
      OSError: when the folder cannot be written.
    """
    known = {name for name, record in index.manifest.videos.items() if record.indexed}
    missing = sorted({caption.video for caption in captions} - known)
    if missing:
        tell(
            f"{len(missing)} of the captions' videos are not in the index and are left out,"
            f" first {missing[0]!r}"
        )
    asked = sorted({caption.video for caption in captions} & known)
    try:
        index.check(index.manifest.videos[name].content for name in asked)
    except DamagedError as error:
        for line in error.contents.values():
            tell(f"{line}; left out")
        known -= {one for one in asked if index.manifest.videos[one].content in error.contents}
    kept = [caption for caption in captions if caption.video in known]
    splits = divide(kept, seed)
    sentences = {one.caption_id: one.sentence for of in splits.values() for own in of.values()
                 for one in own}  # fmt: skip
    videos = sorted({video for of in splits.values() for video in of})
    facts = index.manifest.encoder
    slug = re.sub(r"[^0-9A-Za-z._-]+", "-", facts.name).strip(".-") or "encoder"
    extracted.write(
        out,
        f"{slug}-{facts.fingerprint[:12]}",
        {**dataclasses.asdict(facts), "fps": index.manifest.fps},
        splits,
        ((video, index.read(index.manifest.videos[video].content).vectors) for video in videos),
        _tokens(encoder, sentences),
        overwrite,
    )
    return {split: sum(map(len, of.values())) for split, of in splits.items()}


def divide(
    captions: Sequence[Caption], seed: int
) -> dict[str, dict[str, tuple[source.Caption, ...]]]:
    """Divides captions into train, val and test: as they say, or else by video at random.

    Args:
      captions: the captions.
      seed: seed of the order of the videos.

    Returns:
      The captions of every video of every split.

    Raises:
      SearchError: when only some captions name a split, or a split would be empty.
    """
    named = [caption for caption in captions if caption.split]
    videos = sorted({caption.video for caption in captions})
    if named and len(named) < len(captions):
        other = next(caption for caption in captions if not caption.split)
        raise SearchError(
            f'{len(named)} captions name a "split" and others do not, {other.sentence!r} of'
            f" {other.video!r} among them: give it to all, or to none"
        )
    if not named and len(videos) < 3:
        raise SearchError(
            f"the captions are on {len(videos)} indexed videos: training, validation and test need"
            ' at least one each (or give each caption a "split")'
        )
    order = np.random.default_rng(seed).permutation(len(videos))
    train, val = (max(1, round(share * len(videos))) for share in SHARES)
    train = min(train, len(videos) - val - 1)
    drawn = {
        videos[row]: SPLITS[0 if rank < train else 1 if rank < train + val else 2]
        for rank, row in enumerate(order)
    }
    splits: dict[str, dict[str, tuple[source.Caption, ...]]] = {split: {} for split in SPLITS}
    for count, caption in enumerate(captions):
        own = splits[caption.split or drawn[caption.video]]
        timed = source.Caption(f"{count}", caption.sentence, caption.start, caption.end)
        own[caption.video] = (*own.get(caption.video, ()), timed)
    for split, of in splits.items():
        if not of:
            raise SearchError(f'no caption on an indexed video has the "split" {split!r}')
    return splits


def _tokens(encoder: Any, sentences: dict[str, str]) -> Iterator[tuple[str, np.ndarray]]:
    names = list(sentences)
    for start in range(0, len(names), _SENTENCES_AT_ONCE):
        some = names[start : start + _SENTENCES_AT_ONCE]
        yield from zip(some, encoder.tokens([sentences[name] for name in some]), strict=True)
