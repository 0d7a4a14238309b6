"""The synthetic corpus with a planted teacher: a noisy linear view of what is shown and said.

The teacher's vector of a frame is a fixed random linear map of what the frame is rendered from
(before the non-linear map, the video's style and the noise that a student has to see through); its
vector of a caption is the same map of the concepts that the caption names. Both have noise of
their own. Frames, captions and words are those of the same corpus without a teacher.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from hlformer_jax.data import source
from hlformer_jax.data.planted import LATENT_DIM, Encoder, PlantedSource
from hlformer_jax.data.source import SPLITS, Teacher
from hlformer_jax.data.synthetic import Corpus, Drawn, SyntheticReader, SyntheticSource


@dataclasses.dataclass(frozen=True)
class TaughtCorpus(Corpus):
    """A `Corpus` with a teacher.

    Attributes:
      teacher_dim: width of the teacher's vectors.
      teacher_noise: standard deviation of their noise; their signal has about 1.
    """

    teacher_dim: int = 32
    teacher_noise: float = 1.0

    @property
    def most_bytes(self) -> float:
        """Bytes that the corpus takes at most, with what its teacher sees."""
        return super().most_bytes + 8.0 * sum(self.videos) * self.longest_video * LATENT_DIM


class TaughtSyntheticReader(SyntheticReader, source.TaughtReader):
    """The `source.TaughtReader` of a corpus."""

    def __init__(self, corpus: TaughtCorpus) -> None:
        self._corpus = corpus
        self._drawn: dict[str, Drawn] = {}
        super().__init__(corpus)
        encoder = Encoder(corpus)
        self._said = encoder.latents
        rng = corpus.generator(len(SPLITS) + 2)
        shape = LATENT_DIM, corpus.teacher_dim
        self._map = rng.standard_normal(shape) / np.sqrt(LATENT_DIM)
        self._rows = {video: row for row, video in enumerate(self._drawn)}

    def read_teacher(self, video: str, caption_ids: list[str]) -> Teacher:
        """The teacher's vectors of a video and of captions of it; see `source.TaughtReader`."""
        drawn = self._drawn[video]
        rng = self._corpus.generator(len(SPLITS) + 3, self._rows[video])
        named = dict(zip(drawn.caption_ids, drawn.concepts, strict=True))
        said = [self._said[named[name]].sum(axis=0) for name in caption_ids]
        said = np.stack(said) / np.sqrt(len(drawn.concepts[0]))
        return Teacher(*(self._view(seen, rng) for seen in (drawn.latents, said)))

    def _view(self, seen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        vectors = seen @ self._map
        noise = self._corpus.teacher_noise * rng.standard_normal(vectors.shape)
        return (vectors + noise).astype(np.float32)

    def _keep(self, video: str, drawn: Drawn) -> None:
        self._drawn[video] = drawn


class TaughtSyntheticSource(PlantedSource[TaughtCorpus, TaughtSyntheticReader]):
    """The `source.TaughtSource` of a corpus."""

    name: ClassVar[str] = "synthetic"
    version: ClassVar[int] = SyntheticSource.version
    reader = TaughtSyntheticReader

    @property
    def teacher_dim(self) -> int:
        """Width of the teacher's vectors."""
        return self.corpus.teacher_dim
