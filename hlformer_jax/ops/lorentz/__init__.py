"""The Lorentz model of hyperbolic space: points, distances, maps, transport, centroid, hyperplanes.

Convention: the curvature is −c with c > 0. A point is x = [x_time, x_space] in R^{n+1}, time first,

    ⟨x, y⟩ = −x_time y_time + x_space · y_space,    ⟨x, x⟩ = −1/c,    x_time = √(1/c + |x_space|²),

and a tangent vector v at x has ⟨x, v⟩ = 0. The space components determine points and tangent
vectors. Far from the origin, time components of near points are equal after rounding. So the
results of all functions except `inner`, `pairwise_inner`, `centroid` with ``exact=False`` and
`time_error` depend only on the space components of points, and only these receive gradients.
(`distance` sums over all coordinates where the time components are right, which is faster.) An
optimiser that updates whole points therefore leaves wrong time components, which the first three
functions and Lorentz attention read. To avoid this, optimise tangent vectors or space components,
`project` after each update, or use `optim.riemannian`. `time_error` measures the errors of time
components.

Arguments: x and y are points; v is a tangent vector at the point before it in the argument list; u
holds the space components of a tangent vector at the origin, whose time component is 0; c is the
curvature, positive. Docstrings explain other arguments. All arguments have the same number of
leading axes, ``*batch``, in which axes of length 1 broadcast. ``c`` is a number or an array that
broadcasts to ``*batch``, aligned with its last axis and never with the coordinates; it can neither
add nor lengthen batch axes. For points [N, n+1] its shape is [], [1] or [N]; [N, 1] is an error.
The same rule holds in `cones` and `poincare`.

Points are arrays; a list is a TypeError. Arrays narrower than float32 and integers are cast to
float32, integers of 64 bits (JAX's x64 mode) to float64. If one vector or matrix of several is
float64, all are computed in float64; c, t, weights and other numbers are cast to their dtype.
Complex numbers are a TypeError. Vectors of different lengths and batches that do not broadcast are
a ValueError.

Relative errors (of a vector: in its norm) are below 1e-12 in float64 and 2e-5 in float32 for √c ·
norm up to 25, unless a docstring says otherwise. Values and gradients are finite for points as far
out as the exponential maps reach: √c times the distance from the origin up to 31.9 in float32 and
72.1 in float64. In float32 this holds for c from 1e-22 to 1e18, if the squares of coordinates and
the number can be represented (the gradient in c of a squared distance m is about m / c). Distances
below 1e-19 (float32; 1e-154 in float64) times the smaller of 1 and the largest coordinate of the
two points are returned as 0. `distance`, `log_map` and `parallel_transport` are faster for batches
without pairs that need their longest formulas, so other pairs of a batch may change the rounding of
a result. docs/geometry.md explains the formulas in "How formulas keep their digits".

References:
  HLFormer, section 3.1, eqs. 1-6. Law, Liao, Snell and Zemel, Lorentzian distance learning for
  hyperbolic representations, ICML 2019, for the centroid. Bdeir, Schwethelm and Landwehr, Fully
  hyperbolic convolutional neural networks, ICLR 2024, for hyperplanes.
"""

from hlformer_jax.ops.lorentz.charts import (
    from_half_space,
    from_klein,
    to_half_space,
    to_klein,
)
from hlformer_jax.ops.lorentz.layers import (
    concatenate,
    from_linear,
    hyperplane_distance,
    mlr,
    rotate,
    split,
)
from hlformer_jax.ops.lorentz.maps import (
    antipode,
    boost,
    direction,
    distance,
    distance0,
    egrad_to_rgrad,
    exp_map,
    exp_map0,
    from_space,
    geodesic,
    geodesic_unit,
    gradient_in_frame,
    inner,
    limit_distance0,
    log_map,
    log_map0,
    origin,
    parallel_transport,
    project,
    project_tangent,
    retract,
    squared_distance,
    tangent_inner,
    tangent_norm,
    time,
    time_error,
    transport0,
)
from hlformer_jax.ops.lorentz.pairs import Point, Scalar, Space
from hlformer_jax.ops.lorentz.sets import (
    centroid,
    pairwise_distance,
    pairwise_inner,
    pairwise_squared_distance,
)

__all__ = [
    "Point", "Scalar", "Space", "antipode", "boost", "centroid", "concatenate", "direction",
    "distance", "distance0", "egrad_to_rgrad", "exp_map", "exp_map0", "from_half_space",
    "from_klein", "from_linear", "from_space", "geodesic", "geodesic_unit", "gradient_in_frame",
    "hyperplane_distance", "inner", "limit_distance0", "log_map", "log_map0", "mlr", "origin",
    "pairwise_distance", "pairwise_inner", "pairwise_squared_distance", "parallel_transport",
    "project", "project_tangent", "retract", "rotate", "split", "squared_distance", "tangent_inner",
    "tangent_norm", "time", "time_error", "to_half_space", "to_klein", "transport0",
]  # fmt: skip
