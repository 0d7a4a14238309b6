"""Further methods of spaces: pairs, norms, random points, files, and modules that hold a space."""

import copy
import functools
import pickle

import equinox as eqx
import flax.serialization
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from compiled import compile_space, lorentz, poincare
from descent import descend
from flax import nnx
from mpmath import mpf
from reference import slow_except

import hlformer_jax as hl
import hlformer_jax.nn.hyperbolic  # Flax stores spaces from here on
from hlformer_jax.ops.manifolds import (
    Euclidean,
    Lorentz,
    Poincare,
    Product,
    Sphere,
    bounded_curvature,
    curvature_parameter,
)
from hlformer_jax.ops.optim import ManifoldError, riemannian

C = 0.7
SPACES = {
    "lorentz": Lorentz(C),
    "poincare": Poincare(C),
    "sphere": Sphere(C),
    "euclidean": Euclidean(),
    "product": Product((Lorentz(C), Product((Euclidean(), Sphere(0.5))), Poincare(2.0))),
}


@functools.partial(jax.jit, static_argnums=1)
def _draw(space, count, seed):
    return space.project(space.random(jax.random.key(seed), 3, (count,), 0.8))


def _expand(points, axis):
    return jax.tree.map(lambda x: jnp.expand_dims(x, axis), points)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", slow_except(["sphere", "euclidean"], SPACES))
def test_pairwise_distances_equal_single_distances(name):
    space, compiled = SPACES[name], compile_space(SPACES[name])
    x = _draw(space, 4, 0)
    y = jax.tree.map(lambda a: a[:3], _draw(space, 4, 1))  # of four, to share the program
    # The second points include one of the first points, and a near neighbour of it.
    neighbour = jax.tree.map(lambda a: a[:1] * (1 + 1e-9), x)
    y = jax.tree.map(
        lambda a, b, c: jnp.concatenate([a, b[:1], c]), y, x, compiled.project(neighbour)
    )
    got = compiled.pairwise_distance(x, y)
    want = compiled.distance(_expand(x, 1), _expand(y, 0))
    assert got.shape == (4, 5)
    np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-15)


def test_number_of_pairs_may_exceed_int32():
    points = jax.ShapeDtypeStruct((50_000, 3), jnp.float32)
    distances = jax.eval_shape(Lorentz().pairwise_distance, points, points)
    assert distances.shape == (50_000, 50_000)


@pytest.mark.usefixtures("float64")
def test_pairwise_distances_of_antipodes_keep_their_digits():
    space = compile_space(Sphere(C))
    x = space.project(jnp.asarray([[0.3, -0.5, 0.8], [1.0, 0.2, 0.1]]))
    y = space.project(-x + jnp.asarray([[1e-7, 0, 0], [0, 0, 1e-3]]))
    want = space.distance(_expand(x, 1), _expand(y, 0))
    np.testing.assert_allclose(space.pairwise_distance(x, y), want, rtol=1e-14)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", slow_except(["product"], SPACES))
def test_norm_and_inner_product_follow_the_metric(name):
    space = compile_space(SPACES[name])
    x, y, z = (_draw(SPACES[name], 4, seed) for seed in range(3))
    v, w = space.log_map(x, y), space.log_map(x, z)
    np.testing.assert_allclose(space.norm(x, v), space.distance(x, y), rtol=1e-12)
    np.testing.assert_allclose(space.inner(x, v, v), space.norm(x, v) ** 2, rtol=1e-12)
    add = jax.tree.map(jnp.add, v, w)
    by_lengths = space.norm(x, add) ** 2 - space.norm(x, v) ** 2 - space.norm(x, w) ** 2
    np.testing.assert_allclose(space.inner(x, v, w), by_lengths / 2, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("radius", [1e-9, 0.4, 3.0, 25.0])
def test_inner_product_of_the_hyperboloid_agrees_with_80_digits(radius):
    rng = np.random.default_rng(0)
    x = np.asarray(lorentz.exp_map0(jnp.asarray(radius * np.array([0.6, 0.0, 0.8]))))
    v, w = (np.asarray(lorentz.transport0(x, jnp.asarray(u))) for u in rng.normal(size=(2, 3)))
    with mpmath.workdps(80):
        space, v_space, w_space = ([mpf(float(a)) for a in z[1:]] for z in (x, v, w))
        time = mpmath.sqrt(1 + sum(a * a for a in space))
        times = [sum(a * b for a, b in zip(space, u, strict=True)) for u in (v_space, w_space)]
        want = sum(a * b for a, b in zip(v_space, w_space, strict=True))
        want -= times[0] * times[1] / time**2
    got = lorentz.tangent_inner(x, v, w)
    # The effect of rounding the vectors; the plain inner product would have cosh² instead.
    np.testing.assert_allclose(got, float(want), atol=4e-16 * np.cosh(radius))


@pytest.mark.parametrize("name", slow_except(["poincare"], SPACES))
def test_draws_have_their_deviation_dtype_and_shape(name):
    space = SPACES[name]
    points = jax.jit(lambda key: space.random(key, 2, (1000,), 0.3))(jax.random.key(0))
    assert {x.shape[0] for x in jax.tree.leaves(points)} == {1000}
    assert {x.dtype for x in jax.tree.leaves(points)} == {jnp.dtype("float32")}
    middle = jax.tree.map(lambda x: x[None], space.origin(2))
    factors = len(jax.tree.leaves(middle))
    distance = compile_space(space).distance(middle, points)
    # The mean of 2000 squared normal numbers deviates by 2 √(2 / 2000) in one of 20 cases.
    np.testing.assert_allclose(jnp.mean(distance**2), factors * 2 * 0.09, rtol=0.12)
    jax.tree.map(np.testing.assert_array_equal, space.project(middle), middle)


def test_both_models_draw_the_same_points():
    key, c = jax.random.key(3), jnp.asarray([0.5, 2.0])
    draw = jax.jit(lambda space: space.random(key, 4, (3,)))
    ball, hyperboloid = (draw(space(c)) for space in (Poincare, Lorentz))
    assert ball.shape == (3, 2, 4) and hyperboloid.shape == (3, 2, 5)
    np.testing.assert_allclose(poincare.to_lorentz(ball, c), hyperboloid, rtol=1e-5, atol=1e-6)


def test_product_takes_a_dimension_for_each_factor():
    space = Product((Lorentz(1.0), Euclidean()))
    points = space.random(jax.random.key(0), (2, 5), (7,))
    assert [x.shape for x in points] == [(7, 3), (7, 5)]
    assert [x.shape for x in space.origin((2, 5))] == [(3,), (5,)]


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", slow_except(["lorentz"], SPACES))
def test_points_of_a_geodesic_at_many_shares_at_once(name):
    space, t = compile_space(SPACES[name]), jnp.linspace(-0.5, 1.5, 5)
    x, y = _draw(SPACES[name], 4, 0), _draw(SPACES[name], 4, 1)
    got = space.geodesic(t[:, None], x, y)
    for k, share in enumerate(t):
        want = space.geodesic(share, x, y)
        jax.tree.map(lambda a, b, k=k: np.testing.assert_allclose(a[k], b, rtol=1e-13), got, want)
    ends = [jax.tree.map(lambda a: a[0], z) for z in (x, y)]
    line = space.geodesic(t, *ends)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[:, 0], rtol=1e-13), line, got)
    start = space.geodesic(jnp.zeros(()), x, y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-15), start, x)


# Files


def _all_spaces(c):
    parts = Lorentz(c), Poincare(2 * c), Sphere(3 * c), Euclidean()
    return {"space": Product((*parts, Product(parts[:2])))}


@pytest.mark.parametrize("c", [0.5, np.float32(0.5), jnp.asarray([0.5, 0.7])])
def test_space_survives_flax_pickle_and_copies(c):
    spaces, empty = _all_spaces(c), _all_spaces(0 * c)
    restored = flax.serialization.from_bytes(empty, flax.serialization.to_bytes(spaces))
    for copied in (restored, pickle.loads(pickle.dumps(spaces)), copy.deepcopy(spaces)):
        assert jax.tree.structure(copied) == jax.tree.structure(spaces)
        jax.tree.map(np.testing.assert_array_equal, copied, spaces)


def test_state_of_a_different_space_is_refused():
    state = flax.serialization.to_state_dict(Lorentz(1.0))
    assert state == {"c": 1.0}
    with pytest.raises(ValueError, match=r"Product must have .* \['factors'\], got \['c'\]"):
        flax.serialization.from_state_dict(Product((Lorentz(1.0),)), state)


@pytest.mark.slow
def test_space_survives_orbax(tmp_path):
    spaces = _all_spaces(jnp.asarray(0.5))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "spaces", spaces)
        checkpointer.wait_until_finished()
        target = jax.tree.map(jnp.zeros_like, spaces)
        restored = checkpointer.restore(tmp_path / "spaces", target)
    assert jax.tree.structure(restored) == jax.tree.structure(spaces)
    jax.tree.map(np.testing.assert_array_equal, restored, spaces)


# Curvature in a range


@pytest.mark.usefixtures("float64")
def test_bounded_curvature_stays_in_its_range():
    for c in (0.2, 1.0, 4.9):
        parameter = curvature_parameter(c, 0.1, 5.0)
        np.testing.assert_allclose(bounded_curvature(parameter, 0.1, 5.0), c, rtol=1e-14)
        slope = jax.grad(lambda p: bounded_curvature(p, 0.1, 5.0))(parameter)
        # d log c / d p = (log c - log low) (log high - log c) / log(high / low)
        want = c * np.log(c / 0.1) * np.log(5.0 / c) / np.log(50.0)
        np.testing.assert_allclose(slope, want, rtol=1e-13)
    ends = bounded_curvature(jnp.asarray([-1e6, 1e6]), 0.1, 5.0)
    np.testing.assert_allclose(ends, [0.1, 5.0], rtol=1e-15)
    assert bounded_curvature(jnp.float32(3.0)).dtype == jnp.float32


def test_curvature_outside_its_range_is_refused():
    for c in (0.1, 5.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="must be positive"):
            curvature_parameter(c, 0.1, 5.0)
    with pytest.raises(ValueError, match="0 < low < high"):
        bounded_curvature(0.0, 5.0, 0.1)


@pytest.mark.usefixtures("standard_promotion")
def test_curvature_module_learns_within_its_range():
    module = hl.nn.Curvature(initial=0.8, low=0.5, high=2.0)
    params = module.init(jax.random.key(0))
    np.testing.assert_allclose(module.apply(params), 0.8, rtol=1e-6)
    end = descend(module.apply, params, optax.adam(0.5), 40)
    assert 0.5 <= module.apply(end) < 0.51


# Modules that hold a space


class _Table(eqx.Module):
    space: Lorentz
    points: jax.Array
    bias: jax.Array

    def __call__(self, goal):
        distance = self.space.distance(self.points, goal)
        return jnp.mean((distance - self.bias) ** 2)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("c", [1.0, jnp.float32(1.0)], ids=["fixed", "learned"])
@pytest.mark.parametrize("spaces_form", slow_except(["function"], ["tree", "function"]))
def test_equinox_module_that_holds_its_space(c, spaces_form):
    points = lorentz.exp_map0(jax.random.normal(jax.random.key(0), (8, 3)))
    goal = lorentz.exp_map0(jax.random.normal(jax.random.key(1), (8, 3)))
    model = _Table(Lorentz(c), points, jnp.zeros(8))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def spaces(params):
        flat = jax.tree.map(lambda _: Euclidean(), params)
        space = eqx.combine(params, static).space
        return eqx.tree_at(lambda module: module.points, flat, space)

    optimizer = riemannian(
        optax.adam(0.05), spaces if spaces_form == "function" else spaces(params)
    )

    @jax.jit
    def loss(params):
        return eqx.combine(params, static)(goal)

    end = descend(loss, params, optimizer, 20)
    assert loss(end) < 0.7 * loss(params)
    space = eqx.combine(end, static).space
    # The last step was taken in the space of the previous curvature. With a constant tree of spaces
    # the points stay in the first space.
    curvature = jnp.asarray(space.c if spaces_form == "function" else 1.0)
    assert lorentz.time_error(end.points, curvature).max() < 0.05
    assert (space.c != 1.0) is not isinstance(c, float)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("standard_promotion")
def test_nnx_module_that_holds_its_space():
    goal = lorentz.exp_map0(jax.random.normal(jax.random.key(1), (8, 3)))

    class Table(nnx.Module):
        def __init__(self, rngs):
            self.space = nnx.data(Lorentz(nnx.Param(jnp.float32(1.0))))
            self.points = nnx.Param(Lorentz(1.0).random(rngs.params(), 3, (8,)))
            self.bias = nnx.Param(jnp.zeros(8))

        def __call__(self):
            space = Lorentz(self.space.c[...])
            return jnp.mean((space.distance(self.points[...], goal) - self.bias[...]) ** 2)

    graph, params = nnx.split(Table(nnx.Rngs(0)), nnx.Param)

    def spaces(params):
        flat = jax.tree.map(lambda _: Euclidean(), params)
        flat["points"] = Lorentz(params["space"]["c"][...])
        return flat

    loss = jax.jit(lambda params: nnx.merge(graph, params)())
    end = descend(loss, params, riemannian(optax.adam(0.05), spaces), 20)
    assert loss(end) < 0.7 * loss(params)
    c = end["space"]["c"][...]
    assert c != 1.0 and lorentz.time_error(end["points"][...], c).max() < 0.05


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"x": jnp.ones((2, 4)), "scale": jnp.ones(())},
            r"\['scale'\] must be an array .* got shape \(\)",
        ),
        ({"x": jnp.ones((2, 4), int)}, r"\['x'\] must .* got shape \(2, 4\) and dtype int32"),
        ({"x": 1.0}, r"\['x'\] must .* got shape \(\) and dtype float"),
        ([jnp.ones((2, 4)), jnp.ones(())], r"parameter \[1\]"),
        (_Table(None, jnp.ones((2, 4)), jnp.ones(())), "parameter .bias"),
        (jnp.ones(()), "the only one"),
    ],
)
def test_error_names_the_parameter_that_holds_no_points(params, message):
    with pytest.raises(ManifoldError, match=message):
        riemannian(optax.adam(0.1), Lorentz(1.0)).init(params)


def test_spaces_that_do_not_fit_the_parameters_are_refused():
    x = lorentz.exp_map0(jnp.ones((4, 3)))
    for spaces, message in (
        ({"y": Lorentz(1.0)}, "must be a prefix"),
        ({"x": True}, "expected a manifold, .* got True"),
        (Product((Lorentz(1.0),) * 2), "must be a tuple of 2, .* got the type dict"),
        ({"x": Product((Lorentz(1.0),) * 2)}, r"\['x'\] must be a tuple of 2"),
        (Lorentz(None), r"\['x'\] has the curvature None"),
        (Lorentz(jnp.ones(3)), r"\['x'\]: c of shape \(3,\) does not broadcast"),
        (Lorentz(-1.0), r"\['x'\]: c must be at least 0, got -1.0"),
    ):
        with pytest.raises(ManifoldError, match=message):
            riemannian(optax.adam(0.1), spaces).init({"x": x})


def test_curvatures_among_the_parameters_are_euclidean():
    x = lorentz.exp_map0(jnp.ones((4, 3)))
    params = {"space": Lorentz(jnp.ones(4)), "x": x}
    for spaces in (Lorentz(1.0), {"space": Lorentz(Euclidean()), "x": Lorentz(1.0)}):
        state = jax.eval_shape(riemannian(optax.adam(0.1), spaces).init, params)
        assert state[0].mu["space"].c.shape == (4,) and state[0].mu["x"].shape == (4, 3)
