"""MS-SL: its proposals, in the order of the released code."""

import numpy as np

from hlformer_jax.models import ms_sl


def test_proposals_are_the_means_of_all_windows():
    clips = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    ours = np.asarray(ms_sl.sliding_means(clips))
    expected = [
        clips[:, start : start + size].mean(axis=1)
        for size in range(1, 6)
        for start in range(5 - size + 1)
    ]
    np.testing.assert_allclose(ours, np.stack(expected, axis=1), rtol=1e-5, atol=1e-6)


def test_proposals_are_windows_by_their_length_then_their_start():
    starts, ends = ms_sl.proposals(3)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [
        (0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 3),
    ]  # fmt: skip
