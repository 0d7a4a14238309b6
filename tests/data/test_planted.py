"""What corpora with planted moments share: the same maps for the same seed, and what they draw."""

import numpy as np
import pytest

from hlformer_jax.data.planted import CONCEPTS, Encoder
from hlformer_jax.data.synthetic import Corpus, SyntheticSource
from hlformer_jax.data.trees.synthetic import SyntheticTrees, TreeCorpus


@pytest.mark.parametrize(
    ("source", "fingerprint"),
    [
        (SyntheticSource(Corpus()), "a6452207b7c9"),
        (SyntheticTrees(TreeCorpus()), "e5545db943db"),
    ],
)
def test_fingerprints_are_those_under_which_sets_were_prepared(source, fingerprint):
    assert source.fingerprint() == fingerprint


def test_a_frame_is_the_map_of_its_concepts_with_a_signal_of_unit_size():
    corpus = Corpus(noise=0.0, style=0.0)
    encoder, rng = Encoder(corpus), np.random.default_rng(0)
    latents = np.concatenate([encoder.latent(np.array([k, k + 1]), 1, rng) for k in range(30)])
    frames = encoder.render(latents, rng)
    assert 0.8 < frames.std() < 1.2
    for latent, frame in zip(latents, frames, strict=True):
        wanted = np.einsum(
            "h,hd->d", np.tanh(np.einsum("l,lh->h", latent, encoder.first)), encoder.second
        )
        # A sum of 128 products of about 0.1 rounds by 1e-15 even where it is 0.
        np.testing.assert_allclose(frame, wanted, rtol=1e-12, atol=1e-14)


def test_a_caption_names_its_concepts_and_its_features_are_near_its_words():
    encoder = Encoder(Corpus())
    words, features = encoder.caption(np.array([3, 5, 8]), np.random.default_rng(1))
    assert {CONCEPTS[k] for k in (3, 5, 8)} == set(words) & set(CONCEPTS)
    away = features - np.stack([encoder.words[word] for word in words])
    assert 0.15 < away.std() < 0.25
