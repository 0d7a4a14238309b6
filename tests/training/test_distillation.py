"""The distillation against NumPy, its padding and its gradient, and the decay of its weight."""

import math

import jax
import numpy as np
import pytest
import tiny

from hlformer_jax.config import default
from hlformer_jax.training import distillation
from hlformer_jax.training.losses import Pairs

BATCH = tiny.batch(taught=True)
PAIRS = Pairs(BATCH.captions.video, BATCH.captions.mask, BATCH.videos.mask)
RNG = np.random.default_rng(0)
QUERIES = RNG.normal(size=(tiny.CAPTIONS, 6)).astype(np.float32)
FRAMES = RNG.normal(size=(tiny.VIDEOS, tiny.FRAMES, 6)).astype(np.float32)


def _softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


_divergence = jax.jit(distillation.divergence)


def _loss(queries=QUERIES, frames=FRAMES, batch=BATCH, pairs=PAIRS, temperature=0.2):
    teacher, mask = batch.captions.teacher, batch.videos.frame_mask
    return _divergence(queries, frames, teacher, mask, pairs, temperature)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_the_divergence_is_summed_over_captions_and_taken_over_real_frames(temperature):
    expected = 0.0
    for row, video in enumerate(BATCH.captions.video):
        real = BATCH.videos.frame_mask[video]
        frames, query = FRAMES[video][real].astype(np.float64), QUERIES[row].astype(np.float64)
        norms = np.linalg.norm(frames, axis=-1) * np.linalg.norm(query)
        student = _softmax(frames @ query / norms / temperature)
        teacher = _softmax(BATCH.captions.teacher[row][real].astype(np.float64) / temperature)
        expected += (teacher * np.log(teacher / student)).sum()
    assert float(_loss(temperature=temperature)) == pytest.approx(expected, rel=1e-5)
    # Of one frame there is nothing to say: its share is 1 for both.
    alone = BATCH.captions._replace(mask=BATCH.captions.video == 2)
    pairs = PAIRS._replace(caption_mask=alone.mask)
    assert _loss(pairs=pairs) == pytest.approx(0, abs=1e-6)


def test_padding_reaches_neither_the_loss_nor_a_gradient():
    value, gradient = jax.jit(jax.value_and_grad(_loss, (0, 1)))(QUERIES, FRAMES)
    mask = BATCH.videos.frame_mask
    queries = np.concatenate([QUERIES, np.full((2, 6), np.nan, np.float32)])
    frames = np.where(mask[..., None], FRAMES, np.float32(np.nan))
    pad = lambda x, fill: np.concatenate([x, np.full((2, *x.shape[1:]), fill, x.dtype)])
    captions = BATCH.captions._replace(teacher=pad(BATCH.captions.teacher, np.nan))
    pairs = PAIRS._replace(video=pad(PAIRS.video, 0), caption_mask=pad(PAIRS.caption_mask, False))
    batch = BATCH._replace(captions=captions)
    padded = lambda q, f: _loss(q, f, batch, pairs)
    other, others = jax.jit(jax.value_and_grad(padded, (0, 1)))(queries, frames)
    np.testing.assert_allclose(other, value, rtol=1e-6)
    np.testing.assert_allclose(others[0][: len(QUERIES)], gradient[0], rtol=1e-5, atol=1e-6)
    assert not np.any(np.asarray(others[0][len(QUERIES) :]))
    np.testing.assert_allclose(others[1], gradient[1], rtol=1e-5, atol=1e-6)
    assert np.any(np.asarray(gradient[1][mask])) and not np.any(np.asarray(gradient[1][~mask]))


def test_a_student_that_says_what_the_teacher_says_loses_nothing():
    cosine = np.einsum("qh,qfh->qf", _unit(QUERIES), _unit(FRAMES)[PAIRS.video])
    batch = BATCH._replace(captions=BATCH.captions._replace(teacher=cosine))
    of = jax.jit(jax.value_and_grad(lambda f: _loss(frames=f, batch=batch)))
    value, gradient = of(FRAMES)
    assert abs(float(value)) < 1e-5
    assert np.abs(gradient).max() < 1e-5


def _unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("epoch", [0, 1, 7, 99])
def test_the_weight_falls_as_released(epoch):
    expected = {
        "none": (0.5, 1.0),
        "exponential": (0.95, 0.95**epoch),
        "linear": (0.01, max(-0.01 * epoch + 1, 0.05)),
        "sigmoid": (800.0, 800 / (800 + math.exp(epoch * 100 / 800))),
    }
    assert set(expected) == set(distillation.DECAYS)
    for form, (rate, share) in expected.items():
        found = distillation.decay(form, np.asarray(rate, np.float32), np.asarray(epoch, np.int32))
        assert float(found) == pytest.approx(share, rel=1e-5), form
    released = default().loss
    assert (released.distillation_decay, released.distillation_rate) == ("exponential", 0.95)
