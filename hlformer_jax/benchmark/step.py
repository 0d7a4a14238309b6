"""Training: a step, an epoch, and what is waited for before: prepared data, compiling."""

import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from hlformer_jax import models, parallel
from hlformer_jax.benchmark import measure
from hlformer_jax.benchmark.measure import Floor, Options, Row, clock, summary, timed
from hlformer_jax.data import prepared
from hlformer_jax.data.feed import Chunk, Schedule
from hlformer_jax.data.split import CAPTIONS_PER_VIDEO
from hlformer_jax.retrieval.evaluation import Evaluator
from hlformer_jax.training import checkpoints, prvr
from hlformer_jax.training.step import TrainState, compile_steps, init_state, train_step

TRAINING_VIDEOS = 10_009
"""Videos of ActivityNet Captions' training split."""


class Training:
    """A compiled group of steps on videos with simulated features, to be run again and again."""

    def __init__(
        self, config: ConfigDict, videos: int, longest: int, resident: bool = True
    ) -> None:
        self.config, self.mesh = config, parallel.mesh()
        captions = round(videos * CAPTIONS_PER_VIDEO)
        family = measure.simulated_family(config, self.mesh, videos, captions, resident)
        family.check_trainable()
        self.split = family.data.train
        schedule = Schedule(videos, config.train.batch_size, config.seed)
        self.feed = family.feed(schedule.groups(1, longest))
        self.steps_per_epoch = schedule.steps_per_epoch
        self._optimiser = family.optimiser(100 * self.steps_per_epoch)
        self._project = family.project
        state = init_state(family.init_params(), self._optimiser)
        self.state: TrainState = parallel.replicate(self.mesh, state)
        loss = family.loss(self.steps_per_epoch)
        self.compiled = compile_steps(
            loss, self._optimiser, self._project, self.feed, self.state, config
        )

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
        """Operations of one step on one device, without those done again to save memory."""
        plain = self.config.copy_and_resolve_references()
        plain.train.encode_parts = 1  # parts are encoded again for the gradient
        model = models.build(plain)
        most = int(self.split.captions_per_video.max())
        loss = prvr.build_objective(plain, model, self.steps_per_epoch, most)
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
    """A training step of `config.train.batch_size` videos with all their captions."""
    size = config.train.batch_size
    training = Training(config, size, 1)
    (window,) = training.feed.chunks()
    timing = timed(training.run, window, repeats=options.repeats)
    floor = training.floor()
    facts = {
        "videos/s": size / timing.median,
        "of matrix product": floor.flops / timing.median / measure.ceilings(config.dtype).flops,
        "captions": float(len(training.split.caption_video)),
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
        ours.append(clock(training.run, window))
    yield Row("step of the released code", summary(theirs))
    faster = {"times as fast": float(np.median(theirs) / np.median(ours))}
    yield Row("ours, in turn with it", summary(ours), None, faster)


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


def prepare(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Released files to records, in input bytes a second."""
    with tempfile.TemporaryDirectory() as directory:
        collection = measure.released_files(directory, options.videos or 400, config)
        paths = (collection.feature_dir / "feature.bin", collection.text_features)
        size = sum(path.stat().st_size for path in paths)
        clocks, copies = [], []
        for repeat in range(3):
            target = Path(directory) / str(repeat)
            clocks.append(clock(prepared.prepare, collection, target, config.data.storage))
            copies.append(sum(clock(shutil.copy, path, target) for path in paths))
    timing = summary(clocks)
    # What is read must be written: at best in the time in which the files themselves are copied.
    floor = Floor(0.0, 2.0 * size, float(np.median(copies)))
    yield Row("prepare", timing, floor, {"MB": size / 1e6, "MB/s": size / 1e6 / timing.median})


def compilation(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Time to trace and compile the programs of a run, nothing kept from earlier ones."""
    del options  # once, as a second time would be another
    jax.config.update("jax_enable_compilation_cache", False)
    model = models.build(config)

    def evaluate() -> None:
        split = measure.simulated_split(
            config.eval.video_batch, 2 * config.eval.video_batch, config
        )
        evaluator = Evaluator(model, config, parallel.mesh())
        params = parallel.replicate(parallel.mesh(), models.init_params(model, config))
        evaluator.evaluate(params, evaluator.feed(split))

    for name, run in (
        ("initial parameters", lambda: models.init_params(model, config)),
        ("training", lambda: Training(config, config.train.batch_size, 1)),
        ("evaluation", evaluate),
    ):
        yield Row(name, summary([clock(run)]))
