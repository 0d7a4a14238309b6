"""Small corpora with planted moments, made in memory, for tests, debugging and first tries.

A video is a sequence of segments, each with a few concepts. A segment is a moment, which a caption
may describe, or background. A frame is a fixed, random, non-linear map of the vectors z_c of its
concepts with random amplitudes a_c, plus a vector (the style) that all frames of the video share,
plus noise:

    frame = tanh(Σ_c a_c z_c W₁) W₂ + style + noise

A caption names the concepts of one moment, in random order, among filler words. A video has many
concepts that the caption does not name, so the mean of its frames says little about one moment: a
model has to find the moment. Results on these corpora say nothing about real videos.
"""

import abc
import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from hlformer_jax.data.annotations.moments import AnnotatedMoment, TimedVideo, annotate
from hlformer_jax.data.sources.protocol import (
    SPLITS,
    Caption,
    Captions,
    Reader,
    Teacher,
    check_memory,
    digest,
)
from hlformer_jax.data.sources.released.layouts import Collection

CONCEPTS = (
    "dog cat horse child woman ball guitar piano bicycle car boat kitchen garden river forest "
    "snow fire bread apple knife table door ladder rope book mirror hat jump climb dance throw wash"
).split()
_FILLERS = "a the then while someone there again near slowly and with some".split()
_LATENT_DIM = 24
_PER_MOMENT = 3
_MAX_CAPTIONS, _MAX_WORDS = 5, 11  # captions of a video, words of a caption

LEAVES = {1: 0.12, 2: 0.30, 3: 0.25, 4: 0.15, 5: 0.10, 6: 0.08}
"""Probability of a tree by its number of leaves."""

# Fewest and most frames of a moment, and of the gap between two moments, in a corpus of trees.
_MOMENT_FRAMES, _GAP_FRAMES = (5, 10), (4, 9)
_NEIGHBOURS = 12  # number of concepts that belong to the same place in time


def is_synthetic(data: ConfigDict) -> bool:
    """Return whether `config.data` asks for a synthetic corpus."""
    return not data.manual_dir and any(data.synthetic_videos)


def corpus_title(data: ConfigDict) -> str:
    """Return a title of the data set of `config.data`: collection and feature, or "synthetic …"."""
    return "synthetic corpus" if is_synthetic(data) else f"{data.collection} ({data.feature})"


# Corpora


@dataclasses.dataclass(frozen=True)
class PlantedCorpus(abc.ABC):
    """A corpus as a `Source`. It is drawn at each opening; equal fields give equal features."""

    seed: int = 0
    videos: tuple[int, int, int] = (384, 64, 128)  # numbers of videos of train, val and test
    visual_dim: int = 64
    text_dim: int = 48
    noise: float = 0.3  # standard deviation of a frame's noise; the map has about 1
    style: float = 0.5  # standard deviation of the vector that all frames of a video share

    name: ClassVar[str] = "synthetic"
    feature: ClassVar[str] = "planted"
    version: ClassVar[int] = 1  # part of the fingerprint

    @property
    @abc.abstractmethod
    def longest_video(self) -> int:
        """The largest number of frames of a video."""

    @abc.abstractmethod
    def open(self) -> contextlib.nullcontext[Any]:
        """Draw the corpus; raise a DataError if it would not fit into memory."""

    def fields(self) -> dict[str, Any]:
        """Return the fields that identify the corpus."""
        return dataclasses.asdict(self)

    def fingerprint(self) -> str:
        """Return a fingerprint of the name, the version and the fields."""
        return digest(self.name, self.version, json.dumps(self.fields(), sort_keys=True))

    @property
    def max_bytes(self) -> float:
        """The largest number of bytes of the corpus and of the maps that make it."""
        maps = 8.0 * 2 * self.visual_dim * (self.visual_dim + _LATENT_DIM)
        video = self.longest_video * self.visual_dim + _MAX_CAPTIONS * _MAX_WORDS * self.text_dim
        return maps + 4.0 * sum(self.videos) * video

    def generator(self, *key: int) -> np.random.Generator:
        """Return the generator of random numbers for the part of the corpus that `key` names."""
        return np.random.default_rng((self.seed, *key))


@dataclasses.dataclass(frozen=True)
class Corpus(PlantedCorpus):
    """A corpus of captioned videos, with a planted teacher if `teacher_dim` is not 0.

    The teacher's vector of a frame is a fixed random linear map of the sum Σ_c a_c z_c, plus noise:
    the teacher sees the concepts without the non-linear map and the video's style. Its vector of a
    caption is the same map of the concepts that the caption names, plus noise. Videos and captions
    are the same with and without a teacher.
    """

    min_frames: int = 24  # of a video
    max_frames: int = 96
    teacher_dim: int = 0  # width of the teacher's vectors
    teacher_noise: float = 1.0  # standard deviation of the noise; the map has about 1

    version: ClassVar[int] = 2  # version 2 added the times of moments

    @property
    def longest_video(self) -> int:
        """The largest number of frames of a video."""
        return self.max_frames

    @property
    def max_bytes(self) -> float:
        """The largest number of bytes of the corpus, including the latents of a teacher."""
        latents = 8.0 * sum(self.videos) * self.longest_video * _LATENT_DIM
        return super().max_bytes + (latents if self.teacher_dim else 0)

    def fields(self) -> dict[str, Any]:
        """Return the fields that identify the corpus; a teacher's only if there is a teacher."""
        return {
            name: value
            for name, value in super().fields().items()
            if self.teacher_dim or not name.startswith("teacher")
        }

    def open(self) -> contextlib.nullcontext["SyntheticReader"]:
        """Draw the corpus; raise a DataError if it would not fit into memory."""
        return contextlib.nullcontext(SyntheticReader(self))


@dataclasses.dataclass(frozen=True)
class TreeCorpus(PlantedCorpus):
    """A corpus for trees of actions: each video is a sequence of moments and makes one tree.

    A moment has 5 to 10 frames, one per second, and its own caption. About one video in eight has
    two moments with unrelated frames between them, so that its tree is a chain. As with
    annotations, the rule of `trees` makes the trees from the spans of the moments.

    The concepts have a fixed random order, which a model does not know. Early moments tend to have
    concepts from the beginning of this order, late moments from its end, so that the order of
    moments in time can be learned.
    """

    videos: tuple[int, int, int] = (400, 60, 250)
    precedence: float = 0.7  # chance that a moment's concepts belong to its place in time

    name: ClassVar[str] = "synthetic_trees"

    @property
    def longest_video(self) -> int:
        """The largest number of frames of a video."""
        return max(LEAVES) * _MOMENT_FRAMES[1]

    def fields(self) -> dict[str, Any]:
        """Return the identifying fields; "shared" keeps recorded fingerprints valid."""
        return super().fields() | {"shared": 0}

    def open(self) -> contextlib.nullcontext["TreesReader"]:
        """Draw the corpus; raise a DataError if it would not fit into memory."""
        return contextlib.nullcontext(TreesReader(self))


# Readers


class Encoder:
    """The fixed random maps of a corpus."""

    def __init__(self, corpus: PlantedCorpus) -> None:
        self.corpus = corpus
        rng = corpus.generator(len(SPLITS) + 1)
        hidden = 2 * corpus.visual_dim
        self.words = {word: rng.standard_normal(corpus.text_dim) for word in (*CONCEPTS, *_FILLERS)}
        self.latents = rng.standard_normal((len(CONCEPTS), _LATENT_DIM))
        self.first = rng.standard_normal((_LATENT_DIM, hidden)) * 1.5 / np.sqrt(_LATENT_DIM)
        self.second = rng.standard_normal((hidden, corpus.visual_dim)) * 1.3 / np.sqrt(hidden)

    def latent(self, concepts: np.ndarray, num_frames: int, rng: np.random.Generator) -> np.ndarray:
        """Draw the latents Σ_c a_c z_c of frames, [num_frames, latents].

        Args:
          concepts: numbers of the concepts of all frames.
          num_frames: number of frames.
          rng: generator of the amplitudes a_c.
        """
        shown = rng.uniform(0.7, 1.3, (num_frames, len(concepts)))
        return shown @ self.latents[concepts] / np.sqrt(len(concepts))

    def render(self, latents: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the frames of a video, [frames, D]: map of the latents, style and noise."""
        frames = np.tanh(latents @ self.first) @ self.second
        frames += self.corpus.style * rng.standard_normal(self.corpus.visual_dim)
        frames += self.corpus.noise * rng.standard_normal(frames.shape)
        return frames

    def caption(
        self, concepts: np.ndarray, rng: np.random.Generator
    ) -> tuple[list[str], np.ndarray]:
        """Draw a caption; return its words and their features, float32 [words, E]."""
        words = [CONCEPTS[k] for k in concepts]
        num_fillers = int(rng.integers(2, _MAX_WORDS - _PER_MOMENT + 1))
        words += [_FILLERS[k] for k in rng.integers(len(_FILLERS), size=num_fillers)]
        words = [words[k] for k in rng.permutation(len(words))]
        features = np.stack([self.words[word] for word in words])
        features += 0.2 * rng.standard_normal(features.shape)
        return words, features.astype(np.float32)


class PlantedReader(Reader):
    """The `Reader` of a corpus; a subclass draws the videos."""

    def __init__(self, corpus: PlantedCorpus) -> None:
        check_memory(corpus.max_bytes, "the synthetic corpus", "make it smaller")
        self.encoder = Encoder(corpus)
        self._splits: dict[str, Captions] = {}
        self._frames: dict[str, np.ndarray] = {}
        self._words: dict[str, np.ndarray] = {}
        for key, (split, num_videos) in enumerate(zip(SPLITS, corpus.videos, strict=True)):
            names = [f"{split}_{index:05d}" for index in range(num_videos)]
            self._splits[split] = {
                video: self._draw(split, video, corpus.generator(key, index))
                for index, video in enumerate(names)
            }

    @abc.abstractmethod
    def _draw(self, split: str, video: str, rng: np.random.Generator) -> tuple[Caption, ...]:
        """Draw and store a video's frames and captions; return the captions."""

    @property
    def splits(self) -> Mapping[str, Captions]:
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


class SyntheticReader(PlantedReader):
    """The reader of a `Corpus`.

    Attributes:
      moments: the frames [start, end) of every caption's moment, by the caption's id.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self.moments: dict[str, tuple[int, int]] = {}
        # For a teacher: the latents of every video's frames, and the concepts of every caption.
        self._latents: dict[str, np.ndarray] = {}
        self._concepts: dict[str, np.ndarray] = {}
        super().__init__(corpus)
        self._rows = {video: row for row, video in enumerate(self._frames)}
        if corpus.teacher_dim:
            shape = _LATENT_DIM, corpus.teacher_dim
            normal = corpus.generator(len(SPLITS) + 2).standard_normal(shape)
            self._teacher_map = normal / np.sqrt(_LATENT_DIM)

    def annotations(self, split: str) -> dict[str, dict[str, tuple[int, int, int]]]:
        """Return the times of moments, at one frame per second; see `spans.Span`."""
        return {
            "spans": {
                caption.caption_id: (*self.moments[caption.caption_id], len(self._frames[video]))
                for video, captions in self._splits[split].items()
                for caption in captions
            }
        }

    def read_teacher(self, video: str, caption_ids: list[str]) -> Teacher:
        """Return the teacher's vectors of a video and of its captions; see `Reader`."""
        corpus = self._corpus
        rng = corpus.generator(len(SPLITS) + 3, self._rows[video])
        concepts = [self.encoder.latents[self._concepts[name]].sum(axis=0) for name in caption_ids]

        def view(latents: np.ndarray) -> np.ndarray:
            vectors = latents @ self._teacher_map
            noise = corpus.teacher_noise * rng.standard_normal(vectors.shape)
            return (vectors + noise).astype(np.float32)

        frames = view(self._latents[video])
        return Teacher(frames, view(np.stack(concepts) / np.sqrt(_PER_MOMENT)))

    def _draw(self, split: str, video: str, rng: np.random.Generator) -> tuple[Caption, ...]:
        latents, moments = _draw_segments(self._corpus, self.encoder, rng)
        self._frames[video] = self.encoder.render(latents, rng).astype(np.float32)
        captioned = rng.permutation(len(moments))[: int(rng.integers(2, _MAX_CAPTIONS + 1))]
        captions = []
        for k, (start, end, concepts) in enumerate(moments[row] for row in captioned):
            name = f"{video}#enc#{k}"
            words, self._words[name] = self.encoder.caption(concepts, rng)
            captions.append(Caption(name, " ".join(words)))
            self.moments[name], self._concepts[name] = (start, end), concepts
        if self._corpus.teacher_dim:
            self._latents[video] = latents
        return tuple(captions)


def _draw_segments(
    corpus: Corpus, encoder: Encoder, rng: np.random.Generator
) -> tuple[np.ndarray, list[tuple[int, int, np.ndarray]]]:
    """Draw a video: the latents of its frames, and (start, end, concepts) of every moment."""
    length = int(rng.integers(corpus.min_frames, corpus.max_frames + 1))
    latents: list[np.ndarray] = []
    segments = []
    start = 0
    while start < length:
        end = start + int(rng.integers(4, 11))
        end = length if length - end < 4 else end  # the rest is too short for another segment
        concepts = rng.choice(len(CONCEPTS), _PER_MOMENT, replace=False)
        latents.append(encoder.latent(concepts, end - start, rng))
        segments.append((start, end, concepts))
        start = end
    # Every second segment is a moment, beginning with the first if there are at most three.
    moments = segments[int(rng.integers(2)) if len(segments) > 3 else 0 :: 2]
    return np.concatenate(latents), moments


class TreesReader(PlantedReader):
    """The reader of a `TreeCorpus`.

    Attributes:
      videos: the videos of each split with their moments.
    """

    def __init__(self, corpus: TreeCorpus) -> None:
        self._corpus = corpus
        self._order = corpus.generator(len(SPLITS) + 2).permutation(len(CONCEPTS))
        self.videos: dict[str, list[TimedVideo]] = {split: [] for split in SPLITS}
        super().__init__(corpus)

    def annotations(self, split: str) -> dict[str, Any]:
        """Return durations and moments of a split; see `moments.annotate`."""
        return annotate(TreeCorpus.name, self.videos[split], self)

    def _draw(self, split: str, video: str, rng: np.random.Generator) -> tuple[Caption, ...]:
        leaves = int(rng.choice(list(LEAVES), p=list(LEAVES.values())))
        concepts = _draw_concepts(max(leaves, 2), self._corpus, self._order, rng)
        latents, bounds, start = [], [], 0
        for k, moment_concepts in enumerate(concepts):
            if leaves == 1 and k == 1:
                length = int(rng.integers(_GAP_FRAMES[0], _GAP_FRAMES[1] + 1))
                unrelated = rng.choice(len(CONCEPTS), _PER_MOMENT, replace=False)
                latents.append(self.encoder.latent(unrelated, length, rng))
                start += length
            length = int(rng.integers(_MOMENT_FRAMES[0], _MOMENT_FRAMES[1] + 1))
            latents.append(self.encoder.latent(moment_concepts, length, rng))
            bounds.append((float(start), float(start + length)))
            start += length
        frames = self.encoder.render(np.concatenate(latents), rng)
        self._frames[video] = frames.astype(np.float32)
        moments = []
        for k, moment_concepts in enumerate(concepts):
            name = f"{video}#enc#{k}"
            words, self._words[name] = self.encoder.caption(moment_concepts, rng)
            moments.append(AnnotatedMoment(name, *bounds[k], f"{' '.join(words)}."))
        self.videos[split].append(TimedVideo(video, float(start), tuple(moments)))
        return tuple(Caption(moment.moment_id, moment.text) for moment in moments)


def _draw_concepts(
    num_moments: int, corpus: TreeCorpus, order: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Draw the concepts of every moment of a video."""
    drawn: list[np.ndarray] = []
    for k in range(num_moments):
        first = round((len(order) - _NEIGHBOURS) * k / (num_moments - 1))
        in_place = rng.random() < corpus.precedence
        candidates = order[first : first + _NEIGHBOURS] if in_place else order
        drawn.append(rng.permutation(rng.permutation(np.sort(candidates))[:_PER_MOMENT]))
    return drawn


# Released files


def write_corpus(directory: str | Path, corpus: Corpus) -> Collection:
    """Write a corpus in the released layout, into the new folder `directory`/{corpus.name}.

    Args:
      directory: the folder that `config.data.manual_dir` shall name.
      corpus: the corpus.

    Returns:
      The collection, a source of the written files.

    Raises:
      FileExistsError: if the folder of the corpus exists.
    """
    widths = corpus.visual_dim, corpus.text_dim
    collection = Collection(directory, corpus.name, corpus.feature, *widths)
    collection.root.mkdir(parents=True)
    collection.feature_dir.mkdir(parents=True)
    collection.text_features.parent.mkdir()
    with corpus.open() as reader, h5py.File(collection.text_features, "w") as words:
        for split, videos in reader.splits.items():
            captions = [caption for listed in videos.values() for caption in listed]
            for caption in captions:
                words[caption.caption_id] = reader.read_words(caption.caption_id)
            lines = [f"{caption.caption_id} {caption.sentence}\n" for caption in captions]
            collection.captions(split).write_text("".join(lines), encoding="utf-8")
        frames = {v: reader.read_frames(v) for split in SPLITS for v in reader.splits[split]}
    lists = {video: [f"{video}_{k}" for k in range(len(x))] for video, x in frames.items()}
    names = [name for frame_names in lists.values() for name in frame_names]
    # As in the published files, rows are in random order; video2frames.txt has the order in time.
    order = corpus.generator(len(SPLITS)).permutation(len(names))
    rows = np.concatenate(list(frames.values()))[order]
    rows.astype("<f4").tofile(collection.feature_dir / "feature.bin")
    for name, text in (
        ("id.txt", " ".join(names[row] for row in order)),
        ("shape.txt", f"{len(rows)} {rows.shape[1]}\n"),
        ("video2frames.txt", repr(lists)),
    ):
        (collection.feature_dir / name).write_text(text, encoding="utf-8")
    return collection
