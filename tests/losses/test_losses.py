"""Losses of captions and videos against loops in NumPy, and under padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import tiny
from derivatives import check_curvature
from jax.test_util import check_grads

from hlformer_jax.losses import retrieval, trees
from hlformer_jax.losses.retrieval import NegativeRanks, Pairs
from hlformer_jax.ops import lorentz

COUNTS = (3, 1, 2, 4)  # captions of each video


def _pairs(extra_videos=0, extra_captions=0):
    video = np.repeat(np.arange(len(COUNTS)), COUNTS)
    captions, videos = len(video) + extra_captions, len(COUNTS) + extra_videos
    return Pairs(
        np.pad(video, (0, extra_captions)).astype(np.int32),
        np.arange(captions) < len(video),
        np.arange(videos) < len(COUNTS),
    )


def _scores(pairs, seed=0, filler=0.0):
    scores = np.random.default_rng(seed).uniform(-1, 1, (sum(COUNTS), len(COUNTS)))
    full = np.full((len(pairs.video), len(pairs.video_mask)), filler)
    full[: scores.shape[0], : scores.shape[1]] = scores
    return full


def _ranks(pairs, seed=1):
    rng = np.random.default_rng(seed)
    video = rng.integers(0, len(COUNTS) - 1, sum(COUNTS))
    caption = np.array([rng.integers(0, sum(COUNTS) - count) for count in COUNTS])

    def pad(x, size):
        return np.pad(x, (0, size - len(x))).astype(np.int32)

    return NegativeRanks(pad(video, len(pairs.video)), pad(caption, len(pairs.video_mask)))


def _numpy_triplet(scores, pairs, ranks, margin):
    text = []
    for q, target in enumerate(pairs.video):
        negatives = sorted((scores[q, v] for v in range(len(COUNTS)) if v != target), reverse=True)
        text.append(max(0, margin + negatives[ranks.video[q]] - scores[q, target]))
    video = []
    for v in range(len(COUNTS)):
        positives = [scores[q, v] for q in range(len(pairs.video)) if pairs.video[q] == v]
        negatives = [scores[q, v] for q in range(len(pairs.video)) if pairs.video[q] != v]
        negative = sorted(negatives, reverse=True)[ranks.caption[v]]
        video.append(max(0, margin + negative - np.mean(positives)))
    return np.mean(text) + np.mean(video)


def _numpy_nce(scores, pairs):
    text = [
        np.log(np.sum(np.exp(row))) - row[target]
        for row, target in zip(scores, pairs.video, strict=True)
    ]
    video = []
    for v, column in enumerate(scores.T):
        positives = column[pairs.video == v]
        video.append(np.log(np.sum(np.exp(column))) - np.log(np.sum(np.exp(positives))))
    return np.mean(text) + np.mean(video)


def _unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _numpy_diversity(queries, pairs, margin, scale, gamma):
    total = 0.0
    for i in range(len(queries)):
        for j in range(len(queries)):
            if i != j and pairs.video[i] == pairs.video[j]:
                norms = np.linalg.norm(queries[i]) * np.linalg.norm(queries[j])
                cosine = queries[i] @ queries[j] / norms
                total += (1 + cosine) ** gamma * np.log1p(np.exp(scale * (cosine + margin)))
    return total / len(queries)


def _numpy_caption_diversity(queries, pairs, margin, scale):
    unit = _unit(queries)
    total = 0.0
    for i in range(len(queries)):
        siblings = [j for j in range(len(queries)) if j != i and pairs.video[i] == pairs.video[j]]
        total += np.log1p(sum(np.exp(scale * (unit[i] @ unit[j] + margin)) for j in siblings))
    return total / len(queries)


def _numpy_joint_nce(scores, mask):
    return np.mean(
        [
            np.log(np.exp(row).sum() + np.exp(scores[:, q]).sum()) - row[q]
            for q, row in enumerate(scores)
        ]
    )


def test_losses_equal_loops_over_videos_and_captions(float64):
    pairs, rng = _pairs(), np.random.default_rng(2)
    scores, ranks, queries = _scores(pairs), _ranks(pairs), rng.normal(size=(sum(COUNTS), 6))
    square = rng.normal(size=(7, 7)), np.ones(7, bool)
    diversity = retrieval.query_diversity, _numpy_diversity
    for loss, expected, arguments, rtol in (
        (retrieval.triplet, _numpy_triplet, (scores, pairs, ranks, 0.3), 1e-13),
        (retrieval.nce, _numpy_nce, (5 * scores, pairs), 1e-13),
        (retrieval.joint_nce, _numpy_joint_nce, square, 1e-13),
        *((*diversity, (queries, pairs, 0.15, 32.0, gamma), 1e-12) for gamma in (0.0, 1.0, 2.5)),
        (
            retrieval.caption_diversity,
            _numpy_caption_diversity,
            (queries, pairs, 0.15, 32.0),
            1e-12,
        ),
    ):
        np.testing.assert_allclose(jax.jit(loss)(*arguments), expected(*arguments), rtol=rtol)


def _numpy_matching(queries, clips, pairs, per_video):
    distances = []
    for v, count in enumerate(COUNTS):
        if count > 1:
            cosine = _unit(queries[pairs.video == v]) @ _unit(clips[v]).T
            distances.append(1 - cosine[scipy.optimize.linear_sum_assignment(-cosine)])
    return np.mean([np.mean(x) for x in distances] if per_video else np.concatenate(distances))


# Fewer clips than captions, and more; the released and the printed mean (GMMFormer v2 eq. 7).
@pytest.mark.parametrize(
    ("clips", "max_captions", "per_video"),
    [(1, 4, False), (3, None, False), (5, None, True), (9, 4, False)],
)
def test_optimal_matching_equals_scipy_video_by_video(float64, clips, max_captions, per_video):
    pairs = _pairs()
    loss = jax.jit(lambda q, c: retrieval.optimal_matching(q, c, pairs, max_captions, per_video))
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        queries = rng.normal(size=(sum(COUNTS), 5))
        encoded = rng.normal(size=(len(COUNTS), clips, 5))
        if seed:  # similar captions, for which the greedy assignment is not optimal
            queries[:3] = queries[0] + 0.1 * queries[:3]
        expected = _numpy_matching(queries, encoded, pairs, per_video)
        np.testing.assert_allclose(loss(queries, encoded), expected, rtol=1e-12)


def test_optimal_matching_ignores_the_order_of_captions(float64):
    pairs = _pairs()
    rng = np.random.default_rng(0)
    queries, clips = rng.normal(size=(sum(COUNTS), 5)), rng.normal(size=(len(COUNTS), 6, 5))
    order = rng.permutation(sum(COUNTS))
    mixed = pairs._replace(video=pairs.video[order])
    loss = jax.jit(retrieval.optimal_matching)
    np.testing.assert_allclose(
        loss(queries[order], clips, mixed), loss(queries, clips, pairs), rtol=1e-13
    )


def test_optimal_matching_without_two_captions_or_with_nan():
    pairs = Pairs(np.arange(3, dtype=np.int32), np.ones(3, bool), np.ones(3, bool))
    rng = np.random.default_rng(0)
    queries, clips = (rng.normal(size=s).astype(np.float32) for s in ((3, 4), (3, 5, 4)))
    loss = jax.jit(jax.value_and_grad(retrieval.optimal_matching))
    value, gradient = loss(queries, clips, pairs)
    assert value == 0
    assert not np.any(gradient)
    batched = pairs._replace(video=np.zeros(3, np.int32))
    broken = np.where(np.arange(3)[:, None] == 1, np.nan, queries).astype(np.float32)
    assert np.isnan(loss(broken, clips, batched)[0])  # terminates with NaN


def _terms(pairs, filler):
    """Return every loss as a function of arrays of the padded size."""
    rng = np.random.default_rng(3)

    def grow(x, size):
        return np.concatenate([x, np.full((size - len(x), *x.shape[1:]), filler)])

    scores, ranks = _scores(pairs, filler=filler), _ranks(pairs)
    queries = grow(rng.normal(size=(sum(COUNTS), 5)), len(pairs.video))
    texts = grow(rng.normal(size=(sum(COUNTS), 4)), len(pairs.video))
    videos = grow(rng.normal(size=(len(COUNTS), 4)), len(pairs.video_mask))
    teacher = grow(rng.normal(size=(sum(COUNTS), 3)), len(pairs.video))
    frame_mask = np.ones((len(pairs.video_mask), 3), bool)
    c = jnp.asarray(1.3)

    def cone(v, t):
        return retrieval.partial_order(
            lorentz.exp_map0(v, c), lorentz.exp_map0(t, c), c, pairs, 0.1
        )

    return {
        "triplet": (lambda s: retrieval.triplet(s, pairs, ranks, 0.3), (scores,)),
        "nce": (lambda s: retrieval.nce(s, pairs), (scores,)),
        "diversity": (lambda q: retrieval.query_diversity(q, pairs, 0.2, 32.0, 1.0), (queries,)),
        "caption diversity": (
            lambda q: retrieval.caption_diversity(q, pairs, 0.2, 32.0),
            (queries,),
        ),
        "joint nce": (
            lambda q: retrieval.joint_nce(jnp.einsum("ih,jh->ij", q, q), pairs.caption_mask),
            (queries,),
        ),
        "matching": (
            lambda q, c: retrieval.optimal_matching(q, c, pairs, 4),
            (queries, grow(rng.normal(size=(len(COUNTS), 6, 5)), len(pairs.video_mask))),
        ),
        "partial_order": (cone, (videos, texts)),
        "printed diversity": (
            lambda q: retrieval.query_diversity(q, pairs, 0.2, 32.0, 1.5, per_video=True),
            (queries,),
        ),
        "printed matching": (
            lambda q, c: retrieval.optimal_matching(q, c, pairs, per_video=True),
            (queries, grow(rng.normal(size=(len(COUNTS), 6, 5)), len(pairs.video_mask))),
        ),
        "distillation": (
            lambda q, f: retrieval.distillation(q, f, teacher, frame_mask, pairs, 0.4),
            (queries, grow(rng.normal(size=(len(COUNTS), 3, 5)), len(pairs.video_mask))),
        ),
    }


TERMS = tuple(_terms(_pairs(), 0.0))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("name", TERMS)
def test_padding_changes_no_loss_and_no_gradient(float64, name):
    function, arguments = _terms(_pairs(), 0.0)[name]
    positions = tuple(range(len(arguments)))
    value, gradient = jax.jit(jax.value_and_grad(function, positions))(*arguments)
    padded = _pairs(extra_videos=3, extra_captions=7)
    run = jax.jit(jax.value_and_grad(_terms(padded, 0.0)[name][0], positions))
    # "joint nce" gets scores that are computed outside the loss.
    for filler in (0.0, 3.0) if name == "joint nce" else (0.0, 3.0, np.nan):
        padded_value, padded_gradient = run(*_terms(padded, filler)[name][1])
        np.testing.assert_allclose(padded_value, value, rtol=1e-14)
        for small, large in zip(gradient, padded_gradient, strict=True):
            inside = tuple(slice(size) for size in small.shape)
            np.testing.assert_allclose(large[inside], small, rtol=1e-12, atol=1e-15)
            outside = np.array(large)
            outside[inside] = 0
            # The maps that produce rows of NaN multiply their gradient by NaN, as in partial_order.
            assert (np.isnan(filler) and name == "partial_order") or not outside.any()


@pytest.mark.parametrize("name", TERMS)
def test_nan_in_a_real_caption_reaches_the_loss(float64, name):
    function, arguments = _terms(_pairs(), 0.0)[name]
    compiled = jax.jit(function)
    for i, argument in enumerate(arguments):
        broken = np.array(argument)
        broken[0] = np.nan  # the first caption, or the first video
        assert np.isnan(compiled(*arguments[:i], broken, *arguments[i + 1 :]))


def test_padded_nan_does_not_reach_the_curvature(float64):
    pairs = _pairs(extra_videos=1, extra_captions=2)
    rng = np.random.default_rng(0)
    videos, captions = (
        np.where(mask[:, None], rng.normal(size=(len(mask), 4)), np.nan)
        for mask in (pairs.video_mask, pairs.caption_mask)
    )
    # Padded captions may name a video that does not exist.
    pairs = pairs._replace(video=np.where(pairs.caption_mask, pairs.video, len(COUNTS)))

    def loss(c):
        return retrieval.partial_order(videos, captions, c, pairs, 0.1)

    assert np.isfinite(jax.jit(jax.grad(loss))(jnp.asarray(1.3)))


@pytest.mark.parametrize(
    "name",
    [x if x == "nce" else pytest.param(x, marks=pytest.mark.slow) for x in TERMS],
)
def test_numerical_gradients(float64, name):
    function, arguments = _terms(_pairs(), 0.0)[name]
    if name == "triplet":  # its sort has no second derivative
        check_grads(jax.jit(function), arguments, order=1, modes=["rev"], rtol=1e-4, atol=1e-6)
    else:
        check_curvature(function, arguments, atol=1e-6)


@pytest.mark.parametrize("hard", [False, True])
def test_drawn_ranks_cover_exactly_the_negatives(hard):
    pairs = _pairs(extra_videos=2, extra_captions=3)
    draw = jax.jit(lambda key: retrieval.draw_negative_ranks(key, pairs, hard, 2))
    drawn = [draw(jax.random.key(seed)) for seed in range(60)]
    video = np.stack([ranks.video for ranks in drawn])[:, : sum(COUNTS)]
    caption = np.stack([ranks.caption for ranks in drawn])[:, : len(COUNTS)]
    num_negatives = len(COUNTS) - 1
    assert set(video.ravel()) == set(range(2 if hard else num_negatives))
    for v, count in enumerate(COUNTS):
        possible = 1 if hard else sum(COUNTS) - count
        assert caption[:, v].max() <= possible - 1
        assert len(set(caption[:, v])) >= min(possible, 4)


def test_negatives_of_lists_are_drawn():
    lists = Pairs(*(field.tolist() for field in _pairs(1, 1)))
    drawn, expected = (
        retrieval.draw_negative_ranks(jax.random.key(0), pairs, False, 2)
        for pairs in (lists, _pairs(1, 1))
    )
    np.testing.assert_array_equal(drawn.video, expected.video)
    np.testing.assert_array_equal(drawn.caption, expected.caption)


def test_draws_do_not_depend_on_the_capacity():
    draw = jax.jit(lambda key, pairs: retrieval.draw_negative_ranks(key, pairs, False, 2))
    small, large = (draw(jax.random.key(5), pairs) for pairs in (_pairs(), _pairs(2, 9)))
    np.testing.assert_array_equal(large.video[: sum(COUNTS)], small.video)
    np.testing.assert_array_equal(large.caption[: len(COUNTS)], small.caption)


@pytest.mark.parametrize("captions", [1, 3])
def test_batch_of_one_video_has_finite_losses(captions):
    pairs = Pairs(np.zeros(captions, np.int32), np.ones(captions, bool), np.ones(1, bool))
    scores = np.linspace(0, 1, captions, dtype=np.float32)[:, None]

    @jax.jit
    def both(key, scores):
        ranks = retrieval.draw_negative_ranks(key, pairs, False, 20)
        terms = lambda s: retrieval.triplet(s, pairs, ranks, 0.2), lambda s: retrieval.nce(s, pairs)
        return [jax.value_and_grad(term)(scores) for term in terms]

    (value, gradient), nce = both(jax.random.key(0), scores)
    assert value == 0
    assert not np.any(gradient)
    value, gradient = nce
    np.testing.assert_allclose(value, 0, atol=1e-6)
    assert np.all(np.isfinite(gradient))


def test_diversity_is_finite_for_opposite_and_equal_captions():
    pairs = Pairs(np.zeros(4, np.int32), np.ones(4, bool), np.ones(1, bool))
    queries = np.array([[1, 0], [-1, 0], [1, 0], [0, 0]], np.float32)
    for gamma in (0.0, 0.5, 1.0):

        def loss(q, g=gamma):
            return retrieval.query_diversity(q, pairs, 0.2, 32.0, g)

        value, gradient = jax.jit(jax.value_and_grad(loss))(queries)
        assert np.isfinite(value)
        assert np.all(np.isfinite(gradient))


def test_diversity_with_gamma_zero_counts_opposite_captions():
    pairs = Pairs(np.zeros(2, np.int32), np.ones(2, bool), np.ones(1, bool))
    opposite = np.array([[1, 0], [-1, 0]], np.float32)
    for gamma, factor in ((0.0, 1), (np.float32(0), 1), (0.5, 0)):
        value = retrieval.query_diversity(opposite, pairs, 0.2, 1.0, gamma)
        np.testing.assert_allclose(value, factor * np.log1p(np.exp(-0.8)), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
def test_captions_may_name_videos_by_narrow_integers(dtype):
    video, videos = np.array([100, 0], dtype), np.ones(300, bool)
    for column in (video, jnp.asarray(video)):
        assert Pairs(column, np.ones(2, bool), videos).positives()[0, 100]


BATCH = tiny.batch(with_teacher=True)
PAIRS = Pairs(BATCH.captions.video, BATCH.captions.mask, BATCH.videos.mask)
RNG = np.random.default_rng(0)
QUERIES = RNG.normal(size=(tiny.CAPTIONS, 6)).astype(np.float32)
FRAMES = RNG.normal(size=(tiny.VIDEOS, tiny.FRAMES, 6)).astype(np.float32)


def _softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


_divergence = jax.jit(retrieval.distillation)


def _loss(queries=QUERIES, frames=FRAMES, batch=BATCH, pairs=PAIRS, temperature=0.2):
    teacher, mask = batch.captions.teacher, batch.videos.frame_mask
    return _divergence(queries, frames, teacher, mask, pairs, temperature)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_divergence_is_over_captions_and_real_frames(temperature):
    expected = 0.0
    for row, video in enumerate(BATCH.captions.video):
        real = BATCH.videos.frame_mask[video]
        frames, query = FRAMES[video][real].astype(np.float64), QUERIES[row].astype(np.float64)
        norms = np.linalg.norm(frames, axis=-1) * np.linalg.norm(query)
        student = _softmax(frames @ query / norms / temperature)
        teacher = _softmax(BATCH.captions.teacher[row][real].astype(np.float64) / temperature)
        expected += (teacher * np.log(teacher / student)).sum()
    assert float(_loss(temperature=temperature)) == pytest.approx(expected, rel=1e-5)
    # With one frame both distributions are 1.
    single = BATCH.captions._replace(mask=BATCH.captions.video == 2)
    pairs = PAIRS._replace(caption_mask=single.mask)
    assert _loss(pairs=pairs) == pytest.approx(0, abs=1e-6)


def test_distillation_ignores_padded_captions_and_frames():
    value, gradient = jax.jit(jax.value_and_grad(_loss, (0, 1)))(QUERIES, FRAMES)
    mask = BATCH.videos.frame_mask
    queries = np.concatenate([QUERIES, np.full((2, 6), np.nan, np.float32)])
    frames = np.where(mask[..., None], FRAMES, np.float32(np.nan))

    def pad(x, fill):
        return np.concatenate([x, np.full((2, *x.shape[1:]), fill, x.dtype)])

    captions = BATCH.captions._replace(teacher=pad(BATCH.captions.teacher, np.nan))
    pairs = PAIRS._replace(video=pad(PAIRS.video, 0), caption_mask=pad(PAIRS.caption_mask, False))
    batch = BATCH._replace(captions=captions)

    def padded_loss(q, f):
        return _loss(q, f, batch, pairs)

    padded_value, padded_gradient = jax.jit(jax.value_and_grad(padded_loss, (0, 1)))(
        queries, frames
    )
    np.testing.assert_allclose(padded_value, value, rtol=1e-6)
    np.testing.assert_allclose(
        padded_gradient[0][: len(QUERIES)], gradient[0], rtol=1e-5, atol=1e-6
    )
    assert not np.any(np.asarray(padded_gradient[0][len(QUERIES) :]))
    np.testing.assert_allclose(padded_gradient[1], gradient[1], rtol=1e-5, atol=1e-6)
    assert np.any(np.asarray(gradient[1][mask])) and not np.any(np.asarray(gradient[1][~mask]))


def test_student_equal_to_teacher_has_no_loss():
    cosine = np.einsum("qh,qfh->qf", _unit(QUERIES), _unit(FRAMES)[PAIRS.video])
    batch = BATCH._replace(captions=BATCH.captions._replace(teacher=cosine))
    evaluate = jax.jit(jax.value_and_grad(lambda f: _loss(frames=f, batch=batch)))
    value, gradient = evaluate(FRAMES)
    assert abs(float(value)) < 1e-5
    assert np.abs(gradient).max() < 1e-5


def test_call_without_pairs_names_the_argument():
    with pytest.raises(TypeError, match="pairs"):
        retrieval.nce(_scores(_pairs()))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "function",
    [
        lambda pairs, x: retrieval.nce(x[:, :3], pairs),
        lambda pairs, x: retrieval.nce(x, pairs._replace(caption_mask=pairs.caption_mask[:1])),
        lambda pairs, x: retrieval.triplet(x[:, :3], pairs, _ranks(pairs), 0.2),
        lambda pairs, x: retrieval.joint_nce(x, pairs.caption_mask[:8]),
        lambda pairs, x: retrieval.query_diversity(x[:8], pairs, 0.2, 32, 2),
        lambda pairs, x: retrieval.optimal_matching(x, np.ones((3, 2, 4)), pairs),
    ],
)
def test_arrays_of_other_shapes_are_refused(function):
    pairs = _pairs()
    with pytest.raises(ValueError, match="must have shape"):
        function(pairs, np.ones((len(pairs.video), 4)))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "loss",
    [
        lambda pairs, q, v: retrieval.optimal_matching(q[:1], v[:, None], pairs),
        lambda pairs, q, v: retrieval.partial_order(v, q[:1], jnp.asarray(1.0), pairs, 0.1),
        lambda pairs, q, v: retrieval.partial_order(v[:1], q, jnp.asarray(1.0), pairs, 0.1),
        lambda pairs, q, v: retrieval.distillation(
            q, v[:, None], np.ones((1, 1)), np.ones((4, 1), bool), pairs, 0.2
        ),
        lambda pairs, q, v: retrieval.distillation(
            q, v[:, None], np.ones((10, 1)), np.ones((1, 1), bool), pairs, 0.2
        ),
        lambda pairs, q, v: retrieval.triplet(q, pairs, NegativeRanks([0], [0]), 0.2),
        lambda pairs, q, v: trees.alignment(v[:, :1], np.ones(4, bool)),
        lambda pairs, q, v: trees.hinge(q[0], q[0, :1], [0], [1], np.ones(1, bool), 0.1),
        lambda pairs, q, v: trees.entailment((q[0], q[0]), np.ones(1, bool)),
    ],
)
def test_arrays_that_would_be_broadcast_are_refused(loss):
    with pytest.raises(ValueError, match="must have shape"):
        loss(_pairs(), np.ones((10, 4)), np.ones((4, 4)))


@pytest.mark.usefixtures("unchecked")
def test_ranks_and_rows_that_do_not_exist_are_refused():
    pairs = _pairs()
    ranks = _ranks(pairs)._replace(video=np.full(10, 4))
    with pytest.raises(ValueError, match=r"negatives.video\[0\] must be from 0 to 3, got 4"):
        retrieval.triplet(_scores(pairs), pairs, ranks, 0.2)
    with pytest.raises(ValueError, match=r"high\[1\] must be from 0 to 2, got 3"):
        trees.hinge(np.ones(3), np.ones(3), [0, 1], [1, 3], np.ones(2, bool), 0.1)


def test_matching_does_not_drop_captions(float64):
    pairs, rng = _pairs(), np.random.default_rng(0)
    captions, clips = rng.normal(size=(10, 3)), rng.normal(size=(4, 5, 3))
    with pytest.raises(ValueError, match="a video has 4 captions, but max_captions is 3"):
        retrieval.optimal_matching(captions, clips, pairs, 3)
    matching = jax.jit(lambda pairs: retrieval.optimal_matching(captions, clips, pairs, 3))
    assert np.isnan(matching(pairs))


MARGIN = 0.1
SIZE = 4
BELOW = np.zeros((SIZE, SIZE), bool)
BELOW[3, :3] = True

OF_LOGITS = {
    "alignment": lambda x, mask: trees.alignment(x, mask),
    "tree": lambda x, mask: trees.tree((x, x.T), mask, BELOW),
    "tree, sum": lambda x, mask: trees.tree((x, x), mask, None, "sum"),
}


def _logits(seed=0, scale=3.0):
    return np.random.default_rng(seed).normal(size=(SIZE, SIZE)) * scale


@functools.cache
def _program(name):
    return jax.jit(jax.value_and_grad(OF_LOGITS[name]))


@pytest.mark.parametrize("name", OF_LOGITS)
def test_losses_of_pure_padding_are_zero(name):
    value, gradient = _program(name)(_logits().astype(np.float32), np.zeros(SIZE, bool))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("name", OF_LOGITS)
def test_losses_of_extreme_logits_are_finite(name):
    # A scale of 100, and distances up to 50 times the largest distance from the origin in float32.
    extreme = _logits(scale=1e5).astype(np.float32)
    value, gradient = _program(name)(extreme, np.ones(SIZE, bool))
    assert np.isfinite(value) and value >= 0
    assert np.all(np.isfinite(gradient)) and np.any(gradient)


@pytest.mark.parametrize("name", OF_LOGITS)
def test_constant_added_to_all_logits_has_no_effect(name):
    mask, logits = np.arange(SIZE) != 1, _logits().astype(np.float32)
    original, shifted = (_program(name)(x, mask) for x in (logits, logits + np.float32(8)))
    # Rounding of logits near 16 in float32, in sums of up to six pairs.
    np.testing.assert_allclose(original[0], shifted[0], atol=1e-5)
    np.testing.assert_allclose(original[1], shifted[1], atol=1e-5)


@pytest.mark.parametrize("name", OF_LOGITS)
def test_derivatives_equal_differences(name, float64):
    mask = np.arange(SIZE) != 2
    value = jax.jit(lambda x: OF_LOGITS[name](x, mask))
    check_grads(value, (_logits(),), order=2, modes=["rev"])


def test_alignment_is_the_mean_of_both_directions():
    logits = _logits()
    expected = [np.log(np.sum(np.exp(x), axis=1)) - np.diagonal(x) for x in (logits, logits.T)]
    loss = _program("alignment")(logits.astype(np.float32), np.ones(SIZE, bool))[0]
    assert float(loss) == pytest.approx(np.mean(expected), rel=1e-6)


# Keys: how far the second number is above the first, which should be the lower one. Values: the
# loss and its slope in the first number, for each form.
HINGES = {
    0.5: {"corrected": (0.0, 0), "printed": (-0.6, 1)},
    0.04: {"corrected": (0.06, 1), "printed": (-0.14, 1)},
    -0.04: {"corrected": (0.14, 1), "printed": (-0.06, 1)},
    -0.5: {"corrected": (0.6, 1), "printed": (0.0, 0)},
}


@functools.cache
def _hinge(form):
    """Return a function for the loss of one pair and its gradients; row 0 should be lower."""

    def value(video, text):
        low, high, real = jnp.array([0]), jnp.array([1]), jnp.array([True])
        return trees.hinge(video, text, low, high, real, MARGIN, form)

    return jax.jit(jax.value_and_grad(value, (0, 1)))


@pytest.mark.parametrize("form", trees.FORMS)
def test_hinges_follow_the_table_of_forms(form):
    for ahead, forms in HINGES.items():
        value, slope = forms["corrected" if form == "corrected" else "printed"]
        numbers = np.array([0.3, 0.3 + ahead], np.float32)
        loss, gradients = _hinge(form)(numbers, numbers)
        assert float(loss) == pytest.approx(value, abs=1e-7), ahead
        # Half of the slope through each modality.
        for gradient in gradients:
            np.testing.assert_array_equal(gradient, [slope / 2, -slope / 2])


def test_hinge_compares_different_modalities_only():
    # The first row is lower within each modality, but the first text is above the second video.
    video, text = np.array([0.1, 0.3], np.float32), np.array([0.5, 0.9], np.float32)
    assert _hinge("corrected")(video, text)[0] == pytest.approx((0.5 - 0.3 + 0.1) / 2)
    assert _hinge("corrected")(video, video)[0] == 0


def test_unknown_form_is_refused():
    scores, row, real = jnp.ones(1), jnp.array([0]), jnp.array([True])
    with pytest.raises(ValueError, match="paper"):
        trees.hinge(scores, scores, row, row, real, MARGIN, "paper")


def test_entailment_is_the_mean_over_real_edges():
    angles = np.array([[0.4, 0.0, np.nan], [0.2, 1.0, np.nan]], np.float32)
    mask = np.array([True, True, False])

    def entailment(angles, mask):
        return trees.entailment((angles[0], angles[1]), mask)

    loss, gradient = jax.jit(jax.value_and_grad(entailment))(angles, mask)
    assert float(loss) == pytest.approx((0.4 + 0.0 + 0.2 + 1.0) / 4)
    np.testing.assert_array_equal(gradient, [[0.25, 0.25, 0]] * 2)
    padded_loss, gradient = jax.jit(jax.value_and_grad(entailment))(angles, np.zeros(3, bool))
    assert padded_loss == 0 and not np.any(gradient)


def test_padding_is_moved_to_the_origin():
    points = np.array([[1.0, 2.0], [np.nan, np.inf]], np.float32)
    mask = np.array([True, False])

    def squared_norm(points):
        return jnp.sum(retrieval.zero_padding(points, mask) ** 2)

    total, gradient = jax.value_and_grad(squared_norm)(points)
    assert total == 5
    np.testing.assert_array_equal(gradient, [[2, 4], [0, 0]])


@pytest.mark.parametrize("name", [name for name in TERMS if name != "joint nce"])
def test_caption_of_a_missing_video_is_an_error(float64, name):
    def loss(pairs):
        function, arguments = _terms(pairs, 0.0)[name]
        return function(*arguments)

    pairs, compiled = _pairs(), jax.jit(loss)
    assert np.isfinite(compiled(pairs))
    for video in (-1, 4):
        column = np.where(np.arange(10) == 5, video, pairs.video).astype(np.int32)
        wrong = pairs._replace(video=column)
        with pytest.raises(ValueError, match=rf"Pairs.video\[5\] must be from 0 to 3, got {video}"):
            loss(wrong)
        assert np.isnan(compiled(wrong))


# One decorator prepares the captions of every loss.
def test_pairs_may_be_lists_and_padding_may_name_any_video(float64):
    pairs, scores = _pairs(), _scores(_pairs())
    lists = Pairs(*(field.tolist() for field in pairs))
    np.testing.assert_allclose(retrieval.nce(scores, lists), retrieval.nce(scores, pairs))
    padded = pairs._replace(caption_mask=np.arange(10) != 5)
    beyond = padded._replace(video=np.where(np.arange(10) == 5, 4, pairs.video))
    loss = retrieval.nce(scores, beyond)
    assert np.isfinite(loss) and loss == retrieval.nce(scores, padded)


def test_printed_diversity_normalises_each_video():
    queries = np.random.default_rng(3).normal(size=(10, 6)).astype(np.float32)
    pairs = _pairs()
    cosine = _unit(queries) @ _unit(queries).T
    terms = (1 + cosine) * np.log1p(np.exp(8.0 * (cosine + 0.2)))
    means = [  # GMMFormer v2 eq. 5
        2 / (m * (m - 1)) * sum(terms[i, j] for i in rows for j in rows if i != j)
        for rows in (np.flatnonzero(pairs.video == v) for v in range(len(COUNTS)))
        if (m := len(rows)) > 1
    ]
    assert len(means) == 3
    for padded in (pairs, _pairs(2, 3)):
        padded_queries = np.pad(queries, ((0, len(padded.video) - 10), (0, 0)))
        loss = jax.jit(
            lambda rows, pairs: retrieval.query_diversity(
                rows, pairs, 0.2, 8.0, 1.0, per_video=True
            )
        )(padded_queries, padded)
        np.testing.assert_allclose(loss, np.mean(means), rtol=1e-5)
