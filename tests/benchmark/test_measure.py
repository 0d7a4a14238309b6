"""The clock, the floor, and the random data that is measured with."""

from types import SimpleNamespace

import pytest

from hlformer_jax.benchmark import measure
from hlformer_jax.config import default
from hlformer_jax.data.source import SPLITS


def test_the_floor_is_the_slower_of_arithmetic_and_memory():
    most = measure.ceilings()
    assert most.flops > 1e8 and most.bytes > 1e8
    assert measure.floor(most.flops, 1.0).seconds == pytest.approx(1)
    assert measure.floor(1.0, 2 * most.bytes).seconds == pytest.approx(2)


def test_the_clock_leaves_the_first_run_out_and_waits_for_the_results(monkeypatch):
    now, took = [0.0], iter((64.0, 0.5, 0.125, 0.25, 0.625, 0.375))

    class Result:
        def block_until_ready(self):
            now[0] += next(took)
            return self

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert measure.timed(Result, repeats=5) == measure.Timing(0.375, 0.125, 0.625, 5)
    assert next(took, None) is None


def _config():
    config = default()
    config.data.update(visual_dim=6, text_dim=5, max_frames=9, max_clips=4, max_words=3)
    return config


def test_a_simulated_split_has_the_sizes_that_were_asked_for():
    split = measure.simulated_split(7, 30, _config())
    assert (len(split), len(split.caption_video)) == (7, 30)
    assert split[0].clips.shape == (4, 6)


def test_released_files_have_the_sizes_of_the_configuration(tmp_path):
    collection = measure.released_files(str(tmp_path), 12, _config())
    with collection.open() as reader:
        assert [len(reader.splits[split]) for split in SPLITS] == [12, 8, 8]
        video = next(iter(reader.splits["train"]))
        assert reader.read_frames(video).shape[1] == 6
        assert max(map(reader.num_frames, reader.splits["train"])) <= 9
