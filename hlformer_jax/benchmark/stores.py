"""Vector databases that run in this process, where they are installed: Qdrant local and LanceDB.

Each holds the float32 vectors of all frames and is asked for the best ones by inner product,
without an approximate index.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hlformer_jax.benchmark.archive import BEST, SECONDS, Archive

Ask = Callable[[np.ndarray], list[int]]
"""The best frames of a query."""


def available() -> dict[str, tuple[int, Callable[[Archive, Path], Ask]]]:
    """The stores that are installed, each with the most frames it is given."""
    found: dict[str, tuple[int, Callable[[Archive, Path], Ask]]] = {}
    # Qdrant's local mode advises against more than 20,000 points; twice as many take it 10 s.
    for name, module, most, fill in (
        ("Qdrant local", "qdrant_client", 40_000, _qdrant),
        ("LanceDB", "lancedb", 400_000, _lance),
    ):
        try:
            importlib.import_module(module)
            found[name] = (most, fill)
        except ImportError:
            print(f"{name} is not measured: {module} is not installed", file=sys.stderr)
    return found


def _qdrant(archive: Archive, folder: Path) -> Ask:
    """A collection in memory."""
    del folder
    qdrant: Any = importlib.import_module("qdrant_client")
    client = qdrant.QdrantClient(":memory:")
    distance = qdrant.models.Distance.DOT
    like = qdrant.models.VectorParams(size=archive.width, distance=distance)
    client.create_collection("frames", vectors_config=like)
    with warnings.catch_warnings(action="ignore"):  # of its size
        for video in range(archive.videos):
            ids = range(video * SECONDS, (video + 1) * SECONDS)
            client.upload_collection("frames", archive.vectors(video), ids=ids, batch_size=SECONDS)

    def ask(query: np.ndarray) -> list[int]:
        found = client.query_points("frames", query=query.tolist(), limit=BEST)
        return [int(point.id) for point in found.points]

    return ask


def _lance(archive: Archive, folder: Path) -> Ask:
    """A table on the disk."""
    lancedb: Any = importlib.import_module("lancedb")
    arrow: Any = importlib.import_module("pyarrow")
    kind = arrow.list_(arrow.float32(), archive.width)
    schema = arrow.schema([("id", arrow.int64()), ("vector", kind)])

    def batches() -> Iterator[Any]:
        for video in range(archive.videos):
            ids = arrow.array(video * SECONDS + np.arange(SECONDS))
            flat = arrow.array(archive.vectors(video).reshape(-1))
            vectors = arrow.FixedSizeListArray.from_arrays(flat, archive.width)
            yield arrow.RecordBatch.from_arrays([ids, vectors], schema=schema)

    table = lancedb.connect(str(folder)).create_table("frames", data=batches(), schema=schema)

    def ask(query: np.ndarray) -> list[int]:
        search = table.search(query).distance_type("dot").limit(BEST)
        found: list[int] = search.select(["id", "_distance"]).to_arrow()["id"].to_pylist()
        return found

    return ask
