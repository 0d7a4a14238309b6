"""A small corpus of action trees, made in memory: moments in a row, planted with their order.

A video is a row of moments, each of 5 to 10 frames, a frame a second, and three concepts, with a
caption of its own; frames, words and captions are made as in `data.synthetic`. One video in eight
has two moments with unrelated frames between them, so that its tree is a chain. Spans and sentences
go through the rule like annotations.

Concepts stand in a fixed, secret order. With the chance `precedence` a moment's concepts are among
those that the order has at the moment's place in its video, so that what is early and what is late
can be learnt; with `shared` a moment has some of the concepts of the one before, so that siblings
are harder to tell apart.
"""

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hlformer_jax.data.memory import check_memory
from hlformer_jax.data.source import SPLITS, Caption, Reader, digest
from hlformer_jax.data.synthetic import CONCEPTS, PER_MOMENT, Corpus, Encoder
from hlformer_jax.data.trees.moment import Moment, TimedVideo
from hlformer_jax.data.trees.sources import annotate

LEAVES = {1: 0.12, 2: 0.30, 3: 0.25, 4: 0.15, 5: 0.10, 6: 0.08}
"""Chance of a tree of so many leaves."""

_FRAMES, _GAP = (5, 10), (4, 9)  # fewest and most, of a moment, and between those of a chain
_NEIGHBOURS = 12  # concepts that belong to a place in time
_VERSION = 1  # of what is drawn; another one is another data set


@dataclasses.dataclass(frozen=True)
class TreeCorpus:
    """What a corpus of trees is made of; equal values give equal features.

    Attributes:
      seed: seed of everything random.
      videos: number of videos of train, val and test; each has a tree.
      visual_dim: D, the width of a frame's features.
      text_dim: E, the width of a word's features.
      noise: standard deviation of the noise of a frame; its signal has about 1.
      style: standard deviation of what all frames of a video share.
      precedence: chance that a moment's concepts belong to its place in time.
      shared: concepts that a moment has of the one before, below 3.
    """

    seed: int = 0
    videos: tuple[int, int, int] = (400, 60, 250)
    visual_dim: int = 64
    text_dim: int = 48
    noise: float = 0.3
    style: float = 0.5
    precedence: float = 0.7
    shared: int = 0

    @property
    def maps(self) -> Corpus:
        """The corpus whose fixed maps and words this one has."""
        return Corpus(
            seed=self.seed,
            videos=self.videos,
            visual_dim=self.visual_dim,
            text_dim=self.text_dim,
            noise=self.noise,
            style=self.style,
            max_frames=max(LEAVES) * _FRAMES[1],
        )


@dataclasses.dataclass(frozen=True)
class SyntheticTrees:
    """The `source.Source` of a corpus of trees; it is made in memory each time it is opened.

    Attributes:
      corpus: the corpus.
    """

    corpus: TreeCorpus
    name: ClassVar[str] = "synthetic_trees"
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

    def open(self) -> contextlib.nullcontext["SyntheticTreesReader"]:
        """Makes the corpus.

        Returns:
          What gives the reader.

        Raises:
          DataError: if it would not fit into memory.
        """
        return contextlib.nullcontext(SyntheticTreesReader(self.corpus))


class SyntheticTreesReader(Reader):
    """The `source.Reader` of a corpus of trees.

    Attributes:
      videos: for each split, its videos with their moments.
      planted: for each split, the true tree of every video; see `planted_tree`.
    """

    def __init__(self, corpus: TreeCorpus) -> None:
        check_memory(corpus.maps.most_bytes, "the synthetic corpus", "make it smaller")
        self.videos: dict[str, list[TimedVideo]] = {}
        self.planted: dict[str, dict[str, dict[str, Any]]] = {}
        self._frames: dict[str, np.ndarray] = {}
        self._words: dict[str, np.ndarray] = {}
        encoder = Encoder(corpus.maps)
        order = corpus.maps.generator(len(SPLITS) + 2).permutation(len(CONCEPTS))
        for key, (split, num_videos) in enumerate(zip(SPLITS, corpus.videos, strict=True)):
            self.videos[split], self.planted[split] = [], {}
            for index in range(num_videos):
                name = f"{split}_{index:05d}"
                rng = corpus.maps.generator(key, index)
                video, bounds, is_chain = self._draw(name, corpus, encoder, order, rng)
                self.videos[split].append(video)
                self.planted[split][name] = planted_tree(bounds, is_chain)

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
        """Durations and spans of a split; see `sources`."""
        return annotate(SyntheticTrees.name, self.videos[split], self)

    def num_frames(self, video: str) -> int:
        """The number of frames of a video."""
        return len(self._frames[video])

    def num_words(self, caption_id: str) -> int:
        """The number of words of a moment's caption."""
        return len(self._words[caption_id])

    def read_frames(self, video: str) -> Float[np.ndarray, "T D"]:
        """The features of a video, float32."""
        return self._frames[video]

    def read_words(self, caption_id: str) -> Float[np.ndarray, "T E"]:
        """The features of a caption's words, float32."""
        return self._words[caption_id]

    def _draw(
        self,
        name: str,
        corpus: TreeCorpus,
        encoder: Encoder,
        order: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[TimedVideo, list[tuple[int, int]], bool]:
        """Draws a video; gives it, the bounds of its moments, and whether it is a chain."""
        leaves = int(rng.choice(list(LEAVES), p=list(LEAVES.values())))
        num_moments = max(leaves, 2)
        concepts = _concepts(num_moments, corpus, order, rng)
        latents, bounds, start = [], [], 0
        for k, own in enumerate(concepts):
            if leaves == 1 and k == 1:
                length = int(rng.integers(_GAP[0], _GAP[1] + 1))
                unrelated = rng.choice(len(CONCEPTS), PER_MOMENT, replace=False)
                latents.append(encoder.latent(unrelated, length, rng))
                start += length
            length = int(rng.integers(_FRAMES[0], _FRAMES[1] + 1))
            latents.append(encoder.latent(own, length, rng))
            bounds.append((start, start + length))
            start += length
        frames = encoder.render(np.concatenate(latents), rng)
        self._frames[name] = frames.astype(np.float32)
        moments = []
        for k, ((first, end), own) in enumerate(zip(bounds, concepts, strict=True)):
            words, features = encoder.caption(own, rng)
            self._words[f"{name}#enc#{k}"] = features
            moments.append(
                Moment(f"{name}#enc#{k}", float(first), float(end), f"{' '.join(words)}.")
            )
        return TimedVideo(name, float(start), tuple(moments)), bounds, leaves == 1


def planted_tree(bounds: Sequence[tuple[int, int]], is_chain: bool) -> dict[str, Any]:
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


def _concepts(
    num_moments: int, corpus: TreeCorpus, order: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """The concepts of every moment of a video."""
    found: list[np.ndarray] = []
    for k in range(num_moments):
        first = round((len(order) - _NEIGHBOURS) * k / (num_moments - 1))
        in_place = rng.random() < corpus.precedence
        known = order[first : first + _NEIGHBOURS] if in_place else order
        kept = found[-1][: corpus.shared] if found else order[:0]
        new = rng.permutation(np.setdiff1d(known, kept))[: PER_MOMENT - len(kept)]
        found.append(rng.permutation(np.concatenate([kept, new])))
    return found
