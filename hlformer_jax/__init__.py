"""HLFormer in JAX: partially relevant video retrieval with hyperbolic learning.

The package imports nothing on its own; take what you need:

    from hlformer_jax.ops import attention, cones, lorentz, poincare, windows
"""

__version__ = "0.1.0"
