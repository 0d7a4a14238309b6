"""Work of a search in one's own videos: queries over archives of four sizes, simulated.

For each size the rows of all frames are multiplied with queries as the index keeps them, rounded to
bfloat16, and to int8, all mapped into memory from files; then a library is asked as `query` does,
and vector databases beside it. `exact` is the share of queries whose ten best frames are those of
the float32 vectors. What is timed has run before: the files are in the system's cache where they
fit into memory.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from hlformer_jax.benchmark import fresh, measure, stores
from hlformer_jax.benchmark.archive import BEST, Archive, prepared_encoder, put
from hlformer_jax.benchmark.inputs import Options, Row
from hlformer_jax.benchmark.measure import Timing, clock, summary
from hlformer_jax.search import packed, quantised
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.library import Library

STARTS = 3
"""Fresh processes that are timed, at most."""


def search(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Queries over archives of 1, 10, 100 and 1,000 hours; the first result of a process."""
    del config  # it has no sizes of these
    installed = stores.available()
    with tempfile.TemporaryDirectory(prefix="search-") as temporary:
        folder = Path(temporary)
        encoder, places = prepared_encoder(options.encoder, folder / "encoder")
        parts = (1000, 100, 10, 1)
        archives = [Archive(options.hours / part, encoder.width) for part in parts]
        for archive in {one.videos: one for one in archives}.values():
            with tempfile.TemporaryDirectory(dir=folder) as own:
                yield from _of_size(archive, Path(own), encoder, places, options, installed)
                if archive.videos == archives[-1].videos:
                    yield from _first_results(Path(own) / "index", min(STARTS, options.repeats))


def _of_size(
    archive: Archive,
    folder: Path,
    encoder: Any,
    places: tuple[str, ...],
    options: Options,
    installed: dict[str, tuple[int, Callable[[Archive, Path], stores.Ask]]],
) -> Iterator[Row]:
    queries = archive.queries(max(options.repeats, 3) + 1)
    index, truth = archive.write(folder / "index", encoder, places, queries)
    hours = archive.frames / 3600
    size = f"{hours:,.4g} hour{'s' * (hours != 1)}: "

    def ask(ranker: str) -> Library:
        return Library(index.directory, ranker=ranker, encoder=encoder)

    def pack() -> None:
        ask("best_frame").ranked()

    packing = summary([clock(pack)])
    yield Row(size + "rows packed", packing, None, {"frames": float(archive.frames)})
    yield from _kernels(size, index, queries, truth)
    for ranker in ("best_frame", "segments"):
        library = ask(ranker)
        sentences = [f"a person opens the word{i}" for i in range(len(queries))]
        library.query(sentences[0])  # maps, and compiles
        whole = summary([clock(library.query, sentence, BEST) for sentence in sentences])
        sentence = measure.timed(encoder.sentences, sentences[:1], repeats=5, seconds=1.0)
        facts = {"ms of the sentence": 1e3 * sentence.median}
        yield Row(f"{size}query, {ranker}", whole, None, facts)
    with index.writing():
        put(index, archive.videos, archive.vectors(archive.videos))
    grown = summary([clock(pack)])
    yield Row(size + "packed again for a new video", grown, None, {})
    for name, (most, fill) in installed.items():
        if archive.frames <= most:
            begun = time.perf_counter()
            run = fill(archive, folder / "store")
            facts = {"s to fill": time.perf_counter() - begun}
            timing, found = _asked(run, queries)
            yield Row(size + name, timing, None, facts | {"exact, %": _exact(found, truth)})


def _kernels(size: str, index: Index, queries: np.ndarray, truth: np.ndarray) -> Iterator[Row]:
    """The ten best frames by the rows of the index, and by rounded ones."""
    files = (index.directory / "packed").glob("best_frame-*")
    [path] = [file for file in files if file.suffixes == [".npy"]]  # the rounded ones have more
    matrix: np.ndarray = np.load(path, mmap_mode="r")
    count, everything = len(matrix), np.ones(len(matrix), bool)

    def row(what: str, run: stores.Ask, size_of: float, facts: dict[str, float]) -> Row:
        timing, found = _asked(run, queries)
        floor = measure.floor(2.0 * matrix.size, size_of)
        facts = {"exact, %": _exact(found, truth), "GB": size_of / 1e9} | facts
        return Row(size + what, timing, floor, facts)

    def alone(query: np.ndarray) -> list[int]:
        return _largest(packed.products(matrix, query))

    plain = packed.products(matrix, queries[0])
    yield row("frames, float16", alone, matrix.nbytes, {})
    for dtype in ("bfloat16", quantised.DTYPE):
        rounded = quantised.kept(path, matrix, dtype)
        moved = sum(part.nbytes for part in rounded)
        off = np.abs(quantised.products(rounded, queries[0]) - plain)
        facts = {"largest error": float(off.max()), "bound": float(rounded.error.max())}

        def near(query: np.ndarray, rounded: quantised.Quantised = rounded) -> list[int]:
            return _largest(quantised.products(rounded, query))

        def exact(query: np.ndarray, rounded: quantised.Quantised = rounded) -> list[int]:
            starts = np.arange(count)
            found = quantised.best(rounded, matrix, starts, query, BEST, everything)
            return alone(query) if found is None else _largest(found)

        yield row(f"frames, {dtype}", near, moved, facts)
        yield row(f"frames, {dtype}, best again", exact, moved, {})
        if dtype != quantised.DTYPE:  # makes room
            for file in path.parent.glob(f"*.{dtype}*.npy"):
                file.unlink()


def _largest(scores: np.ndarray) -> list[int]:
    found: list[int] = np.argpartition(-scores, BEST)[:BEST].tolist()
    return found


def _asked(run: stores.Ask, queries: np.ndarray) -> tuple[Timing, list[list[int]]]:
    """Times of all queries but the first, which warms up, and what was found."""
    found: list[list[int]] = []
    clocks = [clock(lambda query: found.append(run(query)), query) for query in queries]
    return summary(clocks[1:]), found


def _exact(found: Sequence[Sequence[int]], truth: np.ndarray) -> float:
    same = [set(one) == set(other) for one, other in zip(found, truth.tolist(), strict=True)]
    return 100.0 * float(np.mean(same))


def _first_results(directory: Path, count: int) -> Iterator[Row]:
    """Fresh processes that open the largest index and answer."""
    command = [sys.executable, "-m", "hlformer_jax.benchmark.fresh", str(directory)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if jax.default_backend() != "cpu":
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    times: list[dict[str, float]] = []
    for _ in range(count):
        start = [*command, repr(time.time())]
        ended = subprocess.run(start, env=environment, capture_output=True, text=True)
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise SearchError(f"a fresh process failed: {last}")
        times.append(json.loads(ended.stdout.splitlines()[-1]))
    until = fresh.PARTS[:-1]
    total = summary([sum(one[part] for part in until) for one in times])
    yield Row("first result of a fresh process", total, None, {})
    for part in fresh.PARTS:
        yield Row(f"  {part}", summary([one[part] for one in times]), None, {})
