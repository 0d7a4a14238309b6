"""Times, the highest rates of the hardware, and the resulting floor of a piece of work.

The floor is the larger of two times: that of the floating-point operations at the rate of a large
matrix product, and that of the bytes which must be moved at the rate of a large copy. Both rates
are measured on this device in this run. No program for the same work can be much faster.
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

from benchmarks.simulated import SimulatedVideos
from hlformer_jax import training
from hlformer_jax.config import family_of
from hlformer_jax.data.dataset import Data
from hlformer_jax.data.feed import Chunk, VideoFeed
from hlformer_jax.data.sources.protocol import SPLITS
from hlformer_jax.data.sources.released.layouts import Collection
from hlformer_jax.data.sources.synthetic import Corpus, is_synthetic, write_corpus
from hlformer_jax.data.split import Split
from hlformer_jax.ops import products
from hlformer_jax.typing import Batch

PROGRESS_SECONDS = 5


class Timing(NamedTuple):
    """Seconds of repeated runs, without the warm-up."""

    median: float
    low: float
    high: float
    repeats: int


class Ceilings(NamedTuple):
    """The highest rates of one device: operations, and bytes read or written, per second."""

    flops: float
    bytes: float


class Floor(NamedTuple):
    """Lower bound for the seconds of a piece of work on one device; its operations and bytes."""

    flops: float
    bytes: float
    seconds: float


class Row(NamedTuple):
    """One line of a report: the time of a unit of work, its floor if known, further figures."""

    what: str
    timing: Timing
    floor: Floor | None = None
    facts: dict[str, float] = {}


class Options(NamedTuple):
    """Options of the command line."""

    videos: int = 0  # 0: the number that `num_videos` returns
    repeats: int = 20
    encoder: str = "base"  # or "tiny", a folder, a hub id
    hours: float = 1000.0
    store: str = ""  # address of a PostgreSQL database, to upload to and ask as well


ACTIVITYNET_VIDEOS = {"train": 10_009, "val": 4_917}
"""Numbers of videos of the splits of ActivityNet Captions."""


def num_videos(config: ConfigDict, options: Options, split: str, default: int | None = None) -> int:
    """Return the number of videos to measure with.

    Args:
      config: the configuration. If it has a synthetic corpus, as every `:debug` has, the number is
        the size of the corpus's split.
      options: `options.videos`, if set, takes precedence.
      split: "train", "val" or "test".
      default: the number for other configurations; None for that of ActivityNet Captions.
    """
    if options.videos:
        return options.videos
    if is_synthetic(config.data):
        return int(config.data.synthetic_videos[SPLITS.index(split)])
    return ACTIVITYNET_VIDEOS[split] if default is None else default


def announce(text: str) -> None:
    """Print the name of the work that begins, on standard error."""
    print(f"{text} …", file=sys.stderr, flush=True)


class Progress:
    """Prints the progress of a long loop, at most once in `PROGRESS_SECONDS`."""

    def __init__(self, unit: str, total: int) -> None:
        self._unit, self._total, self._count = unit, total, 0
        self._printed = time.perf_counter()

    def advance(self, count: int) -> None:
        """Count further units, and print the progress if the last print is old enough."""
        self._count += count
        seconds = time.perf_counter()
        if seconds - self._printed > PROGRESS_SECONDS:
            self._printed = seconds
            announce(f"  {self._count:,} of {self._total:,} {self._unit}")


def timed(
    run: Callable[..., Any], *arguments: Any, repeats: int = 7, seconds: float = 10.0
) -> Timing:
    """Time a function, including the wait for its results, after one run to warm up.

    Args:
      run: the function.
      *arguments: its arguments.
      repeats: the most repeats; there are at least 3.
      seconds: after this time in total no further repeat begins, except of the first 3.
    """
    clock(run, *arguments)
    clocks: list[float] = []
    while len(clocks) < 3 or (len(clocks) < repeats and sum(clocks) < seconds):
        clocks.append(clock(run, *arguments))
    return summary(clocks)


def clock(run: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds that a function takes, including the wait for its results."""
    start = time.perf_counter()
    jax.block_until_ready(run(*arguments))
    return time.perf_counter() - start


def summary(seconds: Sequence[float]) -> Timing:
    """Return median and range of measured times."""
    return Timing(float(np.median(seconds)), min(seconds), max(seconds), len(seconds))


def per_unit(timing: Timing, units: int) -> Timing:
    """Return the time of one unit, from the time of `units` units."""
    return Timing(timing.median / units, timing.low / units, timing.high / units, timing.repeats)


def floor(flops: float, moved: float, dtype: DTypeLike = "float32") -> Floor:
    """Return the floor of a piece of work.

    Args:
      flops: its floating-point operations.
      moved: bytes of its inputs and outputs, each counted once.
      dtype: dtype of the operations.
    """
    most = ceilings(dtype)
    return Floor(flops, moved, max(flops / most.flops, moved / most.bytes))


def ceilings(dtype: DTypeLike = "float32") -> Ceilings:
    """Return the highest rates of this process's first device, measured once."""
    return Ceilings(_matrix_rate(jnp.dtype(dtype).name), _copy_rate())


@functools.cache
def _matrix_rate(dtype: str) -> float:
    """Return the operations per second of matrix products that fill the device.

    The products are computed like those of this package. The factors are random, because zeros
    would be faster.
    """
    device = jax.local_devices()[0]
    # On a GPU, one call computes several products, so that the launch takes a negligible share.
    size, times = (1024, 1) if device.platform == "cpu" else (8192, 10)
    key = jax.random.key(0)
    with jax.default_device(device):
        matrix = jax.random.normal(key, (size, size), jnp.dtype(dtype))
        # Scaled to about 1 after every product, so that no product over- or underflows.
        matrix = matrix / jnp.asarray(math.sqrt(size), matrix.dtype)
        product = jax.jit(
            lambda x, y: functools.reduce(lambda x, _: products.matmul(x, y), range(times), x)
        )
        best = min(timed(product, matrix, matrix, repeats=5, seconds=1.0).low for _ in range(2))
    return 2 * size**3 * times / best


@functools.cache
def _copy_rate() -> float:
    """Return the bytes, read or written, per second of a copy larger than any cache.

    The copy overwrites its source. Writing into new memory takes a CPU several times as long, since
    the system clears every page before its first use.
    """
    device = jax.local_devices()[0]
    add_one = jax.jit(lambda x: x + 1, donate_argnums=0)
    with jax.default_device(device):
        long = jnp.ones(2**26 if device.platform == "cpu" else 2**28, jnp.float32)

        def copy() -> jax.Array:
            nonlocal long
            long = add_one(long)
            return long

        moved = timed(copy, repeats=5, seconds=1.0).low
    return 2 * long.nbytes / moved


def simulated_split(videos: int, captions: int, config: ConfigDict) -> Split:
    """Return a split of random videos that share `captions` captions."""
    return Split(SimulatedVideos(videos, captions, config.data), config.data)


def simulated_family(
    config: ConfigDict, mesh: Mesh, videos: int, captions: int, resident: bool = False
) -> Any:
    """Return the family of a configuration, on random videos.

    Args:
      config: the configuration. HOVER keeps the data that it names.
      mesh: the devices, present or described (`plan.mesh`).
      videos: number of videos of each split.
      captions: number of captions of each split.
      resident: whether features stay on the devices; otherwise they are streamed.
    """
    config = config.copy_and_resolve_references()
    config.data.resident = "always" if resident else "never"
    family: Any = training.build(config, mesh)
    if family_of(config) == "prvr":
        split = simulated_split(videos, captions, config)
        family.data = Data(split, split, split, "simulated")
    return family


def released_files(directory: str, videos: int, config: ConfigDict) -> Collection:
    """Write files in the released layout: `videos` training videos of a configuration's sizes."""
    data = config.data
    sizes = {name: data[name] for name in ("max_frames", "visual_dim", "text_dim")}
    shortest = min(Corpus.min_frames, data.max_frames)
    return write_corpus(directory, Corpus(videos=(videos, 8, 8), min_frames=shortest, **sizes))


def first_batch(feed: VideoFeed, window: Chunk) -> Batch:
    """Return the first batch of a chunk as NumPy arrays, float32."""
    return jax.tree.map(
        lambda x: x.astype(np.float32) if x.dtype.kind == "f" else x,
        jax.device_get(feed.batch(window, 0)),
    )
