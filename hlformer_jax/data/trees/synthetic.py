"""A small corpus of action trees, made in memory: moments in a row, planted with their order.

A video is a row of moments, each of 5 to 10 frames, a frame a second, and three concepts, with a
caption of its own; frames, words and captions are made as in `data.planted`. One video in eight
has two moments with unrelated frames between them, so that its tree is a chain. Spans and sentences
go through the rule like annotations.

Concepts stand in a fixed, secret order. With the chance `precedence` a moment's concepts are among
those that the order has at the moment's place in its video, so that what is early and what is late
can be learnt; with `shared` a moment has some of the concepts of the one before, so that siblings
are harder to tell apart.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from hlformer_jax.data.planted import (
    CONCEPTS,
    PER_MOMENT,
    Encoder,
    PlantedCorpus,
    PlantedReader,
    PlantedSource,
)
from hlformer_jax.data.source import SPLITS, Caption
from hlformer_jax.data.trees.moment import AnnotatedMoment, TimedVideo
from hlformer_jax.data.trees.sources import annotate

LEAVES = {1: 0.12, 2: 0.30, 3: 0.25, 4: 0.15, 5: 0.10, 6: 0.08}
"""Chance of a tree of so many leaves."""

_FRAMES, _GAP = (5, 10), (4, 9)  # fewest and most, of a moment, and between those of a chain
_NEIGHBOURS = 12  # concepts that belong to a place in time


@dataclasses.dataclass(frozen=True)
class TreeCorpus(PlantedCorpus):
    """A `PlantedCorpus` of trees, one for each video.

    Attributes:
      precedence: chance that a moment's concepts belong to its place in time.
      shared: concepts that a moment has of the one before, below 3.
    """

    videos: tuple[int, int, int] = (400, 60, 250)
    precedence: float = 0.7
    shared: int = 0

    @property
    def longest_video(self) -> int:
        """Frames of a video at most."""
        return max(LEAVES) * _FRAMES[1]


class SyntheticTreesReader(PlantedReader):
    """The `source.Reader` of a corpus of trees.

    Attributes:
      videos: for each split, its videos with their moments.
      planted: for each split, the true tree of every video; see `planted_tree`.
    """

    def __init__(self, corpus: TreeCorpus) -> None:
        super().__init__(corpus)
        self.videos: dict[str, list[TimedVideo]] = {}
        self.planted: dict[str, dict[str, dict[str, Any]]] = {}
        encoder = Encoder(corpus)
        order = corpus.generator(len(SPLITS) + 2).permutation(len(CONCEPTS))
        for key, (split, num_videos) in enumerate(zip(SPLITS, corpus.videos, strict=True)):
            self.videos[split], self.planted[split] = [], {}
            for index in range(num_videos):
                name = f"{split}_{index:05d}"
                rng = corpus.generator(key, index)
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
                AnnotatedMoment(f"{name}#enc#{k}", float(first), float(end), f"{' '.join(words)}.")
            )
        return TimedVideo(name, float(start), tuple(moments)), bounds, leaves == 1


class SyntheticTrees(PlantedSource[TreeCorpus, SyntheticTreesReader]):
    """The `source.Source` of a corpus of trees."""

    name: ClassVar[str] = "synthetic_trees"
    reader = SyntheticTreesReader


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
