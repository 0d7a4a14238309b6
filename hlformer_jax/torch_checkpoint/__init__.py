"""Conversion of checkpoints of the authors' released codes, without PyTorch.

    python -m hlformer_jax.torch_checkpoint best.ckpt OUT

    reader    the file: tensors and plain containers; nothing in it is executed
    names     released names of parameters, and where they are in ours
    convert   a file to a checkpoint of this package, and the command that evaluates it

Sizes are read off the tensors; the number of heads, the temperature, the weights of the scores and
the collection off the options in the file. MS-SL and DL-DKD save neither the weights nor the
collection. The rest is the model's definition (config/definitions.py).
"""
