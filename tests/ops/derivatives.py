"""Checks of first and second derivatives against finite differences, in few compiled programs.

`jax.test_util.check_grads` traces and compiles every operation of every order separately, which
takes a hundred times as long for the formulas of this package.
"""

import jax
import jax.numpy as jnp
import numpy as np


def _directions(function, args, step):
    """Return float64 arguments, a tangent, a cotangent, and the arguments shifted both ways."""
    args = tuple(jnp.asarray(x, jnp.float64) for x in args)
    rng = np.random.default_rng(0)

    def draw(x):
        return jnp.asarray(rng.normal(size=x.shape))

    cotangent = jax.tree.map(draw, jax.eval_shape(function, *args))
    tangent = tuple(map(draw, args))
    ahead, behind = (
        tuple(x + sign * step * dx for x, dx in zip(args, tangent, strict=True)) for sign in (1, -1)
    )
    return args, tangent, cotangent, ahead, behind


def _dot(a, b):
    return sum(jnp.vdot(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


def _assert_close(got, want, rtol, atol):
    for (path, actual), expected in zip(
        jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True
    ):
        scale, name = 1 + abs(np.asarray(expected)).max(), jax.tree_util.keystr(path)
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol * scale, err_msg=name)


def check_two_derivatives(function, args, rtol=1e-4, atol=1e-4, step=1e-5):
    """Compare forward and reverse derivatives, and both derivatives of the gradient, in float64."""
    args, tangent, cotangent, ahead, behind = _directions(function, args, step)
    value = jax.jit(function)

    def total(*args):
        return _dot(function(*args), cotangent)

    gradient = jax.grad(total, tuple(range(len(args))))

    @jax.jit
    def derivatives(args):
        _, along = jax.jvp(function, args, tangent)
        slopes, curve = jax.jvp(gradient, args, tangent)
        return along, slopes, curve

    repeated = jax.jit(jax.grad(lambda args: _dot(gradient(*args), tangent)))
    slope = jax.jit(gradient)

    def difference(f):
        return jax.tree.map(lambda a, b: (a - b) / (2 * step), f(*ahead), f(*behind))

    along, slopes, curve = derivatives(args)
    _assert_close(along, difference(value), rtol, atol)
    np.testing.assert_allclose(_dot(slopes, tangent), _dot(along, cotangent), rtol=1e-9, atol=1e-9)
    _assert_close(curve, difference(slope), rtol, atol)
    _assert_close(repeated(args), curve, rtol, atol)


def check_curvature(function, args, rtol=1e-4, atol=1e-4, step=1e-5):
    """Compare the gradient and its forward derivative with differences, for large functions."""
    args, tangent, cotangent, ahead, behind = _directions(function, args, step)
    gradient = jax.grad(lambda *args: _dot(function(*args), cotangent), tuple(range(len(args))))
    value = jax.jit(function)
    both = jax.jit(lambda args: jax.jvp(gradient, args, tangent))
    slopes, curve = both(args)
    rise = (_dot(value(*ahead), cotangent) - _dot(value(*behind), cotangent)) / (2 * step)
    size = sum(float(abs(x).max()) for x in jax.tree.leaves(slopes))
    np.testing.assert_allclose(_dot(slopes, tangent), rise, rtol=rtol, atol=1e-8 * size)
    want = [
        (up - down) / (2 * step) for up, down in zip(both(ahead)[0], both(behind)[0], strict=True)
    ]
    _assert_close(curve, want, rtol, atol)


def check_slopes(function, args, step=1e-5):
    """Compare forward and reverse first derivatives with differences, in one program."""
    args, tangent, cotangent, ahead, behind = _directions(function, args, step)

    @jax.jit
    def derivatives(args, ahead, behind):
        _, pullback = jax.vjp(function, *args)
        _, along = jax.jvp(function, args, tangent)

        def difference(up, down):
            return (up - down) / (2 * step)

        rise = jax.tree.map(difference, function(*ahead), function(*behind))
        return along, rise, pullback(cotangent)

    along, rise, slopes = derivatives(args, ahead, behind)
    _assert_close(along, rise, 1e-6, 1e-7)
    np.testing.assert_allclose(_dot(slopes, tangent), _dot(along, cotangent), rtol=1e-9, atol=1e-9)


def check_gradient(function, args, rtol=1e-5, step=1e-5):
    """Compare the reverse derivative along a direction with a difference, in one program."""
    args, tangent, cotangent, ahead, behind = _directions(function, args, step)

    def total(*args):
        return _dot(function(*args), cotangent)

    both = jax.jit(jax.value_and_grad(total, tuple(range(len(args)))))
    slope = _dot(both(*args)[1], tangent)
    rise = (both(*ahead)[0] - both(*behind)[0]) / (2 * step)
    # Differences of this step in float64 are accurate to about 1e-9 of the values.
    np.testing.assert_allclose(slope, rise, rtol=rtol)


def check_finite(function, args, dtype, forward=True):
    """Assert that values and first derivatives are finite and of `dtype`; return the values."""

    @jax.jit
    def evaluate(*args):
        value, pullback = jax.vjp(function, *args)
        along = jax.jvp(function, args, tuple(map(jnp.ones_like, args)))[1] if forward else ()
        return value, pullback(jax.tree.map(jnp.ones_like, value)), along

    result = evaluate(*args)
    for array in jax.tree.leaves(result):
        assert array.dtype == dtype
        assert np.isfinite(array).all()
    return result[0]
