"""float32 beside float64: every function of `docs/geometry.md` and its gradients, near and far.

Both are given the same numbers, so what differs are rounding errors of the formulas. The functions
run on JAX's first device, which may be a GPU, and in float64 on the CPU:

    JAX_PLATFORMS=cuda,cpu python -m pytest tests/ops/test_float32.py -m slow
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_public import CURVED, NAME

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("float64", "unchecked")]

RADII = (1e-9, 1e-6, 1e-3, 0.1, 1.0, 4.0, 10.0)
"""Distances of points from the origin. Of those of the ball at most 4, where rounding a point
changes 1 − |p|² by 2 eps / 0.07 of its size."""
TANGENT = {"v", "w", "u", "normal", "gradient"}
"""Arguments that are tangent vectors; they are at most 2 long."""
BOUND = 1e-4
"""Of errors, relative to the vector or to `FLOOR`; 2e-5 is promised, for results that do not
cancel."""
FLOOR = 1e-6
"""Errors below BOUND · FLOOR are those of results that vanish while the arguments do not."""
FLOORS = {"horopca.poincare_horospherical": 1.0}
"""Floors of functions whose errors relate to the time component of the point, and not to a small
result."""
LEFT_OUT = {"lorentz.time_error", "lorentz.from_half_space"}
"""Functions whose results are rounding errors, or whose arguments are not points like the others:
tests/ops/test_charts.py has the half-space."""

CASES = [
    case
    for case in CURVED
    if case.name not in LEFT_OUT and "key" not in case.required and case.batched
]


def arguments(case):
    """Arguments for all pairs of radii, in float32; the first argument has the first radius."""
    rng = np.random.default_rng(0)
    radii = np.repeat(RADII, len(RADII)), np.tile(RADII, len(RADII))
    given, points = case.arguments((len(RADII) ** 2,)), 0
    for name in case.vectors + case.sets:
        drawn = rng.normal(size=given[name].shape)
        has_time = case.axes[name][-1] in ("n1", "d")
        drawn = drawn[..., 1:] if has_time else drawn
        drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
        radius = radii[points % 2].reshape(-1, *[1] * (drawn.ndim - 1))
        if name in TANGENT:
            given[name] = np.minimum(radius, 2) * drawn
            if has_time:  # which is not read
                given[name] = np.concatenate([np.ones_like(drawn[..., :1]), given[name]], -1)
            continue
        points += 1
        if has_time:
            time = np.cosh(radius) * np.ones_like(drawn[..., :1])
            given[name] = np.concatenate([time, np.sinh(radius) * drawn], -1)
        else:
            given[name] = np.tanh(np.minimum(radius, 4) / 2) * drawn
    return given


def results_of(case, call, arrays, weights, c):
    """Values, and gradients of their weighted sum in the arrays with batch axes."""
    fixed = {name: array for name, array in arrays.items() if name not in case.batched}
    batched = {name: array for name, array in arrays.items() if name in case.batched}

    def total(batched):
        values = call({**batched, **fixed}, c)
        terms = jax.tree.map(lambda w, v: jnp.sum(w.astype(v.dtype) * v), weights, values)
        return sum(jax.tree.leaves(terms)), values

    (_, values), slopes = jax.value_and_grad(total, has_aux=True)(batched)
    return {"value": values, "gradient": slopes}


@pytest.mark.parametrize("case", CASES, ids=NAME)
def test_values_and_gradients_in_float32_have_the_digits_of_float64(case):
    arrays, call = case.traceable(arguments(case))
    c = np.ones(len(RADII) ** 2)
    low, low_c = jax.tree.map(lambda v: np.asarray(v, np.float32), (arrays, c))
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(call, arrays, c)
    weights = jax.tree.map(lambda s: rng.uniform(0.5, 1, s.shape), shapes)
    run = jax.jit(lambda arrays, weights, c: results_of(case, call, arrays, weights, c))
    got = run(low, weights, low_c)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        want = run(*jax.tree.map(np.float64, (low, weights, low_c)))
    for (path, one), other in zip(
        jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True
    ):
        assert one.dtype == np.float32
        one, other = (np.float64(v).reshape(len(c), -1) for v in (one, other))
        assert np.isfinite(one).all() and np.isfinite(other).all()
        size = np.maximum(np.linalg.norm(other, axis=-1), FLOORS.get(case.name, FLOOR))
        error = np.linalg.norm(one - other, axis=-1) / size
        worst = np.argmax(error)
        radii = RADII[worst // len(RADII)], RADII[worst % len(RADII)]
        assert error[worst] <= BOUND, (jax.tree_util.keystr(path), radii, error[worst])
