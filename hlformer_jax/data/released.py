"""The released layout: features as MS-SL published them, and GMMFormer and HLFormer read them.

    {manual_dir}/{collection}/TextData/{collection}{train,val,test}.caption.txt
    {manual_dir}/{collection}/TextData/roberta_{collection}_query_feat.hdf5
    {manual_dir}/{collection}/FeatureData/{feature}/{feature.bin,id.txt,shape.txt,video2frames.txt}

with the features of DL-DKD's teacher, CLIP's ViT-B/32, where they are asked for:

    {manual_dir}/{collection}/FeatureData/new_clip_vit_32_{collection}_vid_features.hdf5
    {manual_dir}/{collection}/TextData/clip_ViT_B_32_{collection}_query_feat.hdf5

and with moments in place of the caption lists where trees are built of them:

    {manual_dir}/{collection}/Trees/{train,val,test}.moments.jsonl, and maybe …trees.jsonl

Opening a collection checks everything that can be checked without reading all features: sizes,
names, captions, the shape of every caption's word features, and a sample of rows. Values are
checked as they are prepared.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Float

from hlformer_jax.data import annotations, trees
from hlformer_jax.data.annotations import TimedVideo
from hlformer_jax.data.released_files import (
    TEACHER_CAPTIONS,
    TEACHER_FRAMES,
    WORDS,
    FeatureFile,
    FeatureKind,
    FrameFeatures,
    Rows,
    read_frame_lists,
    read_row_names,
    row_name,
)
from hlformer_jax.data.source import (
    SPLITS,
    TAUGHT_SPLIT,
    Caption,
    Captions,
    DataError,
    MissingSourceError,
    Reader,
    Teacher,
    digest,
)


@dataclasses.dataclass(frozen=True)
class Collection:
    """The `Source` of a published collection.

    Attributes:
      manual_dir: folder that holds the collections; may be empty when a prepared set exists.
      collection: folder of the collection below it and prefix of its text files, such as
        activitynet.
      feature: folder below FeatureData, such as i3d.
      visual_dim: D, the width of feature.bin.
      text_dim: E, the width of the word features.
      teacher_dim: width of the teacher's vectors; 0 without one.

    Raises:
      DataError: if collection or feature is not the name of one folder.
    """

    manual_dir: str | Path
    collection: str
    feature: str
    visual_dim: int
    text_dim: int
    teacher_dim: int = 0

    def __post_init__(self) -> None:
        for field, value in (("data.collection", self.collection), ("data.feature", self.feature)):
            if value in ("", ".", "..") or "/" in value or "\\" in value or not value.isprintable():
                raise DataError(
                    f"{field} is {value!r}; it must be the name of one folder, such as "
                    f"'activitynet' or 'i3d' (data.manual_dir says where the folders lie)"
                )

    @property
    def name(self) -> str:
        """The collection."""
        return self.collection

    @property
    def root(self) -> Path:
        """The collection's own folder."""
        return Path(self.manual_dir).expanduser() / self.collection

    @property
    def text_features(self) -> Path:
        """Word features of every caption."""
        return self.root / "TextData" / f"roberta_{self.collection}_query_feat.hdf5"

    @property
    def feature_dir(self) -> Path:
        """Folder of the frame features."""
        return self.root / "FeatureData" / self.feature

    @property
    def teacher_frames(self) -> Path:
        """The teacher's vectors of the frames of every video, [frames, width] by its id."""
        name = f"new_clip_vit_32_{self.collection}_vid_features.hdf5"
        return self.root / "FeatureData" / name

    @property
    def teacher_captions(self) -> Path:
        """The teacher's vectors of every caption, [width] or [1, width] by its id."""
        return self.root / "TextData" / f"clip_ViT_B_32_{self.collection}_query_feat.hdf5"

    def captions(self, split: str) -> Path:
        """The caption list of a split."""
        return self.root / "TextData" / f"{self.collection}{split}.caption.txt"

    def files(self) -> list[Path]:
        """Every file of the collection, in a fixed order."""
        names = ("feature.bin", "id.txt", "shape.txt", "video2frames.txt")
        teacher = [self.teacher_frames, self.teacher_captions] if self.teacher_dim else []
        return [
            *(self.captions(split) for split in SPLITS),
            self.text_features,
            *(self.feature_dir / name for name in names),
            *teacher,
        ]

    def fingerprint(self) -> str:
        """Identifies the files without reading them: by their names, sizes and times.

        Raises:
          MissingSourceError: if the collection's folder is missing.
          DataError: if one of its files is missing.
        """
        self.check_files()
        return digest(self.collection, self.feature, *_stamps(self.files()))

    def open(self) -> AbstractContextManager["ReleasedReader"]:
        """Opens the collection and checks its structure; see `Source`."""
        self.check_files()
        return closing(ReleasedReader(self))

    def check_files(self) -> None:
        """Checks that every file is there; raises as `fingerprint`."""
        if str(self.manual_dir) == "" or not self.root.is_dir():
            raise self._missing_folder()
        for path in self.files():
            if not path.is_file():
                raise DataError(f"{path}: no such file; {self._remedy(path)}")

    def _remedy(self, path: Path) -> str:
        """Where a file is to be had."""
        if path in (self.teacher_frames, self.teacher_captions):
            return (
                "it has features of DL-DKD's teacher, which its authors published: put it there "
                "(to do without, set data.teacher_dim and loss.distillation to 0)"
            )
        return (
            f"the {self.collection} features published with MS-SL have it, put it there (or "
            f"correct data.manual_dir, data.collection, data.feature)"
        )

    def _missing_folder(self) -> MissingSourceError:
        """The error that says what to download and where to put it."""
        expected = str(self.manual_dir) != ""
        base = self if expected else dataclasses.replace(self, manual_dir="MANUAL_DIR")
        where = f"{self.root} does not exist" if expected else "data.manual_dir is not set"
        return MissingSourceError(
            where,
            f"download the {self.collection} features published with MS-SL (GMMFormer and HLFormer "
            f"use the same), point data.manual_dir at the folder that holds {self.collection}/ and "
            f"check that these files are there: {', '.join(map(str, base.files()))}",
            expected,
        )


class MomentCollection(Collection):
    """The `Source` of a published collection whose captions are moments, with their times."""

    @property
    def name(self) -> str:
        """The collection, told apart from its caption lists."""
        return f"{self.collection}_moments"

    def captions(self, split: str) -> Path:
        """The moments of a split."""
        return self.root / "Trees" / f"{split}.moments.jsonl"

    def trees(self, split: str) -> Path:
        """The trees of a split, which need not be there."""
        return self.root / "Trees" / f"{split}.trees.jsonl"

    def fingerprint(self) -> str:
        """Identifies the files without reading them, those of trees included."""
        parts = _stamps(filter(Path.is_file, map(self.trees, SPLITS)))
        return digest("moments", super().fingerprint(), *parts)

    def open(self) -> AbstractContextManager["MomentReader"]:
        """Opens the collection and checks its structure; see `Source`."""
        self.check_files()
        return closing(MomentReader(self))

    def _remedy(self, path: Path) -> str:
        if path in map(self.captions, SPLITS):
            return (
                "make it of the collection's annotations by python -m hlformer_jax.data.moments"
                f" ANNOTATIONS --out={path}"
            )
        return super()._remedy(path)


class ReleasedReader(Reader):
    """The `source.Reader` of a collection whose structure is sound.

    Attributes:
      collection: the paths of what is open.
      rows: rows of feature.bin of every captioned video, in time order, int32 [F_i].
    """

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._ids = collection.feature_dir / "id.txt"
        self._splits: dict[str, Captions] = {split: self._read_captions(split) for split in SPLITS}
        with contextlib.ExitStack() as stack:
            self._frames = FrameFeatures(collection.feature_dir, collection.visual_dim)
            stack.callback(self._frames.close)
            self.rows: dict[str, Rows] = self._read_rows()

            def features(path: Path, width: int, kind: FeatureKind) -> FeatureFile:
                return stack.enter_context(closing(FeatureFile(path, width, kind)))

            self._words = features(collection.text_features, collection.text_dim, WORDS)
            self._num_words: dict[str, int] = self._count_words()
            if width := collection.teacher_dim:
                self._teacher_frames = features(collection.teacher_frames, width, TEACHER_FRAMES)
                paths = collection.teacher_captions, width, TEACHER_CAPTIONS
                self._teacher_captions = features(*paths)
                self._teacher_counts: dict[str, int] = {}
                self._teacher_names: dict[str, str] = {}
                self._check_teacher()
            self._files = stack.pop_all()
        self._warn_of_shared_videos()

    @property
    def splits(self) -> Mapping[str, Captions]:
        """For every split, the captions of every video, in order of first appearance."""
        return self._splits

    def close(self) -> None:
        """Closes the files."""
        self._files.close()

    def num_frames(self, video: str) -> int:
        """The number of frames of a video."""
        return len(self.rows[video])

    def num_words(self, caption_id: str) -> int:
        """The number of words of a caption."""
        return self._num_words[caption_id]

    def read_frames(self, video: str) -> Float[np.ndarray, "T D"]:
        """The features of a video in time order; a DataError if feature.bin became shorter."""
        return self._frames.read(self.rows[video])

    def read_words(self, caption_id: str) -> Float[np.ndarray, "T E"]:
        """The word features of a caption; a DataError if HDF5 cannot read them."""
        return self._words.read(caption_id, self._num_words[caption_id])

    def read_teacher(self, video: str, caption_ids: list[str]) -> Teacher:
        """Reads the teacher's vectors of a training video; see `source.Reader`."""
        frames = self._teacher_frames.read(video, self._teacher_counts[video])
        names = [self._teacher_names[name] for name in caption_ids]
        captions = [self._teacher_captions.read(name, 1) for name in names]
        return Teacher(frames, np.concatenate(captions))

    def describe_frame(self, video: str, index: int) -> str:
        """The file, and a frame's name and row in it; reads id.txt anew."""
        row = int(self.rows[video][index])
        name = row_name(self._ids, row)
        return f"{self._frames.path}: frame {name!r} (row {row}) of video {video!r}"

    def describe_caption(self, caption_id: str) -> str:
        """The file and the caption's id."""
        return f"{self._words.path}: caption {caption_id!r}"

    def describe_teacher(self, video: str, part: str) -> str:
        """The file, and the video whose features are meant."""
        file = self._teacher_frames if part == "frames" else self._teacher_captions
        return f"{file.path}: the teacher's {part} of video {video!r}"

    def _read_captions(self, split: str) -> Captions:
        return annotations.read_captions(self.collection.captions(split))

    def _read_rows(self) -> dict[str, Rows]:
        path = self.collection.feature_dir / "video2frames.txt"
        wanted = {video for captions in self._splits.values() for video in captions}
        rows = read_frame_lists(path, read_row_names(self._ids, self._frames.num_rows), wanted)
        for split, videos in self._splits.items():
            for video, captions in videos.items():
                if video in rows and len(rows[video]):
                    continue
                listed = f"{self.collection.captions(split)}:{captions[0].line}"
                if video in rows:
                    raise DataError(
                        f"{path}: video {video!r}, captioned at {listed}, has no frames; remove "
                        f"its captions or download the features again"
                    )
                raise DataError(
                    f"{listed}: video {video!r} is not in {path}; the two files belong to "
                    f"different downloads, or the caption's id is misspelt"
                )
        if unused := [video for video in rows if video not in wanted]:
            logging.warning(
                "%s: %d videos have no caption in any split and are left out (%s, ...)",
                *(path, len(unused), unused[0]),
            )
        return {video: rows[video] for video in wanted}

    def _count_words(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for split, videos in self._splits.items():
            path = str(self.collection.captions(split))
            for captions in videos.values():
                for caption in captions:
                    name = caption.caption_id
                    if name not in counts:
                        counts[name] = self._words.count(name, f"{path}:{caption.line}")
        return counts

    def _check_teacher(self) -> None:
        path = self.collection.captions(TAUGHT_SPLIT)
        for video, captions in self._splits[TAUGHT_SPLIT].items():
            listed = f"{path}:{captions[0].line}"
            self._teacher_counts[video] = self._teacher_frames.count(video, listed)
            for caption in captions:
                # A caption that its list calls video#enc#0 may be video#0 there.
                name = caption.caption_id
                short = name.replace("#enc#", "#")
                there = name if name == short or name in self._teacher_captions else short
                self._teacher_captions.count(there, f"{path}:{caption.line}")
                self._teacher_names[name] = there

    def _warn_of_shared_videos(self) -> None:
        for other in ("val", "test"):
            shared = [video for video in self._splits["train"] if video in self._splits[other]]
            if shared:
                logging.warning(
                    "%s: %d of its videos are training videos too (%s, ...); results on it will "
                    "look better than they are",
                    *(self.collection.captions(other), len(shared), shared[0]),
                )


class MomentReader(ReleasedReader):
    """The `source.Reader` of released features whose captions are moments."""

    def __init__(self, collection: MomentCollection) -> None:
        self._timed: dict[str, list[TimedVideo]] = {}
        self._trees: dict[str, list[dict[str, Any]] | None] = {}
        self._moments = collection
        super().__init__(collection)

    def annotations(self, split: str) -> dict[str, Any]:
        """Durations, spans and trees of a split; see `annotations.annotate`."""
        name = self.collection.collection
        return annotations.annotate(name, self._timed[split], self, self._trees[split])

    def _read_captions(self, split: str) -> Captions:
        path = self._moments.captions(split)
        read = annotations.read_moments(path)
        for video, line in read:
            for moment in video.moments:
                if "/" in moment.moment_id:
                    raise DataError(
                        f"{path}:{line}: id {moment.moment_id!r} holds a '/', which the name of "
                        f"its word features cannot; rename it"
                    )
        timed = self._timed[split] = [video for video, _ in read]
        self._trees[split] = None
        if self._moments.trees(split).is_file():
            known = {video.video: video for video in timed}
            given = trees.read_trees(self._moments.trees(split), timed)
            self._trees[split] = [trees.tree_to_json(tree, known[tree.video]) for tree in given]
        return {
            video.video: tuple(
                Caption(moment.moment_id, moment.text, line=line) for moment in video.moments
            )
            for video, line in read
        }


def _stamps(paths: Iterable[Path]) -> list[object]:
    """Name, size and time of every file."""
    stats = [(path.name, path.stat()) for path in paths]
    return [part for name, stat in stats for part in (name, stat.st_size, stat.st_mtime_ns)]
