"""A split without a data set: random features of a real split's sizes, to time the work with.

Nothing can be learnt from it, but every program does with it what it does with real features.
"""

import numpy as np
from ml_collections import ConfigDict

from hlformer_jax.data.pipeline import Example
from hlformer_jax.data.transforms import normalise

CAPTIONS_PER_VIDEO = 37_421 / 10_009
"""Of ActivityNet Captions' training split."""

WORDS_PER_CAPTION = 14
"""About what its captions have."""


class SimulatedSplit:
    """Has the attributes of `pipeline.Split`; features are made when they are asked for."""

    def __init__(self, videos: int, captions: int, config: ConfigDict, seed: int = 0) -> None:
        """Draws sizes: so many videos with so many captions in all, at least one each."""
        data, rng = config.data, np.random.default_rng(seed)
        self.video_ids = [f"video{number}" for number in range(videos)]
        spread = rng.multinomial(max(captions - videos, 0), np.full(videos, 1 / videos))
        self.captions_per_video = (1 + spread).astype(np.int32)
        shortest = max(data.max_frames // 2, 1)
        self.frames_per_video = rng.integers(shortest, data.max_frames + 1, videos).astype(np.int32)
        self._words = min(WORDS_PER_CAPTION, data.max_words)
        self.words_per_video = self.captions_per_video * self._words
        self.caption_video = np.repeat(np.arange(videos, dtype=np.int32), self.captions_per_video)
        self.dtype = np.dtype(data.dtype)
        self.max_clips: int = data.max_clips
        self.widths: tuple[int, int] = (data.visual_dim, data.text_dim)
        # Videos are stretches of one long random sequence, since drawing takes longer than reading.
        rows = 8 * data.max_frames
        make = lambda width: normalise(rng.normal(size=(rows, width))).astype(self.dtype)
        self._visual, self._text = make(data.visual_dim), make(data.text_dim)

    def __len__(self) -> int:
        """Returns the number of videos."""
        return len(self.video_ids)

    def __getitem__(self, index: int) -> Example:
        """Returns a video with its captions."""
        frames = self._stretch(self._visual, index, int(self.frames_per_video[index]))
        words = tuple(
            self._stretch(self._text, 31 * index + number, self._words)
            for number in range(self.captions_per_video[index])
        )
        return Example(self._stretch(self._visual, 17 * index, self.max_clips), frames, words)

    def read(self, index: int) -> Example:
        """Returns a video with its captions."""
        return self[index]

    def _stretch(self, rows: np.ndarray, place: int, length: int) -> np.ndarray:
        start = place * 97 % (len(rows) - length)
        return rows[start : start + length]
