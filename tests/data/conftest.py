"""Fixtures of data tests: a tiny corpus in the released layout, and a prepared synthetic corpus."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import h5py
import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from ml_collections import ConfigDict

from hlformer_jax.config import default
from hlformer_jax.data import dataset
from hlformer_jax.data.feed import Schedule, VideoFeed
from hlformer_jax.data.sources.released.layouts import ClipB32Collection, Collection, MscCollection
from hlformer_jax.data.split import Split
from hlformer_jax.runtime import devices
from hlformer_jax.typing import Batch

D, E = 6, 5


@dataclasses.dataclass
class TinyCorpus:
    """The values of a corpus, which `write` puts on disk as the released files."""

    frames: dict[str, np.ndarray]
    captions: dict[str, list[tuple[str, str]]]
    words: dict[str, np.ndarray]

    def write(self, manual_dir: Path, rows: np.random.Generator, name: str = "tiny") -> Collection:
        """Write the files, with the rows of feature.bin in a random order."""
        collection = Collection(manual_dir, name, "feat", D, E)
        collection.feature_dir.mkdir(parents=True)
        collection.text_features.parent.mkdir(parents=True)
        lists = {video: [f"{video}_{k}" for k in range(len(x))] for video, x in self.frames.items()}
        names = [name for names in lists.values() for name in names]
        order = rows.permutation(len(names))
        features = np.concatenate(list(self.frames.values()))[order]
        features.astype("<f4").tofile(collection.feature_dir / "feature.bin")
        (collection.feature_dir / "id.txt").write_text(" ".join(names[k] for k in order))
        (collection.feature_dir / "shape.txt").write_text(f"{len(names)} {D}\n")
        (collection.feature_dir / "video2frames.txt").write_text(repr(lists))
        for split, captions in self.captions.items():
            text = "".join(f"{caption} {sentence}\n" for caption, sentence in captions)
            collection.captions(split).write_text(text, encoding="utf-8")
        with h5py.File(collection.text_features, "w") as file:
            for caption, words in self.words.items():
                file[caption] = words
        return collection

    def write_hdf5(self, manual_dir: Path, name: str = "tiny") -> Collection:
        """Write the files of DreamPRVR's layout: frames in one HDF5 file, float64."""
        collection = self.write(manual_dir, np.random.default_rng(1), name)
        for unused in ("feature.bin", "id.txt", "shape.txt"):
            (collection.feature_dir / unused).unlink()
        with h5py.File(collection.feature_dir / "feature.hdf5", "w") as file:
            for video, frames in self.frames.items():
                file[video] = frames.astype(np.float64)
        return collection

    def write_b32(self, manual_dir: Path, feature: str = "clip_B32") -> ClipB32Collection:
        """Write the files of DL-DKD's layout, or of UEM's: every second id without "enc"."""
        collection = ClipB32Collection(manual_dir, "tiny", feature, D, E)
        collection.text_features.parent.mkdir(parents=True)
        collection.video_features.parent.mkdir(parents=True)
        for split, captions in self.captions.items():
            lines = (f"{caption} {sentence}\n" for caption, sentence in captions)
            collection.captions(split).write_text("".join(lines), encoding="utf-8")
        with h5py.File(collection.video_features, "w") as file:
            for video, frames in self.frames.items():
                file[video] = frames
        with h5py.File(collection.text_features, "w") as file:
            for k, (caption, words) in enumerate(self.words.items()):
                vector = words[-1] if k % 3 else words[-1:]  # both shapes
                rows = words if feature.endswith("_word") else vector
                file[caption.replace("#enc#", "#") if k % 2 else caption] = rows
        return collection

    def write_clip(
        self, manual_dir: Path, name: str = "tiny", feature: str = "clip_L14"
    ) -> MscCollection:
        """Write the files of MSC's layout, which tests on the validation split."""
        collection = MscCollection(manual_dir, name, feature, D, E)
        features = {collection.video_features: self.frames, collection.text_features: self.words}
        for path, arrays in features.items():
            path.parent.mkdir(parents=True)
            with h5py.File(path, "w") as file:
                for key, rows in arrays.items():
                    file[collection.key(key) if arrays is self.frames else key] = rows
        for split in ("train", "val"):
            lines = (f"{caption} {sentence}\n" for caption, sentence in self.captions[split])
            collection.captions(split).write_text("".join(lines), encoding="utf-8")
        return collection


@pytest.fixture
def tiny() -> TinyCorpus:
    """Four training, two validation and two test videos, 1 to 9 frames, 1 to 3 captions each."""
    rng = np.random.default_rng(0)
    frames: dict[str, np.ndarray] = {}
    captions: dict[str, list[tuple[str, str]]] = {}
    words: dict[str, np.ndarray] = {}
    for split, count in (("train", 4), ("val", 2), ("test", 2)):
        captions[split] = []
        for number in range(count):
            video = f"{split}_{number}"
            frames[video] = rng.normal(size=(1 + 2 * number, D)).astype(np.float32)
            for k in range(1 + number % 3):
                caption = f"{video}#enc#{k}"
                captions[split].append((caption, f"a person does thing {k}"))
                words[caption] = rng.normal(size=(2 + k, E)).astype(np.float32)
    return TinyCorpus(frames, captions, words)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[TinyCorpus], Collection]:
    """A function that writes a corpus below the test's folder."""
    return lambda corpus: corpus.write(tmp_path / "manual", np.random.default_rng(1))


@pytest.fixture(scope="session")
def config(tmp_path_factory) -> ConfigDict:
    """The configuration of a synthetic corpus of 11, 3 and 4 videos; to be copied, not changed."""
    config = default()
    config.data.update(
        data_dir=str(tmp_path_factory.mktemp("prepared")),
        synthetic_videos=(11, 3, 4),
        visual_dim=6,
        text_dim=5,
        max_frames=32,
        max_clips=8,
        max_words=7,
        dtype="float32",
    )
    return config


@pytest.fixture(scope="session")
def data(config) -> dataset.Data:
    """The splits of the synthetic corpus of `config`."""
    return dataset.open_data(config)


@pytest.fixture(scope="session")
def mesh() -> Mesh:
    """All devices."""
    return devices.mesh()


@pytest.fixture(scope="session")
def read_feed() -> Callable[..., list[Batch]]:
    """A function that returns the batches of a feed as NumPy."""

    def read(feed: VideoFeed, first: int = 0) -> list[Batch]:
        return [
            jax.device_get(feed.batch(chunk, step))
            for chunk in feed.chunks(first)
            for step in range(chunk.num_steps)
        ]

    return read


@pytest.fixture(scope="session")
def read_batches(read_feed) -> Callable[..., tuple[list[Batch], Schedule]]:
    """A function that returns batches of a run of three epochs and the schedule of the run."""

    def read(
        split: Split, steps: range, resident: bool = False, longest: int = 2
    ) -> tuple[list[Batch], Schedule]:
        schedule = Schedule(len(split), 4, seed=0)
        feed = VideoFeed(split, schedule.groups(3, longest), devices.mesh(), 4, resident)
        return read_feed(feed, steps.start)[: len(steps)], schedule

    return read
