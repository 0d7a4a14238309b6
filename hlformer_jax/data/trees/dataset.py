"""The trees of a configuration's data set: their nodes, and the features that the nodes read."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from ml_collections import ConfigDict

from hlformer_jax.data import extracted
from hlformer_jax.data.prepared.preparation import prepare
from hlformer_jax.data.prepared.reader import PreparedVideos
from hlformer_jax.data.source import SPLITS, DataError, Source
from hlformer_jax.data.split import Split
from hlformer_jax.data.synthetic import is_synthetic
from hlformer_jax.data.trees import files, nodes, rule
from hlformer_jax.data.trees.lines import read_text, split_lines
from hlformer_jax.data.trees.pool import Pool, pool
from hlformer_jax.data.trees.sources import MomentLayout, MomentSource, OwnSource
from hlformer_jax.data.trees.synthetic import SyntheticTrees, TreeCorpus
from hlformer_jax.data.trees.tree import Tree

FEWSHOT_SHARE, HELD_OUT_SHARE = 0.1, 0.05
"""Of the training trees: those of "fewshot", and those that `trees.validation` holds out."""

_DRAW = 20231001
"""Seed of both; they are the same trees whatever the seed of a run."""


@dataclasses.dataclass(frozen=True)
class TreeSplit:
    """The trees of a split and their features.

    Attributes:
      pool: the nodes of all trees, numbered through, and the training items.
      features: the videos of the prepared split, also those without a tree, transformed.
      video: number of each tree's video among them.
      num_rows: number of frames of each node's video.
      rows: the first and the last of them that each node spans.
      word_rows: the word features of each node among those of its video; -1 where padded.
      words_per_video: number of word features of each video, every moment cut to W.
      num_frames: F of a node.
      short_video: see `nodes.SHORT_VIDEOS`.
    """

    pool: Pool
    features: Split
    video: Int[np.ndarray, " trees"]
    num_rows: Int[np.ndarray, " U"]
    rows: Int[np.ndarray, "U 2"]
    word_rows: Int[np.ndarray, "U W"]
    words_per_video: Int[np.ndarray, " videos"]
    num_frames: int
    short_video: str

    @property
    def num_nodes(self) -> int:
        """U, the number of nodes of all trees."""
        return len(self.pool.tree)

    @property
    def num_items(self) -> int:
        """The number of training items."""
        return len(self.pool.subtrees)


class TreeData(NamedTuple):
    """The three splits of a data set of trees.

    Attributes:
      train: the training split: the trees that `config.trees` chooses.
      val: what is validated on.
      test: the test split.
      fingerprint: the fingerprint of their source.
    """

    train: TreeSplit
    val: TreeSplit
    test: TreeSplit
    fingerprint: str


def open_trees(config: ConfigDict, source: Source | None = None) -> TreeData:
    """Opens the trees of a configuration; prepares their features on first use.

    Args:
      config: the whole configuration.
      source: what to open in place of the configuration's own source, whose reader has the
        annotations of `sources`.

    Returns:
      Its splits.

    Raises:
      DataError: when the source is missing or not as it should be, or a split has no tree.
      OSError: when the disk is full.
    """
    data, options = config.data, config.trees
    source = choose_source(config) if source is None else source
    for field, width in (("visual_dim", source.visual_dim), ("text_dim", source.text_dim)):
        if data[field] != width:
            raise DataError(
                f"data.{field} is {data[field]} and the features of {source.name} are {width} "
                f"wide; set data.{field} to {width}"
            )
    prepared = prepare(source, data.data_dir, data.storage)
    opened = {split: _Opened(prepared.split(split), split, source.name, config) for split in SPLITS}
    train = opened["train"]
    chosen = _chosen(train.trees, options)
    if options.validation == "held_out":
        held = set(_share(chosen, HELD_OUT_SHARE))
        val = train.split([tree for tree in chosen if tree in held])
        chosen = [tree for tree in chosen if tree not in held]
    else:
        val = opened["val"].split(range(len(opened["val"].trees)))
    test = opened["test"].split(range(len(opened["test"].trees)))
    return TreeData(train.split(chosen), val, test, prepared.fingerprint)


def choose_source(config: ConfigDict) -> Source:
    """The source of moments that a configuration asks for.

    Args:
      config: the whole configuration. Without `data.manual_dir` and with synthetic videos it is
        the synthetic corpus; of the collection "own" it is a folder of one's own features;
        otherwise it is the released layout with files of moments.

    Returns:
      The source; nothing of it is read.

    Raises:
      DataError: if collection or feature cannot be the name of a folder.
    """
    data = config.data
    if is_synthetic(data):
        return SyntheticTrees(
            TreeCorpus(
                videos=tuple(data.synthetic_videos),
                visual_dim=data.visual_dim,
                text_dim=data.text_dim,
                precedence=config.trees.precedence,
                shared=config.trees.shared_concepts,
            )
        )
    widths = data.visual_dim, data.text_dim
    if data.collection == extracted.COLLECTION:
        return OwnSource(extracted.ExtractedSource(data.manual_dir, data.feature, *widths))
    return MomentSource(MomentLayout(data.manual_dir, data.collection, data.feature, *widths))


class _Opened:
    """A prepared split, the moments of its videos, and all its trees."""

    def __init__(self, videos: PreparedVideos, split: str, name: str, config: ConfigDict) -> None:
        notes: Any = videos.annotations
        if notes is None:
            raise DataError(f"{name}: was prepared without moments; remove the prepared set")
        self._config = config
        self._collection: str = notes["collection"]
        self._words: list[list[int]] = notes["words"]
        self._features = Split(videos, config.data)
        self._timed = [files.from_json(line, name) for line in notes["videos"]]
        self._place = {video.video: k for k, video in enumerate(self._timed)}
        if "trees" in notes:
            self.trees = [
                files.tree_from_json(line, self._timed[self._place[line["video"]]], name)
                for line in notes["trees"]
            ]
        else:
            self.trees = list(rule.build_all(self._timed, config.trees.form))
        if not self.trees:
            raise DataError(f"{name}: no video of {split} has moments that make a tree")

    def split(self, chosen: Sequence[int]) -> TreeSplit:
        """The split of some of the trees, given by their numbers.

        Raises:
          DataError: when there are none.
        """
        if not len(chosen):
            raise DataError("config.trees leaves no tree to train or to validate on: choose more")
        options, max_words = self._config.trees, self._features.max_words
        trees = [self.trees[k] for k in chosen]
        places = np.asarray([self._place[tree.video] for tree in trees], np.int32)
        timed = [self._timed[place] for place in places]
        nodes_of = pool(trees, timed, options.parent_text, self._collection)
        durations = np.asarray([video.duration for video in timed])[nodes_of.tree]
        num_rows = self._features.frames_per_video[places][nodes_of.tree]
        counts = [np.minimum(words, max_words).astype(np.int32) for words in self._words]
        return TreeSplit(
            pool=nodes_of,
            features=self._features,
            video=places,
            num_rows=num_rows,
            rows=nodes.row_range(nodes_of.span, durations, num_rows),
            word_rows=np.concatenate(
                [
                    nodes.word_rows([node.moments for node in tree.nodes], counts[place], max_words)
                    for tree, place in zip(trees, places, strict=True)
                ]
            ),
            words_per_video=np.asarray([own.sum() for own in counts], np.int32),
            num_frames=options.node_frames,
            short_video=options.short_video,
        )


def _chosen(trees: Sequence[Tree], options: ConfigDict) -> list[int]:
    """Numbers of the trees that are trained on."""
    subset = options.train_subset
    if subset == "full":
        chosen = list(range(len(trees)))
    elif subset == "fewshot":
        chosen = _share(range(len(trees)), FEWSHOT_SHARE)
    else:
        chosen = _listed(Path(subset).expanduser(), trees)
    wanted = set(options.train_leaves)
    return [k for k in chosen if not wanted or len(trees[k].leaves) in wanted]


def _share(numbers: Sequence[int], share: float) -> list[int]:
    """A random share of some numbers, one at least, in their order."""
    count = max(1, round(share * len(numbers)))
    drawn = np.random.default_rng(_DRAW).permutation(len(numbers))[:count]
    return [numbers[k] for k in sorted(drawn.tolist())]


def _listed(path: Path, trees: Sequence[Tree]) -> list[int]:
    """Numbers of the trees of listed videos, in the order of the trees."""
    if not path.is_file():
        raise DataError(
            f"config.trees.train_subset is {str(path)!r}: it must be 'full', 'fewshot' or a file of"
            " videos' ids, one a line"
        )
    known = {tree.video: k for k, tree in enumerate(trees)}
    found: dict[str, int] = {}
    for number, line in enumerate(split_lines(path, read_text(path)), 1):
        video = line.strip()
        if video not in known:
            raise DataError(f"{path}:{number}: no training tree is of a video {video!r}; remove it")
        found[video] = known[video]
    return sorted(found.values())
