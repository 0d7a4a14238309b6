"""Hyperbolic spaces as objects, and optimisers of parameters that are points of them.

manifold     the protocol, and its instances for the Poincaré ball and the Lorentz model
optimizer    `riemannian`, which turns any optax optimiser into a Riemannian one
"""
