"""Nodes gathered from packed features, against rows picked by hand."""

import functools

import jax
import numpy as np
import pytest

from hlformer_jax import parallel
from hlformer_jax.data.packed import Features
from hlformer_jax.data.trees.nodes import draw
from hlformer_jax.data.trees.packed import NodeIndices, TreeIndices, gather_batch, gather_nodes
from hlformer_jax.typing import Subtrees

FRAMES = np.arange(20, dtype=np.float16)[:, None] * [1, 10]
WORDS = 100 + np.arange(6, dtype=np.float16)[:, None] * [1, 1, 1]
FEATURES = Features(
    clips=np.zeros((0, 1, 2), np.float16),
    frames=FRAMES.astype(np.float16),
    frame_start=np.zeros(0, np.int32),
    frame_count=np.zeros(0, np.int32),
    words=WORDS.astype(np.float16),
    word_start=np.zeros(0, np.int32),
    word_count=np.zeros(0, np.int32),
)
# Two nodes, the second of a short video and with a word less, and a padded one.
INDICES = NodeIndices(
    step=np.int32(4),
    node=np.array([3, 8, -1], np.int32),
    frames=np.array([[0, 5, 9], [12, -1, -1], [-1, -1, -1]], np.int32),
    choices=np.array([[4, 1, 6], [7, 1, 1], [1, 1, 1]], np.int32),
    words=np.array([[0, 1], [4, -1], [-1, -1]], np.int32),
    tree=np.array([2, 2, -1], np.int32),
    level=np.array([1, 0, 0], np.int32),
    position=np.array([0, 1, 0], np.int32),
)


@functools.cache
def _gather(seed):
    run = lambda features, indices: gather_nodes(features, indices, parallel.mesh(), seed)
    return jax.jit(run)


def test_rows_are_those_of_the_indices_and_padding_is_zero():
    nodes = jax.device_get(_gather(None)(FEATURES, INDICES))
    np.testing.assert_array_equal(nodes.frames[0], FRAMES[[0, 5, 9]])
    np.testing.assert_array_equal(nodes.frames[1], [FRAMES[12], [0, 0], [0, 0]])
    np.testing.assert_array_equal(nodes.words[:2, 0], WORDS[[0, 4]])
    assert not (nodes.frames[2].any() or nodes.words[2].any() or nodes.words[1, 1].any())
    np.testing.assert_array_equal(nodes.frame_mask, INDICES.frames >= 0)
    np.testing.assert_array_equal(nodes.word_mask, INDICES.words >= 0)
    np.testing.assert_array_equal(nodes.mask, [True, True, False])
    for name in ("tree", "level", "position"):
        np.testing.assert_array_equal(getattr(nodes, name), getattr(INDICES, name))
    assert nodes.frames.dtype == nodes.words.dtype == np.float16


@pytest.mark.parametrize("step", [0, 4])
def test_with_a_seed_frames_are_drawn_for_the_step_within_their_intervals(step):
    indices = INDICES._replace(step=np.int32(step))
    frames = np.asarray(_gather(7)(FEATURES, indices).frames)[:, :, 0]
    drawn = np.asarray(draw(7, indices.step, np.maximum(indices.node, 0), indices.choices))
    real = indices.frames >= 0
    np.testing.assert_array_equal(frames[real], (indices.frames + drawn)[real])
    assert np.all(drawn < indices.choices) and not frames[~real].any()


def test_another_step_or_seed_draws_other_frames():
    wide = INDICES._replace(choices=np.full((3, 3), 8, np.int32))
    frames = lambda seed, step: np.asarray(
        _gather(seed)(FEATURES, wide._replace(step=np.int32(step))).frames
    )
    one = frames(7, 0)
    np.testing.assert_array_equal(frames(7, 0), one)
    assert np.any(frames(7, 4) != one) and np.any(frames(8, 0) != one)


def test_a_batch_has_its_nodes_and_keeps_items_and_kin_as_they_were():
    subtrees = Subtrees(np.array([[1, 0, 0]], np.int32), np.array([False]), np.array([True]))
    below = np.zeros((3, 3), bool)
    below[1, 0] = True
    run = lambda features, indices: gather_batch(features, indices, parallel.mesh(), 7)
    batch = jax.jit(run)(FEATURES, TreeIndices(INDICES, subtrees, below))
    jax.tree.map(np.testing.assert_array_equal, batch.nodes, _gather(7)(FEATURES, INDICES))
    jax.tree.map(np.testing.assert_array_equal, (batch.subtrees, batch.below), (subtrees, below))
