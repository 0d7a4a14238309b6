"""Parity with the released code, from its recorded numbers (golden/README.md).

float64: 1e-9 relative to the largest magnitude of each recording.

float32: 4 times the released code's own float32 noise (its float32 less its float64 result). That
noise is one sample; where it fell far below what float32 rounding does to numbers of that size,
8 units in the last place of the recording's largest magnitude stand in for it.
"""

import functools
from typing import NamedTuple

import jax
import numpy as np
import optax
import pytest
import released

from hlformer_jax import (
    losses,
    models,
    objective,
    optim,
    released_names,
    retrieval,
    train_state,
)
from hlformer_jax.config import default
from hlformer_jax.models import hlformer
from hlformer_jax.ops import cones

FLOAT64_TOLERANCE = 1e-9

# The released cones shift a sine or cosine by 1e-8 before arcsin and arccos: angles differ from
# the exact ones by up to 1e-8 / sin(angle), of the order of 1e-8, in float64 as well.
ANGLE_SHIFT = 3e-8


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    before = jax.config.jax_enable_x64
    promotion = jax.config.jax_numpy_dtype_promotion
    if request.param == "float64":
        jax.config.update("jax_enable_x64", True)
        # Flax's layer norm asks JAX for the promotion of float64 and float32.
        jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield request.param
    jax.config.update("jax_enable_x64", before)
    jax.config.update("jax_numpy_dtype_promotion", promotion)


def assert_recorded(name, ours, dtype, shift=0.0):
    golden = released.recorded()
    expected = golden[f"f64/{name}"]
    ours = np.asarray(ours)
    assert ours.dtype == dtype
    if ours.shape != expected.shape:
        ours = released.thin(ours, above=3000)
    largest = np.abs(expected).max()
    if dtype == "float64":
        tolerance = FLOAT64_TOLERANCE * largest + shift
    else:
        ulp = np.finfo(np.float32).eps * largest
        tolerance = max(4 * float(golden.get(f"noise/{name}", 0)), 8 * ulp) + shift
    difference = np.abs(ours - expected).max()
    assert difference <= tolerance, f"{name}: {difference:.2e} > {tolerance:.2e}"


class Run(NamedTuple):
    """Everything that one forward and backward pass of the model and the losses gives."""

    terms: dict
    videos: hlformer.VideoEncoding
    pooled: dict
    inside: dict
    queries: np.ndarray
    lifted: hlformer.Lifted
    similar: retrieval.Similarities
    gradient: dict


@functools.cache
def _compiled(dtype):
    """One compilation for all recordings: weights, margins and negatives are arguments."""
    model = released.model(dtype)

    def objective(params, batch, negatives, weights, margin, diversity_margin):
        apply = functools.partial(model.apply, {"params": params})
        videos, inside = apply(batch.videos, method="encode_video", capture_intermediates=True)
        queries = apply(batch.captions, method="encode_query")
        lifted = apply(videos, queries, method="lift")
        pool = lambda model, branch, x: getattr(model, f"{branch}_pooling")(x, None)
        pooled = {
            "frame": apply("frame", videos.frames, method=pool),
            "clip": apply("clip", videos.clips, method=pool),
        }
        similar = retrieval.similarities(queries, videos.clips, videos.frames)
        pairs = losses.Pairs(batch.captions.video, batch.captions.mask, batch.videos.mask)
        terms = {
            "clip_triplet": losses.triplet(similar.clip_cosine, pairs, negatives.clip, margin),
            "frame_triplet": losses.triplet(similar.frame_cosine, pairs, negatives.frame, margin),
            "clip_nce": losses.nce(similar.clip_dot, pairs),
            "frame_nce": losses.nce(similar.frame_dot, pairs),
            "query_diversity": losses.query_diversity(queries, pairs, diversity_margin, 32.0, 1.0),
            "partial_order": losses.partial_order(*lifted, pairs, min_radius=0.1),
        }
        total = sum(weights[name] * term for name, term in terms.items())
        inside = inside["intermediates"]
        return total, Run(
            {**terms, "total": total}, videos, pooled, inside, queries, lifted, similar, {}
        )

    return jax.jit(jax.value_and_grad(objective, has_aux=True))


def _run(dtype, setting="act", params=None, batch=None, negatives=None, weights=None):
    loss = released.config(dtype, released.LOSS_SETTINGS[setting]).loss
    chosen = {name: loss[name] for name in released.TERM_NAMES} | (weights or {})
    scalar = lambda value: np.asarray(value, dtype)
    (_, run), gradient = _compiled(dtype)(
        released.params(dtype) if params is None else params,
        batch or released.batch(dtype),
        negatives or released.hardest(),
        {name: scalar(weight) for name, weight in chosen.items()},
        scalar(loss.margin),
        scalar(loss.diversity_margin),
    )
    return jax.device_get(run._replace(gradient=gradient))


@functools.cache
def _recorded_run(dtype):
    return _run(dtype)


@pytest.mark.parametrize("branch", ["clip", "frame"])
def test_every_block_and_the_fusion_weights(branch, dtype):
    inside = _recorded_run(dtype).inside[f"{branch}_branch"]
    blocks = inside["bank"]["__call__"][0]
    names = [f"block/{branch}/{kind}{i}" for kind in "eh" for i in range(4)]
    compared = 0
    for name, block in zip(names, blocks, strict=True):
        if f"f64/{name}" in released.recorded():
            assert_recorded(name, block, dtype)
            compared += 1
    assert compared == (8 if branch == "clip" else 3)
    weights = inside["fusion"]["weights"][0]
    assert_recorded(f"maim/{branch}", np.moveaxis(weights, 0, -1), dtype)


def test_encodings_scores_and_lifted_points(dtype):
    run = _recorded_run(dtype)
    similar, lifted = run.similar, run.lifted
    assert_recorded("out/encode_context_clip", run.videos.clips, dtype)
    assert_recorded("out/encode_context_frame", run.videos.frames, dtype)
    assert_recorded("out/encode_query", run.queries, dtype)
    assert_recorded("out/pooled_frame", run.pooled["frame"], dtype)
    assert_recorded("out/pooled_clip", run.pooled["clip"], dtype)
    assert_recorded("score/clip_norm", similar.clip_cosine, dtype)
    assert_recorded("score/clip_unnorm", similar.clip_dot, dtype)
    assert_recorded("score/frame_norm", similar.frame_cosine, dtype)
    assert_recorded("score/frame_unnorm", similar.frame_dot, dtype)
    score = 0.7 * similar.clip_cosine + 0.3 * similar.frame_cosine
    assert_recorded("score/eval_0.7clip_0.3frame", score, dtype)
    assert_recorded("pop/curv", lifted.curvature, dtype)
    assert_recorded("pop/text_point", lifted.captions[:, 1:], dtype)
    assert_recorded("pop/video_point", lifted.videos[:, 1:], dtype)
    apex = lifted.videos[released.batch().captions.video]
    angle = cones.exterior_angle(apex, lifted.captions, lifted.curvature)
    assert_recorded("pop/angle", angle, dtype, shift=ANGLE_SHIFT)
    aperture = cones.half_aperture(apex, lifted.curvature, 0.1)
    assert_recorded("pop/aperture", aperture, dtype, shift=ANGLE_SHIFT)


def test_videos_stored_with_97_frames_only(dtype):
    batch = released.batch(dtype)
    rows = released.recorded()["f64/short/video_rows"].astype(int)
    frames, mask = np.array(batch.videos.frames), np.array(batch.videos.frame_mask)
    frames[:, 97:], mask[:, 97:] = 0, False
    videos = batch.videos._replace(frames=frames, frame_mask=mask)
    run = _run(dtype, batch=batch._replace(videos=videos))
    assert_recorded("short/frame_out", run.videos.frames[rows], dtype)
    assert_recorded("short/clip_out", run.videos.clips[rows], dtype)


@pytest.mark.parametrize("setting", released.LOSS_SETTINGS)
def test_every_loss_term(setting, dtype):
    terms = _run(dtype, setting).terms
    weights = released.config(loss=released.LOSS_SETTINGS[setting]).loss
    for ours, theirs in released.TERM_NAMES.items():
        shift = ANGLE_SHIFT if theirs == "pop" else 0.0
        assert_recorded(f"loss_raw/{setting}/{theirs}", terms[ours], dtype, shift)
        weighted = np.asarray(terms[ours] * weights[ours], dtype)
        assert_recorded(f"loss/{setting}/{theirs}", weighted, dtype, shift * weights[ours])
    assert_recorded(f"loss/{setting}/total", terms["total"], dtype)


def test_random_negatives_at_the_recorded_places(dtype):
    run = _run(dtype, negatives=released.recorded_random())
    assert_recorded("rand/loss_total", run.terms["total"], dtype)
    assert_recorded("rand/loss_clip_triplet", run.terms["clip_triplet"], dtype)
    assert_recorded("rand/loss_frame_triplet", run.terms["frame_triplet"], dtype)
    if dtype == "float32":  # gradients of it were recorded in float32 alone: their noise and ours
        recorded = released.by_parameter("rand_grad")
        noise = released.recorded()["noise/rand_grad"]
        noise = np.where(np.isnan(noise), released.recorded()["noise/grad"], noise)
        tolerances = _gradient_tolerances(dtype, recorded, 2 * noise)
        _assert_gradients(run.gradient, recorded, tolerances)


def _assert_gradients(gradient, recorded, tolerances):
    for name, expected in recorded.items():
        ours = released.like_recorded(gradient, name)
        difference = np.abs(ours - expected).max()
        assert difference <= tolerances[name], f"{name}: {difference:.2e} > {tolerances[name]:.2e}"


def _gradient_tolerances(dtype, recorded, noise):
    if dtype == "float64":
        # Only the partial order term reaches the curvature, the scales of the lift and the pooling
        # before it: the shift of the released angles, which are of the order of 1, is theirs.
        pooling = [f"modular_vector_mapping_{branch}.weight" for branch in (2, 3)]
        lift = ("curv", "textual_alpha", "video_alpha", *pooling)
        relative = dict.fromkeys(lift, 10 * ANGLE_SHIFT)
        # The absolute part is for gradients that are zero in exact arithmetic (the key biases of
        # attention without a mask and the last bias before the fusion's softmax).
        return {
            name: relative.get(name, FLOAT64_TOLERANCE) * np.abs(expected).max() + 1e-15
            for name, expected in recorded.items()
        }
    # The noise of a single tensor is a single draw, of a scalar often nearly 0: all tensors are
    # held to the largest noise among them relative to the largest gradient of their tensor.
    names = list(recorded)
    largest = np.array([np.abs(recorded[name]).max() for name in names])
    real = largest > 1e-7
    relative = np.max(noise[real] / largest[real])
    return {
        name: 4 * max(noise[i], relative * largest[i] if real[i] else 2e-8)
        for i, name in enumerate(names)
    }


def test_gradient_of_every_parameter(dtype):
    recorded = released.by_parameter("f64/grad")
    assert len(recorded) == 389
    noise = released.recorded()["noise/grad"]
    tolerances = _gradient_tolerances(dtype, recorded, noise)
    _assert_gradients(_recorded_run(dtype).gradient, recorded, tolerances)


def test_eight_optimiser_steps(dtype):
    golden = released.recorded()
    config = released.config(dtype)
    config.optim.learning_rate = 1e-3
    optimiser = optim.build(config, total_steps=20)

    @jax.jit
    def update(params, state, gradient):
        updates, state = optimiser.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        return hlformer.project(params, config.model.curvature), state

    params = released.params(dtype)
    state = optimiser.init(params)
    schedule = optim.linear_warmup(1e-3, 0.01, 20)
    names = [str(name) for name in golden["param_names"]]
    for number in range(8):
        np.testing.assert_allclose(schedule(number), golden["train/lr"][number], rtol=1e-6)
        run = _run(dtype, params=params)
        value, gradient = run.terms["total"], run.gradient
        params, state = update(params, state, gradient)
        if dtype == "float64":
            np.testing.assert_allclose(value, golden["train/loss_f64"][number], rtol=1e-9)
        else:
            noise = np.abs(golden["train/loss"] - golden["train/loss_f64"]).max()
            assert abs(value - golden["train/loss_f64"][number]) <= 4 * noise
        norms = [np.linalg.norm(released_names.lookup(gradient, name)) for name in names]
        # Recorded in float32, after steps whose noise has moved the parameters.
        np.testing.assert_allclose(
            norms, golden["train/grad_norm_before_clip"][number], rtol=2e-3, atol=2e-6
        )
        if number + 1 in (2, 8):
            # Recorded in float32: the difference to our float64 is their noise, once.
            noise = golden[f"train/noise/step{number + 1}_max_abs_f32_minus_f64"].max()
            factor = 4 if dtype == "float32" else 1.1
            for name, expected in released.by_parameter(f"train/step{number + 1}").items():
                difference = np.abs(released.like_recorded(params, name) - expected).max()
                assert difference <= factor * noise, f"{name}: {difference:.2e}"


def test_the_objective_of_training_is_the_weighted_sum_of_the_recorded_terms():
    config = released.config()
    loss = lambda params: objective.objective(
        released.model(), config, params, released.batch(), released.hardest(), None
    )
    total, terms = jax.jit(loss)(released.params())
    assert_recorded("loss/act/total", total, "float32")
    for ours, theirs in released.TERM_NAMES.items():
        assert_recorded(f"loss_raw/act/{theirs}", terms[ours], "float32", ANGLE_SHIFT)


def test_decay_falls_on_the_parameters_that_the_released_code_decays():
    golden = released.recorded()
    mask = optim.decay_mask(released.params())
    for name, decay in zip(golden["param_names"], golden["train/weight_decay"], strict=True):
        where = released_names.place(str(name))
        value = mask
        for key in where.path:
            value = value[key]
        assert value == (decay > 0), name


def test_saturated_cones(dtype):
    golden = released.recorded()
    params = released.params(dtype)
    params["video_alpha"] = golden["f64/popvar/video_alpha"].astype(dtype)
    alone = dict.fromkeys(released.TERM_NAMES, 0.0) | {"partial_order": 1.0}
    run = _run(dtype, params=params, weights=alone)
    lifted = run.lifted
    assert_recorded("popvar/text_point", lifted.captions[:, 1:], dtype)
    assert_recorded("popvar/video_point", lifted.videos[:, 1:], dtype)
    apex = lifted.videos[released.batch().captions.video]
    angle = cones.exterior_angle(apex, lifted.captions, lifted.curvature)
    assert_recorded("popvar/angle", angle, dtype, shift=ANGLE_SHIFT)
    # The released aperture saturates at arcsin(1 - 1e-8), 1.4e-4 below pi / 2, in float64; its
    # radius, 0.2 / sine, is enlarged by 1e-8, which the steep arcsine multiplies.
    theirs = golden["f64/popvar/aperture"]
    saturated = theirs > np.arcsin(1 - 1.5e-8)
    assert saturated.sum() == 7
    ours = np.asarray(cones.half_aperture(apex, lifted.curvature, 0.1))
    np.testing.assert_array_equal(ours[saturated], np.asarray(np.pi / 2, dtype))
    slope = np.tan(theirs[~saturated])
    rounding = 4 * np.finfo(np.float32).eps if dtype == "float32" else 0
    bound = slope * (1.1e-8 * np.sin(theirs[~saturated]) / 0.2 + rounding)
    assert np.all(np.abs(ours - theirs)[~saturated] <= bound)
    aperture = np.where(saturated, np.pi / 2, theirs)
    expected = np.mean(np.maximum(golden["f64/popvar/angle"] - aperture, 0))
    np.testing.assert_allclose(
        run.terms["partial_order"], expected, rtol=0, atol=bound.max() + ANGLE_SHIFT
    )
    for name in ("curv", "textual_alpha", "video_alpha"):
        np.testing.assert_allclose(
            run.gradient[name],
            golden[f"f64/popvar/grad/{name}"],
            # The slope of the arcsine, 6.7 at the steepest, enters squared and with the shift.
            rtol=1e-4 if dtype == "float32" else 1e-5,
        )


def test_stored_scalars_are_clamped_before_the_forward(dtype):
    golden = released.recorded()
    params = released.params(dtype)
    params["curv"] = np.asarray(3.0, dtype)
    params["textual_alpha"] = np.asarray(0.7, dtype)
    params["video_alpha"] = np.asarray(0.4, dtype)
    alphas = params["clip_branch"]["bank"]["lorentz"]["attention"]["scale_alpha"].copy()
    alphas[0] = 0.6
    params["clip_branch"]["bank"]["lorentz"]["attention"]["scale_alpha"] = alphas
    params = hlformer.project(params, curvature=1.0)
    run = _run(dtype, params=params)
    rtol = FLOAT64_TOLERANCE if dtype == "float64" else 1e-6
    # The partial order term, weighted 1e-3, carries the shift of the released angles.
    np.testing.assert_allclose(
        run.terms["total"], golden["f64/clampvar/total_act"], rtol=rtol, atol=1e-3 * ANGLE_SHIFT
    )
    for name in ("curv", "textual_alpha", "video_alpha"):
        np.testing.assert_allclose(
            params[name], golden[f"f64/clampvar/after/{name}"], rtol=1e-6, atol=1e-7
        )
        # Gradients of that term alone, 1e-4 in size, with its shift.
        np.testing.assert_allclose(
            run.gradient[name], golden[f"f64/clampvar/grad/{name}"], rtol=1e-3, atol=1e-9
        )
    name = "clip_encoder.h_attns.0.self.scale_alpha"
    assert released_names.lookup(params, name) == 0
    np.testing.assert_allclose(
        released_names.lookup(run.gradient, name),
        golden[f"f64/clampvar/grad/{name}"],
        rtol=1e-8 if dtype == "float64" else 1e-4,
    )


def test_the_released_sizes_have_the_released_number_of_parameters():
    counts = {}
    for name, visual, text in (("anet", 1024, 1024), ("tvr", 3072, 768)):
        config = default()
        config.data.update(visual_dim=visual, text_dim=text)
        model = models.build(config)
        shapes = jax.eval_shape(lambda c=config, m=model: train_state.init_params(m, c))
        counts[name] = sum(np.prod(x.shape, dtype=int) for x in jax.tree.leaves(shapes))
    # One less than the released totals, which count the fixed curvature of the attention.
    assert counts == {"anet": 28_429_244 - 1, "tvr": 29_911_484 - 1}
