"""Still frames share the embedding of the last encoded frame."""

import archive
import numpy as np
import pytest

from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest.decoding import (
    MAX_FRAMES_OF_BATCH,
    MAX_IMAGES_OF_BATCH,
    Frames,
    VideoJob,
    decode,
)
from hlformer_jax.search.ingest.stills import (
    BLOCK_PIXELS,
    MAX_STILL_DIFFERENCE,
    is_still,
    largest_difference,
)


def batches(path, every_frame=False):
    job = VideoJob(archive.VIDEO, 1.0, 4, archive.preprocess, every_frame=every_frame)
    return [event for event in decode([path], job, 0) if isinstance(event, Frames)]


def grey(levels):
    return [(level, level, level) for level in levels]


@pytest.mark.parametrize("size", [48, 36, 5])
def test_difference_is_the_largest_of_all_blocks(size):
    generator = np.random.default_rng(size)
    first, second = generator.integers(0, 256, (2, size, size, 3), np.uint8)
    differences = np.abs(first.astype(int) - second)
    starts = range(0, size, BLOCK_PIXELS)
    means = [
        differences[row : row + BLOCK_PIXELS, column : column + BLOCK_PIXELS].mean()
        for row in starts
        for column in starts
    ]
    assert largest_difference(first, second) == pytest.approx(max(means))


def test_small_object_is_a_change_and_noise_is_not():
    generator = np.random.default_rng(0)
    first = generator.integers(20, 230, (224, 224, 3)).astype(np.uint8)
    noisy = (first + generator.integers(-2, 3, first.shape)).astype(np.uint8)
    assert is_still(first, noisy)
    with_object = first.copy()
    with_object[100:103, 100:103] = 0  # 0.02 % of the picture
    assert np.abs(with_object.astype(int) - first).mean() < 0.1
    assert not is_still(first, with_object)


def test_slow_changes_do_not_add_up(tmp_path):
    path = archive.film(tmp_path / "a.film", grey(range(10)))
    [batch] = batches(path)
    assert list(batch.places) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert list(batch.images[:, 0, 0, 0]) == [0, 3, 6, 9]
    assert list(batch.times) == list(range(10))
    [batch] = batches(path, every_frame=True)
    assert list(batch.places) == list(batch.images[:, 0, 0, 0]) == list(range(10))


def test_batch_is_bounded_in_images_and_in_frames(tmp_path):
    still = archive.film(tmp_path / "still.film", ["red"] * (MAX_FRAMES_OF_BATCH + 2))
    assert [list(batch.images.shape[:1]) for batch in batches(still)] == [[1], [1]]
    assert [len(batch.times) for batch in batches(still)] == [MAX_FRAMES_OF_BATCH, 2]
    limit = MAX_IMAGES_OF_BATCH
    pairs = archive.film(tmp_path / "pairs.film", ["red", "red", "blue", "blue"] * limit)
    assert [len(batch.images) for batch in batches(pairs)] == [limit, limit]
    assert [len(batch.times) for batch in batches(pairs)] == [2 * limit, 2 * limit]


@pytest.fixture
def films(tmp_path):
    folder = tmp_path / "films"
    archive.film(folder / "a.film", grey([10, 11, 12, 13, 200, 200]))
    archive.film(folder / "b.film", ["red"] * 40 + ["blue"])
    return folder


def test_still_frame_has_the_embedding_of_the_last_encoded(films, tmp_path):
    encoder, full_encoder = archive.Encoder(), archive.Encoder()
    index = archive.create(tmp_path / "index", films)
    report, _ = archive.fill(index, encoder)
    assert encoder.seen == 3 + 2 and (report.frames, report.still) == (47, 42)
    complete = archive.create(tmp_path / "complete", films, every_frame=True)
    report, _ = archive.fill(complete, full_encoder)
    assert full_encoder.seen == 47 and (report.frames, report.still) == (47, 0)
    for name, encoded in (("a.film", [0, 0, 0, 3, 4, 4]), ("b.film", [0] * 40 + [40])):
        content = index.videos[name].content
        shared, all_frames = index.read(content), complete.read(content)
        np.testing.assert_array_equal(shared.times, all_frames.times)
        np.testing.assert_array_equal(shared.vectors, all_frames.vectors[encoded])
        assert shared.duration == all_frames.duration
    assert index.key != complete.key


def test_index_keeps_its_mode(films, tmp_path):
    index = archive.create(tmp_path / "index", films, every_frame=True)
    assert Index.open(index.directory).every_frame
    with index.writing() as writer:  # as in an index from before there were modes
        writer.execute("DELETE FROM settings WHERE name = 'every_frame'")
    older = Index.open(index.directory)
    assert older.every_frame and older.key == index.key
    encoder = archive.Encoder()
    archive.fill(older, encoder)
    assert encoder.seen == 47


def test_one_changed_line_exceeds_the_still_bound():
    first = np.full((224, 224, 3), 128, np.uint8)
    second = first.copy()
    second[200, 40:120] += 30  # a line of one pixel, as of thin text
    assert largest_difference(first, second) > MAX_STILL_DIFFERENCE
