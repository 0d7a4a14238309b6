"""Mathematics as pure functions of arrays: no parameters, no Flax, nothing above `typing`.

    lorentz          the Lorentz model; its docstring has the rule for c and for shapes
    poincare         the Poincaré ball, and the way to the Lorentz model and back
    cones, poincare_cones    entailment cones in either
    hyperplanes      distances to hyperplanes, logits
    frechet, wrapped_normal, horospheres    statistics: means, densities, projections for figures
    windows          windows over positions
    attention        attention in both geometries
    lorentz_linear   the last step of a fully Lorentzian linear map
    dropout, keys    dropout from a cheap generator; random keys derived by name
    numerics         safe primitives, each with its gradient at the edge
    hyperbolic_functions     cosh √z, sinh √z / √z and others, smooth at 0
    hyperboloid, geodesic, centroid, pairwise, lorentz_maps, lorentz_isometries
                     what `lorentz` is made of
    gyrovectors, poincare_distance, mobius_layers    what `poincare` is made of

Functions are batched over leading axes and differentiable wherever their docstring says so.

Hyperbolic space in both models, for those who come from geoopt, hypll or hyperbolix (`lorentz` and
`poincare` where no module stands before the name):

    what                        Lorentz model                        Poincaré ball
    points                      project, from_space, origin, time    project
    is it a point               time_error                           √c |p| < 1
    the other model             poincare.from_lorentz                poincare.to_lorentz
    metric                      inner, tangent_norm                  conformal_factor, tangent_norm
    distance                    distance, distance0                  distance, distance0
    squared Lorentzian          squared_distance                     squared_distance
    of all pairs                pairwise_distance,                   pairwise_distance,
                                pairwise_squared_distance,           pairwise_squared_distance
                                pairwise_inner
    exponential map             exp_map0, exp_map                    exp_map0, exp_map
    logarithm                   log_map0, log_map                    log_map0, log_map
    polar coordinates           direction                            –
    parallel transport          transport0, parallel_transport       transport0, parallel_transport
    geodesic                    geodesic, geodesic_unit              geodesic, geodesic_unit
    to a maximal radius         limit_distance0                      limit_distance0,
                                                                     project(…, max_radius)
    reflection at the origin    antipode                             antipode
    onto a tangent space        project_tangent                      – (every vector is tangent)
    translation                 boost                                mobius_add
    rotation                    rotate                               p @ matrix.T; gyration
    scaling                     –                                    mobius_scalar_mul
    linear map                  lorentz_linear.rescale               mobius_matvec, mobius_linear
    joining and parting         concatenate, split                   concatenate, split
    midpoint                    centroid                             gyromidpoint
    Fréchet mean                frechet.lorentz_mean                 frechet.poincare_mean
    hyperplane, logits          hyperplanes.lorentz_distance,        hyperplanes.poincare_distance,
                                lorentz_mlr                          poincare_mlr
    cones                       cones.half_aperture,                 poincare_cones.half_aperture,
                                exterior_angle, energy               exterior_angle, energy
    wrapped normal              wrapped_normal.lorentz_sample,       wrapped_normal.poincare_sample,
                                lorentz_log_density                  poincare_log_density
    Busemann function           horospheres.lorentz_busemann         horospheres.poincare_busemann
    horospherical projection    horospheres.                         horospheres.
                                lorentz_horospherical                poincare_horospherical
    Riemannian gradient         egrad_to_rgrad, gradient_in_frame    egrad_to_rgrad
    retraction                  retract                              retract

`manifolds` has both models as pytrees and makes optax optimisers Riemannian; `horopca` finds
principal components.
"""
