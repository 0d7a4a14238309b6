"""Transforms against the released code.

golden/data_transforms.npz holds its inputs and outputs, recorded by running the official HLFormer
code (commit 332a024) unmodified on CPU, features drawn by numpy with seed 17: for 12 frame counts
``n*/x``, the pooled clips and frames in float64, their normalised forms in float32, and boundaries.
"""

from pathlib import Path

import numpy as np
import pytest

from hlformer_jax.data.transforms import (
    boundaries,
    cut_words,
    normalise,
    pool_to_clips,
    sample_frames,
)

GOLDEN = np.load(Path(__file__).parent / "golden" / "data_transforms.npz")
COUNTS = sorted({int(key[1:].split("/")[0]) for key in GOLDEN if key.startswith("n")})


def mean_tolerance(frames: np.ndarray) -> float:
    """Two orders of summing k numbers differ by at most 2 k eps max|x| / k after the division."""
    return 2 * len(frames) * np.finfo(np.float64).eps * float(np.abs(frames).max())


def test_all_twelve_counts_are_there():
    assert COUNTS == [1, 2, 5, 31, 32, 33, 100, 127, 128, 129, 200, 777]


@pytest.mark.parametrize("count", COUNTS)
def test_clips_are_the_released_ones(count):
    frames = GOLDEN[f"n{count}/x"]
    bounds = boundaries(count, 32, np.float32)
    np.testing.assert_array_equal(bounds, GOLDEN[f"n{count}/clip_boundaries"])
    clips = pool_to_clips(frames, 32)
    assert clips.dtype == np.float64
    expected = GOLDEN[f"n{count}/clip32_f64"]
    np.testing.assert_allclose(clips, expected, rtol=0, atol=mean_tolerance(frames))
    # One rounding to float32, of numbers that agree to 1e-13: at most one unit in the last place.
    np.testing.assert_array_max_ulp(normalise(clips), GOLDEN[f"n{count}/clip32_l2norm"], 1)


@pytest.mark.parametrize("count", COUNTS)
def test_frames_are_the_released_ones(count):
    frames = GOLDEN[f"n{count}/x"]
    sampled = sample_frames(frames, 128)
    expected = GOLDEN[f"n{count}/frame128_f64"]
    assert sampled.shape == expected.shape
    np.testing.assert_allclose(sampled, expected, rtol=0, atol=mean_tolerance(frames))
    np.testing.assert_array_max_ulp(normalise(sampled), GOLDEN[f"n{count}/frame128_l2norm"], 1)
    if count > 128:
        found = boundaries(count, 128)
        np.testing.assert_array_equal(found, GOLDEN[f"n{count}/frame_boundaries"])


@pytest.mark.parametrize("key", ["", "3d"])
def test_normalisation_is_the_released_one(key):
    expected = GOLDEN["l2/out_f64" if key == "" else "l2/out3d"]
    np.testing.assert_array_max_ulp(normalise(GOLDEN[f"l2/x{key}"]), expected.astype(np.float32), 1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_normalisation_does_not_overflow_or_divide_by_zero(dtype):
    vectors = np.stack([np.zeros(8), np.full(8, 6e4), np.full(8, 1e-7)]).astype(dtype)
    norms = np.linalg.norm(normalise(vectors), axis=-1)
    small = np.linalg.norm(vectors[2].astype(np.float64))
    np.testing.assert_allclose(norms, [0.0, 1.0, small / (small + 1e-5)], rtol=1e-6)


@pytest.mark.parametrize(("count", "spans"), [(3, 32), (33, 8), (200, 128), (50, 7), (1, 1)])
def test_spans_are_means_in_order_without_the_capped_end(count, spans):
    frames = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    bounds = boundaries(count, spans, np.float32)
    expected = [
        frames[a : max(b, a + 1)].mean(0, dtype=np.float64)
        for a, b in zip(bounds[:-1], bounds[1:], strict=True)
    ]
    np.testing.assert_allclose(pool_to_clips(frames, spans), expected, rtol=1e-14, atol=1e-15)


def test_last_frame_is_lost_from_48_frames_on():
    for count, used in ((47, True), (48, False)):
        frames = np.zeros((count, 1), np.float32)
        frames[-1] = 1.0
        assert bool(pool_to_clips(frames, 32).any()) == used


def test_short_videos_keep_their_frames_as_they_are():
    frames = np.random.default_rng(0).normal(size=(128, 4)).astype(np.float16)
    assert sample_frames(frames, 128) is frames
    assert sample_frames(np.concatenate([frames, frames[:1]]), 128).shape == (128, 4)


def test_words_are_normalised_one_by_one_then_cut():
    words = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(cut_words(words, 3), normalise(words)[:3])
    np.testing.assert_array_equal(cut_words(words, 9), normalise(words))
