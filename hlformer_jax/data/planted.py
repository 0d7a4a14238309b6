"""What the corpora with planted moments share: how they are drawn, and how they are opened.

A frame is a fixed, random, non-linear map of the few concepts that it shows, plus the video's own
style and noise of its own:

    frame = tanh(Σ_c a_c z_c W₁) W₂ + style + noise

A caption names the concepts of one moment, in random order, among words that say nothing.
"""

import abc
import contextlib
import dataclasses
import json
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from jaxtyping import Float

from hlformer_jax.data.memory import check_memory
from hlformer_jax.data.source import SPLITS, Reader, digest

CONCEPTS = (
    "dog cat horse child woman ball guitar piano bicycle car boat kitchen garden river forest "
    "snow fire bread apple knife table door ladder rope book mirror hat jump climb dance throw wash"
).split()
_FILLERS = "a the then while someone there again near slowly and with some".split()
LATENT_DIM = 24
PER_MOMENT = 3
MOST_CAPTIONS, _MOST_WORDS = 5, 11  # of a video; of a caption


@dataclasses.dataclass(frozen=True)
class PlantedCorpus(abc.ABC):
    """What a corpus is made of; equal values give equal features.

    Attributes:
      seed: seed of everything random.
      videos: number of videos of train, val and test.
      visual_dim: D, the width of a frame's features.
      text_dim: E, the width of a word's features.
      noise: standard deviation of the noise of a frame; its signal has about 1.
      style: standard deviation of what all frames of a video share.
    """

    seed: int = 0
    videos: tuple[int, int, int] = (384, 64, 128)
    visual_dim: int = 64
    text_dim: int = 48
    noise: float = 0.3
    style: float = 0.5

    @property
    @abc.abstractmethod
    def longest_video(self) -> int:
        """Frames of a video at most."""

    @property
    def most_bytes(self) -> float:
        """Bytes that the corpus, and the maps that make it, take at most."""
        maps = 8.0 * 2 * self.visual_dim * (self.visual_dim + LATENT_DIM)
        video = self.longest_video * self.visual_dim + MOST_CAPTIONS * _MOST_WORDS * self.text_dim
        return maps + 4.0 * sum(self.videos) * video

    def generator(self, *key: int) -> np.random.Generator:
        """The random numbers of one part of the corpus."""
        return np.random.default_rng((self.seed, *key))


C = TypeVar("C", bound=PlantedCorpus)


class PlantedReader(Reader):
    """The `source.Reader` of a corpus, which lies in memory; a subclass draws it."""

    def __init__(self, corpus: PlantedCorpus) -> None:
        """Nothing is drawn yet.

        Raises:
          DataError: if the corpus would not fit into memory.
        """
        check_memory(corpus.most_bytes, "the synthetic corpus", "make it smaller")
        self._frames: dict[str, np.ndarray] = {}
        self._words: dict[str, np.ndarray] = {}

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


R = TypeVar("R", bound=PlantedReader)


@dataclasses.dataclass(frozen=True)
class PlantedSource(Generic[C, R]):
    """The `source.Source` of a corpus; it is made in memory each time it is opened.

    Attributes:
      corpus: the corpus.
      name: see `source.Source`.
      feature: see `source.Source`.
      version: version of what is drawn; another one is another data set.
      reader: makes the reader of a corpus.
    """

    corpus: C
    name: ClassVar[str]
    feature: ClassVar[str] = "planted"
    version: ClassVar[int] = 1
    reader: ClassVar[Any]

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
        return digest(self.name, self.version, fields)

    def open(self) -> contextlib.nullcontext[R]:
        """Makes the corpus.

        Returns:
          What gives the reader.

        Raises:
          DataError: if it would not fit into memory.
        """
        return contextlib.nullcontext(self.reader(self.corpus))


class Encoder:
    """The fixed random maps of a corpus."""

    def __init__(self, corpus: PlantedCorpus) -> None:
        self.corpus = corpus
        rng = corpus.generator(len(SPLITS) + 1)
        hidden = 2 * corpus.visual_dim
        self.words = {word: rng.standard_normal(corpus.text_dim) for word in (*CONCEPTS, *_FILLERS)}
        self.latents = rng.standard_normal((len(CONCEPTS), LATENT_DIM))
        self.first = rng.standard_normal((LATENT_DIM, hidden)) * 1.5 / np.sqrt(LATENT_DIM)
        self.second = rng.standard_normal((hidden, corpus.visual_dim)) * 1.3 / np.sqrt(hidden)

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
