"""Batches of a split of videos, and transforms of features against the released code."""

from pathlib import Path

import chex
import jax
import numpy as np
import pytest

from benchmarks.simulated import SimulatedVideos
from hlformer_jax.config import default
from hlformer_jax.data import dataset, feed, transforms
from hlformer_jax.data.feed import Schedule, VideoFeed, in_order
from hlformer_jax.data.prepared import prepare
from hlformer_jax.data.split import Split
from hlformer_jax.data.transforms import (
    boundaries,
    cut_words,
    normalise,
    pool_to_clips,
    sample_frames,
)
from hlformer_jax.runtime import devices

# The order of the steps


def test_order_depends_on_seed_and_epoch_only():
    schedule = Schedule(50, 8, seed=3)
    orders = [schedule.order(epoch) for epoch in (0, 1, 0)]
    np.testing.assert_array_equal(orders[0], orders[2])
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], Schedule(50, 8, seed=4).order(0))
    np.testing.assert_array_equal(np.sort(orders[1]), np.arange(50))


@pytest.mark.parametrize("longest", [1, 2, 5, 100])
def test_groups_hold_each_step_once_and_end_at_records(longest):
    schedule = Schedule(11, 4, seed=0)
    groups = schedule.groups(4, longest)
    assert [group.first for group in groups[1:]] == [group.end for group in groups[:-1]]
    assert (groups[0].first, groups[-1].end) == (0, 12)
    ends = {end for end in range(1, 13) if end % longest == 0 or end % 3 == 0}
    assert {group.end for group in groups} == ends
    videos = np.concatenate([np.concatenate(group.steps) for group in groups])
    for epoch in range(4):
        np.testing.assert_array_equal(videos[11 * epoch : 11 * epoch + 11], schedule.order(epoch))


# Packing


@pytest.fixture(scope="module")
def taught_split():
    """A split of random videos with many captions and a teacher."""
    data = default().data
    data.update(visual_dim=6, text_dim=5, max_frames=9, max_clips=4, max_words=3, teacher_dim=7)
    return Split(SimulatedVideos(11, 200, data), data)


def test_capacity_is_the_minimum_for_all_batches(taught_split, mesh):
    counts = taught_split.captions_per_video
    groups = Schedule(len(counts), 4, seed=0).groups(5, 3)
    chunks = VideoFeed(taught_split, groups, mesh, 4, resident=False)
    sums = [counts[step].sum() for group in groups for step in group.steps]
    assert max(sums) <= chunks.captions < max(sums) + feed.CAPTION_MULTIPLE
    assert chunks.videos == 4
    single = VideoFeed(taught_split, Schedule(len(counts), 4, seed=0).groups(5, 1), mesh, 4, False)
    assert single.shapes()[0].clips.shape[0] == 4  # the videos of a step, not of the split


def test_indices_point_to_padded_device_rows():
    counts = np.array([2, 1, 3, 2, 1])  # captions of the videos of a chunk
    steps = [np.array([4, 0]), np.array([2, 1, 3])]
    capacity, num_devices = feed.Capacity(videos=4, captions=8, frames=1, words=1), 2
    # By hand: the first three videos lie on device 0, the last two on device 1.
    videos, captions = np.full((2, 4), -1), np.full((2, 8), -1)
    videos[0, :3], videos[1, :2] = (0, 1, 2), (3, 4)
    captions[0, :6], captions[1, :3] = (0, 0, 1, 2, 2, 2), (3, 3, 4)
    indices = feed.gather_indices(steps, counts, capacity, num_devices, (3, 3, 7))
    for step, video_indices in enumerate(steps):
        real = indices.captions[step] >= 0
        np.testing.assert_array_equal(
            videos.ravel()[indices.videos[step][indices.videos[step] >= 0]], video_indices
        )
        caption_videos = video_indices[indices.video[step][real]]
        np.testing.assert_array_equal(
            captions.ravel()[indices.captions[step][real]], caption_videos
        )
        np.testing.assert_array_equal(
            caption_videos, np.repeat(video_indices, counts[video_indices])
        )
    assert [x.shape for x in indices] == [(3, 3), (3, 7), (3, 7)]
    assert np.all(indices.videos[2] == -1) and np.all(indices.captions[2] == -1)


def test_bytes_equal_the_size_of_the_arrays(data):
    capacity = feed.largest_capacity(data.train, [np.arange(11)], 1)
    layout = capacity.layout(data.train)
    sizes = [array.size for array in jax.tree.leaves(layout)]
    assert capacity.bytes(data.train) == 4 * sum(sizes)
    rows = [array.shape[0] for array in jax.tree.leaves(layout)]
    assert rows == [11, capacity.frames, 11, 11, capacity.words] + [capacity.captions] * 2


@pytest.mark.parametrize(("resident", "num_chunks", "ahead"), [(True, 1, 0), (False, 3, 2)])
def test_memory_counts_the_chunks_held_at_once(taught_split, mesh, resident, num_chunks, ahead):
    chunks = VideoFeed(taught_split, Schedule(11, 4, 0).groups(1, 3), mesh, 4, resident)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(chunks.shapes()[0]))
    assert chunks.bytes_per_device == num_chunks * size
    assert chunks.bytes_ahead == pytest.approx(ahead * size)


def test_rows_of_a_share_follow_earlier_devices(taught_split):
    layout = feed.largest_capacity(taught_split, [np.arange(4)], 2).layout(taught_split)
    share = feed._pack_share(taught_split.read, np.array([2, 3]), 1, layout)
    for row, index in enumerate((2, 3)):
        start = share.frame_start[row] - len(share.frames)
        frames = share.frames[start : start + share.frame_count[row]]
        np.testing.assert_array_equal(frames, taught_split[index].frames)
    for row, words in enumerate((*taught_split[2].words, *taught_split[3].words)):
        start = share.word_start[row] - len(share.words)
        np.testing.assert_array_equal(share.words[start : start + share.word_count[row]], words)


# Batches


def test_epoch_holds_the_transformed_features_and_zeros(config, data, read_batches):
    batches, schedule = read_batches(data.train, range(3, 6))  # the second epoch
    prepared = prepare(dataset.choose_source(config.data), config.data.data_dir)
    records, order = prepared.split("train"), schedule.order(1)
    assert [int(batch.videos.mask.sum()) for batch in batches] == [4, 4, 3]
    for number, batch in enumerate(batches):
        row = 0
        for place, index in enumerate(order[4 * number : 4 * number + 4]):
            record = records[int(index)]
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


def test_batch_holds_the_cosines_of_the_teacher(taught_split, mesh, read_feed):
    schedule = Schedule(11, 4, 0)
    batches = read_feed(VideoFeed(taught_split, schedule.groups(1, 2), mesh, 4, resident=False))
    for number, batch in enumerate(batches):
        expected = np.zeros((len(batch.captions.mask), 9), np.float32)
        row = 0
        for index in schedule.order(0)[4 * number :][:4]:
            cosines = taught_split[index].teacher
            expected[row : row + len(cosines), : cosines.shape[1]] = cosines
            row += len(cosines)
        assert batch.captions.mask.sum() == row
        np.testing.assert_array_equal(batch.captions.teacher, expected)
    assert number == 2


# Feeds


def test_resumed_run_reads_the_same_batches(data, read_batches):
    batches, schedule = read_batches(data.train, range(0, 7))
    resumed, _ = read_batches(data.train, range(4, 7))
    assert schedule.steps_per_epoch == 3
    chex.assert_trees_all_equal(batches[4:], resumed)


def test_resident_and_streamed_features_give_the_same_batches(data, read_batches):
    streamed, _ = read_batches(data.train, range(0, 9))
    resident, _ = read_batches(data.train, range(0, 9), resident=True)
    longer, _ = read_batches(data.train, range(0, 9), longest=100)
    chex.assert_trees_all_equal(streamed, resident)
    chex.assert_trees_all_equal(streamed, longer)


@pytest.mark.parametrize("resident", [False, True])
def test_all_chunks_have_the_announced_shapes(data, mesh, resident):
    chunks = VideoFeed(data.train, Schedule(11, 4, 0).groups(3, 2), mesh, 4, resident)
    shapes = chunks.shapes()
    for chunk in chunks.chunks():
        for array, shape in zip(jax.tree.leaves(chunk[2:]), jax.tree.leaves(shapes), strict=True):
            assert (array.shape, array.dtype) == (shape.shape, shape.dtype)
            assert array.sharding.is_equivalent_to(shape.sharding, array.ndim)
    assert len(list(chunks.chunks(8))) == 1 and list(chunks.chunks(9)) == []


def test_fits_depends_on_configuration_and_memory(config, data, mesh, monkeypatch):
    config = config.copy_and_resolve_references()
    decided = {}
    for resident in ("auto", "always", "never"):
        config.data.resident = resident
        decided[resident] = feed.fits(data.train, mesh, config)
    assert decided == {"auto": True, "always": True, "never": False}
    size = feed.largest_capacity(data.train, [np.arange(11)], 1).bytes(data.train)
    config.data.resident = "auto"
    for share, is_resident in ((1.01, True), (0.99, False)):
        config.data.cache_gib = share * size / 2**30
        assert feed.fits(data.train, mesh, config) == is_resident
        free = share * size / feed.RESIDENT_SHARE  # of a GPU
        with monkeypatch.context() as patch:
            patch.setattr(devices, "available_bytes", lambda mesh, free, size=free: size)
            config.data.cache_gib = 0.0
            assert feed.fits(data.train, mesh, config) == is_resident


def test_feed_is_cached_until_it_is_closed(data, mesh):
    cache = feed.KeptFeed(lambda: VideoFeed(data.val, in_order(3, 4, 2), mesh, 4, resident=True))
    cache.close()
    first = cache.get()
    assert cache.get() is first
    cache.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        first.load()
    assert cache.get() is not first
    assert len(list(cache.get().chunks())) == 1
    cache.close()


@pytest.mark.parametrize("size", [1, 3, 64])
def test_evaluation_batches_cover_the_split_in_order(data, mesh, read_feed, size):
    chunks = VideoFeed(data.val, in_order(len(data.val), size, 2), mesh, size, resident=False)
    batches = read_feed(chunks)
    clips = np.concatenate([batch.videos.clips[batch.videos.mask] for batch in batches])
    expected = np.stack([data.val[index].clips for index in range(len(data.val))])
    np.testing.assert_array_equal(clips, expected)
    video = [
        place * size + batch.captions.video[batch.captions.mask]
        for place, batch in enumerate(batches)
    ]
    np.testing.assert_array_equal(np.concatenate(video), data.val.caption_video)


# Splits


def test_cache_size_does_not_change_the_batches(config, data, read_batches):
    with_cache, _ = read_batches(data.train, range(0, 6))
    config = config.copy_and_resolve_references()
    config.data.cache_gib = 0.0
    uncached = dataset.open_data(config).train
    without, _ = read_batches(uncached, range(0, 6))
    assert not uncached._cache
    assert data.train._cache
    chex.assert_trees_all_equal(with_cache, without)


def test_caption_ids_follow_the_order_of_the_captions(data):
    ids = data.val.caption_ids()
    assert [name.split("#")[0] for name in ids] == [
        data.val.video_ids[index] for index in data.val.caption_video
    ]


def test_half_precision_rounds_features(config, data, read_batches):
    config = config.copy_and_resolve_references()
    config.data.storage = "float16"
    split = dataset.open_data(config).train
    assert split.video_ids == data.train.video_ids
    # Each element is rounded by at most 2^-11, then pooled and divided by the norm of its vector.
    np.testing.assert_allclose(split[0].clips, data.train[0].clips, atol=2**-10)
    assert not np.array_equal(split[0].clips, data.train[0].clips)
    config.data.update(storage="float32", dtype="float16")
    split = dataset.open_data(config).train
    assert split[0].clips.dtype == split[0].words[0].dtype == np.float16
    # Normalised vectors: each element is rounded by at most 2^-12 of its size, at most 1.
    np.testing.assert_allclose(split[0].clips, data.train[0].clips, rtol=2**-11, atol=2**-24)
    batches, _ = read_batches(split, range(0, 1))
    assert batches[0].videos.clips.dtype == np.float16


@pytest.mark.parametrize("captions", [30, 7])
def test_simulated_records_have_the_declared_sizes(captions):
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


# Inputs and outputs of the official HLFormer code (commit 332a024), unmodified, on CPU, of features
# drawn by numpy with seed 17: for 12 frame counts ``n*/x``, the pooled clips and frames in float64,
# their normalised forms in float32, and boundaries.
GOLDEN = np.load(Path(__file__).parent / "golden" / "data_transforms.npz")
COUNTS = (1, 2, 5, 31, 32, 33, 100, 127, 128, 129, 200, 777)


def mean_tolerance(frames: np.ndarray) -> float:
    """Return the largest difference of two means of k numbers, 2 k eps max|x| / k."""
    return 2 * len(frames) * np.finfo(np.float64).eps * float(np.abs(frames).max())


@pytest.mark.parametrize("count", COUNTS)
def test_clips_equal_the_released_ones(count):
    frames = GOLDEN[f"n{count}/x"]
    bounds = boundaries(count, 32, np.float32)
    np.testing.assert_array_equal(bounds, GOLDEN[f"n{count}/clip_boundaries"])
    clips = pool_to_clips(frames, 32)
    assert clips.dtype == np.float64
    expected = GOLDEN[f"n{count}/clip32_f64"]
    np.testing.assert_allclose(clips, expected, rtol=0, atol=mean_tolerance(frames))
    # One rounding to float32, of numbers that agree to 1e-13: at most one unit in the last place.
    np.testing.assert_array_max_ulp(normalise(clips), GOLDEN[f"n{count}/clip32_l2norm"], 1)


@pytest.mark.parametrize("count", COUNTS)
def test_frames_equal_the_released_ones(count):
    frames = GOLDEN[f"n{count}/x"]
    sampled = sample_frames(frames, 128)
    expected = GOLDEN[f"n{count}/frame128_f64"]
    assert sampled.shape == expected.shape
    np.testing.assert_allclose(sampled, expected, rtol=0, atol=mean_tolerance(frames))
    np.testing.assert_array_max_ulp(normalise(sampled), GOLDEN[f"n{count}/frame128_l2norm"], 1)
    if count > 128:
        bounds = boundaries(count, 128)
        np.testing.assert_array_equal(bounds, GOLDEN[f"n{count}/frame_boundaries"])


@pytest.mark.parametrize("key", ["", "3d"])
def test_normalisation_equals_the_released_one(key):
    expected = GOLDEN["l2/out_f64" if key == "" else "l2/out3d"]
    np.testing.assert_array_max_ulp(normalise(GOLDEN[f"l2/x{key}"]), expected.astype(np.float32), 1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_normalisation_does_not_overflow_or_divide_by_zero(dtype):
    vectors = np.stack([np.zeros(8), np.full(8, 6e4), np.full(8, 1e-7)]).astype(dtype)
    norms = np.linalg.norm(normalise(vectors), axis=-1)
    small = np.linalg.norm(vectors[2].astype(np.float64))
    np.testing.assert_allclose(norms, [0.0, 1.0, small / (small + 1e-5)], rtol=1e-6)


@pytest.mark.parametrize(("count", "spans"), [(33, 8), (50, 7)])
def test_clips_are_means_of_spans_up_to_the_capped_end(count, spans):
    frames = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    bounds = boundaries(count, spans, np.float32)
    expected = [
        frames[a : max(b, a + 1)].mean(0, dtype=np.float64)
        for a, b in zip(bounds[:-1], bounds[1:], strict=True)
    ]
    np.testing.assert_allclose(pool_to_clips(frames, spans), expected, rtol=1e-14, atol=1e-15)


def test_frames_of_short_videos_are_unchanged():
    frames = np.random.default_rng(0).normal(size=(128, 4)).astype(np.float16)
    assert sample_frames(frames, 128) is frames
    assert sample_frames(np.concatenate([frames, frames[:1]]), 128).shape == (128, 4)


def test_zero_vectors_stay_zero_and_short_vectors_small():
    vectors = np.float32([[0, 0], [3, 4], [3e-4, 4e-4]])
    np.testing.assert_allclose(transforms.unit(vectors), [[0, 0], [0.6, 0.8], [0.6, 0.8]], 1e-6)
    np.testing.assert_allclose(
        transforms.unit(vectors, 1e-3), [[0, 0], [0.6, 0.8], [0.3, 0.4]], 1e-6
    )


def test_padding_is_zero_and_masked():
    padded, mask = transforms.pad([np.ones((2, 1)), np.ones((1, 1))], (3, 2, 1), np.float16)
    assert padded.dtype == np.float16
    np.testing.assert_array_equal(padded[..., 0], [[1, 1], [1, 0], [0, 0]])
    np.testing.assert_array_equal(mask, [[True, True], [True, False], [False, False]])


def test_teacher_cosines_are_of_the_means_of_spans():
    rng = np.random.default_rng(0)
    frames, captions = (rng.normal(size=(n, 4)).astype(np.float16) for n in (7, 3))
    captions[2] = 0
    spans = [slice(0, 2), slice(2, 5), slice(5, 6)]  # 7 / 3 and 14 / 3 rounded; the end is capped
    means = [frames[span].astype(np.float64).mean(0) for span in spans]
    expected = [
        [0 if i == 2 else x @ y / np.linalg.norm(x) / np.linalg.norm(y) for y in means]
        for i, x in enumerate(captions.astype(np.float64))
    ]
    cosines = transforms.teacher_cosines(frames, captions, 3)
    assert cosines.dtype == np.float32
    np.testing.assert_allclose(cosines, expected, rtol=1e-6)


def test_each_word_is_normalised_before_cutting():
    words = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(cut_words(words, 3), normalise(words)[:3])
    np.testing.assert_array_equal(cut_words(words, 9), normalise(words))


def test_cut_captions_of_clip_keep_the_vector_of_the_sentence():
    words = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(cut_words(words, 3, True), normalise(words)[[0, 1, 4]])
    np.testing.assert_array_equal(cut_words(words, 1, True), normalise(words)[[4]])
    np.testing.assert_array_equal(cut_words(words, 5, True), normalise(words))


@pytest.mark.parametrize(
    "changes", [{}, {"data.feature": "clip_L14"}, {"model.name": "clip4clip_meanp"}]
)
def test_split_of_clip_features_keeps_the_last_row(changes, tmp_path):
    config = default()
    config.data.update(data_dir=str(tmp_path), visual_dim=6, text_dim=5, max_words=1)
    config.data.update(synthetic_videos=(3, 3, 3), dtype="float32")
    source = dataset.choose_source(config.data)
    config.update_from_flattened_dict(changes)
    split = dataset.open_data(config, source).test
    record = split._videos[0]
    ends = np.cumsum(record.word_counts)
    rows = ends - 1 if changes else ends - record.word_counts
    assert record.word_counts.max() > 1
    np.testing.assert_array_equal(np.concatenate(split[0].words), normalise(record.words[rows]))
