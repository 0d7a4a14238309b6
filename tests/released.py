"""What the tests know of the released codes' runs: their parameters, inputs and recordings.

See golden/README.md for where the numbers come from.
"""

import functools
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from hlformer_jax import models, torch_checkpoint
from hlformer_jax.config import default
from hlformer_jax.losses.ranking import NegativeRanks
from hlformer_jax.training.prvr import Negatives
from hlformer_jax.typing import Batch, Captions, Videos

GOLDEN = Path(__file__).parent / "golden"

TERM_NAMES = {  # ours: recorded
    "clip_triplet": "clip_triplet",
    "frame_triplet": "frame_triplet",
    "clip_nce": "clip_nce",
    "frame_nce": "frame_nce",
    "query_diversity": "query_diverse",
    "partial_order": "pop",
    "optimal_matching": "optimal_matching",
    "distillation": "distillation",
}

NO_LORENTZ = {"model.lorentz_blocks": 0, "loss.partial_order": 0.0}


def lookup(tree, name, model="hlformer"):
    """Our counterpart of one released tensor of that model, in the released orientation."""
    path, block, transposed = torch_checkpoint.locate(name, model)
    value = tree
    for key in path:
        value = value[key]
    value = value if block is None else value[block]
    return value.T if transposed else value


class Recording:
    """The run of one released model.

    Attributes:
      model: its name in `config.model.name`.
      fields: fields of the configuration that has its sizes and options.
      settings: loss settings that were recorded, by name, as fields of the configuration.
    """

    def __init__(self, model, fields, settings):
        self.model, self.fields, self.settings = model, fields, settings

    @functools.cached_property
    def golden(self):
        with np.load(GOLDEN / f"{self.model}.npz") as file:
            return dict(file)

    @functools.cached_property
    def names(self):
        return [str(name) for name in self.golden["param_names"]]

    def config(self, dtype="float32", setting="act") -> ConfigDict:
        result = default()
        result.dtype = dtype
        result.model.update(name=self.model, dropout=0.0, input_dropout=0.0)
        result.data.update(visual_dim=24, text_dim=20)
        result.update_from_flattened_dict(self.fields | self.settings[setting])
        return result

    def build(self, dtype="float32"):
        return models.build(self.config(dtype))

    def thin(self, array, above=None):
        """Keeps of a large array what was stored."""
        array = np.asarray(array).ravel()
        above = above or int(self.golden.get("thin_above", 512))
        return array if array.size <= above else array[:: int(self.golden.get("thin_step", 3))]

    def thin_result(self, array):
        """Keeps of a large float64 recording what was stored."""
        return np.asarray(array).ravel()[:: int(self.golden.get("thin_step_f64", 3))]

    def by_parameter(self, name):
        """A joined recording by released parameter name; large tensors are thinned."""
        start, result = 0, {}
        for parameter, text in zip(self.names, self.golden["param_shapes"], strict=True):
            shape = tuple(int(size) for size in str(text).split("x") if size)
            if name != "param":
                shape = self.thin(np.zeros(shape, bool)).shape
            size = int(np.prod(shape, dtype=int))
            result[parameter] = self.golden[name][start : start + size].reshape(shape)
            start += size
        assert start == self.golden[name].size
        return result

    def params(self, dtype="float32"):
        return torch_checkpoint.to_params(
            {name: value.astype(dtype) for name, value in self.by_parameter("param").items()}
        )

    def place(self, name):
        return torch_checkpoint.locate(name, self.model)

    def lookup(self, tree, name):
        """Our counterpart of one released tensor, in the released orientation."""
        return lookup(tree, name, self.model)

    def like_recorded(self, tree, name):
        """Our counterpart of one released tensor, thinned as recordings are."""
        return self.thin(self.lookup(jax.device_get(tree), name))


HLFORMER = Recording(
    "hlformer",
    {"model.hidden_size": 32, "model.lorentz_dim": 15},
    {
        "act": {},
        "cha": {},
        "tvr": {
            "loss.margin": 0.1,
            "loss.diversity_margin": 0.15,
            "loss.clip_nce": 0.05,
            "loss.query_diversity": 8e-5,
        },
    },
)
GMMFORMER_V2 = Recording(
    "gmmformer_v2",
    {
        "model.hidden_size": 32,
        "model.euclidean_blocks": 8,
        "model.euclidean_widths": (0.0, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0),
        "model.fusion": "consolidation",
        **NO_LORENTZ,
    },
    {
        "act": {"loss.optimal_matching": 0.11},
        "cha": {"loss.optimal_matching": 0.1},
        "tvr": HLFORMER.settings["tvr"] | {"loss.optimal_matching": 0.09},
    },
)
GMMFORMER = Recording(
    "gmmformer",
    {
        "model.hidden_size": 16,
        "model.num_heads": 2,
        "model.euclidean_widths": (0.0, 0.5, 1.0, 5.0),
        "model.fusion": "mean",
        "model.video_level": True,
        "loss.diversity_form": "captions",
        **NO_LORENTZ,
    },
    {
        "act": {"loss.query_diversity": 0.015},
        "cha": {
            "loss.frame_nce": 0.02,
            "loss.diversity_margin": 0.15,
            "loss.query_diversity": 0.005,
        },
        "tvr": HLFORMER.settings["tvr"] | {"loss.query_diversity": 0.001},
    },
)
MS_SL = Recording(
    "ms_sl",
    {
        "model.hidden_size": 16,
        "model.num_heads": 2,
        "model.euclidean_blocks": 1,
        "model.fusion": "mean",
        "loss.query_diversity": 0.0,
        **NO_LORENTZ,
    },
    {"act": {}, "tvr": {"loss.margin": 0.1}},
)
DL_DKD = Recording(
    "dl_dkd",
    {
        **MS_SL.fields,
        "loss.clip_nce": 0.04,
        "loss.distillation": 0.1,
        "data.teacher_dim": 12,
    },
    {"act": {}, "tvr": {"loss.margin": 0.1}},
)
FAMILY = (HLFORMER, GMMFORMER_V2, GMMFORMER, MS_SL, DL_DKD)


def batch(dtype: str = "float32", recording: Recording | None = None) -> Batch:
    """The batch of all recordings; of a recording that has one, with its teacher."""
    golden = HLFORMER.golden
    teacher = (recording or HLFORMER).golden.get("f64/score/teacher")
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
            None if teacher is None else teacher.astype(dtype),
        ),
    )


def hardest(guided: bool = False) -> Negatives:
    """The negatives of the recorded losses: hard pool of size 1."""
    ranks = NegativeRanks(np.zeros(15, np.int32), np.zeros(6, np.int32))
    each = NegativeRanks(np.zeros(15, np.int32), np.zeros(15, np.int32))
    return Negatives(ranks, each if guided else ranks)


def recorded_random(recording: Recording = HLFORMER) -> Negatives:
    """The recorded random negatives. The released text-to-video list begins with the positive."""
    draws = (
        NegativeRanks(
            recording.golden[f"rand/{branch}_t2v_idx"].astype(np.int32) - 1,
            recording.golden[f"rand/{branch}_v2t_idx"].astype(np.int32),
        )
        for branch in ("clip", "frame")
    )
    return Negatives(*draws)
