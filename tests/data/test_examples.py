"""Examples that all fit on the devices: batches are their rows, in the order of the schedule."""

import jax
import numpy as np

from hlformer_jax import parallel
from hlformer_jax.data.examples import ExampleFeed
from hlformer_jax.data.schedule import Schedule
from hlformer_jax.training.step import Chunk, Feed

DATA = {"x": np.arange(20, dtype=np.float32).reshape(10, 2), "label": np.arange(10, dtype=np.int32)}


def batches(feed, first=0):
    gather = jax.jit(feed.gather)
    for chunk in feed.chunks(first):
        assert isinstance(chunk, Chunk)
        for step in range(chunk.num_steps):
            yield chunk.first + step, gather(chunk.features, chunk.indices, np.int32(step))


def test_batches_are_the_rows_of_the_schedule_and_the_last_is_padded_and_says_so():
    schedule = Schedule(10, 4, seed=3)
    feed = ExampleFeed(DATA, schedule.groups(epochs=2, longest=2), parallel.mesh())
    assert isinstance(feed, Feed)
    seen = dict(batches(feed))
    assert list(seen) == list(range(6))
    for step, batch in seen.items():
        rows = schedule.order(step // 3)[step % 3 * 4 :][:4]
        np.testing.assert_array_equal(batch.mask, np.arange(4) < len(rows))
        np.testing.assert_array_equal(batch.examples["x"][: len(rows)], DATA["x"][rows])
        np.testing.assert_array_equal(batch.examples["label"][len(rows) :], DATA["label"][0])
    again = dict(batches(feed, first=3))
    assert list(again) == [3, 4, 5]
    for step, batch in again.items():
        np.testing.assert_array_equal(batch.examples["label"], seen[step].examples["label"])


def test_its_shapes_are_those_of_its_chunks():
    feed = ExampleFeed(DATA, Schedule(10, 4, 0).groups(epochs=1, longest=2), parallel.mesh())
    chunk = next(feed.chunks())
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), feed.shapes())
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), (chunk.features, chunk.indices))
    feed.close()
    assert next(feed.chunks()).first == 0
