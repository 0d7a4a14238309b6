"""The objective: a weighted sum of its terms, whose negatives and phases follow seed and step."""

import flax.struct
import jax
import numpy as np
import pytest
import tiny
from linear import Linear, cosine_maxima

from hlformer_jax import models
from hlformer_jax.config import WEIGHTS, ConfigError
from hlformer_jax.training import losses, objective
from hlformer_jax.training.losses import Pairs
from hlformer_jax.training.objective import draw_negatives
from hlformer_jax.training.terms import FRAME_COLUMNS

WEIGHTED = {
    "loss.clip_triplet": 0.5,
    "loss.frame_triplet": 0.25,
    "loss.clip_nce": 2.0,
    "loss.frame_nce": 3.0,
    "loss.query_diversity": 4.0,
    "loss.partial_order": 0.0,
}
LOSS = jax.jit(lambda loss, *inputs: loss(*inputs)[0])
EVALUATE = jax.jit(lambda loss, *inputs: loss.evaluate(*inputs))
PARAMS = np.random.default_rng(1).normal(size=(tiny.WIDTH, 4)).astype(np.float32)


def _build(steps_per_epoch=1, **options):
    config = tiny.config(**{**WEIGHTED, **options})
    return objective.build(config, Linear(), steps_per_epoch, 2)


def _expected_terms(batch, negatives):
    """The terms, of cosines and dot products in NumPy."""
    queries = batch.captions.words[:, 0] @ PARAMS
    clip_cosine, clip_dot = cosine_maxima(queries, batch.videos.clips @ PARAMS)
    frame_cosine, frame_dot = cosine_maxima(queries, batch.videos.frames @ PARAMS)
    pairs = Pairs(batch.captions.video, batch.captions.mask, batch.videos.mask)
    triplet, nce = jax.jit(losses.triplet), jax.jit(losses.nce)
    return {
        "clip_triplet": triplet(clip_cosine, pairs, negatives.clip, 0.2),
        "frame_triplet": triplet(frame_cosine, pairs, negatives.frame, 0.2),
        "clip_nce": nce(clip_dot, pairs),
        "frame_nce": nce(frame_dot, pairs),
        "query_diversity": jax.jit(losses.query_diversity)(queries, pairs, 0.2, 32.0, 1.0),
    }


def test_the_loss_is_the_weighted_sum_of_its_terms():
    batch = tiny.batch()
    negatives = draw_negatives(jax.random.key(0), batch, np.asarray(False), 20)
    total, terms = EVALUATE(_build(), PARAMS, batch, negatives)
    expected = _expected_terms(batch, negatives)
    assert _build().terms == tuple(name for name in WEIGHTS if name in terms)
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(terms[name], value, rtol=1e-5, err_msg=name)
    weighted = sum(WEIGHTED[f"loss.{name}"] * float(value) for name, value in expected.items())
    np.testing.assert_allclose(total, weighted, rtol=1e-5)


@pytest.mark.parametrize("field", ["margin", "clip_nce", "diversity_gamma", "diversity_scale"])
def test_every_number_reaches_the_loss_as_an_argument(field):
    loss, other = _build(), _build(**{f"loss.{field}": 0.6})
    assert jax.tree.structure(loss) == jax.tree.structure(other)  # one program serves both
    inputs = PARAMS, tiny.batch(), np.int32(0)
    assert LOSS(loss, *inputs) != LOSS(other, *inputs)


def test_the_hard_phase_begins_with_its_epoch_and_the_negatives_follow_seed_and_step():
    batch, phases = tiny.batch(), {"loss.hard_negative_epoch": 2, "loss.hard_pool_size": 1}
    losses_of = {}
    for seed in (0, 1):
        loss = _build(steps_per_epoch=3, seed=seed, **phases)
        losses_of[seed] = [float(LOSS(loss, PARAMS, batch, np.int32(step))) for step in range(9)]
    hardest = draw_negatives(jax.random.key(0), batch, np.asarray(True), 1)
    assert not any(np.any(rank) for rank in jax.tree.leaves(hardest))
    hard = float(EVALUATE(_build(), PARAMS, batch, hardest)[0])
    for found in losses_of.values():
        np.testing.assert_allclose(found[6:], hard, rtol=1e-6)  # the hardest of all, no choice
        assert len(set(found[:6])) > 1
        assert max(found[:6]) <= hard * (1 + 1e-6)
    assert losses_of[0][:6] != losses_of[1][:6]


@flax.struct.dataclass
class Dropping(Linear):
    """A `Linear` whose captions go through dropout."""

    def apply(self, params, inputs, *_, method, rngs):
        encoded = super().apply(params, inputs, method=method, rngs=rngs)
        if method != "encode_query" or rngs is None:
            return encoded
        return encoded * jax.random.bernoulli(rngs["dropout"], 0.7, encoded.shape).astype(
            encoded.dtype
        )


def test_captions_that_are_encoded_twice_have_two_masks_of_dropout():
    batch = tiny.batch()
    negatives = draw_negatives(jax.random.key(0), batch, np.asarray(False), 20)

    def terms(twice, key):
        config = tiny.config(**{**WEIGHTED, "loss.encode_twice": twice})
        built = objective.build(config, Dropping(), 1, 2)
        return EVALUATE(built, PARAMS, batch, negatives, key)[1]

    once, twice = (terms(flag, jax.random.key(1)) for flag in (False, True))
    differing = {name for name in once if once[name] != twice[name]}
    assert differing == {"query_diversity"}
    assert terms(False, None) == terms(True, None)


def test_the_branches_draw_their_negatives_apart():
    batch = tiny.batch()
    draws = [draw_negatives(jax.random.key(k), batch, np.asarray(False), 20) for k in range(8)]
    assert any(not np.array_equal(draw.clip.video, draw.frame.video) for draw in draws)
    for draw in draws:
        assert draw.clip.video.max() < tiny.VIDEOS - 1
        # Captions of other videos: 5 less those of the video's own.
        assert np.all(np.asarray(draw.clip.caption) < np.array([3, 4, 3]))


def test_where_every_caption_has_a_column_both_its_negatives_come_from_the_pool():
    batch, columns = tiny.batch(), FRAME_COLUMNS["captions"]
    draws = [
        draw_negatives(jax.random.key(k), batch, np.asarray(True), 2, columns) for k in range(16)
    ]
    frame = np.stack([draw.frame.caption for draw in draws])
    assert frame.shape[1:] == (tiny.CAPTIONS,)
    assert set(frame.ravel()) == {0, 1}
    assert not np.any([draw.clip.caption for draw in draws])  # of a video: the hardest


@pytest.mark.parametrize(
    ("options", "terms"),
    [
        ({}, "clip_triplet frame_triplet clip_nce frame_nce query_diversity partial_order"),
        ({"model.glance": False}, "frame_triplet frame_nce query_diversity partial_order"),
        ({"model.gaze": False, "loss.clip_nce": 0.0}, "clip_triplet query_diversity partial_order"),
    ],
)
def test_a_term_is_active_where_it_has_a_weight_and_its_branch_is_on(options, terms):
    config = tiny.config(**options)
    assert objective.active_terms(config, models.build(config)) == tuple(terms.split())


TAUGHT = {
    "model.name": "dl_dkd",
    "model.lorentz_blocks": 0,
    "loss.partial_order": 0.0,
    "loss.distillation": 0.1,
}
NOTHING = {f"loss.{name}": 0.0 for name in WEIGHTS}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss.optimal_matching": 0.1, "model.glance": False}, "glance is off: set it to 0"),
        (
            {"model.name": "gmmformer", "model.lorentz_blocks": 0},
            "partial_order is 0.001, but gmmformer has no hyperbolic lift",
        ),
        (NOTHING, "nothing to train"),
        ({**NOTHING, "model.glance": False, "loss.clip_nce": 1.0}, "nothing to train"),
        ({"loss.distillation": 0.1}, "distillation is 0.1, but hlformer has no branch .*dl_dkd"),
        (TAUGHT | {"model.glance": False}, "glance, the branch that inherits, is off"),
        (TAUGHT, "distillation is 0.1, but config.data.teacher_dim is 0, .*set it to their width"),
    ],
    ids=["matching", "order", "weights", "branch", "student", "inheritance", "teacher"],
)
def test_losses_that_make_no_sense_for_a_model_are_refused(options, message):
    config = tiny.config(**options)
    model = models.build(config)  # to evaluate it is fine
    with pytest.raises(ConfigError, match=message):
        objective.build(config, model)
