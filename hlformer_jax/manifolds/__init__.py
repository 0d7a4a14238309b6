"""Hyperbolic spaces as objects, optimisers of parameters that are points of them, and HoroPCA.

manifold     the protocol, and its instances for the Poincaré ball and the Lorentz model
optimizer    `riemannian`, which turns any optax optimiser into a Riemannian one
horopca      principal components of points, by projections along horospheres
"""
