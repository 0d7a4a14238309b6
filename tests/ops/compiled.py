"""Modules of `ops` whose functions are compiled whole: ``from compiled import lorentz``.

As users compile them, XLA rewrites their arithmetic: divisors are multiplied, and a division by a
number that many share becomes a product. `tests/conftest.py` switches most of XLA's optimisations
off, but not those. Called as they are, functions would run operation by operation, each compiled by
itself: sixty small programs for one. Tests that are named after jit compare the results of both.
"""

import functools
import inspect
from types import FunctionType, SimpleNamespace

import jax

from hlformer_jax.ops import cones, horopca, lorentz, numerics, poincare, statistics

STATIC = {"dims", "exact", "shape", "tolerance"}
"""Parameters that are no arrays."""


def _whole(value):
    if not isinstance(value, FunctionType | jax.custom_jvp):
        return value
    parameters = inspect.signature(value).parameters
    if "dtype" in parameters:  # `origin` asks whether c is an array, as a traced number always is
        return value
    return jax.jit(value, static_argnames=sorted(STATIC & {*parameters}))


def _compiled(module):
    named = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return SimpleNamespace(**{name: _whole(value) for name, value in named.items()})


cones, horopca, statistics = map(_compiled, (cones, horopca, statistics))
lorentz, numerics, poincare = map(_compiled, (lorentz, numerics, poincare))


@functools.partial(jax.jit, static_argnames="name")
def _method(space, name, *args):
    return getattr(space, name)(*args)


def whole(space):
    """A manifold whose methods are compiled whole."""
    names = [name for name in dir(space) if callable(getattr(space, name)) and name[0] != "_"]
    return SimpleNamespace(**{name: functools.partial(_method, space, name) for name in names})
