"""A linear baseline to hold a model against: ridge regression from mean words to mean frames.

It sees what HLFormer sees, but pools a caption's words and a video's frames to one vector each and
maps between them linearly: what it misses is what finding the moment is worth.
"""

import numpy as np
from jaxtyping import Float

from hlformer_jax.data.split import Split
from hlformer_jax.data.transforms import unit

PENALTIES = tuple(10.0**power for power in range(-4, 4))


def mean_pooled_scores(train: Split, val: Split, test: Split) -> Float[np.ndarray, "Q V"]:
    """Scores of the test split by the linear baseline.

    Args:
      train: fits the map; one equation a caption.
      val: chooses the penalty, by the mean rank.
      test: is scored.

    Returns:
      Cosines of mapped captions and videos, float64.
    """
    words, frames = _pooled(train)
    targets = frames[train.caption_video]
    word_mean, frame_mean = words.mean(axis=0), frames.mean(axis=0)
    x, y = words - word_mean, targets - frame_mean
    gram, cross = x.T @ x, x.T @ y
    scale = np.trace(gram) / len(gram)

    def scores(split: Split, penalty: float) -> Float[np.ndarray, "Q V"]:
        weights = np.linalg.solve(gram + penalty * scale * np.eye(len(gram)), cross)
        words, frames = _pooled(split)
        return unit((words - word_mean) @ weights) @ unit(frames - frame_mean).T

    def mean_rank(penalty: float) -> float:
        similarity = scores(val, penalty)
        own = similarity[np.arange(len(similarity)), val.caption_video]
        return float(np.mean(np.sum(similarity > own[:, None], axis=1)))

    return scores(test, min(PENALTIES, key=mean_rank))


def _pooled(split: Split) -> tuple[Float[np.ndarray, "Q E"], Float[np.ndarray, "V D"]]:
    words: list[np.ndarray] = []
    frames: list[np.ndarray] = []
    for index in range(len(split)):
        example = split[index]
        words.extend(caption.mean(axis=0, dtype=np.float64) for caption in example.words)
        frames.append(example.frames.mean(axis=0, dtype=np.float64))
    return np.stack(words), np.stack(frames)
