"""Models of two branches: common behaviour, options and invariants of HLFormer, DL-DKD."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from hlformer_jax import models
from hlformer_jax.losses import retrieval
from hlformer_jax.models import hlformer, ms_sl
from hlformer_jax.models.dl_dkd import repeat_first
from hlformer_jax.retrieval import scoring
from hlformer_jax.training import prvr

# Common behaviour


CONFIG, BATCH = tiny.config(), tiny.batch()


@pytest.fixture(scope="module")
def params():
    return tiny.params(CONFIG)


@pytest.fixture(scope="module")
def encode(params):
    """Return one encoding program for all tests of this file."""
    model = models.build(CONFIG)
    return jax.jit(lambda videos: models.encode_video(model, params, videos))


@pytest.mark.slow  # it takes seconds
def test_permuted_batch_permutes_its_encodings(encode):
    order = np.array([2, 0, 1])
    straight, permuted = (
        encode(BATCH.videos),
        encode(jax.tree.map(lambda x: x[order], BATCH.videos)),
    )
    np.testing.assert_allclose(permuted.frames, straight.frames[order], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(permuted.clips, straight.clips[order], rtol=1e-5, atol=1e-6)


@pytest.mark.slow  # it takes seconds
def test_padded_frames_are_zero_and_padded_words_ignored(encode, params):
    encoded = encode(BATCH.videos)
    assert not np.any(np.asarray(encoded.frames)[~BATCH.videos.frame_mask])
    words = np.array(BATCH.captions.words)
    words[~BATCH.captions.word_mask] = 9.0
    model = models.build(CONFIG)
    query = jax.jit(lambda captions: models.encode_query(model, params, captions))
    np.testing.assert_array_equal(
        query(BATCH.captions), query(BATCH.captions._replace(words=words))
    )


@pytest.mark.slow  # it takes seconds
def test_bfloat16_stays_close_to_float32(encode, params):
    config = tiny.config(dtype="bfloat16")
    exact = encode(BATCH.videos)
    # The layer norm of Flax needs the promotion of bfloat16 to float32.
    with jax.numpy_dtype_promotion("standard"):
        assert {x.dtype for x in jax.tree.leaves(tiny.params(config))} == {jnp.dtype("float32")}
        model = models.build(config)
        encoded = jax.jit(lambda v: models.encode_video(model, params, v))(BATCH.videos)
    assert encoded.frames.dtype == jnp.float32
    # bfloat16 has 8 bits: 2^-8 per operation, on layer norm outputs of size 1. Measured: 0.012 and
    # 0.016; weights with one bit less give 0.027.
    np.testing.assert_allclose(encoded.clips, exact.clips, atol=0.02)
    np.testing.assert_allclose(encoded.frames, exact.frames, atol=0.02)


def test_proposals_are_window_means_by_length_then_start():
    clips = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    means = np.asarray(ms_sl.sliding_means(clips))
    expected = [
        clips[:, start : start + size].mean(axis=1)
        for size in range(1, 6)
        for start in range(5 - size + 1)
    ]
    np.testing.assert_allclose(means, np.stack(expected, axis=1), rtol=1e-5, atol=1e-6)


# HLFormer


# One branch compiles in half the time; other tests compare the branches.
ONE_BRANCH = {"model.glance": False}
OPTIONS = {
    "in the released data": {},
    "no gaze": {"model.gaze": False},
    "no glance": ONE_BRANCH,
    "mean fusion": ONE_BRANCH | {"model.fusion": "mean"},
    "concatenation": ONE_BRANCH | {"model.fusion": "concat"},
    "all Euclidean": ONE_BRANCH | {"model.euclidean_blocks": 3, "model.lorentz_blocks": 0},
    "all Lorentz": ONE_BRANCH | {"model.euclidean_blocks": 0, "model.lorentz_blocks": 2},
    "one width for all": ONE_BRANCH | {"model.euclidean_widths": (3.0,)},
    "printed window": ONE_BRANCH | {"model.window": "printed"},
    "corrected window": ONE_BRANCH | {"model.lorentz_window": "corrected"},
    "merge on the hyperboloid": ONE_BRANCH | {"model.head_merge": "hyperboloid"},
    "one loss term": {
        "loss.clip_nce": 0.0,
        "loss.frame_nce": 0.0,
        "loss.frame_triplet": 0.0,
        "loss.query_diversity": 0.0,
        "loss.partial_order": 0.0,
    },
}


@functools.cache
def _value_and_gradient(name):
    config, batch = tiny.config(**OPTIONS[name]), tiny.batch()
    params = tiny.params(config)

    def loss(params):
        return tiny.loss(config, params, batch)

    return params, *jax.jit(jax.value_and_grad(loss, has_aux=True))(params)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_finite_gradients_and_changes_the_loss(name):
    config = tiny.config(**OPTIONS[name])
    params, (value, terms), gradient = _value_and_gradient(name)
    assert set(terms) == set(prvr.active_terms(config, models.build(config)))
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
    values = {option: float(_value_and_gradient(option)[1][0]) for option in OPTIONS}
    equal_options = [option for option in OPTIONS if values[option] == values[name]]
    assert equal_options == [name]
    branches = {"clip_branch": config.model.glance, "frame_branch": config.model.gaze}
    for branch, on in branches.items():
        assert (branch in params) == on


@pytest.mark.slow  # it takes seconds
def test_gradients_are_finite_when_dropout_removes_points():
    config = tiny.config(**ONE_BRANCH, **{"model.dropout": 0.9, "model.input_dropout": 0.9})
    params = tiny.params(config)
    batch = tiny.batch()
    grad = jax.jit(jax.value_and_grad(lambda p, key: tiny.loss(config, p, batch, key)[0]))
    values = set()
    for seed in range(12):
        value, gradient = grad(params, jax.random.key(seed))
        values.add(float(value))
        assert np.isfinite(value)
        assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
    assert len(values) == 12  # the masks differ


@pytest.mark.slow
def test_bfloat16_changes_losses_by_rounding_alone():
    config, bfloat16_config, batch = tiny.config(), tiny.config(dtype="bfloat16"), tiny.batch()
    with jax.numpy_dtype_promotion("standard"):
        params = tiny.params(config)

        def loss(c):
            return jax.value_and_grad(lambda p: tiny.loss(c, p, batch), has_aux=True)

        (_, exact), gradient = jax.jit(loss(config))(params)
        (_, terms), rounded = jax.jit(loss(bfloat16_config))(params)
    for name, value in terms.items():
        assert value.dtype == jnp.float32
        np.testing.assert_allclose(value, exact[name], rtol=2**-8, err_msg=name)
    exact_slopes, rounded_slopes = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(g)]) for g in (gradient, rounded)
    )
    # A dozen layers forward and backward, 2^-8 each. Measured: 0.047 of the norm.
    assert np.linalg.norm(rounded_slopes - exact_slopes) < 0.1 * np.linalg.norm(exact_slopes)


def test_lift_is_limited_and_its_gradient_finite():
    c = jnp.asarray(1.0)
    tangent = jnp.full((1, 4), 1e3)

    def total(u):
        return (jnp.sum(hlformer.lift(u, c)), hlformer.lift(u, c))

    gradient, point = jax.jit(jax.grad(total, has_aux=True))(tangent)
    space = np.linalg.norm(point[0, 1:])
    np.testing.assert_allclose(space, hlformer.MAX_SINH, rtol=1e-4)
    assert np.all(np.isfinite(gradient))


@jax.jit
def _order_loss(videos, captions, c):
    """Return the partial-order loss of tangent vectors, and its gradients."""
    pairs = retrieval.Pairs(np.array([0, 0, 1, 2, 2], np.int32), np.ones(5, bool), np.ones(3, bool))

    def loss(videos, captions, c):
        lifted = hlformer.lift(videos, c), hlformer.lift(captions, c)
        return retrieval.partial_order(*lifted, c, pairs, 0.1)

    return jax.value_and_grad(loss, (0, 1, 2))(videos, captions, c)


@pytest.mark.slow  # it takes seconds
def test_lift_and_loss_are_finite_at_any_curvature():
    for size, c in itertools.product((0.0, 1e-4, 1.0, 50.0), (0.05, 1.0, 20.0)):
        rng = np.random.default_rng(2)
        tangents = [jnp.asarray(size * rng.normal(size=(n, 8)), jnp.float32) for n in (3, 5)]
        value, gradient = _order_loss(*tangents, jnp.float32(c))
        assert np.isfinite(value), (size, c)
        assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient)), (size, c)


# DL-DKD


@functools.cache
def _encoder(off=""):
    """Return a configuration, and a program that encodes the captions and videos."""
    config = tiny.case("dl_dkd")
    if off:
        config.model[off] = False
    model, params = models.build(config), tiny.params(config)

    @jax.jit
    def encode(videos):
        queries = models.encode_query(model, params, BATCH.captions)
        encoded = models.encode_video(model, params, videos)
        similar = scoring.build_scorer(config, model).similarities(
            queries, encoded, BATCH.captions.video
        )
        return queries, encoded, similar

    return config, encode


def test_padded_frames_repeat_the_first_frame():
    config, encode = _encoder()
    queries, videos, similar = encode(BATCH.videos)
    assert queries.shape == (tiny.CAPTIONS, 2 * config.model.hidden_size)
    mask = BATCH.videos.frame_mask
    for branch in videos:
        first = np.broadcast_to(np.asarray(branch)[:, :1], branch.shape)
        np.testing.assert_array_equal(np.asarray(branch)[~mask], first[~mask])
    for name, query, branch in zip(
        ("clip_cosine", "frame_cosine"),
        np.split(np.asarray(queries), 2, axis=-1),
        videos,
        strict=True,
    ):
        unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, np.asarray(branch))]
        cosines = np.einsum("qh,vlh->qvl", *unit)
        expected = np.where(mask[None], cosines, -np.inf).max(-1)  # over real frames only
        np.testing.assert_allclose(getattr(similar, name), expected, atol=1e-6)


def test_content_of_padded_frames_is_ignored():
    _, encode = _encoder()
    frames = np.where(BATCH.videos.frame_mask[..., None], BATCH.videos.frames, np.float32(9))
    for actual, changed in zip(
        jax.tree.leaves(encode(BATCH.videos)),
        jax.tree.leaves(encode(BATCH.videos._replace(frames=frames))),
        strict=True,
    ):
        np.testing.assert_allclose(actual, changed, rtol=0, atol=1e-6)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("off", ["gaze", "glance"])
def test_single_branch_has_one_sentence_embedding(off):
    config, encode = _encoder(off)
    queries, videos, similar = encode(BATCH.videos)
    assert queries.shape == (tiny.CAPTIONS, config.model.hidden_size)
    assert (videos.clips is None, videos.frames is None) == (off == "glance", off == "gaze")
    assert (similar.clip_dot is None, similar.frame_dot is None) == (off == "glance", off == "gaze")


def test_gradient_of_a_repeated_frame_goes_to_the_first():
    mask = np.array([[True, True, False, False]])
    encoded = np.array([[[2.0], [1.0], [9.0], [9.0]]], np.float32)

    def largest(x):
        return repeat_first(x, mask).max()

    assert largest(encoded) == 2
    np.testing.assert_allclose(jax.grad(largest)(encoded)[0, :, 0], [1, 0, 0, 0], atol=1e-6)


@pytest.mark.slow
def test_printed_divisor_and_curvature_are_constants():
    fixed = tiny.config(**{"model.lorentz_divisor": "fixed", "model.learned_curvature": False})
    learned, params = tiny.params(tiny.config()), tiny.params(fixed)
    constants = _names(learned) - _names(params)
    assert _names(params) < _names(learned) and any("curv" in name for name in constants)
    assert all(name.endswith(("['scale']", "['bias']", "['curv']")) for name in constants)
    # Learned parameters that equal the constants give the same encodings.
    divisor = np.sqrt(np.float32(fixed.model.lorentz_dim + 1))

    def constant(path, x):
        name = jax.tree_util.keystr(path)
        value = divisor if name.endswith("['scale']") else 0.0
        return np.full_like(x, value) if name in constants else x

    learned = jax.tree_util.tree_map_with_path(constant, learned)
    shared_params = jax.tree_util.tree_map_with_path(lambda path, _: _at(learned, path), params)
    batch, model = tiny.batch(), models.build(fixed)
    videos = models.encode_video(model, shared_params, batch.videos)
    expected = models.encode_video(models.build(tiny.config()), learned, batch.videos)
    np.testing.assert_allclose(videos.clips, expected.clips, atol=1e-5)
    queries = models.encode_query(model, shared_params, batch.captions)
    assert (
        float(models.lift(model, shared_params, videos, queries).curvature) == fixed.model.curvature
    )


def _names(tree):
    return {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}


def _at(tree, path):
    for entry in path:
        tree = tree[entry.key]
    return tree
