"""A prepared set as it is read: one record per video, by index.

A set is a directory of array_record files that TFDS wrote (`builder`), with ``index.json``: what it
was made of, the sizes of its files, and what a pipeline asks about videos before it reads a record.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hlformer_jax.data.prepared.records import files_of

_INDEX = "index.json"


class VideoRecord(NamedTuple):
    """A video with all its captions.

    Attributes:
      video_id: its id.
      frames: features in time order, [F_i, D] in the dtype of the storage, read-only.
      caption_ids: ids of its captions.
      sentences: their text.
      words: word features of all captions, one after the other, [sum W_i, E], read-only.
      word_counts: words of every caption, int32 [captions].
      teacher_frames: a teacher's vectors of the video's frames; None without one.
      teacher_captions: its vectors of the captions.
    """

    video_id: str
    frames: np.ndarray
    caption_ids: list[str]
    sentences: list[str]
    words: np.ndarray
    word_counts: np.ndarray
    teacher_frames: np.ndarray | None = None
    teacher_captions: np.ndarray | None = None


class PreparedVideos:
    """The videos of a split, by index; safe to share between threads, processes and pickles.

    Attributes:
      video_ids: ids of the videos, in the order of the source's split.
      frames_per_video: frames of every video, int32 [videos].
      captions_per_video: captions of every video, int32 [videos].
      words_per_video: words of all its captions together, int32 [videos].
      teacher_dim: width of a teacher's vectors; 0 where the split has none.
      annotations: what the source knew beside that, as JSON has it; None for nothing.
    """

    def __init__(self, builder: Any, split: str, index: dict[str, Any]) -> None:
        self.video_ids: tuple[str, ...] = tuple(index["video_ids"])
        self.frames_per_video = np.asarray(index["frames_per_video"], np.int32)
        self.captions_per_video = np.asarray(index["captions_per_video"], np.int32)
        self.words_per_video = np.asarray(index["words_per_video"], np.int32)
        self.teacher_dim: int = index.get("teacher_dim", 0)
        self.annotations: Any = index.get("annotations")
        self._builder, self._split = builder, split
        self._opened: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        """Returns the number of videos."""
        return len(self.video_ids)

    def __getitem__(self, index: int) -> VideoRecord:
        """Reads one video.

        Args:
          index: its index in the split.

        Returns:
          Its record.

        Raises:
          IndexError: if there is no such video.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"video {index} of {len(self)}")
        example = self._source()[int(index) % len(self)]
        return VideoRecord(
            example["video_id"].decode(),
            example["frames"],
            [caption.decode() for caption in example["caption_ids"]],
            [sentence.decode() for sentence in example["sentences"]],
            example["words"],
            example["word_counts"],
            *((example["teacher_frames"], example["teacher_captions"]) if self.teacher_dim else ()),
        )

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without open files."""
        return {**self.__dict__, "_opened": (-1, None)}

    def _source(self) -> Any:
        # Readers own threads, which a fork does not copy: a forked process opens its own.
        process, source = self._opened
        if process != os.getpid():
            source = self._builder.as_data_source(self._split)
            self._opened = (os.getpid(), source)
        return source


class Prepared:
    """A prepared set.

    Attributes:
      directory: the folder of its files.
      fingerprint: the source's when the set was prepared.
    """

    def __init__(self, builder: Any) -> None:
        self.directory = Path(builder.data_dir)
        self._index = read_index(self.directory)
        self.fingerprint: str = self._index["fingerprint"]
        self._builder = builder

    def split(self, name: str) -> PreparedVideos:
        """Opens a split.

        Args:
          name: train, val or test.

        Returns:
          Its videos.
        """
        return PreparedVideos(self._builder, name, self._index["splits"][name])


def write_index(directory: Path, index: dict[str, Any]) -> None:
    """Writes the index of a set whose record files are all there."""
    index = {**index, "files": dict(files_of(directory))}
    (directory / _INDEX).write_text(json.dumps(index), encoding="utf-8")


def read_index(directory: Path) -> dict[str, Any]:
    """Reads the index of a set."""
    return json.loads((directory / _INDEX).read_text(encoding="utf-8"))


def is_complete(directory: Path) -> bool:
    """Whether a set is whole; a copy that was cut short, or a power cut, can leave less."""
    try:
        return read_index(directory)["files"] == dict(files_of(directory))
    except (OSError, ValueError, KeyError):
        return False
