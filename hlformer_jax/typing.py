"""The axis glossary, and the types that every layer of the package shares.

One letter means one thing everywhere: in annotations, in einsum strings and in docstrings.

    V  videos of a batch or a corpus        D  visual feature
    Q  captions (queries)                   E  text feature
    F  frame positions (gaze branch)        H  hidden
    C  clip positions (glance branch)       N  heads
    L  positions of either branch           d  coordinates of a head
    M  positions that attend, or rows       n  Lorentz dimension
    W  words                                dv coordinates of a value
    P  proposals, windows over clips        n1 coordinates of a Lorentz point, n + 1, time first
    T  frames or words before sampling      K  Gaussian blocks (variants)
    k  results of a search                  B  videos of a block of a corpus, or subtrees
    U  nodes of action trees                S  steps of a chunk

Leading axes that an operation ignores are ``*batch``; axes are indexed from the right.
"""

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

if TYPE_CHECKING:
    Array: TypeAlias = jax.Array | np.ndarray
else:
    # Tests execute annotations: scalars and shapes are accepted in place of arrays.
    Array = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct


class Videos(NamedTuple):
    """Videos for a model: two granularities, padded to fixed shapes.

    Attributes:
      clips: features pooled to C clips, normalised; zero where ``mask`` is False.
      frames: features of at most F frames, normalised; zero beyond a video's last frame.
      frame_mask: True for real frames.
      mask: True for real videos; a padded video has no real frame and no caption.
    """

    clips: Float[Array, "V C D"]
    frames: Float[Array, "V F D"]
    frame_mask: Bool[Array, "V F"]
    mask: Bool[Array, " V"]


class Captions(NamedTuple):
    """Captions for a model: words padded to W, captions padded to a capacity Q.

    Attributes:
      words: word features, normalised; zero beyond a caption's last word.
      word_mask: True for real words.
      video: row of the caption's video in the batch; 0 where padded.
      mask: True for real captions.
      teacher: cosine of a caption and each frame of its video, from a teacher model; zero where
        the caption or the frame is padded. None without a teacher.
    """

    words: Float[Array, "Q W E"]
    word_mask: Bool[Array, "Q W"]
    video: Int[Array, " Q"]
    mask: Bool[Array, " Q"]
    teacher: Float[Array, "Q F"] | None = None


class Batch(NamedTuple):
    """Videos with all their captions. Padding never reaches a loss, a metric or a gradient."""

    videos: Videos
    captions: Captions


class Nodes(NamedTuple):
    """Nodes of action trees: each a span of a video and a text, padded to a capacity U.

    A node appears once, even in several subtrees of the batch.

    Attributes:
      frames: features of F frames drawn from the node's span, normalised; zero beyond them.
      frame_mask: True for real frames.
      words: word features of the node's text, or its sentence vectors, normalised; zero beyond the
        last.
      word_mask: True for real words.
      mask: True for real nodes.
    """

    frames: Float[Array, "U F D"]
    frame_mask: Bool[Array, "U F"]
    words: Float[Array, "U W E"]
    word_mask: Bool[Array, "U W"]
    mask: Bool[Array, " U"]


class Subtrees(NamedTuple):
    """Training items: a parent with its two children, or with its only child.

    Attributes:
      nodes: rows in the batch of the parent, its left child and its right child; an only child
        stands for both. 0 where padded.
      pair: True where there are two children.
      mask: True for real subtrees.
    """

    nodes: Int[Array, "B 3"]
    pair: Bool[Array, " B"]
    mask: Bool[Array, " B"]


class TreeBatch(NamedTuple):
    """Subtrees and their nodes. Padding never reaches a loss, a metric or a gradient.

    Attributes:
      nodes: the nodes.
      subtrees: the subtrees.
      descends: entry (u, w) is True where node w descends from node u in their tree.
    """

    nodes: Nodes
    subtrees: Subtrees
    descends: Bool[Array, "U U"]
