"""From the positions of a video to its frames: scores over time of what was pooled from frames.

A clip, a sampled frame or a proposal was made of several frames of the video. Each frame gets the
score of what it was pooled into; of several, the best.
"""

import numpy as np
from jaxtyping import Float, Int

from hlformer_jax.data import transforms
from hlformer_jax.models.ms_sl import proposals


def of_clips(
    scores: Float[np.ndarray, "*batch C"], num_frames: int
) -> Float[np.ndarray, "*batch F"]:
    """Scores of the frames of a video by those of its clips."""
    bounds = transforms.boundaries(num_frames, scores.shape[-1], np.float32)
    return of_spans(scores, bounds, num_frames)


def of_sampled_frames(
    scores: Float[np.ndarray, "*batch L"], num_frames: int
) -> Float[np.ndarray, "*batch F"]:
    """Scores of the frames of a video by those of the L frames that a model reads at most.

    Where a video has no more than L frames, each was read as it is, and the rest is padding.
    """
    most = scores.shape[-1]
    if num_frames <= most:
        return scores[..., :num_frames]
    return of_spans(scores, transforms.boundaries(num_frames, most), num_frames)


def of_spans(
    scores: Float[np.ndarray, "*batch spans"], bounds: Int[np.ndarray, " spans+1"], num_frames: int
) -> Float[np.ndarray, "*batch F"]:
    """For each frame the largest score of the spans that it was pooled into.

    Args:
      scores: scores of the spans.
      bounds: boundaries of the spans, of `transforms.boundaries`; an empty span has the frame at
        its start, and the frames that the released code leaves out belong to the last.
      num_frames: F.
    """
    starts = bounds[:-1]
    ends = np.append(np.maximum(bounds[1:-1], starts[:-1] + 1), num_frames)
    frame = np.arange(num_frames)
    inside = (frame[:, None] >= starts) & (frame[:, None] < ends)
    found: np.ndarray = np.where(inside, scores[..., None, :], -np.inf).max(axis=-1)
    return found.astype(scores.dtype)


def of_proposals(
    scores: Float[np.ndarray, "*batch P"], num_clips: int
) -> Float[np.ndarray, "*batch C"]:
    """For each clip the largest score of the proposals that hold it (MS-SL)."""
    starts, ends = proposals(num_clips)
    clip = np.arange(num_clips)
    inside = (clip[:, None] >= starts) & (clip[:, None] < ends)
    found: np.ndarray = np.where(inside, scores[..., None, :], -np.inf).max(axis=-1)
    return found.astype(scores.dtype)
