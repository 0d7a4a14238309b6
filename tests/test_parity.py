"""Parity with the released code, from its recorded numbers (golden/README.md).

float64: 1e-9 relative to the largest magnitude of each recording.

float32: 4 times the released code's own float32 noise (its float32 less its float64 result). That
noise is one sample; where it fell far below what float32 rounding does to numbers of that size,
8 units in the last place of the recording's largest magnitude stand in for it.
"""

import functools

import jax
import numpy as np
import optax
import pytest
import released

from hlformer_jax import losses, objective, optim, released_names, retrieval
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


@functools.cache
def _forward(dtype):
    model, params, batch = released.model(dtype), released.params(dtype), released.batch(dtype)

    def run(params):
        variables = {"params": params}
        videos, inside = model.apply(
            variables, batch.videos, method="encode_video", capture_intermediates=True
        )
        queries = model.apply(variables, batch.captions, method="encode_query")
        lifted = model.apply(variables, videos, queries, method="lift")
        similar = retrieval.similarities(queries, videos.clips, videos.frames)
        return videos, inside["intermediates"], queries, lifted, similar

    return jax.device_get(jax.jit(run)(params))


@pytest.mark.parametrize("branch", ["clip", "frame"])
def test_every_block_and_the_fusion_weights(branch, dtype):
    _, inside, *_ = _forward(dtype)
    inside = inside[f"{branch}_branch"]
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
    videos, _, queries, lifted, similar = _forward(dtype)
    assert_recorded("out/encode_context_clip", videos.clips, dtype)
    assert_recorded("out/encode_context_frame", videos.frames, dtype)
    assert_recorded("out/encode_query", queries, dtype)
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


def test_pooled_videos(dtype):
    model, params = released.model(dtype), released.params(dtype)
    videos = model.apply({"params": params}, released.batch(dtype).videos, method="encode_video")
    for branch, encoded in (("frame", videos.frames), ("clip", videos.clips)):
        pooled = model.apply(
            {"params": params},
            encoded,
            method=lambda model, x, b=branch: getattr(model, f"{b}_pooling")(x, None),
        )
        assert_recorded(f"out/pooled_{branch}", pooled, dtype)


def test_videos_stored_with_97_frames_only(dtype):
    model, params, batch = released.model(dtype), released.params(dtype), released.batch(dtype)
    rows = released.recorded()["f64/short/video_rows"].astype(int)
    videos = jax.tree.map(lambda x: x[rows], batch.videos)
    frames, mask = np.array(videos.frames), np.array(videos.frame_mask)
    frames[:, 97:], mask[:, 97:] = 0, False
    videos = videos._replace(frames=frames, frame_mask=mask)
    encoded = model.apply({"params": params}, videos, method="encode_video")
    assert_recorded("short/frame_out", encoded.frames, dtype)
    assert_recorded("short/clip_out", encoded.clips, dtype)


@functools.cache
def _objective(dtype, setting, random):
    config = released.config(dtype, released.LOSS_SETTINGS[setting])
    model, batch = released.model(dtype), released.batch(dtype)
    negatives = released.recorded_random() if random else released.hardest()

    def loss(params):
        return objective.objective(model, config, params, batch, negatives, None)

    return jax.device_get(jax.jit(jax.value_and_grad(loss, has_aux=True))(released.params(dtype)))


@pytest.mark.parametrize("setting", released.LOSS_SETTINGS)
def test_every_loss_term(setting, dtype):
    (total, terms), _ = _objective(dtype, setting, False)
    assert set(terms) == set(released.TERM_NAMES)
    weights = released.config(loss=released.LOSS_SETTINGS[setting]).loss
    for ours, theirs in released.TERM_NAMES.items():
        shift = ANGLE_SHIFT if theirs == "pop" else 0.0
        assert_recorded(f"loss_raw/{setting}/{theirs}", terms[ours], dtype, shift)
        weighted = np.asarray(terms[ours] * weights[ours], dtype)
        assert_recorded(f"loss/{setting}/{theirs}", weighted, dtype, shift * weights[ours])
    assert_recorded(f"loss/{setting}/total", total, dtype)


def test_random_negatives_at_the_recorded_places(dtype):
    (total, terms), _ = _objective(dtype, "act", True)
    assert_recorded("rand/loss_total", total, dtype)
    assert_recorded("rand/loss_clip_triplet", terms["clip_triplet"], dtype)
    assert_recorded("rand/loss_frame_triplet", terms["frame_triplet"], dtype)


def _assert_gradients(gradient, recorded, tolerances):
    for name, expected in recorded.items():
        ours = released.like_recorded(gradient, name)
        difference = np.abs(ours - expected).max()
        assert difference <= tolerances[name], f"{name}: {difference:.2e} > {tolerances[name]:.2e}"


def _gradient_tolerances(dtype, recorded, noise):
    if dtype == "float64":
        # The absolute part is for gradients that are zero in exact arithmetic (the key biases of
        # attention without a mask and the last bias before the fusion's softmax).
        return {n: FLOAT64_TOLERANCE * np.abs(x).max() + 1e-15 for n, x in recorded.items()}
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
    _, gradient = _objective(dtype, "act", False)
    recorded = released.by_parameter("f64/grad")
    assert len(recorded) == 389
    noise = released.recorded()["noise/grad"]
    _assert_gradients(gradient, recorded, _gradient_tolerances(dtype, recorded, noise))


def test_gradient_of_every_parameter_with_random_negatives():
    # Recorded in float32 alone: their own noise and ours.
    _, gradient = _objective("float32", "act", True)
    recorded = released.by_parameter("rand_grad")
    noise = released.recorded()["noise/rand_grad"]
    noise = np.where(np.isnan(noise), released.recorded()["noise/grad"], noise)
    tolerances = _gradient_tolerances("float32", recorded, noise)
    _assert_gradients(gradient, recorded, {n: 2 * t for n, t in tolerances.items()})


def test_eight_optimiser_steps(dtype):
    golden = released.recorded()
    config = released.config(dtype)
    config.optim.learning_rate = 1e-3
    optimiser = optim.build(config, total_steps=20)
    model, batch, negatives = released.model(dtype), released.batch(dtype), released.hardest()

    @jax.jit
    def step(params, state):
        def loss(params):
            return objective.objective(model, config, params, batch, negatives, None)[0]

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimiser.update(gradient, state, params)
        params = hlformer.project(optax.apply_updates(params, updates), config.model.curvature)
        return params, state, value, gradient

    params = released.params(dtype)
    state = optimiser.init(params)
    schedule = optim.linear_warmup(1e-3, 0.01, 20)
    names = [str(name) for name in golden["param_names"]]
    for number in range(8):
        np.testing.assert_allclose(schedule(number), golden["train/lr"][number], rtol=1e-6)
        params, state, value, gradient = step(params, state)
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
    model, batch = released.model(dtype), released.batch(dtype)
    pairs = losses.Pairs(batch.captions.video, batch.captions.mask, batch.videos.mask)

    def loss(params):
        variables = {"params": params}
        videos = model.apply(variables, batch.videos, method="encode_video")
        queries = model.apply(variables, batch.captions, method="encode_query")
        lifted = model.apply(variables, videos, queries, method="lift")
        value = losses.partial_order(
            lifted.videos, lifted.captions, lifted.curvature, pairs, min_radius=0.1
        )
        return value, lifted

    (value, lifted), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert_recorded("popvar/text_point", lifted.captions[:, 1:], dtype)
    assert_recorded("popvar/video_point", lifted.videos[:, 1:], dtype)
    apex = lifted.videos[pairs.video]
    angle = cones.exterior_angle(apex, lifted.captions, lifted.curvature)
    assert_recorded("popvar/angle", angle, dtype, shift=ANGLE_SHIFT)
    # The released aperture saturates at arcsin(1 - 1e-8), 1.4e-4 below pi / 2, in float64.
    recorded_aperture = golden["f64/popvar/aperture"]
    saturated = recorded_aperture > np.arcsin(1 - 1.5e-8)
    assert saturated.sum() == 7
    aperture = np.asarray(cones.half_aperture(apex, lifted.curvature, 0.1))
    np.testing.assert_array_equal(aperture[saturated], np.asarray(np.pi / 2, dtype))
    rounding = 1e-6 if dtype == "float32" else 2 * ANGLE_SHIFT
    np.testing.assert_allclose(
        aperture[~saturated], recorded_aperture[~saturated], rtol=0, atol=rounding
    )
    expected = np.mean(
        np.maximum(
            golden["f64/popvar/angle"] - np.where(saturated, np.pi / 2, recorded_aperture), 0
        )
    )
    np.testing.assert_allclose(value, expected, rtol=0, atol=rounding)
    for name in ("curv", "textual_alpha", "video_alpha"):
        np.testing.assert_allclose(
            gradient[name],
            golden[f"f64/popvar/grad/{name}"],
            rtol=1e-4 if dtype == "float32" else 1e-6,
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
    config, model = released.config(dtype), released.model(dtype)

    def loss(params):
        batch, negatives = released.batch(dtype), released.hardest()
        return objective.objective(model, config, params, batch, negatives, None)[0]

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    rtol = FLOAT64_TOLERANCE if dtype == "float64" else 1e-6
    # The partial order term, weighted 1e-3, carries the shift of the released angles.
    np.testing.assert_allclose(
        value, golden["f64/clampvar/total_act"], rtol=rtol, atol=1e-3 * ANGLE_SHIFT
    )
    for name in ("curv", "textual_alpha", "video_alpha"):
        np.testing.assert_allclose(
            params[name], golden[f"f64/clampvar/after/{name}"], rtol=1e-6, atol=1e-7
        )
        # Gradients of that term alone, 1e-4 in size, with its shift.
        np.testing.assert_allclose(
            gradient[name], golden[f"f64/clampvar/grad/{name}"], rtol=1e-3, atol=1e-9
        )
    name = "clip_encoder.h_attns.0.self.scale_alpha"
    assert released_names.lookup(params, name) == 0
    np.testing.assert_allclose(
        released_names.lookup(gradient, name),
        golden[f"f64/clampvar/grad/{name}"],
        rtol=1e-8 if dtype == "float64" else 1e-4,
    )


def test_the_released_sizes_have_the_released_number_of_parameters():
    counts = {}
    for name, visual, text in (("anet", 1024, 1024), ("tvr", 3072, 768)):
        config = default()
        config.data.update(visual_dim=visual, text_dim=text)
        from hlformer_jax import models, train_state

        model = models.build(config)
        shapes = jax.eval_shape(lambda c=config, m=model: train_state.init_params(m, c))
        counts[name] = sum(np.prod(x.shape, dtype=int) for x in jax.tree.leaves(shapes))
    # One less than the released totals, which count the fixed curvature of the attention.
    assert counts == {"anet": 28_429_244 - 1, "tvr": 29_911_484 - 1}
