"""The scorer of a model gives the recorded scores, ranks and metrics of the released code."""

import jax
import numpy as np
import pytest
import released

from hlformer_jax import models
from hlformer_jax.retrieval import ranking, scorers


@pytest.fixture(scope="module")
def recorded():
    with np.load(released.GOLDEN / "hlformer_eval.npz") as file:
        return dict(file)


def test_recorded_evaluation_scores_ranks_and_metrics(recorded):
    recording = released.HLFORMER
    config, model, params = recording.config(), recording.build(), recording.params()
    from hlformer_jax.typing import Captions, Videos

    videos = Videos(
        recorded["in/clip_video_features"],
        recorded["in/frame_video_features"],
        recorded["in/videos_mask"] > 0,
        np.ones(12, bool),
    )
    captions = Captions(
        recorded["in/text_feat"],
        recorded["in/text_mask"] > 0,
        np.zeros(40, np.int32),
        np.ones(40, bool),
    )

    def run(params):
        encoded = models.encode_video(model, params, videos)
        queries = models.encode_query(model, params, captions)
        similar = scorers.build(config, model).similarities(queries, encoded, captions.video)
        weights = config.model.clip_weight, config.model.frame_weight
        return weights[0] * similar.clip_cosine + weights[1] * similar.frame_cosine

    scores = np.asarray(jax.jit(run)(params))
    # Four times the float32 noise of the recorded cosines (6.4e-7, golden/README.md).
    np.testing.assert_allclose(scores, recorded["out/score"], rtol=0, atol=2.6e-6)
    own = np.asarray([list(recorded["in/video_ids"]).index(v) for v in _own_videos(recorded)])
    rank = ranking.ranks(scores, own.astype(np.int32))
    np.testing.assert_array_equal(rank, recorded["out/rank"])
    metrics = ranking.metrics(rank)
    np.testing.assert_allclose(
        list(metrics.values()), recorded["out/metrics_r1_r5_r10_r100_sumr"], rtol=1e-6
    )


def _own_videos(recorded):
    own = recorded["in/gt_video"]
    return recorded["in/video_ids"][own] if own.dtype.kind in "iu" else own
