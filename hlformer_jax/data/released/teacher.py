"""A published collection with the features of DL-DKD's teacher, CLIP's ViT-B/32.

    {manual_dir}/{collection}/FeatureData/new_clip_vit_32_{collection}_vid_features.hdf5
    {manual_dir}/{collection}/TextData/clip_ViT_B_32_{collection}_query_feat.hdf5

The first has a dataset [frames, 512] for the id of each video, the second a vector [512], or
[1, 512], for the id of each caption; a caption that its list calls ``video#enc#0`` may be
``video#0`` there. Of both the training split is read.
"""

import dataclasses
from contextlib import AbstractContextManager, closing
from pathlib import Path

import numpy as np

from hlformer_jax.data.released.collection import Collection
from hlformer_jax.data.released.reader import ReleasedReader
from hlformer_jax.data.released.words import Kind, WordFeatures
from hlformer_jax.data.source import TAUGHT_SPLIT, DataError, Teacher

MOST_FRAMES = 1_000_000
"""Frames that a teacher may have seen of a video: 11 hours at 25 a second."""

FRAMES = Kind("video", "frames", "teacher's", "data.teacher_dim", MOST_FRAMES)
SENTENCES = Kind("caption", "vectors", "teacher's", "data.teacher_dim", 1, single=True)


@dataclasses.dataclass(frozen=True)
class TaughtCollection(Collection):
    """The `TaughtSource` of a published collection.

    Attributes:
      teacher_dim: width of the teacher's vectors.
    """

    teacher_dim: int = 512

    @property
    def teacher_frames(self) -> Path:
        """The teacher's vectors of the frames of every video."""
        return self.root / "FeatureData" / f"new_clip_vit_32_{self.name}_vid_features.hdf5"

    @property
    def teacher_captions(self) -> Path:
        """The teacher's vectors of every caption."""
        return self.root / "TextData" / f"clip_ViT_B_32_{self.name}_query_feat.hdf5"

    def files(self) -> list[Path]:
        """Every file of the collection and its teacher, in a fixed order."""
        return [*super().files(), self.teacher_frames, self.teacher_captions]

    def open(self) -> AbstractContextManager["TaughtReleasedReader"]:
        """Opens the collection and its teacher; see `Collection.open`."""
        self.check_files()
        return closing(TaughtReleasedReader(self))

    def _absent(self, path: Path) -> DataError:
        """The error that says where a file is to be had; see `Collection`."""
        if path not in (self.teacher_frames, self.teacher_captions):
            return super()._absent(path)
        return DataError(
            f"{path}: no such file; it has features of DL-DKD's teacher, which its authors "
            f"published: put it there (to do without, set data.teacher_dim and loss.distillation "
            f"to 0)"
        )


class TaughtReleasedReader(ReleasedReader):
    """The `source.TaughtReader` of a collection whose structure, and whose teacher's, is sound."""

    def __init__(self, collection: TaughtCollection) -> None:
        self._open: list[WordFeatures] = []  # `close` reads it, also where `super` fails
        super().__init__(collection)
        try:
            self._seen = self._file(collection.teacher_frames, collection.teacher_dim, FRAMES)
            self._said = self._file(collection.teacher_captions, collection.teacher_dim, SENTENCES)
            self._frame_counts: dict[str, int] = {}
            self._names: dict[str, str] = {}
            self._check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the files."""
        super().close()
        for file in self._open:
            file.close()

    def read_teacher(self, video: str, caption_ids: list[str]) -> Teacher:
        """Reads the teacher's vectors of a training video; see `source.TaughtReader`."""
        said = [self._said.read(self._names[name], 1) for name in caption_ids]
        return Teacher(self._seen.read(video, self._frame_counts[video]), np.concatenate(said))

    def describe_teacher(self, video: str, part: str) -> str:
        """The file, and the video whose features are meant."""
        file = self._seen if part == "frames" else self._said
        return f"{file.path}: the teacher's {part} of video {video!r}"

    def _file(self, path: Path, width: int, kind: Kind) -> WordFeatures:
        self._open.append(WordFeatures(path, width, kind))
        return self._open[-1]

    def _check(self) -> None:
        path = self.layout.captions(TAUGHT_SPLIT)
        for video, captions in self.splits[TAUGHT_SPLIT].items():
            listed = f"{path}:{captions[0].line}"
            self._frame_counts[video] = self._seen.count(video, listed)
            for caption in captions:
                name = caption.caption_id
                short = name.replace("#enc#", "#")
                there = name if name == short or name in self._said else short
                self._said.count(there, f"{path}:{caption.line}")
                self._names[name] = there
