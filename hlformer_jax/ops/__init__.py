"""Mathematics as pure functions of arrays, without parameters and without Flax.

    lorentz          the Lorentz model (a folder); its docstring has the rules for c and for shapes
    poincare         the Poincaré ball, and conversions to and from the Lorentz model
    cones            entailment cones in both models
    statistics       Fréchet means, the wrapped normal distribution
    horopca          Busemann functions, and principal components of points
    manifolds        spaces as pytrees: both models, spheres, Euclidean space, products
    optim            optax optimisers of points
    attention        attention in both geometries
    windows          attention windows over positions
    products         products of arrays in bfloat16, summed in float32
    dropout          dropout from a cheap generator; random keys derived from names
    arguments        checks and casts of arguments
    numerics         primitives whose values and gradients stay finite in edge cases

`docs/geometry.md` lists every function of hyperbolic space with its formula.
"""

from hlformer_jax import lazy

__getattr__, __dir__, __all__ = lazy.namespace(__name__)
