"""Every public function: shapes, curvatures and dtypes that it takes, and JAX's transformations."""

import ast
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
from lorentz_cases import POINTS
from public import CASES, MODULES

from hlformer_jax.ops import lorentz

pytestmark = pytest.mark.usefixtures("float64")


CURVED = [case for case in CASES if case.curved]
SEVERAL = [case for case in CASES if len(case.vectors) > 1]
# A layer's step computes in the layer's dtype.
FLOAT32 = [case for case in CASES if case.name != "lorentz.from_linear"]
NAME = lambda case: case.name
# Parts of formulas that modules share, and HoroPCA, which is no function of single points.
SHARED = {"cones.aperture", "lorentz.logits", "poincare.gap", "poincare.inside"}
SHARED |= {f"horopca.{name}" for name in ("fit", "project", "embed", "variance")}
TYPICAL = {f"lorentz.{name}" for name in ("distance", "exp_map", "log_map", "centroid")}
TYPICAL |= {"poincare.to_lorentz", "poincare.mobius_add", "cones.energy", "cones.poincare_energy"}
SLOW = {
    f"{module}.{name}"
    for module in ("lorentz", "poincare")
    for name in ("tangent_norm", "squared_distance", "parallel_transport", "exp_map0", "log_map0")
} | {"lorentz.direction", "lorentz.project_tangent", "cones.half_aperture", "means.lorentz_mean"}


def test_the_table_has_every_public_function():
    named = {case.name for case in CASES}
    assert len(named) == len(CASES) > 80
    for module, source in MODULES.items():
        body = ast.parse(inspect.getsource(source)).body
        public = {x.name for x in body if isinstance(x, ast.FunctionDef) and x.name[0] != "_"}
        assert {f"{module}.{name}" for name in public} <= named | SHARED


def refused(case, arguments, c, error=ValueError, **match):
    """What the function says to arguments that it refuses; nothing is computed."""
    arrays, call = case.traceable(arguments)
    with pytest.raises(error, **match) as refusal:
        jax.eval_shape(call, arrays, c)
    return str(refusal.value)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", CURVED, ids=NAME)
def test_a_curvature_broadcasts_to_the_batch_and_never_beyond_it(case):
    arguments, c = case.arguments((6,)), np.linspace(0.5, 2, 6)
    arrays, call = case.traceable(arguments)
    shapes = jax.eval_shape(call, arrays, c)
    assert all(array.shape[0] == 6 for array in jax.tree.leaves(shapes))
    if not case.batched:
        return  # the curvature's shape is the batch
    assert jax.eval_shape(call, arrays, c[:1]) == shapes
    for wrong in ((6, 1), (1, 1), (5,), (6, 6)):
        refusal = refused(case, arguments, np.ones(wrong), match="does not broadcast to the batch")
        assert str(wrong) in refusal and "(6," in refusal
    alone = case.at(arguments, 0)
    refused(case, alone, c, match="does not broadcast to the batch")


@pytest.mark.slow
@pytest.mark.parametrize("case", SEVERAL, ids=NAME)
def test_a_curvature_of_the_batch_goes_with_one_point_that_all_share(case):
    arguments, c = case.arguments((3,)), np.linspace(0.5, 2, 3)
    arrays, call = case.traceable(arguments)

    call = jax.jit(call)
    for name in case.vectors[:2]:
        shared = arrays[name][:1]
        got = call({**arrays, name: shared}, c)
        want = call({**arrays, name: np.broadcast_to(shared, arrays[name].shape)}, c)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", SEVERAL, ids=NAME)
def test_every_function_refuses_vectors_of_another_width(case):
    arguments = case.arguments((6,))
    for name in case.vectors:
        for width in (1, 2, 3):
            narrow = {**arguments, name: arguments[name][..., :width]}
            refused(case, narrow, 1.0, match="vectors of . and of . coordinates")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", SEVERAL, ids=NAME)
def test_batches_that_do_not_broadcast_are_refused_with_both_shapes(case):
    arguments = case.arguments((6,))
    for name in case.vectors:
        shorter = {**arguments, name: arguments[name][:4]}
        refusal = refused(case, shorter, 1.0, (ValueError, TypeError), match="broadcast")
        assert "(6," in refusal and "(4," in refusal


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", FLOAT32, ids=NAME)
def test_complex_numbers_and_lists_are_refused_by_all_functions(case):
    arguments = case.arguments((6,))
    for name in case.vectors:
        refused(case, {**arguments, name: arguments[name].astype(complex)}, 1.0, TypeError)
        with pytest.raises(TypeError):
            case({**arguments, name: arguments[name].tolist()}, 1.0)


def in_halves(case, narrow):
    """A function of arrays, such arrays with values of a narrow dtype, and the same in float32."""
    arrays, call = case.traceable(case.arguments((2,)))
    given = arrays, np.array([0.5, 1.5])
    low = jax.tree.map(lambda v: jnp.asarray(v, narrow), given)
    return call, low, jax.tree.map(lambda v: v.astype(jnp.float32), low)


@pytest.mark.parametrize("narrow", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", FLOAT32, ids=NAME)
def test_of_narrow_numbers_float32_is_returned(case, narrow):
    call, low, wide = in_halves(case, narrow)
    got = jax.eval_shape(call, *low)
    assert got == jax.eval_shape(call, *wide)
    assert all(array.dtype == jnp.float32 for array in jax.tree.leaves(got))


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", FLOAT32, ids=NAME)
def test_narrow_numbers_are_computed_in_float32(case, narrow):
    call, low, wide = in_halves(case, narrow)
    got, want = call(*low), call(*wide)
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_curvature_broadcasts_over_trailing_batch_axes():
    x, y = POINTS[:2].reshape(2, 2, 3, 5)
    c = jnp.array([0.5, 1.0, 2.0])
    distance = jax.jit(
        lambda x, y, c: lorentz.distance(lorentz.from_space(x, c), lorentz.from_space(y, c), c)
    )
    got = distance(x, y, c)
    for i in range(3):
        np.testing.assert_allclose(got[:, i], distance(x[:, i], y[:, i], c[i]), 1e-14)


@pytest.mark.usefixtures("unchecked")
def test_points_of_integers_are_as_wide_as_they_are():
    whole = np.array([0, 3, -4])
    for narrow, wide in ((np.int64, jnp.float64), (np.int32, jnp.float32)):
        point = jax.eval_shape(lorentz.project, whole.astype(narrow))
        assert point.dtype == wide
        assert jax.eval_shape(lorentz.distance, point, point).dtype == wide
    assert lorentz.origin(2).dtype == jnp.float64
    assert lorentz.origin(2, jnp.float32(2)).dtype == jnp.float32
    assert lorentz.origin(2, dtype=jnp.bfloat16).dtype == jnp.float32


def test_an_origin_for_curvatures_of_numpy_is_as_wide_as_jax_is():
    jax.config.update("jax_enable_x64", False)  # where a warning of a truncated dtype is an error
    for c in (np.ones(2), np.ones(2, int)):
        assert lorentz.origin(3, c).dtype == jnp.float32
    assert lorentz.origin(3).dtype == jnp.float32


def assert_close(got, want, rtol, atol, context=""):
    """Compares the arrays of two results."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=context)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case.name in TYPICAL else pytest.mark.slow, id=case.name)
        for case in CURVED
        if case.name in TYPICAL | SLOW
    ],
)
def test_jit_vmap_and_more_batch_axes_change_nothing(case):
    arrays, call = case.traceable(case.arguments((2, 3)))
    c = np.linspace(0.5, 2, 3)
    got = jax.jit(call)(arrays, c)
    with jax.disable_jit():
        assert_close(got, call(arrays, c), 1e-11, 1e-13)
    if "key" not in case.required:
        row = {name: 0 if name in case.batched else None for name in arrays}
        assert_close(jax.jit(jax.vmap(call, (row, None)))(arrays, c), got, 1e-11, 1e-13)


@pytest.mark.slow  # a program for each function: minutes in all
@pytest.mark.parametrize("case", CURVED, ids=NAME)
def test_a_curvature_of_the_batch_under_vmap_scan_and_checkpoint(case):
    arrays, call = case.traceable(case.arguments((3,)))
    fixed = {name: array for name, array in arrays.items() if name not in case.batched}
    rows = {name: array for name, array in arrays.items() if name in case.batched}

    @jax.jit
    def everything(rows, fixed, c):
        alone = lambda row, c: call({**row, **fixed}, c)
        return {
            "plain": call({**rows, **fixed}, c),
            "checkpoint": jax.checkpoint(call)({**rows, **fixed}, c),
            "vmap": jax.vmap(alone)(rows, c),
            "scan": jax.lax.scan(lambda _, row: (None, alone(*row)), None, (rows, c))[1],
        }

    got = everything(rows, fixed, np.linspace(0.5, 2, 3))
    # Random numbers are drawn for the whole batch, or for each entry.
    drawn = "key" in case.required
    for name, want in [("checkpoint", "plain"), ("scan", "vmap")] + [("vmap", "plain")] * (
        not drawn
    ):
        assert_close(got[name], got[want], 1e-12, 1e-14, name)


STEP = 1e-5


@pytest.mark.slow  # a program for each function: minutes in all
@pytest.mark.parametrize("case", CURVED, ids=NAME)
def test_derivatives_in_a_learned_curvature_agree_and_are_those_of_differences(case):
    """Of a number, `jacrev` is a gradient, and a Hessian the gradient's forward derivative."""
    arrays, call = case.traceable(case.arguments((2,)))

    def loss(theta, arrays):
        c = jnp.exp(theta) if case.batched else jnp.exp(theta)[None]
        return sum(jnp.sum(jnp.sin(value)) for value in jax.tree.leaves(call(arrays, c)))

    @jax.jit
    def derivatives(arrays, theta):
        both = lambda theta: jax.value_and_grad(loss)(theta, arrays)
        return jax.jvp(both, (theta,), (jnp.ones(()),))

    theta = jnp.asarray(-0.4)
    here, ahead, behind = (derivatives(arrays, theta + step) for step in (0, STEP, -STEP))
    (_, reverse), (forward, second) = here
    slopes = [(a - b) / (2 * STEP) for a, b in zip(ahead[0], behind[0], strict=True)]
    np.testing.assert_allclose(reverse, forward, rtol=1e-9, atol=1e-11)
    # Differences have the error STEP² f''' / 6 and eps f / STEP.
    np.testing.assert_allclose(forward, slopes[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(second, slopes[1], rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_points_and_curvatures_that_are_sharded_over_two_devices_give_the_same_values():
    program = processes.ROOT / "tests" / "ops" / "sharded_program.py"
    done = processes.finish(
        [processes.sys.executable, str(program)], env=processes.environment(devices=2)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(CURVED))]
