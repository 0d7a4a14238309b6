"""Search: in the corpus of a model, and in archives of a user's videos.

An archive is simulated. A video lasts ten minutes, with one frame per second and scenes of ten
seconds. A frame's vector is its scene's random vector plus noise of the same length, scaled to
length 1: frames of a scene have a cosine of about 0.5, other frames of about 0. The subtitles have
a cue of eight words every five seconds. There are 20,000 words, whose frequency falls with their
number k as k^-1.2 (Zipf). Every second video has a tag. Each video has its own seed, so that only
one video needs to be in memory. Queries take the same path as in the command `search query`.
"""

import functools
import hashlib
import inspect
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from benchmarks import measure
from benchmarks.measure import (
    ACTIVITYNET_VIDEOS,
    Floor,
    Options,
    Row,
    announce,
    clock,
    num_videos,
    per_unit,
    summary,
    timed,
)
from hlformer_jax import models
from hlformer_jax.data.transforms import unit
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import UserError
from hlformer_jax.lazy import optional
from hlformer_jax.models import cost
from hlformer_jax.retrieval import corpus, scoring
from hlformer_jax.retrieval.corpus import Corpus
from hlformer_jax.retrieval.evaluation import Evaluator
from hlformer_jax.runtime import compiler, devices
from hlformer_jax.search.encoder import load_encoder
from hlformer_jax.search.index import Index, Stamp, VideoArrays, Writer
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.signals.rankers import LABELS
from hlformer_jax.search.signals.transcript import passages, transcripts
from hlformer_jax.typing import Array

CAPTIONS_PER_VALIDATION_VIDEO = 17_505 / ACTIVITYNET_VIDEOS["val"]
"""The mean of the validation split of ActivityNet Captions."""

SECONDS, SCENE = 600, 10
"""Seconds of a video of an archive, and of a scene; there is one frame per second."""

CUE, WORDS = 5, 20_000
"""Seconds between the starts of two cues, and number of different words in all cues."""

INTERVAL = 3
"""Typical length of an interval of the ranker `segments`, in seconds."""


def validation(config: ConfigDict, options: Options) -> tuple[int, int]:
    """Return the number of videos and captions of a validation split."""
    videos = num_videos(config, options, "val")
    return videos, round(videos * CAPTIONS_PER_VALIDATION_VIDEO)


def evaluate(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Measure encoding and ranking of a validation split with the proportions of ActivityNet."""
    videos, captions = validation(config, options)
    announce(f"encode and rank {videos:,} videos and {captions:,} captions")
    mesh, model = devices.mesh(), models.build(config)
    split = measure.simulated_split(videos, captions, config)
    params = devices.replicate(mesh, models.init_params(model, config))
    evaluator = Evaluator(model, config, mesh)
    resident = evaluator.feed(split, resident=True)
    stored, queries = evaluator.encode(params, resident)
    both = timed(lambda: evaluator.evaluate(params, resident).metrics, repeats=options.repeats)
    announce("encode alone")
    encode = timed(evaluator.encode, params, resident, repeats=options.repeats)
    announce("rank alone")
    rank = timed(lambda: evaluator.rank(stored, queries, split).metrics, repeats=options.repeats)
    moved = resident.bytes_per_device + devices.nbytes((params, stored)) / mesh.size
    costs = cost(config)
    flops = (videos * costs.flops_video + captions * costs.flops_caption) / mesh.size
    encode_floor = measure.floor(flops, moved, config.dtype)
    rank_floor = search_floor(stored, captions)
    floor = Floor(*(a + b for a, b in zip(encode_floor, rank_floor, strict=True)))
    yield Row("evaluate", both, floor, {"videos": float(videos), "captions": float(captions)})
    yield Row("  encode", encode, encode_floor, {"corpus GB": devices.nbytes(stored) / 1e9})
    yield Row("  rank", rank, rank_floor)


def query(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Measure the search in a corpus, for single queries and batches of 256, in every dtype."""
    videos = num_videos(config, options, "test", corpus.SEARCHED_VIDEOS)
    announce(f"make a corpus of {videos:,} videos")
    model = models.build(config)
    params = models.init_params(model, config)
    costs = cost(config)
    for dtype in scoring.DTYPES:
        stored = corpus.random(config, videos, dtype)
        size = devices.nbytes(stored.stored) / stored.mask.size  # the last block is padded
        facts = {"bytes/video": size, "parameters": float(costs.parameters)}
        for count in (1, 256):
            queries = random_queries(stored, count)
            timing = timed(corpus.search, stored, queries, 10, repeats=options.repeats)
            floor = search_floor(stored, count, count)
            yield Row(f"search, {dtype}, {count} at once", per_unit(timing, count), floor, facts)
    encode = jax.jit(lambda params, captions: models.encode_query(model, params, captions))
    for count in (1, 256):
        captions = models.zero_batch(config, captions=count).captions
        timing = per_unit(timed(encode, params, captions, repeats=options.repeats), count)
        # The parameters of the video encoder are no arguments of the compiled program.
        program = encode.lower(params, captions).compile()
        moved = compiler.memory_plan(program)["arguments"] / count
        floor = measure.floor(costs.flops_caption, moved, config.dtype)
        operations = {"MFLOPs": costs.flops_caption / 1e6}
        yield Row(f"encode {count} queries, each", timing, floor, operations)


def random_queries(stored: Corpus, count: int) -> Float[Array, "Q H"]:
    """Return random queries of the width that a corpus needs."""
    shape = count, stored.scorer.width(stored.stored)
    return jax.random.normal(jax.random.key(count), shape)


def search_floor(stored: Corpus, queries: int, units: int = 1) -> Floor:
    """Return the floor of a search: all products, and reading the corpus once.

    Args:
      stored: the corpus.
      queries: number of queries of a batch.
      units: number of units of the batch; the result is the floor of one unit.
    """
    coordinates = [branch.values for branch in stored.stored.values()]
    flops = 2 * queries * sum(x.size for x in coordinates) / devices.mesh().size / units
    moved = devices.nbytes(stored) / devices.mesh().size / units
    dtype = "float32" if coordinates[0].dtype == jnp.float32 else "bfloat16"
    return measure.floor(flops, moved, dtype)


class _RandomTexts:
    """An encoder that returns random vectors for texts, because there are too many passages."""

    def __init__(self, encoder: Encoder, width: int) -> None:
        self.name, self.fingerprint = encoder.name, encoder.fingerprint
        self.preprocessing, self.preprocess = encoder.preprocessing, encoder.preprocess
        self.width, self.image_size = width, encoder.image_size
        self.encode_images, self.probability = encoder.encode_images, encoder.probability

    def encode_texts(self, texts: Sequence[str]) -> Float[np.ndarray, "Q d"]:
        """Return random unit vectors, always the same for the same texts."""
        random = np.random.default_rng(zlib.crc32("".join(texts).encode()))
        return unit(random.standard_normal((len(texts), self.width)))


class Archive:
    """Simulated vectors of width d for some hours of video, at least two videos."""

    def __init__(self, hours: float, width: int) -> None:
        self.videos = max(round(hours * 3600 / SECONDS), 2)
        self.width = width

    def vectors(self, video: int) -> Float[np.ndarray, "F d"]:
        """Return unit vectors of the frames of a video, float32."""
        random = np.random.default_rng((video, 1))
        scenes = random.standard_normal((SECONDS // SCENE, self.width), np.float32)
        frames = random.standard_normal((SECONDS, self.width), np.float32)
        frames += scenes.repeat(SCENE, axis=0)
        frames /= np.linalg.norm(frames, axis=1, keepdims=True)
        return frames

    def write(self, directory: Path, encoder: Encoder, places: tuple[str, ...]) -> Index:
        """Write a new index of the archive.

        Args:
          directory: the folder of the index.
          encoder: the encoder that the index names.
          places: the places from which the encoder can be loaded.
        """
        root = directory.with_name(f"{directory.name}-videos")
        index = Index.create(directory, root, encoder, places=places)
        with index.running():
            write_videos(index, self.videos, functools.partial(self.put, index))
            passages.embed_passages(index, _RandomTexts(encoder, self.width), lambda line: None)
        return index

    def put(self, index: Index, writer: Writer, video: int) -> None:
        """Write a video into an index; rows are in the order of the videos' numbers."""
        content, name = self.put_frames(index, writer, video)
        ranks = np.random.default_rng((video, 2)).zipf(1.2, (SECONDS // CUE, 8)) % WORDS
        texts = [" ".join(f"word{rank}" for rank in cue) for cue in ranks]
        cues = [transcripts.Cue(CUE * i, CUE * (i + 1) - 1, text) for i, text in enumerate(texts)]
        transcript = transcripts.Transcript(transcripts.CueSource("", [], cues))
        transcripts.put(writer, content, transcript)
        if video % 2:
            writer.tag([name], ["kept"])

    def put_frames(self, index: Index, writer: Writer, video: int) -> tuple[str, str]:
        """Write the frames of a video and its empty file; return its content hash and its path."""
        vectors, times = self.vectors(video), np.arange(SECONDS, dtype=np.float64)
        arrays = VideoArrays(times, vectors.astype(np.float16), float(SECONDS))
        content = f"{video:08x}" + hashlib.sha256(b"%d" % video).hexdigest()[:56]
        name = f"{video // 100:03}/{video:06}.mp4"
        (index.root / name).parent.mkdir(parents=True, exist_ok=True)
        (index.root / name).touch()  # a search leaves out missing videos
        writer.keep(content, arrays, {name: Stamp(0, 1, 1)})
        return content, name


def write_videos(
    index: Index, count: int, put: Callable[[Writer, int], object], at_once: int = 100
) -> None:
    """Write simulated videos into an index, `at_once` in a transaction, by calls of `put`."""
    progress = measure.Progress("videos", count)
    for first in range(0, count, at_once):
        numbers = range(first, min(first + at_once, count))
        with index.writing() as writer:
            for number in numbers:
                put(writer, number)
        progress.advance(len(numbers))


def prepared_encoder(name: str, folder: Path) -> tuple[Encoder, tuple[str, ...]]:
    """Return the encoder to measure with, and the places from which it can be loaded again.

    Args:
      name: a folder, a hub id, or the size of an encoder with random parameters: "base", as large
        as SigLIP base/16 at 224 pixels, or "tiny", as large as the demo's.
      folder: a new folder, into which an encoder with random parameters is written.
    """
    if name not in ("base", "tiny"):
        return load_encoder(name)
    hub = optional("hlformer_jax.encoders.hub", "search")
    train = optional("hlformer_jax.encoders.train", "search")
    pixels, size = encoder_size(name)
    words = "a person opens the fridge " + " ".join(f"word{i}" for i in range(size.vocabulary))
    hub.save(train.untrained(pixels, [words], size=size, name=name), folder)
    return load_encoder(folder)


def encoder_size(name: str) -> tuple[int, Any]:
    """Return pixels and sizes of an encoder with random parameters: "tiny", otherwise "base"."""
    train = optional("hlformer_jax.encoders.train", "search")
    if name == "tiny":
        return 48, train.Size(patch=12, tokens=12)
    return 224, train.Size(768, 12, 12, 4, 16, 64, 32_000)


def search(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Measure queries over archives of up to `options.hours`, and a process's first result.

    The archives have a thousandth, a hundredth, a tenth and all of these hours.

    Each query runs once before it is timed, so that files are in the system's cache if they fit
    into memory.
    """
    del config  # it has no sizes of archives
    with tempfile.TemporaryDirectory(prefix="search-") as temporary:
        folder = Path(temporary)
        announce(f"prepare the encoder {options.encoder}")
        encoder, places = prepared_encoder(options.encoder, folder / "encoder")
        archives = [Archive(options.hours / part, encoder.width) for part in (1000, 100, 10, 1)]
        for archive in {archive.videos: archive for archive in archives}.values():
            announce(f"write an index of {archive.videos * SECONDS / 3600:,.4g} hours")
            with tempfile.TemporaryDirectory(dir=folder) as archive_folder:
                index = archive.write(Path(archive_folder) / "index", encoder, places)
                yield from _queries(archive, index, encoder, options.repeats, options.store)
                if archive.videos == archives[-1].videos:
                    yield from first_results(index.directory, min(3, options.repeats))


ASKED: dict[str, dict[str, Any]] = {
    "best_frame": {"signals": "visual"},
    "… and subtitles": {},
    "… and a tag, dates, lengths, the next 20 results": {
        "tags": "kept", "since": "1970", "longer": 60.0, "min_score": -1.0, "offset": 20, "k": 20,
    },
    "… like a second of a video": {"like": ("000/000000.mp4", 5.0)},
    "… but not another sentence": {"without": "a person runs"},
    "… and then another, within 60 s": {"then": "a person runs"},
}  # fmt: skip
"""Queries by the ranker best_frame: their names, and the options beside the sentence."""


def _queries(
    archive: Archive, index: Index, encoder: Encoder, repeats: int, store: str
) -> Iterator[Row]:
    hours = archive.videos * SECONDS / 3600
    size = f"{hours:,.4g} hour{'s' * (hours != 1)}: "

    def library(ranker: str, stored: bool = False) -> Library:
        return Library(
            index.directory,
            ranker=ranker.removesuffix(", normalised"),
            normalise=ranker.endswith(", normalised"),
            encoder=encoder,
            store=f"{store}_{archive.videos}" if stored else None,
        )

    def pack() -> None:
        library("best_frame").ranked()

    rows = archive.videos * SECONDS
    yield Row(f"{size}rows packed", summary([clock(pack)]), None, _sizes(index.directory))
    # These words are in about one of 50, one of 200 and fewer of the passages.
    sentences = [f"word30 word100 word{200 + i}" for i in range(max(repeats, 3) + 1)]
    encoding = timed(encoder.encode_texts, sentences[:1], repeats=5, seconds=1.0)
    further = {ranker: {"signals": "visual"} for ranker in ("segments", "top_3_frames, normalised")}
    if store:
        upload = library("best_frame", stored=True).upload
        yield Row(f"{size}upload to the store", summary([clock(upload)]))
        further["in the store"] = {}
    for name, options in (ASKED | further).items():
        searched = library(name if name in LABELS else "best_frame", name == "in the store")
        searched.query(sentences[0], **options)  # maps files into memory, and compiles
        query = functools.partial(searched.query, **options)
        timing = summary([clock(query, sentence) for sentence in sentences[1:]])
        facts = {"ms of the sentence": 1e3 * encoding.median}
        # Each number is read once; in a large archive it has one byte.
        numbers = rows / INTERVAL if name == "segments" else rows
        floor = measure.floor(2 * numbers * archive.width, numbers * archive.width)
        yield Row(f"{size}query, {name}", timing, floor, facts)
    with index.running():
        with index.writing() as writer:
            archive.put(index, writer, archive.videos)
        passages.embed_passages(index, _RandomTexts(encoder, archive.width), lambda line: None)
    yield Row(f"{size}packed again for a new video", summary([clock(pack)]))


def _sizes(directory: Path) -> dict[str, float]:
    """Return the gigabytes of an index's folders and files, and the peak memory of this process."""
    sizes: dict[str, float] = {}
    for path in sorted(directory.rglob("*")):
        name = f"{path.relative_to(directory).parts[0]}, GB"
        sizes[name] = sizes.get(name, 0.0) + path.stat().st_size / 1e9
    return sizes | {"memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9}


def first_results(directory: Path, count: int) -> Iterator[Row]:
    """Start `count` processes, one after the other; each opens an index and makes two queries."""
    # Only the source of the function is run, so that the imports of this module take no time.
    code = f"{inspect.getsource(_open_and_ask)}\nimport sys\n_open_and_ask(*sys.argv[1:])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if jax.default_backend() != "cpu":
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    times: list[dict[str, float]] = []
    for _ in range(count):
        start = [sys.executable, "-c", code, str(directory), repr(time.time())]
        ended = subprocess.run(start, env=environment, capture_output=True, text=True)
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(f"a process that opens the index failed: {last}")
        times.append(json.loads(ended.stdout.splitlines()[-1]))
    parts = list(times[0])
    total = summary([sum(seconds[part] for part in parts[:-1]) for seconds in times])
    yield Row("first result of a fresh process", total)
    for part in parts:
        yield Row(f"  {part}", summary([seconds[part] for seconds in times]))


def _open_and_ask(directory: str, start: str) -> None:
    """Open an index, make two queries, and print the seconds of each part as JSON.

    Args:
      directory: the folder of the index.
      start: the time (`time.time`) at which the process was started.
    """
    import json
    import time

    from hlformer_jax import search
    from hlformer_jax.lazy import optional

    sentence = "a person opens the fridge"
    optional("hlformer_jax.encoders.hub", "search")
    marks = [float(start), time.time()]
    library = search.open(directory)
    marks.append(time.time())
    library.encoder.encode_texts([sentence])
    marks.append(time.time())
    for _ in range(2):
        library.query(sentence)
        marks.append(time.time())
    parts = "start and imports", "opening", "encoder's first sentence", "query", "the next query"
    seconds = [end - start for start, end in zip(marks[:-1], marks[1:], strict=True)]
    print(json.dumps(dict(zip(parts, seconds, strict=True))))
