"""One run of a model on the recorded batch, and what it is held against (see test_parity.py)."""

import functools
import os
from typing import Any, NamedTuple

import jax
import numpy as np
import released

from hlformer_jax.losses import numbers
from hlformer_jax.retrieval.scoring import Similarities
from hlformer_jax.training import prvr

FLOAT64_TOLERANCE = 1e-9

# The released cones shift a sine or cosine by 1e-8 before arcsin and arccos: angles differ from
# the exact ones by up to 1e-8 / sin(angle), of the order of 1e-8, in float64 as well.
ANGLE_SHIFT = 3e-8


class Run(NamedTuple):
    """Everything that one forward and backward pass of a model and the losses gives."""

    terms: dict
    videos: Any
    inside: dict
    queries: np.ndarray
    lifted: Any
    similar: Similarities
    gradient: dict


def assert_recorded(recording, name, ours, dtype, shift=0.0):
    golden = recording.golden
    expected = golden[f"f64/{name}"]
    ours = np.asarray(ours)
    assert ours.dtype == dtype
    if ours.shape != expected.shape:
        ours = recording.thin_result(ours)
    largest = np.abs(expected).max()
    if dtype == "float64":
        tolerance = FLOAT64_TOLERANCE * largest + shift
    else:
        ulp = np.finfo(np.float32).eps * largest
        tolerance = max(4 * float(golden.get(f"noise/{name}", 0)), 8 * ulp) + shift
    difference = np.abs(ours - expected).max()
    assert difference <= tolerance, f"{name}: {difference:.2e} > {tolerance:.2e}"


@functools.cache
def _compiled(recording, dtype):
    """One compilation for all recordings: weights, margins and negatives are arguments."""
    config = recording.config(dtype)
    model = recording.build(dtype)
    loss_of = prvr.build_objective(config, model)

    def loss(params, batch, negatives, values, epoch):
        apply = functools.partial(model.apply, params)
        # Compiled once: what is asked for here is what the objective computes.
        videos, inside = apply(
            batch.videos, model.hyperparameters, method="encode_video", capture_intermediates=True
        )
        queries = apply(batch.captions, method="encode_query")
        lifted = apply(videos, queries, method="lift") if model.module.has_lift else None
        total, terms = loss_of.replace(numbers=values).evaluate(
            params, batch, negatives, epoch=epoch
        )
        similar = loss_of.scorer.similarities(queries, videos, batch.captions.video)
        inside = inside["intermediates"]
        terms = {**terms, "total": total}
        return total, Run(terms, videos, inside, queries, lifted, similar, {})

    # Rounding is to be that of a user's code generator, where conftest.py has chosen another.
    other = dtype == "float32" and "xla_cpu_use_fusion_emitters" in os.environ.get("XLA_FLAGS", "")
    options = {"xla_cpu_use_fusion_emitters": True} if other else None
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
    chosen = numbers(recording.config(dtype, setting).loss, dtype) | (values or {})
    (_, run), gradient = _compiled(recording, dtype)(
        recording.params(dtype) if params is None else params,
        batch or released.batch(dtype, recording),
        negatives or released.hardest(recording.build().module.guides_frames),
        {name: np.asarray(value, dtype) for name, value in chosen.items()},
        np.asarray(epoch, np.int32),
    )
    return jax.device_get(run._replace(gradient=gradient))


@functools.cache
def recorded_run(recording, dtype):
    return run(recording, dtype)
