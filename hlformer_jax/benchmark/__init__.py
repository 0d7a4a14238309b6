"""What `hlformer_jax.benchmark` times: each function does one kind of work and yields rows.

The work is the package's own: the compiled programs, feeds and readers that training and
evaluation use, on random features of real sizes.
"""
