"""Optimisers of points in any mixture of spaces, and in all wrappers of optax."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import compile_space, lorentz, poincare
from descent import descend, take_steps
from reference import slow_except

from hlformer_jax.ops.manifolds import Euclidean, Lorentz, Poincare, Product, Sphere
from hlformer_jax.ops.optim import ManifoldError, riemannian, scale_by_length_adam

SPACES = {"poincare": (poincare, Poincare), "lorentz": (lorentz, Lorentz)}
CURVED = {"lorentz": Lorentz, "poincare": Poincare, "sphere": Sphere}


def _points(name, c, count=6):
    u = np.random.default_rng(0).normal(size=(count, 3)) / 2
    # In the ball a vector of half the length leads to the same point.
    return SPACES[name][0].exp_map0(jnp.asarray(u) / (2 if name == "poincare" else 1), c)


def _towards(model, goal, c=1.0):
    """Return the gradient of the sum of squared distances to the goals."""
    return lambda x, _: jax.grad(lambda x: jnp.sum(model.distance(x, goal, c) ** 2))(x)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", slow_except(["lorentz"], SPACES))
def test_sgd_step_follows_a_geodesic(name):
    model, space = SPACES[name]
    x, c = _points(name, 0.7), 0.7
    target = x[::-1]
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(model.distance(x, target, c) ** 2) / 2))(x)
    optimizer = riemannian(optax.sgd(0.25), space(c))
    updates, _ = jax.jit(optimizer.update)(gradient, optimizer.init(x), x)
    moved = optax.apply_updates(x, updates)
    # The gradient of half the squared distance is minus the logarithm.
    np.testing.assert_allclose(moved, model.geodesic(0.25, x, target, c), rtol=1e-11, atol=1e-13)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", slow_except(["lorentz"], SPACES))
def test_momentum_is_transported_with_the_point(name):
    model, space = SPACES[name]
    space, x = space(0.7), _points(name, 0.7)
    optimizer = riemannian(optax.sgd(0.3, momentum=0.9), space)
    update, space = jax.jit(optimizer.update), compile_space(space)
    rng = np.random.default_rng(1)
    state, moment, expected = optimizer.init(x), 0, x
    for _ in range(3):
        gradient = rng.normal(size=x.shape)
        updates, state = update(gradient, state, x)
        x = optax.apply_updates(x, updates)
        moment = np.asarray(space.egrad_to_rgrad(expected, gradient)) + 0.9 * np.asarray(moment)
        end = space.exp_map(expected, -0.3 * moment)
        moment, expected = space.transport(expected, end, moment), end
        np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("standard_promotion")
def test_euclidean_parameters_are_optimised_as_by_optax():
    rng = np.random.default_rng(0)
    params = {
        "points": _points("lorentz", 1.0),
        "more": {"ball": jnp.zeros((2, 3)), "bias": jnp.asarray(rng.normal(size=4), jnp.float32)},
    }
    gradients = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), params)
    spaces = {"points": Lorentz(), "more": Euclidean()}
    inner = optax.adamw(0.1, weight_decay=0.1)

    def run(optimizer, params, gradients):
        return jax.jit(
            lambda params: take_steps(optimizer, params, lambda *_: gradients, jnp.arange(2))
        )(params)

    by_tree, by_function = (
        run(riemannian(inner, space_tree), params, gradients)
        for space_tree in (spaces, lambda _: spaces)
    )
    jax.tree.map(np.testing.assert_array_equal, by_tree, by_function)
    euclidean = run(inner, params["more"], gradients["more"])
    chex.assert_trees_all_close(by_tree["more"], euclidean, rtol=1e-5, atol=1e-6)
    assert (lorentz.time_error(by_tree["points"]) < 1e-6).all()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "name", slow_except(["lorentz", "sphere"], ["lorentz", "poincare", "sphere"])
)
def test_weight_decay_moves_points_towards_the_origin(name):
    """Points move by the rate times the distance; on a sphere, which has no centre, they stay."""
    space = CURVED[name](0.7)
    x = compile_space(space).exp_map0(np.random.default_rng(0).normal(size=(6, 3)) / 2)
    optimizer = riemannian(optax.chain(optax.add_decayed_weights(0.5), optax.scale(-0.2)), space)
    updates, _ = jax.jit(optimizer.update)(jnp.zeros_like(x), optimizer.init(x), x)
    want = x if name == "sphere" else compile_space(space).geodesic(0.1, x, space.origin(3)[None])
    np.testing.assert_allclose(x + updates, want, rtol=1e-12, atol=1e-14)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
def test_parameter_norm_is_the_distance_from_the_origin():
    """Steps of a trust ratio are a share of the distance, or of the radius of a sphere."""
    u = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)) / 2)
    for space, points in (
        (Lorentz(0.7), lorentz.exp_map0(u, 0.7)),
        (Poincare(0.7), poincare.exp_map0(u / 2, 0.7)),
        (Sphere(0.7), compile_space(Sphere(0.7)).exp_map0(u)),
    ):
        size = jnp.linalg.norm(u)
        if isinstance(space, Sphere):
            size = jnp.sqrt(6 / 0.7)
        optimizer = riemannian(optax.chain(optax.scale_by_trust_ratio(), optax.scale(-0.01)), space)
        goals = points[::-1]

        @jax.jit
        def moved(points, space=space, goals=goals, optimizer=optimizer):
            gradient = jax.grad(lambda x: jnp.sum(space.distance(x, goals) ** 2))(points)
            updates, _ = optimizer.update(gradient, optimizer.init(points), points)
            return jnp.linalg.norm(space.distance(points, points + updates))

        np.testing.assert_allclose(moved(points), 0.01 * size, rtol=1e-9)


def test_update_without_parameters_is_refused():
    optimizer = riemannian(optax.sgd(0.1), Poincare())
    x = jnp.zeros((2, 3))
    with pytest.raises(ManifoldError, match="needs the parameters"):
        optimizer.update(x, optimizer.init(x))


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("retract", [False, True])
def test_length_adam_commutes_with_rotations(retract):
    matrix, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    target = _points("poincare", 1.0)[::-1]

    @jax.jit
    def run(turn):
        x, goal = _points("poincare", 1.0) @ turn.T, target @ turn.T
        inner = optax.chain(scale_by_length_adam(), optax.scale(-0.1))
        optimizer = riemannian(inner, Poincare(), retract=retract)
        return take_steps(optimizer, x, _towards(poincare, goal), jnp.arange(30))

    straight = run(np.eye(3))
    np.testing.assert_allclose(run(matrix), straight @ matrix.T, rtol=1e-8, atol=1e-10)
    assert (poincare.distance(straight, target) < poincare.distance(target[::-1], target)).all()


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("amsgrad", [False, True])
def test_length_adam_equals_riemannian_adam(amsgrad):
    """Compare with the definition of geoopt and hyperbolix, written as a loop of maps."""
    c, rate, b1, b2, eps = 0.7, 0.5, 0.9, 0.999, 1e-8
    x, rng, space = _points("lorentz", c), np.random.default_rng(0), compile_space(Lorentz(c))
    inner = optax.chain(
        scale_by_length_adam(b1, b2, eps, amsgrad, per_coordinate=False), optax.scale(-rate)
    )
    optimizer = riemannian(inner, Lorentz(c))
    y, state, update = x, optimizer.init(x), jax.jit(optimizer.update)
    moment, square, largest = jnp.zeros_like(x), jnp.zeros((6, 1)), jnp.zeros((6, 1))
    for step in range(1, 5):
        gradient = jnp.asarray(rng.normal(size=x.shape)) / step**3
        updates, state = update(gradient, state, y)
        y = y + updates
        projected = space.egrad_to_rgrad(x, gradient)
        moment = b1 * moment + (1 - b1) * projected
        square = b2 * square + (1 - b2) * space.inner(x, projected, projected)[:, None]
        largest = jnp.maximum(largest, square) if amsgrad else square
        root = jnp.sqrt(largest / (1 - b2**step)) + eps
        end = space.exp_map(x, -rate * moment / (1 - b1**step) / root)
        moment, x = space.transport(x, end, moment), end
        np.testing.assert_allclose(y, x, rtol=1e-8, atol=1e-9)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64", "standard_promotion")
def test_per_coordinate_moments_lengthen_steps_by_sqrt_n():
    """A learning rate for geoopt is divided by this factor, for gradients of equal size."""
    x, gradient = jnp.zeros((6, 9)), jnp.ones((6, 9)) * jnp.asarray([[1.0], [-2.0], [3.0]] * 2)
    lengths = {}
    for name, inner in (
        ("optax", optax.scale_by_adam()),
        ("mean", scale_by_length_adam()),
        ("sum", scale_by_length_adam(per_coordinate=False)),
    ):
        optimizer = riemannian(optax.chain(inner, optax.scale(-0.01)), Poincare())
        step = jax.jit(lambda gradient, x, o=optimizer: o.update(gradient, o.init(x), x)[0])
        lengths[name] = poincare.distance0(x + step(gradient, x))
    np.testing.assert_allclose(lengths["sum"], 0.01, rtol=1e-6)
    np.testing.assert_allclose(lengths["mean"], 3 * 0.01, rtol=1e-6)
    # Optax corrects the bias in float32, where 1 - 0.999 loses digits.
    np.testing.assert_allclose(lengths["optax"], 3 * 0.01, rtol=1e-4)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_state_of_length_adam_can_be_donated(amsgrad):
    optimizer = riemannian(scale_by_length_adam(amsgrad=amsgrad), Lorentz(1.0))
    params = Lorentz(1.0).exp_map0(jnp.ones((2, 3)))
    state = optimizer.init(params)
    step = jax.jit(lambda trees: jax.tree.map(lambda x: x + 1, trees), donate_argnums=0)
    jax.block_until_ready(step((params, state)))  # JAX refuses to donate an array twice


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("amsgrad", [False, True])
def test_length_adam_arrives_with_a_rate_of_one(amsgrad):
    """A test of geoopt in float32; elementwise moments would not pass it."""
    goal = lorentz.exp_map0(jnp.asarray([[0.5, -0.3, 0.9]]))
    start = lorentz.exp_map0(jnp.asarray([[-1.2, 0.4, 0.1]]))
    inner = scale_by_length_adam(amsgrad=amsgrad, per_coordinate=False)
    optimizer = riemannian(optax.chain(inner, optax.scale(-1.0)), Lorentz())
    run = jax.jit(lambda x: take_steps(optimizer, x, _towards(lorentz, goal), jnp.arange(3000)))
    assert lorentz.distance(run(start), goal)[0] < 1e-3


@pytest.mark.usefixtures("standard_promotion")
def test_length_adam_moves_a_scalar_as_adam_does():
    inner = (optax.chain(scale_by_length_adam(), optax.scale(-0.1)), optax.adam(0.1))
    moved = []
    for transformation in inner:
        c = jnp.float32(1.0)
        state = transformation.init(c)
        for gradient in (0.5, -2.0, 3.0):
            updates, state = transformation.update(jnp.float32(gradient), state)
            c += updates
        moved.append(float(c))
    assert moved[0] == pytest.approx(moved[1], rel=1e-6)  # rounding of a few operations


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_length_adam_keeps_float32_moments_of_narrow_parameters(dtype, amsgrad):
    """A second moment of small gradients must not underflow, and one of large ones must decay."""
    transformation, x = scale_by_length_adam(b2=0.99, amsgrad=amsgrad), jnp.zeros((2, 4), dtype)
    sizes = jnp.asarray([1e-3] * 5 + [10.0] * 5 + [1e-2] * 990, dtype)

    @jax.jit
    def run(x, sizes):
        def step(state, size):
            updates, state = transformation.update(jnp.full(x.shape, size, x.dtype), state)
            return state, updates

        return jax.lax.scan(step, transformation.init(x), sizes)

    state, updates = run(x, sizes)
    expected_state, expected = run(x.astype(jnp.float32), sizes.astype(jnp.float32))
    assert updates.dtype == dtype
    assert {leaf.dtype for leaf in jax.tree.leaves(state)[1:]} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(state.nu, expected_state.nu, rtol=1e-6)
    np.testing.assert_allclose(updates.astype(jnp.float32), expected, rtol=0.01)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize(
    "inner", [optax.adam, optax.amsgrad, optax.rmsprop], ids=lambda x: x.__name__
)
@pytest.mark.parametrize("space", [Poincare(), Lorentz(), Sphere()], ids=lambda x: type(x).__name__)
def test_narrow_points_take_the_first_steps_of_float32_points(space, inner):
    optimizer = riemannian(inner(0.05), space)
    ends = []
    for dtype in (jnp.float16, jnp.float32):
        x = space.project(jnp.asarray([[0.3, -0.2, 0.4]])).astype(jnp.float16).astype(dtype)
        state, update = optimizer.init(x), jax.jit(optimizer.update)
        for _ in range(3):
            gradient = jnp.asarray([[1e-3, -2e-3, 5e-4]], dtype)
            updates, state = update(gradient, state, x)
            x = optax.apply_updates(x, updates)
        assert x.dtype == dtype
        ends.append(np.asarray(x, np.float32))
    np.testing.assert_allclose(*ends, atol=2e-3)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("standard_promotion")
def test_both_models_take_the_same_steps():
    c, ends = 0.7, {}
    for name, (model, space) in SPACES.items():
        x = _points(name, c).astype(jnp.float32)
        optimizer, gradient = riemannian(optax.adam(0.05), space(c)), _towards(model, x[::-1], c)
        run = jax.jit(
            lambda x, optimizer=optimizer, gradient=gradient: take_steps(
                optimizer, x, gradient, jnp.arange(20)
            )
        )
        ends[name] = run(x) if name == "poincare" else poincare.from_lorentz(run(x), c)
    np.testing.assert_allclose(ends["poincare"], ends["lorentz"], rtol=1e-3, atol=1e-4)


# Wrappers of optax that take the same steps as the wrapped optimiser and skip none.
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
    "selective_transform": lambda inner: optax.transforms.selective_transform(
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


SPHERE = Sphere(0.5)
MIXED = {
    "points": {"deep": [Lorentz()], "pair": Product((Poincare(0.7), SPHERE))},
    "more": Euclidean(),
}


def _start():
    """Return points of three spaces, and Euclidean parameters."""
    ball = _points("poincare", 0.7)
    sphere = compile_space(SPHERE).exp_map0(ball)
    points = {"deep": [_points("lorentz", 1.0)], "pair": (ball, sphere)}
    params = {"points": points, "more": jnp.ones(4)}
    return jax.tree.map(lambda x: x.astype(jnp.float32), params)


def _run(optimizer, gradients):
    """Return the parameters of `_start` after one step per gradient."""
    run = jax.jit(lambda *args: take_steps(optimizer, args[0], lambda _, g: g, args[1]))
    return run(_start(), gradients)


def _gradients(steps=4):
    rng = np.random.default_rng(2)

    def draw(*shape):
        return jnp.asarray(rng.normal(size=(steps, *shape)), jnp.float32)

    points = {"deep": [draw(6, 4)], "pair": (draw(6, 3), draw(6, 4))}
    return {"points": points, "more": draw(4)}


@pytest.fixture(scope="module")
def unwrapped():
    with jax.numpy_dtype_promotion("standard"):
        return _run(riemannian(optax.adam(0.3), MIXED), _gradients())


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("standard_promotion")
def test_points_of_a_mixture_step_in_their_own_space(unwrapped):
    starts = _start()
    factors = {**MIXED["points"], "pair": MIXED["points"]["pair"].factors}
    leaves = zip(
        jax.tree.leaves(factors, is_leaf=lambda node: hasattr(node, "exp_map")),
        *(jax.tree.leaves(tree["points"]) for tree in (starts, _gradients(), unwrapped)),
        strict=True,
    )
    for space, start, gradients, want in leaves:
        single = jax.jit(
            lambda x, g, space=space: take_steps(
                riemannian(optax.adam(0.3), space), x, lambda _, g: g, g
            )
        )(start, gradients)
        np.testing.assert_allclose(single, want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(compile_space(space).project(want), want, rtol=1e-6, atol=1e-6)
        assert np.abs(want - start).max() > 0.1


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("standard_promotion")
# "nested" contains five wrappers; masks, conditions and frozen parts have special structures.
@pytest.mark.parametrize(
    "name", slow_except(("nested", "masked", "conditionally_mask", "selective_transform"), WRAPPERS)
)
def test_wrapped_optimiser_takes_the_steps_of_the_plain_one(name, unwrapped):
    inside = riemannian(WRAPPERS[name](optax.adam(0.3)), MIXED)
    chex.assert_trees_all_close(_run(inside, _gradients()), unwrapped, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize(
    "name", slow_except(["partition"], ["MultiSteps", "apply_if_finite", "partition"])
)
def test_riemannian_optimiser_may_be_wrapped(name, unwrapped):
    inner = riemannian(optax.adam(0.3), MIXED)
    if name == "partition":  # each optimiser sees its parameters only
        inside = {"one": riemannian(optax.adam(0.3), MIXED), "two": optax.adam(0.3)}
        outside = optax.partition(inside, LABELS)
    else:
        outside = WRAPPERS[name](inner)
    chex.assert_trees_all_close(_run(outside, _gradients()), unwrapped, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
def test_multi_steps_takes_one_step_of_the_mean_gradient():
    gradients = _gradients()
    twice = jax.tree.map(lambda g: jnp.repeat(g, 2, axis=0), gradients)
    inner = optax.sgd(0.1, momentum=0.9)
    collected = riemannian(optax.MultiSteps(inner, 2), MIXED)
    expected = _run(riemannian(inner, MIXED), gradients)
    chex.assert_trees_all_close(_run(collected, twice), expected, rtol=1e-5, atol=1e-5)


# Momentum is linear, so it is one vector in the frames of all points that it has moved to.
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize(
    ("optimizer", "fields"),
    [
        (optax.sgd(0.1, momentum=0.9), ["trace"]),
        (optax.adan(0.1), ["m", "v", "g"]),
        (optax.rmsprop(0.1), []),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (optax.chain(optax.ema(0.9), optax.scale(-0.1)), ["ema"]),
                (optax.adamax(0.1), ["mu"]),
                (optax.lion(0.1), ["mu"]),
                (optax.sm3(0.1), ["nu"]),
                (optax.optimistic_gradient_descent(0.1), ["previous_gradient"]),
                (optax.contrib.ademamix(0.1), ["m1", "m2"]),
                (optax.chain(optax.apply_every(2), optax.scale(-0.1)), ["grad_acc"]),
                (optax.adadelta(0.1), []),
                (optax.adafactor(0.1, min_dim_size_to_factor=2), []),
                (optax.yogi(0.1), ["mu"]),
                (optax.amsgrad(0.1), ["mu"]),
                (optax.novograd(0.1), ["mu"]),
                (optax.rprop(0.1), ["prev_updates"]),
            )
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_first_moments_are_transported_and_second_are_not(optimizer, fields):
    x, space = _points("lorentz", 1.0).astype(jnp.float32), Lorentz()
    gradient = jnp.asarray(np.random.default_rng(0).normal(size=x.shape), jnp.float32)
    outside, space = riemannian(optimizer, space), compile_space(space)
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
            is_unmoved = np.array_equal(moved, x) or not np.any(want)
            assert is_unmoved or np.abs(turned - want).max() > 1e-3 * np.abs(want).max()
        else:
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda x: [x], marks=pytest.mark.slow),
        lambda x: (jnp.zeros((2, 4)), x),
        pytest.param(lambda x: _Velocity(x), marks=pytest.mark.slow),
    ],
)
def test_points_of_any_pytree_take_the_same_steps(wrap):
    x, gradients = _points("lorentz", 1.0).astype(jnp.float32), _gradients()["points"]["deep"][0]
    inner = optax.chain(optax.inject_hyperparams(optax.adam)(0.3), optax.identity())

    def run(start, gradients):
        return take_steps(riemannian(inner, Lorentz()), start, lambda _, g: g, gradients)

    want, got = jax.jit(run)(x, gradients), jax.jit(run)(wrap(x), jax.vmap(wrap)(gradients))
    np.testing.assert_allclose(jax.tree.leaves(got)[-1], want, rtol=1e-6, atol=1e-6)


class _Velocity(NamedTuple):
    velocity: object


def _heavy_ball(state=_Velocity):
    """Return an optimiser with an unknown state."""

    def init(params):
        return state(jax.tree.map(jnp.zeros_like, params))

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
        (lambda: optax.lbfgs(0.1), "ScaleByZoomLinesearchState"),
        (lambda: optax.contrib.schedule_free_adamw(0.1), "ScheduleFreeState is not"),
        (lambda: optax.contrib.prodigy(0.1), "of the optimiser's state"),
        (lambda: optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1), opaque_mode=True), "SAMState"),
        (lambda: optax.chain(optax.sgd(0.1), optax.scale_by_backtracking_linesearch(9)), "search"),
    ],
)
def test_optimiser_state_without_transport_is_refused(make, word):
    with pytest.raises(ManifoldError, match=word):
        riemannian(make(), Lorentz()).init(_points("lorentz", 1.0))


@pytest.mark.usefixtures("standard_promotion")
def test_euclidean_group_takes_a_schedule_free_optimiser():
    groups = {"points": optax.sgd(0.1), "weights": optax.contrib.schedule_free_sgd(0.1)}
    params = {"points": _points("lorentz", 1.0), "weights": jnp.ones(3)}
    spaces = {"points": Lorentz(), "weights": Euclidean()}
    optimizer = riemannian(optax.partition(groups, {name: name for name in params}), spaces)
    state, gradients = optimizer.init(params), jax.tree.map(jnp.ones_like, params)
    updates, _ = jax.jit(optimizer.update)(gradients, state, params)
    alone = groups["weights"]
    expected, _ = alone.update(jnp.ones(3), alone.init(params["weights"]), params["weights"])
    np.testing.assert_allclose(updates["weights"], expected, rtol=1e-6)  # a few eps


@pytest.mark.parametrize(
    "name", slow_except(["lorentz", "sphere"], ["lorentz", "poincare", "sphere"])
)
def test_points_without_a_gradient_stay_to_the_bit(name):
    space = CURVED[name](0.7)
    x = compile_space(space).exp_map0(np.float32(np.random.default_rng(0).normal(size=(500, 3))))
    optimizer = riemannian(optax.sgd(0.1), space)
    updates, _ = jax.jit(optimizer.update)(jnp.zeros_like(x), optimizer.init(x), x)
    np.testing.assert_array_equal(updates, 0)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("standard_promotion")
def test_points_follow_a_learned_curvature():
    """The gradient of the curvature changes the space of the next step of the points."""

    def space_of(params):
        return Lorentz(jax.nn.softplus(params["c"]))

    optimizer = riemannian(
        optax.adam(0.05), lambda params: {"c": Euclidean(), "x": space_of(params)}
    )
    x = _points("lorentz", 1.0).astype(jnp.float32)
    params = {"c": jnp.float32(0.5), "x": x}
    goal = 1.5 * (1 - jnp.eye(len(x)))

    def loss(params):
        space, x = space_of(params), params["x"]
        return jnp.mean((space.distance(x[:, None], x[None]) - goal) ** 2)

    end, loss = descend(loss, params, optimizer, 60), jax.jit(loss)
    assert loss(end) < 0.1 * loss(params)
    assert abs(end["c"] - params["c"]) > 0.05
    update, state = jax.jit(optimizer.update)(params, optimizer.init(params), params)
    moved = params["x"] + update["x"]
    np.testing.assert_allclose(compile_space(space_of(params)).project(moved), moved, rtol=1e-6)


@pytest.mark.usefixtures("float64")
def test_state_fields_listed_as_vectors_are_transported():
    x, rng = _points("lorentz", 1.0), np.random.default_rng(0)
    steps = {"named": riemannian(_heavy_ball(), Lorentz(), vectors={"velocity"})}
    steps["known"] = riemannian(optax.sgd(0.1, momentum=0.9), Lorentz())
    ends = {name: (x, optimizer.init(x)) for name, optimizer in steps.items()}
    updates_of = {name: jax.jit(optimizer.update) for name, optimizer in steps.items()}
    for _ in range(3):
        gradient = jnp.asarray(rng.normal(size=x.shape))
        for name, update in updates_of.items():
            x, state = ends[name]
            updates, state = update(gradient, state, x)
            ends[name] = x + updates, state
    np.testing.assert_allclose(ends["named"][0], ends["known"][0], rtol=1e-12)
