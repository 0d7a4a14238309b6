"""A small corpus with planted moments, made in memory: for trying, testing and debugging.

A video is a row of segments. Each segment shows a few concepts: a moment that a caption may
describe, or background. A frame is a fixed, random, non-linear map of its segment's concepts, plus
the video's own style and noise of its own:

    frame = tanh(Σ_c a_c z_c W₁) W₂ + style + noise

A caption names the concepts of one moment, in random order, among words that say nothing. As a
video holds many concepts that a caption does not name, the mean of its frames says little about one
moment: a model has to find it. Nothing is learned here, and nothing is real.
"""

import contextlib
import dataclasses
import json
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from hlformer_jax.data.memory import check_memory
from hlformer_jax.data.source import SPLITS, Caption, Reader, digest

CONCEPTS = (
    "dog cat horse child woman ball guitar piano bicycle car boat kitchen garden river forest "
    "snow fire bread apple knife table door ladder rope book mirror hat jump climb dance throw wash"
).split()
_FILLERS = "a the then while someone there again near slowly and with some".split()
LATENT_DIM = 24
PER_MOMENT = 3
_MOST_CAPTIONS, _MOST_WORDS = 5, 11  # of a video; of a caption
_VERSION = 1  # of what is drawn; another one is another data set


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What a corpus is made of; equal values give equal features.

    Attributes:
      seed: seed of everything random.
      videos: number of videos of train, val and test.
      min_frames: fewest frames of a video.
      max_frames: most frames of a video.
      visual_dim: D, the width of a frame's features.
      text_dim: E, the width of a word's features.
      noise: standard deviation of the noise of a frame; its signal has about 1.
      style: standard deviation of what all frames of a video share.
    """

    seed: int = 0
    videos: tuple[int, int, int] = (384, 64, 128)
    min_frames: int = 24
    max_frames: int = 96
    visual_dim: int = 64
    text_dim: int = 48
    noise: float = 0.3
    style: float = 0.5

    @property
    def most_bytes(self) -> float:
        """Bytes that the corpus, and the maps that make it, take at most."""
        maps = 8.0 * 2 * self.visual_dim * (self.visual_dim + LATENT_DIM)
        video = self.max_frames * self.visual_dim + _MOST_CAPTIONS * _MOST_WORDS * self.text_dim
        return maps + 4.0 * sum(self.videos) * video

    def generator(self, *key: int) -> np.random.Generator:
        """The random numbers of one part of the corpus."""
        return np.random.default_rng((self.seed, *key))


@dataclasses.dataclass(frozen=True)
class SyntheticSource:
    """The `source.Source` of a corpus; it is made in memory each time it is opened.

    Attributes:
      corpus: the corpus.
    """

    corpus: Corpus
    name: ClassVar[str] = "synthetic"
    feature: ClassVar[str] = "planted"

    @property
    def visual_dim(self) -> int:
        """D."""
        return self.corpus.visual_dim

    @property
    def text_dim(self) -> int:
        """E."""
        return self.corpus.text_dim

    def fingerprint(self) -> str:
        """Identifies the corpus by its fields; it is always there."""
        fields = json.dumps(dataclasses.asdict(self.corpus), sort_keys=True)
        return digest(self.name, _VERSION, fields)

    def open(self) -> contextlib.nullcontext["SyntheticReader"]:
        """Makes the corpus.

        Returns:
          What gives the reader.

        Raises:
          DataError: if it would not fit into memory.
        """
        return contextlib.nullcontext(SyntheticReader(self.corpus))


class SyntheticReader(Reader):
    """The `source.Reader` of a corpus.

    Attributes:
      moments: the frames [start, end) of every caption's moment, by its id.
    """

    def __init__(self, corpus: Corpus) -> None:
        check_memory(corpus.most_bytes, "the synthetic corpus", "make it smaller")
        self.moments: dict[str, tuple[int, int]] = {}
        self._splits: dict[str, dict[str, tuple[Caption, ...]]] = {}
        self._frames: dict[str, np.ndarray] = {}
        self._words: dict[str, np.ndarray] = {}
        encoder = Encoder(corpus)
        for key, (split, num_videos) in enumerate(zip(SPLITS, corpus.videos, strict=True)):
            names = [f"{split}_{index:05d}" for index in range(num_videos)]
            self._splits[split] = {
                video: self._draw(video, encoder, corpus.generator(key, index))
                for index, video in enumerate(names)
            }

    @property
    def splits(self) -> dict[str, dict[str, tuple[Caption, ...]]]:
        """The captions of every video of train, val and test."""
        return self._splits

    def num_frames(self, video: str) -> int:
        """The number of frames of a video."""
        return len(self._frames[video])

    def num_words(self, caption_id: str) -> int:
        """The number of words of a caption."""
        return len(self._words[caption_id])

    def read_frames(self, video: str) -> Float[np.ndarray, "T D"]:
        """The features of a video, float32."""
        return self._frames[video]

    def read_words(self, caption_id: str) -> Float[np.ndarray, "T E"]:
        """The features of a caption's words, float32."""
        return self._words[caption_id]

    def _draw(
        self, video: str, encoder: "Encoder", rng: np.random.Generator
    ) -> tuple[Caption, ...]:
        frames, described = encoder.video(rng)
        self._frames[video] = frames.astype(np.float32)
        captions = []
        for k, (start, end, concepts) in enumerate(described):
            name = f"{video}#enc#{k}"
            words, self._words[name] = encoder.caption(concepts, rng)
            self.moments[name] = (start, end)
            captions.append(Caption(name, " ".join(words)))
        return tuple(captions)


class Encoder:
    """The fixed random maps of a corpus."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        rng = corpus.generator(len(SPLITS) + 1)
        hidden = 2 * corpus.visual_dim
        self.words = {word: rng.standard_normal(corpus.text_dim) for word in (*CONCEPTS, *_FILLERS)}
        self.latents = rng.standard_normal((len(CONCEPTS), LATENT_DIM))
        self.first = rng.standard_normal((LATENT_DIM, hidden)) * 1.5 / np.sqrt(LATENT_DIM)
        self.second = rng.standard_normal((hidden, corpus.visual_dim)) * 1.3 / np.sqrt(hidden)

    def video(
        self, rng: np.random.Generator
    ) -> tuple[np.ndarray, list[tuple[int, int, np.ndarray]]]:
        """Draws a video: its frames, and the span and concepts of every described moment."""
        corpus = self.corpus
        length = int(rng.integers(corpus.min_frames, corpus.max_frames + 1))
        latents: list[np.ndarray] = []
        segments = []
        start = 0
        while start < length:
            end = start + int(rng.integers(4, 11))
            end = length if length - end < 4 else end  # too little for a segment of its own
            concepts = rng.choice(len(CONCEPTS), PER_MOMENT, replace=False)
            latents.append(self.latent(concepts, end - start, rng))
            segments.append((start, end, concepts))
            start = end
        # Every other segment is a moment; of few segments the first is one.
        moments = segments[int(rng.integers(2)) if len(segments) > 3 else 0 :: 2]
        frames = self.render(np.concatenate(latents), rng)
        chosen = rng.permutation(len(moments))[: int(rng.integers(2, _MOST_CAPTIONS + 1))]
        return frames, [moments[k] for k in chosen]

    def latent(self, concepts: np.ndarray, num_frames: int, rng: np.random.Generator) -> np.ndarray:
        """Draws what frames that show some concepts are rendered from, [num_frames, latents]."""
        shown = rng.uniform(0.7, 1.3, (num_frames, len(concepts)))
        return shown @ self.latents[concepts] / np.sqrt(len(concepts))

    def render(self, latents: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws the frames of a video, [frames, D]: the fixed map, its style and their noise."""
        frames = np.tanh(latents @ self.first) @ self.second
        frames += self.corpus.style * rng.standard_normal(self.corpus.visual_dim)
        frames += self.corpus.noise * rng.standard_normal(frames.shape)
        return frames

    def caption(
        self, concepts: np.ndarray, rng: np.random.Generator
    ) -> tuple[list[str], np.ndarray]:
        """Draws a caption: its words, and their features."""
        words = [CONCEPTS[k] for k in concepts]
        num_fillers = int(rng.integers(2, _MOST_WORDS - PER_MOMENT + 1))
        words += [_FILLERS[k] for k in rng.integers(len(_FILLERS), size=num_fillers)]
        words = [words[k] for k in rng.permutation(len(words))]
        features = np.stack([self.words[word] for word in words])
        features += 0.2 * rng.standard_normal(features.shape)
        return words, features.astype(np.float32)
