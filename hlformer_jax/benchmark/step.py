"""Training: a step, an epoch, and batches from disk, with the package's own programs and feeds."""

import functools
import itertools
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from hlformer_jax import models, parallel
from hlformer_jax.benchmark import measure
from hlformer_jax.benchmark.measure import Floor, Options, Row, Timing, clock, each, summary, timed
from hlformer_jax.data.feed import Chunk, Schedule, VideoFeed
from hlformer_jax.data.prepared import prepare
from hlformer_jax.data.split import CAPTIONS_PER_VIDEO, Split
from hlformer_jax.training import checkpoints, optim, prvr
from hlformer_jax.training.step import TrainState, compile_steps, init_state, train_step

PEER_WORKERS = 32
"""Processes of the released loader, as its configuration has it; here no more than processors."""

LOADED_BATCHES = 4
"""Batches in a pass over the files of either loader."""

TRAINING_VIDEOS = 10_009
"""Videos of ActivityNet Captions' training split."""


class Training:
    """A compiled group of steps, to be run again and again."""

    def __init__(
        self, config: ConfigDict, data: int | Split, longest: int, resident: bool = True
    ) -> None:
        """Compiles steps on a split, or on so many videos with simulated features."""
        self.config, self.mesh = config, parallel.mesh()
        prvr.check_trainable(config, self.mesh.size)
        model = models.build(config)
        if isinstance(data, int):
            data = measure.simulated_split(data, round(data * CAPTIONS_PER_VIDEO), config)
        self.split = data
        schedule = Schedule(len(data), config.train.batch_size, config.seed)
        groups = schedule.groups(1, longest)
        self.feed = VideoFeed(self.split, groups, self.mesh, config.train.batch_size, resident)
        self.steps_per_epoch = schedule.steps_per_epoch
        self._optimiser = optim.build(config.optim, model.module, 100 * self.steps_per_epoch)
        state = init_state(models.init_params(model, config), self._optimiser)
        self.state: TrainState = parallel.replicate(self.mesh, state)
        self._project = functools.partial(models.project, model)
        loss = prvr.build_objective(config, model, self.steps_per_epoch, self._most_captions())
        self.compiled = compile_steps(
            loss, self._optimiser, self._project, self.feed, self.state, config
        )

    def _most_captions(self) -> int:
        return int(self.split.captions_per_video.max())

    def run(self, window: Chunk) -> Any:
        """Takes the steps of a window; returns what to wait for."""
        self.state, scalars = self.compiled.steps(self.state, window)
        return scalars

    def run_epoch(self) -> Any:
        """Takes the steps of all windows; returns what to wait for."""
        return [self.run(window) for window in self.feed.chunks()][-1]

    def floor(self) -> Floor:
        """Of one step: its operations; the state read and written, the batch read."""
        features, plan = self.feed.shapes()
        videos, captions = plan.videos.shape[1], plan.captions.shape[1]
        data = self.config.data
        vectors = videos * (data.max_clips + data.max_frames) * data.visual_dim
        batch = self.split.dtype.itemsize * (vectors + captions * data.max_words * data.text_dim)
        moved = 2 * parallel.nbytes(self.state) + batch / self.mesh.size
        return measure.floor(self.flops(), moved, self.config.dtype)

    def flops(self) -> float:
        """Floating-point operations of one step on one device, by a compiler's count.

        Without those that are done again to save memory.
        """
        plain = self.config.copy_and_resolve_references()
        plain.train.encode_parts = 1  # parts are encoded again for the gradient
        model = models.build(plain)
        loss = prvr.build_objective(plain, model, self.steps_per_epoch, self._most_captions())
        batch = jax.eval_shape(
            lambda: models.zero_batch(plain, self.feed.videos, self.feed.captions)
        )
        take = lambda loss, *given: train_step(loss, self._optimiser, self._project)(*given)
        return parallel.count_flops(take, loss, self.state, batch) / self.mesh.size

    def memory(self) -> dict[str, float]:
        """Memory on each device: the compiler's plan, what was in use if known, the features."""
        plan = parallel.memory_plan(self.compiled.program).get("peak", float("nan"))
        facts = {"peak GB (planned)": plan / 1e9}
        stats = jax.local_devices()[0].memory_stats() or {}
        if "peak_bytes_in_use" in stats:
            facts["peak GB (used so far)"] = stats["peak_bytes_in_use"] / 1e9
        return facts | {"features GB": self.feed.bytes_per_device / 1e9}


def step(config: ConfigDict, options: Options, peer: Any = None) -> Iterator[Row]:
    """A training step of `config.train.batch_size` videos with all their captions.

    Beside a peer: batches from disk through either loader, then steps in turn with it.
    """
    if peer is not None:  # first, for its loader forks: this process must not have computed yet
        yield from loader(config, peer)
    size = config.train.batch_size
    training = Training(config, size * options.steps, options.steps)
    (window,) = training.feed.chunks()
    timing = each(timed(training.run, window, repeats=options.repeats), options.steps)
    floor = training.floor()
    facts = {
        "videos/s": size / timing.median,
        "of matrix product": floor.flops / timing.median / measure.ceilings(config.dtype).flops,
        "captions": float(training.split.captions_per_video[:size].sum()),
        **training.memory(),
    }
    yield Row("step", timing, floor, facts)
    if peer is None:
        return
    batch = peer.convert(measure.first_batch(training.feed, window))
    theirs: list[float] = []
    ours: list[float] = []
    for _ in range(3):  # in turn, lest a noisy minute meets one of them
        # Each once without the clock: the kernel has to move memory from one to the other.
        clock(peer.step, batch)
        theirs.append(clock(peer.step, batch))
        clock(training.run, window)
        ours.append(clock(training.run, window) / options.steps)
    yield Row("step of the released code", summary(theirs))
    faster = {"times as fast": float(np.median(theirs) / np.median(ours))}
    yield Row("ours, in turn with it", summary(ours), None, faster)


def loader(config: ConfigDict, peer: Any) -> Iterator[Row]:
    """Batches from released files on disk, alone and with a step on each: released, and ours."""
    with tempfile.TemporaryDirectory() as directory:
        videos = LOADED_BATCHES * config.train.batch_size
        collection = measure.released_files(directory, videos, config)
        prepared = prepare(collection, directory)
        data = ConfigDict({**config.data.to_dict(), "cache_gib": 0.0})
        split = Split(prepared.split("train"), data)
        workers = min(PEER_WORKERS, os.cpu_count() or 1)
        batches = peer.loader(collection, workers)
        # All of theirs first: its processes are to fork before this one computes with many threads.
        with warnings.catch_warnings(action="ignore"):  # of the threads that JAX has already
            peer.train(itertools.islice(batches, 1))
            theirs = _passes(lambda: sum(1 for _ in batches)), _passes(lambda: peer.train(batches))
        training = Training(config, split, 1, resident=False)
        training.run_epoch()
        read = lambda: [window.features for window in training.feed.chunks()][-1]
        ours = _passes(read), _passes(training.run_epoch)
        training.feed.close()
    facts = {"workers": float(workers)}
    for what, their, our in zip(("batch", "batch and step"), theirs, ours, strict=True):
        yield Row(f"{what}, released loader", their, None, facts)
        yield Row(f"{what}, streamed", our, None, {"times as fast": their.median / our.median})


def _passes(run: Callable[[], Any]) -> Timing:
    """Of a batch, in whole passes, since both loaders read ahead: what counts is how many come."""
    return each(summary([clock(run) for _ in range(3)]), LOADED_BATCHES)


def epoch(config: ConfigDict, options: Options) -> Iterator[Row]:
    """An epoch of training, resident and streamed, without validation, and a checkpoint."""
    videos = options.videos or TRAINING_VIDEOS
    for resident in (True, False):
        training = Training(config, videos, config.train.log_every, resident)
        start = time.perf_counter()
        training.feed.load()
        jax.block_until_ready(next(training.feed.chunks()).features)
        loading = time.perf_counter() - start
        timing = timed(training.run_epoch, repeats=options.repeats)
        steps, one = training.steps_per_epoch, training.floor()
        facts = {"steps": float(steps), "videos/s": videos / timing.median, "load s": loading}
        floor = Floor(*(steps * part for part in one))
        name = "resident" if resident else "streamed"
        yield Row(f"epoch, {name}", timing, floor, facts | training.memory())
        training.feed.close()
    with tempfile.TemporaryDirectory() as directory:
        # What a run does at most every `checkpoint_seconds`, after a validation.
        state, numbers = training.state, itertools.count(1)
        series = checkpoints.newest(Path(directory))
        timing = timed(lambda: series.save(next(numbers), state, {}), repeats=options.repeats)
        series.close()
    yield Row("checkpoint", timing, None, {"GB": parallel.nbytes(state) / 1e9})
