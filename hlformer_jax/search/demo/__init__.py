"""A demo archive, which needs neither your own videos nor a download.

`make` renders short videos of coloured shapes that move, grow, shrink and meet. It writes their
captions, trains a tiny SigLIP encoder on frames of other scenes, and indexes the videos.

scenes      descriptions of videos, sampled from a seed
drawing     frames and files of the videos
making      the directory of a demo
"""

from hlformer_jax.search.demo.making import DemoError, make, render_training

__all__ = ["DemoError", "make", "render_training"]
