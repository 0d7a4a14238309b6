"""Training: a loss, a step, and the loop around it.

    step          the step, which knows no model, and compiled chunks of steps
    family        what a family of models gives the trainer
    families      the families by name
    prvr          the family of HLFormer and its ancestors
    objective     its loss: encodings, negatives, the weighted sum of the terms
    terms         the terms as records
    losses        the losses as pure functions
    distillation  what DL-DKD learns from a teacher, likewise
    uncertainty   proxies of distributions, and RAL's losses on them, likewise
    hover         the family of HOVER
    tree_objective    its loss: the weighted sum of its terms
    tree_losses   its losses as pure functions
    optim         the released optimiser
    train_state   the state that a step changes
    loop          the loop: chunks of steps, validation, early stopping, the test
    progress      what the loop knows beside the state
    checkpoints   the checkpoints that a run keeps
    monitor       what is watched of a run while it trains
    signals       SIGTERM and Ctrl-C
    evaluate      what `--mode=evaluate` does with a checkpoint
    finished      a finished run, to look at or to search with

The family brings everything that depends on a model; a further one trains unchanged.
"""
