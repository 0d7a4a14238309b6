"""Small corpora with planted moments, made in memory: for trying, testing and debugging.

A video is a row of segments. Each shows a few concepts: a moment that a caption may describe, or
background. A frame is a fixed, random, non-linear map of the concepts that it shows, plus the
video's own style and noise of its own:

    frame = tanh(Σ_c a_c z_c W₁) W₂ + style + noise

A caption names the concepts of one moment, in random order, among words that say nothing. As a
video holds many concepts that a caption does not name, the mean of its frames says little about one
moment: a model has to find it. Nothing is learned here, and nothing is real.

`Corpus` has captions, `SyntheticTeacherCorpus` a teacher besides, `TreeCorpus` moments that make
trees. `write_corpus` writes one as released files.
"""

import abc
import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from hlformer_jax.data.annotations import AnnotatedMoment, TimedVideo, annotate, write_moments
from hlformer_jax.data.released import Collection, MomentCollection
from hlformer_jax.data.source import SPLITS, Caption, Reader, Teacher, check_memory, digest

CONCEPTS = (
    "dog cat horse child woman ball guitar piano bicycle car boat kitchen garden river forest "
    "snow fire bread apple knife table door ladder rope book mirror hat jump climb dance throw wash"
).split()
_FILLERS = "a the then while someone there again near slowly and with some".split()
_LATENT_DIM = 24
_PER_MOMENT = 3
_MAX_CAPTIONS, _MAX_WORDS = 5, 11  # of a video; of a caption

LEAVES = {1: 0.12, 2: 0.30, 3: 0.25, 4: 0.15, 5: 0.10, 6: 0.08}
"""Chance of a tree of so many leaves."""

_MOMENT_FRAMES, _GAP_FRAMES = (5, 10), (4, 9)  # fewest and most, in a corpus of trees
_NEIGHBOURS = 12  # concepts that belong to a place in time


def is_synthetic(data: ConfigDict) -> bool:
    """Whether `config.data` asks for a synthetic corpus."""
    return not data.manual_dir and any(data.synthetic_videos)


# Corpora


@dataclasses.dataclass(frozen=True)
class PlantedCorpus(abc.ABC):
    """The fields of every corpus; equal values give equal features.

    Attributes:
      seed: seed of everything random.
      videos: number of videos of train, val and test.
      visual_dim: D, the width of a frame's features.
      text_dim: E, the width of a word's features.
      noise: standard deviation of the noise of a frame; its signal has about 1.
      style: standard deviation of what all frames of a video share.
      name: name of its data set.
      version: version of what is drawn; another one is another data set.
    """

    seed: int = 0
    videos: tuple[int, int, int] = (384, 64, 128)
    visual_dim: int = 64
    text_dim: int = 48
    noise: float = 0.3
    style: float = 0.5

    name: ClassVar[str] = "synthetic"
    version: ClassVar[int] = 1

    @property
    @abc.abstractmethod
    def longest_video(self) -> int:
        """Frames of a video at most."""

    @abc.abstractmethod
    def draw(self) -> "PlantedReader":
        """Makes the corpus; a DataError if it would not fit into memory."""

    @property
    def max_bytes(self) -> float:
        """Bytes that the corpus, and the maps that make it, take at most."""
        maps = 8.0 * 2 * self.visual_dim * (self.visual_dim + _LATENT_DIM)
        video = self.longest_video * self.visual_dim + _MAX_CAPTIONS * _MAX_WORDS * self.text_dim
        return maps + 4.0 * sum(self.videos) * video

    def generator(self, *key: int) -> np.random.Generator:
        """The random numbers of one part of the corpus."""
        return np.random.default_rng((self.seed, *key))


@dataclasses.dataclass(frozen=True)
class Corpus(PlantedCorpus):
    """A corpus of captioned videos.

    Attributes:
      min_frames: fewest frames of a video.
      max_frames: most frames of a video.
    """

    min_frames: int = 24
    max_frames: int = 96

    version: ClassVar[int] = 2  # from 2 on with the times of moments

    @property
    def longest_video(self) -> int:
        """Frames of a video at most."""
        return self.max_frames

    def draw(self) -> "SyntheticReader":
        """Makes the corpus; a DataError if it would not fit into memory."""
        return SyntheticReader(self)


@dataclasses.dataclass(frozen=True)
class SyntheticTeacherCorpus(Corpus):
    """A `Corpus` with a planted teacher: a noisy linear view of what is shown and said.

    The teacher's vector of a frame is a fixed random linear map of the concepts that it shows,
    before the non-linear map, the video's style and the noise that a student has to see through;
    its vector of a caption is the same map of the concepts that the caption names. Frames, captions
    and words are those of the same corpus without a teacher.

    Attributes:
      teacher_dim: width of the teacher's vectors.
      teacher_noise: standard deviation of their noise; their signal has about 1.
    """

    teacher_dim: int = 32
    teacher_noise: float = 1.0

    @property
    def max_bytes(self) -> float:
        """Bytes that the corpus takes at most, with what its teacher sees."""
        return super().max_bytes + 8.0 * sum(self.videos) * self.longest_video * _LATENT_DIM


@dataclasses.dataclass(frozen=True)
class TreeCorpus(PlantedCorpus):
    """A corpus of moments in a row, planted with their order: one tree for each video.

    A moment has 5 to 10 frames, a frame a second, and a caption of its own. One video in eight has
    two moments with unrelated frames between them, so that its tree is a chain. Spans and sentences
    go through the rule of `trees` like annotations.

    Concepts stand in a fixed, secret order. A moment's concepts are often among those that the
    order has at the moment's place in its video, so that what is early and what is late can be
    learnt.

    Attributes:
      precedence: chance that a moment's concepts belong to its place in time.
      shared: concepts that a moment has of the one before, below 3: siblings are then harder to
        tell apart.
    """

    videos: tuple[int, int, int] = (400, 60, 250)
    precedence: float = 0.7
    shared: int = 0

    name: ClassVar[str] = "synthetic_trees"

    @property
    def longest_video(self) -> int:
        """Frames of a video at most."""
        return max(LEAVES) * _MOMENT_FRAMES[1]

    def draw(self) -> "TreesReader":
        """Makes the corpus; a DataError if it would not fit into memory."""
        return TreesReader(self)


@dataclasses.dataclass(frozen=True)
class SyntheticSource:
    """The `source.Source` of a corpus, which is made in memory each time it is opened.

    Attributes:
      corpus: the corpus.
    """

    corpus: PlantedCorpus
    feature: ClassVar[str] = "planted"

    @property
    def name(self) -> str:
        """The data set."""
        return self.corpus.name

    @property
    def visual_dim(self) -> int:
        """D."""
        return self.corpus.visual_dim

    @property
    def text_dim(self) -> int:
        """E."""
        return self.corpus.text_dim

    @property
    def teacher_dim(self) -> int:
        """Width of the teacher's vectors; 0 without one."""
        return self.corpus.teacher_dim if isinstance(self.corpus, SyntheticTeacherCorpus) else 0

    def fingerprint(self) -> str:
        """Identifies the corpus by its fields; it is always there."""
        fields = json.dumps(dataclasses.asdict(self.corpus), sort_keys=True)
        return digest(self.name, self.corpus.version, fields)

    def open(self) -> contextlib.nullcontext["PlantedReader"]:
        """Makes the corpus; a DataError if it would not fit into memory."""
        return contextlib.nullcontext(self.corpus.draw())


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
        """Draws the latents of frames that show some concepts, [num_frames, latents]."""
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
        num_fillers = int(rng.integers(2, _MAX_WORDS - _PER_MOMENT + 1))
        words += [_FILLERS[k] for k in rng.integers(len(_FILLERS), size=num_fillers)]
        words = [words[k] for k in rng.permutation(len(words))]
        features = np.stack([self.words[word] for word in words])
        features += 0.2 * rng.standard_normal(features.shape)
        return words, features.astype(np.float32)


class PlantedReader(Reader):
    """The `source.Reader` of a corpus, which lies in memory; a subclass draws it."""

    def __init__(self, corpus: PlantedCorpus) -> None:
        """Nothing is drawn yet; a DataError if the corpus would not fit into memory."""
        check_memory(corpus.max_bytes, "the synthetic corpus", "make it smaller")
        self.encoder = Encoder(corpus)
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


class SyntheticReader(PlantedReader):
    """The reader of a `Corpus`, with or without a teacher.

    Attributes:
      moments: the frames [start, end) of every caption's moment, by its id.
    """

    def __init__(self, corpus: Corpus) -> None:
        super().__init__(corpus)
        self.moments: dict[str, tuple[int, int]] = {}
        self._corpus = corpus
        self._splits: dict[str, dict[str, tuple[Caption, ...]]] = {}
        self._latents: dict[str, np.ndarray] = {}  # of the frames of every video, for a teacher
        self._concepts: dict[str, np.ndarray] = {}  # of every caption, likewise
        for key, (split, num_videos) in enumerate(zip(SPLITS, corpus.videos, strict=True)):
            names = [f"{split}_{index:05d}" for index in range(num_videos)]
            self._splits[split] = {
                video: self._draw(video, corpus.generator(key, index))
                for index, video in enumerate(names)
            }
        self._rows = {video: row for row, video in enumerate(self._latents)}
        if isinstance(corpus, SyntheticTeacherCorpus):
            shape = _LATENT_DIM, corpus.teacher_dim
            normal = corpus.generator(len(SPLITS) + 2).standard_normal(shape)
            self._teacher_map = normal / np.sqrt(_LATENT_DIM)

    @property
    def splits(self) -> dict[str, dict[str, tuple[Caption, ...]]]:
        """The captions of every video of train, val and test."""
        return self._splits

    def annotations(self, split: str) -> dict[str, dict[str, tuple[int, int, int]]]:
        """The times of moments, at a frame a second; see `annotations.Span`."""
        return {
            "spans": {
                caption.caption_id: (*self.moments[caption.caption_id], len(self._frames[video]))
                for video, captions in self._splits[split].items()
                for caption in captions
            }
        }

    def read_teacher(self, video: str, caption_ids: list[str]) -> Teacher:
        """The teacher's vectors of a video and of captions of it; see `source.Reader`."""
        corpus = self._corpus
        assert isinstance(corpus, SyntheticTeacherCorpus)
        rng = corpus.generator(len(SPLITS) + 3, self._rows[video])
        named = [self.encoder.latents[self._concepts[name]].sum(axis=0) for name in caption_ids]

        def view(seen: np.ndarray) -> np.ndarray:
            vectors = seen @ self._teacher_map
            noise = corpus.teacher_noise * rng.standard_normal(vectors.shape)
            return (vectors + noise).astype(np.float32)

        frames = view(self._latents[video])
        return Teacher(frames, view(np.stack(named) / np.sqrt(_PER_MOMENT)))

    def _draw(self, video: str, rng: np.random.Generator) -> tuple[Caption, ...]:
        latents, moments = _draw_segments(self._corpus, self.encoder, rng)
        frames = self.encoder.render(latents, rng)
        self._frames[video] = frames.astype(np.float32)
        chosen = rng.permutation(len(moments))[: int(rng.integers(2, _MAX_CAPTIONS + 1))]
        captions = []
        for k, (start, end, concepts) in enumerate(moments[row] for row in chosen):
            name = f"{video}#enc#{k}"
            words, self._words[name] = self.encoder.caption(concepts, rng)
            self.moments[name] = (start, end)
            captions.append(Caption(name, " ".join(words)))
            self._concepts[name] = concepts
        if isinstance(self._corpus, SyntheticTeacherCorpus):
            self._latents[video] = latents
        return tuple(captions)


def _draw_segments(
    corpus: Corpus, encoder: Encoder, rng: np.random.Generator
) -> tuple[np.ndarray, list[tuple[int, int, np.ndarray]]]:
    """Draws a video: the latents of its frames, and span and concepts of every moment."""
    length = int(rng.integers(corpus.min_frames, corpus.max_frames + 1))
    latents: list[np.ndarray] = []
    segments = []
    start = 0
    while start < length:
        end = start + int(rng.integers(4, 11))
        end = length if length - end < 4 else end  # too little for a segment of its own
        concepts = rng.choice(len(CONCEPTS), _PER_MOMENT, replace=False)
        latents.append(encoder.latent(concepts, end - start, rng))
        segments.append((start, end, concepts))
        start = end
    # Every other segment is a moment; of few segments the first is one.
    moments = segments[int(rng.integers(2)) if len(segments) > 3 else 0 :: 2]
    return np.concatenate(latents), moments


class TreesReader(PlantedReader):
    """The reader of a `TreeCorpus`.

    Attributes:
      videos: for each split, its videos with their moments.
      planted: for each split, the true tree of every video, as `_planted_tree` has it.
    """

    def __init__(self, corpus: TreeCorpus) -> None:
        super().__init__(corpus)
        self.videos: dict[str, list[TimedVideo]] = {}
        self.planted: dict[str, dict[str, dict[str, Any]]] = {}
        order = corpus.generator(len(SPLITS) + 2).permutation(len(CONCEPTS))
        for key, (split, num_videos) in enumerate(zip(SPLITS, corpus.videos, strict=True)):
            self.videos[split], self.planted[split] = [], {}
            for index in range(num_videos):
                name = f"{split}_{index:05d}"
                rng = corpus.generator(key, index)
                video, self.planted[split][name] = self._draw(name, corpus, order, rng)
                self.videos[split].append(video)

    @property
    def splits(self) -> dict[str, dict[str, tuple[Caption, ...]]]:
        """The moments of every video of train, val and test, as captions."""
        return {
            split: {
                video.video: tuple(Caption(one.moment_id, one.text) for one in video.moments)
                for video in videos
            }
            for split, videos in self.videos.items()
        }

    def annotations(self, split: str) -> dict[str, Any]:
        """Durations and spans of a split; see `annotations.annotate`."""
        return annotate(TreeCorpus.name, self.videos[split], self)

    def _draw(
        self, name: str, corpus: TreeCorpus, order: np.ndarray, rng: np.random.Generator
    ) -> tuple[TimedVideo, dict[str, Any]]:
        """Draws a video with its moments; gives it and its true tree."""
        leaves = int(rng.choice(list(LEAVES), p=list(LEAVES.values())))
        concepts = _draw_concepts(max(leaves, 2), corpus, order, rng)
        latents, bounds, start = [], [], 0
        for k, own in enumerate(concepts):
            if leaves == 1 and k == 1:
                length = int(rng.integers(_GAP_FRAMES[0], _GAP_FRAMES[1] + 1))
                unrelated = rng.choice(len(CONCEPTS), _PER_MOMENT, replace=False)
                latents.append(self.encoder.latent(unrelated, length, rng))
                start += length
            length = int(rng.integers(_MOMENT_FRAMES[0], _MOMENT_FRAMES[1] + 1))
            latents.append(self.encoder.latent(own, length, rng))
            bounds.append((start, start + length))
            start += length
        frames = self.encoder.render(np.concatenate(latents), rng)
        self._frames[name] = frames.astype(np.float32)
        moments = []
        for k, ((first, end), own) in enumerate(zip(bounds, concepts, strict=True)):
            words, features = self.encoder.caption(own, rng)
            self._words[f"{name}#enc#{k}"] = features
            moments.append(
                AnnotatedMoment(f"{name}#enc#{k}", float(first), float(end), f"{' '.join(words)}.")
            )
        return TimedVideo(name, float(start), tuple(moments)), _planted_tree(bounds, leaves == 1)


def _draw_concepts(
    num_moments: int, corpus: TreeCorpus, order: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Draws the concepts of every moment of a video."""
    drawn: list[np.ndarray] = []
    for k in range(num_moments):
        first = round((len(order) - _NEIGHBOURS) * k / (num_moments - 1))
        in_place = rng.random() < corpus.precedence
        known = order[first : first + _NEIGHBOURS] if in_place else order
        kept = drawn[-1][: corpus.shared] if drawn else order[:0]
        new = rng.permutation(np.setdiff1d(known, kept))[: _PER_MOMENT - len(kept)]
        drawn.append(rng.permutation(np.concatenate([kept, new])))
    return drawn


def _planted_tree(bounds: Sequence[tuple[int, int]], is_chain: bool) -> dict[str, Any]:
    """The true tree of a video, written down without the rule.

    Args:
      bounds: seconds at which each moment begins and ends, in the order of time.
      is_chain: whether the moments lie apart.

    Returns:
      As JSON has it: `nodes`, spans, those of the leaves first in the order of time and the root
      last; `edges`, pairs of a parent and a child, as numbers of nodes; `order`, pairs of an
      earlier and a later child of one parent.
    """
    if is_chain:
        leaf = max(bounds, key=lambda span: span[1] - span[0])
        nodes = [list(leaf), [bounds[0][0], bounds[-1][1]]]
        return {"nodes": nodes, "edges": [[1, 0]], "order": []}
    nodes, edges, order = [list(span) for span in bounds], [], []
    first, count = 0, len(nodes)
    while count > 1:
        above = (count + 1) // 2
        for k in range(above):
            # The last parent of an odd level takes the last two, of which it shares the first.
            left = first + min(2 * k, count - 2)
            edges += [[len(nodes), left], [len(nodes), left + 1]]
            order.append([left, left + 1])
            nodes.append([nodes[left][0], nodes[left + 1][1]])
        first, count = first + count, above
    return {"nodes": nodes, "edges": edges, "order": order}


# Released files


def write_corpus(directory: str | Path, corpus: PlantedCorpus | None = None) -> Collection:
    """Writes a corpus as released files, or leaves it as it was written before.

    Args:
      directory: the manual_dir; the corpus goes into a folder of its name below it, complete or not
        at all. Beside the released files, ``meta.json`` has the fields of `corpus`, and
        ``moments.json`` the frames [start, end) of every caption's moment, or ``trees.json`` the
        true tree of every video of every split of a `TreeCorpus`.
      corpus: the corpus; None for `Corpus` with its defaults.

    Returns:
      The collection, of a `TreeCorpus` a `MomentCollection`.

    Raises:
      FileExistsError: if another corpus, or something else, is there.
    """
    corpus = corpus or Corpus()
    kind = MomentCollection if isinstance(corpus, TreeCorpus) else Collection
    widths = corpus.visual_dim, corpus.text_dim
    home = Path(directory).expanduser()
    collection = kind(home, corpus.name, SyntheticSource.feature, *widths)
    if _is_written(collection, corpus):
        return collection
    home.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".synthetic-", dir=home))
    try:
        there = dataclasses.replace(collection, manual_dir=draft)
        there.feature_dir.mkdir(parents=True)
        there.text_features.parent.mkdir(parents=True)
        reader = corpus.draw()
        _write_words(there, reader)
        _write_captions(there, reader)
        _write_features(there, reader, corpus.generator(len(SPLITS)))
        (there.root / "meta.json").write_text(json.dumps(_fields(corpus)), encoding="utf-8")
        # Equal corpora have equal times: they are the same source, wherever they were written.
        for path in there.root.rglob("*"):
            os.utime(path, (0, 0))
        with contextlib.suppress(OSError):  # another process was faster: _is_written decides
            os.rename(there.root, collection.root)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if not _is_written(collection, corpus):
        raise OSError(f"{collection.root}: could not be written")
    return collection


def _is_written(collection: Collection, corpus: PlantedCorpus) -> bool:
    if not collection.root.exists():
        return False
    try:
        stored = json.loads((collection.root / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        stored = None
    if stored != _fields(corpus):
        raise FileExistsError(
            f"{collection.root}: holds something else than the corpus asked for (meta.json: "
            f"{stored}; asked for: {_fields(corpus)}); remove it or choose another directory"
        )
    return True


def _fields(corpus: PlantedCorpus) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(corpus)))


def _write_words(collection: Collection, reader: PlantedReader) -> None:
    with h5py.File(collection.text_features, "w") as text:
        for videos in reader.splits.values():
            for captions in videos.values():
                for caption in captions:
                    text[caption.caption_id] = reader.read_words(caption.caption_id)


def _write_captions(collection: Collection, reader: PlantedReader) -> None:
    if isinstance(reader, TreesReader):
        for split, timed in reader.videos.items():
            write_moments(collection.captions(split), timed)
        text = json.dumps(reader.planted)
        (collection.root / "trees.json").write_text(text, encoding="utf-8")
    elif isinstance(reader, SyntheticReader):
        for split, videos in reader.splits.items():
            captions = [caption for group in videos.values() for caption in group]
            lines = [f"{caption.caption_id} {caption.sentence}\n" for caption in captions]
            collection.captions(split).write_text("".join(lines), encoding="utf-8")
        text = json.dumps(reader.moments)
        (collection.root / "moments.json").write_text(text, encoding="utf-8")


def _write_features(
    collection: Collection, reader: PlantedReader, rng: np.random.Generator
) -> None:
    videos = [video for split in SPLITS for video in reader.splits[split]]
    lists = {video: [f"{video}_{k}" for k in range(reader.num_frames(video))] for video in videos}
    names = [name for names in lists.values() for name in names]
    # As in the published files, rows are in no particular order: only the lists give the time.
    order = rng.permutation(len(names))
    rows = np.concatenate([reader.read_frames(video) for video in videos])[order]
    rows.astype("<f4").tofile(collection.feature_dir / "feature.bin")
    texts = {
        "id.txt": " ".join(names[row] for row in order),
        "shape.txt": f"{len(rows)} {rows.shape[1]}\n",
        "video2frames.txt": repr(lists),
    }
    for name, text in texts.items():
        (collection.feature_dir / name).write_text(text, encoding="utf-8")
