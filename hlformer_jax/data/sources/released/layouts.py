"""The released layout: features as MS-SL published them; and the layouts of CLIP features.

docs/data.md lists the files, docs/hover.md the files of moments and trees. Opening a collection
checks everything that can be checked without reading all features: sizes, names, captions, the
shape of every caption's word features, and a sample of rows. The preparation checks all values.
Every error names the file, the line or the id, and the remedy.
"""

import contextlib
import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from absl import logging
from jaxtyping import Float
from ml_collections import ConfigDict

from hlformer_jax import files
from hlformer_jax.data import trees
from hlformer_jax.data.annotations.captions import check_shared_ids, read_captions
from hlformer_jax.data.annotations.moments import TimedVideo, annotate, read_moments
from hlformer_jax.data.sources.protocol import (
    SPLITS,
    TAUGHT_SPLIT,
    Caption,
    Captions,
    DataError,
    MissingDataError,
    MissingSourceError,
    Reader,
    Teacher,
    digest,
    stamps,
)
from hlformer_jax.data.sources.released.frame_lists import (
    FrameFeatures,
    Rows,
    read_frame_lists,
    read_row_names,
    row_names,
)
from hlformer_jax.data.sources.released.hdf5 import (
    CLIP_WORDS,
    ENCODER_ATTRIBUTES,
    SENTENCES,
    TEACHER_CAPTIONS,
    TEACHER_FRAMES,
    VIDEO_FRAMES,
    WORDS,
    FeatureFile,
    FeatureKind,
)
from hlformer_jax.text import counted

# The collection


@dataclasses.dataclass(frozen=True)
class Collection:
    """The `Source` of a published collection.

    Attributes:
      manual_dir: folder that holds the collections; may be "" if a prepared set exists.
      collection: name of the collection's folder in `manual_dir` and prefix of its text files,
        such as activitynet.
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
        """The folder of the collection."""
        return files.expand(self.manual_dir) / self.collection

    @property
    def text_features(self) -> Path:
        """Word features of every caption."""
        return self.root / "TextData" / f"roberta_{self.collection}_query_feat.hdf5"

    @property
    def text_kind(self) -> FeatureKind:
        """The kind of features in `text_features`."""
        return WORDS

    @property
    def feature_dir(self) -> Path:
        """Folder of the frame features."""
        return self.root / "FeatureData" / self.feature

    @property
    def video_features(self) -> Path | None:
        """The HDF5 file of all frame features, to which DreamPRVR's authors convert them.

        None if the frame features are in feature.bin.
        """
        path = self.feature_dir / "feature.hdf5"
        return path if path.is_file() else None

    @property
    def teacher_frames(self) -> Path:
        """The file of the teacher's vectors of frames, [frames, width] by the video's id."""
        name = f"new_clip_vit_32_{self.collection}_vid_features.hdf5"
        return self.root / "FeatureData" / name

    @property
    def teacher_captions(self) -> Path:
        """The file of the teacher's vectors of captions, [width] or [1, width] by caption id."""
        return self.root / "TextData" / f"clip_ViT_B_32_{self.collection}_query_feat.hdf5"

    def captions(self, split: str) -> Path:
        """Return the path of the caption list of a split."""
        return self.root / "TextData" / f"{self.collection}{split}.caption.txt"

    def encoder(self) -> tuple[str, str] | None:
        """Return name and fingerprint of the captions' encoder if `write_words` made the file.

        Otherwise return None: the published files do not name an encoder.
        """
        try:
            with h5py.File(self.text_features, "r") as file:
                name, fingerprint = (file.attrs.get(key) for key in ENCODER_ATTRIBUTES)
        except OSError:  # missing or not HDF5, which the reader refuses
            return None
        return None if name is None or fingerprint is None else (str(name), str(fingerprint))

    def files(self) -> list[Path]:
        """Return the paths of all files of the collection, in a fixed order."""
        names = ("feature.bin", "id.txt", "shape.txt", "video2frames.txt")
        binary = [self.feature_dir / name for name in names]
        teacher = [self.teacher_frames, self.teacher_captions] if self.teacher_dim else []
        return [
            *(self.captions(split) for split in SPLITS),
            self.text_features,
            *(binary if self.video_features is None else [self.video_features]),
            *teacher,
        ]

    def key(self, video: str) -> str:
        """Return the name of a video's features in an HDF5 file."""
        return video

    def fingerprint(self) -> str:
        """Return a fingerprint of the names, sizes and times of all files; none is read.

        Raises:
          MissingSourceError: if the collection's folder is missing.
          DataError: if one of its files is missing.
        """
        self.check_files()
        return digest(self.collection, self.feature, *stamps(self.files()))

    def open(self) -> AbstractContextManager["ReleasedReader"]:
        """Open the collection and check its structure; see `Source`."""
        self.check_files()
        return closing(ReleasedReader(self))

    def check_files(self) -> None:
        """Check that every file exists; raise the errors of `fingerprint`."""
        expected = str(self.manual_dir) != ""
        if not expected or not self.root.is_dir():
            base = self if expected else dataclasses.replace(self, manual_dir="MANUAL_DIR")
            raise MissingSourceError(
                f"{self.root} does not exist" if expected else "data.manual_dir is not set",
                f"{self._origin()}, point data.manual_dir at the folder that holds "
                f"{self.collection}/ and check that these files are there: "
                f"{', '.join(map(str, base.files()))}",
                expected,
            )
        for path in self.files():
            if not path.is_file():
                what = "no such file"
                if path.is_symlink():
                    what = f"a link to {path.readlink()}, which is no file"
                elif path.is_dir():
                    what = "a folder, but must be a file"
                raise MissingDataError(f"{path}: {what}", self._remedy(path))
        if self.video_features and (self.feature_dir / "feature.bin").exists():
            raise DataError(
                f"{self.feature_dir}: has both feature.hdf5 and feature.bin; move one of the"
                " two away"
            )

    def _origin(self) -> str:
        """Return the part of an error message that says how to get all files."""
        return (
            f"download the {self.collection} features published with MS-SL (GMMFormer and "
            f"HLFormer use the same)"
        )

    def _remedy(self, path: Path) -> str:
        """Return the part of an error message that says how to get a file."""
        if path in (self.teacher_frames, self.teacher_captions):
            return (
                "the file has features of DL-DKD's teacher, as its authors published them:"
                " put it there (to train without a teacher, set data.teacher_dim and"
                " loss.distillation to 0)"
            )
        return (
            f"the {self.collection} features published with MS-SL include it: put it there"
            " (or correct data.manual_dir, data.collection, data.feature)"
        )


MSC_FEATURES = ("clip_L14", "slowfast_clip")
"""The values of `data.feature` that select `MscCollection`; parts of the names of its files."""

CLIP_B32_FEATURES = ("clip_B32", "clip_B32_ours", "clip_B32_ours_word")
"""The values of `data.feature` that select `ClipB32Collection`. The part after "clip_B32" is also
the end of the name of the file with text features."""

CLIP_SPACE = ("clip_L14", *CLIP_B32_FEATURES[:2])
"""Features in CLIP's joint space, in which a caption's last row is comparable with frames."""


def keeps_last_row(config: ConfigDict) -> bool:
    """Return whether the last row of a caption is its sentence vector, which is never cut off."""
    is_clip: bool = config.data.feature in CLIP_SPACE
    return is_clip or config.model.name.startswith("clip4clip")


class MscCollection(Collection):
    """The `Source` of CLIP features in the layout of MSC's authors, one HDF5 file per modality.

    There are caption lists of train and val only. As MSC's authors do, the test split is val. No
    file says whether the rows of a caption are tokens before or after CLIP's projection.
    """

    @property
    def text_features(self) -> Path:
        """The file of the token features of every caption; the last row is the end of the text."""
        end = "_text" if self.feature == "slowfast_clip" else ""
        return self.root / "TextData" / f"{self.collection}_{self.feature}{end}.h5"

    @property
    def video_features(self) -> Path:
        """The file of frame features, in which ActivityNet's ids have no leading "v_"."""
        return self.root / "FeatureData" / f"{self.collection}_{self.feature}.h5"

    def captions(self, split: str) -> Path:
        """Return the path of the caption list of a split; test has the list of val."""
        return super().captions("val" if split == "test" else split)

    def files(self) -> list[Path]:
        """Return the paths of all files of the collection, in a fixed order."""
        lists = [self.captions(split) for split in SPLITS[:2]]
        return [*lists, self.text_features, self.video_features]

    def key(self, video: str) -> str:
        """Return the name of a video's features in the HDF5 file."""
        return video.removeprefix("v_") if self.collection == "activitynet" else video

    def fingerprint(self) -> str:
        """Return a fingerprint of the names, sizes and times of all files; none is read."""
        return digest("clip", super().fingerprint())

    def _origin(self) -> str:
        return f"make the {self.collection} features by CLIP (docs/data.md)"

    def _remedy(self, path: Path) -> str:
        del path
        return (
            f"the {self.collection} features of MSC's layout include it: put it there (or"
            " correct data.manual_dir, data.collection, data.feature)"
        )


class ClipB32Collection(Collection):
    """The `Source` of CLIP ViT-B/32 features, which DL-DKD's teacher has, as inputs of a model.

    The feature "clip_B32" selects the sentence vectors that DL-DKD's authors published and that
    AMDNet reads. "clip_B32_ours" selects the sentence vectors and "clip_B32_ours_word" the tokens
    of the files that UEM's code names.
    """

    @property
    def text_features(self) -> Path:
        """The file of sentence vectors, [width] or [1, width], or of token features."""
        path = self.teacher_captions
        return path.with_stem(path.stem + self.feature.removeprefix(CLIP_B32_FEATURES[0]))

    @property
    def text_kind(self) -> FeatureKind:
        """The kind of features in `text_features`: tokens or sentence vectors."""
        return CLIP_WORDS if self.feature.endswith("_word") else SENTENCES

    @property
    def video_features(self) -> Path:
        """The file of frame features of every video."""
        return self.teacher_frames

    def _origin(self) -> str:
        return f"get the {self.collection} features by CLIP ViT-B/32 (docs/data.md)"

    def _remedy(self, path: Path) -> str:
        if path in map(self.captions, SPLITS):
            return super()._remedy(path)
        names = "DL-DKD's authors published" if path != self.text_features else "of DL-DKD or UEM"
        return f"it is one of the features {names}: put it there, or correct data.feature"


class MomentCollection(Collection):
    """The `Source` of a published collection whose captions are moments, with their times."""

    @property
    def name(self) -> str:
        """The collection, with a suffix that distinguishes moments from the released captions."""
        return f"{self.collection}_moments"

    def captions(self, split: str) -> Path:
        """Return the path of the file of moments of a split."""
        return self.root / "Trees" / f"{split}.moments.jsonl"

    def trees(self, split: str) -> Path:
        """Return the path of the optional file of trees of a split."""
        return self.root / "Trees" / f"{split}.trees.jsonl"

    def fingerprint(self) -> str:
        """Return a fingerprint of all files, including files of trees; none is read."""
        parts = stamps(filter(Path.is_file, map(self.trees, SPLITS)))
        return digest("moments", super().fingerprint(), *parts)

    def open(self) -> AbstractContextManager["MomentReader"]:
        """Open the collection and check its structure; see `Source`."""
        self.check_files()
        return closing(MomentReader(self))

    def _remedy(self, path: Path) -> str:
        if path in map(self.captions, SPLITS):
            return (
                "make it from the collection's annotations by python -m"
                f" hlformer_jax.data.moments ANNOTATIONS --out={path}"
            )
        return super()._remedy(path)


class ReleasedReader(Reader):
    """The `Reader` of a collection.

    Attributes:
      collection: the collection.
      rows: for every captioned video, its rows of feature.bin in time order, int32 [F_i]; an empty
        dict if the frames are in an HDF5 file.
    """

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._ids = collection.feature_dir / "id.txt"
        self._splits: dict[str, Captions] = {split: self._read_captions(split) for split in SPLITS}
        check_shared_ids(self._splits, collection.captions)
        videos, captions = self._first_places(*SPLITS)
        with contextlib.ExitStack() as stack:

            def features(path: Path, width: int, kind: FeatureKind) -> FeatureFile:
                return stack.enter_context(closing(FeatureFile(path, width, kind)))

            self._videos: FeatureFile | None = None
            self.rows: dict[str, Rows] = {}
            if path := collection.video_features:
                self._videos = file = features(path, collection.visual_dim, VIDEO_FRAMES)
                self._num_frames = {
                    video: file.count(collection.key(video), place)
                    for video, place in videos.items()
                }
            else:
                frames = FrameFeatures(collection.feature_dir, collection.visual_dim)
                self._frames = stack.enter_context(closing(frames))
                self.rows = self._read_rows(videos)
                self._num_frames = {video: len(rows) for video, rows in self.rows.items()}
            words = collection.text_features, collection.text_dim, collection.text_kind
            self._words = features(*words)
            self._num_words = self._words.counts(captions)
            if width := collection.teacher_dim:
                self._teacher_frames = features(collection.teacher_frames, width, TEACHER_FRAMES)
                paths = collection.teacher_captions, width, TEACHER_CAPTIONS
                self._teacher_captions = features(*paths)
                taught_videos, taught_captions = self._first_places(TAUGHT_SPLIT)
                self._teacher_counts = self._teacher_frames.counts(taught_videos)
                self._teacher_captions.counts(taught_captions)
            self._files = stack.pop_all()

    @property
    def splits(self) -> Mapping[str, Captions]:
        """For each split, the captions of every video, in order of first appearance."""
        return self._splits

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def num_frames(self, video: str) -> int:
        """Return the number of frames of a video."""
        return self._num_frames[video]

    def num_words(self, caption_id: str) -> int:
        """Return the number of words of a caption."""
        return self._num_words[caption_id]

    def read_frames(self, video: str) -> Float[np.ndarray, "T D"]:
        """Read the features of a video in time order; see `Reader`."""
        if self._videos is not None:
            return self._videos.read(self.collection.key(video), self._num_frames[video])
        return self._frames.read(self.rows[video])

    def read_words(self, caption_id: str) -> Float[np.ndarray, "T E"]:
        """Read the word features of a caption; see `Reader`."""
        return self._words.read(caption_id, self._num_words[caption_id])

    def read_teacher(self, video: str, caption_ids: list[str]) -> Teacher:
        """Read the teacher's vectors of a training video; see `Reader`."""
        frames = self._teacher_frames.read(video, self._teacher_counts[video])
        captions = [self._teacher_captions.read(name, 1) for name in caption_ids]
        return Teacher(frames, np.concatenate(captions))

    def describe_frame(self, video: str, index: int) -> str:
        """Return the file and the frame's name and row, or its number; reads id.txt again."""
        if self._videos is not None:
            name = self.collection.key(video)
            return f"{self._videos.path}: frame {index} of video {name!r}"
        row = int(self.rows[video][index])
        name = row_names(self._ids)[row]
        return f"{self._frames.path}: frame {name!r} (row {row}) of video {video!r}"

    def describe_caption(self, caption_id: str) -> str:
        """Return the file and the caption's id."""
        return f"{self._words.path}: caption {caption_id!r}"

    def describe_teacher(self, video: str, part: str) -> str:
        """Return the file and the video's id."""
        file = self._teacher_frames if part == "frames" else self._teacher_captions
        return f"{file.path}: the teacher's {part} of video {video!r}"

    def _read_captions(self, split: str) -> Captions:
        return read_captions(self.collection.captions(split))

    def _first_places(self, *splits: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the place (FILE:LINE) that first lists each video, and each caption, of splits."""
        videos: dict[str, str] = {}
        captions: dict[str, str] = {}
        for split in splits:
            path = self.collection.captions(split)
            for video, video_captions in self._splits[split].items():
                for caption in video_captions:
                    place = f"{path}:{caption.line}"
                    videos.setdefault(video, place)
                    captions.setdefault(caption.caption_id, place)
        return videos, captions

    def _read_rows(self, captioned: Mapping[str, str]) -> dict[str, Rows]:
        """Return the rows of captioned videos, given with the places that list them."""
        path = self.collection.feature_dir / "video2frames.txt"
        rows = read_frame_lists(path, read_row_names(self._ids, self._frames.num_rows), captioned)
        for video, place in captioned.items():
            if video not in rows:
                raise DataError(
                    f"{place}: video {video!r} is not in {path}; the two files belong to "
                    f"different downloads, or the caption's id is misspelt"
                )
            if not len(rows[video]):
                raise DataError(
                    f"{path}: video {video!r}, captioned at {place}, has no frames; remove "
                    f"its captions or download the features again"
                )
        if unused := [video for video in rows if video not in captioned]:
            logging.warning(
                "%s: left out %s without a caption in any split, such as %r",
                *(path, counted(len(unused), "video"), unused[0]),
            )
        rows = {video: rows[video] for video in captioned}
        self._warn_of_shared_frames(path, rows)
        return rows

    def _warn_of_shared_frames(self, path: Path, rows: Mapping[str, Rows]) -> None:
        """Warn of rows in the lists of several videos, as after an error of a script."""
        uses = np.zeros(self._frames.num_rows, np.int32)
        for video_rows in rows.values():
            uses[np.unique(video_rows)] += 1
        shared = np.flatnonzero(uses > 1)
        if len(shared):
            videos = [video for video, video_rows in rows.items() if shared[0] in video_rows]
            logging.warning(
                "%s: %s in the lists of several videos, such as %r and %r: used unchanged",
                *(path, counted(len(shared), "frame"), *videos[:2]),
            )


class MomentReader(ReleasedReader):
    """The `Reader` of released features whose captions are moments."""

    def __init__(self, collection: MomentCollection) -> None:
        self._timed: dict[str, list[TimedVideo]] = {}
        self._trees: dict[str, list[dict[str, Any]] | None] = {}
        self._moments = collection
        super().__init__(collection)

    def annotations(self, split: str) -> dict[str, Any]:
        """Return durations, moments and trees of a split; see `moments.annotate`."""
        name = self.collection.collection
        return annotate(name, self._timed[split], self, self._trees[split])

    def _read_captions(self, split: str) -> Captions:
        path = self._moments.captions(split)
        read = read_moments(path)
        for video, line in read:
            for moment in video.moments:
                if "/" in moment.moment_id:
                    raise DataError(
                        f"{path}:{line}: id {moment.moment_id!r} contains a '/', which is not"
                        " allowed in the name of its word features; rename it"
                    )
        timed = self._timed[split] = [video for video, _ in read]
        self._trees[split] = None
        if self._moments.trees(split).is_file():
            by_name = {video.video: video for video in timed}
            read_trees = trees.read_trees(self._moments.trees(split), timed)
            self._trees[split] = [trees.tree_to_json(x, by_name[x.video]) for x in read_trees]
        return {
            video.video: tuple(
                Caption(moment.moment_id, moment.text, line=line) for moment in video.moments
            )
            for video, line in read
        }
