"""Refusal of invalid arguments whose values are known; masks, windows and learned widths."""

import functools

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlformer_jax as hl
from hlformer_jax.ops import cones, lorentz, poincare, statistics, windows
from hlformer_jax.ops.arguments import as_float
from hlformer_jax.ops.attention import (
    euclidean_attention,
    lorentz_attention,
    single_query_attention,
)
from hlformer_jax.ops.manifolds import Euclidean, Lorentz, Poincare, Product, Sphere

POINT = np.array([[1.3, 0.5, -0.2], [1.1, 0.1, 0.4]], np.float32)
BALL = np.array([[0.2, 0.1], [-0.3, 0.4]], np.float32)
UNIT = np.array([[0.6, 0.8], [1.0, 0.0]], np.float32)


@pytest.mark.parametrize(
    "function",
    [
        lambda c: Lorentz(c).distance(POINT, POINT[::-1]),
        lambda c: Sphere(c).distance(POINT, POINT[::-1]),
        lambda c: hl.nn.linear(Poincare(c), BALL, BALL, BALL[0]),
    ],
)
def test_negative_curvature_is_refused_or_gives_nan(function):
    with pytest.raises(ValueError, match=r"^c must be (at least 0|positive), got -1.0"):
        function(-1.0)
    assert np.isnan(jax.jit(function)(jnp.float32(-1))).all()  # jit hides the value


@pytest.mark.usefixtures("unchecked")
def test_negative_curvature_of_a_sphere_has_no_hyperbolic_hint():
    for call in (lambda s: s.origin(2), lambda s: s.pairwise_distance(POINT, POINT)):
        with pytest.raises(ValueError, match=r"^c must be positive, got -1.0$"):
            call(Sphere(-1.0))


def test_integers_of_64_bits_do_not_wrap():
    assert as_float(np.array([2**40, -(2**40)])).tolist() == [2.0**40, -(2.0**40)]
    assert as_float(np.uint64(2**63)) == 2.0**63


def test_curvature_zero_is_refused_where_it_is_undefined():
    for function in (
        lambda: poincare.distance(BALL, BALL, 0.0),
        lambda: poincare.mobius_add(BALL, BALL, 0),
        lambda: Poincare(0.0).log_map0(BALL),
        lambda: lorentz.exp_map0(BALL, 0.0),
        lambda: lorentz.time(BALL, np.array([0.0, 1.0])),
        lambda: Sphere(0.0).distance(POINT, POINT),
    ):
        with pytest.raises(ValueError, match="^c .*positive"):
            function()
    flat = np.linalg.norm(POINT[0, 1:] - POINT[1, 1:])
    distance = jax.jit(lambda: lorentz.distance(*POINT, 0.0))()
    np.testing.assert_allclose(distance, flat, rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda: cones.half_aperture(POINT, 1.0, -0.1), "min_radius"),
        (lambda: cones.poincare_half_aperture(BALL, 1.0, 0.0), "min_radius"),
        (lambda: lorentz.limit_distance0(POINT, -1.0), "limit"),
        (lambda: poincare.limit_distance0(BALL, 0.0), "limit"),
        (lambda: poincare.project(BALL, 1.0, 1.5), "1 - max_radius"),
        (lambda: poincare.project(BALL, 1.0, -0.5), "max_radius"),
        (lambda: statistics.lorentz_sample(jax.random.key(0), POINT, -1.0), "scale"),
        (lambda: statistics.poincare_log_density(BALL, BALL, 0.0), "scale"),
        (lambda: hl.nn.attention(Lorentz(), POINT, POINT, POINT, 0.0), "scale"),
    ],
)
def test_numbers_that_must_be_positive_are_named(function, name):
    with pytest.raises(ValueError, match=f"^{name} must be positive"):
        function()


# Numbers with more axes than the batch


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(
    "function",
    [
        lambda t: lorentz.geodesic(t, POINT, POINT[::-1], 0.7),
        lambda t: lorentz.geodesic_unit(t, POINT, POINT, 0.7),
        lambda t: poincare.geodesic(t, BALL, BALL[::-1], np.array([0.5, 0.7], np.float32)),
        lambda t: poincare.geodesic_unit(t, BALL, UNIT, np.array([0.5, 0.7], np.float32)),
        lambda t: poincare.mobius_scalar_mul(t, BALL, 0.7),
    ],
)
def test_fraction_may_have_more_axes_than_the_batch(function):
    t = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2, 1)
    compute = jax.jit(function)  # two programs: for all fractions, and for one
    got = compute(t)
    assert got.shape[:-1] == (3, 2, 2)
    for index in np.ndindex(3, 2):
        np.testing.assert_allclose(got[index], compute(t[index]), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"\(5,\) does not broadcast with the batch \(2,\)"):
        function(np.ones(5, np.float32))


# Möbius addition of 0


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("c", [0.3, 1.0, 2.5])
def test_adding_the_origin_is_exact(c):
    rng = np.random.default_rng(0)
    p = compiled.poincare.exp_map0(np.float32(rng.normal(size=(2000, 3))), c)
    zero = np.zeros_like(p)
    for add in (poincare.mobius_add, jax.jit(poincare.mobius_add)):
        np.testing.assert_array_equal(add(p, zero, c), p)
        np.testing.assert_array_equal(add(zero, p, c), p)
    np.testing.assert_array_equal(compiled.poincare.exp_map(p, zero, c), p)
    np.testing.assert_array_equal(compiled.poincare.geodesic(0.0, p, p[::-1], c), p)


@pytest.mark.usefixtures("float64")
def test_addition_of_short_vectors_keeps_its_derivatives():
    """Compare the derivatives at ordinary, short and zero summands with the textbook formula."""
    p = jnp.asarray([[0.3, -0.2], [0.3, -0.2], [0.3, -0.2], [1e-9, 0], [0, 0], [0.05, 0.1]])
    q = jnp.asarray([[0.1, 0.5], [1e-9, 0.0], [0.0, 0.0], [0.3, 0.1], [0.2, 0.3], [-0.3, -0.4]])

    def textbook(p, q, c):
        pq, pp, qq = (jnp.sum(a * b, -1, keepdims=True) for a, b in ((p, q), (p, p), (q, q)))
        numerator = (1 + 2 * c * pq + c * qq) * p + (1 - c * pp) * q
        return numerator / (1 + 2 * c * pq + c * c * pp * qq)

    weights = jnp.asarray(np.random.default_rng(0).normal(size=p.shape))

    @functools.partial(jax.jit, static_argnums=0)
    def value_and_slopes(function, p, q, c):
        value, pullback = jax.vjp(function, p, q, c)
        return value, pullback(weights)

    (value, slopes), (want, expected_slopes) = (
        value_and_slopes(function, p, q, 0.7) for function in (poincare.mobius_add, textbook)
    )
    for slope, expected in zip(slopes, expected_slopes, strict=True):
        np.testing.assert_allclose(slope, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(value, want, rtol=1e-13)


# Masks and windows


def _heads(*batch):
    rng = np.random.default_rng(0)
    space = jnp.asarray(rng.normal(size=(*batch, 5, 3)), jnp.float32)
    return compiled.lorentz.from_space(space), space


def test_mask_of_queries_without_heads_is_refused():
    points, features = _heads(4)
    mask = jnp.ones((4, 5), bool)
    message = r"mask of shape \(4, 5\) does not broadcast to \[\*batch, L\] \(5,\) .* axis of heads"

    def curved(points):
        return lorentz_attention(points, points, points, 1.0, mask=mask)

    with pytest.raises(ValueError, match=message):
        jax.eval_shape(curved, points)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: euclidean_attention(features, features, features, None, mask))
    assert jax.eval_shape(curved, points[:, None]).shape == (4, 1, 5, 4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 4), (5, 5), (2, 1, 1, 5), (3, 5), (2, 1)])
def test_mask_that_adds_or_lengthens_an_axis_is_refused(shape):
    points, features = _heads(2, 3)
    mask = jnp.ones(shape, bool)
    projection = hl.attention.Projection(jnp.ones((3, 3, 2)), jnp.ones((3, 2)))
    for call in (
        lambda: lorentz_attention(points, points, points, 1.0, mask=mask),
        lambda: euclidean_attention(features, features, features, None, mask),
        lambda: single_query_attention(
            jnp.ones((2, 3, 2)), features[:, 0], projection, projection, mask
        ),
        lambda: hl.nn.attention(Lorentz(), *(points[:, 0],) * 3, 1.0, mask),
    ):
        with pytest.raises(ValueError, match="mask .* does not broadcast"):
            jax.eval_shape(call)  # nothing is computed


def test_mask_without_batch_axes_applies_to_every_video():
    points, features = _heads(2, 3)
    mask = jnp.asarray([True, True, False, True, False])
    repeated = jnp.broadcast_to(mask, (2, 5))
    for attend in (
        lambda mask: lorentz_attention(points, points, points, 1.0, mask=mask),
        lambda mask: euclidean_attention(features, features, features, None, mask),
    ):
        from_shared, from_repeated = jax.jit(
            lambda attend=attend: (attend(mask), attend(repeated))
        )()
        np.testing.assert_array_equal(from_shared, from_repeated)


def test_each_head_uses_its_window():
    points, features = _heads(2, 3)
    log_windows = windows.log_attention_windows((1.0, 3.0, 0.0), 5)
    factor = jnp.exp(log_windows)
    euclidean = jax.jit(lambda x, window: euclidean_attention(x, x, x, window))
    lorentzian = jax.jit(lambda x, window: lorentz_attention(x, x, x, 1.0, log_window=window))
    both, curved = euclidean(features, factor), lorentzian(points, log_windows)
    for k in range(3):
        head, point = features[:, k : k + 1], points[:, k : k + 1]
        single = euclidean(head, factor[k])
        np.testing.assert_allclose(both[:, k], single[:, 0], rtol=1e-6, atol=1e-7)
        single = lorentzian(point, log_windows[k])
        np.testing.assert_allclose(curved[:, k], single[:, 0], rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(7, 5, 5), (4, 2, 3, 5, 5), (4, 5), (2, 1, 1, 5, 5)])
def test_window_that_adds_or_lengthens_an_axis_is_refused(shape):
    points, features = _heads(2, 3)
    window = jnp.ones(shape)
    for call in (
        lambda: euclidean_attention(features, features, features, window),
        lambda: lorentz_attention(points, points, points, 1.0, window=window),
        lambda: lorentz_attention(points, points, points, 1.0, log_window=window),
    ):
        with pytest.raises(ValueError, match=r"window .* does not broadcast to the logits"):
            jax.eval_shape(call)  # nothing is computed


# Learned widths

WIDTHS = (0.0, 0.004, 0.4, 1.0, 2.7, 6.0)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", windows.KINDS)
def test_learned_widths_give_the_same_windows(kind):
    fixed = windows.log_attention_windows(WIDTHS, 7, kind, jnp.float64)
    learned = windows.log_attention_windows(jnp.asarray(WIDTHS), 7, kind, jnp.float64)
    np.testing.assert_allclose(learned, fixed, rtol=1e-13)
    traced = jax.jit(lambda w: windows.attention_windows(w, 7, kind, jnp.float64))
    np.testing.assert_allclose(traced(jnp.asarray(WIDTHS)), np.exp(fixed), rtol=1e-13)
    single = windows.attention_windows(jnp.asarray(WIDTHS, jnp.float32), 7, kind)
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, np.exp(fixed), rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", windows.KINDS)
def test_windows_differentiate_in_their_widths(kind):
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(7, 7)))

    def total(w):
        return jnp.sum(windows.attention_windows(w, 7, kind, jnp.float64) * weights[None], (1, 2))

    w, step = jnp.asarray(WIDTHS), 1e-6
    slope = jax.jit(jax.grad(lambda w: jnp.sum(total(w))))(w)
    want = (total(w + step) - total(jnp.maximum(w - step, 0))) / (2 * step)
    assert np.isfinite(slope).all() and slope[0] == 0
    # At width 0 there is no window; a boxcar changes in steps.
    if kind == "boxcar":
        np.testing.assert_array_equal(slope, 0)
    else:
        np.testing.assert_allclose(slope[1:], want[1:], rtol=1e-7, atol=1e-8)
        assert np.abs(slope[3:]).min() > 1e-3


@pytest.mark.usefixtures("standard_promotion")
def test_window_width_is_learned_through_attention():
    _, features = _heads(2, 3)

    def attend(w):
        return euclidean_attention(features, features, features, windows.attention_windows(w, 5))

    target = np.float32([1, 2, 4])
    loss = jax.jit(
        jax.value_and_grad(lambda w: jnp.sum((attend(w) - attend(jnp.asarray(target))) ** 2))
    )
    start = np.float32([2, 1, 3])
    before, gradient = loss(start)
    assert np.isfinite(gradient).all() and np.abs(gradient).min() > 0
    after, _ = loss(start - np.float32(1e-2) * gradient / np.linalg.norm(gradient))
    assert after < before


@pytest.mark.usefixtures("unchecked")
def test_negative_widths_and_widths_of_two_axes_are_refused():
    for widths in (np.array([-1.0]), jnp.asarray([1.0, -1.0]), jnp.asarray([np.nan])):
        with pytest.raises(ValueError, match="widths at least 0"):
            windows.attention_windows(widths, 4)
    with pytest.raises(ValueError, match="must have one axis, of K windows"):
        windows.attention_windows(np.ones((2, 2)), 4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("space", [Euclidean(), Sphere(0.7), Product((Euclidean(), Sphere(1.0)))])
def test_methods_of_spaces_refuse_numbers_in_place_of_vectors(space):
    number, vector = 1.0, np.ones(3)
    if isinstance(space, Product):
        number, vector = (number, number), (vector, vector)
    for name in ("distance", "log_map", "exp_map"):
        with pytest.raises(ValueError, match="expected vectors"):
            getattr(space, name)(number, vector)
    with pytest.raises(ValueError, match="expected sets of vectors"):
        space.pairwise_distance(vector, vector)


@pytest.mark.usefixtures("unchecked")
def test_points_of_a_product_have_one_component_per_factor():
    space, x = Product((Euclidean(), Sphere(1.0))), np.ones(3)
    calls = (
        lambda wrong: space.distance(wrong, (x, x)),
        lambda wrong: space.geodesic(0.5, (x, x), wrong),
        lambda wrong: space.origin(wrong),
    )
    for call in calls:
        for wrong, count in (((x,), 1), ((x, x, x), 3)):
            with pytest.raises(ValueError, match=f"expected a tuple of 2, .* got {count}$"):
                call(wrong)


@pytest.mark.usefixtures("unchecked")
def test_single_key_without_an_axis_is_refused():
    query, key = np.ones((2, 3, 4), np.float32), np.ones(4, np.float32)
    for attend in (euclidean_attention, lambda *inputs: lorentz_attention(*inputs, scale=1.0)):
        with pytest.raises(ValueError, match=r"keys must have the axes .* got shape \(4,\)"):
            attend(query, key, key)


@pytest.mark.usefixtures("unchecked")
def test_batch_of_any_size_is_exported():
    points = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("batch"), 4), jnp.float32)
    heads = jax.ShapeDtypeStruct((points.shape[0], 2, 3, 4), jnp.float32)

    def call(x, y, heads):
        between = lorentz.geodesic(0.3, x, y), poincare.mobius_scalar_mul(0.3, x)
        attended = (
            euclidean_attention(heads, heads, heads),
            lorentz_attention(heads, heads, heads, scale=1.0),
        )
        return (
            *between,
            *attended,
            lorentz.pairwise_distance(x, y),
            poincare.pairwise_distance(x, y),
        )

    exported = jax.export.export(jax.jit(call))(points, points, heads)
    pairs = 2 * points.shape[:1]
    expected = [*2 * [points.shape], *2 * [heads.shape], pairs, pairs]
    assert [aval.shape for aval in exported.out_avals] == expected
    x = np.asarray(lorentz.exp_map0(np.float32(np.random.default_rng(0).normal(size=(3, 3)))))
    arguments = x, x[::-1] / 2, np.zeros((3, 2, 3, 4), np.float32)
    for got, want in zip(exported.call(*arguments), jax.jit(call)(*arguments), strict=True):
        np.testing.assert_array_equal(got, want)
