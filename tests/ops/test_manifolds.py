"""Spaces as pytrees, frames of tangent spaces, optimisers of points in all of optax's wrappers."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import lorentz, poincare

from hlformer_jax.ops.manifolds import (
    Lorentz,
    ManifoldError,
    Poincare,
    riemannian,
    scale_by_length_adam,
)

SPACES = {"poincare": (poincare, Poincare), "lorentz": (lorentz, Lorentz)}


def _points(name, c, count=6):
    u = np.random.default_rng(0).normal(size=(count, 3)) / 2
    # Half as long a vector leads to the same point in the ball.
    return SPACES[name][0].exp_map0(jnp.asarray(u) / (2 if name == "poincare" else 1), c)


def _descend(optimizer, params, gradient_of, inputs):
    """Parameters after a step for each of some inputs, which go to the gradient."""

    def step(carry, x):
        params, state = carry
        updates, state = optimizer.update(gradient_of(params, x), state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, optimizer.init(params)), inputs)[0][0]


def _towards(model, goal, c=1.0):
    """The gradient of the sum of squared distances to some points."""
    return lambda x, _: jax.grad(lambda x: jnp.sum(model.distance(x, goal, c) ** 2))(x)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SPACES)
def test_a_step_of_sgd_follows_the_riemannian_gradient_along_a_geodesic(name):
    model, space = SPACES[name]
    x, c = _points(name, 0.7), 0.7
    target = x[::-1]
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(model.distance(x, target, c) ** 2) / 2))(x)
    optimizer = riemannian(optax.sgd(0.25), space(c))
    updates, _ = jax.jit(optimizer.update)(gradient, optimizer.init(x), x)
    moved = optax.apply_updates(x, updates)
    # The gradient of half the squared distance is minus the logarithm.
    np.testing.assert_allclose(moved, model.geodesic(0.25, x, target, c), rtol=1e-11, atol=1e-13)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SPACES)
def test_momentum_is_transported_with_the_point(name):
    model, space = SPACES[name]
    space, x = space(0.7), _points(name, 0.7)
    optimizer = riemannian(optax.sgd(0.3, momentum=0.9), space)
    update = jax.jit(optimizer.update)
    rng = np.random.default_rng(1)
    state, moment, expected = optimizer.init(x), 0, x
    for _ in range(3):
        gradient = jnp.asarray(rng.normal(size=x.shape))
        updates, state = update(gradient, state, x)
        x = optax.apply_updates(x, updates)
        moment = space.egrad_to_rgrad(expected, gradient) + 0.9 * moment
        end = space.exp_map(expected, -0.3 * moment)
        moment, expected = space.transport(expected, end, moment), end
        np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("standard_promotion")
def test_parameters_that_are_no_points_are_optimised_as_ever():
    rng = np.random.default_rng(0)
    params = {
        "points": _points("lorentz", 1.0),
        "more": {"ball": jnp.zeros((2, 3)), "bias": jnp.asarray(rng.normal(size=4), jnp.float32)},
    }
    gradients = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), params)
    mask = {"points": True, "more": False}
    inner = optax.adamw(0.1, weight_decay=0.1)
    run = lambda optimizer, params, gradients: jax.jit(
        lambda params: _descend(optimizer, params, lambda *_: gradients, jnp.arange(2))
    )(params)
    masked, called = (
        run(riemannian(inner, Lorentz(), of), params, gradients) for of in (mask, lambda _: mask)
    )
    jax.tree.map(np.testing.assert_array_equal, masked, called)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, masked["more"], run(inner, params["more"], gradients["more"]))
    assert (lorentz.time_error(masked["points"]) < 1e-6).all()
    # Weight decay would pull points to no end.
    plain = run(riemannian(optax.adam(0.1), Lorentz()), params["points"], gradients["points"])
    close(masked["points"], plain)


def test_parameters_are_needed():
    optimizer = riemannian(optax.sgd(0.1), Poincare())
    x = jnp.zeros((2, 3))
    with pytest.raises(ManifoldError, match="needs the params"):
        optimizer.update(x, optimizer.init(x))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("retract", [False, True])
def test_rotating_the_space_rotates_the_whole_run_of_length_adam(retract):
    matrix, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    target = _points("poincare", 1.0)[::-1]

    @jax.jit
    def run(turn):
        x, goal = _points("poincare", 1.0) @ turn.T, target @ turn.T
        inner = optax.chain(scale_by_length_adam(), optax.scale(-0.1))
        optimizer = riemannian(inner, Poincare(), retract=retract)
        return _descend(optimizer, x, _towards(poincare, goal), jnp.arange(30))

    straight = run(np.eye(3))
    np.testing.assert_allclose(run(matrix), straight @ matrix.T, rtol=1e-8, atol=1e-10)
    assert (poincare.distance(straight, target) < poincare.distance(target[::-1], target)).all()


@pytest.mark.usefixtures("standard_promotion")
def test_both_models_take_the_same_steps():
    c, ends = 0.7, {}
    for name, (model, space) in SPACES.items():
        x = _points(name, c).astype(jnp.float32)
        optimizer, way = riemannian(optax.adam(0.05), space(c)), _towards(model, x[::-1], c)
        run = jax.jit(
            lambda x, optimizer=optimizer, way=way: _descend(optimizer, x, way, jnp.arange(20))
        )
        ends[name] = run(x) if name == "poincare" else poincare.from_lorentz(run(x), c)
    np.testing.assert_allclose(ends["poincare"], ends["lorentz"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", SPACES)
def test_a_space_is_an_argument_of_jit_vmap_and_grad(name):
    model, space = SPACES[name]
    x, c = _points(name, 0.7).astype(jnp.float32), jnp.asarray([0.5, 0.7, 2.0])
    distances = lambda space, x: space.distance(space.project(x), space.project(x[::-1]))
    total = lambda space: jnp.sum(distances(space, x))
    want = jax.vmap(lambda c: distances(space(c), x))(c)
    got = jax.jit(jax.vmap(distances, in_axes=(space(0), None)))(space(c), x)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    slope = jax.jit(jax.grad(total))(space(jnp.float32(0.7)))
    assert isinstance(slope, space)
    np.testing.assert_allclose(
        slope.c, jax.jit(jax.grad(lambda c: total(space(c))))(0.7), rtol=1e-6
    )
    assert hash(space(0.7)) == hash(space(0.7)) and space(0.7) == space(0.7)


@pytest.mark.usefixtures("standard_promotion")
def test_a_curvature_is_learned_as_a_leaf_of_the_space():
    x = 3 * np.random.default_rng(0).normal(size=(2, 8, 3))
    x, y = (jnp.pad(jnp.asarray(v, jnp.float32), ((0, 0), (1, 0))) for v in x)
    want = lorentz.distance(x, y, 1.7)  # it reads space components alone
    loss = lambda space: jnp.mean((space.distance(x, y) - want) ** 2)
    slope = lambda space, _: jax.grad(loss)(space)
    run = jax.jit(lambda space: _descend(optax.adam(0.05), space, slope, jnp.arange(150)))
    np.testing.assert_allclose(run(Lorentz(jnp.float32(0.8))).c, 1.7, rtol=1e-2)


# What optax wraps optimisers in, with the same steps as of what it wraps; none of them skips one.
LABELS = {"points": "one", "more": "two"}
WRAPPERS = {
    "chain": optax.chain,
    "named_chain": lambda inner: optax.named_chain(("a", inner), ("b", optax.identity())),
    "masked": lambda inner: optax.masked(inner, {"points": True, "more": True}),
    "partition": lambda inner: optax.partition({"one": inner, "two": inner}, LABELS),
    "multi_transform": lambda inner: optax.multi_transform({"one": inner, "two": inner}, LABELS),
    "inject_hyperparams": lambda inner: optax.inject_hyperparams(
        lambda factor: optax.chain(inner, optax.scale(factor))
    )(factor=1.0),
    "MultiSteps": lambda inner: optax.MultiSteps(inner, 1),
    "its transformation": lambda inner: optax.MultiSteps(inner, 1).gradient_transformation(),
    "apply_if_finite": lambda inner: optax.apply_if_finite(inner, 3),
    "conditionally_transform": lambda inner: optax.conditionally_transform(
        inner, lambda step, **_: step >= 0
    ),
    "conditionally_mask": lambda inner: optax.conditionally_mask(inner, lambda step, **_: True),
    "with_extra_args_support": optax.with_extra_args_support,
    "freeze": lambda inner: optax.transforms.selective_transform(
        inner, freeze_mask={"points": False, "more": False}
    ),
    "nested": lambda inner: optax.MultiSteps(
        optax.apply_if_finite(
            optax.inject_hyperparams(lambda factor: optax.chain(
                optax.partition({"one": inner, "two": inner}, LABELS), optax.scale(factor)
            ))(factor=1.0), 3
        ), 1
    ),
}  # fmt: skip


def _run(optimizer, gradients):
    """Parameters after a step for each of some gradients, of points and of what is none."""
    params = {"points": _points("lorentz", 1.0), "more": jnp.ones(4)}
    params = jax.tree.map(lambda x: x.astype(jnp.float32), params)

    run = jax.jit(lambda *args: _descend(optimizer, args[0], lambda _, g: g, args[1]))
    return run(params, gradients)


def _gradients(steps=4):
    rng = np.random.default_rng(2)
    draw = lambda *shape: jnp.asarray(rng.normal(size=(steps, *shape)), jnp.float32)
    return {"points": draw(6, 4), "more": draw(4)}


MASK = {"points": True, "more": False}


@pytest.fixture(scope="module")
def unwrapped():
    with jax.numpy_dtype_promotion("standard"):
        return _run(riemannian(optax.adam(0.3), Lorentz(), MASK), _gradients())


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_optimiser_takes_the_steps_of_the_plain_one(name, unwrapped):
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    inside = riemannian(WRAPPERS[name](optax.adam(0.3)), Lorentz(), MASK)
    jax.tree.map(close, _run(inside, _gradients()), unwrapped)
    assert np.abs(unwrapped["points"] - _points("lorentz", 1.0)).max() > 0.5


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("name", ["MultiSteps", "apply_if_finite", "partition"])
def test_a_riemannian_optimiser_may_be_wrapped(name, unwrapped):
    inner = riemannian(optax.adam(0.3), Lorentz(), MASK)
    if name == "partition":  # each sees its own parameters alone
        inside = {"one": riemannian(optax.adam(0.3), Lorentz()), "two": optax.adam(0.3)}
        outside = optax.partition(inside, LABELS)
    else:
        outside = WRAPPERS[name](inner)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, _run(outside, _gradients()), unwrapped)


@pytest.mark.usefixtures("standard_promotion")
def test_gradients_that_multi_steps_collects_are_one_step_of_their_mean():
    gradients = _gradients()
    twice = jax.tree.map(lambda g: jnp.repeat(g, 2, axis=0), gradients)
    inner = optax.sgd(0.1, momentum=0.9)
    collected = riemannian(optax.MultiSteps(inner, 2), Lorentz(), MASK)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        _run(collected, twice),
        _run(riemannian(inner, Lorentz(), MASK), gradients),
    )


# Momentum alone is linear: in the frames of points that have moved, it is one vector at them all.
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize(
    ("optimizer", "fields"),
    [
        (optax.sgd(0.1, momentum=0.9), ["trace"]),
        (optax.chain(optax.ema(0.9), optax.scale(-0.1)), ["ema"]),
        (optax.adamax(0.1), ["mu"]),
        (optax.lion(0.1), ["mu"]),
        (optax.adan(0.1), ["m", "v", "g"]),
        (optax.sm3(0.1), ["nu"]),
        (optax.optimistic_gradient_descent(0.1), ["previous_gradient"]),
        (optax.contrib.ademamix(0.1), ["m1", "m2"]),
        (optax.chain(optax.apply_every(2), optax.scale(-0.1)), ["grad_acc"]),
        (optax.rmsprop(0.1), []),
        (optax.adadelta(0.1), []),
        (optax.adafactor(0.1, min_dim_size_to_factor=2), []),
        (optax.yogi(0.1), ["mu"]),
        (optax.amsgrad(0.1), ["mu"]),
        (optax.novograd(0.1), ["mu"]),
        (optax.rprop(0.1), ["prev_updates"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_first_moments_are_transported_and_second_ones_are_not(optimizer, fields):
    x, space = _points("lorentz", 1.0).astype(jnp.float32), Lorentz()
    gradient = jnp.asarray(np.random.default_rng(0).normal(size=x.shape), jnp.float32)
    outside = riemannian(optimizer, space)
    updates, state = jax.jit(outside.update)(gradient, outside.init(x), x)
    frame = space.gradient_in_frame(x, gradient).astype(x.dtype)
    _, plain = jax.jit(optimizer.update)(frame, optimizer.init(frame), jnp.zeros_like(frame))
    moved = optax.apply_updates(x, updates)
    for (path, got), want in zip(
        jax.tree_util.tree_flatten_with_path(state)[0], jax.tree.leaves(plain), strict=True
    ):
        names = {getattr(key, "name", None) for key in path}
        if names & {*fields}:
            turned = space.transport_in_frame(x, moved, want)
            np.testing.assert_allclose(got, turned, rtol=1e-5, atol=1e-6)
            still = np.array_equal(moved, x) or not np.any(want)
            assert still or np.abs(turned - want).max() > 1e-3 * np.abs(want).max()
        else:
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize(
    "wrap", [lambda x: [x], lambda x: (jnp.zeros((2, 4)), x), lambda x: _Velocity(x)]
)
def test_points_of_any_pytree_take_the_same_steps(wrap):
    x, gradients = _points("lorentz", 1.0).astype(jnp.float32), _gradients()["points"]
    inner = optax.chain(optax.inject_hyperparams(optax.adam)(0.3), optax.identity())
    run = lambda start, gradients: _descend(
        riemannian(inner, Lorentz()), start, lambda _, g: g, gradients
    )
    want, got = jax.jit(run)(x, gradients), jax.jit(run)(wrap(x), jax.vmap(wrap)(gradients))
    np.testing.assert_allclose(jax.tree.leaves(got)[-1], want, rtol=1e-6, atol=1e-6)


class _Velocity(NamedTuple):
    velocity: object


def _heavy_ball(state=_Velocity):
    """An optimiser with a state that nobody knows."""
    init = lambda params: state(jax.tree.map(jnp.zeros_like, params))

    def update(gradients, old, params=None):
        [before] = jax.tree.leaves(old)
        new = jax.tree.map(lambda g: 0.9 * before + g, gradients)
        return jax.tree.map(lambda v: -0.1 * v, new), state(new)

    return optax.GradientTransformation(init, update)


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: _heavy_ball(), "_Velocity.velocity"),
        (lambda: _heavy_ball(lambda v: {"unnamed": v}), "unnamed part"),
        (lambda: optax.flatten(optax.adam(0.1)), "ScaleByAdamState.mu"),
        (lambda: optax.lbfgs(0.1), "of the optimiser's state"),
        (lambda: optax.contrib.schedule_free_adamw(0.1), "ScheduleFreeState"),
        (lambda: optax.contrib.prodigy(0.1), "of the optimiser's state"),
        (lambda: optax.contrib.dog(0.1), "of the optimiser's state"),
        (lambda: optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1), opaque_mode=True), "SAMState"),
        (lambda: optax.chain(optax.sgd(0.1), optax.scale_by_backtracking_linesearch(9)), "search"),
    ],
)
def test_what_cannot_be_transported_is_refused_before_the_first_step(make, word):
    with pytest.raises(ManifoldError, match=word):
        riemannian(make(), Lorentz()).init(_points("lorentz", 1.0))


def test_lookahead_is_refused():
    both = optax.LookaheadParams.init_synced(_points("lorentz", 1.0))
    with pytest.raises(ManifoldError, match="LookaheadState"):
        riemannian(optax.lookahead(optax.sgd(0.1), 5, 0.5), Lorentz()).init(both)


@pytest.mark.usefixtures("float64")
def test_a_field_that_is_named_a_vector_is_transported():
    x, rng = _points("lorentz", 1.0), np.random.default_rng(0)
    steps = {"named": riemannian(_heavy_ball(), Lorentz(), vectors={"velocity"})}
    steps["known"] = riemannian(optax.sgd(0.1, momentum=0.9), Lorentz())
    ends = {name: (x, optimizer.init(x)) for name, optimizer in steps.items()}
    for _ in range(3):
        gradient = jnp.asarray(rng.normal(size=x.shape))
        for name, optimizer in steps.items():
            x, state = ends[name]
            updates, state = jax.jit(optimizer.update)(gradient, state, x)
            ends[name] = x + updates, state
    np.testing.assert_allclose(ends["named"][0], ends["known"][0], rtol=1e-12)


C = np.array([0.3, 1.0, 2.5])


def _spaces():
    """For each model: the manifold, points, tangent vectors, and inner products of those."""
    rng = np.random.default_rng(0)
    p, q, v, w = rng.uniform(-0.3, 0.3, size=(4, 3, 4))
    lift = lambda p, v: jax.jvp(lambda p: poincare.to_lorentz(p, C), (p,), (v,))
    (x, a), (_, b) = lift(p, v), lift(p, w)
    flat = lambda x, v, w: jnp.sum(v * w, -1) * poincare.conformal_factor(x, C) ** 2
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
    }


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["poincare", "lorentz"])
def test_the_riemannian_gradient_is_the_derivative_along_tangent_vectors(name):
    space, x, y, v, w, inner = _spaces()[name]
    model = {"poincare": poincare, "lorentz": lorentz}[name]
    for function in (
        lambda x: jnp.sum(model.distance(x, y, C) ** 2),
        lambda x: jnp.sum(jnp.sin(x)),  # of the time component too
    ):

        @jax.jit
        def gradients(x, function=function):
            gradient = jax.grad(function)(x)
            riemannian = space.egrad_to_rgrad(x, gradient)
            end = lambda t: function(space.exp_map(x, t * v))
            rise = jnp.sum(inner(x, riemannian, v)), jax.jvp(end, (0.0,), (1.0,))[1]
            frame = space.gradient_in_frame(x, gradient)
            back = space.from_frame(x, frame)
            return riemannian, rise, back, (jnp.sum(frame**2, -1), inner(x, back, back))

        riemannian, rise, back, sizes = gradients(x)
        np.testing.assert_allclose(*rise, rtol=1e-11)
        # The frame is orthonormal, and its gradient is the same vector.
        np.testing.assert_allclose(back, riemannian, rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(*sizes, rtol=1e-11)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["poincare", "lorentz"])
def test_retraction_agrees_with_the_exponential_map_to_first_order(name):
    space, x, _, v, _, _ = _spaces()[name]
    gaps = []
    for t in (1e-3, 5e-4):
        step = space.retract(x, t * v)
        np.testing.assert_allclose(space.project(step), step, rtol=1e-15)
        gaps.append(np.abs(step - space.exp_map(x, t * v)).max())
    assert gaps[0] < 1e-5
    np.testing.assert_allclose(gaps[0] / gaps[1], 4, rtol=0.02)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["poincare", "lorentz"])
def test_transport_in_the_frame_is_transport(name):
    space, x, y, v, w, inner = _spaces()[name]
    u = np.random.default_rng(1).normal(size=(3, 4))
    want = space.transport(x, y, space.from_frame(x, u))
    got = space.from_frame(y, space.transport_in_frame(x, y, u))
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)


@pytest.mark.usefixtures("float64")
def test_a_gradient_far_out_on_the_hyperboloid_keeps_its_transverse_part():
    x = lorentz.exp_map0(jnp.asarray([25.0, 0, 0]))
    frame = jax.jit(Lorentz().gradient_in_frame)(x, jnp.asarray([0, 1.0, 1e-9, 0]))
    np.testing.assert_allclose(frame[0], np.cosh(25.0), rtol=1e-13)
    np.testing.assert_allclose(frame[1:], [1e-9, 0], rtol=1e-12)
