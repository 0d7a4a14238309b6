"""A prepared set is read by index: from threads, pickles and forks."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from hlformer_jax.data.prepared.preparation import prepare


def test_index_beyond_the_split_is_an_index_error(tiny, write, tmp_path):
    source = prepare(write(tiny), tmp_path).split("train")
    assert source[-1].video_id == source[3].video_id == "train_3"
    for index in (4, -5):
        with pytest.raises(IndexError, match="of 4"):
            source[index]
    assert [record.video_id for record in source] == list(source.video_ids)


def test_a_source_is_read_from_threads_pickles_and_forks(tiny, write, tmp_path, python):
    source = prepare(write(tiny), tmp_path).split("train")

    def read(k):
        return source[k % 4].frames.tobytes()

    expected = [read(k) for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(200))) == expected * 50
    assert pickle.loads(pickle.dumps(source))[2].frames.tobytes() == expected[2]
    fork = """
source = prepare(collection, data_dir).split('train')
first = source[2].frames.tobytes()
child = os.fork()
if child == 0:
    os._exit(0 if source[2].frames.tobytes() == first else 1)
sys.exit(os.waitpid(child, 0)[1])
"""
    process = python(fork, tmp_path / "manual", tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
