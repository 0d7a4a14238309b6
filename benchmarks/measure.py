"""Times, the highest rates of the hardware, and the floor that they set for a piece of work.

A floor is the larger of two times: the work's floating-point operations at the rate of a large
matrix product, and the bytes that it must move at the rate of a large copy, both measured on this
device in this run. No program for the same work takes much less.
"""

import functools
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike
from ml_collections import ConfigDict

from hlformer_jax import training
from hlformer_jax.config import family_of
from hlformer_jax.data.dataset import Data
from hlformer_jax.data.feed import Chunk, VideoFeed
from hlformer_jax.data.sources.protocol import SPLITS
from hlformer_jax.data.sources.released.layouts import Collection
from hlformer_jax.data.sources.synthetic import Corpus, is_synthetic, write_corpus
from hlformer_jax.data.split import SimulatedVideos, Split
from hlformer_jax.typing import Batch

PROGRESS_SECONDS = 5


class Timing(NamedTuple):
    """Seconds of repeated runs, the warm-up excluded."""

    median: float
    low: float
    high: float
    repeats: int


class Ceilings(NamedTuple):
    """The highest rates of one device: operations and bytes (read or written) a second."""

    flops: float
    bytes: float


class Floor(NamedTuple):
    """The least that a piece of work takes on one device: the larger of both times."""

    flops: float
    bytes: float
    seconds: float


class Row(NamedTuple):
    """One line of a report: a unit of some work, its floor where it is counted, further figures."""

    what: str
    timing: Timing
    floor: Floor | None = None
    facts: dict[str, float] = {}


class Options(NamedTuple):
    """Options of the command line."""

    videos: int = 0  # 0: as many as `num_videos` says
    repeats: int = 20
    encoder: str = "base"  # or "tiny", a folder, a hub id
    hours: float = 1000.0
    store: str = ""  # address of a PostgreSQL database, to upload to and ask as well


ACTIVITYNET_VIDEOS = {"train": 10_009, "val": 4_917}
"""Videos of ActivityNet Captions' splits."""


def num_videos(config: ConfigDict, options: Options, split: str, default: int | None = None) -> int:
    """Return the number of videos to measure with.

    Args:
      config: the configuration; on a synthetic corpus, as every `:debug`, its split decides.
      options: its `videos`, where set, come first.
      split: "train", "val" or "test".
      default: the number for other configurations; ActivityNet Captions' by default.
    """
    if options.videos:
        return options.videos
    if is_synthetic(config.data):
        return int(config.data.synthetic_videos[SPLITS.index(split)])
    return ACTIVITYNET_VIDEOS[split] if default is None else default


def announce(text: str) -> None:
    """Print the work that begins, on standard error."""
    print(f"{text} …", file=sys.stderr, flush=True)


class Progress:
    """Prints the progress of a long loop, at most once in `PROGRESS_SECONDS`."""

    def __init__(self, unit: str, total: int) -> None:
        self._unit, self._total, self._count = unit, total, 0
        self._printed = time.perf_counter()

    def advance(self, count: int) -> None:
        """Count units that are done or under way."""
        self._count += count
        seconds = time.perf_counter()
        if seconds - self._printed > PROGRESS_SECONDS:
            self._printed = seconds
            announce(f"  {self._count:,} of {self._total:,} {self._unit}")


def timed(
    run: Callable[..., Any], *arguments: Any, repeats: int = 7, seconds: float = 10.0
) -> Timing:
    """Times a function whose results are waited for, after one run to warm up.

    At least 3 repeats are done, at most `repeats`; none begins after `seconds`.
    """
    clock(run, *arguments)
    clocks: list[float] = []
    while len(clocks) < 3 or (len(clocks) < repeats and sum(clocks) < seconds):
        clocks.append(clock(run, *arguments))
    return summary(clocks)


def clock(run: Callable[..., Any], *arguments: Any) -> float:
    """Seconds that a function takes until its results are there."""
    start = time.perf_counter()
    jax.block_until_ready(run(*arguments))
    return time.perf_counter() - start


def summary(seconds: Sequence[float]) -> Timing:
    """Median and range of clocked times."""
    return Timing(float(np.median(seconds)), min(seconds), max(seconds), len(seconds))


def per_unit(timing: Timing, units: int) -> Timing:
    """Return the time of one of `units` units."""
    return Timing(timing.median / units, timing.low / units, timing.high / units, timing.repeats)


def floor(flops: float, moved: float, dtype: DTypeLike = "float32") -> Floor:
    """The floor of operations in a dtype, and bytes moved (inputs and outputs, each once)."""
    most = ceilings(dtype)
    return Floor(flops, moved, max(flops / most.flops, moved / most.bytes))


def ceilings(dtype: DTypeLike = "float32") -> Ceilings:
    """Return the highest rates of this process's first device, measured once."""
    return Ceilings(_matrix_rate(jnp.dtype(dtype).name), _copy_rate())


@functools.cache
def _matrix_rate(dtype: str) -> float:
    """Operations a second of a product that fills the device; float32's as precise as ours.

    The factors are random, since zeros run faster.
    """
    device = jax.local_devices()[0]
    # A GPU is asked for several products at once, lest the asking count as work.
    size, times = (1024, 1) if device.platform == "cpu" else (8192, 10)
    key = jax.random.key(0)
    with jax.default_device(device):
        matrix = jax.random.normal(key, (size, size), jnp.dtype(dtype))
        # About 1 after every product, so that a chain of them neither over- nor underflows.
        matrix = matrix / jnp.asarray(math.sqrt(size), matrix.dtype)
        product = jax.jit(lambda x: functools.reduce(lambda x, _: x @ matrix, range(times), x))
        best = min(timed(product, matrix, repeats=5, seconds=1.0).low for _ in range(2))
    return 2 * size**3 * times / best


@functools.cache
def _copy_rate() -> float:
    """Bytes, read or written, a second of a copy larger than any cache."""
    device = jax.local_devices()[0]
    with jax.default_device(device):
        long = jnp.ones(2**26 if device.platform == "cpu" else 2**28, jnp.float32)
        moved = timed(jax.jit(lambda x: x + 1), long, repeats=5, seconds=1.0).low
    return 2 * long.nbytes / moved


def simulated_split(videos: int, captions: int, config: ConfigDict) -> Split:
    """Return a split of random videos that share `captions` captions."""
    return Split(SimulatedVideos(videos, captions, config.data), config.data)


def simulated_family(
    config: ConfigDict, mesh: Mesh, videos: int, captions: int, resident: bool = False
) -> Any:
    """The family of a configuration on random videos, resident or streamed.

    HOVER has the data that its configuration names. The devices may be descriptions (`plan`).
    """
    config = config.copy_and_resolve_references()
    config.data.resident = "always" if resident else "never"
    family: Any = training.build(config, mesh)
    if family_of(config) == "prvr":
        split = simulated_split(videos, captions, config)
        family.data = Data(split, split, split, "simulated")
    return family


def released_files(directory: str, videos: int, config: ConfigDict) -> Collection:
    """Write released files with `videos` training videos of a configuration's sizes."""
    data = config.data
    sizes = {name: data[name] for name in ("max_frames", "visual_dim", "text_dim")}
    shortest = min(Corpus.min_frames, data.max_frames)
    return write_corpus(directory, Corpus(videos=(videos, 8, 8), min_frames=shortest, **sizes))


def first_batch(feed: VideoFeed, window: Chunk) -> Batch:
    """The first batch of a window as NumPy, float32."""
    return jax.tree.map(
        lambda x: x.astype(np.float32) if x.dtype.kind == "f" else x,
        jax.device_get(feed.batch(window, 0)),
    )
