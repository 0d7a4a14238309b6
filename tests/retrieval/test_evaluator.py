"""The evaluation of a split, against NumPy over all its examples at once."""

import linear
import numpy as np
import pytest

from hlformer_jax.config import default
from hlformer_jax.data.simulated import SimulatedVideos
from hlformer_jax.data.split import Split
from hlformer_jax.parallel import devices
from hlformer_jax.retrieval import ranking
from hlformer_jax.retrieval.evaluator import Evaluator

D, F, VIDEOS, CAPTIONS = 6, 8, 10, 23
MATRIX = np.random.default_rng(0).normal(size=(D, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def config():
    config = default()
    config.data.update(visual_dim=D, text_dim=D, max_frames=F, max_clips=3, max_words=4)
    config.data.dtype = "float32"
    config.eval.update(video_batch=4, query_batch=16)  # neither divides the split
    return config


@pytest.fixture(scope="module")
def split(config):
    return Split(SimulatedVideos(VIDEOS, CAPTIONS, config.data), config.data)


@pytest.fixture(scope="module")
def evaluator(config):
    return Evaluator(linear.Linear(), config, devices.mesh())


@pytest.fixture(scope="module")
def expected(config, split):
    examples = [split[index] for index in range(VIDEOS)]
    queries = np.stack([words[0] for example in examples for words in example.words])
    pad = lambda x: np.pad(x, ((0, F - len(x)), (0, 0)))
    clips = np.stack([example.clips for example in examples])
    frames = np.stack([pad(example.frames) for example in examples])
    clip, frame = (
        linear.cosine_maxima(queries @ MATRIX, positions @ MATRIX)[0]
        for positions in (clips, frames)
    )
    return config.model.clip_weight * clip + config.model.frame_weight * frame


@pytest.mark.parametrize("resident", [False, True])
def test_scores_are_those_of_all_captions_and_videos_in_their_order(
    evaluator, split, expected, resident
):
    scores = evaluator.scores(MATRIX, evaluator.feed(split, resident))
    assert scores.shape == (CAPTIONS, VIDEOS)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6)


def test_metrics_are_those_of_the_scores_however_they_come_to_be(evaluator, split, expected):
    result = evaluator.evaluate(MATRIX, evaluator.feed(split))
    own = expected[np.arange(CAPTIONS), split.caption_video]
    ranks = 1 + np.sum(expected > own[:, None], axis=1)  # no two scores are equal
    assert (result.queries, result.videos) == (CAPTIONS, VIDEOS)
    assert result.metrics == pytest.approx(ranking.metrics(ranks))
    assert evaluator.result(expected.astype(np.float32), split) == result
