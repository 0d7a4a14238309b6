"""The terms as records: a name of the configuration, and the loss that it stands for."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from compiled import lorentz

from hlformer_jax.config import WEIGHTS
from hlformer_jax.retrieval.scoring import Similarities
from hlformer_jax.training import losses
from hlformer_jax.training.losses import NegativeRanks, Pairs
from hlformer_jax.training.terms import FRAME_COLUMNS, TERMS, Encoded, Negatives

RNG = np.random.default_rng(0)
SQUARE, ROWS = (RNG.uniform(-1, 1, (2, 5, n)).astype(np.float32) for n in (5, 3))
VALUES = {"margin": 0.3, "min_radius": 0.1, "diversity_margin": 0.2} | {
    "diversity_scale": 8.0,
    "diversity_gamma": 2.0,
}
QUERIES = RNG.normal(size=(5, 4)).astype(np.float32)


def _ranks(rows, columns):
    return NegativeRanks(np.zeros(rows, np.int32), np.ones(columns, np.int32))


def _encoded(columns="videos", form="pairs"):
    batch = tiny.batch()
    own = columns == "captions"
    points = lambda count: lorentz.from_space(jnp.asarray(RNG.normal(size=(count, 4)), jnp.float32))
    videos, captions = points(3), points(5)
    return Encoded(
        queries=QUERIES,
        videos=None,
        lift=lambda: (videos, captions, jnp.asarray(1.0)),
        similarities=Similarities(*ROWS, *(SQUARE if own else -ROWS)),
        pairs=Pairs(batch.captions.video, batch.captions.mask, batch.videos.mask),
        columns=FRAME_COLUMNS[columns],
        negatives=Negatives(_ranks(5, 3), _ranks(5, 5 if own else 3)),
        values=VALUES,
        diversity_form=form,
        most_captions=2,
        clip_queries=QUERIES,
        frame_mask=batch.videos.frame_mask,
    )


def test_every_weight_of_the_configuration_is_a_term_in_its_order():
    assert tuple(TERMS) == tuple(WEIGHTS)


@pytest.mark.parametrize("columns", ["videos", "captions"])
def test_each_branch_has_losses_of_its_own_similarities(columns):
    encoded = _encoded(columns)

    @jax.jit
    def both(similarities):
        """Each term, as computed and as expected."""
        pairs, (clip, clip_dot, frame, frame_dot) = encoded.pairs, similarities
        if columns == "captions":
            own = losses.each_for_itself(pairs)
            frame_nce = losses.joint_nce(frame_dot, pairs.caption_mask)
        else:
            own, frame_nce = pairs, losses.nce(frame_dot, pairs)
        expected = {
            "clip_triplet": losses.triplet(clip, pairs, encoded.negatives.clip, 0.3),
            "frame_triplet": losses.triplet(frame, own, encoded.negatives.frame, 0.3),
            "clip_nce": losses.nce(clip_dot, pairs),
            "frame_nce": frame_nce,
        }
        given = dataclasses.replace(encoded, similarities=similarities)
        return {name: (TERMS[name].compute(given), value) for name, value in expected.items()}

    for name, (value, expected) in both(encoded.similarities).items():
        np.testing.assert_allclose(value, expected, rtol=1e-6, err_msg=name)


def test_the_diversity_of_queries_has_two_forms():
    found = [TERMS["query_diversity"].compute(_encoded(form=x)) for x in ("pairs", "captions")]
    pairs = _encoded().pairs
    np.testing.assert_allclose(found[0], losses.query_diversity(QUERIES, pairs, 0.2, 8.0, 2.0))
    np.testing.assert_allclose(found[1], losses.caption_diversity(QUERIES, pairs, 0.2, 8.0))
    assert found[0] != found[1]


def test_the_partial_order_is_that_of_the_lifted_points():
    encoded = _encoded()
    expected = losses.partial_order(*encoded.lift(), encoded.pairs, 0.1)
    np.testing.assert_allclose(TERMS["partial_order"].compute(encoded), expected)
