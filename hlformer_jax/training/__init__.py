"""Training: a family's loss, the step, and the loop around it.

    families      what a family of models gives the trainer, and the families by name
    prvr          the family of HLFormer and its ancestors, with its objective
    hover         the family of HOVER, with its objective
    step          the state, the step, and compiled chunks of steps
    optim         the released optimiser
    loop          chunks of steps, validation, early stopping, signals, the test; metric logging
    checkpoints   the directory of a run: whose it is, and its checkpoints
    loaded_run    config and best parameters of a run; evaluation of a checkpoint, sentences asked

A loss is a weighted sum of terms (`hlformer_jax.losses`). A new term is a function there, an entry
in the family's `TERMS` and objective, and a weight in the fields of `config.loss`.
"""
