"""The same work at four sizes: which they are, and what a video takes."""

import pytest
import runs

from hlformer_jax.benchmark import scaling
from hlformer_jax.benchmark.inputs import Options
from hlformer_jax.benchmark.measure import Floor, Timing


class Training:
    """Stands for the compiled steps of as many videos."""

    sizes: list[int] = []

    def __init__(self, config, videos, longest):
        assert config.train.batch_size == videos and longest == 1
        self.sizes.append(videos)
        self.feed, self.run = self, None

    def chunks(self):
        return iter([None])

    def floor(self):
        return Floor(0.0, 0.0, 1.0)


@pytest.fixture
def searched(monkeypatch):
    """Numbers of videos that were searched; nothing is compiled or timed."""
    corpora = []

    def timed(run, *arguments, repeats):
        if len(arguments) > 1:
            corpora.append(arguments[0])
        return Timing(3.0, 3.0, 3.0, repeats)

    monkeypatch.setattr(scaling, "Training", Training)
    monkeypatch.setattr(scaling, "timed", timed)
    monkeypatch.setattr(scaling, "random_corpus", lambda config, videos, dtype: videos)
    monkeypatch.setattr(scaling, "random_queries", lambda stored, count: None)
    monkeypatch.setattr(scaling, "search_floor", lambda stored, queries: Floor(0.0, 0.0, 1.0))
    Training.sizes.clear()
    return corpora


def test_a_step_and_a_search_are_timed_at_an_eighth_to_the_whole(searched):
    config = runs.retrieval("", **{"train.batch_size": 24})
    rows = list(scaling.scaling(config, Options(videos=16, repeats=3, steps=1)))
    assert Training.sizes == [3, 6, 12, 24]
    assert [row.facts["ms/video"] for row in rows[:4]] == [1000.0, 500.0, 250.0, 125.0]
    assert searched == [2, 4, 8, 16]
    assert [row.what for row in rows[4:]] == [
        f"search, {videos} videos, 256 queries" for videos in (2, 4, 8, 16)
    ]
    assert rows[-1].facts["us/video"] == 3e6 / 16


def test_a_batch_of_few_videos_is_timed_once_at_each_size(searched):
    config = runs.retrieval("", **{"train.batch_size": 2})
    list(scaling.scaling(config, Options(videos=8, repeats=3, steps=1)))
    assert Training.sizes == [1, 2]
