"""Products of narrow arrays against sums in float64, and their compiled programs."""

import functools
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
from jax import export

from hlformer_jax.ops import products

PRODUCTS = {
    "dense": ("ri,io->ro", (6, 40), (40, 5)),
    "logits": ("...md,...ld->...ml", (2, 3, 4, 32), (2, 3, 7, 32)),
    "values": ("...ml,...ld->...md", (2, 3, 4, 24), (2, 3, 24, 8)),
    "unnamed": ("vlh,vfh->vlf", (2, 3, 16), (2, 5, 16)),
    "broadcast": ("...nd,nd->...n", (4, 3, 16), (3, 16)),
}
"""Subscripts and shapes of two factors: the products of the models, and a broadcast one."""

ROUNDING = 2.0**-8
"""The largest relative error of a rounding to bfloat16, which has 8 bits."""


def factors(name, dtype=jnp.bfloat16):
    subscripts, *shapes = PRODUCTS[name]
    first, second, third = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(first, shapes[0]).astype(dtype)
    y = jax.random.normal(second, shapes[1]).astype(dtype)
    weights = jax.random.normal(third, jax.eval_shape(exact(subscripts), x, y).shape)
    return subscripts, x, y, weights


def exact(subscripts):
    return lambda x, y: jnp.einsum(subscripts, x, y)


def in_float64(f, *arrays):
    return jax.tree.map(np.asarray, f(*(jnp.asarray(x, jnp.float64) for x in arrays)))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("is_exact", [False, True])
def test_sums_and_gradients_are_accurate(is_exact, name):
    subscripts, x, y, weights = factors(name)
    dtype = jnp.float32 if is_exact else jnp.bfloat16

    def compute(x, y):
        return products.einsum(subscripts, x, y, is_exact)

    def total(compute):
        return lambda x, y, weights: jnp.sum(compute(x, y).astype(weights.dtype) * weights)

    value = compute(x, y)
    assert value.dtype == dtype
    expected = in_float64(exact(subscripts), x, y)
    size = in_float64(exact(subscripts), abs(x), abs(y))
    # Sums in float32 have an error of 40 terms times eps; the result is rounded once.
    tolerance = 40 * np.finfo(np.float32).eps + ROUNDING * (dtype == jnp.bfloat16)
    assert np.all(np.abs(np.asarray(value, np.float64) - expected) <= tolerance * size)

    gradients = jax.jit(jax.grad(total(compute), (0, 1)))(x, y, weights)
    expected = in_float64(jax.grad(total(exact(subscripts)), (0, 1)), x, y, weights)
    sizes = in_float64(jax.grad(total(exact(subscripts)), (0, 1)), abs(x), abs(y), abs(weights))
    for gradient, reference, size in zip(gradients, expected, sizes, strict=True):
        assert gradient.dtype == jnp.bfloat16
        # The gradient of the result is rounded, and the sum of its products.
        error = np.abs(np.asarray(gradient, np.float64) - reference)
        assert np.all(error <= 2.1 * ROUNDING * size)


def test_wide_factors_use_einsum_of_jax(dtype):
    subscripts, x, y, _ = factors("logits", dtype)
    for is_exact in (False, True):
        result = products.einsum(subscripts, x, y, is_exact)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, exact(subscripts)(x, y))


def test_factors_of_two_dtypes_are_promoted():
    subscripts, x, y, _ = factors("logits")
    with jax.numpy_dtype_promotion("standard"):
        assert products.einsum(subscripts, x, y.astype(jnp.float16)).dtype == jnp.float32
        assert products.einsum(subscripts, x.astype(jnp.float32), y).dtype == jnp.float32


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("is_exact", [False, True])
def test_derivatives_in_forward_mode(is_exact, name):
    subscripts, x, y, _ = factors(name)
    compute = functools.partial(products.einsum, subscripts, exact=is_exact)
    changes = x[::-1], -y
    value, change = jax.jit(functools.partial(jax.jvp, compute))((x, y), changes)
    np.testing.assert_array_equal(value, compute(x, y))
    # The product is linear in each factor.
    expected = compute(changes[0], y) + compute(x, changes[1])
    np.testing.assert_array_equal(change, expected)

    # A product of a Hessian and a vector, in both modes, and in reverse mode only.
    slope = jax.grad(lambda x: jnp.sum(compute(x, y).astype(jnp.float32) ** 2))
    _, forward = jax.jvp(slope, (x,), changes[:1])
    _, pull = jax.vjp(slope, x)
    np.testing.assert_array_equal(forward, pull(changes[0])[0])


@pytest.mark.parametrize("is_exact", [False, True])
def test_products_in_shard_map(is_exact):
    _, x, kernel, _ = factors("dense")
    mesh = jax.make_mesh((1,), ("rows",))
    rows, replicated = jax.sharding.PartitionSpec("rows"), jax.sharding.PartitionSpec()

    def slopes(x, kernel):
        multiply = functools.partial(products.einsum, "ri,io->ro", exact=is_exact)
        return jax.grad(lambda *both: jnp.sum(multiply(*both) ** 2), (0, 1))(x, kernel)

    parts = jax.shard_map(
        slopes, mesh=mesh, in_specs=(rows, replicated), out_specs=(rows, replicated)
    )
    x = jax.device_put(x, jax.sharding.NamedSharding(mesh, rows))
    kernel = jax.device_put(kernel, jax.sharding.NamedSharding(mesh, replicated))
    for part, expected in zip(jax.jit(parts)(x, kernel), slopes(x, kernel), strict=True):
        part, expected = (np.asarray(a, np.float64) for a in (part, expected))
        # Sums of 5 and 6 products of factors that are rounded to bfloat16, and so are the sums.
        assert np.max(np.abs(part - expected)) <= 2 * ROUNDING * np.max(np.abs(expected))


def test_gradient_of_a_gradient():
    _, x, kernel, _ = factors("dense")

    def penalty(multiply, x, kernel):
        slope = jax.grad(lambda x: jnp.sum(jnp.sin(multiply(x, kernel).astype(jnp.float32))))
        return jnp.sum(jnp.square(slope(x).astype(jnp.float32)))

    actual = jax.grad(penalty, 2)(products.matmul, x, kernel).astype(jnp.float32)
    wide = (a.astype(jnp.float32) for a in (x, kernel))
    expected = jax.grad(penalty, 2)(jnp.matmul, *wide)
    # A few roundings, and sines of sums of 40 products that are rounded to 2^-8 of their size.
    assert np.linalg.norm(actual - expected) < 0.05 * np.linalg.norm(expected)


def test_vmapped_products_equal_single_products():
    _, x, kernel, _ = factors("dense")
    kernels = jnp.stack([kernel, 2 * kernel, -kernel])

    def slopes(x, kernel):
        return jax.grad(lambda *both: jnp.sum(products.matmul(*both)), (0, 1))(x, kernel)

    batched = jax.vmap(slopes, (None, 0))(x, kernels)
    for i, single in enumerate(kernels):
        for a, b in zip(batched, slopes(x, single), strict=True):
            np.testing.assert_array_equal(a[i], b)


@pytest.mark.parametrize("axes", [(-1, 0), (0, -1), (-1, -1), (1, -2)])
@pytest.mark.parametrize("name", ["dense", "values"])
def test_vmap_along_any_axes(name, axes):
    subscripts, x, y, _ = factors(name)

    def stack(factor, axis):
        rows = ((factor, -factor), (2 * factor, 3 * factor))
        return jnp.stack([jnp.stack(row, axis) for row in rows], axis)

    def slopes(x, y):
        compute = functools.partial(products.einsum, subscripts)
        return jax.grad(lambda *both: jnp.sum(compute(*both) ** 2), (0, 1))(x, y)

    twice = jax.jit(jax.vmap(jax.vmap(slopes, axes), axes))
    actual = twice(stack(x, axes[0]), stack(y, axes[1]))
    expected = jax.vmap(jax.vmap(slopes))(stack(x, 0), stack(y, 0))
    for a, b in zip(actual, expected, strict=True):
        # Sums in float32 may have a different order; they are rounded afterwards.
        a, b = (np.asarray(array, np.float32) for array in (a, b))
        np.testing.assert_allclose(a, b, rtol=2 * ROUNDING, atol=1e-5 * np.max(np.abs(b)))


def step(multiply):
    """Return the gradient of a product of two matrices, in a program as large as a layer's."""

    def slopes(x, kernel):
        return jax.grad(lambda *both: jnp.sum(multiply(*both) ** 2), (0, 1))(x, kernel)

    shapes = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((256, 128), (128, 64)))
    return jax.jit(slopes).trace(*shapes)


@pytest.mark.skipif(
    jax.__version_info__ < (0, 10), reason="earlier versions do not rewrite products"
)
def test_cpu_products_have_untransposed_factors():
    pattern = r" = (\w+)\[[^\]]*\]\S* dot\(.*lhs_contracting_dims=\{(\d)\}"

    def dots(multiply):
        return re.findall(pattern, step(multiply).lower().compile().as_text())

    assert len(dots(products.matmul)) == 3
    assert set(dots(products.matmul)) == {("f32", "1")}
    assert "0" in {axis for _, axis in dots(jnp.matmul)}  # otherwise the rule is unnecessary


def test_gpu_products_are_not_rewritten():
    pattern = r"dot_general .* : \((.*), (.*)\) -> tensor<(\w+)>"

    def lowered(multiply):
        text = step(multiply).lower(lowering_platforms=("cuda",)).as_text()
        # The compiler chooses the order of the factors, and with it the order of the result.
        return sorted(
            (sorted(dot[:2]), sorted(dot[2].split("x"))) for dot in re.findall(pattern, text)
        )

    assert len(lowered(products.matmul)) == 3
    assert lowered(products.matmul) == lowered(jnp.matmul)


def test_gradients_are_exported():
    _, x, kernel, _ = factors("dense")
    slopes = jax.jit(jax.grad(lambda *both: jnp.sum(products.matmul(*both) ** 2), (0, 1)))
    unchecked = [export.DisabledSafetyCheck.custom_call("LayoutConstraint")]  # as the module says
    exported = export.export(slopes, disabled_checks=unchecked)(x, kernel)
    repeated = export.deserialize(exported.serialize()).call(x, kernel)
    for actual, expected in zip(repeated, slopes(x, kernel), strict=True):
        np.testing.assert_array_equal(actual, expected)


DIVIDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from hlformer_jax.ops import products

mesh = Mesh(np.array(jax.devices()), ("videos",))
rows, replicated = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("videos",), ()))
x = jax.device_put(jnp.ones((256, 128), jnp.bfloat16), rows)
kernel = jax.device_put(jnp.ones((128, 64), jnp.bfloat16), replicated)
slopes = jax.grad(lambda *both: jnp.sum(products.matmul(*both) ** 2), (0, 1))
print(jax.jit(slopes, out_shardings=(rows, replicated)).lower(x, kernel).compile().as_text())
jax.block_until_ready(jax.vmap(slopes, (None, 0))(x, jnp.stack([kernel, kernel])))
"""


@pytest.mark.slow  # it takes seconds
def test_rows_are_not_gathered_from_several_devices():
    command = [sys.executable, "-c", DIVIDED]
    done = processes.finish(command, env=processes.environment(devices=4))
    assert done.returncode == 0, done.stderr
    assert "all-reduce" in done.stdout and "all-gather" not in done.stdout
