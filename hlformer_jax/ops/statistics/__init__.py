"""Statistics of points in both models of hyperbolic space.

means            Fréchet means
wrapped_normal   the wrapped normal distribution: samples and the logarithm of the density
"""

from hlformer_jax.ops.statistics.means import lorentz_mean, poincare_mean
from hlformer_jax.ops.statistics.wrapped_normal import (
    lorentz_full_log_density,
    lorentz_full_sample,
    lorentz_log_density,
    lorentz_sample,
    poincare_full_log_density,
    poincare_full_sample,
    poincare_log_density,
    poincare_sample,
)

__all__ = [
    "lorentz_full_log_density", "lorentz_full_sample", "lorentz_log_density", "lorentz_mean",
    "lorentz_sample", "poincare_full_log_density", "poincare_full_sample", "poincare_log_density",
    "poincare_mean", "poincare_sample",
]  # fmt: skip
