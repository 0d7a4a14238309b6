"""First and second derivatives against finite differences, in few compiled programs.

`jax.test_util.check_grads` traces and compiles every operation of every order by itself, which for
the formulas of this package takes a hundred times as long.
"""

import jax
import jax.numpy as jnp
import numpy as np


def check_two_derivatives(function, args, rtol=1e-4, atol=1e-4, step=1e-5):
    """Compares forward and reverse derivatives, and each again of the reverse one, in float64."""
    args = tuple(jnp.asarray(x, jnp.float64) for x in args)
    rng = np.random.default_rng(0)
    draw = lambda x: jnp.asarray(rng.normal(size=x.shape))
    value = jax.jit(function)
    cotangent = jax.tree.map(draw, jax.eval_shape(function, *args))
    tangent = tuple(map(draw, args))
    dot = lambda a, b: sum(
        jnp.vdot(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)
    )
    total = lambda *args: dot(function(*args), cotangent)
    gradient = jax.grad(total, tuple(range(len(args))))

    @jax.jit
    def derivatives(args):
        _, along = jax.jvp(function, args, tangent)
        slopes, curve = jax.jvp(gradient, args, tangent)
        return along, slopes, curve

    again = jax.jit(jax.grad(lambda args: dot(gradient(*args), tangent)))
    shift = lambda sign: tuple(x + sign * step * dx for x, dx in zip(args, tangent, strict=True))
    difference = lambda f: jax.tree.map(
        lambda a, b: (a - b) / (2 * step), f(*shift(1)), f(*shift(-1))
    )
    along, slopes, curve = derivatives(args)
    close = lambda got, want: jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol * (1 + abs(b).max())),
        got,
        want,
    )
    close(along, difference(value))
    np.testing.assert_allclose(dot(slopes, tangent), dot(along, cotangent), rtol=1e-9, atol=1e-9)
    close(curve, difference(jax.jit(gradient)))
    close(again(args), curve)


def check_curvature(function, args, rtol=1e-4, atol=1e-4, step=1e-5):
    """As `check_two_derivatives`, for large functions: forward over reverse, in two programs."""
    args = tuple(jnp.asarray(x, jnp.float64) for x in args)
    rng = np.random.default_rng(0)
    draw = lambda x: jnp.asarray(rng.normal(size=x.shape))
    cotangent = jax.tree.map(draw, jax.eval_shape(function, *args))
    tangent = tuple(map(draw, args))
    dot = lambda a, b: sum(
        jnp.vdot(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)
    )
    gradient = jax.grad(lambda *args: dot(function(*args), cotangent), tuple(range(len(args))))
    value = jax.jit(function)
    both = jax.jit(lambda args: jax.jvp(gradient, args, tangent))
    ahead, behind = (
        tuple(x + sign * step * dx for x, dx in zip(args, tangent, strict=True)) for sign in (1, -1)
    )
    slopes, curve = both(args)
    rise = (dot(value(*ahead), cotangent) - dot(value(*behind), cotangent)) / (2 * step)
    size = sum(float(abs(x).max()) for x in jax.tree.leaves(slopes))
    np.testing.assert_allclose(dot(slopes, tangent), rise, rtol=rtol, atol=1e-8 * size)
    for got, up, down in zip(curve, both(ahead)[0], both(behind)[0], strict=True):
        want = (up - down) / (2 * step)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol * (1 + abs(want).max()))


def check_slopes(function, args, step=1e-5):
    """First derivatives alone, in one program: forward against a difference, and reverse."""
    args = tuple(jnp.asarray(x, jnp.float64) for x in args)
    rng = np.random.default_rng(0)
    draw = lambda x: jnp.asarray(rng.normal(size=x.shape))
    cotangent = jax.tree.map(draw, jax.eval_shape(function, *args))
    tangent = tuple(map(draw, args))

    @jax.jit
    def derivatives(args):
        shift = lambda size: (x + size * dx for x, dx in zip(args, tangent, strict=True))
        difference = lambda up, down: (up - down) / (2 * step)
        _, pullback = jax.vjp(function, *args)
        _, along = jax.jvp(function, args, tangent)
        rise = jax.tree.map(difference, function(*shift(step)), function(*shift(-step)))
        return along, rise, pullback(cotangent)

    along, rise, slopes = map(jax.tree.leaves, derivatives(args))
    for one, other in zip(along, rise, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7 * (1 + abs(other).max()))
    dot = lambda a, b: sum(np.vdot(x, y) for x, y in zip(a, b, strict=True))
    np.testing.assert_allclose(
        dot(slopes, tangent), dot(along, jax.tree.leaves(cotangent)), rtol=1e-9, atol=1e-9
    )
