"""The linear baseline: it finds what is linear in the means, and nothing else."""

import numpy as np
import pytest

from hlformer_jax.data.split import Example
from hlformer_jax.retrieval.baseline import mean_pooled_scores


class _Split(list):
    """Videos with the two attributes of `pipeline.Split` that the baseline reads."""

    def __init__(self, examples):
        super().__init__(examples)
        counts = [len(example.words) for example in examples]
        self.caption_video = np.repeat(np.arange(len(examples)), counts)


def _split(rng, videos, weights, linear):
    examples = []
    for _ in range(videos):
        words = tuple(rng.normal(size=(3, weights.shape[0])) for _ in range(2))
        mean = np.mean([w.mean(axis=0) for w in words], axis=0) @ weights
        if not linear:
            mean = rng.normal(size=mean.shape)
        noise = rng.normal(size=(5, len(mean)))
        frames = mean + noise - noise.mean(axis=0)  # the mean alone tells the video
        examples.append(Example(frames[:1], frames, words))
    return _Split(examples)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("linear", [True, False])
def test_it_retrieves_by_a_linear_relation_of_the_means_and_by_chance_without_one(linear):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(6, 8))
    train, val, test = (_split(rng, n, weights, linear) for n in (200, 20, 30))
    scores = mean_pooled_scores(train, val, test)
    assert scores.shape == (60, 30)
    assert np.abs(scores).max() <= 1 + 1e-9
    own = scores[np.arange(60), test.caption_video]
    top5 = np.mean(np.sum(scores > own[:, None], axis=1) < 5)
    if linear:
        assert top5 > 0.7
    else:
        assert top5 < 0.35  # chance is 5 of 30
