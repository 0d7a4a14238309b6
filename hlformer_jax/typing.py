"""The axis glossary, and the types that every layer of the package shares.

One letter means one thing everywhere: in annotations, in einsum strings and in docstrings.

    V  videos of a batch or a corpus        D  visual feature
    Q  captions (queries)                   E  text feature
    F  frame positions (gaze branch)        H  hidden
    C  clip positions (glance branch)       N  heads
    L  positions of either branch           d  coordinates of a head
    M  positions that attend, or rows       n  Lorentz dimension
    W  words                                dv coordinates of a value
    P  proposals, windows over clips        n1 coordinates of a point of it, n + 1, time first
    T  frames or words before sampling      K  Gaussian blocks (variants)
    k  results of a search                  B  videos of a block of a corpus
                                            S  steps of a chunk

Leading axes that an operation does not look at are ``*batch``; axes are indexed from the right.
"""

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

if TYPE_CHECKING:
    Array: TypeAlias = jax.Array | np.ndarray
else:
    # Where annotations are executed, also what stands for an array: scalars, and shapes alone.
    Array = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct


class Videos(NamedTuple):
    """Videos as the model takes them: two granularities, padded to fixed shapes.

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
    """Captions as the model takes them: words padded to W, captions padded to a capacity Q.

    Attributes:
      words: word features, normalised; zero beyond a caption's last word.
      word_mask: True for real words.
      video: row of the caption's video among the videos it stands beside; 0 where padded.
      mask: True for real captions.
    """

    words: Float[Array, "Q W E"]
    word_mask: Bool[Array, "Q W"]
    video: Int[Array, " Q"]
    mask: Bool[Array, " Q"]


class Batch(NamedTuple):
    """Videos with all their captions. Padding never reaches a loss, a metric or a gradient."""

    videos: Videos
    captions: Captions
