"""Reader of the released layout (see `layout`), strict about what it meets.

Opening a collection checks everything that can be checked without reading all features: sizes,
names, captions, the shape of every caption's word features, and a sample of rows. Values are
checked as they are prepared. Every error names the file, the line or the id, and what to do.
"""

from collections.abc import Mapping

import numpy as np
from absl import logging
from jaxtyping import Float

from hlformer_jax.data.released.captions import ListedCaption, read_captions
from hlformer_jax.data.released.frame_lists import Rows, read_frame_lists, read_row_names, row_name
from hlformer_jax.data.released.frames import FrameFeatures
from hlformer_jax.data.released.layout import Layout
from hlformer_jax.data.released.words import WordFeatures
from hlformer_jax.data.source import SPLITS, DataError, Reader

ListedCaptions = Mapping[str, tuple[ListedCaption, ...]]


class ReleasedReader(Reader):
    """The `source.Reader` of a collection whose structure is sound.

    Attributes:
      layout: the paths of what is open.
      rows: rows of feature.bin of every captioned video, in time order, int32 [F_i].
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._ids = layout.feature_dir / "id.txt"
        self._frame_lists = layout.feature_dir / "video2frames.txt"
        self._splits: dict[str, ListedCaptions] = {
            split: self._read_captions(split) for split in SPLITS
        }
        self._frames = FrameFeatures(layout.feature_dir, layout.visual_dim)
        try:
            self.rows: dict[str, Rows] = self._read_rows()
            self._words = WordFeatures(layout.text_features, layout.text_dim)
        except BaseException:
            self._frames.close()
            raise
        try:
            self._num_words: dict[str, int] = self._count_words()
        except BaseException:
            self.close()
            raise
        self._warn_of_shared_videos()

    @property
    def splits(self) -> Mapping[str, ListedCaptions]:
        """For every split, the captions of every video, in order of first appearance."""
        return self._splits

    def close(self) -> None:
        """Closes the files."""
        self._frames.close()
        self._words.close()

    def num_frames(self, video: str) -> int:
        """The number of frames of a video."""
        return len(self.rows[video])

    def num_words(self, caption_id: str) -> int:
        """The number of words of a caption."""
        return self._num_words[caption_id]

    def read_frames(self, video: str) -> Float[np.ndarray, "T D"]:
        """Reads the features of a video in time order, float32.

        Args:
          video: its id.

        Returns:
          Its features.

        Raises:
          DataError: if feature.bin became shorter.
        """
        return self._frames.read(self.rows[video])

    def read_words(self, caption_id: str) -> Float[np.ndarray, "T E"]:
        """Reads the word features of a caption, float32.

        Args:
          caption_id: its id.

        Returns:
          Its features.

        Raises:
          DataError: if HDF5 cannot read them.
        """
        return self._words.read(caption_id, self._num_words[caption_id])

    def describe_frame(self, video: str, index: int) -> str:
        """The file, and a frame's name and row in it; reads id.txt anew."""
        row = int(self.rows[video][index])
        name = row_name(self._ids, row)
        return f"{self._frames.path}: frame {name!r} (row {row}) of video {video!r}"

    def describe_caption(self, caption_id: str) -> str:
        """The file and the caption's id."""
        return f"{self._words.path}: caption {caption_id!r}"

    def _read_captions(self, split: str) -> dict[str, tuple[ListedCaption, ...]]:
        """The captions of every video of a split; another kind of list overrides it."""
        return read_captions(self.layout.captions(split))

    def _read_rows(self) -> dict[str, Rows]:
        path = self._frame_lists
        wanted = {video for captions in self._splits.values() for video in captions}
        rows = read_frame_lists(path, read_row_names(self._ids, self._frames.num_rows), wanted)
        for split, videos in self._splits.items():
            for video, captions in videos.items():
                if video in rows and len(rows[video]):
                    continue
                listed = f"{self.layout.captions(split)}:{captions[0].line}"
                if video in rows:
                    raise DataError(
                        f"{path}: video {video!r}, captioned at {listed}, has no frames; remove "
                        f"its captions or download the features again"
                    )
                raise DataError(
                    f"{listed}: video {video!r} is not in {path}; the two files belong to "
                    f"different downloads, or the caption's id is misspelt"
                )
        unused = [video for video in rows if video not in wanted]
        if unused:
            logging.warning(
                "%s: %d videos have no caption in any split and are left out (%s, ...)",
                path,
                len(unused),
                unused[0],
            )
        return {video: rows[video] for video in wanted}

    def _count_words(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for split, videos in self._splits.items():
            path = str(self.layout.captions(split))
            for captions in videos.values():
                for caption in captions:
                    name = caption.caption_id
                    if name not in counts:
                        counts[name] = self._words.count(name, f"{path}:{caption.line}")
        return counts

    def _warn_of_shared_videos(self) -> None:
        for other in ("val", "test"):
            shared = [video for video in self._splits["train"] if video in self._splits[other]]
            if shared:
                logging.warning(
                    "%s: %d of its videos are training videos too (%s, ...); results on it will "
                    "look better than they are",
                    self.layout.captions(other),
                    len(shared),
                    shared[0],
                )
