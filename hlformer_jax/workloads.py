"""What `hlformer_jax.benchmark` times: each function does one kind of work and returns rows.

The work is the package's own: the compiled programs, feeds and readers that training and
evaluation use, on random features of real sizes.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from hlformer_jax import corpus, devices, measure, models, optim, train_state
from hlformer_jax.corpus import Corpus
from hlformer_jax.data import builder, pipeline, synthetic
from hlformer_jax.data.feed import Feed, Window
from hlformer_jax.data.schedule import Schedule, in_order
from hlformer_jax.data.simulated import CAPTIONS_PER_VIDEO, SimulatedSource
from hlformer_jax.evaluate import Evaluator
from hlformer_jax.measure import Floor, Timing, clock, summary, timed
from hlformer_jax.models.hlformer import VideoEncoding
from hlformer_jax.step import compile_steps
from hlformer_jax.train_state import TrainState
from hlformer_jax.typing import Batch

VALIDATION = 4_917, 17_505
"""Videos and captions of ActivityNet Captions' validation split."""

PEER_WORKERS = 32
"""Processes of the released loader, as its configuration has it; here no more than processors."""

TRAINING_VIDEOS = 10_009
SEARCHED_VIDEOS = 2_500
"""As in GMMFormer v2's Table 2."""


class Row(NamedTuple):
    """One line of a report.

    Attributes:
      what: the work.
      timing: seconds of one unit of it.
      floor: of the same unit, where it is counted.
      facts: further figures, by name and unit.
    """

    what: str
    timing: Timing
    floor: Floor | None
    facts: dict[str, float]


class Options(NamedTuple):
    """What a command line may change.

    Attributes:
      videos: of the corpus or the training split; 0: those of ActivityNet Captions.
      repeats: of every measurement at most.
      steps: in one call of the compiled program.
    """

    videos: int
    repeats: int
    steps: int


class Training:
    """A compiled group of steps on simulated features, to be run again and again."""

    def __init__(
        self, config: ConfigDict, videos: int, longest: int, resident: bool = True
    ) -> None:
        self.config, self.mesh = config, devices.mesh()
        model = models.build(config)
        self.split = _split(videos, round(videos * CAPTIONS_PER_VIDEO), config)
        schedule = Schedule(videos, config.train.batch_size, config.seed)
        groups = schedule.groups(1, longest)
        self.feed = Feed(self.split, groups, self.mesh, config.train.batch_size, resident)
        self.steps_per_epoch = schedule.steps_per_epoch
        optimiser = optim.build(config, 100 * self.steps_per_epoch)
        state = train_state.init_state(model, config, optimiser)
        self.state: TrainState = devices.replicate(self.mesh, state)
        self._steps, self.program = compile_steps(
            model, config, optimiser, self.feed, self.steps_per_epoch, self.state
        )

    def run(self, window: Window) -> Any:
        """Takes the steps of a window; returns what to wait for."""
        self.state, scalars = self._steps(self.state, window)
        return scalars

    def floor(self) -> Floor:
        """Of one step: its operations; the state read and written, the batch read."""
        features, plan = self.feed.shapes()
        videos, captions = plan.videos.shape[1], plan.captions.shape[1]
        data = self.config.data
        vectors = videos * (data.max_clips + data.max_frames) * data.visual_dim
        batch = self.split.dtype.itemsize * (vectors + captions * data.max_words * data.text_dim)
        moved = 2 * measure.nbytes(self.state) + batch / self.mesh.size
        return measure.floor(measure.flops(self.program), moved, self.config.dtype)


def step(config: ConfigDict, options: Options, peer: Any = None) -> Iterator[Row]:
    """A training step of `config.train.batch_size` videos with all their captions."""
    size = config.train.batch_size
    training = Training(config, size * options.steps, options.steps)
    (window,) = training.feed.windows()
    timing = _each(timed(training.run, window, repeats=options.repeats), options.steps)
    floor = training.floor()
    facts = {
        "videos/s": size / timing.median,
        "of matrix product": floor.flops / timing.median / measure.ceilings(config.dtype).flops,
        "captions": float(training.split.captions_per_video[:size].sum()),
        **_memory(training.program),
        "features GB": training.feed.bytes_per_device / 1e9,
    }
    yield Row("step", timing, floor, facts)
    if peer is None:
        return
    theirs, ours = [], []
    batch = peer.convert(_first_batch(training.feed, window))
    peer.step(batch)
    for _ in range(max(min(options.repeats, 5), 3)):  # in turn, lest a noisy minute meets one
        theirs.append(clock(peer.step, batch))
        ours.append(clock(training.run, window) / options.steps)
    yield Row("step of the released code", summary(theirs), None, {})
    yield Row(
        "ours, in turn with it",
        summary(ours),
        None,
        {
            "times as fast": float(np.median(theirs) / np.median(ours)),
        },
    )


def loader(config: ConfigDict, options: Options, peer: Any) -> Iterator[Row]:
    """Batches from released files on disk: those of the released loader, and our windows."""
    with tempfile.TemporaryDirectory() as directory:
        videos = 4 * config.train.batch_size
        made = synthetic.Corpus(
            videos=(videos, 8, 8),
            max_frames=config.data.max_frames,
            visual_dim=config.data.visual_dim,
            text_dim=config.data.text_dim,
        )
        collection = synthetic.write_corpus(directory, made)
        prepared = builder.prepare(collection, directory)
        data = ConfigDict({**config.data.to_dict(), "cache_gib": 0.0})
        split = pipeline.Split(prepared.split("train"), data)
        schedule = Schedule(videos, config.train.batch_size, config.seed)
        windows = Feed(
            split, schedule.groups(1, 1), devices.mesh(), config.train.batch_size, resident=False
        )
        # Whole passes, since both read ahead: what counts is how many batches come in a time.
        workers = min(PEER_WORKERS, os.cpu_count() or 1)
        their_pass = lambda: sum(1 for _ in peer.loader(collection, workers))
        our_pass = lambda: [window.features for window in windows.windows()][-1]
        theirs, ours = [], []
        for _ in range(3):
            theirs.append(clock(their_pass) / schedule.steps_per_epoch)
            ours.append(clock(our_pass) / schedule.steps_per_epoch)
        windows.close()
    yield Row("batch of the released loader", summary(theirs), None, {"workers": float(workers)})
    faster = {"times as fast": float(np.median(theirs) / np.median(ours))}
    yield Row("streamed batch", summary(ours), None, faster)


def epoch(config: ConfigDict, options: Options) -> Iterator[Row]:
    """An epoch of training, resident and streamed, without validation."""
    videos = options.videos or TRAINING_VIDEOS
    for resident in (True, False):
        training = Training(config, videos, config.train.log_every, resident)
        start = time.perf_counter()
        training.feed.load()
        windows = training.feed.windows()
        first = next(windows)
        jax.block_until_ready(first.features)
        loading = time.perf_counter() - start

        def run(training: Training = training) -> Any:
            return [training.run(window) for window in training.feed.windows()][-1]

        timing = timed(run, repeats=options.repeats)
        steps = training.steps_per_epoch
        one = training.floor()
        floor = Floor(one.flops * steps, one.bytes * steps, one.seconds * steps)
        yield Row(
            f"epoch, {'resident' if resident else 'streamed'}",
            timing,
            floor,
            {
                "steps": float(steps),
                "videos/s": videos / timing.median,
                "load s": loading,
                "features GB": training.feed.bytes_per_device / 1e9,
                **_memory(training.program),
            },
        )
        training.feed.close()


def evaluate(config: ConfigDict, options: Options, peer: Any = None) -> Iterator[Row]:
    """Encoding and ranking of a validation split of ActivityNet's proportions."""
    videos = options.videos or VALIDATION[0]
    captions = round(videos * VALIDATION[1] / VALIDATION[0])
    mesh, model = devices.mesh(), models.build(config)
    split = _split(videos, captions, config)
    params = devices.replicate(mesh, train_state.init_params(model, config))
    evaluator = Evaluator(model, config, mesh)
    resident = evaluator.feed(split, resident=True)
    stored, queries = evaluator.encode(params, resident)
    measured = lambda: evaluator.evaluate(params, resident).metrics
    whole = timed(measured, repeats=options.repeats)
    encode = timed(evaluator.encode, params, resident, repeats=options.repeats)
    rank = timed(lambda: evaluator.rank(stored, queries, split).metrics, repeats=options.repeats)
    moved = resident.bytes_per_device + measure.nbytes((params, stored)) / mesh.size
    encoding = measure.floor(evaluator.flops(params, resident) / mesh.size, moved, config.dtype)
    ranking = _search_floor(stored, captions)
    both = Floor(*(a + b for a, b in zip(encoding, ranking, strict=True)))
    sizes = {"videos": float(videos), "captions": float(captions)}
    yield Row("evaluate", whole, both, sizes)
    yield Row("  encode", encode, encoding, {"corpus GB": measure.nbytes(stored) / 1e9})
    yield Row("  rank", rank, ranking, {})
    if peer is None:
        return
    whole_split = Feed(split, in_order(videos, videos, 1), mesh, videos, resident=True)
    (window,) = whole_split.windows()
    theirs = peer.convert_corpus(*_first_batch(whole_split, window))
    clocks = [clock(peer.evaluate, theirs) for _ in range(2)]
    yield Row("evaluation of the released code", summary(clocks), None, {})
    ours = timed(measured, repeats=3)
    yield Row(
        "ours, after it",
        ours,
        None,
        {
            "times as fast": float(np.median(clocks) / ours.median),
        },
    )


def query(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Search in a corpus, for a single query and for batches of 256, in every dtype."""
    videos = options.videos or SEARCHED_VIDEOS
    model = models.build(config)
    params = train_state.init_params(model, config)
    count = sum(x.size for x in jax.tree.leaves(params))
    for dtype in corpus.DTYPES:
        stored = _random_corpus(config, videos, dtype)
        for number in (1, 256):
            queries = jax.random.normal(jax.random.key(number), (number, config.model.hidden_size))
            found = timed(corpus.search, stored, queries, 10, repeats=options.repeats)
            yield Row(
                f"search, {dtype}, {number} at once",
                _each(found, number),
                _search_floor(stored, number, number),
                {
                    "bytes/video": measure.nbytes(stored) / videos,
                    "parameters": float(count),
                },
            )
    encode = jax.jit(lambda params, captions: models.encode_query(model, params, captions))
    for number in (1, 256):
        captions = train_state.blank(config, captions=number).captions
        program = encode.lower(params, captions).compile()
        timing = _each(timed(program, params, captions, repeats=options.repeats), number)
        moved = measure.nbytes((params, captions)) / number
        floor = measure.floor(measure.flops(program) / number, moved, config.dtype)
        yield Row(
            f"encode {number} queries, each",
            timing,
            floor,
            {
                "MFLOPs": measure.flops(program) / number / 1e6,
            },
        )


def prepare(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Released files to records, in input bytes a second."""
    videos = options.videos or 400
    with tempfile.TemporaryDirectory() as directory:
        made = synthetic.Corpus(
            videos=(videos, 8, 8),
            max_frames=config.data.max_frames,
            visual_dim=config.data.visual_dim,
            text_dim=config.data.text_dim,
        )
        collection = synthetic.write_corpus(directory, made)
        paths = (collection.feature_dir / "feature.bin", collection.text_features)
        size = sum(path.stat().st_size for path in paths)
        clocks, copies = [], []
        for number in range(3):
            target = Path(directory) / str(number)
            clocks.append(clock(builder.prepare, collection, target, config.data.storage))
            copies.append(sum(clock(shutil.copy, path, target) for path in paths))
    timing = summary(clocks)
    # What is read must be written: at best in the time in which the files themselves are copied.
    floor = Floor(0.0, 2.0 * size, float(np.median(copies)))
    yield Row("prepare", timing, floor, {"MB": size / 1e6, "MB/s": size / 1e6 / timing.median})


def compilation(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Time to trace and compile the programs of a run, nothing kept from earlier ones."""
    jax.config.update("jax_enable_compilation_cache", False)
    model = models.build(config)
    start = time.perf_counter()
    train_state.init_params(model, config)
    yield Row("initial parameters", summary([time.perf_counter() - start]), None, {})
    start = time.perf_counter()
    Training(config, config.train.batch_size, 1)
    yield Row("training", summary([time.perf_counter() - start]), None, {})
    start = time.perf_counter()
    split = _split(config.eval.video_batch, 2 * config.eval.video_batch, config)
    evaluator = Evaluator(model, config, devices.mesh())
    params = devices.replicate(devices.mesh(), train_state.init_params(model, config))
    evaluator.evaluate(params, evaluator.feed(split))
    yield Row("evaluation", summary([time.perf_counter() - start]), None, {})


def scaling(config: ConfigDict, options: Options) -> Iterator[Row]:
    """A step and a search at four sizes: both grow linearly with the videos."""
    largest = config.train.batch_size
    for size in (largest // 8, largest // 4, largest // 2, largest):
        config.train.batch_size = max(size, 2)
        training = Training(config, config.train.batch_size, 1)
        (window,) = training.feed.windows()
        timing = timed(training.run, window, repeats=options.repeats)
        yield Row(
            f"step, {size} videos",
            timing,
            training.floor(),
            {
                "ms/video": 1e3 * timing.median / size,
            },
        )
    videos = options.videos or 2 * SEARCHED_VIDEOS
    for number in (videos // 8, videos // 4, videos // 2, videos):
        stored = _random_corpus(config, number, "bfloat16")
        queries = jax.random.normal(jax.random.key(0), (256, config.model.hidden_size))
        timing = timed(corpus.search, stored, queries, 10, repeats=options.repeats)
        floor = _search_floor(stored, 256)
        yield Row(
            f"search, {number} videos, 256 queries",
            timing,
            floor,
            {
                "us/video": 1e6 * timing.median / number,
            },
        )


def _split(videos: int, captions: int, config: ConfigDict) -> pipeline.Split:
    return pipeline.Split(SimulatedSource(videos, captions, config.data), config.data)


def _random_corpus(config: ConfigDict, videos: int, dtype: str) -> Corpus:
    data, width = config.data, config.model.hidden_size
    clip_key, frame_key = jax.random.split(jax.random.key(0))
    encoded = VideoEncoding(
        jax.random.normal(clip_key, (videos, data.max_clips, width)),
        jax.random.normal(frame_key, (videos, data.max_frames, width)),
    )
    return corpus.build(encoded, dtype=dtype)


def _search_floor(stored: Corpus, queries: int, units: int = 1) -> Floor:
    """Of `queries` queries over `units`: products with every position, the corpus read once."""
    vectors = [x.values for x in (stored.clips, stored.frames) if x is not None]
    flops = 2 * queries * sum(x.size for x in vectors) / devices.mesh().size / units
    moved = measure.nbytes(stored) / devices.mesh().size / units
    dtype = "float32" if vectors[0].dtype == jnp.float32 else "bfloat16"
    return measure.floor(flops, moved, dtype)


def _memory(program: Any) -> dict[str, float]:
    facts = {"peak GB (planned)": measure.memory(program).get("peak", float("nan")) / 1e9}
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        facts["peak GB (used so far)"] = stats["peak_bytes_in_use"] / 1e9
    return facts


def _first_batch(feed: Feed, window: Window) -> Batch:
    """The first batch of a window as NumPy, float32."""
    wide = lambda x: x.astype(np.float32) if x.dtype.kind == "f" else x
    return jax.tree.map(wide, jax.device_get(feed.batch(window, 0)))


def _each(timing: Timing, units: int) -> Timing:
    return Timing(timing.median / units, timing.low / units, timing.high / units, timing.repeats)
