"""A demo that needs no video and no download: it makes its own, and an encoder that knows them.

`make` renders short videos of coloured shapes that move, grow, shrink and meet, writes what happens
in them, trains a tiny SigLIP on frames of other scenes and indexes the videos. The encoder is read
like any other, and its meaning is real though small: colours, shapes and what they do.

scenes      the videos as data, drawn from a seed
drawing     their frames
making      the directory of a demo
kinds       a second archive, with queries of several kinds
"""

from hlformer_jax.search.demo.making import DemoError, make, make_kinds, render_training

__all__ = ["DemoError", "make", "make_kinds", "render_training"]
