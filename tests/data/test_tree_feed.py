"""Batches of nodes: the rows of their spans, and equality of batches however they are made."""

import json
import sys

import jax
import numpy as np
import processes
import pytest

from hlformer_jax.config import default
from hlformer_jax.data import trees
from hlformer_jax.data.dataset import open_trees
from hlformer_jax.data.feed import Schedule, in_order
from hlformer_jax.data.sources.synthetic import TreeCorpus
from hlformer_jax.data.tree_feed import (
    NodeFeed,
    SubtreeFeed,
    draw,
    evaluation_rows,
    training_intervals,
)
from hlformer_jax.runtime import devices
from hlformer_jax.training.step import Chunk, Feed

# Frames of a node


SPANS = np.array([[0.0, 10.0], [3.0, 4.0], [9.0, 30.0], [20.0, 20.5], [25.0, 40.0], [6.0, 5.0]])
DURATION = np.full(6, 30.0)
L = np.array([60, 60, 60, 7, 7, 60], np.int32)
N = 12


def test_evaluation_rows_are_equally_spaced_in_the_span():
    rows = trees.row_range(SPANS, DURATION, L)
    places, _ = evaluation_rows(rows, L, N)
    for (first, last), node_rows in zip(rows.tolist(), places.tolist(), strict=True):
        assert node_rows == [int(first + (last - first) * k / (N - 1) + 1e-9) for k in range(N)]
        assert (node_rows[0], node_rows[-1]) == (first, last)
    assert len(set(places[1].tolist())) == 3, "a short span repeats its frames"


def test_training_intervals_cover_the_span():
    rows = trees.row_range(SPANS, DURATION, L)
    low, count = training_intervals(rows, L, N)
    high = low + count - 1
    assert (low[:, 0] == rows[:, 0]).all() and (high[:, -1] == rows[:, 1]).all()
    np.testing.assert_array_equal(high[:, :-1], low[:, 1:])
    assert (count >= 1).all()


def test_short_video_may_be_read_in_full():
    lengths = np.array([60, 60, N + 1, 7, N, 60], np.int32)
    rows = trees.row_range(SPANS, DURATION, lengths)
    places, _ = evaluation_rows(rows, lengths, N, "whole")
    low, count = training_intervals(rows, lengths, N, "whole")
    for node, frames in ((3, [0, 1, 2, 3, 4, 5, 6, *[-1] * 5]), (4, list(range(N)))):
        assert places[node].tolist() == low[node].tolist() == frames
        assert (count[node] == 1).all()
    long = [0, 1, 2, 5]
    expected = evaluation_rows(rows, lengths, N)[0], *training_intervals(rows, lengths, N)
    for rows_read, rows_of_span in zip((places, low, count), expected, strict=True):
        np.testing.assert_array_equal(rows_read[long], rows_of_span[long])


def test_draws_are_uniform_by_seed_step_and_node():
    count = np.broadcast_to(np.arange(1, N + 1, dtype=np.int32), (400, N))
    number = np.arange(400, dtype=np.int32)
    drawing = jax.jit(draw, static_argnums=0)
    drawn = np.asarray(drawing(3, np.int32(5), number, count))
    assert drawn.dtype == np.int32 and (drawn >= 0).all() and (drawn < count).all()
    # Expected are (k - 1) / 2; the standard error is below sqrt(12^2 / 12 / 400) = 0.18.
    np.testing.assert_allclose(drawn.mean(0), (count[0] - 1) / 2, atol=4 * 0.18)
    assert all(set(drawn[:, k]) == set(range(k + 1)) for k in range(N))
    again = drawing(3, np.int32(5), number[::-1].copy(), count)
    np.testing.assert_array_equal(np.asarray(again)[::-1], drawn, "depends on other nodes")
    for seed, step in ((4, 5), (3, 6)):
        assert (np.asarray(drawing(seed, np.int32(step), number, count)) != drawn).mean() > 0.5


# Feeds


CORPUS = TreeCorpus(videos=(12, 3, 5), visual_dim=5, text_dim=4)
F, W, SIZE = 6, 20, 8


def configured(folder):
    """Return a configuration of HOVER with prepared sets in a folder."""
    config = default("hover")
    config.data.update(
        data_dir=str(folder), visual_dim=5, text_dim=4, max_words=W, max_clips=1, max_frames=64
    )
    config.trees.node_frames = F
    return config


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    config = configured(tmp_path_factory.mktemp("prepared"))
    return open_trees(config, CORPUS).train


def training_feed(split, resident=True, seed=3, epochs=2, longest=3):
    groups = Schedule(split.num_items, SIZE, 7).groups(epochs, longest)
    return SubtreeFeed(split, groups, devices.mesh(), resident, SIZE, seed)


def batches(feed, first=0):
    """Yield the steps of a feed and their batches, as NumPy."""
    for chunk in feed.chunks(first):
        assert isinstance(chunk, Chunk)
        for step in range(chunk.num_steps):
            yield chunk.first + step, jax.device_get(feed.batch(chunk, step))


@pytest.fixture(scope="module")
def resident_batches(train):
    """The batches of a run of two epochs whose features are resident, by step."""
    feed = training_feed(train)
    assert isinstance(feed, Feed)
    by_step = dict(batches(feed))
    feed.close()
    return by_step


def unit(vectors):
    vectors = np.asarray(vectors, np.float64)
    return (vectors / (np.linalg.norm(vectors, axis=-1, keepdims=True) + 1e-5)).astype(np.float16)


def test_batch_holds_each_node_of_its_items_once(train, resident_batches):
    pool, schedule = train.pool, Schedule(train.num_items, SIZE, 7)
    assert list(resident_batches) == list(range(2 * schedule.steps_per_epoch))
    for step, batch in resident_batches.items():
        epoch, index = divmod(step, schedule.steps_per_epoch)
        items = schedule.order(epoch)[index * SIZE :][:SIZE]
        nodes, subtrees = batch.nodes, batch.subtrees
        np.testing.assert_array_equal(subtrees.mask, np.arange(SIZE) < len(items))
        node_ids = np.unique(pool.subtrees[items])
        assert nodes.mask.sum() == len(node_ids) and nodes.mask[: len(node_ids)].all()
        np.testing.assert_array_equal(node_ids[subtrees.nodes[subtrees.mask]], pool.subtrees[items])
        np.testing.assert_array_equal(subtrees.pair[subtrees.mask], pool.pair[items])
        np.testing.assert_array_equal(
            batch.descends[: len(node_ids), : len(node_ids)], pool.descends(node_ids)
        )
        padding = jax.tree.map(lambda x, keep=~nodes.mask: x[keep], nodes)
        assert not (padding.frames.any() or padding.words.any() or padding.frame_mask.any())
        assert not batch.descends[~nodes.mask].any()


def test_nodes_read_frames_of_spans_and_words_of_moments(train, resident_batches):
    with CORPUS.open() as reader:
        videos = {video.video: video for video in reader.videos["train"]}
        pool, schedule = train.pool, Schedule(train.num_items, SIZE, 7)
        for step, batch in list(resident_batches.items())[:3]:
            items = schedule.order(0)[step * SIZE :][:SIZE]
            node_ids = np.unique(pool.subtrees[items])
            low, count = training_intervals(train.rows, train.num_rows, F)
            drawn = draw(3, np.int32(step), node_ids.astype(np.int32), count[node_ids])
            for row, node in enumerate(node_ids):
                video = videos[pool.videos[pool.tree[node]]]
                frames = unit(reader.read_frames(video.video))
                rows = low[node] + np.asarray(drawn[row])
                np.testing.assert_array_equal(batch.nodes.frames[row], frames[rows])
                start, end = pool.span[node]
                moment_ids = [
                    moment.moment_id
                    for moment in video.moments
                    if start <= moment.start and moment.end <= end
                ]
                if pool.level[node] == 0 and pool.leaves[node] > 1:
                    assert len(moment_ids) == 1
                words = unit(np.concatenate([reader.read_words(name) for name in moment_ids]))[:W]
                mask = batch.nodes.word_mask[row]
                assert mask.sum() == len(words) and mask[: len(words)].all()
                np.testing.assert_array_equal(batch.nodes.words[row, : len(words)], words)


def test_draws_change_by_epoch_and_repeat_on_resume(train, resident_batches):
    first = len(resident_batches) // 2 + 1
    feed = training_feed(train)
    resumed = dict(batches(feed, first))
    feed.close()
    assert list(resumed) == list(range(first, len(resident_batches)))
    for step, batch in resumed.items():
        jax.tree.map(np.testing.assert_array_equal, batch, resident_batches[step])
    reseeded = training_feed(train, seed=4)
    differing = next(batches(reseeded))[1]
    reseeded.close()
    np.testing.assert_array_equal(differing.nodes.words, resident_batches[0].nodes.words)
    assert (differing.nodes.frames != resident_batches[0].nodes.frames).any()


def test_resident_and_streamed_batches_are_equal(train, resident_batches):
    feed = training_feed(train, resident=False)
    streamed = dict(batches(feed))
    feed.close()
    assert list(streamed) == list(resident_batches)
    for step, batch in streamed.items():
        jax.tree.map(np.testing.assert_array_equal, batch, resident_batches[step])


@pytest.mark.parametrize("resident", [True, False])
def test_chunks_have_the_announced_shapes(train, resident):
    def describe(tree):
        return jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), tree)

    feed = training_feed(train, resident)
    chunk = next(feed.chunks())
    assert describe(feed.shapes()) == describe((chunk.features, chunk.indices))
    assert feed.bytes_per_device > 0 and (feed.bytes_ahead > 0) == (not resident)
    feed.close()


def test_evaluation_reads_every_node_once(train):
    pool, collected = train.pool, []
    for resident in (True, False):
        feed = NodeFeed(train, in_order(train.num_nodes, 16, 2), devices.mesh(), resident)
        collected.append([batch for _, batch in batches(feed)])
        feed.close()
    for resident_batch, streamed_batch in zip(*collected, strict=True):
        jax.tree.map(np.testing.assert_array_equal, resident_batch, streamed_batch)
    nodes = jax.tree.map(lambda *parts: np.concatenate(parts), *collected[0])
    assert nodes.mask[: train.num_nodes].all() and not nodes.mask[train.num_nodes :].any()
    assert np.sum(nodes.mask) == len(pool.tree)
    with CORPUS.open() as reader:
        for node, (start, end) in enumerate(pool.span.astype(int)):
            frames = unit(reader.read_frames(pool.videos[pool.tree[node]]))
            rows = np.linspace(start, min(end, len(frames) - 1), F).astype(int)
            np.testing.assert_array_equal(nodes.frames[node], frames[rows])


def test_short_videos_read_in_full_are_masked_beyond_their_end(tmp_path):
    config = configured(tmp_path)
    config.trees.update(short_video="whole", node_frames=30)
    split = open_trees(config, CORPUS).train
    feed = NodeFeed(split, in_order(split.num_nodes, 256, 2), devices.mesh(), resident=True)
    ((_, nodes),) = batches(feed)
    feed.close()
    lengths = split.num_rows
    assert (lengths <= 30).any() and (lengths > 30).any()
    np.testing.assert_array_equal(
        nodes.frame_mask[nodes.mask].sum(1), np.where(lengths <= 30, lengths, 30)
    )
    assert not nodes.frames[~nodes.frame_mask].any()


# In a process of its own: the number of virtual devices is set before JAX starts.
PROGRAM = """
import hashlib, json, sys
import jax
import numpy as np
from test_tree_feed import CORPUS, NodeFeed, SIZE, configured, in_order
from test_tree_feed import Schedule, SubtreeFeed, open_trees
from hlformer_jax.runtime import devices

data = open_trees(configured(sys.argv[1]), CORPUS)
split, digests = data.train, []
for number in (1, 8):
    mesh = devices.mesh(jax.devices()[:number])
    groups = Schedule(split.num_items, SIZE, 7).groups(1, 3)
    for feed in (
        SubtreeFeed(split, groups, mesh, number == 8, SIZE, 3),
        NodeFeed(split, in_order(split.num_nodes, 16, 2), mesh, number == 1),
    ):
        digest = hashlib.sha256()
        for chunk in feed.chunks():
            for step in range(chunk.num_steps):
                batch = jax.device_get(feed.batch(chunk, step))
                nodes = getattr(batch, "nodes", batch)
                for array in jax.tree.leaves(nodes):
                    digest.update(np.ascontiguousarray(array[nodes.mask]).tobytes())
                if nodes is not batch:
                    for array in jax.tree.leaves(batch.subtrees):
                        digest.update(np.ascontiguousarray(array[:SIZE]).tobytes())
                    descends = batch.descends[nodes.mask][:, nodes.mask]
                    digest.update(np.ascontiguousarray(descends).tobytes())
        feed.close()
        digests.append(digest.hexdigest())
print("RESULT", json.dumps(digests))
"""


@pytest.mark.slow  # it takes seconds
def test_batches_are_the_same_on_any_number_of_devices(tmp_path):
    environment = processes.environment(devices=8)
    environment["PYTHONPATH"] += f":{processes.ROOT / 'tests' / 'data'}"
    process = processes.finish([sys.executable, "-c", PROGRAM, str(tmp_path)], env=environment)
    assert process.returncode == 0, process.stderr[-3000:]
    (line,) = [line for line in process.stdout.splitlines() if line.startswith("RESULT")]
    digests = json.loads(line.removeprefix("RESULT "))
    assert digests[:2] == digests[2:]  # of subtrees and of nodes, on one device and on eight
