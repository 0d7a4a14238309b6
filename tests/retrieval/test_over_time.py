"""Scores of frames by those of what was pooled from them, against loops over the spans."""

import numpy as np

from hlformer_jax.data import transforms
from hlformer_jax.models.ms_sl import proposals
from hlformer_jax.retrieval import over_time


def test_clips_hold_the_best_of_their_proposals():
    starts, ends = proposals(4)
    scores = np.random.default_rng(0).normal(size=len(starts)).astype(np.float32)
    found = over_time.of_proposals(scores, 4)
    for clip in range(4):
        holding = [s for s, a, b in zip(scores, starts, ends, strict=True) if a <= clip < b]
        assert found[clip] == max(holding)


def test_every_frame_has_the_best_score_of_the_spans_it_was_pooled_into():
    rng = np.random.default_rng(0)
    for frames in (1, 3, 4, 7, 50):
        bounds, scores = transforms.boundaries(frames, 4), rng.normal(size=4)
        holding = [[] for _ in range(frames)]
        for span in range(4):
            last = frames if span == 3 else bounds[span + 1]
            for frame in range(bounds[span], max(last, bounds[span] + 1)):
                holding[frame].append(scores[span])
        expected = [max(found) for found in holding]
        np.testing.assert_allclose(over_time.of_spans(scores, bounds, frames), expected, rtol=1e-6)


def test_frames_that_were_read_as_they_are_keep_their_scores_and_padding_is_left_out():
    scores = np.random.default_rng(0).normal(size=(2, 8))
    np.testing.assert_array_equal(over_time.of_sampled_frames(scores, 5), scores[:, :5])
    np.testing.assert_array_equal(over_time.of_sampled_frames(scores, 8), scores)
    # Sixteen frames in eight spans of two; the last frame is of the last span.
    np.testing.assert_array_equal(
        over_time.of_sampled_frames(scores, 16), np.repeat(scores, 2, axis=-1)
    )


def test_clips_of_a_shorter_video_repeat_frames_and_the_best_of_them_counts():
    scores = np.asarray([0.1, 0.5, 0.2, 0.9, 0.3, 0.4])
    # Boundaries 0 0 1 2 2 2 2, halves rounded to even: clips of frames 0 0 1 2 2 2.
    np.testing.assert_array_equal(over_time.of_clips(scores, 3), [0.5, 0.2, 0.9])
