"""Sources of moments: the released features with files of moments, and features of one's own.

Each is a `source.Source` whose captions are the moments, so that the prepared set holds the frames
of the videos and the words of their moments. What the trees are built of stands beside it, as the
annotations of each split:

    {"collection": …, "videos": [a line …], "words": [[rows …] …], "trees": [a line …] or absent}

with the videos in the order of the split and the lines as `files` has them; `words` are the numbers
of word features of the moments.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from absl import logging

from hlformer_jax.data.extracted import (
    COLLECTION,
    ExtractedReader,
    ExtractedSource,
)
from hlformer_jax.data.released.captions import ListedCaption
from hlformer_jax.data.released.collection import Collection
from hlformer_jax.data.released.reader import ReleasedReader
from hlformer_jax.data.source import SPLITS, DataError, Reader, digest
from hlformer_jax.data.trees import files
from hlformer_jax.data.trees.moment import AnnotatedMoment, TimedVideo


def annotate(
    collection: str,
    videos: Iterable[TimedVideo],
    reader: Reader,
    trees: Iterable[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """What is kept of a split beside its features.

    Args:
      collection: what the moments are of.
      videos: the videos of the split, in its order.
      reader: knows the number of words of the moments.
      trees: their trees, as `files.tree_as_json` has them; None for those that the rule makes.

    Returns:
      As JSON has it.
    """
    videos = list(videos)
    found: dict[str, Any] = {
        "collection": collection,
        "videos": [files.as_json(video) for video in videos],
        "words": [[reader.num_words(one.moment_id) for one in video.moments] for video in videos],
    }
    return found if trees is None else found | {"trees": list(trees)}


class MomentLayout(Collection):
    """The released layout with files of moments in place of the caption lists.

    {manual_dir}/{collection}/Trees/{train,val,test}.moments.jsonl, and where they are there
    {train,val,test}.trees.jsonl; frames and words as in `released.layout`.
    """

    def captions(self, split: str) -> Path:
        """The moments of a split."""
        return self.root / "Trees" / f"{split}.moments.jsonl"

    def trees(self, split: str) -> Path:
        """The trees of a split, which need not be there."""
        return self.root / "Trees" / f"{split}.trees.jsonl"

    def check_files(self) -> None:
        """Checks that every file is there; says how those of the moments are made.

        Raises:
          MissingSourceError: if the collection's folder is missing.
          DataError: if one of the files is missing.
        """
        if self.root.is_dir():
            for path in map(self.captions, SPLITS):
                if not path.is_file():
                    raise DataError(
                        f"{path}: no such file; make it of the collection's annotations by python"
                        f" -m hlformer_jax.data.moments ANNOTATIONS --out={path}"
                    )
        super().check_files()

    def fingerprint(self) -> str:
        """Identifies the files without reading them, those of trees included."""
        parts: list[object] = ["moments", super().fingerprint()]
        for path in filter(Path.is_file, map(self.trees, SPLITS)):
            stat = path.stat()
            parts += [path.name, stat.st_size, stat.st_mtime_ns]
        return digest(*parts)

    def open(self) -> AbstractContextManager["MomentReader"]:
        """Opens the collection and checks its structure; as `Collection.open`."""
        self.check_files()
        return contextlib.closing(MomentReader(self))


@dataclasses.dataclass(frozen=True)
class MomentSource:
    """The `source.Source` of released features with moments.

    Attributes:
      layout: where the files lie.
    """

    layout: MomentLayout

    @property
    def name(self) -> str:
        """The collection, told apart from its caption lists."""
        return f"{self.layout.name}_moments"

    @property
    def feature(self) -> str:
        """What made the features of its frames."""
        return self.layout.feature

    @property
    def visual_dim(self) -> int:
        """D."""
        return self.layout.visual_dim

    @property
    def text_dim(self) -> int:
        """E."""
        return self.layout.text_dim

    def fingerprint(self) -> str:
        """Identifies the files; see `MomentLayout`."""
        return self.layout.fingerprint()

    def open(self) -> AbstractContextManager["MomentReader"]:
        """Opens the files; see `MomentLayout`."""
        return self.layout.open()


class MomentReader(ReleasedReader):
    """The `source.Reader` of released features whose captions are moments."""

    def __init__(self, layout: MomentLayout) -> None:
        self._timed: dict[str, list[TimedVideo]] = {}
        self._trees: dict[str, list[dict[str, Any]] | None] = {}
        self._moment_layout = layout
        super().__init__(layout)

    def annotations(self, split: str) -> dict[str, Any]:
        """Durations, spans and trees of a split; see the head of this file."""
        name = self._moment_layout.name
        return annotate(name, self._timed[split], self, self._trees[split])

    def _read_captions(self, split: str) -> dict[str, tuple[ListedCaption, ...]]:
        layout = self._moment_layout
        read = files.read_moments(layout.captions(split))
        for video, line in read:
            for moment in video.moments:
                if "/" in moment.moment_id:
                    raise DataError(
                        f"{layout.captions(split)}:{line}: id {moment.moment_id!r} holds a '/',"
                        " which the name of its word features cannot; rename it"
                    )
        timed = self._timed[split] = [video for video, _ in read]
        self._trees[split] = None
        if layout.trees(split).is_file():
            known = {video.video: video for video in timed}
            trees = files.read_trees(layout.trees(split), timed)
            self._trees[split] = [files.tree_as_json(tree, known[tree.video]) for tree in trees]
        return {
            video.video: tuple(
                ListedCaption(moment.moment_id, moment.text, line) for moment in video.moments
            )
            for video, line in read
        }


@dataclasses.dataclass(frozen=True)
class OwnSource:
    """The `source.Source` of a folder of one's own features, of whose captions the times are known.

    Attributes:
      features: the folder.
    """

    features: ExtractedSource

    @property
    def name(self) -> str:
        """The collection, told apart from its captions without times."""
        return f"{self.features.name}_moments"

    @property
    def feature(self) -> str:
        """Name of the encoder."""
        return self.features.feature

    @property
    def visual_dim(self) -> int:
        """D."""
        return self.features.visual_dim

    @property
    def text_dim(self) -> int:
        """E."""
        return self.features.text_dim

    def fingerprint(self) -> str:
        """Identifies the content by the digest that was written with it."""
        return digest("moments", self.features.fingerprint())

    def open(self) -> contextlib.nullcontext["OwnReader"]:
        """Opens the folder.

        Raises:
          DataError: when it is damaged, or a split has no caption with times.
        """
        return contextlib.nullcontext(OwnReader(self.features.folder))


class OwnReader(ExtractedReader):
    """The `source.Reader` of a folder of one's own features: captions with times, by their start.

    Frames lie a period apart, so that a video of L frames at f a second lasts L / f seconds.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        self._period = 1.0 / self.frames_per_second()
        untimed = 0
        for split, videos in self._splits.items():
            timed = {
                video: tuple(
                    sorted((x for x in captions if x.is_timed), key=lambda x: x.start or 0.0)
                )
                for video, captions in videos.items()
            }
            untimed += sum(map(len, videos.values())) - sum(map(len, timed.values()))
            self._splits[split] = {video: captions for video, captions in timed.items() if captions}
            if not self._splits[split]:
                raise DataError(
                    f'{folder}: no caption of {split} has a time; give captions "start" and "end",'
                    " and make the features again"
                )
        if untimed:
            logging.warning("%s: %d captions have no times and are left out", folder, untimed)

    def annotations(self, split: str) -> dict[str, Any]:
        """Durations and spans of a split; see the head of this file."""
        return annotate(COLLECTION, self._timed(split), self)

    def _timed(self, split: str) -> Iterator[TimedVideo]:
        for video, captions in self._splits[split].items():
            moments = (
                AnnotatedMoment(one.caption_id, one.start or 0.0, one.end or 0.0, one.sentence)
                for one in captions
            )
            yield TimedVideo(video, self.num_frames(video) * self._period, tuple(moments))
