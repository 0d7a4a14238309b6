"""Rankers on simulated archives.

A simulated video has scenes one after the other. With g, z, c and ε normal vectors of length about
1, g of the archive, z of a video (its topic), c of a scene and ε of a frame or sentence alone, and
h normal numbers, a frame of a scene and a sentence about it are

    x = unit((1 + h_v / 2) g + topic · z_v + c_s + noise · ε)
    q = unit(g + asked · z_v + c_s + doubt · ε)

All share g, as the vectors of real encoders lie in a cone, and videos more or less of it.
"""

import copy
import hashlib
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from hlformer_jax.data.transforms import unit
from hlformer_jax.retrieval.localisation import segments
from hlformer_jax.search.evaluate.threshold import auc
from hlformer_jax.search.index.database import Index
from hlformer_jax.search.index.storage import Stamp, VideoArrays
from hlformer_jax.search.signals import rankers
from hlformer_jax.search.signals.rankers import Untrained

WIDTH, FRAMES, SENTENCES = 128, 120, 2
"""Numbers of a vector, frames of a video, and sentences about it, on different scenes."""


class Regime(NamedTuple):
    """What tells archives apart; see the module."""

    shortest: int  # frames of a scene
    longest: int
    noise: float
    topic: float = 0.5
    asked: float = 0.0
    doubt: float = 3.0


REGIMES = {
    "scenes of 5 to 15 frames": Regime(5, 15, 1.5),
    "long noisy scenes": Regime(20, 40, 4.0),
    "topic in frames and sentences": Regime(5, 15, 1.5, topic=1.0, asked=1.0),
    "short scenes": Regime(1, 3, 1.5),
}


class _Drawn:
    """An archive and its sentences; stands for an encoder whose sentences are their numbers."""

    name = preprocessing = "simulated"
    fingerprint, width = "0" * 64, WIDTH

    def __init__(self, regime: Regime, videos: int, seed: int) -> None:
        self._regime, self._random = regime, np.random.default_rng(seed)
        self._common = self._normal()
        self.videos, queries = [], []
        for _ in range(videos):
            frames, asked = self._video()
            self.videos.append(frames)
            queries += asked
        self.queries = np.stack(queries)

    def sentences(self, texts: list[str]) -> Float[np.ndarray, "Q d"]:
        """Those of no video, for NNN's bank."""
        return np.stack([self._sentence(self._normal(), self._normal()) for _ in texts])

    def _normal(self, *count: int) -> np.ndarray:
        return self._random.standard_normal((*count, WIDTH)) / np.sqrt(WIDTH)

    def _video(self) -> tuple[Float[np.ndarray, "F d"], list[np.ndarray]]:
        own, random, frames = self._regime, self._random, np.empty((0, WIDTH))
        topic, scenes = self._normal(), []
        base = (1 + random.standard_normal() / 2) * self._common + own.topic * topic
        while len(frames) < FRAMES:
            length = int(random.integers(own.shortest, own.longest + 1))
            scenes.append(self._normal())
            scene = base + scenes[-1] + own.noise * self._normal(length)
            frames = np.concatenate([frames, scene])
        # Of a scene that the end cuts short, nobody asks.
        chosen = random.choice(len(scenes) - 1, SENTENCES, replace=False)
        asked = [self._sentence(topic, scenes[i]) for i in chosen]
        return unit(frames[:FRAMES]), asked

    def _sentence(self, topic: np.ndarray, scene: np.ndarray) -> np.ndarray:
        whole = self._common + self._regime.asked * topic + scene
        return unit(whole + self._regime.doubt * self._normal()).astype(np.float32)


def recalls(regime: Regime, videos: int, seed: int) -> dict[str, dict[str, float]]:
    """R@1, R@5, R@10, R@100, SumR and AUC of each ranker, in percent.

    The AUC tells the sentences from as many on scenes of no video by the best score, and by what
    it is above the median of the archive's products with the sentence.
    """
    from hlformer_jax.retrieval import ranking

    drawn, times = _Drawn(regime, videos, seed), np.arange(float(FRAMES))
    own, table = np.arange(videos, dtype=np.int32).repeat(SENTENCES), {}
    apart = copy.copy(drawn)
    apart._random = np.random.default_rng((seed, 1))
    absent = apart.sentences([""] * len(own)).astype(np.float32)
    with tempfile.TemporaryDirectory(prefix="regime-") as folder:
        index = Index.create(Path(folder, "index"), Path(folder), drawn)
        contents = [hashlib.sha256(b"%d" % video).hexdigest() for video in range(videos)]
        with index.writing():
            for content, vectors in zip(contents, drawn.videos, strict=True):
                kept = vectors.astype(np.float16)
                arrays = VideoArrays(times, kept, *segments(kept, times), np.asarray(float(FRAMES)))
                index.keep(content, arrays, {content: Stamp(0, 1, 1)})
        records = [index.manifest.videos[content] for content in contents]
        for name in rankers.ROWS:
            ranker = Untrained(name, index, records, drawn)
            asked = drawn.queries, absent
            scores = [np.stack([ranker.scores(query) for query in some]) for some in asked]
            best = [some.max(-1) for some in scores]
            centres = [np.median(ranker.sample(some), -1) for some in asked]
            table[name] = ranking.metrics(np.asarray(ranking.ranks(scores[0], own)))
            table[name]["AUC"] = auc(*best)
            table[name]["AUC above median"] = auc(*map(np.subtract, best, centres))
    return table
