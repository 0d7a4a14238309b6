"""Modules of `ops` whose functions are compiled whole: ``from compiled import lorentz``.

So they are used, and XLA rewrites them: a division by a number that all share becomes a product.
Called one by one each would run operation by operation, and sixty programs of one operation be
compiled where one program does. Tests that are named after jit compare the two.
"""

import inspect
from types import SimpleNamespace

import jax

from hlformer_jax.ops import (
    cones,
    frechet,
    horospheres,
    hyperplanes,
    lorentz,
    numerics,
    poincare,
    poincare_cones,
    wrapped_normal,
)

STATIC = {"dims", "exact", "n", "name", "shape", "tolerance"}
"""Parameters that are no arrays."""


def _whole(value):
    if isinstance(value, type) or not callable(value):
        return value
    parameters = inspect.signature(value).parameters
    if "dtype" in parameters:  # what it returns depends on a type, and on NumPy's
        return value
    return jax.jit(value, static_argnames=sorted(STATIC & {*parameters}))


def _compiled(module):
    named = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return SimpleNamespace(**{name: _whole(value) for name, value in named.items()})


cones, poincare_cones = map(_compiled, (cones, poincare_cones))
frechet, horospheres, hyperplanes = map(_compiled, (frechet, horospheres, hyperplanes))
lorentz, numerics, poincare = map(_compiled, (lorentz, numerics, poincare))
wrapped_normal = _compiled(wrapped_normal)
