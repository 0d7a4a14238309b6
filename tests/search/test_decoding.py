"""Events of decoding: what a video gives, and what becomes of one that cannot be read."""

from types import SimpleNamespace

import archive
import numpy as np
import pytest

from hlformer_jax.search.extract import CHUNK, Done, Failed, Frames, Job, Opened, decode


def events(path, sample=archive.sample):
    """The events of one video, decoded in this process."""
    job = Job(archive.VIDEO._replace(sample=sample), 1.0, 4, archive.preprocess)
    return list(decode([path], job, 0))


def frames_at(times):
    """A decoder of black frames at these times, whatever the file."""
    image = np.zeros((6, 8, 3), np.uint8)
    return lambda path, fps, size: (SimpleNamespace(time=time, image=image) for time in times)


def test_frames_come_in_batches_of_one_size_and_in_order(tmp_path):
    path = archive.random_film(tmp_path / "long.film", 2 * CHUNK + 5)
    opened, *batches, done = events(path)
    assert opened == Opened(path, 2 * CHUNK + 5.0) and isinstance(done, Done)
    assert [len(batch.times) for batch in batches] == [CHUNK, CHUNK, 5]
    np.testing.assert_array_equal(
        np.concatenate([batch.times for batch in batches]), np.arange(2 * CHUNK + 5)
    )
    assert all(batch.images.shape[1:] == (4, 4, 3) for batch in batches)


def test_frames_whose_time_does_not_rise_are_left_out_and_none_is_before_the_beginning(tmp_path):
    path = archive.film(tmp_path / "a.film", ["red"])
    _, batch, _ = events(path, frames_at([-0.5, 0.0, 1.0, 1.0, 0.5, 2.0]))
    assert isinstance(batch, Frames)
    np.testing.assert_array_equal(batch.times, [0.0, 1.0, 2.0])


def raises(error):
    """A decoder that fails."""

    def sample(path, fps, size):
        raise error
        yield

    return sample


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (frames_at([]), "it has no frame that can be decoded"),
        (raises(OSError(5, "Input/output error")), "Input/output error"),
        (raises(MemoryError()), "its frames do not fit into memory"),
        (raises(RuntimeError("odd\nand more")), "RuntimeError: odd"),
        (raises(KeyError()), "KeyError: KeyError"),
    ],
)
def test_what_cannot_be_decoded_fails_with_one_line(tmp_path, sample, reason):
    path = archive.film(tmp_path / "a.film", ["red"])
    assert events(path, sample)[1:] == [Failed(path, reason)]


def test_the_reason_of_a_failure_does_not_repeat_the_name_of_the_file(tmp_path):
    path = tmp_path / "a.film"
    path.write_bytes(b"broken")
    assert events(path) == [Failed(path, "is no film: copy it again")]


def test_a_video_that_takes_too_long_fails_alone(tmp_path):
    """One that never gives a frame, and one that gives them slowly."""
    paths = [archive.film(tmp_path / f"{i}.film", ["red"] * 5) for i in range(4)]
    paths.insert(1, archive.film(tmp_path / "hanging.film", ["red"]))
    slow = archive.film(tmp_path / "slow.film", ["red"] * 3 * CHUNK)
    job = Job(archive.VIDEO, 1.0, 4, archive.preprocess, timeout=0.3)
    ended = [one for one in decode([*paths, slow], job, 2) if isinstance(one, Done | Failed)]
    late = {one.path: one.reason for one in ended if isinstance(one, Failed)}
    assert len(ended) == 6 and set(late) == {paths[1], slow}
    assert all("more than 0.3 s" in reason and "--timeout" in reason for reason in late.values())
    assert isinstance(list(decode([slow], job, 0))[-1], Failed)


def test_the_limit_of_a_video_grows_with_its_length_and_not_without_bound():
    job = Job(archive.VIDEO, 1.0, 4, archive.preprocess)
    assert 60 <= job.limit() < job.limit(60) < job.limit(3600) < job.limit(1e12) < 1e7
