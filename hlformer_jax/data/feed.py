"""Brings features to the devices: a whole split once where it fits, else the steps just ahead.

Both ways give `Chunk`s of the same form, which the same function reads; the values of a batch
depend on neither. A chunk is sharded over the devices by video, and a process reads the videos of
its own devices alone.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int
from ml_collections import ConfigDict

from hlformer_jax.data import packing
from hlformer_jax.data.packed import Features, GatherIndices, gather
from hlformer_jax.data.schedule import Group
from hlformer_jax.data.split import Split
from hlformer_jax.parallel import devices, processes
from hlformer_jax.typing import Array, Batch

RESIDENT_SHARE = 0.35
"""Of a device's free memory, what resident features may take; the rest is for the step."""

CHUNKS = 3
"""Streamed chunks that may lie on a device: in use, ready, and being made."""


class Chunk(NamedTuple):
    """What a group of steps reads.

    Attributes:
      first: index of the first step in the run.
      num_steps: number of steps.
      features: the features on the devices.
      indices: the gather indices of each step, stacked on a leading axis and padded to the longest
        group.
    """

    first: int
    num_steps: int
    features: Features
    indices: GatherIndices


@dataclasses.dataclass
class DeviceFeed:
    """Chunks of one split for given groups of steps.

    Attributes:
      split: the videos.
      groups: the steps of a whole run, whatever part of it is asked for; shapes follow from them.
      mesh: the devices.
      batch_size: number of videos of a step.
      resident: whether the whole split lies on the devices.
      steps: number of steps of the longest group.
      videos: number of videos that a batch is padded to.
      captions: number of captions that a batch is padded to.
    """

    split: Split
    groups: Sequence[Group]
    mesh: Mesh
    batch_size: int
    resident: bool

    def __post_init__(self) -> None:
        counts = self.split.captions_per_video
        num_devices = self.mesh.size
        self.steps = max(len(group.steps) for group in self.groups)
        self.videos = devices.round_up(self.batch_size, num_devices)
        most = max(int(counts[step].sum()) for group in self.groups for step in group.steps)
        multiple = math.lcm(packing.CAPTION_MULTIPLE, num_devices)
        self.captions = devices.round_up(most, multiple)
        self._whole: Future[Features] | None = None
        if self.resident:
            self._capacity = packing.whole_capacity(self.split, num_devices)
        else:
            chunks = [np.concatenate(group.steps) for group in self.groups]
            self._capacity = packing.largest_capacity(self.split, chunks, num_devices)
        self._gather = jax.jit(self.gather)
        self._ahead = ThreadPoolExecutor(1, "feed")

    @property
    def bytes_per_device(self) -> int:
        """Bytes of features on each device: of the split, or of `CHUNKS` chunks."""
        return self._capacity.bytes(self.split) * (1 if self.resident else CHUNKS)

    @property
    def bytes_ahead(self) -> float:
        """Bytes on each device that belong to chunks which are not in use yet."""
        return 0 if self.resident else self.bytes_per_device * (1 - 1 / CHUNKS)

    def load(self) -> None:
        """Begins to load a resident split on another thread; `chunks` waits for it."""
        if self.resident and self._whole is None:
            everything = np.arange(len(self.split))
            self._whole = self._ahead.submit(self._pack, everything)

    def chunks(self, first: int = 0) -> Iterator[Chunk]:
        """Chunks of the steps from `first` on, made ahead on another thread."""
        left = [group.after(first) for group in self.groups if group.end > first]
        if not left:
            return
        if self.resident:
            self.load()
            assert self._whole is not None
            everything = np.arange(len(self.split))
            for group in left:
                yield self._chunk(group, self._whole.result(), everything, group.steps)
            return
        ahead = self._ahead.submit(self._stream, left[0])
        for following in left[1:]:
            chunk = ahead.result()
            ahead = self._ahead.submit(self._stream, following)
            yield chunk
        yield ahead.result()

    def shapes(self) -> tuple[Features, GatherIndices]:
        """Shapes of a chunk's features and indices, to compile for before there are any."""
        count = self.mesh.size
        sharding, whole = devices.sharded(self.mesh), devices.replicated(self.mesh)

        def rows(shape: tuple[int, ...], dtype: np.dtype) -> Any:
            return jax.ShapeDtypeStruct((count * shape[0], *shape[1:]), dtype, sharding=sharding)

        layout = self._capacity.layout(self.split)
        features: Any = Features(*(rows(shape, dtype) for shape, dtype in layout))
        index: Any = lambda n: jax.ShapeDtypeStruct((self.steps, n), np.int32, sharding=whole)
        return features, GatherIndices(
            index(self.videos), index(self.captions), index(self.captions)
        )

    def batch(self, chunk: Chunk, step: int) -> Batch:
        """The batch of one step of a chunk, counted from 0, as the compiled programs see it."""
        return self._gather(chunk.features, chunk.indices, np.int32(step))

    def gather(self, features: Features, indices: GatherIndices, step: Int[Array, ""]) -> Batch:
        """The same inside of jit."""
        return gather(
            features, indices, step, self.split.max_frames, self.split.max_words, self.mesh
        )

    def close(self) -> None:
        """Gives the thread and what is resident back."""
        self._ahead.shutdown(wait=True, cancel_futures=True)
        self._whole = None

    def _stream(self, group: Group) -> Chunk:
        videos = np.concatenate(group.steps)
        ends = np.cumsum([len(step) for step in group.steps])[:-1]
        steps = np.split(np.arange(len(videos)), ends)
        return self._chunk(group, self._pack(videos), videos, steps)

    def _pack(self, videos: np.ndarray) -> Features:
        # What is resident is read once: nothing to gain from keeping it in memory as well.
        return packing.pack(self.split, videos, self._capacity, self.mesh, keep=not self.resident)

    def _chunk(
        self, group: Group, features: Features, videos: np.ndarray, steps: Sequence[np.ndarray]
    ) -> Chunk:
        """`videos` are those of the features; `steps` has the indices of each step among them."""
        indices = packing.gather_indices(
            steps,
            self.split.captions_per_video[videos],
            self._capacity,
            self.mesh.size,
            (self.steps, self.videos, self.captions),
        )
        indices = devices.replicate(self.mesh, indices)
        return Chunk(group.first, len(group.steps), features, indices)


def fits(split: Split, mesh: Mesh, config: ConfigDict) -> bool:
    """Whether a split may live on the devices: `config.data.resident`, and their free memory.

    A CPU's memory is shared with everything else; there, `config.data.cache_gib` is the limit.
    """
    if config.data.resident != "auto":
        return config.data.resident == "always"
    needed = packing.whole_capacity(split, mesh.size).bytes(split)
    free = devices.available_bytes(mesh, free=True)
    shared = config.data.cache_gib * 2**30 / len(mesh.local_devices)
    return not processes.any_process(needed > (shared if free is None else RESIDENT_SHARE * free))
