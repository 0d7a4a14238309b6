"""Simulated videos: of the sizes they say, and read like those of a prepared set."""

import numpy as np
import pytest

from hlformer_jax.config import default
from hlformer_jax.data.simulated import SimulatedVideos
from hlformer_jax.data.split import Split


@pytest.mark.parametrize("captions", [30, 7])
def test_records_have_the_sizes_that_were_said_and_fill_a_split(captions):
    data = default().data
    data.update(visual_dim=6, text_dim=5, max_frames=9, max_clips=4, max_words=3)
    videos = SimulatedVideos(7, captions, data)
    assert len(videos) == len(videos.video_ids) == len(set(videos.video_ids)) == 7
    assert videos.captions_per_video.sum() == captions and videos.captions_per_video.min() >= 1
    for index in range(len(videos)):
        record = videos[index]
        assert record.frames.shape == (videos.frames_per_video[index], 6)
        assert record.words.shape == (videos.words_per_video[index], 5)
        assert len(record.caption_ids) == len(record.word_counts)
        assert len(record.caption_ids) == videos.captions_per_video[index]
        assert record.word_counts.sum() == len(record.words)
        np.testing.assert_array_equal(record.frames, videos[index].frames)
    split = Split(videos, data)
    assert len(split.caption_video) == captions
    assert split[3].clips.shape == (4, 6) and len(split[3].words) == videos.captions_per_video[3]
