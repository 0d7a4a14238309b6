"""A data set of an index and captions, to train a model on that can rank the index afterwards."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from hlformer_jax.data import extracted, source
from hlformer_jax.encoders.protocol import TokenEncoder
from hlformer_jax.errors import DamagedError, SearchError
from hlformer_jax.search.evaluate.captions import SPLITS, Caption
from hlformer_jax.search.index.database import Index

SHARES = (0.8, 0.1)
"""Shares of the videos in train and val where the captions name no split; test has the rest."""
_SENTENCES_AT_ONCE = 256


def write_features(
    index: Index,
    encoder: TokenEncoder,
    captions: Sequence[Caption],
    out: Path,
    seed: int = 0,
    report: Callable[[str], None] = print,
    overwrite: bool = False,
) -> dict[str, int]:
    """Writes a folder of features that `configs/own.py` trains on.

    The seed is that of the splits, where the captions name none; `report` takes lines about what is
    left out. Returns the number of captions of each split.

    Raises:
      SearchError: when no video of the captions is indexed, or a split would be empty.
      OSError: when the folder cannot be written.
    """
    contents = {name: one.content for name, one in index.manifest.videos.items() if one.indexed}
    captions = [caption for caption in captions if caption.single and caption.video]
    asked = {caption.video for caption in captions}
    if missing := sorted(asked - contents.keys()):
        report(
            f"{len(missing)} of the captions' videos are not in the index and are left out,"
            f" first {missing[0]!r}"
        )
    try:
        index.check(contents[name] for name in sorted(asked & contents.keys()))
    except DamagedError as error:
        for line in error.contents.values():
            report(f"{line}; left out")
        contents = {name: one for name, one in contents.items() if one not in error.contents}
    kept = [caption for caption in captions if caption.video in contents]
    splits = divide(kept, seed)
    every = [one for of in splits.values() for own in of.values() for one in own]
    sentences = {one.caption_id: one.sentence for one in every}
    parents = extracted.parents_of(splits)
    for texts in parents.values():
        sentences |= texts
    videos = sorted({caption.video for caption in kept})
    facts = index.manifest.encoder
    slug = re.sub(r"[^0-9A-Za-z._-]+", "-", facts.name).strip(".-") or "encoder"
    about = {**dataclasses.asdict(facts), "fps": index.manifest.fps}
    vectors = ((video, index.read(contents[video]).vectors) for video in videos)
    words = tokens(encoder, sentences)
    name = f"{slug}-{facts.fingerprint[:12]}"
    extracted.write(out, name, about, splits, vectors, words, overwrite, parents)
    return {split: sum(map(len, of.values())) for split, of in splits.items()}


def divide(
    captions: Sequence[Caption], seed: int
) -> dict[str, dict[str, tuple[source.Caption, ...]]]:
    """Divides captions into train, val and test: as they say, or else by video at random.

    Returns the captions of every video of every split.
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


def tokens(
    encoder: TokenEncoder,
    sentences: dict[str, str],
    progress: Callable[[int], object] = lambda count: None,
) -> Iterator[tuple[str, np.ndarray]]:
    """The features of the tokens of sentences, with their names; tells how many are done."""
    names = list(sentences)
    for start in range(0, len(names), _SENTENCES_AT_ONCE):
        some = names[start : start + _SENTENCES_AT_ONCE]
        yield from zip(some, encoder.encode_tokens([sentences[name] for name in some]), strict=True)
        progress(len(some))
