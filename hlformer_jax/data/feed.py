"""Brings features to the devices: a whole split once where it fits, else the steps just ahead.

Both ways give `Window`s of the same form, which the same function reads; the values of a batch
depend on neither. A window is sharded over the devices by video, and a process reads the
videos of its own devices alone.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int
from ml_collections import ConfigDict

from hlformer_jax.data.packed import Features, Plan, gather
from hlformer_jax.data.schedule import Group
from hlformer_jax.data.split import Split
from hlformer_jax.parallel import devices, processes
from hlformer_jax.typing import Array, Batch

CAPTION_MULTIPLE = 16
"""Caption capacities are rounded up to this, so that shapes stay convenient for the hardware."""

ROW_MULTIPLE = 256
"""Rows of frames and words are rounded up to this, so that similar splits share a compilation."""

RESIDENT_SHARE = 0.35
"""Of a device's free memory, what resident features may take; the rest is for the step."""

WINDOWS = 3
"""Streamed windows that may lie on a device: in use, ready, and being made."""

_READERS = 4


class Window(NamedTuple):
    """What a group of steps reads.

    Attributes:
      first: number of the first step.
      num_steps: how many there are.
      features: on the devices.
      plans: one for each step, stacked on a leading axis and padded to the longest group.
    """

    first: int
    num_steps: int
    features: Features
    plans: Plan


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Room for a window on each device."""

    videos: int
    captions: int
    frames: int
    words: int

    def bytes(self, split: Split) -> int:
        visual, text = split.widths
        vectors = self.videos * split.max_clips + self.frames
        return split.dtype.itemsize * (vectors * visual + self.words * text)


@dataclasses.dataclass
class Feed:
    """Windows of one split for given groups of steps.

    Attributes:
      split: the videos.
      groups: the steps of a whole run, whatever part of it is asked for; shapes follow from them.
      mesh: the devices.
      batch_size: videos of a step.
      resident: whether the whole split lies on the devices.
    """

    split: Split
    groups: Sequence[Group]
    mesh: Mesh
    batch_size: int
    resident: bool

    def __post_init__(self) -> None:
        counts = self.split.captions_per_video
        shards = self.mesh.size
        self.steps = max(len(group.steps) for group in self.groups)
        self.videos = devices.round_up(self.batch_size, shards)
        most = max(int(counts[step].sum()) for group in self.groups for step in group.steps)
        self.captions = devices.round_up(most, np.lcm(CAPTION_MULTIPLE, shards))
        if self.resident:
            self._sizes = _resident_sizes(self.split, shards)
            self._whole: Future[Features] | None = None
        else:
            windows = [np.concatenate(group.steps) for group in self.groups]
            self._sizes = _largest(self.split, windows, shards)
        self._gather = jax.jit(self.gather)
        self._ahead = ThreadPoolExecutor(1, "feed")

    @property
    def bytes_per_device(self) -> int:
        """Bytes of features on each device: of the split, or of `WINDOWS` windows."""
        return self._sizes.bytes(self.split) * (1 if self.resident else WINDOWS)

    @property
    def bytes_ahead(self) -> float:
        """Bytes on each device that belong to windows which are not in use yet."""
        return 0 if self.resident else self.bytes_per_device * (1 - 1 / WINDOWS)

    def load(self) -> None:
        """Begins to load a resident split on another thread; `windows` waits for it."""
        if self.resident and self._whole is None:
            everything = np.arange(len(self.split))
            self._whole = self._ahead.submit(self._pack, everything)

    def windows(self, first: int = 0) -> Iterator[Window]:
        """Windows of the steps from `first` on, made ahead on another thread."""
        left = [group.after(first) for group in self.groups if group.end > first]
        if not left:
            return
        if self.resident:
            self.load()
            assert self._whole is not None
            everything = np.arange(len(self.split))
            for group in left:
                yield self._window(group, self._whole.result(), everything, group.steps)
            return
        ahead = self._ahead.submit(self._stream, left[0])
        for following in left[1:]:
            window = ahead.result()
            ahead = self._ahead.submit(self._stream, following)
            yield window
        yield ahead.result()

    def shapes(self) -> tuple[Features, Plan]:
        """Shapes of a window's features and plans, to compile for before there are any."""
        count = self.mesh.size
        sharding, whole = devices.sharded(self.mesh), devices.replicated(self.mesh)

        def rows(shape: tuple[int, ...], dtype: np.dtype) -> Any:
            return jax.ShapeDtypeStruct((count * shape[0], *shape[1:]), dtype, sharding=sharding)

        features: Any = Features(*(rows(shape, dtype) for shape, dtype in self._layout()))
        plan: Any = lambda n: jax.ShapeDtypeStruct((self.steps, n), np.int32, sharding=whole)
        return features, Plan(plan(self.videos), plan(self.captions), plan(self.captions))

    def batch(self, window: Window, number: int) -> Batch:
        """The batch of one step of a window, counted from 0, as the compiled programs see it."""
        return self._gather(window.features, window.plans, np.int32(number))

    def gather(self, features: Features, plans: Plan, number: Int[Array, ""]) -> Batch:
        """The same inside of jit."""
        return gather(
            features, plans, number, self.split.max_frames, self.split.max_words, self.mesh
        )

    def close(self) -> None:
        """Gives the thread and what is resident back."""
        self._ahead.shutdown(wait=True, cancel_futures=True)
        if self.resident:
            self._whole = None

    def _layout(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        (visual, text), sizes, dtype = self.split.widths, self._sizes, self.split.dtype
        index = np.dtype(np.int32)
        return [
            ((sizes.videos, self.split.max_clips, visual), dtype),
            ((sizes.frames, visual), dtype),
            ((sizes.videos,), index),
            ((sizes.videos,), index),
            ((sizes.words, text), dtype),
            ((sizes.captions,), index),
            ((sizes.captions,), index),
        ]

    def _stream(self, group: Group) -> Window:
        videos = np.concatenate(group.steps)
        ends = np.cumsum([len(step) for step in group.steps])[:-1]
        places = np.split(np.arange(len(videos)), ends)
        return self._window(group, self._pack(videos), videos, places)

    def _window(
        self,
        group: Group,
        features: Features,
        videos: np.ndarray,
        places: Sequence[np.ndarray],
    ) -> Window:
        """`videos` are those of the features; `places`, of each step's videos among them."""
        counts = self.split.captions_per_video[videos]
        starts = self._caption_rows(counts)
        plans = Plan(
            np.full((self.steps, self.videos), -1, np.int32),
            np.full((self.steps, self.captions), -1, np.int32),
            np.zeros((self.steps, self.captions), np.int32),
        )
        slot = self._slots(len(videos))
        for step, chosen in enumerate(places):
            plans.videos[step, : len(chosen)] = slot[chosen]
            captions = _ranges(starts[chosen], counts[chosen])
            plans.captions[step, : len(captions)] = captions
            plans.video[step, : len(captions)] = np.repeat(np.arange(len(chosen)), counts[chosen])
        return Window(group.first, len(group.steps), features, devices.replicate(self.mesh, plans))

    def _slots(self, num_videos: int) -> np.ndarray:
        """Rows of a window's videos in its features; each device's share is padded."""
        each = -(-num_videos // self.mesh.size)
        place = np.arange(num_videos)
        return place // each * self._sizes.videos + place % each

    def _caption_rows(self, counts: np.ndarray) -> np.ndarray:
        """Rows of the first captions of a window's videos."""
        starts = []
        for number, shard in enumerate(_shards(counts, self.mesh.size)):
            starts.append(number * self._sizes.captions + np.cumsum(shard) - shard)
        return np.concatenate(starts).astype(np.int32)

    def _pack(self, videos: np.ndarray) -> Features:
        parts = {}
        for number, (device, shard) in enumerate(
            zip(self.mesh.devices.flat, _shards(videos, self.mesh.size), strict=True)
        ):
            if device.process_index == jax.process_index():
                packed = self._pack_shard(shard, number)
                parts[device] = [jax.device_put(array, device) for array in packed]
        sharding = devices.sharded(self.mesh)
        return Features(
            *(
                jax.make_array_from_single_device_arrays(
                    (self.mesh.size * shape[0], *shape[1:]),
                    sharding,
                    [arrays[field] for arrays in parts.values()],
                )
                for field, (shape, _) in enumerate(self._layout())
            )
        )

    def _pack_shard(self, videos: np.ndarray, number: int) -> Features:
        packed = Features(*(np.zeros(shape, dtype) for shape, dtype in self._layout()))
        frame = word = caption = 0
        # What is resident is read once: nothing to gain from keeping it here as well.
        read = self.split.read if self.resident else self.split.__getitem__
        with ThreadPoolExecutor(_READERS, "reader") as readers:
            for row, example in enumerate(readers.map(read, videos)):
                packed.clips[row] = example.clips
                packed.frame_start[row] = number * self._sizes.frames + frame
                packed.frame_count[row] = len(example.frames)
                packed.frames[frame : frame + len(example.frames)] = example.frames
                frame += len(example.frames)
                for words in example.words:
                    packed.word_start[caption] = number * self._sizes.words + word
                    packed.word_count[caption] = len(words)
                    packed.words[word : word + len(words)] = words
                    word += len(words)
                    caption += 1
        return packed


def fits(split: Split, mesh: Mesh, config: ConfigDict) -> bool:
    """Whether a split may live on the devices: `config.data.resident`, and their free memory.

    A CPU's memory is shared with everything else; there, `config.data.cache_gib` is the limit.
    """
    if config.data.resident != "auto":
        return config.data.resident == "always"
    needed = _resident_sizes(split, mesh.size).bytes(split)
    free = devices.available_bytes(mesh, free=True)
    shared = config.data.cache_gib * 2**30 / len(mesh.local_devices)
    return not processes.any_process(needed > (shared if free is None else RESIDENT_SHARE * free))


def _resident_sizes(split: Split, shards: int) -> _Sizes:
    """Sizes of a device's share of a whole split."""
    return _largest(split, [np.arange(len(split))], shards)


def _largest(split: Split, windows: list[np.ndarray], shards: int) -> _Sizes:
    """Sizes that a device's share of any of the windows has room in."""
    rows: list[int] = [1, 1, 1, 1]
    per_video = (split.captions_per_video, split.frames_per_video, split.words_per_video)
    for videos in windows:
        for shard in _shards(videos, shards):
            needed = (len(shard), *(int(counts[shard].sum()) for counts in per_video))
            rows = [max(a, b) for a, b in zip(rows, needed, strict=True)]
    multiples = (1, CAPTION_MULTIPLE, ROW_MULTIPLE, ROW_MULTIPLE)
    return _Sizes(*map(devices.round_up, rows, multiples))


def _shards(videos: np.ndarray, count: int) -> list[np.ndarray]:
    """The share of each device."""
    each = -(-len(videos) // count)
    return [videos[i * each : (i + 1) * each] for i in range(count)]


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """All numbers start, start + 1, … of each range, one range after the other."""
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)
