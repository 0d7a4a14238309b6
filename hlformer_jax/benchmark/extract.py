"""Videos to vectors, as the command `index` does it, and the share of its parts.

The whole has processes that decode and preprocess beside one that encodes. The parts are timed one
after another in this process, and each has a floor of its own:

    decoding        FFmpeg decoding every frame by PyAV, and converting none. Frames to which no
                    other refers are passed over by `video`, so that it may take less
    preprocessing   Pillow's resizing alone, of pictures that are Pillow's already
    encoding        the operations of the encoder's matrix products

The floor of the whole: that of encoding, which takes all cores, and of the rest spread over them.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import jax
import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from hlformer_jax import command
from hlformer_jax.benchmark import measure
from hlformer_jax.benchmark.measure import Floor, Options, Row, clock, summary, timed
from hlformer_jax.benchmark.query import prepared_encoder
from hlformer_jax.encoders.config import Vision
from hlformer_jax.encoders.encoder import IMAGES_AT_ONCE, MAX_IMAGES_AT_ONCE
from hlformer_jax.search import demo
from hlformer_jax.search import extract as extraction
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.extract import LARGER, default_workers, index_folder, real_video
from hlformer_jax.search.index import Index

RENDERED = 4
"""Videos of the demo that are rendered where no folder is given."""

ROUNDS = 3
"""How often decoding, preprocessing and the whole are timed."""


def extract(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Videos of a folder, or some of the demo's, to vectors of a frame a second."""
    del config  # it has no sizes of these
    with tempfile.TemporaryDirectory(prefix="extract-") as temporary:
        directory = Path(temporary)
        encoder, _ = prepared_encoder(options.encoder, directory / "encoder")
        folder = options.folder or directory / "videos"
        if options.folder is None:
            for story in demo.stories(0, options.videos or RENDERED):
                demo.write_video(story, folder / story.name)
        yield from _rows(folder, directory, encoder)


def _rows(folder: Path, directory: Path, encoder: Any) -> Iterator[Row]:
    video = real_video()
    paths = list(video.find(folder, lambda line: None))
    if not paths:
        raise SearchError(f"{folder} holds no video that FFmpeg reads")
    preprocess = encoder.preparation.apply
    size = LARGER * encoder.image_size
    sample = lambda: [frame.image for path in paths for frame in video.sample(path, 1.0, size)]
    frames = sample()
    prepare = lambda: [preprocess(image) for image in frames]
    pictures = prepare()
    encode = lambda: [
        encoder.images(np.stack(pictures[start : start + extraction.CHUNK]))
        for start in range(0, len(pictures), extraction.CHUNK)
    ]
    encoder.images(np.stack(pictures[:1]))  # compiles
    clocks = [[clock(part) for part in (sample, prepare)] for _ in range(ROUNDS)]
    timings = [summary(part) for part in zip(*clocks, strict=True)]
    timings.append(summary([clock(encode)]))  # of many batches, each of which is a repeat
    floors = [_decoded(paths), _resized(frames, encoder), _encoded(encoder, len(frames))]
    cores = command.cores()
    alone = floors[0].seconds + floors[1].seconds
    least = Floor(floors[2].flops, 0.0, floors[2].seconds + alone / cores)
    seconds = float(len(frames))  # of video: a frame a second
    whole = _indexed(folder, directory, encoder)
    facts = {
        "x real time": seconds / whole.median,
        "videos": float(len(paths)),
        "seconds of video": seconds,
        "decoding processes": float(default_workers()),
    }
    yield Row("index", whole, least, facts)
    total = sum(timing.median for timing in timings)
    names = "decoding", "preprocessing", "encoding"
    for name, timing, floor in zip(names, timings, floors, strict=True):
        facts = {
            "x real time": seconds / timing.median,
            "share, %": 100 * timing.median / total,
            "ms/frame": 1e3 * timing.median / seconds,
        }
        yield Row(f"  {name}", timing, floor, facts)
    yield _program(encoder, pictures[0])


def _indexed(folder: Path, directory: Path, encoder: Any) -> measure.Timing:
    """The whole, each time into a new index."""
    clocks = []
    for attempt in range(ROUNDS):
        index = Index.create(directory / f"index{attempt}", folder, encoder)
        clocks.append(clock(lambda index=index: index_folder(index, encoder, tell=lambda _: None)))
    return summary(clocks)


def _decoded(paths: list[Path]) -> Floor:
    """Every frame, decoded by FFmpeg in one thread, as `video` does."""

    def decode() -> None:
        for path in paths:
            with av.open(str(path)) as container:
                for _ in container.decode(container.streams.video[0]):
                    pass

    return Floor(0.0, 0.0, timed(decode, repeats=ROUNDS).median)


def _resized(frames: list[np.ndarray], encoder: Any) -> Floor:
    """Pillow's resizing to the encoder's size."""
    preparation = encoder.preparation
    kind, pixels = Image.Resampling[preparation.filter.upper()], preparation.size
    images = [Image.fromarray(frame) for frame in frames]
    resize = lambda: [None for image in images if image.resize((pixels, pixels), kind) is None]
    return Floor(0.0, 0.0, timed(resize, repeats=ROUNDS).median)


def _encoded(encoder: Any, images: int) -> Floor:
    return measure.floor(images * operations(encoder.config.vision), 0.0, encoder.dtype)


def _program(encoder: Any, picture: np.ndarray) -> Row:
    """The encoder on a full batch: nothing filled up, nothing beside it."""
    batch = IMAGES_AT_ONCE.get(jax.default_backend(), MAX_IMAGES_AT_ONCE)
    timing = timed(encoder.images, np.stack([picture] * batch), repeats=5)
    floor = _encoded(encoder, batch)
    facts = {
        "ms/frame": 1e3 * timing.median / batch,
        "GFLOP/frame": floor.flops / batch / 1e9,
        "parameters": float(sum(x.size for x in jax.tree.leaves(encoder.params["vision"]))),
    }
    return Row(f"  encoding, a batch of {batch}", timing, floor, facts)


def operations(vision: Vision) -> float:
    """Operations of the matrix products of one image's encoding by SigLIP.

    Its head attends to all patches by one query.
    """
    tokens, width, hidden = vision.grid**2, vision.width, vision.hidden
    patches = tokens * 3 * vision.patch_size**2 * width
    projections = 4 * tokens * width**2 + 2 * tokens * width * hidden
    layer = projections + 2 * tokens**2 * width
    head = 2 * tokens * width**2 + 2 * width**2 + 2 * tokens * width + 2 * width * hidden
    return 2.0 * (patches + vision.layers * layer + head)
