"""Opening of a configuration's data set: choice of the source, preparation, transforms.

`open_data` returns the videos and captions of each split. `open_trees` returns the trees of actions
and the features of their nodes. A source of trees is prepared like any other source; its captions
are the moments. Trees are built when a data set is opened, so that a change of `config.trees.form`
needs no new preparation.
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Int
from ml_collections import ConfigDict

from hlformer_jax import files
from hlformer_jax.config import fault
from hlformer_jax.data import trees
from hlformer_jax.data.annotations.moments import moments_from_json
from hlformer_jax.data.annotations.parsing import read_lines
from hlformer_jax.data.annotations.spans import configured_spans
from hlformer_jax.data.prepared import Prepared, prepare
from hlformer_jax.data.sources import extracted, synthetic
from hlformer_jax.data.sources.protocol import SPLITS, DataError, Source, digest, teacher_width
from hlformer_jax.data.sources.released import qvhighlights
from hlformer_jax.data.sources.released.layouts import (
    CLIP_B32_FEATURES,
    MSC_FEATURES,
    ClipB32Collection,
    Collection,
    MomentCollection,
    MscCollection,
    keeps_last_row,
)
from hlformer_jax.data.split import PreparedVideos, Split
from hlformer_jax.data.trees import Pool, Tree
from hlformer_jax.errors import UserError

SOURCES: dict[str, Callable[[ConfigDict], Source]] = {
    extracted.COLLECTION: lambda data: extracted.ExtractedSource(
        data.manual_dir, data.feature, data.visual_dim, data.text_dim
    ),
    qvhighlights.CLIPS: lambda data: qvhighlights.QVHighlights(data.manual_dir, data.feature),
    qvhighlights.REGROUPED: lambda data: qvhighlights.QVHighlights(
        data.manual_dir, data.feature, regrouped=True
    ),
}
"""For each value of `config.data.collection`, the function that makes the source from
`config.data`. Other collections are read in the released layout."""

FEWSHOT_SHARE, HELD_OUT_SHARE = 0.1, 0.05
"""Shares of the training trees that are used with `config.trees.train_subset = "fewshot"`, and that
are held out with `config.trees.validation = "held_out"`."""

_DRAW = 20231001
"""Seed of both random choices, independent of the seed of a run."""


# Videos with captions


class Data(NamedTuple):
    """The three splits of a data set, and the fingerprint of their source."""

    train: Split
    val: Split
    test: Split
    fingerprint: str


def open_data(config: ConfigDict, source: Source | None = None) -> Data:
    """Open the data set of a configuration; prepare it on first use, with a progress bar.

    Args:
      config: the whole configuration.
      source: a source to use instead of the configuration's; it must have the widths of
        `config.data`, and a teacher if the configuration has one.

    Returns:
      The splits train, val and test, and the fingerprint of the source.

    Raises:
      DataError: if the source is missing or faulty.
      OSError: if the disk is full.
    """
    data = config.data
    source = choose_source(data) if source is None else source
    if data.teacher_dim and not teacher_width(source):
        raise DataError(
            f"data.teacher_dim is {data.teacher_dim}, but {source.name} has no teacher"
            " features, which loss.distillation needs; set both to 0, or use a data set with"
            " teacher features: the published activitynet or tvr, or the synthetic corpus"
        )
    prepared = _prepare(source, data)
    videos = [prepared.split(name) for name in SPLITS]
    spans = configured_spans(config, [split.annotations for split in videos])
    keeps_last = keeps_last_row(config)
    train, val, test = (
        Split(records, data, moments, keeps_last)
        for records, moments in zip(videos, spans, strict=True)
    )
    for name, split in (("val", val), ("test", test)):
        split.check_spans(name)  # fail now, rather than at the first evaluation of a training
    _warn_of_shared_videos([split.video_ids for split in (train, val, test)])
    return Data(train, val, test, prepared.fingerprint)


def _warn_of_shared_videos(video_ids: Sequence[Sequence[str]]) -> None:
    """Warn of videos of several splits, given by the ids of train, val and test."""
    ids = dict(zip(("training", "validation", "test"), video_ids, strict=True))
    leak = "results on them look better than they are"
    choice = "the best epoch is chosen on test videos (metrics of the last epoch are not affected)"
    for split, earlier, effect in (
        ("validation", "training", leak),
        ("test", "training", leak),
        ("test", "validation", choice),
    ):
        if shared := sorted(set(ids[split]) & set(ids[earlier])):
            logging.warning(
                "%d of %d %s videos are also %s videos, such as %r: %s",
                *(len(shared), len(set(ids[split])), split, earlier, shared[0], effect),
            )


def warn_of_other_data(fingerprint: str, trained_on: str | None) -> None:
    """Warn if a checkpoint was trained on other data than the opened data.

    Args:
      fingerprint: the fingerprint of the opened data.
      trained_on: the fingerprint of the checkpoint's data; None if it is unknown.
    """
    if trained_on not in (None, fingerprint):
        logging.warning(
            "the checkpoint was trained on other data (fingerprint %s, now %s: other files, or"
            " files whose times changed when copied); results are of the data now",
            *(trained_on, fingerprint),
        )


def choose_source(data: ConfigDict) -> Source:
    """Return the source of `config.data`, without reading it.

    If `synthetic.is_synthetic` holds, this is the synthetic corpus. Otherwise it is the first of
    these that applies: the collection's entry in `SOURCES`; a layout of CLIP features, if
    `data.feature` is in `layouts.MSC_FEATURES` or `layouts.CLIP_B32_FEATURES`; the released layout.
    """
    if synthetic.is_synthetic(data):
        return synthetic.Corpus(
            videos=tuple(data.synthetic_videos),
            visual_dim=data.visual_dim,
            text_dim=data.text_dim,
            teacher_dim=data.teacher_dim,
        )
    if data.collection in SOURCES:
        return SOURCES[data.collection](data)
    fields = data.manual_dir, data.collection, data.feature, data.visual_dim, data.text_dim
    if data.feature in MSC_FEATURES:
        return MscCollection(*fields)
    if data.feature in CLIP_B32_FEATURES:
        return ClipB32Collection(*fields)
    return Collection(*fields, data.teacher_dim)


def text_encoder(data: ConfigDict) -> tuple[str, str] | None:
    """Return name and fingerprint of the encoder of the captions' features, None if not recorded.

    The command `search features` records them. The published features do not.
    """
    if data.collection == extracted.COLLECTION:
        recorded = extracted.encoder_of(Path(data.manual_dir))
        return recorded and (recorded.name, recorded.fingerprint)
    source = choose_source(data)
    return source.encoder() if isinstance(source, Collection) else None


def _prepare(source: Source, data: ConfigDict) -> Prepared:
    try:
        for field, width in (("visual_dim", source.visual_dim), ("text_dim", source.text_dim)):
            if data[field] != width:
                raise DataError(
                    f"data.{field} is {data[field]} but the features of {source.name} are"
                    f" {width} wide; set data.{field} to {width}"
                )
        return prepare(source, data.data_dir, data.storage)
    except (UserError, OSError):
        raise
    except Exception as error:
        path = Path(inspect.unwrap(type(source).fingerprint).__code__.co_filename)
        if path.is_relative_to(Path(__file__).parents[1]):
            raise
        # A user's data set: name the line that failed.
        raise DataError(fault(path, error)) from error


# Trees of actions


@dataclasses.dataclass(frozen=True)
class TreeSplit:
    """The trees of a split, and the features of its videos, including videos without a tree."""

    pool: Pool  # the nodes of all trees, numbered consecutively, and the training items
    features: Split
    video: Int[np.ndarray, " trees"]  # index of each tree's video in `features`
    num_rows: Int[np.ndarray, " U"]  # number of frames of each node's video
    rows: Int[np.ndarray, "U 2"]  # first and last frame of the video that each node spans
    word_rows: Int[np.ndarray, "U W"]  # rows of each node's words in its video; -1 where padded
    words_per_video: Int[np.ndarray, " videos"]  # number of words, each moment cut to W
    num_frames: int  # F, the number of frames that a model reads of a node
    short_video: str  # see `tree_feed.evaluation_rows`
    note: str = ""  # number of videos without a tree, and the reason; "" if all have one
    # Digest of the videos in the file of `config.trees.train_subset`; None without a file.
    subset: str | None = None

    @property
    def num_nodes(self) -> int:
        """U, the number of nodes of all trees."""
        return len(self.pool.tree)

    @property
    def num_items(self) -> int:
        """The number of training items."""
        return len(self.pool.subtrees)


class TreeData(NamedTuple):
    """The three splits of a data set of trees, as `config.trees` chooses them; see `Data`."""

    train: TreeSplit
    val: TreeSplit
    test: TreeSplit
    fingerprint: str


def open_trees(config: ConfigDict, source: Source | None = None) -> TreeData:
    """Open the trees of a configuration; prepare their features on first use.

    Args:
      config: the whole configuration.
      source: a source to use instead of the configuration's; its annotations must be those that
        `moments.annotate` returns.

    Returns:
      The splits train, val and test, and the fingerprint of the source.

    Raises:
      DataError: if the source is missing or faulty, or a split has no tree.
      OSError: if the disk is full.
    """
    options = config.trees
    source = choose_tree_source(config) if source is None else source
    prepared = _prepare(source, config.data)
    opened = {split: _Trees(prepared.split(split), split, source.name, config) for split in SPLITS}
    train = opened["train"]
    numbers, subset = _select_trees(train.trees, options)
    if options.validation == "held_out":
        held_out = set(_share(numbers, HELD_OUT_SHARE))
        val = train.split([tree for tree in numbers if tree in held_out])
        numbers = [tree for tree in numbers if tree not in held_out]
    else:
        val = opened["val"].split(range(len(opened["val"].trees)))
    test = opened["test"].split(range(len(opened["test"].trees)))
    splits = dataclasses.replace(train.split(numbers), subset=subset), val, test
    _warn_of_shared_videos([split.pool.videos for split in splits])
    return TreeData(*splits, prepared.fingerprint)


def choose_tree_source(config: ConfigDict) -> Source:
    """Return the source of moments of a configuration, without reading it.

    The choice is that of `choose_source`: the synthetic corpus of trees, a folder of extracted
    features, or the released layout with files of moments.
    """
    data = config.data
    widths = data.visual_dim, data.text_dim
    if synthetic.is_synthetic(data):
        return synthetic.TreeCorpus(
            videos=tuple(data.synthetic_videos),
            visual_dim=data.visual_dim,
            text_dim=data.text_dim,
            precedence=config.trees.precedence,
        )
    if data.collection == extracted.COLLECTION:
        return extracted.ExtractedSource(data.manual_dir, data.feature, *widths, timed=True)
    return MomentCollection(data.manual_dir, data.collection, data.feature, *widths)


class _Trees:
    """A prepared split, the moments of its videos, and all its trees."""

    def __init__(self, videos: PreparedVideos, split: str, name: str, config: ConfigDict) -> None:
        notes: Any = videos.annotations
        if notes is None:
            raise DataError(f"{name}: was prepared without moments; remove the prepared set")
        self._config = config
        self._notes: dict[str, Any] = notes
        self._features = Split(videos, config.data)
        self._timed = [moments_from_json(line, name) for line in notes["videos"]]
        self._place = {video.video: k for k, video in enumerate(self._timed)}
        if "trees" in notes:
            self.trees = [
                trees.tree_from_json(line, self._timed[self._place[line["video"]]], name)
                for line in notes["trees"]
            ]
        else:
            built = trees.build_all(self._timed, config.trees.form, notes["collection"])
            self.trees = list(built)
        if not self.trees:
            raise DataError(f"{name}: no video of {split} has moments that make a tree")
        self._note = self._note_of_missing_trees(split)

    def _note_of_missing_trees(self, split: str) -> str:
        """Return how many videos of the split have no tree, and why; "" if all have one."""
        with_tree = {tree.video for tree in self.trees}
        without = [video for video in self._timed if video.video not in with_tree]
        if not without:
            return ""
        if "trees" in self._notes:
            reason = "the file of trees has none for them"
        else:
            single = sum(len(video.moments) == 1 for video in without)
            counts = {
                "with a single moment": single,
                "in which no moment follows another": len(without) - single,
            }
            reason = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        return f"{len(without):,} of {len(self._timed):,} videos of {split} have no tree: {reason}"

    def split(self, numbers: Sequence[int]) -> TreeSplit:
        """Return the split of some trees, given by their numbers; a DataError without trees."""
        if not len(numbers):
            raise DataError(
                "config.trees selects no tree for training or for validation: select more trees"
            )
        options, max_words = self._config.trees, self._features.max_words
        split_trees = [self.trees[k] for k in numbers]
        places = np.asarray([self._place[tree.video] for tree in split_trees], np.int32)
        timed = [self._timed[place] for place in places]
        pool = trees.make_pool(split_trees, timed, self._notes["collection"])
        durations = np.asarray([video.duration for video in timed])[pool.tree]
        num_rows = self._features.frames_per_video[places][pool.tree]
        counts = [np.minimum(words, max_words).astype(np.int32) for words in self._notes["words"]]
        return TreeSplit(
            pool=pool,
            features=self._features,
            video=places,
            num_rows=num_rows,
            rows=trees.row_range(pool.span, durations, num_rows),
            word_rows=np.concatenate(
                [
                    trees.word_rows(self._read_texts(tree, place), counts[place], max_words)
                    for tree, place in zip(split_trees, places.tolist(), strict=True)
                ]
            ),
            words_per_video=np.asarray([words.sum() for words in counts], np.int32),
            num_frames=options.node_frames,
            short_video=options.short_video,
            note=self._note,
        )

    def _read_texts(self, tree: Tree, place: int) -> list[tuple[int, ...]]:
        """Return for each node the numbers of the texts of its video whose words it reads.

        A node reads the texts of its moments. If the joined text of a parent was encoded as one
        text, the parent reads only that text. Such texts are numbered after the moments.
        """
        parents = self._notes.get("parents")
        if not parents:
            return [node.moments for node in tree.nodes]
        video = self._timed[place]
        number = {text: len(video.moments) + k for k, text in enumerate(parents[place])}
        texts = trees.texts(tree, video.moments, self._notes["collection"])
        return [
            (number[text],) if node.children and text in number else node.moments
            for node, text in zip(tree.nodes, texts, strict=True)
        ]


def _select_trees(candidates: Sequence[Tree], options: ConfigDict) -> tuple[list[int], str | None]:
    """Return the numbers of the trees for training, and a digest of the videos in a list."""
    subset = None
    if options.train_subset == "full":
        numbers: Sequence[int] = range(len(candidates))
    elif options.train_subset == "fewshot":
        numbers = _share(range(len(candidates)), FEWSHOT_SHARE)
    else:
        numbers = _listed(files.expand(options.train_subset), candidates)
        subset = digest(*(candidates[k].video for k in numbers))
    num_leaves = set(options.train_leaves)
    selected = [k for k in numbers if not num_leaves or len(candidates[k].leaves) in num_leaves]
    return selected, subset


def _share(numbers: Sequence[int], share: float) -> list[int]:
    """Return a random share of the numbers, at least one of them, in their order."""
    count = max(1, round(share * len(numbers)))
    drawn = np.random.default_rng(_DRAW).permutation(len(numbers))[:count]
    return [numbers[k] for k in sorted(drawn.tolist())]


def _listed(path: Path, candidates: Sequence[Tree]) -> list[int]:
    """Return the numbers of the trees of listed videos, in the order of the trees."""
    if not path.is_file():
        raise DataError(
            f"config.trees.train_subset is {str(path)!r}: it must be 'full', 'fewshot' or"
            " the path of a file with one video id per line"
        )
    numbers_by_video = {tree.video: k for k, tree in enumerate(candidates)}
    numbers = set()
    for where, line in read_lines(path):
        video = line.strip()
        if video not in numbers_by_video:
            raise DataError(f"{where}: video {video!r} has no training tree; remove the line")
        numbers.add(numbers_by_video[video])
    return sorted(numbers)
