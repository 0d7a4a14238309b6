"""Mean weights of the blocks are those that the fusion gave."""

import numpy as np
import pytest

from hlformer_jax.figures import weights
from hlformer_jax.figures.drawing import NotApplicable


def test_weights_of_a_position_sum_to_one_and_are_means_over_the_videos_that_have_it(
    subject, options
):
    split = subject.split(options)
    found = weights.mean_weights(subject, options)
    for branch, length in (("clips", 4), ("frames", 8)):
        assert found[branch].shape == (2, length)
    np.testing.assert_allclose(found["clips"].sum(axis=0), 1, atol=1e-6)
    longest = split.frames_per_video.max()
    np.testing.assert_allclose(found["frames"].sum(axis=0)[:longest], 1, atol=1e-6)
    each = [next(subject.encoder.batches(split, [index])) for index in range(len(split))]
    one = lambda branch: np.stack(
        [x.intermediates[branch]["fusion"]["weights"][0][:, 0] for x in each]
    )
    np.testing.assert_allclose(found["clips"], one("clip_branch").mean(axis=0), atol=1e-5)
    have = split.frames_per_video > 5
    want = one("frame_branch")[have, :, 5].mean(axis=0)
    np.testing.assert_allclose(found["frames"][:, 5], want, atol=1e-5)
    table = weights.draw([subject], options).table
    np.testing.assert_allclose(table["weight"][:4], found["clips"][0])


def test_a_fusion_without_weights_is_named(plain, options):
    with pytest.raises(NotApplicable, match="fusion 'mean', which gives its blocks no weights"):
        weights.draw([plain], options)
