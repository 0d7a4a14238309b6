"""The same work at four sizes."""

from collections.abc import Iterator

from ml_collections import ConfigDict

from hlformer_jax.benchmark.inputs import Options, Row
from hlformer_jax.benchmark.measure import timed
from hlformer_jax.benchmark.searching import (
    SEARCHED_VIDEOS,
    random_corpus,
    random_queries,
    search_floor,
)
from hlformer_jax.benchmark.training import Training
from hlformer_jax.retrieval import corpus


def scaling(config: ConfigDict, options: Options) -> Iterator[Row]:
    """A step and a search at four sizes: both grow linearly with the videos."""
    largest = config.train.batch_size
    for size in sorted({max(largest // part, 1) for part in (8, 4, 2, 1)}):
        config.train.batch_size = size
        training = Training(config, size, 1)
        (window,) = training.feed.chunks()
        timing = timed(training.run, window, repeats=options.repeats)
        yield Row(
            f"step, {size} videos",
            timing,
            training.floor(),
            {
                "ms/video": 1e3 * timing.median / size,
            },
        )
    videos = options.videos or 2 * SEARCHED_VIDEOS
    for count in (videos // 8, videos // 4, videos // 2, videos):
        stored = random_corpus(config, count, "bfloat16")
        queries = random_queries(stored, 256)
        timing = timed(corpus.search, stored, queries, 10, repeats=options.repeats)
        floor = search_floor(stored, 256)
        yield Row(
            f"search, {count} videos, 256 queries",
            timing,
            floor,
            {
                "us/video": 1e6 * timing.median / count,
            },
        )
