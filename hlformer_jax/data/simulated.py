"""Videos without a data set: random features of a real split's sizes, to time the work with.

Nothing can be learnt from them, but every program does with them what it does with real ones.
"""

import numpy as np
from ml_collections import ConfigDict

from hlformer_jax.data.prepared.reader import VideoRecord

CAPTIONS_PER_VIDEO = 37_421 / 10_009
"""The mean of ActivityNet Captions' training split."""

WORDS_PER_CAPTION = 14
"""About the mean of its captions."""


class SimulatedVideos:
    """Random videos with the attributes of `PreparedVideos`; features are made when asked for."""

    def __init__(self, videos: int, captions: int, data: ConfigDict) -> None:
        """Draws sizes: so many videos with so many captions in all, at least one each."""
        rng = np.random.default_rng(0)
        self.video_ids = tuple(f"video{index}" for index in range(videos))
        spread = rng.multinomial(max(captions - videos, 0), np.full(videos, 1 / videos))
        self.captions_per_video = (1 + spread).astype(np.int32)
        shortest = max(data.max_frames // 2, 1)
        self.frames_per_video = rng.integers(shortest, data.max_frames + 1, videos).astype(np.int32)
        self._words = min(WORDS_PER_CAPTION, data.max_words)
        self.words_per_video = self.captions_per_video * self._words
        # Videos are stretches of one long random sequence, since drawing takes longer than reading.
        make = lambda rows, width: rng.normal(size=(rows, width)).astype(np.float32)
        self._visual = make(8 * data.max_frames, data.visual_dim)
        self._text = make(8 * int(self.words_per_video.max()), data.text_dim)
        self.teacher_dim: int = data.get("teacher_dim", 0)
        if self.teacher_dim:
            most = max(data.max_frames, int(self.captions_per_video.max()))
            self._teacher = make(8 * most, self.teacher_dim)

    def __len__(self) -> int:
        """Returns the number of videos."""
        return len(self.video_ids)

    def __getitem__(self, index: int) -> VideoRecord:
        """Returns a video with its captions."""
        captions = int(self.captions_per_video[index])
        return VideoRecord(
            self.video_ids[index],
            _stretch(self._visual, index, int(self.frames_per_video[index])),
            [f"{self.video_ids[index]}#{k}" for k in range(captions)],
            [""] * captions,
            _stretch(self._text, index, int(self.words_per_video[index])),
            np.full(captions, self._words, np.int32),
            *(self._taught(index) if self.teacher_dim else ()),
        )

    def _taught(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        counts = self.frames_per_video[index], self.captions_per_video[index]
        frames, captions = (
            _stretch(self._teacher, index + k, int(n)) for k, n in enumerate(counts)
        )
        return frames, captions


def _stretch(rows: np.ndarray, index: int, length: int) -> np.ndarray:
    start = int(index) * 97 % (len(rows) - length)
    return rows[start : start + length]
