"""What the tests know of the released code's run: its parameters, inputs and recordings.

See golden/README.md for where the numbers come from.
"""

import functools
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from hlformer_jax import models, released_names
from hlformer_jax.config import default
from hlformer_jax.losses import NegativeRanks
from hlformer_jax.objective import Negatives
from hlformer_jax.typing import Batch, Captions, Videos

GOLDEN = Path(__file__).parent / "golden"

LOSS_SETTINGS = {
    "act": {},
    "cha": {},
    "tvr": {
        "margin": 0.1,
        "diversity_margin": 0.15,
        "clip_nce": 0.05,
        "query_diversity": 8e-5,
    },
}
TERM_NAMES = {  # ours: recorded
    "clip_triplet": "clip_triplet",
    "frame_triplet": "frame_triplet",
    "clip_nce": "clip_nce",
    "frame_nce": "frame_nce",
    "query_diversity": "query_diverse",
    "partial_order": "pop",
}


@functools.cache
def recorded() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "hlformer.npz") as file:
        return dict(file)


def thin(array: np.ndarray, above: int = 512) -> np.ndarray:
    array = np.asarray(array).ravel()
    return array if array.size <= above else array[::3]


def config(dtype: str = "float32", loss: dict | None = None) -> ConfigDict:
    result = default()
    result.dtype = dtype
    result.model.update(hidden_size=32, lorentz_dim=15, dropout=0.0, input_dropout=0.0)
    result.data.update(visual_dim=24, text_dim=20)
    result.loss.update(loss or {})
    return result


def model(dtype: str = "float32"):
    return models.build(config(dtype))


def _split(name: str, shapes_of=None) -> dict[str, np.ndarray]:
    """Cuts a joined array into one array for each parameter name, thinned as it was stored."""
    golden, start, result = recorded(), 0, {}
    for parameter, text in zip(golden["param_names"], golden["param_shapes"], strict=True):
        shape = tuple(int(size) for size in str(text).split("x") if size)
        size = int(np.prod(shape, dtype=int))
        if name != "param" and size > 512:
            size, shape = -(-size // 3), (-(-size // 3),)
        result[str(parameter)] = golden[name][start : start + size].reshape(shape)
        start += size
    assert start == golden[name].size
    return result


def by_parameter(name: str) -> dict[str, np.ndarray]:
    """A joined recording by released parameter name; large tensors hold every third element."""
    return {key: value.ravel() for key, value in _split(name).items()}


def params(dtype: str = "float32"):
    return released_names.to_params(
        {name: value.astype(dtype) for name, value in _split("param").items()}
    )


def like_recorded(tree, name: str) -> np.ndarray:
    """Our counterpart of one released tensor, thinned as recordings are."""
    return thin(released_names.lookup(jax.device_get(tree), name))


def batch(dtype: str = "float32") -> Batch:
    golden = recorded()
    return Batch(
        Videos(
            golden["in/clip_video_features"].astype(dtype),
            golden["in/frame_video_features"].astype(dtype),
            golden["in/videos_mask"] > 0,
            np.ones(6, bool),
        ),
        Captions(
            golden["in/text_feat"].astype(dtype),
            golden["in/text_mask"] > 0,
            golden["in/text_labels"].astype(np.int32),
            np.ones(15, bool),
        ),
    )


def hardest() -> Negatives:
    """The negatives of the recorded losses: hard pool of size 1."""
    ranks = NegativeRanks(np.zeros(15, np.int32), np.zeros(6, np.int32))
    return Negatives(ranks, ranks)


def recorded_random() -> Negatives:
    """The recorded random negatives. The released text-to-video list begins with the positive."""
    golden = recorded()
    draws = (
        NegativeRanks(
            golden[f"rand/{branch}_t2v_idx"].astype(np.int32) - 1,
            golden[f"rand/{branch}_v2t_idx"].astype(np.int32),
        )
        for branch in ("clip", "frame")
    )
    return Negatives(*draws)
