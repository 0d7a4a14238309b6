"""float32 against float64: every function of `docs/geometry.md` and its gradients, near and far.

Both get the same numbers, so results differ by rounding errors of the formulas only. The functions
run on the first device of JAX, which may be a GPU, and in float64 on the CPU:

    JAX_PLATFORMS=cuda,cpu python -m pytest tests/ops/test_float32.py -m slow
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_public import CURVED, case_name

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("float64", "unchecked")]

RADII = (1e-9, 1e-6, 1e-3, 0.1, 1.0, 4.0, 10.0)
"""Distances of points from the origin. Points of the ball stay within 4, where rounding a point
changes 1 − |p|² by 2 eps / 0.07 of its size."""
TANGENT = {"v", "w", "u", "normal", "gradient"}
"""Arguments that are tangent vectors, at most 2 long."""
BOUND = 1e-4
"""Bound of errors relative to the vector or to `FLOOR`. The modules promise 2e-5 for results
without cancellation."""
FLOOR = 1e-6
"""Smallest size to which errors are relative: a result may vanish though its arguments do not."""
FLOORS = {"horopca.poincare_horospherical": 1.0}
"""Floors of functions whose errors are relative to the time component of the point, not to a small
result."""
EXCLUDED = {"lorentz.time_error", "lorentz.from_half_space"}
"""Functions whose results are rounding errors, or whose arguments are not points of a model
(tests/ops/test_charts.py tests the half-space)."""

CASES = [
    case
    for case in CURVED
    if case.name not in EXCLUDED and "key" not in case.required and case.batched
]


def arguments(case):
    """Return arguments for all pairs of radii; the first argument has the first radius."""
    rng = np.random.default_rng(0)
    radii = np.repeat(RADII, len(RADII)), np.tile(RADII, len(RADII))
    arrays, num_points = case.arguments((len(RADII) ** 2,)), 0
    for name in case.vectors + case.sets:
        drawn = rng.normal(size=arrays[name].shape)
        has_time = case.axes[name][-1] in ("n1", "d")
        drawn = drawn[..., 1:] if has_time else drawn
        drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
        radius = radii[num_points % 2].reshape(-1, *[1] * (drawn.ndim - 1))
        if name in TANGENT:
            arrays[name] = np.minimum(radius, 2) * drawn
            if has_time:  # the function does not read the time
                arrays[name] = np.concatenate([np.ones_like(drawn[..., :1]), arrays[name]], -1)
            continue
        num_points += 1
        if has_time:
            time = np.cosh(radius) * np.ones_like(drawn[..., :1])
            arrays[name] = np.concatenate([time, np.sinh(radius) * drawn], -1)
        else:
            arrays[name] = np.tanh(np.minimum(radius, 4) / 2) * drawn
    return arrays


def results_of(case, call, arrays, weights, c):
    """Return the values, and the gradients of their weighted sum in the arrays with batch axes."""
    fixed = {name: array for name, array in arrays.items() if name not in case.batched}
    batched = {name: array for name, array in arrays.items() if name in case.batched}

    def total(batched):
        values = call({**batched, **fixed}, c)
        terms = jax.tree.map(lambda w, v: jnp.sum(w.astype(v.dtype) * v), weights, values)
        return sum(jax.tree.leaves(terms)), values

    (_, values), slopes = jax.value_and_grad(total, has_aux=True)(batched)
    return {"value": values, "gradient": slopes}


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_float32_agrees_with_float64(case):
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
    for (path, actual), expected in zip(
        jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True
    ):
        assert actual.dtype == np.float32
        actual, expected = (np.float64(v).reshape(len(c), -1) for v in (actual, expected))
        assert np.isfinite(actual).all() and np.isfinite(expected).all()
        size = np.maximum(np.linalg.norm(expected, axis=-1), FLOORS.get(case.name, FLOOR))
        error = np.linalg.norm(actual - expected, axis=-1) / size
        worst = np.argmax(error)
        radii = RADII[worst // len(RADII)], RADII[worst % len(RADII)]
        assert error[worst] <= BOUND, (jax.tree_util.keystr(path), radii, error[worst])
