"""The batch that is gathered: what was packed, and zeros."""

import numpy as np

from hlformer_jax.data import dataset, transforms
from hlformer_jax.data.prepared.preparation import prepare


def test_a_batch_holds_the_transformed_features_and_zeros(config, data, read_batches):
    batches, schedule = read_batches(data.train, range(0, 1))
    batch = batches[0]
    prepared = prepare(dataset.choose_source(config.data), config.data.data_dir)
    videos = prepared.split("train")
    row = 0
    for place, index in enumerate(schedule.order(0)[:4]):
        record = videos[int(index)]
        clips = transforms.normalise(transforms.pool_to_clips(record.frames, 8))
        frames = transforms.normalise(transforms.sample_frames(record.frames, 32))
        np.testing.assert_array_equal(batch.videos.clips[place], clips)
        np.testing.assert_array_equal(batch.videos.frames[place, : len(frames)], frames)
        assert not batch.videos.frames[place, len(frames) :].any()
        assert batch.videos.frame_mask[place].sum() == len(frames)
        start = 0
        for count in record.word_counts:
            words = transforms.normalise(record.words[start : start + count][:7])
            np.testing.assert_array_equal(batch.captions.words[row, : len(words)], words)
            assert not batch.captions.words[row, len(words) :].any()
            assert batch.captions.word_mask[row].sum() == len(words)
            assert batch.captions.video[row] == place
            start, row = start + count, row + 1
    assert batch.captions.mask.sum() == row
    assert not batch.captions.words[row:].any()
