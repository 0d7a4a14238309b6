"""Parameters, inputs and outputs of the released codes, recorded for comparison with this package.

golden/README.md describes how they were recorded.
"""

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from hlformer_jax import models
from hlformer_jax.config import default
from hlformer_jax.losses import numbers
from hlformer_jax.losses.retrieval import NegativeRanks
from hlformer_jax.retrieval.scoring import Similarities
from hlformer_jax.torch_checkpoint import names as parameter_names
from hlformer_jax.training import prvr
from hlformer_jax.training.prvr import Negatives
from hlformer_jax.typing import Batch, Captions, Videos

GOLDEN = Path(__file__).parents[1] / "golden"

TERM_NAMES = {  # name in this package: name in the recordings
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
    """Return the parameter for one released tensor of the model, in the released orientation."""
    path, block, transposed = parameter_names.locate(name, model)
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

    def thin(self, array, max_size=None):
        """Return the elements of an array that the recording stores of large ones."""
        array = np.asarray(array).ravel()
        max_size = max_size or int(self.golden.get("thin_above", 512))
        return array if array.size <= max_size else array[:: int(self.golden.get("thin_step", 3))]

    def thin_result(self, array):
        """Return the elements of an array that large float64 recordings store."""
        return np.asarray(array).ravel()[:: int(self.golden.get("thin_step_f64", 3))]

    def by_parameter(self, name):
        """Split a concatenated recording by released parameter name; large tensors are thinned."""
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
        return parameter_names.to_params(
            {name: value.astype(dtype) for name, value in self.by_parameter("param").items()}
        )

    def place(self, name):
        return parameter_names.locate(name, self.model)

    def lookup(self, tree, name):
        """Return the parameter for one released tensor, in the released orientation."""
        return lookup(tree, name, self.model)

    def like_recorded(self, tree, name):
        """Return the parameter for one released tensor, thinned like the recordings."""
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


def recorded_batch(dtype: str = "float32", recording: Recording | None = None) -> Batch:
    """Return the batch of all recordings, with the teacher of the recording if it has one."""
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
    """Return the negatives of the recorded losses, a hard pool of size 1."""
    ranks = NegativeRanks(np.zeros(15, np.int32), np.zeros(6, np.int32))
    every_query = NegativeRanks(np.zeros(15, np.int32), np.zeros(15, np.int32))
    return Negatives(ranks, every_query if guided else ranks)


def recorded_random(recording: Recording = HLFORMER) -> Negatives:
    """Return the recorded random negatives.

    The released text-to-video list begins with the positive.
    """
    draws = (
        NegativeRanks(
            recording.golden[f"rand/{branch}_t2v_idx"].astype(np.int32) - 1,
            recording.golden[f"rand/{branch}_v2t_idx"].astype(np.int32),
        )
        for branch in ("clip", "frame")
    )
    return Negatives(*draws)


FLOAT64_TOLERANCE = 1e-9

# The released cones shift a sine or cosine by 1e-8 before arcsin and arccos: angles differ from
# the exact ones by up to 1e-8 / sin(angle), of the order of 1e-8, in float64 as well.
ANGLE_SHIFT = 3e-8


class Run(NamedTuple):
    """Results of one forward and backward pass of a model and its losses."""

    terms: dict
    videos: Any
    inside: dict
    queries: np.ndarray
    lifted: Any
    similar: Similarities
    gradient: dict


def assert_recorded(recording, name, values, dtype, shift=0.0):
    golden = recording.golden
    expected = golden[f"f64/{name}"]
    values = np.asarray(values)
    assert values.dtype == dtype
    if values.shape != expected.shape:
        values = recording.thin_result(values)
    largest = np.abs(expected).max()
    if dtype == "float64":
        tolerance = FLOAT64_TOLERANCE * largest + shift
    else:
        ulp = np.finfo(np.float32).eps * largest
        tolerance = max(4 * float(golden.get(f"noise/{name}", 0)), 8 * ulp) + shift
    difference = np.abs(values - expected).max()
    assert difference <= tolerance, f"{name}: {difference:.2e} > {tolerance:.2e}"


@functools.cache
def _compiled(recording, dtype):
    """Compile one program for all recordings, with weights, margins and negatives as arguments."""
    config = recording.config(dtype)
    model = recording.build(dtype)
    loss_of = prvr.build_objective(config, model)

    def loss(params, batch, negatives, values, epoch):
        apply = functools.partial(model.apply, params)
        # The compiler merges these with the encodings of the objective.
        videos, inside = apply(
            batch.videos, model.hyperparameters, method="encode_video", capture_intermediates=True
        )
        queries = apply(batch.captions, method="encode_query")
        lifted = apply(videos, queries, method="lift") if model.module.has_lift else None
        total, terms = dataclasses.replace(loss_of, numbers=values).evaluate(
            params, batch, negatives, epoch=epoch
        )
        similar = loss_of.scorer.similarities(queries, videos, batch.captions.video)
        inside = inside["intermediates"]
        terms = {**terms, "total": total}
        return total, Run(terms, videos, inside, queries, lifted, similar, {})

    # Use the code generator of users even if conftest.py has chosen the older one.
    overrides_emitters = dtype == "float32" and "xla_cpu_use_fusion_emitters" in os.environ.get(
        "XLA_FLAGS", ""
    )
    options = {"xla_cpu_use_fusion_emitters": True} if overrides_emitters else None
    return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=options)


def run(
    recording,
    dtype,
    setting="act",
    params=None,
    batch=None,
    negatives=None,
    values=None,
    epoch=0,
):
    loss_values = numbers(recording.config(dtype, setting).loss, dtype) | (values or {})
    (_, run), gradient = _compiled(recording, dtype)(
        recording.params(dtype) if params is None else params,
        batch or recorded_batch(dtype, recording),
        negatives or hardest(recording.build().module.guides_frames),
        {name: np.asarray(value, dtype) for name, value in loss_values.items()},
        np.asarray(epoch, np.int32),
    )
    return jax.device_get(run._replace(gradient=gradient))


@functools.cache
def recorded_run(recording, dtype):
    return run(recording, dtype)
