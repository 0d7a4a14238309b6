"""Spaces as pytrees, spheres and products, and frames of tangent spaces."""

import functools

import chex
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from compiled import compile_space, lorentz, poincare
from derivatives import check_slopes, check_two_derivatives
from mpmath import mpf
from reference import dot, norm, relative_error, slow_except, vector

import hlformer_jax as hl
from hlformer_jax.ops.manifolds import Euclidean, Lorentz, Manifold, Poincare, Product, Sphere

SPACES = {"poincare": Poincare, "lorentz": Lorentz, "sphere": Sphere}


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("name", slow_except(["lorentz"], SPACES))
def test_space_is_an_argument_of_jit_vmap_and_grad(name):
    space = SPACES[name]
    x = np.random.default_rng(0).uniform(-0.3, 0.3, size=(6, 4)).astype(np.float32)
    c = jnp.asarray([0.5, 0.7, 2.0])

    def distances(space, x):
        return space.distance(space.project(x), space.project(x[::-1]))

    def total(space):
        return jnp.sum(distances(space, x))

    want = jax.jit(jax.vmap(lambda c: distances(space(c), x)))(c)
    got = jax.jit(jax.vmap(distances, in_axes=(space(0), None)))(space(c), x)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    slope = jax.jit(jax.grad(total))(space(jnp.float32(0.7)))
    assert isinstance(slope, space)
    np.testing.assert_allclose(
        slope.c, jax.jit(jax.grad(lambda c: total(space(c))))(0.7), rtol=1e-6
    )
    assert hash(space(0.7)) == hash(space(0.7)) and space(0.7) == space(0.7)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SPACES)
def test_hessian_of_squared_distance_at_coincident_points(name):
    """In normal coordinates the Hessian is 2; ``distance ** 2`` has 0 instead, as documented."""
    space = SPACES[name](0.7)
    y = space.exp_map0(jnp.asarray([0.3, -0.2, 0.4]))
    size = space.position_in_frame(y).shape[-1]

    def hessian(function):
        def at(u):
            return function(space.exp_map(y, space.from_frame(y, u)))

        return jax.jit(jax.hessian(at))(jnp.zeros(size))

    def square_of_logarithm(x):
        v = space.log_map(x, y)
        return space.inner(x, v, v)

    frame = jnp.eye(size)
    if name == "sphere":  # the frame includes the normal
        frame = jax.vmap(lambda u: space.from_frame(y, u))(frame)
    np.testing.assert_allclose(hessian(square_of_logarithm), 2 * frame, atol=1e-9)
    np.testing.assert_allclose(hessian(lambda x: space.distance(x, y) ** 2), 0 * frame, atol=1e-9)
    if name != "sphere":
        model = {"poincare": poincare, "lorentz": lorentz}[name]
        lorentzian = hessian(lambda x: model.squared_distance(x, y, 0.7))
        np.testing.assert_allclose(lorentzian, 2 * frame, atol=1e-9)


C = np.array([0.3, 1.0, 2.5])


@functools.cache
def _spaces():
    """Return the manifold, points, tangent vectors, and the inner product of each model."""
    rng = np.random.default_rng(0)
    p, q, v, w = rng.uniform(-0.3, 0.3, size=(4, 3, 4))
    lift = jax.jit(lambda p, v: jax.jvp(lambda p: poincare.to_lorentz(p, C), (p,), (v,)))
    (x, a), (_, b) = lift(p, v), lift(p, w)

    def flat(x, v, w):
        return jnp.sum(v * w, -1) * poincare.conformal_factor(x, C) ** 2

    return {
        "poincare": (Poincare(C), p, q, v, w, flat),
        "lorentz": (
            Lorentz(C),
            x,
            poincare.to_lorentz(q, C),
            a,
            b,
            lambda _, v, w: lorentz.inner(v, w),
        ),
        "sphere": _sphere(rng),
    }


def _sphere(rng):
    space, compiled = Sphere(C), compile_space(Sphere(C))
    x, y = (compiled.project(jnp.asarray(z)) for z in rng.normal(size=(2, 3, 4)))
    v, w = (compiled.from_frame(x, jnp.asarray(z)) for z in rng.normal(size=(2, 3, 4)) / 3)
    return space, x, y, v, w, lambda _, v, w: jnp.sum(v * w, -1)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", slow_except(["lorentz", "sphere"], SPACES))
def test_riemannian_gradient_is_the_directional_derivative(name):
    space, x, y, v, w, inner = _spaces()[name]
    for function in (
        lambda x: jnp.sum(space.distance(x, y) ** 2),
        lambda x: jnp.sum(jnp.sin(x)),  # of the time component too
    ):

        @jax.jit
        def gradients(x, function=function):
            gradient = jax.grad(function)(x)
            riemannian = space.egrad_to_rgrad(x, gradient)

            def end(t):
                return function(space.exp_map(x, t * v))

            rise = jnp.sum(inner(x, riemannian, v)), jax.jvp(end, (0.0,), (1.0,))[1]
            frame = space.gradient_in_frame(x, gradient)
            restored = space.from_frame(x, frame)
            return riemannian, rise, restored, (jnp.sum(frame**2, -1), inner(x, restored, restored))

        riemannian, rise, restored, sizes = gradients(x)
        np.testing.assert_allclose(*rise, rtol=1e-11)
        # The frame is orthonormal, and the gradient in it is the same vector.
        np.testing.assert_allclose(restored, riemannian, rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(*sizes, rtol=1e-11)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SPACES)
def test_retraction_equals_exp_map_to_first_order(name):
    space, x, _, v, _, _ = _spaces()[name]

    def steps(t):
        step = space.retract(x, t * v)
        return step, space.project(step), space.exp_map(x, t * v)

    step, projected, exact = jax.jit(jax.vmap(steps))(np.array([1e-3, 5e-4]))
    np.testing.assert_allclose(projected, step, rtol=1e-15)
    gaps = np.abs(step - exact).max(axis=(1, 2))
    assert 0 < gaps[0] < 1e-5
    np.testing.assert_allclose(gaps[0] / gaps[1], 8 if name == "sphere" else 4, rtol=0.02)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SPACES)
def test_transport_in_frame_equals_transport(name):
    space, x, y, v, w, inner = _spaces()[name]
    space = compile_space(space)
    u = space.gradient_in_frame(x, np.random.default_rng(1).normal(size=x.shape))
    want = space.transport(x, y, space.from_frame(x, u))
    got = space.from_frame(y, space.transport_in_frame(x, y, u))
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("radius", [1.0, 12.0, 17.0])
def test_transport_in_frame_keeps_its_angle_far_out(radius):
    """Twice the angle of τ_x + τ_y + 1 − ⟨x, y⟩ and the area x_1 y_2, for x on the first axis."""
    x = np.asarray([np.sinh(radius), 0, 0], np.float32)
    y = x + np.asarray([0.5, 1.5, 0], np.float32)
    x, y = np.asarray(lorentz.from_space(x)), np.asarray(lorentz.from_space(y))
    got = jax.jit(Lorentz().transport_in_frame)(x, y, np.eye(3, dtype=np.float32)[0])
    start, end = x[1:].astype(float), y[1:].astype(float)
    tau_x, tau_y = np.sqrt(1 + start @ start), np.sqrt(1 + end @ end)
    real = tau_x + tau_y + 1 + tau_x * tau_y - start @ end
    angle = 2 * np.arctan2(start[0] * end[1], real)
    np.testing.assert_allclose(got, [np.cos(angle), -np.sin(angle), 0], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("float64")
def test_gradient_at_a_distant_point_keeps_its_transverse_part():
    x = lorentz.exp_map0(jnp.asarray([25.0, 0, 0]))
    frame = jax.jit(Lorentz().gradient_in_frame)(x, jnp.asarray([0, 1.0, 1e-9, 0]))
    np.testing.assert_allclose(frame[0], np.cosh(25.0), rtol=1e-13)
    np.testing.assert_allclose(frame[1:], [1e-9, 0], rtol=1e-12)


class _Reference:
    """The sphere in 80-digit arithmetic: textbook formulas of the angle between two vectors."""

    def __init__(self, c):
        self.c, self.root = c, mpmath.sqrt(c)

    def distance(self, x, y):
        cosine = dot(x, y) / (norm(x) * norm(y))
        return mpmath.acos(cosine) / self.root

    def exp_map(self, x, v):
        angle = self.root * norm(v)
        across = mpmath.sin(angle) / angle if angle else mpf(1)
        return [mpmath.cos(angle) * a + across * b for a, b in zip(x, v, strict=True)]

    def log_map(self, x, y):
        angle = self.root * self.distance(x, y)
        factor = angle / mpmath.sin(angle) if angle else mpf(1)
        return [factor * (b - mpmath.cos(angle) * a) for a, b in zip(x, y, strict=True)]

    def transport(self, x, y, v):
        x, y = ([a / norm(z) for a in z] for z in (x, y))
        factor = dot(y, v) / (1 + dot(x, y))
        return [w - factor * (a + b) for w, a, b in zip(v, x, y, strict=True)]


ANGLES = [1e-12, 1e-6, 0.02, 0.4, np.pi / 2, 3.0, np.pi - 1e-3]


@pytest.mark.usefixtures("float64")
def test_sphere_against_80_digits():
    c, rng = 0.7, np.random.default_rng(0)
    space, reference = compile_space(Sphere(c)), _Reference(mpf(c))
    x = space.project(jnp.asarray(rng.normal(size=(1, 4))))
    across = space.from_frame(x, jnp.asarray(rng.normal(size=(1, 4))))
    v = across / jnp.linalg.norm(across) * np.asarray(ANGLES)[:, None] / np.sqrt(c)
    y, w = space.exp_map(x, v), space.from_frame(x, jnp.asarray(rng.normal(size=(1, 4))))
    got = {
        "exp_map": (y, x, v),
        "distance": (space.distance(x, y), x, y),
        "log_map": (space.log_map(x, y), x, y),
        "transport": (space.transport(x, y, w), x, y, w),
    }
    for name, (values, *arrays) in got.items():
        for k, angle in enumerate(ANGLES):
            args = [vector(np.broadcast_to(a, (len(ANGLES), 4))[k]) for a in arrays]
            want = getattr(reference, name)(*args)
            # Rounding moves points off the sphere, which matters if their difference is small.
            bound = 4e-15 * (1 if name == "exp_map" else 1 + 1 / np.sin(angle))
            assert relative_error(values[k], want) < bound, (name, angle)
    np.testing.assert_allclose(space.log_map(x, y), v, rtol=2e-12, atol=1e-24 + 2e-16)


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("check", [check_slopes, check_two_derivatives])
def test_derivatives_on_the_sphere_equal_differences(check):
    angle = np.array([0.0, 1e-9, 0.3, 2.0])[:, None]
    space, compiled = Sphere(0.7), compile_space(Sphere(0.7))
    start = compiled.exp_map0(np.tile([0.3, -0.5, 0.2], (4, 1)))
    end = compiled.exp_map(start, compiled.from_frame(start, angle * np.ones(4) / 2))

    def along(u, end, v):
        return (space.exp_map(space.project(u), v), space.transport(u, end, v))

    check(along, (start, end, compiled.from_frame(start, angle * np.ones(4))))
    check(lambda x, y: space.log_map(x, space.project(y)), (start, end))

    def distance(x, y, c):
        return Sphere(c).distance(x, y)

    check(distance, (start[2:], end[2:], 0.7))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("sign", [1, -1])
def test_sphere_is_finite_at_coincident_and_antipodal_points(sign):
    x, v = jnp.asarray([[0.6, 0.8, 0.0]]), jnp.asarray([[0.0, 0.0, 2.0]])
    space = Sphere()

    @jax.jit
    def evaluate(x, y, v):
        return space.distance(x, y), space.log_map(x, y), space.transport(x, y, v)

    distance, logarithm, moved = evaluate(x, sign * x, v)
    np.testing.assert_allclose(distance, [0.0 if sign == 1 else np.pi], rtol=1e-6)
    np.testing.assert_array_equal(logarithm, 0)
    np.testing.assert_array_equal(moved, v)

    @jax.jit
    def slopes(x, y, v):
        def total(*args):
            return sum(jnp.sum(jnp.sin(part)) for part in evaluate(*args))

        of_distance = jax.grad(lambda y: jnp.sum(space.distance(x, y)))(y)
        return jax.grad(total, (0, 1, 2))(x, y, v), of_distance

    gradients, slope = slopes(x, sign * x, v)
    for gradient in gradients:
        assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(slope, 0)
    space = compile_space(space)
    origin = space.project(jnp.zeros((1, 3)))
    np.testing.assert_array_equal(origin, [[1, 0, 0]])
    np.testing.assert_allclose(space.log_map0(space.exp_map0(x[:, 1:])), x[:, 1:], rtol=1e-6)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
def test_product_acts_on_each_factor_alone():
    rng = np.random.default_rng(0)
    product = Product((Lorentz(0.5), Product((Euclidean(), Sphere(2.0))), Poincare(1.0)))
    assert isinstance(product, Manifold)
    space = compile_space(product)

    def draw():
        return [jnp.asarray(rng.normal(size=(5, 3)) / 3) for _ in range(4)]

    def tangent():
        return (lambda a, b, c, d: (a, (b, c), d))(*draw())

    x, y = space.exp_map0(tangent()), space.exp_map0(tangent())
    v = space.log_map(x, y)
    assert_close = functools.partial(chex.assert_trees_all_close, rtol=1e-11, atol=1e-13)
    assert_close(space.exp_map(x, v), y)
    assert_close(space.exp_map0(space.log_map0(x)), x)
    assert_close(space.project(x), x)
    assert_close(space.transport(x, y, v), jax.tree.map(jnp.negative, space.log_map(y, x)))
    first, (second, third), last = x
    lengths = [
        lorentz.distance(first, y[0], 0.5), np.linalg.norm(second - y[1][0], axis=-1),
        compile_space(Sphere(2.0)).distance(third, y[1][1]), poincare.distance(last, y[2]),
    ]  # fmt: skip
    assert_close(space.distance(x, y), np.sqrt(np.sum(np.square(lengths), axis=0)))
    # The gradient of half the squared distance is minus the logarithm, in every factor.
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(product.distance(x, y) ** 2) / 2))(x)
    frame = space.gradient_in_frame(x, gradient)
    minus_log = jax.tree.map(jnp.negative, v)
    assert_close(space.from_frame(x, frame), minus_log)
    assert_close(space.egrad_to_rgrad(x, gradient), minus_log)
    turned = space.from_frame(y, space.transport_in_frame(x, y, frame))
    assert_close(turned, space.log_map(y, x))
    small_step = jax.tree.map(lambda z: 1e-7 * z, v)
    assert_close(space.retract(x, small_step), space.exp_map(x, small_step), atol=1e-12)


@pytest.mark.slow  # it takes seconds
def test_product_has_gradient_zero_where_two_points_meet():
    space = Product((Lorentz(jnp.float32(0.5)), Euclidean(), Sphere(jnp.float32(2.0))))
    x = compile_space(space).exp_map0(3 * (jnp.ones((2, 3)),))
    slopes = jax.jit(jax.grad(lambda space, x, y: jnp.sum(space.distance(x, y)), (0, 1)))
    jax.tree.map(lambda g: np.testing.assert_array_equal(g, 0), slopes(space, x, x))
    opposite = compile_space(space).exp_map0(3 * (-jnp.ones((2, 3)),))
    of_space, of_points = slopes(space, x, opposite)
    assert of_space.factors[0].c < 0 and of_space.factors[2].c < 0
    assert all(np.isfinite(g).all() and np.any(g) for g in jax.tree.leaves(of_points))


@pytest.mark.parametrize("space", [
    Lorentz, Poincare, Sphere,
    lambda c: Product((Euclidean(), Lorentz(c))),
    lambda c: hl.nn.Linear(3, Lorentz(c)),
])  # fmt: skip
def test_spaces_with_arrays_of_curvatures_compare(space):
    c = jnp.asarray([0.5, 2.0])
    assert space(c) == space(c + 0) == space(np.asarray(c))
    assert space(c) != space(c + 1) and space(c) != space(c[:1]) and space(c[:1]) != space(0.5)
    assert space(jnp.asarray(0.5)) == space(0.5) and hash(space(0.5)) == hash(space(0.5))
    assert space(None) == space(None) != space(0.5)
