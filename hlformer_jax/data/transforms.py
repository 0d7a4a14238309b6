"""Pooling, sampling and normalisation of raw features, as a model reads them.

A video of T frames is cut into n spans with boundaries ``b_i = min(round(i T / n), T - 1)``, and
each span becomes its mean, or its first frame where it is empty. As released, the cap at T - 1
leaves out the last frame once T is large (from 48 on for 32 clips). Clips are always pooled to C;
frames are left alone up to F and pooled to F beyond. Vectors are then divided by their norm + 1e-5.

Means and norms are taken in float64 and rounded to float32 once, at the end.
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

    They are rounded in the precision of `dtype`; the released code rounds clips in float32.
    """
    fractions = np.arange(num_spans + 1, dtype=dtype) / dtype(num_spans)
    return np.minimum(np.round(fractions * dtype(num_frames)).astype(np.int64), num_frames - 1)


def pool_to_clips(frames: Float[np.ndarray, "T D"], num_clips: int) -> Float[np.ndarray, "C D"]:
    """Pool a video of T >= 1 raw frames to C clips: means of spans, float64, repeated if T < C."""
    return _span_means(frames, boundaries(len(frames), num_clips, np.float32))


def sample_frames(frames: Float[np.ndarray, "T D"], max_frames: int) -> Float[np.ndarray, "F D"]:
    """Return at most F raw frames: unchanged if T <= F, else means of F spans, float64."""
    if len(frames) <= max_frames:
        return frames
    return _span_means(frames, boundaries(len(frames), max_frames))


def teacher_cosines(
    frames: Float[np.ndarray, "T D"], captions: Float[np.ndarray, "M D"], num_frames: int
) -> Float[np.ndarray, "M F"]:
    """Return a teacher's cosines of captions and the frames of their video, float32.

    A zero vector has cosine 0. The teacher's T >= 1 frames are pooled into F spans, the student's
    number of frames after sampling. If both had the same number of frames, they are pooled
    equally; otherwise they are aligned in time.
    """
    pooled = _span_means(frames, boundaries(len(frames), num_frames))
    captions = unit(captions.astype(np.float64, copy=False), _LEAST_NORM)
    return (captions @ unit(pooled, _LEAST_NORM).T).astype(np.float32)


def unit(
    vectors: Float[np.ndarray, "*batch n"], least: float = 0.0
) -> Float[np.ndarray, "*batch n"]:
    """Divide vectors by their norm, or by `least` if that is larger; zero vectors stay zero.

    They keep their dtype.
    """
    norm = np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), least)
    return vectors / np.where(norm > 0, norm, 1)


def normalise(vectors: Float[np.ndarray, "*batch D"]) -> Float[np.ndarray, "*batch D"]:
    """Divide vectors by their norm + 1e-5; return float32 of norm just below 1. Zeros stay zero."""
    vectors = vectors.astype(np.float64, copy=False)
    norm = np.sqrt(np.einsum("...d,...d->...", vectors, vectors))
    return (vectors / (norm + _EPSILON)[..., None]).astype(np.float32)


def cut_words(words: Float[np.ndarray, "T E"], max_words: int) -> Float[np.ndarray, "W E"]:
    """Return at most the first W words of a caption's raw features, each normalised, float32."""
    return normalise(words[:max_words])


def pad(
    rows: Sequence[Float[np.ndarray, "_ D"]], shape: tuple[int, int, int], dtype: DTypeLike
) -> tuple[Float[np.ndarray, "B L D"], Bool[np.ndarray, "B L"]]:
    """Return rows of several items as one array padded with zeros, and a mask of the real rows."""
    padded, mask = np.zeros(shape, dtype), np.zeros(shape[:2], bool)
    for item, values in enumerate(rows):
        padded[item, : len(values)], mask[item, : len(values)] = values, True
    return padded, mask


def _span_means(
    frames: Float[np.ndarray, "T D"], bounds: Int[np.ndarray, " bounds"]
) -> Float[np.ndarray, "spans D"]:
    # reduceat has the rule of the released code: an empty span gives the frame at its start. The
    # last boundary closes the last span; what reduceat sums from there on is dropped.
    sums = np.add.reduceat(frames.astype(np.float64, copy=False), bounds, axis=0)[:-1]
    return sums / np.maximum(np.diff(bounds), 1)[:, None]
