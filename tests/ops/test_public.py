"""Every public function of hyperbolic space, read from the table of `docs/geometry.md`: shapes,
curvatures and dtypes that it takes, and JAX's transformations.

A function that joins the table joins the tests: its arguments are made from its signature, arrays
from the axes of their annotations and the rest from `NUMBERS`.
"""

import dataclasses
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
from jaxtyping import AbstractArray

import hlformer_jax as hl
from hlformer_jax.ops import attention, cones, horopca, lorentz, poincare, statistics
from hlformer_jax.ops.manifolds import Poincare, Sphere

pytestmark = pytest.mark.usefixtures("float64")

TABLE = Path(__file__).parents[2] / "docs" / "geometry.md"
MODULES = {
    module.__name__.rpartition(".")[-1]: module
    for module in (cones, horopca, lorentz, poincare, statistics)
}
N = 5  # dimension of the spaces
SIZES = {"n": N, "n1": N + 1, "d": N + 1, "L": 4, "M": 3, "N": 4, "k": 2, "m": 3, "classes": 3}
NUMBERS = {"t": 0.3, "limit": 0.5, "r": -1.5, "scale": 0.7, "dims": (2, 3), "n": N}
BATCH = "*#batch"


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of the table.

    Attributes:
      name: its module and its name.
      function: the function.
    """

    name: str
    function: Callable

    def __call__(self, arguments, c=None):
        """Calls it, at a curvature if it has one."""
        return self.function(**arguments, **({"c": c} if self.curved else {}))

    @property
    def curved(self):
        """Whether it has a curvature, as all have but inner products and the like."""
        return "c" in inspect.signature(self.function).parameters

    @property
    def required(self):
        """Annotations of the parameters to be given, the curvature aside."""
        found = inspect.signature(self.function).parameters
        return {
            name: p.annotation
            for name, p in found.items()
            if p.default is inspect.Parameter.empty and name != "c"
        }

    @property
    def axes(self):
        """Axes of the arrays among them."""
        # A jaxtyping of several kinds of arrays is the union of theirs.
        kinds = {name: typing.get_args(of) or (of,) for name, of in self.required.items()}
        return {
            name: re.sub(r"\*#?batch", BATCH, kind.dim_str).split()
            for name, (kind, *_) in kinds.items()
            if isinstance(kind, type) and issubclass(kind, AbstractArray)
        }

    @property
    def vectors(self):
        """Parameters with one vector for each entry of the batch: points, tangent vectors."""
        return [name for name, axes in self.axes.items() if axes[:1] == [BATCH] and len(axes) == 2]

    @property
    def sets(self):
        """Parameters with a set of vectors for each entry of the batch."""
        return [
            name
            for name, axes in self.axes.items()
            if axes[:1] == [BATCH] and len(axes) == 3 and name != "factor"  # a matrix
        ]

    @property
    def batched(self):
        """Parameters with batch axes: vectors, sets of vectors, sequences of them."""
        found = [name for name, axes in self.axes.items() if axes[:1] == [BATCH]]
        return found or [name for name in self.required if name == "points"]

    def at(self, arguments, index):
        """The arguments for one entry of the batch."""
        take = lambda value: jax.tree.map(lambda array: array[index], value)
        return {n: take(v) if n in self.batched else v for n, v in arguments.items()}

    def traceable(self, arguments):
        """The arrays among the arguments, and a function of those and a curvature."""
        fixed = {n: v for n, v in arguments.items() if n in ("key", "dims", "n")}
        arrays = {n: v for n, v in arguments.items() if n not in fixed}
        return arrays, lambda arrays, c: self({**arrays, **fixed}, c)

    def arguments(self, batch, seed=0):
        """Arguments by name, arrays in float64; points lie within 1.3 of the origin for c = 1."""
        rng, found = np.random.default_rng(seed), {}

        def array(*axes):
            shape = [SIZES[axis] for axis in axes if axis != BATCH]
            lead = batch if axes[:1] == (BATCH,) else ()
            if axes[-1] in ("n1", "d"):
                space = rng.uniform(-0.8, 0.8, size=(*lead, *shape[:-1], shape[-1] - 1))
                return np.asarray(lorentz.from_space(space))
            drawn = rng.uniform(-0.25, 0.25, size=(*lead, *shape))
            return drawn if lead or len(shape) < 2 else np.linalg.qr(drawn.T)[0].T

        for name, annotation in self.required.items():
            if self.axes.get(name):
                found[name] = array(*self.axes[name])
            if name == "factor":  # triangular, its diagonal positive
                found[name] = np.tril(found[name]) / 4 + 0.7 * np.eye(N)
            elif name == "h":  # its last coordinate is a height
                found[name] = found[name] + np.eye(N)[-1]
            elif self.axes.get(name):
                continue
            elif name == "key":
                found[name] = jax.random.key(seed)
            elif getattr(annotation, "__origin__", None) is Sequence and name == "points":
                width = "n1" if self.name.startswith("lorentz") else "n"
                found[name] = [array(BATCH, width), array(BATCH, width)]
            else:
                found[name] = NUMBERS[name]
                if name in self.axes:
                    found[name] = np.asarray(found[name])
        return found


def cases(table=TABLE):
    """The functions that the table names, in its order; of `lorentz` or `poincare` by default."""
    found = {}
    for line in table.read_text(encoding="utf-8").splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1] if line.startswith("|") else ()
        for default, cell in zip(("lorentz", "poincare"), cells[2:], strict=False):
            for module, name in re.findall(r"`(?:([a-z_]+)\.)?([a-z]\w*)`", cell):
                function = getattr(MODULES[module or default], name)
                found.setdefault(f"{module or default}.{name}", function)
    return [Case(name, function) for name, function in found.items()]


# HoroPCA is fitted to one set of points: it has no batch axes. Its tests are in test_horopca.py.
OF_ONE_SET = {f"horopca.{name}" for name in ("fit", "project", "embed", "variance")}
CASES = [case for case in cases() if case.name not in OF_ONE_SET]
CURVED = [case for case in CASES if case.curved]
SEVERAL = [case for case in CASES if len(case.vectors) > 1]
# A layer's step computes in the layer's dtype.
FLOAT32 = [case for case in CASES if case.name != "lorentz.from_linear"]
NAME = lambda case: case.name
SHARED = {"cones.aperture", "poincare.inside"}  # parts of formulas that modules share
TYPICAL = {"lorentz.distance", "poincare.mobius_add"}


def test_the_table_has_every_public_function():
    named = {case.name for case in CASES}
    assert len(named) == len(CASES) > 80
    for module, source in MODULES.items():
        assert getattr(hl, module) is source
        public = {
            name
            for name, value in vars(source).items()
            if name[0] != "_"
            and callable(value)
            and not isinstance(value, type)
            and getattr(value, "__module__", "").startswith(source.__name__)
        }
        assert {f"{module}.{name}" for name in public} <= named | SHARED | OF_ONE_SET


def refused(case, arguments, c, error=ValueError, **match):
    """What the function says to arguments that it refuses; nothing is computed."""
    arrays, call = case.traceable(arguments)
    with pytest.raises(error, **match) as refusal:
        jax.eval_shape(call, arrays, c)
    return str(refusal.value)


@pytest.mark.slow  # it takes seconds
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
        for width in (2, 3):
            narrow = {**arguments, name: arguments[name][..., :width]}
            refused(case, narrow, 1.0, match="same number of coordinates")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", CASES, ids=NAME)
def test_numbers_in_place_of_vectors_and_vectors_in_place_of_sets_are_refused(case):
    arguments = case.arguments((6,))
    for name in case.vectors:
        refused(case, {**arguments, name: np.float32(1)}, 1.0, match="expected vectors")
    for name in case.sets:
        refused(case, {**arguments, name: np.ones(N + 1)}, 1.0, match="expected sets of vectors")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", [c for c in CASES if c.vectors or c.sets], ids=NAME)
def test_vectors_without_coordinates_and_points_of_a_time_alone_are_refused(case):
    arguments, arrays = case.arguments((6,)), {*case.vectors, *case.sets}
    for width in range(1 + any(case.axes[name][-1] in ("n1", "d") for name in arrays)):
        narrow = {k: v[..., :width] if k in arrays else v for k, v in arguments.items()}
        refusal = refused(case, narrow, 1.0, match="at least [12] coordinate")
        assert f"{width})" in refusal


MATRICES = [
    (case, name) for case in CURVED for name, axes in case.axes.items()
    if len(axes) == 2 and axes[0] != BATCH
]  # fmt: skip


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("case", "name"), MATRICES, ids=lambda of: getattr(of, "name", of))
def test_numbers_and_vectors_in_place_of_a_matrix_are_refused(case, name):
    arguments = case.arguments((6,))
    for wrong in (np.float32(1), np.ones(N), np.ones((N, N + 1)), np.ones((2, N, N))):
        refused(case, {**arguments, name: wrong}, 1.0, match=f"{name} must have shape")


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("unchecked")
def test_other_arrays_of_a_wrong_shape_are_refused():
    points, tangents = np.eye(4)[:1].repeat(6, 0), np.zeros((6, 3))
    components = horopca.HoroPCA(points[0], np.eye(3)[:2], np.asarray(1.0))
    heads = np.zeros((2, 6, 4))
    calls = {
        "horopca.fit": horopca.fit,
        "horopca.project": lambda x: horopca.project(components, x),
        "horopca.embed": lambda x: horopca.embed(components, x),
        "horopca.variance": horopca.variance,
        "poincare.concatenate": lambda x: poincare.concatenate([x, tangents]),
        "bias": lambda x: poincare.mobius_linear(np.eye(3), tangents, np.ravel(x)),
        "merge": attention.merge_heads_on_hyperboloid,
        "released": attention.concatenate_heads_released,
        "value": lambda x: attention.euclidean_attention(heads, heads, x),
        "nn.embed": lambda x: hl.nn.embed(Poincare(1.0), x, np.zeros(2, int)),
        "Sphere": Sphere(1.0).position_in_frame,
    }
    for call in calls.values():
        for wrong in (np.float64(1), np.zeros(0)):
            with pytest.raises(ValueError, match=r"expected|must have"):
                call(wrong)
    for name in ("fit", "project", "embed", "variance"):
        with pytest.raises(ValueError, match=r"coordinate"):
            calls[f"horopca.{name}"](np.ones((6, 1)))


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("module", [lorentz, poincare], ids=["lorentz", "poincare"])
def test_hyperplanes_have_one_offset_each_or_share_one(module):
    x = np.zeros((6, N + 1 if module is lorentz else N))
    normals = np.ones((3, N))
    assert module.mlr(x, normals, 1.0).shape == module.mlr(x, normals, np.ones(3)).shape == (6, 3)
    for wrong in (np.ones(4), np.ones((6, 1)), np.ones((1, 3))):
        with pytest.raises(ValueError, match=r"offsets must have shape \(3,\)"):
            module.mlr(x, normals, wrong)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("mean", [
    lorentz.centroid, poincare.gyromidpoint, statistics.lorentz_mean, statistics.poincare_mean,
])  # fmt: skip
def test_an_empty_set_has_no_mean(mean):
    with pytest.raises(ValueError, match="at least 1 vector"):
        mean(np.zeros((6, 0, N + 1)))


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
    for name in case.vectors + case.sets:
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
    call, low, _ = in_halves(case, narrow)
    got = jax.eval_shape(call, *low)
    assert all(array.dtype == jnp.float32 for array in jax.tree.leaves(got))


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", FLOAT32, ids=NAME)
def test_narrow_numbers_are_computed_in_float32(case, narrow):
    call, low, wide = in_halves(case, narrow)
    got, want = call(*low), call(*wide)
    jax.tree.map(np.testing.assert_array_equal, got, want)


def in_two_dtypes(case):
    """Arguments of which one array at a time is float32, the others float64."""
    arguments, low = case.arguments((2,)), lambda array: np.asarray(array, np.float32)
    for name in case.required:
        value = arguments[name]
        if name == "points" and isinstance(value, list):
            yield {**arguments, name: [low(value[0]), *value[1:]]}
        elif case.axes.get(name) and len([n for n in case.required if case.axes.get(n)]) > 1:
            yield {**arguments, name: low(value)}


# A sample has the dtype of the mean, and its factor and scale are cast to it.
TWO_DTYPES = [case for case in FLOAT32 if "key" not in case.required]


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", TWO_DTYPES, ids=NAME)
def test_float64_is_returned_of_float32_and_float64(case):
    for arguments in in_two_dtypes(case):
        arrays, call = case.traceable(arguments)
        shapes = jax.eval_shape(call, arrays, np.ones(2, np.float32))
        assert all(array.dtype == jnp.float64 for array in jax.tree.leaves(shapes))


@pytest.mark.slow  # a program for each function: minutes in all
@pytest.mark.parametrize("case", TWO_DTYPES, ids=NAME)
def test_float32_and_float64_are_computed_in_float64(case):
    for arguments in in_two_dtypes(case):
        arrays, call = case.traceable(arguments)
        c = np.float32([0.5, 1.5])
        got = jax.jit(call)(arrays, c)
        want = jax.jit(call)(*jax.tree.map(np.float64, (arrays, c)))
        assert_close(got, want, 1e-12, 1e-13)  # rounding in float64


# Functions that read time components, or map all coordinates of any vector.
READ_TIME = {"lorentz.inner", "lorentz.pairwise_inner", "lorentz.time_error", "lorentz.from_linear"}
WITHOUT_TIME = [
    (case, name)
    for case in CASES
    for name in case.vectors + case.sets
    if case.axes[name][-1] in ("n1", "d")
    and case.name not in READ_TIME
    and (name != "v" or case.name != "lorentz.project_tangent")
    and name != "gradient"
]


@pytest.mark.slow  # a program for each argument: minutes in all
@pytest.mark.parametrize(("case", "name"), WITHOUT_TIME, ids=lambda of: getattr(of, "name", of))
def test_time_components_are_not_read(case, name):
    """Values and gradients are equal to those of right time components."""
    arrays, call = case.traceable(case.arguments((2,)))

    @jax.jit
    def evaluate(x, c):
        def total(x, c):
            result = call({**arrays, name: x}, c)
            return sum(jnp.sum(jnp.sin(value)) for value in jax.tree.leaves(result)), result

        return jax.value_and_grad(total, (0, 1), has_aux=True)(x, c)

    c = np.array([0.5, 1.5])
    want = evaluate(arrays[name], c)
    for time in (np.inf, np.nan):
        x = np.array(arrays[name])
        x[..., 0] = time
        assert_close(evaluate(x, c), want, 1e-11, 1e-13, str(time))  # rounding of other formulas


EDGES = {"origin": 0.0, "coincident": 0.3, "rim": 0.999999, "far": 1e4}
"""First coordinate of all points at an edge of the formulas; the others are 0."""


def at_edge(case, edge):
    """Arguments whose points, or the first of them, are all at one place."""
    arguments = case.arguments((2,))

    def moved(value, has_time):
        size = value.shape[-1] - has_time
        place = EDGES["origin" if edge == "first at origin" else edge] * np.eye(size)[0]
        space = np.broadcast_to(place, (*value.shape[:-1], size))
        return np.asarray(lorentz.from_space(space)) if has_time else np.array(space)

    points = [name for name in case.vectors + case.sets if name != "h"]  # heights are above 0
    for name in points[:1] if edge == "first at origin" else points:
        arguments[name] = moved(arguments[name], case.axes[name][-1] in ("n1", "d"))
    return arguments


# Operations run one by one, so a NaN in a branch that is not selected is found as well.
@pytest.mark.slow  # minutes in all
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("edge", [*EDGES, "first at origin"])
@pytest.mark.parametrize("case", FLOAT32, ids=NAME)
def test_no_operation_gives_nan_at_an_edge(case, edge):
    arrays, call = case.traceable(at_edge(case, edge))
    arrays, c = jax.tree.map(np.float32, arrays), np.float32(1)

    def total(arrays, c):
        return sum(jnp.sum(value) for value in jax.tree.leaves(call(arrays, c)))

    with jax.debug_nans(True):
        jax.grad(total, (0, 1))(arrays, c)


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


@pytest.mark.parametrize("case", [c for c in CURVED if c.name in TYPICAL], ids=NAME)
def test_jit_vmap_and_batch_axes_give_equal_results(case):
    arrays, call = case.traceable(case.arguments((2, 3)))
    c = np.linspace(0.5, 2, 3)
    got = jax.jit(call)(arrays, c)
    with jax.disable_jit():
        assert_close(got, call(arrays, c), 1e-11, 1e-13)
    row = {name: 0 if name in case.batched else None for name in arrays}
    assert_close(jax.jit(jax.vmap(call, (row, None)))(arrays, c), got, 1e-11, 1e-13)


@pytest.mark.slow  # a program for each function: minutes in all
@pytest.mark.parametrize("case", CURVED, ids=NAME)
def test_a_curvature_of_the_batch_without_jit_and_in_transformations(case):
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

    c = np.linspace(0.5, 2, 3)
    got = everything(rows, fixed, c)
    with jax.disable_jit():
        assert_close(call(arrays, c), got["plain"], 1e-11, 1e-13, "without jit")
    # Random numbers are drawn for the whole batch, or for each entry.
    drawn = "key" in case.required
    for name, want in [("checkpoint", "plain"), ("scan", "vmap")] + [("vmap", "plain")] * (
        not drawn
    ):
        assert_close(got[name], got[want], 1e-12, 1e-14, name)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", CURVED, ids=NAME)
def test_a_negative_curvature_is_refused(case):
    arguments = case.arguments((2,))
    for c in (-1.0, np.array([-0.5, 1.0]), jnp.full(2, -1.0), np.nan):
        with pytest.raises(ValueError, match=r"^c must be (at least 0|positive), got "):
            jax.eval_shape(lambda c=c: case(arguments, c))


@pytest.mark.parametrize(
    "case",
    [  # a program for each function: minutes in all
        pytest.param(case, marks=() if case.name in TYPICAL else pytest.mark.slow, id=case.name)
        for case in CURVED
        if case.name != "poincare.origin"  # 0 in every curvature
    ],
)
def test_a_traced_negative_curvature_gives_nan(case):
    arrays, call = case.traceable(case.arguments((2,)))
    result = jax.jit(call)(arrays, np.float64(-1) if case.batched else np.array([-1.0]))
    assert any(np.isnan(leaf).any() for leaf in jax.tree.leaves(result))


@pytest.mark.slow  # a program for each function: minutes in all
@pytest.mark.parametrize("case", CASES, ids=NAME)
def test_nan_in_an_argument_is_never_hidden(case):
    arrays, call = case.traceable(case.arguments((2,)))
    call = jax.jit(call)
    c = np.float64(1) if case.batched else np.array([1.0])
    for name in arrays.keys() & case.axes.keys() | {"points"} & arrays.keys():
        spoilt = jax.tree.map(np.array, arrays[name])
        for array in jax.tree.leaves(spoilt):
            array[(..., -1) if array.ndim else ()] = np.nan
        result = call({**arrays, name: spoilt}, c)
        assert any(np.isnan(leaf).any() for leaf in jax.tree.leaves(result)), name


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


SHARDED = """
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
from test_public import CURVED

mesh = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
split, whole = (
    jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
    for axes in (("batch",), ())
)
cases = CURVED
traceable = [case.traceable(case.arguments((4,))) for case in cases]
c = np.linspace(0.5, 2, 4)

def everything(arguments, c):
    return [call(arrays, c) for (_, call), arrays in zip(traceable, arguments, strict=True)]

arguments = [arrays for arrays, _ in traceable]
sharded = [
    {name: jax.device_put(array, split if name in case.batched else whole)
     for name, array in arrays.items()}
    for case, arrays in zip(cases, arguments, strict=True)
]
want = jax.jit(everything)(arguments, c)
got = jax.jit(everything)(sharded, jax.device_put(c, split))
for case, one, other in zip(cases, got, want, strict=True):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert len(a.sharding.device_set) == 2, case.name
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14, err_msg=case.name)
print(len(cases))
"""


MAPPED = """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
from test_public import CURVED

mesh = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
split, whole = (jax.sharding.PartitionSpec(*axes) for axes in (("batch",), ()))
cases = 0
for case in CURVED:
    # Each device draws its own samples, and the first axis of a list is not the batch.
    if "sample" in case.name or "concatenate" in case.name:
        continue
    arrays, call = case.traceable(case.arguments((4,)))
    arrays = {name: np.asarray(x) for name, x in arrays.items()}
    specs = {name: split if name in case.batched else whole for name in arrays}
    floats = {name: x for name, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)}
    others = {name: x for name, x in arrays.items() if name not in floats}

    def total(floats, c):
        results = jax.tree.leaves(call(floats | others, c))
        return sum(jnp.sum(jnp.sin(x)) for x in results if jnp.issubdtype(x.dtype, jnp.floating))

    slopes = jax.grad(total, (0, 1))
    specs = {name: specs[name] for name in floats}, whole
    mapped = jax.shard_map(slopes, mesh=mesh, in_specs=specs, out_specs=specs)
    c = np.asarray(0.7)
    both = (jax.tree.leaves(jax.jit(f)(floats, c)) for f in (mapped, slopes))
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11, err_msg=case.name)
    cases += 1
print(cases)
"""

EXPLICIT = """
import sys
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
from test_public import CASES, derivatives

mesh = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Explicit,))
split, whole = (jax.sharding.NamedSharding(mesh, jax.P(*axes)) for axes in (("batch",), ()))
c = np.asarray(0.7)
cases = CASES[int(sys.argv[1])::4]
for case in cases:
    arrays, call = case.traceable(case.arguments((4,)))
    arrays = jax.tree.map(np.asarray, arrays)
    functions = [(derivatives(call), set(case.batched)), (derivatives(call), set(case.batched[:1]))]
    if case.batched and "sample" not in case.name:  # `jax.vmap` draws the same for each entry
        axes = {name: 0 if name in case.batched else None for name in arrays}
        functions.append((jax.vmap(call, in_axes=(axes, None)), set(case.batched)))
    for function, names in functions[len(case.batched) < 2:]:
        function = jax.jit(function)
        want = function(arrays, c)
        places = {name: split if name in names else whole for name in arrays}
        with jax.set_mesh(mesh):
            got = function(*jax.device_put((arrays, c), (places, whole)))
        for a, b in zip(*map(jax.tree.leaves, (got, want)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11, err_msg=case.name)
print(len(cases))
"""


def derivatives(call):
    """Returns a function of its values with their tangents, and of gradients of their mean."""

    def mean(arrays, c):
        return sum(jnp.mean(jnp.sin(x)) for x in jax.tree.leaves(call(arrays, c)))

    def compute(arrays, c):
        changes = jax.tree.map(jnp.cos, (arrays, c))
        return jax.jvp(call, (arrays, c), changes), jax.grad(mean, (0, 1))(arrays, c)

    return compute


def _run_on_two_devices(program, *arguments):
    environment = processes.environment(devices=2)
    environment["PYTHONPATH"] += f"{os.pathsep}{processes.ROOT / 'tests' / 'ops'}"
    done = processes.finish([sys.executable, "-c", program, *arguments], env=environment)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
def test_points_and_curvatures_that_are_sharded_over_two_devices_give_the_same_values():
    assert _run_on_two_devices(SHARDED) == len(CURVED)


@pytest.mark.slow
def test_gradients_in_shard_map_are_those_of_the_whole_batch():
    assert _run_on_two_devices(MAPPED) == len(CURVED) - 6


HAS_EXPLICIT_MESHES = pytest.mark.skipif(
    not hasattr(jax, "set_mesh"), reason="this version of JAX has experimental explicit meshes only"
)


@HAS_EXPLICIT_MESHES
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_functions_on_an_explicit_mesh(part):
    assert _run_on_two_devices(EXPLICIT, str(part)) == len(CASES[part::4])


@HAS_EXPLICIT_MESHES
@pytest.mark.parametrize(("transform", "call"), [
    (jax.jit, lambda x, y: lorentz.distance(x, y[:1])),
    (jax.jit, lambda x, y: lorentz.pairwise_distance(x, y)),
    (jax.jit, lambda x, y: lorentz.centroid(jnp.stack([x, 2 * x], axis=1))),
    (jax.jit, lambda x, y: statistics.lorentz_full_log_density(x, y[:1], 2 * jnp.eye(N))),
    (lambda gradient: gradient, lambda x, y: poincare.project(x[:, 1:] / 4)),
], ids=["distance", "pairs", "centroid", "density", "without jit"])  # fmt: skip
def test_gradients_on_an_explicit_mesh(transform, call):
    """Types say that the first axis is sharded, even if the mesh has one device."""
    x, y = (jnp.asarray(lorentz.from_space(jnp.eye(5, N) * size)) for size in (0.5, 0.7))
    gradient = transform(jax.grad(lambda x, y: jnp.mean(call(x, y)), (0, 1)))
    want = gradient(x, y)
    mesh = jax.make_mesh((1,), ("batch",), axis_types=(jax.sharding.AxisType.Explicit,))
    split, whole = (jax.sharding.NamedSharding(mesh, jax.P(*axes)) for axes in (("batch",), ()))
    with jax.set_mesh(mesh):
        got = gradient(*jax.device_put((x, y), (split, whole)))
    assert jax.typeof(got[0]).sharding.spec[0] == "batch"
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
