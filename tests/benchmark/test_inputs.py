"""Inputs of the benchmark, and the time of one of many."""

from hlformer_jax.benchmark import inputs
from hlformer_jax.benchmark.measure import Timing
from hlformer_jax.config import default
from hlformer_jax.data.source import SPLITS


def _config():
    config = default()
    config.data.update(visual_dim=6, text_dim=5, max_frames=9, max_clips=4, max_words=3)
    return config


def test_the_time_of_one_of_many_keeps_its_repeats():
    assert inputs.each(Timing(3.0, 2.0, 8.0, 7), 2) == Timing(1.5, 1.0, 4.0, 7)


def test_a_simulated_split_has_the_sizes_that_were_asked_for():
    split = inputs.simulated_split(7, 30, _config())
    assert (len(split), len(split.caption_video)) == (7, 30)
    assert split[0].clips.shape == (4, 6)


def test_released_files_have_the_sizes_of_the_configuration(tmp_path):
    collection = inputs.released_files(str(tmp_path), 12, _config())
    with collection.open() as reader:
        assert [len(reader.splits[split]) for split in SPLITS] == [12, 8, 8]
        video = next(iter(reader.splits["train"]))
        assert reader.read_frames(video).shape[1] == 6
        assert max(map(reader.num_frames, reader.splits["train"])) <= 9
