"""Hyperbolic functions of a square root, smooth where the square is 0.

``z`` is a squared norm. cosh √z and f(√z) / √z for sinh, asinh, tanh and artanh are smooth
functions of z at 0, whereas √z and v / |v| are not; so a map written with them has the right
derivatives, of every order, at the origin.
"""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
from jaxtyping import Float

from hlformer_jax.typing import Array

# Taylor coefficients, lowest order first. Enough of them for the second derivative of the sum to
# be exact to rounding below the thresholds at which they are used; float32 needs the first few.
_COSH = tuple(1 / math.factorial(2 * k) for k in range(13))
_SINHC = tuple(1 / math.factorial(2 * k + 1) for k in range(13))
_ASINHC = tuple((-1) ** k * math.comb(2 * k, k) / (4**k * (2 * k + 1)) for k in range(16))
_ARTANHC = tuple(1 / (2 * k + 1) for k in range(20))


def _quotient(above: list[Fraction], below: list[Fraction]) -> tuple[float, ...]:
    """Coefficients of the quotient of two power series, the second of which starts with 1."""
    result: list[Fraction] = []
    for k, coefficient in enumerate(above):
        result.append(coefficient - sum(below[k - j] * result[j] for j in range(k)))
    return tuple(map(float, result))


_TANHC = _quotient(
    [Fraction(1, math.factorial(2 * k + 1)) for k in range(20)],
    [Fraction(1, math.factorial(2 * k)) for k in range(20)],
)
_FLOAT32_TERMS = 9
_ENTIRE_BELOW = 1.0  # the series of cosh and sinhc converge everywhere
_ASINHC_BELOW = 0.0625  # those of asinhc and artanhc only for z < 1
_ARTANHC_BELOW = 0.125
_TANHC_BELOW = 0.25  # that of tanhc for z < 2.4


def _series(coefficients: tuple[float, ...], z: Float[Array, "*#batch"]) -> Array:
    """A power series by Horner's scheme, as far as the dtype of z can tell."""
    if z.dtype != jnp.float64:
        coefficients = coefficients[:_FLOAT32_TERMS]
    result = jnp.full_like(z, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = result * z + coefficient
    return result


def _derivative(coefficients: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(k * coefficient for k, coefficient in enumerate(coefficients))[1:]


# Each function brings its derivative along: through Horner's scheme or through the root, a gradient
# would keep every intermediate result, and compile to many times the operations.


@jax.custom_jvp
def cosh_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """The value of cosh √z, smooth at 0; √z at most `max_hyperbolic_norm`."""
    small, z, root = _split_at(_ENTIRE_BELOW, z)
    return jnp.where(small, _series(_COSH, z), jnp.cosh(root))


@jax.custom_jvp
def sinhc_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """The value of sinh √z / √z, smooth at 0, where it is 1; √z at most `max_hyperbolic_norm`."""
    small, z, root = _split_at(_ENTIRE_BELOW, z)
    return jnp.where(small, _series(_SINHC, z), jnp.sinh(root) / root)


@jax.custom_jvp
def asinhc_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """The value of asinh √z / √z, smooth at 0, where it is 1."""
    small, z, root = _split_at(_ASINHC_BELOW, z)
    return jnp.where(small, _series(_ASINHC, z), jnp.arcsinh(root) / root)


@jax.custom_jvp
def tanhc_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """The value of tanh √z / √z, smooth at 0, where it is 1."""
    small, z, root = _split_at(_TANHC_BELOW, z)
    return jnp.where(small, _series(_TANHC, z), jnp.tanh(root) / root)


@jax.custom_jvp
def artanhc_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """The value of artanh √z / √z for z < 1, smooth at 0, where it is 1."""
    small, near, root = _split_at(_ARTANHC_BELOW, z)
    far = jnp.log1p(root) - jnp.log1p(-z) / 2  # the logarithm of (1 + √z) / √(1 − z)
    return jnp.where(small, _series(_ARTANHC, near), far / root)


def _split_at(threshold: float, z: Array) -> tuple[Array, Array, Array]:
    """Whether z is small; z where it is, else 0; √z where it is not, else 1."""
    small = z < threshold
    return small, jnp.where(small, z, 0), jnp.sqrt(jnp.where(small, 1, z))


def _sinhc_slope(z: Float[Array, "*#batch"]) -> Array:
    small, near, _ = _split_at(_ENTIRE_BELOW, z)
    far = (cosh_sqrt(z) - sinhc_sqrt(z)) / (2 * jnp.where(small, 1, z))
    return jnp.where(small, _series(_derivative(_SINHC), near), far)


def _asinhc_slope(z: Float[Array, "*#batch"]) -> Array:
    small, near, root = _split_at(_ASINHC_BELOW, z)
    far = (1 / jnp.sqrt(1 + root * root) - asinhc_sqrt(z)) / (2 * jnp.where(small, 1, z))
    return jnp.where(small, _series(_derivative(_ASINHC), near), far)


def _tanhc_slope(z: Float[Array, "*#batch"]) -> Array:
    small, near, _ = _split_at(_TANHC_BELOW, z)
    value = tanhc_sqrt(z)
    far = (1 - z * value * value - value) / (2 * jnp.where(small, 1, z))
    return jnp.where(small, _series(_derivative(_TANHC), near), far)


def _artanhc_slope(z: Float[Array, "*#batch"]) -> Array:
    small, near, _ = _split_at(_ARTANHC_BELOW, z)
    far = (1 / (1 - z) - artanhc_sqrt(z)) / (2 * jnp.where(small, 1, z))
    return jnp.where(small, _series(_derivative(_ARTANHC), near), far)


cosh_sqrt.defjvps(lambda tangent, value, z: tangent * (sinhc_sqrt(z) / 2))
sinhc_sqrt.defjvps(lambda tangent, value, z: tangent * _sinhc_slope(z))
asinhc_sqrt.defjvps(lambda tangent, value, z: tangent * _asinhc_slope(z))
tanhc_sqrt.defjvps(lambda tangent, value, z: tangent * _tanhc_slope(z))
artanhc_sqrt.defjvps(lambda tangent, value, z: tangent * _artanhc_slope(z))
