"""Mathematics as pure functions of arrays: no parameters, no Flax, nothing above `typing`.

    lorentz          the Lorentz model (a folder); its docstring has the rule for c and for shapes
    poincare         the Poincaré ball, and the way to the Lorentz model and back
    cones            entailment cones in both
    statistics       Fréchet means, the wrapped normal distribution
    horopca          Busemann functions, and principal components of points
    manifolds        spaces as pytrees: both models, spheres, Euclidean space, products
    optim            optax optimisers of points
    attention        attention in both geometries
    windows          windows over positions
    dropout          dropout from a cheap generator; random keys derived by name
    numerics         safe primitives, each with its gradient at the edge

`docs/geometry.md` has every function of hyperbolic space, beside its formula.
"""

from hlformer_jax import lazy

__getattr__, __dir__, __all__ = lazy.namespace(__name__)
