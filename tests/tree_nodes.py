"""Nodes of action trees with features, some of them padding, and a small model for them."""

import numpy as np

from hlformer_jax.config import default
from hlformer_jax.typing import Nodes

NODES, FRAMES, WORDS, D, E = 5, 4, 6, 7, 3


def config(**options):
    """The configuration of a model of width 4."""
    small = default("hover")
    small.data.update(visual_dim=D, text_dim=E, max_words=WORDS)
    small.trees.node_frames = FRAMES
    small.model.update(hidden_size=4, hyperbolic_dim=4, num_heads=2)
    small.update_from_flattened_dict(options)
    return small


def nodes(junk=0.0):
    """Five nodes, of which the last has nothing; `junk` where frames or words are masked."""
    rng = np.random.default_rng(0)
    frame_mask = np.arange(FRAMES)[None] < np.array([4, 2, 1, 3, 0])[:, None]
    word_mask = np.arange(WORDS)[None] < np.array([6, 1, 3, 2, 0])[:, None]
    frames = np.where(frame_mask[..., None], rng.normal(size=(NODES, FRAMES, D)), junk)
    words = np.where(word_mask[..., None], rng.normal(size=(NODES, WORDS, E)), junk)
    number = np.zeros(NODES, np.int32)
    return Nodes(
        *(frames.astype(np.float32), frame_mask, words.astype(np.float32), word_mask),
        *(np.arange(NODES) < 4, number, number, number),
    )
