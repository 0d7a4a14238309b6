"""A line of a report, and what several kinds of work need."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from hlformer_jax import parallel
from hlformer_jax.benchmark.measure import Floor, Timing
from hlformer_jax.data.feed import Chunk, VideoFeed
from hlformer_jax.data.released import Collection
from hlformer_jax.data.split import SimulatedVideos, Split
from hlformer_jax.data.synthetic import Corpus, write_corpus
from hlformer_jax.typing import Batch


class Row(NamedTuple):
    """One line of a report.

    Attributes:
      what: the work.
      timing: seconds of one unit of it.
      floor: floor of the same unit, where it is counted.
      facts: further figures, by name and unit.
    """

    what: str
    timing: Timing
    floor: Floor | None
    facts: dict[str, float]


class Options(NamedTuple):
    """What a command line may change.

    Attributes:
      videos: number of videos of the corpus or training split; 0: those of ActivityNet Captions.
      repeats: largest number of repeats of a measurement.
      steps: steps in one call of the compiled program.
      folder: videos to extract from; None: some that are rendered.
      encoder: "base" or "tiny", of random parameters, or where one is loaded from.
      hours: hours of video in the largest archive that is searched.
    """

    videos: int
    repeats: int
    steps: int
    folder: Path | None = None
    encoder: str = "base"
    hours: float = 1000.0


def simulated_split(videos: int, captions: int, config: ConfigDict) -> Split:
    """A split of random videos with so many captions in all."""
    return Split(SimulatedVideos(videos, captions, config.data), config.data)


def released_files(directory: str, videos: int, config: ConfigDict) -> Collection:
    """Files in the released layout, of so many training videos of a configuration's sizes."""
    data = config.data
    return write_corpus(
        directory,
        Corpus(
            videos=(videos, 8, 8),
            min_frames=min(Corpus.min_frames, data.max_frames),
            max_frames=data.max_frames,
            visual_dim=data.visual_dim,
            text_dim=data.text_dim,
        ),
    )


def memory(program: Any) -> dict[str, float]:
    """Memory on each device: by the compiler's plan, and where a device tells, what was in use."""
    facts = {"peak GB (planned)": parallel.memory_plan(program).get("peak", float("nan")) / 1e9}
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        facts["peak GB (used so far)"] = stats["peak_bytes_in_use"] / 1e9
    return facts


def first_batch(feed: VideoFeed, window: Chunk) -> Batch:
    """The first batch of a window as NumPy, float32."""
    wide = lambda x: x.astype(np.float32) if x.dtype.kind == "f" else x
    return jax.tree.map(wide, jax.device_get(feed.batch(window, 0)))


def each(timing: Timing, units: int) -> Timing:
    """The time of one of so many units."""
    return Timing(timing.median / units, timing.low / units, timing.high / units, timing.repeats)
