"""A small corpus with planted moments, in the released layout: for trying, testing and debugging.

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
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hlformer_jax.data.released.layout import SPLITS, Collection

_CONCEPTS = (
    "dog cat horse child woman ball guitar piano bicycle car boat kitchen garden river forest "
    "snow fire bread apple knife table door ladder rope book mirror hat jump climb dance throw wash"
).split()
_FILLERS = "a the then while someone there again near slowly and with some".split()
_LATENT_DIM = 24
_PER_MOMENT = 3


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What a corpus is made of; equal values give equal features.

    Attributes:
      seed: of everything random.
      videos: number of videos of train, val and test.
      min_frames: fewest frames of a video.
      max_frames: most frames of a video.
      visual_dim: D.
      text_dim: E.
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


def write_corpus(directory: str | Path, corpus: Corpus | None = None) -> Collection:
    """Writes a corpus, or finds it written.

    Args:
      directory: the manual_dir; the corpus goes into ``synthetic/`` below it, complete or not at
        all. Beside the released files, ``moments.json`` has the frames [start, end) of every
        caption's moment, and ``meta.json`` what the corpus was made of.
      corpus: what it is made of; None for the defaults.

    Returns:
      The collection, named synthetic, with feature planted.

    Raises:
      FileExistsError: if another corpus, or something else, is there.
    """
    corpus = corpus or Corpus()
    directory = Path(directory).expanduser()
    widths = (corpus.visual_dim, corpus.text_dim)
    collection = Collection(directory, "synthetic", "planted", *widths)
    if not _written(collection, corpus):
        directory.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".synthetic-", dir=directory))
        try:
            _write(dataclasses.replace(collection, manual_dir=draft), corpus)
            # Equal corpora have equal times: they are the same source, wherever they were written.
            for path in (draft / "synthetic").rglob("*"):
                os.utime(path, (0, 0))
            with contextlib.suppress(OSError):  # another process was faster: _written decides
                os.rename(draft / "synthetic", collection.root)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        if not _written(collection, corpus):
            raise OSError(f"{collection.root}: could not be written")
    return collection


def _written(collection: Collection, corpus: Corpus) -> bool:
    if not collection.root.exists():
        return False
    try:
        found = json.loads((collection.root / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if found != _meta(corpus):
        raise FileExistsError(
            f"{collection.root}: holds something else than the corpus asked for (meta.json: "
            f"{found}; asked for: {_meta(corpus)}); remove it or choose another directory"
        )
    return True


def _meta(corpus: Corpus) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(corpus)))


def _write(collection: Collection, corpus: Corpus) -> None:
    encoder = _Encoder(corpus)
    collection.feature_dir.mkdir(parents=True)
    collection.text_features.parent.mkdir(parents=True)
    frames: dict[str, np.ndarray] = {}
    moments: dict[str, tuple[int, int]] = {}
    with h5py.File(collection.text_features, "w") as text:
        for split, count in zip(SPLITS, corpus.videos, strict=True):
            lines = []
            for number in range(count):
                video = f"{split}_{number:05d}"
                rng = _rng(corpus, SPLITS.index(split), number)
                frames[video], described = encoder.video(rng)
                for k, (start, end, concepts) in enumerate(described):
                    caption = f"{video}#enc#{k}"
                    words, text[caption] = encoder.caption(concepts, rng)
                    lines.append(f"{caption} {' '.join(words)}\n")
                    moments[caption] = (start, end)
            collection.captions(split).write_text("".join(lines), encoding="utf-8")
    _write_features(collection, corpus, frames)
    (collection.root / "moments.json").write_text(json.dumps(moments), encoding="utf-8")
    (collection.root / "meta.json").write_text(json.dumps(_meta(corpus)), encoding="utf-8")


def _write_features(collection: Collection, corpus: Corpus, frames: dict[str, np.ndarray]) -> None:
    lists = {video: [f"{video}_{k}" for k in range(len(x))] for video, x in frames.items()}
    names = [name for names in lists.values() for name in names]
    # As in the published files, rows are in no particular order: only the lists give the time.
    order = _rng(corpus, len(SPLITS)).permutation(len(names))
    rows = np.concatenate(list(frames.values()))[order].astype("<f4")
    rows.tofile(collection.feature_dir / "feature.bin")
    texts = {
        "id.txt": " ".join(names[row] for row in order),
        "shape.txt": f"{len(rows)} {corpus.visual_dim}\n",
        "video2frames.txt": repr(lists),
    }
    for name, text in texts.items():
        (collection.feature_dir / name).write_text(text, encoding="utf-8")


def _rng(corpus: Corpus, *key: int) -> np.random.Generator:
    return np.random.default_rng((corpus.seed, *key))


class _Encoder:
    """The fixed random maps of a corpus."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        rng = _rng(corpus, len(SPLITS) + 1)
        hidden = 2 * corpus.visual_dim
        self.words = {
            word: rng.standard_normal(corpus.text_dim) for word in (*_CONCEPTS, *_FILLERS)
        }
        self.latents = rng.standard_normal((len(_CONCEPTS), _LATENT_DIM))
        self.first = rng.standard_normal((_LATENT_DIM, hidden)) * 1.5 / np.sqrt(_LATENT_DIM)
        self.second = rng.standard_normal((hidden, corpus.visual_dim)) * 1.3 / np.sqrt(hidden)

    def video(
        self, rng: np.random.Generator
    ) -> tuple[np.ndarray, list[tuple[int, int, np.ndarray]]]:
        """Draws a video: its frames, and the span and concepts of every described moment."""
        corpus = self.corpus
        length = int(rng.integers(corpus.min_frames, corpus.max_frames + 1))
        latents, segments = np.empty((length, _LATENT_DIM)), []
        start = 0
        while start < length:
            end = start + int(rng.integers(4, 11))
            end = length if length - end < 4 else end  # too little for a segment of its own
            concepts = rng.choice(len(_CONCEPTS), _PER_MOMENT, replace=False)
            shown = rng.uniform(0.7, 1.3, (end - start, _PER_MOMENT))
            latents[start:end] = shown @ self.latents[concepts] / np.sqrt(_PER_MOMENT)
            segments.append((start, end, concepts))
            start = end
        # Every other segment is a moment; of few segments the first is one.
        moments = segments[int(rng.integers(2)) if len(segments) > 3 else 0 :: 2]
        frames = np.tanh(latents @ self.first) @ self.second
        frames += corpus.style * rng.standard_normal(corpus.visual_dim)
        frames += corpus.noise * rng.standard_normal(frames.shape)
        chosen = rng.permutation(len(moments))[: int(rng.integers(2, 6))]
        return frames, [moments[k] for k in chosen]

    def caption(
        self, concepts: np.ndarray, rng: np.random.Generator
    ) -> tuple[list[str], np.ndarray]:
        """Draws a caption: its words, and their features."""
        words = [_CONCEPTS[k] for k in concepts]
        words += [_FILLERS[k] for k in rng.integers(len(_FILLERS), size=int(rng.integers(2, 9)))]
        words = [words[k] for k in rng.permutation(len(words))]
        features = np.stack([self.words[word] for word in words])
        features += 0.2 * rng.standard_normal(features.shape)
        return words, features.astype(np.float32)
