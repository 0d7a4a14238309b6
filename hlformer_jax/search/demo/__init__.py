"""A demo archive that needs no own videos and no download.

`make` renders short videos of coloured shapes that move, grow, shrink and meet, writes captions of
them, trains a tiny SigLIP encoder on frames of other scenes, and indexes the videos.

scenes      videos as data, sampled from a seed
drawing     their frames
making      the directory of a demo
"""

from hlformer_jax.search.demo.making import DemoError, make, render_training

__all__ = ["DemoError", "make", "render_training"]
