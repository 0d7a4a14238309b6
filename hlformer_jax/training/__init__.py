"""Training: a loss, a step, and the loop around it.

    step          the step, which knows no model, and compiled chunks of steps
    family        what a family of models gives the trainer
    families      the families by name
    prvr          the family of HLFormer and its ancestors
    objective     its loss: encodings, negatives, the weighted sum of the terms
    terms         the terms as records
    losses        the losses as pure functions
    distillation  what DL-DKD learns from a teacher, likewise
    hover         the family of HOVER
    tree_objective    its loss: the weighted sum of its terms
    tree_losses   its losses as pure functions
    optim         the released optimiser
    loop          the loop: chunks of steps, validation, early stopping, the test
    checkpoints   the directory of a run: whose it is, and its checkpoints
    metrics       metrics.jsonl, TensorBoard, the progress bar; checks for finite losses
    signals       SIGTERM and Ctrl-C
    evaluate      what `--mode=evaluate` does with a checkpoint
    finished      a finished run, to look at or to search with

The family brings everything that depends on a model; a further one trains unchanged.
"""
