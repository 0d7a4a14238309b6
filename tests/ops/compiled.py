"""Modules of `ops` with each function under `jax.jit`: ``from compiled import lorentz``.

XLA rewrites the arithmetic of a compiled function: it multiplies divisors, and turns a division by
a shared number into a product. `tests/conftest.py` switches off most of XLA's optimisations, but
not these. Without jit, JAX compiles every operation separately: sixty small programs instead of
one. Tests with jit in their name compare both.
"""

import functools
import inspect
from types import FunctionType, SimpleNamespace

import jax

from hlformer_jax.ops import cones, horopca, lorentz, numerics, poincare, statistics

STATIC = {"dims", "exact", "shape", "tolerance"}
"""Parameters that are not arrays."""


def _jit(value):
    if not isinstance(value, FunctionType | jax.custom_jvp):
        return value
    parameters = inspect.signature(value).parameters
    if "dtype" in parameters:  # `origin` checks whether c is an array; a traced number always is
        return value
    return jax.jit(value, static_argnames=sorted(STATIC & {*parameters}))


def _compiled(module):
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return SimpleNamespace(**{name: _jit(value) for name, value in public.items()})


cones, horopca, statistics = map(_compiled, (cones, horopca, statistics))
lorentz, numerics, poincare = map(_compiled, (lorentz, numerics, poincare))


@functools.partial(jax.jit, static_argnames="name")
def _method(space, name, *args):
    return getattr(space, name)(*args)


def compile_space(space):
    """Return the manifold with each method under `jax.jit`."""
    names = [name for name in dir(space) if callable(getattr(space, name)) and name[0] != "_"]
    return SimpleNamespace(**{name: functools.partial(_method, space, name) for name in names})
