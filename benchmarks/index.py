"""The index of a search at scale: adding a video, a pass over unchanged files, a first query.

The archive has the videos of `query.Archive`, without transcripts. Nothing is encoded, so that the
times are those of the index alone. Every measurement runs in its own process; its memory is the
largest that the process had beyond its imports.
"""

import contextlib
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from benchmarks.measure import Options, Row, announce, summary
from benchmarks.query import SECONDS, Archive, write_videos
from hlformer_jax.data.sources.synthetic import is_synthetic
from hlformer_jax.data.transforms import unit
from hlformer_jax.errors import UserError
from hlformer_jax.lazy import optional
from hlformer_jax.search.index import Index, Stamp, VideoArrays, Writer
from hlformer_jax.search.ingest.extract import index_folder, real_video
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.signals.transcript import transcripts

WIDTH = 768
"""Width of an embedding of an archive."""

FILES = 50_000
"""Number of unchanged files of a pass; 200 with a configuration on synthetic data."""

FILE_WIDTH, FILE_FRAMES = 16, 2
"""Width and number of the embeddings of each of these files."""

FILES_PER_TRANSCRIPT, FILES_PER_FOLDER = 10, 500


class Encoder:
    """An encoder that encodes no image, and gives every text a random vector."""

    name, fingerprint, preprocessing = "simulated", "0" * 64, "none"
    image_size = 4

    def __init__(self, width: int) -> None:
        self.width = width

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        """Return the image."""
        return image

    def encode_images(self, pixels: np.ndarray) -> np.ndarray:
        """Raise an error: an unchanged file is not decoded."""
        raise AssertionError("an unchanged file was encoded")

    def encode_texts(self, texts: Sequence[str]) -> Float[np.ndarray, "Q d"]:
        """Return random unit vectors, always the same for the same texts."""
        seeds = [int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) for text in texts]
        return unit(
            np.stack([np.random.default_rng(seed).standard_normal(self.width) for seed in seeds])
        )

    def probability(self, cosine: float) -> None:
        """Return None: this encoder has no learned scale."""


def index(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Yield the rows of an archive of `options.hours`, and of `options.videos` unchanged files."""
    optional("hlformer_jax.video", "search")
    files = options.videos or (200 if is_synthetic(config.data) else FILES)
    repeats = min(options.repeats, 3)
    with tempfile.TemporaryDirectory(prefix="index-") as temporary:
        folder = Path(temporary)
        archive = QuickArchive(options.hours, WIDTH)
        videos = archive.videos
        hours = videos * SECONDS / 3600
        size = f"{hours:,.4g} hour{'s' * (hours != 1)}"
        announce(f"write an index of {size}")
        write_archive(folder, archive)
        _run(ask, folder)  # derives matrices
        yield _row(f"{size}: first query of a process", [_run(ask, folder) for _ in range(repeats)])
        yield _row(f"{size}: the next query", [_run(ask_again, folder) for _ in range(repeats)])
        added = [_run(add, folder, videos + repeat) for repeat in range(repeats)]
        yield _row(f"{size}: a new video, until it is searched", added)
        size = f"{files:,} unchanged files"
        announce(f"write an index of {size}")
        write_files(folder, files)
        yield _row(f"a pass over {size}", [_run(scan, folder, files) for _ in range(repeats)])
        yield _row(
            f"opening an index of {size}", [_run(open_index, folder) for _ in range(repeats)]
        )


class QuickArchive(Archive):
    """An archive whose vectors take no time to make."""

    def vectors(self, video: int) -> Float[np.ndarray, "F d"]:
        """Return unit vectors: rows of `_noise`, plus one row for them all."""
        noise = _noise()
        start = video * 7919 % (len(noise) - SECONDS)
        return unit(noise[start : start + SECONDS] + noise[video * 104_729 % len(noise)])


def write_archive(folder: Path, archive: Archive) -> None:
    """Write an index of simulated videos; their files are empty."""
    index = Index.create(folder / "archive", folder / "videos", Encoder(WIDTH))
    with index.running(), _unsynced():
        write_videos(index, archive.videos, functools.partial(archive.put_frames, index))


@contextlib.contextmanager
def _unsynced() -> Iterator[None]:
    """Turn off `fsync` while simulated data is written, so that nothing waits for the disk."""
    fsync = os.fsync
    os.fsync = lambda fd: None
    try:
        yield
    finally:
        os.fsync = fsync


@functools.cache
def _noise() -> np.ndarray:
    """Return random rows, which are made once in a process."""
    return np.random.default_rng(0).standard_normal((8 * SECONDS, WIDTH), np.float32)


def write_files(folder: Path, files: int) -> None:
    """Write small files and their complete index; every tenth file has a transcript."""
    encoder, root = Encoder(FILE_WIDTH), folder / "files"
    index = Index.create(folder / "index", root, encoder)
    times = np.arange(FILE_FRAMES, dtype=np.float64)

    def put(writer: Writer, number: int) -> None:
        path = root / f"{number // FILES_PER_FOLDER:04}" / f"a video {number:06}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number)
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        vectors = np.random.default_rng(number).standard_normal((FILE_FRAMES, FILE_WIDTH))
        arrays = VideoArrays(times, unit(vectors).astype(np.float16), 2.0)
        name = path.relative_to(root).as_posix()
        writer.keep(content, arrays, {name: Stamp.from_status(path.stat())})
        cues = [transcripts.Cue(0, 1, f"words of {number}")]
        tracks = transcripts.CueSource(
            "", [transcripts.READER_VERSION], cues[: number % FILES_PER_TRANSCRIPT == 0]
        )
        transcripts.put(writer, content, transcripts.Transcript(tracks))

    with index.running(), _unsynced():
        write_videos(index, files, put, 1000)
    scan(folder, files)()  # encodes the passages


# Measurements: each function makes the preparations and returns the function to be measured.


def scan(folder: Path, files: int) -> Callable[[], None]:
    """Prepare a pass over files that have not changed."""
    video = real_video()

    def measured() -> None:
        index = Index.open(folder / "index")
        report = index_folder(
            index, Encoder(FILE_WIDTH), video=video, workers=0, report=lambda line: None
        )
        assert report.unchanged == files, report

    return measured


def open_index(folder: Path) -> Callable[[], None]:
    """Prepare opening an index of many files and reading its records."""

    def measured() -> None:
        assert Index.open(folder / "index").videos

    return measured


def ask(folder: Path) -> Callable[[], None]:
    """Prepare opening an archive and a query."""
    encoder = Encoder(WIDTH)

    def measured() -> None:
        assert Library(folder / "archive", encoder=encoder).query("a person")

    return measured


def ask_again(folder: Path) -> Callable[[], None]:
    """Prepare a query of an open archive."""
    library = Library(folder / "archive", encoder=Encoder(WIDTH))
    library.query("a person")

    def measured() -> None:
        assert library.query("another person")

    return measured


def add(folder: Path, video: int) -> Callable[[], None]:
    """Prepare adding a video to an archive, until a newly opened library can find it."""
    index, archive = Index.open(folder / "archive"), QuickArchive(0, WIDTH)
    _noise()

    def measured() -> None:
        with index.writing() as writer:
            archive.put_frames(index, writer, video)
        Library(index.directory, encoder=Encoder(WIDTH)).ranked()

    return measured


def _run(prepare: Callable[..., Callable[[], None]], folder: Path, *numbers: int) -> dict[str, Any]:
    """Measure in a new process; return seconds, processor seconds, memory and bytes written."""
    announce(f"  {prepare.__name__}")
    arguments = [prepare.__name__, str(folder), *map(str, numbers)]
    code = "import sys; from benchmarks import index; index._measure(*sys.argv[1:])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True
    )
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"a process that measures the index failed: {last}")
    measured: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return measured


def _measure(name: str, folder: str, *numbers: str) -> None:
    """Print the figures of a measurement, as JSON."""
    measured = globals()[name](Path(folder), *map(int, numbers))
    base, written = _peak_memory(), _bytes_written()
    start, processor = time.perf_counter(), time.process_time()
    measured()
    figures = {
        "seconds": time.perf_counter() - start,
        "processor": time.process_time() - processor,
        "memory": _peak_memory() - base,
        "written": _bytes_written() - written,
    }
    print(json.dumps(figures))


def _peak_memory() -> float:
    """Return the largest memory of this process, in megabytes; NaN if unknown."""
    try:  # `getrusage` would include the memory of the process before it started this program
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return 1.024e-3 * int(dict(line.split(":", 1) for line in lines)["VmHWM"].split()[0])


def _bytes_written() -> float:
    """Return the megabytes that this process has written to the disk; NaN if unknown."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return float("nan")
    return int(dict(line.split(": ") for line in lines)["write_bytes"]) / 1e6


def _row(what: str, measured: Sequence[dict[str, Any]]) -> Row:
    facts = {
        name: float(np.median([figures[key] for figures in measured]))
        for name, key in (
            ("processor, s", "processor"),
            ("memory, MB", "memory"),
            ("written, MB", "written"),
        )
    }
    return Row(what, summary([figures["seconds"] for figures in measured]), None, facts)
