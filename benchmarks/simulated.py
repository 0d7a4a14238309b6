"""Random videos, for measuring times and for tests."""

import numpy as np
from ml_collections import ConfigDict

from hlformer_jax.data.split import PreparedVideos, VideoRecord

CAPTIONS_PER_VIDEO = 37_421 / 10_009
"""The mean of ActivityNet Captions' training split."""

_WORDS_PER_CAPTION = 14  # about the mean of ActivityNet Captions


class SimulatedVideos(PreparedVideos):
    """Random videos with the sizes of a real split.

    Programs process them as they process real videos, but a model cannot learn from them.
    """

    def __init__(self, videos: int, captions: int, data: ConfigDict) -> None:
        """Draw the sizes of the videos; nothing is read.

        Args:
          videos: number of videos.
          captions: number of captions in all; each video has at least one.
          data: `config.data`, with the widths and the largest sizes.
        """
        rng = np.random.default_rng(0)
        self.video_ids = tuple(f"video{index}" for index in range(videos))
        spread = rng.multinomial(max(captions - videos, 0), np.full(videos, 1 / videos))
        self.captions_per_video = (1 + spread).astype(np.int32)
        shortest = max(data.max_frames // 2, 1)
        self.frames_per_video = rng.integers(shortest, data.max_frames + 1, videos).astype(np.int32)
        self._words = min(_WORDS_PER_CAPTION, data.max_words)
        self.words_per_video = self.captions_per_video * self._words
        self.teacher_dim: int = data.get("teacher_dim", 0)
        # Videos are cut from one long random sequence, because drawing takes longer than reading.
        self._visual = _random_rows(rng, data.max_frames, data.visual_dim)
        self._text = _random_rows(rng, int(self.words_per_video.max()), data.text_dim)
        longest = max(data.max_frames, int(self.captions_per_video.max()))
        teacher_dim = self.teacher_dim
        self._teacher = _random_rows(rng, longest, teacher_dim) if teacher_dim else None

    def __getitem__(self, index: int) -> VideoRecord:
        """Returns a video with its captions."""
        frames, captions = int(self.frames_per_video[index]), int(self.captions_per_video[index])
        taught = () if self._teacher is None else (
            _stretch(self._teacher, index, frames), _stretch(self._teacher, index + 1, captions),
        )  # fmt: skip
        return VideoRecord(
            self.video_ids[index],
            _stretch(self._visual, index, frames),
            [f"{self.video_ids[index]}#{k}" for k in range(captions)],
            [""] * captions,
            _stretch(self._text, index, captions * self._words),
            np.full(captions, self._words, np.int32),
            *taught,
        )


def _random_rows(rng: np.random.Generator, longest: int, width: int) -> np.ndarray:
    """Draw a long sequence, from which videos are cut."""
    return rng.normal(size=(8 * longest, width)).astype(np.float32)


def _stretch(rows: np.ndarray, index: int, length: int) -> np.ndarray:
    start = int(index) * 97 % (len(rows) - length)
    return rows[start : start + length]
