"""A tiny corpus in the released layout, sound until a test breaks it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from hlformer_jax.data.released.collection import Collection

D, E = 6, 5


@dataclasses.dataclass
class TinyCorpus:
    """A corpus as values; `write` puts it on disk as the released files."""

    frames: dict[str, np.ndarray]
    captions: dict[str, list[tuple[str, str]]]
    words: dict[str, np.ndarray]

    def write(self, manual_dir: Path, rows: np.random.Generator) -> Collection:
        """Writes the files, rows of feature.bin in a random order."""
        collection = Collection(manual_dir, "tiny", "feat", D, E)
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
    """Writes a corpus below the test's folder."""
    return lambda corpus: corpus.write(tmp_path / "manual", np.random.default_rng(1))
