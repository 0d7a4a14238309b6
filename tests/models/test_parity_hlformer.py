"""What HLFormer alone has, against its released code (tolerances: test_parity.py)."""

import jax
import numpy as np
import parity
import released
from parity import ANGLE_SHIFT, FLOAT64_TOLERANCE

from hlformer_jax import models
from hlformer_jax.ops import cones

HLFORMER = released.HLFORMER


def assert_recorded(name, ours, dtype, shift=0.0):
    parity.assert_recorded(HLFORMER, name, ours, dtype, shift)


def test_pooled_and_lifted_points(dtype):
    run = parity.recorded_run(HLFORMER, dtype)
    lifted = run.lifted
    pool = lambda module, branch, x: getattr(module, f"{branch}_pooling")(x, None)
    model, params = HLFORMER.build(dtype), HLFORMER.params(dtype)
    for branch, encoded in (("frame", run.videos.frames), ("clip", run.videos.clips)):
        pooled = jax.jit(lambda p, x, b=branch: model.apply(p, b, x, method=pool))
        assert_recorded(f"out/pooled_{branch}", pooled(params, encoded), dtype)
    assert_recorded("pop/curv", lifted.curvature, dtype)
    assert_recorded("pop/text_point", lifted.captions[:, 1:], dtype)
    assert_recorded("pop/video_point", lifted.videos[:, 1:], dtype)
    apex = lifted.videos[released.batch().captions.video]
    angle = cones.exterior_angle(apex, lifted.captions, lifted.curvature)
    assert_recorded("pop/angle", angle, dtype, shift=ANGLE_SHIFT)
    aperture = cones.half_aperture(apex, lifted.curvature, 0.1)
    assert_recorded("pop/aperture", aperture, dtype, shift=ANGLE_SHIFT)


def test_saturated_cones(dtype):
    golden = HLFORMER.golden
    params = HLFORMER.params(dtype)
    params["video_alpha"] = golden["f64/popvar/video_alpha"].astype(dtype)
    alone = dict.fromkeys(released.TERM_NAMES, 0.0) | {"partial_order": 1.0}
    run = parity.run(HLFORMER, dtype, params=params, values=alone)
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
    golden = HLFORMER.golden
    params = HLFORMER.params(dtype)
    params["curv"] = np.asarray(3.0, dtype)
    params["textual_alpha"] = np.asarray(0.7, dtype)
    params["video_alpha"] = np.asarray(0.4, dtype)
    alphas = params["clip_branch"]["bank"]["lorentz"]["attention"]["scale_alpha"].copy()
    alphas[0] = 0.6
    params["clip_branch"]["bank"]["lorentz"]["attention"]["scale_alpha"] = alphas
    params = models.project(HLFORMER.build(), params)
    run = parity.run(HLFORMER, dtype, params=params)
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
    assert HLFORMER.lookup(params, name) == 0
    np.testing.assert_allclose(
        HLFORMER.lookup(run.gradient, name),
        golden[f"f64/clampvar/grad/{name}"],
        rtol=1e-8 if dtype == "float64" else 1e-4,
    )
