"""Work of preparation: released files to records."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from hlformer_jax.benchmark.inputs import Options, Row, released_files
from hlformer_jax.benchmark.measure import Floor, clock, summary
from hlformer_jax.data import prepared


def prepare(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Released files to records, in input bytes a second."""
    videos = options.videos or 400
    with tempfile.TemporaryDirectory() as directory:
        collection = released_files(directory, videos, config)
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
