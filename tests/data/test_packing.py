"""Packing: how much room a chunk of videos takes, and where its rows lie on each device."""

import numpy as np

from hlformer_jax.data import packing
from hlformer_jax.data.feed import VideoFeed
from hlformer_jax.data.schedule import Schedule


def test_the_capacity_holds_every_batch_and_no_more_than_it_must(data, mesh):
    counts = data.train.captions_per_video
    groups = Schedule(len(counts), 4, seed=0).groups(5, 3)
    chunks = VideoFeed(data.train, groups, mesh, 4, resident=False)
    sums = [counts[step].sum() for group in groups for step in group.steps]
    assert max(sums) <= chunks.captions < max(sums) + packing.CAPTION_MULTIPLE
    assert chunks.videos == 4


def test_indices_are_rows_of_what_lies_on_the_devices_padding_and_all():
    counts = np.array([2, 1, 3, 1, 2])  # captions of the videos of a chunk
    steps = [np.array([4, 0]), np.array([2, 1, 3])]
    capacity, num_devices = packing.Capacity(videos=4, captions=8, frames=1, words=1), 2
    # By hand: the first three videos lie on device 0, the last two on device 1.
    videos, captions = np.full((2, 4), -1), np.full((2, 8), -1)
    videos[0, :3], videos[1, :2] = (0, 1, 2), (3, 4)
    captions[0, :6], captions[1, :3] = (0, 0, 1, 2, 2, 2), (3, 4, 4)
    found = packing.gather_indices(steps, counts, capacity, num_devices, (3, 3, 7))
    for step, chosen in enumerate(steps):
        real = found.captions[step] >= 0
        np.testing.assert_array_equal(
            videos.ravel()[found.videos[step][found.videos[step] >= 0]], chosen
        )
        own = chosen[found.video[step][real]]
        np.testing.assert_array_equal(captions.ravel()[found.captions[step][real]], own)
        np.testing.assert_array_equal(own, np.repeat(chosen, counts[chosen]))
    assert [x.shape for x in found] == [(3, 3), (3, 7), (3, 7)]
    assert np.all(found.videos[2] == -1) and np.all(found.captions[2] == -1)


def test_bytes_are_those_of_the_arrays(data):
    capacity = packing.whole_capacity(data.train, num_devices=1)
    layout = capacity.layout(data.train)
    floats = [np.prod(shape) * 4 for shape, dtype in layout if dtype == np.float32]
    assert capacity.bytes(data.train) == sum(floats)
    assert [shape[0] for shape, _ in layout] == [11, capacity.frames, 11, 11, capacity.words] + [
        capacity.captions
    ] * 2
