"""Brings features to the devices: a whole split once where it fits, else the steps just ahead.

Both ways give `Chunk`s of the same form, which the same function reads; the values of a batch
depend neither on the way its features came nor on the number of devices. A chunk is sharded over
the devices by video, and a process reads the videos of its own devices alone.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int
from ml_collections import ConfigDict

from hlformer_jax import parallel
from hlformer_jax.data import packing
from hlformer_jax.data.packed import Features, GatherIndices, gather
from hlformer_jax.data.schedule import Group
from hlformer_jax.data.split import Split
from hlformer_jax.typing import Array, Batch

B = TypeVar("B")
"""The batch of a step."""

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
      indices: what each step gathers of them, stacked on a leading axis and padded to the longest
        group.
    """

    first: int
    num_steps: int
    features: Features
    indices: Any


class DeviceFeed(Generic[B]):
    """Chunks of a split's features for given groups of steps.

    What a step is, and what it gathers, is for a subclass to say.

    Attributes:
      groups: the steps of a whole run, whatever part of it is asked for; shapes follow from them.
      mesh: the devices.
      resident: whether all features lie on the devices.
      steps: number of steps of the longest group.
    """

    def __init__(
        self,
        features: Split,
        everything: np.ndarray,
        groups: Sequence[Group],
        mesh: Mesh,
        resident: bool,
    ) -> None:
        """Finds how large a chunk is; nothing is read yet.

        Args:
          features: the videos.
          everything: the indices of those that the groups read, which are loaded if resident.
          groups: the steps.
          mesh: the devices.
          resident: whether all features are to lie on the devices.
        """
        self.groups, self.mesh, self.resident = groups, mesh, resident
        self.steps = max(len(group.steps) for group in groups)
        self._features, self._everything = features, everything
        chunks = [everything] if resident else list(map(self._videos, groups))
        self._capacity = packing.largest_capacity(features, chunks, mesh.size)
        self._whole: Future[Features] | None = None
        self._gather = jax.jit(self.gather)
        self._ahead = ThreadPoolExecutor(1, "feed")

    @property
    def bytes_per_device(self) -> int:
        """Bytes of features on each device: of the split, or of `CHUNKS` chunks."""
        return self._capacity.bytes(self._features) * (1 if self.resident else CHUNKS)

    @property
    def bytes_ahead(self) -> float:
        """Bytes on each device that belong to chunks which are not in use yet."""
        return 0 if self.resident else self.bytes_per_device * (1 - 1 / CHUNKS)

    def load(self) -> None:
        """Begins to load a resident split on another thread; `chunks` waits for it."""
        if self.resident and self._whole is None:
            self._whole = self._ahead.submit(self._pack, self._everything)

    def chunks(self, first: int = 0) -> Iterator[Chunk]:
        """Chunks of the steps from `first` on, made ahead on another thread."""
        left = [group.after(first) for group in self.groups if group.end > first]
        if not left:
            return
        self.load()
        ahead = self._ahead.submit(self._chunk, left[0])
        for following in left[1:]:
            chunk = ahead.result()
            ahead = self._ahead.submit(self._chunk, following)
            yield chunk
        yield ahead.result()

    def shapes(self) -> tuple[Features, Any]:
        """Shapes of a chunk's features and indices, to compile for before there are any."""
        count, sharding = self.mesh.size, parallel.sharded(self.mesh)

        def rows(shape: tuple[int, ...], dtype: np.dtype) -> Any:
            return jax.ShapeDtypeStruct((count * shape[0], *shape[1:]), dtype, sharding=sharding)

        layout = self._capacity.layout(self._features)
        features = Features(*(rows(shape, dtype) for shape, dtype in layout))
        nothing = self._indices(Group(0, []), np.zeros(0, np.int64))
        return features, parallel.abstract(self.mesh, nothing)

    def batch(self, chunk: Chunk, step: int) -> B:
        """The batch of one step of a chunk, counted from 0, as the compiled programs see it."""
        return self._gather(chunk.features, chunk.indices, np.int32(step))

    def gather(self, features: Features, indices: Any, step: Int[Array, ""]) -> B:
        """The same inside of jit."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives the thread and what is resident back."""
        self._ahead.shutdown(wait=True, cancel_futures=True)
        self._whole = None

    def _videos(self, group: Group) -> np.ndarray:
        """Indices of the videos that a streamed group reads, in the order of its chunk."""
        raise NotImplementedError

    def _indices(self, group: Group, videos: np.ndarray) -> Any:
        """What the steps of a group gather, on the host; `videos` are those of its chunk."""
        raise NotImplementedError

    def _pack(self, videos: np.ndarray) -> Features:
        # What is resident is read once: nothing to gain from keeping it in memory as well.
        keep = not self.resident
        return packing.pack(self._features, videos, self._capacity, self.mesh, keep)

    def _chunk(self, group: Group) -> Chunk:
        if self._whole is not None:
            videos, features = self._everything, self._whole.result()
        else:
            videos = self._videos(group)
            features = self._pack(videos)
        indices = parallel.replicate(self.mesh, self._indices(group, videos))
        return Chunk(group.first, len(group.steps), features, indices)


class VideoFeed(DeviceFeed[Batch]):
    """Videos in batches, with all their captions.

    Attributes:
      split: the videos.
      batch_size: number of videos of a step.
      videos: number of videos that a batch is padded to.
      captions: number of captions that a batch is padded to.
    """

    def __init__(
        self, split: Split, groups: Sequence[Group], mesh: Mesh, batch_size: int, resident: bool
    ) -> None:
        """Each step of the groups has indices of videos."""
        self.split, self.batch_size = split, batch_size
        self.videos = parallel.round_up(batch_size, mesh.size)
        counts = split.captions_per_video
        most = max(int(counts[step].sum()) for group in groups for step in group.steps)
        multiple = math.lcm(packing.CAPTION_MULTIPLE, mesh.size)
        self.captions = parallel.round_up(most, multiple)
        super().__init__(split, np.arange(len(split)), groups, mesh, resident)

    def gather(self, features: Features, indices: Any, step: Int[Array, ""]) -> Batch:
        """The batch of a step of a chunk, counted from 0 (inside of jit)."""
        split = self.split
        return gather(features, indices, step, split.max_frames, split.max_words, self.mesh)

    def _videos(self, group: Group) -> np.ndarray:
        return np.concatenate(group.steps)

    def _indices(self, group: Group, videos: np.ndarray) -> GatherIndices:
        steps: Sequence[np.ndarray] = group.steps
        if not self.resident:  # the chunk has them one step after the other
            ends = np.cumsum([len(step) for step in steps])
            steps = np.split(np.arange(len(videos)), ends[:-1])
        counts = self.split.captions_per_video[videos]
        shape = self.steps, self.videos, self.captions
        return packing.gather_indices(steps, counts, self._capacity, self.mesh.size, shape)


F = TypeVar("F", bound=DeviceFeed[Any])


class KeptFeed(Generic[F]):
    """A feed that is made when it is first asked for, and kept until it is closed."""

    def __init__(self, make: Callable[[], F]) -> None:
        self._make = make
        self._made: F | None = None

    def get(self) -> F:
        """The feed."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def close(self) -> None:
        """Makes room on the devices; the feed is made anew when it is asked for again."""
        if self._made is not None:
            self._made.close()
            self._made = None


def fits(split: Split, mesh: Mesh, config: ConfigDict) -> bool:
    """Whether a split may live on the devices: `config.data.resident`, and their free memory.

    A CPU's memory is shared with everything else; there, `config.data.cache_gib` is the limit.
    """
    if config.data.resident != "auto":
        return config.data.resident == "always"
    needed = packing.whole_capacity(split, mesh.size).bytes(split)
    free = parallel.available_bytes(mesh, free=True)
    shared = config.data.cache_gib * 2**30 / len(mesh.local_devices)
    return not parallel.any_process(needed > (shared if free is None else RESIDENT_SHARE * free))
