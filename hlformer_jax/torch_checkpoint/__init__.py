"""Conversion of checkpoints of the authors' released codes, without PyTorch.

    python -m hlformer_jax.torch_checkpoint best.ckpt OUT

    reader    reading of tensors and plain containers from a file, without executing it
    names     released names of parameters, and their places in this package's parameter tree
    convert   conversion to a checkpoint of this package, and the command that evaluates it

The configuration has three sources. Sizes follow from the shapes of the tensors. The number of
heads, the temperature, the weights of the scores and the collection are options in the file; MS-SL
and DL-DKD save neither the weights nor the collection. The other fields are the model's definition
(config/models.py).
"""
