"""Work of retrieval: an evaluation, and search in a corpus."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from hlformer_jax import models, parallel
from hlformer_jax.benchmark import measure
from hlformer_jax.benchmark.inputs import Options, Row, each, first_batch, simulated_split
from hlformer_jax.benchmark.measure import Floor, clock, summary, timed
from hlformer_jax.data.feed import VideoFeed, in_order
from hlformer_jax.models.cost import cost
from hlformer_jax.retrieval import corpus, scoring
from hlformer_jax.retrieval.corpus import Corpus
from hlformer_jax.retrieval.evaluation import Evaluator
from hlformer_jax.typing import Array

VALIDATION = 4_917, 17_505
"""Videos and captions of ActivityNet Captions' validation split."""

BLOCK = 256
"""Videos of a corpus that are scored together."""

SEARCHED_VIDEOS = 2_500
"""As in GMMFormer v2's Table 2."""


def evaluate(config: ConfigDict, options: Options, peer: Any = None) -> Iterator[Row]:
    """Encoding and ranking of a validation split of ActivityNet's proportions."""
    videos = options.videos or VALIDATION[0]
    captions = round(videos * VALIDATION[1] / VALIDATION[0])
    mesh, model = parallel.mesh(), models.build(config)
    split = simulated_split(videos, captions, config)
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
    encoding = measure.floor(flops, moved, config.dtype)
    ranking = search_floor(stored, captions)
    both = Floor(*(a + b for a, b in zip(encoding, ranking, strict=True)))
    sizes = {"videos": float(videos), "captions": float(captions)}
    yield Row("evaluate", whole, both, sizes)
    yield Row("  encode", encode, encoding, {"corpus GB": parallel.nbytes(stored) / 1e9})
    yield Row("  rank", rank, ranking, {})
    if peer is None:
        return
    whole_split = VideoFeed(split, in_order(videos, videos, 1), mesh, videos, resident=True)
    (window,) = whole_split.chunks()
    theirs = peer.convert_corpus(*first_batch(whole_split, window))
    clocks = [clock(peer.evaluate, theirs) for _ in range(2)]
    yield Row("evaluation of the released code", summary(clocks), None, {})
    ours = timed(measured, repeats=3)
    yield Row(
        "ours, after it",
        ours,
        None,
        {
            "times as fast": float(np.median(clocks) / ours.median),
        },
    )


def query(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Search in a corpus, for a single query and for batches of 256, in every dtype."""
    videos = options.videos or SEARCHED_VIDEOS
    model = models.build(config)
    params = models.init_params(model, config)
    one = cost(config)
    for dtype in scoring.DTYPES:
        stored = random_corpus(config, videos, dtype)
        for count in (1, 256):
            timing = timed(
                corpus.search, stored, random_queries(stored, count), 10, repeats=options.repeats
            )
            yield Row(
                f"search, {dtype}, {count} at once",
                each(timing, count),
                search_floor(stored, count, count),
                {
                    "bytes/video": parallel.nbytes(stored) / videos,
                    "parameters": float(one.parameters),
                },
            )
    encode = jax.jit(lambda params, captions: models.encode_query(model, params, captions))
    for count in (1, 256):
        captions = models.zero_batch(config, captions=count).captions
        timing = each(timed(encode, params, captions, repeats=options.repeats), count)
        moved = parallel.nbytes((params, captions)) / count
        floor = measure.floor(one.flops_caption, moved, config.dtype)
        operations = {"MFLOPs": one.flops_caption / 1e6}
        yield Row(f"encode {count} queries, each", timing, floor, operations)


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
