"""Public functions of hyperbolic space in the table of `docs/geometry.md`: accepted shapes,
curvatures and dtypes, and the transformations of JAX.

The tests read the table. They make the arguments of a function from its signature: arrays from the
axes of their annotations, and the rest from `NUMBERS`.
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
    """Function of the table.

    Attributes:
      name: its module and its name.
      function: the function.
    """

    name: str
    function: Callable

    def __call__(self, arguments, c=None):
        """Call the function, with a curvature if it takes one."""
        return self.function(**arguments, **({"c": c} if self.curved else {}))

    @property
    def curved(self):
        """True if the function takes a curvature (inner products do not)."""
        return "c" in inspect.signature(self.function).parameters

    @property
    def required(self):
        """Annotations of the required parameters other than the curvature."""
        parameters = inspect.signature(self.function).parameters
        return {
            name: p.annotation
            for name, p in parameters.items()
            if p.default is inspect.Parameter.empty and name != "c"
        }

    @property
    def axes(self):
        """Axes of the required arrays."""
        # An annotation of several array types is their union.
        kinds = {
            name: typing.get_args(annotation) or (annotation,)
            for name, annotation in self.required.items()
        }
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
        names = [name for name, axes in self.axes.items() if axes[:1] == [BATCH]]
        return names or [name for name in self.required if name == "points"]

    def at(self, arguments, index):
        """Return the arguments for one entry of the batch."""

        def take(value):
            return jax.tree.map(lambda array: array[index], value)

        return {n: take(v) if n in self.batched else v for n, v in arguments.items()}

    def traceable(self, arguments):
        """Return the array arguments, and a function of these arrays and a curvature."""
        fixed = {n: v for n, v in arguments.items() if n in ("key", "dims", "n")}
        arrays = {n: v for n, v in arguments.items() if n not in fixed}
        return arrays, lambda arrays, c: self({**arrays, **fixed}, c)

    def arguments(self, batch, seed=0):
        """Return arguments by name, in float64; points lie within 1.3 of the origin for c = 1."""
        rng, values = np.random.default_rng(seed), {}

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
                values[name] = array(*self.axes[name])
            if name == "factor":  # triangular, its diagonal positive
                values[name] = np.tril(values[name]) / 4 + 0.7 * np.eye(N)
            elif name == "h":  # the last coordinate is a height
                values[name] = values[name] + np.eye(N)[-1]
            elif self.axes.get(name):
                continue
            elif name == "key":
                values[name] = jax.random.key(seed)
            elif getattr(annotation, "__origin__", None) is Sequence and name == "points":
                width = "n1" if self.name.startswith("lorentz") else "n"
                values[name] = [array(BATCH, width), array(BATCH, width)]
            else:
                values[name] = NUMBERS[name]
                if name in self.axes:
                    values[name] = np.asarray(values[name])
        return values


def cases(table=TABLE):
    """Return the functions in the order of the table, by default of `lorentz` or `poincare`."""
    functions = {}
    for line in table.read_text(encoding="utf-8").splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1] if line.startswith("|") else ()
        for default, cell in zip(("lorentz", "poincare"), cells[2:], strict=False):
            for module, name in re.findall(r"`(?:([a-z_]+)\.)?([a-z]\w*)`", cell):
                function = getattr(MODULES[module or default], name)
                functions.setdefault(f"{module or default}.{name}", function)
    return [Case(name, function) for name, function in functions.items()]


# HoroPCA has no batch axes. Its tests are in test_horopca.py.
WITHOUT_BATCH = {f"horopca.{name}" for name in ("fit", "project", "embed", "variance")}
CASES = [case for case in cases() if case.name not in WITHOUT_BATCH]
CURVED = [case for case in CASES if case.curved]
SEVERAL_VECTORS = [case for case in CASES if len(case.vectors) > 1]
# `from_linear` computes in the dtype of the layer.
FLOAT32 = [case for case in CASES if case.name != "lorentz.from_linear"]


def case_name(case):
    return case.name


# Used by other modules, not public.
SHARED = {
    "cones.aperture", "poincare.inside", "poincare.from_frame", "poincare.transport_in_frame"
}  # fmt: skip
TYPICAL = {"lorentz.distance", "poincare.mobius_add"}


def test_table_has_every_public_function():
    names = {case.name for case in CASES}
    assert len(names) == len(CASES) > 80
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
        missing = {f"{module}.{name}" for name in public} - names - SHARED - WITHOUT_BATCH
        assert not missing, f"add them to the table of functions of {TABLE}"


def assert_refused(case, arguments, c, error=ValueError, **match):
    """Return the message of the error for invalid arguments, without computing anything."""
    arrays, call = case.traceable(arguments)
    with pytest.raises(error, **match) as refusal:
        jax.eval_shape(call, arrays, c)
    return str(refusal.value)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", CURVED, ids=case_name)
def test_curvature_broadcasts_to_the_batch_and_not_beyond(case):
    arguments, c = case.arguments((6,)), np.linspace(0.5, 2, 6)
    arrays, call = case.traceable(arguments)
    shapes = jax.eval_shape(call, arrays, c)
    assert all(array.shape[0] == 6 for array in jax.tree.leaves(shapes))
    if not case.batched:
        return  # the shape of the curvature is the batch
    assert jax.eval_shape(call, arrays, c[:1]) == shapes
    for wrong in ((6, 1), (1, 1), (5,), (6, 6)):
        refusal = assert_refused(
            case, arguments, np.ones(wrong), match="does not broadcast to the batch"
        )
        assert str(wrong) in refusal and "(6," in refusal
    single = case.at(arguments, 0)
    assert_refused(case, single, c, match="does not broadcast to the batch")


@pytest.mark.slow
@pytest.mark.parametrize("case", SEVERAL_VECTORS, ids=case_name)
def test_batched_curvature_broadcasts_a_shared_point(case):
    arguments, c = case.arguments((3,)), np.linspace(0.5, 2, 3)
    arrays, call = case.traceable(arguments)

    call = jax.jit(call)
    for name in case.vectors[:2]:
        shared = arrays[name][:1]
        got = call({**arrays, name: shared}, c)
        want = call({**arrays, name: np.broadcast_to(shared, arrays[name].shape)}, c)
        for actual, expected in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", SEVERAL_VECTORS, ids=case_name)
def test_every_function_refuses_vectors_of_another_width(case):
    arguments = case.arguments((6,))
    for name in case.vectors:
        for width in (2, 3):
            narrow = {**arguments, name: arguments[name][..., :width]}
            assert_refused(case, narrow, 1.0, match="same number of coordinates")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_numbers_for_vectors_and_vectors_for_sets_are_refused(case):
    arguments = case.arguments((6,))
    for name in case.vectors:
        assert_refused(case, {**arguments, name: np.float32(1)}, 1.0, match="expected vectors")
    for name in case.sets:
        assert_refused(
            case, {**arguments, name: np.ones(N + 1)}, 1.0, match="expected sets of vectors"
        )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", [c for c in CASES if c.vectors or c.sets], ids=case_name)
def test_vectors_without_space_coordinates_are_refused(case):
    arguments, arrays = case.arguments((6,)), {*case.vectors, *case.sets}
    for width in range(1 + any(case.axes[name][-1] in ("n1", "d") for name in arrays)):
        narrow = {k: v[..., :width] if k in arrays else v for k, v in arguments.items()}
        refusal = assert_refused(case, narrow, 1.0, match="at least [12] coordinate")
        assert f"{width})" in refusal


MATRICES = [
    (case, name) for case in CURVED for name, axes in case.axes.items()
    if len(axes) == 2 and axes[0] != BATCH
]  # fmt: skip


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("case", "name"), MATRICES, ids=lambda value: getattr(value, "name", value)
)
def test_numbers_and_vectors_in_place_of_a_matrix_are_refused(case, name):
    arguments = case.arguments((6,))
    for wrong in (np.float32(1), np.ones(N), np.ones((N, N + 1)), np.ones((2, N, N))):
        assert_refused(case, {**arguments, name: wrong}, 1.0, match=f"{name} must have shape")


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("unchecked")
def test_further_arrays_of_a_wrong_shape_are_refused():
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
    for wrong in (np.ones(1), np.ones(4), np.ones((6, 1)), np.ones((1, 3))):
        with pytest.raises(ValueError, match=r"offsets must have shape \(3,\)"):
            module.mlr(x, normals, wrong)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("mean", [
    lorentz.centroid, poincare.gyromidpoint, statistics.lorentz_mean, statistics.poincare_mean,
])  # fmt: skip
def test_empty_set_has_no_mean(mean):
    with pytest.raises(ValueError, match="at least 1 vector"):
        mean(np.zeros((6, 0, N + 1)))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", SEVERAL_VECTORS, ids=case_name)
def test_refusal_of_mismatched_batches_names_both_shapes(case):
    arguments = case.arguments((6,))
    for name in case.vectors:
        shorter = {**arguments, name: arguments[name][:4]}
        refusal = assert_refused(case, shorter, 1.0, (ValueError, TypeError), match="broadcast")
        assert "(6," in refusal and "(4," in refusal


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", FLOAT32, ids=case_name)
def test_complex_numbers_and_lists_are_refused_by_all_functions(case):
    arguments = case.arguments((6,))
    for name in case.vectors + case.sets:
        assert_refused(case, {**arguments, name: arguments[name].astype(complex)}, 1.0, TypeError)
        with pytest.raises(TypeError):
            case({**arguments, name: arguments[name].tolist()}, 1.0)


def in_halves(case, narrow):
    """Return a function of arrays, arrays of a narrow dtype, and their values in float32."""
    arrays, call = case.traceable(case.arguments((2,)))
    inputs = arrays, np.array([0.5, 1.5])
    low = jax.tree.map(lambda v: jnp.asarray(v, narrow), inputs)
    return call, low, jax.tree.map(lambda v: v.astype(jnp.float32), low)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", FLOAT32, ids=case_name)
def test_narrow_inputs_return_float32(case):
    call, low, _ = in_halves(case, "bfloat16")
    got = jax.eval_shape(call, *low)
    assert all(array.dtype == jnp.float32 for array in jax.tree.leaves(got))


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", FLOAT32, ids=case_name)
def test_narrow_inputs_are_computed_in_float32(case, narrow):
    call, low, wide = in_halves(case, narrow)
    got, want = call(*low), call(*wide)
    assert all(array.dtype == jnp.float32 for array in jax.tree.leaves(got))
    jax.tree.map(np.testing.assert_array_equal, got, want)


def in_two_dtypes(case):
    """Yield float64 arguments with one array at a time in float32."""
    arguments, low = case.arguments((2,)), lambda array: np.asarray(array, np.float32)
    for name in case.required:
        value = arguments[name]
        if name == "points" and isinstance(value, list):
            yield {**arguments, name: [low(value[0]), *value[1:]]}
        elif case.axes.get(name) and len([n for n in case.required if case.axes.get(n)]) > 1:
            yield {**arguments, name: low(value)}


# Samples have the dtype of the mean; factor and scale are cast to it.
TWO_DTYPES = [case for case in FLOAT32 if "key" not in case.required]


@pytest.mark.slow  # a program for each function: minutes in all
@pytest.mark.parametrize("case", TWO_DTYPES, ids=case_name)
def test_float32_and_float64_are_computed_in_float64(case):
    for arguments in in_two_dtypes(case):
        arrays, call = case.traceable(arguments)
        c = np.float32([0.5, 1.5])
        got = jax.jit(call)(arrays, c)
        assert all(array.dtype == jnp.float64 for array in jax.tree.leaves(got))
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


@pytest.mark.slow  # a program per argument: minutes in total
@pytest.mark.parametrize(
    ("case", "name"), WITHOUT_TIME, ids=lambda value: getattr(value, "name", value)
)
def test_time_components_are_not_read(case, name):
    """Values and gradients do not depend on the time components."""
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
        assert_close(evaluate(x, c), want, 1e-11, 1e-13, str(time))  # rounding


EDGES = {"origin": 0.0, "coincident": 0.3, "rim": 0.999999, "far": 1e4}
"""First coordinate of all points at an edge of the formulas; the remaining ones are 0."""


def at_edge(case, edge):
    """Return arguments whose points (all, or the first) are at one place."""
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


# Operations run separately, so a NaN in a branch that is not selected raises as well.
@pytest.mark.slow  # minutes in all
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("edge", [*EDGES, "first at origin"])
@pytest.mark.parametrize("case", FLOAT32, ids=case_name)
def test_no_operation_gives_nan_at_an_edge(case, edge):
    arrays, call = case.traceable(at_edge(case, edge))
    arrays, c = jax.tree.map(np.float32, arrays), np.float32(1)

    def total(arrays, c):
        return sum(jnp.sum(value) for value in jax.tree.leaves(call(arrays, c)))

    with jax.debug_nans(True):
        jax.grad(total, (0, 1))(arrays, c)


@pytest.mark.usefixtures("unchecked")
def test_integer_points_keep_their_width():
    integers = np.array([0, 3, -4])
    for narrow, wide in ((np.int64, jnp.float64), (np.int32, jnp.float32)):
        point = jax.eval_shape(lorentz.project, integers.astype(narrow))
        assert point.dtype == wide
        assert jax.eval_shape(lorentz.distance, point, point).dtype == wide
    assert lorentz.origin(2).dtype == jnp.float64
    assert lorentz.origin(2, jnp.float32(2)).dtype == jnp.float32
    assert lorentz.origin(2, dtype=jnp.bfloat16).dtype == jnp.float32


def test_origin_has_the_default_dtype_of_jax():
    jax.config.update("jax_enable_x64", False)  # where a warning of a truncated dtype is an error
    for c in (np.ones(2), np.ones(2, int)):
        assert lorentz.origin(3, c).dtype == jnp.float32
    assert lorentz.origin(3).dtype == jnp.float32


def assert_close(got, want, rtol, atol, context=""):
    """Compare the arrays of two results."""
    for actual, expected in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=context)


@pytest.mark.parametrize("case", [c for c in CURVED if c.name in TYPICAL], ids=case_name)
def test_jit_vmap_and_batch_axes_give_equal_results(case):
    arrays, call = case.traceable(case.arguments((2, 3)))
    c = np.linspace(0.5, 2, 3)
    got = jax.jit(call)(arrays, c)
    with jax.disable_jit():
        assert_close(got, call(arrays, c), 1e-11, 1e-13)
    row = {name: 0 if name in case.batched else None for name in arrays}
    assert_close(jax.jit(jax.vmap(call, (row, None)))(arrays, c), got, 1e-11, 1e-13)


@pytest.mark.slow  # a program for each function: minutes in all
@pytest.mark.parametrize("case", CURVED, ids=case_name)
def test_batched_curvature_works_in_all_transformations(case):
    arrays, call = case.traceable(case.arguments((3,)))
    fixed = {name: array for name, array in arrays.items() if name not in case.batched}
    rows = {name: array for name, array in arrays.items() if name in case.batched}

    @jax.jit
    def evaluate(rows, fixed, c):
        def single(row, c):
            return call({**row, **fixed}, c)

        return {
            "plain": call({**rows, **fixed}, c),
            "checkpoint": jax.checkpoint(call)({**rows, **fixed}, c),
            "vmap": jax.vmap(single)(rows, c),
            "scan": jax.lax.scan(lambda _, row: (None, single(*row)), None, (rows, c))[1],
        }

    c = np.linspace(0.5, 2, 3)
    got = evaluate(rows, fixed, c)
    with jax.disable_jit():
        assert_close(call(arrays, c), got["plain"], 1e-11, 1e-13, "without jit")
    # Random numbers are drawn for the whole batch, or for each entry.
    drawn = "key" in case.required
    for name, want in [("checkpoint", "plain"), ("scan", "vmap")] + [("vmap", "plain")] * (
        not drawn
    ):
        assert_close(got[name], got[want], 1e-12, 1e-14, name)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", CURVED, ids=case_name)
def test_negative_curvature_is_refused(case):
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
def test_traced_negative_curvature_gives_nan(case):
    arrays, call = case.traceable(case.arguments((2,)))
    result = jax.jit(call)(arrays, np.float64(-1) if case.batched else np.array([-1.0]))
    assert any(np.isnan(leaf).any() for leaf in jax.tree.leaves(result))


@pytest.mark.slow  # a program for each function: minutes in all
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_nan_in_an_argument_is_never_hidden(case):
    arrays, call = case.traceable(case.arguments((2,)))
    call = jax.jit(call)
    c = np.float64(1) if case.batched else np.array([1.0])
    for name in arrays.keys() & case.axes.keys() | {"points"} & arrays.keys():
        broken = jax.tree.map(np.array, arrays[name])
        for array in jax.tree.leaves(broken):
            array[(..., -1) if array.ndim else ()] = np.nan
        result = call({**arrays, name: broken}, c)
        assert any(np.isnan(leaf).any() for leaf in jax.tree.leaves(result)), name


STEP = 1e-5


@pytest.mark.slow  # a program for each function: minutes in all
@pytest.mark.parametrize("case", CURVED, ids=case_name)
def test_derivatives_in_a_learned_curvature_equal_differences(case):
    """Compare forward and reverse derivatives, and the second derivative, with differences."""
    arrays, call = case.traceable(case.arguments((2,)))

    def loss(theta, arrays):
        c = jnp.exp(theta) if case.batched else jnp.exp(theta)[None]
        return sum(jnp.sum(jnp.sin(value)) for value in jax.tree.leaves(call(arrays, c)))

    @jax.jit
    def derivatives(arrays, theta):
        def both(theta):
            return jax.value_and_grad(loss)(theta, arrays)

        return jax.jvp(both, (theta,), (jnp.ones(()),))

    theta = jnp.asarray(-0.4)
    middle, ahead, behind = (derivatives(arrays, theta + step) for step in (0, STEP, -STEP))
    (_, reverse), (forward, second) = middle
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
split, replicated = (
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
    {name: jax.device_put(array, split if name in case.batched else replicated)
     for name, array in arrays.items()}
    for case, arrays in zip(cases, arguments, strict=True)
]
want = jax.jit(everything)(arguments, c)
got = jax.jit(everything)(sharded, jax.device_put(c, split))
for case, actual, expected in zip(cases, got, want, strict=True):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert len(a.sharding.device_set) == 2, case.name
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14, err_msg=case.name)
print(len(cases))
"""


MAPPED = """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
from test_public import CURVED

mesh = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
split, replicated = (jax.sharding.PartitionSpec(*axes) for axes in (("batch",), ()))
cases = 0
for case in CURVED:
    # Each device draws separate samples, and the first axis of a list is not the batch.
    if "sample" in case.name or "concatenate" in case.name:
        continue
    arrays, call = case.traceable(case.arguments((4,)))
    arrays = {name: np.asarray(x) for name, x in arrays.items()}
    specs = {name: split if name in case.batched else replicated for name in arrays}
    floats = {name: x for name, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)}
    integers = {name: x for name, x in arrays.items() if name not in floats}

    def total(floats, c):
        results = jax.tree.leaves(call(floats | integers, c))
        return sum(jnp.sum(jnp.sin(x)) for x in results if jnp.issubdtype(x.dtype, jnp.floating))

    slopes = jax.grad(total, (0, 1))
    specs = {name: specs[name] for name in floats}, replicated
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
split, replicated = (jax.sharding.NamedSharding(mesh, jax.P(*axes)) for axes in (("batch",), ()))
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
        places = {name: split if name in names else replicated for name in arrays}
        with jax.set_mesh(mesh):
            got = function(*jax.device_put((arrays, c), (places, replicated)))
        for a, b in zip(*map(jax.tree.leaves, (got, want)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11, err_msg=case.name)
print(len(cases))
"""


def derivatives(call):
    """Return a function that computes values with tangents, and gradients of their mean."""

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
def test_sharded_points_and_curvatures_give_the_same_values():
    assert _run_on_two_devices(SHARDED) == len(CURVED)


@pytest.mark.slow
def test_gradients_in_shard_map_equal_the_full_batch():
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
    """The type of an array says that its first axis is sharded, even on one device."""
    x, y = (jnp.asarray(lorentz.from_space(jnp.eye(5, N) * size)) for size in (0.5, 0.7))
    gradient = transform(jax.grad(lambda x, y: jnp.mean(call(x, y)), (0, 1)))
    want = gradient(x, y)
    mesh = jax.make_mesh((1,), ("batch",), axis_types=(jax.sharding.AxisType.Explicit,))
    split, replicated = (
        jax.sharding.NamedSharding(mesh, jax.P(*axes)) for axes in (("batch",), ())
    )
    with jax.set_mesh(mesh):
        got = gradient(*jax.device_put((x, y), (split, replicated)))
    assert jax.typeof(got[0]).sharding.spec[0] == "batch"
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
