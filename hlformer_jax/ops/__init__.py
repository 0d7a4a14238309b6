"""Mathematics as pure functions of arrays: no parameters, no Flax, nothing above `typing`.

    lorentz          the Lorentz model: maps, distances, centroid; its docstring has the rule for c
    cones            entailment cones
    poincare         conversion to and from the Poincaré ball
    windows          windows over positions
    attention        attention in both geometries
    fused_attention, fused_similarity    the same as Pallas kernels (`kernels`: what they share)
    lorentz_linear   the last step of a fully Lorentzian linear map
    dropout, keys    dropout from a cheap generator; random keys derived by name
    numerics         safe primitives, each with its gradient at the edge
    hyperboloid, geodesic, centroid, pairwise    what `lorentz` is made of

Functions are batched over leading axes and differentiable wherever their docstring says so.
"""
