"""HLFormer in JAX: partially relevant video retrieval with hyperbolic learning.

From the bottom up:

    typing, errors, config    axis glossary; errors that a user sees; every field with its rule
    ops                       pure functions of arrays; hyperbolic spaces, optimisers of points
    files, parallel           files that are written whole; devices and processes
    data                      sources → prepared records → batches on the devices
    nn, models                Linen modules; the models of the papers
    retrieval                 scores, ranks, a corpus to search
    losses, training          losses as pure functions; objectives, the step, the loop
    encoders, video           sentences and images → vectors; frames of films
    search                    one's own archive: an index, rankers, a page
    figures                   what trained models see; curves of runs and sweeps
    main, sweep, benchmark, torch_checkpoint    further commands

The package imports nothing on its own; take what you need:

    from hlformer_jax.ops import attention, cones, lorentz, poincare, windows
"""

__version__ = "0.1.0"
