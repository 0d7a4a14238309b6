"""A small corpus with planted moments, made in memory: for trying, testing and debugging.

A video is a row of segments. Each segment shows a few concepts: a moment that a caption may
describe, or background (see `data.planted`). As a video holds many concepts that a caption does not
name, the mean of its frames says little about one moment: a model has to find it. Nothing is
learned here, and nothing is real.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from hlformer_jax.data.planted import (
    CONCEPTS,
    MOST_CAPTIONS,
    PER_MOMENT,
    Encoder,
    PlantedCorpus,
    PlantedReader,
    PlantedSource,
)
from hlformer_jax.data.source import SPLITS, Caption


def is_synthetic(data: ConfigDict) -> bool:
    """Whether `config.data` asks for a synthetic corpus."""
    return not data.manual_dir and any(data.synthetic_videos)


@dataclasses.dataclass(frozen=True)
class Corpus(PlantedCorpus):
    """A `PlantedCorpus` of segments in a row.

    Attributes:
      min_frames: fewest frames of a video.
      max_frames: most frames of a video.
    """

    min_frames: int = 24
    max_frames: int = 96

    @property
    def longest_video(self) -> int:
        """Frames of a video at most."""
        return self.max_frames


class Drawn(NamedTuple):
    """What a video was drawn from.

    Attributes:
      latents: what each frame was rendered from, [frames, latents].
      caption_ids: ids of its captions.
      concepts: for each caption, the concepts of its moment.
    """

    latents: np.ndarray
    caption_ids: list[str]
    concepts: list[np.ndarray]


class SyntheticReader(PlantedReader):
    """The `source.Reader` of a corpus.

    Attributes:
      moments: the frames [start, end) of every caption's moment, by its id.
    """

    def __init__(self, corpus: Corpus) -> None:
        super().__init__(corpus)
        self.moments: dict[str, tuple[int, int]] = {}
        self._splits: dict[str, dict[str, tuple[Caption, ...]]] = {}
        encoder = Encoder(corpus)
        for key, (split, num_videos) in enumerate(zip(SPLITS, corpus.videos, strict=True)):
            names = [f"{split}_{index:05d}" for index in range(num_videos)]
            self._splits[split] = {
                video: self._draw(video, corpus, encoder, corpus.generator(key, index))
                for index, video in enumerate(names)
            }

    @property
    def splits(self) -> dict[str, dict[str, tuple[Caption, ...]]]:
        """The captions of every video of train, val and test."""
        return self._splits

    def annotations(self, split: str) -> dict[str, dict[str, tuple[int, int, int]]]:
        """Where the moments lie, at a frame a second; see `data.spans`."""
        return {
            "spans": {
                caption.caption_id: (*self.moments[caption.caption_id], len(self._frames[video]))
                for video, captions in self._splits[split].items()
                for caption in captions
            }
        }

    def _draw(
        self, video: str, corpus: Corpus, encoder: Encoder, rng: np.random.Generator
    ) -> tuple[Caption, ...]:
        frames, latents, described = _video(corpus, encoder, rng)
        self._frames[video] = frames.astype(np.float32)
        captions = []
        for k, (start, end, concepts) in enumerate(described):
            name = f"{video}#enc#{k}"
            words, self._words[name] = encoder.caption(concepts, rng)
            self.moments[name] = (start, end)
            captions.append(Caption(name, " ".join(words)))
        names = [caption.caption_id for caption in captions]
        self._keep(video, Drawn(latents, names, [concepts for *_, concepts in described]))
        return tuple(captions)

    def _keep(self, video: str, drawn: Drawn) -> None:
        """Takes what a video was drawn from; here it is forgotten."""


class SyntheticSource(PlantedSource[Corpus, SyntheticReader]):
    """The `source.Source` of a corpus."""

    name: ClassVar[str] = "synthetic"
    version: ClassVar[int] = 2  # from 2 on with the times of moments
    reader = SyntheticReader


def _video(
    corpus: Corpus, encoder: Encoder, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int, np.ndarray]]]:
    """Draws a video: its frames and their latents, and span and concepts of every moment."""
    length = int(rng.integers(corpus.min_frames, corpus.max_frames + 1))
    shown: list[np.ndarray] = []
    segments = []
    start = 0
    while start < length:
        end = start + int(rng.integers(4, 11))
        end = length if length - end < 4 else end  # too little for a segment of its own
        concepts = rng.choice(len(CONCEPTS), PER_MOMENT, replace=False)
        shown.append(encoder.latent(concepts, end - start, rng))
        segments.append((start, end, concepts))
        start = end
    # Every other segment is a moment; of few segments the first is one.
    moments = segments[int(rng.integers(2)) if len(segments) > 3 else 0 :: 2]
    latents = np.concatenate(shown)
    frames = encoder.render(latents, rng)
    chosen = rng.permutation(len(moments))[: int(rng.integers(2, MOST_CAPTIONS + 1))]
    return frames, latents, [moments[k] for k in chosen]
