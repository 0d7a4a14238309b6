"""Pooling, sampling and normalisation of raw features, as a model reads them.

A video of T frames is cut into n spans [b_i, b_{i+1}) with ``b_i = min(round(i T / n), T - 1)``.
Each span is replaced by the mean of its frames, or by frame b_i if it is empty. As in the released
code, the limit T - 1 leaves out the last frame if T is large (from 48 on for 32 clips). Clips are
always pooled to C. Frames are pooled to F only if there are more than F. Vectors are then divided
by their norm + 1e-5.

Means and norms are computed in float64 and rounded to float32 once, at the end.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import DTypeLike

_EPSILON = 1e-5
_LEAST_NORM = 1e-12

FLOAT32 = np.dtype(np.float32)


def boundaries(
    num_frames: int, num_spans: int, dtype: type[np.floating] = np.float64
) -> Int[np.ndarray, " bounds"]:
    """Return the boundaries of n spans of a video of T frames: n + 1 frame numbers up to T - 1.

    Args:
      num_frames: T.
      num_spans: n.
      dtype: precision in which they are rounded; the released code rounds clips in float32.
    """
    fractions = np.arange(num_spans + 1, dtype=dtype) / dtype(num_spans)
    return np.minimum(np.round(fractions * dtype(num_frames)).astype(np.int64), num_frames - 1)


def pool_to_clips(frames: Float[np.ndarray, "T D"], num_clips: int) -> Float[np.ndarray, "C D"]:
    """Pool a video of T >= 1 raw frames to C clips, the means of spans, in float64.

    If T < C, frames are repeated.
    """
    return _span_means(frames, boundaries(len(frames), num_clips, np.float32))


def sample_frames(frames: Float[np.ndarray, "T D"], max_frames: int) -> Float[np.ndarray, "F D"]:
    """Return at most F raw frames: unchanged if T <= F, else means of F spans, float64."""
    if len(frames) <= max_frames:
        return frames
    return _span_means(frames, boundaries(len(frames), max_frames))


def teacher_cosines(
    frames: Float[np.ndarray, "T D"], captions: Float[np.ndarray, "M D"], num_frames: int
) -> Float[np.ndarray, "M F"]:
    """Return the cosines of a teacher's vectors of captions and frames of a video, float32.

    Args:
      frames: the teacher's vectors of T >= 1 frames, in time order.
      captions: the teacher's vectors of the video's captions.
      num_frames: F, the number of frames of the student after sampling. The teacher's frames are
        pooled to F spans. If teacher and student have equally many frames, both are pooled by the
        same spans; otherwise the spans correspond in time.

    Returns:
      The cosine of each caption and each span; 0 if a vector is zero.
    """
    pooled = _span_means(frames, boundaries(len(frames), num_frames))
    captions = unit(captions.astype(np.float64, copy=False), _LEAST_NORM)
    return (captions @ unit(pooled, _LEAST_NORM).T).astype(np.float32)


def unit(
    vectors: Float[np.ndarray, "*batch n"], least: float = 0.0
) -> Float[np.ndarray, "*batch n"]:
    """Divide vectors by their norm, or by `least` if it is larger; zero vectors stay zero.

    The dtype is kept.
    """
    norm = np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), least)
    return vectors / np.where(norm > 0, norm, 1)


def normalise(vectors: Float[np.ndarray, "*batch D"]) -> Float[np.ndarray, "*batch D"]:
    """Divide vectors by their norm + 1e-5 and return float32; zero vectors stay zero."""
    vectors = vectors.astype(np.float64, copy=False)
    norm = np.sqrt(np.einsum("...d,...d->...", vectors, vectors))
    return (vectors / (norm + _EPSILON)[..., None]).astype(np.float32)


def cut_words(
    words: Float[np.ndarray, "T E"], max_words: int, keeps_last: bool = False
) -> Float[np.ndarray, "W E"]:
    """Return at most W words of a caption, each normalised, float32.

    Args:
      words: raw features of the words.
      max_words: W.
      keeps_last: whether the last of the W words is the caption's last word, such as an end token.
    """
    cut = words[:max_words]
    if keeps_last and len(words) > max_words:
        cut = np.concatenate([words[: max_words - 1], words[-1:]])
    return normalise(cut)


def pad(
    rows: Sequence[Float[np.ndarray, "_ D"]], shape: tuple[int, int, int], dtype: DTypeLike
) -> tuple[Float[np.ndarray, "B L D"], Bool[np.ndarray, "B L"]]:
    """Pad the rows of several items with zeros.

    Args:
      rows: for each item, at most L rows.
      shape: B, L and D of the result.
      dtype: dtype of the result.

    Returns:
      The padded array, and a mask that is True for the given rows.
    """
    padded, mask = np.zeros(shape, dtype), np.zeros(shape[:2], bool)
    for item, values in enumerate(rows):
        padded[item, : len(values)], mask[item, : len(values)] = values, True
    return padded, mask


def _span_means(
    frames: Float[np.ndarray, "T D"], bounds: Int[np.ndarray, " bounds"]
) -> Float[np.ndarray, "spans D"]:
    # As in the released code, reduceat returns the frame at the start of an empty span. Its last
    # sum, from the last boundary to the end, belongs to no span and is dropped.
    sums = np.add.reduceat(frames.astype(np.float64, copy=False), bounds, axis=0)[:-1]
    return sums / np.maximum(np.diff(bounds), 1)[:, None]
