"""Search: in the corpus of a model, and in archives of one's own videos.

    evaluate    encoding and ranking of a validation split
    query       search in a corpus of 2,500 videos, a query alone and 256 at once
    scaling     a step of training and a search at four sizes
    search      sentences in archives of up to 1,000 hours, beside Qdrant and LanceDB

An archive is simulated: a video has ten minutes of a frame a second, in scenes of ten seconds. A
frame's vector is the unit of its scene's random vector and as much noise: frames of a scene have a
cosine of about 0.5, others of 0. A query is a unit vector with a cosine of about a quarter with the
frames of one scene. Every video is made of its own seed, so nothing larger than a video is ever
kept. The rows of all frames are multiplied with queries as the index keeps them, and rounded to
int8, all mapped into memory from files; then a library is asked as `search query` asks it. `exact`
is the share of queries whose ten best frames are those of the float32 vectors.
"""

import functools
import hashlib
import importlib
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from hlformer_jax import models, parallel
from hlformer_jax.benchmark import measure, startup
from hlformer_jax.benchmark.measure import Floor, Options, Row, Timing, clock, each, summary, timed
from hlformer_jax.benchmark.step import Training
from hlformer_jax.data.feed import VideoFeed, in_order
from hlformer_jax.errors import optional
from hlformer_jax.models.registry import cost
from hlformer_jax.retrieval import corpus, scoring
from hlformer_jax.retrieval.corpus import Corpus
from hlformer_jax.retrieval.evaluation import Evaluator
from hlformer_jax.search import packed
from hlformer_jax.search.index import Index, load_encoder
from hlformer_jax.search.library import Library
from hlformer_jax.search.storage import Stamp, VideoArrays
from hlformer_jax.typing import Array

VALIDATION = 4_917, 17_505
"""Videos and captions of ActivityNet Captions' validation split."""

SEARCHED_VIDEOS = 2_500
"""As in GMMFormer v2's Table 2."""

BLOCK = 256
"""Videos of a corpus that are scored together."""

SECONDS, SCENE = 600, 10
"""Of a video of an archive, and of a scene; a frame a second."""

INTERVAL = 3
"""Seconds of an interval of the ranker `segments`: simulated and real videos have about so many."""

BEST = 10
"""How many of the best are asked for."""

STARTS = 3
"""Processes that are timed to their first result, at most."""

_TOWARDS = 0.37
"""Of a query's length, what points to its scene; a frame does with 1 / sqrt(2) of its own."""

Ask = Callable[[np.ndarray], list[int]]
"""The best frames of a query."""


def evaluate(config: ConfigDict, options: Options, peer: Any = None) -> Iterator[Row]:
    """Encoding and ranking of a validation split of ActivityNet's proportions."""
    videos = options.videos or VALIDATION[0]
    captions = round(videos * VALIDATION[1] / VALIDATION[0])
    mesh, model = parallel.mesh(), models.build(config)
    split = measure.simulated_split(videos, captions, config)
    params = parallel.replicate(mesh, models.init_params(model, config))
    evaluator = Evaluator(model, config, mesh)
    resident = evaluator.feed(split, resident=True)
    stored, queries = evaluator.encode(params, resident)
    measured = lambda: evaluator.evaluate(params, resident).metrics
    whole = timed(measured, repeats=options.repeats)
    encode = timed(evaluator.encode, params, resident, repeats=options.repeats)
    rank = timed(lambda: evaluator.rank(stored, queries, split).metrics, repeats=options.repeats)
    moved = resident.bytes_per_device + parallel.nbytes((params, stored)) / mesh.size
    one = cost(config)
    flops = (videos * one.flops_video + captions * one.flops_caption) / mesh.size
    encode_floor = measure.floor(flops, moved, config.dtype)
    rank_floor = search_floor(stored, captions)
    both = Floor(*(a + b for a, b in zip(encode_floor, rank_floor, strict=True)))
    yield Row("evaluate", whole, both, {"videos": float(videos), "captions": float(captions)})
    yield Row("  encode", encode, encode_floor, {"corpus GB": parallel.nbytes(stored) / 1e9})
    yield Row("  rank", rank, rank_floor)
    if peer is None:
        return
    whole_split = VideoFeed(split, in_order(videos, videos, 1), mesh, videos, resident=True)
    (window,) = whole_split.chunks()
    theirs = peer.convert_corpus(*measure.first_batch(whole_split, window))
    clocks = [clock(peer.evaluate, theirs) for _ in range(2)]
    yield Row("evaluation of the released code", summary(clocks))
    ours = timed(measured, repeats=3)
    faster = {"times as fast": float(np.median(clocks) / ours.median)}
    yield Row("ours, after it", ours, None, faster)


def query(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Search in a corpus, for a single query and for batches of 256, in every dtype."""
    videos = options.videos or SEARCHED_VIDEOS
    model = models.build(config)
    params = models.init_params(model, config)
    one = cost(config)
    for dtype in scoring.DTYPES:
        stored = random_corpus(config, videos, dtype)
        size = parallel.nbytes(stored) / videos
        facts = {"bytes/video": size, "parameters": float(one.parameters)}
        for count in (1, 256):
            queries = random_queries(stored, count)
            timing = timed(corpus.search, stored, queries, 10, repeats=options.repeats)
            floor = search_floor(stored, count, count)
            yield Row(f"search, {dtype}, {count} at once", each(timing, count), floor, facts)
    encode = jax.jit(lambda params, captions: models.encode_query(model, params, captions))
    for count in (1, 256):
        captions = models.zero_batch(config, captions=count).captions
        timing = each(timed(encode, params, captions, repeats=options.repeats), count)
        moved = parallel.nbytes((params, captions)) / count
        floor = measure.floor(one.flops_caption, moved, config.dtype)
        operations = {"MFLOPs": one.flops_caption / 1e6}
        yield Row(f"encode {count} queries, each", timing, floor, operations)


def scaling(config: ConfigDict, options: Options) -> Iterator[Row]:
    """A step and a search at four sizes: both grow linearly with the videos."""
    largest = config.train.batch_size
    for size in sorted({max(largest // part, 1) for part in (8, 4, 2, 1)}):
        config.train.batch_size = size
        training = Training(config, size, 1)
        (window,) = training.feed.chunks()
        timing = timed(training.run, window, repeats=options.repeats)
        facts = {"ms/video": 1e3 * timing.median / size}
        yield Row(f"step, {size} videos", timing, training.floor(), facts)
    videos = options.videos or 2 * SEARCHED_VIDEOS
    for count in (videos // 8, videos // 4, videos // 2, videos):
        stored = random_corpus(config, count, "bfloat16")
        queries = random_queries(stored, 256)
        timing = timed(corpus.search, stored, queries, 10, repeats=options.repeats)
        facts = {"us/video": 1e6 * timing.median / count}
        name = f"search, {count} videos, 256 queries"
        yield Row(name, timing, search_floor(stored, 256), facts)


def random_corpus(config: ConfigDict, videos: int, dtype: str) -> Corpus:
    """A corpus of random vectors, as many a video as the model has, with its scorer."""
    mesh, model = parallel.mesh(), models.build(config)
    size = parallel.round_up(min(BLOCK, videos), mesh.size)

    def encode() -> Any:
        params = models.init_params(model, config)
        return models.encode_video(model, params, models.zero_batch(config, size).videos)

    shapes, treedef = jax.tree.flatten(jax.eval_shape(encode))
    scorer, blocks = scoring.build_scorer(config, model), -(-videos // size)
    stored = corpus.empty(scorer, jax.tree.unflatten(treedef, shapes), blocks, dtype, mesh)

    # Block by block, as an evaluation fills it: all of them in float32 may be too many.
    @functools.partial(jax.jit, donate_argnums=0, out_shardings=corpus.shardings(mesh, stored))
    def fill(stored: Corpus, block: Array) -> Corpus:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), block), len(shapes))
        random = [jax.random.normal(key, one.shape) for key, one in zip(keys, shapes, strict=True)]
        real = block * size + jnp.arange(size) < videos
        return corpus.write(stored, block, jax.tree.unflatten(treedef, random), real)

    for block in range(blocks):
        stored = fill(stored, parallel.replicate(mesh, np.int32(block)))
    return stored


def random_queries(stored: Corpus, count: int) -> Float[Array, "Q H"]:
    """Random queries of the width that a corpus asks for."""
    shape = count, stored.scorer.width(stored.stored)
    return jax.random.normal(jax.random.key(count), shape)


def search_floor(stored: Corpus, queries: int, units: int = 1) -> Floor:
    """Of `queries` queries over `units`: products with every position, the corpus read once."""
    coordinates = [branch.values for branch in stored.stored.values()]
    flops = 2 * queries * sum(x.size for x in coordinates) / parallel.mesh().size / units
    moved = parallel.nbytes(stored) / parallel.mesh().size / units
    dtype = "float32" if coordinates[0].dtype == jnp.float32 else "bfloat16"
    return measure.floor(flops, moved, dtype)


class Archive:
    """Simulated vectors of so many hours of video.

    Attributes:
      videos: number of videos, at least two.
      width: d, of a vector.
    """

    def __init__(self, hours: float, width: int) -> None:
        self.videos = max(round(hours * 3600 / SECONDS), 2)
        self.width = width

    @property
    def frames(self) -> int:
        """Number of frames of all videos."""
        return self.videos * SECONDS

    def vectors(self, video: int) -> Float[np.ndarray, "F d"]:
        """Unit vectors of the frames of a video, float32."""
        scenes, random = self._scenes(video)
        frames = random.standard_normal((SECONDS, self.width), np.float32)
        frames += scenes.repeat(SCENE, axis=0)
        frames /= np.linalg.norm(frames, axis=1, keepdims=True)
        return frames

    def queries(self, count: int) -> Float[np.ndarray, "Q d"]:
        """Queries, each of which a scene answers, of videos spread over the archive."""
        noise = np.random.default_rng(0).standard_normal((count, self.width))
        queries = []
        for i in range(count):
            scenes, _ = self._scenes(i * self.videos // count)
            one, other = (x / np.linalg.norm(x) for x in (scenes[i % len(scenes)], noise[i]))
            queries.append(_TOWARDS * one + np.sqrt(1 - _TOWARDS**2) * other)
        norms = np.linalg.norm(queries, axis=1, keepdims=True)
        return (np.stack(queries) / norms).astype(np.float32)

    def write(
        self, directory: Path, encoder: Any, places: tuple[str, ...], queries: np.ndarray
    ) -> tuple[Index, Int[np.ndarray, "Q best"]]:
        """Writes the archive as the index of an encoder.

        Args:
          directory: a new directory.
          encoder: the encoder that the index names.
          places: where it can be loaded from.
          queries: queries, [Q, d].

        Returns:
          The index, and the best frames for each query by their float32 vectors.
        """
        root = directory.with_name(f"{directory.name}-videos")
        index = Index.create(directory, root, encoder, places=places)
        scores = np.full((len(queries), 0), 0, np.float32)
        frames = np.zeros((len(queries), 0), np.int64)
        with index.writing():
            for video in range(self.videos):
                vectors = self.vectors(video)
                put(index, video, vectors)
                scores = np.concatenate([scores, queries @ vectors.T], axis=1)
                own = np.broadcast_to(video * SECONDS + np.arange(SECONDS), (len(queries), SECONDS))
                frames = np.concatenate([frames, own], axis=1)
                first = np.argpartition(-scores, BEST, axis=1)[:, :BEST]
                scores = np.take_along_axis(scores, first, axis=1)
                frames = np.take_along_axis(frames, first, axis=1)
        return index, frames

    def _scenes(self, video: int) -> tuple[Float[np.ndarray, "scenes d"], np.random.Generator]:
        random = np.random.default_rng((video, 1))
        return random.standard_normal((SECONDS // SCENE, self.width), np.float32), random


def put(index: Index, video: int, vectors: Float[np.ndarray, "F d"]) -> None:
    """Writes a video into an index that is held for writing; rows follow the videos' numbers."""
    times = np.arange(SECONDS, dtype=np.float64)
    edges = np.append(times[::INTERVAL], float(SECONDS))
    spans = np.stack([edges[:-1], edges[1:]], axis=-1)
    means = np.add.reduceat(vectors, np.arange(0, SECONDS, INTERVAL), axis=0) / INTERVAL
    kept = vectors.astype(np.float16)
    arrays = VideoArrays(times, kept, spans, means, np.asarray(float(SECONDS)))
    content = f"{video:08x}" + hashlib.sha256(b"%d" % video).hexdigest()[:56]
    name = f"{video // 100:03}/{video:06}.mp4"
    (index.root / name).parent.mkdir(parents=True, exist_ok=True)
    (index.root / name).touch()  # a search leaves out what is not there
    index.keep(content, arrays, {name: Stamp(0, 1, 1)})


def prepared_encoder(given: str, folder: Path) -> tuple[Any, tuple[str, ...]]:
    """An encoder that is measured with.

    Args:
      given: "base", as large as SigLIP base/16 at 224 pixels, or "tiny", as the demo's; both of
        random parameters. Or a folder, or a hub id.
      folder: a new directory, into which an encoder of random parameters is written.

    Returns:
      The encoder, and where it can be loaded from again.

    Raises:
      UserError: when there is none, or it cannot be read.
    """
    if given not in ("base", "tiny"):
        return load_encoder(given)
    encoders = optional("hlformer_jax.encoders", "search")
    train = optional("hlformer_jax.encoders.train", "search")
    if given == "tiny":
        pixels, size = 48, train.Size(patch=12, tokens=12)
    else:
        pixels, size = 224, train.Size(768, 12, 12, 4, 16, 64, 32_000)
    words = "a person opens the fridge " + " ".join(f"word{i}" for i in range(size.vocabulary))
    encoders.save(train.untrained(pixels, [words], size=size, name=given), folder)
    return load_encoder(folder)


def search(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Queries over archives of 1, 10, 100 and 1,000 hours; the first result of a process.

    What is timed has run before: the files are in the system's cache where they fit into memory.
    """
    del config  # it has no sizes of these
    stores = available_stores()
    with tempfile.TemporaryDirectory(prefix="search-") as temporary:
        folder = Path(temporary)
        encoder, places = prepared_encoder(options.encoder, folder / "encoder")
        archives = [Archive(options.hours / part, encoder.width) for part in (1000, 100, 10, 1)]
        for archive in {one.videos: one for one in archives}.values():
            with tempfile.TemporaryDirectory(dir=folder) as own:
                yield from _of_size(archive, Path(own), encoder, places, options, stores)
                if archive.videos == archives[-1].videos:
                    count = min(STARTS, options.repeats)
                    yield from startup.first_results(Path(own) / "index", count)


def _of_size(
    archive: Archive,
    folder: Path,
    encoder: Any,
    places: tuple[str, ...],
    options: Options,
    stores: dict[str, tuple[int, Callable[[Archive, Path], Ask]]],
) -> Iterator[Row]:
    queries = archive.queries(max(options.repeats, 3) + 1)
    index, truth = archive.write(folder / "index", encoder, places, queries)
    hours = archive.frames / 3600
    size = f"{hours:,.4g} hour{'s' * (hours != 1)}: "
    library = lambda ranker: Library(index.directory, ranker=ranker, encoder=encoder)
    pack = lambda: library("best_frame").ranked() and None
    yield Row(f"{size}rows packed", summary([clock(pack)]), None, {"frames": float(archive.frames)})
    yield from _kernels(size, index, queries, truth)
    for ranker in ("best_frame", "segments"):
        asked = library(ranker)
        sentences = [f"a person opens the word{i}" for i in range(len(queries))]
        asked.query(sentences[0])  # maps, and compiles
        whole = summary([clock(asked.query, sentence, BEST) for sentence in sentences])
        sentence = timed(encoder.sentences, sentences[:1], repeats=5, seconds=1.0)
        facts = {"ms of the sentence": 1e3 * sentence.median}
        yield Row(f"{size}query, {ranker}", whole, None, facts)
    with index.writing():
        put(index, archive.videos, archive.vectors(archive.videos))
    yield Row(f"{size}packed again for a new video", summary([clock(pack)]))
    for name, (most, fill) in stores.items():
        if archive.frames <= most:
            begun = time.perf_counter()
            ask = fill(archive, folder / "store")
            facts = {"s to fill": time.perf_counter() - begun}
            timing, exact = _asked(ask, queries, truth)
            yield Row(size + name, timing, None, facts | exact)


def _kernels(size: str, index: Index, queries: np.ndarray, truth: np.ndarray) -> Iterator[Row]:
    """The ten best frames by the rows of the index, and by rounded ones."""
    files = (index.directory / "packed").glob("best_frame-*")
    [path] = [file for file in files if file.suffixes == [".npy"]]  # the rounded ones have more
    matrix: np.ndarray = np.load(path, mmap_mode="r")
    count, everything = len(matrix), np.ones(len(matrix), bool)

    def row(what: str, ask: Ask, size_of: float, facts: dict[str, float]) -> Row:
        timing, exact = _asked(ask, queries, truth)
        floor = measure.floor(2.0 * matrix.size, size_of)
        return Row(size + what, timing, floor, exact | {"GB": size_of / 1e9} | facts)

    def alone(query: np.ndarray) -> list[int]:
        return _largest(packed.products(matrix, query))

    plain = packed.products(matrix, queries[0])
    yield row("frames, float16", alone, matrix.nbytes, {})
    rounded = packed.kept(path, matrix)
    moved = sum(part.nbytes for part in rounded)
    off = np.abs(packed.rounded_products(rounded, queries[0]) - plain)
    facts = {"largest error": float(off.max()), "bound": float(rounded.error.max())}

    def near(query: np.ndarray) -> list[int]:
        return _largest(packed.rounded_products(rounded, query))

    def exact(query: np.ndarray) -> list[int]:
        scores = packed.best(rounded, matrix, np.arange(count), query, BEST, everything)
        return alone(query) if scores is None else _largest(scores)

    yield row("frames, int8", near, moved, facts)
    yield row("frames, int8, best again", exact, moved, {})


def _largest(scores: np.ndarray) -> list[int]:
    best: list[int] = np.argpartition(-scores, BEST)[:BEST].tolist()
    return best


def _asked(ask: Ask, queries: np.ndarray, truth: np.ndarray) -> tuple[Timing, dict[str, float]]:
    """Times of all queries but the first, which warms up, and how many have the best frames."""
    answers: list[list[int]] = []
    clocks = [clock(lambda query: answers.append(ask(query)), query) for query in queries]
    same = [set(one) == set(other) for one, other in zip(answers, truth.tolist(), strict=True)]
    return summary(clocks[1:]), {"exact, %": 100.0 * float(np.mean(same))}


def available_stores() -> dict[str, tuple[int, Callable[[Archive, Path], Ask]]]:
    """Vector databases that are installed, each with the most frames it is given.

    Each is filled with the float32 vectors of all frames, and asked for the best ones by inner
    product without an approximate index.
    """
    stores: dict[str, tuple[int, Callable[[Archive, Path], Ask]]] = {}
    # Qdrant's local mode advises against more than 20,000 points; twice as many take it 10 s.
    for name, module, most, fill in (
        ("Qdrant local", "qdrant_client", 40_000, _qdrant),
        ("LanceDB", "lancedb", 400_000, _lance),
    ):
        try:
            importlib.import_module(module)
            stores[name] = (most, fill)
        except ImportError:
            print(f"{name} is not measured: {module} is not installed", file=sys.stderr)
    return stores


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
        answer = client.query_points("frames", query=query.tolist(), limit=BEST)
        return [int(point.id) for point in answer.points]

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
        ids: list[int] = search.select(["id", "_distance"]).to_arrow()["id"].to_pylist()
        return ids

    return ask
