"""Search: in the corpus of a model, and in archives of one's own videos.

An archive is simulated: a video has ten minutes of a frame a second, in scenes of ten seconds. A
frame's vector is the unit of its scene's random vector and as much noise: frames of a scene have a
cosine of about 0.5, others of 0. Its subtitles have a cue of eight words each five seconds, of
20,000 words that are the rarer the higher their number (Zipf), and every second video has a tag.
Every video is made of its own seed, so nothing larger than a video is ever kept. A library over it
is asked as `search query` asks it.
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
from collections.abc import Iterator, Sequence
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
from hlformer_jax.runtime import devices
from hlformer_jax.search.encoder import load_encoder
from hlformer_jax.search.index import Index, Stamp, VideoArrays, Writer
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.signals.rankers import LABELS
from hlformer_jax.search.signals.transcript import said, transcripts
from hlformer_jax.typing import Array

CAPTIONS_PER_VALIDATION_VIDEO = 17_505 / ACTIVITYNET_VIDEOS["val"]
"""The mean of ActivityNet Captions' validation split."""

SECONDS, SCENE = 600, 10
"""Length of a video of an archive, and of a scene; a frame a second."""

CUE, WORDS = 5, 20_000
"""Seconds from one subtitle to the next, and how many different words they have."""

INTERVAL = 3
"""Typical seconds of an interval of the ranker `segments`."""


def validation(config: ConfigDict, options: Options) -> tuple[int, int]:
    """Return the number of videos and captions of a validation split."""
    videos = num_videos(config, options, "val")
    return videos, round(videos * CAPTIONS_PER_VALIDATION_VIDEO)


def evaluate(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Encoding and ranking of a validation split of ActivityNet's proportions."""
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
    """Search in a corpus, for a single query and for batches of 256, in every dtype."""
    videos = num_videos(config, options, "test", corpus.SEARCHED_VIDEOS)
    announce(f"make a corpus of {videos:,} videos")
    model = models.build(config)
    params = models.init_params(model, config)
    costs = cost(config)
    for dtype in scoring.DTYPES:
        stored = corpus.random(config, videos, dtype)
        size = devices.nbytes(stored) / videos
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
        moved = devices.nbytes((params, captions)) / count
        floor = measure.floor(costs.flops_caption, moved, config.dtype)
        operations = {"MFLOPs": costs.flops_caption / 1e6}
        yield Row(f"encode {count} queries, each", timing, floor, operations)


def random_queries(stored: Corpus, count: int) -> Float[Array, "Q H"]:
    """Random queries of the width that a corpus asks for."""
    shape = count, stored.scorer.width(stored.stored)
    return jax.random.normal(jax.random.key(count), shape)


def search_floor(stored: Corpus, queries: int, units: int = 1) -> Floor:
    """Return the floor of a search, over `units`: all products, and the corpus read once."""
    coordinates = [branch.values for branch in stored.stored.values()]
    flops = 2 * queries * sum(x.size for x in coordinates) / devices.mesh().size / units
    moved = devices.nbytes(stored) / devices.mesh().size / units
    dtype = "float32" if coordinates[0].dtype == jnp.float32 else "bfloat16"
    return measure.floor(flops, moved, dtype)


VIDEOS_AT_ONCE = 100
"""Videos that are written in one transaction."""


class _RandomTexts:
    """An encoder whose texts have random vectors: passages are too many to be encoded."""

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
        """Unit vectors of the frames of a video, float32."""
        random = np.random.default_rng((video, 1))
        scenes = random.standard_normal((SECONDS // SCENE, self.width), np.float32)
        frames = random.standard_normal((SECONDS, self.width), np.float32)
        frames += scenes.repeat(SCENE, axis=0)
        frames /= np.linalg.norm(frames, axis=1, keepdims=True)
        return frames

    def write(self, directory: Path, encoder: Encoder, places: tuple[str, ...]) -> Index:
        """A new index of the archive, which names an encoder and where it can be loaded from."""
        root = directory.with_name(f"{directory.name}-videos")
        index = Index.create(directory, root, encoder, places=places)
        with index.running():
            for first in range(0, self.videos, VIDEOS_AT_ONCE):
                with index.writing() as writer:
                    for video in range(first, min(first + VIDEOS_AT_ONCE, self.videos)):
                        self.put(index, writer, video)
            said.embed(index, _RandomTexts(encoder, self.width), lambda line: None)
        return index

    def put(self, index: Index, writer: Writer, video: int) -> None:
        """Write a video into an index; rows follow the videos' numbers."""
        vectors, times = self.vectors(video), np.arange(SECONDS, dtype=np.float64)
        arrays = VideoArrays(times, vectors.astype(np.float16), float(SECONDS))
        content = f"{video:08x}" + hashlib.sha256(b"%d" % video).hexdigest()[:56]
        name = f"{video // 100:03}/{video:06}.mp4"
        (index.root / name).parent.mkdir(parents=True, exist_ok=True)
        (index.root / name).touch()  # a search leaves out missing videos
        writer.keep(content, arrays, {name: Stamp(0, 1, 1)})
        ranks = np.random.default_rng((video, 2)).zipf(1.2, (SECONDS // CUE, 8)) % WORDS
        texts = [" ".join(f"word{rank}" for rank in cue) for cue in ranks]
        cues = [transcripts.Cue(CUE * i, CUE * (i + 1) - 1, text) for i, text in enumerate(texts)]
        transcript = transcripts.Transcript(transcripts.Source("", [], cues))
        transcripts.put(writer, content, transcript)
        if video % 2:
            writer.tag([name], ["kept"])


def prepared_encoder(name: str, folder: Path) -> tuple[Encoder, tuple[str, ...]]:
    """Return the encoder to measure with, and the places from which it can be loaded again.

    `name` is a folder, a hub id, or an encoder of random parameters, written into the new `folder`:
    "base", as large as SigLIP base/16 at 224 pixels, or "tiny", as the demo's.
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
    """Pixels and sizes of an encoder of random parameters: of "tiny", else of "base"."""
    train = optional("hlformer_jax.encoders.train", "search")
    if name == "tiny":
        return 48, train.Size(patch=12, tokens=12)
    return 224, train.Size(768, 12, 12, 4, 16, 64, 32_000)


def search(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Queries over archives of 1, 10, 100 and 1,000 hours; the first result of a process.

    Each query has run before it is timed: files are in the system's cache if they fit into memory.
    """
    del config  # it has no sizes of these
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
"""Queries of a sentence by best_frame, and what they have beside it."""


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
    # Words that a fiftieth, a two-hundredth and fewer of the passages have.
    sentences = [f"word30 word100 word{200 + i}" for i in range(max(repeats, 3) + 1)]
    encoding = timed(encoder.encode_texts, sentences[:1], repeats=5, seconds=1.0)
    further = {ranker: {"signals": "visual"} for ranker in ("segments", "top_3_frames, normalised")}
    if store:
        upload = library("best_frame", stored=True).upload
        yield Row(f"{size}upload to the store", summary([clock(upload)]))
        further["in the store"] = {}
    for name, options in (ASKED | further).items():
        searched = library(name if name in LABELS else "best_frame", name == "in the store")
        searched.query(sentences[0], **options)  # maps, and compiles
        query = functools.partial(searched.query, **options)
        timing = summary([clock(query, sentence) for sentence in sentences[1:]])
        facts = {"ms of the sentence": 1e3 * encoding.median}
        # Each number is read once, and has a byte where an archive is large.
        numbers = rows / INTERVAL if name == "segments" else rows
        floor = measure.floor(2 * numbers * archive.width, numbers * archive.width)
        yield Row(f"{size}query, {name}", timing, floor, facts)
    with index.running():
        with index.writing() as writer:
            archive.put(index, writer, archive.videos)
        said.embed(index, _RandomTexts(encoder, archive.width), lambda line: None)
    yield Row(f"{size}packed again for a new video", summary([clock(pack)]))


def _sizes(directory: Path) -> dict[str, float]:
    """Return the gigabytes of an index's folders and files, and of this process at its largest."""
    sizes: dict[str, float] = {}
    for path in sorted(directory.rglob("*")):
        name = f"{path.relative_to(directory).parts[0]}, GB"
        sizes[name] = sizes.get(name, 0.0) + path.stat().st_size / 1e9
    return sizes | {"memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9}


def first_results(directory: Path, count: int) -> Iterator[Row]:
    """Start `count` processes in turn, each of which opens an index and answers twice."""
    # Its source alone is run: nothing that this module imports is to count.
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
    """Opens an index, asks it twice, and prints what took how long since `start`, as JSON."""
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
