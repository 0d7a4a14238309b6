"""Training features from an index and captions, for a model that ranks the index."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from hlformer_jax import terminal
from hlformer_jax.data.sources import extracted, protocol
from hlformer_jax.encoders.protocol import TokenEncoder
from hlformer_jax.errors import DamagedError
from hlformer_jax.search.evaluate.captions import Caption, cut_times
from hlformer_jax.search.index import Index
from hlformer_jax.text import counted

_TEXTS_AT_ONCE = 256


def write_features(
    index: Index,
    encoder: TokenEncoder,
    captions: Sequence[Caption],
    out: Path,
    seed: int = 0,
    report: Callable[[str], None] = terminal.show,
    overwrite: bool = False,
) -> dict[str, int]:
    """Write a folder of features, with which `configs/own.py` trains a model.

    Args:
      index: the index of the videos.
      encoder: the encoder of the index.
      captions: the captions. A caption is left out if it has no video, has several parts, or is
        about speech or text. Copies of a video are one video, whose id is the first of their paths.
      out: the folder to write.
      seed: seed of the random splits; it has no effect if the captions name their splits.
      report: receives a line about each kind of captions that are left out, about videos that are
        not indexed or damaged, about copies, and about captions with several correct videos.
      overwrite: whether to replace the features of an earlier call.

    Returns:
      The number of captions of each split.

    Raises:
      DataError: if only some captions name a split, a split would be empty, or a time is
        impossible.
      OutputError: if `out` contains something that must not be replaced.
      OSError: if the folder cannot be written.
    """
    captions, contents = _usable_captions(index, captions, report)
    splits = extracted.split_captions(
        [
            (caption.video, caption.split,
             protocol.Caption(f"{number}", caption.sentence, caption.start, caption.end))
            for number, caption in enumerate(captions)
        ],
        seed,
    )  # fmt: skip
    texts = {
        caption.caption_id: caption.sentence
        for by_video in splits.values()
        for group in by_video.values()
        for caption in group
    }
    parents = extracted.parents_of(splits)
    for parent_texts in parents.values():
        texts |= parent_texts
    facts = index.encoder
    slug = re.sub(r"[^0-9A-Za-z._-]+", "-", facts.name).strip(".-") or "encoder"
    about = {**dataclasses.asdict(facts), "fps": index.fps}
    videos = sorted({caption.video for caption in captions})
    vectors = ((video, index.read(contents[video]).vectors) for video in videos)
    words = encode_tokens(encoder, texts)
    name = f"{slug}-{facts.fingerprint[:12]}"
    extracted.write(out, name, about, splits, vectors, words, overwrite, parents)
    return {split: sum(map(len, by_video.values())) for split, by_video in splits.items()}


def _usable_captions(
    index: Index, captions: Sequence[Caption], report: Callable[[str], None]
) -> tuple[Sequence[Caption], dict[str, str]]:
    """Return the captions of readable videos, and the content of each readable video.

    Captions of copies have the same video, and their times end with it.
    """
    records = {video: record for video, record in index.videos.items() if record.indexed}
    contents = {video: record.content for video, record in records.items()}
    visual = [caption for caption in captions if caption.is_visual and caption.video]
    if left_out := len(captions) - len(visual):
        report(
            f"{left_out} of {len(captions)} captions have no video, have several parts, or are"
            " about speech or text, and are left out"
        )
    captioned = {caption.video for caption in visual}
    if missing := sorted(captioned - contents.keys()):
        report(
            f"left out: {counted(len(missing), 'captioned video')} not indexed, for example"
            f" {missing[0]!r}"
        )
    try:
        index.check(contents[video] for video in sorted(captioned & contents.keys()))
    except DamagedError as error:
        report(f"{error}; left out")
        contents = {
            video: content for video, content in contents.items() if content not in error.contents
        }
    usable = _join_copies([x for x in visual if x.video in contents], contents, report)
    durations = {video: record.duration for video, record in records.items()}
    return cut_times(usable, durations, 1 / index.fps), contents


def _join_copies(
    captions: Sequence[Caption], contents: Mapping[str, str], report: Callable[[str], None]
) -> list[Caption]:
    """Give the captions of copies the same video, and report other videos that are correct too."""
    videos = sorted({caption.video for caption in captions})
    first: dict[str, str] = {}
    for video in videos:
        first.setdefault(contents[video], video)
    if copies := [video for video in videos if first[contents[video]] != video]:
        report(
            "copies, which count as one video with their original:"
            f" {counted(len(copies), 'captioned video')},"
            f" for example {copies[0]!r} with {first[contents[copies[0]]]!r}"
        )
    several = [
        caption
        for caption in captions
        if {contents.get(video) for video in caption.duplicates} - {contents[caption.video], None}
    ]
    if several:
        report(
            f'{counted(len(several), "caption")} with further correct videos ("also"), which count'
            ' as wrong and, unless each caption has a "split", may be in other splits, for example'
            f" {several[0].sentence!r}"
        )
    return [caption._replace(video=first[contents[caption.video]]) for caption in captions]


def encode_tokens(
    encoder: TokenEncoder,
    texts: dict[str, str],
    progress: Callable[[int], object] = lambda count: None,
) -> Iterator[tuple[str, np.ndarray]]:
    """Encode texts in batches, and yield the name and the token features of each text.

    Args:
      encoder: the encoder.
      texts: the texts by their names.
      progress: called after each batch with the number of its texts.
    """
    names = list(texts)
    for start in range(0, len(names), _TEXTS_AT_ONCE):
        batch = names[start : start + _TEXTS_AT_ONCE]
        yield from zip(batch, encoder.encode_tokens([texts[name] for name in batch]), strict=True)
        progress(len(batch))
